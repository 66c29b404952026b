// One session of a worker: what it holds, when it is lost, and how to take back what it holds.

import { html, useMemo } from "../lib/html.js";
import { path, post, query, useResource } from "../lib/api.js";
import { to } from "../lib/router.js";
import { lostAtMs, standing, useWorkers } from "../lib/workers.js";
import * as format from "../lib/format.js";
import { ActionButton, FormDialog, openDialog, toast } from "./dialog.js";
import { Age, Facts, Loading, Moment, PageHead, Problem, Progress, Relative, Section, State, useNow } from "./parts.js";
import { isRunning, trackJob } from "./running.js";
import { Table } from "./table.js";

const EVERY_MS = 5_000;
const HOLDS_EVERY_MS = 15_000;
const WAIT_S = 5;
const MOST_MESSAGES = 50;

export function Session({ id }) {
  const address = path("sessions", id);
  const one = useResource(address, { everyMs: EVERY_MS });
  const all = useWorkers({ messages: MOST_MESSAGES });
  const worker = all.workers.find((each) => each.session_id === id);
  const session = one.data ?? worker ?? null;
  const reload = () => {
    one.reload();
    all.reload();
  };
  const title = session ? `Worker ${session.holder || id}` : `Session ${id}`;
  const held = worker?.messages ?? null;
  const actions =
    session?.state === "live" &&
    html`<${ActionButton} disabled=${!held?.length} title="End the leases and keep the session" onClick=${() => takeBackAll(session, held, reload)}>
        End all leases
      <//>
      <${ActionButton} kind="danger" onClick=${() => endSession(session, address, reload)}>End the session<//>`;
  return html`<${PageHead} title=${title} crumbs=${[["Workers", to("workers")]]} actions=${actions}>
      ${session && html`<${State} name=${standing({ ...session, stuck: worker?.stuck })} />`}
    <//>
    <${Problem} error=${one.error} retry=${reload} />
    ${one.isLoading && html`<${Loading} lines=${5} />`}
    ${session &&
    html`<p class="explanation"><${Story} session=${session} stuck=${worker?.stuck} /></p>
      <${Section} title="Session">
        <${Facts}
          pairs=${[
            ["Holder", session.holder],
            ["Session", html`<code>${id}</code>`],
            ["Last heartbeat", html`<${Relative} ms=${session.last_heartbeat_ms} /> (<${Moment} ms=${session.last_heartbeat_ms} />)`],
            ["Lost after", `${format.duration(session.timeout_s)} without a heartbeat`],
            ["Watchdog", session.progress_timeout_s == null ? "none" : `ends leases ${format.duration(session.progress_timeout_s)} without progress`],
            ["Started", html`<${Moment} ms=${session.started_at_ms} />`],
            ["Over", session.ended_at_ms == null ? undefined : html`<${Moment} ms=${session.ended_at_ms} />`],
            ["Reason of the end", session.reason ?? undefined],
          ]}
        />
        <p><a href=${to("events", { session: id })}>All events of the session</a></p>
      <//>
      <${Holds} session=${session} held=${held} number=${one.data?.leases ?? worker?.holds} />
      <${Groups} id=${id} isLive=${session.state === "live"} />`}`;
}

function Story({ session, stuck }) {
  const nowMs = useNow();
  const leases = session.leases ?? session.holds ?? 0;
  if (session.state === "lost") return html`It was lost <${Relative} ms=${session.ended_at_ms ?? lostAtMs(session)} />, ${session.reason ?? "without a heartbeat"}: all its leases ended.`;
  if (session.state === "ended") return html`It ended <${Relative} ms=${session.ended_at_ms} />${session.reason ? `: ${session.reason}` : ""}. All its leases ended with it.`;
  const leftS = (lostAtMs(session) - nowMs) / 1000;
  const heard = html`It holds ${format.plural(leases, "message")}. Its last heartbeat was <${Relative} ms=${session.last_heartbeat_ms} />; `;
  const next = leftS > 0 ? `without another it is lost in ${format.duration(leftS)}, and all its leases end` : "it is about to be lost";
  return html`${stuck && html`<strong>It may be stuck: ${stuck}. </strong>`}${heard}${next}.`;
}

function Holds({ session, held, number }) {
  if (session.state !== "live" && !held?.length) return null;
  return html`<${Section} title=${`Messages it holds: ${format.count(number)}`}>
    ${held === null && number > 0 && html`<p class="faint">The session is not among the listed ones: filter the messages of a queue by session.</p>`}
    ${held !== null && held.length === 0 && html`<p class="faint">It holds no messages.</p>`}
    ${held !== null && held.length > 0 && html`<${Table} caption="Messages that the session holds" columns=${COLUMNS} rows=${held} keyOf=${(row) => `${row.queue} ${row.id}`} />`}
    ${held !== null && held.length > 0 && number > held.length && html`<p class="faint">The first ${format.count(held.length)} are shown.</p>`}
  <//>`;
}

const COLUMNS = [
  { key: "id", label: "Message", isMain: true, render: (row) => html`<a class="mono" href=${to("messages", row.queue, row.id)}>${row.id}</a>` },
  { key: "queue", label: "Queue", render: (row) => html`<a href=${to("queues", row.queue)}>${row.queue}</a>` },
  { key: "type", label: "Type", render: (row) => row.type ?? html`<span class="faint">none</span>` },
  { key: "group", label: "Group", render: (row) => (row.group_id == null ? html`<span class="faint">none</span>` : html`<a href=${to("groups", row.queue, row.group_id)}>${row.group_id}</a>`) },
  { key: "since", label: "Held for", align: "number", render: (row) => html`<${Age} ms=${row.since_ms} />` },
  { key: "until", label: "Lease ends", render: (row) => html`<${Relative} ms=${row.until_ms} />` },
  { key: "renewals", label: "Renewals", align: "number", render: (row) => format.count(row.renewals) },
  { key: "delivery", label: "Delivery", align: "number", render: (row) => format.count(row.dequeue_count) },
  { key: "quiet", label: "Quiet for", align: "number", hint: "Time since the last progress report", render: (row) => format.duration(row.quiet_s) },
  {
    key: "progress",
    label: "Progress",
    isMain: true,
    render: (row) => html`${row.progress?.fraction != null && html`${format.percent(row.progress.fraction)} <${Progress} part=${row.progress.fraction} label=${`Progress of ${row.id}`} />`}
      <div class="note-text">${row.progress?.note}</div>`,
  },
];

// The groups that a session holds alone: what the log says it took and did not release since.
function Groups({ id, isLive }) {
  const address = isLive ? `/console/api/events${query({ session: id, type: "group-held,group-released", limit: 200 })}` : null;
  const { data } = useResource(address, { everyMs: HOLDS_EVERY_MS });
  const groups = useMemo(() => heldGroups(data?.events ?? []), [data]);
  if (groups.length === 0) return null;
  return html`<${Section} title=${`Groups it holds: ${groups.length}`}>
    <ul class="held">
      ${groups.map(
        ({ queue, group_id: group, at_ms: atMs }) => html`<li key=${`${queue} ${group}`}>
          <a href=${to("groups", queue, group)}>${group}</a> of <a href=${to("queues", queue)}>${queue}</a>${" "}
          <span class="faint">for <${Age} ms=${atMs} /></span>
        </li>`,
      )}
    </ul>
    ${!data.finished && html`<p class="faint">From the part of the event log that was read; older holds may be missing.</p>`}
  <//>`;
}

// Newest first: the first event of a group says how it is.
function heldGroups(events) {
  const seen = new Set();
  return events.filter((event) => {
    const key = `${event.queue} ${event.group_id}`;
    if (seen.has(key)) return false;
    seen.add(key);
    return event.type === "group-held";
  });
}

function endSession(session, address, reload) {
  openDialog(
    (close) => html`<${FormDialog}
      title="End the session"
      action="End the session"
      danger
      close=${close}
      act=${async ({ reason }) => {
        await post(`${address}/end`, reason.trim() ? { reason: reason.trim() } : {});
        toast(`The session of ${session.holder} is ended.`);
        reload();
      }}
    >
      <p>All ${format.plural(session.leases ?? session.holds ?? 0, "lease")} of <strong>${session.holder}</strong> end at once, and its messages are visible again.
        The server then refuses the worker's receipts. The worker may open another session.</p>
      <label><span>Reason (sent to the worker)</span><input name="reason" maxlength="1024" /></label>
    <//>`,
  );
}

function takeBackAll(session, held, reload) {
  const queues = [...new Set(held.map((each) => each.queue))].sort();
  const ask = (queue, more) =>
    post(path("queues", queue, "change"), { action: "end-lease", filter: { states: ["leased"], session: session.session_id }, wait_s: WAIT_S, ...more });
  openDialog(
    (close) => html`<${FormDialog}
      title="End all leases"
      action="End leases"
      danger
      close=${close}
      preview=${async () => {
        const jobs = await Promise.all(queues.map((queue) => ask(queue, { dry_run: true })));
        const sum = jobs.reduce((total, job) => total + job.matched, 0);
        return html`<p>It would end the leases of <strong>${format.plural(sum, "message")}</strong>${jobs.some(isRunning) ? " or more" : ""}:</p>
          <ul>${jobs.map((job) => html`<li key=${job.queue}>${format.count(job.matched)} of ${job.queue}</li>`)}</ul>`;
      }}
      act=${async ({ delay, reason }) => {
        const delayS = format.seconds(delay) ?? 0;
        let moved = 0;
        for (const queue of queues) {
          const job = await ask(queue, { delay_s: delayS, ...(reason.trim() && { reason: reason.trim() }) });
          if (isRunning(job)) trackJob(job, "End leases", reload);
          moved += job.moved;
        }
        toast(`${format.plural(moved, "message")} released from ${session.holder}.`);
        reload();
      }}
    >
      <p>The leases end, in ${format.plural(queues.length, "queue")}; the session continues and may receive other messages.</p>
      <label><span>Visible again after</span><input name="delay" value="0" autocomplete="off" /><small class="faint">Such as 90, 15m, 2h.</small></label>
      <label><span>Reason (kept with the messages)</span><input name="reason" maxlength="1024" /></label>
    <//>`,
  );
}

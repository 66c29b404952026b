// One message: why it is as it is, what comes next, what it holds, and its life so far.

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { path, query, session as account, useResource } from "../lib/api.js";
import { to } from "../lib/router.js";
import { budgets, whatNext } from "../lib/next.js";
import { POISON_REASONS, tell } from "../lib/story.js";
import * as format from "../lib/format.js";
import { MessageActions } from "../ui/actions.js";
import { Body, SHOWN_BYTES } from "../ui/body.js";
import { Life, useTrace } from "../ui/life.js";
import { NextList } from "../ui/next.js";
import { Age, Copy, Empty, Facts, Loading, Moment, Note, PageHead, Problem, Progress, Relative, Section, Sentence, State, useNow } from "../ui/parts.js";
import { Running } from "../ui/running.js";
import { Table } from "../ui/table.js";
import { Tree } from "../ui/tree.js";

const EVERY_MS = 4_000;
/** Codes of explanations of messages that are not there. */
const ABSENT = new Set(["not-found", "not-an-id"]);
const NEVER_GIVEN = html`<span class="faint">none</span>`;

export default function Message({ parts }) {
  const [queue, id] = parts;
  if (!queue || !id) return html`<${Empty} title="The address has no message"><a href="#/">To the overview</a><//>`;
  return html`<${One} queue=${queue} id=${id} />`;
}

function One({ queue, id }) {
  const address = path("queues", queue, "messages", id);
  const { data: explanation, error: unexplained, isLoading: isAsked, reload } = useResource(`${address}/explain`, { everyMs: EVERY_MS });
  const { message, isGone, error, isLoading } = useMessage(address, explanation);
  const trace = useTrace(queue, id);
  const look = () => {
    reload();
    trace.more();
  };
  const crumbs = [
    ["Queues", to()],
    [queue, to("queues", queue)],
    ["Messages", to("queues", queue, { tab: "messages" })],
  ];
  return html`<${PageHead} title=${`Message ${id}`} crumbs=${crumbs}>
      ${message && !isGone && html`<${State} name=${message.state} />`}
      <${Copy} text=${id} label="Copy the id" />
    <//>
    ${explanation ? html`<p class="explanation"><${Sentence} text=${explanation.sentence} /></p>` : html`<${Problem} error=${unexplained} retry=${look} />`}
    <${Running} queue=${queue} />
    ${isGone && html`<${Gone} trace=${trace} wasSeen=${message !== null} />`}
    ${!isGone && html`<${Problem} error=${error} retry=${look} />`}
    ${(isAsked || isLoading) && html`<${Loading} lines=${8} />`}
    ${message && html`<${Known} ...${{ queue, message, explanation, reload: look, isGone }} />`}
    <${Section} title="History">
      <${Life} trace=${trace} />
    <//>`;
}

// A message as it is now, asked for with each new explanation that it is there: first without its body,
// until that is known to be small enough to come along.
function useMessage(address, explanation) {
  const [isSmall, setSmall] = useState(false);
  const isAbsent = ABSENT.has(explanation?.code);
  const answer = useResource(explanation && !isAbsent ? address + query({ body: isSmall ? undefined : false }) : null);
  const last = useRef(null);
  if (answer.data) last.current = answer.data;
  const size = last.current?.body_bytes;
  useEffect(() => {
    if (size !== undefined) setSmall(size <= SHOWN_BYTES);
  }, [size]);
  useEffect(() => {
    if (answer.data || answer.error) answer.reload();
  }, [explanation]);
  return { ...answer, message: last.current, isGone: isAbsent || answer.error?.status === 404, isLoading: last.current === null && answer.isLoading };
}

function Gone({ trace, wasSeen }) {
  const last = trace.events.at(-1);
  return html`<${Note} tone="warning">
    The message does not exist${last || wasSeen ? " any more" : ""}${last ? html`: <strong>${tell(last).text}</strong>, <${Relative} ms=${last.at_ms} />` : ""}.
    ${wasSeen && " The details below show its last known state."}
  <//>`;
}

function Known({ queue, message, explanation, reload, isGone }) {
  const origin = message.poisoned && message.state === "poisoned" ? message.poisoned.queue : queue;
  const { data: around } = useResource(path("queues", origin));
  // Who may see one queue only is not told of sessions.
  const asked = message.session && !account.value.queue ? path("sessions", message.session) : null;
  const { data: session } = useResource(asked, { everyMs: 3 * EVERY_MS });
  const settings = around?.settings ?? null;
  return html`${!isGone && html`<div class="toolbar"><${MessageActions} queue=${queue} message=${message} reload=${reload} /></div>`}
    ${message.poisoned && html`<${Poisoned} message=${message} />`}
    ${message.cancel &&
    html`<${Note} tone="warning">An operator asked its holder to stop <${Relative} ms=${message.cancel.at_ms} />${message.cancel.reason && `: ${message.cancel.reason}`}.<//>`}
    <div class="columns">
      <div>
        ${!isGone && html`<${Next} ...${{ queue, message, settings, explanation, session }} />`}
        <${Body} queue=${queue} message=${message} />
        <${Properties} message=${message} />
      </div>
      <div>
        ${message.lease && !isGone && html`<${Lease} message=${message} session=${session} />`}
        <${Standing} queue=${queue} message=${message} />
        <${Budgets} message=${message} settings=${settings} />
        ${message.saved != null && html`<${Section} title="Saved progress"><${Tree} value=${message.saved} text=${JSON.stringify(message.saved)} /><//>`}
      </div>
    </div>
    <${Attempts} message=${message} />`;
}

function Poisoned({ message }) {
  const { queue, reason, at_ms: atMs } = message.poisoned;
  const isAskedThere = message.state !== "poisoned";
  return html`<${Note} tone="bad">
    It failed in <a href=${to("queues", queue)}>${queue}</a> and is in the poison queue <a href=${to("queues", message.queue)}>${message.queue}</a>${" "}
    since <${Moment} ms=${atMs} />: ${POISON_REASONS[reason] ?? reason}.${" "}
    ${isAskedThere && html`<a href=${to("messages", queue, message.id)}>Redrive it from its page in ${queue}</a>, `}
    <a href=${to("queues", queue, { tab: "messages", state: "poisoned" })}>All poisoned messages of ${queue}</a>
  <//>`;
}

function Next({ queue, message, settings, explanation, session }) {
  const nowMs = useNow();
  const items = whatNext({ message, settings, explanation, session, nowMs });
  return html`<${Section} title="What comes next">
    ${items.length === 0 && html`<p class="faint">No known next event.</p>`}
    <${NextList} queue=${queue} items=${items} />
  <//>`;
}

function Lease({ message, session }) {
  const { holder, since_ms: sinceMs, until_ms: untilMs, renewals, progress } = message.lease;
  const nowMs = useNow();
  const part = Math.min(1, Math.max(0, (nowMs - sinceMs) / Math.max(1, untilMs - sinceMs)));
  return html`<${Section} title="Lease">
    <${Facts}
      pairs=${[
        ["Holder", holder || html`<span class="faint">unnamed</span>`],
        ["Session", message.session ? html`<a href=${to("workers", message.session)}>${message.session}</a>` : undefined],
        ["Last heartbeat", session ? html`<${Age} ms=${session.last_heartbeat_ms} /> ago` : undefined],
        ["Claim", message.under ? html`<${Under} message=${message} />` : undefined],
        ["Held for", html`<${Age} ms=${sinceMs} />`],
        ["Since", html`<${Moment} ms=${sinceMs} />`],
        ["Ends", html`<${Relative} ms=${untilMs} /> (<${Moment} ms=${untilMs} />)`],
        ["Renewals", format.count(renewals)],
      ]}
    />
    <${Progress} part=${part} label="Elapsed part of the lease" />
    ${progress
      ? html`<div class="said">
          <h3>Progress reported by the holder</h3>
          ${progress.fraction != null && html`<${Progress} part=${progress.fraction} label="Progress of the work" />`}
          <p>
            ${progress.fraction != null && html`<strong>${format.percent(progress.fraction)}</strong>`} ${progress.note}${" "}
            <span class="faint"><${Relative} ms=${progress.at_ms} /></span>
          </p>
        </div>`
      : html`<p class="faint">The holder has not reported progress.</p>`}
  <//>`;
}

// The claim or the transaction that it belongs to.
function Under({ message }) {
  const { under, queue, state } = message;
  if (state === "staged") return html`<a href=${to("transactions", under)}>${under}</a>`;
  const stream = under.slice(0, under.lastIndexOf("/"));
  return html`<a href=${to("streams", queue, stream)}>${under}</a>`;
}

function Standing({ queue, message }) {
  const group = message.group_id;
  return html`<${Section} title="Message">
    <${Facts}
      pairs=${[
        ["State", html`<${State} name=${message.state} />`],
        ["Queue", html`<a href=${to("queues", message.queue)}>${message.queue}</a>`],
        ["Group", group == null ? undefined : html`<a href=${to("groups", queue, group)}>${group}</a>`],
        [message.state === "staged" ? "Transaction" : "Claim", message.under && !message.lease ? html`<${Under} message=${message} />` : undefined],
        ["Put", html`<${Moment} ms=${message.inserted_at_ms} /> (<${Relative} ms=${message.inserted_at_ms} />)`],
        ["First visible", message.first_visible_at_ms == null ? undefined : html`<${Moment} ms=${message.first_visible_at_ms} />`],
        [message.state === "leased" ? "Lease ends" : "Visible from", html`<${Moment} ms=${message.visible_at_ms} />`],
        ["Expires", message.expires_at_ms == null ? "never" : html`<${Moment} ms=${message.expires_at_ms} /> (<${Relative} ms=${message.expires_at_ms} />)`],
        ["Priority", message.priority],
        ["Dequeue count", format.count(message.dequeue_count)],
        ["Fence", format.count(message.fence)],
        ["Redriven", message.redriven ? format.plural(message.redriven, "time") : undefined],
      ]}
    />
  <//>`;
}

function Budgets({ message, settings }) {
  const { failures, interruptions, lapses } = message;
  const of = budgets(message, settings?.failure_policy);
  return html`<${Section} title="Failures">
    <${Facts}
      pairs=${[
        ["Failures", format.count(failures)],
        ["Interruptions", format.count(interruptions)],
        ["Lapses", format.count(lapses)],
      ]}
    />
    ${of.length > 0 &&
    html`<h3>Budgets</h3>
      <ul class="budgets">${of.map(
        ({ name, words, used, of: most }) => html`<li key=${name}>
          <span>${format.count(used)} of ${format.count(most)} ${words}</span>
          <meter min="0" max=${most} value=${Math.min(used, most)} aria-label=${`Budget of ${words}`}>${used} of ${most}</meter>
        </li>`,
      )}</ul>`}
    ${settings && !settings.failure_policy && html`<p class="faint">Its queue has no failure policy: it is retried without limit.</p>`}
  <//>`;
}

function Attempts({ message }) {
  const { attempts, last_error: lastError } = message;
  if (attempts.length === 0) return null;
  return html`<${Section} title=${`Finished attempts: ${attempts.length}`}>
    ${lastError && html`<h3>Last error, <${Moment} ms=${lastError.at_ms} /></h3><${ErrorText} error=${lastError} />`}
    <${Table} caption="Attempts" columns=${ATTEMPTS} rows=${[...attempts].reverse()} keyOf=${(row) => `${row.number} ${row.ended_at_ms}`} />
  <//>`;
}

const ATTEMPTS = [
  { key: "number", label: "Delivery", align: "number", render: (row) => row.number },
  { key: "outcome", label: "Outcome", isMain: true, render: (row) => html`<${State} name=${row.outcome} />` },
  { key: "holder", label: "Holder", isMain: true, render: (row) => row.holder || NEVER_GIVEN },
  { key: "ended", label: "Ended", render: (row) => html`<${Moment} ms=${row.ended_at_ms} />` },
  { key: "took", label: "Took", align: "number", render: (row) => format.duration((row.ended_at_ms - row.leased_at_ms) / 1000) },
  { key: "renewals", label: "Renewals", align: "number", render: (row) => format.count(row.renewals) },
  { key: "error", label: "Error", isMain: true, render: (row) => (row.error ? html`<${ErrorText} error=${row.error} isShort />` : NEVER_GIVEN) },
];

function ErrorText({ error, isShort = false }) {
  const text = error.text ?? "";
  const line = text.split("\n", 1)[0];
  if (isShort && text.length > line.length) {
    return html`<details class="on-demand"><summary>${error.type && html`<strong>${error.type}: </strong>`}${line}</summary><pre>${text}</pre></details>`;
  }
  if (isShort) return html`${error.type && html`<strong>${error.type}: </strong>`}${text}`;
  return html`<p>${error.type && html`<strong>${error.type}</strong>`}${error.fingerprint && html` <code class="faint">${error.fingerprint}</code>`}</p>
    <pre tabindex="0" aria-label="Text of the error">${text}</pre>`;
}

function Properties({ message }) {
  const names = Object.keys(message.properties ?? {}).sort();
  const given = [
    ["Type", message.type],
    ["Deduplication key", message.dedup_key],
    ["Trace", message.traceparent],
  ].filter(([, value]) => value != null);
  return html`<${Section} title="Headers and properties">
    ${given.length > 0 && html`<${Facts} pairs=${given.map(([name, value]) => [name, html`<span class="mono">${value}</span>`])} />`}
    ${names.length === 0
      ? html`<p class="faint">It has no properties.</p>`
      : html`<${Table} caption="Properties" columns=${PROPERTIES} rows=${names.map((name) => ({ name, value: message.properties[name] }))} keyOf=${(row) => row.name} />`}
  <//>`;
}

const PROPERTIES = [
  { key: "name", label: "Name", isMain: true, render: (row) => html`<span class="mono">${row.name}</span>` },
  { key: "value", label: "Value", isMain: true, render: (row) => html`<span class="mono">${row.value}</span>` },
];

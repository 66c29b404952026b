// Workers: the sessions, what each holds, and how long it was last heard of.

import { html } from "../lib/html.js";
import { totals } from "../lib/live.js";
import { setParams, to } from "../lib/router.js";
import { useStore } from "../lib/store.js";
import { lostAtMs, standing, useWorkers } from "../lib/workers.js";
import * as format from "../lib/format.js";
import { Age, Count, Empty, Loading, PageHead, Problem, Progress, Relative, Stat, State } from "../ui/parts.js";
import { Session } from "../ui/session.js";
import { Refresh, useSteady } from "../ui/steady.js";
import { Table } from "../ui/table.js";

const SHOWN_MESSAGES = 3;
const STANDINGS = ["stuck", "live", "lost", "ended"];

export default function Workers({ parts, params }) {
  const [id] = parts;
  return id ? html`<${Session} id=${id} />` : html`<${All} params=${params} />`;
}

function All({ params }) {
  const { search = "", state = "" } = params;
  const { workers, counts, more, error, isLoading, reload } = useWorkers();
  const found = workers.filter((worker) => matches(worker, search, state));
  const steady = useSteady(found, (worker) => worker.session_id, `${search} ${state}`);
  const held = workers.reduce((sum, worker) => sum + worker.holds, 0);
  const leased = useStore(totals)?.leased;
  return html`<${PageHead} title="Workers" />
    <div class="stats">
      ${STANDINGS.map(
        (name) => html`<${Stat} key=${name} label=${name} tone=${counts[name] && (name === "stuck" || name === "lost") ? "bad" : ""} href=${to("workers", { state: name })}>
          ${format.count(counts[name] ?? 0)}
        <//>`,
      )}
      <${Stat} label="messages held by sessions">${format.count(held)}<//>
      ${leased !== undefined && more === 0 && html`<${Stat} label="other leases" hint="in claims, or of clients without a session">${format.count(Math.max(0, leased - held))}<//>`}
    </div>
    <div class="toolbar">
      <input type="search" aria-label="Search workers by holder, session or message" placeholder="Holder, session, queue or message" value=${search}
        onInput=${(event) => setParams({ search: event.currentTarget.value })} />
      <label class="inline"><span>State</span>
        <select value=${state} onChange=${(event) => setParams({ state: event.currentTarget.value })}>
          <option value="">all</option>
          ${STANDINGS.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
        </select>
      </label>
      <span class="faint" role="status">${format.plural(found.length, "session")}${more > 0 && `, and ${format.count(more)} more not listed`}</span>
      <${Refresh} steady=${steady} word="list" />
    </div>
    <${Problem} error=${error} retry=${reload} />
    ${isLoading
      ? html`<${Loading} lines=${6} />`
      : found.length === 0 && steady.rows.length === 0
        ? html`<${Empty} title=${workers.length ? "No session matches the filter" : "No worker has a session"}>
            ${workers.length === 0 && "Sessions of workers are shown here while they are live and for an hour afterwards. To find clients without a session, filter the messages of their queue by holder."}
          <//>`
        : html`<${Table} caption="Sessions of workers, stuck ones first" columns=${COLUMNS} rows=${steady.rows} keyOf=${(worker) => worker.session_id}
            rowClass=${(worker) => (worker.isGone ? "is-gone" : "")} />`}`;
}

function matches(worker, search, state) {
  if (state && standing(worker) !== state) return false;
  if (!search.trim()) return true;
  const part = search.trim().toLowerCase();
  const texts = [worker.holder, worker.session_id, ...worker.messages.flatMap(({ queue, id }) => [queue, id])];
  return texts.some((text) => text?.toLowerCase().includes(part));
}

const COLUMNS = [
  {
    key: "holder",
    label: "Worker",
    isMain: true,
    render: (worker) => html`<a href=${to("workers", worker.session_id)}>${worker.holder || worker.session_id}</a>
      <div class="faint mono whole">${worker.session_id}</div>`,
  },
  {
    key: "state",
    label: "State",
    render: (worker) => html`<${State} name=${standing(worker)} />${worker.stuck && html`<div class="faint note-text">${worker.stuck}</div>`}`,
  },
  { key: "heartbeat", label: "Last heartbeat", align: "number", render: (worker) => html`<${Heartbeat} worker=${worker} />` },
  { key: "holds", label: "Holds", align: "number", render: (worker) => html`<${Count} value=${worker.holds} href=${to("workers", worker.session_id)} label="messages held" />` },
  { key: "messages", label: "Messages and progress", isMain: true, render: (worker) => html`<${Held} worker=${worker} />` },
  { key: "started", label: "Started", render: (worker) => html`<${Relative} ms=${worker.started_at_ms} />` },
];

function Heartbeat({ worker }) {
  if (worker.state !== "live") return html`<${Relative} ms=${worker.last_heartbeat_ms} />`;
  return html`<span title=${`Lost without a heartbeat by ${format.moment(lostAtMs(worker))}`}><${Age} ms=${worker.last_heartbeat_ms} /> ago</span>
    <div class="faint">of ${format.duration(worker.timeout_s)}</div>`;
}

function Held({ worker }) {
  const shown = worker.messages.slice(0, SHOWN_MESSAGES);
  if (shown.length === 0) return html`<span class="faint">nothing</span>`;
  const rest = worker.holds - shown.length;
  return html`<ul class="held">
    ${shown.map(
      (message) => html`<li key=${message.id}>
        <a href=${to("messages", message.queue, message.id)}>${message.queue} <span class="mono">${message.id}</span></a>
        <${Quiet} message=${message} />
        ${message.progress?.fraction != null && html`<${Progress} part=${message.progress.fraction} label=${`Progress of ${message.id}`} />`}
        ${message.progress?.note && html`<div class="faint note-text">${message.progress.note}</div>`}
      </li>`,
    )}
    ${rest > 0 && html`<li><a href=${to("workers", worker.session_id)}>and ${format.count(rest)} more</a></li>`}
  </ul>`;
}

function Quiet({ message }) {
  const percent = message.progress?.fraction == null ? "" : `${format.percent(message.progress.fraction)}, `;
  return html` <span class="faint">${percent}held for <${Age} ms=${message.since_ms} />, quiet for ${format.duration(message.quiet_s)}</span>`;
}

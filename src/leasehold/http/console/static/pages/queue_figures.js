// The overview of one queue: why messages are or are not received, how it moves, what else there is to do.

import { html, useMemo } from "../lib/html.js";
import { path, query, remove, useResource } from "../lib/api.js";
import { go, setParams, to } from "../lib/router.js";
import * as format from "../lib/format.js";
import { BULK_ACTIONS, actOnAll } from "../ui/bulk.js";
import { ActionButton, FormDialog, openDialog, toast } from "../ui/dialog.js";
import { pageOf } from "../ui/filter.js";
import { Facts, Loading, Moment, Note, Problem, Relative, Section, Sentence } from "../ui/parts.js";
import { Plot } from "../ui/plot.js";

const EXPLAIN_EVERY_MS = 10_000;
const FIGURES_EVERY_MS = 15_000;
const SPANS = [
  ["15m", "15 minutes", 15, 60],
  ["1h", "hour", 60, 60],
  ["6h", "6 hours", 360, 60],
  ["1d", "day", 1_440, 60],
];
const SERIES = [
  { label: "put", unit: format.rate },
  { label: "completed", unit: format.rate },
  { label: "failed", unit: format.rate },
  { label: "received", unit: format.rate, dash: [4, 4] },
];

export default function QueueFigures({ queue, info, counts, live, poisonQueue, params, reload }) {
  const span = SPANS.find(([key]) => key === params.span) ?? SPANS[1];
  const [, , bucketS, buckets] = span;
  const figures = useResource(
    `/console/api/queues/${encodeURIComponent(queue)}/figures${query({ bucket_s: bucketS, buckets })}`,
    { everyMs: FIGURES_EVERY_MS },
  );
  return html`<${Explanation} queue=${queue} />
    <${Find} queue=${queue} />
    <${Poisoned} queue=${queue} info=${info} counts=${counts} poisonQueue=${poisonQueue} reload=${reload} />
    <${Throughput} span=${span} figures=${figures} live=${live} />
    <div class="columns">
      <${Times} figures=${figures} />
      <${Activity} queue=${queue} info=${info} />
    </div>
    <${Adaptive} adaptive=${figures.data?.adaptive} queue=${queue} />
    <${Danger} queue=${queue} reload=${reload} />`;
}

function Explanation({ queue }) {
  const { data, error, isLoading, reload } = useResource(path("queues", queue, "explain"), { everyMs: EXPLAIN_EVERY_MS });
  if (isLoading) return html`<${Loading} lines=${1} />`;
  return html`<${Problem} error=${error} retry=${reload} />
    ${data && html`<p class="explanation"><${Sentence} text=${data.sentence} /></p>`}`;
}

function Find({ queue }) {
  const submit = (event) => {
    event.preventDefault();
    go(pageOf(queue, event.currentTarget.elements.search.value));
  };
  return html`<form class="toolbar" role="search" aria-label="Messages" onSubmit=${submit}>
    <input type="search" name="search" class="long" aria-label="Find a message" placeholder="Find a message: text, id, or error:timeout failed:12:00" />
    <button type="submit">Find</button>
  </form>`;
}

// --- figures -------------------------------------------------------------------------------------

function Throughput({ span, figures, live }) {
  const { data, error, isLoading, reload } = figures;
  const [key, name] = span;
  const columns = useMemo(() => columnsOf(data?.buckets ?? []), [data]);
  const choose = html`<label class="inline"><span class="hidden-visually">Time shown</span>
    <select value=${key} onChange=${(event) => setParams({ span: event.currentTarget.value })}>
      ${SPANS.map(([each, label]) => html`<option key=${each} value=${each}>last ${label}</option>`)}
    </select></label>`;
  return html`<${Section} title="Throughput" actions=${choose}>
    ${error?.status === 404
      ? html`<p class="faint">The server does not provide past figures.</p>`
      : html`<${Problem} error=${error} retry=${reload} />`}
    ${isLoading && html`<${Loading} lines=${6} />`}
    ${data?.logged === false && html`<${Note}>The queue's events are not recorded, so there are no past figures. The setting is <code>event_log</code>.<//>`}
    ${data?.logged && html`<${Plot} data=${columns} series=${SERIES} label=${inWords(columns, name)} />`}
    ${data?.logged && data.complete === false && data.reached_ms && html`<p class="faint">Figures reach back to <${Moment} ms=${data.reached_ms} />; older events were not read.</p>`}
    ${live?.in_per_s != null && html`<p class="faint">Now: ${format.rate(live.in_per_s)} put, ${format.rate(live.out_per_s)} completed, ${format.rate(live.failed_per_s)} failed.</p>`}
  <//>`;
}

const columnsOf = (buckets) => [
  buckets.map((each) => each.at_ms / 1000),
  ...SERIES.map(({ label }) => buckets.map((each) => each[label])),
];

// The plot in words, for those who do not see it.
function inWords([times, ...columns], name) {
  const means = columns.map((values, place) => {
    const known = values.filter((value) => value !== null);
    const mean = known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
    return `${SERIES[place].label} ${format.rate(mean)}`;
  });
  return `Messages per second over the last ${name}, in ${times.length} steps; on average ${means.join(", ")}`;
}

const PERCENTILES = [
  ["p50", "Half are within"],
  ["p90", "90 % are within"],
  ["p99", "99 % are within"],
  ["max", "Longest"],
];

function Times({ figures }) {
  const { data } = figures;
  const dwell = data?.dwell_s;
  const handling = data?.handling_s;
  return html`<${Section} title="Waiting and handling">
    ${!dwell && !handling
      ? html`<p class="faint">No receives were recorded recently.</p>`
      : html`<div class="table-wrap"><table>
          <caption class="hidden-visually">Times that messages waited and were handled</caption>
          <thead><tr><th scope="col">Time</th><th scope="col" class="number">From visible to received</th><th scope="col" class="number">From received to completed</th></tr></thead>
          <tbody>
            ${PERCENTILES.map(
              ([key, label]) => html`<tr key=${key}><td class="main">${label}</td>
                <td class="number" data-label="From visible to received">${format.duration(dwell?.[key])}</td>
                <td class="number" data-label="From received to completed">${format.duration(handling?.[key])}</td></tr>`,
            )}
            <tr><td class="main">Messages</td>
              <td class="number" data-label="From visible to received">${format.count(dwell?.count)}</td>
              <td class="number" data-label="From received to completed">${format.count(handling?.count)}</td></tr>
          </tbody>
        </table></div>`}
  <//>`;
}

function Activity({ queue, info }) {
  const { activity, settings, created_at_ms: createdMs, counts } = info;
  const oldest = counts.oldest_age_s ?? {};
  return html`<${Section} title="Activity" actions=${html`<a href=${to("events", { queue })}>Events</a>`}>
    <${Facts}
      pairs=${[
        ["Last put", html`<${Relative} ms=${activity.last_send_ms} />`],
        ["Last received", html`<${Relative} ms=${activity.last_receive_ms} />${activity.last_receiver && ` by ${activity.last_receiver}`}`],
        ["Last completed", html`<${Relative} ms=${activity.last_complete_ms} />`],
        ["Waiting receives", format.count(activity.waiting)],
        ["Oldest visible message", oldest.visible === undefined ? "–" : format.duration(oldest.visible)],
        ["Oldest lease", oldest.leased === undefined ? "–" : format.duration(oldest.leased)],
        ["Visibility timeout", format.duration(info.visibility_timeout_s)],
        ["Receive rate limit", settings.max_receives_per_s === null ? undefined : format.rate(settings.max_receives_per_s)],
        ["In claims", counts.claimed ? html`<a href=${to("queues", queue, { tab: "streams" })}>${format.count(counts.claimed)}</a>` : undefined],
        ["Created", html`<${Moment} ms=${createdMs} />`],
      ]}
    />
    <p class="faint">Since the server started <${Relative} ms=${activity.since_ms} />:
      ${" "}${format.count(activity.sent)} put, ${format.count(activity.received)} received
      ${" "}(${format.count(activity.redelivered)} again), ${format.count(activity.completed)} completed, ${format.count(activity.released)} released,
      ${" "}${format.count(activity.poisoned)} poisoned, ${format.count(activity.rejected_receipts)} receipts refused.</p>
  <//>`;
}

function Adaptive({ adaptive, queue }) {
  if (!adaptive?.enabled) return null;
  const history = adaptive.history ?? [];
  const data = [history.map((each) => each.at_ms / 1000), history.map((each) => each.timeout_s)];
  return html`<${Section} title="Adaptive visibility timeout" actions=${html`<a href=${to("queues", queue, { tab: "advice" })}>Advice</a>`}>
    <p>It is <strong>${format.duration(adaptive.timeout_s)}</strong> now${adaptive.because && html`: ${adaptive.because}`}</p>
    ${history.length > 1 &&
    html`<${Plot} data=${data} series=${[{ label: "timeout", unit: format.duration, isStepped: true }]} label=${`Timeout over time, now ${format.duration(adaptive.timeout_s)}`} />`}
  <//>`;
}

// --- what else there is to do --------------------------------------------------------------------

const actionNamed = (name) => BULK_ACTIONS.find(({ key }) => key === name);
const PURGE = { ...actionNamed("remove"), label: "Purge" };

function Poisoned({ queue, info, counts, poisonQueue, reload }) {
  const place = poisonQueue ?? info.settings.failure_policy?.poison_queue ?? `${queue}-poison`;
  if (!counts.poisoned) return null;
  const redrive = () =>
    actOnAll(queue, actionNamed("redrive"), { state: "poisoned" }, reload, {
      title: `Redrive poisoned messages of ${queue}`,
      narrowing: ["error", "since", "type", "group"],
    });
  const purge = () => actOnAll(queue, PURGE, { state: "poisoned" }, reload, { type: queue, title: `Purge poisoned messages of ${queue}` });
  const actions = html`<${ActionButton} kind="primary" onClick=${redrive}>Redrive<//>
    <${ActionButton} kind="danger" onClick=${purge}>Purge poisoned messages<//>`;
  return html`<${Section} title="Poisoned messages" actions=${actions}>
    <p><a href=${to("queues", queue, { tab: "messages", state: "poisoned" })}>${format.plural(counts.poisoned, "message")}</a>
      ${" "}are in the poison queue <a href=${to("queues", place)}>${place}</a>.</p>
  <//>`;
}

function Danger({ queue, reload }) {
  // What was poisoned is spared: it has a purge of its own.
  const purge = () => actOnAll(queue, PURGE, { state: "visible,delayed,deferred,leased" }, reload, { type: queue, title: `Purge ${queue}` });
  return html`<${Section} title="Purge and delete">
    <div class="actions">
      <${ActionButton} kind="danger" onClick=${purge}>Purge messages<//>
      <${ActionButton} kind="danger" onClick=${() => deleteQueue(queue)}>Delete the queue<//>
    </div>
  <//>`;
}

function deleteQueue(queue) {
  const act = async () => {
    await remove(path("queues", queue));
    toast(`The queue ${queue} is deleted.`);
    go(to());
  };
  openDialog(
    (close) => html`<${FormDialog} title=${`Delete ${queue}`} action="Delete the queue" danger type=${queue} close=${close} act=${act}>
      <p>The queue and all its messages are permanently removed, including leased messages. Its poison queue is kept.</p>
    <//>`,
  );
}

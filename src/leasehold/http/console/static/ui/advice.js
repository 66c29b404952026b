// Advice for a queue's visibility timeout: what was found, what it would change, and the timeout
// that follows the work by itself.

import { html, useMemo } from "../lib/html.js";
import { patch, path, useResource } from "../lib/api.js";
import * as format from "../lib/format.js";
import { ActionButton, FormDialog, openDialog, toast } from "./dialog.js";
import { Empty, Facts, Loading, Moment, Note, Problem, Relative, Section } from "./parts.js";
import { undoOf } from "./pause.js";
import { Plot } from "./plot.js";
import { Table } from "./table.js";

const EVERY_MS = 30_000;
const FIGURES_EVERY_MS = 10_000;
const QUEUE_EVERY_MS = 10_000;

/** The tab of a queue. `info` is the queue as its page knows it; without it, it is asked for. */
export default function Advice({ queue, info, reload }) {
  const advice = useResource(`/console/api/queues/${encodeURIComponent(queue)}/advice`, { everyMs: EVERY_MS });
  const figures = useResource(`/console/api/queues/${encodeURIComponent(queue)}/figures`, { everyMs: FIGURES_EVERY_MS });
  const own = useResource(info ? null : path("queues", queue), { everyMs: QUEUE_EVERY_MS });
  const current = info ?? own.data;
  const again = () => {
    advice.reload();
    (reload ?? own.reload)();
  };
  if (!current) return own.error ? html`<${Problem} error=${own.error} retry=${own.reload} />` : html`<${Loading} />`;
  return html`<${Section} title="What the log advises"><${Advised} ...${{ queue, current, advice, again }} /><//>
    ${current.settings.advised && html`<${Section} title="Advice in force"><${InForce} ...${{ queue, current, undo: advice.data?.undo, again }} /><//>`}
    <${Section} title="The timeout as it follows the work"><${Adapting} queue=${queue} current=${current} figures=${figures} /><//>`;
}

function Advised({ queue, current, advice, again }) {
  const { data, error, isLoading, reload } = advice;
  if (isLoading) return html`<${Loading} />`;
  if (error?.status === 404 && !data) return html`<${Note} tone="warning">This server gives no advice.<//>`;
  if (!data) return html`<${Problem} error=${error} retry=${reload} />`;
  if (data.available === false) return html`<${NotThere} answer=${data} />`;
  const found = readAdvice(data, current);
  return html`<${Problem} error=${error} />
    <p class="explanation">${headlineOf(found)}</p>
    ${!found.isEnough &&
    html`<${Note} tone="info">
      Too little is known yet: ${format.plural(Math.round(found.finished), "attempt")} ${found.finished === 1 ? "was" : "were"} seen to end.
      Thirty are the least for a model of the work; until then this is a start and no more.
    <//>`}
    ${found.drift && html`<${Note} tone="warning">${found.drift}<//>`}
    <div class="toolbar">
      ${found.patch
        ? html`<${ActionButton} kind="primary" onClick=${() => apply(queue, current, found, again)}>Apply…<//>`
        : html`<span class="faint">${found.sentence || "There is nothing to change."}</span>`}
    </div>
    ${found.survival.length > 1 && html`<${Curve} found=${found} />`}
    ${found.choices.length > 0 && html`<h3>What it would change</h3><${Choices} found=${found} />`}
    <h3>What it rests on</h3>
    <${Facts}
      pairs=${[
        ["Attempts seen to end", format.count(Math.round(found.finished))],
        ["Cut off: lapsed, lost, or still going on", known(found.censored, (value) => format.count(Math.round(value)))],
        ["A worker dies once in", known(found.crashEveryS, (value) => `${format.duration(value)} of work`)],
        ["Longest attempt seen", known(found.longestS, format.duration)],
        ["Half the work takes up to", known(found.medianS, format.duration)],
        ["99 % take up to", known(found.p99S, format.duration)],
        ["As good, as estimated", found.asGood ? `${format.duration(found.asGood[0])} to ${format.duration(found.asGood[1])}` : undefined],
        ["What can be promised", found.promise ?? undefined],
        ["The workers renew", found.renews == null ? undefined : found.renews ? "yes" : "no"],
        ["For workers that renew", found.renewal ? `first lease ${format.duration(found.renewal.first_s)}, renewed every ${format.duration(found.renewal.every_s)}` : undefined],
        ["Looked at since", found.sinceMs ? html`<${Moment} ms=${found.sinceMs} />` : undefined],
      ]}
    />`;
}

const known = (value, write) => (value == null ? undefined : write(value));

function NotThere({ answer }) {
  return html`<${Empty} title="The server cannot give advice">
    <p>${answer.why}</p>
    ${answer.extra &&
    html`<p>Install the extra <strong>${answer.extra}</strong> where the server runs, and start it again: <code>pip install 'leasehold[${answer.extra}]'</code></p>`}
  <//>`;
}

// The server's answer in the form that is shown here. Members are those of a recommendation of the
// advisor, with what could be written into the settings.
function readAdvice(data, current) {
  const point = (each) => (Array.isArray(each) ? { seconds: each[0], share: each[1], low: each[2], high: each[3] } : each);
  return {
    isEnough: data.enough ?? data.is_enough ?? data.basis === "model",
    because: data.because ?? "",
    todayS: data.today_s ?? current.visibility_timeout_s,
    timeoutS: data.timeout_s ?? data.advised_s,
    renews: data.renews,
    finished: data.finished ?? 0,
    censored: data.censored,
    crashEveryS: data.crash_every_s,
    longestS: data.longest_s,
    medianS: data.median_s,
    p99S: data.p99_s,
    asGood: data.as_good_s ?? null,
    promise: data.promise,
    renewal: data.renewal,
    drift: typeof data.drift === "string" ? data.drift : data.drift_z ? `The work of late is ${data.drift_z > 0 ? "quicker" : "slower"} than before: older attempts count for less.` : "",
    sinceMs: data.since_ms,
    survival: (data.survival ?? data.curve ?? []).map(point),
    choices: data.choices ?? [],
    patch: data.patch ?? null,
    sentence: data.sentence ?? "",
  };
}

function headlineOf({ todayS, timeoutS, because, renews, patch, isEnough }) {
  const why = because ? `: ${because}.` : ".";
  if (!patch || timeoutS == null) return `The visibility timeout is ${format.duration(todayS)}${why}`;
  if (renews) return `The workers renew, so the timeout may stay at ${format.duration(todayS)}; a plan for renewal is advised${why}`;
  const step = timeoutS === todayS ? "stay at" : timeoutS > todayS ? "be lengthened to" : "be shortened to";
  return `${isEnough ? "" : "As a start, "}${isEnough ? "The" : "the"} visibility timeout of ${format.duration(todayS)} should ${step} ${format.duration(timeoutS)}${why}`;
}

const percent = (value) => format.percent(value);
const SURVIVAL = [
  { label: "still at work", unit: percent },
  { label: "between", unit: percent, dash: [4, 4] },
  { label: "and", unit: percent, dash: [4, 4] },
];

function Curve({ found }) {
  const { survival, todayS, timeoutS } = found;
  const data = useMemo(() => ["seconds", "share", "low", "high"].map((name) => survival.map((each) => each[name] ?? null)), [survival]);
  const marks = [{ at: todayS, text: "timeout now", tone: "--red" }];
  if (timeoutS != null && timeoutS !== todayS) marks.push({ at: timeoutS, text: "advised", tone: "--green" });
  const label = `Share of the work that is still going on after a time. ${shareAt(survival, todayS)} takes longer than the timeout now${
    timeoutS == null ? "" : `, ${shareAt(survival, timeoutS)} longer than the one advised`
  }.`;
  return html`<h3>How long the work takes</h3>
    <p class="faint">${label} The dashed lines are the band of 95 %; where there is none, the curve is a guess from the tail.</p>
    <${Plot} data=${data} series=${SURVIVAL} label=${label} isTime=${false} xUnit=${format.duration} marks=${marks} height=${240} />`;
}

function shareAt(survival, seconds) {
  const after = survival.find((each) => each.seconds >= seconds) ?? survival.at(-1);
  return format.percent(after.share);
}

// Names that the advisor gives choices, in words.
const NAMES = { today: "the timeout now", advice: "as advised", renewal: "with renewal, as planned" };

const CHOICE_COLUMNS = [
  { key: "name", label: "Timeout", isMain: true, render: ({ name }) => NAMES[name] ?? name },
  { key: "timeout", label: "Seconds", align: "number", render: ({ timeout_s: value }) => format.duration(value) },
  { key: "again", label: "Delivered again", align: "number", hint: "Deliveries that are not a message's first", render: ({ redeliveries }) => whole(redeliveries) },
  { key: "twice", label: "Work done twice", align: "number", render: ({ wasted_work_s: value }) => format.duration(value) },
  { key: "never", label: "Never fits", align: "number", hint: "Messages whose work is longer than any of their leases", render: ({ given_up: value }) => whole(value) },
  { key: "recovery", label: "Late after a death", align: "number", hint: "How long a message stays hidden on average after its worker died", render: ({ mean_recovery_s: value }) => format.duration(value) },
  { key: "worst", label: "At worst", align: "number", render: ({ worst_recovery_s: value }) => format.duration(value) },
  { key: "cost", label: "Cost", align: "number", hint: "What is weighed: seconds of waiting per message, beyond the work", render: ({ cost }) => format.duration(cost) },
];

const whole = (value) => (value == null ? "–" : format.count(Math.round(value)));

function Choices({ found }) {
  const order = ["today", "advice", "renewal"];
  const rank = ({ name }) => (order.includes(name) ? order.indexOf(name) : order.length);
  const rows = [...found.choices].sort((one, other) => rank(one) - rank(other));
  return html`<p class="faint">The messages of the log, as each choice would have met them: expected values.</p>
    <${Table} caption="What timeouts would mean" columns=${CHOICE_COLUMNS} rows=${rows} keyOf=${({ name }) => name} />`;
}

const SETTING_NAMES = {
  visibility_timeout_s: "Visibility timeout, s",
  "adaptive.floor_s": "Adapts, not below, s",
  "adaptive.cap_s": "Adapts, not above, s",
  "advised.first_lease_s": "Told to workers that renew: first lease, s",
  "advised.renew_every_s": "Told to workers that renew: every, s",
  "advised.batch": "Told to workers: messages at once, at most",
};

// What a merge patch would change, for those who have to agree to it.
function Diff({ settings, change }) {
  const read = (object, name) => name.split(".").reduce((at, part) => at?.[part], object);
  const rows = Object.entries(SETTING_NAMES)
    .filter(([name]) => {
      const [first] = name.split(".");
      return first in change && read(settings, name) !== (read(change, name) ?? undefined);
    })
    .map(([name, label]) => ({ label, before: read(settings, name), after: read(change, name) }))
    .filter(({ before, after }) => (before ?? null) !== (after ?? null));
  if (rows.length === 0) return html`<p class="faint">No setting that matters to receives changes.</p>`;
  const columns = [
    { key: "label", label: "Setting", isMain: true, render: ({ label }) => label },
    { key: "before", label: "Now", align: "number", render: ({ before }) => html`<del>${before ?? "–"}</del>` },
    { key: "after", label: "Then", align: "number", render: ({ after }) => html`<ins>${after ?? "–"}</ins>` },
  ];
  return html`<${Table} caption="Settings that change" columns=${columns} rows=${rows} keyOf=${({ label }) => label} />`;
}

function apply(queue, current, found, again) {
  change(queue, current, again, {
    title: `Apply the advice to ${queue}`,
    action: "Apply",
    done: "The advice is in force.",
    settings: found.patch,
    sentence: found.sentence,
  });
}

function change(queue, current, again, { title, action, done, settings, sentence }) {
  openDialog(
    (close) => html`<${FormDialog}
      title=${title}
      action=${action}
      close=${close}
      act=${async () => {
        const answer = await patch(path("queues", queue), { settings });
        toast(done, { undo: undoOf(queue, answer, again) });
        again();
      }}
    >
      ${sentence && html`<p>${sentence}</p>`}
      <${Diff} settings=${current.settings} change=${settings} />
    <//>`,
  );
}

function InForce({ queue, current, undo, again }) {
  const { advised } = current.settings;
  const takeBack = () =>
    change(queue, current, again, {
      title: `Take back the advice of ${queue}`,
      action: "Take back",
      done: "The queue is as it was before the advice.",
      settings: undo.patch,
      sentence: undo.sentence,
    });
  return html`<${Facts}
      pairs=${[
        ["Since", advised.at_ms ? html`<${Relative} ms=${advised.at_ms} /> (<${Moment} ms=${advised.at_ms} />)` : undefined],
        ["Timeout that was set", known(advised.visibility_timeout_s, format.duration)],
        ["Before", known(advised.before_s, format.duration)],
        ["Bounds that were set", advised.floor_s == null ? undefined : `${format.duration(advised.floor_s)} to ${format.duration(advised.cap_s)}`],
        ["Told to workers that renew", advised.first_lease_s == null ? undefined : `first lease ${format.duration(advised.first_lease_s)}, renewed every ${format.duration(advised.renew_every_s)}`],
        ["Told to workers: at once, at most", known(advised.batch, (value) => format.plural(value, "message"))],
        ["Because", advised.because ?? undefined],
      ]}
    />
    ${undo?.patch && html`<div class="toolbar"><${ActionButton} onClick=${takeBack}>Take back…<//></div>`}`;
}

const TIMEOUT = [{ label: "timeout", unit: format.duration, isStepped: true }];

function Adapting({ queue, current, figures }) {
  const { adaptive, adapted } = current.settings;
  const told = figures.data?.adaptive;
  const history = told?.history ?? [];
  const nowMs = figures.data?.now_ms ?? Date.now();
  const data = useMemo(() => columnsOf(history, nowMs, current.visibility_timeout_s), [history, nowMs]);
  if (!adaptive) {
    return html`<p>
      The timeout is fixed at ${format.duration(current.visibility_timeout_s)}. With bounds, under Settings, the server moves it by
      itself, within minutes, as the work gets longer or shorter.
    </p>`;
  }
  return html`<p>
      It is ${format.duration(current.visibility_timeout_s)} now, and moves between ${format.duration(adaptive.floor_s)} and${" "}
      ${format.duration(adaptive.cap_s)}.
      ${adapted ? html` Last ${adapted.because} (<${Relative} ms=${adapted.at_ms} />).` : " Nothing has made the server change it yet."}
    </p>
    ${history.length > 0 && html`<${Plot} data=${data} series=${TIMEOUT} label=${`Visibility timeout of ${queue} as it moved; now ${format.duration(current.visibility_timeout_s)}`} height=${180} />`}
    ${history.length > 0 &&
    html`<${Table}
      caption="Changes of the timeout, the newest first"
      columns=${MOVES}
      rows=${[...history].reverse().slice(0, 20)}
      keyOf=${({ at_ms: ms }) => ms}
    />`}`;
}

const MOVES = [
  { key: "at", label: "When", isMain: true, render: ({ at_ms: ms }) => html`<${Moment} ms=${ms} />` },
  { key: "to", label: "Timeout", align: "number", render: ({ timeout_s: value }) => format.duration(value) },
  { key: "because", label: "Why", render: ({ because }) => because },
];

// Up to now, so that the last step has a length.
function columnsOf(history, nowMs, timeoutS) {
  const steps = history.map(({ at_ms: ms, timeout_s: value }) => [ms / 1000, value]);
  steps.push([nowMs / 1000, timeoutS]);
  return [steps.map(([at]) => at), steps.map(([, value]) => value)];
}

// Advice for a queue's visibility timeout: what was found, what it would change, and the timeout
// that follows the work by itself.

import { html, useMemo } from "../lib/html.js";
import { patch, path, useResource } from "../lib/api.js";
import { now } from "../lib/live.js";
import { applyPatch, undoOfAdvice } from "../lib/advice.js";
import * as format from "../lib/format.js";
import { ActionButton, FormDialog, openDialog, toast } from "./dialog.js";
import { Empty, Facts, Loading, Moment, Note, Problem, Relative, Section } from "./parts.js";
import { undoOf } from "./pause.js";
import { Plot } from "./plot.js";
import { Table } from "./table.js";

// The server thinks of it anew once a minute.
const EVERY_MS = 60_000;
const FIGURES_EVERY_MS = 10_000;
const QUEUE_EVERY_MS = 10_000;

/** The tab of a queue. `info` is the queue as its page knows it; without it, it is asked for. */
export default function Advice({ queue, info, reload }) {
  const own = `/console/api/queues/${encodeURIComponent(queue)}`;
  const advice = useResource(`${own}/advice`, { everyMs: EVERY_MS });
  const figures = useResource(`${own}/figures`, { everyMs: FIGURES_EVERY_MS });
  const asked = useResource(info ? null : path("queues", queue), { everyMs: QUEUE_EVERY_MS });
  const current = info ?? asked.data;
  const again = () => {
    advice.reload();
    (reload ?? asked.reload)();
  };
  if (!current) return asked.error ? html`<${Problem} error=${asked.error} retry=${asked.reload} />` : html`<${Loading} />`;
  return html`<${Section} title="Advice from the event log"><${Advised} ...${{ queue, current, advice, again }} /><//>
    ${current.settings.advised && html`<${Section} title="Advice in force"><${InForce} ...${{ queue, current, again }} /><//>`}
    <${Section} title="Adaptive timeout over time"><${Adapting} queue=${queue} current=${current} figures=${figures} /><//>`;
}

function Advised({ queue, current, advice, again }) {
  const { data: found, error, isLoading, reload } = advice;
  if (isLoading) return html`<${Loading} />`;
  if (!found) return html`<${Problem} error=${error} retry=${reload} />`;
  if (!found.available) return html`<${NotThere} answer=${found} />`;
  const change = applyPatch(found, current.settings, now());
  return html`<${Problem} error=${error} />
    <p class="explanation">${headlineOf(found)}</p>
    ${!found.logged &&
    html`<${Note} tone="warning">The queue's event log is off, so there is no advice. Turn it on under Settings.<//>`}
    ${!found.is_enough &&
    html`<${Note} tone="info">
      Not enough data for advice: ${format.plural(Math.round(found.finished), "attempt")} finished;
      a model needs at least thirty.
    <//>`}
    ${found.adaptive &&
    html`<${Note} tone="info">The server adapts this queue's timeout. A value set here is the new starting point, within the bounds.<//>`}
    <div class="toolbar">
      ${change
        ? html`<${ActionButton} kind="primary" onClick=${() => apply(queue, current, found, again)}>Apply…<//>`
        : html`<span class="faint">No change is needed.</span>`}
    </div>
    ${found.survival.length > 1 && html`<${Curve} found=${found} />`}
    ${found.cost.length > 1 && html`<${Cost} found=${found} />`}
    ${found.now && html`<h3>Expected effect</h3><${Meaning} found=${found} />`}
    <h3>Basis of the advice</h3>
    <${Facts}
      pairs=${[
        ["Leases analyzed", format.count(found.leases)],
        ["Finished attempts", format.count(Math.round(found.finished))],
        ["Unfinished: lapsed, lost, or in progress", format.count(Math.round(found.censored))],
        ["Deaths of workers", format.count(found.crashes)],
        ["Messages given up", format.count(found.given_up)],
        ["Mean handling time", known(found.mean_s, format.duration)],
        ["99 % take up to", known(found.p99_s, format.duration)],
        ["Longest attempt seen", known(found.longest_s, format.duration)],
        ["Equally good range (estimate)", known(found.as_good_s, ([low, high]) => `${format.duration(low)} to ${format.duration(high)}`)],
        ["Guarantee", found.promise ?? undefined],
        ["The workers renew", found.renews ? "yes" : "no"],
        ["For workers that renew", known(found.renewal, ({ first_s: first, every_s: every }) => `first lease ${format.duration(first)}, renewed every ${format.duration(every)}`)],
        ["Events read", `${format.count(found.events)}${found.complete ? ", the whole log" : ""}`],
        ["Since", found.reached_ms ? html`<${Moment} ms=${found.reached_ms} />` : undefined],
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

function headlineOf({ today_s: today, advised_s: advised, because, renews, is_enough: isEnough }) {
  const why = because ? `: ${because}.` : ".";
  const is = `The visibility timeout is ${format.duration(today)}`;
  if (!isEnough) return `${is}, and there is no advice yet${why}`;
  if (renews) return `The workers renew, so the visibility timeout may stay at ${format.duration(today)}${why}`;
  if (advised === today) return `${is}, which is the best value${why}`;
  return `The visibility timeout should be ${advised > today ? "lengthened" : "shortened"} from ${format.duration(today)} to ${format.duration(advised)}${why}`;
}

const percent = (value) => format.percent(value);
const SURVIVAL = [
  { label: "still in progress", unit: percent },
  { label: "95 % band from", unit: percent, dash: [4, 4] },
  { label: "to", unit: percent, dash: [4, 4] },
];

const LEAST_SHARE = 0.002;
const DRAWN_BEYOND = 1.3;

function marksOf({ today_s: today, advised_s: advised }) {
  const marks = [{ at: today, text: "timeout now", tone: "--red" }];
  if (advised !== today) marks.push({ at: advised, text: "advised", tone: "--green" });
  return marks;
}

function Curve({ found }) {
  const { survival, today_s: today, advised_s: advised } = found;
  const data = useMemo(() => {
    // The tail is long, and there is nothing to see in it.
    const most = DRAWN_BEYOND * Math.max(today, advised);
    const shown = survival.filter(({ s, share }) => share >= LEAST_SHARE || s <= most);
    return ["s", "share", "low", "high"].map((name) => shown.map((each) => each[name] ?? null));
  }, [survival, today, advised]);
  const label = `${shareAt(survival, today)} of the work takes longer than the timeout now${
    advised === today ? "" : `, ${shareAt(survival, advised)} longer than the one advised`
  }.`;
  return html`<h3>Handling time</h3>
    <p class="faint">
      The share of attempts still in progress after a time: ${label} The dashed lines are the 95 %
      band; where it ends, the curve is extrapolated.
    </p>
    <${Plot} data=${data} series=${SURVIVAL} label=${`Share of attempts still in progress after a time. ${label}`} isTime=${false} xUnit=${format.duration} marks=${marksOf(found)} height=${240} />`;
}

function shareAt(survival, seconds) {
  const after = survival.find(({ s }) => s >= seconds) ?? survival.at(-1);
  return format.percent(after.share);
}

const COST = [{ label: "cost", unit: format.duration }];
/** A timeout is drawn up to so many times the longer of those that matter: beyond, the cost only rises. */
const DRAWN_TIMES = 4;

function Cost({ found }) {
  const { cost, today_s: today, advised_s: advised } = found;
  const data = useMemo(() => {
    const most = DRAWN_TIMES * Math.max(today, advised);
    const shown = cost.filter(({ timeout_s: timeout }) => timeout <= most);
    return [shown.map(({ timeout_s: timeout }) => timeout), shown.map(({ cost_s: seconds }) => seconds)];
  }, [cost, today, advised]);
  const at = (timeout) => format.duration((cost.find((each) => each.timeout_s >= timeout) ?? cost.at(-1)).cost_s);
  const label = `A message waits ${at(today)} on average with the timeout now${advised === today ? "" : `, and ${at(advised)} with the one advised`}, work done twice counted as waiting.`;
  return html`<h3>Cost of a timeout</h3>
    <p class="faint">${label}</p>
    <${Plot} data=${data} series=${COST} label=${label} isTime=${false} xUnit=${format.duration} marks=${marksOf(found)} height=${180} />`;
}

const whole = (value) => format.count(Math.round(value));
const MEANINGS = [
  ["timeout_s", "Visibility timeout", format.duration],
  ["redeliveries", "Redeliveries", (value, of) => `${whole(value)} (${of.redeliveries_between.map(whole).join(" to ")})`],
  ["wasted_work_s", "Work done twice", format.duration],
  ["given_up", "Messages whose work exceeds the timeout", (value) => whole(value)],
  ["mean_recovery_s", "Recovery time after a worker's death, mean", format.duration],
  ["worst_recovery_s", "Recovery time after a worker's death, longest", format.duration],
];

function Meaning({ found }) {
  const rows = MEANINGS.map(([name, label, write]) => ({ label, before: write(found.now[name], found.now), after: write(found.then[name], found.then) }));
  const columns = [
    { key: "label", label: "Figure", isMain: true, render: ({ label }) => label },
    { key: "now", label: "Timeout now", align: "number", render: ({ before }) => before },
    { key: "then", label: "As advised", align: "number", render: ({ after }) => after },
  ];
  return html`<p class="faint">The ${format.plural(found.messages, "message")} of the log, modelled with either timeout: expected values, with the 90 % range in brackets. Observed: ${whole(found.redeliveries)} redeliveries.</p>
    <${Table} caption="Effect of the timeouts" columns=${columns} rows=${rows} keyOf=${({ label }) => label} />`;
}

const SETTING_NAMES = {
  visibility_timeout_s: "Visibility timeout, s",
  "adaptive.floor_s": "Adapts, not below, s",
  "adaptive.cap_s": "Adapts, not above, s",
  "advised.first_lease_s": "Advice to workers that renew: first lease, s",
  "advised.renew_every_s": "Advice to workers that renew: renew every, s",
  "advised.batch": "Advice to workers: largest batch",
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
  if (rows.length === 0) return html`<p class="faint">No setting of receives changes.</p>`;
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
    settings: applyPatch(found, current.settings, now()),
    sentence: headlineOf(found),
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

function InForce({ queue, current, again }) {
  const { advised } = current.settings;
  const undo = undoOfAdvice(current.settings);
  const takeBack = () =>
    change(queue, current, again, {
      title: `Undo the advice for ${queue}`,
      action: "Undo",
      done: "The settings from before the advice are restored.",
      settings: undo.patch,
      sentence: undo.sentence,
    });
  return html`<${Facts}
      pairs=${[
        ["Since", advised.at_ms ? html`<${Relative} ms=${advised.at_ms} /> (<${Moment} ms=${advised.at_ms} />)` : undefined],
        ["Timeout that was set", known(advised.visibility_timeout_s, format.duration)],
        ["Before", known(advised.before_s, format.duration)],
        ["Bounds that were set", advised.floor_s == null ? undefined : `${format.duration(advised.floor_s)} to ${format.duration(advised.cap_s)}`],
        ["Advice to workers that renew", advised.first_lease_s == null ? undefined : `first lease ${format.duration(advised.first_lease_s)}, renewed every ${format.duration(advised.renew_every_s)}`],
        ["Advice to workers: largest batch", known(advised.batch, (value) => format.plural(value, "message"))],
      ]}
    />
    ${advised.because && html`<p class="faint">Because ${advised.because}.</p>`}
    <div class="toolbar"><${ActionButton} onClick=${takeBack}>Undo…<//></div>`;
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
      The timeout is fixed at ${format.duration(current.visibility_timeout_s)}. With bounds, under
      Settings, the server adapts it within minutes to longer or shorter handling times.
    </p>`;
  }
  return html`<p>
      It is ${format.duration(current.visibility_timeout_s)} now and adapts between ${format.duration(adaptive.floor_s)} and${" "}
      ${format.duration(adaptive.cap_s)}.
      ${adapted ? html` Last ${adapted.because} (<${Relative} ms=${adapted.at_ms} />).` : " The server has not changed it yet."}
    </p>
    ${history.length > 0 && html`<${Plot} data=${data} series=${TIMEOUT} label=${`Visibility timeout of ${queue} over time; now ${format.duration(current.visibility_timeout_s)}`} height=${180} />`}
    ${history.length > 0 &&
    html`<${Table}
      caption="Changes of the timeout, newest first"
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

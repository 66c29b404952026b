// Actions on many messages: on those that were selected one by one, or by the server on all that match
// the filter that is shown, with their number before and their progress after.

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { get, patch, path, post, query, remove } from "../lib/api.js";
import * as format from "../lib/format.js";
import { DurationField, PriorityField, invalid, secondsOf } from "./actions.js";
import { FormDialog, openDialog } from "./dialog.js";
import { FilterFields, asBody, filterOf, inWords, statesOf, wrongIn } from "./filter.js";
import { Problem, Progress } from "./parts.js";
import { isRunning, runForEach, trackJob } from "./running.js";

const WAIT_S = 2;
const LOOK_EVERY_MS = 1_000;
const REST = ["visible", "delayed", "deferred"];

const messageOf = (queue, message, ...more) => path("queues", message.queue ?? queue, "messages", message.id, ...more);
const amendJob = (changes) => ["change", { action: "amend", ...changes }];

function rateOf({ rate }) {
  return rate?.trim() ? { rate_per_s: Number(rate) } : {};
}

function RateField() {
  return html`<label>
    <span>Rate limit, messages per second</span>
    <input name="rate" type="number" min="0.001" max="1000000" step="any" placeholder="no limit" />
  </label>`;
}

function ReasonField() {
  return html`<label><span>Reason</span><input name="reason" maxlength="1024" /></label>`;
}

// `states`: the only ones that the action is for. `job(values)`: the server's job and its members, for
// all that match. `one(queue, message, values)`: the request for a single one. `read` checks the fields.
const ACTIONS = [
  {
    key: "release",
    label: "Make visible",
    states: ["delayed", "deferred"],
    does: "are made visible",
    job: () => amendJob({ delay_s: 0 }),
    one: (queue, message) => patch(messageOf(queue, message), { delay_s: 0 }),
  },
  {
    key: "take-back",
    label: "End leases",
    states: ["leased"],
    does: "have their leases ended",
    danger: true,
    fields: html`<p>Their leases end. The server then refuses the workers' receipts.</p>
      <${DurationField} name="delay" label="Visible again after" value="0" /><${ReasonField} />`,
    read: ({ delay, reason }) => ({ delay_s: secondsOf(delay), ...(reason.trim() && { reason: reason.trim() }) }),
    job: (values) => ["change", { action: "end-lease", ...values }],
    one: (queue, message, values) => post(messageOf(queue, message, "end-lease"), values),
  },
  {
    key: "extend",
    label: "Extend leases",
    states: ["leased"],
    does: "have their leases extended",
    fields: html`<${DurationField} name="time" label="Lease length from now" value="10m" />`,
    read: ({ time }) => ({ visibility_timeout_s: Math.max(1, secondsOf(time)) }),
    job: (values) => ["change", { action: "extend-lease", ...values }],
    one: (queue, message, values) => post(messageOf(queue, message, "extend-lease"), values),
  },
  {
    key: "delay",
    label: "Delay",
    states: REST,
    does: "are delayed",
    fields: html`<${DurationField} name="delay" label="Visible after" value="15m" />`,
    read: ({ delay }) => ({ delay_s: secondsOf(delay) }),
    job: amendJob,
    one: (queue, message, values) => patch(messageOf(queue, message), values),
  },
  {
    key: "priority",
    label: "Change priority",
    states: REST,
    does: "have their priority changed",
    fields: html`<${PriorityField} />`,
    read: ({ priority }) => ({ priority: Number(priority) }),
    job: amendJob,
    one: (queue, message, values) => patch(messageOf(queue, message), values),
  },
  {
    key: "redrive",
    label: "Redrive",
    states: ["poisoned"],
    does: "are redriven",
    fields: html`<p>Their dequeue counts, budgets and times to live start again.</p>
      <div class="fields">
        <label>
          <span>Canary messages</span>
          <input name="canary" aria-label="Canary messages" aria-describedby="hint-canary" type="number" min="0" max="1000" defaultValue="0" />
          <small class="faint" id="hint-canary">The others follow when these have been completed. 0: no canary.</small>
        </label>
        <${RateField} />
        <label><span>To the queue</span><input name="target" placeholder="the queue where each failed" autocomplete="off" spellcheck="false" /></label>
      </div>`,
    read: (values) => ({
      ...(Number(values.canary) > 0 && { canary: Number(values.canary) }),
      ...(values.target?.trim() && { target: values.target.trim() }),
      ...rateOf(values),
    }),
    job: (values) => ["redrive", values],
    // By a job even for a single one: there is no other call that brings back.
    one: async (queue, message, { target }) => {
      const filter = { states: ["poisoned"], search: message.id };
      await post(path("queues", message.poisoned?.queue ?? queue, "redrive"), { filter, target, wait_s: WAIT_S });
    },
    oneFields: html`<p>Their dequeue counts, budgets and times to live start again.</p>
      <label><span>To the queue</span><input name="target" placeholder="the queue where each failed" autocomplete="off" spellcheck="false" /></label>`,
  },
  {
    key: "remove",
    label: "Remove",
    states: [...REST, "poisoned", "leased"],
    does: "are permanently removed",
    danger: true,
    fields: html`<p>This cannot be undone.</p>
      <label class="check"><input type="checkbox" name="leased" /> Also leased messages</label>
      <${RateField} />`,
    oneFields: html`<p>This cannot be undone.</p>
      <label class="check"><input type="checkbox" name="leased" /> Also leased messages</label>`,
    read: (values) => ({ ...rateOf(values) }),
    narrow: (states, { leased }) => (leased ? states : states.filter((state) => state !== "leased")),
    job: (values) => ["purge", values],
    one: (queue, message) =>
      remove(messageOf(queue, message) + query({ force: message.state === "leased" || undefined })),
  },
];

/** The actions, for a row of buttons: `{ key, label, danger }`. */
export const BULK_ACTIONS = ACTIONS;

/** The states of messages that an action is for, of those that the filter lets through. */
export const reachedBy = (action, filter) => action.states.filter((state) => statesOf(filter).includes(state));

/** Ask how, show how many, and act on messages that were selected. */
export function actOnSelected(queue, action, messages, reload) {
  const chosen = (values) => {
    const states = action.narrow?.(action.states, values) ?? action.states;
    return messages.filter(({ state }) => states.includes(state));
  };
  const preview = async (values) => {
    action.read?.(values);
    const number = chosen(values).length;
    const rest = messages.length - number;
    return html`${format.plural(number, "message")} of ${format.count(messages.length)} selected ${action.does}.
      ${rest > 0 && ` The other ${format.plural(rest, "message")} are skipped: the action applies to ${listOf(action.states)} messages.`}`;
  };
  const act = async (values) => {
    const wanted = chosen(values);
    if (wanted.length === 0) throw invalid("No messages to change", `No selected message is ${listOf(action.states, "or")}.`);
    const read = action.read?.(values) ?? {};
    runForEach(queue, action.label, wanted, (message) => action.one(queue, message, read), reload);
  };
  openDialog(
    (close) => html`<${FormDialog}
      title=${`${action.label}: ${format.plural(messages.length, "selected message")}`}
      action=${action.label}
      danger=${action.danger}
      ...${{ close, preview, act }}
      >${action.oneFields ?? action.fields}<//
    >`,
  );
}

/**
 * Ask how, show how many, and have the server act on all that match a filter.
 *
 * With `type` that text must be typed in first. `narrowing` are names of the filter's fields that the
 * dialog has besides.
 */
export function actOnAll(queue, action, filter, reload, { type, title, narrowing = [] } = {}) {
  const wanted = (values) => {
    const more = Object.fromEntries(narrowing.map((name) => [name, values[name].trim()]));
    const wrong = wrongIn(more);
    if (wrong) throw invalid("The filter cannot be read", wrong);
    return { ...filter, ...filterOf(more) };
  };
  const request = (values, members) => {
    const states = reachedBy(action, filter);
    const [verb, body] = action.job(action.read?.(values) ?? {});
    const narrowed = action.narrow?.(states, values) ?? states;
    if (narrowed.length === 0) throw invalid("No messages to change", "All messages that match the filter are leased.");
    return post(path("queues", queue, verb), { ...body, filter: asBody(wanted(values), narrowed), ...members });
  };
  const preview = async (values) => {
    const job = await request(values, { dry_run: true, wait_s: WAIT_S });
    return html`<${DryRun} key=${job.job_id} job=${job} does=${action.does} />`;
  };
  const act = async (values) => trackJob(await request(values, { wait_s: 1 }), action.label, reload);
  const words = inWords({ ...filter, state: "" });
  openDialog(
    (close) => html`<${FormDialog}
      title=${title ?? `${action.label}: all that match`}
      action=${action.label}
      danger=${action.danger}
      ...${{ close, preview, act, type }}
    >
      <p class="faint">Queue <strong>${queue}</strong>, messages that are ${listOf(reachedBy(action, filter), "or")}${words && html`: <strong>${words}</strong>`}.</p>
      ${narrowing.length > 0 && html`<${FilterFields} names=${narrowing} />`}
      ${action.fields}
    <//>`,
  );
}

// What a dry run has found. With millions of messages it takes its time, and says so far how many.
function DryRun({ job, does }) {
  const [latest, setLatest] = useState(job);
  const [error, setError] = useState(null);
  const isOver = !isRunning(latest);
  useEffect(() => {
    if (isOver) return undefined;
    const look = () => get(path("jobs", job.job_id)).then(setLatest, setError);
    const timer = setInterval(look, LOOK_EVERY_MS);
    return () => clearInterval(timer);
  }, [isOver]);
  const running = useRef(latest);
  running.current = latest;
  // Nobody waits for it any more when the dialog is closed.
  useEffect(() => () => isRunning(running.current) && post(path("jobs", job.job_id, "stop")).catch(() => undefined), []);
  return html`<strong>${isOver ? "" : "At least "}${format.plural(latest.matched, "message")}</strong> ${does}
    <span class="faint"> (${format.count(latest.examined)} of ${format.count(latest.expected)} examined).</span>
    ${!isOver && html`<${Progress} part=${latest.expected ? latest.examined / latest.expected : null} label="Progress of the dry run" />`}
    <${Problem} error=${error} />`;
}

function listOf(words, last = "and") {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} ${last} ${words.at(-1)}`;
}

// The settings of a queue: changed in a form or as JSON, with the differences shown before they are sent.

import { html, useState } from "../lib/html.js";
import { isOperator, patch, path } from "../lib/api.js";
import * as format from "../lib/format.js";
import { invalid } from "./actions.js";
import { FormDialog, openDialog, toast } from "./dialog.js";
import { Facts, Moment, Note, Section } from "./parts.js";
import { undoOf } from "./pause.js";

const WEEK_S = 604_800;
const seconds = (label, hint, more = {}) => ({ label, hint, kind: "number", unit: "seconds", min: 1, max: WEEK_S, step: "any", ...more });
const budget = (label, hint) => ({ label, hint, kind: "number", min: 1, max: 1_000_000, placeholder: "no limit" });
const choice = (label, choices, hint) => ({ label, hint, kind: "choice", choices });
const yes = (label, hint) => ({ label, hint, kind: "yes" });

// By place in the settings. Empty stands for null, which brings the default back. `isWhole` marks
// what makes the object around it be there: without it the whole object is null.
const SECTIONS = [
  [
    "Visibility timeout",
    {
      visibility_timeout_s: seconds("Visibility timeout, seconds", "Length of a lease unless the receive sets one", { placeholder: "30" }),
      lapsed_receipts: choice("Lapsed receipts", ["until-retaken", "strict", "same-lease"], "Which receipts are valid after their lease has ended"),
      adaptive: { ...yes("Adaptive", "The server adjusts the timeout to the handling times"), isWhole: true },
      "adaptive.floor_s": seconds("Shortest timeout, seconds", "", { placeholder: "5" }),
      "adaptive.cap_s": seconds("Longest timeout, seconds", "", { placeholder: "3600" }),
      max_message_timeout_s: seconds("Largest timeout of a message, seconds", "Limit for the timeout that a producer sets; 0: producers cannot set one", { min: 0, placeholder: "43200" }),
    },
  ],
  [
    "Limits",
    {
      max_receives_per_s: { label: "Receive rate limit, per second", hint: "For all workers together", kind: "number", min: 0.001, max: 1_000_000, step: "any", placeholder: "no limit" },
      max_body_bytes: { label: "Largest body, bytes", hint: "Up to 67,108,864", kind: "number", min: 1, max: 67_108_864, placeholder: "65536" },
      dedup_window_s: seconds("Deduplication window, seconds", "How long a key is remembered; 0: no deduplication", { min: 0, placeholder: "300" }),
      priority_ageing_s: seconds("Ageing, seconds", "Waiting that counts as one step of priority", { placeholder: "priority is strict" }),
      event_log: yes("Record events", "Without events there are no histories and no past figures"),
    },
  ],
  [
    "Failure policy",
    {
      "failure_policy.max_failures": budget("Failures", "Limit before the message moves to the poison queue"),
      "failure_policy.max_deliveries": budget("Deliveries", "Interrupted deliveries do not count"),
      "failure_policy.max_lapses": budget("Lapses", "Leases that ended without renewal"),
      "failure_policy.max_interruptions": budget("Interruptions", "Deliveries whose worker had to stop"),
      "failure_policy.poison_queue": { label: "Poison queue", kind: "text", placeholder: "QUEUE-poison" },
      "failure_policy.poison_time_to_live_s": seconds("Time to live there, seconds", "", { max: 2_147_483_647, placeholder: "never expires" }),
      "failure_policy.backoff.kind": { ...choice("Back-off after a failure", ["", "fixed", "linear", "exponential"], "How the wait grows; none: visible immediately"), isWhole: true },
      "failure_policy.backoff.initial_s": seconds("First wait, seconds", "", { min: 0, placeholder: "1" }),
      "failure_policy.backoff.factor": { label: "Factor", hint: "Of exponential growth", kind: "number", min: 1, max: 10, step: "any", placeholder: "2" },
      "failure_policy.backoff.cap_s": seconds("Longest wait, seconds", "", { min: 0, placeholder: "3600" }),
      "failure_policy.backoff.jitter": { label: "Jitter", hint: "Share of the wait, at random", kind: "number", min: 0, max: 1, step: "any", placeholder: "0.1" },
    },
  ],
  [
    "Message groups",
    {
      "groups.order": choice("Order", ["none", "fifo"], "With fifo the messages of a group are delivered in order"),
      "groups.fair": yes("Fair", "Groups are served in turn, whatever their backlogs"),
      "groups.max_in_flight": budget("Limit in flight per group"),
      "groups.rate_per_s": { label: "Rate limit per group, per second", kind: "number", min: 0.001, max: 1_000_000, step: "any", placeholder: "no limit" },
      "groups.burst": { label: "Burst", hint: "Messages delivered at once after a pause", kind: "number", min: 1, max: 1_000_000, placeholder: "1" },
      "groups.on_poison": choice("When a message is poisoned", ["continue", "halt"], "Whether its group continues or halts; needs the order fifo"),
    },
  ],
];
const FIELDS = SECTIONS.flatMap(([, fields]) => Object.entries(fields));
// What the server has chosen, or keeps by itself.
const READ_ONLY = new Set(["adapted", "adapted_by_type"]);

export default function Settings({ queue, info, reload }) {
  // A form that is filled in stays as it is while newer settings come in; after a save it begins anew.
  const [base, setBase] = useState(info);
  const [version, setVersion] = useState(0);
  const again = (latest) => {
    setBase(latest);
    setVersion((number) => number + 1);
  };
  const isOld = asText(base) !== asText(info);
  const review = (changes) => reviewChanges(queue, base, changes, (latest) => {
    again({ ...info, ...latest });
    reload();
  });
  return html`
    ${isOld && html`<${Note} tone="warning">The settings have changed in the meantime.
      <button type="button" class="small" onClick=${() => again(info)}>Show the new settings</button><//>`}
    <${Chosen} settings=${info.settings} timeoutS=${info.visibility_timeout_s} />
    <${Form} key=${`form ${version}`} settings=${base.settings} review=${review} />
    <${ByType} key=${`types ${version}`} settings=${base.settings} review=${review} />
    <${Raw} key=${`raw ${version}`} info=${base} review=${review} />`;
}

// What the server has chosen moves by itself, and is not in the form.
const asText = ({ settings, metadata }) => JSON.stringify([{ ...settings, adapted: null, adapted_by_type: null }, metadata]);

// What holds but is not set by the form.
function Chosen({ settings, timeoutS }) {
  const { adapted, advised } = settings;
  if (!adapted && !advised) return null;
  return html`<${Section} title="Adaptive and advised values">
    <${Facts}
      pairs=${[
        ["Visibility timeout in force", format.duration(timeoutS)],
        ["Reason of the server's value", adapted?.because],
        ["Chosen", adapted ? html`<${Moment} ms=${adapted.at_ms} />` : undefined],
        ["Reason of the advice", advised?.because ?? undefined],
        ["Advice applied", advised?.at_ms ? html`<${Moment} ms=${advised.at_ms} />` : undefined],
      ]}
    />
  <//>`;
}

// --- the form ------------------------------------------------------------------------------------

function Form({ settings, review }) {
  const [error, setError] = useState("");
  const submit = (event) => {
    event.preventDefault();
    const changes = changesOf(event.currentTarget.elements, settings);
    setError(Object.keys(changes).length ? "" : "No changes.");
    if (Object.keys(changes).length) review({ settings: changes });
  };
  return html`<form onSubmit=${submit} class="settings" aria-label="Settings">
    <fieldset class="plain" disabled=${!isOperator()}>
      ${SECTIONS.map(
        ([title, fields]) => html`<${Section} title=${title} key=${title}>
          <div class="fields">
            ${Object.entries(fields).map(([place, field]) => html`<${Field} key=${place} ...${{ place, field, value: at(settings, place) }} />`)}
          </div>
        <//>`,
      )}
    </fieldset>
    <div class="actions"><button type="submit" class="primary" disabled=${!isOperator()}>Review the changes</button>
      <span class="faint" role="status">${error || (isOperator() ? "Empty fields use the defaults." : "Viewers have read-only access.")}</span></div>
  </form>`;
}

function Field({ place, field, value }) {
  const { kind, label, hint, choices, min, max, step, placeholder } = field;
  // The hint is no part of the field's name.
  const id = `hint ${place}`.replaceAll(" ", "-");
  const note = hint && html`<small class="faint" id=${id}>${hint}</small>`;
  const named = { "aria-label": label, "aria-describedby": hint ? id : undefined };
  if (kind === "yes") {
    return html`<label class="check"><input type="checkbox" name=${place} ...${named} defaultChecked=${Boolean(value)} /> ${label}${note}</label>`;
  }
  if (kind === "choice") {
    const chosen = value ?? choices[0];
    return html`<label><span>${label}</span>
      <select name=${place} ...${named}>
        ${choices.map((each) => html`<option key=${each} value=${each} selected=${each === chosen}>${each || "none"}</option>`)}
      </select>${note}</label>`;
  }
  return html`<label><span>${label}</span>
    <input name=${place} type=${kind} ...${named} defaultValue=${value ?? ""} ...${{ min, max, placeholder }} step=${kind === "number" ? step ?? 1 : undefined} autocomplete="off" />
    ${note}</label>`;
}

/** What stands at a place such as "failure_policy.backoff.kind"; undefined if nothing does. */
const at = (settings, place) => place.split(".").reduce((value, part) => value?.[part], settings);

function valueOf({ kind }, element) {
  if (kind === "yes") return element.checked;
  const text = element.value.trim();
  if (text === "") return null;
  return kind === "number" ? Number(text) : text;
}

// What the fields say differently from the settings, as a merge patch.
function changesOf(elements, settings) {
  const changes = {};
  const isOff = ([place, field]) => field.isWhole && !valueOf(field, elements[place]);
  const without = FIELDS.filter(isOff).map(([place]) => place.replace(/\.kind$/, ""));
  for (const place of without) if (at(settings, place) != null) set(changes, place, null);
  for (const [place, field] of FIELDS) {
    if (without.some((outer) => place === outer || place.startsWith(`${outer}.`))) continue;
    const isSwitch = field.isWhole && field.kind === "yes";
    const value = valueOf(field, elements[place]);
    if (isSwitch) {
      if (at(settings, place) == null) set(changes, place, {});
    } else if (!isSame(field, value, at(settings, place))) set(changes, place, value);
  }
  return changes;
}

function isSame({ kind, choices }, value, before) {
  if (kind === "yes") return value === Boolean(before);
  if (kind === "choice") return (value ?? choices[0]) === (before ?? choices[0]);
  return value === (before ?? null);
}

function set(changes, place, value) {
  const parts = place.split(".");
  const last = parts.pop();
  let target = changes;
  for (const part of parts) target = target[part] ??= {};
  // An object that is to be there keeps what has been set in it.
  if (target[last] === undefined || value === null || typeof value !== "object") target[last] = value;
}

// --- rules by message type -----------------------------------------------------------------------

const RULE = {
  name: { label: "Message type", hint: "Or a prefix followed by *", kind: "text" },
  visibility_timeout_s: seconds("Timeout, seconds", "", { placeholder: "the queue's timeout" }),
  "adaptive.floor_s": seconds("Adaptive from, seconds", "The timeout is fixed if both fields are empty"),
  "adaptive.cap_s": seconds("Adaptive to, seconds", ""),
};

function ByType({ settings, review }) {
  const before = settings.timeouts_by_type ?? {};
  const [rows, setRows] = useState(() => Object.keys(before).sort().map((name, id) => ({ id, name })));
  const [error, setError] = useState("");
  const add = () => setRows([...rows, { id: Math.max(-1, ...rows.map(({ id }) => id)) + 1, name: "" }]);
  const submit = (event) => {
    event.preventDefault();
    const rules = rulesOf(rows, event.currentTarget.elements);
    const changes = rules && patchFor(before, rules);
    setError(rules ? (changes ? "" : "No changes.") : "Two rules have the same type.");
    if (changes) review({ settings: { timeouts_by_type: changes } });
  };
  return html`<form onSubmit=${submit} class="settings" aria-label="Timeouts by message type">
    <fieldset class="plain" disabled=${!isOperator()}>
      <${Section} title="Timeouts by message type">
        ${rows.map(({ id, name }) => {
          const chosen = settings.adapted_by_type?.[name];
          return html`<fieldset class="plain" key=${id} aria-label=${name || "New rule"}>
            <div class="fields">
              ${Object.entries(RULE).map(([place, field]) => html`<${Field} key=${place} place=${`${id} ${place}`} field=${field} value=${place === "name" ? name : at(before[name], place)} />`)}
            </div>
            <div class="actions">
              <button type="button" class="small" aria-label=${`Remove the rule for ${name || "a new type"}`} onClick=${() => setRows(rows.filter((row) => row.id !== id))}>Remove</button>
              ${chosen && html`<span class="faint">In force: ${format.duration(chosen.visibility_timeout_s)}; ${chosen.because}</span>`}
            </div>
          </fieldset>`;
        })}
        <div class="actions"><button type="button" onClick=${add}>Add a rule</button>
          <button type="submit">Review the rules</button>
          <span class="faint" role="status">${error}</span></div>
      <//>
    </fieldset>
  </form>`;
}

// As the fields say it, without what is empty; null if one type is named twice.
function rulesOf(rows, elements) {
  const rules = new Map(); // a type may have the name of anything, so of what objects have by nature too
  for (const { id } of rows) {
    const rule = {};
    for (const [place, field] of Object.entries(RULE)) {
      const value = valueOf(field, elements[`${id} ${place}`]);
      if (value === null) continue;
      set(rule, place, value);
    }
    const { name, ...said } = rule;
    if (name === undefined) continue;
    if (rules.has(name)) return null;
    rules.set(name, said);
  }
  return Object.fromEntries(rules);
}

// --- as JSON -------------------------------------------------------------------------------------

function Raw({ info, review }) {
  const [error, setError] = useState("");
  const shown = Object.fromEntries(Object.entries(info.settings).filter(([name]) => !READ_ONLY.has(name)));
  const submit = (event) => {
    event.preventDefault();
    const { elements } = event.currentTarget;
    let settings;
    let metadata;
    try {
      settings = JSON.parse(elements.settings.value);
      metadata = JSON.parse(elements.metadata.value);
    } catch (reason) {
      setError(`This is not JSON: ${reason.message}`);
      return;
    }
    const changes = {};
    const patched = patchFor(shown, settings);
    if (patched !== undefined) changes.settings = patched;
    if (JSON.stringify(metadata) !== JSON.stringify(info.metadata)) changes.metadata = metadata;
    setError(Object.keys(changes).length ? "" : "No changes.");
    if (Object.keys(changes).length) review(changes);
  };
  return html`<details class="section"><summary>As JSON, with weights and limits of single groups, MNS and metadata</summary>
    <form onSubmit=${submit} aria-label="Settings as JSON">
      <label><span>Settings</span><textarea name="settings" rows="18" spellcheck="false" readonly=${!isOperator()}>${JSON.stringify(shown, null, 2)}</textarea></label>
      <label><span>Metadata</span><textarea name="metadata" rows="4" spellcheck="false" readonly=${!isOperator()}>${JSON.stringify(info.metadata, null, 2)}</textarea></label>
      ${error && html`<p class="problem" role="alert">${error}</p>`}
      <div class="actions"><${SubmitButton} /></div>
    </form>
  </details>`;
}

const SubmitButton = () => html`<button type="submit" disabled=${!isOperator()}>Review the changes to the JSON</button>`;

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** The merge patch that makes `wanted` of `before`; undefined if they are the same. */
function patchFor(before, wanted) {
  if (!isObject(before) || !isObject(wanted)) {
    return JSON.stringify(before) === JSON.stringify(wanted) ? undefined : wanted;
  }
  const changes = {};
  for (const name of Object.keys(before)) if (!(name in wanted) && before[name] !== null) changes[name] = null;
  for (const [name, value] of Object.entries(wanted)) {
    const change = patchFor(before[name], value);
    if (change !== undefined) changes[name] = change;
  }
  return Object.keys(changes).length ? changes : undefined;
}

// --- differences ---------------------------------------------------------------------------------

/** Show what would be changed, and change it; `done` is called with the queue as it is then. */
export function reviewChanges(queue, info, changes, done) {
  const lines = [
    ...differences(changes.settings, info.settings, ""),
    ...(changes.metadata ? [["metadata", info.metadata, changes.metadata]] : []),
  ];
  const act = async () => {
    if (lines.length === 0) throw invalid("No changes", "Close this dialog and change a setting first.");
    const answer = await patch(path("queues", queue), changes);
    toast("The settings are changed.", { undo: undoOf(queue, answer, done) });
    done(answer);
  };
  openDialog(
    (close) => html`<${FormDialog} title=${`Change the settings of ${queue}`} action="Apply" close=${close} act=${act}>
      <p>The change takes effect immediately, for all clients of the queue.</p>
      <table class="diff">
        <caption class="hidden-visually">Changes</caption>
        <thead><tr><th scope="col">Setting</th><th scope="col">Now</th><th scope="col">Then</th></tr></thead>
        <tbody>
          ${lines.map(
            ([place, before, then]) => html`<tr key=${place}>
              <td class="main mono">${place}</td>
              <td data-label="Now" class="mono before">${inJson(before)}</td>
              <td data-label="Then" class="mono then">${inJson(then)}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    <//>`,
  );
}

const inJson = (value) => (value == null ? "default" : JSON.stringify(value));

function differences(changes, before, place) {
  return Object.entries(changes ?? {}).flatMap(([name, then]) => {
    const inner = place ? `${place}.${name}` : name;
    if (isObject(then) && Object.keys(then).length) return differences(then, before?.[name], inner);
    return [[inner, before?.[name], then]];
  });
}


// What an operator can do with one message. Each action is a function (queue, message, reload) that
// opens a dialog; `message` is what the API shows of it, `reload` is called when it was done.

import { html, useEffect, useState } from "../lib/html.js";
import { ApiError, get, patch, path, post, query, remove } from "../lib/api.js";
import { now } from "../lib/live.js";
import * as format from "../lib/format.js";
import { ActionButton, FormDialog, openDialog, toast } from "./dialog.js";
import { Loading, Problem } from "./parts.js";
import { trackJob } from "./running.js";

/** Bodies above this are changed by a file, not in a field. */
const EDITABLE_BYTES = 256 * 1024;

/** Where the message is: a poisoned one is in the poison queue of the queue that was asked. */
const addressOf = (queue, message, ...more) =>
  path("queues", message.queue ?? queue, "messages", message.id, ...more);

const isLeased = (message) => message.state === "leased";

/** What is wrong with what was typed in, in the form of the server's problems. */
export const invalid = (title, detail) => new ApiError({ code: "invalid", title, detail });

/** The whole seconds that a field says, such as "90", "15m" or "2h"; throws what FormDialog shows. */
export function secondsOf(text, name = "length of time") {
  const value = format.seconds(text);
  if (value === null) throw invalid(`The ${name} cannot be read`, "Write it like 90, 15m, 2h or 7d.");
  return Math.round(value);
}

/** A field for a length of time. */
export function DurationField({ name, label, value = "", hint, required = true, ...more }) {
  return html`<label>
    <span>${label}</span>
    <input name=${name} aria-label=${label} aria-describedby=${`hint-${name}`} defaultValue=${value} required=${required} autocomplete="off" spellcheck="false" ...${more} />
    <small class="faint" id=${`hint-${name}`}>${hint ?? "Such as 90, 15m, 2h or 7d."}</small>
  </label>`;
}

function Which({ message }) {
  return html`<p class="faint">Message <code>${message.id}</code>, ${message.state}.
    ${isLeased(message) && html` Held by <strong>${message.lease?.holder ?? "an unnamed holder"}</strong>.`}</p>`;
}

// A change of a leased message ends its lease, so it must be wanted.
function Force({ message }) {
  if (!isLeased(message)) return null;
  return html`<label class="check"><input type="checkbox" name="force" required /> Also if a worker holds it: the worker's receipt becomes invalid</label>`;
}

function dialog(queue, message, reload, { fields, act, done, ...rest }) {
  openDialog(
    (close) => html`<${FormDialog}
      ...${rest}
      close=${close}
      act=${async (values) => {
        const undo = await act(values);
        toast(done, { undo: undo && (() => undo().then(() => reload?.())) });
        reload?.();
      }}
    >
      <${Which} message=${message} />
      ${fields}
    <//>`,
  );
}

// Change what PATCH can change; returns what undoes it, if the server said how it was before.
async function amend(queue, message, changes) {
  const address = addressOf(queue, message);
  const { previous } = await patch(address, changes);
  return previous && (() => patch(address, previous));
}

/** Let a message that waits be received now; of a leased one, end its lease. */
export function makeVisible(queue, message, reload) {
  if (isLeased(message)) return endLease(queue, message, reload);
  return dialog(queue, message, reload, {
    title: "Make the message visible",
    action: "Make visible",
    fields: html`<p>It can be received now instead of ${format.relative(message.visible_at_ms, now())}.</p>`,
    act: () => amend(queue, message, { delay_s: 0 }),
    done: "The message can be received now.",
  });
}

/** Give the holder of a lease more time. Its receipt stays good. */
export function extendLease(queue, message, reload) {
  const address = addressOf(queue, message, "extend-lease");
  return dialog(queue, message, reload, {
    title: "Extend the lease",
    action: "Extend",
    fields: html`<${DurationField} name="time" label="Lease length from now" value="10m" />
      <p class="faint">The current lease ends ${format.relative(message.lease?.until_ms, now())}. The worker's receipt stays valid.</p>`,
    act: async ({ time }) => {
      const untilMs = message.lease?.until_ms;
      await post(address, { visibility_timeout_s: Math.max(1, secondsOf(time)) });
      const leftS = () => Math.max(1, Math.round((untilMs - now()) / 1000));
      return untilMs && (() => post(address, { visibility_timeout_s: leftS() }));
    },
    done: "The lease is extended.",
  });
}

/** End the lease from a worker that hangs. */
export function endLease(queue, message, reload) {
  return dialog(queue, message, reload, {
    title: "End the lease",
    action: "End lease",
    danger: true,
    fields: html`<p>The lease ends. The server then refuses the worker's receipt.</p>
      <${DurationField} name="delay" label="Visible again after" value="0" />
      <label><span>Reason (kept with the message)</span><input name="reason" maxlength="1024" /></label>`,
    act: async ({ delay, reason }) => {
      await post(addressOf(queue, message, "end-lease"), {
        delay_s: secondsOf(delay),
        ...(reason.trim() && { reason: reason.trim() }),
      });
    },
    done: "The lease was ended.",
  });
}

/** Have the message wait. */
export function delayMessage(queue, message, reload) {
  return dialog(queue, message, reload, {
    title: "Delay the message",
    action: "Delay",
    fields: html`<${DurationField} name="delay" label="Visible after" value="15m" /><${Force} message=${message} />`,
    act: ({ delay, force }) => amend(queue, message, { delay_s: secondsOf(delay), ...(force && { force }) }),
    done: "The message is delayed.",
  });
}

/** Have the message be received before or after others. */
export function changePriority(queue, message, reload) {
  return dialog(queue, message, reload, {
    title: "Change the priority",
    action: "Change priority",
    fields: html`<${PriorityField} value=${message.priority} /><${Force} message=${message} />`,
    act: ({ priority, force }) => amend(queue, message, { priority: Number(priority), ...(force && { force }) }),
    done: "The priority is changed.",
  });
}

/** A field for a priority, 1 to 16. */
export function PriorityField({ value = 8 }) {
  return html`<label>
    <span>Priority</span>
    <input name="priority" aria-label="Priority" aria-describedby="hint-priority" type="number" min="1" max="16" required defaultValue=${value} />
    <small class="faint" id="hint-priority">1 is received first, 16 last; 8 by default.</small>
  </label>`;
}

/** Change the body and the properties. */
export function editMessage(queue, message, reload) {
  openDialog((close) => html`<${EditDialog} ...${{ queue, message, reload, close }} />`);
}

function EditDialog({ queue, message, reload, close }) {
  const isLarge = (message.body_bytes ?? 0) > EDITABLE_BYTES;
  const [whole, setWhole] = useState(isLarge ? message : null);
  const [error, setError] = useState(null);
  useEffect(() => {
    // What a table shows may lack the body; what is changed must be all of it.
    if (!isLarge) get(addressOf(queue, message)).then(setWhole, setError);
  }, []);
  if (whole === null) {
    return html`<div class="dialog-form">
      <h2 id="dialog-title">Edit the message</h2>
      <div class="dialog-body">${error ? html`<${Problem} error=${error} />` : html`<${Loading} />`}</div>
      <footer><button type="button" class="quiet" onClick=${close}>Cancel</button></footer>
    </div>`;
  }
  return html`<${EditForm} ...${{ queue, message: whole, reload, close, isLarge }} />`;
}

function EditForm({ queue, message, reload, close, isLarge }) {
  const isText = message.body !== undefined && message.body !== null;
  const bodyBefore = isText ? message.body : message.body_base64 ?? "";
  const before = JSON.stringify(message.properties ?? {}, null, 2);
  const act = async ({ body, file, properties, force }) => {
    const changes = {};
    if (file?.size) changes.body_base64 = await base64Of(file);
    else if (!isLarge && body !== bodyBefore) changes[isText ? "body" : "body_base64"] = body;
    if (properties !== before) changes.properties = propertiesOf(properties);
    if (Object.keys(changes).length === 0) throw invalid("No changes", "Change the body or the properties.");
    if (force) changes.force = true;
    const undo = await amend(queue, message, changes);
    toast("The message is changed.", { undo: undo && (() => undo().then(() => reload?.())) });
    reload?.();
  };
  return html`<${FormDialog} title="Edit the message" action="Save" close=${close} act=${act}>
    <${Which} message=${message} />
    ${isLarge
      ? html`<p>The body has ${format.bytes(message.body_bytes)}; a file can replace it.</p>`
      : html`<label>
          <span>${isText ? "Body" : "Body, as base64 of its bytes"}</span>
          <textarea name="body" rows="10" spellcheck="false">${bodyBefore}</textarea>
        </label>`}
    <label><span>${isLarge ? "Body from a file" : "Or a body from a file"}</span><input type="file" name="file" /></label>
    <${PropertiesField} value=${before} />
    <${Force} message=${message} />
  <//>`;
}

/** A field for properties, as a JSON object of texts. */
export function PropertiesField({ value = "{}" }) {
  return html`<label>
    <span>Properties, a JSON object with strings</span>
    <textarea name="properties" rows="3" spellcheck="false">${value}</textarea>
  </label>`;
}

/** The properties that a PropertiesField says; throws what FormDialog shows. */
export function propertiesOf(text) {
  let value;
  try {
    value = JSON.parse(text.trim() || "{}");
  } catch (error) {
    throw invalid("The properties are not JSON", error.message);
  }
  const isObject = value !== null && typeof value === "object" && !Array.isArray(value);
  if (!isObject || Object.values(value).some((each) => typeof each !== "string")) {
    throw invalid("The properties are invalid", 'They must be an object with strings, such as {"shop": "7"}.');
  }
  return value;
}

/** The bytes of a file as base64. */
export function base64Of(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(invalid("The file cannot be read", reader.error.message));
    reader.readAsDataURL(file);
  });
}

/** Remove the message for ever. */
export function removeMessage(queue, message, reload) {
  return dialog(queue, message, reload, {
    title: "Remove the message",
    action: "Remove",
    danger: true,
    fields: html`<p>This cannot be undone.</p><${Force} message=${message} />`,
    act: async ({ force }) => {
      await remove(addressOf(queue, message) + query({ force: force || undefined }));
    },
    done: "The message is removed.",
  });
}

/** Ask the holder to stop working on it. */
export function cancelWork(queue, message, reload) {
  return dialog(queue, message, reload, {
    title: "Ask the worker to stop",
    action: "Ask to stop",
    fields: html`<p>The holder gets the request with its next renewal or heartbeat and may then release the message.</p>
      <label><span>Reason (sent to the worker)</span><input name="reason" maxlength="1024" /></label>`,
    act: async ({ reason }) => {
      await post(addressOf(queue, message, "cancel"), reason.trim() ? { reason: reason.trim() } : {});
    },
    done: "The worker will be asked to stop.",
  });
}

/** Bring a poisoned message back to the queue that it failed in. */
export function redriveMessage(queue, message, reload) {
  const source = message.poisoned?.queue ?? queue;
  return dialog(queue, message, reload, {
    title: "Redrive the message",
    action: "Redrive",
    fields: html`<p>It goes back to <strong>${source}</strong>. Its dequeue count, its budgets and its time to live start again.</p>`,
    act: async () => {
      const filter = { states: ["poisoned"], search: message.id };
      const job = await post(path("queues", source, "redrive"), { filter, wait_s: 5 });
      if (job.state !== "done") trackJob(job, "Redrive", reload);
      else if (job.moved === 0) throw invalid("It was not redriven", "It is no longer in the poison queue.");
    },
    done: "The message is redriven.",
  });
}

/** What can be done with a message in its state: a list of `{ key, label, act, kind }`. */
export function actionsOf(message) {
  // Seen from the poison queue itself, it is a message like others that has failed elsewhere.
  const back = { key: "redrive", label: "Redrive", act: redriveMessage, kind: "primary" };
  const first = message.poisoned && message.state === "visible" ? [back] : [];
  const change = [
    { key: "delay", label: "Delay", act: delayMessage },
    { key: "priority", label: "Change priority", act: changePriority },
    { key: "edit", label: "Edit", act: editMessage },
    { key: "remove", label: "Remove", act: removeMessage, kind: "danger" },
  ];
  switch (message.state) {
    case "visible":
      return [...first, ...change];
    case "delayed":
    case "deferred":
      return [{ key: "release", label: "Make visible", act: makeVisible }, ...change];
    case "leased":
      return [
        { key: "take-back", label: "End lease", act: endLease },
        { key: "extend", label: "Extend lease", act: extendLease },
        { key: "cancel", label: "Ask to stop", act: cancelWork },
        ...change,
      ];
    case "poisoned":
      return [back, ...change.slice(2)];
    default:
      return [];
  }
}

/** Buttons for all that can be done with a message; `leave`, if given, closes what they are in before. */
export function MessageActions({ queue, message, reload, leave }) {
  const begin = (act) => {
    if (!leave) return act(queue, message, reload);
    leave();
    // The focus has to be back where it was: that is where it returns to when the next dialog is closed.
    return setTimeout(() => act(queue, message, reload));
  };
  return html`<div class="actions" role="group" aria-label="Actions on the message">
    ${actionsOf(message).map(
      ({ key, label, act, kind }) => html`<${ActionButton} key=${key} kind=${kind} onClick=${() => begin(act)}>${label}<//>`,
    )}
  </div>`;
}

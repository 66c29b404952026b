// Put messages: one by a form, one from a file, or one for each line of a file.

import { html, useState } from "../lib/html.js";
import { ApiError, path, post, query, remove, request } from "../lib/api.js";
import { to } from "../lib/router.js";
import * as format from "../lib/format.js";
import { DurationField, PropertiesField, base64Of, invalid, propertiesOf, secondsOf } from "./actions.js";
import { FormDialog, openDialog, toast } from "./dialog.js";
import { runForEach } from "./running.js";

const LINES_AT_ONCE = 500;
const SLOW_MS = 120_000;
const FORMS = [
  ["text", "Text"],
  ["json", "JSON"],
  ["base64", "Base64 of bytes"],
  ["file", "A file as one message"],
  ["lines", "A file, a message for each line"],
];

/** Open the form. */
export function putMessage(queue, reload) {
  openDialog((close) => html`<${PutForm} ...${{ queue, reload, close }} />`);
}

function PutForm({ queue, reload, close }) {
  const [form, setForm] = useState("text");
  const isFile = form === "file" || form === "lines";
  const act = async (values) => {
    const members = membersOf(values);
    if (form === "lines") return putLines(queue, await linesOf(values.file), members, reload);
    const id = form === "file" ? await putFile(queue, values.file, members) : await putOne(queue, bodyOf(form, values.body), members);
    const undo = id && (() => remove(path("queues", queue, "messages", id)).then(() => reload?.()));
    toast(id ? html`The message was put: <a href=${to("messages", queue, id)}>see it</a>.` : "The message is a duplicate: the queue has received this deduplication key before.", { undo });
    reload?.();
  };
  const preview = async ({ file }) => {
    const lines = await linesOf(file);
    return html`<strong>${format.plural(lines.length, "message")}</strong> would be put. The first:
      <pre>${lines[0].slice(0, 300)}</pre>`;
  };
  return html`<${FormDialog} title=${`Put messages into ${queue}`} action="Put" preview=${form === "lines" ? preview : undefined} close=${close} act=${act}>
    <label>
      <span>What</span>
      <select name="form" value=${form} onChange=${(event) => setForm(event.currentTarget.value)}>
        ${FORMS.map(([key, label]) => html`<option key=${key} value=${key}>${label}</option>`)}
      </select>
    </label>
    ${isFile
      ? html`<label><span>File</span><input type="file" name="file" required /></label>`
      : html`<label><span>Body</span><textarea name="body" rows="8" spellcheck="false"></textarea></label>`}
    <div class="fields">
      <label><span>Type</span><input name="type" maxlength="1024" /></label>
      <label><span>Group</span><input name="group_id" maxlength="128" /></label>
      <label><span>Priority, 1 to 16</span><input name="priority" type="number" min="1" max="16" placeholder="8" /></label>
      <${DurationField} name="delay" label="Delay" required=${false} placeholder="none" />
      <${DurationField} name="life" label="Time to live" required=${false} placeholder="7d" hint="Such as 2h or 7d, or never." />
      <label><span>Deduplication key</span><input name="dedup_key" maxlength="1024" disabled=${form === "lines"} /></label>
    </div>
    <${PropertiesField} />
  <//>`;
}

function membersOf(values) {
  const members = {};
  for (const name of ["type", "group_id", "dedup_key"]) {
    if (values[name]?.trim()) members[name] = values[name].trim();
  }
  if (values.priority) members.priority = Number(values.priority);
  if (values.delay.trim()) members.delay_s = secondsOf(values.delay, "delay");
  const life = values.life.trim();
  if (life) members.time_to_live_s = life === "never" ? -1 : secondsOf(life, "time to live");
  const properties = propertiesOf(values.properties);
  if (Object.keys(properties).length) members.properties = properties;
  return members;
}

function bodyOf(form, text) {
  if (form === "base64") return { body_base64: text.replace(/\s/g, "") };
  if (form === "text") return { body: text };
  try {
    return { json: JSON.parse(text) };
  } catch (error) {
    throw invalid("The body is not JSON", error.message);
  }
}

// The id of what was put; null if the queue knew the deduplication key.
async function putOne(queue, body, members) {
  const { results } = await post(path("queues", queue, "messages"), { messages: [{ ...body, ...members }] }, { timeoutMs: SLOW_MS });
  return idOf(results[0]);
}

function idOf(result) {
  if (result.error) throw new ApiError({ title: "The message was refused", ...result.error });
  return result.duplicate ? null : result.id;
}

// Large bodies go as they are; only properties have no place in that request.
async function putFile(queue, file, members) {
  const { properties, ...rest } = members;
  if (properties) return putOne(queue, { body_base64: await base64Of(file) }, members);
  const address = path("queues", queue, "messages", "raw") + query(rest);
  const body = new Blob([file], { type: "application/octet-stream" });
  return idOf(await request(address, { method: "POST", body, timeoutMs: SLOW_MS }));
}

async function linesOf(file) {
  const lines = (await file.text()).split(/\r?\n/).filter((line) => line !== "");
  if (lines.length === 0) throw invalid("The file is empty", "It has no lines.");
  return lines;
}

// One part after the other, so that the messages are in the order of the lines.
async function putLines(queue, lines, members, reload) {
  const parts = [];
  for (let start = 0; start < lines.length; start += LINES_AT_ONCE) parts.push(lines.slice(start, start + LINES_AT_ONCE));
  const putPart = async (part) => {
    const messages = part.map((body) => ({ body, ...members }));
    const { results } = await post(path("queues", queue, "messages"), { messages, atomic: true });
    const refused = results.find(({ error }) => error && error.code !== "not-done");
    if (refused) idOf(refused);
  };
  runForEach(queue, `Put ${format.plural(lines.length, "line")}, ${format.count(LINES_AT_ONCE)} at once`, parts, putPart, reload, 1);
}

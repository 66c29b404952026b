// The filter of messages: its place in the address, in requests, and the bar that it is set in.

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { now } from "../lib/live.js";
import { go, route, setParams, to } from "../lib/router.js";
import * as format from "../lib/format.js";

export const STATES = ["visible", "leased", "delayed", "deferred", "poisoned", "expired"];

const NUMBER = { type: "number", min: 0 };

// `name` in the address; `query` and `body` in the two kinds of requests, the same if left out.
const FIELDS = [
  { name: "search", label: "Search", is: "with" },
  { name: "state", label: "State", body: "states", is: "state" },
  { name: "holder", label: "Holder", is: "held by" },
  { name: "session", label: "Session", is: "of session" },
  { name: "type", label: "Type", body: "message_type", is: "type" },
  { name: "group", label: "Group", body: "group_id", is: "group" },
  { name: "since", label: "Put since", query: "max_age_s", is: "put since", isMoment: true, hint: "12:00, or 2h for two hours ago" },
  { name: "until", label: "Put before", query: "min_age_s", is: "put before", isMoment: true, hint: "12:00, or 2h for two hours ago" },
  { name: "error", label: "Last error", is: "failed with", hint: "Part of its text, its type or fingerprint" },
  { name: "failed", label: "Failed since", query: "max_error_age_s", is: "failed since", isMoment: true, hint: "12:00, or 2h for two hours ago" },
  { name: "reason", label: "Poisoned because", is: "poisoned because of", hint: "Such as max_failures or buried" },
  { name: "min_failures", label: "Failures, from", is: "failures at least", input: NUMBER },
  { name: "max_failures", label: "Failures, to", is: "failures at most", input: NUMBER },
  { name: "min_dequeue_count", label: "Dequeue count, from", is: "dequeue count at least", input: NUMBER },
  { name: "max_dequeue_count", label: "Dequeue count, to", is: "dequeue count at most", input: NUMBER },
  { name: "min_priority", label: "Priority, from", is: "priority at least", input: { type: "number", min: 1, max: 16 } },
  { name: "max_priority", label: "Priority, to", is: "priority at most", input: { type: "number", min: 1, max: 16 } },
  { name: "text", label: "Text in the body", is: "body has" },
  { name: "property", label: "Property", is: "property has", hint: "Part of name=value" },
  { name: "json_path", label: "Path in a JSON body", is: "has", hint: "Such as order.lines[0].sku" },
  { name: "json_value", label: "JSON value at the path", is: "which is", hint: 'Such as 17 or "paid"' },
];
const DETAILS = FIELDS.slice(2);

/** The part of an address's query that belongs to the filter. */
export function filterOf(params) {
  const set = FIELDS.map(({ name }) => [name, params[name]]).filter(([, value]) => value);
  return Object.fromEntries(set);
}

/** How long ago a text such as "12:00", "2026-11-25 12:00" or "2h" was, in seconds; null if it says nothing. */
export function ageOf(text, nowMs) {
  const seconds = format.seconds(text);
  if (seconds !== null) return seconds;
  const time = /^\s*(\d{1,2}):(\d{2})(?::(\d{2}))?\s*$/.exec(text);
  if (time) {
    const at = new Date(nowMs);
    at.setHours(Number(time[1]), Number(time[2]), Number(time[3] ?? 0), 0);
    if (at > nowMs) at.setDate(at.getDate() - 1); // 23:00, asked after midnight
    return (nowMs - at) / 1000;
  }
  const at = Date.parse(text.trim().replace(" ", "T"));
  return Number.isNaN(at) ? null : Math.max(0, (nowMs - at) / 1000);
}

function valueOf({ isMoment, input }, text) {
  if (isMoment) return Math.round(ageOf(text, now()) ?? 0);
  return input?.type === "number" ? Number(text) : text;
}

/** The filter as a request's query has it. */
export function asQuery(filter) {
  const pairs = FIELDS.filter(({ name }) => filter[name]).map((field) => [
    field.query ?? field.name,
    valueOf(field, filter[field.name]),
  ]);
  const query = Object.fromEntries(pairs);
  if (query.json_value !== undefined) query.json_value = JSON.stringify(jsonOf(query.json_value));
  return query;
}

/** The filter as jobs take it; with `states` for these states alone. */
export function asBody(filter, states) {
  const pairs = FIELDS.filter(({ name }) => filter[name]).map((field) => [
    field.body ?? field.query ?? field.name,
    valueOf(field, filter[field.name]),
  ]);
  const body = Object.fromEntries(pairs);
  if (body.states) body.states = statesOf(filter);
  if (body.json_value !== undefined) body.json_value = jsonOf(body.json_value);
  if (states) body.states = states;
  return body;
}

function jsonOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text; // a text without its quotation marks
  }
}

/** The states that the filter lets through: all that are listed without one. */
export const statesOf = (filter) =>
  filter.state ? filter.state.split(",").filter((state) => STATES.includes(state)) : STATES;

/** The filter in words, such as "state leased, held by w1"; empty for no filter. */
export const inWords = (filter) =>
  FIELDS.filter(({ name }) => filter[name])
    .map(({ name, is }) => `${is} ${filter[name]}`)
    .join(", ");

/** What is searched for: "error:timeout failed:12:00 4711" says two fields by name, the rest is text. */
function fieldsOf(text) {
  const fields = {};
  const search = text.replace(/(^|\s)([a-z_]+):("[^"]*"|\S+)/g, (whole, _, name, value) => {
    if (!FIELDS.some((field) => field.name === name)) return whole;
    fields[name] = value.replaceAll('"', "");
    return "";
  });
  return { ...fields, search: search.trim() };
}

const ID = /^\s*([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\s*$/i;

/** The page that shows what is searched for in a queue: of an id, the message, which nothing is looked through for. */
export function pageOf(queue, text, params = {}) {
  const id = ID.exec(text)?.[1];
  return id ? to("messages", queue, id.toLowerCase()) : to("queues", queue, { ...params, tab: "messages", after: "", ...fieldsOf(text) });
}

/** Change the filter in the address; the list begins at its beginning again. */
const change = (changes) => setParams({ ...changes, after: "" });

/** The bar in which the filter is set. */
export function FilterBar({ filter }) {
  const set = DETAILS.filter(({ name }) => filter[name]);
  return html`<div class="filter">
    <form class="toolbar" role="search" aria-label="Messages" onSubmit=${submitSearch}>
      <${SearchField} value=${filter.search ?? ""} />
      <label class="inline"><span class="hidden-visually">State</span>
        <select name="state" value=${filter.state ?? ""} onChange=${(event) => change({ state: event.currentTarget.value })}>
          <option value="">all states</option>
          ${filter.state && !STATES.includes(filter.state) && html`<option value=${filter.state}>${filter.state}</option>`}
          ${STATES.map((state) => html`<option key=${state} value=${state}>${state}</option>`)}
        </select>
      </label>
      <button type="submit">Search</button>
    </form>
    <${Details} filter=${filter} />
    ${set.length > 0 &&
    html`<ul class="chips" aria-label="Active filters">
      ${set.map(
        ({ name, is }) => html`<li key=${name}>${is} <strong>${filter[name]}</strong>
          <button type="button" class="small quiet" aria-label=${`Remove the filter: ${is} ${filter[name]}`} onClick=${() => change({ [name]: "" })}>×</button>
        </li>`,
      )}
      <li><button type="button" class="small" onClick=${clear}>Clear the filter</button></li>
    </ul>`}
  </div>`;
}

const clear = () => change(Object.fromEntries(FIELDS.map(({ name }) => [name, ""])));

function submitSearch(event) {
  event.preventDefault();
  const field = event.currentTarget.elements.search;
  const { parts, params } = route.value;
  go(pageOf(parts[1], field.value, params));
  field.value = fieldsOf(field.value).search; // the others are shown as chips
}

// What was typed stays until it is sent; what the address says takes its place when that changes.
function SearchField({ value }) {
  const field = useRef(null);
  useEffect(() => {
    field.current.value = value;
  }, [value]);
  return html`<input
    type="search"
    name="search"
    ref=${field}
    class="long"
    aria-label="Search messages"
    placeholder="Text, or error:timeout failed:12:00"
    onSearch=${(event) => event.currentTarget.value === "" && value && change({ search: "" })}
  />`;
}

/** What is wrong with values for the filter's fields, in words; empty if nothing is. */
export function wrongIn(values) {
  const wrong = FIELDS.find(({ name, isMoment }) => isMoment && values[name] && ageOf(values[name], now()) === null);
  return wrong ? `“${values[wrong.name]}” is not a time: write 12:00, 2h or 2026-11-25 12:00.` : "";
}

/** Fields for parts of the filter, such as ["error", "since"]. */
export function FilterFields({ names, filter = {} }) {
  return html`<div class="fields">
    ${FIELDS.filter(({ name }) => names.includes(name)).map(
      ({ name, label, hint, input = {} }) => html`<label key=${name}>
        <span>${label}</span>
        <input
          name=${name}
          aria-label=${label}
          aria-describedby=${hint && `hint-${name}`}
          defaultValue=${filter[name] ?? ""}
          autocomplete="off"
          spellcheck="false"
          ...${input}
        />
        ${hint && html`<small class="faint" id=${`hint-${name}`}>${hint}</small>`}
      </label>`,
    )}
  </div>`;
}

function Details({ filter }) {
  const [error, setError] = useState("");
  const submit = (event) => {
    event.preventDefault();
    const { elements } = event.currentTarget;
    const values = Object.fromEntries(DETAILS.map(({ name }) => [name, elements[name].value.trim()]));
    const wrong = wrongIn(values);
    setError(wrong);
    if (wrong) return;
    event.currentTarget.closest("details").open = false;
    change(values);
  };
  return html`<details class="more-filters">
    <summary>More filters</summary>
    <form class="card" onSubmit=${submit} key=${JSON.stringify(filter)}>
      <${FilterFields} names=${DETAILS.map(({ name }) => name)} filter=${filter} />
      ${error && html`<p class="problem" role="alert">${error}</p>`}
      <div class="actions"><button type="submit" class="primary">Apply the filter</button></div>
    </form>
  </details>`;
}

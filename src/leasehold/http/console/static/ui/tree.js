// JSON that can be folded. What is folded is not rendered, so that large values stay quick.

import { html, useMemo, useState } from "../lib/html.js";

const OPEN_LEVELS = 2;
const SHOWN = 100;
const SHOWN_LETTERS = 2_000;

// A number that JavaScript would write otherwise than it was written.
class Written {
  constructor(text) {
    this.text = text;
  }
}

/** A value of JSON, and the text that it was read from. */
export function Tree({ value, text }) {
  const exact = useMemo(() => exactOf(value, text), [value, text]);
  return html`<div class="tree"><${Node} value=${exact} level=${0} /></div>`;
}

function exactOf(value, text) {
  if (!/\d{16}|\d[.eE]/.test(text)) return value;
  try {
    return JSON.parse(text, keepNumbers);
  } catch {
    return value; // nested too deeply for that
  }
}

// Browsers that do not tell the source show such numbers as they are after reading.
function keepNumbers(key, value, context) {
  const isOther = typeof value === "number" && context?.source !== undefined && String(value) !== context.source;
  return isOther ? new Written(context.source) : value;
}

const isBranch = (value) => value !== null && typeof value === "object" && !(value instanceof Written);

function Node({ name, value, level }) {
  if (!isBranch(value)) return html`<div class="leaf"><${Name} name=${name} /><${Leaf} value=${value} /></div>`;
  const isList = Array.isArray(value);
  const size = isList ? value.length : Object.keys(value).length;
  if (size === 0) return html`<div class="leaf"><${Name} name=${name} /><span class="faint">${isList ? "[]" : "{}"}</span></div>`;
  return html`<${Branch} ...${{ name, value, level, isList, size }} />`;
}

function Branch({ name, value, level, isList, size }) {
  const [isOpen, setOpen] = useState(level === 0 || (level < OPEN_LEVELS && size <= SHOWN));
  const [most, setMost] = useState(SHOWN);
  const members = isOpen ? (isList ? value.slice(0, most).map((each, place) => [place, each]) : Object.entries(value).slice(0, most)) : [];
  const label = isList ? `[${size}]` : `{${size}}`;
  return html`<details open=${isOpen} onToggle=${(event) => event.target === event.currentTarget && setOpen(event.currentTarget.open)}>
    <summary><${Name} name=${name} /><span class="faint">${label}</span></summary>
    ${members.map(([key, each]) => html`<${Node} key=${key} name=${key} value=${each} level=${level + 1} />`)}
    ${isOpen && size > most && html`<button type="button" class="small" onClick=${() => setMost(most + 5 * SHOWN)}>Show more of ${size}</button>`}
  </details>`;
}

function Name({ name }) {
  return name === undefined ? null : html`<span class="name">${String(name)}: </span>`;
}

function Leaf({ value }) {
  const [isAll, setAll] = useState(false);
  if (value instanceof Written) return html`<span class="number">${value.text}</span>`;
  if (typeof value !== "string") return html`<span class=${value === null ? "faint" : typeof value}>${String(value)}</span>`;
  const isLong = !isAll && value.length > SHOWN_LETTERS;
  return html`<span class="string">${JSON.stringify(isLong ? value.slice(0, SHOWN_LETTERS) : value)}</span>${isLong &&
  html` <button type="button" class="small" onClick=${() => setAll(true)}>Show all ${value.length} characters</button>`}`;
}

// Small pieces that all pages are made of.

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { clockOffset, now } from "../lib/live.js";
import { Store, useStore } from "../lib/store.js";
import * as format from "../lib/format.js";

const tick = new Store(Date.now());
setInterval(() => document.hidden || tick.set(Date.now()), 1_000);

/** Render again each second; returns the time by the server's clock, in Unix milliseconds. */
export function useNow() {
  useStore(tick);
  useStore(clockOffset);
  return now();
}

/** A moment in Unix milliseconds as "3 min ago" or "in 20 s"; the exact time is in its title. */
export function Relative({ ms }) {
  const nowMs = useNow();
  if (ms == null) return html`<span class="faint">–</span>`;
  return html`<time datetime=${format.exact(ms)} title=${format.exact(ms)}>
    ${format.relative(ms, nowMs)}
  </time>`;
}

/** A moment as a time of day; the exact one is in its title. */
export function Moment({ ms }) {
  if (ms == null) return html`<span class="faint">–</span>`;
  return html`<time datetime=${format.exact(ms)} title=${format.exact(ms)}>${format.moment(ms)}</time>`;
}

/** A sentence of the server, with its moments as times of day, as those of the page are. */
export function Sentence({ text }) {
  const parts = text.split(MOMENTS);
  return parts.map((part, place) => (place % 2 ? html`<${Moment} key=${place} ms=${Date.parse(part)} />` : part));
}
const MOMENTS = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/;

/** How long ago, in words that do not say "ago". */
export function Age({ ms }) {
  const nowMs = useNow();
  if (ms == null) return html`<span class="faint">–</span>`;
  return html`<span title=${format.exact(ms)}>${format.duration(Math.max(0, nowMs - ms) / 1000)}</span>`;
}

/** The state of a message, session, claim or job, in a colour that says how it is. */
export function State({ name }) {
  return html`<span class=${`state state-${name}`}>${name}</span>`;
}

/** A number that can be clicked if it leads to something. */
export function Count({ value, href, label }) {
  const text = format.count(value);
  if (!href || !value) return html`<span class=${value ? "" : "faint"}>${text}</span>`;
  return html`<a href=${href} aria-label=${label ? `${text} ${label}` : undefined}>${text}</a>`;
}

/** One figure with its name: a tile. */
export function Stat({ label, children, hint, href, tone = "" }) {
  const content = html`<span class="stat-value">${children}</span>
    <span class="stat-label">${label}</span>
    ${hint && html`<span class="stat-hint">${hint}</span>`}`;
  const kind = `stat ${tone}`;
  return href
    ? html`<a class=${kind} href=${href}>${content}</a>`
    : html`<div class=${kind}>${content}</div>`;
}

/** What went wrong, and what to do about it. */
export function Problem({ error, retry }) {
  if (!error) return null;
  return html`<div class="problem" role="alert">
    <strong>${error.title ?? "Error"}.</strong> ${error.message}
    ${error.remedy && html`<div class="faint">${error.remedy}</div>`}
    ${retry && html` <button type="button" class="small" onClick=${retry}>Try again</button>`}
  </div>`;
}

/** A note that is not an error: `tone` is `info`, `warning` or `good`. */
export function Note({ tone = "info", children }) {
  return html`<div class=${`note ${tone}`} role="status">${children}</div>`;
}

/** Grey bars in place of what is still to come. */
export function Loading({ lines = 3 }) {
  return html`<div class="loading" role="status" aria-label="Loading">
    ${Array.from({ length: lines }, () => html`<span></span>`)}
  </div>`;
}

/** In place of a list that has nothing in it. */
export function Empty({ title, children }) {
  return html`<div class="empty"><p><strong>${title}</strong></p>
    ${children && html`<div class="faint">${children}</div>`}</div>`;
}

/** A bar for a part of a whole, 0 to 1; null for a bar that only says that something goes on. */
export function Progress({ part, label }) {
  return html`<progress max="1" ...${part == null ? {} : { value: part }} aria-label=${label}></progress>`;
}

/** A button that puts a text on the clipboard. */
export function Copy({ text, label = "Copy" }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1_500);
  };
  return html`<button type="button" class="small quiet" onClick=${copy}>${isDone ? "Copied" : label}</button>`;
}

/** Names and values beside each other; pairs whose value is undefined are left out. */
export function Facts({ pairs }) {
  return html`<dl class="facts">
    ${pairs
      .filter(([, value]) => value !== undefined)
      .map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

/** Links of which the current one is in view, also where not all of them have room. */
export function Links({ current, children, ...others }) {
  const nav = useRef(null);
  useEffect(() => {
    const box = nav.current;
    const link = box.querySelector("[aria-current]");
    if (link) box.scrollLeft += link.getBoundingClientRect().left - box.getBoundingClientRect().left - (box.clientWidth - link.offsetWidth) / 2;
  }, [current]);
  return html`<nav ref=${nav} ...${others}>${children}</nav>`;
}

/** Links to the parts of a page: `tabs` is a list of [key, label, href, number]. */
export function Tabs({ label, tabs, current }) {
  return html`<${Links} class="tabs" aria-label=${label} current=${current}>
    ${tabs.map(
      ([key, text, href, number]) => html`<a
        href=${href}
        key=${key}
        aria-current=${key === current ? "page" : undefined}
        >${text}${number != null && html`<span class="badge">${format.short(number)}</span>`}</a
      >`,
    )}
  <//>`;
}

/** A heading with what belongs to it. */
export function Section({ title, actions, children, level = 2, id }) {
  const Heading = `h${level}`;
  return html`<section class="section" aria-label=${title} id=${id}>
    <header><${Heading}>${title}<//>${actions && html`<div class="actions">${actions}</div>`}</header>
    ${children}
  </section>`;
}

/** What heads a page: where it is, its name, and what can be done. Sets the title of the window. */
export function PageHead({ title, crumbs = [], actions, children }) {
  const heading = useRef(null);
  useEffect(() => {
    document.title = `${title} · Leasehold`;
  }, [title]);
  useEffect(() => heading.current?.focus({ preventScroll: true }), []);
  return html`<header class="page-head">
    ${crumbs.length > 0 &&
    html`<nav aria-label="Breadcrumb" class="crumbs">
      ${crumbs.map(([text, href]) => html`<a href=${href}>${text}</a><span aria-hidden="true">/</span>`)}
    </nav>`}
    <div class="page-title">
      <h1 ref=${heading} tabindex="-1">${title}</h1>
      ${children}
      ${actions && html`<div class="actions">${actions}</div>`}
    </div>
  </header>`;
}

// Events as people read them: the life of a message, and the facts of a single event.

import { Fragment, html, useEffect, useRef, useState } from "../lib/html.js";
import { get, path, query } from "../lib/api.js";
import { to } from "../lib/router.js";
import { tell } from "../lib/story.js";
import * as format from "../lib/format.js";
import { Copy, Empty, Facts, Loading, Moment, Problem } from "./parts.js";

const PAGE = 500;
/** Requests made for one look at a life; a longer one goes on when the operator asks. */
const PAGES_AT_ONCE = 2;
const EVERY_MS = 5_000;
/** So many renewals in a row are told in one line. */
const FOLDED = 3;

/** The events of a message, oldest first, and how to get more of them. */
export function useTrace(queue, id) {
  const address = path("queues", queue, "messages", id, "trace");
  const [state, setState] = useState({ events: [], finished: false, error: null, isLoading: true });
  const cursor = useRef(undefined);
  const isBusy = useRef(false);
  const isGone = useRef(false);
  const load = async () => {
    if (isBusy.current) return;
    isBusy.current = true;
    const fresh = [];
    try {
      for (let pages = 1; pages <= PAGES_AT_ONCE; pages += 1) {
        const page = await get(address + query({ after: cursor.current, limit: PAGE }));
        if (isGone.current) return;
        fresh.push(...page.events);
        cursor.current = page.next_after;
        if (page.finished || pages === PAGES_AT_ONCE) {
          setState((before) => after(before, { fresh, finished: page.finished, error: null }));
          break;
        }
      }
    } catch (error) {
      setState((before) => after(before, { fresh, finished: before.finished, error }));
    }
    isBusy.current = false;
  };
  useEffect(() => {
    isGone.current = false;
    load();
    const timer = setInterval(() => document.hidden || load(), EVERY_MS);
    return () => {
      isGone.current = true;
      clearInterval(timer);
    };
  }, [address]);
  return { ...state, more: load };
}

// Nothing new is the usual case: then nothing is rendered.
function after(before, { fresh, finished, error }) {
  const isSame = fresh.length === 0 && before.finished === finished && before.error === error && !before.isLoading;
  if (isSame) return before;
  return { events: fresh.length ? [...before.events, ...fresh] : before.events, finished, error, isLoading: false };
}

/** The name of an event for ever. */
export const keyOf = (event) => `${event.seq}.${event.place}`;

/** A life, oldest first. `trace` is what useTrace returns. */
export function Life({ trace }) {
  const { events, finished, error, isLoading, more } = trace;
  if (isLoading) return html`<${Loading} />`;
  return html`<${Problem} error=${error} />
    ${events.length === 0 && finished && html`<${Empty} title="The event log has no events of this message">Its events have been deleted, or the queue's event log is off.<//>`}
    <ol class="life">
      ${folded(events).map(({ event, renewals, before }) =>
        renewals
          ? html`<${Renewals} key=${keyOf(renewals[0])} events=${renewals} before=${before} />`
          : html`<${Entry} key=${keyOf(event)} event=${event} before=${before} />`,
      )}
    </ol>
    ${!finished && !error && html`<p class="more"><button type="button" onClick=${more}>Search further</button></p>`}`;
}

function folded(events) {
  const shown = [];
  let before = null;
  for (let at = 0; at < events.length; ) {
    let end = at;
    while (end < events.length && events[end].type === "renewed" && events[end].renewals) end += 1;
    if (end - at > FOLDED) {
      shown.push({ renewals: events.slice(at, end), before });
      at = end;
    } else {
      shown.push({ event: events[at], before });
      at += 1;
    }
    before = events[at - 1];
  }
  return shown;
}

function Entry({ event, before }) {
  const { text, tone } = tell(event);
  return html`<li class=${tone}>
    <${When} event=${event} before=${before} />
    <div class="entry"><${Badge} type=${event.type} /> ${text} <${Actor} event=${event} />
      <${Details} label=${`Details of ${event.type}`}><${EventFacts} event=${event} /><//>
    </div>
  </li>`;
}

function Renewals({ events, before }) {
  const last = events.at(-1);
  return html`<li>
    <${When} event=${events[0]} before=${before} />
    <div class="entry"><${Badge} type="renewed" /> Renewed ${format.plural(events.length, "time")} by ${last.holder || "its holder"}, the last time${" "}
      <${Moment} ms=${last.at_ms} /> until <${Moment} ms=${last.visible_at_ms} />
      <${Details} label="Each renewal">
        <ol class="life">${events.map((event, place) => html`<${Entry} key=${keyOf(event)} event=${event} before=${events[place - 1] ?? before} />`)}</ol>
      <//>
    </div>
  </li>`;
}

function When({ event, before }) {
  const gap = before ? (event.at_ms - before.at_ms) / 1000 : null;
  return html`<div class="when"><${Moment} ms=${event.at_ms} />${gap > 0 && html`<span class="faint">+${format.duration(gap)}</span>`}</div>`;
}

/** The type of an event. */
export function Badge({ type }) {
  return html`<span class="event-type">${type}</span>`;
}

/** Who did it, if the log says so. */
export function Actor({ event }) {
  return event.actor ? html`<span class="actor">by <strong>${event.actor}</strong></span>` : null;
}

/** Something that is rendered only while it is open. */
export function Details({ label, children }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="on-demand" onToggle=${(event) => event.target === event.currentTarget && setOpen(event.currentTarget.open)}>
    <summary aria-label=${label}>Details</summary>
    ${isOpen && children}
  </details>`;
}

const MOMENTS = ["at_ms", "inserted_at_ms", "expires_at_ms", "visible_at_ms", "visible_since_ms", "since_ms"];
const NUMBERED = new Set(["seq", "place"]);

/** All that an event says, with links to what it names. */
export function EventFacts({ event }) {
  const pairs = Object.entries(event)
    .filter(([name]) => !NUMBERED.has(name) && name !== "type")
    .map(([name, value]) => [words(name), factOf(name, value, event)]);
  return html`<${Fragment}>
    <${Facts} pairs=${[["Number", keyOf(event)], ["Type", event.type], ...pairs]} />
    <${Copy} text=${JSON.stringify(event, null, 2)} label="Copy as JSON" />
  <//>`;
}

const words = (name) => {
  const text = name.replace(/_ms$/, "").replaceAll("_", " ");
  return text[0].toUpperCase() + text.slice(1);
};

function factOf(name, value, event) {
  if (MOMENTS.includes(name)) return html`<time datetime=${format.exact(value)}>${format.exact(value)}</time>`;
  if (name === "queue") return html`<a href=${to("queues", value)}>${value}</a>`;
  if (name === "message_id") return html`<a href=${to("messages", event.queue, value)}>${value}</a>`;
  if (name === "session") return html`<a href=${to("workers", value)}>${value}</a>`;
  if (name === "group_id" && event.queue) return html`<a href=${to("groups", event.queue, value)}>${value}</a>`;
  return String(value);
}

// The event log, newest first, with a filter; new events come in at the top.

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { get, path, query, session } from "../lib/api.js";
import { setParams, to } from "../lib/router.js";
import { EVENT_TYPES, tell } from "../lib/story.js";
import * as format from "../lib/format.js";
import { Empty, Loading, Moment, PageHead, Problem } from "../ui/parts.js";
import { Table } from "../ui/table.js";
import { Actor, Badge, Details, EventFacts, keyOf } from "../ui/life.js";

const PAGE = 100;
const TAIL_MS = 2_000;
/** Requests made by one press of a button: each looks at a bounded part of the log. */
const PAGES_AT_ONCE = 4;
/** More rows than this are not kept on the page: the oldest go when new ones come. */
const KEPT = 1_000;
/** More than the events of a batch. */
const MOST_PLACES = 1_000_000;
/** Above so many that wait to be shown, they are not collected any more. */
const WAITING = 500;
const TYPED_MS = 300;
const FILTERS = ["queue", "type", "message", "group", "actor", "holder", "session"];

export default function Events({ params }) {
  const given = { queue: session.value.queue, ...params };
  const filter = Object.fromEntries(FILTERS.filter((name) => given[name]).map((name) => [name, given[name]]));
  return html`<${PageHead} title="Events" />
    <${Filter} filter=${filter} />
    <${Log} key=${JSON.stringify(filter)} filter=${filter} />`;
}

const FIELDS = [
  ["queue", "Queue"],
  ["message", "Message id"],
  ["group", "Group"],
  ["holder", "Holder"],
  ["session", "Session"],
  ["actor", "Actor"],
];

function Filter({ filter }) {
  const isEmpty = Object.keys(filter).length === 0;
  return html`<form class="filter" role="search" aria-label="Filter of events" onSubmit=${(event) => event.preventDefault()}>
    <${TypeField} value=${filter.type ?? ""} />
    ${FIELDS.map(([name, label]) => html`<${TextField} key=${name} name=${name} label=${label} value=${filter[name] ?? ""} />`)}
    <div class="filter-end">
      <label class="check"><input type="checkbox" checked=${filter.actor === "*"} onChange=${(event) => setParams({ actor: event.currentTarget.checked ? "*" : "" })} />
        Only with an actor</label>
      <button type="button" disabled=${isEmpty} onClick=${() => setParams(Object.fromEntries(FILTERS.map((name) => [name, ""])))}>Clear the filter</button>
    </div>
  </form>`;
}

// Types that are looked for together.
const KINDS = [
  ["What went wrong", "released,lapsed,poisoned,lease-ended,refused,expired,discarded,session-lost,claim-lapsed,group-halted"],
  ["Changes of queues", "queue-created,queue-updated,queue-paused,queue-resumed,queue-cleared,queue-deleted,group-halted,group-resumed"],
  ["Sessions", "session-started,session-lost,session-ended"],
];

function TypeField({ value }) {
  const isKnown = value === "" || EVENT_TYPES.includes(value) || KINDS.some(([, types]) => types === value);
  return html`<label>
    <span>Type</span>
    <select value=${value} onChange=${(event) => setParams({ type: event.currentTarget.value })}>
      <option value="">any</option>
      ${!isKnown && html`<option value=${value}>${value.replaceAll(",", ", ")}</option>`}
      ${KINDS.map(([label, types]) => html`<option key=${label} value=${types}>${label}</option>`)}
      ${EVENT_TYPES.map((type) => html`<option key=${type} value=${type}>${type}</option>`)}
    </select>
  </label>`;
}

function TextField({ name, label, value }) {
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const typed = (event) => {
    const text = event.currentTarget.value.trim();
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setParams({ [name]: text }), TYPED_MS);
  };
  return html`<label><span>${label}</span>
    <input type="text" value=${value} autocomplete="off" spellcheck="false" placeholder=${name === "actor" ? "name, or * for any" : ""} onInput=${typed} /></label>`;
}

function Log({ filter }) {
  const [isPaused, setPaused] = useState(false);
  const { log, tail, more, showNew, place } = useLog(filter, isPaused);
  const { rows, waiting, hasGap, isOver, error, isLoading, isLooking, reachedMs } = log;
  const isFiltered = Object.keys(filter).length > 0;
  return html`<div class="toolbar">
      <button type="button" aria-pressed=${isPaused} onClick=${() => setPaused(!isPaused)}>${isPaused ? "Resume updates" : "Pause updates"}</button>
      ${(waiting.length > 0 || hasGap) && html`<button type="button" class="primary" onClick=${showNew}>Show ${waiting.length}${hasGap || waiting.length >= WAITING ? "+" : ""} new</button>`}
      <span class="faint">${isPaused ? "Paused: new events are counted but not shown." : tail.isHeld ? "New events are held back while you read." : "New events are shown as they come."}</span>
    </div>
    <${Problem} error=${error} retry=${more} />
    ${isLoading && html`<${Loading} lines=${8} />`}
    <div ref=${place}>
      ${rows.length > 0 && html`<${Table} caption="Events, newest first" columns=${COLUMNS} rows=${rows} keyOf=${keyOf} />`}
    </div>
    ${!isLoading && !error && rows.length === 0 && html`<${Empty} title=${isFiltered ? "No event matches the filter" : "The event log is empty"}>
      ${!isOver && reachedMs && html`All events since <${Moment} ms=${reachedMs} /> were searched.`}
    <//>`}
    ${!isLoading &&
    html`<p class="more">${isOver
      ? html`<span class="faint">Start of the log.</span>`
      : html`<button type="button" disabled=${isLooking} onClick=${more}>${isLooking ? "Searching…" : "Show older events"}</button>
          ${reachedMs && html` <span class="faint">Searched back to <${Moment} ms=${reachedMs} /></span>`}`}</p>`}`;
}

const COLUMNS = [
  { key: "at", label: "When", render: (event) => html`<${Moment} ms=${event.at_ms} />` },
  { key: "type", label: "Type", render: (event) => html`<span class=${tell(event).tone}><${Badge} type=${event.type} /></span>` },
  {
    key: "what",
    label: "Event",
    isMain: true,
    render: (event) => html`${tell(event).text} <${Actor} event=${event} />
      <${Details} label=${`Details of event ${keyOf(event)}`}><${EventFacts} event=${event} /><//>`,
  },
  { key: "queue", label: "Queue", render: (event) => event.queue && html`<a href=${to("queues", event.queue)}>${event.queue}</a>` },
  {
    key: "about",
    label: "Message",
    render: (event) => {
      if (event.message_id) return html`<a class="mono" href=${to("messages", event.queue, event.message_id)}>${event.message_id}</a>`;
      if (event.group_id) return html`<a href=${to("groups", event.queue, event.group_id)}>group ${event.group_id}</a>`;
      return event.session ? html`<a href=${to("workers", event.session)}>session ${event.session}</a>` : null;
    },
  },
];

// The number of the newest batch of events; 0 for who may see one queue only, and not the log as a whole.
async function lastSeq() {
  if (session.value.queue) return 0;
  return (await get(path("events") + query({ after: Number.MAX_SAFE_INTEGER, limit: 1 }))).last_seq;
}

const EMPTY = { rows: [], waiting: [], hasGap: false, isOver: false, error: null, isLoading: true, isLooking: false, reachedMs: null };

// The log as far as it was asked for, and what came since. What is new waits while the operator reads
// or points at the list, so that nothing moves that is about to be clicked.
function useLog(filter, isPaused) {
  const [log, setLog] = useState(EMPTY);
  const cursors = useRef({ newest: null, before: null, isBusy: false, isOver: false });
  const place = useRef(null);
  const tail = useHeld(place);
  const address = (more) => `/console/api/events${query({ ...filter, limit: PAGE, ...more })}`;
  const change = (changes) =>
    setLog((was) => {
      const next = typeof changes === "function" ? changes(was) : changes;
      return next === null ? was : { ...was, ...next };
    });

  const lookBack = async (isFirst = false) => {
    if (cursors.current.isBusy) return;
    cursors.current.isBusy = true;
    change({ isLooking: true });
    try {
      if (isFirst) cursors.current.newest = await lastSeq();
      for (let pages = 0; pages < PAGES_AT_ONCE; pages += 1) {
        const page = await get(address({ before: cursors.current.before }));
        cursors.current.before = page.next_before;
        if (isFirst) cursors.current.newest = Math.max(cursors.current.newest, page.events[0]?.seq ?? 0);
        const isFirstPage = isFirst;
        isFirst = false;
        change((was) => ({
          rows: isFirstPage ? page.events : [...was.rows, ...page.events],
          waiting: isFirstPage ? [] : was.waiting,
          isOver: page.finished,
          reachedMs: page.reached_ms ?? page.events.at(-1)?.at_ms ?? was.reachedMs,
          error: null,
        }));
        if (page.finished || page.events.length > 0) break;
      }
    } catch (error) {
      change({ error });
    }
    cursors.current.isBusy = false;
    change({ isLoading: false, isLooking: false });
  };

  // The newest number of the log says whether anything came at all: the filter is only asked then.
  const follow = async () => {
    const { newest, isBusy } = cursors.current;
    if (newest === null || isBusy || document.hidden) return;
    cursors.current.isBusy = true;
    try {
      const last = await lastSeq();
      const fresh = [];
      let page = { finished: last !== 0 && last <= newest };
      while (!page.finished && fresh.length < WAITING) {
        page = await get(address({ after: `${newest}.${MOST_PLACES}`, before: page.next_before }));
        fresh.push(...page.events);
        if (page.events.length === 0) break;
      }
      cursors.current.newest = Math.max(last, newest, fresh[0]?.seq ?? 0);
      // What came is more than was read: the list begins anew when it is shown.
      const hasGap = !page.finished;
      change((was) => {
        if (fresh.length === 0 && !hasGap && !was.error) return null;
        return { waiting: [...fresh, ...was.waiting].slice(0, WAITING), error: null, hasGap: was.hasGap || hasGap };
      });
    } catch (error) {
      change({ error });
    }
    cursors.current.isBusy = false;
  };

  const showNew = () => {
    if (log.hasGap || log.waiting.length >= WAITING) {
      cursors.current.before = null;
      change({ hasGap: false });
      lookBack(true);
      return;
    }
    change((was) => {
      const rows = [...was.waiting, ...was.rows];
      if (rows.length > KEPT) {
        rows.length = KEPT;
        cursors.current.before = keyOf(rows.at(-1));
        return { rows, waiting: [], isOver: false, reachedMs: rows.at(-1).at_ms };
      }
      return { rows, waiting: [] };
    });
  };

  useEffect(() => {
    lookBack(true);
  }, []);
  useEffect(() => {
    const timer = setInterval(follow, TAIL_MS);
    return () => clearInterval(timer);
  }, []);
  const isHeld = isPaused || tail.isHeld;
  useEffect(() => {
    if (!isHeld && (log.waiting.length > 0 || log.hasGap)) showNew();
  }, [isHeld, log.waiting, log.hasGap]);
  return { log, tail, more: () => lookBack(), showNew, place };
}

// Whether the list must not move: it is pointed at, has the focus, is scrolled, or shows details.
function useHeld(place) {
  const [isHeld, setHeld] = useState(false);
  useEffect(() => {
    const look = () => {
      const list = place.current;
      const isRead = list !== null && (list.matches(":hover") || list.contains(document.activeElement) || list.querySelector("details[open]") !== null);
      setHeld(isRead || scrollY > 200);
    };
    const kinds = ["scroll", "pointermove", "focusin", "focusout", "toggle"];
    for (const kind of kinds) addEventListener(kind, look, { passive: true, capture: true });
    return () => {
      for (const kind of kinds) removeEventListener(kind, look, { capture: true });
    };
  }, []);
  return { isHeld };
}

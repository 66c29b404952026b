// The messages of a queue: those that match the filter, page by page, and what can be done with them.
//
// What is shown stays in its place while other messages come and go: rows are brought up to date where
// they are, those that are gone are greyed, and new ones are shown when the operator asks for them.

import { html, useCallback, useEffect, useRef, useState } from "../lib/html.js";
import { get, path, query } from "../lib/api.js";
import { go, route, to } from "../lib/router.js";
import * as format from "../lib/format.js";
import { MessageActions, actionsOf, invalid } from "./actions.js";
import { BULK_ACTIONS, actOnAll, actOnSelected, reachedBy } from "./bulk.js";
import { ActionButton, openDialog } from "./dialog.js";
import { FilterBar, asQuery, filterOf, inWords, wrongIn } from "./filter.js";
import { Age, Empty, Loading, Problem, Relative, Sentence, State } from "./parts.js";
import { putMessage } from "./put.js";
import { Table } from "./table.js";

const LIMIT = 50;
const EVERY_MS = 5_000;
/** Requests for one page: where few match, the server looks at a bounded number of messages for each. */
const MOST_REQUESTS = 20;
const EXCERPT = 160;
/** Bodies of a page that are asked for only to show how they begin. */
const MOST_BYTES = 1024 * 1024;
/** No row is selected: `chosen` are messages by id, `isAll` stands for all that match. */
const NOTHING = { chosen: new Map(), isAll: false };

export default function Messages({ queue, info, counts, params, reload: reloadCounts }) {
  const filter = filterOf(params);
  const page = usePage(queue, filter, params.after ?? "", info.settings.max_body_bytes > MOST_BYTES);
  const words = inWords(filter);
  // What was chosen under another filter is out of sight, and must not be acted on.
  const [choice, setChoice] = useState({ words, ...NOTHING });
  const { chosen, isAll } = choice.words === words ? choice : NOTHING;
  const choose = (next) => setChoice({ words, ...NOTHING, ...next });
  const reload = () => {
    page.reload();
    reloadCounts?.();
  };
  const afterAction = () => {
    // It may be over long after the filter was changed.
    setChoice((now) => (now.words === words ? { words, ...NOTHING } : now));
    reload();
  };
  const select = (keys) => {
    const rows = new Map(page.rows.map((row) => [row.id, row]));
    choose({ chosen: new Map([...keys].map((key) => [key, rows.get(key) ?? chosen.get(key)])) });
  };
  const selection = isAll ? new Set(page.rows.map((row) => row.id)) : new Set(chosen.keys());
  return html`<${FilterBar} filter=${filter} />
    <${BulkBar}
      ...${{ queue, filter, chosen, isAll, page, afterAction }}
      known=${knownNumber(filter, counts)}
      onAll=${() => choose({ isAll: true })}
      onNone=${() => choose({})}
    />
    <${Problem} error=${page.error} retry=${page.reload} />
    ${page.isLoading
      ? html`<${Loading} lines=${8} />`
      : page.rows.length === 0
        ? !page.error && html`<${Nothing} ...${{ queue, words, page, reload }} />`
        : html`<${Table}
            caption=${`Messages of ${queue}`}
            columns=${columnsOf(queue, reload)}
            rows=${page.rows}
            keyOf=${(row) => row.id}
            selection=${selection}
            onSelect=${select}
            rowClass=${(row) => (row.isGone ? "is-gone" : "")}
          />`}
    <${Pages} queue=${queue} page=${page} />`;
}

// --- the page of messages ------------------------------------------------------------------------

function usePage(queue, filter, after, mayBeLarge) {
  const key = JSON.stringify([queue, filter, after]);
  const [state, setState] = useState({ key: null, rows: [], next: null, error: null });
  const running = useRef(null);
  const shown = useRef(state);
  shown.current = state;

  const load = useCallback(async () => {
    running.current?.abort();
    const abort = (running.current = new AbortController());
    let rows = [];
    let place = after;
    let requests = 0;
    const tell = (changes) => {
      if (!abort.signal.aborted) setState({ key, rows, next: place, requests, news: null, error: null, ...changes });
    };
    try {
      do {
        const options = { limit: LIMIT - rows.length, signal: abort.signal, mayBeLarge };
        const answer = await askWithBodies(queue, filter, place, options);
        rows = [...rows, ...answer.messages];
        place = answer.next_after;
        requests += 1;
        const isDone = !place || rows.length >= LIMIT || requests >= MOST_REQUESTS;
        tell({ isLooking: !isDone });
        if (isDone) return;
      } while (!abort.signal.aborted);
    } catch (error) {
      tell({ error });
    }
  }, [key]);

  // Brings up to date what is shown, without bodies, where a single request tells it all.
  const refresh = useCallback(async () => {
    const { rows, requests, key: keyShown, isLooking } = shown.current;
    if (keyShown !== key || isLooking || requests > 1) return;
    const abort = running.current;
    try {
      const answer = await ask(queue, filter, after, { limit: LIMIT, signal: abort.signal, body: false });
      if (abort.signal.aborted) return;
      if (rows.length === 0 && answer.messages.length > 0) load();
      else setState((before) => ({ ...before, ...merged(before.rows, answer), error: null }));
    } catch (error) {
      // That there is no server is said above the page; nothing has to move for it.
      if (!abort.signal.aborted && error.code !== "unreachable") setState((before) => ({ ...before, error }));
    }
  }, [key, load]);

  useEffect(() => {
    load();
    const timer = setInterval(() => document.hidden || refresh(), EVERY_MS);
    return () => {
      clearInterval(timer);
      running.current?.abort();
    };
  }, [load, refresh]);

  // Who reloads when an action is over wants what is shown then.
  const latest = useRef(load);
  latest.current = load;

  const isCurrent = state.key === key;
  return {
    rows: isCurrent ? state.rows : [],
    next: isCurrent ? state.next : null,
    news: isCurrent ? state.news : null,
    error: isCurrent ? state.error : null,
    isLooking: isCurrent && state.isLooking,
    isLoading: !isCurrent || (state.rows.length === 0 && state.isLooking),
    after,
    reload: () => latest.current(),
  };
}

async function ask(queue, filter, after, { limit, signal, body }) {
  const wrong = wrongIn(filter); // in an address that was typed in, or sent by others
  if (wrong) throw invalid("The filter cannot be read", wrong);
  return get(path("queues", queue, "messages") + query({ ...asQuery(filter), after, limit, body }), { signal });
}

// With bodies, for their beginnings; where they may be large only if all of them are small.
async function askWithBodies(queue, filter, after, { mayBeLarge, ...options }) {
  if (mayBeLarge) {
    const answer = await ask(queue, filter, after, { ...options, body: false });
    if (answer.messages.reduce((sum, message) => sum + message.body_bytes, 0) > MOST_BYTES) return answer;
  }
  return ask(queue, filter, after, options);
}

// Rows keep their places. `news`: how many have come, and how many are gone.
function merged(rows, answer) {
  const found = new Map(answer.messages.map((message) => [message.id, message]));
  const known = new Set(rows.map((row) => row.id));
  const next = rows.map((row) => {
    const now = found.get(row.id);
    if (!now) return { ...row, isGone: true };
    // Of another size it is another body, which was not asked for.
    return now.body_bytes === row.body_bytes ? { ...now, body: row.body, body_base64: row.body_base64 } : now;
  });
  const come = answer.messages.filter(({ id }) => !known.has(id)).length;
  const gone = next.filter((row) => row.isGone).length;
  return { rows: next, next: answer.next_after, news: come || gone ? { come, gone } : null };
}

function Pages({ queue, page }) {
  const { next, after, isLooking, rows } = page;
  const toPage = (place) => go(to("queues", queue, { ...route.value.params, after: place }));
  if (!next && !after && !isLooking) return null;
  return html`<nav class="more actions" aria-label="Pages of messages">
    ${after && html`<button type="button" onClick=${() => toPage("")}>First page</button>
      <button type="button" onClick=${() => history.back()}>Back</button>`}
    ${isLooking
      ? html`<span class="faint" role="status">Searching…</span>`
      : next && html`<button type="button" onClick=${() => toPage(next)}>${rows.length < LIMIT ? "Search further" : "Next page"}</button>`}
  </nav>`;
}

function Nothing({ queue, words, page, reload }) {
  if (page.next) {
    return html`<${Empty} title="No match so far">
      None of the messages examined so far matches. Later messages have not been examined yet.
    <//>`;
  }
  if (words) return html`<${Empty} title="No message matches">The filter is: ${words}.<//>`;
  return html`<${Empty} title="There are no messages">
    <${ActionButton} onClick=${() => putMessage(queue, reload)}>Put a message<//>
  <//>`;
}

// --- selection -----------------------------------------------------------------------------------

// The number that match, where the counts by state tell it; else null.
function knownNumber(filter, counts) {
  const names = Object.keys(filter);
  if (names.length === 0) return counts.total + counts.poisoned + counts.expired;
  if (names.length > 1 || names[0] !== "state") return null;
  const states = filter.state.split(",");
  return states.every((state) => counts[state] !== undefined)
    ? states.reduce((sum, state) => sum + counts[state], 0)
    : null;
}

// Those that are on the page are known as they are now.
function latest(messages, rows) {
  const shown = new Map(rows.map((row) => [row.id, row]));
  return messages.map((message) => shown.get(message.id) ?? message);
}

function BulkBar({ queue, filter, chosen, isAll, page, known, onAll, onNone, afterAction }) {
  const number = chosen.size;
  const some = known === null ? "all" : `all ${format.count(known)}`;
  const states = new Set([...chosen.values()].map((message) => message.state));
  const isFor = (action) =>
    isAll ? reachedBy(action, filter).length > 0 : action.states.some((state) => states.has(state));
  const act = (action) =>
    isAll
      ? actOnAll(queue, action, filter, afterAction)
      : actOnSelected(queue, action, latest([...chosen.values()], page.rows), afterAction);
  return html`<div class="bulk" role="group" aria-label="Selection">
    <span role="status">${isAll ? `Selected: ${some} that match` : number ? `${format.count(number)} selected` : "Nothing selected"}</span>
    ${(isAll || number > 0) && html`<button type="button" class="small quiet" onClick=${onNone}>Clear selection</button>`}
    ${!isAll && page.rows.length > 0 && known !== 1 && html`<button type="button" class="small" onClick=${onAll}>Select ${some} that match</button>`}
    ${(isAll || number > 0) &&
    html`<div class="actions">
      ${BULK_ACTIONS.map(
        (action) => html`<${ActionButton}
          key=${action.key}
          kind=${`small ${action.danger ? "danger" : ""}`}
          disabled=${!isFor(action)}
          onClick=${() => act(action)}
          >${action.label}<//
        >`,
      )}
    </div>`}
    <${News} page=${page} />
  </div>`;
}

function News({ page }) {
  const { news } = page;
  const words = news && [news.come && `${format.count(news.come)} new`, news.gone && `${format.count(news.gone)} gone`];
  return html`<button type="button" class="small bulk-end" onClick=${page.reload}>
    ${words ? `Refresh: ${words.filter(Boolean).join(", ")}` : "Refresh"}
  </button>`;
}

// --- columns -------------------------------------------------------------------------------------

const columnsOf = (queue, reload) => [
  {
    key: "id",
    label: "Message",
    isMain: true,
    render: (row) => html`<a class="mono id" href=${to("messages", queue, row.id)}>${shortId(row.id)}</a>
      ${row.type && html` <span class="tag">${row.type}</span>`}
      ${row.group_id && html` <a class="tag" href=${to("groups", queue, row.group_id)}>group ${row.group_id}</a>`}`,
  },
  { key: "body", label: "Body", align: "text", render: (row) => html`<${Excerpt} message=${row} />` },
  {
    key: "state",
    label: "State",
    render: (row) =>
      row.isGone
        ? html`<span class="faint" title="It no longer matches, or was completed, removed or moved">gone</span>`
        : html`<details class="why">
            <summary aria-label=${`${row.state}: why?`}><${State} name=${row.state} /></summary>
            <span><${Sentence} text=${row.why} /></span>
          </details>`,
  },
  { key: "age", label: "Age", align: "number", hint: "Time since it was put", render: (row) => html`<${Age} ms=${row.inserted_at_ms} />` },
  {
    key: "attempts",
    label: "Attempts",
    align: "number",
    hint: "Number of deliveries and of failures",
    render: (row) => html`<div>${format.count(row.dequeue_count)}${row.failures > 0 && html` <span class="failed">${format.plural(row.failures, "failure")}</span>`}</div>`,
  },
  { key: "holder", label: "Holder", hint: "Current holder and time held", render: (row) => html`<${Holder} message=${row} />` },
  {
    key: "actions",
    label: "Actions",
    render: (row) =>
      !row.isGone &&
      actionsOf(row).length > 0 &&
      html`<${ActionButton} kind="small" onClick=${() => openActions(queue, row, reload)}>
        Act<span class="hidden-visually"> on ${shortId(row.id)}</span>
      <//>`,
  },
];

// Ids begin with zeros and end with chance; the middle is enough to tell rows apart.
const shortId = (id) => id.replace(/^[0-]+(?=.)/, "").slice(0, 14).replace(/-$/, "");

function Excerpt({ message }) {
  const { body, body_base64: base64, body_bytes: size, body_problem: problem } = message;
  if (problem) return html`<span class="faint">${problem}</span>`;
  if (body != null) {
    if (body === "") return html`<span class="faint">empty</span>`;
    return html`<span class="mono">${body.length > EXCERPT ? `${body.slice(0, EXCERPT)}…` : body}</span>`;
  }
  return html`<span class="faint">${base64 != null ? "binary, " : ""}${format.bytes(size)}</span>`;
}

function Holder({ message }) {
  const { lease, state, visible_at_ms: visibleMs, last_error: error, under, session } = message;
  if (message.isGone) return html`<span class="faint">–</span>`;
  if (state === "leased" && (lease || under)) {
    const name = lease?.holder ?? (under ? `claim ${under}` : "no name");
    const done = lease?.progress?.fraction;
    return html`<div>${session ? html`<a href=${to("workers", session)}>${name}</a>` : name}
      <span class="faint"> for <${Age} ms=${lease?.since_ms} />, lease ends <${Relative} ms=${lease?.until_ms ?? visibleMs} />${done != null && `, ${format.percent(done)} done`}</span></div>`;
  }
  if (state === "delayed" || state === "deferred") {
    return html`<div class="faint">visible <${Relative} ms=${visibleMs} />${error && `, after ${error.text ?? error.type}`}</div>`;
  }
  if (state === "poisoned") return html`<div class="faint">${message.poisoned?.reason}${error && `: ${error.text ?? error.type}`}</div>`;
  return html`<span class="faint">–</span>`;
}

function openActions(queue, message, reload) {
  openDialog(
    (close) => html`<div class="dialog-form">
      <h2 id="dialog-title">Act on a message</h2>
      <div class="dialog-body">
        <p><code>${message.id}</code></p>
        <p><${Sentence} text=${message.why} /></p>
        <${MessageActions} queue=${queue} message=${message} reload=${reload} leave=${close} />
      </div>
      <footer><button type="button" class="quiet" onClick=${close}>Close</button></footer>
    </div>`,
  );
}

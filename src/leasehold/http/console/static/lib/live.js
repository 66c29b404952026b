// What the server tells without being asked: figures of the queues and of itself.

import { session } from "./api.js";
import { Store } from "./store.js";

/** Points of a sparkline, as many as the server keeps. */
const KEPT = 18;

/** Milliseconds after which a console connects again whose place another one took. */
const DISPLACED_MS = 30_000;

/** `state` is `connecting`, `open` or `lost`; `since` is when it became so, by this machine. */
export const connection = new Store({ state: "connecting", since: Date.now() });

/** What the server said of all queues together, or null. */
export const totals = new Store(null);

/** What the server said of itself, or null. */
export const server = new Store(null);

/** How far the server's clock is ahead of this machine's, in milliseconds; null if not known. */
export const clockOffset = new Store(null);

/** Rows of queues by name, those that have changed since the page was opened. */
export const queues = new Store(new Map());

/** What moved in queues lately, by name: `[inPerS, outPerS]` of each interval, oldest first. */
export const movements = new Store(new Map());

let source = null;

/** The time by the server's clock, as well as it is known, in Unix milliseconds. */
export const now = () => Date.now() + (clockOffset.value ?? 0);

/** Begin to listen. The browser connects again by itself when the connection breaks. */
export function listen() {
  source?.close();
  setConnection("connecting");
  source = new EventSource("/console/api/live?full=false");
  source.addEventListener("open", () => setConnection("open"));
  source.addEventListener("error", () => {
    setConnection("lost");
    // A browser gives up when it is refused; then only asking who is signed in can tell why.
    if (source.readyState === EventSource.CLOSED) setTimeout(listenAgain, 3_000);
  });
  source.addEventListener("overview", (event) => receive(JSON.parse(event.data)));
  source.addEventListener("spark", (event) => movements.set(moved(movements.value, JSON.parse(event.data))));
  source.addEventListener("server", (event) => {
    const figures = JSON.parse(event.data);
    clockOffset.set(figures.now_ms - Date.now());
    server.set(figures);
  });
  source.addEventListener("end", (event) => {
    const { reason } = JSON.parse(event.data);
    if (reason === "session-over") {
      source.close();
      session.set({ ...session.value, signed_in: false });
    } else if (reason === "displaced") {
      // Another console took the place of this one; to come back at once would take that of a third.
      source.close();
      setConnection("lost");
      setTimeout(listenAgain, DISPLACED_MS);
    }
  });
}

/** Listen no more. */
export function hush() {
  source?.close();
  source = null;
}

async function listenAgain() {
  if (source === null) return;
  const answer = await fetch("/console/api/session", { credentials: "same-origin" }).catch(() => null);
  if (answer?.ok && !(await answer.json()).signed_in) {
    session.set({ ...session.value, signed_in: false });
  } else if (source !== null) {
    const { state, since } = connection.value;
    listen();
    if (state === "lost") connection.set({ state, since });
  }
}

function setConnection(state) {
  const before = connection.value.state;
  if (before === state) return;
  connection.set({ state, since: Date.now() });
  // What changed meanwhile was not told.
  if (before === "lost" && state === "open") dispatchEvent(new Event("reconnected"));
}

function receive(news) {
  setConnection("open");
  totals.set(news.totals);
  const rows = queues.value;
  for (const row of news.queues) {
    rows.set(row.name, row);
  }
  for (const name of news.removed ?? []) rows.delete(name);
  queues.set(rows);
}

// All that is known, or one more interval; who is not named has stood still in it.
function moved(before, news) {
  if (news.full) return new Map(Object.entries(news.queues));
  const after = new Map();
  const length = Math.max(0, ...[...before.values()].map((points) => points.length));
  for (const name of new Set([...before.keys(), ...Object.keys(news.queues)])) {
    const points = before.get(name) ?? Array(length).fill([0, 0]);
    after.set(name, [...points, news.queues[name] ?? [0, 0]].slice(-KEPT));
  }
  return after;
}

// The timeline of a pipeline's messages: asks for events and follows them while it is shown.

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { get, path, query, useResource } from "../lib/api.js";
import { now } from "../lib/live.js";
import { to } from "../lib/router.js";
import { Lives, spansAt } from "../lib/spans.js";
import { holderOf, labelOf } from "../lib/pipeline.js";
import * as format from "../lib/format.js";
import { Empty, Loading, Note, Problem, useNow } from "./parts.js";
import { Timeline } from "./timeline.js";

const EVERY_MS = 2_000;
const LOOK_EVERY_MS = 5_000;
const NAME_EVERY_MS = 15_000;
const PAGE = 500;
const FIRST_PAGES = 4;
/** Messages that are remembered, and those of them that are drawn. */
const KEPT = 400;
const DRAWN = 40;
/** Messages that are asked for, with their bodies: those in work for their stages, and the oldest for names. */
const LOOKED_AT = 25;
const SHORTEST_MS = 20_000;
const AFTER_MS = 2_000;
const WINDOWS = [
  ["60", "the last minute"],
  ["300", "the last 5 minutes"],
  ["900", "the last 15 minutes"],
  ["3600", "the last hour"],
];
const DEFAULT_WINDOW = "300";

export function PipelineTimeline({ pipeline }) {
  const { queue } = pipeline;
  const { lives, error, isLoading, isBehind } = useLives(queue);
  const { labels, working } = useMessages(queue);
  const [windowS, setWindowS] = useState(DEFAULT_WINDOW);
  const nowMs = useNow();
  const isOver = pipeline.state !== undefined && pipeline.state !== "running";
  // The axis of one that is over ends with its last report.
  const toMs = isOver ? Math.min(nowMs, pipeline.at_ms + AFTER_MS) : nowMs;

  const shown = shownOf(lives, toMs - windowS * 1000, toMs);
  const firstMs = Math.min(...shown.map((life) => life.spans[0]?.fromMs ?? toMs));
  const fromMs = Math.max(toMs - windowS * 1000, Math.min(firstMs, toMs - SHORTEST_MS));
  const holders = holdersOf(shown);
  const names = holders.map(holderOf);
  const named = shown.map((life) => ({
    ...life,
    spans: spansAt(life, nowMs).map((span) => (span.holder ? { ...span, holder: holderOf(span.holder) } : span)),
  }));
  const stages = (pipeline.stages ?? []).map(({ name }) => name);
  const live = [...new Set([...working.values()].flat().map(({ stage }) => stage))];
  const allStages = [...stages, ...live.filter((name) => !stages.includes(name))];

  if (isLoading) return html`<${Loading} />`;
  return html`<p class="faint">
      The upper bar of each message shows its state at the server: hidden, visible, or leased, with
      the holder. The lower bar shows its stage, as seen by this page. Point at a bar for details.
    </p>
    <div class="toolbar">
      <label class="inline">
        <span>Show</span>
        <select value=${windowS} onChange=${(event) => setWindowS(event.currentTarget.value)}>
          ${WINDOWS.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}
        </select>
      </label>
      <a href=${to("events", { queue })}>All events of ${queue}</a>
    </div>
    <${Problem} error=${error} />
    ${isBehind && html`<${Note} tone="warning">Too many events to draw: some are omitted.<//>`}
    ${shown.length === 0
      ? !error && html`<${Empty} title="No events in that time">The timeline needs the queue's event log to be on.<//>`
      : html`<${Timeline}
            queue=${queue}
            lives=${named}
            fromMs=${fromMs}
            toMs=${toMs}
            holders=${[...new Set(names)]}
            stages=${allStages}
            runsOf=${(life) => within(working.get(life.id) ?? [], life.spans)}
            labelOf=${(id) => labels.get(id) ?? id}
            label=${`Timeline of ${format.plural(shown.length, "message")} of ${queue}`}
          />`}
    ${lives.size > shown.length && html`<p class="faint">${format.plural(shown.length, "message")} of ${format.count(lives.size)} are shown: those with the latest events.</p>`}`;
}

// The messages of which something was heard last, in the order in which they came.
function shownOf(lives, fromMs, toMs) {
  const seen = [...lives.values()].filter(({ spans, end }) => spans.length && (end === null || end.atMs >= fromMs) && spans[0].fromMs <= toMs);
  if (seen.length <= DRAWN) return seen;
  const least = seen.map(({ lastMs }) => lastMs).sort((one, other) => other - one)[DRAWN - 1];
  return seen.filter(({ lastMs }) => lastMs >= least).slice(-DRAWN);
}

// Who held a lease first has the first colour, and keeps it while others come.
function holdersOf(lives) {
  const since = new Map();
  for (const { spans } of lives) {
    for (const { holder, fromMs } of spans) if (holder) since.set(holder, Math.min(fromMs, since.get(holder) ?? fromMs));
  }
  return [...since.keys()].sort((one, other) => since.get(one) - since.get(other));
}

// What was seen of stages ends with the lease at the latest: the page looks from time to time only.
function within(runs, spans) {
  return runs.map((run) => {
    const lease = spans.find(({ kind, delivery }) => kind === "leased" && delivery === run.delivery);
    if (!lease || lease.toMs === null || (run.toMs !== null && run.toMs <= lease.toMs)) return run;
    const outcome = lease.how === "completed" ? "done" : "unfinished";
    return { ...run, toMs: Math.max(run.fromMs, lease.toMs), outcome: run.outcome === "done" ? "done" : outcome };
  });
}

// Follow the events of a queue: some pages of the past, then what is new.
function useLives(queue) {
  const lives = useRef(null);
  const [state, setState] = useState({ version: 0, error: null, isLoading: true, isBehind: false });
  useEffect(() => {
    const abort = new AbortController();
    const ask = (params) => get(`/console/api/events${query({ queue, limit: PAGE, ...params })}`, { signal: abort.signal });
    let newest = null;
    let isAsking = false;
    const load = async () => {
      if (isAsking) return;
      isAsking = true;
      try {
        const { events, reached, isBehind } = await pagesOf(ask, newest);
        newest = reached;
        lives.current.read(events);
        lives.current.forget(KEPT);
        if (!abort.signal.aborted) setState(({ version }) => ({ version: version + 1, error: null, isLoading: false, isBehind }));
      } catch (error) {
        if (!abort.signal.aborted) setState((before) => ({ ...before, error, isLoading: false }));
      } finally {
        isAsking = false;
      }
    };
    lives.current = new Lives();
    load();
    const timer = setInterval(() => document.hidden || load(), EVERY_MS);
    return () => {
      clearInterval(timer);
      abort.abort();
    };
  }, [queue]);
  return { ...state, lives: lives.current?.byId ?? new Map() };
}

// Events come newest first, in pages; what is read is in their order.
async function pagesOf(ask, after) {
  const pages = [];
  let reached = after;
  let before;
  for (let number = 0; number < FIRST_PAGES; number += 1) {
    const page = await ask({ before, after });
    if (number === 0) reached = page.newest ?? after;
    pages.push(page.events);
    before = page.next_before;
    if (page.finished || !before) return { events: pages.flat().reverse(), reached, isBehind: false };
  }
  return { events: pages.flat().reverse(), reached, isBehind: after !== null };
}

// Names of the messages in work, and the stages that they were seen in, from what their holders saved.
function useMessages(queue) {
  const seen = useRef({ labels: new Map(), working: new Map() });
  const messages = path("queues", queue, "messages");
  const held = useResource(`${messages}${query({ state: "leased", limit: LOOKED_AT })}`, { everyMs: LOOK_EVERY_MS }).data;
  const oldest = useResource(`${messages}${query({ limit: LOOKED_AT })}`, { everyMs: NAME_EVERY_MS }).data;
  useEffect(() => {
    seen.current = { labels: new Map(), working: new Map() };
  }, [queue]);
  useEffect(() => {
    if (held) note(seen.current, held.messages, now());
  }, [held]);
  useEffect(() => {
    if (oldest) name(seen.current.labels, oldest.messages);
  }, [oldest]);
  return seen.current;
}

function note({ labels, working }, messages, nowMs) {
  const held = new Set(messages.map(({ id }) => id));
  for (const [id, runs] of working) if (!held.has(id)) endLast(runs, nowMs, "over");
  name(labels, messages);
  for (const { id, saved, dequeue_count: delivery, lease } of messages) {
    const stage = saved?.stage;
    if (typeof stage !== "string") continue;
    const runs = working.get(id) ?? [];
    working.set(id, runs);
    const last = runs.at(-1);
    const isSame = last?.delivery === delivery;
    if (isSame && last.stage === stage && last.toMs === null) continue;
    endLast(runs, isSame ? nowMs : (lease?.since_ms ?? nowMs), isSame ? "done" : "unfinished");
    if (last && !isSame && last.outcome === "over" && last.stage === stage) last.outcome = "unfinished";
    runs.push({ stage, fromMs: isSame ? nowMs : (lease?.since_ms ?? nowMs), toMs: null, outcome: "", by: "", delivery });
  }
  for (const id of [...working.keys()].slice(0, -KEPT)) working.delete(id);
}

function name(labels, messages) {
  for (const message of messages) {
    const label = labelOf(message);
    if (label) labels.set(message.id, label);
  }
  for (const id of [...labels.keys()].slice(0, -KEPT)) labels.delete(id);
}

function endLast(runs, atMs, outcome) {
  const last = runs.at(-1);
  if (last && last.toMs === null) Object.assign(last, { toMs: atMs, outcome });
}

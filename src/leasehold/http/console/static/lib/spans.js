// From events to stretches of time: when each message was hidden, visible or leased, and by whom.
// Pure functions.

/** How a lease came to its end, by the type of the event. */
const ENDS = {
  completed: "completed",
  settled: "completed",
  poisoned: "moved to the poison queue",
  lapsed: "the lease ran out",
  "lease-ended": "the server ended the lease",
  released: "released",
  removed: "removed",
  expired: "expired",
};

/** After these a message is gone from the queue: with the word and the tone that say how. */
const OVER = {
  completed: ["completed", "good"],
  settled: ["completed", "good"],
  poisoned: ["poisoned", "bad"],
  removed: ["removed", "bad"],
  expired: ["expired", "bad"],
};

const FREED = new Set(["lapsed", "lease-ended", "unclaimed"]);

/**
 * The lives of messages, from events in their order.
 *
 * A life: `id`, `spans`, `end` (`{ atMs, word, tone }`, or null while it is in the queue) and
 * `lastMs`. A span: `kind` (`delayed`, `visible`, `leased` or `waiting`, which is given back to be
 * tried again later), `fromMs`, `toMs` (null while it goes on), and of a lease `delivery`, `fence`,
 * `holder`, `renewals` (moments), `how` it ended, and `untilMs`, when it runs out.
 */
export class Lives {
  constructor() {
    this.byId = new Map();
  }

  /** Take further events, oldest first; those of other queues do not belong here. */
  read(events) {
    for (const event of events) {
      if (!event.message_id) continue;
      let life = this.byId.get(event.message_id);
      if (!life) this.byId.set(event.message_id, (life = { id: event.message_id, spans: [], end: null, lastMs: 0 }));
      apply(life, event);
    }
  }

  /** Forget the messages that were heard of longest ago, but for `most`. */
  forget(most) {
    if (this.byId.size <= most) return;
    const lives = [...this.byId.values()].sort((one, other) => one.lastMs - other.lastMs);
    for (const { id } of lives.slice(0, lives.length - most)) this.byId.delete(id);
  }
}

/**
 * The spans of a life as they are at a moment. That a lease has run out is an event only when the
 * message is received again; until then it shows from the time that the lease was for.
 */
export function spansAt(life, nowMs) {
  const lease = lastLease(life);
  if (!lease || !(lease.untilMs < nowMs)) return life.spans;
  const { untilMs } = lease;
  return [
    ...life.spans.slice(0, -1),
    { ...lease, toMs: untilMs, how: ENDS.lapsed },
    { kind: "visible", fromMs: untilMs, toMs: null },
  ];
}

function apply(life, event) {
  const { type, at_ms: atMs } = event;
  const visibleMs = event.visible_at_ms ?? atMs;
  life.lastMs = atMs;
  if (type === "put" || type === "published" || type === "redriven") {
    life.end = null;
    hide(life, "delayed", atMs, visibleMs);
  } else if (type === "received" || type === "claimed") {
    close(life, atMs);
    life.spans.push({
      kind: "leased",
      fromMs: atMs,
      toMs: null,
      delivery: event.dequeue_count,
      fence: event.fence,
      holder: event.holder ?? "",
      renewals: [],
      how: "",
      untilMs: visibleMs,
    });
  } else if (type === "renewed") {
    const lease = lastLease(life);
    lease?.renewals.push(atMs);
    if (lease) lease.untilMs = visibleMs;
  } else if (type === "released") {
    endLease(life, atMs, event);
    hide(life, "waiting", atMs, visibleMs);
  } else if (FREED.has(type)) {
    const endMs = type === "lapsed" ? Math.min(visibleMs, atMs) : atMs;
    endLease(life, endMs, event);
    hide(life, "waiting", endMs, type === "lapsed" ? endMs : visibleMs);
  } else if (OVER[type]) {
    endLease(life, atMs, event);
    close(life, atMs);
    const [word, tone] = OVER[type];
    life.end = { atMs, word, tone };
  }
}

// Visible from `toMs` on, and hidden until then.
function hide(life, kind, fromMs, toMs) {
  close(life, fromMs);
  if (toMs > fromMs) life.spans.push({ kind, fromMs, toMs });
  life.spans.push({ kind: "visible", fromMs: Math.max(fromMs, toMs), toMs: null });
}

function close(life, atMs) {
  const last = life.spans.at(-1);
  if (!last) return;
  if (last.toMs === null || last.toMs > atMs) last.toMs = Math.max(last.fromMs, atMs);
  // A lease is worth showing however short it was.
  if (last.kind !== "leased" && last.toMs <= last.fromMs) life.spans.pop();
}

function lastLease(life) {
  const last = life.spans.at(-1);
  return last?.kind === "leased" && last.toMs === null ? last : null;
}

function endLease(life, atMs, event) {
  const lease = lastLease(life);
  if (!lease) return;
  lease.toMs = Math.max(lease.fromMs, atMs);
  lease.how = [ENDS[event.type] ?? event.type, event.error ?? event.reason].filter((text) => text).join(": ");
}

/** Round moments for the marks of an axis, at most about `most` of them, in Unix milliseconds. */
export function marksOf(fromMs, toMs, most) {
  const rough = (toMs - fromMs) / most / 1000;
  const step = STEPS_S.find((each) => each >= rough) ?? STEPS_S.at(-1);
  const marks = [];
  for (let at = Math.ceil(fromMs / 1000 / step) * step; at * 1000 <= toMs; at += step) marks.push(at * 1000);
  return marks;
}

const STEPS_S = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 21_600, 86_400];

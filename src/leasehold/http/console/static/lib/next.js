// What will happen to a message next, and when. Pure functions of what the API shows; the rules are
// those of leasehold.domain.failures and leasehold.domain.visibility.

import * as format from "./format.js";

/** The moment that the server writes for a pause without an end. */
const FOR_EVER_MS = 253_402_300_799_000;
const BUDGETS = [
  ["max_deliveries", "delivery", "deliveries"],
  ["max_failures", "failure", "failures"],
  ["max_interruptions", "interruption", "interruptions"],
  ["max_lapses", "lapse", "lapses"],
];

/**
 * What comes next for a message: a list of `{ at_ms, text, tone, link }`, what is known to the moment
 * first, in the order of time; then what depends on others, with `at_ms` null.
 *
 * `message` is its view; `settings` are those of the queue that it works in (null if not known);
 * `explanation` is what the API explains of it (or null); `session` is that of its lease (or null);
 * `nowMs` is the server's time.
 */
export function whatNext({ message, settings = null, explanation = null, session = null, nowMs }) {
  const facts = { message, settings, explanation, session, nowMs, policy: settings?.failure_policy ?? null };
  const told = [...(OF_STATE[message.state]?.(facts) ?? []), ...expiry(facts)];
  const timed = told.filter((each) => each.at_ms !== null).sort((one, other) => one.at_ms - other.at_ms);
  return [...timed, ...told.filter((each) => each.at_ms === null)];
}

const OF_STATE = {
  visible: ofVisible,
  leased: (facts) => (facts.message.under ? ofClaimed(facts) : ofLeased(facts)),
  delayed: ofWaiting,
  deferred: ofWaiting,
  staged: ofStaged,
  poisoned: ofPoisoned,
  expired: ofExpired,
};

// `link` names what the text speaks of: `{ message }`, `{ session }`, `{ stream }` or `{ transaction }`.
const item = (at_ms, text, tone = "", link = null) => ({ at_ms: at_ms ?? null, text, tone, link });

/**
 * The budgets of a queue's failure policy that a message has: `{ name, word, words, used, of }`. None
 * for one that is received in a poison queue: there they begin anew, and from where is not shown.
 */
export function budgets(message, policy) {
  if (!policy || (message.poisoned && message.state !== "poisoned")) return [];
  const counts = {
    max_deliveries: message.dequeue_count - message.interruptions,
    max_failures: message.failures,
    max_interruptions: message.interruptions,
    max_lapses: message.lapses,
  };
  return BUDGETS.filter(([name]) => policy[name] != null).map(([name, word, words]) => ({
    name,
    word,
    words,
    used: counts[name],
    of: policy[name],
  }));
}

// The budgets as they would be if the lease ended so.
function budgetsAfter(message, policy, outcome) {
  return budgets(message, policy).map((each) => {
    if (each.name === "max_deliveries") return { ...each, used: each.used - (outcome === "interrupted" ? 1 : 0) };
    const rises = { failed: "max_failures", lapsed: "max_lapses", interrupted: "max_interruptions" }[outcome];
    return each.name === rises ? { ...each, used: each.used + 1 } : each;
  });
}

const usedUp = (list) => list.find((each) => each.used >= each.of);

const poisonQueue = ({ settings, message }) => settings?.failure_policy?.poison_queue ?? `${message.queue}-poison`;

/** How long a message waits after so many failures, in seconds: `[shortest, longest]`. */
export function backoffRange(backoff, failures) {
  if (!backoff) return [0, 0];
  const count = Math.max(1, failures);
  const grown = {
    fixed: backoff.initial_s,
    linear: backoff.initial_s * count,
    exponential: backoff.initial_s * backoff.factor ** (count - 1),
  }[backoff.kind];
  const wait = Math.min(grown, backoff.cap_s);
  return [Math.max(0, wait * (1 - backoff.jitter)), wait * (1 + backoff.jitter)];
}

function ofLeased(facts) {
  const { message, policy, session } = facts;
  const who = message.lease?.holder || "its holder";
  const told = [item(message.lease?.until_ms ?? message.visible_at_ms, `The lease ends, unless ${who} renews it. ${afterLapse(facts)}`)];
  const lostMs = session?.state === "live" ? session.last_heartbeat_ms + session.timeout_s * 1000 : Infinity;
  if (lostMs < told[0].at_ms) told.push(item(lostMs, "The lease ends at this time if its session sends no heartbeat.", "", { session: session.session_id }));
  if (message.cancel) told.push(item(null, `The request to stop reaches ${who} with the next renewal or heartbeat.`, "warning"));
  if (policy) told.push(item(null, afterFailure(facts)));
  told.push(item(null, `When ${who} completes it, it is removed.`));
  return told;
}

function afterLapse(facts) {
  const { message, policy } = facts;
  const list = budgetsAfter(message, policy, "lapsed");
  const over = usedUp(list);
  if (over) return `Then the next receive moves it to ${poisonQueue(facts)}: ${ordinal(over)}.`;
  const lapses = list.find((each) => each.name === "max_lapses");
  return `Then it is visible again${lapses ? ` (${ordinal(lapses)})` : ""}.`;
}

function afterFailure(facts) {
  const { message, policy } = facts;
  const list = budgetsAfter(message, policy, "failed");
  const over = usedUp(list);
  if (over) return `If it fails, it goes to ${poisonQueue(facts)}: ${ordinal(over)}.`;
  const failures = list.find((each) => each.name === "max_failures");
  const [low, high] = backoffRange(policy.backoff, message.failures + 1);
  const wait = high < 0.001 ? "it is visible immediately" : `it waits ${span(low, high)} for its next attempt`;
  return `If it fails, ${wait}${failures ? ` (${ordinal(failures)})` : ""}.`;
}

const ordinal = ({ word, used, of }) => `${word} ${format.count(used)} of ${format.count(of)}`;

function span(low, high) {
  const [from, to] = [format.duration(low), format.duration(high)];
  return from === to ? from : `${from} to ${to}`;
}

function ofClaimed({ message }) {
  return [
    item(message.visible_at_ms, `The claim ${message.under} ends, unless it is extended. Then the message is visible again.`, "", streamOf(message)),
    item(null, "When the claim is settled, the message is completed."),
  ];
}

const streamOf = ({ under }) => ({ stream: under.slice(0, under.lastIndexOf("/")) });

function ofWaiting(facts) {
  const { message } = facts;
  const what = message.state === "delayed" ? "Its delay ends, and it is visible" : "It is visible again, for its next attempt";
  return [item(message.visible_at_ms, `${what}.`), ...pause(facts)];
}

function ofStaged({ message }) {
  return [
    item(null, `When transaction ${message.under} is published, it is visible.`, "", { transaction: message.under }),
    item(null, "When the transaction is discarded or expires, the message is removed."),
  ];
}

function ofPoisoned({ message }) {
  const told = [item(null, "It stays in the poison queue until an operator redrives or removes it.")];
  return message.expires_at_ms === null ? told : [];
}

function ofExpired() {
  return [item(null, "It can no longer be received. Its row is removed a day after its expiry, unless the server is configured otherwise.")];
}

function expiry({ message, nowMs }) {
  if (message.expires_at_ms == null || message.state === "expired" || message.state === "staged") return [];
  if (message.state === "leased" && message.under) {
    return [item(message.expires_at_ms, "Its time to live ends: it expires when its claim has ended.")];
  }
  const isBefore = message.state !== "visible" && message.state !== "poisoned" && message.expires_at_ms <= message.visible_at_ms;
  const text = isBefore
    ? "Its time to live ends before it would be visible: it expires, whatever its holder does."
    : "Its time to live ends: it expires.";
  return [item(message.expires_at_ms, text, isBefore || message.expires_at_ms - nowMs < 3_600_000 ? "warning" : "")];
}

function pause({ settings, nowMs }) {
  const untilMs = settings?.paused_until_ms;
  if (!untilMs || untilMs <= nowMs) return [];
  const because = settings.pause_reason ? ` (${settings.pause_reason})` : "";
  if (untilMs >= FOR_EVER_MS) return [item(null, `The queue is paused${because}: nothing is received until it is resumed.`, "warning")];
  return [item(untilMs, `The pause of the queue ends${because}.`, "warning")];
}

// Of a visible message the server knows best what keeps it: what it explains says why.
function ofVisible(facts) {
  const { explanation } = facts;
  const paused = pause(facts);
  if (paused.length) return paused;
  const evidence = explanation?.evidence ?? {};
  const tell = KEPT_BY[explanation?.code];
  return [tell ? tell(evidence, facts) : item(null, "The next receive may return it.")];
}

const KEPT_BY = {
  "waiting-its-turn": ({ ahead }) => item(null, `It is received after ${format.plural(ahead, "message")} that ${ahead === 1 ? "comes" : "come"} first.`),
  "behind-priorities": ({ ahead, more_urgent: urgent }) =>
    item(null, `It is received after ${format.plural(ahead, "message")}, ${format.count(urgent)} of them more urgent.`),
  "behind-its-group": ({ behind, behind_state: state, behind_holder: who, behind_until_ms: untilMs }) =>
    item(untilMs, `Its group continues if message ${behind}, which is ${state}${who && state === "leased" ? ` to ${who}` : ""}, is settled by then.`, "", { message: behind }),
  "group-is-held": ({ hold_holder: who, hold_session: session }) =>
    item(null, `Only ${who || "the holder"} (session ${session}) receives messages of its group until the hold is released.`, "", { session }),
  "group-is-halted": () => item(null, "Its group is halted until an operator resumes it.", "warning"),
  "group-rate-used-up": ({ again_ms: atMs }) => item(atMs, "The rate of its group allows the next message."),
  "group-is-full": ({ in_flight: now, max_in_flight: most }) =>
    item(null, `Its group continues when one of its ${format.count(now)} messages in flight is settled; the limit is ${format.count(most)}.`),
  "poisoned-at-next-receive": ({ reason, poison_queue: queue }) =>
    item(null, `The next receive moves it to ${queue} instead of delivering it: ${reason} is used up.`, "bad"),
  "no-receiver": () => item(null, "Nothing happens until a worker receives from the queue.", "warning"),
  "rate-limited": () => item(null, "It is received when the queue's rate allows it."),
};

/** What holds a group of messages up: a list of `{ at_ms, text, tone, link }`, empty if nothing does. */
export function whatHoldsUp({ view, rules = null, nowMs }) {
  const { group, held = [], hold, rate_again_ms: againMs } = view;
  const told = [];
  if (group.halt) {
    const by = group.halt.message_id ? `, when message ${group.halt.message_id} was poisoned` : "";
    const because = group.halt.reason ? `: ${group.halt.reason}` : "";
    told.push(item(null, `It is halted${by}${because}. None of its messages is delivered until it is resumed.`, "bad", group.halt.message_id ? { message: group.halt.message_id } : null));
  }
  if (hold) told.push(item(null, `${hold.holder || "A session"} holds it and alone receives its messages until the hold is released or the session ends.`, "warning", { session: hold.session }));
  const first = held[0];
  if (first && rules?.order === "fifo") {
    const state = first.state === "leased" ? `leased to ${first.holder || "an unnamed receiver"}` : first.state;
    told.push(item(first.until_ms, `Message ${first.id} comes first in order and is ${state}; the others wait behind it.`, "", { message: first.id }));
  }
  const most = rules?.max_in_flight_of?.[group.group_id] ?? rules?.max_in_flight ?? null;
  if (most !== null && group.in_flight >= most) {
    told.push(item(null, `${format.count(group.in_flight)} of at most ${format.count(most)} messages are in flight.`, "warning"));
  }
  if (againMs && againMs > nowMs) told.push(item(againMs, "Its rate is used up; the next message is allowed at this time."));
  return told;
}

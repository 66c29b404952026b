// Events as sentences that people read. Pure functions, without a page; `leasehold.events.trace`
// says the same on a terminal.

import * as format from "./format.js";

const MAX_QUOTED = 120;
const USUAL_PRIORITY = 8;

/** What is told of events: by type, its tone (`""`, `good`, `warning` or `bad`) and its sentence. */
const SENTENCES = {
  put: ["", put],
  received: ["", received],
  renewed: ["", renewed],
  completed: ["good", (event) => `Completed by ${holder(event)}${took(event)}`],
  released: ["warning", released],
  lapsed: ["warning", (event) => `The lease of ${holder(event)} had run out at ${format.moment(event.visible_at_ms, event.at_ms)}`],
  poisoned: ["bad", poisoned],
  redriven: ["", (event) => `Moved back to ${event.target}; ${available(event)}`],
  amended: ["", (event) => `Changed; ${available(event)}, ${life(event)}`],
  removed: ["warning", (event) => `Removed${event.reason === "purge" ? " by a purge" : event.reason === "operator" ? " by an operator" : why(event)}`],
  "lease-ended": ["warning", leaseEnded],
  expired: ["bad", () => "Removed: its time to live had ended"],
  "cancel-asked": ["warning", (event) => `${holder(event)} was asked to stop${why(event)}`],
  refused: ["bad", refused],
  staged: ["", (event) => `Staged for ${event.queue} in transaction ${event.target}`],
  published: ["", (event) => `Published by transaction ${event.target}, ${life(event)}`],
  discarded: ["warning", discarded],
  claimed: ["", (event) => `Claimed by ${event.target} until ${until(event)}`],
  settled: ["good", (event) => `Completed with claim ${event.target}${took(event)}`],
  unclaimed: ["warning", (event) => `Released from claim ${event.target}; ${available(event)}`],
  "queue-created": ["", () => "The queue was created"],
  "queue-updated": ["", (event) => `The queue was changed${why(event)}`],
  "queue-paused": ["warning", (event) => `The queue was paused${event.visible_at_ms ? ` until ${until(event)}` : ""}${why(event)}`],
  "queue-resumed": ["good", () => "The queue was resumed"],
  "queue-deleted": ["warning", () => "The queue was deleted"],
  "queue-cleared": ["warning", () => "All messages of the queue were removed"],
  "group-halted": ["bad", (event) => `Group ${event.group_id} was halted${why(event)}`],
  "group-resumed": ["good", (event) => `Group ${event.group_id} was resumed`],
  "group-held": ["", (event) => `Group ${event.group_id} is held by ${holder(event)}`],
  "group-released": ["", (event) => `Group ${event.group_id} is no longer held by ${holder(event)}`],
  "claim-extended": ["", (event) => `Claim ${event.target} was extended until ${until(event)}`],
  "claim-lapsed": ["warning", (event) => `Claim ${event.target} ran out`],
  "claim-reopened": ["", (event) => `Claim ${event.target} was reopened until ${until(event)}`],
  "session-started": ["", (event) => `The session of ${holder(event)} began`],
  "session-lost": ["bad", (event) => `The session of ${holder(event)} was lost${why(event)}`],
  "session-ended": ["", (event) => `The session of ${holder(event)} ended${why(event)}`],
};

/** The types of events that have a sentence of their own. */
export const EVENT_TYPES = Object.keys(SENTENCES);

/** What an event says: `{ text, tone }`. One of an unknown type is told by the type's name. */
export function tell(event) {
  const [tone, sentence] = SENTENCES[event.type] ?? ["", () => `${event.type}${why(event)}`];
  return { text: sentence(event), tone };
}

const holder = (event) => event.holder || "an unnamed receiver";

const why = (event) => (event.reason ? `: ${event.reason}` : "");

const until = (event) => format.moment(event.visible_at_ms, event.at_ms);

function quoted(text) {
  const line = text.split(/\s+/).join(" ").trim();
  return line.length > MAX_QUOTED ? `“${line.slice(0, MAX_QUOTED)}…”` : `“${line}”`;
}

// How long a lease that ends now has lasted.
function took(event) {
  const ms = event.at_ms - (event.since_ms ?? event.at_ms);
  return ms > 0 ? ` after ${format.duration(ms / 1000)}` : "";
}

function available(event) {
  const ms = (event.visible_at_ms ?? 0) - event.at_ms;
  return ms > 0 ? `visible ${format.duration(ms / 1000)} later` : "visible immediately";
}

function life(event) {
  return event.expires_at_ms == null ? "never expires" : `expires ${format.moment(event.expires_at_ms, event.at_ms)}`;
}

function failure(event) {
  const parts = [event.error_type, event.error && quoted(event.error)].filter(Boolean);
  return parts.length ? `: ${parts.join(": ")}` : "";
}

function put(event) {
  const parts = [`Put into ${event.queue}`];
  if (event.message_type) parts[0] += ` as ${quoted(event.message_type)}`;
  if (event.visible_at_ms > event.at_ms) parts.push(`delayed by ${format.duration((event.visible_at_ms - event.at_ms) / 1000)}`);
  if (event.priority != null && event.priority !== USUAL_PRIORITY) parts.push(`priority ${event.priority}`);
  if (event.group_id) parts.push(`group ${quoted(event.group_id)}`);
  parts.push(life(event));
  return parts.join(", ");
}

function received(event) {
  const waited = event.at_ms - (event.visible_since_ms ?? event.at_ms);
  const after = waited > 0 ? `, ${format.duration(waited / 1000)} after it became visible` : "";
  return `Received by ${holder(event)} until ${until(event)} (delivery ${event.dequeue_count})${after}`;
}

function renewed(event) {
  if (event.visible_at_ms <= event.at_ms) return "Made visible immediately";
  if (!event.renewals) return `Deferred until ${until(event)}`;
  return `Renewed by ${holder(event)} until ${until(event)} (renewal ${event.renewals})`;
}

function released(event) {
  const told =
    {
      failed: `Failed with ${holder(event)}${took(event)}`,
      interrupted: `Released${took(event)}, as ${holder(event)} was interrupted`,
      buried: `Buried by ${holder(event)}${took(event)}`,
    }[event.reason] ?? `Released by ${holder(event)}${took(event)}`;
  return `${told}${failure(event)}; ${available(event)}`;
}

/** Why a message was moved to its poison queue, by the budget that was used up. */
export const POISON_REASONS = {
  max_deliveries: "too many deliveries",
  max_failures: "too many failures",
  max_interruptions: "too many interruptions",
  max_lapses: "too many lapses",
  buried: "its worker buried it",
};

function poisoned(event) {
  const reason = POISON_REASONS[event.reason] ?? event.reason ?? "no reason given";
  return `Moved to the poison queue ${event.target}: ${reason}${failure(event).replace(": ", ", after ")}`;
}

function leaseEnded(event) {
  const told =
    {
      operator: `The lease of ${holder(event)} was ended by an operator`,
      "session lost": `The session of ${holder(event)} was lost, and the lease ended`,
      "session ended": `The session of ${holder(event)} ended, and the lease with it`,
      "no progress": `The lease of ${holder(event)} ended, because it reported no progress`,
    }[event.reason] ?? `The lease of ${holder(event)} ended${why(event)}`;
  return `${told}${took(event)}; ${available(event)}`;
}

function refused(event) {
  const because =
    {
      lapsed: "the lease had run out",
      superseded: "another consumer had the message, or its receipt had been replaced",
      moved: "the message had left the queue",
      expired: "the message had expired",
    }[event.reason] ?? event.reason ?? "no reason given";
  const ms = event.at_ms - (event.since_ms ?? event.at_ms);
  const work = ms > 0 ? `; the work had taken ${format.duration(ms / 1000)}` : "";
  return `A completion came too late: ${because}${work}`;
}

function discarded(event) {
  return event.reason === "duplicate"
    ? `Dropped by transaction ${event.target}: its deduplication key had been used`
    : `Discarded with transaction ${event.target}`;
}

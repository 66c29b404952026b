// What a pipeline reports, in words and numbers for its page. Pure functions.

import * as format from "./format.js";

/** The state to show: a pipeline that says that it runs, and says nothing any more, is silent. */
export const stateOf = ({ state, stale }) => (stale ? "silent" : state);

/** Messages that are over, and those that there are in all as far as is known. */
export function totalsOf({ done, poisoned, in_work: inWork, waiting, backlog }) {
  const over = done + poisoned;
  return { over, expected: over + inWork + waiting + (backlog ?? 0) };
}

/** How a pipeline is, in words. */
export function sentenceOf(pipeline) {
  const { failure, done, poisoned, in_work: inWork, per_s: perS, backlog } = pipeline;
  const { over, expected } = totalsOf(pipeline);
  const aside = poisoned ? ` ${format.plural(poisoned, "message")} ${poisoned === 1 ? "was" : "were"} set aside.` : "";
  const sum = `${format.plural(done, "message")} done.${aside}`;
  const state = stateOf(pipeline);
  if (state === "failed") return `It failed${failure ? `: ${failure}` : ""}. ${sum}`;
  if (state === "done") return `It has finished. ${sum}`;
  if (state === "stopped") return `It was stopped. ${sum}`;
  if (state === "silent") {
    return `Its driver has not reported for ${format.duration(pipeline.silent_s)}: it has ended without a report or cannot reach the server. ${sum}`;
  }
  const left = perS > 0 && backlog != null && over < expected ? ` About ${format.duration((expected - over) / perS)} left.` : "";
  return `It is running: ${format.count(over)} of ${format.plural(expected, "message")} finished, ${format.count(inWork)} in progress.${aside}${left}`;
}

/** A short name for who holds a lease: Spark's workers have a long one, with a key that tells runs apart. */
export function holderOf(holder) {
  const found = /^(\S+) (\d+\.\d+) [0-9a-f]{8,}@([^:]+):(\d+)/.exec(holder);
  return found ? `task ${found[2]} on ${found[3]}, process ${found[4]}` : holder || "an unnamed receiver";
}

const MOST_LABEL = 40;

/** A name for a message, from what is in it: the first text in its JSON, or how it begins; null for none. */
export function labelOf(message) {
  const text = message.body;
  if (typeof text !== "string" || text === "") return message.type ?? null;
  try {
    const value = JSON.parse(text);
    const first = typeof value === "object" && value !== null ? Object.values(value).find((each) => typeof each === "string" && each !== "") : null;
    if (first) return first.slice(0, MOST_LABEL);
  } catch {
    // Not JSON.
  }
  return text.slice(0, MOST_LABEL).replace(/\s+/g, " ");
}

// What a pipeline reports, in the form that its page needs. Pure functions.

import * as format from "./format.js";

/** The stages of a pipeline in order: `{ name, working, done, failed, skipped, overdue, mean_s }`. */
export function stagesOf(pipeline) {
  const told = pipeline.stages ?? {};
  if (Array.isArray(told)) return told.map((each) => (typeof each === "string" ? { name: each } : each));
  return Object.entries(told).map(([name, figures]) => ({ name, ...figures }));
}

/** Messages that are over, and those that there are in all as far as is known. */
export function totalsOf(pipeline) {
  const { done = 0, poisoned = 0, in_work: inWork = 0, waiting = 0, backlog } = pipeline;
  const over = done + poisoned;
  return { over, expected: over + inWork + waiting + (backlog ?? 0) };
}

/** How a pipeline is, in words. */
export function sentenceOf(pipeline, nowMs) {
  const { state, error, done = 0, poisoned = 0, in_work: inWork = 0, done_per_second: perS } = pipeline;
  const { over, expected } = totalsOf(pipeline);
  const aside = poisoned ? ` ${format.plural(poisoned, "message")} ${poisoned === 1 ? "was" : "were"} set aside.` : "";
  const sum = `${format.plural(done, "message")} done.${aside}`;
  if (state === "failed") return `It failed${error ? `: ${error}` : ""}. ${sum}`;
  if (state === "finished") return `It is over. ${sum}`;
  if (state === "silent") {
    const since = pipeline.reported_at_ms ? ` for ${format.duration((nowMs - pipeline.reported_at_ms) / 1000)}` : "";
    return `Its driver has not reported${since}: it has ended without a word, or cannot reach the server. ${sum}`;
  }
  const left = perS > 0 && pipeline.backlog != null ? (expected - over) / perS : null;
  const rest = left ? ` About ${format.duration(left)} left.` : "";
  return `It is at work: ${format.count(over)} of ${format.plural(expected, "message")} over, ${format.count(inWork)} in work.${aside}${rest}`;
}

/** What the stages did to messages, by their id: lists of `{ stage, fromMs, toMs, outcome, by }`. */
export function runsOf(pipeline) {
  const found = new Map();
  for (const { message_id: id, executor, stages = [] } of pipeline.deliveries ?? []) {
    const runs = found.get(id) ?? [];
    for (const run of stages) {
      const fromMs = run.began_at_ms;
      runs.push({ stage: run.stage, fromMs, toMs: fromMs + run.seconds * 1000, outcome: run.outcome, by: executor });
    }
    found.set(id, runs);
  }
  return found;
}

/** A short name for who holds a lease: Spark's workers have a long one, with a key that tells runs apart. */
export function holderOf(holder) {
  const found = /^(\S+) (\d+\.\d+) [0-9a-f]{8,}@([^:]+):(\d+)/.exec(holder);
  return found ? `task ${found[2]} on ${found[3]}, process ${found[4]}` : holder || "a receiver without a name";
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

// Sessions and what they hold, as the server tells them.

import { query, useResource } from "./api.js";

const EVERY_MS = 5_000;
const LIMIT = 200;
const NONE = [];

/**
 * The sessions of the account, stuck ones first: `workers`, each with at most so many `messages`;
 * `counts` by state and of those that may be `stuck`; `more`, how many are not listed; and what
 * useResource returns.
 */
export function useWorkers({ messages = 10 } = {}) {
  const answer = useResource(`/console/api/workers${query({ limit: LIMIT, messages })}`, { everyMs: EVERY_MS });
  const { workers = NONE, sessions, stuck = 0, more = 0 } = answer.data ?? {};
  return { ...answer, workers, counts: { stuck, ...sessions }, more };
}

/** When a live session is lost unless there is another heartbeat, in Unix milliseconds. */
export const lostAtMs = (session) => session.last_heartbeat_ms + session.timeout_s * 1000;

/** How a session is: `stuck`, or its state. */
export const standing = (worker) => (worker.stuck && worker.state === "live" ? "stuck" : worker.state);

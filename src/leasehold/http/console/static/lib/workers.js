// Sessions and what they hold, as the console's server tells them; without that, as the native API does.

import { useEffect, useMemo, useRef, useState } from "./html.js";
import { path, query, useResource } from "./api.js";

const EVERY_MS = 5_000;
const LIMIT = 200;

// What a server without the console's own list tells: no messages, and not who is stuck.
function plain(session, nowMs) {
  return {
    ...session,
    silent_s: Math.max(0, (nowMs - session.last_heartbeat_ms) / 1000),
    stuck: null,
    holds: session.leases,
    messages: null,
  };
}

/**
 * The sessions of the account, stuck ones first: `workers`, each with at most so many `messages`;
 * `counts` by state and `stuck` (null if not known); `more`, how many are not listed; `isPlain` (the
 * messages are not known); and what useResource returns.
 */
export function useWorkers(nowMs, { messages = 10 } = {}) {
  const [isPlain, setPlain] = useState(false);
  const own = useResource(isPlain ? null : `/console/api/workers${query({ limit: LIMIT, messages })}`, { everyMs: EVERY_MS });
  const native = useResource(isPlain ? path("sessions") + query({ limit: LIMIT }) : null, { everyMs: EVERY_MS });
  const isMissing = own.error?.status === 404;
  useEffect(() => {
    if (isMissing) setPlain(true);
  }, [isMissing]);
  const asked = useRef(nowMs);
  asked.current = nowMs;
  const workers = useMemo(
    () => (isPlain ? native.data?.sessions.map((each) => plain(each, asked.current)) : own.data?.workers) ?? [],
    [isPlain, native.data, own.data],
  );
  const { error, isLoading, reload } = isPlain ? native : own;
  return {
    workers,
    counts: own.data ? { stuck: own.data.stuck, ...own.data.sessions } : null,
    more: own.data?.more ?? 0,
    isPlain,
    error: isMissing ? null : error,
    isLoading: isLoading || isMissing,
    reload,
  };
}

/** When a live session is lost unless there is another heartbeat, in Unix milliseconds. */
export const lostAtMs = (session) => session.last_heartbeat_ms + session.timeout_s * 1000;

/** How a session is: `stuck`, or its state. */
export const standing = (worker) => (worker.stuck && worker.state === "live" ? "stuck" : worker.state);

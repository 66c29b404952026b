// Requests to the server: the native API under /v1/, and what the console has besides it.

import { useCallback, useEffect, useRef, useState } from "./html.js";
import { Store } from "./store.js";

const TIMEOUT_MS = 30_000;

/** Who is signed in: what GET /console/api/session says; null until it has answered. */
export const session = new Store(null);

/** Why nobody is signed in any more, for the page that asks to sign in; empty for no reason. */
export const signedOutBecause = new Store("");

/** An answer that says that something went wrong, or no answer at all (`code` is `unreachable`). */
export class ApiError extends Error {
  constructor(problem) {
    super(problem.detail || problem.title || "The server refused the request without a reason.");
    this.code = problem.code ?? "unknown";
    this.title = problem.title ?? "The request failed";
    this.remedy = problem.remedy ?? "";
    this.status = problem.status ?? 0;
    this.problem = problem;
  }
}

/** The path of something in the account that is signed in to; each part is encoded. */
export function path(...parts) {
  return ["/v1/accounts", session.value.account, ...parts]
    .map((part, place) => (place ? encodeURIComponent(part) : part))
    .join("/");
}

/** A query string of those members that have a value. */
export function query(members) {
  const pairs = Object.entries(members).filter(
    ([, value]) => value !== undefined && value !== null && value !== "",
  );
  return pairs.length ? `?${new URLSearchParams(pairs)}` : "";
}

/**
 * Send a request; returns what the JSON of the answer says, or null if it has no body.
 *
 * Options: `method`, `body` (sent as JSON, or as it is if it is a Blob), `signal`, `timeoutMs`,
 * `raw` (return the Response itself). Throws ApiError.
 */
export async function request(address, options = {}) {
  const { method = "GET", body, raw = false, timeoutMs = TIMEOUT_MS } = options;
  const headers = { accept: "application/json" };
  if (method !== "GET" && session.value?.csrf) headers["x-leasehold-csrf"] = session.value.csrf;
  if (body !== undefined && !(body instanceof Blob)) headers["content-type"] = "application/json";
  const limit = AbortSignal.timeout(timeoutMs);
  let answer;
  try {
    answer = await fetch(address, {
      method,
      headers,
      body: body === undefined || body instanceof Blob ? body : JSON.stringify(body),
      signal: options.signal ? AbortSignal.any([options.signal, limit]) : limit,
      credentials: "same-origin",
      redirect: "error",
    });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    const detail = limit.aborted
      ? `The server did not respond within ${timeoutMs / 1000} seconds.`
      : "The server cannot be reached.";
    throw new ApiError({ code: "unreachable", title: "No response", detail });
  }
  if (!answer.ok) {
    const problem = await answer.json().catch(() => ({}));
    if (answer.status === 401 && session.value?.signed_in) {
      signedOutBecause.set("Your session has ended. Sign in again to return to this page.");
      session.set({ ...session.value, signed_in: false });
    }
    throw new ApiError({ status: answer.status, ...problem });
  }
  if (raw) return answer;
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

export const get = (address, options) => request(address, options);
export const post = (address, body = {}, options = {}) =>
  request(address, { ...options, method: "POST", body });
export const put = (address, body = {}, options = {}) =>
  request(address, { ...options, method: "PUT", body });
export const patch = (address, body) => request(address, { method: "PATCH", body });
export const remove = (address) => request(address, { method: "DELETE" });

/** Whether whoever is signed in may change things. The server decides it again for each request. */
export const isOperator = () => session.value?.role === "operator";

/**
 * Ask for something and keep it fresh.
 *
 * Returns `data` (the last answer, also while a newer one is on its way or has failed), `error`,
 * `isLoading` (for the first time), and `reload()`. With `everyMs` it is asked for again and again,
 * but not while the page is hidden. An address of null asks for nothing.
 */
export function useResource(address, { everyMs = 0 } = {}) {
  const [state, setState] = useState({ address: null, data: null, error: null });
  const running = useRef(null);
  const load = useCallback(async () => {
    running.current?.abort();
    if (address === null) return;
    const abort = (running.current = new AbortController());
    try {
      const data = await get(address, { signal: abort.signal });
      if (!abort.signal.aborted) setState({ address, data, error: null });
    } catch (error) {
      if (abort.signal.aborted) return;
      setState((before) => ({ address, data: before.address === address ? before.data : null, error }));
    }
  }, [address]);
  useEffect(() => {
    load();
    const timer = everyMs ? setInterval(() => document.hidden || load(), everyMs) : 0;
    addEventListener("reconnected", load);
    return () => {
      removeEventListener("reconnected", load);
      clearInterval(timer);
      running.current?.abort();
    };
  }, [load, everyMs]);
  const isCurrent = state.address === address;
  return {
    data: isCurrent ? state.data : null,
    error: isCurrent ? state.error : null,
    isLoading: address !== null && !(isCurrent && (state.data !== null || state.error)),
    reload: load,
  };
}

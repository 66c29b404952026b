// What goes on for longer than a click: jobs of the server's, and actions on many messages one by one.

import { html, useEffect } from "../lib/html.js";
import { get, path, post, query, session } from "../lib/api.js";
import { to } from "../lib/router.js";
import { Store, useStore } from "../lib/store.js";
import * as format from "../lib/format.js";
import { ActionButton, toast } from "./dialog.js";
import { Problem, Progress, State } from "./parts.js";

const POLL_MS = 2_000;
const AT_ONCE = 6;
const TOLD_EVERY = 20;
const RUNS = new Set(["running", "canary"]);

// Those begun on this page: { key, queue, label, job, done, of, failed, error, isOver, stop, reload }.
const runs = new Store([]);
let number = 0;

function change(key, changes) {
  runs.set(runs.value.map((each) => (each.key === key ? { ...each, ...changes } : each)));
}

const forget = (key) => runs.set(runs.value.filter((each) => each.key !== key));

/** Whether a job goes on. */
export const isRunning = (job) => RUNS.has(job.state);

/** Show the progress of a job that was just begun; `reload` is called when it is over. */
export function trackJob(job, label, reload) {
  const key = ++number;
  const stop = () => post(path("jobs", job.job_id, "stop")).then((now) => change(key, { job: now, isOver: !isRunning(now) }));
  runs.set([...runs.value, { key, queue: job.queue, label, job, isOver: !isRunning(job), stop, reload }]);
  if (!isRunning(job)) reload?.();
}

/**
 * Do something with each of many messages, a few at a time, and show how far it is.
 *
 * `act(item)` returns a promise. What fails is counted, and the rest goes on; the first problem is shown.
 * `atOnce` is how many requests are under way at a time.
 */
export async function runForEach(queue, label, items, act, reload, atOnce = AT_ONCE) {
  const key = ++number;
  let next = 0;
  let isStopped = false;
  const counted = { done: 0, failed: 0, error: null };
  const stop = async () => {
    isStopped = true;
  };
  runs.set([...runs.value, { key, queue, label, of: items.length, ...counted, isOver: false, stop, reload }]);
  const work = async () => {
    while (next < items.length && !isStopped) {
      const item = items[next++];
      try {
        await act(item);
        counted.done += 1;
      } catch (error) {
        counted.failed += 1;
        counted.error ??= error;
        // Without a server, or signed out, the rest would only fail as well.
        if (error.code === "unreachable" || error.status === 401) isStopped = true;
      }
      if ((counted.done + counted.failed) % TOLD_EVERY === 0 || items.length < TOLD_EVERY) change(key, { ...counted });
    }
  };
  await Promise.all(Array.from({ length: Math.min(atOnce, items.length) }, work));
  change(key, { ...counted, isOver: true, isStopped });
  reload?.();
}

// Jobs that go on already: begun before this page was loaded, or by others.
async function adopt(queue) {
  if (session.value.queue) return; // signed in for one queue: jobs are the account's
  const { jobs } = await get(path("jobs") + query({ queue, limit: 20 }));
  const known = new Set(runs.value.map((run) => run.job?.job_id));
  for (const job of jobs) {
    if (isRunning(job) && !job.dry_run && !known.has(job.job_id)) trackJob(job, `Job: ${job.kind}`);
  }
}

/** The progress of what goes on in a queue. */
export function Running({ queue }) {
  useEffect(() => {
    adopt(queue).catch(() => undefined); // the page is of use without
  }, [queue]);
  const all = useStore(runs).filter((run) => run.queue === queue);
  if (all.length === 0) return null;
  return html`<section class="runs" aria-label="In progress">
    ${all.map((run) => (run.job ? html`<${JobRun} key=${run.key} run=${run} />` : html`<${Run} key=${run.key} run=${run} />`))}
  </section>`;
}

function JobRun({ run }) {
  const { key, job, label, isOver, reload } = run;
  useEffect(() => {
    if (isOver) return undefined;
    const timer = setInterval(async () => {
      try {
        const now = await get(path("jobs", job.job_id));
        change(key, { job: now, error: null, isOver: !isRunning(now) });
        if (!isRunning(now)) reload?.();
      } catch (error) {
        change(key, { error });
      }
    }, POLL_MS);
    return () => clearInterval(timer);
  }, [isOver]);
  const part = isOver ? 1 : job.expected ? Math.min(1, job.examined / job.expected) : null;
  return html`<${Bar} run=${run} part=${part}>
    <a href=${to("jobs", job.job_id)}>${label}</a> <${State} name=${job.state} />
    <span>${format.count(job.moved)} of ${format.plural(job.matched, "match", "matches")}${" "}
      <span class="faint">(${format.count(job.examined)} of ${format.count(job.expected)} examined)</span></span>
    ${job.note && html`<span>${job.note}</span>`}
  <//>`;
}

function Run({ run }) {
  const { label, done, failed, of, isOver, isStopped } = run;
  return html`<${Bar} run=${run} part=${isOver ? 1 : (done + failed) / of}>
    <span>${label}</span> <${State} name=${isStopped ? "stopped" : isOver ? "done" : "running"} />
    <span>${format.count(done)} of ${format.count(of)}${failed > 0 && `, ${format.count(failed)} refused`}</span>
  <//>`;
}

function Bar({ run, part, children }) {
  const { key, label, isOver, error, stop } = run;
  const halt = () => stop().catch((reason) => toast(`It could not be stopped: ${reason.message}`, { tone: "bad" }));
  return html`<div class="run card">
    <div class="run-line">${children}
      ${isOver
        ? html`<button type="button" class="small quiet" onClick=${() => forget(key)} aria-label=${`Dismiss ${label}`}>Dismiss</button>`
        : html`<${ActionButton} kind="small" onClick=${halt}>Stop<//>`}
    </div>
    <${Progress} part=${part} label=${`Progress of: ${label}`} />
    <${Problem} error=${error} />
  </div>`;
}

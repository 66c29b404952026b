// Jobs: purges, redrives and changes of many messages, with how far they are.

import { html, useEffect, useState } from "../lib/html.js";
import { path, post, query, useResource } from "../lib/api.js";
import { setParams, to } from "../lib/router.js";
import * as format from "../lib/format.js";
import { ActionButton, FormDialog, openDialog, toast } from "../ui/dialog.js";
import { Empty, Facts, Loading, Moment, Note, PageHead, Problem, Progress, Relative, Section, State } from "../ui/parts.js";
import { Table } from "../ui/table.js";

const EVERY_MS = 5_000;
const SOON_MS = 2_000;
const LIMIT = 50;
const MOST = 1_000;

// What a job of a kind does, and what it has done to the messages it counts in `moved`.
const KINDS = {
  purge: ["Purge", "purged"],
  redrive: ["Redrive", "redriven"],
  amend: ["Change", "changed"],
  "end-lease": ["End leases", "released"],
  "extend-lease": ["Extend leases", "extended"],
};

const nameOf = (kind) => KINDS[kind]?.[0] ?? kind;
const doneOf = (kind) => KINDS[kind]?.[1] ?? "handled";
const isOver = ({ state }) => state === "done" || state === "stopped";

/** How far a job is, 0 to 1; null if that is not known. */
const partOf = (job) => {
  if (job.state === "done") return 1;
  return job.expected ? Math.min(1, job.examined / job.expected) : null;
};

export default function Jobs({ parts, params }) {
  const [id] = parts;
  return id ? html`<${OneJob} id=${id} />` : html`<${AllJobs} params=${params} />`;
}

const columns = (reload) => [
  {
    key: "kind",
    label: "Job",
    isMain: true,
    render: (job) => html`<a href=${to("jobs", job.job_id)}>${nameOf(job.kind)}<span class="hidden-visually"> of ${job.queue}, begun ${format.moment(job.created_at_ms)}</span></a>
      ${job.dry_run && html` <span class="faint">dry run</span>`}`,
  },
  { key: "queue", label: "Queue", render: ({ queue }) => html`<a href=${to("queues", queue)}>${queue}</a>` },
  { key: "state", label: "State", render: ({ state }) => html`<${State} name=${state} />` },
  { key: "progress", label: "Progress", render: (job) => html`<${Bar} job=${job} />` },
  { key: "matched", label: "Matched", align: "number", hint: "Messages that match the filter", render: ({ matched }) => format.count(matched) },
  {
    key: "moved",
    label: "Done",
    align: "number",
    hint: "Messages changed by the job",
    render: (job) => (job.dry_run ? html`<span class="faint">none</span>` : html`<span>${format.count(job.moved)} <span class="faint">${doneOf(job.kind)}</span></span>`),
  },
  { key: "actor", label: "Started by", render: ({ actor }) => actor ?? html`<span class="faint">–</span>` },
  { key: "created", label: "Started", render: ({ created_at_ms: ms }) => html`<${Relative} ms=${ms} />` },
  {
    key: "act",
    label: "Action",
    render: (job) =>
      isOver(job)
        ? html`<span class="faint">–</span>`
        : html`<${ActionButton} kind="small" onClick=${() => stop(job, reload)}>Stop<span class="hidden-visually"> ${nameOf(job.kind)} of ${job.queue}</span><//>`,
  },
];

function Bar({ job }) {
  const part = partOf(job);
  const text = part === null ? format.plural(job.examined, "message") : format.percent(part);
  return html`<div class="meter"><${Progress} part=${part} label=${`Progress of ${nameOf(job.kind)} of ${job.queue}`} /> <span>${text}</span></div>`;
}

function AllJobs({ params }) {
  const { queue = "" } = params;
  const limit = Number(params.limit) || LIMIT;
  const { data, error, isLoading, reload } = useResource(`${path("jobs")}${query({ queue, limit })}`, { everyMs: EVERY_MS });
  const jobs = data?.jobs ?? [];
  const running = jobs.filter((job) => !isOver(job)).length;
  return html`<${PageHead} title="Jobs" />
    <p class="faint">Jobs change many messages of a queue: purges, redrives, changes. Finished jobs are kept for seven days.</p>
    <div class="toolbar">
      ${queue && html`<span>Of <a href=${to("queues", queue)}>${queue}</a></span> <button type="button" class="small" onClick=${() => setParams({ queue: "" })}>Show all</button>`}
      <span class="faint" role="status">${data && (running ? `${format.plural(running, "job")} running` : "No job is running")}</span>
    </div>
    <${Problem} error=${error} retry=${reload} />
    ${isLoading
      ? html`<${Loading} />`
      : jobs.length === 0
        ? data && html`<${Empty} title="There are no jobs">Start one on the page of a queue: purge, redrive, or change the messages that match a filter.<//>`
        : html`<${Table} caption="Jobs, the newest first" columns=${columns(reload)} rows=${jobs} keyOf=${(job) => job.job_id} />`}
    ${jobs.length === limit &&
    limit < MOST &&
    html`<p class="more"><button type="button" onClick=${() => setParams({ limit: Math.min(limit * 5, MOST) })}>Show more</button></p>`}`;
}

function OneJob({ id }) {
  const { data: job, error, isLoading, reload } = useJob(id);
  const actions = job && !isOver(job) && html`<${ActionButton} kind="danger" onClick=${() => stop(job, reload)}>Stop<//>`;
  const title = job ? `${nameOf(job.kind)} of ${job.queue}` : "Job";
  return html`<${PageHead} title=${title} crumbs=${[["Jobs", to("jobs")]]} actions=${actions}>
      ${job && html`<${State} name=${job.state} />`}
    <//>
    ${error?.status === 404 && !job
      ? html`<${Empty} title="The job does not exist">Finished jobs are kept for seven days.<//>`
      : html`<${Problem} error=${error} retry=${reload} />`}
    ${isLoading && html`<${Loading} />`}
    ${job &&
    html`<p class="explanation">${sentenceOf(job)}</p>
      ${job.state === "canary" &&
      html`<${Note} tone="warning">It continues automatically when its first messages have been completed, and stops if one of them fails.<//>`}
      <${Section} title="Progress">
        <${Bar} job=${job} />
        <${Facts}
          pairs=${[
            ["Examined", `${format.count(job.examined)}${job.expected ? ` of ${format.count(job.expected)}` : ""}`],
            ["Matched", format.count(job.matched)],
            [job.dry_run ? "Would be" : "So far", job.dry_run ? `${format.count(job.matched)} ${doneOf(job.kind)}` : `${format.count(job.moved)} ${doneOf(job.kind)}`],
            ["Per second", rateOf(job)],
          ]}
        />
      <//>
      <${Section} title="Details">
        <${Facts}
          pairs=${[
            ["Queue", html`<a href=${to("queues", job.queue)}>${job.queue}</a>`],
            ["Started by", job.actor],
            ["Started", html`<${Relative} ms=${job.created_at_ms} /> (<${Moment} ms=${job.created_at_ms} />)`],
            ["Last step", html`<${Relative} ms=${job.updated_at_ms} />`],
            ["Dry run", job.dry_run ? "yes: nothing is changed" : "no"],
            ["Note", job.note ?? undefined],
            ["Id", html`<code>${job.job_id}</code>`],
          ]}
        />
      <//>`}`;
}

// Asked for quickly while it runs, and not any more once it is over.
function useJob(id) {
  const [everyMs, setEveryMs] = useState(SOON_MS);
  const resource = useResource(path("jobs", id), { everyMs });
  const { data } = resource;
  useEffect(() => setEveryMs(data && isOver(data) ? 0 : SOON_MS), [data]);
  return resource;
}

function rateOf(job) {
  const took_s = (job.updated_at_ms - job.created_at_ms) / 1000;
  return took_s > 0 ? format.rate((job.dry_run ? job.examined : job.moved) / took_s) : undefined;
}

function sentenceOf(job) {
  const done = `${format.plural(job.moved, "message")} ${job.moved === 1 ? "was" : "were"} ${doneOf(job.kind)}`;
  const found = `${format.plural(job.matched, "message")} of ${format.count(job.examined)} examined ${job.matched === 1 ? "matches" : "match"}`;
  const why = job.note ? `: ${job.note}` : "";
  if (job.dry_run && job.state === "done") return `A dry run: ${found}. Nothing was changed.`;
  if (job.state === "done") return `It has finished: ${done}.`;
  if (job.state === "stopped") return `It was stopped${why}. Until then ${done}.`;
  if (job.state === "canary") return `It waits for its first messages: ${done} so far.`;
  return job.dry_run ? `It is searching: ${found} so far.` : `It is running: ${done} so far.`;
}

function stop(job, reload) {
  openDialog(
    (close) => html`<${FormDialog}
      title=${`Stop ${nameOf(job.kind).toLowerCase()} of ${job.queue}`}
      action="Stop"
      danger
      close=${close}
      act=${async () => {
        const stopped = await post(path("jobs", job.job_id, "stop"));
        toast(`The job is stopped. ${format.plural(stopped.moved, "message")} ${doneOf(stopped.kind)}.`);
        await reload();
      }}
    >
      <p>Changes already made are kept: ${format.plural(job.moved, "message")} ${doneOf(job.kind)}. A stopped job cannot be continued; start a new one for the rest.</p>
    <//>`,
  );
}

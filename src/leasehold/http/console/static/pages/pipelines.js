// Pipelines: what runs on Spark, how far it is, and what happened to each message.

import { html, useEffect, useState } from "../lib/html.js";
import { useResource } from "../lib/api.js";
import { now } from "../lib/live.js";
import { to } from "../lib/router.js";
import { sentenceOf, stagesOf, totalsOf } from "../lib/pipeline.js";
import * as format from "../lib/format.js";
import { Empty, Facts, Loading, Moment, Note, PageHead, Problem, Progress, Relative, Section, Stat, State } from "../ui/parts.js";
import { PipelineTimeline } from "../ui/pipeline_timeline.js";
import { Table } from "../ui/table.js";

const EVERY_MS = 2_000;
const LIST_EVERY_MS = 5_000;
const UNKNOWN_EVERY_MS = 10_000;

export default function Pipelines({ parts }) {
  const [name] = parts;
  return name ? html`<${OnePipeline} name=${name} />` : html`<${AllPipelines} />`;
}

const COLUMNS = [
  { key: "name", label: "Pipeline", isMain: true, render: ({ name }) => html`<a href=${to("pipelines", name)}>${name}</a>` },
  { key: "state", label: "State", render: ({ state }) => html`<${State} name=${state} />` },
  { key: "queue", label: "Queue", render: ({ queue }) => html`<a href=${to("queues", queue)}>${queue}</a>` },
  { key: "progress", label: "Over", render: (pipeline) => html`<${Over} pipeline=${pipeline} />` },
  { key: "work", label: "In work", align: "number", render: ({ in_work: value }) => format.count(value) },
  { key: "rate", label: "Done", align: "number", render: ({ done_per_second: value }) => format.rate(value) },
  { key: "poisoned", label: "Set aside", align: "number", render: ({ poisoned }) => html`<span class=${poisoned ? "bad" : "faint"}>${format.count(poisoned)}</span>` },
  { key: "tasks", label: "Tasks", align: "number", render: ({ tasks }) => format.count(tasks) },
  { key: "began", label: "Begun", render: ({ began_at_ms: ms }) => html`<${Relative} ms=${ms} />` },
  { key: "reported", label: "Last report", render: ({ reported_at_ms: ms }) => html`<${Relative} ms=${ms} />` },
];

function Over({ pipeline }) {
  const { over, expected } = totalsOf(pipeline);
  return html`<div class="meter">
    <${Progress} part=${expected ? over / expected : 0} label=${`Messages of ${pipeline.name} that are over`} />
    <span>${format.count(over)} of ${format.count(expected)}</span>
  </div>`;
}

function AllPipelines() {
  const { data, error, isLoading, reload } = useResource("/console/api/pipelines", { everyMs: LIST_EVERY_MS });
  const pipelines = data?.pipelines ?? [];
  return html`<${PageHead} title="Pipelines" />
    <p class="faint">Work in stages on Spark. A pipeline reports here while it runs, under the name that it was given, or that of its queue.</p>
    ${error?.status === 404
      ? html`<${Note} tone="warning">This server does not keep what pipelines report.<//>`
      : html`<${Problem} error=${error} retry=${reload} />`}
    ${isLoading
      ? html`<${Loading} />`
      : pipelines.length === 0
        ? data && html`<${Empty} title="No pipeline has reported lately">Run one with <code>leasehold pipeline run</code>, or try <code>make demo</code>.<//>`
        : html`<${Table} caption="Pipelines" columns=${COLUMNS} rows=${pipelines} keyOf=${({ name }) => name} />`}`;
}

function OnePipeline({ name }) {
  const [everyMs, setEveryMs] = useState(EVERY_MS);
  const { data, error, isLoading, reload } = useResource(`/console/api/pipelines/${encodeURIComponent(name)}`, { everyMs });
  const isUnknown = error?.status === 404;
  useEffect(() => setEveryMs(isUnknown ? UNKNOWN_EVERY_MS : EVERY_MS), [isUnknown]);
  const pipeline = data ?? { name, queue: name };
  const { queue } = pipeline;
  return html`<${PageHead} title=${name} crumbs=${[["Pipelines", to("pipelines")]]}>
      ${data?.state && html`<${State} name=${data.state} />`}
      <span class="faint">on the queue <a href=${to("queues", queue)}>${queue}</a></span>
    <//>
    ${isLoading && html`<${Loading} />`}
    ${isUnknown
      ? html`<${Note} tone="info">
          No pipeline has reported under this name yet. What happens to the messages of the queue ${queue} is below all the same.
        <//>`
      : html`<${Problem} error=${error} retry=${reload} />`}
    ${data && html`<${Reported} pipeline=${data} />`}
    ${!isLoading &&
    html`<${Section} title="What happened to each message"><${PipelineTimeline} pipeline=${pipeline} /><//>`}
    ${data?.workers?.length > 0 && html`<${Section} title="Executors"><${Workers} name=${name} workers=${data.workers} stages=${stagesOf(data)} /><//>`}
    ${data?.deliveries?.length > 0 && html`<${Section} title="Latest deliveries"><${Deliveries} pipeline=${data} /><//>`}
    ${data && html`<${Section} title="Facts"><${RunFacts} pipeline=${data} /><//>`}`;
}

function Reported({ pipeline }) {
  const { done, in_work: inWork, waiting, backlog, poisoned, failed, lost, resumed } = pipeline;
  const waits = (waiting ?? 0) + (backlog ?? 0);
  return html`<p class="explanation">${sentenceOf(pipeline, now())}</p>
    <div class="stats">
      <${Stat} label="done" tone="good">${format.short(done)}<//>
      <${Stat} label="in work">${format.short(inWork)}<//>
      <${Stat} label="wait">${format.short(waits)}<//>
      <${Stat} label="done per second">${format.rate(pipeline.done_per_second)}<//>
      <${Stat} label="set aside" tone=${poisoned ? "bad" : ""}>${format.short(poisoned)}<//>
      <${Stat} label="failed, tried again" tone=${failed ? "warning" : ""}>${format.short(failed)}<//>
      <${Stat} label="lost leases" tone=${lost ? "warning" : ""}>${format.short(lost)}<//>
      <${Stat} label="resumed elsewhere">${format.short(resumed)}<//>
    </div>
    <${Section} title="Stages"><${Stages} pipeline=${pipeline} /><//>`;
}

// The stages from left to right; on a narrow screen from top to bottom.
function Stages({ pipeline }) {
  const { expected } = totalsOf(pipeline);
  return html`<ol class="stages">
    ${stagesOf(pipeline).map((stage) => {
      const passed = (stage.done ?? 0) + (stage.skipped ?? 0);
      const most = Math.max(expected, passed);
      return html`<li key=${stage.name} class=${stage.working ? "is-busy" : ""}>
        <h3>${stage.name}</h3>
        <p class="stage-now"><strong>${format.count(stage.working ?? 0)}</strong> in it now</p>
        <${Progress} part=${most ? passed / most : 0} label=${`Messages that have passed ${stage.name}`} />
        <p class="faint">
          ${format.count(passed)} of ${format.count(most)} passed${stage.mean_s != null ? `, ${format.duration(stage.mean_s)} each` : ""}
        </p>
        ${stage.failed > 0 && html`<p class="warning">${format.plural(stage.failed, "attempt")} failed</p>`}
        ${stage.overdue > 0 && html`<p class="warning">${format.count(stage.overdue)} overdue</p>`}
      </li>`;
    })}
  </ol>`;
}

function Workers({ name, workers, stages }) {
  const at = (worker) =>
    stages.filter((stage) => worker.stages?.[stage.name]?.working).map((stage) => `${stage.name} ${worker.stages[stage.name].working}`);
  const columns = [
    { key: "executor", label: "Executor", isMain: true, render: ({ executor, host, pid }) => html`${executor} <span class="faint">${host}${pid ? `, process ${pid}` : ""}</span>` },
    { key: "task", label: "Task", align: "number", render: ({ task, attempt }) => `${task}${attempt ? `, attempt ${attempt + 1}` : ""}` },
    { key: "state", label: "State", render: ({ is_there: isThere }) => html`<${State} name=${isThere ? "live" : "ended"} />` },
    { key: "work", label: "In work", align: "number", render: ({ in_work: value }) => format.count(value) },
    { key: "stage", label: "At", render: (worker) => at(worker).join(", ") || html`<span class="faint">–</span>` },
    { key: "waiting", label: "Received, waits", align: "number", render: ({ waiting }) => format.count(waiting) },
    { key: "done", label: "Done", align: "number", render: ({ outcomes }) => format.count(outcomes?.done ?? 0) },
    { key: "failed", label: "Failed", align: "number", render: ({ outcomes }) => format.count(outcomes?.failed ?? 0) },
    { key: "poisoned", label: "Set aside", align: "number", render: ({ outcomes }) => format.count(outcomes?.poisoned ?? 0) },
  ];
  return html`<${Table} caption=${`Executors of ${name}`} columns=${columns} rows=${workers} keyOf=${(worker) => worker.link ?? `${worker.executor} ${worker.task}.${worker.attempt}`} />`;
}

function Deliveries({ pipeline }) {
  const rows = [...pipeline.deliveries].reverse().slice(0, 50);
  const columns = [
    { key: "message", label: "Message", isMain: true, render: ({ message_id: id, queue }) => html`<a href=${to("messages", queue ?? pipeline.queue, id)}><code>${id}</code></a>` },
    { key: "delivery", label: "Delivery", align: "number", render: ({ delivery }) => format.count(delivery) },
    { key: "executor", label: "Executor", render: ({ executor }) => executor ?? "–" },
    { key: "outcome", label: "Outcome", render: ({ outcome }) => html`<${State} name=${outcome} />` },
    { key: "stages", label: "Stages", render: ({ stages }) => stages.map(({ stage, seconds }) => `${stage} ${format.duration(seconds)}`).join(", ") || "–" },
    { key: "resumed", label: "Went on at", render: ({ resumed_at: stage }) => stage ?? html`<span class="faint">the beginning</span>` },
    { key: "reason", label: "Reason", render: ({ reason }) => reason ?? html`<span class="faint">–</span>` },
    { key: "ended", label: "Ended", render: ({ ended_at_ms: ms }) => html`<${Moment} ms=${ms} />` },
  ];
  return html`<${Table} caption=${`Latest deliveries of ${pipeline.name}`} columns=${columns} rows=${rows} keyOf=${({ message_id: id, delivery }) => `${id} ${delivery}`} />`;
}

function RunFacts({ pipeline }) {
  return html`<${Facts}
    pairs=${[
      ["Queue", html`<a href=${to("queues", pipeline.queue)}>${pipeline.queue}</a>`],
      ["Tasks", format.count(pipeline.tasks)],
      ["Executors", format.count(pipeline.executors)],
      ["Begun", html`<${Relative} ms=${pipeline.began_at_ms} /> (<${Moment} ms=${pipeline.began_at_ms} />)`],
      ["Last report", html`<${Relative} ms=${pipeline.reported_at_ms} />`],
      ["Ended", pipeline.ended_at_ms ? html`<${Moment} ms=${pipeline.ended_at_ms} />` : undefined],
      ["Given back", pipeline.given_back == null ? undefined : format.count(pipeline.given_back)],
      ["Error", pipeline.error ?? undefined],
    ]}
  />`;
}

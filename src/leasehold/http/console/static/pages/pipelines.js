// Pipelines: what runs on Spark, how far it is, and what happened to each message.

import { html } from "../lib/html.js";
import { useResource } from "../lib/api.js";
import { to } from "../lib/router.js";
import { sentenceOf, stateOf, totalsOf } from "../lib/pipeline.js";
import * as format from "../lib/format.js";
import { Empty, Facts, Loading, Moment, Note, PageHead, Problem, Progress, Relative, Section, Stat, State } from "../ui/parts.js";
import { PipelineTimeline } from "../ui/pipeline_timeline.js";
import { Table } from "../ui/table.js";

/** Drivers report as often. */
const EVERY_MS = 2_000;
const LIST_EVERY_MS = 5_000;
const ALL = "/console/api/pipelines";

export default function Pipelines({ parts }) {
  const [name] = parts;
  return name ? html`<${OnePipeline} name=${name} />` : html`<${AllPipelines} />`;
}

const COLUMNS = [
  { key: "name", label: "Pipeline", isMain: true, render: ({ name }) => html`<a href=${to("pipelines", name)}>${name}</a>` },
  { key: "state", label: "State", render: (pipeline) => html`<${State} name=${stateOf(pipeline)} />` },
  { key: "queue", label: "Queue", render: ({ queue }) => html`<a href=${to("queues", queue)}>${queue}</a>` },
  { key: "progress", label: "Over", render: (pipeline) => html`<${Over} pipeline=${pipeline} />` },
  { key: "work", label: "In progress", align: "number", render: ({ in_work: value }) => format.count(value) },
  { key: "rate", label: "Done", align: "number", render: ({ per_s: value }) => format.rate(value) },
  { key: "poisoned", label: "Set aside", align: "number", render: ({ poisoned }) => html`<span class=${poisoned ? "bad" : "faint"}>${format.count(poisoned)}</span>` },
  { key: "executors", label: "Executors", align: "number", render: ({ executors }) => format.count(executors.length) },
  { key: "began", label: "Started", render: ({ began_at_ms: ms }) => html`<${Relative} ms=${ms} />` },
  { key: "reported", label: "Last report", render: ({ at_ms: ms }) => html`<${Relative} ms=${ms} />` },
];

function Over({ pipeline }) {
  const { over, expected } = totalsOf(pipeline);
  return html`<div class="meter">
    <${Progress} part=${expected ? over / expected : 0} label=${`Finished messages of ${pipeline.name}`} />
    <span>${format.count(over)} of ${format.count(expected)}</span>
  </div>`;
}

function AllPipelines() {
  const { data, error, isLoading, reload } = useResource(ALL, { everyMs: LIST_EVERY_MS });
  const pipelines = data?.pipelines ?? [];
  return html`<${PageHead} title="Pipelines" />
    <p class="faint">Work in stages on Spark. A running pipeline reports here under its name, by default that of its queue.</p>
    <${Problem} error=${error} retry=${reload} />
    ${isLoading
      ? html`<${Loading} />`
      : pipelines.length === 0
        ? data && html`<${Empty} title="No pipeline has reported recently">Run one with <code>leasehold pipeline run</code>, or try <code>make demo</code>.<//>`
        : html`<${Table} caption="Pipelines" columns=${COLUMNS} rows=${pipelines} keyOf=${({ name }) => name} />`}`;
}

// The list has the figures of all. One by itself comes with the lives of its messages, which the
// server would have to look up each time; the timeline follows the event log instead.
function OnePipeline({ name }) {
  const { data, error, isLoading, reload } = useResource(ALL, { everyMs: EVERY_MS });
  const reported = data?.pipelines.find((each) => each.name === name);
  const pipeline = reported ?? { name, queue: name };
  const { queue } = pipeline;
  return html`<${PageHead} title=${name} crumbs=${[["Pipelines", to("pipelines")]]}>
      ${reported && html`<${State} name=${stateOf(reported)} />`}
      <span class="faint">on the queue <a href=${to("queues", queue)}>${queue}</a></span>
    <//>
    ${isLoading && html`<${Loading} />`}
    <${Problem} error=${error} retry=${reload} />
    ${data &&
    !reported &&
    html`<${Note} tone="info">
      No pipeline has reported under this name yet. The events of queue ${queue} are shown below anyway.
    <//>`}
    ${reported && html`<${Reported} pipeline=${reported} />`}
    ${!isLoading && html`<${Section} title="Timeline of each message"><${PipelineTimeline} key=${queue} pipeline=${pipeline} /><//>`}
    ${reported?.executors.length > 0 && html`<${Section} title="Executors"><${Executors} pipeline=${reported} /><//>`}
    ${reported && html`<${Section} title="Details"><${RunFacts} pipeline=${reported} /><//>`}`;
}

function Reported({ pipeline }) {
  const { done, in_work: inWork, waiting, backlog, poisoned, failed, lost } = pipeline;
  return html`<p class="explanation">${sentenceOf(pipeline)}</p>
    <div class="stats">
      <${Stat} label="done" tone="good">${format.short(done)}<//>
      <${Stat} label="in progress">${format.short(inWork)}<//>
      <${Stat} label="wait">${format.short(waiting + (backlog ?? 0))}<//>
      <${Stat} label="done per second">${format.rate(pipeline.per_s)}<//>
      <${Stat} label="set aside" tone=${poisoned ? "bad" : ""}>${format.short(poisoned)}<//>
      <${Stat} label="failed, retried" tone=${failed ? "warning" : ""}>${format.short(failed)}<//>
      <${Stat} label="lost leases" tone=${lost ? "warning" : ""}>${format.short(lost)}<//>
    </div>
    <${Section} title="Stages"><${Stages} pipeline=${pipeline} /><//>`;
}

// The stages from left to right; on a narrow screen from top to bottom.
function Stages({ pipeline }) {
  const { expected } = totalsOf(pipeline);
  return html`<ol class="stages">
    ${pipeline.stages.map((stage) => {
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

const EXECUTOR_COLUMNS = [
  { key: "name", label: "Executor", isMain: true, render: ({ name }) => name },
  { key: "tasks", label: "Tasks", align: "number", render: ({ tasks }) => format.count(tasks ?? 0) },
  { key: "work", label: "In progress", align: "number", render: ({ in_work: value }) => format.count(value ?? 0) },
  { key: "done", label: "Done", align: "number", render: ({ done }) => format.count(done ?? 0) },
];

function Executors({ pipeline }) {
  return html`<${Table} caption=${`Executors of ${pipeline.name}`} columns=${EXECUTOR_COLUMNS} rows=${pipeline.executors} keyOf=${({ name }) => name} />`;
}

function RunFacts({ pipeline }) {
  return html`<${Facts}
    pairs=${[
      ["Queue", html`<a href=${to("queues", pipeline.queue)}>${pipeline.queue}</a>`],
      ["Started", html`<${Relative} ms=${pipeline.began_at_ms} /> (<${Moment} ms=${pipeline.began_at_ms} />)`],
      ["Last report", html`<${Relative} ms=${pipeline.at_ms} /> (<${Moment} ms=${pipeline.at_ms} />)`],
      ["Executors", format.count(pipeline.executors.length)],
      ["Failure", pipeline.failure ?? undefined],
    ]}
  />`;
}

// One message group of a queue: what it has, what holds it up, and its rules.

import { html } from "../lib/html.js";
import { path, useResource } from "../lib/api.js";
import { to } from "../lib/router.js";
import { whatHoldsUp } from "../lib/next.js";
import * as format from "../lib/format.js";
import { ActionButton } from "../ui/dialog.js";
import { endHold, haltGroup, resumeGroup } from "../ui/group_actions.js";
import { NextList } from "../ui/next.js";
import { Age, Empty, Facts, Loading, Moment, PageHead, Problem, Relative, Section, Stat, State, useNow } from "../ui/parts.js";
import { Table } from "../ui/table.js";

const EVERY_MS = 5_000;

export default function Group({ parts }) {
  const [queue, name] = parts;
  if (!queue || !name) return html`<${Empty} title="The address has no group"><a href="#/">To the overview</a><//>`;
  return html`<${One} queue=${queue} name=${name} />`;
}

function One({ queue, name }) {
  const { data, error, isLoading, reload } = useResource(path("queues", queue, "groups", name), { everyMs: EVERY_MS });
  const { data: around } = useResource(path("queues", queue));
  const rules = around?.settings.groups ?? null;
  const crumbs = [
    ["Queues", to()],
    [queue, to("queues", queue)],
    ["Groups", to("queues", queue, { tab: "groups" })],
  ];
  const { group, hold } = data ?? {};
  const actions =
    group &&
    html`<a class="button" href=${to("queues", queue, { tab: "messages", group: name })}>Messages of the group</a>
      ${hold && html`<${ActionButton} onClick=${() => endHold(queue, name, hold, reload)}>End the hold<//>`}
      ${group.halt
        ? html`<${ActionButton} kind="primary" onClick=${() => resumeGroup(queue, name, group.halt, reload)}>Resume<//>`
        : html`<${ActionButton} onClick=${() => haltGroup(queue, name, reload)}>Halt<//>`}`;
  return html`<${PageHead} title=${`Group ${name}`} crumbs=${crumbs} actions=${actions}>
      ${group?.halt && html`<${State} name="halted" />`}
      ${group?.noisy && html`<${State} name="noisy" />`}
    <//>
    <${Problem} error=${error} retry=${reload} />
    ${isLoading && html`<${Loading} lines=${6} />`}
    ${data &&
    html`<${HeldUp} queue=${queue} view=${data} rules=${rules} />
      <${Sums} queue=${queue} group=${group} />
      <div class="columns apart">
        <${Rules} name=${name} rules=${rules} isKnown=${around !== null} />
        ${hold && html`<${Hold} hold=${hold} />`}
        ${group.halt && html`<${Halted} queue=${queue} halt=${group.halt} />`}
      </div>
      <${InFlight} queue=${queue} held=${data.held ?? []} />
      <p><a href=${to("events", { queue, group: name })}>All events of the group</a></p>`}`;
}

function HeldUp({ queue, view, rules }) {
  const nowMs = useNow();
  const items = whatHoldsUp({ view, rules, nowMs });
  const { waiting, in_flight: inFlight } = view.group;
  if (items.length === 0) {
    const rest = waiting ? `${format.plural(waiting, "message waits", "messages wait")} for a worker.` : inFlight ? "All its visible messages have been received." : "It has no waiting messages.";
    return html`<p class="explanation">The group is not blocked. ${rest}</p>`;
  }
  return html`<div class="explanation">
    <strong>What blocks it</strong>
    <${NextList} queue=${queue} items=${items} />
  </div>`;
}

function Sums({ queue, group }) {
  const messages = (state) => to("queues", queue, { tab: "messages", state, group: group.group_id });
  return html`<div class="stats">
    <${Stat} label="waiting" href=${messages("visible")}>${format.count(group.waiting)}<//>
    <${Stat} label="in flight" href=${messages("leased")}>${format.count(group.in_flight)}<//>
    <${Stat} label="delayed" href=${messages("delayed")}>${format.count(group.delayed)}<//>
    <${Stat} label="deferred" href=${messages("deferred")}>${format.count(group.deferred)}<//>
    <${Stat} label="oldest waiting"><${Age} ms=${group.oldest_ms} /><//>
  </div>`;
}

function Rules({ name, rules, isKnown }) {
  if (!isKnown) return null;
  if (!rules) {
    return html`<${Section} title="Rules"><p class="faint">The queue has no rules for groups: messages are delivered regardless of their group.</p><//>`;
  }
  const own = (table, usual) => rules[table]?.[name] ?? usual;
  const most = own("max_in_flight_of", rules.max_in_flight);
  const perS = own("rate_per_s_of", rules.rate_per_s);
  return html`<${Section} title="Rules">
    <${Facts}
      pairs=${[
        ["Order", rules.order === "fifo" ? "in the order of sending" : "any"],
        ["Scheduling", rules.fair ? `in turn with other groups, weight ${own("weights", 1)}` : "in the order of arrival"],
        ["Limit in flight", most == null ? "no limit" : format.count(most)],
        ["Rate limit", perS == null ? "no limit" : `${format.rate(perS)}, ${format.count(own("burst_of", rules.burst ?? 1))} at once`],
        ["After a poisoned message", rules.on_poison === "halt" ? "the group is halted" : "the group continues"],
      ]}
    />
  <//>`;
}

function Hold({ hold }) {
  return html`<${Section} title="Hold">
    <${Facts}
      pairs=${[
        ["Holder", hold.holder || html`<span class="faint">unknown</span>`],
        ["Session", html`<a href=${to("workers", hold.session)}>${hold.session}</a>`],
        ["Held for", html`<${Age} ms=${hold.since_ms} />`],
        ["Since", html`<${Moment} ms=${hold.since_ms} />`],
        ["Fence", format.count(hold.fence)],
      ]}
    />
  <//>`;
}

function Halted({ queue, halt }) {
  return html`<${Section} title="Halt">
    <${Facts}
      pairs=${[
        ["Since", html`<${Moment} ms=${halt.since_ms} /> (<${Relative} ms=${halt.since_ms} />)`],
        ["Reason", halt.reason || html`<span class="faint">no reason given</span>`],
        ["Poisoned message", halt.message_id ? html`<a class="mono" href=${to("messages", queue, halt.message_id)}>${halt.message_id}</a>` : undefined],
      ]}
    />
  <//>`;
}

function InFlight({ queue, held }) {
  if (held.length === 0) return null;
  return html`<${Section} title="Received, and not visible">
    <${Table} caption="Messages of the group that were received and are not visible" columns=${columnsOf(queue)} rows=${held} keyOf=${(row) => row.id} />
    ${held.length >= 10 && html`<p class="faint">The first ten are shown.</p>`}
  <//>`;
}

const columnsOf = (queue) => [
  { key: "id", label: "Message", isMain: true, render: (row) => html`<a class="mono" href=${to("messages", queue, row.id)}>${row.id}</a>` },
  { key: "state", label: "State", render: (row) => html`<${State} name=${row.state} />` },
  { key: "holder", label: "Holder", isMain: true, render: (row) => row.holder || html`<span class="faint">unnamed</span>` },
  { key: "until", label: "Until", render: (row) => html`<${Relative} ms=${row.until_ms} />` },
  { key: "delivery", label: "Delivery", align: "number", render: (row) => format.count(row.dequeue_count) },
  { key: "under", label: "Claim", render: (row) => row.under ?? html`<span class="faint">none</span>` },
];

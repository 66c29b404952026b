// The groups of a queue: how many messages each has, for how long, and which stand still.

import { html, useState } from "../lib/html.js";
import { path, query, useResource } from "../lib/api.js";
import { route, setParams, to } from "../lib/router.js";
import { useStore } from "../lib/store.js";
import * as format from "../lib/format.js";
import { ActionButton } from "./dialog.js";
import { haltGroup, resumeGroup } from "./group_actions.js";
import { Age, Count, Empty, Loading, Note, Problem, Relative, Stat, State } from "./parts.js";
import { Refresh, useSteady } from "./steady.js";
import { Table } from "./table.js";

const LIMIT = 100;
const MOST = 1_000;
/** All messages of groups are counted for an answer, so it is not asked for often. */
const EVERY_MS = 10_000;
const ORDERS = [
  ["backlog", "most waiting"],
  ["oldest", "longest waiting"],
  ["in_flight", "most in flight"],
];

export default function Groups({ queue }) {
  const { params } = useStore(route);
  const { order = "backlog", only = "", search = "" } = params;
  const [limit, setLimit] = useState(LIMIT);
  const { data: around } = useResource(path("queues", queue));
  const asked = query({ order, limit: search ? MOST : limit, noisy: only === "noisy" || undefined, halted: only === "halted" || undefined });
  const { data, error, isLoading, reload } = useResource(`${path("queues", queue, "groups")}${asked}`, { everyMs: EVERY_MS });
  const groups = data?.groups ?? [];
  const part = search.trim().toLowerCase();
  const found = part ? groups.filter((group) => group.group_id.toLowerCase().includes(part)) : groups;
  const steady = useSteady(found, (group) => group.group_id, `${asked} ${search} ${data !== null}`);
  const hasMore = !search && groups.length === limit && limit < MOST;
  return html`${data && html`<${Sums} queue=${queue} data=${data} />`}
    ${around && !around.settings.groups && html`<${Note}>The queue has no rules for groups: messages are delivered regardless of their group.<//>`}
    <div class="toolbar">
      <input type="search" aria-label="Search groups by name" placeholder="Group" value=${search} onInput=${(event) => setParams({ search: event.currentTarget.value })} />
      <label class="inline"><span>Order</span>
        <select value=${order} onChange=${(event) => setParams({ order: event.currentTarget.value })}>
          ${ORDERS.map(([value, label]) => html`<option key=${value} value=${value}>${label}</option>`)}
        </select>
      </label>
      <label class="inline"><span>Filter</span>
        <select value=${only} onChange=${(event) => setParams({ only: event.currentTarget.value })}>
          <option value="">all</option>
          <option value="noisy">noisy</option>
          <option value="halted">halted</option>
        </select>
      </label>
      <${Refresh} steady=${steady} word="list" />
    </div>
    <${Problem} error=${error} retry=${reload} />
    ${isLoading && html`<${Loading} lines=${6} />`}
    ${data && steady.rows.length === 0 && html`<${Nothing} ...${{ queue, search, only, isCut: groups.length >= MOST }} />`}
    ${steady.rows.length > 0 &&
    html`<${Table}
      caption=${`Groups of ${queue}`}
      columns=${columnsOf(queue, reload)}
      rows=${steady.rows}
      keyOf=${(group) => group.group_id}
      sort=${order}
      onSort=${(name) => setParams({ order: name })}
      rowClass=${(group) => (group.isGone ? "is-gone" : "")}
    />`}
    ${hasMore && html`<p class="more"><button type="button" onClick=${() => setLimit(MOST)}>Show more</button></p>`}
    ${data && groups.length >= MOST && html`<p class="faint">The first ${format.count(MOST)} of ${format.plural(data.total, "group")} are listed.</p>`}
    ${search && html`<p class="faint">Open this group by name: <a href=${to("groups", queue, search)}>${search}</a></p>`}`;
}

function Sums({ queue, data }) {
  const only = (name) => to("queues", queue, { tab: "groups", only: name });
  return html`<div class="stats">
    <${Stat} label="groups with messages" href=${to("queues", queue, { tab: "groups" })}>${format.count(data.total)}<//>
    <${Stat} label="with waiting messages">${format.count(data.waiting)}<//>
    <${Stat} label="with messages in flight">${format.count(data.in_flight)}<//>
    <${Stat} label="noisy" hint="using far more than their share" tone=${data.noisy ? "warning" : ""} href=${only("noisy")}>${format.count(data.noisy)}<//>
    <${Stat} label="halted" hint="no delivery until resumed" tone=${data.halted ? "bad" : ""} href=${only("halted")}>${format.count(data.halted)}<//>
  </div>`;
}

function Nothing({ queue, search, only, isCut }) {
  if (search) {
    const where = isCut ? `None of the first ${format.count(MOST)} groups` : "No group with messages";
    return html`<${Empty} title=${`${where} has “${search}” in its name`}><a href=${to("groups", queue, search)}>Open the group with this name</a><//>`;
  }
  if (only) return html`<${Empty} title=${`No group is ${only}`} />`;
  return html`<${Empty} title="No message of the queue belongs to a group">A producer names the group when it sends a message.<//>`;
}

const ofGroup = (queue, group, state) => to("queues", queue, { tab: "messages", state, group });

const number = (queue, key, label, state, hint, sort) => ({
  key,
  label,
  hint,
  sort,
  align: "number",
  render: (group) => html`<${Count} value=${group[key]} href=${ofGroup(queue, group.group_id, state)} label=${`${label.toLowerCase()} of ${group.group_id}`} />`,
});

function columnsOf(queue, reload) {
  return [
    {
      key: "group",
      label: "Group",
      isMain: true,
      render: (group) => html`<a href=${to("groups", queue, group.group_id)}>${group.group_id}</a>
        ${group.noisy && html` <${State} name="noisy" />`}${group.halt && html` <${State} name="halted" />`}
        ${group.halt && html`<${Halt} queue=${queue} halt=${group.halt} />`}`,
    },
    number(queue, "waiting", "Waiting", "visible", "Visible, whether or not the group's limits allow delivery now", "backlog"),
    number(queue, "in_flight", "In flight", "leased", "Leased, including members of claims", "in_flight"),
    number(queue, "delayed", "Delayed", "delayed", "Put with a delay that has not ended"),
    number(queue, "deferred", "Deferred", "deferred", "Released with a delay, for a later attempt"),
    { key: "oldest", label: "Oldest", sort: "oldest", align: "number", hint: "Age of the message that has been visible longest", render: (group) => html`<${Age} ms=${group.oldest_ms} />` },
    {
      key: "act",
      label: "Action",
      render: (group) =>
        group.halt
          ? html`<${ActionButton} kind="small" onClick=${() => resumeGroup(queue, group.group_id, group.halt, reload)}>Resume<span class="hidden-visually"> ${group.group_id}</span><//>`
          : html`<${ActionButton} kind="small" onClick=${() => haltGroup(queue, group.group_id, reload)}>Halt<span class="hidden-visually"> ${group.group_id}</span><//>`,
    },
  ];
}

/** Since when a group stands still, and why. */
export function Halt({ queue, halt }) {
  return html`<div class="faint note-text">
    halted <${Relative} ms=${halt.since_ms} />${halt.reason ? `: ${halt.reason}` : ""}
    ${halt.message_id && html` by <a class="mono" href=${to("messages", queue, halt.message_id)}>${halt.message_id}</a>`}
  </div>`;
}

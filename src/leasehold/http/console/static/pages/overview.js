// All queues: what is in them, and how it moves.

import { html, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { get, path, post, put, query, session, useResource } from "../lib/api.js";
import { movements, queues, totals } from "../lib/live.js";
import { go, setParams, to } from "../lib/router.js";
import { useStore } from "../lib/store.js";
import * as format from "../lib/format.js";
import { ActionButton, FormDialog, openDialog, toast } from "../ui/dialog.js";
import { Age, Count, Empty, Loading, PageHead, Problem, Stat, State } from "../ui/parts.js";
import { Sparkline } from "../ui/plot.js";
import { Table } from "../ui/table.js";

const LIMIT = 100;
const ORDER_EVERY_MS = 15_000;
const TYPED_MS = 200;

const inQueue = (name, params) => to("queues", name, { tab: "messages", ...params });

const stateColumn = (state, label, hint) => ({
  key: state,
  label,
  hint,
  align: "number",
  sort: state,
  render: (row) => html`<${Count} value=${row[state]} href=${inQueue(row.name, { state })} label=${`${state} in ${row.name}`} />`,
});

const COLUMNS = [
  {
    key: "name",
    label: "Queue",
    sort: "name",
    isMain: true,
    render: (row) => html`<a href=${to("queues", row.name)}>${row.name}</a>
      ${row.paused && html` <${State} name="paused" />`}
      ${row.poison_of && html` <span class="faint">poison queue of ${row.poison_of}</span>`}`,
  },
  stateColumn("visible", "Visible", "Can be received now"),
  stateColumn("leased", "Leased", "Held by a worker or a claim"),
  stateColumn("delayed", "Delayed", "Put with a delay that has not ended"),
  stateColumn("deferred", "Deferred", "Released with a delay, for a later attempt"),
  stateColumn("poisoned", "Poisoned", "Moved to the poison queue"),
  {
    key: "oldest",
    label: "Oldest",
    hint: "Waiting time of the message that has been visible longest",
    align: "number",
    sort: "oldest",
    render: (row) => html`<${Age} ms=${row.oldest_since_ms} />`,
  },
  { key: "in", label: "In", sort: "in", align: "number", hint: "Messages put per second", render: (row) => format.rate(row.in_per_s) },
  { key: "out", label: "Out", sort: "out", align: "number", hint: "Messages completed per second", render: (row) => format.rate(row.out_per_s) },
  { key: "failed", label: "Failed", sort: "failed", align: "number", hint: "Messages whose work failed, per second", render: (row) => format.rate(row.failed_per_s) },
  {
    key: "recent",
    label: "Trend",
    hint: "Messages completed per second, recent",
    render: (row) => {
      const points = (movements.value.get(row.name) ?? []).map(([, out]) => out);
      return html`<${Sparkline} values=${points} label=${`Completed per second, recent; now ${format.rate(row.out_per_s)}`} />`;
    },
  },
];

export default function Overview({ params }) {
  const who = session.value;
  if (who.queue) return html`<${OnlyOne} name=${who.queue} />`;
  return html`<${All} params=${params} />`;
}

// Who has signed in with a signature for one queue sees that one.
function OnlyOne({ name }) {
  useEffect(() => go(to("queues", name), { replace: true }), []);
  return null;
}

function All({ params }) {
  const { search = "", sort = "name" } = params;
  const { rows, matched, next, more, error, isLoading } = useRows(search, sort);
  const sums = useStore(totals);
  useStore(movements);
  return html`<${PageHead} title="Queues" actions=${html`<${ActionButton} kind="primary" onClick=${createQueue}>New queue<//>`} />
    ${sums && html`<${Sums} sums=${sums} />`}
    <div class="toolbar"><${Search} search=${search} /><span class="faint" role="status">
      ${matched !== null && (search ? `${format.plural(matched, "queue")} found` : format.plural(matched, "queue"))}
    </span></div>
    <${Problem} error=${error} />
    ${isLoading
      ? html`<${Loading} lines=${6} />`
      : rows.length === 0
        ? html`<${Empty} title=${search ? `No queue has “${search}” in its name` : "There are no queues yet"}>
            ${!search && "Create one here or with a client."}
          <//>`
        : html`<${Table}
            caption="Queues"
            columns=${COLUMNS}
            rows=${rows}
            keyOf=${(row) => row.name}
            sort=${sort}
            onSort=${(order) => setParams({ sort: order === "name" ? "" : order })}
            rowClass=${(row) => (row.paused ? "tiles is-paused" : "tiles")}
          />`}
    ${next && html`<p class="more"><button type="button" onClick=${more}>Show more</button></p>`}`;
}

function Sums({ sums }) {
  return html`<div class="stats">
    <${Stat} label="visible">${format.short(sums.visible)}<//>
    <${Stat} label="leased">${format.short(sums.leased)}<//>
    <${Stat} label="delayed">${format.short(sums.delayed)}<//>
    <${Stat} label="deferred">${format.short(sums.deferred)}<//>
    <${Stat} label="poisoned" tone=${sums.poisoned ? "bad" : ""} href=${to({ sort: "poisoned" })}>${format.short(sums.poisoned)}<//>
    <${Stat} label="in">${format.rate(sums.in_per_s)}<//>
    <${Stat} label="out">${format.rate(sums.out_per_s)}<//>
    <${Stat} label="failed">${format.rate(sums.failed_per_s)}<//>
  </div>`;
}

function Search({ search }) {
  const timer = useRef(0);
  const typed = (event) => {
    const text = event.currentTarget.value;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setParams({ search: text.trim() }), TYPED_MS);
  };
  return html`<input type="search" aria-label="Search queues by name" placeholder="Search by name" value=${search} onInput=${typed} />`;
}

// Pages of rows in the server's order, which is asked for anew from time to time; in between each
// row shows what the server tells live, at its place.
function useRows(search, sort) {
  const [limit, setLimit] = useState(LIMIT);
  const address = `/console/api/overview${query({ search, sort, limit })}`;
  const { data, error, isLoading } = useResource(address, { everyMs: ORDER_EVERY_MS });
  const live = useStore(queues);
  const last = useRef(null);
  if (data) last.current = data;
  const shown = data ?? (isLoading ? last.current : null);
  const rows = (shown?.queues ?? []).map((row) => newer(live.get(row.name), row));
  return {
    rows,
    matched: shown?.matched ?? null,
    next: shown?.next,
    more: () => setLimit(limit + 5 * LIMIT),
    error,
    isLoading: isLoading && !shown,
  };
}

const newer = (live, row) => (live && live.counted_at_ms >= row.counted_at_ms ? live : row);

function createQueue() {
  openDialog(
    (close) => html`<${FormDialog}
      title="New queue"
      action="Create"
      close=${close}
      act=${async ({ name, order }) => {
        const settings = order === "fifo" ? { groups: { order: "fifo" } } : {};
        await put(path("queues", name.trim()), { settings });
        toast(`The queue ${name.trim()} was created.`);
        go(to("queues", name.trim()));
      }}
    >
      <label>
        <span>Name</span>
        <input name="name" required maxlength="256" pattern="[A-Za-z0-9][A-Za-z0-9\\-]*" autocomplete="off" spellcheck="false" />
        <small class="faint">Letters, digits and dashes. Clients of Azure need 3 to 63 lower-case letters, digits and single dashes.</small>
      </label>
      <label>
        <span>Messages of one group</span>
        <select name="order">
          <option value="none">in any order</option>
          <option value="fifo">in the order of sending</option>
        </select>
      </label>
    <//>`,
  );
}

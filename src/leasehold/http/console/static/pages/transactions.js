// Transactions: messages that are staged under a name until all of them are published.

import { html } from "../lib/html.js";
import { get, path, post, query, useResource } from "../lib/api.js";
import { go, setParams, to } from "../lib/router.js";
import * as format from "../lib/format.js";
import { ActionButton, FormDialog, openDialog, toast } from "../ui/dialog.js";
import { Empty, Facts, Loading, Moment, PageHead, Problem, Relative, Section, State } from "../ui/parts.js";
import { Table } from "../ui/table.js";

const EVERY_MS = 5_000;
const LIMIT = 100;
const MOST = 1_000;

export default function Transactions({ parts, params }) {
  const [name] = parts;
  return name ? html`<${OneTransaction} name=${name} />` : html`<${AllTransactions} params=${params} />`;
}

const claimsOf = (claims) =>
  claims.length === 0
    ? html`<span class="faint">–</span>`
    : claims.map(
        ({ queue, stream, number }, place) =>
          html`${place > 0 && ", "}<a href=${to("streams", queue, stream)}>${stream} ${number}</a>`,
      );

const COLUMNS = [
  { key: "name", label: "Transaction", isMain: true, render: ({ name }) => html`<a href=${to("transactions", name)}>${name}</a>` },
  { key: "state", label: "State", render: ({ state }) => html`<${State} name=${state} />` },
  { key: "rows", label: "Messages", align: "number", render: ({ rows }) => format.count(rows) },
  {
    key: "duplicates",
    label: "Duplicates",
    align: "number",
    hint: "Messages dropped at publishing because of their deduplication keys",
    render: ({ state, duplicates }) => (state === "published" ? format.count(duplicates) : html`<span class="faint">–</span>`),
  },
  {
    key: "parts",
    label: "Parts",
    align: "number",
    render: ({ parts }) => (parts.length ? format.count(parts.length) : html`<span class="faint">–</span>`),
  },
  { key: "claims", label: "Bound claims", render: ({ claims }) => claimsOf(claims) },
  { key: "created", label: "Started", render: ({ created_at_ms: ms }) => html`<${Relative} ms=${ms} />` },
  {
    key: "until",
    label: "Until",
    hint: "When the staged messages are discarded, or the record of the published transaction is deleted",
    render: ({ until_ms: ms }) => html`<${Relative} ms=${ms} />`,
  },
];

function AllTransactions({ params }) {
  const { state = "staged" } = params;
  const limit = Number(params.limit) || LIMIT;
  const address = `${path("transactions")}${query({ state: state === "all" ? "" : state, limit })}`;
  const { data, error, isLoading, reload } = useResource(address, { everyMs: EVERY_MS });
  const rows = data?.transactions ?? [];
  return html`<${PageHead} title="Transactions" />
    <p class="faint">Messages are staged under a name and stay invisible until all are published in one step or discarded.</p>
    <div class="toolbar">
      <label class="inline">
        <span>State</span>
        <select value=${state} onChange=${(event) => setParams({ state: event.currentTarget.value })}>
          <option value="staged">staged</option>
          <option value="published">published</option>
          <option value="all">all</option>
        </select>
      </label>
      <span class="faint" role="status">${data && `${format.plural(rows.length, "transaction")}${rows.length === limit ? ", possibly more" : ""}`}</span>
    </div>
    <${Problem} error=${error} retry=${reload} />
    ${isLoading
      ? html`<${Loading} />`
      : rows.length === 0
        ? data && html`<${Empty} title=${state === "all" ? "There are no transactions" : `No transaction is ${state}`} />`
        : html`<${Table} caption="Transactions" columns=${COLUMNS} rows=${rows} keyOf=${({ name }) => name} />`}
    ${rows.length === limit &&
    limit < MOST &&
    html`<p class="more"><button type="button" onClick=${() => setParams({ limit: Math.min(limit * 5, MOST) })}>Show more</button></p>`}`;
}

const PART_COLUMNS = [
  { key: "part", label: "Part", isMain: true, render: ({ part }) => part || html`<span class="faint">(no name)</span>` },
  { key: "rows", label: "Messages", align: "number", render: ({ rows }) => format.count(rows) },
  { key: "chunks", label: "Chunks", align: "number", render: ({ chunks }) => format.count(chunks) },
];

function OneTransaction({ name }) {
  const { data, error, isLoading, reload } = useResource(path("transactions", name), { everyMs: EVERY_MS });
  const isStaged = data?.state === "staged";
  const actions =
    isStaged &&
    html`<${ActionButton} kind="primary" onClick=${() => publish(name, reload)}>Publish<//>
      <${ActionButton} kind="danger" onClick=${() => discard(name, reload)}>Discard<//>`;
  return html`<${PageHead} title=${name} crumbs=${[["Transactions", to("transactions")]]} actions=${actions}>
      ${data && html`<${State} name=${data.state} />`}
    <//>
    ${error?.status === 404 && !data
      ? html`<${Empty} title="The transaction does not exist">
          It was discarded, it expired, or it was published more than a week ago.
        <//>`
      : html`<${Problem} error=${error} retry=${reload} />`}
    ${isLoading && html`<${Loading} />`}
    ${data &&
    html`<p class="explanation">${sentenceOf(data)}</p>
      <${Section} title="Details">
        <${Facts}
          pairs=${[
            ["Messages", format.count(data.rows)],
            ["Duplicates dropped", isStaged ? undefined : format.count(data.duplicates)],
            ["Started", html`<${Relative} ms=${data.created_at_ms} /> (<${Moment} ms=${data.created_at_ms} />)`],
            [isStaged ? "Vanishes" : "Forgotten", html`<${Relative} ms=${data.until_ms} /> (<${Moment} ms=${data.until_ms} />)`],
            ["Bound claims", claimsOf(data.claims)],
          ]}
        />
      <//>
      ${data.parts.length > 0 &&
      html`<${Section} title="Parts">
        <${Table} caption=${`Parts of ${name}`} columns=${PART_COLUMNS} rows=${data.parts} keyOf=${({ part }) => part} />
      <//>`}`}`;
}

function sentenceOf({ state, rows, duplicates, parts, claims }) {
  if (state === "published") {
    const dropped = duplicates ? `; ${format.plural(duplicates, "duplicate")} ${duplicates === 1 ? "was" : "were"} dropped` : "";
    return `It was published: ${format.plural(rows, "message")} in all${dropped}.`;
  }
  const bound = claims.length ? ` Publishing it also settles ${format.plural(claims.length, "claim")}.` : "";
  const whole = `${format.plural(rows, "message")} in ${format.plural(parts.length, "part")}`;
  return `It has ${whole}, which cannot be received until it is published.${bound}`;
}

/** What the transaction holds at this moment, for the question before an action. */
async function look(name) {
  const now = await get(path("transactions", name));
  return html`<p>${sentenceOf(now)}</p>`;
}

function publish(name, reload) {
  openDialog(
    (close) => html`<${FormDialog}
      title=${`Publish ${name}`}
      action="Publish"
      danger
      close=${close}
      preview=${() => look(name)}
      act=${async () => {
        const done = await post(path("transactions", name, "publish"));
        const settled = done.settled?.length ? ` ${format.plural(done.settled.length, "stream")} settled.` : "";
        toast(done.already ? `${name} was published before.` : `${format.plural(done.rows, "message")} published.${settled}`);
        reload();
      }}
    >
      <p>
        All parts are published together, including parts that a worker may still be adding to; the
        server then refuses to stage more under this name. This cannot be undone.
      </p>
    <//>`,
  );
}

function discard(name, reload) {
  openDialog(
    (close) => html`<${FormDialog}
      title=${`Discard ${name}`}
      action="Discard"
      danger
      type=${name}
      close=${close}
      preview=${() => look(name)}
      act=${async () => {
        const done = await post(path("transactions", name, "discard"));
        if (done.published) {
          toast(`${name} was published in the meantime: no message was dropped.`);
          reload();
        } else {
          toast(`${format.plural(done.rows, "message")} dropped.`);
          go(to("transactions"));
        }
      }}
    >
      <p>The staged messages are dropped, and the name can be used again. This cannot be undone.</p>
    <//>`,
  );
}

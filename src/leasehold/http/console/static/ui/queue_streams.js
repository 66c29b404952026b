// Streams of a queue and their claims: who has claimed what, until when, and how to take it back.

import { html } from "../lib/html.js";
import { path, post, remove, useResource } from "../lib/api.js";
import { go, to } from "../lib/router.js";
import * as format from "../lib/format.js";
import { ActionButton, FormDialog, openDialog, toast } from "./dialog.js";
import { Empty, Facts, Loading, Moment, Problem, Relative, State } from "./parts.js";
import { Table } from "./table.js";

export const EVERY_MS = 5_000;

/** The tab of a queue: its streams. */
export default function QueueStreams({ queue }) {
  const { data, error, isLoading, reload } = useResource(path("queues", queue, "streams"), { everyMs: EVERY_MS });
  if (isLoading) return html`<${Loading} />`;
  if (!data) return html`<${Problem} error=${error} retry=${reload} />`;
  return html`<${Problem} error=${error} />
    ${data.streams.length === 0
      ? html`<${Empty} title="No stream reads this queue">
          A stream is created when a consumer, such as a Spark query, first attaches to it.
        <//>`
      : html`<${StreamTable} caption=${`Streams of ${queue}`} streams=${data.streams.map((stream) => ({ ...stream, queue }))} />`}`;
}

const STREAM_COLUMNS = [
  {
    key: "stream",
    label: "Stream",
    isMain: true,
    render: ({ queue, stream }) => html`<a href=${to("streams", queue, stream)}>${stream}</a>`,
  },
  { key: "claims", label: "Open claims", align: "number", render: ({ claims }) => format.count(claims.length) },
  {
    key: "messages",
    label: "Claimed messages",
    align: "number",
    render: ({ claims }) => format.count(sum(claims, "remaining")),
  },
  {
    key: "state",
    label: "State",
    render: ({ claims }) => [...new Set(claims.map(({ state }) => state))].map((name) => html`<${State} key=${name} name=${name} /> `),
  },
  {
    key: "until",
    label: "Claimed until",
    hint: "When the first claim lapses unless it is extended",
    render: ({ claims }) => html`<${Relative} ms=${earliest(claims)} />`,
  },
  { key: "holder", label: "Holder", render: ({ claims }) => holdersOf(claims) },
  { key: "settled", label: "Settled up to", align: "number", render: ({ last_settled: last }) => format.count(last) },
  { key: "attached", label: "Attached", render: ({ attached_at_ms: ms }) => html`<${Relative} ms=${ms} />` },
];

const QUEUE_COLUMN = {
  key: "queue",
  label: "Queue",
  render: ({ queue }) => html`<a href=${to("queues", queue, { tab: "streams" })}>${queue}</a>`,
};

/** Streams as a table; each row is a stream with the name of its `queue`. */
export function StreamTable({ caption, streams, withQueue = false }) {
  const [name, ...others] = STREAM_COLUMNS;
  return html`<${Table}
    caption=${caption}
    columns=${withQueue ? [name, QUEUE_COLUMN, ...others] : STREAM_COLUMNS}
    rows=${streams}
    keyOf=${({ queue, stream }) => `${queue}/${stream}`}
  />`;
}

/** How a stream is, in one sentence. */
export function sentenceOf({ stream, claims, last_settled: last }) {
  if (claims.length === 0) return `${stream} has settled its claims up to ${last} and holds no message.`;
  const held = `${format.plural(claims.length, "claim")} with ${format.plural(sum(claims, "remaining"), "message")}`;
  const of = (state) => claims.filter((claim) => claim.state === state).length;
  const bad = ["broken", "lapsed"]
    .filter((state) => of(state))
    .map((state) => `${format.plural(of(state), "claim")} ${of(state) === 1 ? "is" : "are"} ${state}: ${MEANING[state]}`);
  return [`${stream} holds ${held}.`, ...bad].join(" ");
}

const MEANING = {
  opening: "its members are being leased, in steps.",
  open: "its messages are hidden from others until then.",
  parked: "it is not being extended; it can be replayed until then.",
  lapsed: "it was not extended in time, and its messages are visible until it is reopened.",
  broken: "other consumers have received some of its messages, so it cannot be settled unless the consumer accepts the loss.",
};

/** The claims of a stream that are not settled. */
export function ClaimTable({ queue, stream, token, claims, reload }) {
  const columns = [
    { key: "number", label: "Claim", isMain: true, render: ({ number }) => html`Claim ${number}` },
    {
      key: "state",
      label: "State",
      render: ({ state }) => html`<span title=${MEANING[state]}><${State} name=${state} /></span>`,
    },
    { key: "size", label: "Size", align: "number", hint: "Number of members when it was opened", render: ({ size }) => format.count(size) },
    {
      key: "remaining",
      label: "Remaining",
      align: "number",
      hint: "Members that it still has",
      render: ({ remaining }) => format.count(remaining),
    },
    {
      key: "lost",
      label: "Lost",
      align: "number",
      hint: "Members that other consumers have received",
      render: ({ lost }) => html`<span class=${lost ? "bad" : "faint"}>${format.count(lost)}</span>`,
    },
    { key: "noted", label: "Exempted", align: "number", hint: "Members that settling does not complete", render: ({ noted }) => format.count(noted) },
    {
      key: "until",
      label: "Until",
      render: ({ until_ms: ms, state }) => html`<${Relative} ms=${ms} />${state === "lapsed" && " (over)"}`,
    },
    { key: "opened", label: "Opened", render: ({ opened_at_ms: ms }) => html`<${Moment} ms=${ms} />` },
    { key: "extensions", label: "Extended", align: "number", render: ({ extensions }) => format.count(extensions) },
    { key: "holder", label: "Holder", render: ({ holder }) => holder ?? html`<span class="faint">–</span>` },
    {
      key: "transaction",
      label: "Bound to",
      hint: "The transaction whose publishing settles it",
      render: ({ transaction }) =>
        transaction ? html`<a href=${to("transactions", transaction)}>${transaction}</a>` : html`<span class="faint">–</span>`,
    },
    {
      key: "act",
      label: "Action",
      render: (claim) =>
        html`<${ActionButton} kind="small" title="Make its messages visible again" onClick=${() => giveBack(queue, stream, token, claim, reload)}>
          Release<span class="hidden-visually"> claim ${claim.number}</span>
        <//>`,
    },
  ];
  return html`<${Table} caption=${`Claims of ${stream}`} columns=${columns} rows=${claims} keyOf=${({ number }) => number} />`;
}

/** Ask, and release a claim: its messages are in the queue again. */
function giveBack(queue, stream, token, claim, reload) {
  const { number, remaining, holder } = claim;
  openDialog(
    (close) => html`<${FormDialog}
      title=${`Release claim ${number} of ${stream}`}
      action="Release"
      danger
      close=${close}
      act=${async () => {
        await post(path("queues", queue, "streams", stream, "claims", String(number), "give-back"), { token });
        toast(`Claim ${number} was released: ${format.plural(remaining, "message")} can be received again.`);
        reload();
      }}
    >
      <${Facts} pairs=${[["Messages", format.count(remaining)], ["Holder", holder ?? "–"], ["State", claim.state]]} />
      <p>
        Its messages become visible immediately. If ${holder ?? "its consumer"} is still working,
        the server refuses to settle the claim, and the work is repeated. This cannot be undone.
      </p>
    <//>`,
  );
}

/** Ask, and delete a stream; what it holds goes back to the queue. */
export function deleteStream(queue, { stream, claims }) {
  openDialog(
    (close) => html`<${FormDialog}
      title=${`Delete the stream ${stream}`}
      action="Delete"
      danger
      type=${stream}
      close=${close}
      act=${async () => {
        await remove(path("queues", queue, "streams", stream));
        toast(`The stream ${stream} was deleted.`);
        go(to("queues", queue, { tab: "streams" }));
      }}
    >
      <p>
        ${claims.length
          ? `${format.plural(sum(claims, "remaining"), "message")} in ${format.plural(claims.length, "claim")} become visible again.`
          : "It has no messages."}
        ${" "}The last settled number is deleted: a returning consumer gets the error stream-not-found.
      </p>
    <//>`,
  );
}

const sum = (rows, member) => rows.reduce((total, row) => total + row[member], 0);

function earliest(claims) {
  const ends = claims.map(({ until_ms: ms }) => ms).filter((ms) => ms != null);
  return ends.length ? Math.min(...ends) : null;
}

function holdersOf(claims) {
  const names = [...new Set(claims.map(({ holder }) => holder).filter((name) => name))];
  if (names.length === 0) return html`<span class="faint">–</span>`;
  return names.length > 2 ? `${names.slice(0, 2).join(", ")} and ${names.length - 2} more` : names.join(", ");
}

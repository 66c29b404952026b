// Streams: who reads queues in claims. Of all queues, of those found by name, or one of them.

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { get, path, query, session, useResource } from "../lib/api.js";
import { setParams, to } from "../lib/router.js";
import * as format from "../lib/format.js";
import { ActionButton } from "../ui/dialog.js";
import QueueStreams, { ClaimTable, EVERY_MS, StreamTable, deleteStream, sentenceOf } from "../ui/queue_streams.js";
import { Empty, Facts, Loading, Moment, Note, PageHead, Problem, Relative, Section } from "../ui/parts.js";

/** Queues that are asked for their streams: each costs a request. */
const MOST_QUEUES = 25;
const ALL_EVERY_MS = 10_000;
const TYPED_MS = 300;

export default function Streams({ parts, params }) {
  const [queue, stream] = parts;
  if (stream) return html`<${OneStream} queue=${queue} stream=${stream} />`;
  // Who has signed in with a signature for one queue sees that one.
  const own = session.value.queue;
  if (own) return html`<${PageHead} title="Streams" crumbs=${[[own, to("queues", own)]]} /><${QueueStreams} queue=${own} />`;
  return html`<${AllStreams} search=${params.search ?? queue ?? ""} />`;
}

function AllStreams({ search }) {
  const { streams, asked, left, error, isLoading, reload } = useStreams(search);
  const timer = useRef(0);
  const typed = (event) => {
    const text = event.currentTarget.value;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setParams({ search: text.trim() }), TYPED_MS);
  };
  return html`<${PageHead} title="Streams" />
    <p class="faint">
      A stream takes messages from a queue in numbered claims and settles each claim as a whole. Spark reads queues this way.
    </p>
    <div class="toolbar">
      <input type="search" aria-label="Search queues by name" placeholder="Queue by name" value=${search} onInput=${typed} />
      <span class="faint" role="status">${!isLoading && `${format.plural(streams.length, "stream")} in ${format.plural(asked, "queue")}`}</span>
    </div>
    <${Problem} error=${error} retry=${reload} />
    ${left > 0 &&
    html`<${Note} tone="info">
      ${format.plural(left, "more queue")} ${left === 1 ? "was" : "were"} not searched: only
      ${` ${MOST_QUEUES} `}queues are searched at a time, those with the most leased messages first. Search for the queue by name.
    <//>`}
    ${isLoading
      ? html`<${Loading} />`
      : streams.length === 0
        ? !error && html`<${Empty} title=${search ? `No stream reads a queue with “${search}” in its name` : "No streams found"}>
            A stream is created when a consumer first attaches to it.
          <//>`
        : html`<${StreamTable} caption="Streams" withQueue streams=${streams} />`}`;
}

// There is no list of the streams of all queues, so queues are asked one by one, a bounded number of them.
function useStreams(search) {
  const [state, setState] = useState(null);
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    const load = () =>
      lookIn(search, abort.signal).then(
        (found) => abort.signal.aborted || setState({ search, ...found }),
        (error) => abort.signal.aborted || setState((before) => ({ streams: [], asked: 0, left: 0, ...before, search, error })),
      );
    load();
    const timer = setInterval(() => document.hidden || load(), ALL_EVERY_MS);
    return () => {
      clearInterval(timer);
      abort.abort();
    };
  }, [search, turn]);
  const isLoading = state === null || state.search !== search;
  const reload = () => setTurn(turn + 1);
  return isLoading ? { streams: [], asked: 0, left: 0, isLoading, reload } : { ...state, isLoading, reload };
}

async function lookIn(search, signal) {
  const page = await get(`/console/api/overview${query({ search, sort: "leased", limit: 100 })}`, { signal });
  const chosen = page.queues.slice(0, MOST_QUEUES);
  const found = await Promise.all(
    chosen.map(({ name }) =>
      get(path("queues", name, "streams"), { signal }).then(
        (answer) => ({ name, streams: answer.streams }),
        (error) => ({ name, streams: [], error }),
      ),
    ),
  );
  // A queue that was deleted meanwhile has no streams; anything else is worth saying.
  const failed = found.find(({ error }) => error && error.status !== 404);
  return {
    streams: found.flatMap(({ name, streams }) => streams.map((stream) => ({ ...stream, queue: name }))),
    asked: chosen.length,
    left: page.matched - chosen.length,
    error: failed?.error ?? null,
  };
}

function OneStream({ queue, stream }) {
  const { data, error, isLoading, reload } = useResource(path("queues", queue, "streams", stream), { everyMs: EVERY_MS });
  const crumbs = [
    ["Streams", to("streams")],
    [queue, to("queues", queue, { tab: "streams" })],
  ];
  const actions = data && html`<${ActionButton} kind="danger" onClick=${() => deleteStream(queue, data)}>Delete stream<//>`;
  return html`<${PageHead} title=${stream} crumbs=${crumbs} actions=${actions} />
    <${Problem} error=${error} retry=${reload} />
    ${isLoading && html`<${Loading} />`}
    ${data &&
    html`<p class="explanation">${sentenceOf(data)}</p>
      <${Section} title="Claims">
        ${data.claims.length === 0
          ? html`<${Empty} title="No claim is open">All its claims are settled.<//>`
          : html`<${ClaimTable} queue=${queue} stream=${stream} token=${data.token} claims=${data.claims} reload=${reload} />`}
      <//>
      <${Section} title="Details">
        <${Facts}
          pairs=${[
            ["Queue", html`<a href=${to("queues", queue)}>${queue}</a>`],
            ["Settled up to claim", format.count(data.last_settled)],
            ["Last attached", html`<${Relative} ms=${data.attached_at_ms} /> (<${Moment} ms=${data.attached_at_ms} />)`],
            [
              "Settled with transaction",
              data.settled_with ? html`<a href=${to("transactions", data.settled_with)}>${data.settled_with}</a>` : undefined,
            ],
          ]}
        />
      <//>`}`;
}

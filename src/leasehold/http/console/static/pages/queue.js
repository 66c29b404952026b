// One queue: what is in it, how it moves, its messages and its settings.

import { html, useEffect, useState } from "../lib/html.js";
import { path, query, session, useResource } from "../lib/api.js";
import { queues } from "../lib/live.js";
import { to } from "../lib/router.js";
import { useStore } from "../lib/store.js";
import * as format from "../lib/format.js";
import { ActionButton } from "../ui/dialog.js";
import { Empty, Loading, Note, PageHead, Problem, Relative, Stat, State, Tabs } from "../ui/parts.js";
import { putMessage } from "../ui/put.js";
import { Running } from "../ui/running.js";
import { FOR_EVER_MS, pauseQueue, resumeQueue } from "../ui/pause.js";

const EVERY_MS = 10_000;
const SIMILAR = 50;
const TABS = [
  ["overview", "Overview"],
  ["messages", "Messages"],
  ["groups", "Groups"],
  ["streams", "Streams"],
  ["advice", "Advice"],
  ["settings", "Settings"],
];
// Each is loaded when it is first shown.
const CONTENTS = {
  overview: () => import("./queue_figures.js"),
  messages: () => import("../ui/messages.js"),
  groups: () => import("../ui/groups.js"),
  streams: () => import("../ui/queue_streams.js"),
  advice: () => import("../ui/advice.js"),
  settings: () => import("../ui/settings.js"),
};
const TILES = [
  ["visible", "can be received"],
  ["leased", "held by workers"],
  ["delayed", "put with a delay"],
  ["deferred", "wait for the next attempt"],
  ["poisoned", "moved to the poison queue"],
  ["expired", "past their time to live"],
];

export default function QueuePage({ parts, params }) {
  const [name] = parts;
  const { data, error, isLoading, reload } = useResource(path("queues", name), { everyMs: EVERY_MS });
  const { live, poisonQueue } = useRows(name);
  const current = CONTENTS[params.tab] ? params.tab : "overview";
  if (!data) {
    return html`<${PageHead} title=${name} crumbs=${[["Queues", to()]]} />
      ${isLoading ? html`<${Loading} lines=${6} />` : error?.status === 404
        ? html`<${Empty} title="The queue does not exist"><a href=${to()}>To all queues</a><//>`
        : html`<${Problem} error=${error} retry=${reload} />`}`;
  }
  const counts = newest(data, live);
  const tabs = TABS.map(([key, label]) => [key, label, hrefOf(name, key), key === "messages" ? counts.total : null]);
  tabs.splice(5, 0, ["events", "Events", to("events", { queue: name })]);
  return html`<${Head} queue=${data} live=${live} reload=${reload} />
    ${error?.code !== "unreachable" && html`<${Problem} error=${error} retry=${reload} />`}
    <${Paused} queue=${data} reload=${reload} />
    <${Tiles} name=${name} counts=${counts} />
    <${Tabs} label="Parts of the queue" tabs=${tabs} current=${current} />
    <${Running} queue=${name} />
    <${Content} key=${current} load=${CONTENTS[current]} queue=${name} info=${data} counts=${counts} live=${live} poisonQueue=${poisonQueue} params=${params} reload=${reload} />`;
}

// The queue's row of the overview, and which queue its poison goes to. Rows are told live when something
// happens in a queue; until then what the overview says of queues of such names will do.
function useRows(name) {
  const rows = useStore(queues);
  // Who has signed in for one queue may not see the others.
  const { data } = useResource(session.value.queue ? null : `/console/api/overview${query({ search: name, limit: SIMILAR })}`);
  const asked = data?.queues ?? [];
  const isPoison = (row) => row.poison_of === name;
  return {
    live: rows.get(name) ?? asked.find((row) => row.name === name),
    poisonQueue: ([...rows.values()].find(isPoison) ?? asked.find(isPoison))?.name,
  };
}

const hrefOf = (name, tab) => to("queues", name, tab === "overview" ? {} : { tab });

// What the server told last, by itself or when it was asked.
function newest(data, live) {
  const { counts } = data;
  if (!live || live.counted_at_ms == null || live.counted_at_ms < counts.at_ms) return counts;
  return { ...counts, ...live, total: live.messages, at_ms: live.counted_at_ms };
}

function Head({ queue, live, reload }) {
  const { name } = queue;
  const source = live?.poison_of;
  const isPaused = pausedUntil(queue) !== null;
  return html`<${PageHead}
    title=${name}
    crumbs=${[["Queues", to()]]}
    actions=${html`<${ActionButton} kind="primary" onClick=${() => putMessage(name, reload)}>Put messages<//>
      ${isPaused
        ? html`<${ActionButton} onClick=${() => resumeQueue(name, reload)}>Resume<//>`
        : html`<${ActionButton} onClick=${() => pauseQueue(name, reload)}>Pause<//>`}`}
  >
    ${isPaused && html`<${State} name="paused" />`}
    ${queue.settings.groups?.order === "fifo" && html`<span class="faint">groups in order</span>`}
    ${source && html`<span class="faint">poison queue of <a href=${to("queues", source)}>${source}</a></span>`}
  <//>`;
}

function pausedUntil(queue) {
  const untilMs = queue.settings.paused_until_ms;
  return untilMs !== null && untilMs > queue.counts.at_ms ? untilMs : null;
}

function Paused({ queue, reload }) {
  const untilMs = pausedUntil(queue);
  if (untilMs === null) return null;
  const { pause_reason: reason } = queue.settings;
  return html`<${Note} tone="warning">
    The queue is paused: nothing is received
    ${untilMs >= FOR_EVER_MS ? " until it is resumed" : html` until then: <${Relative} ms=${untilMs} />`}.
    ${reason && ` Reason: ${reason}`}
  <//>`;
}

function Tiles({ name, counts }) {
  return html`<div class="stats states">
    ${TILES.filter(([state]) => state !== "expired" || counts.expired > 0).map(
      ([state, hint]) => html`<${Stat}
        key=${state}
        label=${state}
        hint=${hint}
        tone=${state === "poisoned" && counts.poisoned ? "bad" : ""}
        href=${to("queues", name, { tab: "messages", state })}
        >${format.count(counts[state])}<//
      >`,
    )}
    ${counts.staged > 0 && html`<${Stat} label="staged" hint="not published yet" href=${to("transactions")}>${format.count(counts.staged)}<//>`}
  </div>`;
}

function Content({ load, ...props }) {
  const [shown, setShown] = useState(null);
  useEffect(() => {
    load().then(
      (module) => setShown({ Part: module.default }),
      () => setShown({ error: { title: "This part of the page could not be loaded", message: "Check that the server is running." } }),
    );
  }, []);
  if (shown === null) return html`<${Loading} lines=${6} />`;
  if (shown.error) return html`<${Problem} error=${shown.error} />`;
  return html`<${shown.Part} ...${props} />`;
}

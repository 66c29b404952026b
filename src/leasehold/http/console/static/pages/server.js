// How the server is: what is wrong first, then its store, its load and itself.

import { html, useEffect, useMemo, useState } from "../lib/html.js";
import { clockOffset, server } from "../lib/live.js";
import { useResource } from "../lib/api.js";
import { useStore } from "../lib/store.js";
import * as format from "../lib/format.js";
import { Facts, Loading, Note, PageHead, Problem, Progress, Relative, Moment, Section, Stat, Age } from "../ui/parts.js";
import { Plot } from "../ui/plot.js";
import { Table } from "../ui/table.js";

/** Points that the plots keep: an hour and a half at one in five seconds. */
const KEPT = 1_080;
const NEARLY_FULL = 0.8;
const SLOW_COMMIT_S = 0.1;
const LAGGING_S = 60;
const DRIFT_S = 1;
const CLOCKS_APART_MS = 5_000;
const RESERVES_LEFT = 4;

const seconds = (value) => format.duration(value);
const perSecond = (value) => format.rate(value);

export default function Server() {
  const first = useResource("/console/api/server");
  const told = useStore(server);
  const offset = useStore(clockOffset);
  const figures = told ?? first.data;
  const history = useHistory(figures);
  if (!figures) {
    return html`<${PageHead} title="Server" />${first.error ? html`<${Problem} error=${first.error} retry=${first.reload} />` : html`<${Loading} lines=${6} />`}`;
  }
  return html`<${PageHead} title="Server"><span class="faint">Leasehold ${figures.version}, up for <${Age} ms=${figures.started_at_ms} /></span><//>
    <${Verdict} troubles=${troublesOf(figures, offset)} />
    <${Figures} figures=${figures} />
    <div class="packed">
      <${Section} title="Commits"><${Commits} figures=${figures} history=${history} /><//>
      <${Section} title="Load"><${Load} load=${figures.load} consoles=${figures.consoles} process=${figures.process} /><//>
      <${Section} title="Disk and store"><${StoreFacts} figures=${figures} /><//>
      <${Section} title="Process and clock"><${Process} figures=${figures} history=${history} offset=${offset} /><//>
      <${Section} title="Event log"><${EventLog} log=${figures.event_log} /><//>
      <${Section} title="Refused connections and requests"><${Refused} load=${figures.load} /><//>
    </div>`;
}

// What was told while the page is open, as columns of a plot.
function useHistory(figures) {
  const [points, setPoints] = useState([]);
  useEffect(() => {
    if (!figures) return;
    setPoints((before) =>
      before.length && before.at(-1).now_ms >= figures.now_ms ? before : [...before.slice(1 - KEPT), figures],
    );
  }, [figures?.now_ms]);
  return points;
}

/** What is wrong with a server: a list of `{ tone, what, remedy }`, the worst first. */
export function troublesOf(figures, offset) {
  const { store, disk, commits, load, event_log: log, clock } = figures;
  const troubles = [];
  const bad = (what, remedy) => troubles.push({ tone: "bad", what, remedy });
  const warn = (what, remedy) => troubles.push({ tone: "warning", what, remedy });
  if (store.failed) {
    bad(
      "The store has failed, and the server has stopped serving requests.",
      "Check the end of the server's log for the cause, check the disk, and restart the server. Acknowledged changes are on the disk.",
    );
  } else if (!store.reachable) {
    bad(
      "The database cannot be reached.",
      "Check that it is running and that the server can reach it. The server retries automatically, and clients get 503 with Retry-After.",
    );
  } else if (!store.writable) {
    bad(
      "The store takes no new messages; the disk is probably full. Messages can still be received and completed.",
      "Let the consumers run, clear a queue that is not needed, or free disk space. The server notices within a second or two; no restart is needed.",
    );
  }
  if (!store.durable) {
    warn(
      "Commits are not on the disk when they are acknowledged.",
      "A power failure may lose messages. Use a store that syncs, unless this is a test.",
    );
  }
  if (figures.draining) warn("The server is stopping.", "It accepts no new connections and finishes the requests in progress.");
  if (load.crowded) {
    bad(
      "The server refuses clients because a limit is reached.",
      "The limits are below. Use fewer or longer connections, or raise the limit in the server's settings.",
    );
  }
  const files = ["Open files", figures.process.open_files, figures.process.max_open_files];
  for (const [name, now, most] of [...metersOf(load), files]) {
    if (most && now / most >= NEARLY_FULL) {
      warn(
        `${name}: ${format.count(now)} of ${format.count(most)}.`,
        "Beyond the limit the server refuses clients. Add servers, slow the clients down, or raise the limit in the server's settings.",
      );
    }
  }
  if (isNearlyFull(disk)) {
    warn(
      `Only ${format.bytes(disk.free_bytes)} are free on the disk.`,
      `When it is full, the server refuses new messages, and consumers continue with the reserve of ${format.bytes(disk.reserve_bytes)}. Free disk space.`,
    );
  }
  if (commits.p95_s !== null && commits.p95_s >= SLOW_COMMIT_S) {
    warn(
      `Commits are slow: one in twenty takes ${seconds(commits.p95_s)} or more.`,
      "Every request that changes data waits for a commit. The disk is slow or busy; a disk with a power-loss-protected write cache helps most.",
    );
  }
  if (log.lag_s >= LAGGING_S) {
    warn(
      `The export of the event log is ${seconds(log.lag_s)} behind.`,
      "Check that the export folder is writable and has free space; the server's log has the error. No event is lost meanwhile.",
    );
  }
  if (Math.abs(clock.wall_drift_s) >= DRIFT_S) {
    warn(
      `The machine's clock has moved by ${seconds(clock.wall_drift_s)} against the time since the start.`,
      "The server continues with its own time, so leases are not affected. Synchronize the clock with NTP.",
    );
  }
  if (offset !== null && Math.abs(offset) > CLOCKS_APART_MS) {
    warn(
      `This browser's clock and the server's are ${seconds(Math.abs(offset) / 1000)} apart.`,
      "All pages show the server's time. Correct the wrong clock.",
    );
  }
  return troubles.sort((one, other) => (one.tone === other.tone ? 0 : one.tone === "bad" ? -1 : 1));
}

function Verdict({ troubles }) {
  if (troubles.length === 0) return html`<${Note} tone="good">No problems: the store accepts messages, and no limit is close.<//>`;
  return troubles.map(({ tone, what, remedy }) => html`<${Note} key=${what} tone=${tone}><strong>${what}</strong> ${remedy}<//>`);
}

function Figures({ figures }) {
  const { commands, commits, load, process } = figures;
  return html`<div class="stats">
    <${Stat} label="commands">${perSecond(commands.per_s)}<//>
    <${Stat} label="commits">${perSecond(commits.per_s)}<//>
    <${Stat} label="commands per commit" hint="waiting commands share a commit">
      ${commands.per_commit === null ? "–" : commands.per_commit.toFixed(1)}
    <//>
    <${Stat} label="commit, mean">${seconds(commits.mean_s)}<//>
    <${Stat} label="connections">${format.count(load.connections)}<//>
    <${Stat} label="of a core">${format.percent(process.cpu_share)}<//>
    <${Stat} label="memory">${format.bytes(process.resident_bytes)}<//>
  </div>`;
}

const TIMES = [
  { label: "median", unit: seconds },
  { label: "95 %", unit: seconds },
  { label: "99 %", unit: seconds },
];
const RATES = [
  { label: "commands/s", unit: perSecond },
  { label: "commits/s", unit: perSecond },
];

function Commits({ figures, history }) {
  const { commits, commands } = figures;
  const times = useColumns(history, ({ commits: each }) => [each.p50_s, each.p95_s, each.p99_s]);
  const rates = useColumns(history, (each) => [each.commands.per_s, each.commits.per_s]);
  return html`<${Facts}
      pairs=${[
        ["Half take up to", seconds(commits.p50_s)],
        ["95 % take up to", seconds(commits.p95_s)],
        ["99 % take up to", seconds(commits.p99_s)],
        ["Mean", seconds(commits.mean_s)],
        ["99 % since the start", commits.since_start && seconds(commits.since_start.p99_s)],
        ["Mean since the start", commits.since_start && seconds(commits.since_start.mean_s)],
        ["Commits since the start", format.count(commits.total)],
        ["Commands since the start", format.count(commands.total)],
      ]}
    />
    <p class="faint">The server responds after a commit is synced to the disk; most of the time of a commit is the sync.</p>
    <h3>Duration of commits</h3>
    <${Lines} data=${times} series=${TIMES} label=${`Time of commits since this page was opened; now half take up to ${seconds(commits.p50_s)}`} height=${180} />
    <h3>Commands and commits</h3>
    <${Lines} data=${rates} series=${RATES} label=${`Commands and commits per second since this page was opened; now ${perSecond(commands.per_s)} and ${perSecond(commits.per_s)}`} height=${180} />`;
}

// A plot of what was told since the page was opened; of one moment there is nothing to draw.
function Lines({ data, ...others }) {
  if (data[0].length < 2) return html`<p class="faint">The plot appears in a few seconds, with the second measurement.</p>`;
  return html`<${Plot} data=${data} ...${others} />`;
}

const useColumns = (history, valuesOf) =>
  useMemo(() => {
    const columns = [history.map(({ now_ms: ms }) => ms / 1000)];
    for (const figures of history) {
      valuesOf(figures).forEach((value, place) => (columns[place + 1] ??= []).push(value));
    }
    return columns;
  }, [history]);

const metersOf = (load) => [
  ["Connections", load.connections, load.max_connections],
  ["Requests waiting for the store", load.pending_requests, load.max_pending_requests],
  ["Receives waiting for messages", load.waiting_receives, load.max_waiting_receives],
  ["Bytes in buffers", load.buffered_bytes, load.max_buffered_bytes, format.bytes],
];

function Load({ load, consoles, process }) {
  const meters = [
    ...metersOf(load),
    ["Open files", process.open_files, process.max_open_files],
    ["Open consoles", consoles?.open, consoles?.max],
  ].filter(([, now]) => now != null);
  return meters.map(([name, now, most, write]) => html`<${Meter} key=${name} ...${{ name, now, most, write }} />`);
}

/** A number beside its limit; `tone` says how bad that is, if not how near the limit is. */
function Meter({ name, now, most, write = format.count, tone = toneOf(now, most) }) {
  const part = most ? now / most : null;
  return html`<div class="meter-row">
    <span>${name}</span>
    <div class=${`meter ${tone}`}>
      ${part !== null && html`<${Progress} part=${Math.min(1, part)} label=${name} />`}
      <span>${write(now)}${most ? ` of ${write(most)}` : ""}</span>
    </div>
  </div>`;
}

function toneOf(now, most) {
  if (!most || now / most < NEARLY_FULL) return "";
  return now >= most ? "bad" : "warning";
}

const isNearlyFull = ({ free_bytes: free, reserve_bytes: reserve }) => free !== null && reserve && free < RESERVES_LEFT * reserve;

function StoreFacts({ figures }) {
  const { store, disk } = figures;
  const used = disk.total_bytes && disk.free_bytes !== null ? disk.total_bytes - disk.free_bytes : null;
  return html`${used !== null
      ? html`<${Meter} name="Disk, in use" now=${used} most=${disk.total_bytes} write=${format.bytes} tone=${isNearlyFull(disk) ? "warning" : ""} />`
      : html`<p class="faint">The store is not on a disk of this server.</p>`}
    <${Facts}
      pairs=${[
        ["Free on the disk", disk.free_bytes === null ? undefined : format.bytes(disk.free_bytes)],
        ["Files of the server", disk.data_bytes == null ? undefined : format.bytes(disk.data_bytes)],
        ["Reserve for consumers when the disk is full", disk.reserve_bytes ? format.bytes(disk.reserve_bytes) : "nothing"],
        ["Store", store.kind],
        ["Accepts messages", store.writable ? "yes" : "no"],
        ["Reachable", store.reachable ? "yes" : "no"],
        ["Synced to disk before acknowledgement", store.durable ? "yes" : "no"],
      ]}
    />
    <details>
      <summary>Details of the store</summary>
      <${Facts} pairs=${Object.entries(store.details).map(([name, value]) => [name, String(value)])} />
    </details>`;
}

const CPU = [{ label: "of a core", unit: format.percent, isFilled: true }];

function Process({ figures, history, offset }) {
  const { process, clock } = figures;
  const shares = useColumns(history, ({ process: each }) => [each.cpu_share]);
  return html`<${Facts}
      pairs=${[
        ["Memory in use", format.bytes(process.resident_bytes)],
        ["Processor time since the start", seconds(process.cpu_s)],
        ["Processor now", `${format.percent(process.cpu_share)} of a core`],
        ["Process id", process.pid],
        ["Started", html`<${Moment} ms=${figures.started_at_ms} />`],
        ["Drift of the machine's clock", seconds(clock.wall_drift_s)],
        ["This browser's clock", offset === null ? undefined : `${seconds(Math.abs(offset) / 1000)} ${offset > 0 ? "behind" : "ahead"}`],
        ["Time of these figures", html`<${Relative} ms=${figures.now_ms} />`],
      ]}
    />
    <h3>Processor</h3>
    <${Lines} data=${shares} series=${CPU} label=${`Share of a core since this page was opened; now ${format.percent(process.cpu_share)}`} height=${150} />`;
}

function EventLog({ log }) {
  if (!log.exporting) {
    return html`<p>Events are kept in the store and not exported. Set events_folder in the server's settings to export them as Parquet files.</p>`;
  }
  return html`<${Facts}
    pairs=${[
      ["Events exported since the start", format.count(log.exported)],
      ["Lag", seconds(log.lag_s)],
      ["Batches not exported yet", format.count(log.lag_batches)],
    ]}
  />`;
}

// Reasons for which the server refuses, in words.
const REASONS = {
  overloaded: "Answered 503: too many requests waiting for the store",
  malformed: "Malformed HTTP",
  header_timeout: "The request header arrived too slowly",
  body_timeout: "The request body arrived too slowly",
  address_too_long: "Address too long",
  header_too_large: "Headers too large",
  too_many_connections: "Too many connections",
  too_many_pipelined: "Too many requests at once on one connection",
  too_much_buffered: "Too many bytes buffered without credentials",
  crowded_out: "Closed to make room for others",
  slow_reader: "The client read its response too slowly",
};

const REFUSED_COLUMNS = [
  { key: "reason", label: "Why", isMain: true, render: ({ reason }) => REASONS[reason] ?? reason },
  { key: "times", label: "Times", align: "number", render: ({ times }) => format.count(times) },
];

function Refused({ load }) {
  const rows = Object.entries({ overloaded: load.overloaded, ...load.refused })
    .map(([reason, times]) => ({ reason, times }))
    .filter(({ times }) => times > 0);
  if (rows.length === 0) return html`<p>None since the start.</p>`;
  return html`<${Table} caption="Refused since the start" columns=${REFUSED_COLUMNS} rows=${rows} keyOf=${({ reason }) => reason} />`;
}

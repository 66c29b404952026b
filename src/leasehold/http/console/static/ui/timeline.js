// A picture of what happened to each message: a row for each, with what the server saw and, below
// it, what the stages did.

import { html } from "../lib/html.js";
import { to } from "../lib/router.js";
import { marksOf } from "../lib/spans.js";
import * as format from "../lib/format.js";

const WIDTH = 1_120;
const LEFT = 170;
const RIGHT = 90;
const TOP = 28;
const ROW = 46;
const LANE = 16;
const STAGE = 12;
const LEAST = 1.5;
const MARKS = 10;
/** Colours for those who hold leases; then they begin again. The number in a bar says who it is. */
const HOLDERS = 6;
const STAGES = 4;
const ROOM_FOR_NUMBER = 14;
const ROOM_FOR_STAGE = 46;

/** Ends of a stage that nothing went wrong at; `over` is one that nobody said how it ended. */
const GOOD = new Set(["done", "skipped", "over"]);

const KINDS = { delayed: "delayed by the producer", visible: "visible", waiting: "released, waiting for the next attempt" };

/**
 * The timeline.
 *
 * `lives`: those of lib/spans.js to show, in order. `fromMs` to `toMs`: what the axis shows.
 * `holders`: names of all who hold leases; their place says colour and number. `stages`: names in
 * order. `runsOf(life)`: what the stages did to a message, a list of
 * `{ stage, fromMs, toMs, outcome, by }`. `labelOf(id)`: a name for people.
 */
export function Timeline({ queue, lives, fromMs, toMs, holders, stages, runsOf, labelOf, label }) {
  const scale = (WIDTH - LEFT - RIGHT) / Math.max(1, toMs - fromMs);
  const place = (ms) => LEFT + (Math.min(Math.max(ms, fromMs), toMs) - fromMs) * scale;
  const height = TOP + ROW * lives.length + 6;
  return html`<${Key} holders=${holders} stages=${stages} />
    <div class="table-wrap timeline" tabindex="0" role="region" aria-label=${label}>
      <svg viewBox=${`0 0 ${WIDTH} ${height}`} aria-label=${label} role="group">
        ${marksOf(fromMs, toMs, MARKS).map(
          (ms) => html`<g key=${ms}>
            <line class="grid" x1=${place(ms)} x2=${place(ms)} y1=${TOP - 8} y2=${height} />
            <text class="tick" x=${place(ms)} y="12">${format.moment(ms, toMs)}</text>
          </g>`,
        )}
        ${lives.map(
          (life, number) => html`<${Row}
            key=${life.id}
            top=${TOP + ROW * number}
            ...${{ queue, life, place, fromMs, toMs, holders, stages }}
            name=${labelOf(life.id)}
            runs=${runsOf(life)}
          />`,
        )}
      </svg>
    </div>`;
}

function Row({ queue, life, top, place, fromMs, toMs, holders, stages, name, runs }) {
  const isSeen = (from, until) => (until ?? toMs) >= fromMs && from <= toMs;
  const deliveries = life.spans.filter(({ kind }) => kind === "leased").length;
  return html`<g>
    <a href=${to("messages", queue, life.id)}><text class="name" x="0" y=${top + 14}>${cut(name)}</text></a>
    ${deliveries > 1 && html`<text class="dim" x="0" y=${top + 29}>${deliveries} deliveries</text>`}
    ${life.spans
      .filter((span) => isSeen(span.fromMs, span.toMs))
      .map((span) => html`<${Span} key=${span.fromMs + span.kind} ...${{ span, top, place, toMs, holders }} />`)}
    ${runs
      .filter((run) => isSeen(run.fromMs, run.toMs))
      .map((run) => html`<${Run} key=${run.stage + run.fromMs} ...${{ run, top, place, toMs, stages }} />`)}
    ${life.end &&
    life.end.atMs >= fromMs &&
    html`<text class=${`end ${life.end.tone}`} x=${place(life.end.atMs) + 5} y=${top + 14}>${life.end.word}</text>`}
  </g>`;
}

function Span({ span, top, place, toMs, holders }) {
  const x = place(span.fromMs);
  const width = Math.max(LEAST, place(span.toMs ?? toMs) - x);
  const isLease = span.kind === "leased";
  const who = isLease ? holders.indexOf(span.holder) : -1;
  const style = isLease ? `held h${Math.max(0, who) % HOLDERS}` : span.kind;
  // What waits is drawn thinner than what is held, so that colour is not all that tells them apart.
  const [y, high] = isLease ? [top + 2, LANE] : [top + 6, LANE - 8];
  return html`<g>
    <rect class=${style} x=${x} y=${y} width=${width} height=${high} rx="2"><title>${tellOf(span, toMs)}</title></rect>
    ${isLease && span.renewals.map((ms) => html`<line class="renewal" x1=${place(ms)} x2=${place(ms)} y1=${top + 3} y2=${top + 8} />`)}
    ${isLease && who >= 0 && width > ROOM_FOR_NUMBER && html`<text class="on-held" x=${x + 4} y=${top + 15}>${who + 1}</text>`}
  </g>`;
}

function Run({ run, top, place, toMs, stages }) {
  const x = place(run.fromMs);
  const width = Math.max(LEAST, place(run.toMs ?? toMs) - x);
  const isGood = run.toMs === null || GOOD.has(run.outcome);
  const took = format.duration(((run.toMs ?? toMs) - run.fromMs) / 1000);
  const style = `stage s${Math.max(0, stages.indexOf(run.stage)) % STAGES} ${isGood ? "" : "unfinished"}`;
  return html`<g>
    <rect class=${style} x=${x} y=${top + LANE + 5} width=${width} height=${STAGE} rx="2">
      <title>${`${run.stage}${run.by ? ` by ${run.by}` : ""}: ${run.toMs === null ? "running" : run.outcome}, ${took}`}</title>
    </rect>
    ${width > ROOM_FOR_STAGE && html`<text class="on-stage" x=${x + 4} y=${top + LANE + 14}>${run.stage}</text>`}
    ${!isGood && html`<text class="bad" x=${x + width + 2} y=${top + LANE + 15}>✗</text>`}
  </g>`;
}

function tellOf(span, toMs) {
  const when = `from ${format.moment(span.fromMs)} ${span.toMs === null ? "until now" : `for ${format.duration((span.toMs - span.fromMs) / 1000)}`}`;
  if (span.kind !== "leased") return `${KINDS[span.kind]} ${when}`;
  const renewed = format.plural(span.renewals.length, "renewal");
  return `Delivery ${span.delivery}, fence ${span.fence}: leased by ${span.holder || "an unnamed receiver"} ${when}; ${renewed}${span.how ? `; ${span.how}` : ""}`;
}

const cut = (text) => (text.length > 19 ? `${text.slice(0, 18)}…` : text);

function Key({ holders, stages }) {
  return html`<p class="keys">
    ${holders.map((name, number) => html`<span key=${name}><i class=${`held h${number % HOLDERS}`}>${number + 1}</i> ${name}</span>`)}
    ${Object.entries(KINDS).map(([kind, text]) => html`<span key=${kind}><i class=${`thin ${kind}`}></i> ${text}</span>`)}
    ${stages.map((name, number) => html`<span key=${`stage ${name}`}><i class=${`stage s${number % STAGES}`}></i> stage ${name}</span>`)}
    <span><i class="tick-key"></i> renewal</span>
  </p>`;
}

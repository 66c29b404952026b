// Plots: small ones as SVG, large ones by uPlot, which is loaded when the first one is shown.

import * as format from "../lib/format.js";
import { html, useEffect, useRef } from "../lib/html.js";

const HEIGHT = 200;
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const CLOCK_S = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const DAY_S = 86_400;
// Round numbers of seconds, minutes, hours and days for the ticks of an axis of durations.
const DURATION_STEPS = [
  ...[0.001, 0.01, 0.1].flatMap((step) => [step, 2 * step, 5 * step]),
  ...[1, 2, 5, 10, 15, 30].flatMap((step) => [step, 60 * step]),
  ...[1, 2, 4, 6, 12].map((hours) => 3_600 * hours),
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000].map((days) => DAY_S * days),
].sort((a, b) => a - b);
const COLOURS = ["--blue", "--green", "--red", "--violet", "--amber"];

/**
 * A line without axes: `values` are numbers, oldest first. `label` says in words what it shows.
 */
export function Sparkline({ values, label, width = 90, height = 22 }) {
  if (values.length < 2) return html`<span class="faint" aria-label=${label}>–</span>`;
  const top = Math.max(...values, 1e-9);
  const step = width / (values.length - 1);
  const points = values
    .map((value, place) => `${(place * step).toFixed(1)},${(height - 1 - (value / top) * (height - 2)).toFixed(1)}`)
    .join(" ");
  return html`<svg class="sparkline" width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${label}>
    <polyline points=${points} />
  </svg>`;
}

/**
 * A plot over time, or over any other numbers.
 *
 * `data` is a list of columns: the first is x (Unix seconds if `isTime`), then one for each of
 * `series`: `{ label, unit(value), dash, isStepped, isFilled }`. `label` says in words what is shown, for those who cannot
 * see it; the same figures should be on the page as text.
 */
export function Plot({ data, series, label, isTime = true, height = HEIGHT, xUnit, marks = [] }) {
  const place = useRef(null);
  const plot = useRef(null);
  const latest = useRef(data);
  latest.current = data;
  const shape = JSON.stringify([series.map((each) => each.label), isTime, height, marks]);
  useEffect(() => {
    let isGone = false;
    let watch = null;
    loadUPlot().then(({ default: UPlot }) => {
      if (isGone || !place.current) return;
      plot.current = new UPlot(optionsOf(place.current, series, isTime, height, xUnit, marks, UPlot), latest.current, place.current);
      watch = new ResizeObserver(() => {
        // It may be told of once more when the page has gone.
        if (place.current) plot.current?.setSize({ width: place.current.clientWidth, height });
      });
      watch.observe(place.current);
    });
    return () => {
      isGone = true;
      watch?.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => plot.current?.setData(data), [data]);
  return html`<div class="plot" role="img" aria-label=${label} ref=${place}></div>`;
}

let loaded = null;

// With its style sheet, without which the legend would lie on top of the plot.
function loadUPlot() {
  const style = () =>
    new Promise((done) => {
      const link = document.createElement("link");
      link.rel = "stylesheet";
      link.href = new URL("../vendor/uplot.css", import.meta.url).href;
      link.onload = link.onerror = done;
      // Before our own, which changes some of it.
      document.head.prepend(link);
    });
  loaded ??= Promise.all([import("../vendor/uplot.js"), style()]).then(([module]) => module);
  return loaded;
}

// Times of an axis whose marks are `stepS` seconds apart.
function clockOf(stepS) {
  if (stepS >= DAY_S) return DAY;
  return stepS >= 60 ? CLOCK : CLOCK_S;
}

const clockLabels = (_, values, axis, space, stepS) => values.map((value) => clockOf(stepS).format(value * 1000));

function optionsOf(place, series, isTime, height, xUnit, marks, UPlot) {
  const style = getComputedStyle(place);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = {
    stroke: colour("--faint"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1 },
    font: "12px system-ui, sans-serif",
  };
  const unit = series[0].unit;
  return {
    width: place.clientWidth,
    height,
    scales: { x: { time: isTime }, y: { range: (_, low, high) => [Math.min(0, low), high || 1] } },
    legend: { live: true },
    cursor: { points: { size: 6 } },
    axes: [
      {
        ...axis,
        space: xUnit ? 90 : 50,
        ...(xUnit === format.duration ? { incrs: DURATION_STEPS } : {}),
        values: xUnit ? (_, values) => values.map(xUnit) : isTime ? clockLabels : undefined,
      },
      {
        ...axis,
        size: widthOfLabels,
        ...(unit === format.duration ? { incrs: DURATION_STEPS } : {}),
        values: unit && ((_, values) => values.map(unit)),
      },
    ],
    series: [
      xUnit
        ? { label: "Time", value: (_, value) => (value == null ? "–" : xUnit(value)) }
        : isTime
          ? { label: "Time", value: (_, value) => (value == null ? "–" : CLOCK_S.format(value * 1000)) }
          : {},
      ...series.map((each, number) => ({
        label: each.label,
        stroke: colour(COLOURS[number % COLOURS.length]),
        width: 2,
        dash: each.dash,
        paths: each.isStepped ? UPlot.paths.stepped({ align: 1 }) : undefined,
        fill: each.isFilled ? `color-mix(in srgb, ${colour(COLOURS[number])} 15%, transparent)` : undefined,
        points: { show: false },
        value: each.unit && ((_, value) => (value == null ? "–" : each.unit(value))),
      })),
    ],
    hooks: { draw: [(shown) => drawMarks(shown, marks, colour)] },
  };
}

// The room that the labels of an axis need, measured once per drawing, as it moves the plot itself.
function widthOfLabels(plot, labels, axis, cycle) {
  if (cycle > 1) return plot.axes[axis]._size;
  plot.ctx.save();
  plot.ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
  const widths = (labels ?? []).map((label) => plot.ctx.measureText(label ?? "").width / devicePixelRatio);
  plot.ctx.restore();
  return Math.max(76, Math.ceil(20 + Math.max(0, ...widths)));
}

// Vertical lines with a name, such as "timeout now".
function drawMarks(plot, marks, colour) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  for (const [number, { at, text, tone = "--text" }] of marks.entries()) {
    const x = plot.valToPos(at, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = ctx.fillStyle = colour(tone);
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    // One below the other, as they may be close.
    ctx.fillText(text, x + 4 * devicePixelRatio, bbox.top + (12 + 14 * number) * devicePixelRatio);
  }
  ctx.restore();
}

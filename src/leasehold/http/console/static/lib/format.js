// How numbers, times and sizes are written. Pure functions.

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const TIME = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** 12,345; a dash for null. */
export const count = (value) => (value == null ? "–" : WHOLE.format(value));

/** 12.3K, for where there is little room. */
export const short = (value) => (value == null ? "–" : SHORT.format(value));

/** 1 message, 2 messages. */
export const plural = (value, word, words = `${word}s`) =>
  `${count(value)} ${value === 1 ? word : words}`;

/** 12.3/s */
export function rate(value) {
  if (value == null) return "–";
  if (value === 0) return "0/s";
  return `${value < 10 ? value.toFixed(1) : count(Math.round(value))}/s`;
}

/** 350 ms, 4.2 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds < 0.001) return seconds === 0 ? "0 s" : "< 1 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const units = [
    ["d", 86_400],
    ["h", 3_600],
    ["min", 60],
    ["s", 1],
  ];
  const first = units.findIndex(([, size]) => seconds >= size);
  const [unit, size] = units[first];
  const whole = Math.floor(seconds / size);
  const [next, nextSize] = units[first + 1];
  const rest = Math.floor((seconds - whole * size) / nextSize);
  return rest ? `${whole} ${unit} ${rest} ${next}` : `${whole} ${unit}`;
}

/** 12 kB, 3.4 MiB: powers of 1,024. */
export function bytes(value) {
  if (value == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  let left = value;
  while (left >= 1024 && place < units.length - 1) {
    left /= 1024;
    place += 1;
  }
  return `${place && left < 10 ? left.toFixed(1) : Math.round(left)} ${units[place]}`;
}

/** 14:03:07 today, else with the day. */
export function moment(ms, nowMs = Date.now()) {
  if (ms == null) return "–";
  const isToday = new Date(ms).toDateString() === new Date(nowMs).toDateString();
  return (isToday ? TIME : DAY).format(ms);
}

/** The moment to the millisecond, in UTC, for a tooltip. */
export const exact = (ms) => (ms == null ? "" : new Date(ms).toISOString());

/** 3 min ago, in 20 s. */
export function relative(ms, nowMs) {
  if (ms == null) return "–";
  const seconds = Math.round((nowMs - ms) / 1000);
  if (seconds === 0) return "now";
  return seconds > 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
}

/** 85 % */
export const percent = (part) => (part == null ? "–" : `${(part * 100).toFixed(part < 0.1 ? 1 : 0)} %`);

/** The number of seconds that a text such as "90", "15m" or "2h" says, or null. */
export function seconds(text) {
  const found = /^\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?\s*$/.exec(text);
  if (!found) return null;
  return Number(found[1]) * { s: 1, m: 60, min: 60, h: 3_600, d: 86_400 }[found[2] ?? "s"];
}

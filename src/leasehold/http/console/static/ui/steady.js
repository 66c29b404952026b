// Lists that are asked for again and again, and yet do not move under the pointer.

import { html, useRef, useState } from "../lib/html.js";
import * as format from "../lib/format.js";

/**
 * Keep rows at their places while what they show is renewed.
 *
 * `about` names what was asked for: when it changes, the order is taken anew. Rows that are not there
 * any more stay, with `isGone`. Returns `rows`, `fresh` (how many have come), `isMoved` (the server's
 * order is another one by now) and `refresh()`.
 */
export function useSteady(rows, keyOf, about) {
  const kept = useRef({ about: null, order: [], known: new Map() });
  const [, again] = useState(0);
  const current = kept.current;
  const keys = rows.map(keyOf);
  if (current.about !== about || (current.order.length === 0 && rows.length > 0)) {
    kept.current = { about, order: keys, known: new Map() };
  }
  const { order, known } = kept.current;
  const there = new Map(rows.map((row, place) => [keys[place], row]));
  const places = new Set(order);
  for (const key of order) if (there.has(key)) known.set(key, there.get(key));
  const shown = order.map((key) => (there.has(key) ? there.get(key) : { ...known.get(key), isGone: true }));
  const stayed = keys.filter((key) => places.has(key));
  const isMoved = order.filter((key) => there.has(key)).some((key, place) => key !== stayed[place]);
  const refresh = () => {
    kept.current = { about, order: keys, known: new Map() };
    again((number) => number + 1);
  };
  return { rows: shown, fresh: keys.length - stayed.length, gone: order.length - stayed.length, isMoved, refresh };
}

/** Says that the list is not the newest, with a button that makes it so. */
export function Refresh({ steady, word }) {
  const { fresh, gone, isMoved, refresh } = steady;
  if (!fresh && !gone && !isMoved) return null;
  const what = [fresh && `${format.count(fresh)} new`, gone && `${format.count(gone)} gone`].filter(Boolean).join(", ");
  return html`<button type="button" onClick=${refresh}>${what || "The order has changed"}: refresh the ${word}</button>`;
}

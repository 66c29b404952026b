// What is about to happen, as a list: times first, with links to what is spoken of.

import { html } from "../lib/html.js";
import { to } from "../lib/router.js";
import { Moment, Relative } from "./parts.js";

/** `items` are what whatNext and whatHoldsUp return of things in `queue`. */
export function NextList({ queue, items }) {
  return html`<ul class="next">
    ${items.map(
      ({ at_ms: atMs, text, tone, link }) => html`<li key=${text} class=${tone}>
        ${atMs !== null && html`<strong class="when"><${Relative} ms=${atMs} /> <span class="faint"><${Moment} ms=${atMs} /></span></strong>`}
        <span>${text}</span>${link && html` <${Link} queue=${queue} link=${link} />`}
      </li>`,
    )}
  </ul>`;
}

function Link({ queue, link }) {
  if (link.message) return html`<a href=${to("messages", queue, link.message)}>To that message</a>`;
  if (link.session) return html`<a href=${to("workers", link.session)}>To that session</a>`;
  if (link.stream) return html`<a href=${to("streams", queue, link.stream)}>To its stream</a>`;
  return html`<a href=${to("transactions", link.transaction)}>To that transaction</a>`;
}

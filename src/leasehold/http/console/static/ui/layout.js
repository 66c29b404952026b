// What is around every page: where one can go, how the connection is, who is signed in.

import { html, useEffect, useState } from "../lib/html.js";
import { request, session } from "../lib/api.js";
import { connection, hush, server, totals, clockOffset } from "../lib/live.js";
import { route, to } from "../lib/router.js";
import { useStore } from "../lib/store.js";
import * as format from "../lib/format.js";
import { Dialogs, toast } from "./dialog.js";
import { Links, Note, Relative, useNow } from "./parts.js";

const PLACES = [
  ["Overview", [], ["queues", ""]],
  ["Workers", ["workers"]],
  ["Streams", ["streams"]],
  ["Transactions", ["transactions"]],
  ["Jobs", ["jobs"]],
  ["Events", ["events"]],
  ["Pipelines", ["pipelines"]],
  ["Server", ["server"]],
];
const CLOCKS_APART_MS = 5_000;

/** The frame of all pages. */
export function Layout({ children }) {
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the page</a>
    <header class="bar">
      <a class="brand" href=${to()}><img src="/console/static/icon.svg" alt="" width="24" height="24" /><span>Leasehold</span></a>
      <${Places} />
      <div class="bar-end">${!session.value.queue && html`<${Connection} />`}<${Theme} /><${Who} /></div>
    </header>
    <${Troubles} />
    <main id="main" tabindex="-1">${children}</main>
    <${Dialogs} />`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function Places() {
  const { parts } = useStore(route);
  return html`<${Links} class="places" aria-label="Pages" current=${parts[0] ?? ""}>
    ${PLACES.map(([label, place, also = place]) => {
      const isHere = also.includes(parts[0] ?? "");
      return html`<a key=${label} href=${to(...place)} aria-current=${isHere ? "page" : undefined}>${label}</a>`;
    })}
  <//>`;
}

function Connection() {
  const { state } = useStore(connection);
  const figures = useStore(server);
  const title = figures ? `Leasehold ${figures.version}, ${figures.store.kind}` : "";
  const words = { open: "live", connecting: "connecting", lost: "no connection" };
  return html`<span class=${`connection ${state}`} title=${title} role="status">${words[state]}</span>`;
}

function Troubles() {
  const { state, since } = useStore(connection);
  const offset = useStore(clockOffset);
  const figures = useStore(server);
  const who = useStore(session);
  const nowMs = useNow() - (offset ?? 0);
  const left = who.expires_at_ms - useNow();
  return html`<div class="troubles">
    ${state === "lost" &&
    html`<${Note} tone="bad">
      No connection to the server since ${format.moment(since)} (${format.duration((nowMs - since) / 1000)}).
      The page shows older data and reconnects automatically.
    <//>`}
    ${offset !== null &&
    Math.abs(offset) > CLOCKS_APART_MS &&
    html`<${Note} tone="warning">
      This machine's clock and the server's are ${format.duration(Math.abs(offset) / 1000)} apart. The pages show the server's time.
    <//>`}
    ${figures && !figures.store.writable && html`<${Note} tone="bad">The server cannot write to its store. <a href=${to("server")}>Details</a>.<//>`}
    ${figures?.draining && html`<${Note} tone="warning">The server is stopping.<//>`}
    ${left < 5 * 60_000 && html`<${Note} tone="warning">Your session ends <${Relative} ms=${who.expires_at_ms} />.<//>`}
  </div>`;
}

function Theme() {
  const [theme, setTheme] = useState(localStorage.getItem("theme") ?? "auto");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
  }, [theme]);
  return html`<select class="theme" aria-label="Colours" value=${theme} onChange=${(event) => setTheme(event.currentTarget.value)}>
    <option value="auto">Auto</option>
    <option value="light">Light</option>
    <option value="dark">Dark</option>
  </select>`;
}

function Who() {
  const who = useStore(session);
  const signOut = async () => {
    try {
      const answer = await request("/console/api/session", { method: "DELETE" });
      hush();
      totals.set(null);
      session.set(answer);
    } catch (error) {
      toast(`You are still signed in: ${error.message}`, { tone: "bad" });
    }
  };
  return html`<details class="menu">
    <summary><span class="account">${who.account}</span><span class=${`role ${who.role}`}>${who.role}</span></summary>
    <div class="menu-content">
      <p>Signed in as <strong>${who.who}</strong>, ${who.role}, until ${format.moment(who.expires_at_ms)}.</p>
      <button type="button" onClick=${signOut}>Sign out</button>
    </div>
  </details>`;
}

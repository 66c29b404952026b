// The console begins here: asks who is signed in, and shows the page that the address names.

import { html, render, useEffect, useState } from "./lib/html.js";
import { get, session } from "./lib/api.js";
import { hush, listen } from "./lib/live.js";
import { route } from "./lib/router.js";
import { useStore } from "./lib/store.js";
import { Layout } from "./ui/layout.js";
import { Empty, Loading, Problem } from "./ui/parts.js";

// Pages are loaded when they are first shown. The first part of an address names the page.
const PAGES = {
  "": () => import("./pages/overview.js"),
  queues: () => import("./pages/queue.js"),
  messages: () => import("./pages/message.js"),
  groups: () => import("./pages/group.js"),
  workers: () => import("./pages/workers.js"),
  streams: () => import("./pages/streams.js"),
  transactions: () => import("./pages/transactions.js"),
  jobs: () => import("./pages/jobs.js"),
  events: () => import("./pages/events.js"),
  pipelines: () => import("./pages/pipelines.js"),
  server: () => import("./pages/server.js"),
};

document.documentElement.dataset.theme = localStorage.getItem("theme") ?? "auto";

function Console() {
  const who = useStore(session);
  const [error, setError] = useState(null);
  const ask = () => {
    setError(null);
    get("/console/api/session").then((answer) => session.set(answer), setError);
  };
  useEffect(ask, []);
  const isSignedIn = who?.signed_in ?? false;
  useEffect(() => {
    // Who may look at one queue only is not told of all.
    if (!isSignedIn || who.queue) return undefined;
    listen();
    return hush;
  }, [isSignedIn, who?.account, who?.queue]);
  if (error) return html`<main class="alone"><${Problem} error=${error} retry=${ask} /></main>`;
  if (who === null) return html`<main class="alone"><${Loading} /></main>`;
  if (!isSignedIn) return html`<${Page} key="sign-in" load=${() => import("./pages/sign_in.js")} />`;
  return html`<${Layout}><${Pages} /><//>`;
}

function Pages() {
  const { parts, params } = useStore(route);
  const load = PAGES[parts[0] ?? ""];
  if (!load) {
    return html`<${Empty} title="This page does not exist"><a href="#/">To the overview</a><//>`;
  }
  const [name, ...rest] = parts;
  return html`<${Page} key=${parts.join("/")} load=${load} name=${name} parts=${rest} params=${params} />`;
}

// `parts` is what follows the page's name in the address, `params` is the query.
function Page({ load, parts = [], params = {} }) {
  const [shown, setShown] = useState(null);
  useEffect(() => {
    load().then(
      (module) => setShown({ Content: module.default }),
      () => setShown({ error: { title: "The page could not be loaded", message: "Check that the server is running." } }),
    );
  }, []);
  if (shown === null) return html`<${Loading} />`;
  if (shown.error) return html`<${Problem} error=${shown.error} />`;
  return html`<${shown.Content} parts=${parts} params=${params} />`;
}

render(html`<${Console} />`, document.getElementById("console"));

// Calls of each kind with the types that openapi-typescript makes of the OpenAPI document.
// Arguments: the address of a server, an account and its key.
import createClient from "openapi-fetch";

import type { components, paths } from "./api.js";

declare const process: { argv: string[] };

const [baseUrl, account, key] = process.argv.slice(2) as [string, string, string];
const client = createClient<paths>({
  baseUrl,
  headers: { Authorization: `Bearer ${key}` },
});
const inQueue = { params: { path: { account, queue: "orders" } } };

function expect<T>(answer: { data?: T; error?: components["schemas"]["Problem"] }): T {
  if (answer.data === undefined) {
    throw new Error(`${answer.error?.code}: ${answer.error?.detail}`);
  }
  return answer.data;
}

const queue = expect(
  await client.PUT("/v1/accounts/{account}/queues/{queue}", {
    ...inQueue,
    body: { settings: { groups: { order: "fifo", weights: { a: 2 } } } },
  }),
);
const weight: number | undefined = queue.settings.groups?.weights?.["a"];

const put = expect(
  await client.POST("/v1/accounts/{account}/queues/{queue}/messages", {
    ...inQueue,
    body: { messages: [{ body: "one", group_id: "a" }, { body: "two", time_to_live_s: -1 }] },
  }),
);
const received = expect(
  await client.POST("/v1/accounts/{account}/queues/{queue}/messages/receive", {
    ...inQueue,
    body: { max_messages: 2 },
  }),
);
const bodies = received.messages.map((message) => message.body).sort();
const [first, second] = received.messages;
const completed = expect(
  await client.POST("/v1/accounts/{account}/queues/{queue}/messages/complete", {
    ...inQueue,
    body: { items: [{ id: first!.id, receipt: first!.receipt }] },
  }),
);
const committed = expect(
  await client.POST("/v1/accounts/{account}/commit", {
    params: { path: { account } },
    body: {
      complete: [{ queue: "orders", id: second!.id, receipt: second!.receipt }],
      send: [{ queue: "orders", body: "three" }],
    },
  }),
);
const session = expect(
  await client.POST("/v1/accounts/{account}/sessions", {
    params: { path: { account } },
    body: { holder: "generated" },
  }),
);
const stream = expect(
  await client.PUT("/v1/accounts/{account}/queues/{queue}/streams/{stream}", {
    params: { path: { account, queue: "orders", stream: "nightly" } },
  }),
);
const opened = expect(
  await client.PUT("/v1/accounts/{account}/queues/{queue}/streams/{stream}/claims/{number}", {
    params: { path: { account, queue: "orders", stream: "nightly", number: 1 } },
    body: { token: stream.token, limit: 2, lease_s: 60 },
  }),
);
const staged = expect(
  await client.POST("/v1/accounts/{account}/transactions/{name}/stage", {
    params: { path: { account, name: "tx" } },
    body: { part: "p", chunk: 0, messages: [{ queue: "orders", body: "four" }] },
  }),
);
const job = expect(
  await client.POST("/v1/accounts/{account}/queues/{queue}/purge", { ...inQueue, body: {} }),
);
const views = expect(
  await client.GET("/v1/accounts/{account}/queues/{queue}/messages", inQueue),
);
console.log(
  JSON.stringify({
    weight,
    failed: [put.failed, completed.failed],
    bodies,
    already: committed.already,
    timeout_s: session.timeout_s,
    size: opened.claim?.size,
    staged: staged.rows,
    job: job.kind,
    views: views.messages.length,
  }),
);

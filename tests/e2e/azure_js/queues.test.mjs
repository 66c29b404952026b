// Queues: create, delete, list, metadata, access policies.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  collect,
  endpoint,
  hangs,
  newName,
  newQueue,
  queueClient,
  refused,
  serviceClient,
  sharedKey,
  unmadeQueue,
} from "./support.mjs";

test("a queue is created, found and deleted", async () => {
  const queue = unmadeQueue();
  assert.equal(await queue.exists(), false);
  const created = await queue.create({ metadata: { colour: "dark  blue", _x: "a=b&c" } });
  assert.equal(created._response.status, 201);
  assert.ok(created.requestId && created.version && created.date);
  assert.equal(created.errorCode, undefined);
  assert.equal(await queue.exists(), true);
  const properties = await queue.getProperties();
  assert.deepEqual(properties.metadata, { colour: "dark  blue", _x: "a=b&c" });
  assert.equal(properties.approximateMessagesCount, 0);
  assert.equal((await queue.delete())._response.status, 204);
  assert.equal(await queue.exists(), false);
});

test("creating a queue again answers 204, or conflicts if its metadata differ", async () => {
  const queue = unmadeQueue();
  await queue.create({ metadata: { a: "1" } });
  assert.equal((await queue.create({ metadata: { A: "1" } }))._response.status, 204);
  await refused(409, "QueueAlreadyExists", () => queue.create({ metadata: { a: "2" } }));
  await refused(409, "QueueAlreadyExists", () => queue.create());
});

test("createIfNotExists tells whether it did", async () => {
  const queue = unmadeQueue();
  const metadata = { a: "1" };
  assert.equal((await queue.createIfNotExists({ metadata })).succeeded, true);
  assert.equal((await queue.createIfNotExists({ metadata })).succeeded, false);
  const other = await queue.createIfNotExists();
  assert.equal(other.succeeded, false);
  assert.equal(other.errorCode, "QueueAlreadyExists");
});

test("deleteIfExists tells whether it did", async () => {
  const queue = await newQueue();
  assert.equal((await queue.deleteIfExists()).succeeded, true);
  const again = await queue.deleteIfExists();
  assert.equal(again.succeeded, false);
  assert.equal(again.errorCode, "QueueNotFound");
  await refused(404, "QueueNotFound", () => queue.delete());
});

test("a deleted queue can be made again and is empty", async () => {
  const queue = await newQueue();
  await queue.sendMessage("old");
  await queue.delete();
  await queue.create();
  assert.deepEqual((await queue.peekMessages()).peekedMessageItems, []);
});

test("setting metadata replaces the whole set", async () => {
  const queue = unmadeQueue();
  await queue.create({ metadata: { a: "1", b: "2" } });
  await queue.setMetadata({ b: "3", c: "4" });
  assert.deepEqual((await queue.getProperties()).metadata, { b: "3", c: "4" });
  await queue.setMetadata();
  assert.deepEqual((await queue.getProperties()).metadata, {});
});

test("metadata are signed in an order of their own", async () => {
  const queue = unmadeQueue();
  const names = ["_", "_a", "a", "a_", "a__b", "a_b", "a1", "a1b", "a10", "a9", "ab_c", "z0", "zz"];
  const metadata = Object.fromEntries(names.map((name) => [name, `value of ${name}`]));
  await queue.create({ metadata });
  await queue.setMetadata(metadata);
  assert.deepEqual((await queue.getProperties()).metadata, metadata);
});

test("every call on a missing queue says so", async () => {
  const queue = queueClient(`${endpoint.url}/${newName()}`);
  for (const call of [
    () => queue.getProperties(),
    () => queue.setMetadata({ a: "1" }),
    () => queue.getAccessPolicy(),
    () => queue.setAccessPolicy([]),
    () => queue.sendMessage("x"),
    () => queue.receiveMessages(),
    () => queue.peekMessages(),
    () => queue.updateMessage("6f4dbcf0-0000-4000-8000-000000000000", "AgAAAA", "x"),
    () => queue.deleteMessage("6f4dbcf0-0000-4000-8000-000000000000", "AgAAAA"),
    () => queue.clearMessages(),
  ]) {
    await refused(404, "QueueNotFound", call);
  }
});

test("bad names are refused", async () => {
  const service = serviceClient();
  for (const [name, code] of [
    ["ab", "OutOfRangeInput"],
    ["a".repeat(64), "OutOfRangeInput"],
    ["Upper-case", "InvalidResourceName"],
    ["double--dash", "InvalidResourceName"],
    ["under_score", "InvalidResourceName"],
  ]) {
    await refused(400, code, () => service.getQueueClient(name).create());
  }
});

test("a client knows the name of its queue", async () => {
  const name = newName();
  assert.equal(queueClient(`${endpoint.url}/${name}`).name, name);
  assert.equal(serviceClient().getQueueClient(name).name, name);
  const url = endpoint.url.replace("127.0.0.1", "localhost");
  assert.equal(queueClient(`${url}/${name}`).name, name);
  assert.equal(queueClient(endpoint.connectionString, name).name, name);
});

test("queues are listed in order, page by page", hangs("lists pages by age"), async () => {
  const service = serviceClient();
  const prefix = newName().slice(0, 40);
  const names = [0, 1, 2, 3, 4].map((i) => `${prefix}-${i}`);
  const reversed = [...names].reverse();
  await Promise.all(reversed.map((name) => service.createQueue(name, { metadata: { Key: name } })));
  try {
    const items = await collect(service.listQueues({ prefix }));
    assert.deepEqual(
      items.map((item) => item.name),
      names,
    );
    assert.deepEqual(
      items.map((item) => item.metadata),
      Array(5).fill(undefined),
    );
    const rich = await collect(service.listQueues({ prefix, includeMetadata: true }));
    assert.deepEqual(
      rich.map((item) => item.metadata),
      names.map((name) => ({ Key: name })),
    );

    const pages = service.listQueues({ prefix }).byPage({ maxPageSize: 2 });
    const first = (await pages.next()).value;
    assert.deepEqual(
      first.queueItems.map((item) => item.name),
      names.slice(0, 2),
    );
    assert.equal(first.prefix, prefix);
    assert.equal(first.maxPageSize, 2);
    assert.equal(first.serviceEndpoint.replace(/\/$/, ""), endpoint.url);
    const { continuationToken } = first;
    const rest = await collect(
      service.listQueues({ prefix }).byPage({ continuationToken, maxPageSize: 2 }),
    );
    assert.deepEqual(
      rest.map((page) => page.queueItems.map((item) => item.name)),
      [names.slice(2, 4), names.slice(4)],
    );
    assert.equal(rest.at(-1).continuationToken, "");
  } finally {
    await Promise.all(names.map((name) => service.deleteQueue(name)));
  }
});

test("a prefix that no queue has lists nothing", async () => {
  for (const prefix of [newName(), "a b", "a+b", "a/b", "a&b=c", "%41", "ä€😀", "a?b#c", "a;b,c"]) {
    assert.deepEqual(await collect(serviceClient().listQueues({ prefix })), []);
  }
  const iterator = serviceClient().listQueues({ prefix: newName() });
  assert.equal((await iterator.next()).done, true);
});

test("access policies are kept", async () => {
  const queue = await newQueue();
  assert.deepEqual((await queue.getAccessPolicy()).signedIdentifiers, []);
  const startsOn = new Date("2026-01-02T03:04:05.678Z");
  const expiresOn = new Date("2099-06-07T08:09:10.111Z");
  const policies = [
    { id: "full", accessPolicy: { permissions: "raup", startsOn, expiresOn } },
    { id: "part", accessPolicy: { permissions: "r" } },
  ];
  await queue.setAccessPolicy(policies);
  assert.deepEqual((await queue.getAccessPolicy()).signedIdentifiers, policies);
  await queue.setAccessPolicy([]);
  assert.deepEqual((await queue.getAccessPolicy()).signedIdentifiers, []);
  await queue.setAccessPolicy(policies.slice(1));
  await queue.setAccessPolicy();
  assert.deepEqual((await queue.getAccessPolicy()).signedIdentifiers, []);
});

test("credentials may come from a connection string or as an object", async () => {
  const name = newName();
  const queue = queueClient(endpoint.connectionString, name);
  await queue.create();
  await queueClient(`${endpoint.url}/${name}`, sharedKey()).delete();
});

// What the tests share: the server to talk to, unique names, and a record of what was exercised.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { appendFileSync, readFileSync } from "node:fs";
import { after } from "node:test";
import * as everything from "@azure/storage-queue";

// Written by the Python side: addresses, keys, tokens, and where to put the record.
export const context = JSON.parse(readFileSync(process.env.LEASEHOLD_JS_CONTEXT, "utf8"));
export const { endpoint, tls } = context;

const used = new Set();
process.on("exit", () => appendFileSync(context.record, `${[...used].join("\n")}\n`));

// The SDK; what is taken from it is noted.
export const sdk = new Proxy(everything, {
  get(exported, name) {
    if (typeof name === "string") used.add(name);
    return exported[name];
  },
});

// Make a service client from a connection string.
export function fromConnectionString(text, options = once) {
  used.add("QueueServiceClient.fromConnectionString");
  return watched(sdk.QueueServiceClient.fromConnectionString(text, { ...options }));
}

// A client behind a proxy that notes which of its members are used and changes nothing.
export function watched(client) {
  return new Proxy(client, {
    get(target, name) {
      const value = target[name];
      if (typeof name !== "string") return value;
      used.add(`${target.constructor.name}.${name}`);
      if (typeof value !== "function") return value;
      return (...given) => {
        const result = value.apply(target, given);
        return result instanceof everything.QueueClient ? watched(result) : result;
      };
    },
  });
}

// A test must see every answer, so nothing is tried again.
export const once = { retryOptions: { maxTries: 1 } };

export const sharedKey = (where = endpoint) =>
  new sdk.StorageSharedKeyCredential(where.account, where.key);

export const serviceClient = (url = endpoint.url, credential = sharedKey(), options = once) =>
  watched(new sdk.QueueServiceClient(url, credential, options));

export const queueClient = (url, credential = sharedKey(), options = once) =>
  watched(new sdk.QueueClient(url, credential, options));

export const newName = () => `js-${randomUUID()}`;

const owner = serviceClient();
const created = [];
after(async () => {
  await Promise.all(created.map((name) => owner.getQueueClient(name).deleteIfExists()));
});

// A client of a queue that does not exist yet; it is deleted after the tests of the file.
export function unmadeQueue(service = owner) {
  const name = newName();
  created.push(name);
  return service.getQueueClient(name);
}

export async function newQueue(service = owner) {
  const queue = unmadeQueue(service);
  await queue.create();
  return queue;
}

// Expect a call to be refused; every error must be one of the SDK's own.
export async function refused(status, code, call) {
  await assert.rejects(call, (error) => {
    assert.ok(error instanceof sdk.RestError, `not a RestError: ${error}`);
    assert.deepEqual([error.statusCode, error.details?.errorCode ?? error.code], [status, code]);
    return true;
  });
}

// Options of a test that documents what Azurite does differently: there it is known to fail.
export const differs = (reason) => (context.azurite ? { todo: `Azurite ${reason}` } : {});

// The same for a test that would never end there.
export const hangs = (reason) => (context.azurite ? { skip: `Azurite ${reason}` } : {});

export async function collect(items) {
  const all = [];
  for await (const item of items) all.push(item);
  return all;
}

// Ask until the answer is not empty.
export async function eventually(ask) {
  for (;;) {
    const answer = await ask();
    if (answer.length) return answer;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

export const inAnHour = () => new Date(Date.now() + 3_600_000);
export const anHourAgo = () => new Date(Date.now() - 3_600_000);

// Options of the pipeline: policies, retries, cancelling, looking at requests and answers.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { createServer, connect } from "node:net";
import { test } from "node:test";
import {
  collect,
  endpoint,
  newName,
  newQueue,
  once,
  queueClient,
  sdk,
  serviceClient,
  sharedKey,
  watched,
} from "./support.mjs";

const quick = { retryDelayInMs: 1, maxRetryDelayInMs: 5 };

// Stand in front of the server and drop the first connections.
async function unreliable(failures, use) {
  let seen = 0;
  const open = new Set();
  const front = createServer((socket) => {
    open.add(socket);
    socket.on("error", () => {});
    seen += 1;
    if (seen <= failures) {
      socket.once("data", () => socket.destroy());
      return;
    }
    const there = connect(endpoint.port, "127.0.0.1");
    open.add(there);
    there.on("error", () => {});
    socket.pipe(there).pipe(socket);
  });
  await new Promise((resolve) => front.listen(0, "127.0.0.1", resolve));
  try {
    await use(endpoint.url.replace(`:${endpoint.port}`, `:${front.address().port}`));
  } finally {
    for (const socket of open) socket.destroy();
    front.close();
  }
  return seen;
}

test("a pipeline can be shared by clients and carries policies of one's own", async () => {
  const seen = [];
  const pipeline = sdk.newPipeline(sharedKey(), {
    ...once,
    userAgentOptions: { userAgentPrefix: "my-application/1.0" },
    keepAliveOptions: { enable: true },
  });
  assert.ok(sdk.isPipelineLike(pipeline));
  assert.ok(pipeline instanceof sdk.Pipeline);
  pipeline.factories.push({
    create: (next) => ({
      sendRequest: async (request) => {
        request.headers.set(
          "x-ms-client-request-id",
          request.headers.get("x-ms-client-request-id"),
        );
        const answer = await next.sendRequest(request);
        seen.push([request.method, answer.status, request.headers.get("user-agent")]);
        return answer;
      },
    }),
  });
  const service = watched(new sdk.QueueServiceClient(endpoint.url, pipeline));
  const queue = watched(new sdk.QueueClient(`${endpoint.url}/${newName()}`, pipeline));
  await queue.create();
  await collect(service.listQueues({ prefix: queue.name }));
  await queue.delete();
  assert.deepEqual(
    seen.map(([method, status]) => `${method} ${status}`),
    ["PUT 201", "GET 200", "DELETE 204"],
  );
  assert.ok(seen.every(([, , agent]) => agent.startsWith("my-application/1.0 ")));
});

test("answers carry what one needs to report a problem", async () => {
  const queue = await newQueue();
  const requestId = randomUUID();
  let raw;
  const answer = await queue.getProperties({
    requestOptions: { customHeaders: { "x-ms-client-request-id": requestId } },
    onResponse: (response) => {
      raw = response;
    },
  });
  assert.equal(answer.clientRequestId, requestId);
  assert.match(answer.requestId, /^[0-9a-f-]{36}$/);
  assert.ok(answer.date instanceof Date && answer.version);
  assert.equal(raw.status, 200);
  assert.equal(answer._response.status, 200);
});

for (const [name, retryPolicyType] of [
  ["exponential", sdk.StorageRetryPolicyType.EXPONENTIAL],
  ["fixed", sdk.StorageRetryPolicyType.FIXED],
]) {
  test(`requests without an answer are repeated: ${name}`, async () => {
    const options = {
      retryOptions: { ...quick, maxTries: 4, retryPolicyType, tryTimeoutInMs: 5000 },
    };
    const seen = await unreliable(2, async (url) => {
      const queue = queueClient(`${url}/${newName()}`, sharedKey(), options);
      await queue.create();
      await queue.delete();
    });
    assert.ok(seen >= 3);
  });
}

test("the client gives up after the tries it was allowed", async () => {
  const options = { retryOptions: { ...quick, maxTries: 2 } };
  const seen = await unreliable(99, async (url) => {
    const service = serviceClient(url, sharedKey(), options);
    await assert.rejects(service.getProperties());
  });
  assert.equal(seen, 2);
});

test("reads fall back to the secondary host", async () => {
  const queue = await newQueue();
  await queue.sendMessage("x");
  // The SDK replaces the host name only, so that both names must lead to the server.
  const options = { retryOptions: { ...quick, maxTries: 3, secondaryHost: "127.0.0.1" } };
  const seen = await unreliable(1, async (url) => {
    const reader = queueClient(
      `${url.replace("127.0.0.1", "localhost")}/${queue.name}`,
      sharedKey(),
      options,
    );
    assert.equal((await reader.peekMessages()).peekedMessageItems[0].messageText, "x");
  });
  assert.ok(seen >= 1);
});

test("a factory of retry policies can be put into a pipeline", async () => {
  const factory = new sdk.StorageRetryPolicyFactory({ ...quick, maxTries: 2 });
  const pipeline = new sdk.Pipeline([factory, sharedKey()], once);
  const service = watched(new sdk.QueueServiceClient(endpoint.url, pipeline));
  await service.getProperties();
});

test("calls can be cancelled", async () => {
  const queue = await newQueue();
  const cancelled = AbortSignal.abort();
  for (const call of [
    () => queue.sendMessage("x", { abortSignal: cancelled }),
    () => queue.receiveMessages({ abortSignal: cancelled }),
    () => collect(serviceClient().listQueues({ abortSignal: cancelled })),
  ]) {
    await assert.rejects(call, { name: "AbortError" });
  }
  assert.equal((await queue.getProperties()).approximateMessagesCount, 0);
});

test("many calls at once share connections", async () => {
  const queue = await newQueue();
  await Promise.all(Array.from({ length: 64 }, (_, i) => queue.sendMessage(`${i}`)));
  const pages = await Promise.all(
    Array.from({ length: 8 }, () => queue.receiveMessages({ numberOfMessages: 32 })),
  );
  const ids = pages.flatMap((page) => page.receivedMessageItems.map((item) => item.messageId));
  assert.equal(ids.length, 64);
  assert.equal(new Set(ids).size, 64);
});

test("the log never shows a signature", async () => {
  const lines = [];
  const { log, level } = sdk.logger;
  sdk.logger.log = (...parts) => lines.push(parts.join(" "));
  try {
    const queue = await newQueue();
    const permissions = sdk.QueueSASPermissions.parse("r");
    const url = queue.generateSasUrl({ permissions, expiresOn: new Date("2099-01-01") });
    await queueClient(url, new sdk.AnonymousCredential()).peekMessages();
  } finally {
    sdk.logger.log = log;
  }
  assert.ok(!lines.some((line) => /sig=(?!REDACTED)/.test(line)), level);
});

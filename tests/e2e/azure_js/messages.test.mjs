// Messages: send, receive, peek, update, delete, clear; what is in them; receipts and leases.

import assert from "node:assert/strict";
import { test } from "node:test";
import { context, differs, eventually, newQueue, refused } from "./support.mjs";

const LIMIT = 65_536;
const WEEK_MS = 604_800_000;

// Without line feeds: this SDK drops them from what it sends.
const texts = {
  "white space": " \t text \t ",
  markup: "<MessageText>&amp;</MessageText><!-- ]]> --> \"'",
  "entity look-alikes": "&lt; &#x41; &nbsp; %3C +",
  scripts: "Größe 中文 العربية עברית ไทย",
  emoji: "🎉👩‍👩‍👧‍👦𝄞",
  "edges of XML": "\t\x7f\x85\u2028\ud7ff\ue000\ufffd\u{10000}\u{10ffff}",
  digits: "0012345678901234567890",
  boolean: "true",
  json: '{"a": [1, 2.5, null], "b": "\\u00e9\\n"}',
};

for (const [name, text] of Object.entries(texts)) {
  test(`text survives: ${name}`, async () => {
    const queue = await newQueue();
    const sent = await queue.sendMessage(text);
    const [peeked] = (await queue.peekMessages()).peekedMessageItems;
    assert.equal(peeked.messageText, text);
    await queue.updateMessage(sent.messageId, sent.popReceipt, `${text}!${text}`, 0);
    const [received] = (await queue.receiveMessages()).receivedMessageItems;
    assert.equal(received.messageText, `${text}!${text}`);
  });
}

test("an empty text is a text", async () => {
  const queue = await newQueue();
  const sent = await queue.sendMessage("");
  const [empty] = (await queue.peekMessages()).peekedMessageItems;
  assert.equal(empty.messageText, "");
  await queue.updateMessage(sent.messageId, sent.popReceipt, "full", 0);
  const [full] = (await queue.receiveMessages()).receivedMessageItems;
  await queue.updateMessage(full.messageId, full.popReceipt, "", 0);
  const [again] = (await queue.peekMessages()).peekedMessageItems;
  assert.equal(again.messageText, "");
});

for (const unit of ["x", "é", "🎉"]) {
  // Azurite breaks characters that two chunks of a body share, now and then.
  test(`64 KiB fit and no more: ${unit}`, { skip: context.azurite && unit !== "x" }, async () => {
    const queue = await newQueue();
    const text = unit.repeat(LIMIT / Buffer.byteLength(unit));
    const sent = await queue.sendMessage(text);
    const [peeked] = (await queue.peekMessages()).peekedMessageItems;
    assert.equal(peeked.messageText, text);
    await refused(413, "RequestBodyTooLarge", () => queue.sendMessage(`${text}x`));
    await refused(413, "RequestBodyTooLarge", () =>
      queue.updateMessage(sent.messageId, sent.popReceipt, `${text}x`),
    );
    await queue.deleteMessage(sent.messageId, sent.popReceipt);
  });
}

test("the error of a message too large has the text that applications look for", async () => {
  const queue = await newQueue();
  await assert.rejects(queue.sendMessage("x".repeat(LIMIT + 1)), (error) => {
    assert.match(
      error.message,
      /request body is too large and exceeds the maximum permissible limit/,
    );
    return true;
  });
});

test("sending tells all about the message", async () => {
  const queue = await newQueue();
  const sent = await queue.sendMessage("x");
  assert.match(sent.messageId, /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
  assert.ok(sent.popReceipt && sent.requestId && sent.version && sent.date);
  assert.deepEqual(sent.nextVisibleOn, sent.insertedOn);
  assert.equal(sent.expiresOn - sent.insertedOn, WEEK_MS);
});

test("a delay and a time to live", async () => {
  const queue = await newQueue();
  const delayed = await queue.sendMessage("x", { visibilityTimeout: 60, messageTimeToLive: 120 });
  assert.equal(delayed.nextVisibleOn - delayed.insertedOn, 60_000);
  assert.equal(delayed.expiresOn - delayed.insertedOn, 120_000);
  assert.deepEqual((await queue.receiveMessages()).receivedMessageItems, []);
  const forever = await queue.sendMessage("x", { messageTimeToLive: -1 });
  assert.equal(forever.expiresOn.toISOString(), "9999-12-31T23:59:59.000Z");
  await refused(400, "InvalidQueryParameterValue", () =>
    queue.sendMessage("x", { visibilityTimeout: 30, messageTimeToLive: 30 }),
  );
});

test("receiving hides messages, peeking does not", async () => {
  const queue = await newQueue();
  for (const text of ["a", "b", "c"]) await queue.sendMessage(text);
  for (let i = 0; i < 2; i += 1) {
    const { peekedMessageItems } = await queue.peekMessages({ numberOfMessages: 32 });
    assert.deepEqual(
      peekedMessageItems.map((item) => item.messageText),
      ["a", "b", "c"],
    );
    assert.deepEqual(
      peekedMessageItems.map((item) => item.dequeueCount),
      [0, 0, 0],
    );
    assert.ok(peekedMessageItems.every((item) => !item.popReceipt));
  }
  const { receivedMessageItems } = await queue.receiveMessages({
    numberOfMessages: 2,
    visibilityTimeout: 600,
  });
  assert.deepEqual(
    receivedMessageItems.map((item) => item.messageText),
    ["a", "b"],
  );
  assert.deepEqual(
    receivedMessageItems.map((item) => item.dequeueCount),
    [1, 1],
  );
  const rest = (await queue.receiveMessages({ numberOfMessages: 32 })).receivedMessageItems;
  assert.deepEqual(
    rest.map((item) => item.messageText),
    ["c"],
  );
  assert.deepEqual((await queue.peekMessages()).peekedMessageItems, []);
  assert.equal((await queue.getProperties()).approximateMessagesCount, 3);
});

test("a page has 1 to 32 messages", async () => {
  const queue = await newQueue();
  await Promise.all(Array.from({ length: 40 }, (_, i) => queue.sendMessage(`${i}`)));
  const page = await queue.receiveMessages({ numberOfMessages: 32 });
  assert.equal(page.receivedMessageItems.length, 32);
  for (const call of [
    () => queue.receiveMessages({ numberOfMessages: 33 }),
    () => queue.peekMessages({ numberOfMessages: 33 }),
    () => queue.receiveMessages({ visibilityTimeout: 604_801 }),
  ]) {
    await refused(400, "OutOfRangeQueryParameterValue", call);
  }
});

test("updating only the visibility keeps the text", async () => {
  const queue = await newQueue();
  await queue.sendMessage("text");
  const [received] = (await queue.receiveMessages()).receivedMessageItems;
  const updated = await queue.updateMessage(
    received.messageId,
    received.popReceipt,
    undefined,
    600,
  );
  assert.ok(updated.popReceipt);
  assert.ok(updated.nextVisibleOn > received.nextVisibleOn);
  await queue.updateMessage(received.messageId, updated.popReceipt);
  const [again] = (await queue.receiveMessages()).receivedMessageItems;
  assert.deepEqual([again.messageText, again.dequeueCount], ["text", 2]);
});

test("only the latest receipt works", differs("answers 400 to a stale receipt"), async () => {
  const queue = await newQueue();
  const sent = await queue.sendMessage("x");
  const [received] = (await queue.receiveMessages()).receivedMessageItems;
  const updated = await queue.updateMessage(received.messageId, received.popReceipt, "y", 600);
  for (const { popReceipt } of [sent, received]) {
    await refused(404, "MessageNotFound", () => queue.updateMessage(sent.messageId, popReceipt));
    await refused(404, "MessageNotFound", () => queue.deleteMessage(sent.messageId, popReceipt));
  }
  await refused(400, "InvalidQueryParameterValue", () =>
    queue.deleteMessage(sent.messageId, "garbage"),
  );
  await queue.deleteMessage(sent.messageId, updated.popReceipt);
  await refused(404, "MessageNotFound", () =>
    queue.deleteMessage(sent.messageId, updated.popReceipt),
  );
});

test("clearing removes everything", async () => {
  const queue = await newQueue();
  await queue.sendMessage("leased");
  await queue.receiveMessages();
  await queue.sendMessage("delayed", { visibilityTimeout: 60 });
  await queue.sendMessage("visible");
  assert.equal((await queue.clearMessages())._response.status, 204);
  assert.equal((await queue.getProperties()).approximateMessagesCount, 0);
});

test("a message comes back when its lease ends, and a lapsed receipt works until then", async () => {
  const [back, lapsed] = await Promise.all([newQueue(), newQueue()]);
  await Promise.all([back, lapsed].map((queue) => queue.sendMessage("x")));
  const [first, second] = await Promise.all(
    [back, lapsed].map(async (queue) => {
      const lease = await queue.receiveMessages({ visibilityTimeout: 1 });
      return lease.receivedMessageItems[0];
    }),
  );
  const [again] = await eventually(async () => (await back.receiveMessages()).receivedMessageItems);
  assert.deepEqual([again.messageId, again.dequeueCount], [first.messageId, 2]);
  await eventually(async () => (await lapsed.peekMessages()).peekedMessageItems);
  await lapsed.deleteMessage(second.messageId, second.popReceipt);
  assert.deepEqual((await lapsed.peekMessages()).peekedMessageItems, []);
});

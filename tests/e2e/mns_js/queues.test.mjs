// Drives a server through the SDK; where it is stands in the environment.

import assert from "node:assert/strict";
import { createHash, randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import Client from "@alicloud/mns";

const context = JSON.parse(readFileSync(process.env.LEASEHOLD_JS_CONTEXT, "utf8"));
const options = {
  accessKeyId: context.account,
  accessKeySecret: context.key,
  endpoint: context.endpoint,
};
const client = new Client(context.account, options);

async function newQueue(params = {}) {
  const name = `js-${randomUUID()}`;
  const { code } = await client.createQueue(name, params);
  assert.equal(code, 201);
  return name;
}

const refused = (code) => (error) => error.name === `MNS${code}Error`;

test("a queue is made, found again, and deleted", async () => {
  const name = `js-${randomUUID()}`;
  const first = await client.createQueue(name, { VisibilityTimeout: 60 });
  const second = await client.createQueue(name, { VisibilityTimeout: 60 });
  assert.deepEqual([first.code, second.code], [201, 204]);
  assert.equal(first.headers.location, `${context.endpoint}/queues/${name}`);
  await assert.rejects(
    client.createQueue(name, { VisibilityTimeout: 61 }),
    refused("QueueAlreadyExist"),
  );
  assert.equal((await client.deleteQueue(name)).code, 204);
  await assert.rejects(client.getQueueAttributes(name), refused("QueueNotExist"));
});

test("attributes are set one by one", async () => {
  const name = await newQueue();
  const { code } = await client.setQueueAttributes(name, { DelaySeconds: 5 });
  assert.equal(code, 204);
  const { body } = await client.getQueueAttributes(name);
  assert.equal(body.DelaySeconds, "5");
  assert.equal(body.VisibilityTimeout, "30");
  assert.equal(body.LoggingEnabled, "False");
});

test("queues are listed", async () => {
  const name = await newQueue();
  const { body } = await client.listQueue("", 10, name);
  assert.equal([body].flat()[0].QueueURL, `${context.endpoint}/queues/${name}`);
});

test("a message is sent, seen, received, kept and deleted", async () => {
  const name = await newQueue();
  const text = "wörk"; // the SDK escapes nothing
  const sent = await client.sendMessage(name, { MessageBody: text, Priority: 3 });
  const md5 = createHash("md5").update(text).digest("hex").toUpperCase();
  assert.equal(sent.code, 201);
  assert.equal(sent.body.MessageBodyMD5, md5);
  const peeked = await client.peekMessage(name);
  assert.equal(peeked.body.MessageBody, text);
  assert.equal(peeked.body.ReceiptHandle, undefined);
  const got = await client.receiveMessage(name, 5);
  assert.equal(got.code, 200);
  assert.equal(got.body.MessageId, sent.body.MessageId);
  assert.deepEqual([got.body.Priority, got.body.DequeueCount], ["3", "1"]);
  const old = got.body.ReceiptHandle;
  const changed = await client.changeMessageVisibility(name, old, 120);
  assert.equal(changed.code, 200);
  await assert.rejects(client.deleteMessage(name, old), refused("MessageNotExist"));
  const deleted = await client.deleteMessage(name, changed.body.ReceiptHandle);
  assert.equal(deleted.code, 204);
  await assert.rejects(client.receiveMessage(name), refused("MessageNotExist"));
});

test("a receive waits for a message", async () => {
  const name = await newQueue();
  const receive = client.receiveMessage(name, 30);
  await client.sendMessage(name, { MessageBody: "x" });
  assert.equal((await receive).body.MessageBody, "x");
});

test("a batch is sent, seen, received and deleted", async () => {
  const name = await newQueue();
  const bodies = ["a", "b", "c"];
  const sent = await client.batchSendMessage(
    name,
    bodies.map((body) => ({ MessageBody: body })),
  );
  assert.equal(sent.code, 201);
  assert.equal(sent.body.length, 3);
  const peeked = await client.batchPeekMessage(name, 16);
  assert.deepEqual(peeked.body.map((each) => each.MessageBody), bodies);
  const got = await client.batchReceiveMessage(name, 16, 5);
  const handles = got.body.map((each) => each.ReceiptHandle);
  const partly = await client.batchDeleteMessage(name, ["garbage", handles[0], "x"]);
  assert.equal(partly.code, 400);
  assert.deepEqual(
    partly.body.map((each) => [each.ErrorCode, each.ReceiptHandle]),
    [
      ["ReceiptHandleError", "garbage"],
      ["ReceiptHandleError", "x"],
    ],
  );
  const whole = await client.batchDeleteMessage(name, handles.slice(1));
  assert.equal(whole.code, 204);
});

test("messages that are refused do not keep others from being sent", async () => {
  const name = await newQueue({ MaximumMessageSize: 1024 });
  const messages = [{ MessageBody: "good" }, { MessageBody: "x".repeat(1025) }];
  const sent = await client.batchSendMessage(name, messages);
  assert.equal(sent.code, 400);
  assert.equal(sent.body[1].ErrorCode, "InvalidArgument");
  assert.equal((await client.receiveMessage(name)).body.MessageId, sent.body[0].MessageId);
});

test("whoever has no key is refused", async () => {
  const stranger = new Client("nobody", { ...options, accessKeyId: "nobody" });
  await assert.rejects(stranger.listQueue(), refused("InvalidAccessKeyId"));
  const liar = new Client("x", { ...options, accessKeySecret: "wrong" });
  await assert.rejects(liar.listQueue(), refused("SignatureDoesNotMatch"));
});

test("a security token comes along unsigned", async () => {
  const temporary = new Client("x", { ...options, securityToken: "token" });
  const { code } = await temporary.createQueue(`js-${randomUUID()}`);
  assert.equal(code, 201);
});

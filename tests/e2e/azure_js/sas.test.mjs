// Shared access signatures, made by the clients and by the functions of the SDK.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  anHourAgo,
  collect,
  differs,
  endpoint,
  inAnHour,
  newName,
  newQueue,
  once,
  queueClient,
  refused,
  sdk,
  serviceClient,
  sharedKey,
} from "./support.mjs";

const anonymous = (url) => queueClient(url, new sdk.AnonymousCredential(), once);
const all = () => sdk.QueueSASPermissions.parse("raup");

async function queueWithMessage() {
  const queue = await newQueue();
  await queue.sendMessage("x");
  return queue;
}

test("a queue's client makes signed addresses", async () => {
  const queue = await queueWithMessage();
  const url = queue.generateSasUrl({
    permissions: all(),
    startsOn: anHourAgo(),
    expiresOn: inAnHour(),
    ipRange: { start: "127.0.0.1", end: "127.0.0.2" },
    protocol: sdk.SASProtocol.HttpsAndHttp,
  });
  const signed = anonymous(url);
  const [received] = (await signed.receiveMessages()).receivedMessageItems;
  const updated = await signed.updateMessage(received.messageId, received.popReceipt, "y", 60);
  await signed.deleteMessage(received.messageId, updated.popReceipt);
  await signed.sendMessage("z");
  assert.equal((await signed.peekMessages()).peekedMessageItems[0].messageText, "z");
  assert.equal((await signed.getProperties()).approximateMessagesCount, 1);
});

test("a queue's signature opens what it says", async () => {
  const queue = await queueWithMessage();
  const permissions = new sdk.QueueSASPermissions();
  permissions.read = true;
  const signed = anonymous(queue.generateSasUrl({ permissions, expiresOn: inAnHour() }));
  assert.equal((await signed.peekMessages()).peekedMessageItems.length, 1);
  await refused(403, "AuthorizationPermissionMismatch", () => signed.receiveMessages());
  await refused(403, "AuthorizationPermissionMismatch", () => signed.sendMessage("y"));
});

test("a queue's signature never opens the queue itself", differs("has another code"), async () => {
  const queue = await queueWithMessage();
  const signed = anonymous(queue.generateSasUrl({ permissions: all(), expiresOn: inAnHour() }));
  for (const call of [
    () => signed.clearMessages(),
    () => signed.delete(),
    () => signed.setMetadata({ a: "1" }),
    () => signed.getAccessPolicy(),
  ]) {
    await refused(403, "AuthorizationFailure", call);
  }
});

test("a stored policy gives permissions and can be revoked", async () => {
  const queue = await queueWithMessage();
  const accessPolicy = { permissions: "r", expiresOn: inAnHour(), startsOn: anHourAgo() };
  await queue.setAccessPolicy([{ id: "policy", accessPolicy }]);
  const signed = anonymous(queue.generateSasUrl({ identifier: "policy" }));
  assert.equal((await signed.peekMessages()).peekedMessageItems.length, 1);
  await refused(403, "AuthorizationPermissionMismatch", () => signed.receiveMessages());
  await queue.setAccessPolicy([]);
  await refused(403, "AuthenticationFailed", () => signed.peekMessages());
});

test("signatures have their time and their protocol", async () => {
  const queue = await queueWithMessage();
  const permissions = all();
  for (const [values, code] of [
    [{ expiresOn: anHourAgo() }, "AuthenticationFailed"],
    [{ startsOn: inAnHour(), expiresOn: inAnHour() }, "AuthenticationFailed"],
    [{ expiresOn: inAnHour(), protocol: sdk.SASProtocol.Https }, "AuthorizationProtocolMismatch"],
  ]) {
    const signed = anonymous(queue.generateSasUrl({ permissions, ...values }));
    await refused(403, code, () => signed.peekMessages());
  }
});

test("signatures are made by functions, too", async () => {
  const queue = await queueWithMessage();
  const values = { queueName: queue.name, permissions: all(), expiresOn: inAnHour() };
  for (const version of [undefined, "2019-02-02", "2020-10-02"]) {
    const parameters = sdk.generateQueueSASQueryParameters({ ...values, version }, sharedKey());
    assert.ok(parameters instanceof sdk.SASQueryParameters);
    const signed = anonymous(`${queue.url}?${parameters}`);
    assert.equal((await signed.peekMessages()).peekedMessageItems.length, 1);
  }
});

test("an account's client makes signed addresses", async () => {
  const name = newName();
  const url = serviceClient().generateAccountSasUrl(
    inAnHour(),
    sdk.AccountSASPermissions.parse("rwdlacup"),
    new sdk.AccountSASResourceTypes().toString() || "sco",
    {
      startsOn: anHourAgo(),
      ipRange: { start: "127.0.0.1" },
      protocol: sdk.SASProtocol.HttpsAndHttp,
    },
  );
  const service = serviceClient(url, new sdk.AnonymousCredential());
  await service.createQueue(name);
  const queue = service.getQueueClient(name);
  await queue.sendMessage("x");
  const [received] = (await queue.receiveMessages()).receivedMessageItems;
  await queue.deleteMessage(received.messageId, received.popReceipt);
  assert.equal((await collect(service.listQueues({ prefix: name }))).length, 1);
  await service.getProperties();
  await service.deleteQueue(name);
});

test("by default an account's address is for an hour of reading", async () => {
  const service = serviceClient(
    serviceClient().generateAccountSasUrl(),
    new sdk.AnonymousCredential(),
  );
  await service.getProperties();
  await refused(403, "AuthorizationPermissionMismatch", () => service.createQueue(newName()));
});

test("an account's signature is for services, resource types and letters", async () => {
  const queue = await queueWithMessage();
  const make = (services, resourceTypes, permissions) =>
    sdk.generateAccountSASQueryParameters(
      {
        services: sdk.AccountSASServices.parse(services).toString(),
        resourceTypes: sdk.AccountSASResourceTypes.parse(resourceTypes).toString(),
        permissions: sdk.AccountSASPermissions.parse(permissions),
        expiresOn: inAnHour(),
      },
      sharedKey(),
    );
  const outcome = async (...given) => {
    const signed = anonymous(`${queue.url}?${make(...given)}`);
    return signed.peekMessages().then(
      () => "ok",
      (error) => error.code,
    );
  };
  assert.equal(await outcome("q", "o", "r"), "ok");
  assert.equal(await outcome("bqft", "sco", "rwdlacup"), "ok");
  assert.equal(await outcome("q", "sc", "r"), "AuthorizationResourceTypeMismatch");
  assert.equal(await outcome("q", "o", "a"), "AuthorizationPermissionMismatch");
  assert.equal(await outcome("bf", "o", "r"), "AuthorizationServiceMismatch");
});

test("the string to sign can be looked at", async () => {
  const queue = await newQueue();
  const text = queue.generateSasStringToSign({ permissions: all(), expiresOn: inAnHour() });
  assert.ok(text.split("\n").includes(`/queue/${endpoint.account}/${queue.name}`));
  const ofAccount = serviceClient().generateSasStringToSign(inAnHour());
  assert.equal(ofAccount.split("\n")[0], endpoint.account);
});

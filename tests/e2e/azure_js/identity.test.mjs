// Bearer tokens and user delegation keys; needs the server that speaks https.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  anHourAgo,
  collect,
  context,
  inAnHour,
  newName,
  once,
  queueClient,
  refused,
  sdk,
  serviceClient,
  sharedKey,
  tls,
} from "./support.mjs";

const options = { skip: tls ? false : "needs a server that was started to trust tokens" };
const expiresOnTimestamp = 4_102_444_800_000;

// Hands out the tokens in turn, then the last one for ever; remembers what it was asked for.
function bearer(...tokens) {
  const asked = [];
  return {
    asked,
    getToken: async (scopes, given) => {
      asked.push([[scopes].flat(), given?.tenantId]);
      return { token: tokens.length > 1 ? tokens.shift() : tokens[0], expiresOnTimestamp };
    },
  };
}

async function secureQueue() {
  const service = serviceClient(tls.url, sharedKey(tls));
  const name = newName();
  await service.createQueue(name);
  return service.getQueueClient(name);
}

test("a token opens queues and messages", options, async () => {
  const credential = bearer(context.tokens.good);
  const service = serviceClient(tls.url, credential);
  const name = newName();
  await service.createQueue(name);
  const queue = service.getQueueClient(name);
  await queue.sendMessage("x");
  assert.equal((await queue.peekMessages()).peekedMessageItems.length, 1);
  const [received] = (await queue.receiveMessages()).receivedMessageItems;
  const updated = await queue.updateMessage(received.messageId, received.popReceipt, "y", 60);
  await queue.deleteMessage(received.messageId, updated.popReceipt);
  assert.equal((await collect(service.listQueues({ prefix: name }))).length, 1);
  await queue.delete();
  assert.deepEqual(credential.asked[0][0], [sdk.StorageOAuthScopes].flat());
});

test("a token may be for another audience", options, async () => {
  const audience = sdk.getQueueServiceAccountAudience("account");
  assert.equal(audience, "https://account.queue.core.windows.net/.default");
  for (const each of [audience, sdk.StorageQueueAudience.StorageOAuthScopes]) {
    const credential = bearer(context.tokens.good);
    await serviceClient(tls.url, credential, { ...once, audience: each }).getProperties();
    assert.deepEqual(credential.asked[0][0], [each].flat());
  }
});

test("a token without the role is refused", options, async () => {
  const queue = await secureQueue();
  const reader = queueClient(queue.url, bearer(context.tokens.reader));
  await reader.peekMessages();
  await refused(403, "AuthorizationPermissionMismatch", () => reader.sendMessage("x"));
});

test("a bad token is refused", options, async () => {
  for (const name of ["expired", "forged", "stranger"]) {
    const service = serviceClient(tls.url, bearer(context.tokens[name]));
    await refused(401, "InvalidAuthenticationInfo", () => service.getProperties());
  }
});

test("the challenge leads to a better token", options, async () => {
  const credential = bearer(context.tokens.expired, context.tokens.good);
  await serviceClient(tls.url, credential).getProperties();
  assert.equal(credential.asked.length, 2);
});

test("a user delegation key makes signatures", options, async () => {
  const service = serviceClient(tls.url, bearer(context.tokens.good));
  const queue = await secureQueue();
  await queue.sendMessage("x");
  const startsOn = anHourAgo();
  const expiresOn = inAnHour();
  const keys = [
    await service.getUserDelegationKey(startsOn, expiresOn),
    await service.getUserDelegationKey({ startsOn, expiresOn, delegatedUserTenantId: "a-tenant" }),
  ];
  assert.equal(keys[0].signedObjectId, context.user);
  assert.equal(keys[0].signedService, "q");
  assert.equal(keys[1].signedDelegatedUserTenantId, "a-tenant");
  for (const key of keys) {
    const values = { permissions: sdk.QueueSASPermissions.parse("r"), expiresOn };
    const url = queue.generateUserDelegationSasUrl(values, key);
    const signed = queueClient(url, new sdk.AnonymousCredential());
    assert.equal((await signed.peekMessages()).peekedMessageItems[0].messageText, "x");
    await refused(403, "AuthorizationPermissionMismatch", () => signed.sendMessage("y"));
    const text = queue.generateUserDelegationStringToSign(values, key);
    assert.ok(text.split("\n").includes(context.user));
    const parameters = sdk.generateQueueSASQueryParameters(
      { queueName: queue.name, ...values },
      key,
      tls.account,
    );
    await queueClient(`${queue.url}?${parameters}`, new sdk.AnonymousCredential()).peekMessages();
  }
});

test("only bearers of tokens get delegation keys", options, async () => {
  const service = serviceClient(tls.url, sharedKey(tls));
  await refused(403, "AuthorizationFailure", () =>
    service.getUserDelegationKey(anHourAgo(), inAnHour()),
  );
});

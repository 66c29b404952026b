// The account: properties, statistics, its address, ways to sign in.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  collect,
  context,
  differs,
  endpoint,
  fromConnectionString,
  newName,
  queueClient,
  refused,
  sdk,
  serviceClient,
} from "./support.mjs";

const off = {
  queueAnalyticsLogging: {
    version: "1.0",
    read: false,
    write: false,
    deleteProperty: false,
    retentionPolicy: { enabled: false },
  },
  hourMetrics: { version: "1.0", enabled: false, retentionPolicy: { enabled: false } },
  minuteMetrics: { version: "1.0", enabled: false, retentionPolicy: { enabled: false } },
  cors: [],
};

function plain(properties) {
  const { queueAnalyticsLogging, hourMetrics, minuteMetrics, cors } = properties;
  return JSON.parse(JSON.stringify({ queueAnalyticsLogging, hourMetrics, minuteMetrics, cors }));
}

test("properties are kept, and what is left out stays", async () => {
  const service = serviceClient();
  assert.equal((await service.setProperties(off))._response.status, 202);
  assert.deepEqual(plain(await service.getProperties()), off);
  const changed = {
    queueAnalyticsLogging: {
      version: "1.0",
      read: true,
      write: true,
      deleteProperty: true,
      retentionPolicy: { enabled: true, days: 7 },
    },
    cors: [
      {
        allowedOrigins: "http://one.example,https://two.example",
        allowedMethods: "GET,PUT",
        allowedHeaders: "x-ms-meta-*,content-type",
        exposedHeaders: "*",
        maxAgeInSeconds: 60,
      },
      {
        allowedOrigins: "*",
        allowedMethods: "POST",
        allowedHeaders: "",
        exposedHeaders: "",
        maxAgeInSeconds: 0,
      },
    ],
  };
  await service.setProperties(changed);
  assert.deepEqual(plain(await service.getProperties()), { ...off, ...changed });
  const hourMetrics = {
    version: "1.0",
    enabled: true,
    includeAPIs: true,
    retentionPolicy: { enabled: true, days: 365 },
  };
  await service.setProperties({ hourMetrics });
  assert.deepEqual(plain(await service.getProperties()), { ...off, ...changed, hourMetrics });
  await service.setProperties(off);
  assert.deepEqual(plain(await service.getProperties()), off);
});

test("statistics come from the secondary address", async () => {
  const statistics = await serviceClient(endpoint.secondaryUrl).getStatistics();
  assert.equal(statistics.geoReplication.status, "live");
  assert.ok(statistics.geoReplication.lastSyncOn instanceof Date);
  await refused(400, "InvalidQueryParameterValue", () => serviceClient().getStatistics());
});

test("the service client creates and deletes queues", async () => {
  const service = serviceClient();
  const name = newName();
  const created = await service.createQueue(name, { metadata: { a: "1" } });
  assert.equal(created._response.status, 201);
  const queue = service.getQueueClient(name);
  assert.deepEqual((await queue.getProperties()).metadata, { a: "1" });
  await service.deleteQueue(name);
  assert.equal(await queue.exists(), false);
});

test("connection strings work, with a key or with a signature", async () => {
  const signature = serviceClient()
    .generateAccountSasUrl(undefined, sdk.AccountSASPermissions.parse("rwdlacup"))
    .split("?")[1];
  const name = newName();
  for (const text of [
    endpoint.connectionString,
    `QueueEndpoint=${endpoint.url}/;SharedAccessSignature=${signature}`,
  ]) {
    const service = fromConnectionString(text);
    await service.createQueue(name);
    assert.equal((await collect(service.listQueues({ prefix: name }))).length, 1);
    await queueClient(text, name).delete();
  }
});

test(
  "development storage",
  { skip: context.development ? false : "port 10001 is in use" },
  async () => {
    const service = fromConnectionString("UseDevelopmentStorage=true");
    const name = newName();
    await service.createQueue(name);
    const queue = queueClient("UseDevelopmentStorage=true", name);
    await queue.sendMessage("x");
    assert.equal((await queue.receiveMessages()).receivedMessageItems[0].messageText, "x");
    await queue.delete();
  },
);

test("the secondary address is for reading", async () => {
  const service = serviceClient(endpoint.secondaryUrl);
  await service.getProperties();
  await collect(service.listQueues({ prefix: newName() }));
});

test("the secondary address is only for reading", differs("writes there too"), async () => {
  const service = serviceClient(endpoint.secondaryUrl);
  await refused(403, "InsufficientAccountPermissions", () => service.createQueue(newName()));
});

test("a wrong key is refused", async () => {
  const wrong = new sdk.StorageSharedKeyCredential(endpoint.account, btoa("wrong"));
  await refused(403, "AuthenticationFailed", () =>
    serviceClient(endpoint.url, wrong).getProperties(),
  );
});

test("without credentials one is asked for some", differs("answers 403"), async () => {
  const service = serviceClient(endpoint.url, new sdk.AnonymousCredential());
  await refused(401, "NoAuthenticationInformation", () => service.getProperties());
  const queue = queueClient(`${endpoint.url}/${newName()}`, new sdk.AnonymousCredential());
  await refused(401, "NoAuthenticationInformation", () => queue.peekMessages());
});

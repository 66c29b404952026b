#!/usr/bin/env bash
# Azure's queue SDK for JavaScript, up to 12.31.0, removes all line feeds from a text before it sends it.
#
# Packages: @azure/storage-queue 12.31.0 (npm; Node 20 or newer); the same with 12.29.0 and 12.30.0.
#   12.32.0 sends the text as it is.
# Expected: `sendMessage("one\ntwo")` puts a text of two lines, or is refused.
# Seen: the request has `onetwo`, and the call succeeds. The serializer of XML below it removes line
#   feeds from the whole document, the text included. Carriage returns stay.
# Whom it bites: who sends YAML, CSV, logs or texts of people; a consumer cannot tell.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund '@azure/storage-queue@12.31.0' >/dev/null
cat > run.mjs <<'JAVASCRIPT'
import { createServer } from "node:http";
import { QueueClient, StorageSharedKeyCredential } from "@azure/storage-queue";

// A service that notes what it is sent, and accepts it.
let sent = "";
const answer = `<?xml version="1.0"?><QueueMessagesList><QueueMessage><MessageId>1</MessageId>
<InsertionTime>Thu, 01 Jan 2026 00:00:00 GMT</InsertionTime>
<ExpirationTime>Thu, 08 Jan 2026 00:00:00 GMT</ExpirationTime><PopReceipt>r</PopReceipt>
<TimeNextVisible>Thu, 01 Jan 2026 00:00:00 GMT</TimeNextVisible></QueueMessage></QueueMessagesList>`;
const server = createServer((request, response) => {
  request.on("data", (part) => (sent += part));
  request.on("end", () => {
    response.writeHead(201, { "Content-Type": "application/xml" });
    response.end(answer);
  });
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
const key = Buffer.from("a key of no account").toString("base64");
const queue = new QueueClient(
  `http://127.0.0.1:${server.address().port}/account/queue`,
  new StorageSharedKeyCredential("account", key),
);
await queue.sendMessage("one\ntwo");
server.close();
const text = /<MessageText>([^]*)<\/MessageText>/.exec(sent)[1];
console.log("given:", JSON.stringify("one\ntwo"), "sent:", JSON.stringify(text));
process.exit(text === "onetwo" ? 0 : 1);
JAVASCRIPT
node run.mjs

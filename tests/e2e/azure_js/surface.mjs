// Prints the public surface of the SDK as JSON: exported names, and members of the clients.

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import * as sdk from "@azure/storage-queue";

// Base classes for writing policies, and what only browsers use.
const MACHINERY = new Set([
  "AnonymousCredentialPolicy",
  "BaseRequestPolicy",
  "Credential",
  "CredentialPolicy",
  "StorageBrowserPolicyFactory",
  "StorageRetryPolicy",
  "StorageSharedKeyCredentialPolicy",
]);

function members(className) {
  const main = fileURLToPath(import.meta.resolve("@azure/storage-queue"));
  const file = main.replace(/index\.js$/, `${className}.d.ts`);
  const text = readFileSync(file, "utf8");
  const body = text.slice(text.indexOf(`export declare class ${className} `));
  // Four spaces: the class itself. A private member begins with that word.
  const found = body.matchAll(/^ {4}(?:static |get |readonly )*(\w+)[(:]/gm);
  const names = [...found].map((match) => match[1]).filter((name) => name !== "constructor");
  return [...new Set(names)].map((name) => `${className}.${name}`);
}

const exported = Object.keys(sdk).filter((name) => !MACHINERY.has(name));
const classes = ["QueueClient", "QueueServiceClient"];
console.log(JSON.stringify([...exported, ...classes.flatMap(members)]));

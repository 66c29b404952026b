// Writes one JSON object a line for each finished test, for the Python side to read.

import { basename } from "node:path";

export default async function* report(events) {
  for await (const { type, data } of events) {
    if (type !== "test:pass" && type !== "test:fail") continue;
    const error = data.details?.error;
    yield `${JSON.stringify({
      name: data.name,
      file: basename(data.file ?? ""),
      passed: type === "test:pass",
      todo: data.todo ?? null,
      skipped: data.skip ?? null,
      error: error ? String(error.cause?.stack ?? error.stack ?? error) : null,
    })}\n`;
  }
}

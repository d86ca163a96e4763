// Runs functions of the widgets' modules without a browser, for tests in Python.
//
// A line of standard input is JSON: {script} or {function, arguments}. A line of standard output is
// the result or the error.

import { createInterface } from "node:readline";
import { runInThisContext } from "node:vm";

/** @param {{ script?: string, function?: string, arguments?: unknown[] }} asked */
function answer(asked) {
  if (asked.script !== undefined) {
    runInThisContext(asked.script);
    return null;
  }
  const called = runInThisContext(`(${asked.function})`);
  return called(...(asked.arguments ?? []));
}

for await (const line of createInterface({ input: process.stdin })) {
  let reply;
  try {
    reply = { result: answer(JSON.parse(line)) ?? null };
  } catch (error) {
    reply = { error: String(error instanceof Error ? error.stack : error) };
  }
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}

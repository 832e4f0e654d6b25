// What the checks of client libraries have in common: options, a list of named checks, one line per result.

import { parseArgs } from 'node:util';

const text = { type: 'string' };
export const options = parseArgs({
  options: { url: text, model: text, key: text, 'limited-key': text, engine: text },
}).values;

const checks = [];

export function check(name, body) {
  checks.push([name, body]);
}

export function expect(holds, ...seen) {
  if (!holds) throw new Error(seen.map((part) => JSON.stringify(part)).join(' ') || 'it does not hold');
}

// The error of that class that a promise ends with.
export async function raised(kind, promise) {
  try {
    await promise;
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new Error(`no ${kind.name} was raised`);
}

export async function run() {
  let failed = 0;
  for (const [name, body] of checks) {
    try {
      await body();
      console.log(`ok ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED ${name}\n${error.stack}`);
    }
  }
  console.log(`${checks.length - failed} of ${checks.length} checks hold`);
  process.exitCode = failed ? 1 : 0;
}

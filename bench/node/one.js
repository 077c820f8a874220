// The child process for node-redlock, as bench/one.py is for Python: uncontended and extension.
//
//     node one.js CONTESTANT WORK PARAMS_JSON URL,URL,...
//
// The last line of stdout is a JSON object. The time of every cycle is kept, so percentiles are exact.

"use strict";

const { performance } = require("node:perf_hooks");
const { default: Redis } = require("ioredis");
const { default: Redlock } = require("redlock");

const TTL_MS = 10_000;
const NAMES = 1000; // as bench.contestants.NAMES

async function main() {
  const [contestant, work, json, urls] = process.argv.slice(2);
  const params = JSON.parse(json);
  setTimeout(() => process.exit(3), (params.deadline + 5) * 1000).unref();
  const settings = { enableAutoPipelining: contestant.endsWith("+autopipelining") };
  const clients = urls.split(",").map((url) => new Redis(url, settings));
  // One attempt: the locks of these works are free.
  const redlock = new Redlock(clients, { retryCount: 0 });
  const cycles = { uncontended, extension }[work];
  const workers = params.workers ?? 1;
  const all = async (seconds, meter) => {
    const end = performance.now() + seconds * 1000;
    const one = (_, number) => cycles(redlock, number, workers, end, meter);
    await Promise.all(Array.from({ length: workers }, one));
  };
  // V8 compiles what is hot only after a while: two seconds, where Python needs a fraction of one.
  await all(params.quick ? params.warm_up : Math.max(2, params.warm_up), new Meter());
  const meter = new Meter();
  await all(params.seconds, meter);
  console.log(JSON.stringify(meter.result()));
  clients.forEach((client) => client.disconnect());
}

async function uncontended(redlock, worker, workers, end, meter) {
  const count = Math.max(10, Math.floor(NAMES / workers));
  for (let turn = 0; ; turn++) {
    const began = performance.now();
    if (began > end) return;
    try {
      const lock = await redlock.acquire([`bench:${worker}:${turn % count}`], TTL_MS);
      await lock.release();
      meter.samples.push(performance.now() - began);
    } catch (error) {
      meter.error(error);
    }
  }
}

async function extension(redlock, worker, workers, end, meter) {
  let lock = await redlock.acquire([`bench:extended:${worker}`], TTL_MS);
  for (;;) {
    const began = performance.now();
    if (began > end) break;
    lock = await lock.extend(TTL_MS);
    meter.samples.push(performance.now() - began);
  }
  await lock.release();
}

class Meter {
  constructor() {
    this.samples = [];
    this.errors = {};
    this.cpuBegan = process.cpuUsage();
    this.began = performance.now();
  }

  error(error) {
    const kind = `${error.name}: ${error.message}`.slice(0, 120);
    this.errors[kind] = (this.errors[kind] ?? 0) + 1;
  }

  result() {
    const seconds = (performance.now() - this.began) / 1000;
    const cpu = process.cpuUsage(this.cpuBegan);
    const ordered = Float64Array.from(this.samples).sort();
    const cycles = ordered.length;
    const at = (share) =>
      cycles ? ordered[Math.min(cycles - 1, Math.floor(share * cycles))] * 1000 : null;
    return {
      cycles,
      seconds,
      per_s: cycles / seconds,
      p50_us: at(0.5),
      p99_us: at(0.99),
      worst_us: at(1.0),
      cpu_us: cycles ? (cpu.user + cpu.system) / cycles : null,
      errors: Object.values(this.errors).reduce((sum, count) => sum + count, 0),
      error_kinds: this.errors,
    };
  }
}

main().catch((error) => {
  console.log(JSON.stringify({ failed: `${error.name}: ${error.message}`.slice(0, 300) }));
  process.exit(1);
});

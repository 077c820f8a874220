// The npm package `redlock` on request: one JSON array a line on stdin, one JSON value a line back.
//
//     node npm_redlock.js NODE_MODULES URL,URL,...
//
// ["acquire", [resource, ...], ttl_ms] -> its value, or null; ["extend", ttl_ms], ["release"] -> true
// or false, about the lock that was acquired last.

"use strict";

const { createInterface } = require("node:readline");
const path = require("node:path");

const [modules, urls] = process.argv.slice(2);
const { default: Redis } = require(path.join(modules, "ioredis"));
const { default: Redlock, ExecutionError } = require(path.join(modules, "redlock"));

const clients = urls.split(",").map((url) => new Redis(url));
// One attempt, and no drift that a busy machine could exceed.
const redlock = new Redlock(clients, { retryCount: 0 });
redlock.on("error", () => {});
let lock = null;

const verbs = {
  async acquire(resources, ttl) {
    lock = await redlock.acquire(resources, ttl);
    return lock.value;
  },
  async extend(ttl) {
    lock = await lock.extend(ttl);
    return true;
  },
  async release() {
    await lock.release();
    return true;
  },
};

(async () => {
  for await (const line of createInterface({ input: process.stdin })) {
    const [verb, ...more] = JSON.parse(line);
    let said;
    try {
      said = await verbs[verb](...more);
    } catch (error) {
      if (!(error instanceof ExecutionError)) throw error;
      said = verb === "acquire" ? null : false;
    }
    console.log(JSON.stringify(said));
  }
  clients.forEach((client) => client.disconnect());
})();

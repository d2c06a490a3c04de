// The Node kernel of forkd: runs code sent over descriptor 3 in the global scope, which lasts.
'use strict';

const fs = require('node:fs');
const inspector = require('node:inspector');
const net = require('node:net');
const path = require('node:path');
const util = require('node:util');
const vm = require('node:vm');
const { createRequire } = require('node:module');

const channel = new net.Socket({ fd: 3, readable: true, writable: true });
const session = new inspector.Session();
session.connect();

// A value crosses from the inspector's world into ours through this box.
const box = Symbol.for('forkd.box');
const takeArgument = `function (value) { globalThis[Symbol.for('forkd.box')] = { value }; }`;

let cancel = null;

function send(kind, payload = '') {
  const body = Buffer.from(payload);
  const header = Buffer.alloc(5);
  header.write(kind, 0, 'latin1');
  header.writeUInt32BE(body.length, 1);
  channel.write(Buffer.concat([header, body]));
}

function post(method, params) {
  return new Promise((resolve, reject) => {
    session.post(method, params, (error, reply) => (error ? reject(error) : resolve(reply)));
  });
}

async function unwrap(remote) {
  if (remote.objectId === undefined) {
    if (remote.unserializableValue !== undefined) return vm.runInThisContext(`(${remote.unserializableValue})`);
    return remote.type === 'undefined' ? undefined : remote.value;
  }
  const { result: scope } = await post('Runtime.evaluate', { expression: 'globalThis' });
  await post('Runtime.callFunctionOn', {
    functionDeclaration: takeArgument,
    objectId: scope.objectId,
    arguments: [{ objectId: remote.objectId }],
  });
  const { value } = globalThis[box];
  delete globalThis[box];
  return value;
}

// The inspector's REPL mode gives what a REPL needs: top-level await and redeclaration of const and let.
// It has no way to stop a busy loop from the same thread, so it runs inside a script that SIGINT breaks.
function evaluate(code) {
  const interrupted = new Promise((_, reject) => {
    cancel = () => reject(Object.assign(new Error('interrupted'), { name: 'KeyboardInterrupt' }));
  });
  let started;
  globalThis[box] = () => {
    started = post('Runtime.evaluate', { expression: code, replMode: true, awaitPromise: true, userGesture: false });
  };
  try {
    vm.runInThisContext(`globalThis[Symbol.for('forkd.box')]()`, { breakOnSigint: true });
  } finally {
    delete globalThis[box];
  }
  return Promise.race([started, interrupted]);
}

function trimmed(stack) {
  const lines = String(stack).split('\n');
  const ours = lines.findIndex(
    (line) => line.includes(__filename) || line.includes('node:inspector') || line.includes('forkd.box'),
  );
  return (ours < 0 ? lines : lines.slice(0, ours)).join('\n');
}

function describe(error) {
  if (!(error instanceof Error) && !util.types.isNativeError(error)) {
    return { name: 'Error', value: util.inspect(error), traceback: '' };
  }
  if (error.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED') {
    return { name: 'KeyboardInterrupt', value: 'interrupted', traceback: '' };
  }
  return { name: error.name, value: error.message, traceback: trimmed(error.stack) };
}

const RICH = [
  ['toHtml', 'text/html'],
  ['toSvg', 'image/svg+xml'],
  ['toMarkdown', 'text/markdown'],
];

function rich(value) {
  const mime = {};
  if (value === null || typeof value !== 'object') return mime;
  for (const [method, kind] of RICH) {
    if (typeof value[method] === 'function') mime[kind] = String(value[method]());
  }
  return mime;
}

async function answer(code) {
  try {
    const reply = await evaluate(code);
    if (reply.exceptionDetails) {
      const { exception, text } = reply.exceptionDetails;
      throw exception ? await unwrap(exception) : new Error(text);
    }
    const value = await unwrap(reply.result);
    if (value !== undefined) {
      globalThis._ = value;
      const mime = rich(value);
      send('R', util.inspect(value));
      if (Object.keys(mime).length > 0) send('M', JSON.stringify(mime));
    }
  } catch (error) {
    send('X', JSON.stringify(describe(error)));
  } finally {
    cancel = null;
  }
  send('D');
}

// V8 cannot reseed Math.random, and every child would draw the numbers its siblings draw: xoshiro128** takes its place.
function seededRandom(hex) {
  const s = new Uint32Array(4).map((_, i) => Number.parseInt(hex.slice(i * 8, i * 8 + 8), 16));
  const rotate = (x, k) => (x << k) | (x >>> (32 - k));
  const next = () => {
    const result = Math.imul(rotate(Math.imul(s[1], 5), 7), 9) >>> 0;
    const t = s[1] << 9;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 11);
    return result;
  };
  return () => ((next() >>> 5) * 67108864 + (next() >>> 6)) / 9007199254740992;
}

// Node hands out UUIDs from random bytes it fetched earlier, which all children share.
function freshUuids() {
  const crypto = require('node:crypto');
  const { randomUUID } = crypto;
  crypto.randomUUID = () => randomUUID({ disableEntropyCache: true });
}

function reseed(order) {
  Object.assign(process.env, order.env);
  drawBytes();
  Math.random = seededRandom(order.seed);
  freshUuids();
}

// OpenSSL seeds its generators again when the clock stands before the moment they were last seeded. The agent freezes kernels
// with the clock set ahead, so the first bytes drawn in a child come from the child's own kernel generator.
function drawBytes() {
  require('node:crypto').randomBytes(1);
}

async function handle(kind, payload) {
  if (kind === 'E') return answer(payload.toString());
  if (kind === 'S') reseed(JSON.parse(payload));
  if (kind === 'F') {
    drawBytes();
    globalThis.gc?.();
  }
  send('D');
}

let pending = Buffer.alloc(0);
channel.on('data', (chunk) => {
  pending = pending.length === 0 ? chunk : Buffer.concat([pending, chunk]);
  while (pending.length >= 5) {
    const length = pending.readUInt32BE(1);
    if (pending.length < 5 + length) return;
    const [kind, payload] = [pending.toString('latin1', 0, 1), pending.subarray(5, 5 + length)];
    pending = pending.subarray(5 + length);
    void handle(kind, payload);
  }
});
channel.on('close', () => process.exit(0));
process.on('SIGINT', () => cancel?.());
// User code that fails in the background must not end the kernel.
process.on('uncaughtException', (error) => fs.writeSync(2, `Uncaught ${util.inspect(error)}\n`));
process.on('unhandledRejection', (error) => fs.writeSync(2, `Unhandled rejection ${util.inspect(error)}\n`));

globalThis.require = createRequire(path.join(process.cwd(), 'eval.js'));
send('K');

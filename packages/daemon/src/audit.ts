import {
  closeSync,
  constants,
  fchmodSync,
  fstatSync,
  mkdirSync,
  openSync,
  readSync,
  renameSync,
  writeSync,
} from 'node:fs';
import { dirname } from 'node:path';
import { asForkdError, ForkdError } from '@forkd/protocol';
import type { FastifyBaseLogger } from 'fastify';
import type { Operation } from './operation.js';

const KEPT = 5;
const LONGEST = { method: 32, path: 1024, ua: 256 };

/**
 * Append-only lines of JSON: who did what, when, and how it ended. Each is written as soon as it
 * is known, so a crash loses only those it interrupts. It never holds a token, a query or a body.
 */
export class AuditLog {
  readonly #path: string;
  readonly #maxBytes: number;
  #file: number;
  #size = 0;
  /** Only a file is rotated: the log may be /dev/stdout. */
  #rotates = false;
  /** The last line is not whole. */
  #torn = false;
  #failing = false;

  constructor({ auditLog, auditMaxBytes }: { auditLog: string; auditMaxBytes: number }) {
    this.#path = auditLog;
    this.#maxBytes = auditMaxBytes;
    try {
      makeFolder(dirname(auditLog));
      this.#file = this.#open();
    } catch (thrown) {
      throw new ForkdError(asForkdError(thrown).code, `cannot write the audit log ${auditLog}`, {
        hint: 'Name a file that can be written with --audit-log.',
        cause: thrown,
      });
    }
  }

  /** A request is answered also when the disk is full: that is said once, and once more when it works again. */
  write(operation: Operation): void {
    const { log } = operation.request;
    try {
      this.#append(`${this.#torn ? '\n' : ''}${JSON.stringify(auditLine(operation))}\n`, log);
      if (this.#failing) log.warn('the audit log is being written again');
      this.#failing = false;
    } catch (thrown) {
      if (!this.#failing) log.error({ err: thrown }, 'the audit log cannot be written: requests go unrecorded');
      this.#failing = true;
    }
  }

  /** After somebody else has moved the file away. Keeps the old one when that fails. */
  reopen(): void {
    const old = this.#file;
    this.#file = this.#open();
    closeSync(old);
  }

  close(): void {
    closeSync(this.#file);
  }

  #open(): number {
    const file = openSync(this.#path, constants.O_RDWR | constants.O_CREAT | constants.O_APPEND, 0o600);
    const found = fstatSync(file);
    this.#rotates = found.isFile();
    this.#size = found.size;
    if (this.#rotates) fchmodSync(file, 0o600);
    const last = Buffer.alloc(1);
    this.#torn = this.#rotates && found.size > 0 && readSync(file, last, 0, 1, found.size - 1) === 1 && last[0] !== 10;
    return file;
  }

  #append(text: string, log: FastifyBaseLogger): void {
    const bytes = Buffer.from(text);
    if (this.#rotates && this.#maxBytes > 0 && this.#size > 0 && this.#size + bytes.length > this.#maxBytes)
      this.#rotate(log);
    const written = writeSync(this.#file, bytes);
    this.#size += written;
    this.#torn = written < bytes.length;
    if (this.#torn) throw new ForkdError('disk_full', 'the disk is full');
  }

  #rotate(log: FastifyBaseLogger): void {
    try {
      for (let age = KEPT - 1; age >= 0; age--) {
        const from = age === 0 ? this.#path : `${this.#path}.${age}`;
        try {
          renameSync(from, `${this.#path}.${age + 1}`);
        } catch (thrown) {
          if ((thrown as NodeJS.ErrnoException).code !== 'ENOENT') throw thrown;
        }
      }
      this.reopen();
    } catch (thrown) {
      // A log that grows is better than one that stops.
      log.error({ err: thrown }, 'the audit log cannot be rotated');
      this.#rotates = false;
    }
  }
}

/** One level only: the recursive way of Node never ends below /proc. */
function makeFolder(path: string): void {
  try {
    mkdirSync(path, { mode: 0o700 });
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code !== 'EEXIST') throw thrown;
  }
}

/** forkd's fields with its names, then ours. */
function auditLine({ request, startedAt, path, status, seconds, remote, subjects, outcome }: Operation): object {
  return {
    ts: new Date(startedAt).toISOString(),
    method: request.method.slice(0, LONGEST.method),
    path: path.slice(0, LONGEST.path),
    status,
    latency_us: Math.round(seconds * 1e6),
    ua: (request.headers['user-agent'] ?? '').slice(0, LONGEST.ua),
    remote,
    token: request.caller?.name ?? null,
    request_id: request.id,
    ...subjects,
    outcome,
  };
}

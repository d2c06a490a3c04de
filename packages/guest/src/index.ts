export { connectGuest, GuestClient } from './client.js';
export type { EvalError, EvalOptions, EvalResult, Language } from './eval.js';
export type { CallOptions } from './exchange.js';
export { type ExecOptions, type ExecResult, feed } from './exec.js';
export type { FileInfo, FileOptions, GuestFiles, WatchEvent } from './files.js';
export { hail } from './hail.js';
export type { Identity } from './identity.js';
export type { Exit, GuestProcess, OutputChunk, StartOptions } from './process.js';
export type { Wish, WishAnswer } from './wishes.js';

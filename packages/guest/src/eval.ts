import { ForkdError } from '@forkd/protocol';
import { z } from 'zod';
import type { CallOptions } from './exchange.js';
import { lines } from './lines.js';
import { TextCollector } from './text-collector.js';
import { parseReply, post, type Transport } from './transport.js';

export type Language = 'python' | 'node';

export interface EvalOptions extends CallOptions {
  language: Language;
  code: string;
  onStdout?: ((text: string) => void) | undefined;
  onStderr?: ((text: string) => void) | undefined;
  /** What is kept of stdout and stderr together; the rest is dropped and `truncated` says so. */
  maxOutputBytes?: number | undefined;
}

export interface EvalError {
  name: string;
  value: string;
  traceback: string;
}

export interface EvalResult {
  /** The repr of a trailing expression. */
  result: string | null;
  /** Richer forms of the same value; binary ones as base64. */
  mime: Record<string, unknown>;
  stdout: string;
  stderr: string;
  truncated: boolean;
  error: EvalError | null;
}

const DEFAULT_TIMEOUT_MS = 600_000;
/** The agent interrupts late code and kills it two seconds after; a guest that does not is given up soon after that. */
const MARGIN_MS = 5_000;
/** One line is a chunk of output or the repr of one value. */
const LINE_LIMIT = 64 << 20;

const Line = z.discriminatedUnion('type', [
  z.object({ type: z.literal('stdout'), text: z.string() }),
  z.object({ type: z.literal('stderr'), text: z.string() }),
  z.object({ type: z.literal('truncated') }),
  z.object({ type: z.literal('result'), text: z.string(), mime: z.record(z.string(), z.unknown()).default({}) }),
  z.object({
    type: z.literal('error'),
    name: z.string().default('Error'),
    value: z.string().default(''),
    traceback: z.string().default(''),
  }),
  z.object({ type: z.literal('end') }),
]);

/** Runs code in the kernel of a language, which keeps its state from call to call. An error in the code is a result. */
export async function evaluate(transport: Transport, options: EvalOptions): Promise<EvalResult> {
  const { language, code, signal, timeoutMs = DEFAULT_TIMEOUT_MS } = options;
  const limit = timeoutMs > 0 ? Math.ceil(timeoutMs) : undefined;
  const request = { what: 'eval', headers: post('/forkd/eval') };
  const exchange = transport.open(request, { signal, timeoutMs: limit === undefined ? 0 : limit + MARGIN_MS });
  exchange.stream.end(JSON.stringify({ language, code, timeout_ms: limit }));
  await transport.accepted(exchange, request);

  const output = new TextCollector(options.maxOutputBytes);
  let result: string | null = null;
  let mime: Record<string, unknown> = {};
  let error: EvalError | null = null;
  for await (const bytes of lines('eval', exchange.chunks(), LINE_LIMIT)) {
    const line = parseReply('eval', bytes, Line);
    switch (line.type) {
      case 'stdout':
        options.onStdout?.(line.text);
        output.add('stdout', Buffer.from(line.text));
        break;
      case 'stderr':
        options.onStderr?.(line.text);
        output.add('stderr', Buffer.from(line.text));
        break;
      case 'truncated':
        output.markTruncated();
        break;
      case 'result':
        ({ text: result, mime } = line);
        break;
      case 'error':
        error = { name: line.name, value: line.value, traceback: line.traceback };
        break;
      case 'end':
        return { result, mime, error, ...output.finish() };
    }
  }
  throw new ForkdError('guest_protocol', 'eval: the guest ended its reply without an end');
}

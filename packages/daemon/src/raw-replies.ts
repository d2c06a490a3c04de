import { randomUUID } from 'node:crypto';
import { type Server, type ServerResponse, STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';
import { ForkdError } from '@forkd/protocol';
import { errorBody } from './error-replies.js';
import { endAndLinger } from './linger.js';

const LATE = new Set(['ECONNRESET', 'HPE_CLOSED_CONNECTION']);

/** Those that have their answer. The parser complains again about each piece of what they still send. */
const refused = new WeakSet<Duplex>();

/** What the HTTP parser refuses never becomes a request, but is answered in the one shape of errors too. */
export function replyRawErrors(server: Server): void {
  server.on('clientError', (thrown: NodeJS.ErrnoException, socket: Duplex & { _httpMessage?: ServerResponse }) => {
    if (refused.has(socket)) return;
    // Into the middle of an answer nothing can be written, and after the last one nothing may follow.
    if (LATE.has(thrown.code ?? '') || !socket.writable || socket._httpMessage?.headersSent) socket.destroy();
    else refuse(socket, parserError(thrown.code));
  });
  server.on('connect', (_request, socket: Duplex) =>
    refuse(socket, new ForkdError('method_not_allowed', 'this is not a proxy')),
  );
  server.on('checkExpectation', (request, _reply) =>
    refuse(request.socket, new ForkdError('expectation_failed', 'the header Expect asks for something unknown')),
  );
}

function parserError(code: string | undefined): ForkdError {
  switch (code) {
    case 'HPE_HEADER_OVERFLOW':
      return new ForkdError('headers_too_large', 'the URL and the headers are too large');
    case 'HPE_CHUNK_EXTENSIONS_OVERFLOW':
      return new ForkdError('too_large', 'the chunk extensions are too large');
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return new ForkdError('request_timeout', 'the request did not arrive in time');
    default:
      return new ForkdError('invalid_request', 'this is not an HTTP/1.1 request');
  }
}

/** Answers past the server, which has given the connection up. */
function refuse(socket: Duplex, error: ForkdError): void {
  refused.add(socket);
  const requestId = randomUUID();
  const body = JSON.stringify(errorBody(error, requestId));
  const head = [
    `HTTP/1.1 ${error.status} ${STATUS_CODES[error.status]}`,
    'content-type: application/json; charset=utf-8',
    `content-length: ${Buffer.byteLength(body)}`,
    `x-request-id: ${requestId}`,
    'connection: close',
  ];
  socket.on('error', () => socket.destroy());
  endAndLinger(socket, `${head.join('\r\n')}\r\n\r\n${body}`);
}

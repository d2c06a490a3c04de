import type { IncomingMessage, OutgoingHttpHeaders } from 'node:http';
import type { TLSSocket } from 'node:tls';
import { ForkdError } from '@forkd/protocol';
import { peerOf } from '../peer.js';

/** They speak of one connection, and end with it. */
const HOP_BY_HOP = [
  ...['connection', 'keep-alive', 'proxy-authenticate', 'proxy-authorization', 'proxy-connection', 'te', 'trailer'],
  ...['transfer-encoding', 'upgrade', 'http2-settings', 'content-length', 'expect'],
];

/** What a guest must not learn, and what it must hear from the daemon alone. */
const NOT_FOR_GUESTS = [
  ...['authorization', 'host', 'forwarded', 'x-forwarded-for', 'x-forwarded-host', 'x-forwarded-proto'],
  ...['x-forwarded-port', 'x-forwarded-prefix', 'x-real-ip'],
];

/** What a guest must not say for a whole host: others answer at it too. */
const NOT_FOR_BROWSERS = ['strict-transport-security', 'public-key-pins', 'alt-svc', 'x-request-id'];
const NOT_FOR_THIS_ORIGIN = ['set-cookie', 'clear-site-data', 'service-worker-allowed', 'report-to', 'nel'];

/**
 * A page that came by path is of the daemon's own origin. In this cage it is of none: what it asks the daemon for says
 * `Origin: null`, and it can neither read nor keep anything of that origin.
 */
const CAGE = 'sandbox allow-scripts allow-forms allow-modals allow-popups allow-downloads';

/** How a request came in: by a name of its own, or below a path of the daemon. */
export interface Way {
  port: number;
  /** Only where it came by path. */
  prefix: string | undefined;
}

/** The headers of the request that is made to the guest in place of this one. */
export function toGuest(request: IncomingMessage, { port, prefix }: Way): OutgoingHttpHeaders {
  const { host = '', origin } = request.headers;
  const headers = collected(request.rawHeaders, [...NOT_FOR_GUESTS, ...(prefix === undefined ? [] : ['cookie'])]);
  // By name a site sees itself as the browser does; by path the daemon's name would say nothing to it.
  const local = `localhost:${port}`;
  headers.host = prefix === undefined ? host : local;
  if (prefix !== undefined && origin !== undefined && URL.canParse(origin) && new URL(origin).host === host)
    headers.origin = `http://${local}`;
  headers['x-forwarded-for'] = peerOf(request.socket).address;
  headers['x-forwarded-proto'] = (request.socket as TLSSocket).encrypted ? 'https' : 'http';
  headers['x-forwarded-host'] = host;
  if (prefix !== undefined) headers['x-forwarded-prefix'] = prefix;
  return headers;
}

/** How the body is framed, in one way that nobody can read in two. */
export function framing({ headers, httpVersion }: IncomingMessage): OutgoingHttpHeaders {
  const { 'content-length': length, 'transfer-encoding': coding } = headers;
  if (coding === undefined) return length === undefined ? {} : { 'content-length': length };
  if (length !== undefined || coding.toLowerCase() !== 'chunked' || httpVersion !== '1.1')
    throw new ForkdError('invalid_request', 'it is not clear where the body of the request ends', {
      hint: 'Send either Content-Length, or "Transfer-Encoding: chunked" over HTTP/1.1.',
    });
  return { 'transfer-encoding': 'chunked' };
}

/** The headers of the answer that is given in place of the guest's. */
export function toClient(answer: IncomingMessage, { port, prefix }: Way, requestId: string): OutgoingHttpHeaders {
  const dropped = [...NOT_FOR_BROWSERS, ...(prefix === undefined ? [] : NOT_FOR_THIS_ORIGIN)];
  const headers = collected(answer.rawHeaders, dropped);
  const { 'content-length': length, 'transfer-encoding': coding, 'set-cookie': cookies, location } = answer.headers;
  if (length !== undefined && coding === undefined) headers['content-length'] = length;
  if (prefix === undefined) {
    // Else it would be sent to the daemon and to all other sandboxes below the domain.
    if (cookies) headers['set-cookie'] = cookies.map((cookie) => cookie.replace(/;\s*domain=[^;]*/gi, ''));
  } else {
    const { 'content-security-policy': policy = [] } = headers as Record<string, string[]>;
    Object.assign(headers, { 'content-security-policy': [...policy, CAGE] });
    if (location !== undefined) headers.location = below(prefix, location, port);
  }
  headers['x-request-id'] = requestId;
  return headers;
}

/** A path of the site as a path of the daemon. */
function below(prefix: string, location: string, port: number): string {
  const path = location.replace(new RegExp(`^https?://(localhost|127\\.0\\.0\\.1):${port}(?=/|$)`), '') || '/';
  return path.startsWith('/') && !path.startsWith('//') ? prefix + path : location;
}

/** By their names in small letters, without those of the connection. */
function collected(raw: string[], dropped: string[]): OutgoingHttpHeaders {
  const found = new Map<string, string[]>();
  for (let at = 0; at < raw.length; at += 2) {
    const name = raw[at]!.toLowerCase();
    found.set(name, [...(found.get(name) ?? []), raw[at + 1]!]);
  }
  const named = (found.get('connection') ?? []).flatMap((value) => value.toLowerCase().split(/[\s,]+/));
  for (const name of [...HOP_BY_HOP, ...dropped, ...named]) found.delete(name);
  return Object.assign(Object.create(null), Object.fromEntries(found)) as OutgoingHttpHeaders;
}

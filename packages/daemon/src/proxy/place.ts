import type { IncomingMessage } from 'node:http';
import { refuseUrl, withoutBadUrls } from '../bad-url.js';

/** A port of a sandbox, as a name of its own says it: `PORT-ID.DOMAIN`. */
export interface Place {
  port: string;
  id: string;
}

const NAMED = new WeakSet<IncomingMessage>();

/** `undefined`: the name of something else, or there are no such names. */
export function placeOf(host: string | undefined, domain: string | undefined): Place | undefined {
  const match = /^(\d{1,5})-(sb-[0-9a-z]{20})\.([a-z0-9.-]+?)(?::\d*)?$/i.exec(host ?? '');
  if (!match || match[3]!.toLowerCase() !== domain) return undefined;
  return { port: match[1]!, id: match[2]!.toLowerCase() };
}

/** What came by such a name goes the way of every other request, to the route that says the same as a path. */
export function rewriteUrl(request: IncomingMessage, domain: string | undefined): string {
  const url = withoutBadUrls(request);
  const place = placeOf(request.headers.host, domain);
  if (!place) return url;
  // A whole URL could name another host than the header does.
  if (!request.url?.startsWith('/')) return refuseUrl(request);
  NAMED.add(request);
  return url === request.url ? `/v1/sandboxes/${place.id}/proxy/${place.port}${url}` : url;
}

/** Whether it came by name, and not by path. */
export function cameByName(request: IncomingMessage): boolean {
  return NAMED.has(request);
}

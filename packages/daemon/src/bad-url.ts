import type { IncomingMessage } from 'node:http';

const BAD = new WeakSet<IncomingMessage>();

/**
 * The router answers a path that cannot be decoded by itself, before any hook has asked who is calling. Such a request
 * is sent to a path that does not exist, so that it goes the way of every other.
 */
export function withoutBadUrls(request: IncomingMessage): string {
  const url = request.url ?? '/';
  try {
    if (url.includes('%')) decodeURIComponent(url.split('?', 1)[0]!);
    if (/^(\/|https?:\/\/)/.test(url)) return url;
  } catch {}
  return refuseUrl(request);
}

/** The path to send it to. */
export function refuseUrl(request: IncomingMessage): string {
  BAD.add(request);
  return '/bad-url';
}

export function isBadUrl(request: IncomingMessage): boolean {
  return BAD.has(request);
}

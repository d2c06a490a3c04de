import { readHello } from './client-hello.js';

/** What the first bytes of a connection say about where it is meant to go. */
export interface Sniffed {
  kind: 'tls' | 'http' | 'other';
  /** Only of TLS: each request of HTTP has its own. */
  name: string | undefined;
  /** It may name a host that we cannot see: only the address counts. */
  isHidden: boolean;
}

const LONGEST_LINE = 16 << 10;
export const OTHER: Sniffed = { kind: 'other', name: undefined, isHidden: false };
export const HIDDEN: Sniffed = { kind: 'other', name: undefined, isHidden: true };

/** `more`: cannot be said yet. */
export function sniff(bytes: Buffer): Sniffed | 'more' {
  if (bytes.length === 0) return 'more';
  if (bytes[0] === 0x16) {
    const hello = readHello(bytes);
    return hello === 'more' ? hello : { kind: 'tls', ...hello };
  }
  const text = bytes.toString('latin1', 0, LONGEST_LINE);
  // Servers skip empty lines before a request.
  if (/^[\r\n]/.test(text)) return HIDDEN;
  const [line = ''] = text.split('\n', 1);
  if (line.length === text.length) {
    if (!/^[\x20-\x7e\t]*\r?$/.test(line)) return OTHER;
    return text.length < LONGEST_LINE ? 'more' : HIDDEN;
  }
  if (/^[A-Z][A-Z-]{0,29} [!-~]+ HTTP\/1\.[01]\r$/.test(line))
    return { kind: 'http', name: undefined, isHidden: false };
  // HTTP/2 in clear text, and what only a lenient server would take for HTTP.
  return /http\//i.test(line) ? HIDDEN : OTHER;
}

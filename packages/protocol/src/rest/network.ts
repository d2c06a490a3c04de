import { z } from 'zod';
import { hostName, LONGEST_ENTRY, parseEntry } from '../network/entry.js';
import { text } from './fields.js';

export const MOST_ENTRIES = 256;
const MOST_RULES = 32;
const MOST_HEADERS = 16;

/** In the form all entries are kept in. */
const PolicyEntry = z
  .string()
  .max(LONGEST_ENTRY)
  .transform((given, context) => {
    const entry = parseEntry(given);
    if (typeof entry !== 'string') return entry.text;
    context.addIssue({ code: 'custom', message: entry });
    return z.NEVER;
  });

const Entries = z.array(PolicyEntry).max(MOST_ENTRIES).default([]);

/** What holds where no entry says anything. `internet`: public addresses. `all`: private ones too. */
export const NetworkPreset = z.enum(['none', 'internet', 'all']);
export type NetworkPreset = z.infer<typeof NetworkPreset>;

/** Where the connections of a sandbox may go. */
export const NetworkPolicy = z.strictObject({
  preset: NetworkPreset.default('none'),
  allow: Entries,
  deny: Entries,
});
export type NetworkPolicy = z.infer<typeof NetworkPolicy>;

/** Headers that say how a message is framed or where it goes are not for rules. */
const FRAMING =
  /^(host|content-length|transfer-encoding|connection|upgrade|te|trailer|keep-alive|expect|proxy-.*|sec-websocket-.*)$/;

const HeaderName = z
  .string()
  .regex(/^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$/, 'not the name of a header')
  .transform((name) => name.toLowerCase())
  .refine((name) => !FRAMING.test(name), 'this header cannot be set');

const HeaderValue = z
  .string()
  .max(8192)
  .regex(/^[\x20-\x7e\t]*$/, 'only visible ASCII characters, spaces and tabs');

const RuleHost = z
  .string()
  .max(254)
  .transform((given, context) => {
    const name = hostName(given);
    if (name !== undefined) return name;
    context.addIssue({ code: 'custom', message: 'not a host name, such as api.example.com' });
    return z.NEVER;
  });

/** Headers that the host's proxy sets on requests to these hosts, over TLS. The guest never sees their values. */
export const EgressRules = z
  .record(
    RuleHost,
    z.strictObject({
      headers: z
        .record(HeaderName, HeaderValue)
        .refine((headers) => Object.keys(headers).length <= MOST_HEADERS, `more than ${MOST_HEADERS} headers`),
    }),
  )
  .refine((rules) => Object.keys(rules).length <= MOST_RULES, `more than ${MOST_RULES} hosts`);
export type EgressRules = z.infer<typeof EgressRules>;

/** For a new sandbox. */
export const NetworkRequest = NetworkPolicy.extend({
  rules: EgressRules.optional(),
  /** Says that it may reach more than the snapshot it comes from. */
  widen: z.boolean().default(false),
});
export type NetworkRequest = z.infer<typeof NetworkRequest>;

/** The whole policy is replaced; rules stay as they are where none are given. */
export const ChangeNetwork = NetworkPolicy.extend({ rules: EgressRules.optional() });
export type ChangeNetwork = z.input<typeof ChangeNetwork>;

export const NetworkDecision = z.object({
  at_unix_ms: z.number().int(),
  kind: z.enum(['tcp', 'udp', 'dns']),
  name: z.string().optional(),
  address: z.string().optional(),
  port: z.number().int().optional(),
  allowed: z.boolean(),
  /** The entry or preset that decided, or why. */
  rule: z.string(),
});
export type NetworkDecision = z.infer<typeof NetworkDecision>;

export const NetworkCounters = z.object({
  /** Connections, by how they were decided. */
  allowed: z.number().int(),
  denied: z.number().int(),
  open: z.number().int(),
  bytes_sent: z.number().int(),
  bytes_received: z.number().int(),
  dns_answered: z.number().int(),
  dns_denied: z.number().int(),
  /** Beyond the rate a sandbox may ask at. */
  dns_dropped: z.number().int(),
});
export type NetworkCounters = z.infer<typeof NetworkCounters>;

/** What a sandbox has sent in vain, since its VM was started. */
export const NetworkDrops = z.object({
  /** Frames whose sender is not the sandbox: MAC address, IP address or ARP. */
  spoofed: z.number().int(),
  /** UDP to anything but the resolver, where nothing in the policy could allow it. */
  udp: z.number().int(),
  /** ICMP to anything but the gateway, and all other protocols. */
  other: z.number().int(),
});
export type NetworkDrops = z.infer<typeof NetworkDrops>;

/**
 * Where what a sandbox sends goes. `tap`: to the daemon, which holds it to its policy. `user`: nowhere, there is no tap here.
 * `lost`: nowhere, the daemon could not take the network over from the one before. `none`: it has no device, or has ended.
 */
export const NetworkWire = z.enum(['tap', 'user', 'lost', 'none']);
export type NetworkWire = z.infer<typeof NetworkWire>;

export const NetworkInfo = NetworkPolicy.extend({
  wire: NetworkWire,
  /** Names of the headers that are set, never their values. */
  rules: z.record(z.string(), z.object({ headers: z.array(z.string()) })),
  counters: NetworkCounters,
  /** `null`: it has no network. */
  drops: NetworkDrops.nullable(),
  /** The most recent ones, newest last. */
  decisions: z.array(NetworkDecision),
});
export type NetworkInfo = z.infer<typeof NetworkInfo>;

/** `preset`, then entries: `internet !10.0.0.0/8 api.example.com:443`, as a flag of the daemon has it. */
export const PolicyText = text(8192).transform((given, context) => {
  const [preset = '', ...words] = given.split(/[\s,]+/).filter(Boolean);
  const deny = words.filter((word) => word.startsWith('!')).map((word) => word.slice(1));
  const policy = NetworkPolicy.safeParse({ preset, allow: words.filter((word) => !word.startsWith('!')), deny });
  if (policy.success) return policy.data;
  context.addIssue({ code: 'custom', message: policy.error.issues[0]?.message ?? 'not a policy' });
  return z.NEVER;
});

import type { NetworkInfo } from '@forkd/sdk';
import { command } from '../command.js';
import type { Output } from '../output.js';
import { bytes } from '../units.js';
import { sandboxId } from '../values.js';
import { NETWORK } from './flags.js';
import { networkRequest } from './network-request.js';

export const network = command({
  name: 'network',
  group: 'sandboxes',
  summary: 'Show where the connections of a sandbox may go and went, or replace its policy',
  operands: [{ name: 'ID', complete: 'sandboxes' }],
  flags: NETWORK,
  examples: ['forkd network ID', 'forkd network ID --allow api.example.com:443 --allow 10.0.0.0/8'],
  async run(context, { flags, operands: [id = ''] }) {
    const { signal, output } = context;
    const sandbox = await (await context.daemon()).sandboxes.get(sandboxId(id), { signal });
    const wanted = networkRequest(flags);
    const info = wanted ? await sandbox.setNetwork(wanted, { signal }) : await sandbox.network({ signal });
    await output.result(info, () => described(output, info));
  },
});

const WIRES: Record<NetworkInfo['wire'], string> = {
  tap: 'tap',
  user: 'user: it reaches nothing, no tap could be made when its snapshot was',
  lost: 'lost: it reaches nothing, the daemon could not take its network over',
  none: 'none: it has no network device',
};

function described(
  output: Output,
  { wire, preset, allow, deny, rules, counters, drops, decisions }: NetworkInfo,
): string {
  const headers = Object.entries(rules).map(([host, rule]) => `${host}: ${rule.headers.join(', ')}`);
  const rows = [
    ['wire', WIRES[wire]],
    ['preset', preset],
    ['allow', allow.join(' ') || '-'],
    ['deny', deny.join(' ') || '-'],
    ['headers', headers.join('; ') || '-'],
    ['connections', `${counters.allowed} allowed, ${counters.denied} denied, ${counters.open} open`],
    ['bytes', `${bytes(counters.bytes_sent)} sent, ${bytes(counters.bytes_received)} received`],
    ['names', `${counters.dns_answered} answered, ${counters.dns_denied} denied, ${counters.dns_dropped} dropped`],
    ['dropped', drops ? `${drops.udp} UDP, ${drops.other} other, ${drops.spoofed} with another sender` : '-'],
  ];
  const recent = decisions
    .slice(-10)
    .map(({ kind, name, address, port, allowed, rule }) => [
      kind,
      [name, address].filter(Boolean).join(' '),
      `${port ?? ''}`,
      allowed ? 'allowed' : 'denied',
      rule,
    ]);
  const table = output.table(['WHAT', 'VALUE'], rows);
  return recent.length === 0 ? table : `${table}\n\n${output.table(['KIND', 'WHERE', 'PORT', '', 'RULE'], recent)}`;
}

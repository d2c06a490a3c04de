import type { Workspace } from '@forkd/sdk';
import { command, option, toggle } from '../command.js';
import { count, tag } from '../values.js';
import { NETWORK } from './flags.js';
import { networkRequest } from './network-request.js';

const NAME = [{ name: 'NAME' }] as const;

const create = command({
  name: 'workspace create',
  group: 'sandboxes',
  summary: 'Create a named sandbox that can be suspended',
  operands: NAME,
  flags: {
    snapshot: option('TAG', tag, 'Snapshot to begin with', { isRequired: true, complete: 'tags' }),
    'per-child-netns': toggle('A network namespace of its own (always so)'),
    ...NETWORK,
    'memory-limit-mib': option('MIB', count(16, 1 << 20), 'Memory it may use on the host'),
    'guest-branch': toggle('Programs in it may fork it: forkd-guest branch'),
  },
  async run(context, { flags, operands: [name = ''] }) {
    const made = await (await context.daemon()).workspaces.create({
      name: tag(name),
      snapshot_tag: flags.snapshot,
      per_child_netns: flags['per-child-netns'],
      ...(flags['memory-limit-mib'] !== undefined && { memory_limit_mib: flags['memory-limit-mib'] }),
      ...(flags['guest-branch'] && { guest_branch: true }),
      network: networkRequest(flags),
      signal: context.signal,
    });
    await context.output.result(made, () => line(made));
  },
});

const suspend = command({
  name: 'workspace suspend',
  group: 'sandboxes',
  summary: 'Save a workspace and end its sandbox',
  operands: NAME,
  flags: { diff: toggle('Save only what differs from its parent') },
  async run(context, { flags: { diff }, operands: [name = ''] }) {
    const { workspaces } = await context.daemon();
    const saved = await workspaces.suspend(tag(name), { diff, signal: context.signal });
    await context.output.result(saved, () => line(saved));
  },
});

const resume = command({
  name: 'workspace resume',
  group: 'sandboxes',
  summary: 'Start a suspended workspace again',
  operands: NAME,
  flags: {},
  async run(context, { operands: [name = ''] }) {
    const started = await (await context.daemon()).workspaces.resume(tag(name), { signal: context.signal });
    await context.output.result(started, () => line(started));
  },
});

const list = command({
  name: 'workspace list',
  group: 'sandboxes',
  summary: 'List workspaces',
  flags: {},
  async run(context) {
    const found = await (await context.daemon()).workspaces.list({ signal: context.signal });
    await context.output.result(found, () => found.map(line).join('\n'));
  },
});

const remove = command({
  name: 'workspace delete',
  group: 'sandboxes',
  summary: 'Remove a workspace, its sandbox and its saved state',
  operands: NAME,
  flags: {},
  async run(context, { operands: [name = ''] }) {
    await (await context.daemon()).workspaces.remove(tag(name), { signal: context.signal });
    await context.output.result({ name, ok: true }, () => context.output.good(name));
  },
});

export const workspaces = [create, suspend, resume, list, remove];

function line({ name, status, source_snapshot_tag, current_state_tag, live_sandbox_id }: Workspace): string {
  return `${name}  ${status}  source=${source_snapshot_tag}  state=${current_state_tag ?? '-'}  live=${live_sandbox_id ?? '-'}`;
}

import { readdirSync, readFileSync } from 'node:fs';
import { processesUsing, tapsOf } from '@forkd/controller';
import type { SandboxInfo, SnapshotInfo, WorkspaceInfo } from '@forkd/protocol';
import type { DaemonProcess } from './daemon-process.js';
import { call, type Promised } from './load.js';

/** Says nothing where nobody takes the connection: whether it may go on is another matter. */
const CONNECT = '! (exec 3<>/dev/tcp/203.0.113.7/80) 2>&1 | grep -q refused && hostname';

export interface Findings {
  orphans: string[];
  unusable_tags: string[];
  lost_sandboxes: string[];
  leaked_files: string[];
  lost_work: string[];
}

/** Compares what a daemon that has just started says with what was promised, what runs and what is on disk. */
export async function audit(daemon: DaemonProcess, data: string, promised: Promised): Promise<Findings> {
  const sandboxes = (await call(daemon, 'GET', '/v1/sandboxes')).json as SandboxInfo[];
  const snapshots = (await call(daemon, 'GET', '/v1/snapshots')).json as SnapshotInfo[];
  // Before anything is spawned: the daemon has nothing running but what it lists.
  const processes = [...orphans(data, daemon, sandboxes), ...strayNetworks(daemon, sandboxes)];
  const workspaces = (await call(daemon, 'GET', '/v1/workspaces')).json as WorkspaceInfo[];
  const files = [...leakedFiles(data, sandboxes, snapshots), ...strays(workspaces, sandboxes, snapshots)];
  const lost = await lostSandboxes(daemon, sandboxes, promised);
  const unusable = await unusableTags(daemon, snapshots, promised);
  const work = await lostWork(daemon, workspaces, promised);
  return {
    ...{ orphans: processes, unusable_tags: unusable, lost_sandboxes: lost },
    ...{ leaked_files: files, lost_work: work },
  };
}

function orphans(data: string, daemon: DaemonProcess, sandboxes: SandboxInfo[]): string[] {
  const known = new Set([daemon.pid, daemon.helper, ...sandboxes.map(({ pid }) => pid)]);
  return processesUsing(data)
    .filter((pid) => !known.has(pid))
    .map((pid) => `${pid} ${readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ').slice(0, 300)}`);
}

/** A network lasts as long as somebody has its tap: each VM has one, and nobody else has any yet. */
function strayNetworks(daemon: DaemonProcess, sandboxes: SandboxInfo[]): string[] {
  const wrong = sandboxes
    .filter(({ pid }) => tapsOf(pid!) !== 1)
    .map(({ id, pid }) => `${id} has ${tapsOf(pid!)} taps`);
  return tapsOf(daemon.helper) === 0 ? wrong : [...wrong, `the helper has ${tapsOf(daemon.helper)} taps`];
}

function leakedFiles(data: string, sandboxes: SandboxInfo[], snapshots: SnapshotInfo[]): string[] {
  const tags = new Set(snapshots.map(({ tag }) => tag));
  // One that took the place of another has a directory that is not named after it.
  const all = readdirSync(`${data}/run/daemon`);
  const strange = all.filter((name) => !sandboxes.some(({ id }) => id === name));
  const directories = all.length === sandboxes.length ? [] : strange;
  const saved = readdirSync(`${data}/snapshots`).filter((name) => !tags.has(name));
  const sockets = readFileSync('/proc/net/unix', 'utf8')
    .split('\n')
    .filter((line) => line.includes(` ${data}/`) && !all.some((name) => line.includes(`/${name}/`)));
  return [...directories, ...saved, ...sockets];
}

/** A sandbox or a saved state that was made for a workspace which does not know it. */
function strays(workspaces: WorkspaceInfo[], sandboxes: SandboxInfo[], snapshots: SnapshotInfo[]): string[] {
  const ids = new Set(workspaces.map(({ live_sandbox_id }) => live_sandbox_id));
  const tags = new Set(workspaces.map(({ current_state_tag }) => current_state_tag));
  return [
    ...sandboxes
      .filter(({ id, metadata }) => metadata?.workspace && !ids.has(id))
      .map(({ id }) => `${id} of a workspace`),
    ...snapshots
      .filter(({ tag, status }) => tag.startsWith('ws-') && status === 'ready' && !tags.has(tag))
      .map(({ tag }) => tag),
  ];
}

/** A workspace that was promised goes on from what it wrote down last, or from later. */
async function lostWork(daemon: DaemonProcess, workspaces: WorkspaceInfo[], promised: Promised): Promise<string[]> {
  const lost = [...promised.workspaces.keys()].filter((name) => !workspaces.some((one) => one.name === name));
  for (const { name, live_sandbox_id } of workspaces) {
    const number = promised.workspaces.get(name) ?? 0;
    const [method, path] = live_sandbox_id ? ['GET', ''] : ['POST', '/resume'];
    const { json: workspace } = await call(daemon, method, `/v1/workspaces/${name}${path}`);
    const id = (workspace as WorkspaceInfo).live_sandbox_id;
    const args = ['sh', '-c', 'cat /root/number || echo 0'];
    const { json } = await call(daemon, 'POST', `/v1/sandboxes/${id}/exec`, { args });
    const found = Number((json as { stdout?: string }).stdout);
    if (!(found >= number)) lost.push(`${name} is at ${found}, not ${number}: ${JSON.stringify({ workspace, json })}`);
    // Also one whose maker was not told of it is there for good.
    promised.workspaces.set(name, found);
  }
  return lost;
}

/** One that was promised must be there, and be itself, and somebody must answer its guest. */
async function lostSandboxes(daemon: DaemonProcess, sandboxes: SandboxInfo[], promised: Promised): Promise<string[]> {
  const there = new Set(sandboxes.map(({ id }) => id));
  const lost = [...promised.sandboxes].filter((id) => !there.has(id));
  for (const { id, metadata } of sandboxes) {
    const { status, json } = await call(daemon, 'POST', `/v1/sandboxes/${id}/exec`, { args: ['bash', '-c', CONNECT] });
    const name = (json as { stdout?: string }).stdout?.trim();
    if (status !== 200 || name !== id) lost.push(`${id}: ${status} ${JSON.stringify(json).slice(0, 300)}`);
    // Also those nobody was told of are there for good: a client finds them in the list.
    else if (!metadata?.workspace) promised.sandboxes.add(id);
  }
  return lost;
}

/** One that was promised must be ready, none may be in the writing, and whatever is ready must give a child. */
async function unusableTags(daemon: DaemonProcess, snapshots: SnapshotInfo[], promised: Promised): Promise<string[]> {
  const ready = new Set(snapshots.filter(({ status }) => status === 'ready').map(({ tag }) => tag));
  const unusable = ['base', ...promised.tags, ...promised.branches].filter((tag) => !ready.has(tag));
  for (const { tag, status } of snapshots)
    if (status === 'writing') unusable.push(`${tag} is still being written`);
    else if (status === 'failed') await call(daemon, 'DELETE', `/v1/snapshots/${tag}`);
  for (const tag of ready) {
    const spawned = await call(daemon, 'POST', '/v1/sandboxes', { snapshot_tag: tag });
    if (spawned.status === 201)
      for (const { id } of spawned.json as SandboxInfo[]) await call(daemon, 'DELETE', `/v1/sandboxes/${id}`);
    else unusable.push(`${tag}: ${JSON.stringify(spawned.json).slice(0, 300)}`);
    if (tag === 'base') continue;
    if (tag.startsWith('b')) promised.branches.add(tag);
    else if (!tag.startsWith('ws-')) promised.tags.add(tag);
  }
  return unusable;
}

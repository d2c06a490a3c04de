import type { Timeline } from '@forkd/controller';
import { type EventType, type ForkdEvent, type NetworkCounters, type NetworkDrops, ROUTES } from '@forkd/protocol';
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { Operation } from './operation.js';

const registry = new Registry();
const registers = [registry];
// Process CPU, memory, open descriptors, event-loop lag, garbage collection.
collectDefaultMetrics({ register: registry, eventLoopMonitoringPrecision: 100 });

/** From half a millisecond, which an eval takes, to the minutes of a first boot. */
const buckets = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300];

function gauge(name: string, help: string): Gauge {
  return new Gauge({ name, help, registers });
}

function seconds<Label extends string>(name: string, help: string, labelNames: Label[] = []): Histogram<Label> {
  return new Histogram({ name, help, labelNames, buckets, registers });
}

function counter<Label extends string>(name: string, help: string, labelNames: Label[]): Counter<Label> {
  return new Counter({ name, help, labelNames, registers });
}

/** Every label has few values that are known beforehand: never an id, a tag or a path somebody made up. */
export const metrics = {
  // forkd's five, the last of them below.
  snapshots: gauge('forkd_snapshots_total', 'Snapshots that exist.'),
  sandboxes: gauge('forkd_sandboxes_active', 'Sandboxes that have not ended.'),
  branches: gauge('forkd_branches_in_flight', 'Branches being made.'),
  branchCap: gauge('forkd_branch_concurrency_cap', 'Branches that may be made at the same time.'),

  requests: new Counter({
    name: 'forkd_requests_total',
    help: 'Requests answered.',
    labelNames: ['route', 'method', 'status'],
    registers,
  }),
  requestSeconds: seconds('forkd_request_seconds', 'From a request to the end of its answer.', ['route']),
  spawned: new Counter({ name: 'forkd_sandboxes_spawned_total', help: 'Sandboxes started.', registers }),
  exited: new Counter({
    name: 'forkd_sandboxes_exited_total',
    help: 'Sandboxes that have ended, by why.',
    labelNames: ['reason'],
    registers,
  }),
  spawnSeconds: seconds('forkd_spawn_seconds', 'From asking for a sandbox to each phase of its start.', ['phase']),
  execSeconds: seconds('forkd_exec_seconds', 'Execs that were answered with their result.'),
  evalSeconds: seconds('forkd_eval_seconds', 'Evals that were answered with their result.'),
  egressConnections: counter('forkd_egress_connections_total', 'Connections sandboxes have tried to make.', [
    'decision',
  ]),
  egressBytes: counter('forkd_egress_bytes_total', 'What went through their connections.', ['direction']),
  egressNames: counter('forkd_egress_dns_total', 'Names sandboxes have asked for.', ['outcome']),
  egressOpen: gauge('forkd_egress_connections_open', 'Connections of sandboxes that are open.'),
  networkDrops: counter('forkd_network_drops_total', 'What sandboxes have sent in vain.', ['reason']),
  bootSeconds: seconds('forkd_boot_seconds', 'From starting a VM for a new snapshot to its agent answering.'),
};

const buildInfo = new Gauge({ name: 'forkd_build_info', help: 'The version.', labelNames: ['version'], registers });

/** What does not change while the daemon runs. */
export function describeDaemon(version: string, branchConcurrency: number): void {
  buildInfo.set({ version }, 1);
  metrics.branchCap.set(branchConcurrency);
}

export function observeRequest({ route, request, status, seconds, outcome, endless }: Operation): void {
  const path = route?.path ?? 'unknown';
  metrics.requests.inc({ route: path, method: request.method, status });
  // How long somebody keeps watching events says nothing.
  if (!endless) metrics.requestSeconds.observe({ route: path }, seconds);
  if (outcome !== 'ok') return;
  if (route === ROUTES.exec) metrics.execSeconds.observe(seconds);
  if (route === ROUTES.eval) metrics.evalSeconds.observe(seconds);
}

/** What is counted elsewhere, since the daemon began. */
export function observeEgress(totals: NetworkCounters, drops: NetworkDrops): void {
  const { allowed, denied, bytes_sent: sent, bytes_received: received, open } = totals;
  const { dns_answered: answered, dns_denied, dns_dropped: dropped } = totals;
  set(metrics.egressConnections, 'decision', { allowed, denied });
  set(metrics.egressBytes, 'direction', { sent, received });
  set(metrics.egressNames, 'outcome', { answered, denied: dns_denied, dropped });
  set(metrics.networkDrops, 'reason', drops);
  metrics.egressOpen.set(open);
}

function set<Label extends string>(of: Counter<Label>, label: Label, values: Record<string, number>): void {
  of.reset();
  for (const [value, count] of Object.entries(values)) of.inc({ [label]: value } as Record<Label, string>, count);
}

/** For each sandbox that is ready, how long after it was asked for it came to each phase of its start. */
export function observeSpawn(asked: number, phases: Timeline | undefined): void {
  metrics.spawned.inc();
  for (const [phase, at] of Object.entries(phases ?? {})) metrics.spawnSeconds.observe({ phase }, (at - asked) / 1000);
}

/** Told the steps of making a snapshot, takes the time of the one in which the VM boots. */
export function bootTimer(): (step: string) => void {
  let since: number | undefined;
  return (step) => {
    if (since !== undefined && step !== 'boot') metrics.bootSeconds.observe((performance.now() - since) / 1000);
    since = step === 'boot' ? performance.now() : undefined;
  };
}

const REASONS: Partial<Record<EventType, string>> = { deleted: 'killed', crashed: 'crashed' };

/** Counts the ends of sandboxes. */
export function observeEvent({ type, sandbox_id, message }: ForkdEvent): void {
  if (sandbox_id === undefined || !['exited', 'crashed', 'deleted'].includes(type)) return;
  metrics.exited.inc({ reason: REASONS[type] ?? (message === 'expired' ? 'expired' : 'other') });
}

export async function metricsText(): Promise<{ type: string; text: string }> {
  return { type: registry.contentType, text: await registry.metrics() };
}

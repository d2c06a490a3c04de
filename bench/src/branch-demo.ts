import { setTimeout as sleep } from 'node:timers/promises';
import type { EvalResponse, SandboxInfo, SnapshotInfo } from '@forkd/protocol';
import { memoryUse } from './process-memory.js';
import { endProgress, showProgress } from './progress-line.js';
import type { RestClient } from './rest-client.js';
import { ms, printTable } from './table.js';
import { withDaemon } from './with-daemon.js';

const HINTS = ['look at the cache', 'read the logs', 'ask the database'];
const FIRST_THOUGHTS = 20;
const GO_ON_MS = 1_500;

/** A thread in the warmed interpreter that never stops thinking, and keeps a log of it. */
const AGENT = `
import threading, time
plan, hint = [], 'gather facts'
open('/root/agent.log', 'w').close()
def think():
    while True:
        plan.append(hint)
        with open('/root/agent.log', 'a') as log:
            log.write(hint + '\\n')
        time.sleep(0.03)
threading.Thread(target=think, daemon=True).start()
`;
const STATE = `
import json, collections
json.dumps({'thoughts': len(plan), 'of': collections.Counter(plan), 'log': len(open('/root/agent.log').readlines())})
`;

interface State {
  thoughts: number;
  /** How many there were of each. */
  of: Record<string, number>;
  log: number;
}

await withDaemon(async (rest) => {
  showProgress({ step: 'snapshot', detail: 'Python with numpy, once' });
  await rest.call('POST', '/v1/snapshots', { tag: 'python', recipe: 'python-numpy' });
  const [source] = await rest.call<SandboxInfo[]>('POST', '/v1/sandboxes', { snapshot_tag: 'python' });
  showProgress({ step: 'agent', detail: `thinking in ${source!.id}` });
  await evaluate(rest, source!, AGENT);
  let before = await stateOf(rest, source!);
  for (; before.thoughts < FIRST_THOUGHTS; await sleep(20)) before = await stateOf(rest, source!);

  const since = performance.now();
  const { snapshot, results } = await rest.call<{ snapshot: SnapshotInfo; results: { sandbox: SandboxInfo }[] }>(
    'POST',
    `/v1/sandboxes/${source!.id}/fork`,
    { n: HINTS.length },
  );
  const forkMs = performance.now() - since;
  const children = results.map(({ sandbox }) => sandbox);
  await Promise.all(children.map((child, k) => evaluate(rest, child, `hint = '${HINTS[k]}'`)));
  const hintedMs = performance.now() - since;
  showProgress({ step: 'diverge', detail: `${GO_ON_MS / 1000} s, each on its own` });
  await sleep(GO_ON_MS);
  endProgress();

  printTable('An agent is branched in the middle of its work', [
    ['thoughts of the agent just before', `${before.thoughts}`],
    ['it stood still for', ms(snapshot.pause_ms!)],
    ['stored: what it had changed', mib(snapshot.diff_physical_bytes!)],
    [`from the call to ${HINTS.length} running children`, ms(forkMs)],
    ['until each had its own hint', ms(hintedMs)],
  ]);
  for (const [k, sandbox] of [source!, ...children].entries()) {
    const { thoughts, of, log } = await stateOf(rest, sandbox);
    printTable(k === 0 ? `source ${sandbox.id}` : `child ${k} ${sandbox.id}`, [
      [
        'thoughts',
        `${thoughts}: ${Object.entries(of)
          .map(([what, count]) => `${count} x ${what}`)
          .join(', ')}`,
      ],
      ['lines in its log', `${log}`],
      ['memory (PSS)', `${memoryUse(sandbox.pid!).pssMib.toFixed(1)} MiB`],
    ]);
    const others = HINTS.filter((_, index) => index !== k - 1);
    if (others.some((hint) => hint in of)) throw new Error(`${sandbox.id} knows the hint of another one`);
    if (thoughts <= before.thoughts) throw new Error(`${sandbox.id} does not go on`);
  }
});

async function stateOf(rest: RestClient, sandbox: SandboxInfo): Promise<State> {
  // What is evaluated comes back as Python shows it: a string in quotes.
  return JSON.parse((await evaluate(rest, sandbox, STATE)).slice(1, -1)) as State;
}

async function evaluate(rest: RestClient, { id }: SandboxInfo, code: string): Promise<string> {
  const { result, error } = await rest.call<EvalResponse>('POST', `/v1/sandboxes/${id}/eval`, { code });
  if (error !== null) throw new Error(error);
  return result ?? '';
}

function mib(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

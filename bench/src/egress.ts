import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Authority } from '@forkd/egress';
import { CONNECTIONS, policyChanges } from './egress-change.js';
import { throughput } from './egress-throughput.js';
import { endProgress } from './progress-line.js';
import { resultsDirectory } from './results.js';
import { percentile, rounded } from './statistics.js';

const directory = mkdtempSync(`${tmpdir()}/forkd-bench-egress-`);
try {
  const authority = new Authority(directory);
  const { changed, cut } = await policyChanges(authority);
  const { sent, received, samples } = await throughput(authority);
  endProgress();
  const summary = {
    connections: CONNECTIONS,
    change_p50_ms: rounded(percentile(changed, 0.5)),
    change_max_ms: rounded(Math.max(...changed)),
    until_all_clients_saw_it_p50_ms: rounded(percentile(cut, 0.5)),
    until_all_clients_saw_it_max_ms: rounded(Math.max(...cut)),
    sent,
    received,
  };
  mkdirSync(resultsDirectory(), { recursive: true });
  const raw = JSON.stringify({ summary, changed, cut, samples });
  writeFileSync(join(resultsDirectory(), `egress-${Date.now()}.json`), raw);
  console.log(JSON.stringify(summary));
} finally {
  rmSync(directory, { recursive: true, force: true });
}

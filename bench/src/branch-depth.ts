import type { SandboxInfo, SnapshotInfo } from '@forkd/protocol';
import type { RestClient } from './rest-client.js';
import { percentile, rounded } from './statistics.js';
import { killAll } from './with-daemon.js';

const DEEPEST = 5;
const DEPTHS = [0, 1, DEEPEST] as const;
const SEVERAL = 5;

/**
 * What a spawn costs in generation 0, 1 and 5 of a lineage in which each has changed something, in turn. Snapshots that have
 * never had several children at once have no zygote: those are the first figures, and generation 0 has none like them.
 */
export async function depthSpawns(rest: RestClient, tag: string, rounds: number) {
  const tags = await lineage(rest, tag);
  const first = await interleaved(rest, tags, 1, rounds, [1, DEEPEST]);
  // From now on all of them have a zygote.
  await interleaved(rest, tags, SEVERAL, 1);
  const one = await interleaved(rest, tags, 1, rounds);
  const several = await interleaved(rest, tags, SEVERAL, rounds);
  for (const made of tags.slice(1).reverse()) await rest.call('DELETE', `/v1/snapshots/${made}`);
  return {
    times: { first, one, several },
    summary: {
      depth_spawn_ms: medians(one),
      [`depth_spawn_${SEVERAL}_ms`]: medians(several),
      depth_spawn_from_files_ms: medians(first),
    },
  };
}

async function lineage(rest: RestClient, root: string): Promise<string[]> {
  const tags = [root];
  for (let depth = 1; depth <= DEEPEST; depth++) {
    const [parent] = await rest.call<SandboxInfo[]>('POST', '/v1/sandboxes', { snapshot_tag: tags.at(-1) });
    const code = `generation_${depth} = bytearray(__import__('os').urandom(1 << 20))`;
    await rest.call('POST', `/v1/sandboxes/${parent!.id}/eval`, { code });
    const made = await rest.call<SnapshotInfo>('POST', `/v1/sandboxes/${parent!.id}/branch`, { tag: `depth-${depth}` });
    tags.push(made.tag);
    await killAll(rest);
  }
  return tags;
}

type Times = Record<number, number[]>;

async function interleaved(
  rest: RestClient,
  tags: string[],
  n: number,
  rounds: number,
  depths: readonly number[] = DEPTHS,
): Promise<Times> {
  const times: Times = Object.fromEntries(depths.map((depth) => [depth, []]));
  for (let round = 0; round < rounds; round++)
    for (let turn = 0; turn < depths.length; turn++) {
      const depth = depths[(turn + round) % depths.length]!;
      const since = performance.now();
      await rest.call('POST', '/v1/sandboxes', { snapshot_tag: tags[depth], n });
      times[depth]!.push(performance.now() - since);
      await killAll(rest);
    }
  return times;
}

function medians(times: Times): Record<string, number> {
  return Object.fromEntries(
    Object.entries(times).map(([depth, values]) => [depth, rounded(percentile(values, 0.5), 2)]),
  );
}

import type { LineageNode } from '@forkd/protocol';
import { command } from '../command.js';
import { clean } from '../output.js';
import { age } from '../units.js';

export const lineage = command({
  name: 'lineage',
  group: 'snapshots',
  summary: 'Show who came from whom',
  flags: {},
  async run(context) {
    const nodes = await (await context.daemon()).lineage({ signal: context.signal });
    await context.output.result(nodes, () => tree(nodes));
  },
});

/** One line per node, children below their parent; a node whose parent is gone stands at the top. */
export function tree(nodes: readonly LineageNode[]): string {
  const names = new Set(nodes.map(({ name }) => name));
  const lines: string[] = [];
  const shown = new Set<LineageNode>();
  const show = (node: LineageNode, indent: string, branch: string): void => {
    // A daemon that sends a circle must not keep us busy for ever.
    if (shown.has(node)) return;
    shown.add(node);
    lines.push(
      `${indent}${branch}${clean(node.name)}  ${node.kind}, ${clean(node.state)}, ${age(node.created_at_unix)}`,
    );
    const children = nodes.filter(({ parent }) => parent === node.name);
    const below = branch === '' ? '' : `${indent}${branch === '└─ ' ? '   ' : '│  '}`;
    for (const [i, child] of children.entries()) show(child, below, i === children.length - 1 ? '└─ ' : '├─ ');
  };
  for (const node of nodes) if (node.parent === null || !names.has(node.parent)) show(node, '', '');
  for (const node of nodes) show(node, '', '');
  return lines.join('\n');
}

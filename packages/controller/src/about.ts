import type { Sandbox } from './sandbox.js';

/** What an event says of one. */
export function about({ id, owner, snapshot }: Sandbox): { sandbox_id: string; snapshot_tag: string; owner: string } {
  return { sandbox_id: id, snapshot_tag: snapshot.tag, owner };
}

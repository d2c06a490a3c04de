import { readFileSync } from 'node:fs';

export interface MemoryUse {
  /** Proportional share of everything the process maps: shared pages are divided among those who share them. */
  pssMib: number;
  /** Guest RAM this VM has written since it was forked. */
  guestPrivateMib: number;
  /** What the emulator itself keeps: heap, translated code, stacks. */
  emulatorPrivateMib: number;
  /** Guest RAM mapped from the image, clean, one copy for all children. */
  guestSharedMib: number;
}

/** Reads how a VMM's memory is made up. Meaningful while its siblings are alive, because they share. */
export function memoryUse(pid: number): MemoryUse {
  const use = { pss: 0, guestPrivate: 0, emulatorPrivate: 0, guestShared: 0 };
  let guest = false;
  for (const line of readFileSync(`/proc/${pid}/smaps`, 'utf8').split('\n')) {
    if (/^[0-9a-f]+-[0-9a-f]+ /.test(line)) {
      guest = line.endsWith('/memory.img');
      continue;
    }
    const [name, kib] = line.split(/\s+/);
    const amount = Number(kib);
    if (name === 'Pss:') use.pss += amount;
    if (name === 'Private_Dirty:') use[guest ? 'guestPrivate' : 'emulatorPrivate'] += amount;
    if (guest && (name === 'Shared_Clean:' || name === 'Private_Clean:')) use.guestShared += amount;
  }
  return {
    pssMib: use.pss / 1024,
    guestPrivateMib: use.guestPrivate / 1024,
    emulatorPrivateMib: use.emulatorPrivate / 1024,
    guestSharedMib: use.guestShared / 1024,
  };
}

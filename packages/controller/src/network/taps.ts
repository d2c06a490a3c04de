import { readdirSync, readFileSync } from 'node:fs';

/** How many taps a process has in hand; a network lasts as long as somebody has its tap. */
export function tapsOf(pid: number): number {
  const says = (fd: string): string => {
    try {
      return readFileSync(`/proc/${pid}/fdinfo/${fd}`, 'utf8');
    } catch {
      return '';
    }
  };
  return readdirSync(`/proc/${pid}/fdinfo`).filter((fd) => says(fd).includes('\niff:')).length;
}

import { expect, it } from 'vitest';
import { withoutClock } from './device-state.js';

const section = (id: number, name: string, data: string): string =>
  `\x04\0\0\0${String.fromCharCode(id, name.length)}${name}${data}\x7e\0\0\0${String.fromCharCode(id)}`;
const state = (...sections: string[]): Buffer => Buffer.from(sections.join(''), 'latin1');

it('the wall clock is left out, whatever it says, and nothing else', () => {
  const at = (clock: string, timer: string): Buffer =>
    withoutClock(state(section(3, 'timer', timer), section(9, 'mc146818rtc', clock), section(10, 'serial', 'x')));
  expect(at('10:00', 'a').equals(at('10:01 \x7e\0\0\0\x0a', 'a'))).toBe(true);
  expect(at('10:00', 'a').equals(at('10:00', 'b'))).toBe(false);
  expect(at('10:00', 'a').includes('serial')).toBe(true);
});

it('a state without such a clock, or cut off in it, is taken as it is', () => {
  for (const bytes of [state(section(3, 'timer', 'a')), Buffer.from('\x0bmc146818rtc'), Buffer.alloc(0)])
    expect(withoutClock(bytes)).toBe(bytes);
  const cut = state(section(9, 'mc146818rtc', '10:00')).subarray(0, 18);
  expect(withoutClock(cut)).toBe(cut);
});

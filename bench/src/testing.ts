import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { leaks, NO_LEAKS } from '@forkd/controller';
import { afterAll, afterEach, expect } from 'vitest';

const REPOSITORY = fileURLToPath(new URL('../..', import.meta.url));
const DEMO = `${REPOSITORY}/bench/dist/demo.js`;
const SHARED = resolve(process.env.FORKD_DATA ?? `${REPOSITORY}/.forkd`);

/** Boots, warms and saves in a few seconds, on the base that the recipe of the demo has anyway. */
export function quickRecipe(root: string): string {
  const recipe = readFileSync(`${REPOSITORY}/recipes/python-numpy/recipe.toml`, 'utf8')
    .replace(/^memory_mib = .*$/m, 'memory_mib = 128')
    .replace(/^disk_mib = .*$/m, 'disk_mib = 64')
    .replace('import numpy', 'import json')
    .replace(/^eval = .*$/m, 'eval = "json.dumps(1)"');
  mkdirSync(`${root}/quick`);
  writeFileSync(`${root}/quick/recipe.toml`, recipe);
  return `${root}/quick/recipe.toml`;
}

export interface Run {
  code: number | null;
  signal: NodeJS.Signals | null;
  stdout: string;
  stderr: string;
}

export interface Started {
  child: ChildProcess;
  /** Settles when the program has printed this on stderr. */
  prints: (text: string) => Promise<void>;
  ended: Promise<Run>;
}

/** A data directory with the shared images, and what was found out about this host; each test must leave nothing else in it. */
export function demoData(size?: string): string {
  const root = mkdtempSync(`${tmpdir()}/forkd-demo-`);
  if (size) execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${size}`, 'forkd-test', root]);
  for (const name of ['images', 'probe']) {
    mkdirSync(`${SHARED}/${name}`, { recursive: true });
    symlinkSync(`${SHARED}/${name}`, `${root}/${name}`);
  }
  afterEach(() => expectNothingLeft(root));
  afterAll(() => {
    if (size) execFileSync('umount', [root]);
    rmSync(root, { recursive: true, force: true });
  });
  return root;
}

export function expectNothingLeft(root: string): void {
  expect(leaks(root)).toEqual(NO_LEAKS);
  expect(existsSync(`${root}/snapshots`) ? readdirSync(`${root}/snapshots`) : []).toEqual([]);
  expect(readdirSync(`${root}/images`).filter((name) => name.startsWith('.tmp-'))).toEqual([]);
}

/** Starts the demo as a person would, in a process of its own. */
export function demo(root: string, args: string[], { env = {}, through = [] as string[] } = {}): Started {
  const [program, ...rest] = [...through, process.execPath, DEMO, ...args];
  const child = spawn(program!, rest, {
    env: { ...process.env, FORKD_DATA: root, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let stdout = '';
  let stderr = '';
  const waiting: { text: string; done: () => void }[] = [];
  child.stdout!.on('data', (chunk) => {
    stdout += chunk;
  });
  child.stderr!.on('data', (chunk) => {
    stderr += chunk;
    for (const { text, done } of waiting) if (stderr.includes(text)) done();
  });
  const ended = new Promise<Run>((resolve) =>
    child.on('close', (code, signal) => resolve({ code, signal, stdout, stderr })),
  );
  const prints = (text: string): Promise<void> =>
    new Promise((done, reject) => {
      waiting.push({ text, done });
      void ended.then(() => reject(new Error(`ended without printing ${text}:\n${stderr}`)));
    });
  return { child, prints, ended };
}

/** One message, one hint, nothing that only a programmer understands. */
export function expectOneError({ stderr }: Run, message: RegExp): void {
  const lines = stderr.split('\n');
  expect(lines.filter((line) => line.startsWith('error: ')).join('\n')).toMatch(message);
  expect(lines.filter((line) => line.startsWith('error: ')).length).toBe(1);
  expect(lines.filter((line) => line.startsWith('hint: ')).length).toBe(1);
  expect(stderr).not.toMatch(/^\s+at |This is a bug in forkd/m);
}

/** The agent words signals as Go does; we name them as Node does. */
const NAMES: Record<string, string> = {
  hangup: 'SIGHUP',
  interrupt: 'SIGINT',
  quit: 'SIGQUIT',
  'illegal instruction': 'SIGILL',
  'trace/breakpoint trap': 'SIGTRAP',
  aborted: 'SIGABRT',
  'bus error': 'SIGBUS',
  'floating point exception': 'SIGFPE',
  killed: 'SIGKILL',
  'user defined signal 1': 'SIGUSR1',
  'segmentation fault': 'SIGSEGV',
  'user defined signal 2': 'SIGUSR2',
  'broken pipe': 'SIGPIPE',
  'alarm clock': 'SIGALRM',
  terminated: 'SIGTERM',
};

export function signalName(status: string): string {
  const words = status.replace(/^signal: /, '').slice(0, 100);
  return NAMES[words] ?? words;
}

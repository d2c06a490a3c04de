export type { Captured } from '@forkd/host';
export type {
  Accel,
  AccelReport,
  AdoptSpec,
  BootSpec,
  CaptureOptions,
  Disk,
  Engine,
  ForkPlacement,
  FreezeOptions,
  Guarded,
  GuardOptions,
  Machine,
  Nic,
  ProbeReport,
  RestoreSpec,
  Sleeper,
  Twin,
  Vm,
  VmExit,
} from './engine.js';
export { Phases } from './phases.js';

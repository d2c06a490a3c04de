export type {
  Accel,
  AccelReport,
  BootSpec,
  Disk,
  Engine,
  ForkPlacement,
  Machine,
  ProbeReport,
  RestoreSpec,
  Vm,
  VmExit,
} from './engine.js';

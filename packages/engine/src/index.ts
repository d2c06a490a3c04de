export type {
  Accel,
  AccelReport,
  AdoptSpec,
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

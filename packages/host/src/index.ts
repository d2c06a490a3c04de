export type { Captured, ForkSpec, JailSpec, ProcessExit, RlimitName, SpawnSpec, Uids } from './helper-protocol.js';
export { HostHelper, type HostProcess, type Reach, type SavedRam } from './host-helper.js';
export { nativeBinary } from './native-binary.js';
export { closeSockets, type Datagram, type HostNetwork, type NetworkSockets, type Wiring } from './network.js';
export { Scope } from './scope.js';
export { unlessAborted } from './unless-aborted.js';

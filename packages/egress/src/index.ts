export { Authority } from './authority.js';
export { decide, type Target, type Verdict } from './decide.js';
export { Egress, type EgressOptions, ownAddresses, type Sockets } from './egress.js';
export { askServers, type LookUp } from './names.js';
export type { Settings } from './outlet.js';
export { widening } from './within.js';

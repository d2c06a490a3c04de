export { JAIL_UIDS } from './jail.js';
export { QemuEngine, type QemuOptions } from './qemu-engine.js';

export { JAIL_UIDS, qemuFiles } from './jail.js';
export { QemuEngine, type QemuOptions } from './qemu-engine.js';

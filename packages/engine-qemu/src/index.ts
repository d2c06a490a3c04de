export { QemuEngine, type QemuOptions } from './qemu-engine.js';

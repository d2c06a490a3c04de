import type { Engine } from '@forkd/engine';
import type { HostHelper } from '@forkd/host';
import type { DataDirectory } from './data-directory.js';
import type { Events } from './events.js';
import type { MemoryLimits } from './memory-limit.js';
import type { Store } from './store/store.js';

/** What every operation of the controller works with. */
export interface Parts {
  data: DataDirectory;
  engine: Engine;
  helper: HostHelper;
  store: Store;
  events: Events;
  limits: MemoryLimits;
}

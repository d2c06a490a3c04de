import type { Engine } from '@forkd/engine';
import type { HostHelper } from '@forkd/host';
import type { NetworkPolicy, NetworkPreset } from '@forkd/protocol';
import type { DataDirectory } from './data-directory.js';
import type { Events } from './events.js';
import type { Admission } from './limits/admission.js';
import type { Cgroups } from './limits/cgroups.js';
import type { SandboxLimits } from './limits/settings.js';
import type { Networks } from './network/networks.js';
import type { Store } from './store/store.js';

/** What every operation of the controller works with. */
export interface Parts {
  data: DataDirectory;
  engine: Engine;
  helper: HostHelper;
  store: Store;
  events: Events;
  cgroups: Cgroups;
  admission: Admission;
  /** Of sandboxes that come without their own. */
  defaults: SandboxLimits;
  networks: Networks;
  /** Of sandboxes of which nobody says another one. */
  policy: NetworkPolicy;
  /** The widest preset that sandboxes of an owner may ask for. */
  ceilingOf: (owner: string) => NetworkPreset | undefined;
  /** The certificate (PEM) of who speaks for hosts to guests. */
  authority: string | undefined;
}

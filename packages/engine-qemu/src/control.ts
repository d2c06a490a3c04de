import { z } from 'zod';
import { Qmp } from './qmp.js';

const Status = z.object({ status: z.string(), running: z.boolean() });

/** QEMU's control socket, connected on first use: most children live and die without a single command. */
export class Control {
  readonly path: string;
  #qmp: Promise<Qmp> | undefined;

  constructor(path: string) {
    this.path = path;
  }

  async execute(command: string, args: Record<string, unknown> = {}): Promise<unknown> {
    return (await this.connected()).execute(command, args);
  }

  async status(): Promise<z.infer<typeof Status>> {
    return Status.parse(await this.execute('query-status'));
  }

  /** A connection that was lost is made anew. */
  connected(): Promise<Qmp> {
    if (this.#qmp !== undefined) return this.#qmp;
    const connecting = Qmp.connect(this.path);
    const forget = (): void => {
      if (this.#qmp === connecting) this.#qmp = undefined;
    };
    connecting.then((qmp) => qmp.closed).then(forget, forget);
    this.#qmp = connecting;
    return connecting;
  }

  close(): void {
    void this.#qmp?.then(
      (qmp) => qmp.close(),
      () => {},
    );
  }
}

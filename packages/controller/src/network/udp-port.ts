import type { Vm } from '@forkd/engine';
import type { Datagram, HostHelper } from '@forkd/host';

/** Where the UDP of one VM arrives, as long as somebody takes it; what nobody takes the kernel drops. */
export class UdpPort {
  #taker: ((datagram: Datagram) => void) | undefined;
  #vm: Vm | undefined;
  #listener: number | undefined;
  #turn = Promise.resolve();

  constructor(private readonly helper: HostHelper) {}

  take(taker: ((datagram: Datagram) => void) | undefined): void {
    this.#taker = taker;
    this.#settle();
  }

  /** Its network can be entered from here on. */
  start(vm: Vm): void {
    this.#vm = vm;
    this.#settle();
  }

  /** One thing after the other: the last word counts. */
  #settle(): void {
    this.#turn = this.#turn.then(() => this.#follow()).catch(() => {});
  }

  async #follow(): Promise<void> {
    if (this.#vm && this.#taker && this.#listener === undefined)
      this.#listener = await this.helper.listenUdp(this.#vm, (datagram) => this.#arrived(datagram));
    if (this.#taker || this.#listener === undefined) return;
    const listener = this.#listener;
    this.#listener = undefined;
    await this.helper.closeUdp(listener);
  }

  #arrived(datagram: Datagram): void {
    if (this.#taker) this.#taker(datagram);
    else datagram.flow?.socket.close();
  }
}

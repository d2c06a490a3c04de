import { asForkdError, type ForkdError } from '@forkd/protocol';

type Undo = () => unknown;

/**
 * Owns what an operation acquires. Each thing registers its undo at the moment it exists; `close` runs them in reverse
 * order, once, and goes on past an undo that fails. A scope that is already closed undoes a late registration at once.
 */
export class Scope implements AsyncDisposable {
  #undos: Undo[] = [];
  #closing: Promise<ForkdError[]> | undefined;

  add(undo: Undo): void {
    if (this.#closing !== undefined) void this.#closing.then(undo);
    else this.#undos.push(undo);
  }

  /** Takes ownership of a handle that can dispose itself. */
  own<T extends AsyncDisposable>(handle: T): T {
    this.add(() => handle[Symbol.asyncDispose]());
    return handle;
  }

  /** Hands everything over to the caller of the operation: this scope no longer undoes anything. */
  release(): Scope {
    const heir = new Scope();
    heir.#undos = this.#undos;
    this.#undos = [];
    return heir;
  }

  close(): Promise<ForkdError[]> {
    this.#closing ??= this.#run();
    return this.#closing;
  }

  async #run(): Promise<ForkdError[]> {
    const failures: ForkdError[] = [];
    for (let undo = this.#undos.pop(); undo; undo = this.#undos.pop()) {
      try {
        await undo();
      } catch (thrown) {
        failures.push(asForkdError(thrown));
      }
    }
    return failures;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

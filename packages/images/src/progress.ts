/** One line for the person who waits: what happens now, and how far it is where that is known. */
export interface Progress {
  step: string;
  detail?: string;
  fraction?: number;
}

export interface BuildOptions {
  /** Directory of finished images; created when absent. */
  store: string;
  onProgress?: ((progress: Progress) => void) | undefined;
  signal?: AbortSignal | undefined;
  /** Where tools are looked for, in the form of PATH. */
  tools?: string | undefined;
  /** Nothing is built: what is not stored is an error. */
  onlyStored?: boolean;
}

import { nativeBinary } from '@forkd/host';
import { buildImages, loadRecipe } from '@forkd/images';

/** Builds the images the tests boot from, so that no test waits for a download under its own time limit. */
export default async function setup(): Promise<void> {
  const store = `${process.env.FORKD_DATA ?? '.forkd'}/images`;
  const onProgress = ({ step, detail = '' }: { step: string; detail?: string }): void =>
    console.log(`images: ${step} ${detail}`.trimEnd());
  for (const name of ['python-numpy', 'nodejs'])
    await buildImages(await loadRecipe(name, 'recipes'), { store, agent: nativeBinary('forkd-agent'), onProgress });
}

export { buildImages, type ImageOptions, type Images, needImageTools } from './build-images.js';
export { buildInitramfs, type Initramfs } from './initramfs.js';
export { buildKernel, type Kernel, type KernelSource } from './kernel.js';
export { loadRecipe, parseRecipe } from './load-recipe.js';
export type { BuildOptions, Progress } from './progress.js';
export { Recipe, type RecipeFile } from './recipe.js';
export { buildRootDisk, type RootDisk, type RootSource } from './root-disk.js';
export { buildUpper } from './upper.js';

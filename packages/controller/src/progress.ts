import type { Progress } from '@forkd/images';

export type { Progress };
export type Report = (progress: Progress) => void;

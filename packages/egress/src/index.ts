export { decide, type Target, type Verdict } from './decide.js';
export { widening } from './within.js';

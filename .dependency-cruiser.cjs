// Which package may import which. A package not named on the right may not be imported by the one on the left.
const allowed = {
  protocol: [],
  host: ['protocol'],
  guest: ['protocol'],
  egress: ['protocol'],
  engine: ['protocol', 'host'],
  images: ['protocol', 'host'],
  'engine-qemu': ['protocol', 'host', 'engine'],
  controller: ['protocol', 'host', 'engine', 'guest', 'images', 'egress'],
  daemon: ['protocol', 'host', 'guest', 'engine', 'engine-qemu', 'images', 'egress', 'controller'],
  sdk: ['protocol'],
  cli: ['protocol', 'sdk'],
};

module.exports = {
  forbidden: [
    { name: 'no-cycles', severity: 'error', from: {}, to: { circular: true } },
    {
      name: 'no-deep-imports',
      comment: 'Another package is reached by its name, never by a path into its sources.',
      severity: 'error',
      from: { path: '^packages/([^/]+)/' },
      to: { path: '^packages/[^/]+/src/', pathNot: '^packages/$1/' },
    },
    ...Object.entries(allowed).map(([name, may]) => ({
      name: `${name}-imports`,
      severity: 'error',
      // Tests may wire up whatever they need.
      from: { path: `^packages/${name}/`, pathNot: '(\\.test|\\.fixture|/testing)\\.ts$' },
      to: {
        path: '^(packages/|bench/|node_modules/@forkd/)',
        pathNot: `^(packages|node_modules/@forkd)/(${[name, ...may].join('|')})/`,
      },
    })),
  ],
  options: {
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.base.json' },
    enhancedResolveOptions: { exportsFields: ['exports'], conditionNames: ['types', 'import', 'default'] },
    doNotFollow: { path: 'node_modules|/dist/' },
    exclude: { path: '/dist/.*\\.test\\.' },
  },
};

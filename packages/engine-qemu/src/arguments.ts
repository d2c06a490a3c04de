import type { BootSpec, Disk, Nic, RestoreSpec } from '@forkd/engine';

/** Names of the sockets the helper opens; `{fd:NAME}` stands for the descriptor QEMU inherits. */
export const SOCKETS = ['qmp', 'agent', 'console'] as const;

/** The port the agent looks for in the guest. */
const AGENT_PORT = 'forkd.agent';

/**
 * Kernel parameters every guest gets. The second line keeps an idle guest asleep: no watchdogs, no periodic
 * clocksource check, no pressure accounting, no huge-page daemon, no zeroing of pages nobody else can see.
 */
const CMDLINE = [
  'console=ttyS0 quiet panic=-1 reboot=t random.trust_cpu=on mitigations=off',
  'nowatchdog tsc=reliable psi=0 transparent_hugepage=never init_on_alloc=0 nokaslr audit=0 rcupdate.rcu_expedited=1',
];

/** `tscKhz` must be the host's: under emulation and load the guest cannot measure it and would hang at boot. */
export function bootArguments(binary: string, spec: BootSpec, tscKhz: number): string[] {
  const cmdline = [...CMDLINE, `tsc_early_khz=${tscKhz}`, ...(spec.cmdline ?? [])].join(' ');
  return [
    ...machineArguments(binary, spec, true),
    ...['-kernel', spec.kernel, '-append', cmdline],
    ...(spec.initramfs ? ['-initrd', spec.initramfs] : []),
  ];
}

/** A child has no kernel argument: QEMU would copy the kernel into private memory of every child. */
export function restoreArguments(binary: string, spec: RestoreSpec): string[] {
  return [
    ...machineArguments(binary, spec, false),
    // The saved stream has devices only, without the configuration section an ordinary migration begins with.
    ...['-global', 'migration.send-configuration=off'],
    // Devices look at guest RAM while they are loaded, so they wait until a diff is in it.
    ...['-incoming', spec.diff === undefined ? 'fd:{fd:state}' : 'defer'],
    ...(spec.running ? [] : ['-S']),
  ];
}

function machineArguments(binary: string, spec: BootSpec | RestoreSpec, shared: boolean): string[] {
  const { machine, disks, memory, nic } = spec;
  const accel = machine.accel === 'kvm' ? 'kvm' : 'tcg,thread=multi,tb-size=32';
  const cpu = machine.accel === 'kvm' ? 'host,migratable=on' : 'max';
  const ram = `memory-backend-file,id=ram,size=${machine.memoryMib}M,mem-path=${quoted(memory)},share=${shared ? 'on' : 'off'}`;
  return [
    binary,
    ...['-M', 'microvm,suppress-vmdesc=on,pit=on,pic=on,rtc=on,memory-backend=ram', '-accel', accel, '-cpu', cpu],
    ...['-m', `${machine.memoryMib}`, '-smp', `${machine.vcpus}`, '-object', ram],
    ...['-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot'],
    ...disks.flatMap(diskArguments),
    ...['-device', 'virtio-serial-device', '-chardev', socket('agent')],
    ...['-device', `virtserialport,chardev=agent,name=${AGENT_PORT},nr=1`],
    ...['-chardev', socket('console'), '-serial', 'chardev:console'],
    ...['-chardev', socket('qmp'), '-mon', 'chardev=qmp,mode=control'],
    ...(nic ? nicArguments(nic) : []),
  ];
}

function diskArguments({ path, readOnly }: Disk, index: number): string[] {
  // A writable disk dies with its sandbox or is fsynced when saved, so the guest's own flushes need not reach the host's disk.
  const mode = readOnly ? 'readonly=on,file.locking=off' : 'cache=unsafe,discard=unmap,detect-zeroes=unmap';
  return [
    ...['-drive', `id=disk${index},file=${quoted(path)},format=raw,if=none,${mode}`],
    // By default QEMU stops a guest whose disk is on a full one, without a word.
    ...['-device', `virtio-blk-device,drive=disk${index},werror=report,rerror=report`],
  ];
}

/**
 * The guest may send large segments, but is not sent any: that would be set at the tap when its driver starts, and a copy of a VMM
 * gets a tap that no driver was started with. Nobody is told of a VM that moved, because the wire of every VM is its own.
 */
function nicArguments({ mac, wire }: Nic): string[] {
  const off = ['csum', 'tso4', 'tso6', 'ecn', 'ufo', 'announce'].map((feature) => `guest_${feature}=off`).join(',');
  const backend = 'network' in wire ? 'tap,id=net,fd={fd:tap},vhost=off' : closed(wire);
  return [
    ...['-netdev', backend, '-device', `virtio-net-device,netdev=net,mac=${mac},${off}`],
    ...['-global', 'migration.announce-rounds=0'],
  ];
}

/** QEMU's own network. Restricted, it neither forwards nor resolves anything, and asks nobody: it needs no socket. */
function closed({ guest4, gateway4, gateway6 }: Exclude<Nic['wire'], { network: number }>): string {
  const ipv4 = `net=${gateway4}/30,host=${gateway4},dhcpstart=${guest4}`;
  return `user,id=net,restrict=on,${ipv4},ipv6-net=${gateway6}/64,ipv6-host=${gateway6}`;
}

function socket(name: (typeof SOCKETS)[number]): string {
  return `socket,id=${name},fd={fd:${name}},server=on,wait=off`;
}

/** QEMU ends an option value at a comma; doubling keeps it. */
function quoted(path: string): string {
  return path.replaceAll(',', ',,');
}

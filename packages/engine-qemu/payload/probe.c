// Stands in for a VMM that its guest has taken over: started in QEMU's place, in QEMU's jail, it tries what such a one would try
// and prints what became of it, one JSON object per line. Forked as a zygote is, it does so again in the copy. `targets.h`, written
// by the test, says what there is on the host to be reached.
#define _GNU_SOURCE
#include "targets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *memory, *disk;
static int control;

static void report(const char *attempt, const char *on, long result) {
    printf("{\"attempt\":\"%s\",\"on\":\"%s\",\"result\":\"%s\"}\n", attempt, on, result < 0 ? strerrorname_np(errno) : "done");
}

static void count(const char *attempt, long many) {
    printf("{\"attempt\":\"%s\",\"count\":%ld}\n", attempt, many);
}

static void try_open(const char *attempt, const char *path, int flags) {
    int fd = open(path, flags, 0600);
    report(attempt, path, fd);
    if (fd >= 0) close(fd);
}

static void files(void) {
    const char *foreign[] = {VICTIM_DISK, VICTIM_DIRECTORY, STRANGE_FILE, "/etc/passwd", "/etc/shadow", "/proc/self/status", "/sys/kernel",
                             "/proc/1/root", "/dev/vda", "/dev/mem", "/root", "/home", "/bin/sh", "/usr/bin/env"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) try_open("read", foreign[i], O_RDONLY);
    char above[4096];
    snprintf(above, sizeof above, "../../../../../../..%s", VICTIM_DISK);
    try_open("read", above, O_RDONLY);
    try_open("write", memory, O_RDWR);
    try_open("write", memory, O_WRONLY | O_TRUNC);
    char new[4096];
    snprintf(new, sizeof new, "%.*s/new", (int)(strrchr(disk, '/') - disk), disk);
    const char *places[] = {new, "/new", "/tmp/new", "/dev/new", "/proc/new"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) try_open("create", places[i], O_RDWR | O_CREAT);
    report("make a directory", "/", mkdir("/folder", 0700));
    report("make a device", "/", mknod("/device", S_IFBLK | 0600, 0xfe00));
    report("remove", disk, unlink(disk));
    report("link", disk, link(disk, "/link"));
    report("execute", "/bin/sh", execl("/bin/sh", "sh", NULL));
}

static int seen(const char *path, const struct stat *info, int kind, struct FTW *walk) {
    (void)info, (void)kind, (void)walk;
    printf("{\"attempt\":\"see\",\"on\":\"%s\"}\n", path);
    return 0;
}

static void try_connect(const char *on, int family, const void *address, socklen_t length) {
    int fd = socket(family, SOCK_STREAM, 0);
    report("connect", on, fd < 0 ? fd : connect(fd, address, length));
}

static void network(void) {
    struct sockaddr_un path = {AF_UNIX, STRANGE_SOCKET}, abstract = {AF_UNIX, ""};
    try_connect("the socket of a daemon", AF_UNIX, &path, sizeof path);
    strcpy(abstract.sun_path + 1, ABSTRACT_SOCKET);
    try_connect("an abstract socket", AF_UNIX, &abstract, offsetof(struct sockaddr_un, sun_path) + 1 + strlen(ABSTRACT_SOCKET));
    struct sockaddr_in loopback = {AF_INET, htons(TCP_PORT), {htonl(INADDR_LOOPBACK)}};
    try_connect("loopback", AF_INET, &loopback, sizeof loopback);
    report("socket", "netlink", socket(AF_NETLINK, SOCK_RAW, 0));
    report("socket", "packet", socket(AF_PACKET, SOCK_RAW, 0));
    report("socket", "vsock", socket(AF_VSOCK, SOCK_STREAM, 0));
    int pair[2];
    report("socketpair", "", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
}

static void others(void) {
    const pid_t pids[] = {VICTIM_PID, HELPER_PID, CALLER_PID, 1};
    const char *names[] = {"another VMM", "the helper", "its caller", "init"};
    for (size_t i = 0; i < sizeof pids / sizeof *pids; i++) {
        char byte;
        struct iovec local = {&byte, 1}, remote = {(void *)0x400000, 1};
        report("signal", names[i], kill(pids[i], SIGCONT));
        report("ptrace", names[i], ptrace(PTRACE_SEIZE, pids[i], 0, 0));
        report("read the memory of", names[i], process_vm_readv(pids[i], &local, 1, &remote, 1, 0));
        report("pidfd_open", names[i], syscall(SYS_pidfd_open, pids[i], 0));
        struct rlimit limit;
        report("see the limits of", names[i], prlimit(pids[i], RLIMIT_NOFILE, NULL, &limit));
        report("slow down", names[i], setpriority(PRIO_PROCESS, pids[i], 0));
    }
}

static void privileges(void) {
    report("setuid", "root", setuid(0));
    report("setresuid", "another", setresuid(getuid() + 1, getuid() + 1, getuid() + 1));
    report("setgroups", "root", syscall(SYS_setgroups, 1, &(gid_t){0}));
    report("unshare", "user", unshare(CLONE_NEWUSER));
    report("unshare", "mount", unshare(CLONE_NEWNS));
    report("mount", "proc", mount("proc", "/proc", "proc", 0, NULL));
    report("mount", "tmpfs", mount("tmpfs", "/dev", "tmpfs", 0, NULL));
    report("remount", "/", mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL));
    report("umount", "/", umount2("/", MNT_DETACH));
    report("chroot", "/", chroot("/"));
    report("setns", "0", setns(0, 0));
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct all[2] = {{-1u, -1u, -1u}, {-1u, -1u, -1u}};
    report("capset", "all", syscall(SYS_capset, &header, all));
    report("sethostname", "", sethostname("x", 1));
    report("bpf", "", syscall(SYS_bpf, 0, NULL, 0));
    report("io_uring", "", syscall(SYS_io_uring_setup, 1, NULL));
    report("userfaultfd", "", syscall(SYS_userfaultfd, 0));
    report("perf", "", syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0));
    report("keyctl", "", syscall(SYS_keyctl, 0, 0));
    report("open_by_handle_at", "", syscall(SYS_open_by_handle_at, AT_FDCWD, NULL, 0));
    report("rename itself", "", prctl(PR_SET_NAME, "innocent"));
    report("32-bit number", "", syscall(0x40000000 | SYS_getpid));
}

static volatile int leave;
static void *stay(void *unused) {
    while (!leave) usleep(1000);
    return unused;
}

static void exhaust(void) {
    int child = fork();
    if (child == 0) _exit(0);
    report("fork", "", child);
    report("clone", "user", syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
    static pthread_t threads[2000];
    int many = 0;
    leave = 0;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    while (many < 2000 && pthread_create(&threads[many], &small, stay, NULL) == 0) many++;
    count("threads", many);
    leave = 1;
    for (int i = 0; i < many; i++) pthread_join(threads[i], NULL);

    long mib = 0;
    static void *chunks[4096];
    while (mib < 4096 * 64 && (chunks[mib / 64] = mmap(NULL, 64 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) != MAP_FAILED)
        mib += 64;
    count("memory", mib);
    for (long i = 0; i < mib / 64; i++) munmap(chunks[i], 64 << 20);
    report("memfd", "", syscall(SYS_memfd_create, "x", 0));

    signal(SIGXFSZ, SIG_IGN);
    int fd = open(disk, O_RDWR);
    report("grow", "its disk", pwrite(fd, "x", 1, 1l << 40));
    close(fd);
    report("grow", "its log", ftruncate(1, 1l << 40));
    int files = 0, open_files[4096];
    while (files < 4096 && (open_files[files] = dup(0)) >= 0) files++;
    count("descriptors", files);
    for (int i = 0; i < files; i++) close(open_files[i]);
    struct rlimit more = {RLIM_INFINITY, RLIM_INFINITY};
    report("raise a limit", "processes", setrlimit(RLIMIT_NPROC, &more));
    report("raise a limit", "memory", setrlimit(RLIMIT_AS, &more));
}

static void everything(void) {
    files();
    nftw("/", seen, 16, FTW_PHYS);
    network();
    others();
    privileges();
    exhaust();
    printf("{\"attempt\":\"end\",\"count\":%d}\n", getuid());
    fflush(stdout);
}

/// The little of QMP that is said before a VMM is forked.
static void serve(void) {
    int caller = accept(control, NULL, NULL);
    char order[4096];
    const char *hello = "{\"QMP\":{}}\n", *well = "{\"return\":{}}\n";
    if (write(caller, hello, strlen(hello)) < 0 || read(caller, order, sizeof order) <= 0 || write(caller, well, strlen(well)) < 0)
        abort();
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        char *found;
        if (!strcmp(argv[i], "help") || !strcmp(argv[i], "--version")) return 0;
        if ((found = strstr(argv[i], "mem-path="))) memory = strndup(found + 9, strcspn(found + 9, ","));
        if ((found = strstr(argv[i], "id=disk0,file="))) disk = strndup(found + 14, strcspn(found + 14, ","));
        if ((found = strstr(argv[i], "id=qmp,fd="))) control = atoi(found + 10);
    }
    uid_t first = getuid();
    // Without a jail all of this would work.
    if (first == 0) return 1;
    everything();
    serve();
    while (getuid() == first) poll(NULL, 0, 20);
    // The disk of the copy has the place of the original's in another directory.
    disk = COPY_DISK;
    everything();
    for (;;) poll(NULL, 0, 1000);
}

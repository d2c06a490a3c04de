//! The cgroups of this program, which are also those of the VMMs it starts without any other.

use std::io::Error;

/// Takes a process in, out of those it was born in: they may be removed before it ends.
pub fn take(pid: i32) -> Result<(), Error> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let theirs = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    for line in std::fs::read_to_string("/proc/self/cgroup")?.lines().filter(|line| !theirs.lines().any(|t| t == *line))
    {
        if let Some(directory) = directory(line, &mounts) {
            std::fs::write(format!("{directory}/cgroup.procs"), pid.to_string())?;
        }
    }
    Ok(())
}

/// Of a line of /proc/PID/cgroup: number, controllers or name, path.
fn directory(line: &str, mounts: &str) -> Option<String> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let mount = mounts.lines().find_map(|mount| {
        let mut fields = mount.split(' ').skip(1);
        let (point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match kind {
            "cgroup2" => controllers.is_empty(),
            "cgroup" => {
                !controllers.is_empty() && controllers.split(',').all(|one| options.split(',').any(|o| o == one))
            }
            _ => false,
        };
        is_it.then_some(point)
    })?;
    Some(format!("{mount}{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hierarchy_is_found_where_it_is_mounted() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nosuid 0 0\n\
                      cgroup /sys/fs/cgroup/systemd cgroup rw,xattr,name=systemd 0 0\n\
                      cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n";
        let of = |line| directory(line, mounts);
        assert_eq!(of("0::/a.service").as_deref(), Some("/sys/fs/cgroup/unified/a.service"));
        assert_eq!(of("4:cpu,cpuacct:/").as_deref(), Some("/sys/fs/cgroup/cpu,cpuacct/"));
        assert_eq!(of("1:name=systemd:/b").as_deref(), Some("/sys/fs/cgroup/systemd/b"));
        assert_eq!(of("7:memory:/b"), None);
    }
}

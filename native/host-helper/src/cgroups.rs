//! The hierarchies of cgroups that are mounted here: those of version 1, that of version 2, or both.

use std::io::Error;

pub struct Hierarchy {
    /// Where it is mounted.
    pub place: String,
    /// The options of its mount, its controllers or its name among them; those of version 2 are not told apart by any.
    options: Option<String>,
}

pub fn mounted() -> Result<Vec<Hierarchy>, Error> {
    Ok(in_mounts(&std::fs::read_to_string("/proc/self/mounts")?))
}

fn in_mounts(mounts: &str) -> Vec<Hierarchy> {
    let of = |mount: &str| {
        let mut fields = mount.split(' ').skip(1);
        let (place, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let options = match kind {
            "cgroup2" => None,
            "cgroup" => Some(options.to_string()),
            _ => return None,
        };
        Some(Hierarchy { place: place.to_string(), options })
    };
    mounts.lines().filter_map(of).collect()
}

/// Takes a process into the groups of this program, which are also those of the VMMs it starts without any other: the ones it was
/// born in may be removed before it ends.
pub fn take_in(pid: i32) -> Result<(), Error> {
    let hierarchies = mounted()?;
    let theirs = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    for line in std::fs::read_to_string("/proc/self/cgroup")?.lines().filter(|line| !theirs.lines().any(|t| t == *line))
    {
        if let Some(directory) = directory(line, &hierarchies) {
            std::fs::write(format!("{directory}/cgroup.procs"), pid.to_string())?;
        }
    }
    Ok(())
}

/// Of a line of /proc/PID/cgroup: number, controllers or name, path.
fn directory(line: &str, hierarchies: &[Hierarchy]) -> Option<String> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let is_it = |hierarchy: &&Hierarchy| match &hierarchy.options {
        None => controllers.is_empty(),
        Some(options) => {
            !controllers.is_empty() && controllers.split(',').all(|one| options.split(',').any(|option| option == one))
        }
    };
    hierarchies.iter().find(is_it).map(|hierarchy| format!("{}{path}", hierarchy.place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hierarchy_is_found_where_it_is_mounted() {
        let hierarchies = in_mounts(
            "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
             cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nosuid 0 0\n\
             cgroup /sys/fs/cgroup/systemd cgroup rw,xattr,name=systemd 0 0\n\
             cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n",
        );
        let of = |line| directory(line, &hierarchies);
        assert_eq!(of("0::/a.service").as_deref(), Some("/sys/fs/cgroup/unified/a.service"));
        assert_eq!(of("4:cpu,cpuacct:/").as_deref(), Some("/sys/fs/cgroup/cpu,cpuacct/"));
        assert_eq!(of("1:name=systemd:/b").as_deref(), Some("/sys/fs/cgroup/systemd/b"));
        assert_eq!(of("7:memory:/b"), None);
    }
}

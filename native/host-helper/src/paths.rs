//! Which files a request may name. The helper is root and its caller puts paths together from names that others have chosen, so each
//! is looked at before anything is done: it lies in a directory the caller has named at the start, without a link on the way to it.

use crate::cgroups;
use crate::protocol::{Failure, Request, Spawn};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The only devices that a VMM has a use for.
const DEVICES: [&str; 3] = ["/dev/kvm", "/dev/null", "/dev/urandom"];
/// In the root of each hierarchy of cgroups.
const GROUPS: &str = "forkd";

/// Said once, before anything else.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, tag = "files", rename_all = "snake_case")]
pub enum Reach {
    /// For programs whose paths nobody else has a hand in.
    Anywhere,
    Only {
        /// Directories, with all that is in them. They may themselves be reached by links.
        within: Vec<PathBuf>,
        /// Files and directories of the host, as they are named here, to be read or run: what the VMM consists of.
        read: BTreeSet<PathBuf>,
    },
}

/// What is to be done with a path.
#[derive(Clone, Copy)]
enum Use<'a> {
    Read,
    /// Looked up in the PATH of its environment where it is only a name.
    Run(&'a BTreeMap<String, String>),
    /// Exists, and is written to or given away.
    Change,
    /// May be made; the last name is not followed by whoever does.
    Make,
    Join,
    Device,
}

impl Reach {
    pub fn check(&self, request: &Request) -> Result<(), Failure> {
        for (path, purpose) in paths(request) {
            self.allows(Path::new(path), purpose).map_err(|error| Failure {
                message: format!("{path} is not for this helper: {error}"),
                errno: Some("EREACH"),
            })?;
        }
        Ok(())
    }

    /// What is not there, with no link on the way to where it would be, is for whoever needs it to complain about.
    fn allows(&self, path: &Path, purpose: Use) -> Result<(), Error> {
        match self.finds(path, purpose) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            found => found,
        }
    }

    fn finds(&self, path: &Path, purpose: Use) -> Result<(), Error> {
        let Reach::Only { within, read } = self else { return Ok(()) };
        match purpose {
            Use::Run(env) if !path.as_os_str().as_bytes().contains(&b'/') => {
                let program = look_up(path, env).ok_or(ErrorKind::PermissionDenied)?;
                self.finds(&program.canonicalize()?, Use::Read)
            }
            Use::Read | Use::Run(_) if read.contains(path) => Ok(()),
            Use::Read | Use::Run(_) | Use::Change => beneath(within, path),
            Use::Make => {
                path.file_name().ok_or(ErrorKind::InvalidInput)?;
                beneath(within, path.parent().ok_or(ErrorKind::InvalidInput)?)
            }
            Use::Join => beneath(&group_roots()?, path),
            Use::Device if DEVICES.iter().any(|device| path == Path::new(device)) => Ok(()),
            Use::Device => Err(ErrorKind::PermissionDenied.into()),
        }
    }
}

fn paths(request: &Request) -> Vec<(&str, Use<'_>)> {
    match request {
        Request::Spawn(spawn) => of_spawn(spawn),
        Request::CloneFile(clone) => vec![(&clone.from, Use::Read), (&clone.to, Use::Make)],
        Request::ForkVmm(fork) | Request::Wake(fork) => {
            let directories = [(fork.from.as_str(), Use::Change), (fork.to.as_str(), Use::Change)];
            directories.into_iter().chain(each(&fork.cgroups, Use::Join)).collect()
        }
        Request::Twin(twin) => vec![(&twin.memory, Use::Read)],
        Request::Capture(capture) => vec![(&capture.memory, Use::Read), (&capture.to, Use::Make)],
        Request::Inject(inject) => vec![(&inject.memory, Use::Read), (&inject.from, Use::Read)],
        Request::Compare(compare) => {
            let saved = [&compare.a, &compare.b].into_iter();
            saved
                .flat_map(|ram| [Some(&ram.memory), ram.diff.as_ref()])
                .flatten()
                .map(|path| (path.as_str(), Use::Read))
                .collect()
        }
        Request::Guard(guard) => vec![(&guard.socket, Use::Make)],
        Request::Reach(_)
        | Request::Adopt(_)
        | Request::Kill(_)
        | Request::Unguard(_)
        | Request::MeasureTsc(_)
        | Request::MakeNetwork(_)
        | Request::OpenNetwork(_)
        | Request::NetworkDrops(_)
        | Request::DropNetwork(_)
        | Request::ListenUdp(_)
        | Request::ConnectUdp(_)
        | Request::CloseUdp(_) => Vec::new(),
    }
}

fn of_spawn(spawn: &Spawn) -> Vec<(&str, Use<'_>)> {
    let mut paths = vec![(spawn.log.as_str(), Use::Make)];
    paths.extend(spawn.argv.first().map(|program| (program.as_str(), Use::Run(&spawn.env))));
    paths.extend(spawn.listen.iter().map(|socket| (socket.path.as_str(), Use::Make)));
    paths.extend(spawn.open.iter().map(|file| (file.path.as_str(), Use::Read)));
    paths.extend(each(&spawn.cgroups, Use::Join));
    if let Some(jail) = &spawn.jail {
        paths.push((&jail.directory, Use::Change));
        paths.extend(each(&jail.read, Use::Read));
        paths.extend(each(&jail.write, Use::Change));
        paths.extend(each(&jail.devices, Use::Device));
    }
    paths
}

fn each<'a>(paths: &'a [String], purpose: Use<'a>) -> impl Iterator<Item = (&'a str, Use<'a>)> {
    paths.iter().map(move |path| (path.as_str(), purpose))
}

/// Whether it is in one of the directories, and no link leads there.
fn beneath(directories: &[PathBuf], path: &Path) -> Result<(), Error> {
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    // The parts of a path are also found where it has others in between that mean nothing.
    if !plain || path.components().collect::<PathBuf>().as_os_str() != path.as_os_str() {
        return Err(Error::new(ErrorKind::InvalidInput, "no plain path"));
    }
    let mut refused = Error::new(ErrorKind::PermissionDenied, "in none of its directories");
    for directory in directories {
        let Ok(inner) = path.strip_prefix(directory) else { continue };
        match open_beneath(directory, inner) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(error),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

fn open_beneath(directory: &Path, inner: &Path) -> Result<OwnedFd, Error> {
    let root = File::open(directory)?;
    let inner = if inner.as_os_str().is_empty() { Path::new(".") } else { inner };
    let name = CString::new(inner.as_os_str().as_bytes())?;
    // SAFETY: all zeroes is a valid value of it.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: the kernel reads a string and a structure of the size it is told; a new descriptor comes back.
    let opened =
        unsafe { libc::syscall(libc::SYS_openat2, root.as_raw_fd(), name.as_ptr(), &how, size_of::<libc::open_how>()) };
    if opened < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: it is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(opened as i32) })
}

/// In each hierarchy that is mounted, the directory that the groups of sandboxes are in.
fn group_roots() -> Result<Vec<PathBuf>, Error> {
    Ok(cgroups::mounted()?.into_iter().map(|hierarchy| Path::new(&hierarchy.place).join(GROUPS)).collect())
}

fn look_up(name: &Path, env: &BTreeMap<String, String>) -> Option<PathBuf> {
    let directories = env.get("PATH")?.split(':');
    directories.map(|directory| Path::new(directory).join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn reach() -> (Reach, PathBuf) {
        let number = std::thread::current().id();
        let root = std::env::temp_dir().join(format!("forkd-paths-{}-{number:?}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        for directory in ["data/vm", "elsewhere/images"] {
            std::fs::create_dir_all(root.join(directory)).unwrap();
        }
        for file in ["data/vm/disk", "elsewhere/images/base", "elsewhere/secret"] {
            std::fs::write(root.join(file), "").unwrap();
        }
        symlink(root.join("elsewhere/images"), root.join("data/images")).unwrap();
        symlink(root.join("elsewhere/secret"), root.join("data/vm/link")).unwrap();
        symlink(root.join("elsewhere"), root.join("data/way-out")).unwrap();
        symlink("vm", root.join("data/way-in")).unwrap();
        symlink("/proc/self/root", root.join("data/magic")).unwrap();
        let within = vec![root.join("data"), root.join("data/images")];
        (Reach::Only { within, read: BTreeSet::from(["/usr/bin/env".into(), "/etc/hosts".into()]) }, root)
    }

    #[test]
    fn what_lies_in_a_directory_may_be_used() {
        let (reach, root) = reach();
        for path in ["data/vm/disk", "data/vm", "data", "data/images/base"] {
            reach.allows(&root.join(path), Use::Read).unwrap();
            reach.allows(&root.join(path), Use::Change).unwrap();
        }
        reach.allows(&root.join("data/vm/new"), Use::Make).unwrap();
        // Not there: that is for others to say.
        for path in ["data/vm/none", "data/none/none", "data/images/none"] {
            reach.allows(&root.join(path), Use::Read).unwrap();
        }
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn no_way_leads_out() {
        let (reach, root) = reach();
        let hostile = [
            "elsewhere/secret",
            "data/../elsewhere/secret",
            "data/vm/../../elsewhere/secret",
            "data/vm/../vm/disk",
            "data/./vm/disk",
            "data//vm/disk",
            "data/vm/disk/",
            "data/vm/link",
            "data/way-out/secret",
            "data/way-in/disk",
            "data/magic/etc/passwd",
            "data-beside",
            "data/way-out/none",
            "data/vm/link/none",
        ];
        for path in hostile {
            // Not `join`, which would tidy up.
            let path = PathBuf::from(format!("{}/{path}", root.display()));
            assert!(reach.allows(&path, Use::Read).is_err(), "{}", path.display());
            assert!(reach.allows(&path, Use::Change).is_err(), "{}", path.display());
        }
        for path in ["/etc/passwd", "/", "", ".", "vm/disk", "/proc/self/root/etc/passwd", "/proc/self/fd/0"] {
            for purpose in [Use::Read, Use::Change, Use::Make, Use::Join, Use::Device] {
                assert!(reach.allows(Path::new(path), purpose).is_err(), "{path}");
            }
        }
        for path in ["elsewhere/new", "data/way-out/new", "data/way-in/new", "data/way-out/none/new", "data/vm/.."] {
            let path = PathBuf::from(format!("{}/{path}", root.display()));
            assert!(reach.allows(&path, Use::Make).is_err(), "{}", path.display());
        }
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_the_vmm_consists_of_is_read_and_run_and_no_more() {
        let (reach, root) = reach();
        let env = BTreeMap::from([("PATH".to_string(), "/none:/usr/bin".to_string())]);
        for path in ["/usr/bin/env", "/etc/hosts"] {
            reach.allows(Path::new(path), Use::Read).unwrap();
            assert!(reach.allows(Path::new(path), Use::Change).is_err());
            assert!(reach.allows(Path::new(path), Use::Make).is_err());
        }
        reach.allows(Path::new("env"), Use::Run(&env)).unwrap();
        for program in ["id", "/usr/bin/id", "/usr/bin/../bin/env", ""] {
            assert!(reach.allows(Path::new(program), Use::Run(&env)).is_err(), "{program}");
        }
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn groups_are_those_of_sandboxes_and_devices_those_of_vmms() {
        let (reach, root) = reach();
        for path in
            ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/forkd/../x", "/sys/fs/cgroup/forkd/none"]
        {
            assert!(reach.allows(Path::new(path), Use::Join).is_err(), "{path}");
        }
        assert!(reach.allows(&root.join("data/vm"), Use::Join).is_err());
        reach.allows(Path::new("/dev/null"), Use::Device).unwrap();
        assert!(reach.allows(Path::new("/dev/mem"), Use::Device).is_err());
        std::fs::remove_dir_all(root).unwrap();
    }
}

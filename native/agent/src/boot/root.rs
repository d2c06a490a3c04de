//! The root file system: a shared read-only base under a private writable layer.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use nix::mount::{mount, MsFlags};

use super::console;

const DEVICE_LIMIT: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(5);

fn attach(source: &str, target: &str, kind: &str, flags: MsFlags, data: &str) -> Result<(), String> {
    fs::create_dir_all(target).map_err(|error| format!("{target}: {error}"))?;
    mount(Some(source), target, Some(kind), flags, Some(data))
        .map_err(|error| format!("mounting {source} ({kind}) on {target}: {error}"))
}

pub fn mount_kernel_views() -> Result<(), String> {
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC | MsFlags::MS_NODEV;
    for (kind, target, flags, proof) in [
        ("proc", "/proc", quiet, "/proc/self"),
        ("sysfs", "/sys", quiet, "/sys/class"),
        ("devtmpfs", "/dev", MsFlags::MS_NOSUID, "/dev/null"),
    ] {
        if !Path::new(proof).exists() {
            attach(kind, target, kind, flags, "")?;
        }
    }
    Ok(())
}

pub fn switch(base: &str, upper: &str) -> Result<(), String> {
    wait_for(base)?;
    wait_for(upper)?;
    let kind = file_system(base)?;
    attach(base, "/base", kind, MsFlags::MS_RDONLY | MsFlags::MS_NOATIME, "")?;
    attach(upper, "/upper", "ext4", MsFlags::MS_NOATIME, "")?;
    for folder in ["/upper/upper", "/upper/work"] {
        fs::create_dir_all(folder).map_err(|error| format!("{folder}: {error}"))?;
    }
    let layers = "lowerdir=/base,upperdir=/upper/upper,workdir=/upper/work";
    attach("overlay", "/root.d", "overlay", MsFlags::MS_NOATIME, layers)?;
    for view in ["/proc", "/sys", "/dev"] {
        let target = format!("/root.d{view}");
        fs::create_dir_all(&target).map_err(|error| format!("{target}: {error}"))?;
        mount(Some(view), target.as_str(), None::<&str>, MsFlags::MS_MOVE, None::<&str>)
            .map_err(|error| format!("moving {view}: {error}"))?;
    }
    let failed = |error: nix::Error| format!("switching root: {error}");
    nix::unistd::chdir("/root.d").map_err(failed)?;
    mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>).map_err(failed)?;
    nix::unistd::chroot(".").map_err(failed)?;
    nix::unistd::chdir("/").map_err(failed)
}

/// What programs expect around a root file system. None of it is worth refusing to boot for.
pub fn mount_runtime() {
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    for (kind, target, flags, data) in [
        ("devpts", "/dev/pts", MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC, "mode=620,ptmxmode=666,gid=5"),
        ("tmpfs", "/dev/shm", plain, "mode=1777"),
        ("tmpfs", "/run", plain, "mode=755"),
        ("cgroup2", "/sys/fs/cgroup", plain | MsFlags::MS_NOEXEC, ""),
    ] {
        if let Err(error) = attach(kind, target, kind, flags, data) {
            console::print(&error);
        }
    }
    for (target, link) in [
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
    ] {
        let _ = symlink(target, link);
    }
}

fn wait_for(device: &str) -> Result<(), String> {
    for _ in 0..DEVICE_LIMIT.as_millis() / STEP.as_millis() {
        if Path::new(device).exists() {
            return Ok(());
        }
        std::thread::sleep(STEP);
    }
    Err(format!("{device} did not appear within {} s", DEVICE_LIMIT.as_secs()))
}

fn file_system(device: &str) -> Result<&'static str, String> {
    let mut start = [0; 2048];
    fs::File::open(device)
        .and_then(|mut file| file.seek(SeekFrom::Start(0)).and_then(|_| file.read_exact(&mut start)))
        .map_err(|error| format!("{device}: {error}"))?;
    recognise(&start).ok_or_else(|| format!("{device} holds no file system this agent knows"))
}

fn recognise(start: &[u8; 2048]) -> Option<&'static str> {
    if start[1024 + 56..][..2] == [0x53, 0xef] {
        Some("ext4")
    } else if start[1024..][..4] == [0xe2, 0xe1, 0xf5, 0xe0] {
        Some("erofs")
    } else if start.starts_with(b"hsqs") {
        Some("squashfs")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::recognise;

    #[test]
    fn recognises_file_systems() {
        let mut start = [0; 2048];
        assert_eq!(recognise(&start), None);
        start[..4].copy_from_slice(b"hsqs");
        assert_eq!(recognise(&start), Some("squashfs"));
        start[1080..1082].copy_from_slice(&[0x53, 0xef]);
        assert_eq!(recognise(&start), Some("ext4"));
    }
}

//! The file system a jailed VMM sees: a small read-only root that holds the few files it was given, each where it is on the host,
//! so that a path means the same on both sides.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io::{Error, ErrorKind};
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Where the new root is put together. It is in every root, also in the ones made here.
const STAGE: &std::ffi::CStr = c"/proc";
/// Directories and empty files to mount on need no more.
const STAGE_OPTIONS: &std::ffi::CStr = c"size=256k,nr_inodes=1k,mode=0755";

const OPEN_TREE_CLONE: u32 = 1;
const MOVE_MOUNT_F_EMPTY_PATH: u32 = 4;
const ATTR_RDONLY: u64 = 1;
const ATTR_NOSUID: u64 = 2;
const ATTR_NODEV: u64 = 4;
const ATTR_NOEXEC: u64 = 8;

/// As the kernel has it.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Access {
    Read,
    Write,
}

struct Mount {
    /// A copy of the host's mount of this one file or directory, mounted nowhere yet.
    tree: OwnedFd,
    /// Relative to the new root.
    target: CString,
    directory: bool,
}

struct Device {
    target: CString,
    number: u64,
}

/// Everything is looked up and opened when it is prepared: `enter` may run between fork and exec, where only system calls are safe.
#[derive(Default)]
pub struct Root {
    directories: BTreeSet<CString>,
    mounts: Vec<Mount>,
    devices: Vec<Device>,
    /// Of the devices.
    owner: u32,
}

impl Root {
    pub fn new(owner: u32) -> Self {
        Root { owner, directories: BTreeSet::from([c"proc".into()]), ..Default::default() }
    }

    pub fn add(&mut self, path: &str, access: Access) -> Result<(), Error> {
        let target = self.make_way(path)?;
        // What may be written is never reached by a link: those who could make one are who it is kept from.
        let (info, follow) = match access {
            Access::Read => (std::fs::metadata(path)?, 0),
            Access::Write => (std::fs::symlink_metadata(path)?, libc::AT_SYMLINK_NOFOLLOW),
        };
        let directory = info.is_dir();
        if !directory && !info.is_file() {
            return Err(Error::new(ErrorKind::InvalidInput, "neither a file nor a directory"));
        }
        let source = text(path)?;
        let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as u32 | follow as u32;
        // SAFETY: the path is a live string; a new descriptor comes back.
        let tree = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, source.as_ptr(), flags) };
        let tree = unsafe { OwnedFd::from_raw_fd(check(tree)? as i32) };
        let more = if access == Access::Read { ATTR_RDONLY } else { ATTR_NOEXEC };
        let set = ATTR_NOSUID | ATTR_NODEV | more;
        let attr = MountAttr { set, clear: 0, propagation: libc::MS_PRIVATE, user_namespace: 0 };
        let (fd, empty) = (tree.as_raw_fd(), c"".as_ptr());
        // SAFETY: the kernel reads a structure of the size it is told.
        check(unsafe {
            libc::syscall(libc::SYS_mount_setattr, fd, empty, libc::AT_EMPTY_PATH, &attr, size_of::<MountAttr>())
        })?;
        self.mounts.push(Mount { tree, target, directory });
        Ok(())
    }

    /// A node of its own, so that it does not matter to whom the host's belongs.
    pub fn add_device(&mut self, path: &str) -> Result<(), Error> {
        let target = self.make_way(path)?;
        let info = std::fs::metadata(path)?;
        if !info.file_type().is_char_device() {
            return Err(Error::new(ErrorKind::InvalidInput, "not a device"));
        }
        let number = info.rdev();
        self.devices.push(Device { target, number });
        Ok(())
    }

    /// Notes the directories above a path; returns the path as seen from the root.
    fn make_way(&mut self, path: &str) -> Result<CString, Error> {
        let inner = path.strip_prefix('/').filter(|rest| !rest.is_empty());
        let inner = inner.ok_or_else(|| Error::new(ErrorKind::InvalidInput, format!("{path} is no path of a file")))?;
        if inner.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
            return Err(Error::new(ErrorKind::InvalidInput, format!("{path} is no plain path")));
        }
        for above in Path::new(inner).ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            self.directories.insert(CString::new(above.as_os_str().as_bytes())?);
        }
        text(inner)
    }

    /// Makes this the root of everyone in the mount namespace the caller is in, which must be a new one.
    pub fn enter(&self) -> Result<(), Error> {
        let none = std::ptr::null();
        let sealed = libc::MS_NOSUID | libc::MS_NOEXEC | libc::MS_RDONLY;
        // SAFETY: nothing but system calls on strings that live as long as this does.
        unsafe {
            check(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()))?;
            let tmpfs = c"tmpfs".as_ptr();
            let flags = libc::MS_NOSUID | libc::MS_NOEXEC;
            check(libc::mount(tmpfs, STAGE.as_ptr(), tmpfs, flags, STAGE_OPTIONS.as_ptr().cast()))?;
            check(libc::chdir(STAGE.as_ptr()))?;
            // In order, so that one that holds another comes first.
            for directory in &self.directories {
                check_but(libc::EEXIST, libc::mkdir(directory.as_ptr(), 0o755))?;
            }
            for mount in &self.mounts {
                let target = mount.target.as_ptr();
                let made = match mount.directory {
                    true => libc::mkdir(target, 0o755),
                    false => libc::mknod(target, libc::S_IFREG | 0o600, 0),
                };
                check_but(libc::EEXIST, made)?;
                let from = (mount.tree.as_raw_fd(), c"".as_ptr());
                let flags = MOVE_MOUNT_F_EMPTY_PATH;
                check(libc::syscall(libc::SYS_move_mount, from.0, from.1, libc::AT_FDCWD, target, flags))?;
            }
            for device in &self.devices {
                check(libc::mknod(device.target.as_ptr(), libc::S_IFCHR | 0o600, device.number))?;
                check(libc::chown(device.target.as_ptr(), self.owner, self.owner))?;
            }
            check(libc::mount(none, c".".as_ptr(), none, libc::MS_REMOUNT | libc::MS_BIND | sealed, none.cast()))?;
            // The old root comes to lie over the new one, and is taken away with all that is mounted in it.
            check(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()))?;
            check(libc::umount2(c".".as_ptr(), libc::MNT_DETACH))?;
            check(libc::chdir(c"/".as_ptr()))?;
        }
        Ok(())
    }
}

pub fn text(value: &str) -> Result<CString, Error> {
    Ok(CString::new(value)?)
}

pub fn check<T: Copy + PartialOrd + Default>(result: T) -> Result<T, Error> {
    if result < T::default() {
        Err(Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn check_but(expected: i32, result: i32) -> Result<(), Error> {
    match check(result) {
        Err(error) if error.raw_os_error() != Some(expected) => Err(error),
        _ => Ok(()),
    }
}

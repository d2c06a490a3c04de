//! Copies a sparse file: a reflink where the file system can, else only the extents that hold data.

use crate::protocol::{CloneFile, Failure, Reply};
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

pub fn clone_file(request: &CloneFile) -> Result<Reply, Failure> {
    let from = open(&request.from).map_err(|e| Failure::io("open the file to clone", &e))?;
    let to = create(&request.to).map_err(|e| Failure::io("create the clone", &e))?;
    let done = fill(&from, &to);
    if done.is_err() {
        let _ = std::fs::remove_file(&request.to);
    }
    done.map_err(|e| Failure::io("clone", &e))
}

pub fn open(path: &str) -> Result<File, Error> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC).open(path)
}

/// A file that was not there before. VMMs are other users, and memory images are read by many: who sees it at all is decided by
/// the directories it is in, and by what is mounted in a jail.
pub fn create(path: &str) -> Result<File, Error> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o644).custom_flags(flags).open(path)
}

/// The parts of a sparse file that hold data, in order: start, and end.
pub fn extents(file: &File) -> Result<Vec<(u64, u64)>, Error> {
    let size = file.metadata()?.len();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = seek(file, at, libc::SEEK_DATA)? {
        at = seek(file, start, libc::SEEK_HOLE)?.unwrap_or(size);
        found.push((start, at));
    }
    Ok(found)
}

pub fn fill(from: &File, to: &File) -> Result<Reply, Error> {
    // SAFETY: FICLONE takes a descriptor by value; both are open for the whole call.
    if unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONE as _, from.as_raw_fd()) } == 0 {
        return Ok(Reply::Cloned { method: "reflink", bytes: 0 });
    }
    to.set_len(from.metadata()?.len())?;
    let mut bytes = 0;
    for (start, end) in extents(from)? {
        bytes += copy_range(from, to, start, end)?;
    }
    Ok(Reply::Cloned { method: "copy", bytes })
}

fn seek(file: &File, offset: u64, whence: i32) -> Result<Option<u64>, Error> {
    // SAFETY: lseek touches no memory of ours.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) };
    if found >= 0 {
        return Ok(Some(found as u64));
    }
    match Error::last_os_error() {
        e if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        e => Err(e),
    }
}

pub fn copy_range(from: &File, to: &File, start: u64, end: u64) -> Result<u64, Error> {
    let (mut source, mut target) = (start as i64, start as i64);
    while (source as u64) < end {
        let want = (end - source as u64) as usize;
        // SAFETY: both offsets are live locals; the kernel writes only to them.
        let n = unsafe { libc::copy_file_range(from.as_raw_fd(), &mut source, to.as_raw_fd(), &mut target, want, 0) };
        match n {
            0 => return Err(Error::new(ErrorKind::UnexpectedEof, "the source shrank while it was copied")),
            n if n < 0 => match Error::last_os_error() {
                // Not every pair of file systems can copy in the kernel.
                e if matches!(e.raw_os_error(), Some(libc::EXDEV | libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP)) => {
                    copy_by_hand(from, to, source as u64, end)?;
                    return Ok(end - start);
                }
                e => return Err(e),
            },
            _ => {}
        }
    }
    Ok(end - start)
}

fn copy_by_hand(from: &File, to: &File, start: u64, end: u64) -> Result<(), Error> {
    use std::os::unix::fs::FileExt;
    let mut buffer = vec![0; 256 << 10];
    let mut at = start;
    while at < end {
        let want = buffer.len().min((end - at) as usize);
        from.read_exact_at(&mut buffer[..want], at)?;
        to.write_all_at(&buffer[..want], at)?;
        at += want as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn a_sparse_file_stays_sparse_and_equal() {
        let dir = std::env::temp_dir().join(format!("forkd-copy-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (from, to) = (dir.join("from"), dir.join("to"));
        let file = File::create(&from).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(b"in the middle", 20 << 20).unwrap();
        let request = CloneFile { from: from.to_str().unwrap().into(), to: to.to_str().unwrap().into() };
        clone_file(&request).unwrap();
        assert_eq!(std::fs::read(&from).unwrap(), std::fs::read(&to).unwrap());
        assert!(std::fs::metadata(&to).unwrap().blocks() * 512 < 1 << 20);
        assert!(clone_file(&request).is_err(), "an existing target is never overwritten");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

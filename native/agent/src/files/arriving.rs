//! A file that takes its name only when it is whole: until then it is written beside, and removed if the rest never comes.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{fchown, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::machine::random_hex;

pub struct Arriving {
    file: File,
    target: PathBuf,
    /// `None` once it has its name.
    beside: Option<PathBuf>,
}

impl Arriving {
    /// Replaces what `path` is or points to, keeping its mode. The folder must be there.
    pub fn create(path: &Path, uid: u32, gid: u32) -> io::Result<Arriving> {
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let old = fs::metadata(&target).ok();
        let beside = target.with_file_name(format!(".forkd-{}", random_hex::<8>()));
        let file = match OpenOptions::new().write(true).create_new(true).open(&beside) {
            Ok(file) => file,
            // Folders of /proc and /sys take no new files, but some that are there can be written.
            Err(_) if old.is_some() => {
                let file = OpenOptions::new().write(true).truncate(true).open(&target)?;
                return Ok(Arriving { file, target, beside: None });
            }
            Err(error) => return Err(error),
        };
        let arriving = Arriving { file, target, beside: Some(beside) };
        fchown(&arriving.file, Some(uid), Some(gid))?;
        if let Some(old) = old {
            arriving.file.set_permissions(Permissions::from_mode(old.permissions().mode() & 0o777))?;
        }
        Ok(arriving)
    }

    pub fn finish(mut self) -> io::Result<()> {
        if let Some(beside) = &self.beside {
            fs::rename(beside, &self.target)?;
            self.beside = None;
        }
        Ok(())
    }
}

impl Write for Arriving {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.file.write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            let _ = fs::remove_file(beside);
        }
    }
}

//! What clients are told about one file.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use serde::Serialize;

use crate::http::Fault;
use crate::time::rfc3339;
use crate::users::owner_names;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub name: String,
    pub r#type: &'static str,
    pub path: String,
    /// 64-bit numbers are strings in protobuf's JSON.
    pub size: String,
    pub mode: u32,
    pub permissions: String,
    pub owner: String,
    pub group: String,
    pub modified_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
}

impl Entry {
    /// A link keeps its own name but shows the type and mode of its target, when there is one.
    pub fn of(path: &Path) -> Result<Entry, Fault> {
        let shown = path.to_string_lossy().into_owned();
        let own = fs::symlink_metadata(path).map_err(|error| Fault::io(&shown, &error))?;
        let target = own.file_type().is_symlink().then(|| {
            fs::canonicalize(path).or_else(|_| fs::read_link(path)).unwrap_or_default().to_string_lossy().into_owned()
        });
        let meta = if target.is_some() { fs::metadata(path).unwrap_or(own) } else { own };
        let (owner, group) = owner_names(meta.uid(), meta.gid());
        Ok(Entry {
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            r#type: kind(meta.file_type()),
            path: shown,
            size: meta.size().to_string(),
            mode: meta.mode() & 0o7777,
            permissions: permissions(&meta),
            owner,
            group,
            modified_time: rfc3339(meta.mtime(), meta.mtime_nsec() as u32),
            symlink_target: target,
        })
    }
}

fn kind(kind: fs::FileType) -> &'static str {
    if kind.is_file() {
        "FILE_TYPE_FILE"
    } else if kind.is_dir() {
        "FILE_TYPE_DIRECTORY"
    } else if kind.is_symlink() {
        "FILE_TYPE_SYMLINK"
    } else {
        "FILE_TYPE_UNSPECIFIED"
    }
}

/// Go's rendering of a file mode: type letters, then rwx three times.
fn permissions(meta: &fs::Metadata) -> String {
    let (kind, mode) = (meta.file_type(), meta.mode());
    let mut text = String::new();
    for (letter, holds) in [
        ('d', kind.is_dir()),
        ('L', kind.is_symlink()),
        ('D', kind.is_block_device() || kind.is_char_device()),
        ('p', kind.is_fifo()),
        ('S', kind.is_socket()),
        ('u', mode & 0o4000 != 0),
        ('g', mode & 0o2000 != 0),
        ('c', kind.is_char_device()),
        ('t', mode & 0o1000 != 0),
    ] {
        if holds {
            text.push(letter);
        }
    }
    if text.is_empty() {
        text.push('-');
    }
    for bit in (0..9).rev() {
        text.push(if mode >> bit & 1 == 1 { ['x', 'w', 'r'][bit % 3] } else { '-' });
    }
    text
}

use std::fs;
use std::path::Path;

use super::entry::Entry;
use crate::http::{Code, Fault};

/// A listing beyond this is an accident (a whole disk at depth 99), and would have to be held in memory.
const LIMIT: usize = 50_000;

/// Entries below `folder` in depth-first, lexical order, under the name the caller used. Nested links are not followed.
pub fn list(folder: &Path, depth: u32) -> Result<Vec<Entry>, Fault> {
    let mut found = Vec::new();
    descend(folder, depth.max(1), &mut found)?;
    Ok(found)
}

fn descend(folder: &Path, depth: u32, found: &mut Vec<Entry>) -> Result<(), Fault> {
    let shown = folder.to_string_lossy();
    let mut names: Vec<_> = fs::read_dir(folder)
        .map_err(|error| Fault::io(&shown, &error))?
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    for name in names {
        let path = folder.join(name);
        // A file may vanish between the listing and the look at it.
        let Ok(entry) = Entry::of(&path) else { continue };
        let is_folder = entry.r#type == "FILE_TYPE_DIRECTORY" && entry.symlink_target.is_none();
        found.push(entry);
        if found.len() > LIMIT {
            return Err(Fault::new(Code::ResourceExhausted, format!("{shown}: more than {LIMIT} entries")));
        }
        if is_folder && depth > 1 {
            // A folder that vanished or is closed to us is no reason to fail the rest.
            match descend(&path, depth - 1, found) {
                Err(fault) if fault.code == Code::ResourceExhausted => return Err(fault),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Creates `folder` and its missing parents, all owned by the given ids.
pub fn make_dirs(folder: &Path, uid: u32, gid: u32) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(parent) = folder.parent() {
        make_dirs(parent, uid, gid)?;
    }
    fs::create_dir(folder)?;
    std::os::unix::fs::chown(folder, Some(uid), Some(gid))
}

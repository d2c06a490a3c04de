use std::fs::{self, File};
use std::path::PathBuf;

use nix::kmod::{finit_module, ModuleInitFlags};

use super::console;

/// The image builder numbers the files, so lexical order is the order of their dependencies.
pub fn load(folder: &str) {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "ko"))
        .collect();
    files.sort();
    for path in files {
        let outcome = File::open(&path).map_err(|error| error.to_string()).and_then(|file| {
            match finit_module(&file, c"", ModuleInitFlags::empty()) {
                Ok(()) | Err(nix::Error::EEXIST) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        });
        if let Err(error) = outcome {
            console::print(&format!("module {}: {error}", path.display()));
        }
    }
}

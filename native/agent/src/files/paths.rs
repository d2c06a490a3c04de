//! How a path in a request becomes a path of this machine.

use std::path::{Component, Path, PathBuf};

use crate::http::Fault;
use crate::users::User;

/// Relative paths start at `workdir`, a leading `~` is the user's home. Dots are folded without looking at links.
pub fn resolve(path: &str, user: &User, workdir: &str) -> Result<PathBuf, Fault> {
    if path.contains('\0') {
        return Err(Fault::invalid("a path must not contain a NUL byte"));
    }
    let full = match path.strip_prefix('~') {
        Some("") => PathBuf::from(&user.home),
        Some(rest) if rest.starts_with('/') => Path::new(&user.home).join(&rest[1..]),
        Some(_) => return Err(Fault::invalid(format!("{path}: another user's home cannot be named like this"))),
        None => Path::new(workdir).join(path),
    };
    let mut folded = PathBuf::from("/");
    for component in full.components() {
        match component {
            Component::Normal(name) => folded.push(name),
            Component::ParentDir => drop(folded.pop()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Ok(folded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves() {
        let user = User { name: "ann".into(), uid: 1, gid: 1, home: "/home/ann".into() };
        let path = |path| resolve(path, &user, "/work").unwrap().to_string_lossy().into_owned();
        assert_eq!(path("/a/b/../c/./d"), "/a/c/d");
        assert_eq!(path("x"), "/work/x");
        assert_eq!(path(""), "/work");
        assert_eq!(path("~"), "/home/ann");
        assert_eq!(path("~/x"), "/home/ann/x");
        assert_eq!(path("../../.."), "/");
        assert!(resolve("~bob/x", &user, "/").is_err());
        assert!(resolve("a\0b", &user, "/").is_err());
    }
}

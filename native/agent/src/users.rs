//! Users and groups, read from /etc directly: a static binary cannot load NSS modules.

use std::fs;

use base64::prelude::{Engine, BASE64_STANDARD};
use hyper::header::{HeaderMap, AUTHORIZATION};

use crate::agent::Agent;
use crate::http::{Code, Fault};

#[derive(Clone, Debug, PartialEq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub home: String,
}

impl User {
    pub fn named(name: &str) -> Result<User, Fault> {
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        match find_user(&passwd, name) {
            Some(user) => Ok(user),
            // An initramfs or a scratch image has no /etc/passwd, yet always has root.
            None if name == "root" => Ok(User { name: name.to_owned(), uid: 0, gid: 0, home: "/root".to_owned() }),
            None => Err(Fault::new(Code::Unauthenticated, format!("unknown user {name:?}"))),
        }
    }

    /// The user a request names in its Basic credentials, else the sandbox's default.
    pub fn of_request(agent: &Agent, headers: &HeaderMap) -> Result<User, Fault> {
        match headers.get(AUTHORIZATION) {
            None => agent.default_user(),
            Some(value) => {
                let name = value
                    .to_str()
                    .ok()
                    .and_then(|text| text.strip_prefix("Basic "))
                    .and_then(|encoded| BASE64_STANDARD.decode(encoded.trim()).ok())
                    .and_then(|plain| String::from_utf8(plain).ok())
                    .and_then(|plain| plain.split_once(':').map(|(name, _)| name.to_owned()))
                    .ok_or_else(|| Fault::new(Code::Unauthenticated, "malformed Authorization header"))?;
                User::named(&name)
            }
        }
    }

    pub fn groups(&self) -> Vec<u32> {
        let mut groups = find_groups(&fs::read_to_string("/etc/group").unwrap_or_default(), &self.name);
        if !groups.contains(&self.gid) {
            groups.push(self.gid);
        }
        groups
    }
}

/// Names for the ids of a file; an id without a name is shown as its number.
pub fn owner_names(uid: u32, gid: u32) -> (String, String) {
    let name = |file: &str, id: u32| {
        let table = fs::read_to_string(file).unwrap_or_default();
        name_of(&table, id).unwrap_or_else(|| id.to_string())
    };
    (name("/etc/passwd", uid), name("/etc/group", gid))
}

fn name_of(table: &str, id: u32) -> Option<String> {
    let id = id.to_string();
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == id).then(|| name.to_owned())
    })
}

fn find_user(passwd: &str, name: &str) -> Option<User> {
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [found, _, uid, gid, _, home, ..] = fields[..] else {
            return None;
        };
        (found == name).then_some(())?;
        Some(User {
            name: name.to_owned(),
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            home: if home.is_empty() { "/" } else { home }.to_owned(),
        })
    })
}

fn find_groups(table: &str, user: &str) -> Vec<u32> {
    table
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [_, _, gid, members] = fields[..] else {
                return None;
            };
            members.split(',').any(|member| member == user).then(|| gid.parse().ok())?
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/bash\nbroken\nann:x:1000:1001:Ann,,,:/home/ann:/bin/sh\nbad:x:a:b::/:\n";
    const GROUP: &str = "root:x:0:\nadm:x:4:syslog,ann\nann:x:1001:\nannex:x:7:annette\n";

    #[test]
    fn finds_users() {
        let ann = find_user(PASSWD, "ann").unwrap();
        assert_eq!((ann.uid, ann.gid, ann.home.as_str()), (1000, 1001, "/home/ann"));
        assert_eq!(find_user(PASSWD, "broken"), None);
        assert_eq!(find_user(PASSWD, "bad"), None);
        assert_eq!(find_user(PASSWD, "nobody"), None);
    }

    #[test]
    fn finds_groups_and_names() {
        assert_eq!(find_groups(GROUP, "ann"), vec![4]);
        assert_eq!(name_of(PASSWD, 1000).as_deref(), Some("ann"));
        assert_eq!(name_of(GROUP, 9), None);
    }
}

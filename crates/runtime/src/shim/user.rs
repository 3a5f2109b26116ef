//! The user of a program: ids and groups from the request, the image and the container's files.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use crate::beneath::{Directory, Links};
use crate::spec::ContainerRecord;

/// Bytes of /etc/passwd and of /etc/group that are read.
pub(crate) const MAX_ACCOUNTS: u64 = 8 << 20;

#[derive(Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub home: String,
}

impl User {
    /// Looks names up in the files of the container, whose root this process has.
    pub fn resolve(record: &ContainerRecord) -> Result<User, String> {
        let security = &record.config.security;
        // The container owns these files: opening must not block, and their size is limited.
        let read = |path: &str| {
            let file = Directory::open(Path::new("/"), Links::Root).and_then(|root| root.read(Path::new(path)));
            let mut text = Vec::new();
            let _ = file.and_then(|f| f.take(MAX_ACCOUNTS).read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        };
        resolve_user(
            &record.image_user,
            (security.run_as_user, security.run_as_group),
            (&security.supplemental_groups, security.strict_groups),
            &read("/etc/passwd"),
            &read("/etc/group"),
        )
    }
}

/// Finds the ids of a user in the files of accounts, `passwd` and `group`.
pub(crate) fn resolve_user(
    image_user: &str,
    (run_as_user, run_as_group): (Option<u32>, Option<u32>),
    (supplemental, strict): (&[u32], bool),
    passwd: &str,
    group: &str,
) -> Result<User, String> {
    let (image_user, image_group) = image_user.split_once(':').unwrap_or((image_user, ""));
    let users = || passwd.lines().map(|l| l.split(':').collect::<Vec<_>>()).filter(|f| f.len() >= 6);
    let groups = || group.lines().map(|l| l.split(':').collect::<Vec<_>>()).filter(|f| f.len() >= 3);
    let name = match run_as_user {
        Some(uid) => uid.to_string(),
        None if image_user.is_empty() => "0".into(),
        None => image_user.to_owned(),
    };
    let entry = users().find(|f| f[0] == name || (name.parse::<u32>().is_ok() && f[2] == name));
    let uid = match (&entry, name.parse()) {
        (_, Ok(uid)) => uid,
        (Some(entry), _) => {
            entry[2].parse().map_err(|_| format!("user {name:?}: bad uid {:?} in /etc/passwd", entry[2]))?
        }
        (None, _) => return Err(format!("unable to find user {name}: no matching entries in passwd file")),
    };
    let gid = match run_as_group {
        Some(gid) => gid,
        None if run_as_user.is_none() && !image_group.is_empty() => match image_group.parse() {
            Ok(gid) => gid,
            Err(_) => groups()
                .find(|f| f[0] == image_group)
                .and_then(|f| f[2].parse().ok())
                .ok_or_else(|| format!("unable to find group {image_group}: no matching entries in group file"))?,
        },
        None => entry.as_ref().and_then(|e| e[3].parse().ok()).unwrap_or(0),
    };
    let mut all: BTreeSet<u32> = supplemental.iter().copied().collect();
    if let (Some(entry), false) = (&entry, strict) {
        let member = |f: &Vec<&str>| f.get(3).is_some_and(|m| m.split(',').any(|m| m == entry[0]));
        all.extend(groups().filter(member).filter_map(|f| f[2].parse::<u32>().ok()));
    }
    all.insert(gid);
    let home = entry.map(|e| e[5].to_owned()).filter(|h| !h.is_empty()).unwrap_or_else(|| "/".into());
    Ok(User { uid, gid, groups: all.into_iter().collect(), home })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:44:Web:/srv:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nwww:x:44:\nmedia:x:70:web,other\n";

    #[test]
    fn users_come_from_the_request_the_image_and_its_files() {
        let user = |image: &str, request, supplemental: &[u32], strict| {
            resolve_user(image, request, (supplemental, strict), PASSWD, GROUP)
        };
        let expect =
            |uid, gid, groups: &[u32], home: &str| Ok(User { uid, gid, groups: groups.into(), home: home.into() });
        assert_eq!(user("", (None, None), &[], false), expect(0, 0, &[0], "/root"));
        assert_eq!(user("web", (None, None), &[9], false), expect(33, 44, &[9, 44, 70], "/srv"));
        assert_eq!(user("web:media", (None, None), &[], true), expect(33, 70, &[70], "/srv"));
        assert_eq!(user("web", (Some(1000), None), &[], false), expect(1000, 0, &[0], "/"));
        assert_eq!(user("1000:1001", (None, Some(5)), &[], false), expect(1000, 5, &[5], "/"));
        assert!(user("nobody", (None, None), &[], false).unwrap_err().contains("unable to find user nobody"));
        assert!(user("web:none", (None, None), &[], false).unwrap_err().contains("unable to find group none"));
    }
}

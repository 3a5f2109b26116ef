//! The user of a program: ids and groups from the request, the image and the container's files.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use crate::api::MAX_ID;
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
            let file =
                Directory::open(Path::new("/"), Links::Root).and_then(|root| root.read_without_proc(Path::new(path)));
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
    let number = Id::parse(&name);
    let entry = users().find(|f| f[0] == name || (number != Id::Name && f[2] == name));
    let uid = match (&entry, number) {
        (_, Id::Number(uid)) => uid,
        (_, Id::OutOfRange) => return Err(out_of_range("user", &name)),
        (Some(entry), Id::Name) => match Id::parse(entry[2]) {
            Id::Number(uid) => uid,
            Id::OutOfRange => return Err(out_of_range("user", &name)),
            Id::Name => return Err(format!("user {name:?}: bad uid {:?} in /etc/passwd", entry[2])),
        },
        (None, Id::Name) => return Err(format!("unable to find user {name}: no matching entries in passwd file")),
    };
    let gid = match (run_as_group, &entry) {
        (Some(gid), _) => check_id("group", gid)?,
        (None, _) if run_as_user.is_none() && !image_group.is_empty() => match Id::parse(image_group) {
            Id::Number(gid) => gid,
            Id::OutOfRange => return Err(out_of_range("group", image_group)),
            Id::Name => {
                let found = groups().find(|f| f[0] == image_group).map(|f| group_id(&f));
                found
                    .transpose()?
                    .flatten()
                    .ok_or_else(|| format!("unable to find group {image_group}: no matching entries in group file"))?
            }
        },
        (None, Some(entry)) => match Id::parse(entry[3]) {
            Id::Number(gid) => gid,
            Id::OutOfRange => return Err(out_of_range("group of user", &name)),
            Id::Name => 0,
        },
        (None, None) => 0,
    };
    let mut all = BTreeSet::new();
    for gid in supplemental {
        all.insert(check_id("group", *gid)?);
    }
    if let (Some(entry), false) = (&entry, strict) {
        let is_member = |f: &Vec<&str>| f.get(3).is_some_and(|m| m.split(',').any(|m| m == entry[0]));
        for fields in groups().filter(is_member) {
            all.extend(group_id(&fields)?);
        }
    }
    all.insert(gid);
    let home = entry.map(|e| e[5].to_owned()).filter(|h| !h.is_empty()).unwrap_or_else(|| "/".into());
    Ok(User { uid, gid, groups: all.into_iter().collect(), home })
}

/// A user or group in a file or in the configuration of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Id {
    Number(u32),
    /// A number that no user or group can have.
    OutOfRange,
    Name,
}

impl Id {
    fn parse(text: &str) -> Id {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Id::Name;
        }
        text.parse().ok().filter(|id| *id <= MAX_ID).map_or(Id::OutOfRange, Id::Number)
    }
}

/// The id of a line of /etc/group; `None` if it is no number.
fn group_id(fields: &[&str]) -> Result<Option<u32>, String> {
    match Id::parse(fields[2]) {
        Id::Number(gid) => Ok(Some(gid)),
        Id::OutOfRange => Err(out_of_range("group", fields[0])),
        Id::Name => Ok(None),
    }
}

fn check_id(kind: &str, id: u32) -> Result<u32, String> {
    if id <= MAX_ID { Ok(id) } else { Err(out_of_range(kind, &id.to_string())) }
}

fn out_of_range(kind: &str, name: &str) -> String {
    format!("{kind} {name}: uids and gids must be in range 0-{MAX_ID}")
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
    /// The kernel reads the id 4294967295 as "no change", which left the process root.
    #[test]
    fn rejects_ids_that_no_user_can_have() {
        let passwd = format!("{PASSWD}evil:x:4294967295:0::/:\nlow:x:1:4294967295::/:\nlast:x:2147483647:0::/:\n");
        let group = format!("{GROUP}big:x:4294967295:low\nlarge:x:2147483648:web\n");
        let user = |image: &str, request, supplemental: &[u32]| {
            resolve_user(image, request, (supplemental, false), &passwd, &group)
        };
        let none: (Option<u32>, Option<u32>) = (None, None);
        for (image, request, supplemental) in [
            ("4294967295", none, &[][..]),
            ("2147483648", none, &[]),
            ("4294967296", none, &[]),
            ("99999999999999999999", none, &[]),
            ("-1", none, &[]),
            ("1000:4294967295", none, &[]),
            ("1000:big", none, &[]),
            ("evil", none, &[]),
            ("low:1", none, &[]),
            ("low", none, &[]),
            ("web", none, &[]),
            ("0", (Some(u32::MAX), None), &[]),
            ("0", (None, Some(u32::MAX)), &[]),
            ("0", none, &[u32::MAX]),
        ] {
            let error = user(image, request, supplemental).expect_err(image);
            assert!(error.ends_with("uids and gids must be in range 0-2147483647"), "{image}: {error}");
        }
        assert_eq!(user("last", none, &[MAX_ID]).unwrap().uid, MAX_ID);
        assert!(user("0", (Some(4), Some(5)), &[]).is_ok(), "lines of others do not matter");
    }
}

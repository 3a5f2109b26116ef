//! The users of pods with a user namespace: a range of the host's ids for each, as kubelet's user namespace manager assigns them.
//!
//! **Invariant.** Pods with files on this node share no id with each other or with the host (ids below 65536). So a range is written
//! to the pod's directory before it is used, and released after that directory is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use runtime::IdRange;
use serde::{Deserialize, Serialize};

/// Number of ids of a pod; ranges start at multiples of it.
const LENGTH: u32 = 65536;
/// The last range, without the one whose last id means no id.
const LAST: u32 = 65534;
/// File in a pod's directory.
const FILE: &str = "userns";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("could not find an empty slot to allocate a user namespace")]
    Exhausted,
    #[error("{path}: {source}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path}: {message}")]
    Invalid { path: PathBuf, message: String },
}

#[derive(Default)]
struct Ranges {
    /// Numbers of ranges by the UIDs of pods: range `n` starts at `n * LENGTH`.
    of_pods: BTreeMap<String, u32>,
    /// How many numbers are passed over at first.
    start: u32,
}

/// Where the ranges of a node start. Several nodes may be on one machine, so that their pods should not have the same ids.
fn start(node: &str) -> u32 {
    let mut hasher = std::hash::DefaultHasher::new();
    node.hash(&mut hasher);
    (hasher.finish() % u64::from(LAST)) as u32
}

fn range(number: u32) -> IdRange {
    IdRange { first: number * LENGTH, length: LENGTH }
}

impl Ranges {
    fn get(&self, uid: &str) -> Option<IdRange> {
        self.of_pods.get(uid).copied().map(range)
    }

    /// Assigns the first free range.
    fn allocate(&mut self, uid: &str) -> Option<IdRange> {
        let taken: BTreeSet<u32> = self.of_pods.values().copied().collect();
        let number = (0..LAST).map(|i| (self.start + i) % LAST + 1).find(|n| !taken.contains(n))?;
        self.of_pods.insert(uid.to_owned(), number);
        Some(range(number))
    }

    /// Records a range that an earlier agent assigned. Errors if it is invalid or that of another pod.
    fn record(&mut self, uid: &str, given: IdRange) -> Result<(), &'static str> {
        let number = given.first / LENGTH;
        if given.length != LENGTH || !given.first.is_multiple_of(LENGTH) || !(1..=LAST).contains(&number) {
            return Err("no range of this node's");
        }
        if self.of_pods.iter().any(|(other, n)| *n == number && other != uid) {
            return Err("the range is another pod's");
        }
        match self.of_pods.insert(uid.to_owned(), number) {
            Some(before) if before != number => Err("the pod has had another range"),
            _ => Ok(()),
        }
    }
}

/// The format of kubelet's file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mappings {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

fn read(directory: &Path) -> Result<Option<IdRange>, Error> {
    let path = directory.join(FILE);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::Io { path, source }),
    };
    let invalid = |message: String| Error::Invalid { path: path.clone(), message };
    let mappings: Mappings = serde_json::from_slice(&text).map_err(|e| invalid(e.to_string()))?;
    match (mappings.uid_mappings.as_slice(), mappings.gid_mappings.as_slice()) {
        ([u], [g]) if u == g && u.container_id == 0 => Ok(Some(IdRange { first: u.host_id, length: u.length })),
        _ => Err(invalid("not one mapping from 0 on, the same for users and groups".into())),
    }
}

fn write(directory: &Path, given: IdRange) -> Result<(), Error> {
    let path = directory.join(FILE);
    let one = vec![Mapping { host_id: given.first, container_id: 0, length: given.length }];
    let put = || {
        let text = serde_json::to_vec(&Mappings { uid_mappings: one.clone(), gid_mappings: one.clone() })?;
        let temporary = directory.join(format!("{FILE}.new"));
        let mut file = File::create(&temporary)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        File::open(directory)?.sync_all()
    };
    put().map_err(|source| Error::Io { path: path.clone(), source })
}

/// The ranges of this node's pods.
pub struct Users {
    /// The directory with those of pods, named by UID.
    root: PathBuf,
    ranges: Mutex<Ranges>,
}

impl Users {
    /// Reads the ranges that earlier agents assigned. Errors if a file cannot be read, since its range would be assigned again.
    pub fn open(root: PathBuf, node: &str) -> Result<Users, Error> {
        let mut ranges = Ranges { start: start(node), ..Ranges::default() };
        for entry in fs::read_dir(&root).into_iter().flatten().flatten() {
            let uid = entry.file_name().to_string_lossy().into_owned();
            if let Some(given) = read(&entry.path())? {
                let path = entry.path().join(FILE);
                ranges.record(&uid, given).map_err(|m| Error::Invalid { path, message: m.to_owned() })?;
            }
        }
        Ok(Users { root, ranges: Mutex::new(ranges) })
    }

    /// The range of a pod, whose directory must exist. Assigns one if it has none. Blocks.
    pub fn range(&self, uid: &str) -> Result<IdRange, Error> {
        let mut ranges = self.ranges.lock();
        if let Some(given) = ranges.get(uid) {
            return Ok(given);
        }
        let given = ranges.allocate(uid).ok_or(Error::Exhausted)?;
        if let Err(error) = write(&self.root.join(uid), given) {
            ranges.of_pods.remove(uid);
            return Err(error);
        }
        Ok(given)
    }

    /// Releases the range of a pod whose directory is gone. Blocks.
    pub fn release(&self, uid: &str) {
        self.ranges.lock().of_pods.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_given_once_and_begin_above_the_host() {
        let mut r = Ranges::default();
        assert_eq!(r.allocate("a"), Some(IdRange { first: 65536, length: 65536 }));
        assert_eq!(r.allocate("b").unwrap().first, 2 * 65536);
        assert_eq!(r.allocate("c").unwrap().first, 3 * 65536);
        r.of_pods.remove("b");
        assert_eq!(r.get("b"), None);
        assert_eq!(r.allocate("d").unwrap().first, 2 * 65536);
        assert_eq!(r.allocate("e").unwrap().first, 4 * 65536);
        for (uid, first, length, wrong) in [
            ("a", 65536, 65536, None),
            ("a", 9 * 65536, 65536, Some("the pod has had another range")),
            ("x", 2 * 65536, 65536, Some("the range is another pod's")),
            ("x", 0, 65536, Some("no range of this node's")),
            ("x", 65537, 65536, Some("no range of this node's")),
            ("x", 7 * 65536, 65535, Some("no range of this node's")),
            ("x", 65535 * 65536, 65536, Some("no range of this node's")),
            ("x", 65534 * 65536, 65536, None),
        ] {
            assert_eq!(r.record(uid, IdRange { first, length }).err(), wrong, "{uid} {first}");
        }
    }

    /// Pods of two nodes of one machine had the same ids.
    #[test]
    fn nodes_start_with_other_ranges() {
        let of = |node: &str| {
            let mut r = Ranges { start: start(node), ..Ranges::default() };
            ["a", "b", "c"].map(|uid| r.allocate(uid).unwrap().first)
        };
        let all: BTreeSet<u32> = ["node-1", "node-2", "node-3"].iter().flat_map(|node| of(node)).collect();
        assert_eq!(all.len(), 9, "{all:?}");
        let mut last = Ranges { start: LAST - 1, ..Ranges::default() };
        assert_eq!(["a", "b"].map(|uid| last.allocate(uid).unwrap().first), [LAST * LENGTH, LENGTH]);
    }

    #[test]
    fn every_range_is_used_before_there_is_none() {
        let of_pods = (1..=LAST).filter(|n| *n != 40_000).map(|n| (format!("p{n}"), n)).collect();
        let mut r = Ranges { of_pods, start: LAST - 1 };
        assert_eq!(r.allocate("x").unwrap().first, 40_000 * 65536);
        assert_eq!(r.allocate("y"), None);
    }

    #[test]
    fn another_agent_keeps_them_until_the_files_are_gone() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Users::open(directory.path().to_owned(), "n");
        for uid in ["a", "b"] {
            fs::create_dir(directory.path().join(uid)).unwrap();
        }
        let users = open().unwrap();
        let (a, b) = (users.range("a").unwrap(), users.range("b").unwrap());
        assert_ne!(a, b);
        let users = open().unwrap();
        assert_eq!((users.range("b").unwrap(), users.range("a").unwrap()), (b, a));
        assert!(matches!(users.range("without-directory"), Err(Error::Io { .. })));
        fs::remove_dir_all(directory.path().join("a")).unwrap();
        users.release("a");
        fs::create_dir(directory.path().join("c")).unwrap();
        assert_eq!(users.range("c").unwrap(), a);
        fs::copy(directory.path().join("c").join(FILE), directory.path().join("b").join(FILE)).unwrap();
        assert!(matches!(open(), Err(Error::Invalid { .. })), "two pods with one range");
        fs::write(directory.path().join("b").join(FILE), "{}").unwrap();
        assert!(matches!(open(), Err(Error::Invalid { .. })));
    }
}

//! Addresses of pods, kept in a file.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::address::Cidr;
use crate::{Error, Result};

const VERSION: u32 = 1;
/// Pods get one of the first addresses of the range, up to this number: enough for any node, and few enough for packet rules.
const MAXIMUM: u32 = 4094;

/// **Invariant**: an assigned address is in the file before it is used.
pub struct Ipam {
    path: PathBuf,
    state: State,
}

#[derive(Clone, Serialize, Deserialize)]
struct State {
    version: u32,
    range: Cidr,
    /// Pod id → address.
    pods: BTreeMap<String, Ipv4Addr>,
    /// The next candidate. A released address is not assigned again at once, since clients may still use it.
    next: u32,
}

impl Ipam {
    /// Reads the table. One for another range is read without its pods.
    pub fn open(path: PathBuf, range: Cidr) -> Result<Ipam> {
        let fresh = State { version: VERSION, range, pods: BTreeMap::new(), next: 0 };
        let corrupt = |message: String| Error::Corrupt { path: path.clone(), message };
        let state = match std::fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => fresh,
            Err(e) => return Err(corrupt(e.to_string())),
            Ok(bytes) => match serde_json::from_slice::<State>(&bytes) {
                Ok(state) if state.version > VERSION => {
                    return Err(corrupt(format!("has version {}, this program knows {VERSION}", state.version)));
                }
                Ok(state) if state.range == range => state,
                Ok(_) => fresh,
                Err(e) => return Err(corrupt(e.to_string())),
            },
        };
        Ok(Ipam { path, state })
    }

    /// The node's own address in the range: its first after the network address.
    pub fn gateway(range: Cidr) -> Result<Ipv4Addr> {
        range.nth(1).filter(|_| range.size() >= 4).ok_or(Error::Exhausted(range))
    }

    /// The addresses that pods may have.
    pub fn addresses(&self) -> BTreeSet<Ipv4Addr> {
        let range = self.state.range;
        let usable = (0..usable(range)).filter_map(|index| range.nth(index + 2));
        usable.chain(self.state.pods.values().copied()).collect()
    }

    pub fn get(&self, pod: &str) -> Option<Ipv4Addr> {
        self.state.pods.get(pod).copied()
    }

    pub fn pods(&self) -> &BTreeMap<String, Ipv4Addr> {
        &self.state.pods
    }

    /// The pod's address; assigns one if it has none.
    pub fn allocate(&mut self, pod: &str) -> Result<Ipv4Addr> {
        if let Some(address) = self.get(pod) {
            return Ok(address);
        }
        let range = self.state.range;
        let usable = usable(range);
        let used: BTreeSet<Ipv4Addr> = self.state.pods.values().copied().collect();
        for step in 0..usable {
            let index = (self.state.next + step) % usable;
            let Some(address) = range.nth(index + 2) else { continue };
            if !used.contains(&address) {
                let mut next = self.state.clone();
                next.next = (index + 1) % usable;
                next.pods.insert(pod.to_owned(), address);
                self.commit(next)?;
                return Ok(address);
            }
        }
        Err(Error::Exhausted(range))
    }

    pub fn release(&mut self, pod: &str) -> Result<()> {
        if self.state.pods.contains_key(pod) {
            let mut next = self.state.clone();
            next.pods.remove(pod);
            self.commit(next)?;
        }
        Ok(())
    }

    fn commit(&mut self, next: State) -> Result<()> {
        write(&self.path, &next).map_err(Error::io(self.path.display().to_string()))?;
        self.state = next;
        Ok(())
    }
}

/// Number of addresses of a range for pods: without the network address, the gateway and the broadcast address.
fn usable(range: Cidr) -> u32 {
    u32::try_from(range.size().saturating_sub(3)).unwrap_or(u32::MAX).min(MAXIMUM)
}

fn write(path: &Path, state: &State) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    std::fs::write(&temporary, serde_json::to_vec(state)?)?;
    std::fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_large_range_the_beginning_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ipam.json");
        let far = r#"{"version":1,"range":"10.0.0.0/8","pods":{"old":"10.9.9.9"},"next":592000}"#;
        std::fs::write(&path, far).unwrap();
        let mut ipam = Ipam::open(path, "10.0.0.0/8".parse().unwrap()).unwrap();
        assert_eq!(ipam.allocate("old").unwrap(), Ipv4Addr::new(10, 9, 9, 9), "what an earlier version gave stays");
        let new = ipam.allocate("new").unwrap();
        let all = ipam.addresses();
        assert!(all.contains(&new) && all.contains(&Ipv4Addr::new(10, 9, 9, 9)));
        assert_eq!(all.len(), MAXIMUM as usize + 1);
        assert_eq!(all.first(), Some(&Ipv4Addr::new(10, 0, 0, 2)));
    }

    #[test]
    fn addresses_are_unique_remembered_and_reused_late() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ipam.json");
        let range: Cidr = "10.5.0.0/29".parse().unwrap();
        let mut ipam = Ipam::open(path.clone(), range).unwrap();
        let last = |a: Ipv4Addr| a.octets()[3];
        assert_eq!(last(Ipam::gateway(range).unwrap()), 1);
        let given: Vec<u8> = ["a", "b", "c"].map(|p| last(ipam.allocate(p).unwrap())).into();
        assert_eq!(given, [2, 3, 4]);
        assert_eq!(last(ipam.allocate("a").unwrap()), 2, "asking again changes nothing");
        ipam.release("a").unwrap();
        assert_eq!(last(ipam.allocate("d").unwrap()), 5, "the address just freed waits");

        let mut ipam = Ipam::open(path.clone(), range).unwrap();
        assert_eq!(ipam.get("b").map(last), Some(3), "restarts remember");
        assert_eq!(last(ipam.allocate("e").unwrap()), 6);
        assert_eq!(last(ipam.allocate("f").unwrap()), 2);
        assert!(matches!(ipam.allocate("g"), Err(Error::Exhausted(_))));
        std::fs::write(&path, b"{").unwrap();
        assert!(matches!(Ipam::open(path, range), Err(Error::Corrupt { .. })));
    }
}

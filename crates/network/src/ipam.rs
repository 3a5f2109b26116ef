//! Addresses of pods, kept in a file.
//!
//! A pod gets the same number in the range of each family.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::address::{Cidr, Ranges};
use crate::{Error, Result};

const VERSION: u32 = 2;
/// Pods get one of the first addresses of the range, up to this number: enough for any node, and few enough for packet rules.
const MAXIMUM: u32 = 4094;

/// **Invariant**: an assigned address is in the file before it is used.
pub struct Ipam {
    path: PathBuf,
    state: State,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "Stored")]
struct State {
    version: u32,
    ranges: Ranges,
    /// Pod id → addresses, in the order of the ranges.
    pods: BTreeMap<String, Vec<IpAddr>>,
    /// The next candidate. A released address is not assigned again at once, since clients may still use it.
    next: u32,
}

/// The file, in all versions.
#[derive(Deserialize)]
struct Stored {
    version: u32,
    /// The range of version 1, which had no others.
    #[serde(alias = "range")]
    ranges: Ranges,
    pods: BTreeMap<String, Addresses>,
    next: u32,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Addresses {
    /// In version 1.
    One(IpAddr),
    All(Vec<IpAddr>),
}

impl From<Stored> for State {
    fn from(stored: Stored) -> State {
        let addresses = |a| match a {
            Addresses::One(address) => vec![address],
            Addresses::All(addresses) => addresses,
        };
        let pods = stored.pods.into_iter().map(|(pod, a)| (pod, addresses(a))).collect();
        State { version: stored.version, ranges: stored.ranges, pods, next: stored.next }
    }
}

impl State {
    /// The state with other ranges. Pods keep their addresses if these are in a range; none keeps a part of them without the first.
    fn with_ranges(mut self, ranges: Ranges) -> State {
        if self.ranges.iter().any(|range| ranges.iter().any(|new| new == range)) {
            for addresses in self.pods.values_mut() {
                addresses.retain(|address| ranges.contains(*address));
                addresses.sort_by_key(|address| ranges.iter().position(|range| range.contains(*address)));
            }
            self.pods.retain(|_, addresses| !addresses.is_empty());
        } else {
            self.pods.clear();
            self.next = 0;
        }
        State { version: VERSION, ranges, ..self }
    }
}

impl Ipam {
    /// Reads the table. One for other ranges is read without the addresses of these.
    pub fn open(path: PathBuf, ranges: Ranges) -> Result<Ipam> {
        let corrupt = |message: String| Error::Corrupt { path: path.clone(), message };
        let state = match std::fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                State { version: VERSION, ranges, pods: BTreeMap::new(), next: 0 }
            }
            Err(e) => return Err(corrupt(e.to_string())),
            Ok(bytes) => match serde_json::from_slice::<State>(&bytes) {
                Ok(state) if state.version > VERSION => {
                    return Err(corrupt(format!("has version {}, this program knows {VERSION}", state.version)));
                }
                Ok(state) => state.with_ranges(ranges),
                Err(e) => return Err(corrupt(e.to_string())),
            },
        };
        Ok(Ipam { path, state })
    }

    /// The node's own address in a range: its first after the network address.
    pub fn gateway(range: Cidr) -> Result<IpAddr> {
        range.nth(1).filter(|_| range.size() >= 4).ok_or(Error::Exhausted(range))
    }

    /// The addresses that pods may have: those of one pod each.
    pub fn addresses(&self) -> BTreeSet<Vec<IpAddr>> {
        let ranges = self.state.ranges;
        let usable = (0..usable(ranges)).map(|index| numbered(ranges, index));
        usable.chain(self.state.pods.values().cloned()).collect()
    }

    pub fn get(&self, pod: &str) -> Option<Vec<IpAddr>> {
        self.state.pods.get(pod).cloned()
    }

    pub fn pods(&self) -> &BTreeMap<String, Vec<IpAddr>> {
        &self.state.pods
    }

    /// The pod's addresses; assigns some if it has none.
    pub fn allocate(&mut self, pod: &str) -> Result<Vec<IpAddr>> {
        if let Some(addresses) = self.get(pod) {
            return Ok(addresses);
        }
        let ranges = self.state.ranges;
        let usable = usable(ranges);
        let used: BTreeSet<IpAddr> = self.state.pods.values().flatten().copied().collect();
        for step in 0..usable {
            let index = (self.state.next + step) % usable;
            let addresses = numbered(ranges, index);
            if !addresses.iter().any(|address| used.contains(address)) {
                let mut next = self.state.clone();
                next.next = (index + 1) % usable;
                next.pods.insert(pod.to_owned(), addresses.clone());
                self.commit(next)?;
                return Ok(addresses);
            }
        }
        let smallest = ranges.iter().min_by_key(Cidr::size).unwrap_or(ranges.first());
        Err(Error::Exhausted(smallest))
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

/// The addresses of this number, from 0, in each range.
fn numbered(ranges: Ranges, index: u32) -> Vec<IpAddr> {
    ranges.iter().filter_map(|range| range.nth(index + 2)).collect()
}

/// Number of addresses of each range for pods: without the network address, the gateway and the broadcast address.
fn usable(ranges: Ranges) -> u32 {
    let size = ranges.iter().map(|range| range.size()).min().unwrap_or(0);
    u32::try_from(size.saturating_sub(3)).unwrap_or(u32::MAX).min(MAXIMUM)
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

    fn one(text: &str) -> Vec<IpAddr> {
        vec![text.parse().unwrap()]
    }

    #[test]
    fn of_a_large_range_the_beginning_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ipam.json");
        let far = r#"{"version":1,"range":"10.0.0.0/8","pods":{"old":"10.9.9.9"},"next":592000}"#;
        std::fs::write(&path, far).unwrap();
        let mut ipam = Ipam::open(path, "10.0.0.0/8".parse().unwrap()).unwrap();
        assert_eq!(ipam.allocate("old").unwrap(), one("10.9.9.9"), "what an earlier version gave stays");
        let new = ipam.allocate("new").unwrap();
        let all = ipam.addresses();
        assert!(all.contains(&new) && all.contains(&one("10.9.9.9")));
        assert_eq!(all.len(), MAXIMUM as usize + 1);
        assert_eq!(all.first(), Some(&one("10.0.0.2")));
    }

    #[test]
    fn addresses_are_unique_remembered_and_reused_late() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ipam.json");
        let ranges: Ranges = "10.5.0.0/29".parse().unwrap();
        let mut ipam = Ipam::open(path.clone(), ranges).unwrap();
        let last = |a: Vec<IpAddr>| a[0].to_string().rsplit('.').next().unwrap().to_owned();
        assert_eq!(Ipam::gateway(ranges.first()).unwrap().to_string(), "10.5.0.1");
        let given: Vec<String> = ["a", "b", "c"].map(|p| last(ipam.allocate(p).unwrap())).into();
        assert_eq!(given, ["2", "3", "4"]);
        assert_eq!(last(ipam.allocate("a").unwrap()), "2", "asking again changes nothing");
        ipam.release("a").unwrap();
        assert_eq!(last(ipam.allocate("d").unwrap()), "5", "the address just freed waits");

        let mut ipam = Ipam::open(path.clone(), ranges).unwrap();
        assert_eq!(ipam.get("b").map(last).as_deref(), Some("3"), "restarts remember");
        assert_eq!(last(ipam.allocate("e").unwrap()), "6");
        assert_eq!(last(ipam.allocate("f").unwrap()), "2");
        assert!(matches!(ipam.allocate("g"), Err(Error::Exhausted(_))));
        std::fs::write(&path, b"{").unwrap();
        assert!(matches!(Ipam::open(path, ranges), Err(Error::Corrupt { .. })));
    }

    #[test]
    fn a_pod_has_the_same_number_in_both_ranges() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ipam.json");
        let open = |ranges: &str| Ipam::open(path.clone(), ranges.parse().unwrap()).unwrap();
        let texts = |a: Vec<IpAddr>| a.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(texts(open("10.5.0.0/24").allocate("old").unwrap()), "10.5.0.2");
        let mut ipam = open("10.5.0.0/24,fd00:5::/64");
        assert_eq!(texts(ipam.allocate("old").unwrap()), "10.5.0.2", "a pod keeps what it was started with");
        assert_eq!(texts(ipam.allocate("new").unwrap()), "10.5.0.3 fd00:5::3");
        let mut ipam = open("fd00:5::/64,10.5.0.0/24");
        assert_eq!(texts(ipam.get("new").unwrap()), "fd00:5::3 10.5.0.3");
        assert_eq!(texts(ipam.allocate("newer").unwrap()), "fd00:5::4 10.5.0.4");
        assert_eq!(texts(open("10.5.0.0/24").get("newer").unwrap()), "10.5.0.4");
        assert_eq!(open("10.6.0.0/24").pods().len(), 0);
        let mut small = open("10.7.0.0/24,fd00:7::/126");
        assert_eq!(texts(small.allocate("a").unwrap()), "10.7.0.2 fd00:7::2");
        assert!(matches!(small.allocate("b"), Err(Error::Exhausted(range)) if range.to_string() == "fd00:7::/126"));
    }
}

//! Sets of processors in the kernel's notation (`0-3,8`).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A larger number is no processor's. It bounds what a list may expand to.
const MAX: u32 = 1 << 16;

/// A set of processors, or of other things that the kernel numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<u32>);

/// The text is no list of numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid list of CPUs {0:?}")]
pub struct InvalidList(String);

impl CpuSet {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    pub fn union(&self, other: &Self) -> Self {
        Self(&self.0 | &other.0)
    }

    pub fn difference(&self, other: &Self) -> Self {
        Self(&self.0 - &other.0)
    }

    pub fn intersection(&self, other: &Self) -> Self {
        Self(&self.0 & &other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl<const N: usize> From<[u32; N]> for CpuSet {
    fn from(cpus: [u32; N]) -> Self {
        Self(cpus.into())
    }
}

impl FromStr for CpuSet {
    type Err = InvalidList;

    fn from_str(text: &str) -> Result<Self, InvalidList> {
        let invalid = || InvalidList(text.to_owned());
        let number = |t: &str| t.parse::<u32>().ok().filter(|n| *n <= MAX).ok_or_else(invalid);
        let mut out = BTreeSet::new();
        for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
            match part.split_once('-') {
                None => {
                    out.insert(number(part)?);
                }
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last {
                        return Err(invalid());
                    }
                    out.extend(first..=last);
                }
            }
        }
        Ok(Self(out))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if(|n| *n == last + 1) {
                last = next;
            }
            match first == last {
                true => write!(f, "{separator}{first}")?,
                false => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_those_of_the_kernel() {
        for (text, cpus) in [("", vec![]), ("0", vec![0]), ("0-2,5,7-8", vec![0, 1, 2, 5, 7, 8]), ("3-3", vec![3])] {
            let set: CpuSet = text.parse().unwrap();
            assert_eq!(set.iter().collect::<Vec<_>>(), cpus, "{text}");
            assert_eq!(set.to_string(), text.replace("3-3", "3"));
        }
        for text in ["a", "1,", "3-1", "-1", "0-4000000000", "1-2-3"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text}");
        }
    }
}

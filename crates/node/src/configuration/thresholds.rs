//! Thresholds of hard eviction (`evictionHard`): below them the node is under pressure (`pkg/kubelet/eviction/helpers.go`).

use std::collections::BTreeMap;

use meta::Quantity;

/// The signals of upstream's eviction manager on Linux.
const SIGNALS: [&str; 10] = [
    "memory.available",
    "allocatableMemory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "pid.available",
    "allocatableNodeFs.available",
];

/// An amount, or a share of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    Amount(u64),
    /// Between 0 and 1.
    Share(f64),
}

impl Threshold {
    /// The amount of a resource with this capacity.
    pub fn of_capacity(self, capacity: u64) -> u64 {
        match self {
            Self::Amount(amount) => amount,
            Self::Share(share) => (capacity as f64 * share) as u64,
        }
    }

    fn parse(signal: &str, text: &str) -> Result<Self, String> {
        if let Some(percent) = text.strip_suffix('%') {
            let invalid = || format!("strconv.ParseFloat: parsing {percent:?}: invalid syntax");
            let percent: f64 = percent.parse().map_err(|_| invalid())?;
            if percent < 0.0 {
                return Err(format!("eviction percentage threshold {signal} must be >= 0%: {text}"));
            }
            if percent >= 100.0 {
                return Err(format!("eviction percentage threshold {signal} must be < 100%: {text}"));
            }
            return Ok(Self::Share(percent / 100.0));
        }
        let quantity: Quantity = text.parse().map_err(|e| format!("{e}"))?;
        let amount = quantity.value();
        if amount < 0 {
            return Err(format!("eviction threshold {signal} must be positive: {text}"));
        }
        Ok(Self::Amount(u64::try_from(amount).unwrap_or(u64::MAX)))
    }
}

/// The thresholds that this agent observes; a signal without one causes no pressure.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Thresholds {
    pub memory: Option<Threshold>,
    pub disk: Option<Threshold>,
    pub inodes: Option<Threshold>,
    pub pids: Option<Threshold>,
}

impl Thresholds {
    /// Parses `evictionHard`. A threshold of 0% or 100% is none, as upstream.
    pub fn parse(hard: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut out = Self::default();
        for (signal, text) in hard {
            if !SIGNALS.contains(&signal.as_str()) {
                return Err(format!("unsupported eviction signal {signal}"));
            }
            if text == "0%" || text == "100%" {
                continue;
            }
            let threshold = Some(Threshold::parse(signal, text)?);
            match signal.as_str() {
                "memory.available" => out.memory = threshold,
                "nodefs.available" => out.disk = threshold,
                "nodefs.inodesFree" => out.inodes = threshold,
                "pid.available" => out.pids = threshold,
                // Images and containers lie on the disk of the node.
                _ => {}
            }
        }
        Ok(out)
    }
}

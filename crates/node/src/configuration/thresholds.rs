//! Thresholds of eviction (`evictionHard`, `evictionSoft` and their companions): below them pods are evicted
//! (`pkg/kubelet/eviction/helpers.go`).

use std::collections::BTreeMap;
use std::time::Duration;

use meta::Quantity;
use meta::quantity::Format;

/// The condition of a node that lacks a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    Memory,
    Disk,
    Pid,
}

impl Pressure {
    /// The type of the node's condition.
    pub fn condition(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }
}

/// What an eviction reclaims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starved {
    Memory,
    Storage,
    Inodes,
    Pids,
}

impl Starved {
    /// The name of the resource in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Storage => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        }
    }

    /// An amount of the resource.
    pub fn quantity(self, amount: i64) -> Quantity {
        match self {
            Self::Memory | Self::Storage => Quantity::binary(amount),
            Self::Inodes | Self::Pids => Quantity::from_int(amount),
        }
    }
}

/// What is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    MemoryAvailable,
    /// Memory that pods may still use. Its threshold is that of `memory.available`.
    AllocatableMemoryAvailable,
    NodeFsAvailable,
    NodeFsInodesFree,
    ImageFsAvailable,
    ImageFsInodesFree,
    ContainerFsAvailable,
    ContainerFsInodesFree,
    PidAvailable,
}

const SIGNALS: [(&str, Signal); 9] = [
    ("memory.available", Signal::MemoryAvailable),
    ("allocatableMemory.available", Signal::AllocatableMemoryAvailable),
    ("nodefs.available", Signal::NodeFsAvailable),
    ("nodefs.inodesFree", Signal::NodeFsInodesFree),
    ("imagefs.available", Signal::ImageFsAvailable),
    ("imagefs.inodesFree", Signal::ImageFsInodesFree),
    ("containerfs.available", Signal::ContainerFsAvailable),
    ("containerfs.inodesFree", Signal::ContainerFsInodesFree),
    ("pid.available", Signal::PidAvailable),
];

impl Signal {
    /// The name in a configuration.
    pub fn as_str(self) -> &'static str {
        SIGNALS.iter().find(|(_, signal)| *signal == self).map_or("", |(name, _)| name)
    }

    fn parse(name: &str) -> Result<Self, String> {
        let known = SIGNALS.iter().find(|(known, _)| *known == name);
        known.map(|(_, signal)| *signal).ok_or_else(|| format!("unsupported eviction signal {name}"))
    }

    pub fn starved(self) -> Starved {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => Starved::Memory,
            Self::NodeFsAvailable | Self::ImageFsAvailable | Self::ContainerFsAvailable => Starved::Storage,
            Self::NodeFsInodesFree | Self::ImageFsInodesFree | Self::ContainerFsInodesFree => Starved::Inodes,
            Self::PidAvailable => Starved::Pids,
        }
    }

    pub fn pressure(self) -> Pressure {
        match self.starved() {
            Starved::Memory => Pressure::Memory,
            Starved::Storage | Starved::Inodes => Pressure::Disk,
            Starved::Pids => Pressure::Pid,
        }
    }
}

/// An amount, or a share of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    Absolute(Quantity),
    /// Between 0 and 1.
    Share(f32),
}

impl Amount {
    /// The amount of a resource with this capacity. A share is in the notation of bytes, as upstream.
    pub fn of_capacity(self, capacity: i64) -> Quantity {
        match self {
            Self::Absolute(quantity) => quantity,
            Self::Share(share) => Quantity::binary((capacity as f64 * f64::from(share)) as i64),
        }
    }
}

/// Below `value` for `grace_period`, a signal leads to evictions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    pub value: Amount,
    /// Zero for a hard threshold.
    pub grace_period: Duration,
    /// How much more than the threshold is reclaimed.
    pub minimum_reclaim: Option<Amount>,
}

impl Threshold {
    pub fn is_hard(&self) -> bool {
        self.grace_period.is_zero()
    }
}

type Statements = BTreeMap<String, String>;

/// The fields of a configuration that make thresholds.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    pub hard: &'a Statements,
    pub soft: &'a Statements,
    pub soft_grace_period: &'a Statements,
    pub minimum_reclaim: &'a Statements,
    /// Whether the limits of all pods together are enforced.
    pub enforces_pods: bool,
}

/// The thresholds of a configuration.
pub fn parse(sources: Sources<'_>) -> Result<Vec<Threshold>, String> {
    let mut out = Vec::new();
    for (name, text) in sources.hard {
        out.extend(statement(name, text)?);
    }
    let mut periods = BTreeMap::new();
    for (name, text) in sources.soft_grace_period {
        let signal = Signal::parse(name)?;
        let nanos = meta::time::parse_go_duration(text).ok_or_else(|| format!("time: invalid duration {text:?}"))?;
        let nanos = u64::try_from(nanos)
            .map_err(|_| format!("invalid eviction grace period specified: {text}, must be a positive value"))?;
        periods.insert(signal, Duration::from_nanos(nanos));
    }
    for (name, text) in sources.soft {
        let Some(threshold) = statement(name, text)? else { continue };
        let period = periods.get(&threshold.signal).copied();
        let grace_period =
            period.ok_or_else(|| format!("grace period must be specified for the soft eviction threshold {name}"))?;
        out.push(Threshold { grace_period, ..threshold });
    }
    let mut reclaims = BTreeMap::new();
    for (name, text) in sources.minimum_reclaim {
        reclaims.insert(Signal::parse(name)?, reclaim(name, text)?);
    }
    for threshold in &mut out {
        threshold.minimum_reclaim = reclaims.get(&threshold.signal).copied();
    }
    if sources.enforces_pods {
        let memory = out.iter().filter(|t| t.signal == Signal::MemoryAvailable && t.is_hard());
        let added: Vec<Threshold> =
            memory.map(|t| Threshold { signal: Signal::AllocatableMemoryAvailable, ..*t }).collect();
        out.extend(added);
    }
    Ok(out)
}

fn percentage(text: &str) -> Result<f32, String> {
    let number = text.trim_end_matches('%');
    let percent: f32 = number.parse().map_err(|_| format!("strconv.ParseFloat: parsing {number:?}: invalid syntax"))?;
    Ok(percent / 100.0)
}

/// A threshold; none for 0% and 100%, as upstream.
fn statement(name: &str, text: &str) -> Result<Option<Threshold>, String> {
    let signal = Signal::parse(name)?;
    let threshold = |value| Threshold { signal, value, grace_period: Duration::ZERO, minimum_reclaim: None };
    if text.ends_with('%') {
        if text == "0%" || text == "100%" {
            return Ok(None);
        }
        let share = percentage(text)?;
        if share < 0.0 {
            return Err(format!("eviction percentage threshold {name} must be >= 0%: {text}"));
        }
        if share > 1.0 {
            return Err(format!("eviction percentage threshold {name} must be <= 100%: {text}"));
        }
        return Ok(Some(threshold(Amount::Share(share))));
    }
    let quantity: Quantity = text.parse().map_err(|e| format!("{e}"))?;
    if quantity.sign() <= 0 {
        return Err(format!("eviction threshold {name} must be positive: {quantity}"));
    }
    Ok(Some(threshold(Amount::Absolute(quantity))))
}

fn reclaim(name: &str, text: &str) -> Result<Amount, String> {
    if text.ends_with('%') {
        let share = percentage(text)?;
        if share <= 0.0 {
            return Err(format!("eviction percentage minimum reclaim {name} must be positive: {text}"));
        }
        return Ok(Amount::Share(share));
    }
    let quantity: Quantity = text.parse().map_err(|e| format!("{e}"))?;
    if quantity.sign() < 0 {
        return Err(format!("negative eviction minimum reclaim specified for {name}"));
    }
    // A zero has the notation of what it is added to.
    Ok(Amount::Absolute(if quantity.is_zero() { quantity.in_format(Format::DecimalSi) } else { quantity }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(all: &[(&str, &str)]) -> Statements {
        all.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn read(
        hard: &[(&str, &str)],
        soft: &[(&str, &str)],
        grace: &[(&str, &str)],
        reclaim: &[(&str, &str)],
    ) -> Result<Vec<Threshold>, String> {
        parse(Sources {
            hard: &map(hard),
            soft: &map(soft),
            soft_grace_period: &map(grace),
            minimum_reclaim: &map(reclaim),
            enforces_pods: true,
        })
    }

    #[test]
    fn thresholds_are_read_with_their_companions() {
        let all = read(
            &[("memory.available", "100Mi"), ("nodefs.available", "10%"), ("nodefs.inodesFree", "0%")],
            &[("memory.available", "200Mi")],
            &[("memory.available", "1m30s")],
            &[("memory.available", "50Mi")],
        )
        .unwrap();
        let mib = |n: i64| Amount::Absolute(Quantity::binary(n << 20));
        let threshold = |signal, value, seconds, minimum_reclaim| Threshold {
            signal,
            value,
            grace_period: Duration::from_secs(seconds),
            minimum_reclaim,
        };
        assert_eq!(
            all,
            [
                threshold(Signal::MemoryAvailable, mib(100), 0, Some(mib(50))),
                threshold(Signal::NodeFsAvailable, Amount::Share(0.1), 0, None),
                threshold(Signal::MemoryAvailable, mib(200), 90, Some(mib(50))),
                threshold(Signal::AllocatableMemoryAvailable, mib(100), 0, Some(mib(50))),
            ]
        );
        assert_eq!(Amount::Share(0.1).of_capacity(1000).value(), 100);
    }

    #[test]
    fn errors_are_upstreams() {
        let hard = |k, v| read(&[(k, v)], &[], &[], &[]).unwrap_err();
        assert_eq!(hard("cpu.available", "1"), "unsupported eviction signal cpu.available");
        let must = "eviction threshold memory.available must be positive: ";
        assert_eq!(hard("memory.available", "0"), format!("{must}0"));
        assert_eq!(hard("memory.available", "-1Mi"), format!("{must}-1Mi"));
        assert_eq!(
            hard("memory.available", "-1%"),
            "eviction percentage threshold memory.available must be >= 0%: -1%"
        );
        assert_eq!(
            hard("memory.available", "101%"),
            "eviction percentage threshold memory.available must be <= 100%: 101%"
        );
        assert_eq!(hard("memory.available", "x%"), "strconv.ParseFloat: parsing \"x\": invalid syntax");
        let soft = |grace: &[(&str, &str)]| read(&[], &[("pid.available", "5")], grace, &[]).unwrap_err();
        assert_eq!(soft(&[]), "grace period must be specified for the soft eviction threshold pid.available");
        let invalid = "invalid eviction grace period specified: -1s, must be a positive value";
        assert_eq!(soft(&[("pid.available", "-1s")]), invalid);
        let reclaim = |v| read(&[], &[], &[], &[("pid.available", v)]).unwrap_err();
        assert_eq!(reclaim("-1"), "negative eviction minimum reclaim specified for pid.available");
        assert_eq!(reclaim("0%"), "eviction percentage minimum reclaim pid.available must be positive: 0%");
    }
}

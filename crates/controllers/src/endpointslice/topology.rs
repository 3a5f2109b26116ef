//! Hints in proportion to the CPUs of zones, for services with the annotation `service.kubernetes.io/topology-mode: Auto` (upstream
//! `topologycache.go`).
//!
//! Every zone gets endpoints for its share of the CPUs of all nodes. Where that is impossible, or would overload a zone by more than a
//! fifth, there are no hints, and an event says why.

use super::hints::{endpoints_mut, is_ready, set_hints};
use super::reconcile::Plan;
use client::Key;
use meta::{Object, Value};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// A zone may have this part less endpoints than its share.
const OVERLOAD: f64 = 0.2;

const NO_NODE_INFO: &str = "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
const TOO_FEW_ENDPOINTS: &str = "Insufficient number of endpoints";
const OVERLOADED: &str =
    "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold";
const NO_ZONE: &str = "One or more endpoints do not have a zone specified";
const NO_HINTS: &str = "No hints allocated for zones";
const ENABLED: &str = "Topology Aware Hints has been enabled";
const DISABLED: &str = "Topology Aware Hints has been disabled";

/// An event about the hints of a service.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Report {
    Enabled(String),
    Disabled(String),
}

/// A node, as zones count it.
pub(super) struct NodeCpu {
    pub zone: Option<String>,
    /// Allocatable CPU in thousandths.
    pub cpu: i64,
}

type Zones = BTreeMap<String, usize>;

/// The shares of zones, and the hints of services.
#[derive(Default)]
pub(super) struct Topology {
    /// The share of each zone in all CPUs. None: the nodes do not say.
    shares: Option<BTreeMap<String, f64>>,
    /// The numbers of hints for zones, by service and address type.
    hints: BTreeMap<Key, BTreeMap<String, Zones>>,
    enabled: BTreeSet<Key>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Allocation {
    minimum: usize,
    maximum: usize,
    desired: f64,
}

impl Topology {
    /// Counts the CPUs of ready nodes that are not of the control plane.
    pub fn set_nodes(&mut self, nodes: impl Iterator<Item = NodeCpu>) {
        let mut cpus: BTreeMap<String, i64> = BTreeMap::new();
        let mut known = true;
        for node in nodes {
            match node.zone {
                Some(zone) if !zone.is_empty() && node.cpu > 0 => *cpus.entry(zone).or_default() += node.cpu,
                _ => known = false,
            }
        }
        let all: i64 = cpus.values().sum();
        let share = |cpu: i64| cpu as f64 / all as f64;
        self.shares = (known && cpus.len() > 1).then(|| cpus.into_iter().map(|(z, cpu)| (z, share(cpu))).collect());
    }

    /// The services whose hints overload a zone.
    pub fn overloaded(&self) -> Vec<Key> {
        let is = |types: &BTreeMap<String, Zones>| types.values().any(|z| is_overloaded(z, self.shares.as_ref()));
        self.hints.iter().filter(|(_, types)| is(types)).map(|(key, _)| key.clone()).collect()
    }

    /// Forgets the hints of a service, for one address type. Returns whether it had any.
    pub fn remove(&mut self, service: &Key, address_type: &str) -> bool {
        if let Some(types) = self.hints.get_mut(service) {
            types.remove(address_type);
            if types.is_empty() {
                self.hints.remove(service);
            }
        }
        self.enabled.remove(service)
    }

    /// The report that a service no longer wishes hints, if it had some.
    pub fn disable(&mut self, service: &Key, address_type: &str) -> Option<Report> {
        self.remove(service, address_type).then(|| Report::Disabled(text(DISABLED, address_type)))
    }

    /// Sets the hints of a plan with slices of one address type, or removes them where they are impossible.
    pub fn apply(&mut self, service: &Key, address_type: &str, plan: &mut Plan) -> Option<Report> {
        match self.hint(plan) {
            Ok(zones) => {
                self.hints.entry(service.clone()).or_default().insert(address_type.to_owned(), zones);
                self.enabled.insert(service.clone()).then(|| Report::Enabled(text(ENABLED, address_type)))
            }
            Err(why) => {
                self.remove(service, address_type);
                super::hints::apply(plan, super::hints::Distribution::Topology);
                Some(Report::Disabled(text(&why, address_type)))
            }
        }
    }

    /// Sets hints. Returns how many each zone has, or why there are none.
    fn hint(&self, plan: &mut Plan) -> Result<Zones, String> {
        let slices = plan.create.iter().chain(&plan.update).chain(&plan.unchanged);
        let allocations = self.allocations(slices.map(count_ready).sum())?;
        let mut zones = Zones::new();
        for slice in std::mem::take(&mut plan.unchanged) {
            match hints_of(&slice, &zones, &allocations) {
                Some(more) => {
                    more.into_iter().for_each(|(zone, n)| *zones.entry(zone).or_default() += n);
                    plan.unchanged.push(slice);
                }
                None => plan.update.push(slice),
            }
        }
        let mut own = Vec::new();
        for endpoint in plan.create.iter_mut().chain(&mut plan.update).flat_map(endpoints_mut).filter(|e| is_ready(e)) {
            let zone = endpoint["zone"].as_str().filter(|z| !z.is_empty()).ok_or(NO_ZONE)?.to_owned();
            *zones.entry(zone.clone()).or_default() += 1;
            set_hints(endpoint, for_zone(&zone));
            own.push((zone, endpoint));
        }
        let (mut giving, mut receiving) = surplus(&allocations, &zones);
        for (zone, endpoint) in own {
            let Some(mut to) = receiving.first_entry() else { break };
            let Some(left) = giving.get_mut(&zone).filter(|left| **left > 0) else { continue };
            set_hints(endpoint, for_zone(to.key()));
            *left -= 1;
            *zones.entry(to.key().clone()).or_default() += 1;
            *zones.entry(zone).or_default() -= 1;
            *to.get_mut() -= 1;
            if *to.get() == 0 {
                to.remove();
            }
        }
        if zones.is_empty() { Err(NO_HINTS.into()) } else { Ok(zones) }
    }

    /// How many of the endpoints are for each zone.
    fn allocations(&self, endpoints: usize) -> Result<BTreeMap<String, Allocation>, String> {
        let shares = self.shares.as_ref().ok_or(NO_NODE_INFO)?;
        let counts = || format!("({endpoints} endpoints, {} zones)", shares.len());
        if shares.len() > endpoints {
            return Err(format!("{TOO_FEW_ENDPOINTS} {}", counts()));
        }
        let allocation = |share: &f64| {
            let desired = share * endpoints as f64;
            let minimum = (desired * (1.0 / (1.0 + OVERLOAD))).ceil();
            Allocation { minimum: minimum as usize, maximum: 0, desired: desired.max(minimum) }
        };
        let mut all: BTreeMap<String, Allocation> =
            shares.iter().map(|(zone, share)| (zone.clone(), allocation(share))).collect();
        let least: usize = all.values().map(|a| a.minimum).sum();
        if least > endpoints {
            return Err(format!("{OVERLOADED} {}", counts()));
        }
        all.values_mut().for_each(|a| a.maximum = a.minimum + endpoints - least);
        Ok(all)
    }
}

fn text(message: &str, address_type: &str) -> String {
    format!("{message}, addressType: {address_type}")
}

fn for_zone(zone: &str) -> Value {
    json!({"forZones": [{"name": zone}]})
}

fn endpoints(slice: &Object) -> impl Iterator<Item = &Value> {
    slice.get("endpoints").and_then(Value::as_array).into_iter().flatten()
}

fn count_ready(slice: &Object) -> usize {
    endpoints(slice).filter(|e| is_ready(e)).count()
}

/// The hints of a slice by zone; none if they must be made anew.
fn hints_of(slice: &Object, zones: &Zones, allocations: &BTreeMap<String, Allocation>) -> Option<Zones> {
    let mut found = Zones::new();
    for endpoint in endpoints(slice).filter(|e| is_ready(e)) {
        let hints = endpoint["hints"]["forZones"].as_array().filter(|z| !z.is_empty())?;
        for zone in hints.iter().filter_map(|z| z["name"].as_str()) {
            *found.entry(zone.to_owned()).or_default() += 1;
        }
    }
    let fits = |(zone, n): (&String, &usize)| {
        allocations.get(zone).is_some_and(|a| n + zones.get(zone).copied().unwrap_or(0) <= a.maximum)
    };
    found.iter().all(fits).then_some(found)
}

/// How many hints each zone gives away, and how many each lacks.
fn surplus(allocations: &BTreeMap<String, Allocation>, zones: &Zones) -> (Zones, Zones) {
    let difference =
        |(zone, a): (&String, &Allocation)| (zone.clone(), zones.get(zone).copied().unwrap_or(0) as f64 - a.desired);
    let mut more: BTreeMap<String, f64> = allocations.iter().map(difference).filter(|(_, d)| *d > 0.0).collect();
    let mut less: BTreeMap<String, f64> =
        allocations.iter().map(difference).filter(|(_, d)| *d < 0.0).map(|(z, d)| (z, -d)).collect();
    let (mut giving, mut receiving) = (Zones::new(), Zones::new());
    fn most(zones: &mut BTreeMap<String, f64>) -> Option<(&String, &mut f64)> {
        zones.iter_mut().filter(|(_, n)| **n > 0.0).reduce(|a, b| if *b.1 > *a.1 { b } else { a })
    }
    while let (Some((from, give)), Some((to, take))) = (most(&mut more), most(&mut less)) {
        if (*give < 1.0 && *take < 1.0) || *give < 0.5 || *take < 0.5 {
            break;
        }
        *giving.entry(from.clone()).or_default() += 1;
        *receiving.entry(to.clone()).or_default() += 1;
        *give -= 1.0;
        *take -= 1.0;
    }
    (giving, receiving)
}

fn is_overloaded(zones: &Zones, shares: Option<&BTreeMap<String, f64>>) -> bool {
    if zones.is_empty() {
        return false;
    }
    let Some(shares) = shares else { return true };
    let all = zones.values().sum::<usize>() as f64;
    shares.iter().any(|(zone, share)| {
        let least = (all * share * (1.0 / (1.0 + OVERLOAD))).ceil() as usize;
        zones.get(zone).is_none_or(|n| *n < least)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(zones: &[(&str, i64)]) -> Topology {
        let mut t = Topology::default();
        t.set_nodes(zones.iter().map(|(zone, cpu)| NodeCpu { zone: Some((*zone).to_owned()), cpu: *cpu }));
        t
    }

    fn slice(name: &str, zones: &str) -> Object {
        let endpoint =
            |zone: char| json!({"addresses": ["10.0.0.1"], "zone": zone.to_string(), "conditions": {"ready": true}});
        let list: Vec<Value> = zones.chars().map(endpoint).collect();
        Object::from_value(json!({"metadata": {"name": name}, "endpoints": list})).unwrap()
    }

    /// The zones for which the endpoints are, in order.
    fn hinted<'a>(slices: impl IntoIterator<Item = &'a Object>) -> String {
        let all = slices.into_iter().flat_map(endpoints);
        all.map(|e| e["hints"]["forZones"][0]["name"].as_str().unwrap_or("-")).collect()
    }

    #[test]
    fn every_zone_gets_its_share() {
        let key = Key::new("x", "s");
        let disabled = |why: &str| Some(Report::Disabled(format!("{why}, addressType: IPv4")));
        let cases: [(&[(&str, i64)], &str, &str, Option<Report>); 7] = [
            (&[("a", 1000), ("b", 1000)], "abab", "abab", Some(Report::Enabled(text(ENABLED, "IPv4")))),
            (&[("a", 1000), ("b", 1000)], "aaab", "baab", Some(Report::Enabled(text(ENABLED, "IPv4")))),
            (&[("a", 1000)], "aaab", "----", disabled(NO_NODE_INFO)),
            (&[("a", 1000), ("b", 0)], "ab", "--", disabled(NO_NODE_INFO)),
            (
                &[("a", 1000), ("b", 1000)],
                "a",
                "-",
                disabled("Insufficient number of endpoints (1 endpoints, 2 zones)"),
            ),
            (
                &[("a", 1000), ("b", 1000)],
                "aba",
                "---",
                disabled(
                    "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (3 endpoints, 2 zones)",
                ),
            ),
            (&[("a", 3000), ("b", 1000)], "abbb", "aaab", Some(Report::Enabled(text(ENABLED, "IPv4")))),
        ];
        for (i, (nodes, from, expect, report)) in cases.into_iter().enumerate() {
            let mut plan = Plan { create: vec![slice("s", from)], ..Plan::default() };
            let got = topology(nodes).apply(&key, "IPv4", &mut plan);
            assert_eq!(got, report, "{i}");
            let sort = |s: &str| {
                let mut all: Vec<char> = s.chars().collect();
                all.sort_unstable();
                all
            };
            assert_eq!(sort(&hinted(&plan.create)), sort(expect), "{i}");
        }
    }

    #[test]
    fn hints_stay_and_end_with_the_annotation() {
        let (mut t, key) = (topology(&[("a", 1000), ("b", 1000)]), Key::new("x", "s"));
        let mut plan = Plan { create: vec![slice("s", "ab")], ..Plan::default() };
        assert!(matches!(t.apply(&key, "IPv4", &mut plan), Some(Report::Enabled(_))));
        let mut plan = Plan { unchanged: plan.create, ..Plan::default() };
        assert_eq!(t.apply(&key, "IPv4", &mut plan), None, "reported once");
        assert_eq!((plan.update.len(), hinted(&plan.unchanged)), (0, "ab".to_owned()));
        assert!(t.overloaded().is_empty());
        // Zone b has grown: half of the endpoints do not suffice for it.
        t.set_nodes([("a", 1000), ("b", 9000)].into_iter().map(|(z, cpu)| NodeCpu { zone: Some(z.into()), cpu }));
        assert_eq!(t.overloaded(), std::slice::from_ref(&key));
        assert!(matches!(t.disable(&key, "IPv4"), Some(Report::Disabled(why)) if why.starts_with(DISABLED)));
        assert_eq!(t.disable(&key, "IPv4"), None);
        let mut plan = Plan { unchanged: vec![slice("s", "ab")], ..Plan::default() };
        plan.unchanged[0]
            .set(&["endpoints"], json!([{"conditions": {"ready": true}}, {"conditions": {"ready": true}}]));
        t.set_nodes([("a", 1000), ("b", 1000)].into_iter().map(|(z, cpu)| NodeCpu { zone: Some(z.into()), cpu }));
        assert_eq!(t.apply(&key, "IPv4", &mut plan), Some(Report::Disabled(text(NO_ZONE, "IPv4"))));
    }
}

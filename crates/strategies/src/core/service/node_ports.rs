//! Node port allocation (upstream `txnAllocNodePorts`, `portallocator`).
//!
//! Invariant: every allocated port has a record in the store, which two transactions cannot both create. In a data
//! directory without these records, the first allocation writes them.

use super::fields::ports_of;
use super::{Service, invalid};
use crate::core::service_spec::{is_balanced, is_checked, list, reaches_nodes, ty};
use meta::{FieldError, FieldPath, Object, Status, Value};
use registry::{Env, internal_key};
use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;
use store::{Action, Expect, Key, Op, Snapshot};
use stored::{amount, encode};

const RESOURCE: &str = "servicenodeports";
/// The record that marks the port records as complete.
const COMPLETE: &str = "complete";
/// The number before the first port that a dry run shows.
const BEFORE_DUMMIES: i64 = 32768;
const CHECKED: [&str; 2] = ["spec", "healthCheckNodePort"];

fn key(name: &str) -> Key {
    internal_key(RESOURCE, name)
}

fn release(n: i64) -> Op {
    Op { key: key(&n.to_string()), expect: Expect::Any, action: Action::Delete }
}

fn record(n: i64) -> Op {
    Op { key: key(&n.to_string()), expect: Expect::Absent, action: Action::Put(encode::encode(&Object::default())) }
}

/// Returns all node ports of a service, including the health check port.
fn held(o: &Object) -> BTreeSet<i64> {
    let mut all = ports_of(o);
    all.extend(o.at(&CHECKED).and_then(Value::as_i64).filter(|n| *n != 0 && is_checked(o)));
    all
}

pub fn release_all(env: Env<'_>, o: &Object) -> Vec<Op> {
    let held = held(o);
    if held.is_empty() {
        return Vec::new();
    }
    let mut ops: Vec<Op> = held.into_iter().map(release).collect();
    if env.registry.store.snapshot().get(&key(COMPLETE)).is_none() {
        // A concurrent first allocation would otherwise record the ports of this service.
        ops.push(Op { key: key(COMPLETE), expect: Expect::Absent, action: Action::Check });
    }
    ops
}

/// Returns the bytes of services that an allocation reads: all services, until port records exist.
pub fn reads(env: Env<'_>) -> usize {
    let snapshot = env.registry.store.snapshot();
    if snapshot.get(&key(COMPLETE)).is_some() { 0 } else { amount::all(&snapshot, "services", None) }
}

/// The allocations and releases of one service write; all are committed, or none.
struct Allocation<'a> {
    env: Env<'a>,
    range: RangeInclusive<u16>,
    snapshot: Snapshot,
    /// Ports of all services, if port records do not exist yet.
    unrecorded: Option<BTreeSet<i64>>,
    taken: BTreeSet<i64>,
}

/// Returns the ports of stored services. Errors if a service cannot be decoded, since its ports are not free.
fn held_by_services(snapshot: &Snapshot) -> Result<BTreeSet<i64>, Status> {
    registry::check_readable(snapshot, "services", None)?;
    let mut ports = BTreeSet::new();
    for e in snapshot.range("services", None, None) {
        // Services of other types have no ports, and are not decoded.
        let kind = encode::part(e, &["spec", "type"])?;
        if kind.is_some_and(|kind| kind == "NodePort" || kind == "LoadBalancer") {
            ports.extend(held(&encode::decode(e)?));
        }
    }
    Ok(ports)
}

impl<'a> Allocation<'a> {
    fn begin(env: Env<'a>, range: RangeInclusive<u16>) -> Result<Self, Status> {
        let snapshot = env.registry.store.snapshot();
        let recorded = snapshot.get(&key(COMPLETE)).is_some();
        let unrecorded = if recorded { None } else { Some(held_by_services(&snapshot)?) };
        Ok(Self { env, range, snapshot, unrecorded, taken: BTreeSet::new() })
    }

    fn is_free(&self, n: i64) -> bool {
        let recorded = match &self.unrecorded {
            Some(all) => all.contains(&n),
            None => self.snapshot.get(&key(&n.to_string())).is_some(),
        };
        !recorded && !self.taken.contains(&n)
    }

    /// Allocates a requested port. As upstream, a dry run accepts a port outside the range.
    fn take(&mut self, n: i64) -> Result<(), String> {
        if !self.env.dry_run && !u16::try_from(n).is_ok_and(|n| self.range.contains(&n)) {
            let (a, b) = (self.range.start(), self.range.end());
            return Err(format!("provided port is not in the valid range. The range of valid ports is {a}-{b}"));
        }
        if !self.is_free(n) {
            return Err("provided port is already allocated".into());
        }
        self.taken.insert(n);
        Ok(())
    }

    /// Allocates a free port, searching from a random offset. The first ports are reserved for explicit requests. A dry run
    /// shows ports that stand for them, as upstream.
    fn any(&mut self) -> Result<i64, String> {
        if self.env.dry_run {
            let n = self.taken.last().map_or(BEFORE_DUMMIES, |n| (*n).max(0)) + 1;
            self.taken.insert(n);
            return Ok(n);
        }
        let (first, last) = (i64::from(*self.range.start()), i64::from(*self.range.end()));
        let size = last - first + 1;
        let reserved = if size < 16 { 0 } else { (size / 32).clamp(16, 128).min(size - 1) };
        let wide = size - reserved;
        let start = (self.env.rng().next_u64() % wide.unsigned_abs()).cast_signed();
        let upper = (0..wide).map(|i| reserved + (start + i) % wide);
        let n = upper.chain(0..reserved).map(|i| first + i).find(|n| self.is_free(*n));
        let n = n.ok_or("range is full")?;
        self.taken.insert(n);
        Ok(n)
    }

    fn ops(self, released: impl IntoIterator<Item = i64>) -> Vec<Op> {
        let released: BTreeSet<i64> = released.into_iter().filter(|n| !self.taken.contains(n)).collect();
        if self.taken.is_empty() && released.is_empty() {
            return Vec::new();
        }
        let Some(all) = self.unrecorded else {
            return self.taken.into_iter().map(record).chain(released.into_iter().map(release)).collect();
        };
        let complete =
            Op { key: key(COMPLETE), expect: Expect::Absent, action: Action::Put(encode::encode(&Object::default())) };
        let all = all.union(&self.taken).filter(|n| !released.contains(n)).copied();
        std::iter::once(complete).chain(all.map(record)).collect()
    }
}

fn port(p: &Value) -> i64 {
    p["nodePort"].as_i64().unwrap_or(0)
}

/// Whether the service is allocated node ports that it does not request.
fn allocates_node_ports(o: &Object) -> bool {
    let unless = o.at(&["spec", "allocateLoadBalancerNodePorts"]) != Some(&Value::Bool(false));
    ty(o) == "NodePort" || (is_balanced(o) && unless)
}

fn refused(o: &Object, i: usize, n: i64, why: String) -> Status {
    let at = FieldPath::new("spec.ports").index(i).child("nodePort");
    invalid(o, &[FieldError::invalid(&at, n, why)])
}

fn exhausted(why: String) -> Status {
    Status::internal(format!("failed to allocate a nodePort: {why}"))
}

impl Service {
    pub(super) fn allocate_ports(&self, env: Env<'_>, o: &mut Object, old: Option<&Object>) -> Result<Vec<Op>, Status> {
        if !reaches_nodes(o) && !old.is_some_and(reaches_nodes) {
            return Ok(Vec::new());
        }
        let mut allocation = Allocation::begin(env, self.node_ports.clone())?;
        if reaches_nodes(o) {
            let mut ports = list(o, "ports").to_vec();
            match old {
                None => new_ports(o, &mut ports, &mut allocation)?,
                Some(old) => changed_ports(o, &mut ports, &ports_of(old), &mut allocation)?,
            }
            if !ports.is_empty() {
                o.set(&["spec", "ports"], ports);
            }
        }
        if is_checked(o) && !old.is_some_and(is_checked) {
            check_port(o, &mut allocation)?;
        }
        let mut released = old.map(held).unwrap_or_default();
        if reaches_nodes(o) {
            let kept = held(o);
            released.retain(|n| !kept.contains(n));
        }
        Ok(allocation.ops(released))
    }
}

/// Allocates the ports of a new service. Ports with the same number and different protocols share a node port.
fn new_ports(o: &Object, ports: &mut [Value], allocation: &mut Allocation<'_>) -> Result<(), Status> {
    let mut of_port: HashMap<i64, i64> = HashMap::new();
    // The first requested node port of each port number.
    let mut named: HashMap<i64, i64> = HashMap::new();
    for p in ports.iter().filter(|p| port(p) != 0) {
        named.entry(p["port"].as_i64().unwrap_or(0)).or_insert_with(|| port(p));
    }
    for (i, p) in ports.iter_mut().enumerate() {
        let (number, requested) = (p["port"].as_i64().unwrap_or(0), port(p));
        if requested == 0 && !allocates_node_ports(o) {
            continue;
        }
        match of_port.get(&number).copied() {
            None => {
                let n = match named.get(&number).copied() {
                    Some(n) => {
                        allocation.take(n).map_err(|why| refused(o, i, n, why))?;
                        n
                    }
                    None => allocation.any().map_err(exhausted)?,
                };
                p["nodePort"] = n.into();
                of_port.insert(number, n);
            }
            Some(n) if requested == 0 => p["nodePort"] = n.into(),
            Some(n) if requested != n => allocation.take(requested).map_err(|why| refused(o, i, requested, why))?,
            Some(_) => {}
        }
    }
    Ok(())
}

fn changed_ports(
    o: &Object,
    ports: &mut [Value],
    own: &BTreeSet<i64>,
    allocation: &mut Allocation<'_>,
) -> Result<(), Status> {
    let mut seen: BTreeSet<(String, i64)> = BTreeSet::new();
    for (i, p) in ports.iter_mut().enumerate() {
        let mut n = port(p);
        if n == 0 && !allocates_node_ports(o) {
            continue;
        }
        if n == 0 {
            n = allocation.any().map_err(exhausted)?;
            p["nodePort"] = n.into();
        } else if !own.contains(&n) && !allocation.taken.contains(&n) {
            allocation.take(n).map_err(|why| refused(o, i, n, why))?;
        }
        let protocol = p["protocol"].as_str().unwrap_or_default();
        if !seen.insert((protocol.to_owned(), n)) {
            return Err(Status::new(500, meta::Reason::Unknown, format!("duplicate nodePort: {{{protocol} {n}}}")));
        }
    }
    Ok(())
}

/// Allocates the health check node port.
fn check_port(o: &mut Object, allocation: &mut Allocation<'_>) -> Result<(), Status> {
    match o.at(&CHECKED).and_then(Value::as_i64).filter(|n| *n != 0) {
        Some(n) => allocation
            .take(n)
            .map_err(|why| Status::internal(format!("failed to allocate requested HealthCheck NodePort {n}: {why}"))),
        None => {
            let n = allocation
                .any()
                .map_err(|why| Status::internal(format!("failed to allocate a HealthCheck NodePort 0: {why}")))?;
            o.set(&CHECKED, n);
            Ok(())
        }
    }
}

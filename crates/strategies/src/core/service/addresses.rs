//! ClusterIP allocation: an `IPAddress` object, written in the service's transaction, records the owner of each
//! address.

use super::families::{family, is_settled};
use super::{Service, invalid};
use crate::core::service_spec::{is_headless, list, ty};
use crate::networking::Cidr;
use meta::{FieldError, FieldPath, Object, Status, Value};
use registry::Env;
use serde_json::json;
use std::net::IpAddr;
use store::{Action, Expect, Key, Op, Snapshot};
use stored::encode;

const ADDRESSES: &str = "networking.k8s.io/ipaddresses";
const RANGES: &str = "networking.k8s.io/servicecidrs";

/// Returns the allocated cluster IPs of a service.
pub fn cluster_ips(o: &Object) -> Vec<IpAddr> {
    if ty(o) == "ExternalName" || is_headless(o) {
        return Vec::new();
    }
    list(o, "clusterIPs").iter().filter_map(|ip| ip.as_str()?.parse().ok()).collect()
}

fn key(ip: IpAddr) -> Key {
    Key { resource: ADDRESSES.into(), namespace: "".into(), name: ip.to_string().into() }
}

pub fn release(ip: IpAddr) -> Op {
    Op { key: key(ip), expect: Expect::Any, action: Action::Delete }
}

/// Returns the operation that creates the IPAddress. It fails if another service has the address.
fn claim(env: Env<'_>, o: &Object, ip: IpAddr) -> Op {
    let labels = json!({"ipaddress.kubernetes.io/ip-family": family(ip.is_ipv6()),
        "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
    let v = json!({"kind": "IPAddress", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": ip.to_string(),
        "uid": meta::random::uuid(env.rng()), "creationTimestamp": meta::time::format(env.clock().now()),
        "labels": labels},
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": o.namespace(), "name": o.name()}}});
    let bytes = encode::encode(&Object::from_value(v).unwrap_or_default());
    Op { key: key(ip), expect: Expect::Absent, action: Action::Put(bytes) }
}

impl Service {
    pub(super) fn new_addresses(&self, env: Env<'_>, o: &mut Object) -> Result<Vec<Op>, Status> {
        if ty(o) == "ExternalName" || is_headless(o) {
            return Ok(Vec::new());
        }
        (0..list(o, "ipFamilies").len()).map(|i| self.take(env, o, i)).collect()
    }

    pub(super) fn update_addresses(&self, env: Env<'_>, o: &mut Object, old: &Object) -> Result<Vec<Op>, Status> {
        if is_settled(o, Some(old)) {
            return Ok(Vec::new());
        }
        match (ty(old), ty(o)) {
            ("ExternalName", "ExternalName") => return Ok(Vec::new()),
            ("ExternalName", _) => return self.new_addresses(env, o),
            _ if is_headless(old) => return Ok(Vec::new()),
            (_, "ExternalName") => return Ok(cluster_ips(old).into_iter().map(release).collect()),
            _ => {}
        }
        match (list(old, "ipFamilies").len(), list(o, "ipFamilies").len()) {
            (1, 2) => Ok(vec![self.take(env, o, 1)?]),
            (2, 1) => Ok(cluster_ips(old).into_iter().skip(1).map(release).collect()),
            _ => Ok(Vec::new()),
        }
    }

    /// Allocates the service's address at index `i` of its families: the requested one, or any.
    fn take(&self, env: Env<'_>, o: &mut Object, i: usize) -> Result<Op, Status> {
        let six = list(o, "ipFamilies").get(i).is_some_and(|f| f == "IPv6");
        let snapshot = env.registry.store.snapshot();
        let ranges = self.ranges_of(&snapshot, six)?;
        let named = list(o, "clusterIPs").get(i).and_then(Value::as_str).unwrap_or_default().to_owned();
        if !named.is_empty() {
            let refuse = |why: &str| {
                let why = format!("failed to allocate IP {named}: {why}");
                let e = FieldError::invalid(&FieldPath::new("spec.clusterIPs"), list(o, "clusterIPs").to_vec(), why);
                Err(invalid(o, &[e]))
            };
            // As upstream, a dry run looks at one range alone, and not at what is allocated.
            let fits = |r: &&Cidr, ip| env.dry_run || r.contains(ip);
            let found = named.parse().ok().and_then(|ip| Some((ip, ranges.iter().find(|r| fits(r, ip))?)));
            let Some((ip, range)) = found else {
                return refuse("the provided network does not match the current range");
            };
            if !range.contains(ip) {
                return refuse(&format!(
                    "the provided IP ({ip}) is not in the valid range. The range of valid IPs is {range}"
                ));
            }
            if !env.dry_run && snapshot.get(&key(ip)).is_some() {
                return refuse("provided IP is already allocated");
            }
            return Ok(claim(env, o, ip));
        }
        // A dry run shows the address of the range, as upstream.
        let ip = match ranges.first() {
            Some(range) if env.dry_run => Some(range.nth(0)),
            _ => free(env, &snapshot, &ranges),
        };
        let ip = ip.ok_or_else(|| Status::internal("failed to allocate a serviceIP: range is full"))?;
        let mut all = list(o, "clusterIPs").to_vec();
        all.truncate(i);
        all.push(ip.to_string().into());
        if i == 0 {
            o.set(&["spec", "clusterIP"], ip.to_string());
        }
        o.set(&["spec", "clusterIPs"], all);
        Ok(claim(env, o, ip))
    }

    /// Returns the ranges of a family: every ServiceCIDR that is ready and not being deleted, or, without ServiceCIDRs,
    /// the configured ranges. Errors if a ServiceCIDR cannot be decoded.
    fn ranges_of(&self, snapshot: &Snapshot, six: bool) -> Result<Vec<Cidr>, Status> {
        registry::check_readable(snapshot, RANGES, None)?;
        let all = snapshot.range(RANGES, None, None).map(|e| encode::decode(e)).collect::<Result<Vec<Object>, _>>()?;
        if all.is_empty() {
            return Ok(self.ranges.iter().filter(|r| r.is_ipv6() == six).copied().collect());
        }
        let unready = |c: &Value| c["type"] == "Ready" && c["status"] != "True";
        let conditions = |o: &Object| o.at(&["status", "conditions"]).and_then(Value::as_array).cloned();
        let usable = |o: &&Object| !o.is_deleting() && !conditions(o).unwrap_or_default().iter().any(unready);
        let texts = all.iter().filter(usable).filter_map(|o| o.at(&["spec", "cidrs"])?.as_array());
        let ranges = texts.flatten().filter_map(|c| c.as_str()?.parse::<Cidr>().ok());
        Ok(ranges.filter(|r| r.is_ipv6() == six).collect())
    }
}

/// Returns a free address, searching from a random offset. The first addresses of each range are reserved for explicit
/// requests.
fn free(env: Env<'_>, snapshot: &Snapshot, ranges: &[Cidr]) -> Option<IpAddr> {
    ranges.iter().find_map(|range| {
        let size = range.size();
        let reserved = (size / 16).clamp(16, 256).min(size / 2);
        let wide = (size - reserved).max(1);
        let start = env.rng().next_u64() % wide;
        let upper = (0..wide).map(|i| reserved + ((u128::from(start) + u128::from(i)) % u128::from(wide)) as u64);
        let mut all = upper.chain(1..reserved).map(|n| range.nth(n)).filter(|ip| range.contains(*ip));
        all.find(|ip| snapshot.get(&key(*ip)).is_none())
    })
}

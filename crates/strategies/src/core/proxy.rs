//! Targets of the `proxy` subresources of pods, services and nodes (`ResourceLocation` of `registry/core/*/storage`).

use crate::read::{items, text};
use meta::{Object, Status, Value};
use registry::{Env, ProxyTarget, Upstream};
use std::net::IpAddr;
use std::sync::Arc;
use store::{Entry, Snapshot};
use stored::encode;

/// Returns the pod's address at the requested port, or at the first container port.
pub fn pod(o: &Object, target: &ProxyTarget) -> Result<Upstream, Status> {
    let ip = o.str_at(&["status", "podIP"]).unwrap_or_default();
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let first = || items(spec, "containers").iter().find_map(|c| items(c, "ports").first()?["containerPort"].as_u64());
    let port = match target.port.as_str() {
        "" => first().and_then(|p| u16::try_from(p).ok()),
        given => Some(given.parse().map_err(|_| Status::bad_request(format!("invalid port {given:?}")))?),
    };
    address(ip, port, target)
}

/// Returns the endpoint slices of a service, without decoding them.
fn slices<'a>(
    snapshot: &'a Snapshot,
    namespace: &'a str,
    service: &'a str,
) -> impl Iterator<Item = &'a Arc<Entry>> + 'a {
    let all = snapshot.range("discovery.k8s.io/endpointslices", Some(namespace), None);
    all.filter(move |e| e.index().labels.iter().any(|(k, v)| **k == *"kubernetes.io/service-name" && **v == *service))
}

/// Maximum bytes of endpoint slices, as stored, and maximum endpoints that a request reads. The rest is ignored.
const MAX_BYTES: usize = 4 << 20;
const MAX_ENDPOINTS: usize = 1000;

/// Returns the bytes of endpoint slices that a request to a service reads.
pub fn service_reads(env: Env<'_>, namespace: &str, service: &str) -> usize {
    let all: usize = slices(&env.registry.store.snapshot(), namespace, service).map(|e| e.value.len()).sum();
    all.min(MAX_BYTES)
}

/// Returns a random ready endpoint of a service, at the port with the requested name or number.
pub fn service(env: Env<'_>, o: &Object, target: &ProxyTarget) -> Result<Upstream, Status> {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let name = match target.port.parse::<u64>() {
        Err(_) => target.port.clone(),
        Ok(number) => match items(spec, "ports").iter().find(|p| p["port"].as_u64() == Some(number)) {
            Some(p) => text(p, "name").to_owned(),
            None => {
                let why = format!("no service port {number} found for service {:?}", o.name());
                return Err(Status::unavailable(why));
            }
        },
    };
    let snapshot = env.registry.store.snapshot();
    let mut left = MAX_BYTES;
    let fits = |e: &&Arc<Entry>| {
        let size = e.value.len();
        let fits = size <= left;
        left = left.saturating_sub(size);
        fits
    };
    let all = slices(&snapshot, o.namespace(), o.name())
        .take_while(fits)
        .filter_map(|e| encode::decode_or_log(e))
        .map(Object::into_value);
    let found = ready_endpoints(all, Some(&*name).filter(|_| !target.port.is_empty()));
    let any = usize::try_from(env.rng().next_u64()).unwrap_or_default().checked_rem(found.len());
    match any.and_then(|i| found.get(i)) {
        Some((ip, port)) => address(ip, Some(*port), target),
        None => Err(Status::unavailable(format!("no endpoints available for service {:?}", o.name()))),
    }
}

/// Returns the addresses and ports of at most [`MAX_ENDPOINTS`] ready endpoints; `name` restricts the port.
fn ready_endpoints(slices: impl Iterator<Item = Value>, name: Option<&str>) -> Vec<(String, u16)> {
    let mut found = Vec::new();
    for slice in slices {
        for p in items(&slice, "ports").iter().filter(|p| name.is_none_or(|name| text(p, "name") == name)) {
            let Some(port) = p["port"].as_u64().and_then(|p| u16::try_from(p).ok()) else { continue };
            let ready = items(&slice, "endpoints").iter().filter(|e| e["conditions"]["ready"] != false);
            let addresses = ready.filter_map(|e| Some((items(e, "addresses").first()?.as_str()?.to_owned(), port)));
            found.extend(addresses.take(MAX_ENDPOINTS - found.len()));
            if found.len() >= MAX_ENDPOINTS {
                return found;
            }
        }
    }
    found
}

/// Returns the kubelet of the node, or another port of the node.
pub fn node(o: &Object, target: &ProxyTarget) -> Result<Upstream, Status> {
    let status = o.get("status").unwrap_or(&Value::Null);
    let agent = status["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64().unwrap_or(10250);
    if target.port.is_empty() || target.port.parse() == Ok(agent) {
        return Ok(Upstream::Agent(o.name().to_owned()));
    }
    let port = target.port.parse().map_err(|_| Status::bad_request(format!("invalid port {:?}", target.port)))?;
    let internal = items(status, "addresses").iter().find(|a| a["type"] == "InternalIP");
    address(internal.map_or("", |a| text(a, "address")), Some(port), target)
}

/// Returns the target; errors for loopback and link-local addresses.
fn address(ip: &str, port: Option<u16>, target: &ProxyTarget) -> Result<Upstream, Status> {
    let Some(ip) = ip.parse().ok().map(|a: IpAddr| a.to_canonical()).filter(|a| !meta::address::is_special(*a)) else {
        return Err(Status::bad_request("address not allowed"));
    };
    let tls = target.scheme == "https";
    // The validated address is the one dialled, in canonical form.
    let host = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
    Ok(Upstream::Address { tls, host, port: port.unwrap_or(if tls { 443 } else { 80 }) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(scheme: &str, port: &str) -> ProxyTarget {
        ProxyTarget { scheme: scheme.into(), port: port.into() }
    }

    fn to(tls: bool, host: &str, port: u16) -> Upstream {
        Upstream::Address { tls, host: host.into(), port }
    }

    /// Regression: collecting all endpoints of all slices used gigabytes.
    #[test]
    fn bounds_endpoints_read() {
        let endpoints: Vec<_> =
            (0..1000).map(|i| json!({"addresses": [format!("10.0.{}.{}", i / 256, i % 256)]})).collect();
        let ports: Vec<_> = (1..=100).map(|i| json!({"name": format!("p{i}"), "port": i})).collect();
        let slice = json!({"endpoints": endpoints, "ports": ports});
        let read = std::cell::Cell::new(0);
        let slices = || (0..300).map(|_| read.set(read.get() + 1)).map(|()| slice.clone());
        assert_eq!(ready_endpoints(slices(), None).len(), MAX_ENDPOINTS);
        assert_eq!(read.get(), 1);
        let found = ready_endpoints(slices().take(1), Some("p7"));
        assert!(found.len() == MAX_ENDPOINTS && found.iter().all(|(_, port)| *port == 7));
        assert!(ready_endpoints(slices().take(2), Some("none")).is_empty());
    }

    #[test]
    fn resolves_targets() {
        let object = |v: Value| Object::from_value(v).unwrap();
        let containers = json!([{"name": "a"}, {"name": "b", "ports": [{"containerPort": 8080}]}]);
        let p = object(json!({"spec": {"containers": containers}, "status": {"podIP": "10.1.2.3"}}));
        assert_eq!(pod(&p, &at("", "")).unwrap(), to(false, "10.1.2.3", 8080));
        assert_eq!(pod(&p, &at("https", "8443")).unwrap(), to(true, "10.1.2.3", 8443));
        assert_eq!(pod(&p, &at("", "web")).unwrap_err().code, 400);
        let mapped =
            ["::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:7f00:1", "::127.0.0.1", "::ffff:0:127.0.0.1"];
        let more = [
            "64:ff9b::127.0.0.1",
            "64:ff9b:1::7f00:1",
            "2002:7f00:1::",
            "0.0.0.0",
            "0.0.0.1",
            "::",
            "ff02::1",
            "0:0::1",
        ];
        let plain = ["127.0.0.1", "127.9.9.9", "169.254.169.254", "::1", "fe80::1", "localhost", "127.1", ""];
        for bad in plain.into_iter().chain(mapped).chain(more) {
            let p = object(json!({"spec": {}, "status": {"podIP": bad}}));
            assert_eq!(pod(&p, &at("", "80")).unwrap_err().message, "address not allowed", "{bad}");
        }
        let six = object(json!({"spec": {}, "status": {"podIP": "fd00::1"}}));
        assert_eq!(pod(&six, &at("https", "")).unwrap(), to(true, "[fd00::1]", 443));
        let mapped = object(json!({"spec": {}, "status": {"podIP": "::ffff:10.1.2.3"}}));
        assert_eq!(pod(&mapped, &at("", "80")).unwrap(), to(false, "10.1.2.3", 80), "the validated address");
        let n = object(json!({"metadata": {"name": "n"}, "status": {
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "addresses": [{"type": "Hostname", "address": "h"}, {"type": "InternalIP", "address": "192.0.2.1"}]}}));
        assert_eq!(node(&n, &at("", "")).unwrap(), Upstream::Agent("n".into()));
        assert_eq!(node(&n, &at("https", "10250")).unwrap(), Upstream::Agent("n".into()));
        assert_eq!(node(&n, &at("http", "9100")).unwrap(), to(false, "192.0.2.1", 9100));
    }
}

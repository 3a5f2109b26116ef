//! The records of the cluster domain: a pure function of services, endpoint slices and the query.
//!
//! **Invariant**: the cost of an answer is proportional to its records, whatever else exists. Indexes, updated by each change of a service or slice, serve
//! every kind of query.

use client::Meta;
use serde::Deserialize;
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// The fields of a Service that DNS needs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceView {
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    pub r#type: String,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    pub external_name: String,
    pub ports: Vec<ServicePort>,
    pub publish_not_ready_addresses: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServicePort {
    pub name: String,
    pub protocol: String,
    pub port: u16,
}

/// The fields of an EndpointSlice that DNS needs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SliceView {
    pub endpoints: Option<Vec<Endpoint>>,
    pub ports: Option<Vec<SlicePort>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    pub addresses: Vec<String>,
    pub hostname: Option<String>,
    pub conditions: Conditions,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conditions {
    pub ready: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SlicePort {
    pub name: Option<String>,
    /// Not validated here: clients may write any number.
    pub port: Option<i64>,
    pub protocol: Option<String>,
}

/// Namespace and name.
type Key = (Arc<str>, Arc<str>);

/// Services and endpoint slices with their indexes.
#[derive(Default)]
pub struct Zone {
    /// By namespace and name of the service.
    services: BTreeMap<Key, Service>,
    backends: HashMap<Key, Backends>,
    /// The entries that each slice added to the indexes, by namespace and name of the slice.
    slices: HashMap<Key, Slice>,
    cluster_ips: HashMap<Ipv4Addr, Counted<Key>>,
    /// Endpoints by address: service and host label, with counts.
    hosts: HashMap<Ipv4Addr, BTreeMap<(Key, Arc<str>), Endpoints>>,
    domain: String,
}

/// The maximum number of services that are examined for the reverse lookup of one endpoint address.
const MAX_REVERSE_CANDIDATES: usize = 64;

struct Service {
    cluster_ip: Option<Ipv4Addr>,
    /// Set for services of type ExternalName.
    external_name: Option<String>,
    /// By name and protocol (in lower case).
    ports: BTreeMap<(String, String), u16>,
    publish_not_ready: bool,
}

/// The endpoints of a service, from all its slices.
#[derive(Default)]
struct Backends {
    /// Host labels with addresses.
    all: Counted<(Arc<str>, Ipv4Addr)>,
    ready: Counted<(Arc<str>, Ipv4Addr)>,
    /// Port numbers by name and protocol (in lower case), and by slice.
    ports: BTreeMap<(String, String), BTreeMap<Arc<str>, u16>>,
}

#[derive(Default)]
struct Endpoints {
    all: usize,
    ready: usize,
}

struct Slice {
    service: Key,
    endpoints: Vec<(Arc<str>, Ipv4Addr, bool)>,
    ports: BTreeSet<(String, String)>,
}

/// A multiset.
struct Counted<T>(BTreeMap<T, usize>);

impl<T> Default for Counted<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord> Counted<T> {
    fn add(&mut self, value: T) {
        *self.0.entry(value).or_default() += 1;
    }

    fn remove<Q: Ord + ?Sized>(&mut self, value: &Q)
    where
        T: Borrow<Q>,
    {
        if let Some(count) = self.0.get_mut(value) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(value);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    A,
    Srv,
    Cname,
    Ptr,
    /// A record type that the zone has no records of.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    A(String, Ipv4Addr),
    Srv { name: String, port: u16, target: String },
    Cname(String, String),
    Ptr(String, String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The records; empty if the name exists without records of this type.
    Found(Vec<Record>),
    NoSuchName,
    /// The name is outside the zone.
    NotAuthoritative,
}

impl Zone {
    pub fn new(domain: &str) -> Self {
        Self { domain: domain.to_owned(), ..Self::default() }
    }

    /// Adds or replaces a service.
    pub fn put_service(&mut self, meta: &Meta, view: &ServiceView) {
        self.remove_service(meta);
        let key = (meta.namespace.clone(), meta.name.clone());
        let spec = &view.spec;
        let service = Service {
            cluster_ip: spec.cluster_ip.parse().ok(),
            external_name: (spec.r#type == "ExternalName").then(|| spec.external_name.clone()),
            ports: spec.ports.iter().map(|p| (port_key(&p.name, &p.protocol), p.port)).collect(),
            publish_not_ready: spec.publish_not_ready_addresses,
        };
        if let Some(ip) = service.cluster_ip {
            self.cluster_ips.entry(ip).or_default().add(key.clone());
        }
        self.services.insert(key, service);
    }

    pub fn remove_service(&mut self, meta: &Meta) {
        let key = (meta.namespace.clone(), meta.name.clone());
        let Some(ip) = self.services.remove(&key).and_then(|s| s.cluster_ip) else { return };
        if let Some(services) = self.cluster_ips.get_mut(&ip) {
            services.remove(&key);
            if services.0.is_empty() {
                self.cluster_ips.remove(&ip);
            }
        }
    }

    /// Adds or replaces an endpoint slice.
    pub fn put_slice(&mut self, meta: &Meta, view: &SliceView) {
        self.remove_slice(meta);
        let Some(service) = meta.label("kubernetes.io/service-name") else { return };
        let service: Key = (meta.namespace.clone(), service.into());
        let backends = self.backends.entry(service.clone()).or_default();
        let mut slice = Slice { service, endpoints: Vec::new(), ports: BTreeSet::new() };
        for e in view.endpoints.iter().flatten() {
            let Some(ip) = e.addresses.first().and_then(|a| a.parse::<Ipv4Addr>().ok()) else { continue };
            let host: Arc<str> = match &e.hostname {
                Some(host) => host.as_str().into(),
                None => ip.to_string().replace('.', "-").into(),
            };
            let ready = e.conditions.ready.unwrap_or(true);
            backends.all.add((host.clone(), ip));
            let found = self.hosts.entry(ip).or_default().entry((slice.service.clone(), host.clone())).or_default();
            found.all += 1;
            if ready {
                backends.ready.add((host.clone(), ip));
                found.ready += 1;
            }
            slice.endpoints.push((host, ip, ready));
        }
        for p in view.ports.iter().flatten() {
            let key = port_key(p.name.as_deref().unwrap_or_default(), p.protocol.as_deref().unwrap_or("TCP"));
            // The first port of this name and protocol in a slice wins, even if its number is invalid.
            if slice.ports.contains(&key) {
                continue;
            }
            if let Some(number) = p.port.and_then(|n| u16::try_from(n).ok()) {
                backends.ports.entry(key.clone()).or_default().insert(meta.name.clone(), number);
            }
            slice.ports.insert(key);
        }
        self.slices.insert((meta.namespace.clone(), meta.name.clone()), slice);
    }

    pub fn remove_slice(&mut self, meta: &Meta) {
        let Some(slice) = self.slices.remove(&(meta.namespace.clone(), meta.name.clone())) else { return };
        let Slice { service, endpoints, ports } = slice;
        for (host, ip, ready) in &endpoints {
            let Some(found) = self.hosts.get_mut(ip) else { continue };
            let key = (service.clone(), host.clone());
            if let Some(one) = found.get_mut(&key) {
                one.all -= 1;
                one.ready -= usize::from(*ready);
                if one.all == 0 {
                    found.remove(&key);
                }
            }
            if found.is_empty() {
                self.hosts.remove(ip);
            }
        }
        let Some(backends) = self.backends.get_mut(&service) else { return };
        for (host, ip, ready) in endpoints {
            let end = (host, ip);
            backends.all.remove(&end);
            if ready {
                backends.ready.remove(&end);
            }
        }
        for key in ports {
            if let Some(numbers) = backends.ports.get_mut(&key) {
                numbers.remove(&meta.name);
                if numbers.is_empty() {
                    backends.ports.remove(&key);
                }
            }
        }
        if backends.all.0.is_empty() && backends.ports.is_empty() {
            self.backends.remove(&service);
        }
    }

    /// Answers a query with at most `max_records` records. `name` is absolute, without the trailing dot, in upper or lower case.
    pub fn answer(&self, name: &str, kind: Kind, max_records: usize) -> Answer {
        let name = name.to_lowercase();
        if let Some(reverse) = name.strip_suffix(".in-addr.arpa") {
            return self.reverse(&name, reverse, kind);
        }
        let Some(rest) =
            name.strip_suffix(&self.domain).and_then(|r| r.strip_suffix('.').or(Some(r).filter(|r| r.is_empty())))
        else {
            return Answer::NotAuthoritative;
        };
        let labels: Vec<&str> = rest.split('.').filter(|l| !l.is_empty()).collect();
        match labels[..] {
            [] => Answer::Found(Vec::new()),
            ["svc" | "pod"] => Answer::Found(Vec::new()),
            [ns, "svc" | "pod"] if self.has_namespace(ns) => Answer::Found(Vec::new()),
            [ip, _, "pod"] => match ip.replace('-', ".").parse() {
                Ok(ip) if kind == Kind::A => Answer::Found(vec![Record::A(name, ip)]),
                Ok(_) => Answer::Found(Vec::new()),
                Err(_) => Answer::NoSuchName,
            },
            [service, ns, "svc"] => self.service(&name, (ns, service), kind, max_records),
            [port, protocol, service, ns, "svc"] if port.starts_with('_') && protocol.starts_with('_') => {
                self.port(&name, (ns, service), (&port[1..], &protocol[1..]), kind, max_records)
            }
            [host, service, ns, "svc"] => self.host(&name, (ns, service), host, kind, max_records),
            _ => Answer::NoSuchName,
        }
    }

    fn has_namespace(&self, ns: &str) -> bool {
        let first = self.services.range((Arc::from(ns), Arc::from(""))..).next();
        first.is_some_and(|((namespace, _), _)| &**namespace == ns)
    }

    fn get(&self, (ns, name): (&str, &str)) -> Option<&Service> {
        self.services.get(&(ns.into(), name.into()))
    }

    fn backends_of(&self, (ns, name): (&str, &str)) -> Option<&Backends> {
        self.backends.get(&(ns.into(), name.into()))
    }

    fn service(&self, name: &str, service_key: (&str, &str), kind: Kind, max_records: usize) -> Answer {
        let Some(s) = self.get(service_key) else { return Answer::NoSuchName };
        if let Some(external) = &s.external_name {
            return Answer::Found(vec![Record::Cname(name.to_owned(), external.clone())]);
        }
        let a = |ip| Record::A(name.to_owned(), ip);
        match (s.cluster_ip, kind) {
            (Some(ip), Kind::A) => Answer::Found(vec![a(ip)]),
            (None, Kind::A) => {
                let endpoints = self.backends_of(service_key).into_iter().flat_map(|b| b.published(s).0.keys());
                let all: Vec<Record> = endpoints.take(max_records).map(|(_, ip)| a(*ip)).collect();
                if all.is_empty() { Answer::NoSuchName } else { Answer::Found(all) }
            }
            _ => Answer::Found(Vec::new()),
        }
    }

    fn port(
        &self,
        name: &str,
        service_key @ (ns, service): (&str, &str),
        (port, protocol): (&str, &str),
        kind: Kind,
        max_records: usize,
    ) -> Answer {
        let Some(s) = self.get(service_key) else { return Answer::NoSuchName };
        let base = format!("{service}.{ns}.svc.{}", self.domain);
        let srv = |port, target| Record::Srv { name: name.to_owned(), port, target };
        let key = port_key(port, protocol);
        let mut out = Vec::new();
        if s.cluster_ip.is_some() {
            out.extend(s.ports.get(&key).map(|number| srv(*number, base.clone())));
        } else if let Some(backends) = self.backends_of(service_key)
            && let Some(number) = backends.ports.get(&key).and_then(|numbers| numbers.values().next())
        {
            let hosts = backends.published(s).0.keys().take(max_records);
            out.extend(hosts.map(|(host, _)| srv(*number, format!("{host}.{base}"))));
        }
        match (out.is_empty(), kind) {
            (true, _) => Answer::NoSuchName,
            (false, Kind::Srv) => Answer::Found(out),
            (false, _) => Answer::Found(Vec::new()),
        }
    }

    fn host(&self, name: &str, service_key: (&str, &str), host: &str, kind: Kind, max_records: usize) -> Answer {
        let (Some(s), Some(backends)) = (self.get(service_key), self.backends_of(service_key)) else {
            return Answer::NoSuchName;
        };
        let (low, high) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
        let endpoints = backends.published(s).0.range((Arc::from(host), low)..=(Arc::from(host), high));
        let found: Vec<Record> =
            endpoints.take(max_records).map(|((_, ip), _)| Record::A(name.to_owned(), *ip)).collect();
        match (found.is_empty(), kind) {
            (true, _) => Answer::NoSuchName,
            (false, Kind::A) => Answer::Found(found),
            (false, _) => Answer::Found(Vec::new()),
        }
    }

    fn reverse(&self, name: &str, reversed: &str, kind: Kind) -> Answer {
        let text: Vec<&str> = reversed.split('.').rev().collect();
        let Ok(ip) = text.join(".").parse::<Ipv4Addr>() else { return Answer::NoSuchName };
        let service = self.cluster_ips.get(&ip).and_then(|s| s.0.keys().next());
        let mut target = service.map(|(ns, n)| format!("{n}.{ns}.svc.{}", self.domain));
        if target.is_none() {
            let mut hosts = self.hosts.get(&ip).into_iter().flatten().take(MAX_REVERSE_CANDIDATES);
            let published = |service: &Key| self.services.get(service).is_some_and(|s| s.publish_not_ready);
            let found = hosts.find(|((service, _), endpoints)| endpoints.ready > 0 || published(service));
            target = found.map(|(((ns, n), host), _)| format!("{host}.{n}.{ns}.svc.{}", self.domain));
        }
        match (target, kind) {
            (None, _) => Answer::NotAuthoritative,
            (Some(t), Kind::Ptr) => Answer::Found(vec![Record::Ptr(name.to_owned(), t)]),
            (Some(_), _) => Answer::Found(Vec::new()),
        }
    }
}

impl Backends {
    /// The endpoints that DNS publishes for the service.
    fn published(&self, service: &Service) -> &Counted<(Arc<str>, Ipv4Addr)> {
        if service.publish_not_ready { &self.all } else { &self.ready }
    }
}

fn port_key(name: &str, protocol: &str) -> (String, String) {
    (name.to_owned(), protocol.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn meta(name: &str, service: Option<&str>) -> Meta {
        let labels = service.map(|s| [("kubernetes.io/service-name".into(), s.into())].into_iter().collect());
        let labels = labels.map(client::informer::Labels::from_sorted).unwrap_or_default();
        Meta { name: name.into(), namespace: "x".into(), labels, ..Meta::default() }
    }

    fn zone() -> Zone {
        let mut z = Zone::new("cluster.local");
        let mut add = |name: &str, service: serde_json::Value, slice: serde_json::Value| {
            z.put_service(&meta(name, None), &serde_json::from_value(json!({"spec": service})).unwrap());
            z.put_slice(&meta(&format!("{name}-1"), Some(name)), &serde_json::from_value(slice).unwrap());
        };
        let slice = json!({"endpoints": [{"addresses": ["10.0.0.1"], "hostname": "web-0", "conditions": {"ready": true}},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": false}}], "ports": [{"name": "http", "port": 8080}]});
        add(
            "web",
            json!({"clusterIP": "10.96.0.7", "ports": [{"name": "http", "protocol": "TCP", "port": 80}]}),
            slice.clone(),
        );
        add("db", json!({"clusterIP": "None"}), slice);
        add("out", json!({"type": "ExternalName", "externalName": "example.org"}), json!({}));
        z
    }

    /// Groundwork of K01.dns
    #[test]
    fn names_have_the_records_of_the_specification() {
        let a = |n: &str, ip: &str| Answer::Found(vec![Record::A(n.into(), ip.parse().unwrap())]);
        let srv = |n: &str, port, t: &str| Answer::Found(vec![Record::Srv { name: n.into(), port, target: t.into() }]);
        for (name, kind, want) in [
            ("web.x.svc.cluster.local", Kind::A, a("web.x.svc.cluster.local", "10.96.0.7")),
            ("WEB.x.svc.cluster.local", Kind::Other, Answer::Found(vec![])),
            ("db.x.svc.cluster.local", Kind::A, a("db.x.svc.cluster.local", "10.0.0.1")),
            ("web-0.db.x.svc.cluster.local", Kind::A, a("web-0.db.x.svc.cluster.local", "10.0.0.1")),
            ("web-1.db.x.svc.cluster.local", Kind::A, Answer::NoSuchName),
            ("no.x.svc.cluster.local", Kind::A, Answer::NoSuchName),
            (
                "_http._tcp.web.x.svc.cluster.local",
                Kind::Srv,
                srv("_http._tcp.web.x.svc.cluster.local", 80, "web.x.svc.cluster.local"),
            ),
            (
                "_http._tcp.db.x.svc.cluster.local",
                Kind::Srv,
                srv("_http._tcp.db.x.svc.cluster.local", 8080, "web-0.db.x.svc.cluster.local"),
            ),
            ("_no._tcp.web.x.svc.cluster.local", Kind::Srv, Answer::NoSuchName),
            ("1-2-3-4.x.pod.cluster.local", Kind::A, a("1-2-3-4.x.pod.cluster.local", "1.2.3.4")),
            (
                "7.0.96.10.in-addr.arpa",
                Kind::Ptr,
                Answer::Found(vec![Record::Ptr("7.0.96.10.in-addr.arpa".into(), "web.x.svc.cluster.local".into())]),
            ),
            (
                "out.x.svc.cluster.local",
                Kind::A,
                Answer::Found(vec![Record::Cname("out.x.svc.cluster.local".into(), "example.org".into())]),
            ),
            ("example.org", Kind::A, Answer::NotAuthoritative),
        ] {
            assert_eq!(zone().answer(name, kind, 100), want, "{name} {kind:?}");
        }
    }

    fn slice_of(addresses: &[String], ready: bool) -> SliceView {
        let endpoint = |a: &String| json!({"addresses": [a], "conditions": {"ready": ready}});
        let endpoints: Vec<_> = addresses.iter().map(endpoint).collect();
        serde_json::from_value(json!({"endpoints": endpoints, "ports": [{"name": "http", "port": 8080}]})).unwrap()
    }

    fn service(spec: serde_json::Value) -> ServiceView {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    /// After any changes, the answers equal those of a new zone with the same objects.
    #[test]
    fn the_indexes_follow_every_change() {
        let mut z = zone();
        let before = (z.services.len(), z.backends.len(), z.slices.len(), z.cluster_ips.len(), z.hosts.len());
        let ptr = |z: &Zone, address: &str| {
            let name = address.split('.').rev().collect::<Vec<_>>().join(".") + ".in-addr.arpa";
            match z.answer(&name, Kind::Ptr, 10) {
                Answer::Found(records) => match &records[..] {
                    [Record::Ptr(_, target)] => Some(target.replace(".x.svc.cluster.local", "")),
                    other => panic!("{other:?}"),
                },
                _ => None,
            }
        };
        let some = |t: &str| Some(t.to_owned());
        let addresses = |list: &[&str]| list.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>();
        let one = meta("more-1", Some("more"));
        z.put_service(&meta("more", None), &service(json!({"clusterIP": "None"})));
        z.put_slice(&one, &slice_of(&addresses(&["10.0.1.1", "10.0.1.2", "10.0.1.2"]), true));
        z.put_slice(&meta("more-2", Some("more")), &slice_of(&addresses(&["10.0.1.2"]), false));
        assert_eq!((ptr(&z, "10.0.1.1"), ptr(&z, "10.0.1.2")), (some("10-0-1-1.more"), some("10-0-1-2.more")));
        // One address is removed, and the other one is only in a slice that is not ready.
        z.put_slice(&one, &slice_of(&addresses(&["10.0.1.3"]), true));
        assert_eq!(
            (ptr(&z, "10.0.1.1"), ptr(&z, "10.0.1.2"), ptr(&z, "10.0.1.3")),
            (None, None, some("10-0-1-3.more"))
        );
        let shy = json!({"clusterIP": "None", "publishNotReadyAddresses": true});
        z.put_service(&meta("more", None), &service(shy));
        assert_eq!(ptr(&z, "10.0.1.2"), some("10-0-1-2.more"));
        let Answer::Found(all) = z.answer("more.x.svc.cluster.local", Kind::A, 10) else { panic!("no addresses") };
        assert_eq!(all.len(), 2);
        // The slice changes to another service, and the service gets a cluster IP.
        z.put_slice(&meta("more-1", Some("db")), &slice_of(&addresses(&["10.0.1.3"]), true));
        z.put_service(&meta("more", None), &service(json!({"clusterIP": "10.96.0.8"})));
        assert_eq!((ptr(&z, "10.0.1.3"), ptr(&z, "10.96.0.8")), (some("10-0-1-3.db"), some("more")));
        assert_eq!((ptr(&z, "10.0.1.2"), ptr(&z, "10.96.0.7")), (None, some("web")));
        // Nothing is left of removed objects.
        z.remove_slice(&meta("more-1", None));
        z.remove_slice(&meta("more-2", None));
        z.remove_service(&meta("more", None));
        assert_eq!((ptr(&z, "10.96.0.8"), ptr(&z, "10.0.1.3"), ptr(&z, "10.0.0.1")), (None, None, some("web-0.db")));
        let after = (z.services.len(), z.backends.len(), z.slices.len(), z.cluster_ips.len(), z.hosts.len());
        assert_eq!(after, before);
    }

    /// With 300,000 addresses, a query for an unknown one took a tenth of a second and delayed all others.
    #[test]
    fn an_answer_costs_what_its_records_cost() {
        let mut z = zone();
        z.put_service(&meta("big", None), &service(json!({"clusterIP": "None"})));
        for slice in 0..100 {
            let addresses: Vec<String> = (0..500).map(|n| format!("172.16.{slice}.{}", n % 250)).collect();
            z.put_slice(&meta(&format!("big-{slice:03}"), Some("big")), &slice_of(&addresses, slice < 99));
        }
        let count = |name: &str, kind| match z.answer(name, kind, 50) {
            Answer::Found(records) => records.len(),
            _ => 0,
        };
        // Every kind of query, many times: tens of seconds if each examined all endpoints.
        let begun = tokio::time::Instant::now();
        for _ in 0..2000 {
            assert_eq!(count("9.9.9.9.in-addr.arpa", Kind::Ptr), 0);
            assert_eq!(count("9.9.16.172.in-addr.arpa", Kind::Ptr), 1);
            assert_eq!(count("9.99.16.172.in-addr.arpa", Kind::Ptr), 0, "not ready");
            assert_eq!(count("big.x.svc.cluster.local", Kind::A), 50);
            assert_eq!(count("_http._tcp.big.x.svc.cluster.local", Kind::Srv), 50);
            assert_eq!(count("172-16-9-9.big.x.svc.cluster.local", Kind::A), 1);
            assert_eq!(count("nobody.big.x.svc.cluster.local", Kind::A), 0);
        }
        assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    }
}

//! The records of the cluster domain: a pure function of services, endpoint slices and the query.
//!
//! **Invariant**: the cost of an answer is proportional to its records, whatever else exists. Indexes, updated by each change of a service or slice, serve
//! every kind of query.

use client::Meta;
use serde::Deserialize;
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
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
    /// The same, and the address of the other family.
    #[serde(rename = "clusterIPs", deserialize_with = "client::informer::or_default")]
    pub cluster_ips: Vec<String>,
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
#[serde(rename_all = "camelCase", default)]
pub struct SliceView {
    /// The addresses of other types than `IPv4` and `IPv6` are names.
    pub address_type: Option<Box<str>>,
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
    cluster_ips: HashMap<IpAddr, Counted<Key>>,
    /// Endpoints by address: service and host label, with counts.
    hosts: HashMap<IpAddr, BTreeMap<(Key, Arc<str>), Endpoints>>,
    domain: String,
}

/// The maximum number of services that are examined for the reverse lookup of one endpoint address.
const MAX_REVERSE_CANDIDATES: usize = 64;

struct Service {
    /// Empty for headless services.
    cluster_ips: Vec<IpAddr>,
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
    all: Hosts,
    ready: Hosts,
    /// Port numbers by name and protocol (in lower case), and by slice.
    ports: BTreeMap<(String, String), BTreeMap<Arc<str>, u16>>,
}

/// Host labels with addresses, by family.
#[derive(Default)]
struct Hosts {
    v4: Counted<(Arc<str>, IpAddr)>,
    v6: Counted<(Arc<str>, IpAddr)>,
}

impl Hosts {
    fn of(&mut self, address: IpAddr) -> &mut Counted<(Arc<str>, IpAddr)> {
        if address.is_ipv4() { &mut self.v4 } else { &mut self.v6 }
    }

    /// Those with the addresses that a query asks for.
    fn answering(&self, kind: Kind) -> &BTreeMap<(Arc<str>, IpAddr), usize> {
        if kind == Kind::Aaaa { &self.v6.0 } else { &self.v4.0 }
    }

    fn is_empty(&self) -> bool {
        self.v4.0.is_empty() && self.v6.0.is_empty()
    }
}

#[derive(Default)]
struct Endpoints {
    all: usize,
    ready: usize,
}

struct Slice {
    service: Key,
    endpoints: Vec<(Arc<str>, IpAddr, bool)>,
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
    Aaaa,
    Srv,
    Cname,
    Ptr,
    /// A record type that the zone has no records of.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A record A or AAAA.
    Address(String, IpAddr),
    Srv {
        name: String,
        port: u16,
        target: String,
    },
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
            cluster_ips: cluster_ips(spec),
            external_name: (spec.r#type == "ExternalName").then(|| spec.external_name.clone()),
            ports: spec.ports.iter().map(|p| (port_key(&p.name, &p.protocol), p.port)).collect(),
            publish_not_ready: spec.publish_not_ready_addresses,
        };
        for ip in &service.cluster_ips {
            self.cluster_ips.entry(*ip).or_default().add(key.clone());
        }
        self.services.insert(key, service);
    }

    pub fn remove_service(&mut self, meta: &Meta) {
        let key = (meta.namespace.clone(), meta.name.clone());
        for ip in self.services.remove(&key).into_iter().flat_map(|s| s.cluster_ips) {
            let Some(services) = self.cluster_ips.get_mut(&ip) else { continue };
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
        let has_addresses = view.address_type.as_deref().is_none_or(|t| matches!(t, "IPv4" | "IPv6"));
        for e in view.endpoints.iter().flatten().filter(|_| has_addresses) {
            let Some(ip) = e.addresses.first().and_then(|a| a.parse::<IpAddr>().ok()) else { continue };
            let host: Arc<str> = match &e.hostname {
                Some(host) => host.as_str().into(),
                None => ip.to_string().replace(['.', ':'], "-").into(),
            };
            let ready = e.conditions.ready.unwrap_or(true);
            backends.all.of(ip).add((host.clone(), ip));
            let found = self.hosts.entry(ip).or_default().entry((slice.service.clone(), host.clone())).or_default();
            found.all += 1;
            if ready {
                backends.ready.of(ip).add((host.clone(), ip));
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
            backends.all.of(ip).remove(&end);
            if ready {
                backends.ready.of(ip).remove(&end);
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
        if backends.all.is_empty() && backends.ports.is_empty() {
            self.backends.remove(&service);
        }
    }

    /// Answers a query with at most `max_records` records. `name` is absolute, without the trailing dot, in upper or lower case.
    pub fn answer(&self, name: &str, kind: Kind, max_records: usize) -> Answer {
        let name = name.to_lowercase();
        for (suffix, parse) in REVERSE {
            if let Some(reversed) = name.strip_suffix(suffix) {
                return parse(reversed).map_or(Answer::NoSuchName, |ip| self.reverse(&name, ip, kind));
            }
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
            [ip, _, "pod"] => match pod_address(ip) {
                Some(ip) if kind.asks_for(ip) => Answer::Found(vec![Record::Address(name, ip)]),
                Some(_) => Answer::Found(Vec::new()),
                None => Answer::NoSuchName,
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
        let record = |ip| Record::Address(name.to_owned(), ip);
        let is_headless = s.cluster_ips.is_empty();
        match kind {
            Kind::A | Kind::Aaaa if is_headless => {
                let Some(hosts) = self.backends_of(service_key).map(|b| b.published(s)).filter(|h| !h.is_empty())
                else {
                    return Answer::NoSuchName;
                };
                Answer::Found(hosts.answering(kind).keys().take(max_records).map(|(_, ip)| record(*ip)).collect())
            }
            _ => Answer::Found(s.cluster_ips.iter().filter(|ip| kind.asks_for(**ip)).map(|ip| record(*ip)).collect()),
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
        if !s.cluster_ips.is_empty() {
            out.extend(s.ports.get(&key).map(|number| srv(*number, base.clone())));
        } else if let Some(backends) = self.backends_of(service_key)
            && let Some(number) = backends.ports.get(&key).and_then(|numbers| numbers.values().next())
        {
            let published = backends.published(s);
            let hosts = published.v4.0.keys().chain(published.v6.0.keys()).map(|(host, _)| host);
            // A host with addresses of both families is one target.
            let mut seen = BTreeSet::new();
            let hosts = hosts.filter(|host| seen.insert(*host)).take(max_records);
            out.extend(hosts.map(|host| srv(*number, format!("{host}.{base}"))));
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
        let published = backends.published(s);
        let of = |kind| {
            let (low, high) = match kind {
                Kind::Aaaa => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::from(u128::MAX))),
                _ => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::BROADCAST)),
            };
            published.answering(kind).range((Arc::from(host), low)..=(Arc::from(host), high)).map(|((_, ip), _)| *ip)
        };
        if of(Kind::A).next().is_none() && of(Kind::Aaaa).next().is_none() {
            return Answer::NoSuchName;
        }
        match kind {
            Kind::A | Kind::Aaaa => {
                Answer::Found(of(kind).take(max_records).map(|ip| Record::Address(name.to_owned(), ip)).collect())
            }
            _ => Answer::Found(Vec::new()),
        }
    }

    fn reverse(&self, name: &str, ip: IpAddr, kind: Kind) -> Answer {
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
    fn published(&self, service: &Service) -> &Hosts {
        if service.publish_not_ready { &self.all } else { &self.ready }
    }
}

impl Kind {
    /// Whether such a query asks for addresses of the family of this one.
    fn asks_for(self, address: IpAddr) -> bool {
        self == if address.is_ipv4() { Kind::A } else { Kind::Aaaa }
    }
}

/// The addresses of a service, each once; none if it is headless.
fn cluster_ips(spec: &ServiceSpec) -> Vec<IpAddr> {
    let all = std::iter::once(&spec.cluster_ip).chain(&spec.cluster_ips);
    let mut out: Vec<IpAddr> = Vec::new();
    for ip in all.filter_map(|text| text.parse().ok()) {
        if !out.contains(&ip) {
            out.push(ip);
        }
    }
    out
}

/// The address in the name of a pod, whose dots or colons are dashes.
fn pod_address(label: &str) -> Option<IpAddr> {
    let v4 = label.replace('-', ".").parse().map(IpAddr::V4);
    v4.ok().or_else(|| label.replace('-', ":").parse().map(IpAddr::V6).ok())
}

/// The domains of reverse lookups, and how the address is read.
const REVERSE: [(&str, fn(&str) -> Option<IpAddr>); 2] =
    [(".in-addr.arpa", reversed_octets), (".ip6.arpa", reversed_digits)];

fn reversed_octets(text: &str) -> Option<IpAddr> {
    let octets: Vec<&str> = text.split('.').rev().collect();
    octets.join(".").parse().map(IpAddr::V4).ok()
}

fn reversed_digits(text: &str) -> Option<IpAddr> {
    let digits: Vec<&str> = text.split('.').rev().collect();
    let is_digit = |d: &&str| d.len() == 1 && d.bytes().all(|b| b.is_ascii_hexdigit());
    let is_whole = digits.len() == 32 && digits.iter().all(is_digit);
    is_whole.then(|| u128::from_str_radix(&digits.concat(), 16).ok().map(|n| Ipv6Addr::from(n).into())).flatten()
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
        let a = |n: &str, ip: &str| Answer::Found(vec![Record::Address(n.into(), ip.parse().unwrap())]);
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

    /// Groundwork of K01.dns
    #[test]
    fn both_families_have_records() {
        let mut z = Zone::new("cluster.local");
        let both = json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00:96::7"],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80}]});
        z.put_service(&meta("web", None), &service(both));
        z.put_service(&meta("db", None), &service(json!({"clusterIP": "None"})));
        z.put_service(&meta("old", None), &service(json!({"clusterIP": "None"})));
        for (name, addresses) in [("db-4", ["10.0.0.1", "10.0.0.2"]), ("db-6", ["fd00::1", "fd00::2"])] {
            let endpoints = json!([{"addresses": [addresses[0]], "hostname": "db-0"}, {"addresses": [addresses[1]]}]);
            let slice = json!({"endpoints": endpoints, "ports": [{"name": "http", "port": 8080}]});
            z.put_slice(&meta(name, Some("db")), &serde_json::from_value(slice).unwrap());
        }
        z.put_slice(&meta("old-4", Some("old")), &slice_of(&["10.0.0.9".to_owned()], true));
        let found = |name: &str, kind| match z.answer(name, kind, 100) {
            Answer::Found(records) => {
                let text = |r: &Record| match r {
                    Record::Address(_, ip) => ip.to_string(),
                    Record::Srv { target, .. } | Record::Ptr(_, target) | Record::Cname(_, target) => target.clone(),
                };
                records.iter().map(text).collect::<Vec<_>>().join(" ").replace(".x.svc.cluster.local", "")
            }
            other => format!("{other:?}"),
        };
        let digits = |last: char| format!("{last}.{}0.0.d.f.ip6.arpa", "0.".repeat(27));
        for (name, kind, want) in [
            ("web.x.svc.cluster.local", Kind::A, "10.96.0.7"),
            ("web.x.svc.cluster.local", Kind::Aaaa, "fd00:96::7"),
            ("db.x.svc.cluster.local", Kind::A, "10.0.0.2 10.0.0.1"),
            ("db.x.svc.cluster.local", Kind::Aaaa, "fd00::1 fd00::2"),
            ("db-0.db.x.svc.cluster.local", Kind::Aaaa, "fd00::1"),
            ("fd00--2.db.x.svc.cluster.local", Kind::Aaaa, "fd00::2"),
            ("fd00--2.db.x.svc.cluster.local", Kind::A, ""),
            ("_http._tcp.db.x.svc.cluster.local", Kind::Srv, "10-0-0-2.db db-0.db fd00--2.db"),
            ("old.x.svc.cluster.local", Kind::Aaaa, ""),
            ("none.x.svc.cluster.local", Kind::Aaaa, "NoSuchName"),
            ("fd00--2.x.pod.cluster.local", Kind::Aaaa, "fd00::2"),
            ("1-2-3-4.x.pod.cluster.local", Kind::Aaaa, ""),
            (&digits('1'), Kind::Ptr, "db-0.db"),
            (&digits('9'), Kind::Ptr, "NotAuthoritative"),
            ("1.0.d.f.ip6.arpa", Kind::Ptr, "NoSuchName"),
            ("+.0.d.f.ip6.arpa", Kind::Ptr, "NoSuchName"),
        ] {
            assert_eq!(found(name, kind), want, "{name} {kind:?}");
        }
    }
}

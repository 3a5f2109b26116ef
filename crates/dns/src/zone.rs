//! What names there are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// One record of a name; names are lower case and without the last dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Record {
    A(Ipv4Addr),
    Srv { port: u16, target: String },
    Cname(String),
    Ptr(String),
}

/// What is known of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// Its records; empty for a name that only has names below it.
    Records(&'a [Record]),
    /// A pod's name holds its address.
    Pod(Ipv4Addr),
    /// Ours, and it does not exist.
    Nothing,
    /// Not ours.
    Foreign,
}

/// All names of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    domain: String,
    names: BTreeMap<String, Vec<Record>>,
    namespaces: BTreeSet<String>,
}

impl Zone {
    /// The names of these services in `domain` (`cluster.local`).
    pub fn build(services: &[Service], slices: &[EndpointSlice], domain: &str) -> Zone {
        let domain = domain.trim_matches('.').to_ascii_lowercase();
        let mut zone = Zone { domain, ..Zone::default() };
        zone.touch(&format!("svc.{}", zone.domain.clone()));
        zone.touch(&format!("pod.{}", zone.domain.clone()));
        let mut by_service: BTreeMap<(&str, &str), Vec<&EndpointSlice>> = BTreeMap::new();
        for s in slices.iter().filter(|s| s.address_type == "IPv4") {
            let name = s.metadata.labels.as_ref().and_then(|l| l.get(SERVICE_NAME));
            if let (Some(ns), Some(name)) = (s.metadata.namespace.as_deref(), name) {
                by_service.entry((ns, name)).or_default().push(s);
            }
        }
        for s in services {
            if let (Some(ns), Some(name)) = (s.metadata.namespace.as_deref(), s.metadata.name.as_deref()) {
                zone.service(s, ns, name, by_service.get(&(ns, name)).map_or(&[], Vec::as_slice));
            }
        }
        for records in zone.names.values_mut() {
            records.sort();
            records.dedup();
        }
        zone
    }

    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Makes sure that a name, and all between it and the domain, exist.
    fn touch(&mut self, name: &str) {
        let mut at = name;
        while at != self.domain && !at.is_empty() {
            self.names.entry(at.to_owned()).or_default();
            at = at.split_once('.').map_or("", |(_, rest)| rest);
        }
        self.names.entry(self.domain.clone()).or_default();
    }

    fn add(&mut self, name: &str, record: Record) {
        self.touch(name);
        self.names.entry(name.to_owned()).or_default().push(record);
    }

    fn pointer(&mut self, address: Ipv4Addr, name: &str) {
        let [a, b, c, d] = address.octets();
        let reverse = format!("{d}.{c}.{b}.{a}.in-addr.arpa");
        self.names.entry(reverse).or_default().push(Record::Ptr(name.to_owned()));
    }

    fn service(&mut self, service: &Service, ns: &str, name: &str, slices: &[&EndpointSlice]) {
        let Some(spec) = &service.spec else { return };
        let full = format!("{name}.{ns}.svc.{}", self.domain);
        self.namespaces.insert(ns.to_owned());
        if spec.type_.as_deref() == Some("ExternalName") {
            if let Some(target) = spec.external_name.as_deref() {
                self.add(&full, Record::Cname(target.trim_end_matches('.').to_ascii_lowercase()));
            }
            return;
        }
        let protocol = |p: Option<&str>| p.unwrap_or("TCP").to_ascii_lowercase();
        let ip = spec.cluster_ip.as_deref().unwrap_or_default();
        if ip == "None" {
            return self.headless(&full, slices);
        }
        let Ok(address) = ip.parse::<Ipv4Addr>() else { return };
        self.add(&full, Record::A(address));
        self.pointer(address, &full);
        for p in spec.ports.iter().flatten() {
            let (Some(port_name), Ok(port)) = (p.name.as_deref().filter(|n| !n.is_empty()), u16::try_from(p.port))
            else {
                continue;
            };
            let srv = format!("_{port_name}._{}.{full}", protocol(p.protocol.as_deref()));
            self.add(&srv, Record::Srv { port, target: full.clone() });
        }
    }

    /// A headless service has the addresses of its endpoints, and each of these a name of its own.
    fn headless(&mut self, full: &str, slices: &[&EndpointSlice]) {
        self.touch(full);
        for slice in slices {
            for e in slice.endpoints.iter().flatten() {
                if e.conditions.as_ref().and_then(|c| c.ready) == Some(false) {
                    continue;
                }
                for address in e.addresses.iter().filter_map(|a| a.parse::<Ipv4Addr>().ok()) {
                    let label = match e.hostname.as_deref().filter(|h| !h.is_empty()) {
                        Some(h) => h.to_ascii_lowercase(),
                        None => address.to_string().replace('.', "-"),
                    };
                    let own = format!("{label}.{full}");
                    self.add(full, Record::A(address));
                    self.add(&own, Record::A(address));
                    self.pointer(address, &own);
                    for p in slice.ports.iter().flatten() {
                        let port = p.port.and_then(|n| u16::try_from(n).ok());
                        let (Some(n), Some(port)) = (p.name.as_deref().filter(|n| !n.is_empty()), port) else {
                            continue;
                        };
                        let proto = p.protocol.as_deref().unwrap_or("TCP").to_ascii_lowercase();
                        self.add(&format!("_{n}._{proto}.{full}"), Record::Srv { port, target: own.clone() });
                    }
                }
            }
        }
    }

    /// What is known of a name (any case, with or without the last dot).
    pub fn find(&self, name: &str) -> Found<'_> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        if let Some(records) = self.names.get(&name) {
            return Found::Records(records);
        }
        let Some(below) = name.strip_suffix(&self.domain).and_then(|n| n.strip_suffix('.')) else {
            return Found::Foreign;
        };
        let labels: Vec<&str> = below.split('.').collect();
        match labels[..] {
            [address, ns, "pod"] if !ns.is_empty() => match address.replace('-', ".").parse() {
                Ok(ip) => Found::Pod(ip),
                Err(_) => Found::Nothing,
            },
            [ns, "pod"] if self.namespaces.contains(ns) => Found::Records(&[]),
            _ => Found::Nothing,
        }
    }
}

//! Which records a name has: a pure function of services, endpoint slices and the question.

use client::Meta;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// A service, as DNS sees it.
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

/// An endpoint slice, as DNS sees it.
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
    /// Whoever writes a slice may put any number here.
    pub port: Option<i64>,
    pub protocol: Option<String>,
}

/// What is known, by namespace and name of the service.
#[derive(Default)]
pub struct Zone {
    services: BTreeMap<(String, String), ServiceView>,
    slices: BTreeMap<(String, String), Vec<SliceView>>,
    domain: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    A,
    Srv,
    Cname,
    Ptr,
    /// A type that nothing here has.
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
    /// Records; none when the name exists without records of this type.
    Found(Vec<Record>),
    NoSuchName,
    /// Not the cluster's business.
    Elsewhere,
}

impl Zone {
    pub fn new(domain: &str) -> Self {
        Self { domain: domain.to_owned(), ..Self::default() }
    }

    pub fn add_service(&mut self, meta: &Meta, view: &ServiceView) {
        self.services.insert((meta.namespace.to_string(), meta.name.to_string()), view.clone());
    }

    pub fn add_slice(&mut self, meta: &Meta, view: &SliceView) {
        if let Some(name) = meta.label("kubernetes.io/service-name") {
            self.slices.entry((meta.namespace.to_string(), name.to_owned())).or_default().push(view.clone());
        }
    }

    /// Answers a question. `name` is absolute, without the last dot, in any case.
    pub fn answer(&self, name: &str, kind: Kind) -> Answer {
        let name = name.to_lowercase();
        if let Some(reverse) = name.strip_suffix(".in-addr.arpa") {
            return self.reverse(&name, reverse, kind);
        }
        let Some(rest) =
            name.strip_suffix(&self.domain).and_then(|r| r.strip_suffix('.').or(Some(r).filter(|r| r.is_empty())))
        else {
            return Answer::Elsewhere;
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
            [service, ns, "svc"] => self.service(&name, ns, service, kind),
            [port, protocol, service, ns, "svc"] if port.starts_with('_') && protocol.starts_with('_') => {
                self.port(&name, (ns, service), &port[1..], &protocol[1..], kind)
            }
            [host, service, ns, "svc"] => self.host(&name, (ns, service), host, kind),
            _ => Answer::NoSuchName,
        }
    }

    fn has_namespace(&self, ns: &str) -> bool {
        self.services.keys().any(|(n, _)| n == ns)
    }

    fn get(&self, ns: &str, name: &str) -> Option<&ServiceView> {
        self.services.get(&(ns.to_owned(), name.to_owned()))
    }

    /// The addresses behind a service that may be told, with their host labels.
    fn backends(&self, ns: &str, name: &str) -> Vec<(String, Ipv4Addr)> {
        let all = self.get(ns, name).is_some_and(|s| s.spec.publish_not_ready_addresses);
        let mut out: Vec<(String, Ipv4Addr)> = self
            .slices
            .get(&(ns.to_owned(), name.to_owned()))
            .into_iter()
            .flatten()
            .flat_map(|s| s.endpoints.iter().flatten())
            .filter(|e| all || e.conditions.ready.unwrap_or(true))
            .filter_map(|e| {
                let ip: Ipv4Addr = e.addresses.first()?.parse().ok()?;
                Some((e.hostname.clone().unwrap_or_else(|| ip.to_string().replace('.', "-")), ip))
            })
            .collect();
        out.sort();
        out.dedup();
        out
    }

    fn service(&self, name: &str, ns: &str, service: &str, kind: Kind) -> Answer {
        let Some(s) = self.get(ns, service) else { return Answer::NoSuchName };
        if s.spec.r#type == "ExternalName" {
            return Answer::Found(vec![Record::Cname(name.to_owned(), s.spec.external_name.clone())]);
        }
        let a = |ip| Record::A(name.to_owned(), ip);
        match (s.spec.cluster_ip.parse(), kind) {
            (Ok(ip), Kind::A) => Answer::Found(vec![a(ip)]),
            (Err(_), Kind::A) => {
                let all = self.backends(ns, service);
                if all.is_empty() {
                    Answer::NoSuchName
                } else {
                    Answer::Found(all.into_iter().map(|(_, ip)| a(ip)).collect())
                }
            }
            _ => Answer::Found(Vec::new()),
        }
    }

    fn port(&self, name: &str, (ns, service): (&str, &str), port: &str, protocol: &str, kind: Kind) -> Answer {
        let Some(s) = self.get(ns, service) else { return Answer::NoSuchName };
        let base = format!("{service}.{ns}.svc.{}", self.domain);
        let srv = |port, target| Record::Srv { name: name.to_owned(), port, target };
        let same = |n: &str, p: &str| n == port && p.eq_ignore_ascii_case(protocol);
        let mut out = Vec::new();
        if s.spec.cluster_ip.parse::<Ipv4Addr>().is_ok() {
            out.extend(s.spec.ports.iter().filter(|p| same(&p.name, &p.protocol)).map(|p| srv(p.port, base.clone())));
        } else {
            for slice in self.slices.get(&(ns.to_owned(), service.to_owned())).into_iter().flatten() {
                let named = |p: &&SlicePort| {
                    same(p.name.as_deref().unwrap_or_default(), p.protocol.as_deref().unwrap_or("TCP"))
                };
                let number = slice.ports.iter().flatten().find(named).and_then(|p| u16::try_from(p.port?).ok());
                if let Some(number) = number {
                    let hosts = self.backends(ns, service);
                    out.extend(hosts.into_iter().map(|(h, _)| srv(number, format!("{h}.{base}"))));
                    break;
                }
            }
        }
        match (out.is_empty(), kind) {
            (true, _) => Answer::NoSuchName,
            (false, Kind::Srv) => Answer::Found(out),
            (false, _) => Answer::Found(Vec::new()),
        }
    }

    fn host(&self, name: &str, (ns, service): (&str, &str), host: &str, kind: Kind) -> Answer {
        let found: Vec<Record> = self
            .backends(ns, service)
            .into_iter()
            .filter(|(h, _)| h == host)
            .map(|(_, ip)| Record::A(name.to_owned(), ip))
            .collect();
        match (found.is_empty(), kind) {
            (true, _) => Answer::NoSuchName,
            (false, Kind::A) => Answer::Found(found),
            (false, _) => Answer::Found(Vec::new()),
        }
    }

    fn reverse(&self, name: &str, reversed: &str, kind: Kind) -> Answer {
        let text: Vec<&str> = reversed.split('.').rev().collect();
        let Ok(ip) = text.join(".").parse::<Ipv4Addr>() else { return Answer::NoSuchName };
        let service = self.services.iter().find(|(_, s)| s.spec.cluster_ip == ip.to_string());
        let mut target = service.map(|((ns, n), _)| format!("{n}.{ns}.svc.{}", self.domain));
        if target.is_none() {
            target = self.slices.keys().find_map(|(ns, n)| {
                let host = self.backends(ns, n).into_iter().find(|(_, a)| *a == ip)?.0;
                Some(format!("{host}.{n}.{ns}.svc.{}", self.domain))
            });
        }
        match (target, kind) {
            (None, _) => Answer::Elsewhere,
            (Some(t), Kind::Ptr) => Answer::Found(vec![Record::Ptr(name.to_owned(), t)]),
            (Some(_), _) => Answer::Found(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn zone() -> Zone {
        let mut z = Zone::new("cluster.local");
        let mut add = |name: &str, service: serde_json::Value, slice: serde_json::Value| {
            let key = ("x".to_owned(), name.to_owned());
            z.services.insert(key.clone(), serde_json::from_value(json!({"spec": service})).unwrap());
            z.slices.insert(key, vec![serde_json::from_value(slice).unwrap()]);
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
            ("example.org", Kind::A, Answer::Elsewhere),
        ] {
            assert_eq!(zone().answer(name, kind), want, "{name} {kind:?}");
        }
    }
}

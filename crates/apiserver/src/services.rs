//! Resolves the services of webhooks and APIServices to endpoints. Each call resolves its service; services and
//! endpoint slices are decoded once per revision into small cached views.

use crate::server_kinds::{ENDPOINT_SLICES, SERVICES};
use meta::{Object, Value};
use registry::Registry;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use store::{Entry, Key, Snapshot};
use stored::Views;
use stored::in_place;

/// Maximum size of the caches of services and of slices, in bytes.
const KEPT: usize = 8 << 20;
/// Maximum stored bytes of slices, and number of endpoints, per resolution; the rest is ignored.
const MOST_BYTES: usize = 4 << 20;
const MOST_ENDPOINTS: usize = 1000;

const SERVICE_NAME: &str = "kubernetes.io/service-name";

pub(crate) struct Services {
    services: Views<Service>,
    slices: Views<Slice>,
}

impl Default for Services {
    fn default() -> Self {
        Self { services: Views::new(KEPT, KEPT / 4), slices: Views::new(KEPT, KEPT / 4) }
    }
}

/// The cached view of a service.
pub(crate) struct Service {
    /// Its type; may be empty.
    pub kind: String,
    external_name: String,
    /// Port numbers and names.
    ports: Vec<(u64, String)>,
}

/// The cached view of an endpoint slice.
pub(crate) struct Slice {
    /// The first address of each endpoint that is ready or has unknown readiness.
    ready: Vec<IpAddr>,
    /// Whether there is such an endpoint at all: an FQDN is not an address.
    pub has_ready: bool,
    /// Port names and numbers; the number may be missing.
    ports: Vec<(String, Option<u64>)>,
}

impl Services {
    /// The view of a stored service.
    pub fn service(&self, snapshot: &Snapshot, namespace: &str, name: &str) -> Option<Arc<Service>> {
        let entry = snapshot.get(&Key::new(SERVICES, namespace, name))?;
        in_place::view(&self.services, &entry, Service::read).inspect_err(|e| tracing::error!("{e}")).ok()
    }

    /// The slices of a service; decodes no others.
    pub fn slices<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        namespace: &'a str,
        service: &'a str,
    ) -> impl Iterator<Item = Arc<Slice>> + 'a {
        let of_service = move |e: &&Arc<Entry>| {
            let labels = &e.index().labels;
            labels.iter().any(|(k, v)| **k == *SERVICE_NAME && **v == *service)
        };
        let mut left = MOST_BYTES;
        let fits = move |e: &&Arc<Entry>| {
            let size = e.value.len();
            let fits = size <= left;
            left = left.saturating_sub(size);
            fits
        };
        let all = snapshot.range(ENDPOINT_SLICES, Some(namespace), None);
        all.filter(of_service).take_while(fits).filter_map(move |e| {
            in_place::view(&self.slices, e, Slice::read).inspect_err(|e| tracing::error!("{e}")).ok()
        })
    }

    /// The address of a random ready endpoint of a service (`k8s.io/apiserver/pkg/util/proxy`).
    pub fn resolve(&self, registry: &Registry, namespace: &str, name: &str, port: u16) -> Result<String, String> {
        let snapshot = registry.store.snapshot();
        let Some(service) = self.service(&snapshot, namespace, name) else {
            return Err(format!("service {name:?} not found"));
        };
        if service.kind == "ExternalName" {
            return Ok(format!("{}:{port}", service.external_name));
        }
        let Some(port) = service.port(port) else {
            return Err(format!("no service port {port} found for service {name:?}"));
        };
        let mut ready: Vec<SocketAddr> = Vec::new();
        for slice in self.slices(&snapshot, namespace, name) {
            let number = slice.port(port).and_then(|number| u16::try_from(number?).ok());
            let addresses = number.into_iter().flat_map(|n| slice.ready.iter().map(move |ip| SocketAddr::new(*ip, n)));
            ready.extend(addresses.take(MOST_ENDPOINTS - ready.len()));
            if ready.len() >= MOST_ENDPOINTS {
                break;
            }
        }
        if ready.is_empty() {
            return Err(format!("no endpoints available for service {name:?}"));
        }
        let n = registry.rng.next_u64() % ready.len() as u64;
        Ok(ready[n as usize].to_string())
    }
}

fn list<'a>(o: &'a Object, path: &[&str]) -> impl Iterator<Item = &'a Value> {
    o.at(path).and_then(Value::as_array).into_iter().flatten()
}

fn text(v: &Value) -> String {
    v.as_str().unwrap_or_default().to_owned()
}

impl Service {
    fn read(o: &Object) -> (Self, usize) {
        let ports = list(o, &["spec", "ports"]).filter_map(|p| Some((p["port"].as_u64()?, text(&p["name"]))));
        let field = |k: &str| o.str_at(&["spec", k]).unwrap_or_default().to_owned();
        let view = Self { kind: field("type"), external_name: field("externalName"), ports: ports.collect() };
        let ports: usize = view.ports.iter().map(|(_, name)| name.len() + size_of::<(u64, String)>()).sum();
        let bytes = view.kind.len() + view.external_name.len() + ports;
        (view, bytes)
    }

    /// The name of a port; may be empty.
    pub fn port(&self, number: u16) -> Option<&str> {
        self.ports.iter().find(|(n, _)| *n == u64::from(number)).map(|(_, name)| &**name)
    }
}

impl Slice {
    fn read(o: &Object) -> (Self, usize) {
        let ready = || list(o, &["endpoints"]).filter(|e| e["conditions"]["ready"] != false);
        // A name that looks like an address is a name.
        let named = o.str_at(&["addressType"]) == Some("FQDN");
        let addresses = ready().filter(|_| !named).filter_map(|e| e["addresses"][0].as_str()?.parse().ok());
        let ports = list(o, &["ports"]).map(|p| (text(&p["name"]), p["port"].as_u64()));
        let view = Self { ready: addresses.collect(), has_ready: ready().next().is_some(), ports: ports.collect() };
        let ports: usize = view.ports.iter().map(|(name, _)| name.len() + size_of::<(String, Option<u64>)>()).sum();
        let bytes = view.ready.len() * size_of::<IpAddr>() + ports;
        (view, bytes)
    }

    /// The number of the first port with a name, if any.
    fn port(&self, name: &str) -> Option<Option<u64>> {
        self.ports.iter().find(|(n, _)| n == name).map(|(_, number)| *number)
    }

    /// Whether a port with this name has a number.
    pub fn has_port(&self, name: &str) -> bool {
        self.ports.iter().any(|(n, number)| n == name && number.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::HashMap;
    use store::{Action, Expect, Memory, Op, Options, Retention, Store};
    use stored::encode;

    async fn put(store: &Store, resource: &str, name: &str, text: String) {
        let op = Op {
            key: Key::new(resource, "ns", name),
            expect: Expect::Any,
            action: Action::Put(text.into_bytes().into()),
        };
        store.commit(vec![op]).await.unwrap();
    }

    #[tokio::test]
    async fn slices_of_a_service_are_decoded_once_and_those_of_others_never() {
        let index = encode::index_fn(HashMap::new());
        let options = Options { index, transform: None, retention: Retention::default(), clock: Arc::new(|| 0) };
        let store = Store::open(Memory::new(), options).await.unwrap();
        let slice = |name: &str, service: &str, ip: &str| {
            let labels = json!({SERVICE_NAME: service});
            let metadata = json!({"name": name, "namespace": "ns", "labels": labels});
            let endpoints = json!([{"addresses": [ip]}, {"addresses": ["10.0.0.9"], "conditions": {"ready": false}}]);
            let ports = json!([{"name": "http", "port": 80}, {"name": "none"}]);
            let o = json!({"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": ports});
            String::from_utf8(encode::encode(&Object::from_value(o).unwrap()).to_vec()).unwrap()
        };
        put(&store, ENDPOINT_SLICES, "a", slice("a", "s", "10.0.0.1")).await;
        put(&store, ENDPOINT_SLICES, "b", slice("b", "another", "10.0.0.2")).await;
        let services = Services::default();
        let found = |snapshot: &Snapshot| -> Vec<Arc<Slice>> { services.slices(snapshot, "ns", "s").collect() };
        let first = store.snapshot();
        let before = found(&first);
        assert_eq!(before.len(), 1);
        assert_eq!(before[0].ready, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
        assert!(before[0].has_port("http") && !before[0].has_port("none") && before[0].has_ready);
        assert!(Arc::ptr_eq(&found(&first)[0], &before[0]), "it is decoded once");
        let other = first.get(&Key::new(ENDPOINT_SLICES, "ns", "b")).unwrap();
        assert!(services.slices.known(&other).is_none(), "that of another service is not decoded");
        put(&store, ENDPOINT_SLICES, "a", slice("a", "s", "10.0.0.3")).await;
        assert_eq!(found(&store.snapshot())[0].ready, ["10.0.0.3".parse::<IpAddr>().unwrap()]);
        // Endpoints above the limit are ignored.
        for i in 0..5 {
            let name = format!("c{i}");
            put(&store, ENDPOINT_SLICES, &name, slice(&name, "s", &"x".repeat(1 << 20))).await;
        }
        assert_eq!(found(&store.snapshot()).len(), 4);
    }
}

//! Tables of allocations: the written fields of a service, and its spec or the error afterwards.

use super::*;
use crate::core::service_spec::list;
use crate::testing::{empty_registry, read};
use registry::Registry;
use std::collections::BTreeSet;
use store::{Action, Expect, Key};
use stored::encode;

const IPV4: &str = "10.0.0.0/24";
const IPV6: &str = "fd00::/112";
/// The first address and the first port that are not reserved for explicit requests. Random numbers are zero.
const FIRST: &str = "10.0.0.16";
const FIRST_IPV6: &str = "fd00::100";
const FIRST_PORT: i64 = 30_016;

/// A server with ranges of addresses and the node ports 30000 to 30031.
struct Server {
    registry: Registry,
    service: Service,
}

impl Server {
    async fn new(ranges: &[&str]) -> Self {
        let ranges = ranges.iter().map(|r| r.parse().expect("a range")).collect();
        Self { registry: empty_registry().await, service: Service { ranges, node_ports: 30_000..=30_031 } }
    }

    /// Returns a service as the server reads it.
    fn object(&self, name: &str, spec: &Value) -> Object {
        let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "n"},
            "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}});
        spec.as_object().into_iter().flatten().for_each(|(k, v)| service["spec"][k] = v.clone());
        read(&self.service, service)
    }

    /// Creates or updates a service in one transaction, and returns its spec or the message of the error.
    async fn write(&self, name: &str, spec: Value, old: Option<&Object>) -> Result<Object, String> {
        let mut o = self.object(name, &spec);
        if let Some(old) = old {
            fields::drop_of_old_type(&mut o, old);
        }
        let mut ops = self.service.allocate(self.registry.env(), &mut o, old).map_err(|status| status.message)?;
        ops.push(put(Key::new("services", "n", name), &o));
        self.commit(ops).await;
        Ok(o)
    }

    async fn create(&self, name: &str, spec: Value) -> Result<Object, String> {
        self.write(name, spec, None).await
    }

    async fn commit(&self, ops: Vec<Op>) {
        self.registry.store.commit(ops).await.expect("a transaction without conflicts");
    }

    /// Returns the names of all objects of a resource.
    fn names(&self, resource: &str) -> BTreeSet<String> {
        let snapshot = self.registry.store.snapshot();
        snapshot.range(resource, None, None).map(|e| e.key.name.to_string()).collect()
    }

    fn addresses(&self) -> BTreeSet<String> {
        self.names("networking.k8s.io/ipaddresses")
    }

    /// Returns the recorded node ports.
    fn node_ports(&self) -> BTreeSet<String> {
        let resource = registry::internal_key("servicenodeports", "").resource;
        self.names(&resource).into_iter().filter(|n| n != "complete").collect()
    }
}

fn put(key: Key, o: &Object) -> Op {
    Op { key, expect: Expect::Any, action: Action::Put(encode::encode(o)) }
}

fn set<T: ToString>(names: &[T]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

/// Creates a service beside one with `10.0.0.5` and the node port 30001, and compares the fields of its spec.
async fn check_create(ranges: &[&str], cases: &[(Value, Result<Value, &str>)]) {
    for (spec, expected) in cases {
        let server = Server::new(ranges).await;
        let ports = json!([{"port": 1, "nodePort": 30_001}]);
        server
            .create("other", json!({"type": "NodePort", "clusterIP": "10.0.0.5", "ports": ports}))
            .await
            .expect("a service");
        match (server.create("s", spec.clone()).await, expected) {
            (Ok(o), Ok(expected)) => {
                for (field, value) in expected.as_object().into_iter().flatten() {
                    assert_eq!(&o.0["spec"][field], value, "{field} of {spec}");
                }
            }
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{spec}: {error}"),
            (result, _) => panic!("{spec}: {result:?}, expected {expected:?}"),
        }
    }
}

fn port(error: &str, port: i64) -> String {
    format!("spec.ports[0].nodePort: Invalid value: {port}: {error}")
}

#[tokio::test]
async fn allocates_addresses_of_one_family() {
    let (one, both) = ("SingleStack", "RequireDualStack");
    let first = json!({"clusterIP": FIRST, "clusterIPs": [FIRST], "ipFamilies": ["IPv4"]});
    let taken = "spec.clusterIPs: Invalid value: [\"10.0.0.5\"]: failed to allocate IP 10.0.0.5: provided IP is already allocated";
    let other = "spec.clusterIPs: Invalid value: [\"10.0.1.5\"]: failed to allocate IP 10.0.1.5: the provided network does not match the current range";
    let mut single = first.clone();
    single["ipFamilyPolicy"] = one.into();
    check_create(
        &[IPV4],
        &[
            (json!({}), Ok(single)),
            (json!({"ipFamilyPolicy": "PreferDualStack"}), Ok(first.clone())),
            (json!({"type": "LoadBalancer"}), Ok(first)),
            (json!({"clusterIP": "10.0.0.2"}), Ok(json!({"clusterIPs": ["10.0.0.2"], "ipFamilies": ["IPv4"]}))),
            (json!({"clusterIP": "10.0.0.5"}), Err(taken)),
            (json!({"clusterIP": "10.0.1.5"}), Err(other)),
            (json!({"clusterIP": "None"}), Ok(json!({"clusterIPs": ["None"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": one}))),
            // A headless service without a selector may have endpoints of both families.
            (
                json!({"clusterIP": "None", "selector": {}}),
                Ok(json!({"clusterIPs": ["None"], "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": both})),
            ),
            (
                json!({"clusterIP": "None", "selector": {}, "ipFamilyPolicy": one, "ipFamilies": ["IPv6"]}),
                Ok(json!({"ipFamilies": ["IPv6"]})),
            ),
            (
                json!({"type": "ExternalName", "externalName": "a.example"}),
                Ok(json!({"clusterIP": null, "clusterIPs": null, "ipFamilies": null, "ipFamilyPolicy": null})),
            ),
            (
                json!({"ipFamilyPolicy": both}),
                Err("spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services"),
            ),
            (
                json!({"ipFamilies": ["IPv6"]}),
                Err("spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster"),
            ),
            (
                json!({"clusterIP": "fd00::5"}),
                Err("spec.clusterIPs[0]: Invalid value: [\"fd00::5\"]: IPv6 is not configured on this cluster"),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn allocates_addresses_of_two_families() {
    let prefer = "PreferDualStack";
    check_create(
        &[IPV4, IPV6],
        &[
            (json!({}), Ok(json!({"clusterIPs": [FIRST], "ipFamilies": ["IPv4"]}))),
            (json!({"ipFamilies": ["IPv6"]}), Ok(json!({"clusterIP": FIRST_IPV6, "clusterIPs": [FIRST_IPV6]}))),
            (
                json!({"ipFamilyPolicy": prefer}),
                Ok(json!({"clusterIP": FIRST, "clusterIPs": [FIRST, FIRST_IPV6], "ipFamilies": ["IPv4", "IPv6"]})),
            ),
            (
                json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6"]}),
                Ok(json!({"clusterIP": FIRST_IPV6, "clusterIPs": [FIRST_IPV6, FIRST], "ipFamilies": ["IPv6", "IPv4"]})),
            ),
            (json!({"clusterIP": "fd00::5"}), Ok(json!({"ipFamilies": ["IPv6"]}))),
            (
                json!({"clusterIP": "fd00::5", "ipFamilyPolicy": prefer}),
                Ok(json!({"clusterIPs": ["fd00::5", FIRST], "ipFamilies": ["IPv6", "IPv4"]})),
            ),
            (
                json!({"clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.2", "fd00::5"]}),
                Err("spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified"),
            ),
            (
                json!({"ipFamilies": ["IPv4", "IPv6"]}),
                Err("spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"),
            ),
            (
                json!({"clusterIP": "fd00::5", "ipFamilies": ["IPv4"]}),
                Err("spec.clusterIPs[0]: Invalid value: \"fd00::5\": expected an IPv4 value as indicated by `ipFamilies[0]`"),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn allocates_node_ports() {
    let ports = |ports: Value| json!({"type": "NodePort", "ports": ports});
    let balanced = |fields: Value| {
        let mut spec = json!({"type": "LoadBalancer"});
        fields.as_object().into_iter().flatten().for_each(|(k, v)| spec[k] = v.clone());
        spec
    };
    let node_ports = |all: &[Value]| {
        all.iter()
            .map(|p| json!({"port": p[0], "protocol": p[1], "name": p[2], "nodePort": p[3], "targetPort": p[0]}))
            .collect::<Value>()
    };
    let taken = port("provided port is already allocated", 30_001);
    let range = port("provided port is not in the valid range. The range of valid ports is 30000-30031", 30_032);
    let dns = json!([{"port": 53, "name": "t", "protocol": "TCP"}, {"port": 53, "name": "u", "protocol": "UDP"}]);
    let mut requested = dns.clone();
    requested[1]["nodePort"] = 30_003.into();
    let both = |n: i64| node_ports(&[json!([53, "TCP", "t", n]), json!([53, "UDP", "u", n])]);
    let different = json!([{"port": 53, "name": "t", "protocol": "TCP", "nodePort": 30_002}, {"port": 53, "name": "u", "protocol": "UDP", "nodePort": 30_003}]);
    let different_ports = node_ports(&[json!([53, "TCP", "t", 30_002]), json!([53, "UDP", "u", 30_003])]);
    let one = |n: Value| json!([{"port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": n}]);
    let plain = json!([{"port": 80, "protocol": "TCP", "targetPort": 80}]);
    check_create(
        &[IPV4],
        &[
            (json!({}), Ok(json!({"ports": plain}))),
            (json!({"type": "NodePort"}), Ok(json!({"ports": one(json!(FIRST_PORT))}))),
            (json!({"type": "LoadBalancer"}), Ok(json!({"ports": one(json!(FIRST_PORT))}))),
            (balanced(json!({"allocateLoadBalancerNodePorts": false})), Ok(json!({"ports": plain}))),
            (
                balanced(json!({"allocateLoadBalancerNodePorts": false, "ports": [{"port": 80, "nodePort": 30_009}]})),
                Ok(json!({"ports": one(json!(30_009))})),
            ),
            (ports(json!([{"port": 80, "nodePort": 30_000}])), Ok(json!({"ports": one(json!(30_000))}))),
            (ports(json!([{"port": 80, "nodePort": 30_031}])), Ok(json!({"ports": one(json!(30_031))}))),
            (ports(json!([{"port": 80, "nodePort": 30_001}])), Err(&taken)),
            (ports(json!([{"port": 80, "nodePort": 30_032}])), Err(&range)),
            // Ports with one number and different protocols share a node port.
            (ports(dns), Ok(json!({"ports": both(FIRST_PORT)}))),
            (ports(requested), Ok(json!({"ports": both(30_003)}))),
            (ports(different), Ok(json!({"ports": different_ports}))),
            (
                ports(
                    json!([{"port": 1, "name": "a", "nodePort": 30_002}, {"port": 2, "name": "b", "nodePort": 30_002}]),
                ),
                Err("spec.ports[1].nodePort: Invalid value: 30002: provided port is already allocated"),
            ),
            (balanced(json!({"externalTrafficPolicy": "Local"})), Ok(json!({"healthCheckNodePort": FIRST_PORT + 1}))),
            (
                balanced(json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 30_007})),
                Ok(json!({"healthCheckNodePort": 30_007})),
            ),
            (
                balanced(json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 30_001})),
                Err("failed to allocate requested HealthCheck NodePort 30001: provided port is already allocated"),
            ),
            (balanced(json!({"externalTrafficPolicy": "Cluster"})), Ok(json!({"healthCheckNodePort": null}))),
        ],
    )
    .await;
}

/// Services before and after an update: the spec that is written, some fields of the result or the error, and the
/// addresses and node ports that are allocated afterwards.
#[tokio::test]
async fn updates_allocate_and_release() {
    let single = json!({});
    let dual = json!({"ipFamilyPolicy": "RequireDualStack"});
    let external = json!({"type": "ExternalName", "externalName": "a.example"});
    let node_port = json!({"type": "NodePort"});
    let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"});
    let headless = json!({"clusterIP": "None"});
    let none: &[i64] = &[];
    let port = |n: i64| json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": n}]});
    let duplicate = json!({"type": "NodePort", "ports": [{"port": 1, "name": "a", "nodePort": 30_003}, {"port": 2, "name": "b", "nodePort": 30_003}]});
    type Expected<'a> = Result<(Value, &'a [&'a str], &'a [i64]), &'a str>;
    let cases: Vec<(&Value, Value, Expected<'_>)> = vec![
        // What an update omits is kept.
        (&single, json!({}), Ok((json!({"clusterIP": FIRST, "ipFamilies": ["IPv4"]}), &[FIRST], none))),
        (&dual, json!({}), Ok((json!({"clusterIPs": [FIRST, FIRST_IPV6]}), &[FIRST, FIRST_IPV6], none))),
        (&node_port, json!({"type": "NodePort"}), Ok((json!({}), &[FIRST], &[FIRST_PORT]))),
        // A second family is added and released.
        (
            &single,
            json!({"ipFamilyPolicy": "PreferDualStack"}),
            Ok((
                json!({"clusterIPs": [FIRST, FIRST_IPV6], "ipFamilies": ["IPv4", "IPv6"]}),
                &[FIRST, FIRST_IPV6],
                none,
            )),
        ),
        (
            &dual,
            json!({"ipFamilyPolicy": "SingleStack", "clusterIPs": [FIRST, FIRST_IPV6], "clusterIP": FIRST, "ipFamilies": ["IPv4", "IPv6"]}),
            Ok((json!({"clusterIPs": [FIRST], "ipFamilies": ["IPv4"]}), &[FIRST], none)),
        ),
        (
            &dual,
            json!({"clusterIP": FIRST, "clusterIPs": [FIRST], "ipFamilies": ["IPv4", "IPv6"]}),
            Err("must be 'SingleStack' to release the secondary cluster IP"),
        ),
        (
            &dual,
            json!({"clusterIP": FIRST, "clusterIPs": [FIRST, FIRST_IPV6], "ipFamilies": ["IPv4"]}),
            Err("must be 'SingleStack' to release the secondary IP family"),
        ),
        // A headless service has no address to keep; validation then refuses the new one.
        (&headless, json!({"clusterIP": "10.0.0.7"}), Ok((json!({"clusterIPs": ["10.0.0.7"]}), &[], none))),
        // Types change.
        (
            &single,
            external.clone(),
            Ok((json!({"clusterIP": null, "clusterIPs": null, "ipFamilies": null}), &[], none)),
        ),
        (&dual, external.clone(), Ok((json!({"clusterIPs": null, "ipFamilyPolicy": null}), &[], none))),
        (&external, json!({}), Ok((json!({"clusterIPs": [FIRST], "ipFamilies": ["IPv4"]}), &[FIRST], none))),
        (&external, json!({"type": "NodePort"}), Ok((json!({"clusterIPs": [FIRST]}), &[FIRST], &[FIRST_PORT]))),
        (&single, json!({"type": "NodePort"}), Ok((json!({}), &[FIRST], &[FIRST_PORT]))),
        (&node_port, json!({}), Ok((json!({}), &[FIRST], none))),
        (&node_port, json!({"type": "LoadBalancer"}), Ok((json!({}), &[FIRST], &[FIRST_PORT]))),
        (&node_port, external.clone(), Ok((json!({}), &[], none))),
        (&local, json!({"type": "NodePort"}), Ok((json!({"healthCheckNodePort": null}), &[FIRST], &[FIRST_PORT]))),
        (
            &local,
            local.clone(),
            Ok((json!({"healthCheckNodePort": FIRST_PORT + 1}), &[FIRST], &[FIRST_PORT, FIRST_PORT + 1])),
        ),
        (
            &node_port,
            local.clone(),
            Ok((json!({"healthCheckNodePort": FIRST_PORT + 1}), &[FIRST], &[FIRST_PORT, FIRST_PORT + 1])),
        ),
        // Node ports change.
        (&node_port, port(30_003), Ok((json!({}), &[FIRST], &[30_003]))),
        (&node_port, port(FIRST_PORT), Ok((json!({}), &[FIRST], &[FIRST_PORT]))),
        (&node_port, port(30_001), Err("provided port is already allocated")),
        (&node_port, port(40_000), Err("provided port is not in the valid range")),
        (&node_port, duplicate, Err("duplicate nodePort: {TCP 30003}")),
    ];
    for (before, after, expected) in cases {
        let server = Server::new(&[IPV4, IPV6]).await;
        server
            .create(
                "other",
                json!({"type": "NodePort", "clusterIP": "10.0.0.5", "ports": [{"port": 1, "nodePort": 30_001}]}),
            )
            .await
            .expect("a service");
        let old = server.create("s", before.clone()).await.expect("a service");
        match (server.write("s", after.clone(), Some(&old)).await, expected) {
            (Ok(o), Ok((fields, addresses, ports))) => {
                for (field, value) in fields.as_object().into_iter().flatten() {
                    assert_eq!(&o.0["spec"][field], value, "{field} of {after} after {before}");
                }
                let mut expected = set(addresses);
                expected.insert("10.0.0.5".into());
                assert_eq!(server.addresses(), expected, "{after} after {before}");
                let mut expected = set(ports);
                expected.insert("30001".into());
                assert_eq!(server.node_ports(), expected, "{after} after {before}");
                // A deletion releases everything.
                let released = server.service.release(server.registry.env(), &o);
                server.commit(released).await;
                assert_eq!((server.addresses(), server.node_ports()), (set(&["10.0.0.5"]), set(&[30_001])), "{after}");
            }
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{after} after {before}: {error}"),
            (result, expected) => panic!("{after} after {before}: {result:?}, expected {expected:?}"),
        }
    }
}

#[tokio::test]
async fn reserved_addresses_and_ports_are_last() {
    let server = Server::new(&["10.0.0.0/29"]).await;
    let mut ips = Vec::new();
    for i in 0..6 {
        let o = server.create(&format!("s{i}"), json!({})).await.expect("a free address");
        ips.push(o.str_at(&["spec", "clusterIP"]).unwrap_or_default().to_owned());
    }
    assert_eq!(ips, ["10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    let full = server.create("s6", json!({})).await.expect_err("no free address");
    assert!(full.contains("failed to allocate a serviceIP: range is full"), "{full}");

    let mut server = Server::new(&[IPV4]).await;
    server.service.node_ports = 30_000..=30_016;
    let numbers: Value = (0..17).map(|i| json!({"name": format!("p{i}"), "port": i + 1})).collect();
    let o = server.create("s", json!({"type": "NodePort", "ports": numbers})).await.expect("free ports");
    let ports: Vec<i64> = list(&o, "ports").iter().filter_map(|p| p["nodePort"].as_i64()).collect();
    let expected: Vec<i64> = std::iter::once(30_016).chain(30_000..30_016).collect();
    assert_eq!(ports, expected);
    let full = server.create("t", json!({"type": "NodePort"})).await.expect_err("no free port");
    assert!(full.contains("failed to allocate a nodePort: range is full"), "{full}");
}

#[tokio::test]
async fn ranges_are_those_of_ready_service_cidrs() {
    let server = Server::new(&[IPV4]).await;
    let cidr = |cidrs: Value, ready: &str| {
        let conditions = json!([{"type": "Ready", "status": ready}]);
        Object::from_value(
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "c"},
            "spec": {"cidrs": cidrs}, "status": {"conditions": conditions}}),
        )
        .expect("an object")
    };
    let key = |name: &str| Key::new("networking.k8s.io/servicecidrs", "", name);
    server.commit(vec![put(key("a"), &cidr(json!(["10.1.0.0/24"]), "False"))]).await;
    let none = server.create("s", json!({})).await.expect_err("no range is ready");
    assert!(none.contains("range is full"), "{none}");
    let mut deleted = cidr(json!(["10.2.0.0/24"]), "True");
    deleted.set(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
    server
        .commit(vec![put(key("b"), &deleted), put(key("c"), &cidr(json!(["10.3.0.0/24", "fd00::/112"]), "True"))])
        .await;
    let o = server.create("s", json!({})).await.expect("a free address");
    assert_eq!(o.str_at(&["spec", "clusterIP"]), Some("10.3.0.16"));
    let unreadable = Op { key: key("d"), expect: Expect::Any, action: Action::Put("{".into()) };
    server.commit(vec![unreadable]).await;
    server.create("t", json!({})).await.expect_err("a ServiceCIDR that cannot be decoded");
}

/// A data directory of a version without port records: services hold ports that no record shows.
#[tokio::test]
async fn the_first_allocation_records_all_ports() {
    let server = Server::new(&[IPV4]).await;
    let old = server.object("old", &json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": FIRST_PORT}]}));
    server.commit(vec![put(Key::new("services", "n", "old"), &old)]).await;
    assert!(node_ports::reads(server.registry.env()) > 0);
    let checks = |ops: &[Op]| ops.iter().any(|op| matches!(op.action, Action::Check));
    assert!(checks(&server.service.release(server.registry.env(), &old)));
    server.create("s", json!({"type": "NodePort"})).await.expect("a free port");
    assert_eq!(server.node_ports(), set(&[FIRST_PORT, FIRST_PORT + 1]));
    assert_eq!(node_ports::reads(server.registry.env()), 0);
    assert!(!checks(&server.service.release(server.registry.env(), &old)));
}

#[tokio::test]
async fn addresses_name_their_service() {
    let server = Server::new(&[IPV4]).await;
    server.create("s", json!({})).await.expect("a service");
    let snapshot = server.registry.store.snapshot();
    let entry = snapshot.get(&Key::new("networking.k8s.io/ipaddresses", "", FIRST)).expect("an address");
    let address: Object = encode::decode(&entry).expect("an object");
    assert_eq!(
        address.0["spec"]["parentRef"],
        json!({"group": "", "resource": "services", "namespace": "n", "name": "s"})
    );
    let labels = json!({"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
    assert_eq!(address.0["metadata"]["labels"], labels);
}

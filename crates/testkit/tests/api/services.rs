//! Addresses, families and ports of services: allocation, release and validation.

use serde_json::{Value, json};
use store::{Action, Expect, Op};
use testkit::{Access, Cluster};

const SERVICES: &str = "/api/v1/namespaces/golden/services";

async fn cluster(ranges: &[&str]) -> Cluster {
    let ranges = ranges.iter().map(|r| r.parse().unwrap()).collect();
    Cluster::with_access(1, Access { ranges, ..Access::default() }).await
}

const BOTH: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];

fn service(name: &str, spec: Value) -> Value {
    let mut o = json!({"metadata": {"name": name}, "spec": {"ports": [{"name": "a", "port": 80}]}});
    for (k, v) in spec.as_object().unwrap() {
        o["spec"][k] = v.clone();
    }
    o
}

async fn make(c: &Cluster, name: &str, spec: Value) -> Value {
    let a = c.call("POST", SERVICES, service(name, spec)).await;
    assert_eq!(a.code, 201, "{}", a.body);
    a.body["spec"].clone()
}

async fn refused(c: &Cluster, spec: Value, want: &str) {
    let a = c.call("POST", SERVICES, service("refused", spec)).await;
    let code = if want.starts_with("Internal") { 500 } else { 422 };
    assert_eq!((a.code, text(&a.body)), (code, want.replace("NAME", "Service \"refused\" is invalid")), "{}", a.body);
}

fn text(v: &Value) -> String {
    v["message"].as_str().unwrap_or_default().to_owned()
}

/// A merge patch; what becomes of the spec, or what is wrong.
async fn patch(c: &Cluster, name: &str, spec: Value) -> Result<Value, String> {
    let body = json!({"spec": spec}).to_string();
    let path = format!("{SERVICES}/{name}");
    let a = c.send("PATCH", &path, Some("application/merge-patch+json"), "application/json", body.into()).await;
    if a.code == 200 { Ok(a.body["spec"].clone()) } else { Err(text(&a.body)) }
}

/// The addresses that services hold, sorted.
async fn held(c: &Cluster) -> Vec<String> {
    let list = c.call("GET", "/apis/networking.k8s.io/v1/ipaddresses", Value::Null).await.body;
    let mut all: Vec<String> =
        list["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].as_str().unwrap().to_owned()).collect();
    all.sort();
    all
}

fn families(spec: &Value) -> (Value, Value) {
    (spec["ipFamilyPolicy"].clone(), spec["ipFamilies"].clone())
}

#[tokio::test]
async fn single_stack_clusters_reject_dual_stack() {
    let c = cluster(&["10.96.0.0/16"]).await;
    refused(
        &c,
        json!({"ipFamilyPolicy": "RequireDualStack"}),
        "NAME: spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
    )
    .await;
    refused(
        &c,
        json!({"ipFamilies": ["IPv6"]}),
        "NAME: spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
    )
    .await;
    refused(
        &c,
        json!({"clusterIP": "fd00::5"}),
        "NAME: spec.clusterIPs[0]: Invalid value: [\"fd00::5\"]: IPv6 is not configured on this cluster",
    )
    .await;
    refused(
        &c,
        json!({"ipFamilies": ["IPv4", "IPv6"]}),
        "NAME: spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
    )
    .await;
    // What is wrong with addresses is all that is told: the port is looked at later.
    refused(
        &c,
        json!({"clusterIPs": ["10.96.0.9"], "ports": [{"port": 0}]}),
        "NAME: spec.clusterIPs: Invalid value: [\"10.96.0.9\"]: must be empty when `clusterIP` is not specified",
    )
    .await;
    let preferred = make(&c, "preferred", json!({"ipFamilyPolicy": "PreferDualStack"})).await;
    assert_eq!(families(&preferred), (json!("PreferDualStack"), json!(["IPv4"])));
    let headless = make(&c, "headless", json!({"clusterIP": "None"})).await;
    assert_eq!(families(&headless), (json!("RequireDualStack"), json!(["IPv4", "IPv6"])), "somebody else's endpoints");
    let selects = make(&c, "selects", json!({"clusterIP": "None", "selector": {"a": "b"}})).await;
    assert_eq!(families(&selects), (json!("SingleStack"), json!(["IPv4"])));
}

#[tokio::test]
async fn services_of_two_families_have_an_address_of_each() {
    let c = cluster(&BOTH).await;
    let two = make(&c, "two", json!({"ipFamilyPolicy": "RequireDualStack"})).await;
    assert_eq!(two["ipFamilies"], json!(["IPv4", "IPv6"]));
    let ips: Vec<&str> = two["clusterIPs"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
    assert!(ips[0].starts_with("10.96.") && ips[1].starts_with("fd00:10:96::") && two["clusterIP"] == ips[0], "{two}");
    let six = make(&c, "six", json!({"ipFamilies": ["IPv6"], "ipFamilyPolicy": "PreferDualStack"})).await;
    assert_eq!(six["ipFamilies"], json!(["IPv6", "IPv4"]));
    assert!(six["clusterIP"].as_str().unwrap().starts_with("fd00:10:96::"));
    let named = json!({"clusterIP": "fd00:10:96::5", "clusterIPs": ["fd00:10:96::5"]});
    assert_eq!(families(&make(&c, "named", named).await), (json!("SingleStack"), json!(["IPv6"])));
    refused(
        &c,
        json!({"clusterIP": "FD00:10:96:0::5"}),
        "NAME: spec.clusterIPs: Invalid value: [\"FD00:10:96:0::5\"]: failed to allocate IP FD00:10:96:0::5: provided IP is already allocated",
    )
    .await;
    let labels = c.call("GET", "/apis/networking.k8s.io/v1/ipaddresses/fd00:10:96::5", Value::Null).await.body;
    assert_eq!(labels["metadata"]["labels"]["ipaddress.kubernetes.io/ip-family"], "IPv6");
    assert_eq!(held(&c).await.len(), 5);
    for name in ["two", "six", "named"] {
        assert_eq!(c.call("DELETE", &format!("{SERVICES}/{name}"), Value::Null).await.code, 200);
    }
    assert!(held(&c).await.is_empty());
}

#[tokio::test]
async fn the_first_range_determines_the_default_family() {
    let c = cluster(&["fd00:10:96::/64", "10.96.0.0/16"]).await;
    let plain = make(&c, "plain", json!({})).await;
    assert_eq!(families(&plain), (json!("SingleStack"), json!(["IPv6"])));
    assert!(plain["clusterIP"].as_str().unwrap().starts_with("fd00:10:96:"), "{plain}");
}

#[tokio::test]
async fn a_second_family_comes_and_goes() {
    let c = cluster(&BOTH).await;
    let first = make(&c, "s", json!({})).await;
    let up = patch(&c, "s", json!({"ipFamilyPolicy": "PreferDualStack"})).await.unwrap();
    assert_eq!((&up["ipFamilies"], &up["clusterIPs"][0]), (&json!(["IPv4", "IPv6"]), &first["clusterIP"]));
    assert_eq!(held(&c).await.len(), 2);
    let why = patch(&c, "s", json!({"ipFamilies": ["IPv4"]})).await.unwrap_err();
    assert!(why.contains("must be 'SingleStack' to release the secondary IP family"), "{why}");
    let down = patch(&c, "s", json!({"ipFamilyPolicy": "SingleStack"})).await.unwrap();
    assert_eq!((&down["ipFamilies"], &down["clusterIPs"]), (&json!(["IPv4"]), &json!([first["clusterIP"]])));
    assert_eq!(held(&c).await, [first["clusterIP"].as_str().unwrap()]);
    let why = patch(&c, "s", json!({"ipFamilies": ["IPv6"]})).await.unwrap_err();
    assert!(why.contains("expected an IPv6 value as indicated by `ipFamilies[0]`"), "{why}");
}

#[tokio::test]
async fn fields_of_the_old_type_are_cleared() {
    let c = cluster(&BOTH).await;
    let spec = json!({"type": "LoadBalancer", "ipFamilyPolicy": "RequireDualStack", "externalTrafficPolicy": "Local"});
    let balanced = make(&c, "s", spec.clone()).await;
    let (port, check) = (balanced["ports"][0]["nodePort"].clone(), balanced["healthCheckNodePort"].clone());
    assert!(port.as_i64().is_some_and(|n| n >= 30000) && check.as_i64().is_some_and(|n| n >= 30000) && port != check);
    let kept =
        patch(&c, "s", json!({"ports": [{"name": "a", "port": 81}], "healthCheckNodePort": null})).await.unwrap();
    assert_eq!((&kept["ports"][0]["nodePort"], &kept["healthCheckNodePort"]), (&port, &check));
    let why = patch(&c, "s", json!({"healthCheckNodePort": 32000})).await.unwrap_err();
    assert!(why.contains("spec.healthCheckNodePort: Forbidden: field is immutable"), "{why}");
    // The ports are another's as soon as they are free.
    let plain = patch(&c, "s", json!({"externalTrafficPolicy": "Cluster"})).await.unwrap();
    assert_eq!(plain["healthCheckNodePort"], Value::Null);
    let other = json!({"type": "NodePort", "ports": [{"name": "a", "port": 80, "nodePort": check}]});
    make(&c, "other", other).await;
    refused(
        &c,
        json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}),
        &format!("NAME: spec.ports[0].nodePort: Invalid value: {port}: provided port is already allocated"),
    )
    .await;
    let external = patch(&c, "s", json!({"type": "ExternalName", "externalName": "a.example.com"})).await.unwrap();
    for gone in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "externalTrafficPolicy"] {
        assert_eq!(external[gone], Value::Null, "{gone} {external}");
    }
    assert_eq!(external["ports"][0]["nodePort"], Value::Null);
    assert_eq!(external["allocateLoadBalancerNodePorts"], Value::Null);
    assert_eq!(held(&c).await.len(), 1, "the other's");
    make(&c, "third", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]})).await;
    let back = patch(&c, "s", json!({"type": "ClusterIP", "externalName": null})).await.unwrap();
    assert_eq!(families(&back), (json!("SingleStack"), json!(["IPv4"])));
    assert!(back["clusterIP"].is_string() && back["clusterIPs"].as_array().unwrap().len() == 1);
}

#[tokio::test]
async fn ports_of_nodes_are_shared_between_protocols_and_limited() {
    let c = cluster(&BOTH).await;
    let ports =
        json!([{"name": "t", "port": 53}, {"name": "u", "port": 53, "protocol": "UDP"}, {"name": "o", "port": 54}]);
    let s = make(&c, "dns", json!({"type": "NodePort", "ports": ports})).await;
    assert_eq!(s["ports"][0]["nodePort"], s["ports"][1]["nodePort"]);
    assert_ne!(s["ports"][0]["nodePort"], s["ports"][2]["nodePort"]);
    refused(
        &c,
        json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]}),
        "NAME: spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767",
    )
    .await;
    refused(
        &c,
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 80}),
        "Internal error occurred: failed to allocate requested HealthCheck NodePort 80: provided port is not in the valid range. The range of valid ports is 30000-32767",
    )
    .await;
    let spec = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false,
        "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81, "nodePort": 30100}]});
    let given = make(&c, "given", spec).await;
    assert_eq!((&given["ports"][0]["nodePort"], &given["ports"][1]["nodePort"]), (&Value::Null, &json!(30100)));
    let given = patch(&c, "given", json!({"allocateLoadBalancerNodePorts": true})).await.unwrap();
    assert!(given["ports"][0]["nodePort"].is_i64() && given["ports"][1]["nodePort"] == 30100);
    let why = patch(
        &c,
        "given",
        json!({"ports": [{"name": "a", "port": 80, "nodePort": 30100},
        {"name": "b", "port": 81, "nodePort": 30100}]}),
    );
    assert_eq!(why.await.unwrap_err(), "duplicate nodePort: {TCP 30100}");
}

#[tokio::test]
async fn concurrent_requests_never_share_a_node_port() {
    let c = cluster(&BOTH).await;
    for round in 0..8 {
        let spec = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30200 + round}]});
        let (a, b) = (service(&format!("a{round}"), spec.clone()), service(&format!("b{round}"), spec));
        let (a, b) = tokio::join!(c.call("POST", SERVICES, a), c.call("POST", SERVICES, b));
        let mut codes = [a.code, b.code];
        codes.sort_unstable();
        assert_eq!(codes, [201, 422], "{} {}", a.body, b.body);
    }
}

/// Takes the records of ports away, as if the store were of a time that did not have them.
async fn forget_ports(c: &Cluster) -> usize {
    let store = &c.server.registry.store;
    let kind = registry::row::internal_key("servicenodeports", "").resource;
    let all: Vec<Op> = store
        .snapshot()
        .range(&kind, None, None)
        .map(|e| Op { key: e.key.clone(), expect: Expect::Any, action: Action::Delete })
        .collect();
    let n = all.len();
    store.commit(all).await.unwrap();
    n
}

/// Data of a release that kept no records of ports: they are made with the first service that wants one.
#[tokio::test]
async fn node_ports_of_older_data_stay_allocated() {
    let c = Cluster::start(1).await;
    let with = |port: u16| json!({"type": "NodePort", "ports": [{"name": "a", "port": 80, "nodePort": port}]});
    make(&c, "first", with(30100)).await;
    make(&c, "second", with(30200)).await;
    assert_eq!(forget_ports(&c).await, 3, "two ports, and that these are all");
    let taken = "NAME: spec.ports[0].nodePort: Invalid value: 30100: provided port is already allocated";
    refused(&c, with(30100), taken).await;
    // Two at once: one of them makes the records, and no port is lost or given away twice.
    let (a, b) = tokio::join!(
        c.call("POST", SERVICES, service("a", with(30300))),
        c.call("POST", SERVICES, service("b", with(30400)))
    );
    assert_eq!((a.code, b.code), (201, 201), "{} {}", a.body, b.body);
    refused(&c, with(30100), taken).await;
    refused(&c, with(30400), &taken.replace("30100", "30400")).await;
    assert_eq!(forget_ports(&c).await, 5);
    // A service goes before there are records again: its port is free, the others' are not.
    assert_eq!(c.call("DELETE", &format!("{SERVICES}/first"), Value::Null).await.code, 200);
    make(&c, "third", with(30100)).await;
    refused(&c, with(30200), &taken.replace("30100", "30200")).await;
    // And one that changes its port.
    assert_eq!(forget_ports(&c).await, 5);
    patch(&c, "second", with(30500)).await.unwrap();
    make(&c, "fourth", with(30200)).await;
    refused(&c, with(30500), &taken.replace("30100", "30500")).await;
}

#[tokio::test]
async fn a_dry_run_allocates_nothing() {
    let c = cluster(&BOTH).await;
    let spec = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30300}]});
    for _ in 0..2 {
        let a = c.call("POST", &format!("{SERVICES}?dryRun=All"), service("s", spec.clone())).await;
        assert!(a.code == 201 && a.body["spec"]["clusterIP"].is_string(), "{}", a.body);
    }
    assert!(held(&c).await.is_empty());
    make(&c, "s", spec).await;
}

/// What a load balancer writes of its addresses says how they are used.
#[tokio::test]
async fn addresses_of_load_balancers_have_a_mode() {
    let c = Cluster::start(1).await;
    let path = "/api/v1/namespaces/default/services";
    for (name, kind, want) in [("lb", "LoadBalancer", json!("VIP")), ("own", "ClusterIP", Value::Null)] {
        let service = json!({"metadata": {"name": name}, "spec": {"type": kind, "ports": [{"port": 80}]}});
        assert_eq!(c.call("POST", path, service).await.code, 201);
        let status =
            json!({"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}, {"hostname": "h.example"}]}}});
        let at = format!("{path}/{name}/status");
        let media = Some("application/merge-patch+json");
        let a = c.send("PATCH", &at, media, "application/json", status.to_string().into()).await;
        let ingress = &a.body["status"]["loadBalancer"]["ingress"];
        assert_eq!(a.code, if kind == "LoadBalancer" { 200 } else { 422 }, "{}", a.body);
        assert_eq!((&ingress[0]["ipMode"], &ingress[1]["ipMode"]), (&want, &Value::Null));
    }
    let proxied = json!({"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1", "ipMode": "Proxy"}]}}});
    let at = format!("{path}/lb/status");
    let a = c
        .send("PATCH", &at, Some("application/merge-patch+json"), "application/json", proxied.to_string().into())
        .await;
    assert_eq!(a.body["status"]["loadBalancer"]["ingress"][0]["ipMode"], "Proxy");
}

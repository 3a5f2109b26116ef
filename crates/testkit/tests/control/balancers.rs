//! Addresses of load balancers, from ranges with two of IPv4 and three of IPv6.

use super::harness::Plane;
use meta::Value;
use serde_json::{Value as Json, json};
use testkit::{Access, Cluster};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

async fn get(p: &Plane, name: &str) -> Json {
    p.cluster.call("GET", &format!("{SERVICES}/{name}"), Value::Null).await.body
}

async fn create(p: &Plane, name: &str, spec: Json) {
    let mut service = json!({"metadata": {"name": name}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
    for (key, value) in spec.as_object().unwrap() {
        service["spec"][key] = value.clone();
    }
    let answer = p.cluster.call("POST", SERVICES, service).await;
    assert_eq!(answer.code, 201, "{}", answer.body);
}

/// Waits until the service has these addresses, separated by a space; without one: until its status is empty.
async fn address(p: &Plane, name: &str, expect: &str) -> Json {
    p.until(&format!("{name} to have {expect:?}"), async || {
        let service = get(p, name).await;
        let ingress = &service["status"]["loadBalancer"]["ingress"];
        let all: Vec<Json> = expect.split_whitespace().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
        let is_so = if all.is_empty() { ingress.is_null() } else { *ingress == json!(all) };
        is_so.then_some(service)
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn services_get_addresses_and_release_them() {
    let p = Plane::start().await;
    create(&p, "a", json!({})).await;
    let a = address(&p, "a", "10.97.0.1").await;
    assert_eq!(a["metadata"]["finalizers"], json!([FINALIZER]));
    p.reported("EnsuringLoadBalancer", "Ensuring load balancer").await;
    p.reported("EnsuredLoadBalancer", "Ensured load balancer").await;
    create(&p, "b", json!({"loadBalancerIP": "10.97.0.2"})).await;
    address(&p, "b", "10.97.0.2").await;

    // No address is left, until a service does not need its own any more.
    create(&p, "c", json!({})).await;
    let none = "Error syncing load balancer: failed to ensure load balancer: no address is free in 10.97.0.0/30";
    p.reported("SyncLoadBalancerFailed", none).await;
    create(&p, "d", json!({"loadBalancerClass": "example.com/other"})).await;
    let patched = p.patch("services", "a", json!({"spec": {"type": "ClusterIP"}})).await;
    assert_eq!(patched.name(), "a");
    address(&p, "a", "").await;
    p.until("the finalizer to go", async || get(&p, "a").await["metadata"]["finalizers"].is_null().then_some(())).await;
    p.reported("DeletingLoadBalancer", "Deleting load balancer").await;
    p.reported("DeletedLoadBalancer", "Deleted load balancer").await;
    address(&p, "c", "10.97.0.1").await;
    let d = get(&p, "d").await;
    assert!(d["status"]["loadBalancer"]["ingress"].is_null() && d["metadata"]["finalizers"].is_null(), "{d}");

    // An address that is removed or changed comes again; a deleted service goes with its load balancer.
    let lost = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.97.0.2"}]}}});
    p.cluster.call("PATCH", &format!("{SERVICES}/c/status"), lost).await;
    address(&p, "c", "10.97.0.1").await;
    let deleted = p.cluster.call("DELETE", &format!("{SERVICES}/b"), Value::Null).await;
    assert_eq!(deleted.code, 200);
    p.until("b to go", async || (get(&p, "b").await["code"] == 404).then_some(())).await;
    create(&p, "e", json!({})).await;
    address(&p, "e", "10.97.0.2").await;
}

/// Services of both families have an address of each, and wait until they can have all.
#[tokio::test(start_paused = true)]
async fn services_get_an_address_of_each_family() {
    let ranges = ["10.96.0.0/16", "fd00:96::/112"].map(|r| r.parse().unwrap()).into();
    let p = Plane::over(Cluster::with_access(7, Access { ranges, ..Access::default() }).await).await;
    let range = json!({"metadata": {"name": "both"}, "spec": {"cidrs": ["10.96.0.0/16", "fd00:96::/112"]}});
    let made = p.cluster.call("POST", "/apis/networking.k8s.io/v1/servicecidrs", range).await;
    assert_eq!(made.code, 201, "{}", made.body);
    create(&p, "a", json!({"ipFamilyPolicy": "RequireDualStack"})).await;
    address(&p, "a", "10.97.0.1 fd00:97::1").await;
    create(&p, "b", json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]})).await;
    address(&p, "b", "fd00:97::2 10.97.0.2").await;
    let named = json!({"ipFamilies": ["IPv6"], "loadBalancerIP": "fd00:97::3"});
    create(&p, "four", json!({"loadBalancerIP": "fd00:97::3"})).await;
    let why = "Error syncing load balancer: failed to ensure load balancer: the address fd00:97::3 is not of a family of the service";
    p.reported("SyncLoadBalancerFailed", why).await;
    create(&p, "c", named).await;
    address(&p, "c", "fd00:97::3").await;
    p.cluster.call("DELETE", &format!("{SERVICES}/four"), Value::Null).await;

    // One address of IPv6 is not enough.
    create(&p, "d", json!({"ipFamilyPolicy": "PreferDualStack"})).await;
    let none = "Error syncing load balancer: failed to ensure load balancer: no address is free in 10.97.0.0/30";
    p.reported("SyncLoadBalancerFailed", none).await;
    p.patch(
        "services",
        "b",
        json!({"spec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"], "clusterIPs": null}}),
    )
    .await;
    address(&p, "b", "fd00:97::2").await;
    create(&p, "e", json!({})).await;
    address(&p, "e", "10.97.0.2").await;
    p.cluster.call("DELETE", &format!("{SERVICES}/a"), Value::Null).await;
    address(&p, "d", "10.97.0.1 fd00:97::1").await;
    create(&p, "f", json!({"ipFamilies": ["IPv6"]})).await;
    let none = "Error syncing load balancer: failed to ensure load balancer: no address is free in fd00:97::/126";
    p.reported("SyncLoadBalancerFailed", none).await;
    // A service of one family gets its second address later.
    p.cluster.call("DELETE", &format!("{SERVICES}/c"), Value::Null).await;
    address(&p, "f", "fd00:97::3").await;
    p.cluster.call("DELETE", &format!("{SERVICES}/f"), Value::Null).await;
    p.patch("services", "e", json!({"spec": {"ipFamilyPolicy": "RequireDualStack"}})).await;
    address(&p, "e", "10.97.0.2 fd00:97::3").await;
}

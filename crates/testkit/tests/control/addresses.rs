//! Service address ranges, and the addresses in them.

use super::harness::Plane;
use meta::Value;
use serde_json::{Value as Json, json};
use std::time::Duration;

const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";

async fn call(p: &Plane, code: u16, method: &str, path: &str, body: Json) -> Json {
    let a = p.cluster.call(method, path, body).await;
    assert_eq!(a.code, code, "{method} {path}: {}", a.body);
    a.body
}

async fn get(p: &Plane, path: &str) -> Option<Json> {
    let a = p.cluster.call("GET", path, Value::Null).await;
    (a.code == 200).then_some(a.body)
}

fn range(name: &str, cidr: &str) -> Json {
    json!({"metadata": {"name": name}, "spec": {"cidrs": [cidr]}})
}

fn service(name: &str, ip: Option<&str>) -> Json {
    json!({"metadata": {"name": name}, "spec": {"clusterIP": ip, "ports": [{"port": 80}]}})
}

/// Waits for the condition `Ready`: its status, reason and message.
async fn condition(p: &Plane, name: &str, want: [&str; 3]) -> Json {
    p.until(&format!("{name} to be {want:?}"), async || {
        let range = get(p, &format!("{RANGES}/{name}")).await?;
        let c = range["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == "Ready")?.clone();
        (["status", "reason", "message"].map(|k| c[k].as_str().unwrap_or_default()) == want).then_some(range)
    })
    .await
}

const READY: [&str; 3] = ["True", "", "Kubernetes Service CIDR is ready"];
const IN_USE: [&str; 3] = [
    "False",
    "Terminating",
    "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR",
];

async fn gone(p: &Plane, path: &str) {
    p.until(&format!("{path} to go"), async || get(p, path).await.is_none().then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn services_get_addresses_of_ranges_that_are_not_deleted() {
    let p = Plane::start().await;
    let first = condition(&p, "kubernetes", READY).await;
    assert_eq!(
        (&first["spec"]["cidrs"], &first["metadata"]["finalizers"]),
        (&json!(["10.96.0.0/16"]), &json!([FINALIZER]))
    );
    let refused = async |name: &str, ip: &str| {
        let a = call(&p, 422, "POST", SERVICES, service(name, Some(ip))).await;
        let why = format!("failed to allocate IP {ip}: the provided network does not match the current range");
        assert!(a["message"].as_str().unwrap().contains(&why), "{a}");
    };
    refused("a", "10.200.0.3").await;
    call(&p, 201, "POST", RANGES, range("more", "10.200.0.0/28")).await;
    condition(&p, "more", READY).await;
    call(&p, 201, "POST", SERVICES, service("a", Some("10.200.0.3"))).await;
    let twice = call(&p, 422, "POST", SERVICES, service("b", Some("10.200.0.3"))).await;
    assert!(
        twice["message"]
            .as_str()
            .unwrap()
            .contains("failed to allocate IP 10.200.0.3: provided IP is already allocated")
    );
    refused("b", "10.200.0.15").await;
    // While the first range goes, the other is all there is.
    call(&p, 200, "DELETE", &format!("{RANGES}/kubernetes"), Json::Null).await;
    for n in 0..13 {
        let made = call(&p, 201, "POST", SERVICES, service(&format!("n{n}"), None)).await;
        let ip = made["spec"]["clusterIP"].as_str().unwrap().to_owned();
        assert!(ip.starts_with("10.200.0."), "{ip}");
    }
    let full = call(&p, 500, "POST", SERVICES, service("full", None)).await;
    assert!(full["message"].as_str().unwrap().contains("failed to allocate a serviceIP: range is full"), "{full}");
    // Nobody had an address of it: it goes, and is made again.
    let uid = first["metadata"]["uid"].clone();
    p.until("the first range to be new", async || {
        get(&p, &format!("{RANGES}/kubernetes")).await.filter(|r| r["metadata"]["uid"] != uid)
    })
    .await;
    condition(&p, "kubernetes", READY).await;
    assert_eq!(
        call(&p, 201, "POST", SERVICES, service("late", None)).await["spec"]["clusterIP"].as_str().unwrap()[..6],
        *"10.96."
    );
}

#[tokio::test(start_paused = true)]
async fn a_range_stays_until_its_addresses_are_free_or_in_another() {
    let p = Plane::start().await;
    condition(&p, "kubernetes", READY).await;
    for (name, cidr) in [("used", "10.200.0.0/28"), ("unused", "10.201.0.0/28")] {
        call(&p, 201, "POST", RANGES, range(name, cidr)).await;
        condition(&p, name, READY).await;
    }
    call(&p, 201, "POST", SERVICES, service("a", Some("10.200.0.3"))).await;
    for name in ["used", "unused"] {
        call(&p, 200, "DELETE", &format!("{RANGES}/{name}"), Json::Null).await;
    }
    let begun = tokio::time::Instant::now();
    gone(&p, &format!("{RANGES}/unused")).await;
    assert!(begun.elapsed() >= Duration::from_secs(9), "every server is to know of it first");
    condition(&p, "used", IN_USE).await;
    let a = call(&p, 422, "POST", SERVICES, service("b", Some("10.200.0.4"))).await;
    assert!(a["message"].as_str().unwrap().contains("does not match the current range"), "{a}");
    // Another range with that address sets it free.
    call(&p, 201, "POST", RANGES, range("wider", "10.200.0.0/24")).await;
    gone(&p, &format!("{RANGES}/used")).await;
    call(&p, 200, "DELETE", &format!("{RANGES}/wider"), Json::Null).await;
    condition(&p, "wider", IN_USE).await;
    call(&p, 200, "DELETE", &format!("{SERVICES}/a"), Json::Null).await;
    gone(&p, &format!("{RANGES}/wider")).await;
}

#[tokio::test(start_paused = true)]
async fn addresses_are_repaired() {
    let p = Plane::start().await;
    condition(&p, "kubernetes", READY).await;
    call(&p, 201, "POST", SERVICES, service("a", Some("10.96.0.9"))).await;
    let whose =
        async |ip: &str| get(&p, &format!("{ADDRESSES}/{ip}")).await.map(|a| a["spec"]["parentRef"]["name"].clone());
    let expect_event = async |reason: &str, message: &str| {
        p.until(message, async || {
            let all = p.list("events").await;
            all.iter()
                .any(|e| e.str_at(&["reason"]) == Some(reason) && e.str_at(&["message"]) == Some(message))
                .then_some(())
        })
        .await;
    };
    call(&p, 200, "DELETE", &format!("{ADDRESSES}/10.96.0.9"), Json::Null).await;
    p.until("the address to be back", async || whose("10.96.0.9").await.filter(|n| n == "a")).await;
    expect_event("ClusterIPNotAllocated", "Cluster IP [IPv4]: 10.96.0.9 is not allocated; repairing").await;
    let address = |ip: &str, name: &str, labels: Json| {
        json!({"metadata": {"name": ip, "labels": labels},
            "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "default", "name": name}}})
    };
    let labels = json!({"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
    for (ip, name, labels) in [
        ("10.96.0.20", "a", &labels),
        ("10.96.0.21", "nobody", &labels),
        ("10.96.0.22", "nobody", &json!({"ipaddress.kubernetes.io/managed-by": "somebody"})),
    ] {
        call(&p, 201, "POST", ADDRESSES, address(ip, name, labels.clone())).await;
    }
    gone(&p, &format!("{ADDRESSES}/10.96.0.20")).await;
    expect_event(
        "IPAddressWrongReference",
        "IPAddress: 10.96.0.20 for Service default/a has a wrong reference; cleaning up",
    )
    .await;
    assert_eq!(whose("10.96.0.21").await, Some("nobody".into()), "its service may be on the way");
    gone(&p, &format!("{ADDRESSES}/10.96.0.21")).await;
    expect_event(
        "IPAddressNotAllocated",
        "IPAddress: 10.96.0.21 for Service default/nobody appears to have leaked: cleaning up",
    )
    .await;
    assert!(whose("10.96.0.22").await.is_some(), "what others manage is theirs");
    // What says that it is somebody else's is made anew.
    let other = json!({"metadata": {"labels": {"ipaddress.kubernetes.io/managed-by": "me"}}}).to_string();
    let path = format!("{ADDRESSES}/10.96.0.9");
    p.cluster.send("PATCH", &path, Some("application/merge-patch+json"), "application/json", other.into()).await;
    p.until("the label to be right", async || {
        let a = get(&p, &path).await?;
        (a["metadata"]["labels"] == labels).then_some(())
    })
    .await;
    call(&p, 200, "DELETE", &format!("{SERVICES}/a"), Json::Null).await;
    gone(&p, &path).await;
}

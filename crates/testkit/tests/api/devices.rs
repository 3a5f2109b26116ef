//! Validation of devices and claims.

use serde_json::{Value, json};
use testkit::Cluster;

const GROUP: &str = "/apis/resource.k8s.io/v1";

/// Where in the body, what is there instead, and the fields that are wrong then.
pub type Case = (&'static str, Value, &'static [&'static str]);

fn put(body: &Value, pointer: &str, v: Value) -> Value {
    let mut body = body.clone();
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    match body.pointer_mut(parent).unwrap() {
        Value::Array(a) => a[last.parse::<usize>().unwrap()] = v,
        parent => parent[last] = v,
    }
    body
}

/// Sends the body with each change, and compares the fields that the answer blames.
pub async fn check(c: &Cluster, method: &str, path: &str, body: &Value, cases: Vec<Case>) {
    let path = format!("{path}?dryRun=All");
    let a = c.call(method, &path, body.clone()).await;
    assert!(a.code == 200 || a.code == 201, "{path} {}", a.body);
    for (at, v, want) in cases {
        let a = c.call(method, &path, put(body, at, v.clone())).await;
        let causes = a.body["details"]["causes"].as_array().cloned().unwrap_or_default();
        let mut found: Vec<&str> = causes.iter().filter_map(|c| c["field"].as_str()).collect();
        found.sort_unstable();
        assert_eq!(found, want, "{at} {v}: {}", a.body);
    }
}

fn slice() -> Value {
    json!({"metadata": {"name": "s"}, "spec": {"driver": "d.Example.com", "nodeName": "n",
        "pool": {"name": "p/q", "resourceSliceCount": 1}, "devices": [
            {"name": "one", "attributes": {"model": {"string": "m"}, "d.example.com/v": {"version": "1.2.3-a.1+b"}},
             "capacity": {"memory": {"value": "8Gi"}}}]}})
}

#[tokio::test]
async fn slices_are_validated() {
    let c = Cluster::start(1).await;
    assert!(c.server.registry.features.set(["DRAListTypeAttributes".to_owned()].into()).is_ok());
    let many = |n: usize| Value::from((0..n).map(|i| json!({"name": format!("d{i}")})).collect::<Vec<_>>());
    let policy = |p: Value| json!({"m": {"value": "8", "requestPolicy": p}});
    let shared = put(&slice(), "/spec/devices/0/allowMultipleAllocations", true.into());
    let listed = |n: usize| json!({"a": {"ints": vec![1; n]}});
    let crowd = |n: usize| {
        let plain = (1..n).map(|i| json!({"name": format!("d{i}")}));
        plain.chain([json!({"name": "d0", "attributes": listed(1)})]).collect::<Value>()
    };
    let cases: Vec<Case> = vec![
        ("/spec/driver", json!(""), &["spec.driver"]),
        ("/spec/driver", json!("a_b"), &["spec.driver"]),
        (
            "/spec/pool",
            json!({"name": "a//b", "resourceSliceCount": 0, "generation": -1}),
            &["spec.pool.generation", "spec.pool.name", "spec.pool.resourceSliceCount"],
        ),
        ("/spec/nodeName", json!(""), &["spec", "spec.nodeName"]),
        ("/spec/allNodes", json!(false), &["spec.allNodes"]),
        ("/spec/allNodes", json!(true), &["spec"]),
        ("/spec/perDeviceNodeSelection", json!(true), &["spec", "spec.devices[0]"]),
        ("/spec/sharedCounters", json!([{"name": "c", "counters": {"x": {"value": "1"}}}]), &["spec"]),
        ("/spec/devices", many(128), &[]),
        ("/spec/devices", many(129), &["spec.devices"]),
        ("/spec/devices", json!([{"name": "a"}, {"name": "a"}]), &["spec.devices[1]"]),
        ("/spec/devices/0/name", json!("A"), &["spec.devices[0].name"]),
        ("/spec/devices/0/nodeName", json!("n"), &["spec.devices[0]"]),
        ("/spec/devices/0/attributes", json!({"a-b": {"int": 1}}), &["spec.devices[0].attributes"]),
        (
            "/spec/devices/0/attributes",
            json!({"/a": {"int": 1}, "b/": {"bool": true}, "a/b/c": {"int": 1}}),
            &["spec.devices[0].attributes", "spec.devices[0].attributes"],
        ),
        ("/spec/devices/0/attributes", json!({"a": {"int": 1, "string": "x"}}), &["spec.devices[0].attributes[a]"]),
        ("/spec/devices/0/attributes", json!({"a": {"version": "v1"}}), &["spec.devices[0].attributes[a].version"]),
        (
            "/spec/devices/0/attributes",
            json!({"a": {"versions": ["1.0.0", "1"]}}),
            &["spec.devices[0].attributes[a].versions[1]"],
        ),
        ("/spec/devices/0/attributes", listed(48), &[]),
        ("/spec/devices/0/attributes", listed(49), &["spec.devices[0]"]),
        ("/spec/devices", crowd(64), &[]),
        ("/spec/devices", crowd(65), &["spec.devices"]),
        ("/spec/devices/0/capacity", json!({"9": {"value": "1"}}), &["spec.devices[0].capacity"]),
        ("/spec/devices/0/capacity", policy(json!({})), &["spec.devices[0].capacity[m].requestPolicy"]),
        (
            "/spec/devices/0/taints",
            json!([{"key": "", "effect": "Now", "value": "-"}]),
            &[
                "spec.devices[0].taints[0].effect",
                "spec.devices[0].taints[0].key",
                "spec.devices[0].taints[0].key",
                "spec.devices[0].taints[0].value",
            ],
        ),
        (
            "/spec/devices/0/consumesCounters",
            json!([{"counterSet": "", "counters": {}}]),
            &["spec.devices[0].consumesCounters[0].counterSet", "spec.devices[0].consumesCounters[0].counters"],
        ),
        (
            "/spec/devices/0/bindingConditions",
            json!(["a", "a"]),
            &["spec.devices[0].bindingConditions[1]", "spec.devices[0].bindingFailureConditions"],
        ),
    ];
    check(&c, "POST", &format!("{GROUP}/resourceslices"), &slice(), cases).await;
    let cases: Vec<Case> = vec![
        ("/spec/devices/0/capacity", policy(json!({"default": "1", "validValues": ["1", "2"]})), &[]),
        (
            "/spec/devices/0/capacity",
            policy(json!({"default": "2", "validRange": {"min": "1", "max": "7", "step": "1"}})),
            &[],
        ),
        (
            "/spec/devices/0/capacity",
            policy(json!({"validValues": ["1"]})),
            &["spec.devices[0].capacity[m].requestPolicy.default"],
        ),
        (
            "/spec/devices/0/capacity",
            policy(json!({"default": "3", "validValues": ["2", "1", "9", "9"]})),
            &[
                "spec.devices[0].capacity[m].requestPolicy.validValues",
                "spec.devices[0].capacity[m].requestPolicy.validValues[1]",
                "spec.devices[0].capacity[m].requestPolicy.validValues[2]",
                "spec.devices[0].capacity[m].requestPolicy.validValues[3]",
                "spec.devices[0].capacity[m].requestPolicy.validValues[3]",
            ],
        ),
        (
            "/spec/devices/0/capacity",
            policy(json!({"default": "1", "validRange": {"max": "2"}})),
            &["spec.devices[0].capacity[m].requestPolicy.validRange.min"],
        ),
        (
            "/spec/devices/0/capacity",
            policy(json!({"default": "4", "validRange": {"min": "1", "max": "6", "step": "2"}})),
            &[
                "spec.devices[0].capacity[m].requestPolicy.validRange.step",
                "spec.devices[0].capacity[m].requestPolicy.validRange.step",
            ],
        ),
    ];
    check(&c, "POST", &format!("{GROUP}/resourceslices"), &shared, cases).await;
}

fn claim() -> Value {
    let opaque = json!({"driver": "d.example.com", "parameters": {"a": 1}});
    json!({"metadata": {"name": "c"}, "spec": {"devices": {
        "requests": [{"name": "r", "exactly": {"deviceClassName": "c"}},
                     {"name": "s", "firstAvailable": [{"name": "x", "deviceClassName": "c"}]}],
        "constraints": [{"requests": ["r", "s/x"], "matchAttribute": "d.example.com/a"}],
        "config": [{"requests": ["s"], "opaque": opaque}]}}})
}

#[tokio::test]
async fn claims_are_validated() {
    let c = Cluster::start(1).await;
    let cases: Vec<Case> = vec![
        (
            "/spec/devices/requests/0/firstAvailable",
            json!([{"name": "x", "deviceClassName": "c"}]),
            &["spec.devices.requests[0]"],
        ),
        ("/spec/devices/requests/0/exactly/count", json!(-1), &["spec.devices.requests[0].exactly.count"]),
        (
            "/spec/devices/requests/0/exactly/allocationMode",
            json!("Some"),
            &["spec.devices.requests[0].exactly.allocationMode"],
        ),
        (
            "/spec/devices/requests/0/exactly",
            json!({"deviceClassName": "c", "allocationMode": "All", "count": 2}),
            &["spec.devices.requests[0].exactly.count"],
        ),
        (
            "/spec/devices/requests/0/exactly/tolerations",
            json!([{"operator": "Exists", "value": "v"}, {"key": "-", "effect": "Never"}]),
            &[
                "spec.devices.requests[0].exactly.tolerations[0].value",
                "spec.devices.requests[0].exactly.tolerations[1].effect",
                "spec.devices.requests[0].exactly.tolerations[1].key",
            ],
        ),
        (
            "/spec/devices/requests/1/name",
            json!("r"),
            &[
                "spec.devices.config[0].requests[0]",
                "spec.devices.constraints[0].requests[1]",
                "spec.devices.requests[1]",
            ],
        ),
        (
            "/spec/devices/requests/1/firstAvailable",
            json!([{"name": "x", "deviceClassName": ""}, {"name": "x", "deviceClassName": "c"}]),
            &[
                "spec.devices.requests[1].firstAvailable[0].deviceClassName",
                "spec.devices.requests[1].firstAvailable[1]",
            ],
        ),
        (
            "/spec/devices/constraints/0/requests",
            json!(["r", "r", "s/y", "a/b/c"]),
            &[
                "spec.devices.constraints[0].requests[1]",
                "spec.devices.constraints[0].requests[2]",
                "spec.devices.constraints[0].requests[3]",
            ],
        ),
        ("/spec/devices/constraints/0/matchAttribute", json!("a"), &["spec.devices.constraints[0].matchAttribute"]),
        ("/spec/devices/constraints/0", json!({}), &["spec.devices.constraints[0]"]),
        ("/spec/devices/config/0", json!({}), &["spec.devices.config[0].opaque"]),
        ("/spec/devices/config/0/opaque/driver", json!("-"), &["spec.devices.config[0].opaque.driver"]),
        ("/spec/devices/config/0/opaque", json!({"driver": "d"}), &["spec.devices.config[0].opaque.parameters"]),
    ];
    check(&c, "POST", &format!("{GROUP}/namespaces/golden/resourceclaims"), &claim(), cases).await;
    let template = json!({"metadata": {"name": "t"}, "spec": {"spec": claim()["spec"]}});
    let templates = format!("{GROUP}/namespaces/golden/resourceclaimtemplates");
    let a = c.call("POST", &templates, template.clone()).await;
    assert_eq!(a.code, 201, "{}", a.body);
    let cases: Vec<Case> = vec![
        (
            "/spec/spec/devices/requests/0/name",
            json!("-"),
            &["spec", "spec.spec.devices.constraints[0].requests[0]", "spec.spec.devices.requests[0].name"],
        ),
        ("/spec/metadata", json!({"labels": {"a": "b"}}), &["spec"]),
    ];
    check(&c, "PUT", &format!("{templates}/t"), &template, cases).await;
    let class = json!({"metadata": {"name": "c"}, "spec": {"extendedResourceName": "example.com/gpu",
        "config": [{"opaque": {"driver": "d.example.com", "parameters": {}}}]}});
    let cases: Vec<Case> = vec![
        ("/spec/extendedResourceName", json!("gpu"), &["spec.extendedResourceName"]),
        ("/spec/extendedResourceName", json!("kubernetes.io/gpu"), &["spec.extendedResourceName"]),
        ("/spec/config/0", json!({}), &["spec.config[0].opaque"]),
    ];
    check(&c, "POST", &format!("{GROUP}/deviceclasses"), &class, cases).await;
}

/// What the scheduler and drivers write is looked at as well.
#[tokio::test]
async fn the_status_of_a_claim_is_validated() {
    let c = Cluster::start(1).await;
    let path = format!("{GROUP}/namespaces/golden/resourceclaims");
    let mut claim = c.call("POST", &path, claim()).await.body;
    let status = format!("{path}/c/status");
    let device = json!({"driver": "d.example.com", "pool": "p", "device": "one"});
    let mut result = device.clone();
    result["request"] = json!("r");
    claim["status"] = json!({"allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}], "devices": [device]});
    let cases: Vec<Case> = vec![
        ("/status/allocation", Value::Null, &["status.devices[0]", "status.reservedFor"]),
        ("/status/reservedFor/0/name", json!(""), &["status.reservedFor[0].name"]),
        ("/status/allocation/devices/results/0/request", json!("z"), &["status.allocation.devices.results[0].request"]),
        (
            "/status/devices/0/conditions",
            json!([{"type": "A", "status": "Maybe"}]),
            &[
                "status.devices[0].conditions[0].lastTransitionTime",
                "status.devices[0].conditions[0].reason",
                "status.devices[0].conditions[0].status",
            ],
        ),
        ("/status/devices/0/networkData", json!({"ips": ["10.0.0.1"]}), &["status.devices[0].networkData.ips[0]"]),
        ("/status/devices/0/device", json!("two"), &["status.devices[0]"]),
    ];
    check(&c, "PUT", &status, &claim, cases).await;
    // What drivers report goes with a device that the claim loses.
    let claim = c.call("PUT", &status, claim).await.body;
    let cases: Vec<Case> = vec![("/status/allocation/devices/results/0/pool", json!("q"), &["status.allocation"])];
    check(&c, "PUT", &status, &claim, cases).await;
}

/// What a device could do before, and what spoils it, is not looked at again.
#[tokio::test]
async fn capacity_and_taints_that_stay_may_stay() {
    let c = Cluster::start(1).await;
    let slices = format!("{GROUP}/resourceslices");
    let mut body = slice();
    body["spec"]["devices"][0]["capacity"] = json!({"m": {"value": "1"}});
    let made = c.call("POST", &slices, body).await.body;
    let cases: Vec<Case> = vec![
        ("/spec/devices/0/capacity", json!({"9": {"value": "1"}}), &["spec.devices[0].capacity"]),
        ("/spec/devices/0/attributes", json!({"9": {"int": 1}}), &["spec.devices[0].attributes"]),
    ];
    check(&c, "PUT", &format!("{slices}/s"), &made, cases).await;
}

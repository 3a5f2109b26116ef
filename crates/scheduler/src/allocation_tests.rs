use super::*;
use crate::devices::{DeviceObject, Pool};
use client::Entry;
use std::sync::Arc;

fn entry<V: client::informer::View>(v: &Value) -> Arc<Entry<V>> {
    Arc::new(Entry::new(serde_json::to_vec(v).unwrap().into()).unwrap())
}

/// Devices of one driver on a node, and a class of all of them.
fn devices(slices: &[Value]) -> Devices {
    let mut all = Devices::default();
    for (i, spec) in slices.iter().enumerate() {
        all.set(DeviceObject::Slice(entry(&json!({"metadata": {"name": format!("s{i}")}, "spec": spec}))));
    }
    all.set(DeviceObject::Class(entry(&json!({"metadata": {"name": "gpu"}, "spec": {}}))));
    all
}

fn slice(devices: Value) -> Value {
    json!({"driver": "d.com", "nodeName": "a", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": devices})
}

/// What is found for claims on a node.
fn search(all: &Devices, claims: &[Value], until: Option<Instant>) -> Result<Found, AllocationError> {
    let claim = |c: &Value| entry(&json!({"metadata": {"name": "c", "uid": "c"}, "spec": {"devices": c}}));
    let claims: Vec<Arc<DeviceClaim>> = claims.iter().map(claim).collect();
    let claims: Vec<&DeviceClaimInfo> = claims.iter().map(|c| &c.view).collect();
    let node: Arc<NodeEntry> = entry(&json!({"metadata": {"name": "a"}}));
    Allocator::new(&Offer::new(all, InUse::default(), until), &node).allocate(&claims)
}

/// The names of the devices for claims of a pod, or none. Errors in upstream's words.
fn allocate_all(all: &Devices, claims: &[Value]) -> Result<Option<Vec<Vec<String>>>, String> {
    let name = |r: &Value| format!("{}={}", text(r, "request"), text(r, "device"));
    let names = |a: &Value| list(&a["devices"], "results").map(name).collect();
    match search(all, claims, None) {
        Ok(Found::Allocations(allocations)) => Ok(Some(allocations.iter().map(names).collect())),
        Ok(Found::Nothing) => Ok(None),
        Ok(Found::InvalidPools) => Err("invalid pools".into()),
        Err(AllocationError::Selector(e)) => Err(e.message("d/c")),
        Err(AllocationError::Claim { claim, why }) => Err(format!("{claim}{why}")),
        Err(AllocationError::TimedOut) => Err("timed out".into()),
    }
}

/// The names of the devices for a claim, or none.
fn allocate(all: &Devices, claim: Value) -> Option<Vec<String>> {
    allocate_all(all, &[claim]).unwrap()?.pop()
}

fn names(all: &[&str]) -> Option<Vec<String>> {
    Some(all.iter().map(|n| (*n).to_owned()).collect())
}

fn exactly(name: &str, more: Value) -> Value {
    let mut request = json!({"deviceClassName": "gpu"});
    for (key, value) in more.as_object().into_iter().flatten() {
        request[key] = value.clone();
    }
    json!({"name": name, "exactly": request})
}

#[test]
fn devices_are_counted_and_selected() {
    let model = |m: &str| json!({"model": {"string": m}});
    let all = devices(&[slice(json!([
        {"name": "one", "attributes": model("x")},
        {"name": "two", "attributes": model("y")},
        {"name": "three", "attributes": model("y")},
    ]))]);
    let y = json!([{"cel": {"expression": r#"device.attributes["d.com"].model == "y""#}}]);
    assert_eq!(allocate(&all, json!({"requests": [exactly("r", json!({}))]})), names(&["r=one"]));
    let two = json!({"count": 2, "selectors": y});
    assert_eq!(allocate(&all, json!({"requests": [exactly("r", two)]})), names(&["r=two", "r=three"]));
    assert_eq!(allocate(&all, json!({"requests": [exactly("r", json!({"count": 3, "selectors": y}))]})), None);
    let every = exactly("r", json!({"allocationMode": "All"}));
    assert_eq!(allocate(&all, json!({"requests": [every]})), names(&["r=one", "r=two", "r=three"]));
    let same =
        json!({"requests": [exactly("r", json!({"count": 2}))], "constraints": [{"matchAttribute": "d.com/model"}]});
    assert_eq!(allocate(&all, same), names(&["r=two", "r=three"]), "after the first one led nowhere");
    let distinct =
        json!({"requests": [exactly("r", json!({"count": 2}))], "constraints": [{"distinctAttribute": "d.com/model"}]});
    assert_eq!(allocate(&all, distinct), names(&["r=one", "r=two"]));
    let first = json!({"requests": [{"name": "r", "firstAvailable": [
        {"name": "many", "deviceClassName": "gpu", "count": 4},
        {"name": "few", "deviceClassName": "gpu", "count": 1, "selectors": y},
    ]}]});
    assert_eq!(allocate(&all, first), names(&["r/few=two"]));
}

#[test]
fn devices_in_use_and_tainted_ones_are_left_out() {
    let taints = json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]);
    let mut all = devices(&[slice(json!([{"name": "one"}, {"name": "two", "taints": taints}, {"name": "three"}]))]);
    let used = json!({"devices": {"results": [{"request": "r", "driver": "d.com", "pool": "p", "device": "one"}]}});
    let other = json!({"metadata": {"name": "o"}, "status": {"allocation": used}});
    all.set(DeviceObject::Claim(entry(&other)));
    assert_eq!(allocate(&all, json!({"requests": [exactly("r", json!({}))]})), names(&["r=three"]));
    let tolerant = exactly("r", json!({"count": 2, "tolerations": [{"key": "k", "operator": "Exists"}]}));
    assert_eq!(allocate(&all, json!({"requests": [tolerant]})), names(&["r=two", "r=three"]));
    let admin = exactly("r", json!({"adminAccess": true}));
    assert_eq!(allocate(&all, json!({"requests": [admin]})), names(&["r=one"]), "in use does not matter");
}

#[test]
fn parts_of_a_device_share_its_counters() {
    let part = |name: &str, gib: &str| {
        let counters = json!([{"counterSet": "card", "counters": {"memory": {"value": gib}}}]);
        json!({"name": name, "consumesCounters": counters})
    };
    // A slice has either counters or devices.
    let mut parts = slice(json!([part("whole", "40Gi"), part("half0", "20Gi"), part("half1", "20Gi")]));
    let mut card = slice(json!([]));
    card["sharedCounters"] = json!([{"name": "card", "counters": {"memory": {"value": "40Gi"}}}]);
    for spec in [&mut parts, &mut card] {
        spec["pool"]["resourceSliceCount"] = 2.into();
    }
    let all = devices(&[parts, card]);
    let two = json!({"requests": [exactly("r", json!({"count": 2}))]});
    assert_eq!(allocate(&all, two), names(&["r=half0", "r=half1"]));
    let three = json!({"requests": [exactly("r", json!({"count": 3}))]});
    assert_eq!(allocate(&all, three), None);
}

#[test]
fn only_the_newest_complete_generation_of_a_pool_is_offered() {
    let mut old = slice(json!([{"name": "old"}]));
    old["pool"]["generation"] = 0.into();
    let request = json!({"requests": [exactly("r", json!({}))]});
    assert_eq!(allocate(&devices(&[old.clone(), slice(json!([{"name": "new"}]))]), request.clone()), names(&["r=new"]));
    let mut partial = slice(json!([{"name": "new"}]));
    partial["pool"]["resourceSliceCount"] = 2.into();
    assert_eq!(allocate(&devices(&[old, partial]), request), None);
}

/// Many devices of which no combination fits end the search after a bounded number of steps.
#[test]
fn a_hopeless_search_ends() {
    let device = |i: usize| json!({"name": format!("d{i}"), "attributes": {"n": {"int": i % 7}}});
    let all = devices(&[slice((0..120).map(device).collect())]);
    let claim =
        json!({"requests": [exactly("r", json!({"count": 30}))], "constraints": [{"matchAttribute": "d.com/n"}]});
    assert_eq!(allocate(&all, claim), None);
}

/// Claims share a device whose capacity suffices for all of them.
#[test]
fn claims_share_the_capacity_of_a_device() {
    let card = |name: &str| {
        let policy = json!({"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}});
        json!({"name": name, "allowMultipleAllocations": true, "capacity": {"memory": {"value": "10Gi", "requestPolicy": policy}},
            "attributes": {"n": {"string": name}}})
    };
    let mut all = devices(&[slice(
        json!([card("one"), card("two"), {"name": "plain", "capacity": {"memory": {"value": "4Gi"}}}]),
    )]);
    let wants = |name: &str, memory: &str, more: Value| {
        let mut request = exactly(name, more);
        request["exactly"]["capacity"] = json!({"requests": {"memory": memory}});
        request
    };
    let used = json!({"devices": {"results": [{"request": "r", "driver": "d.com", "pool": "p", "device": "one", "shareID": "s",
        "consumedCapacity": {"memory": "6Gi"}}]}});
    all.set(DeviceObject::Claim(entry(&json!({"metadata": {"name": "o"}, "status": {"allocation": used}}))));
    let one = |memory: &str| allocate(&all, json!({"requests": [wants("r", memory, json!({}))]}));
    assert_eq!(one("4Gi"), names(&["r=one"]));
    assert_eq!(one("5Gi"), names(&["r=two"]));
    assert_eq!(one("11Gi"), None);
    let two = json!({"requests": [wants("a", "3Gi", json!({})), wants("b", "3Gi", json!({}))]});
    assert_eq!(allocate(&all, two.clone()), names(&["a=one", "b=two"]), "both together are too much for the first");
    let shares = json!({"requests": [wants("a", "2Gi", json!({"count": 2}))]});
    assert_eq!(
        allocate(&all, shares.clone()),
        names(&["a=one", "a=two"]),
        "two shares of one request are of two devices"
    );
    let of_two = json!({"requests": [wants("a", "2Gi", json!({})), wants("b", "2Gi", json!({}))]});
    assert_eq!(allocate(&all, of_two), names(&["a=one", "b=one"]));
    let mut apart = shares;
    apart["constraints"] = json!([{"distinctAttribute": "d.com/n"}]);
    assert_eq!(allocate(&all, apart), names(&["a=one", "a=two"]));
    // Without a request the default is used; a device that is not shared must have the capacity.
    let Ok(Found::Allocations(allocated)) = search(&all, &[json!({"requests": [exactly("r", json!({}))]})], None)
    else {
        panic!("not found");
    };
    assert_eq!(allocated[0]["devices"]["results"][0]["consumedCapacity"], json!({"memory": "1Gi"}));
    let plain = json!([{"cel": {"expression": "!device.allowMultipleAllocations"}}]);
    let on_plain =
        |memory: &str| allocate(&all, json!({"requests": [wants("r", memory, json!({"selectors": plain}))]}));
    assert_eq!(on_plain("4Gi"), names(&["r=plain"]));
    assert_eq!(on_plain("5Gi"), None);
}

/// What is looked up follows the objects: slices that move to another node or pool, claims that lose or change their devices.
#[test]
fn lookups_follow_changes_of_objects() {
    let slice = |name: &str, node: &str, pool: &str, device: &str| -> DeviceObject {
        let mut spec = json!({"driver": "d.com", "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": device}]});
        match node {
            "" => spec["allNodes"] = true.into(),
            node => spec["nodeName"] = node.into(),
        }
        DeviceObject::Slice(entry(&json!({"metadata": {"name": name}, "spec": spec})))
    };
    let claim = |device: &str, share: Option<&str>| {
        let mut result = json!({"request": "r", "driver": "d.com", "pool": "p", "device": device});
        if let Some(amount) = share {
            result["shareID"] = "s".into();
            result["consumedCapacity"] = json!({"memory": amount});
        }
        let status = json!({"allocation": {"devices": {"results": [result]}}});
        DeviceObject::Claim(entry(&json!({"metadata": {"name": "c", "uid": "u"}, "status": status})))
    };
    let mut all = Devices::default();
    let on = |all: &Devices, node: &str| -> Vec<String> {
        all.pools(node).iter().flat_map(Pool::devices).map(|d| d.name.to_owned()).collect()
    };
    all.set(slice("s", "a", "p", "one"));
    all.set(slice("everywhere", "", "q", "two"));
    assert_eq!((on(&all, "a"), on(&all, "b")), (vec!["one".to_owned(), "two".to_owned()], vec!["two".to_owned()]));
    all.set(slice("s", "b", "p", "one"));
    assert_eq!((on(&all, "a"), on(&all, "b")), (vec!["two".to_owned()], vec!["one".to_owned(), "two".to_owned()]));
    all.remove(&slice("everywhere", "", "q", "two"));
    all.remove(&slice("s", "b", "p", "one"));
    assert!(on(&all, "a").is_empty() && on(&all, "b").is_empty());

    let id = |device: &str| -> DeviceId { ("d.com".into(), "p".into(), device.into()) };
    all.set(claim("one", None));
    assert!(all.in_use().is_exclusive(&id("one")) && all.claim_by_uid("u").is_some());
    all.set(claim("two", Some("4")));
    assert!(!all.in_use().has(&id("one")) && all.in_use().is_shared(&id("two")));
    assert_eq!(all.in_use().used(&id("two"), "memory"), 4_000_000_000);
    all.set(claim("two", Some("1")));
    assert_eq!(all.in_use().used(&id("two"), "memory"), 1_000_000_000);
    all.remove(&claim("two", None));
    assert!(!all.in_use().has(&id("two")) && all.claim_by_uid("u").is_none());
}

/// A user may write a claim with 8 alternatives for each of 32 requests.
#[test]
fn requests_without_devices_are_not_combined() {
    let all = devices(&[slice(json!([{"name": "x"}]))]);
    let never = json!([{"cel": {"expression": "false"}}]);
    let alternatives = |selectors: &Value| -> Vec<Value> {
        let one = |i| json!({"name": format!("s{i}"), "deviceClassName": "gpu", "selectors": selectors});
        (0..8).map(one).collect()
    };
    let request = |name: String, selectors: &Value| json!({"name": name, "firstAvailable": alternatives(selectors)});
    let requests: Vec<Value> = (0..32).map(|i| request(format!("r{i}"), &never)).collect();
    assert_eq!(allocate(&all, json!({"requests": requests})), None);
    // Only the last one can have no device, and the others all want the same.
    let mut requests: Vec<Value> = (0..6).map(|i| request(format!("r{i}"), &json!([]))).collect();
    requests.push(request("last".into(), &never));
    assert_eq!(allocate(&all, json!({"requests": requests})), None);
}

#[test]
fn a_search_ends_in_time() {
    let all = devices(&[slice(json!([{"name": "x"}]))]);
    let within = |until| search(&all, &[json!({"requests": [exactly("r", json!({}))]})], Some(until));
    let now = Instant::now();
    assert!(matches!(within(now - std::time::Duration::from_secs(1)), Err(AllocationError::TimedOut)));
    assert!(matches!(within(now + std::time::Duration::from_secs(3600)), Ok(Found::Allocations(_))));
}

/// A device of the slice `p` with the attribute `n`.
fn numbered(name: &str, n: i64) -> Value {
    json!({"name": name, "attributes": {"n": {"int": n}}})
}

fn selecting(expression: &str) -> Value {
    json!([{"cel": {"expression": expression}}])
}

fn is_number(n: i64) -> Value {
    selecting(&format!(r#"device.attributes["d.com"].n == {n}"#))
}

#[track_caller]
fn check(all: &Devices, claims: &[Value], expect: Result<Option<&[&[&str]]>, &str>) {
    let found = allocate_all(all, claims);
    let owned = |claims: &[&[&str]]| claims.iter().map(|c| c.iter().map(|n| (*n).to_owned()).collect()).collect();
    assert_eq!(found, expect.map(|claims| claims.map(owned)).map_err(str::to_owned));
}

/// The first claim took the only device that the second one could have.
#[test]
fn claims_of_a_pod_get_devices_together() {
    let all = devices(&[slice(json!([numbered("zero", 0), numbered("one", 1)]))]);
    let any = json!({"requests": [exactly("r", json!({}))]});
    let zero = json!({"requests": [exactly("r", json!({"selectors": is_number(0)}))]});
    check(&all, &[any.clone(), zero.clone()], Ok(Some(&[&["r=one"], &["r=zero"]])));
    check(&all, &[any.clone(), zero.clone(), any.clone()], Ok(None));
    // Another alternative of the first claim leaves a device for the second.
    let first = json!({"requests": [{"name": "r", "firstAvailable": [
        {"name": "both", "deviceClassName": "gpu", "count": 2},
        {"name": "single", "deviceClassName": "gpu"},
    ]}]});
    check(&all, &[first, zero], Ok(Some(&[&["r/single=one"], &["r=zero"]])));
    // Many claims need no stack.
    let many: Vec<Value> =
        (0..5_000).map(|_| json!({"requests": [exactly("r", json!({"adminAccess": true}))]})).collect();
    assert!(allocate_all(&all, &many).unwrap().is_some());
}

/// A device whose attributes a selector cannot read failed the pod although it was not tried.
#[test]
fn selectors_are_evaluated_for_devices_that_are_tried() {
    let failed = "claim d/c: selector #0: CEL runtime error: no such key: n";
    let zero = json!({"requests": [exactly("r", json!({"selectors": is_number(0)}))]});
    let bare = json!({"name": "bare"});
    check(
        &devices(&[slice(json!([numbered("zero", 0), bare]))]),
        std::slice::from_ref(&zero),
        Ok(Some(&[&["r=zero"]])),
    );
    let mut all = devices(&[slice(json!([bare, numbered("zero", 0)]))]);
    check(&all, std::slice::from_ref(&zero), Err(failed));
    let used = json!({"devices": {"results": [{"request": "r", "driver": "d.com", "pool": "p", "device": "bare"}]}});
    all.set(DeviceObject::Claim(entry(&json!({"metadata": {"name": "o"}, "status": {"allocation": used}}))));
    check(&all, std::slice::from_ref(&zero), Ok(Some(&[&["r=zero"]])));
    // A taint does not keep it from being evaluated.
    let tainted = json!({"name": "bare", "taints": [{"key": "k", "effect": "NoSchedule"}]});
    check(&devices(&[slice(json!([tainted, numbered("zero", 0)]))]), &[zero], Err(failed));
}

/// Claims for all devices were met with a part of them, or on another node.
#[test]
fn all_devices_are_all_or_an_error() {
    let every = |more: Value| {
        let mut request = json!({"allocationMode": "All"});
        request.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        json!({"requests": [exactly("r", request)]})
    };
    let two = json!([numbered("zero", 0), numbered("one", 1)]);
    let mut partial = slice(two.clone());
    partial["pool"] = json!({"name": "q", "generation": 1, "resourceSliceCount": 2});
    let updated = "0, request r: asks for all devices, but resource pool d.com/q is currently being updated";
    let all = devices(&[slice(two.clone()), partial]);
    check(&all, &[every(json!({}))], Err(updated));
    check(&all, &[every(json!({"selectors": is_number(0)}))], Err(updated));
    let all = devices(&[slice(two.clone())]);
    check(&all, &[every(json!({}))], Ok(Some(&[&["r=zero", "r=one"]])));
    let mut same = every(json!({}));
    same["constraints"] = json!([{"matchAttribute": "d.com/n"}]);
    let violated = "0, request r: cannot add device d.com/p/one because a claim constraint would not be satisfied";
    check(&all, &[same], Err(violated));
    check(&all, &[every(json!({"selectors": is_number(7)}))], Ok(None));
    let mut all = devices(&[slice(
        json!([numbered("zero", 0), {"name": "tainted", "taints": [{"key": "k", "effect": "NoSchedule"}]}]),
    )]);
    check(&all, &[every(json!({}))], Ok(None));
    let used = json!({"devices": {"results": [{"request": "r", "driver": "d.com", "pool": "p", "device": "zero"}]}});
    all.set(DeviceObject::Claim(entry(&json!({"metadata": {"name": "o"}, "status": {"allocation": used}}))));
    check(
        &all,
        &[every(json!({"selectors": is_number(0)}))],
        Err("claim d/c: selector #0: CEL runtime error: no such key: n"),
    );
    let many = json!({"requests": [exactly("r", json!({"count": 33}))]});
    check(&all, &[many], Err("0: number of requested devices 33 exceeds the claim limit of 32"));
}

/// Claims of one pod could share a device that one of them had for administration only.
#[test]
fn administrative_access_takes_the_device_from_other_claims_of_the_pod() {
    let all = devices(&[slice(json!([{"name": "x"}]))]);
    let claim = |admin: bool| json!({"requests": [exactly("r", json!({"adminAccess": admin}))]});
    check(&all, &[claim(true), claim(false)], Ok(None));
    check(&all, &[claim(false), claim(true)], Ok(Some(&[&["r=x"], &["r=x"]])));
    let twice =
        json!({"requests": [exactly("a", json!({"adminAccess": true})), exactly("b", json!({"adminAccess": true}))]});
    check(&all, &[twice], Ok(None));
}

/// A device of which several have a share was given several times to one request.
#[test]
fn a_request_gets_different_devices() {
    let shared = |name: &str| json!({"name": name, "allowMultipleAllocations": true});
    let two = json!({"requests": [exactly("r", json!({"count": 2}))]});
    check(&devices(&[slice(json!([shared("x")]))]), std::slice::from_ref(&two), Ok(None));
    check(
        &devices(&[slice(json!([shared("x"), shared("y")]))]),
        &[two.clone(), two],
        Ok(Some(&[&["r=x", "r=y"], &["r=x", "r=y"]])),
    );
}

#[test]
fn pools_with_binding_conditions_come_last_and_invalid_ones_are_left_out() {
    let pool = |name: &str, devices: Value| {
        let mut slice = slice(devices);
        slice["pool"]["name"] = name.into();
        slice
    };
    let any = json!({"requests": [exactly("r", json!({}))]});
    let conditional = json!([{"name": "slow", "bindingConditions": ["ready"]}]);
    let all = devices(&[pool("a", conditional), pool("b", json!([{"name": "fast"}]))]);
    check(&all, std::slice::from_ref(&any), Ok(Some(&[&["r=fast"]])));
    let twins = json!([{"name": "twin"}, {"name": "twin"}]);
    check(&devices(&[pool("a", twins.clone())]), std::slice::from_ref(&any), Err("invalid pools"));
    let all = devices(&[pool("a", twins), pool("b", json!([{"name": "fast"}]))]);
    check(&all, &[any], Ok(Some(&[&["r=fast"]])));
}

#[test]
fn configuration_is_that_of_the_chosen_alternatives() {
    let mut all = devices(&[slice(json!([{"name": "x"}, {"name": "y"}]))]);
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"config": [{"opaque": {"driver": "d.com"}}]}});
    all.set(DeviceObject::Class(entry(&class)));
    let never = selecting("false");
    let claim = json!({
        "requests": [exactly("a", json!({})), {"name": "b", "firstAvailable": [
            {"name": "no", "deviceClassName": "gpu", "selectors": never},
            {"name": "yes", "deviceClassName": "gpu"},
        ]}],
        "config": [{"requests": ["b/no"]}, {"requests": ["b/yes"]}, {"requests": ["b"]}, {}, {"requests": ["other"]}],
    });
    let Ok(Found::Allocations(found)) = search(&all, &[claim], None) else { panic!("not found") };
    let expected = json!([
        {"source": "FromClass", "requests": ["a", "b/yes"], "opaque": {"driver": "d.com"}},
        {"source": "FromClaim", "requests": ["b/yes"]},
        {"source": "FromClaim", "requests": ["b"]},
        {"source": "FromClaim"},
    ]);
    assert_eq!(found[0]["devices"]["config"], expected);
}

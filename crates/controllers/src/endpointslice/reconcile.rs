//! Computes the slices to create, update and delete from the existing slices and the desired endpoints
//! (upstream `k8s.io/endpointslice` `reconciler.go`).
//!
//! Existing slices keep their endpoints. New endpoints go into slices that change anyway, then into the slice that they
//! fill best, then into new slices. So few slices change with each endpoint, and watchers receive few events.

use meta::{Object, Value};
use serde_json::{Map, json};
use std::collections::HashMap;

/// Endpoints with the same ports.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub address_type: &'static str,
    pub ports: Vec<Value>,
    pub endpoints: Vec<Value>,
}

/// The desired contents of a service's slices.
#[derive(Clone, Debug, Default)]
pub(super) struct Desired {
    /// Fields of `metadata` of every slice; `null` removes a field.
    pub metadata: Map<String, Value>,
    /// The UID of the object whose slices they are; slices of others are deleted. None: the UID does not matter.
    pub owner: Option<String>,
    /// A group without endpoints has one empty slice.
    pub groups: Vec<Group>,
    /// The maximum number of endpoints of one slice.
    pub per_slice: usize,
}

impl Desired {
    /// The number of endpoints, and of slices if all were full.
    pub fn sizes(&self) -> (usize, usize) {
        let per_slice = self.per_slice.max(1);
        let endpoints = self.groups.iter().map(|g| g.endpoints.len());
        (endpoints.clone().sum(), endpoints.map(|n| n.div_ceil(per_slice).max(1)).sum())
    }
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Slices to create, without names.
    pub create: Vec<Object>,
    pub update: Vec<Object>,
    pub delete: Vec<Object>,
    pub unchanged: Vec<Object>,
    /// The number of endpoints that are new.
    pub added: usize,
    /// The number of endpoints that leave slices.
    pub removed: usize,
}

impl Plan {
    /// Whether slices of an address type stay or come.
    pub fn has_slices_of(&self, address_type: &str) -> bool {
        let mut all = self.create.iter().chain(&self.update).chain(&self.unchanged);
        all.any(|o| is_of(o, address_type))
    }

    /// Takes the slices of an address type that stay or come.
    pub fn take_slices_of(&mut self, address_type: &str) -> Self {
        let take = |from: &mut Vec<Object>| from.extract_if(.., |o| is_of(o, address_type)).collect();
        let (create, update) = (take(&mut self.create), take(&mut self.update));
        Self { create, update, unchanged: take(&mut self.unchanged), ..Self::default() }
    }

    pub fn append(&mut self, other: Self) {
        self.create.extend(other.create);
        self.update.extend(other.update);
        self.delete.extend(other.delete);
        self.unchanged.extend(other.unchanged);
    }
}

fn is_of(slice: &Object, address_type: &str) -> bool {
    slice.str_at(&["addressType"]) == Some(address_type)
}

/// A slice while endpoints are distributed.
struct Draft {
    /// None: a new slice.
    existing: Option<Object>,
    endpoints: Vec<Value>,
    changed: bool,
}

/// What distinguishes slices and is immutable: address type and ports, in any order.
fn key(address_type: &str, ports: &[Value]) -> String {
    let text = |p: &Value, field: &str, default: &str| p[field].as_str().unwrap_or(default).to_owned();
    let port =
        |p: &Value| (text(p, "name", ""), text(p, "protocol", "TCP"), p["port"].as_i64(), text(p, "appProtocol", ""));
    let mut ports: Vec<_> = ports.iter().map(port).collect();
    ports.sort();
    format!("{address_type} {ports:?}")
}

/// What identifies an endpoint: its addresses and target.
fn identity(endpoint: &Value) -> String {
    let target = &endpoint["targetRef"];
    json!([endpoint["addresses"], endpoint["hostname"], target["namespace"], target["name"]]).to_string()
}

fn list(o: &Object, field: &str) -> Vec<Value> {
    o.get(field).and_then(Value::as_array).cloned().unwrap_or_default()
}

/// `existing`: the slices that the controller manages, sorted by name.
pub(super) fn plan(existing: Vec<Object>, desired: Desired) -> Plan {
    let mut plan = Plan::default();
    let mut by_key: HashMap<String, Vec<Object>> = HashMap::new();
    let mut order = Vec::new();
    let owned = |o: &Object| desired.owner.as_ref().is_none_or(|uid| o.owner_references().any(|r| r.uid == uid));
    let mut foreign = Vec::new();
    // Slices that are being deleted are ignored.
    for o in existing.into_iter().filter(|o| !o.is_deleting()) {
        if !owned(&o) {
            // Of an earlier service of this name.
            foreign.push(o);
            continue;
        }
        let key = key(o.str_at(&["addressType"]).unwrap_or_default(), &list(&o, "ports"));
        order.push(key.clone());
        by_key.entry(key).or_default().push(o);
    }
    for group in desired.groups {
        let slices = by_key.remove(&key(group.address_type, &group.ports)).unwrap_or_default();
        let (drafts, added, removed) = drafts(slices, &group, desired.per_slice);
        plan.added += added;
        plan.removed += removed;
        for draft in drafts {
            let keep = !draft.endpoints.is_empty() || group.endpoints.is_empty();
            match draft.existing {
                Some(o) if !keep => plan.delete.push(o),
                Some(o) => {
                    let ports = draft.changed.then_some(&group.ports);
                    update(&mut plan, o, ports, draft.endpoints, &desired.metadata);
                }
                None => {
                    let v = json!({"metadata": {}, "addressType": group.address_type});
                    let Some(mut o) = Object::from_value(v) else { continue };
                    set(&mut o, Some(&group.ports), draft.endpoints, &desired.metadata);
                    plan.create.push(o);
                }
            }
        }
    }
    for key in order {
        plan.delete.append(&mut by_key.remove(&key).unwrap_or_default());
    }
    // Reuse a slice to delete for one to create: watchers see one change.
    for o in std::mem::take(&mut plan.create) {
        match plan.delete.iter().position(|old| old.get("addressType") == o.get("addressType")) {
            Some(i) => {
                let old = plan.delete.remove(i);
                update(&mut plan, old, Some(&list(&o, "ports")), list(&o, "endpoints"), &desired.metadata);
            }
            None => plan.create.push(o),
        }
    }
    plan.delete.append(&mut foreign);
    plan
}

fn update(
    plan: &mut Plan,
    old: Object,
    ports: Option<&Vec<Value>>,
    endpoints: Vec<Value>,
    metadata: &Map<String, Value>,
) {
    let mut o = old.clone();
    set(&mut o, ports, endpoints, metadata);
    if o == old { plan.unchanged.push(o) } else { plan.update.push(o) }
}

/// Whether two endpoints are equal but for their hints.
fn is_same(a: &Value, b: &Value) -> bool {
    let fields = |v: &Value| v.as_object().cloned().unwrap_or_default();
    let (mut a, mut b) = (fields(a), fields(b));
    a.remove("hints");
    b.remove("hints");
    a == b
}

fn set(o: &mut Object, ports: Option<&Vec<Value>>, endpoints: Vec<Value>, metadata: &Map<String, Value>) {
    if let Some(ports) = ports {
        o.set(&["ports"], ports.clone());
    }
    // An empty list may be missing.
    if !endpoints.is_empty() || !list(o, "endpoints").is_empty() || o.get("endpoints").is_none() {
        o.set(&["endpoints"], endpoints);
    }
    for (k, v) in metadata {
        match v.is_null() {
            true => drop(o.metadata_mut().remove(k)),
            false => drop(o.metadata_mut().insert(k.clone(), v.clone())),
        }
    }
}

/// Distributes the endpoints of a group to the slices with its ports, and to new ones. Returns how many are new, and how many are gone.
fn drafts(slices: Vec<Object>, group: &Group, most: usize) -> (Vec<Draft>, usize, usize) {
    let mut removed = 0;
    let mut missing: HashMap<String, usize> = HashMap::new();
    for (i, e) in group.endpoints.iter().enumerate() {
        // Only the first of equal endpoints counts.
        missing.entry(identity(e)).or_insert(i);
    }
    let mut drafts: Vec<Draft> = Vec::new();
    for o in slices {
        let (mut endpoints, mut changed) = (Vec::new(), false);
        for e in list(&o, "endpoints") {
            match missing.remove(&identity(&e)).and_then(|i| group.endpoints.get(i)) {
                // It keeps its hints.
                Some(new) if endpoints.len() < most && is_same(new, &e) => endpoints.push(e),
                Some(new) if endpoints.len() < most => {
                    changed = true;
                    endpoints.push(new.clone());
                }
                _ => {
                    changed = true;
                    removed += 1;
                }
            }
        }
        drafts.push(Draft { existing: Some(o), endpoints, changed });
    }
    let mut left: Vec<usize> = missing.into_values().collect();
    left.sort_unstable();
    let mut left: Vec<Value> = left.into_iter().filter_map(|i| group.endpoints.get(i).cloned()).collect();
    let added = left.len();
    // The fullest first, so that others become empty and are deleted if possible.
    let mut changing: Vec<usize> =
        (0..drafts.len()).filter(|i| drafts[*i].changed && !drafts[*i].endpoints.is_empty()).collect();
    changing.sort_by_key(|i| std::cmp::Reverse(drafts[*i].endpoints.len()));
    for i in changing {
        fill(&mut drafts[i], &mut left, most);
    }
    while !left.is_empty() {
        let room = |d: &Draft| most - d.endpoints.len().min(most);
        let fits = drafts.iter_mut().filter(|d| !d.changed && room(d) >= left.len());
        // Of the slices with enough room, the one that becomes the fullest (upstream `getSliceToFill`).
        match fits.min_by_key(|d| room(d)) {
            Some(draft) => fill(draft, &mut left, most),
            None => {
                let mut draft = Draft { existing: None, endpoints: Vec::new(), changed: true };
                fill(&mut draft, &mut left, most);
                drafts.push(draft);
            }
        }
    }
    if group.endpoints.is_empty() {
        drafts.truncate(1);
        if drafts.is_empty() {
            drafts.push(Draft { existing: None, endpoints: Vec::new(), changed: true });
        }
    }
    (drafts, added, removed)
}

fn fill(draft: &mut Draft, left: &mut Vec<Value>, most: usize) {
    let room = most.saturating_sub(draft.endpoints.len()).min(left.len());
    draft.changed |= room > 0;
    draft.endpoints.extend(left.drain(..room));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(n: usize, ready: bool) -> Value {
        json!({"addresses": [format!("10.0.0.{n}")], "conditions": {"ready": ready},
            "targetRef": {"kind": "Pod", "namespace": "x", "name": format!("p{n}"), "uid": "u"}})
    }

    fn group(port: i64, endpoints: Vec<Value>) -> Group {
        let ports = vec![json!({"name": "http", "protocol": "TCP", "port": port})];
        Group { address_type: "IPv4", ports, endpoints }
    }

    fn slice(name: &str, group: &Group) -> Object {
        Object::from_value(json!({"metadata": {"name": name, "labels": {"a": "b"}}, "addressType": group.address_type,
            "ports": group.ports, "endpoints": group.endpoints}))
        .unwrap()
    }

    fn desired(groups: Vec<Group>) -> Desired {
        let metadata = json!({"labels": {"a": "b"}}).as_object().unwrap().clone();
        Desired { metadata, owner: None, groups, per_slice: 3 }
    }

    /// Names and endpoint counts of the slices to update; counts of those to create; names of those to delete.
    fn outline(p: &Plan) -> (Vec<(&str, usize)>, Vec<usize>, Vec<&str>) {
        let count = |o: &Object| list(o, "endpoints").len();
        (
            p.update.iter().map(|o| (o.name(), count(o))).collect(),
            p.create.iter().map(count).collect(),
            p.delete.iter().map(Object::name).collect(),
        )
    }

    fn endpoints(range: std::ops::Range<usize>) -> Vec<Value> {
        range.map(|n| endpoint(n, true)).collect()
    }

    #[test]
    fn few_slices_change() {
        let (a, b) = (slice("a", &group(80, endpoints(0..3))), slice("b", &group(80, endpoints(3..5))));
        let have = || vec![a.clone(), b.clone()];
        let with = |endpoints: Vec<Value>| plan(have(), desired(vec![group(80, endpoints)]));
        assert_eq!(outline(&with(endpoints(0..5))), (vec![], vec![], vec![]), "nothing has changed");
        // Slices were matched by position: a removed endpoint moved all that followed.
        assert_eq!(outline(&with(endpoints(1..5))), (vec![("a", 2)], vec![], vec![]));
        assert_eq!(outline(&with(endpoints(0..6))), (vec![("b", 3)], vec![], vec![]), "it has room");
        assert_eq!(outline(&with(endpoints(0..7))), (vec![], vec![2], vec![]), "no slice has room for both");
        assert_eq!(
            outline(&with(endpoints(1..6))),
            (vec![("a", 3)], vec![], vec![]),
            "one that changes anyway is filled first"
        );
        assert_eq!(outline(&with(endpoints(3..5))), (vec![], vec![], vec!["a"]));
        let mut unready = endpoints(0..5);
        unready[4] = endpoint(4, false);
        assert_eq!(outline(&with(unready)), (vec![("b", 2)], vec![], vec![]));
    }

    /// Groups with different ports took each other's slices.
    #[test]
    fn slices_are_matched_by_their_ports() {
        let (a, b) = (slice("a", &group(80, endpoints(0..2))), slice("b", &group(81, endpoints(2..3))));
        let groups = vec![group(81, endpoints(2..3)), group(80, endpoints(0..2))];
        assert_eq!(outline(&plan(vec![a.clone(), b.clone()], desired(groups))), (vec![], vec![], vec![]));
        // A slice whose ports are gone is reused for the new ports.
        let p = plan(vec![a.clone(), b], desired(vec![group(80, endpoints(0..2)), group(82, endpoints(2..3))]));
        assert_eq!(outline(&p), (vec![("b", 1)], vec![], vec![]));
        assert_eq!(p.update[0].at(&["ports"]).unwrap()[0]["port"], 82);
        // Without endpoints one empty slice remains.
        let none = Group { address_type: "IPv4", ports: Vec::new(), endpoints: Vec::new() };
        let p = plan(vec![a], desired(vec![none.clone()]));
        assert_eq!(outline(&p), (vec![("a", 0)], vec![], vec![]));
        assert_eq!(outline(&plan(p.update, desired(vec![none.clone()]))), (vec![], vec![], vec![]));
        assert_eq!(outline(&plan(Vec::new(), desired(vec![none]))), (vec![], vec![0], vec![]));
    }

    /// The slices of a deleted service were given to the next one of its name, while the garbage collector deleted them.
    #[test]
    fn slices_of_an_earlier_service_are_deleted() {
        let mut a = slice("a", &group(80, endpoints(0..2)));
        a.set(&["metadata", "ownerReferences"], json!([{"kind": "Service", "name": "s", "uid": "old"}]));
        let owned_by = |uid: &str| Desired { owner: Some(uid.into()), ..desired(vec![group(80, endpoints(0..2))]) };
        assert_eq!(outline(&plan(vec![a.clone()], owned_by("new"))), (vec![], vec![2], vec!["a"]));
        assert_eq!(plan(vec![a.clone()], owned_by("old")).unchanged.len(), 1);
        // Hints are not what endpoints are compared by.
        a.set(
            &["endpoints"],
            json!([{"addresses": ["10.0.0.0"], "conditions": {"ready": true}, "hints": {"forZones": []},
            "targetRef": {"kind": "Pod", "namespace": "x", "name": "p0", "uid": "u"}}, endpoint(1, true)]),
        );
        let p = plan(vec![a.clone()], owned_by("old"));
        assert_eq!((p.update.len(), &p.unchanged), (0, &vec![a]));
    }
}

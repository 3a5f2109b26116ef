//! For which zones and nodes endpoints are meant, where the service wishes traffic to stay close (upstream `trafficdist.go`). Pure: data
//! to data.

use super::reconcile::Plan;
use meta::{Object, Value};
use serde_json::json;

/// How a service distributes traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distribution {
    /// In proportion to the zones' CPUs ([`super::topology`]).
    Topology,
    SameZone,
    SameNode,
    Anywhere,
}

impl Distribution {
    /// Whether traffic prefers endpoints of the same zone or node.
    pub fn is_close(self) -> bool {
        matches!(self, Self::SameZone | Self::SameNode)
    }

    pub fn of_service(service: &Object) -> Self {
        let mode = ["service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"];
        let mode = mode.iter().find_map(|a| service.annotation(a));
        if matches!(mode, Some("Auto" | "auto")) {
            return Self::Topology;
        }
        match service.str_at(&["spec", "trafficDistribution"]) {
            Some("PreferClose" | "PreferSameZone") => Self::SameZone,
            Some("PreferSameNode") => Self::SameNode,
            _ => Self::Anywhere,
        }
    }
}

pub(super) fn is_ready(endpoint: &Value) -> bool {
    endpoint["conditions"]["ready"] == true
}

/// The hints of an endpoint for its own zone and node; `null` for none.
fn close(endpoint: &Value, distribution: Distribution) -> Value {
    let mut hints = json!({});
    if let Some(zone) = endpoint.get("zone") {
        hints["forZones"] = json!([{"name": zone}]);
    }
    if let (Distribution::SameNode, Some(node)) = (distribution, endpoint.get("nodeName")) {
        hints["forNodes"] = json!([{"name": node}]);
    }
    if hints == json!({}) { Value::Null } else { hints }
}

pub(super) fn set_hints(endpoint: &mut Value, hints: Value) {
    match hints {
        Value::Null => drop(endpoint.as_object_mut().map(|e| e.remove("hints"))),
        hints => endpoint["hints"] = hints,
    }
}

/// The endpoints of a slice.
pub(super) fn endpoints_mut(slice: &mut Object) -> &mut [Value] {
    match slice.0.get_mut("endpoints").and_then(Value::as_array_mut) {
        Some(list) => list,
        None => &mut [],
    }
}

/// Sets the hints of all endpoints for their own zones and nodes, or removes them. Slices whose hints change are updated.
pub(super) fn apply(plan: &mut Plan, distribution: Distribution) {
    let hint = |slice: &mut Object| {
        for e in endpoints_mut(slice) {
            match distribution {
                Distribution::SameZone | Distribution::SameNode if is_ready(e) => {
                    let hints = close(e, distribution);
                    set_hints(e, hints);
                }
                // Those of endpoints that are not ready stay.
                Distribution::SameZone | Distribution::SameNode => {}
                Distribution::Anywhere | Distribution::Topology => set_hints(e, Value::Null),
            }
        }
    };
    plan.create.iter_mut().chain(&mut plan.update).for_each(hint);
    for slice in std::mem::take(&mut plan.unchanged) {
        let mut next = slice.clone();
        hint(&mut next);
        if next == slice { plan.unchanged.push(slice) } else { plan.update.push(next) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_come_before_the_field() {
        let old = "service.kubernetes.io/topology-aware-hints";
        let mode = "service.kubernetes.io/topology-mode";
        let cases = [
            (json!({}), Value::Null, Distribution::Anywhere),
            (json!({}), json!("PreferClose"), Distribution::SameZone),
            (json!({}), json!("PreferSameZone"), Distribution::SameZone),
            (json!({}), json!("PreferSameNode"), Distribution::SameNode),
            (json!({mode: "Auto"}), json!("PreferClose"), Distribution::Topology),
            (json!({old: "disabled", mode: "auto"}), Value::Null, Distribution::Anywhere),
            (json!({old: "auto"}), Value::Null, Distribution::Topology),
        ];
        for (annotations, field, expect) in cases {
            let v = json!({"metadata": {"annotations": annotations}, "spec": {"trafficDistribution": field}});
            let service = Object::from_value(v.clone()).unwrap();
            assert_eq!(Distribution::of_service(&service), expect, "{v}");
        }
    }

    #[test]
    fn endpoints_are_for_their_own_zone_or_node() {
        let endpoint = |ready: bool, zone: Option<&str>, hints: Value| {
            let mut e = json!({"addresses": ["10.0.0.1"], "nodeName": "n", "conditions": {"ready": ready}});
            if let Some(zone) = zone {
                e["zone"] = zone.into();
            }
            set_hints(&mut e, hints);
            e
        };
        let slice = |e: Value| Object::from_value(json!({"metadata": {"name": "s"}, "endpoints": [e]})).unwrap();
        let zone = |z: &str| json!({"forZones": [{"name": z}]});
        let both = json!({"forZones": [{"name": "a"}], "forNodes": [{"name": "n"}]});
        let cases = [
            (endpoint(true, Some("a"), Value::Null), Distribution::SameZone, zone("a")),
            (endpoint(true, Some("a"), zone("b")), Distribution::SameZone, zone("a")),
            (endpoint(true, Some("a"), both.clone()), Distribution::SameZone, zone("a")),
            (endpoint(true, Some("a"), Value::Null), Distribution::SameNode, both),
            (endpoint(true, None, zone("b")), Distribution::SameZone, Value::Null),
            (endpoint(true, None, Value::Null), Distribution::SameNode, json!({"forNodes": [{"name": "n"}]})),
            (endpoint(false, Some("a"), zone("b")), Distribution::SameZone, zone("b")),
            (endpoint(false, Some("a"), Value::Null), Distribution::SameZone, Value::Null),
            (endpoint(true, Some("a"), zone("a")), Distribution::Anywhere, Value::Null),
        ];
        for (i, (e, distribution, expect)) in cases.into_iter().enumerate() {
            let same = e["hints"] == expect;
            let mut plan = Plan { unchanged: vec![slice(e)], ..Plan::default() };
            apply(&mut plan, distribution);
            assert_eq!(plan.unchanged.len(), usize::from(same), "{i}");
            let all: Vec<&Object> = plan.unchanged.iter().chain(&plan.update).collect();
            assert_eq!(all[0].get("endpoints").unwrap()[0]["hints"], expect, "{i}");
        }
    }
}

//! The FlowSchemas and PriorityLevelConfigurations that every cluster has (`k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap`), and
//! their upkeep: mandatory objects always have the specification given here, suggested ones until an administrator changes them.

use meta::{Object, Value};
use serde_json::json;

/// Annotation: whether the server keeps the specification up to date.
const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Schema,
    Level,
}

/// A FlowSchema: name, priority level, precedence, distinguisher method, subjects and rules.
type SchemaRow = (&'static str, &'static str, u32, &'static str, &'static [&'static str], &'static [&'static str]);
/// A priority level: name, shares, lendable percent, and the number of queues with the hand size; `None` rejects instead of queuing.
type LevelRow = (&'static str, u32, u32, Option<(u32, u32)>);

pub struct Table {
    levels: &'static [LevelRow],
    schemas: &'static [SchemaRow],
}

const EVERYBODY: &[&str] = &["group system:unauthenticated", "group system:authenticated"];
const QUEUE_LENGTH_LIMIT: u32 = 50;

pub const MANDATORY: &Table = &Table {
    levels: &[("exempt", 0, 0, None), ("catch-all", 5, 0, None)],
    schemas: &[
        ("exempt", "exempt", 1, "", &["group system:masters"], &["* * * everywhere", "paths *"]),
        ("catch-all", "catch-all", 10_000, "ByUser", EVERYBODY, &["* * * everywhere", "paths *"]),
    ],
};

pub const SUGGESTED: &Table = &Table {
    levels: &[
        ("system", 30, 33, Some((64, 6))),
        ("node-high", 40, 25, Some((64, 6))),
        ("leader-election", 10, 0, Some((16, 4))),
        ("workload-high", 40, 50, Some((128, 6))),
        ("workload-low", 100, 90, Some((128, 6))),
        ("global-default", 20, 50, Some((128, 6))),
    ],
    schemas: &[
        ("system-nodes", "system", 500, "ByUser", &["group system:nodes"], &["* * * everywhere", "paths *"]),
        (
            "system-node-high",
            "node-high",
            400,
            "ByUser",
            &["group system:nodes"],
            &["* core nodes,nodes/status everywhere", "* coordination.k8s.io leases namespaces"],
        ),
        ("probes", "exempt", 2, "", EVERYBODY, &["paths get /healthz,/readyz,/livez"]),
        (
            "system-leader-election",
            "leader-election",
            100,
            "ByUser",
            &["user system:kube-controller-manager", "user system:kube-scheduler", "account kube-system"],
            &["get,create,update coordination.k8s.io leases namespaces"],
        ),
        (
            "kube-controller-manager",
            "workload-high",
            800,
            "ByNamespace",
            &["user system:kube-controller-manager"],
            &["* * * everywhere", "paths *"],
        ),
        (
            "kube-scheduler",
            "workload-high",
            800,
            "ByNamespace",
            &["user system:kube-scheduler"],
            &["* * * everywhere", "paths *"],
        ),
        (
            "kube-system-service-accounts",
            "workload-high",
            900,
            "ByNamespace",
            &["account kube-system"],
            &["* * * everywhere", "paths *"],
        ),
        (
            "service-accounts",
            "workload-low",
            9_000,
            "ByUser",
            &["group system:serviceaccounts"],
            &["* * * everywhere", "paths *"],
        ),
        ("global-default", "global-default", 9_900, "ByUser", EVERYBODY, &["* * * everywhere", "paths *"]),
    ],
};

/// The objects of a table.
pub fn objects(table: &Table, kind: Kind) -> Vec<Object> {
    let values: Vec<Value> = match kind {
        Kind::Schema => table.schemas.iter().map(schema).collect(),
        Kind::Level => table.levels.iter().map(level).collect(),
    };
    values.into_iter().filter_map(Object::from_value).collect()
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "annotations": {AUTO_UPDATE: "true"}})
}

fn level((name, shares, lendable, queues): &LevelRow) -> Value {
    let spec = if *name == "exempt" {
        json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": shares, "lendablePercent": lendable}})
    } else {
        let response = match queues {
            None => json!({"type": "Reject"}),
            Some((queues, hand)) => json!({"type": "Queue",
                "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": QUEUE_LENGTH_LIMIT}}),
        };
        json!({"type": "Limited", "limited": {"nominalConcurrencyShares": shares, "lendablePercent": lendable,
            "limitResponse": response}})
    };
    json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
        "metadata": metadata(name), "spec": spec})
}

fn list(text: &str) -> Vec<&str> {
    text.split(',').map(|t| if t == "core" { "" } else { t }).collect()
}

fn schema((name, level, precedence, by, subjects, rules): &SchemaRow) -> Value {
    let subject = |s: &&str| match s.split_once(' ').unwrap_or_default() {
        ("user", name) => json!({"kind": "User", "user": {"name": name}}),
        ("account", namespace) => {
            json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": namespace, "name": "*"}})
        }
        (_, name) => json!({"kind": "Group", "group": {"name": name}}),
    };
    let mut rule = json!({"subjects": subjects.iter().map(subject).collect::<Vec<_>>()});
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    for r in *rules {
        match r.split(' ').collect::<Vec<_>>()[..] {
            ["paths", "*"] => paths.push(json!({"verbs": ["*"], "nonResourceURLs": ["*"]})),
            ["paths", verbs, urls] => paths.push(json!({"verbs": list(verbs), "nonResourceURLs": list(urls)})),
            [verbs, groups, names, place] => {
                let mut r = json!({"verbs": list(verbs), "apiGroups": list(groups), "resources": list(names),
                    "namespaces": ["*"]});
                if place == "everywhere" {
                    r["clusterScope"] = true.into();
                }
                resources.push(r);
            }
            _ => {}
        }
    }
    if !resources.is_empty() {
        rule["resourceRules"] = resources.into();
    }
    if !paths.is_empty() {
        rule["nonResourceRules"] = paths.into();
    }
    let mut spec =
        json!({"priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": [rule]});
    if !by.is_empty() {
        spec["distinguisherMethod"] = json!({"type": by});
    }
    json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": metadata(name), "spec": spec})
}

/// The object that replaces `live` to match the built-in one. `None` if nothing has to change.
pub fn updated(live: &Object, builtin: &Object, mandatory: bool) -> Option<Object> {
    // A specification that was changed without setting the annotation belongs to the administrator.
    let auto = match live.annotation(AUTO_UPDATE) {
        _ if mandatory => true,
        Some(value) => value == "true",
        None => live.generation() <= 1,
    };
    let mut next = live.clone();
    next.set_annotation(AUTO_UPDATE, if auto { "true" } else { "false" });
    if auto && let Some(spec) = builtin.get("spec") {
        let mut spec = spec.clone();
        // An administrator may configure what the exempt level lends.
        if let Some(exempt) = live.at(&["spec", "exempt"]).filter(|_| spec.get("exempt").is_some()) {
            spec["exempt"] = exempt.clone();
        }
        next.set(&["spec"], spec);
    }
    (next != *live).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mandatory_objects_are_restored_and_suggested_ones_only_with_auto_update() {
        let builtin = objects(SUGGESTED, Kind::Level).remove(0);
        assert!(updated(&builtin, &builtin, false).is_none());
        let mut changed = builtin.clone();
        changed.set(&["spec", "limited", "nominalConcurrencyShares"], 7);
        assert_eq!(updated(&changed, &builtin, false), Some(builtin.clone()));
        changed.set_annotation(AUTO_UPDATE, "false");
        assert!(updated(&changed, &builtin, false).is_none());
        assert_eq!(updated(&changed, &builtin, true), Some(builtin.clone()));
        changed.metadata_mut().remove("annotations");
        changed.set_generation(2);
        let next = updated(&changed, &builtin, false).unwrap();
        assert_eq!((next.annotation(AUTO_UPDATE), next.get("spec")), (Some("false"), changed.get("spec")));
        let exempt = objects(MANDATORY, Kind::Level).remove(0);
        let mut more = exempt.clone();
        more.set(&["spec", "exempt", "nominalConcurrencyShares"], 7);
        assert!(updated(&more, &exempt, true).is_none());
    }
}

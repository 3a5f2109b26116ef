//! APIServices of the versions that this server serves: built-in groups and custom resources.

use crate::server_kinds::API_SERVICE_KIND;
use meta::{GroupVersion, Object};
use registry::Rows;
use serde_json::json;
use std::collections::BTreeMap;

/// The label of local APIServices. Its value is when they are synced: at the start, or always.
pub const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// Discovery order of groups and versions: group, version, priority of the group and of the version in it
/// (`pkg/controlplane/apiserver/aggregator.go`).
const PRIORITIES: &[(&str, &str, u32, u32)] = &[
    ("", "v1", 18_000, 1),
    ("apps", "v1", 17_800, 15),
    ("events.k8s.io", "v1", 17_750, 15),
    ("authentication.k8s.io", "v1", 17_700, 15),
    ("authorization.k8s.io", "v1", 17_600, 15),
    ("autoscaling", "v1", 17_500, 15),
    ("autoscaling", "v2", 17_500, 30),
    ("batch", "v1", 17_400, 15),
    ("certificates.k8s.io", "v1", 17_300, 15),
    ("networking.k8s.io", "v1", 17_200, 15),
    ("policy", "v1", 17_100, 15),
    ("rbac.authorization.k8s.io", "v1", 17_000, 15),
    ("storage.k8s.io", "v1", 16_800, 15),
    ("apiextensions.k8s.io", "v1", 16_700, 15),
    ("admissionregistration.k8s.io", "v1", 16_700, 15),
    ("scheduling.k8s.io", "v1", 16_600, 15),
    ("coordination.k8s.io", "v1", 16_500, 15),
    ("node.k8s.io", "v1", 16_300, 15),
    ("discovery.k8s.io", "v1", 16_200, 15),
    ("flowcontrol.apiserver.k8s.io", "v1", 16_100, 21),
    ("resource.k8s.io", "v1", 15_900, 15),
];

/// Priorities of a custom resource's group and version.
const CUSTOM: (u32, u32) = (1_000, 100);

/// The priority of a group in discovery.
pub fn group_priority(group: &str) -> u32 {
    PRIORITIES.iter().find(|(g, ..)| *g == group).map_or(CUSTOM.0, |(.., p, _)| *p)
}

/// The APIServices of the current rows.
pub fn api_services(rows: &Rows) -> BTreeMap<String, Object> {
    let mut custom: BTreeMap<GroupVersion, bool> = BTreeMap::new();
    for r in rows.iter() {
        custom.insert(r.kind.group_version(), !r.bare_items);
    }
    let mut out = BTreeMap::new();
    for (gv, custom) in custom {
        let known = PRIORITIES.iter().find(|(g, v, ..)| *g == gv.group && *v == gv.version).map(|(.., g, v)| (*g, *v));
        let Some((group, version)) = known.or(custom.then_some(CUSTOM)) else { continue };
        let name = format!("{}.{}", gv.version, gv.group);
        let mut spec = json!({"version": gv.version, "groupPriorityMinimum": group, "versionPriority": version});
        if !gv.group.is_empty() {
            spec["group"] = gv.group.clone().into();
        }
        let o = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": API_SERVICE_KIND, "spec": spec,
            "metadata": {"name": name, "labels": {MANAGED: if custom { "true" } else { "onstart" }}}});
        if let Some(o) = Object::from_value(o) {
            out.insert(name, o);
        }
    }
    out
}

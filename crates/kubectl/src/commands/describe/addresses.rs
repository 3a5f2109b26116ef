//! Describes service CIDRs and IP addresses, and the CSI drivers of a node.

use super::page::{Page, list, show};
use meta::{Object, Value};

pub fn range(p: &mut Page, o: &Object) {
    p.field("Name", o.name());
    p.metadata(o);
    let all: Vec<String> = list(o.at(&["spec", "cidrs"])).iter().map(show).collect();
    p.field("CIDRs", all.join(", "));
    let conditions = list(o.at(&["status", "conditions"]));
    if conditions.is_empty() {
        return;
    }
    p.line(0, "Status:");
    p.conditions(conditions);
}

pub fn address(p: &mut Page, o: &Object) {
    p.field("Name", o.name());
    p.metadata(o);
    p.line(0, "Parent Reference:");
    for (title, key) in [("Group", "group"), ("Resource", "resource"), ("Namespace", "namespace"), ("Name", "name")] {
        p.at(1, title, o.str_at(&["spec", "parentRef", key]).unwrap_or_default());
    }
}

/// The drivers of a node.
pub fn csi_node(p: &mut Page, o: &Object) {
    p.field("Name", o.name());
    p.metadata(o);
    p.field("CreationTimestamp", p.time(o.creation_timestamp()));
    p.line(0, "Spec:");
    let Some(drivers) = o.at(&["spec", "drivers"]).and_then(Value::as_array) else { return };
    p.line(1, "Drivers:");
    for d in drivers {
        p.line(2, format!("{}:", show(&d["name"])));
        p.at(3, "Node ID", show(&d["nodeID"]));
        if let Some(n) = d["allocatable"]["count"].as_i64() {
            p.line(3, "Allocatables:");
            p.at(4, "Count", n.to_string());
        }
        if let Some(keys) = d["topologyKeys"].as_array() {
            p.at(3, "Topology Keys", format!("[{}]", keys.iter().map(show).collect::<Vec<_>>().join(" ")));
        }
    }
}

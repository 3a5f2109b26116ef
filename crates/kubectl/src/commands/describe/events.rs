//! The events of an object.

use super::page::Page;
use super::related;
use crate::error::Result;
use crate::kube::Kube;
use crate::printer::table::age;
use crate::resource::select::Selection;
use meta::{Object, Value};

/// The annotation of a mirror pod with the UID of its static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Returns the events of an object, sorted by `lastTimestamp`. Those of cluster-scoped objects may be in any namespace.
pub async fn about(k: &mut Kube, o: &Object, chunk_size: i64) -> Result<Vec<Object>> {
    let mut fields = format!("involvedObject.name={},involvedObject.namespace={}", o.name(), o.namespace());
    let uids = match o.kind() {
        // Kubelets report about their node with its name as UID, controllers with its UID.
        "Node" => vec![o.uid(), o.name()],
        // Those of a static pod are not about its mirror pod.
        _ => vec![o.annotation(MIRROR).unwrap_or(o.uid())],
    };
    if o.kind() != "Pod" {
        fields.push_str(&format!(",involvedObject.kind={}", o.kind()));
    }
    let mut all = Vec::new();
    for uid in uids {
        let fields = format!("{fields},involvedObject.uid={uid}");
        // Without permission to read events, the object is still described.
        let selection = Selection { fields: &fields, page: Some(chunk_size), ..Selection::default() };
        all.extend(related::objects(k, "events", o.namespace(), &selection).await.unwrap_or_default());
    }
    all.sort_by_key(|e| e.str_at(&["lastTimestamp"]).unwrap_or_default().to_owned());
    Ok(all)
}

fn first(e: &Object) -> &str {
    e.str_at(&["eventTime"]).or_else(|| e.str_at(&["firstTimestamp"])).unwrap_or_default()
}

/// Returns the time of the last occurrence.
pub fn last(e: &Object) -> String {
    e.str_at(&["series", "lastObservedTime"])
        .or_else(|| e.str_at(&["lastTimestamp"]))
        .or_else(|| e.str_at(&["eventTime"]))
        .unwrap_or_default()
        .to_owned()
}

/// `5s`, or `5s (x3 over 2m)`.
pub fn interval(e: &Object, now: jiff::Timestamp) -> String {
    let since = |path: &[&str]| age(e.str_at(path).unwrap_or_default(), now);
    let first = age(first(e), now);
    if let Some(series) = e.get("series").filter(|s| s.is_object()) {
        let count = series["count"].as_i64().unwrap_or(0);
        return format!("{} (x{count} over {first})", since(&["series", "lastObservedTime"]));
    }
    match e.int_at(&["count"]) {
        Some(count) if count > 1 => format!("{} (x{count} over {first})", since(&["lastTimestamp"])),
        _ => first,
    }
}

/// Writes the events as a table.
pub fn write(p: &mut Page, all: &[Object], now: jiff::Timestamp) {
    if all.is_empty() {
        return p.field("Events", "<none>");
    }
    p.line(0, "Events:\n  Type\tReason\tAge\tFrom\tMessage\n  ----\t------\t----\t----\t-------");
    for e in all {
        let text = |k: &str| e.get(k).and_then(Value::as_str).unwrap_or_default();
        let from = e
            .str_at(&["source", "component"])
            .filter(|c| !c.is_empty())
            .or_else(|| e.str_at(&["reportingComponent"]))
            .unwrap_or_default();
        let message = text("message").trim();
        let message = match e.str_at(&["involvedObject", "fieldPath"]).filter(|path| !path.is_empty()) {
            Some(path) => format!("{path}: {message}"),
            None => message.to_owned(),
        };
        p.line(1, format!("{}\t{}\t{}\t{from}\t{message}", text("type"), text("reason"), interval(e, now)));
    }
}

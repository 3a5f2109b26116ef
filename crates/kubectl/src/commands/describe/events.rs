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

/// Returns the events of an object, sorted by time.
pub async fn about(k: &mut Kube, o: &Object, chunk_size: i64) -> Result<Vec<Object>> {
    let namespace = if o.namespace().is_empty() { "default" } else { o.namespace() };
    let mut fields = format!("involvedObject.name={}", o.name());
    if !o.namespace().is_empty() {
        fields.push_str(&format!(",involvedObject.namespace={}", o.namespace()));
    }
    let uids = match o.kind() {
        // Kubelets report about their node with its name as UID, controllers with its UID.
        "Node" => vec![o.uid(), o.name()],
        // Those of a static pod are not about its mirror pod.
        _ => vec![o.annotation(MIRROR).unwrap_or(o.uid())],
    };
    let mut all = Vec::new();
    for uid in uids {
        let fields = format!("{fields},involvedObject.kind={},involvedObject.uid={uid}", o.kind());
        // Without permission to read events, the object is still described.
        let selection = Selection { fields: &fields, page: Some(chunk_size), ..Selection::default() };
        all.extend(related::objects(k, "events", namespace, &selection).await.unwrap_or_default());
    }
    all.sort_by_key(last);
    Ok(all)
}

fn first(e: &Object) -> String {
    e.str_at(&["firstTimestamp"]).or_else(|| e.str_at(&["eventTime"])).unwrap_or_default().to_owned()
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
    let count = e.int_at(&["series", "count"]).or_else(|| e.int_at(&["count"])).unwrap_or(0);
    if count > 1 {
        return format!("{} (x{count} over {})", age(&last(e), now), age(&first(e), now));
    }
    let at = if first(e).is_empty() { last(e) } else { first(e) };
    age(&at, now)
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
        p.line(
            1,
            format!("{}\t{}\t{}\t{from}\t{}", text("type"), text("reason"), interval(e, now), text("message").trim()),
        );
    }
}

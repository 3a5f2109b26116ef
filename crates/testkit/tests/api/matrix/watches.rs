//! Watches of one kind in all representations have the same events.

use super::shapes::{PARTIAL, PROTOBUF, TABLE, sayable};
use super::{MERGE_PATCH, Walk};
use crate::stream::Watch;
use serde_json::{Value, json};

pub async fn watches(w: &mut Walk<'_>) {
    if !w.kind.has("watch") {
        return;
    }
    let from = w.revision();
    let query = format!("watch=1&labelSelector=walk%3Dyes&allowWatchBookmarks=true&resourceVersion={from}");
    let (near, far) = (format!("{}?{query}", w.kind.collection()), format!("{}?{query}", w.kind.everywhere()));
    let path = w.path(0);
    let named = format!("{}&fieldSelector=metadata.name%3D{}", near, path.rsplit('/').next().unwrap());
    // The deprecated form has `watch/` before everything.
    let root = format!("/{}/", w.kind.api_version());
    let old = near.replace("?watch=1&", "?").replacen(&root, &format!("{root}watch/"), 1);
    let json = "application/json";
    let mut streams = Vec::new();
    for (at, accept) in
        [(&near, json), (&far, json), (&named, json), (&old, json), (&near, TABLE), (&near, PARTIAL), (&near, PROTOBUF)]
    {
        match Watch::start(w.cluster, at, accept).await {
            Ok(s) => streams.push((accept, s)),
            Err(e) => w.problem(format!("watching {at}: {e}")),
        }
    }
    w.create(0..1).await;
    let created = w.expect(200, "GET", &path, &Value::Null, "get").await;
    let set = |v: Value| json!({"metadata": v});
    w.patch(200, MERGE_PATCH, &path, &set(json!({"annotations": {"seen": "1"}})), "annotate").await;
    w.patch(200, MERGE_PATCH, &path, &set(json!({"labels": {"walk": "no"}})), "leave the selection").await;
    w.patch(200, MERGE_PATCH, &path, &set(json!({"annotations": {"seen": "2"}})), "annotate unseen").await;
    w.patch(200, MERGE_PATCH, &path, &set(json!({"labels": {"walk": "yes"}})), "come back").await;
    let back = w.expect(200, "GET", &path, &Value::Null, "get").await;
    w.remove(&path).await;
    let end = w.revision();
    for (accept, mut s) in streams {
        let mut types = Vec::new();
        let mut objects = Vec::new();
        loop {
            let (kind, o) = s.event().await;
            let over = !matches!(&*kind, "ADDED" | "MODIFIED" | "DELETED");
            types.push(kind);
            objects.push(o);
            if over {
                break;
            }
        }
        story(w, accept, &types, &objects, (&created, &back), end);
    }
}

/// Added, changed, gone from the selection, back in it, gone for good, and a bookmark when nothing more comes.
fn story(w: &mut Walk<'_>, accept: &str, types: &[String], objects: &[Value], states: (&Value, &Value), end: u64) {
    let mut kinds: Vec<&str> = types.iter().map(String::as_str).collect();
    // Objects that are finalized change on their way out.
    while kinds.len() > 6 && kinds[4] == "MODIFIED" {
        kinds.remove(4);
    }
    w.check(
        kinds == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED", "BOOKMARK"],
        format!("a watch of {accept} tells {types:?}"),
    );
    if kinds.len() != 6 {
        return;
    }
    let object = |o: &Value| if accept == TABLE { o["rows"][0]["object"].clone() } else { o.clone() };
    let shaped = |o: &Value| match accept {
        TABLE | PARTIAL => {
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": o["metadata"]})
        }
        PROTOBUF => sayable(o),
        _ => o.clone(),
    };
    w.same(&object(&objects[0]), &shaped(states.0), format!("what {accept} adds"));
    w.same(&object(&objects[3]), &shaped(states.1), format!("what {accept} adds again"));
    let version = |o: &Value| o["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse::<u64>().ok());
    let versions: Vec<_> = objects.iter().map(|o| version(&object(o))).collect();
    w.check(versions.iter().all(Option::is_some), format!("every event of {accept} has a revision: {versions:?}"));
    w.check(versions.is_sorted(), format!("revisions of {accept} grow: {versions:?}"));
    w.check(versions.last() == Some(&Some(end)), format!("the bookmark of {accept} is at the end: {versions:?} {end}"));
    let gone = object(&objects[2]);
    w.check(gone["metadata"]["annotations"]["seen"] == "1", "what leaves a selection is shown as it was in it");
    if accept == TABLE {
        let headers: Vec<bool> = objects.iter().map(|o| o["columnDefinitions"].is_array()).collect();
        w.check(headers[0] && !headers[1..].iter().any(|h| *h), format!("columns are said once: {headers:?}"));
    }
}

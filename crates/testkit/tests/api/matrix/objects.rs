//! Create, update, patch, apply and delete of one object.

use super::{APPLY, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Walk, entry};
use serde_json::{Value, json};

pub async fn lifecycle(w: &mut Walk<'_>) {
    create(w).await;
    update(w).await;
    patch(w).await;
    apply(w).await;
    delete(w).await;
}

async fn create(w: &mut Walk<'_>) {
    let (base, path, sample) = (w.kind.collection(), w.path(0), w.sample(0));
    let before = w.revision();
    let tried = w.expect(201, "POST", &format!("{base}?dryRun=All"), &sample, "create dry").await;
    w.check(tried["metadata"]["uid"].is_string(), "what is created dry has a uid");
    w.unwritten(before, "create dry");
    w.expect(404, "GET", &path, &Value::Null, "get what was created dry").await;

    let o = w.expect(201, "POST", &base, &sample, "create").await;
    let m = &o["metadata"];
    w.check(m["uid"].is_string() && m["creationTimestamp"].is_string(), "uid and time are given at creation");
    let newest = w.is_newest(&m["resourceVersion"]);
    w.check(newest, "the revision of a creation is the store's");
    w.check(matches!(m["generation"].as_i64(), None | Some(1)), format!("generation begins at {}", m["generation"]));
    w.check(o["kind"] == *w.kind.kind && o["apiVersion"] == w.kind.api_version(), "an object says its kind");
    match entry(&o, "corpus", "Update", "") {
        Some(e) => {
            w.check(e["apiVersion"] == w.kind.api_version(), "the version of managed fields");
            w.check(e["fieldsType"] == "FieldsV1" && e["time"].is_string(), "managed fields have a type and a time");
            w.check(e["fieldsV1"]["f:metadata"]["f:labels"]["f:walk"].is_object(), "the creator manages what it set");
        }
        None => w.problem(format!("the creator manages nothing: {}", o["metadata"]["managedFields"])),
    }
    let before = w.revision();
    let refused = w.expect(409, "POST", &base, &sample, "create again").await;
    w.check(refused["reason"] == "AlreadyExists", "the reason of a second creation");
    let refused = w.expect(409, "POST", &format!("{base}?dryRun=All"), &sample, "create again dry").await;
    w.check(refused["reason"] == "AlreadyExists", "the reason of a second creation, dry");
    w.unwritten(before, "a refused creation");
    let got = w.expect(200, "GET", &path, &Value::Null, "get").await;
    w.same(&got, &o, "what is read is what was created");
    let got = w.expect(200, "GET", &format!("{path}?resourceVersion=0"), &Value::Null, "get any").await;
    w.same(&got, &o, "what is read at any revision");
}

async fn update(w: &mut Walk<'_>) {
    let path = w.path(0);
    let old = w.expect(200, "GET", &path, &Value::Null, "get").await;
    let mut new = old.clone();
    new["metadata"]["annotations"]["put"] = "1".into();
    let before = w.revision();
    let tried = w.expect(200, "PUT", &format!("{path}?dryRun=All"), &new, "update dry").await;
    w.check(tried["metadata"]["annotations"]["put"] == "1", "an update that is tried shows its outcome");
    w.unwritten(before, "update dry");
    let put = w.expect(200, "PUT", &format!("{path}?fieldManager=putter"), &new, "update").await;
    w.check(put["metadata"]["annotations"]["put"] == "1", "an update is written");
    let newest = w.is_newest(&put["metadata"]["resourceVersion"]);
    w.check(newest, "an update has the store's revision");
    for kept in ["uid", "creationTimestamp"] {
        w.same(&put["metadata"][kept], &old["metadata"][kept], format!("{kept} after an update of an annotation"));
    }
    counted(w, &put, &old);
    let owned = entry(&put, "putter", "Update", "").is_some_and(|e| {
        e["fieldsV1"]["f:metadata"]["f:annotations"]["f:put"].is_object() && e["fieldsV1"]["f:spec"].is_null()
    });
    w.check(owned, format!("who updates manages that: {}", put["metadata"]["managedFields"]));

    let before = w.revision();
    let again = w.expect(200, "PUT", &format!("{path}?fieldManager=putter"), &put, "update with the same").await;
    w.same(&again, &put, "an update with the same");
    w.unwritten(before, "an update with the same");
    let with = |key: &str, value: &str| {
        let mut o = put.clone();
        o["metadata"]["annotations"]["put"] = "2".into();
        o["metadata"][key] = value.into();
        o
    };
    let refused = w.expect(409, "PUT", &path, &with("resourceVersion", "1"), "update of an old revision").await;
    w.check(refused["reason"] == "Conflict", "the reason for an old revision");
    let refused = w.expect(409, "PUT", &path, &with("uid", "other"), "update of another uid").await;
    w.check(refused["reason"] == "Conflict", "the reason for another uid");
    w.expect(400, "PUT", &path, &with("name", "other"), "update under another name").await;
    w.unwritten(before, "a refused update");
    let mut absent = w.sample(1);
    absent["metadata"]["resourceVersion"] = "1".into();
    // Some kinds are created by an update, whatever revision it names.
    if w.kind.put_creates() {
        w.expect(201, "PUT", &w.path(1), &absent, "update of what is not there").await;
        w.remove(&w.path(1)).await;
    } else {
        w.expect(404, "PUT", &w.path(1), &absent, "update of what is not there").await;
        w.unwritten(before, "an update of what is not there");
    }
}

/// A change of an annotation is no new generation, but of a deployment, which hands its annotations on.
fn counted(w: &mut Walk<'_>, new: &Value, old: &Value) {
    let of = |o: &Value| o["metadata"]["generation"].as_i64();
    let more = w.kind.kind == "Deployment";
    w.check((of(new) > of(old)) == more, format!("generation {:?} after {:?}, for an annotation", of(new), of(old)));
}

async fn patch(w: &mut Walk<'_>) {
    let path = w.path(0);
    let set = |k: &str| json!({"metadata": {"annotations": {k: "1"}}});
    let kinds = [
        (JSON_PATCH, "json", json!([{"op": "add", "path": "/metadata/annotations/json", "value": "1"}])),
        (MERGE_PATCH, "merge", set("merge")),
        (STRATEGIC_PATCH, "strategic", set("strategic")),
    ];
    let old = w.expect(200, "GET", &path, &Value::Null, "get").await;
    for (media, key, body) in &kinds {
        let before = w.revision();
        let tried = w.patch(200, media, &format!("{path}?dryRun=All"), body, "patch dry").await;
        w.check(tried["metadata"]["annotations"][key] == "1", "a patch that is tried shows its outcome");
        w.unwritten(before, "patch dry");
        let o = w.patch(200, media, &format!("{path}?fieldManager={key}"), body, "patch").await;
        w.check(o["metadata"]["annotations"][key] == "1" && o["metadata"]["annotations"]["put"] == "1", "a patch");
        counted(w, &o, &old);
        let owned = entry(&o, key, "Update", "")
            .is_some_and(|e| e["fieldsV1"]["f:metadata"]["f:annotations"][format!("f:{key}")].is_object());
        w.check(owned, format!("who patches manages that ({media})"));
        let mut spec = o.clone();
        for v in [&mut spec, &mut old.clone()] {
            v.as_object_mut().unwrap().remove("metadata");
        }
        let mut want = old.clone();
        want.as_object_mut().unwrap().remove("metadata");
        w.same(&spec, &want, format!("what a patch of metadata leaves alone ({media})"));
    }
    let before = w.revision();
    let failing = json!([{"op": "test", "path": "/metadata/name", "value": "other"}]);
    w.patch(422, JSON_PATCH, &path, &failing, "a patch whose test fails").await;
    let stale = json!({"metadata": {"resourceVersion": "1", "annotations": {"stale": "1"}}});
    let refused = w.patch(409, MERGE_PATCH, &path, &stale, "a patch of an old revision").await;
    w.check(refused["reason"] == "Conflict", "the reason for a patch of an old revision");
    w.patch(404, MERGE_PATCH, &w.path(1), &set("x"), "a patch of what is not there").await;
    w.patch(400, STRATEGIC_PATCH, &path, &json!([1]), "a patch that is no object").await;
    w.unwritten(before, "a refused patch");
}

async fn apply(w: &mut Walk<'_>) {
    let path = w.path(0);
    let by = |who: &str| format!("{path}?fieldManager={who}");
    let mine = |value: &str| {
        json!({"apiVersion": w.kind.api_version(), "kind": w.kind.kind,
            "metadata": {"name": w.sample(0)["metadata"]["name"], "annotations": {"applied": value}}})
    };
    let (one, two) = (mine("1"), mine("2"));
    let before = w.revision();
    let tried = w.patch(200, APPLY, &format!("{}&dryRun=All", by("applier")), &one, "apply dry").await;
    w.check(tried["metadata"]["annotations"]["applied"] == "1", "an application that is tried shows its outcome");
    w.unwritten(before, "apply dry");
    let o = w.patch(200, APPLY, &by("applier"), &one, "apply").await;
    w.check(o["metadata"]["annotations"]["applied"] == "1", "what is applied is there");
    let owned = entry(&o, "applier", "Apply", "")
        .is_some_and(|e| e["fieldsV1"] == json!({"f:metadata": {"f:annotations": {"f:applied": {}}}}));
    w.check(owned, format!("who applies manages exactly that: {}", o["metadata"]["managedFields"]));
    let before = w.revision();
    w.patch(200, APPLY, &by("applier"), &one, "apply the same").await;
    let refused = w.patch(409, APPLY, &by("other"), &two, "apply what another manages").await;
    let cause = &refused["details"]["causes"][0];
    w.check(cause["reason"] == "FieldManagerConflict", "the cause of a conflict");
    w.check(cause["field"] == ".metadata.annotations.applied", "the field of a conflict");
    w.patch(422, APPLY, &path, &one, "apply without a manager").await;
    w.unwritten(before, "an application of the same, or a refused one");
    let o = w.patch(200, APPLY, &format!("{}&force=true", by("other")), &two, "apply by force").await;
    w.check(o["metadata"]["annotations"]["applied"] == "2", "what is applied by force");
    w.check(entry(&o, "applier", "Apply", "").is_none(), "who lost its last field is no manager any more");
    let none =
        json!({"apiVersion": one["apiVersion"], "kind": one["kind"], "metadata": {"name": one["metadata"]["name"]}});
    let o = w.patch(200, APPLY, &by("other"), &none, "apply nothing").await;
    w.check(o["metadata"]["annotations"]["applied"].is_null(), "what is no longer applied is gone");

    let (path, sample) = (format!("{}?fieldManager=applier", w.path(1)), w.sample(1));
    let before = w.revision();
    w.patch(201, APPLY, &format!("{path}&dryRun=All"), &sample, "apply what is not there, dry").await;
    w.unwritten(before, "apply dry");
    let o = w.patch(201, APPLY, &path, &sample, "apply what is not there").await;
    w.check(entry(&o, "applier", "Apply", "").is_some(), "who applies first manages that");
    if w.kind.kind == "Node" {
        // A new node is tainted until it is ready; whoever applies all taints takes that away.
        w.patch(200, APPLY, &path, &sample, "apply the taints").await;
    }
    let before = w.revision();
    w.patch(200, APPLY, &path, &sample, "apply the whole again").await;
    w.unwritten(before, "an application of the same");
    w.remove(&w.path(1)).await;
}

async fn delete(w: &mut Walk<'_>) {
    let path = w.path(0);
    let before = w.revision();
    let tried = w.expect(200, "DELETE", &format!("{path}?dryRun=All"), &Value::Null, "delete dry").await;
    w.check(tried["kind"].is_string(), "a deletion that is tried has an answer");
    let only = |what: Value| json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": what});
    w.expect(409, "DELETE", &path, &only(json!({"uid": "other"})), "delete another uid").await;
    w.expect(409, "DELETE", &path, &only(json!({"resourceVersion": "1"})), "delete an old revision").await;
    w.unwritten(before, "a deletion that is tried or refused");

    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    let held = w.patch(200, MERGE_PATCH, &path, &hold, "add a finalizer").await;
    let o = w.expect(200, "DELETE", &path, &Value::Null, "delete what has a finalizer").await;
    w.check(o["metadata"]["deletionTimestamp"].is_string(), format!("a deletion that waits shows the object: {o}"));
    let newest = w.is_newest(&o["metadata"]["resourceVersion"]);
    w.check(newest, "the revision of a deletion that waits");
    if let Some(g) = held["metadata"]["generation"].as_i64() {
        w.check(o["metadata"]["generation"] == g + 1, "a deletion counts as a generation");
    }
    let before = w.revision();
    w.expect(200, "DELETE", &path, &Value::Null, "delete again").await;
    let more = json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}});
    w.patch(422, MERGE_PATCH, &path, &more, "a finalizer for what is being deleted").await;
    w.unwritten(before, "what is done to an object that is being deleted");
    let on = json!({"metadata": {"annotations": {"late": "1"}}});
    w.patch(200, MERGE_PATCH, &path, &on, "annotate what is being deleted").await;
    w.release(&path).await;
    w.expect(404, "GET", &path, &Value::Null, "get what is gone").await;
    w.expect(404, "DELETE", &path, &Value::Null, "delete what is gone").await;

    // With the right preconditions, and dependents to be waited for.
    w.create(0..1).await;
    let o = w.expect(200, "GET", &path, &Value::Null, "get").await;
    let mut options = only(json!({"uid": o["metadata"]["uid"], "resourceVersion": o["metadata"]["resourceVersion"]}));
    options["propagationPolicy"] = "Foreground".into();
    let o = w.expect(200, "DELETE", &path, &options, "delete in the foreground").await;
    let waits = o["metadata"]["finalizers"].as_array().is_some_and(|f| f.iter().any(|f| f == "foregroundDeletion"));
    w.check(waits, "a deletion in the foreground waits for dependents");
    w.release(&path).await;
    w.expect(404, "GET", &path, &Value::Null, "get what is gone").await;
    w.create(0..1).await;
    let o = w.expect(200, "GET", &path, &Value::Null, "get").await;
    let done = w.expect(200, "DELETE", &path, &Value::Null, "delete").await;
    if done["kind"] == "Status" {
        w.check(
            done["status"] == "Success" && done["details"]["uid"] == o["metadata"]["uid"],
            "a deletion says of what",
        );
        w.check(done["details"]["kind"] == *w.kind.resource, "a deletion says the resource");
    } else {
        w.same(&done["metadata"]["uid"], &o["metadata"]["uid"], "a deletion answers with the object");
    }
    w.remove(&path).await;
}

/// A name can be made by the server, but where it follows from the object.
pub async fn generated_name(w: &mut Walk<'_>) {
    let mut o = w.sample(0);
    let m = o["metadata"].as_object_mut().unwrap();
    m.remove("name");
    let base = w.kind.collection();
    let before = w.revision();
    // The server names what upstream names as well.
    if w.kind.kind != "LimitRange" {
        let refused = w.expect(422, "POST", &base, &o, "create without a name").await;
        w.check(refused["details"]["causes"][0]["field"] == "metadata.name", "the cause for a missing name");
    }
    o["metadata"]["generateName"] = "made-".into();
    if matches!(w.kind.kind.as_str(), "IPAddress" | "CustomResourceDefinition" | "APIService") {
        w.expect(422, "POST", &base, &o, "create under a generated name that cannot be right").await;
        w.unwritten(before, "a refused creation");
        return;
    }
    let mut names = Vec::new();
    for _ in 0..2 {
        let made = w.expect(201, "POST", &base, &o, "create under a generated name").await;
        let name = made["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        w.check(name.len() == 10 && name.starts_with("made-"), format!("a generated name: {name:?}"));
        w.check(made["metadata"]["generateName"] == "made-", "the prefix stays");
        w.remove(&w.kind.object(&name)).await;
        names.push(name);
    }
    w.check(names[0] != names[1], "two generated names");
}

/// Deleting many at once: exactly those that are selected.
pub async fn collection(w: &mut Walk<'_>) {
    if !w.kind.has("deletecollection") {
        return;
    }
    w.create(0..3).await;
    let path = format!("{}?labelSelector=walk%3Dyes,number!%3D0", w.kind.collection());
    let before = w.revision();
    let all = w.expect(200, "DELETE", &format!("{path}&dryRun=All"), &Value::Null, "delete many, dry").await;
    w.check(all["items"].as_array().is_some_and(|i| i.len() == 2), "what would be deleted is shown");
    w.unwritten(before, "delete many, dry");
    w.expect(200, "DELETE", &path, &Value::Null, "delete many").await;
    for i in 0..3 {
        let a = w.call("GET", &w.path(i), &Value::Null).await;
        let going = a.code == 404 || a.body["metadata"]["deletionTimestamp"].is_string();
        w.check(going == (i != 0), format!("the deletion of many and the {i}th"));
        w.remove(&w.path(i)).await;
    }
}

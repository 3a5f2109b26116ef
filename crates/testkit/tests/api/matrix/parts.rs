//! The subresources `status` and `scale`, of the kinds that have them.

use super::{JSON_PATCH, MERGE_PATCH, Walk, entry};
use serde_json::{Value, json};

/// A status that is not there at first.
fn status_of(kind: &str, version: &str) -> Value {
    let time = "2026-01-01T00:00:00Z";
    match (kind, version) {
        ("HorizontalPodAutoscaler", "v1") => json!({"currentReplicas": 1, "desiredReplicas": 2}),
        ("CronJob", _) => json!({"lastScheduleTime": time}),
        ("Ingress", _) => json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}),
        ("PersistentVolume", _) => json!({"phase": "Available", "message": "walked"}),
        ("ResourceClaim", _) => json!({"allocation": {"devices": {"results": [
            {"request": "r", "driver": "d.example.com", "pool": "p", "device": "dev"}]}}}),
        ("ResourceQuota", _) => json!({"hard": {"pods": "2"}, "used": {"pods": "1"}}),
        ("VolumeAttachment", _) => json!({"attached": true}),
        _ => {
            json!({"conditions": [{"type": "Walked", "status": "True", "reason": "Walk", "message": "on", "lastTransitionTime": time}]})
        }
    }
}

/// `want` is in `have`.
fn holds(have: &Value, want: &Value) -> bool {
    match (have, want) {
        (Value::Object(h), Value::Object(w)) => w.iter().all(|(k, w)| h.get(k).is_some_and(|h| holds(h, w))),
        (Value::Array(h), Value::Array(w)) => w.iter().all(|w| h.iter().any(|h| holds(h, w))),
        (h, w) => h == w,
    }
}

pub async fn status(w: &mut Walk<'_>) {
    if w.kind.subresource("status").is_none() {
        return;
    }
    w.create(0..1).await;
    let (path, part) = (w.path(0), format!("{}/status", w.path(0)));
    let old = w.expect(200, "GET", &path, &Value::Null, "get").await;
    let got = w.expect(200, "GET", &part, &Value::Null, "get the status").await;
    w.same(&got, &old, "the status is read with its object");
    let want = status_of(&w.kind.kind, &w.kind.version);
    let mut body = json!({"status": want, "spec": null});
    let before = w.revision();
    w.patch(200, MERGE_PATCH, &format!("{part}?dryRun=All"), &body, "patch the status dry").await;
    w.unwritten(before, "patch the status dry");
    let o = w.patch(200, MERGE_PATCH, &format!("{part}?fieldManager=stater"), &body, "patch the status").await;
    w.check(holds(&o["status"], &want), format!("the status is written: {} holds {want}", o["status"]));
    w.same(&o["spec"], &old["spec"], "the spec after a change of the status");
    w.same(&o["metadata"]["generation"], &old["metadata"]["generation"], "the generation after a change of the status");
    let owned = entry(&o, "stater", "Update", "status").is_some_and(|e| e["fieldsV1"]["f:status"].is_object());
    // The conditions of a signing request belong to who approves it.
    let owned = owned != (w.kind.kind == "CertificateSigningRequest");
    w.check(owned, format!("who writes the status manages it: {}", o["metadata"]["managedFields"]));
    let before = w.revision();
    let again =
        w.expect(200, "PUT", &format!("{part}?fieldManager=stater"), &o, "update the status with the same").await;
    w.same(&again, &o, "a status that is written again");
    w.unwritten(before, "a status that is written again");
    // The object itself does not change its status.
    let mut whole = o.clone();
    whole["status"] = json!({});
    whole["metadata"]["annotations"]["put"] = "1".into();
    let put = w.expect(200, "PUT", &path, &whole, "update with another status").await;
    w.same(&put["status"], &o["status"], "the status after an update of the object");
    body["metadata"] = json!({"resourceVersion": "1"});
    body["status"] = json!(null);
    let before = w.revision();
    w.patch(409, MERGE_PATCH, &part, &body, "patch an old status").await;
    w.expect(404, "GET", &format!("{}/status", w.path(1)), &Value::Null, "the status of nothing").await;
    w.unwritten(before, "a refused status");
    w.remove(&path).await;
}

pub async fn scale(w: &mut Walk<'_>) {
    if w.kind.subresource("scale").is_none() {
        return;
    }
    w.create(0..1).await;
    let (path, part) = (w.path(0), format!("{}/scale", w.path(0)));
    let old = w.expect(200, "GET", &path, &Value::Null, "get").await;
    let mut s = w.expect(200, "GET", &part, &Value::Null, "get the scale").await;
    w.check(s["kind"] == "Scale" && s["apiVersion"] == "autoscaling/v1", "a scale says what it is");
    w.same(&s["spec"]["replicas"], &old["spec"]["replicas"], "the replicas of the scale");
    for key in ["name", "uid", "resourceVersion", "creationTimestamp"] {
        w.same(&s["metadata"][key], &old["metadata"][key], format!("{key} of the scale"));
    }
    w.check(s["status"]["selector"].is_string(), "a scale says its selector");
    s["spec"]["replicas"] = 7.into();
    let before = w.revision();
    w.expect(200, "PUT", &format!("{part}?dryRun=All"), &s, "scale dry").await;
    w.unwritten(before, "scale dry");
    let scaled = w.expect(200, "PUT", &format!("{part}?fieldManager=scaler"), &s, "scale").await;
    w.check(scaled["spec"]["replicas"] == 7, "the answer of scaling");
    let o = w.expect(200, "GET", &path, &Value::Null, "get").await;
    w.check(o["spec"]["replicas"] == 7, "scaling changes the object");
    w.check(
        o["metadata"]["generation"].as_i64() == old["metadata"]["generation"].as_i64().map(|g| g + 1),
        format!("scaling counts: {} {}", old["metadata"]["generation"], o["metadata"]["generation"]),
    );
    let owned =
        entry(&o, "scaler", "Update", "scale").is_some_and(|e| e["fieldsV1"] == json!({"f:spec": {"f:replicas": {}}}));
    w.check(owned, format!("who scales manages that: {}", o["metadata"]["managedFields"]));
    let before = w.revision();
    w.expect(409, "PUT", &part, &s, "scale an old revision").await;
    w.patch(422, MERGE_PATCH, &part, &json!({"spec": {"replicas": -1}}), "scale below nothing").await;
    w.unwritten(before, "a refused scale");
    let s = w.patch(200, MERGE_PATCH, &part, &json!({"spec": {"replicas": 2}}), "patch the scale").await;
    w.check(s["spec"]["replicas"] == 2, "a patched scale");
    let to = json!([{"op": "replace", "path": "/spec/replicas", "value": 3}]);
    let s = w.patch(200, JSON_PATCH, &part, &to, "patch the scale").await;
    w.check(s["spec"]["replicas"] == 3, "a patched scale");
    w.remove(&path).await;
}

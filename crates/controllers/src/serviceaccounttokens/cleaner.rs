//! Deletes unused tokens in secrets. A label has the day of the last use; a token without the label was not used since the server began
//! to write labels. After a year without use a token is marked as invalid, and after another year it is deleted.

use super::{NAME, UID, scope};
use crate::context::{Context, object};
use crate::views::{Pod, pods};
use client::{ApiResource, DeleteOptions, Informer, Patch, Scope, WriteOptions};
use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use meta::{Object, Value};
use serde_json::json;
use std::time::Duration;

const PERIOD: Duration = Duration::from_secs(24 * 3600);
const UNUSED_DAYS: i32 = 365;
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// Runs until shutdown.
pub async fn run(context: Context) {
    let resource = ApiResource::typed::<Secret>();
    let secrets: Informer<()> = context.informers.informer(&resource, &scope());
    let running: Informer<Pod> = context.informers.informer(&pods(), &Scope::default());
    let accounts: Informer<Value> =
        context.informers.informer(&ApiResource::typed::<ServiceAccount>(), &Scope::default());
    let round = || async {
        secrets.synced().await;
        running.synced().await;
        accounts.synced().await;
        let all: Vec<_> = secrets.cache().entries().cloned().collect();
        let now = context.now();
        // When the server began to write labels.
        let since =
            context.client.dynamic(&ApiResource::typed::<ConfigMap>()).namespace("kube-system").get_opt(TRACKING).await;
        let since: Option<Date> = since.ok().flatten().and_then(|o| o.str_at(&["data", "since"])?.parse().ok());
        // The labels may lack uses of that day.
        let tracked = since.is_some_and(|since| days(since, date(now)) > UNUSED_DAYS);
        for entry in all.iter().filter(|s| tracked && !s.meta.is_deleting()) {
            let Ok(secret) = object(&resource, entry) else { continue };
            // Keeps secrets that no account lists, since users created them, and mounted ones, whose use the API server does not see.
            let named = accounts.cache().in_namespace(&entry.meta.namespace).any(|a| {
                let list = |k: &str| a.view[k].as_array().cloned().unwrap_or_default();
                list("secrets").iter().any(|s| s["name"] == *secret.name())
                    && Some(&*a.meta.name) == secret.annotation(NAME)
                    && secret.annotation(UID).is_none_or(|uid| uid.is_empty() || uid == &*a.meta.uid)
            });
            let mounted = running
                .cache()
                .in_namespace(&entry.meta.namespace)
                .any(|p| p.decode::<Value>().is_ok_and(|p| mentions(&p["spec"], secret.name())));
            if !named || mounted {
                continue;
            }
            let api = context.client.dynamic(&resource).namespace(&entry.meta.namespace);
            let done = match fate(&secret, now) {
                Fate::Stays => continue,
                Fate::Ends => {
                    let labels = json!({INVALID_SINCE: date(now).to_string()});
                    let p = Patch::Merge(json!({"metadata": {"uid": secret.uid(), "labels": labels}}));
                    api.patch(secret.name(), &WriteOptions::default(), &p).await.map(|_| ())
                }
                Fate::Goes => {
                    let mut options = DeleteOptions::uid(secret.uid());
                    if let Some(p) = &mut options.preconditions {
                        p.resource_version = Some(secret.resource_version().to_owned());
                    }
                    api.delete(secret.name(), &options).await.map(|_| ())
                }
            };
            if let Err(e) = done {
                tracing::warn!(secret = %entry.key(), "cleaning up an unused token failed: {e}");
            }
        }
    };
    context.every(PERIOD, round).await;
}

#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Stays,
    Ends,
    Goes,
}

fn days(from: Date, to: Date) -> i32 {
    from.until(to).map_or(0, |s| s.get_days())
}

fn date(at: Timestamp) -> Date {
    at.to_zoned(jiff::tz::TimeZone::UTC).date()
}

fn fate(secret: &Object, now: Timestamp) -> Fate {
    let unused = SignedDuration::from_hours(24 * i64::from(UNUSED_DAYS));
    let made = meta::time::parse(secret.creation_timestamp());
    let old = |day: Date| days(day, date(now)) > UNUSED_DAYS;
    if made.is_none_or(|made| now.duration_since(made) <= unused) {
        return Fate::Stays;
    }
    // A label that is no date says nothing about the last use.
    if secret.label(LAST_USED).is_some_and(|d| !d.parse().is_ok_and(old)) {
        return Fate::Stays;
    }
    match secret.label(INVALID_SINCE).and_then(|d| d.parse().ok()) {
        None => Fate::Ends,
        Some(since) if old(since) => Fate::Goes,
        Some(_) => Fate::Stays,
    }
}

/// Whether a pod uses a secret in any way: as a volume, in a variable, to pull images.
fn mentions(v: &Value, secret: &str) -> bool {
    match v {
        Value::Array(all) => all.iter().any(|v| mentions(v, secret)),
        Value::Object(fields) => fields.iter().any(|(k, v)| match k.as_str() {
            "secretName" => v == secret,
            "imagePullSecrets" => v.as_array().is_some_and(|all| all.iter().any(|s| s["name"] == secret)),
            "secret" | "secretRef" | "secretKeyRef" | "nodePublishSecretRef" if v["name"] == secret => true,
            _ => mentions(v, secret),
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_tokens_end_and_then_go() {
        let now: Timestamp = "2026-06-01T12:00:00Z".parse().unwrap();
        let check = |made: &str, labels: Value, expect: Fate| {
            let o = json!({"metadata": {"name": "s", "creationTimestamp": made, "labels": labels}});
            assert_eq!(fate(&Object::from_value(o).unwrap(), now), expect, "{made} {labels}");
        };
        check("2026-01-01T00:00:00Z", json!({}), Fate::Stays);
        check("2025-06-01T11:00:00Z", json!({}), Fate::Ends);
        check("2025-06-01T13:00:00Z", json!({}), Fate::Stays);
        check("2026-01-01T00:00:00Z", json!({LAST_USED: "2024-01-01"}), Fate::Stays);
        check("2024-01-01T00:00:00Z", json!({}), Fate::Ends);
        check("2024-01-01T00:00:00Z", json!({LAST_USED: "2026-05-01"}), Fate::Stays);
        check("2024-01-01T00:00:00Z", json!({LAST_USED: "2025-06-01"}), Fate::Stays);
        check("2024-01-01T00:00:00Z", json!({LAST_USED: "2025-05-31"}), Fate::Ends);
        check("2024-01-01T00:00:00Z", json!({LAST_USED: "once"}), Fate::Stays);
        check("2023-01-01T00:00:00Z", json!({INVALID_SINCE: "2026-01-01"}), Fate::Stays);
        check("2023-01-01T00:00:00Z", json!({INVALID_SINCE: "2025-06-01"}), Fate::Stays);
        check("2023-01-01T00:00:00Z", json!({INVALID_SINCE: "2025-01-01"}), Fate::Goes);
        check("2023-01-01T00:00:00Z", json!({INVALID_SINCE: "x"}), Fate::Ends);
    }

    #[test]
    fn every_use_of_a_secret_counts() {
        let used = [
            json!({"volumes": [{"secret": {"secretName": "s"}}]}),
            json!({"volumes": [{"projected": {"sources": [{"secret": {"name": "s"}}]}}]}),
            json!({"containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "s"}}}]}]}),
            json!({"initContainers": [{"envFrom": [{"secretRef": {"name": "s"}}]}]}),
            json!({"imagePullSecrets": [{"name": "s"}]}),
            json!({"volumes": [{"csi": {"nodePublishSecretRef": {"name": "s"}}}]}),
        ];
        for spec in used {
            assert!(mentions(&spec, "s") && !mentions(&spec, "t"), "{spec}");
        }
        assert!(!mentions(&json!({"volumes": [{"name": "s", "configMap": {"name": "s"}}]}), "s"));
    }
}

//! Deletes unused tokens in secrets. A label has the day of the last use; a token without the label was not used since the server began
//! to write labels. After a year without use a token is marked as invalid, and after another year it is deleted.

use super::{NAME, scope};
use crate::context::{Context, object};
use crate::views::{Pod, pods};
use client::{ApiResource, DeleteOptions, Informer, Patch, Scope, WriteOptions};
use jiff::civil::Date;
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
        let today = context.now().to_zoned(jiff::tz::TimeZone::UTC).date();
        // When the server began to write labels.
        let since =
            context.client.dynamic(&ApiResource::typed::<ConfigMap>()).namespace("kube-system").get_opt(TRACKING).await;
        let since: Option<Date> = since.ok().flatten().and_then(|o| o.str_at(&["data", "since"])?.parse().ok());
        for entry in all.iter().filter(|_| since.is_some_and(|s| days(s, today) >= UNUSED_DAYS)) {
            let Ok(secret) = object(&resource, entry) else { continue };
            // Keeps secrets that no account lists, since users created them, and mounted ones, whose use the API server does not see.
            let named = accounts.cache().in_namespace(&entry.meta.namespace).any(|a| {
                let list = |k: &str| a.view[k].as_array().cloned().unwrap_or_default();
                list("secrets").iter().any(|s| s["name"] == *secret.name())
                    && Some(&*a.meta.name) == secret.annotation(NAME)
            });
            let mounted = running.cache().in_namespace(&entry.meta.namespace).any(|p| {
                p.decode::<Value>().is_ok_and(|p| {
                    p["spec"]["volumes"]
                        .as_array()
                        .is_some_and(|v| v.iter().any(|v| v["secret"]["secretName"] == *secret.name()))
                })
            });
            if !named || mounted {
                continue;
            }
            let api = context.client.dynamic(&resource).namespace(&entry.meta.namespace);
            let done = match fate(&secret, today) {
                Fate::Stays => continue,
                Fate::Ends => {
                    let labels = json!({INVALID_SINCE: today.to_string()});
                    let p = Patch::Merge(json!({"metadata": {"uid": secret.uid(), "labels": labels}}));
                    api.patch(secret.name(), &WriteOptions::default(), &p).await.map(|_| ())
                }
                Fate::Goes => api.delete(secret.name(), &DeleteOptions::uid(secret.uid())).await.map(|_| ()),
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

fn fate(secret: &Object, today: Date) -> Fate {
    let made = secret.creation_timestamp().get(..10).and_then(|d| d.parse::<Date>().ok());
    let day = |label: &str| secret.label(label).and_then(|d| d.parse::<Date>().ok());
    let old = |d: Option<Date>| d.is_some_and(|d| days(d, today) >= UNUSED_DAYS);
    if !old(day(LAST_USED).or(made)) {
        return Fate::Stays;
    }
    match day(INVALID_SINCE) {
        None => Fate::Ends,
        Some(since) if old(Some(since)) => Fate::Goes,
        Some(_) => Fate::Stays,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_tokens_end_and_then_go() {
        let today: Date = "2026-06-01".parse().unwrap();
        let check = |made: &str, labels: Value, expect: Fate| {
            let o = json!({"metadata": {"name": "s", "creationTimestamp": made, "labels": labels}});
            assert_eq!(fate(&Object::from_value(o).unwrap(), today), expect);
        };
        check("2026-01-01T00:00:00Z", json!({}), Fate::Stays);
        check("2024-01-01T00:00:00Z", json!({}), Fate::Ends);
        check("2024-01-01T00:00:00Z", json!({LAST_USED: "2026-05-01"}), Fate::Stays);
        check("2024-01-01T00:00:00Z", json!({LAST_USED: "2025-05-01"}), Fate::Ends);
        check("2023-01-01T00:00:00Z", json!({INVALID_SINCE: "2026-01-01"}), Fate::Stays);
        check("2023-01-01T00:00:00Z", json!({INVALID_SINCE: "2025-01-01"}), Fate::Goes);
    }
}

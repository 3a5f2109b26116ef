//! Reads the three metrics APIs (upstream `podautoscaler/metrics`). Errors are texts, which conditions and events show.

use super::replicas::{Sample, Samples};
use crate::context::Error;
use crate::scale::resource_in_group;
use crate::{discovery, views::Milli};
use client::{Client, Query};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::CrossVersionObjectReference;
use meta::GroupVersion;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

const RESOURCE_GROUP: &str = "metrics.k8s.io";
const CUSTOM_GROUP: &str = "custom.metrics.k8s.io";
const EXTERNAL_GROUP: &str = "external.metrics.k8s.io";
/// The versions of the custom metrics API, which answer alike.
const CUSTOM_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];
/// Maximum size of a response: metrics come from programs of users, too.
const MAX_RESPONSE: usize = 64 << 20;
/// What a path segment may not contain as it is.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// The window of a custom metric that names none.
const DEFAULT_WINDOW: SignedDuration = SignedDuration::from_mins(1);

#[derive(Deserialize)]
struct List<T> {
    items: Option<Vec<T>>,
}

/// The usage of a pod (`PodMetrics`).
#[derive(Deserialize)]
struct PodMetrics {
    metadata: Named,
    timestamp: Timestamp,
    #[serde(default)]
    window: String,
    #[serde(default, deserialize_with = "client::informer::or_default")]
    containers: Vec<ContainerMetrics>,
}

#[derive(Deserialize)]
struct Named {
    name: Box<str>,
}

#[derive(Deserialize)]
struct ContainerMetrics {
    #[serde(default)]
    name: String,
    #[serde(default)]
    usage: BTreeMap<String, Milli>,
}

/// A value of a custom metric (`MetricValue`), of either version.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricValue {
    described_object: Named,
    timestamp: Timestamp,
    window_seconds: Option<i64>,
    value: Milli,
}

#[derive(Deserialize)]
struct ExternalValue {
    value: Milli,
}

impl PodMetrics {
    /// The usage of all containers, or of one; none if a container lacks the resource.
    fn usage(&self, resource: &str, container: &str) -> Option<i64> {
        let own = |c: &ContainerMetrics| c.usage.get(resource).map(|m| m.0);
        if !container.is_empty() {
            return own(self.containers.iter().find(|c| c.name == container)?);
        }
        let sum = self.containers.iter().try_fold(0i64, |sum, c| Some(sum.saturating_add(own(c)?)));
        sum.filter(|_| !self.containers.is_empty())
    }
}

/// Reads a duration as Go prints it: `1m30.5s`, `15s`, `0s`.
fn duration(text: &str) -> SignedDuration {
    text.parse().unwrap_or_default()
}

/// A path from segments that may contain any character.
fn path(gv: &GroupVersion, namespace: &str, segments: &[&str], query: &Query) -> String {
    let mut path = format!("/apis/{gv}/namespaces/{namespace}");
    for s in segments {
        path.push('/');
        path.extend(utf8_percent_encode(s, SEGMENT));
    }
    path.push_str(query.as_str());
    path
}

/// The text of an error; of a response without a `Status`, with the request, as client-go adds it.
fn text(e: &client::Error, request: &str) -> String {
    match e.status() {
        Some(s) if s.details.is_none() => format!("{s} ({request})"),
        _ => e.to_string(),
    }
}

/// Reads metrics as the autoscaler.
pub struct Metrics {
    client: Client,
}

impl Metrics {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    async fn list<T: DeserializeOwned>(&self, path: &str, request: &str) -> Result<Vec<T>, String> {
        let list: List<T> = self.client.get_at_most(path, MAX_RESPONSE).await.map_err(|e| text(&e, request))?;
        Ok(list.items.unwrap_or_default())
    }

    /// The usage of a resource by the pods that `selector` selects. An empty `container` means all containers of a pod.
    pub async fn resource(
        &self,
        resource: &str,
        namespace: &str,
        selector: &str,
        container: &str,
    ) -> Result<Samples, String> {
        let mut query = Query::default();
        query.add("labelSelector", selector);
        let path = path(&GroupVersion::new(RESOURCE_GROUP, "v1beta1"), namespace, &["pods"], &query);
        let all: Vec<PodMetrics> = self
            .list(&path, "get pods.metrics.k8s.io")
            .await
            .map_err(|e| format!("unable to fetch metrics from resource metrics API: {e}"))?;
        if all.is_empty() {
            return Err("no metrics returned from resource metrics API".into());
        }
        let sample = |m: PodMetrics| {
            let value = m.usage(resource, container)?;
            Some((m.metadata.name, Sample { value, at: m.timestamp, window: duration(&m.window) }))
        };
        Ok(all.into_iter().filter_map(sample).collect())
    }

    /// The version of the custom metrics API: the preferred one, if it is known here.
    async fn custom_version(&self) -> Result<GroupVersion, String> {
        let served = match discovery::versions(&self.client, CUSTOM_GROUP).await {
            Err(e) if e.is_not_found() => return Err(format!("no custom metrics API ({CUSTOM_GROUP}) registered")),
            other => other.map_err(|e| e.to_string())?,
        };
        let known = served.into_iter().find(|gv| CUSTOM_VERSIONS.contains(&&*gv.version));
        known.ok_or_else(|| "no known available metric versions found".into())
    }

    async fn custom(&self, namespace: &str, segments: &[&str], query: &Query) -> Result<Vec<MetricValue>, String> {
        let gv = self.custom_version().await?;
        let request = format!("get {}.{CUSTOM_GROUP} {}", segments[0], segments[1]);
        self.list(&path(&gv, namespace, segments, query), &request).await
    }

    /// A custom metric of the pods that `selector` selects.
    pub async fn pods(
        &self,
        metric: &str,
        namespace: &str,
        selector: &str,
        metric_selector: &str,
    ) -> Result<Samples, String> {
        let mut query = Query::default();
        query.add("labelSelector", selector);
        query.add("metricLabelSelector", metric_selector);
        let all = self.custom(namespace, &["pods", "*", metric], &query).await.map_err(from_custom)?;
        if all.is_empty() {
            return Err("no metrics returned from custom metrics API".into());
        }
        let sample = |m: MetricValue| {
            let window = m.window_seconds.map_or(DEFAULT_WINDOW, SignedDuration::from_secs);
            (m.described_object.name, Sample { value: m.value.0, at: m.timestamp, window })
        };
        Ok(all.into_iter().map(sample).collect())
    }

    /// A custom metric of an object, in thousandths.
    pub async fn object(
        &self,
        metric: &str,
        namespace: &str,
        object: &CrossVersionObjectReference,
        metric_selector: &str,
    ) -> Result<i64, String> {
        let mut query = Query::default();
        query.add("metricLabelSelector", metric_selector);
        let group = object.api_version.as_deref().unwrap_or_default().rsplit_once('/').map_or("", |(group, _)| group);
        // Metrics of a namespace are those of the autoscaler's own.
        let all = if (group, &*object.kind) == ("", "Namespace") {
            self.custom(namespace, &["metrics", metric], &query).await
        } else {
            let resource = self.resource_name(group, &object.kind).await.map_err(from_custom)?;
            self.custom(namespace, &[&resource, &object.name, metric], &query).await
        };
        match &*all.map_err(from_custom)? {
            [only] => Ok(only.value.0),
            all => Err(from_custom(format!(
                "the custom metrics API server returned {} results when we asked for exactly one",
                all.len()
            ))),
        }
    }

    /// `resource.group` of a kind.
    async fn resource_name(&self, group: &str, kind: &str) -> Result<String, String> {
        let found = resource_in_group(&self.client, group, kind).await;
        found.map(|r| r.gvr().group_resource().to_string()).map_err(|e: Error| {
            let dot = if group.is_empty() { "" } else { "." };
            format!("unable to map kind {kind}{dot}{group} to resource: {e}")
        })
    }

    /// The values of an external metric, in thousandths.
    pub async fn external(&self, metric: &str, namespace: &str, metric_selector: &str) -> Result<Vec<i64>, String> {
        let mut query = Query::default();
        query.add("labelSelector", metric_selector);
        let path = path(&GroupVersion::new(EXTERNAL_GROUP, "v1beta1"), namespace, &[metric], &query);
        let all: Vec<ExternalValue> = self
            .list(&path, &format!("get {metric}.{EXTERNAL_GROUP}"))
            .await
            .map_err(|e| format!("unable to fetch metrics from external metrics API: {e}"))?;
        if all.is_empty() {
            return Err("no metrics returned from external metrics API".into());
        }
        Ok(all.into_iter().map(|v| v.value.0).collect())
    }
}

fn from_custom(e: String) -> String {
    format!("unable to fetch metrics from custom metrics API: {e}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_lacks_usage_if_a_container_does() {
        let containers = |all: serde_json::Value| -> PodMetrics {
            serde_json::from_value(json!({"metadata": {"name": "p"}, "timestamp": "2026-01-01T00:00:00Z",
                "window": "15.2s", "containers": all}))
            .unwrap()
        };
        let both = containers(
            json!([{"name": "a", "usage": {"cpu": "100m", "memory": "1Mi"}}, {"name": "b", "usage": {"cpu": "1"}}]),
        );
        let cases = [
            ("cpu", "", Some(1100)),
            ("cpu", "b", Some(1000)),
            ("memory", "", None),
            ("memory", "a", Some(1_048_576_000)),
            ("cpu", "c", None),
        ];
        for (resource, container, expected) in cases {
            assert_eq!(both.usage(resource, container), expected, "{resource} {container}");
        }
        assert_eq!(containers(json!([])).usage("cpu", ""), None);
    }

    #[test]
    fn durations_are_those_of_go() {
        for (text, millis) in [("15s", 15_000), ("1m30.5s", 90_500), ("10.062s", 10_062), ("0s", 0), ("", 0)] {
            assert_eq!(duration(text), SignedDuration::from_millis(millis), "{text}");
        }
    }

    #[test]
    fn names_of_metrics_are_encoded() {
        let gv = GroupVersion::new(CUSTOM_GROUP, "v1beta2");
        assert_eq!(
            path(&gv, "ns", &["pods", "*", "hits per second"], &Query::default()),
            "/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/pods/%2A/hits%20per%20second"
        );
    }
}

//! The metrics of an autoscaler: reads each and computes the replicas that it requires.

use super::Controller;
use super::replicas::{self, Target};
use crate::views::selector_text;
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, ExternalMetricStatus, MetricIdentifier, MetricSpec, MetricStatus, MetricTarget,
    MetricValueStatus, ObjectMetricStatus, PodsMetricStatus, ResourceMetricStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as metav1;
use meta::quantity::Format;
use meta::{LabelSelector, Quantity};

/// The replicas that a metric requires.
pub struct Proposal {
    pub replicas: i64,
    /// The name of the metric, for messages.
    pub name: String,
    pub status: MetricStatus,
}

/// Why the replicas for a metric are unknown.
pub struct Failure {
    /// The reason of the condition and of the event.
    pub reason: &'static str,
    pub error: String,
    /// The error with its metric.
    pub context: String,
}

/// The target of an autoscaler, and how its pods are found.
pub struct Scope<'a> {
    pub target: Target<'a>,
    pub namespace: &'a str,
    /// The selector of the scale.
    pub selector: &'a str,
    /// `status.replicas` of the scale.
    pub running: i64,
}

fn milli(q: Option<&Text>) -> Option<i64> {
    Quantity::parse(&q?.0).ok().map(|q| q.milli_value())
}

fn decimal(milli: i64) -> Option<Text> {
    Some(Text(Quantity::from_milli(milli).to_string()))
}

/// A quantity as metrics-server writes it: memory in powers of two.
fn quantity(resource: &str, milli: i64) -> Option<Text> {
    let format = if resource == "memory" { Format::BinarySi } else { Format::DecimalSi };
    Some(Text(Quantity::from_milli(milli).in_format(format).to_string()))
}

/// The selector of a metric as a query parameter.
fn query(selector: Option<&metav1::LabelSelector>) -> Result<String, String> {
    let Some(selector) = selector else { return Ok(String::new()) };
    let value = serde_json::to_value(selector).unwrap_or_default();
    LabelSelector::from_value(Some(&value)).map(|s| s.to_string())
}

/// The selector of a metric as Go prints it.
fn printed(metric: &MetricIdentifier) -> String {
    selector_text(metric.selector.as_ref().and_then(|s| serde_json::to_value(s).ok()).as_ref())
}

fn external_name(metric: &MetricIdentifier) -> String {
    format!("external metric {}({})", metric.name, printed(metric))
}

fn average(value: Option<Text>) -> MetricValueStatus {
    MetricValueStatus { average_value: value, ..MetricValueStatus::default() }
}

fn value(value: Option<Text>) -> MetricValueStatus {
    MetricValueStatus { value, ..MetricValueStatus::default() }
}

/// The result of a metric: replicas, name, status.
type Evaluated = Result<(i64, String, MetricStatus), Unknown>;

/// Why the value of a metric is unknown.
struct Unknown {
    /// The prefix of the error of the sync. Conditions and events lack it.
    prefix: String,
    error: String,
}

impl Unknown {
    fn with_prefix(prefix: String) -> impl FnOnce(String) -> Self {
        |error| Self { prefix, error }
    }
}

impl From<String> for Unknown {
    fn from(error: String) -> Self {
        Self { prefix: String::new(), error }
    }
}

impl From<&str> for Unknown {
    fn from(error: &str) -> Self {
        error.to_owned().into()
    }
}

impl Controller {
    /// Reads a metric.
    pub(super) async fn evaluate(&self, scope: &Scope<'_>, spec: &MetricSpec) -> Result<Proposal, Failure> {
        let (evaluated, reason, subject) = match &*spec.type_ {
            "Object" => (self.object_proposal(scope, spec).await, "FailedGetObjectMetric", "object metric".into()),
            "Pods" => (self.pods_proposal(scope, spec).await, "FailedGetPodsMetric", "pods metric".into()),
            "Resource" => {
                let name = spec.resource.as_ref().map(|r| &*r.name).unwrap_or_default();
                (
                    self.resource_proposal(scope, spec).await,
                    "FailedGetResourceMetric",
                    format!("{name} resource metric"),
                )
            }
            "ContainerResource" => {
                let container = spec.container_resource.as_ref().map(|r| &*r.container).unwrap_or_default();
                let evaluated = self.container_proposal(scope, spec).await;
                (evaluated, "FailedGetContainerResourceMetric", format!("{container} container metric"))
            }
            "External" => {
                let name = spec.external.as_ref().map(|e| &*e.metric.name).unwrap_or_default();
                (
                    self.external_proposal(scope, spec).await,
                    "FailedGetExternalMetric",
                    format!("{name} external metric"),
                )
            }
            other => {
                let error = format!("unknown metric source type {other:?}");
                return Err(Failure { reason: "InvalidMetricSourceType", context: error.clone(), error });
            }
        };
        match evaluated {
            Ok((replicas, name, status)) => {
                let status = MetricStatus { type_: spec.type_.clone(), ..status };
                Ok(Proposal { replicas, name, status })
            }
            Err(Unknown { prefix, error }) => {
                let context = format!("failed to get {subject} value: {prefix}{error}");
                Err(Failure { reason, error, context })
            }
        }
    }

    async fn object_proposal(&self, scope: &Scope<'_>, spec: &MetricSpec) -> Evaluated {
        let source = spec.object.as_ref().ok_or("no object metric source")?;
        let (metric, object) = (&source.metric, &source.described_object);
        let selector = query(metric.selector.as_ref())?;
        let read = async || {
            let usage = self.metrics.object(&metric.name, scope.namespace, object, &selector).await;
            usage.map_err(|e| {
                format!(
                    "unable to get metric {}: {} on {} {}/{e}",
                    metric.name, object.kind, scope.namespace, object.name
                )
            })
        };
        let status = |current| MetricStatus {
            object: Some(ObjectMetricStatus { current, described_object: object.clone(), metric: metric.clone() }),
            ..MetricStatus::default()
        };
        match (&*source.target.type_, milli(source.target.value.as_ref()), milli(source.target.average_value.as_ref()))
        {
            ("Value", Some(target), _) => {
                let usage = read().await?;
                let replicas = replicas::for_value(&scope.target, usage, target)?;
                let name = format!("{} metric {}", object.kind, metric.name);
                Ok((replicas, name, status(value(decimal(usage)))))
            }
            ("AverageValue", _, Some(target)) => {
                let prefix = format!("failed to get {} object metric: ", metric.name);
                let usage = read().await.map_err(Unknown::with_prefix(prefix))?;
                let tolerances = scope.target.tolerances;
                let (replicas, each) = replicas::for_value_per_pod(tolerances, scope.running, usage, target);
                Ok((replicas, external_name(metric), status(average(decimal(each)))))
            }
            _ => Err("invalid object metric source: neither a value target nor an average value target was set".into()),
        }
    }

    async fn pods_proposal(&self, scope: &Scope<'_>, spec: &MetricSpec) -> Evaluated {
        let source = spec.pods.as_ref().ok_or("no pods metric source")?;
        let metric = &source.metric;
        let selector = query(metric.selector.as_ref())?;
        let samples = self.metrics.pods(&metric.name, scope.namespace, scope.selector, &selector).await;
        let samples = samples.map_err(|e| format!("unable to get metric {}: {e}", metric.name))?;
        let target = milli(source.target.average_value.as_ref()).unwrap_or_default();
        let (replicas, usage) = replicas::for_average(&scope.target, samples, "", target)?;
        let pods = PodsMetricStatus { metric: metric.clone(), current: average(decimal(usage)) };
        let status = MetricStatus { pods: Some(pods), ..MetricStatus::default() };
        Ok((replicas, format!("pods metric {}", metric.name), status))
    }

    async fn resource_proposal(&self, scope: &Scope<'_>, spec: &MetricSpec) -> Evaluated {
        let source = spec.resource.as_ref().ok_or("no resource metric source")?;
        let (replicas, name, current) = self.usage(scope, &source.name, "", &source.target).await?;
        let resource = ResourceMetricStatus { name: source.name.clone(), current };
        Ok((replicas, name, MetricStatus { resource: Some(resource), ..MetricStatus::default() }))
    }

    async fn container_proposal(&self, scope: &Scope<'_>, spec: &MetricSpec) -> Evaluated {
        let source = spec.container_resource.as_ref().ok_or("no container resource metric source")?;
        let (replicas, name, current) = self.usage(scope, &source.name, &source.container, &source.target).await?;
        let (name_, container) = (source.name.clone(), source.container.clone());
        let resource = ContainerResourceMetricStatus { name: name_, container, current };
        Ok((replicas, name, MetricStatus { container_resource: Some(resource), ..MetricStatus::default() }))
    }

    /// Usage or utilization of a resource by pods, or by one container of each.
    async fn usage(
        &self,
        scope: &Scope<'_>,
        resource: &str,
        container: &str,
        target: &MetricTarget,
    ) -> Result<(i64, String, MetricValueStatus), String> {
        let read = async || {
            let samples = self.metrics.resource(resource, scope.namespace, scope.selector, container).await;
            samples.map_err(|e| format!("unable to get metrics for resource {resource}: {e}"))
        };
        if let Some(value) = milli(target.average_value.as_ref()) {
            let evaluated = read().await.and_then(|s| replicas::for_average(&scope.target, s, resource, value));
            let (replicas, usage) = evaluated.map_err(|e| format!("failed to get {resource} usage: {e}"))?;
            return Ok((replicas, format!("{resource} resource"), average(quantity(resource, usage))));
        }
        let Some(percent) = target.average_utilization else {
            return Err(
                "invalid resource metric source: neither an average utilization target nor an average value (usage) \
                        target was set"
                    .into(),
            );
        };
        let evaluated =
            read().await.and_then(|s| replicas::for_utilization(&scope.target, s, resource, container, percent.into()));
        let u = evaluated.map_err(|e| format!("failed to get {resource} utilization: {e}"))?;
        let part = if container.is_empty() { "" } else { "container " };
        let name = format!("{resource} {part}resource utilization (percentage of request)");
        let current = MetricValueStatus {
            average_utilization: i32::try_from(u.percent).ok(),
            average_value: quantity(resource, u.average),
            value: None,
        };
        Ok((u.replicas, name, current))
    }

    async fn external_proposal(&self, scope: &Scope<'_>, spec: &MetricSpec) -> Evaluated {
        let source = spec.external.as_ref().ok_or("no external metric source")?;
        let metric = &source.metric;
        let read = async || {
            let selector = query(metric.selector.as_ref())?;
            let values = self.metrics.external(&metric.name, scope.namespace, &selector).await.map_err(|e| {
                let (ns, name) = (scope.namespace, &metric.name);
                format!("unable to get external metric {ns}/{name}/{}: {e}", printed(metric))
            })?;
            Ok::<i64, String>(replicas::sum(&values))
        };
        let status = |current| MetricStatus {
            external: Some(ExternalMetricStatus { metric: metric.clone(), current }),
            ..MetricStatus::default()
        };
        if let Some(target) = milli(source.target.average_value.as_ref()) {
            let prefix = format!("failed to get {} external metric: ", metric.name);
            let usage = read().await.map_err(Unknown::with_prefix(prefix))?;
            let tolerances = scope.target.tolerances;
            let (replicas, each) = replicas::for_value_per_pod(tolerances, scope.running, usage, target);
            return Ok((replicas, external_name(metric), status(average(decimal(each)))));
        }
        let Some(target) = milli(source.target.value.as_ref()) else {
            return Err(
                "invalid external metric source: neither a value target nor an average value target was set".into()
            );
        };
        let evaluated = match read().await {
            Ok(usage) => replicas::for_value(&scope.target, usage, target).map(|r| (r, usage)),
            Err(e) => Err(e),
        };
        let prefix = format!("failed to get external metric {}: ", metric.name);
        let (replicas, usage) = evaluated.map_err(Unknown::with_prefix(prefix))?;
        Ok((replicas, external_name(metric), status(value(decimal(usage)))))
    }
}

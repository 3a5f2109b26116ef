//! HorizontalPodAutoscalers keep the number of replicas that their metrics require (upstream `horizontal.go`).
//!
//! [`sources`] reads metrics, [`replicas`] computes the replicas that each requires, [`limits`] restricts how far and fast they change.
//! Invariant: an autoscaler is reconciled every [`SYNC`], also after changes and errors. Recommendations and changes of size are kept in
//! memory only.
//! Left out: scaling to zero, which upstream disables by default.

mod limits;
mod metrics;
mod replicas;
mod sources;
mod status;

use crate::context::{Context, Error, object, put_status};
use crate::controller::{Builder, Reconcile};
use crate::meters;
use crate::scale::{Scalable, resource_in_group};
use crate::views::{Pod, PodEntry, pods};
use client::{ApiResource, Change, Informer, Key, Outcome, Recorder, Regarding, WorkQueue};
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus, MetricStatus,
};
use limits::{Behavior, Bounds, Memory};
use meta::{GroupVersion, LabelSelector, Object};
use metrics::Metrics;
use parking_lot::Mutex;
use replicas::Target;
use sources::Scope;
use status::{ABLE_TO_SCALE, Draft, SCALED_TO_ZERO, SCALING_ACTIVE, SCALING_LIMITED};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The time between two syncs of an autoscaler.
const SYNC: Duration = Duration::from_secs(15);
/// How often a conflicting change of a scale is tried, and how long apart (client-go `retry.DefaultRetry`).
const ATTEMPTS: (u32, Duration) = (5, Duration::from_millis(10));

struct Controller {
    context: Context,
    autoscalers: Informer<()>,
    pods: Informer<Pod>,
    metrics: Metrics,
    recorder: Recorder,
    memory: Mutex<BTreeMap<Key, Memory>>,
    /// The selectors of the targets of all autoscalers. One that was not reconciled yet selects nothing.
    selectors: Mutex<BTreeMap<Key, LabelSelector>>,
}

fn autoscalers() -> ApiResource {
    ApiResource::typed::<HorizontalPodAutoscaler>()
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let c = Arc::new(Controller {
        autoscalers: builder.watch(&autoscalers()),
        pods: builder.watch(&pods()),
        metrics: Metrics::new(context.client.clone()),
        recorder: context.recorder(),
        memory: Mutex::default(),
        selectors: Mutex::default(),
        context,
    });
    builder.handle(&c, &c.autoscalers, Controller::changed);
    builder.run(5, c).await;
}

/// The scale of a target.
struct Scale {
    object: Object,
    target: Scalable,
}

impl Scale {
    fn int(&self, part: &str) -> i64 {
        self.object.int_at(&[part, "replicas"]).unwrap_or(0)
    }

    fn selector(&self) -> &str {
        self.object.str_at(&["status", "selector"]).unwrap_or_default()
    }

    /// Sets the replicas, also if somebody else changes the target meanwhile.
    async fn set(&mut self, replicas: i64) -> Result<(), client::Error> {
        let mut attempt = 1;
        loop {
            self.object.set(&["spec", "replicas"], replicas);
            let Err(e) = self.target.update(&self.object).await else { return Ok(()) };
            if !e.is_conflict() || attempt == ATTEMPTS.0 {
                return Err(e);
            }
            sleep(ATTEMPTS.1).await;
            if let Ok(latest) = self.target.scale(self.object.name()).await {
                self.object = latest;
            }
            attempt += 1;
        }
    }
}

/// The metrics' result.
struct Recommendation {
    replicas: i64,
    /// The metric that requires the most replicas.
    metric: String,
    statuses: Vec<MetricStatus>,
    /// The error of metrics that do not matter, since replicas are not removed.
    error: Option<String>,
}

/// An autoscaler while it is reconciled.
struct SyncState<'a> {
    key: &'a Key,
    object: &'a Object,
    spec: HorizontalPodAutoscalerSpec,
    draft: Draft,
}

impl SyncState<'_> {
    fn about(&self) -> Regarding {
        Regarding::object(self.object)
    }

    /// The target, for messages.
    fn reference(&self) -> String {
        let target = &self.spec.scale_target_ref;
        format!("{}/{}/{}", target.kind, self.key.namespace, target.name)
    }
}

/// The label for a change of the number of replicas.
fn direction(current: i64, desired: i64) -> &'static str {
    match desired.cmp(&current) {
        std::cmp::Ordering::Greater => "scale_up",
        std::cmp::Ordering::Less => "scale_down",
        std::cmp::Ordering::Equal => "none",
    }
}

/// What a reconcile did, from the status that it leaves.
fn action(status: &HorizontalPodAutoscalerStatus) -> &'static str {
    direction(status.current_replicas.unwrap_or(0).into(), status.desired_replicas.into())
}

/// The kind of a reconcile's error. Selectors and types of metrics are errors of the spec.
fn error_kind(failed: bool, status: &HorizontalPodAutoscalerStatus) -> &'static str {
    let mut conditions = status.conditions.iter().flatten();
    let of_spec = ["InvalidSelector", "AmbiguousSelector", "InvalidMetricSourceType"];
    let is_spec = |reason: Option<&str>| reason.is_some_and(|r| of_spec.contains(&r));
    match (failed, conditions.any(|c| c.type_ == SCALING_ACTIVE && is_spec(c.reason.as_deref()))) {
        (false, _) => "none",
        (true, true) => "spec",
        (true, false) => "internal",
    }
}

fn failed(message: String) -> Error {
    Error::Waiting(message)
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(entry) = self.autoscalers.get(&key) else {
            self.memory.lock().remove(&key);
            meters::remove(&meters::HPA_DESIRED, &[&key.namespace, &key.name]);
            return Ok(Outcome::Done);
        };
        let object = object(&autoscalers(), &entry)?;
        // After an error too, the next sync is due after the period.
        if let Err(e) = self.sync(&key, &object).await {
            tracing::debug!(controller = self.context.name, ?key, "{e}");
        }
        Ok(Outcome::After(SYNC))
    }
}

impl Controller {
    fn changed(&self, change: &Change<()>, queue: &WorkQueue<Key>) {
        let key = change.key();
        if change.new.is_none() {
            let mut selectors = self.selectors.lock();
            selectors.remove(&key);
            meters::set(&meters::HPA_COUNT, &[], selectors.len());
            // Its series go with it.
            queue.add(key);
            return;
        }
        {
            let mut selectors = self.selectors.lock();
            selectors.entry(key.clone()).or_insert_with(LabelSelector::none);
            meters::set(&meters::HPA_COUNT, &[], selectors.len());
        }
        queue.add_after(key, SYNC);
    }

    /// Reconciles an autoscaler and writes its status.
    async fn sync(&self, key: &Key, object: &Object) -> Result<(), Error> {
        let typed: HorizontalPodAutoscaler = serde_json::from_value(object.clone().into_value())
            .map_err(|e| Error::Invalid { what: "HorizontalPodAutoscaler", why: e.to_string() })?;
        let before = typed.status.clone().unwrap_or_default();
        let draft = Draft { status: before.clone(), now: self.context.now() };
        let mut sync = SyncState { key, object, spec: typed.spec, draft };
        let begun = Instant::now();
        let result = self.autoscale(&mut sync).await;
        let status = &sync.draft.status;
        let labels = [action(status), error_kind(result.is_err(), status)];
        meters::count(&meters::HPA_RECONCILES, &labels);
        meters::took(&meters::HPA_SECONDS, &labels, begun.elapsed());
        let desired = usize::try_from(status.desired_replicas).unwrap_or(0);
        meters::set(&meters::HPA_DESIRED, &[&key.namespace, &key.name], desired);
        if sync.draft.status != before {
            let status = serde_json::to_value(&sync.draft.status).unwrap_or_default();
            let api = self.context.client.dynamic(&autoscalers()).namespace(&key.namespace);
            if let Err(e) = put_status(&api, object, |o| o.set(&["status"], status.clone())).await {
                self.recorder.warning(sync.about(), "FailedUpdateStatus", e.to_string());
                return Err(failed(format!("failed to update status for {}: {e}", key.name)));
            }
        }
        result
    }

    /// Finds the scale of the target.
    async fn scale(&self, sync: &SyncState<'_>) -> Result<Scale, (&'static str, String)> {
        let reference = &sync.spec.scale_target_ref;
        let version = reference.api_version.as_deref().unwrap_or_default();
        let Some(gv) = GroupVersion::parse(version) else {
            return Err((
                "invalid API version in scale target reference",
                format!("unexpected GroupVersion string: {version}"),
            ));
        };
        let client = &self.context.client;
        let resource = resource_in_group(client, &gv.group, &reference.kind).await;
        let resource =
            resource.map_err(|e| ("unable to determine resource for scale target reference", e.to_string()))?;
        let target = Scalable::new(client, &sync.key.namespace, &resource);
        match target.scale(&reference.name).await {
            Ok(object) => Ok(Scale { object, target }),
            Err(e) => Err(("failed to query scale subresource", e.to_string())),
        }
    }

    async fn autoscale(&self, sync: &mut SyncState<'_>) -> Result<(), Error> {
        let mut scale = match self.scale(sync).await {
            Ok(scale) => scale,
            Err((what, e)) => {
                self.recorder.warning(sync.about(), "FailedGetScale", e.clone());
                let text = format!("the HPA controller was unable to get the target's current scale: {e}");
                sync.draft.condition(ABLE_TO_SCALE, false, "FailedGetScale", text);
                return Err(failed(format!("{what} ({}): {e}", sync.reference())));
            }
        };
        let text = "the HPA controller was able to get the target's current scale";
        sync.draft.condition(ABLE_TO_SCALE, true, "SucceededGetScale", text);
        let current = scale.int("spec");
        self.memory.lock().entry(sync.key.clone()).or_default().begin(current, Instant::now());
        let bounds = Bounds { min: sync.spec.min_replicas.unwrap_or(1).into(), max: sync.spec.max_replicas.into() };
        let (mut statuses, mut error) = (Vec::new(), None);
        let (desired, reason) = if current == 0 {
            let text = "scaling is disabled since the replica count of the target is zero";
            sync.draft.condition(SCALING_ACTIVE, false, "ScalingDisabled", text);
            sync.draft.remove_condition(SCALED_TO_ZERO);
            (0, String::new())
        } else if current > bounds.max {
            (bounds.max, "Current number of replicas above Spec.MaxReplicas".into())
        } else if current < bounds.min {
            (bounds.min, "Current number of replicas below Spec.MinReplicas".into())
        } else {
            let recommended = self.evaluate_all(sync, &scale).await?;
            let reason = match recommended.replicas.cmp(&current) {
                std::cmp::Ordering::Greater => format!("{} above target", recommended.metric),
                std::cmp::Ordering::Less => "All metrics below target".into(),
                std::cmp::Ordering::Equal => String::new(),
            };
            (statuses, error) = (recommended.statuses, recommended.error);
            (self.limit(sync, bounds, current, recommended.replicas), reason)
        };
        let rescale = desired != current;
        if rescale {
            self.rescale(sync, &mut scale, current, desired, &reason).await.inspect_err(|_| {
                sync.draft.observe(current, statuses.clone());
            })?;
        }
        sync.draft.observe(current, statuses);
        sync.draft.decide(desired, rescale);
        error.map_or(Ok(()), |e| Err(failed(e)))
    }

    /// Brings the replicas that metrics require within the limits.
    fn limit(&self, sync: &mut SyncState<'_>, bounds: Bounds, current: i64, desired: i64) -> i64 {
        let behavior = sync.spec.behavior.as_ref().map(Behavior::read);
        let limited = {
            let mut memory = self.memory.lock();
            let memory = memory.entry(sync.key.clone()).or_default();
            memory.limit(behavior.as_ref(), bounds, current, desired, Instant::now())
        };
        for (kind, (holds, reason, message)) in
            [(ABLE_TO_SCALE, limited.able_to_scale), (SCALING_LIMITED, limited.limited)]
        {
            sync.draft.condition(kind, holds, reason, message);
        }
        limited.replicas
    }

    async fn rescale(
        &self,
        sync: &mut SyncState<'_>,
        scale: &mut Scale,
        current: i64,
        desired: i64,
        reason: &str,
    ) -> Result<(), Error> {
        if let Err(e) = scale.set(desired).await {
            let text = format!("New size: {desired}; reason: {reason}; error: {e}");
            self.recorder.warning(sync.about(), "FailedRescale", text);
            let text = format!("the HPA controller was unable to update the target scale: {e}");
            sync.draft.condition(ABLE_TO_SCALE, false, "FailedUpdateScale", text);
            return Err(failed(format!("failed to rescale {}: {e}", sync.reference())));
        }
        let text = format!("the HPA controller was able to update the target scale to {desired}");
        sync.draft.condition(ABLE_TO_SCALE, true, "SucceededRescale", text);
        sync.draft.remove_condition(SCALED_TO_ZERO);
        self.recorder.normal(sync.about(), "SuccessfulRescale", format!("New size: {desired}; reason: {reason}"));
        let behavior = sync.spec.behavior.as_ref().map(Behavior::read);
        let mut memory = self.memory.lock();
        memory.entry(sync.key.clone()).or_default().scaled(behavior.as_ref(), current, desired, Instant::now());
        Ok(())
    }

    /// The pods of a target. Fails if its selector is unusable, or selects pods of another autoscaler.
    fn select(&self, sync: &mut SyncState<'_>, selector: &str) -> Result<Vec<Arc<PodEntry>>, String> {
        let (reason, event, message, error) = match self.select_own(sync.key, selector) {
            Ok(pods) => return Ok(pods),
            Err((_, e)) if selector.is_empty() => {
                ("InvalidSelector", "SelectorRequired", "the HPA target's scale is missing a selector".into(), e)
            }
            Err((reason, e)) => (reason, reason, e.clone(), e),
        };
        self.recorder.warning(sync.about(), event, error.clone());
        sync.draft.condition(SCALING_ACTIVE, false, reason, message);
        Err(error)
    }

    fn select_own(&self, key: &Key, selector: &str) -> Result<Vec<Arc<PodEntry>>, (&'static str, String)> {
        if selector.is_empty() {
            return Err(("InvalidSelector", "selector is required".into()));
        }
        let parsed = LabelSelector::parse(selector).map_err(|e| {
            let text = format!("couldn't convert selector into a corresponding internal selector object: {e}");
            ("InvalidSelector", text)
        })?;
        let mut selectors = self.selectors.lock();
        if let Some(own) = selectors.get_mut(key) {
            *own = parsed.clone();
        }
        let pods: Vec<Arc<PodEntry>> = {
            let cache = self.pods.cache();
            cache.in_namespace(&key.namespace).filter(|p| parsed.matches(|k| p.meta.label(k))).cloned().collect()
        };
        let of_namespace = selectors.iter().filter(|(k, _)| k.namespace == key.namespace);
        let selecting: Vec<String> = of_namespace
            .filter(|(_, s)| pods.iter().any(|p| s.matches(|k| p.meta.label(k))))
            .map(|(k, _)| k.to_string())
            .collect();
        if selecting.len() > 1 {
            let all = selecting.join(" ");
            let text = format!("pods by selector {selector} are controlled by multiple HPAs: [{all}]");
            return Err(("AmbiguousSelector", text));
        }
        Ok(pods)
    }

    /// Evaluates all metrics. The largest number of replicas counts; if a metric fails, replicas are not removed.
    async fn evaluate_all(&self, sync: &mut SyncState<'_>, scale: &Scale) -> Result<Recommendation, Error> {
        let current = scale.int("spec");
        let evaluated = match self.select(sync, scale.selector()) {
            Ok(pods) => self.evaluate_each(sync, scale, &pods).await,
            Err(e) => Err((Vec::new(), e)),
        };
        evaluated.map_err(|(statuses, e)| {
            sync.draft.observe(current, statuses);
            self.recorder.warning(sync.about(), "FailedComputeMetricsReplicas", e.clone());
            let what = "failed to compute desired number of replicas based on listed metrics for";
            failed(format!("{what} {}: {e}", sync.reference()))
        })
    }

    async fn evaluate_each(
        &self,
        sync: &mut SyncState<'_>,
        scale: &Scale,
        pods: &[Arc<PodEntry>],
    ) -> Result<Recommendation, (Vec<MetricStatus>, String)> {
        let specs = sync.spec.metrics.take().unwrap_or_default();
        let tolerances = limits::tolerances(sync.spec.behavior.as_ref());
        let scope = Scope {
            target: Target { pods, replicas: scale.int("spec"), tolerances, now: sync.draft.now },
            namespace: &sync.key.namespace,
            selector: scale.selector(),
            running: scale.int("status"),
        };
        let (mut replicas, mut metric, mut statuses) = (0, String::new(), Vec::new());
        let (mut first, mut invalid) = (None, 0);
        for spec in &specs {
            let begun = Instant::now();
            let evaluated = self.evaluate(&scope, spec).await;
            let (action, error) = match &evaluated {
                Ok(proposal) => (direction(scope.target.replicas, proposal.replicas), "none"),
                Err(f) if f.reason == "InvalidMetricSourceType" => ("none", "spec"),
                Err(_) => ("none", "internal"),
            };
            meters::count(&meters::HPA_METRICS, &[action, error, &spec.type_]);
            meters::took(&meters::HPA_METRIC_SECONDS, &[action, error, &spec.type_], begun.elapsed());
            match evaluated {
                Ok(proposal) => {
                    if replicas == 0 || proposal.replicas > replicas {
                        (replicas, metric) = (proposal.replicas, proposal.name);
                    }
                    statuses.push(proposal.status);
                }
                Err(failure) => {
                    self.recorder.warning(sync.about(), failure.reason, failure.error.clone());
                    statuses.push(MetricStatus::default());
                    invalid += 1;
                    first.get_or_insert(failure);
                }
            }
        }
        let error = first.as_ref().map(|f| {
            format!("invalid metrics ({invalid} invalid out of {}), first error is: {}", specs.len(), f.context)
        });
        if let (Some(first), Some(e)) = (first, &error)
            && (invalid == specs.len() || replicas < scope.target.replicas)
        {
            let text = format!("the HPA was unable to compute the replica count: {}", first.error);
            sync.draft.condition(SCALING_ACTIVE, false, first.reason, text);
            return Err((statuses, e.clone()));
        }
        let text = format!("the HPA was able to successfully calculate a replica count from {metric}");
        sync.draft.condition(SCALING_ACTIVE, true, "ValidMetricFound", text);
        Ok(Recommendation { replicas, metric, statuses, error })
    }
}

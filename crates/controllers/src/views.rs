//! Views of objects that several controllers read.

use client::informer::{Pooled, or_default};
use client::{ApiResource, Entry, Meta};
use jiff::Timestamp;
use meta::{LabelSelector, Quantity};
use placement::Toleration;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Deref;

/// The fields of a pod that controllers read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    pub metadata: PodMeta,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodMeta {
    pub annotations: PodAnnotations,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodAnnotations {
    #[serde(rename = "controller.kubernetes.io/pod-deletion-cost")]
    pub deletion_cost: Option<Box<str>>,
    #[serde(rename = "batch.kubernetes.io/job-completion-index")]
    pub completion_index: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    pub node_name: Box<str>,
    pub hostname: Box<str>,
    pub subdomain: Box<str>,
    pub host_network: bool,
    /// The pod has `activeDeadlineSeconds`.
    #[serde(rename = "activeDeadlineSeconds", deserialize_with = "is_present")]
    pub has_deadline: bool,
    pub tolerations: Pooled<Vec<Toleration>>,
    pub containers: Pooled<Vec<Container>>,
    pub init_containers: Pooled<Vec<Container>>,
    /// Resources of the pod as a whole.
    pub resources: Pooled<Resources>,
    pub overhead: Pooled<Amounts>,
    /// Volumes that are claims.
    #[serde(deserialize_with = "claim_volumes")]
    pub volumes: Pooled<Vec<ClaimVolume>>,
    /// The pod uses claims of devices.
    #[serde(rename = "resourceClaims", deserialize_with = "is_not_empty")]
    pub has_resource_claims: bool,
}

fn is_present<'de, D: Deserializer<'de>>(d: D) -> Result<bool, D::Error> {
    Ok(Option::<IgnoredAny>::deserialize(d)?.is_some())
}

fn is_not_empty<'de, D: Deserializer<'de>>(d: D) -> Result<bool, D::Error> {
    Ok(Option::<Vec<IgnoredAny>>::deserialize(d)?.is_some_and(|all| !all.is_empty()))
}

/// A volume of a pod that is a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClaimVolume {
    /// The name of a claim.
    Claim(Box<str>),
    /// The name of a generic ephemeral volume, whose claim belongs to the pod.
    Ephemeral(Box<str>),
}

fn claim_volumes<'de, D: Deserializer<'de>>(d: D) -> Result<Pooled<Vec<ClaimVolume>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Volume {
        #[serde(default)]
        name: Box<str>,
        ephemeral: Option<IgnoredAny>,
        persistent_volume_claim: Option<Source>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Source {
        #[serde(default)]
        claim_name: Box<str>,
    }
    let all = Option::<Vec<Volume>>::deserialize(d)?.unwrap_or_default();
    let claim = |v: Volume| match v.persistent_volume_claim {
        Some(source) => Some(ClaimVolume::Claim(source.claim_name)),
        None => v.ephemeral.map(|_| ClaimVolume::Ephemeral(v.name)),
    };
    Ok(Pooled::intern(all.into_iter().filter_map(claim).collect()))
}

impl PodSpec {
    pub fn has_ephemeral_volumes(&self) -> bool {
        self.volumes.iter().any(|v| matches!(v, ClaimVolume::Ephemeral(_)))
    }

    /// The names of the claims that the pod of this name uses.
    pub fn claims<'a>(&'a self, pod: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
        self.volumes.iter().map(move |volume| match volume {
            ClaimVolume::Claim(name) => Cow::Borrowed(&**name),
            ClaimVolume::Ephemeral(name) => Cow::Owned(format!("{pod}-{name}")),
        })
    }
}

/// The fields of a container that services and autoscalers read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: Box<str>,
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<ContainerPort>,
    pub resources: Resources,
    pub restart_policy: Box<str>,
}

impl Container {
    /// Whether an init container runs beside the containers.
    pub fn is_sidecar(&self) -> bool {
        &*self.restart_policy == "Always"
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Resources {
    #[serde(deserialize_with = "or_default")]
    pub requests: Amounts,
}

/// Quantities by resource name.
pub type Amounts = BTreeMap<Box<str>, Milli>;

/// A quantity in thousandths; zero if it cannot be parsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(from = "Value")]
pub struct Milli(pub i64);

impl From<Value> for Milli {
    fn from(v: Value) -> Self {
        let text = v.as_str().map_or_else(|| v.to_string(), str::to_owned);
        Self(Quantity::parse(&text).map_or(0, |q| q.milli_value()))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    pub name: Box<str>,
    pub container_port: i64,
    pub protocol: Box<str>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    pub phase: Box<str>,
    pub reason: Box<str>,
    pub start_time: Option<Timestamp>,
    pub observed_generation: i64,
    #[serde(rename = "podIP")]
    pub pod_ip: Box<str>,
    #[serde(rename = "podIPs", deserialize_with = "or_default")]
    pub pod_ips: Vec<PodIp>,
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
    #[serde(deserialize_with = "or_default")]
    pub container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodIp {
    pub ip: Box<str>,
}

/// A condition of any kind, without its message.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "RawCondition")]
pub struct Condition {
    state: Pooled<ConditionState>,
    pub last_transition_time: Option<Timestamp>,
}

/// A condition without its time, which is equal for most objects.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub struct ConditionState {
    pub r#type: Box<str>,
    pub status: Box<str>,
    pub reason: Box<str>,
}

impl Deref for Condition {
    type Target = ConditionState;

    fn deref(&self) -> &ConditionState {
        &self.state
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawCondition {
    r#type: Box<str>,
    status: Box<str>,
    reason: Box<str>,
    last_transition_time: Option<Timestamp>,
}

impl From<RawCondition> for Condition {
    fn from(raw: RawCondition) -> Self {
        let RawCondition { r#type, status, reason, last_transition_time } = raw;
        Self { state: Pooled::intern(ConditionState { r#type, status, reason }), last_transition_time }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    pub restart_count: i64,
}

pub type PodEntry = Entry<Pod>;

/// A selector, parsed once: a `LabelSelector`, or the map of labels of a
/// Service or ReplicationController. A missing, empty or invalid one selects nothing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Value")]
pub struct Selector(Option<LabelSelector>);

impl From<Value> for Selector {
    fn from(v: Value) -> Self {
        let map: Option<Vec<(&str, &str)>> =
            v.as_object().and_then(|m| m.iter().map(|(k, v)| Some((k.as_str(), v.as_str()?))).collect());
        let selector = match map {
            Some(labels) => Some(LabelSelector::from_map(labels.into_iter())),
            None => LabelSelector::from_value(Some(&v)).ok(),
        };
        Self(selector.filter(|s| !s.is_everything()))
    }
}

impl Selector {
    pub fn selector(&self) -> Option<&LabelSelector> {
        self.0.as_ref()
    }

    pub fn selects(&self, object: &Meta) -> bool {
        self.0.as_ref().is_some_and(|s| s.matches(|k| object.label(k)))
    }
}

impl Pod {
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|c| &*c.r#type == kind)
    }

    pub fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|c| &*c.status == "True")
    }

    pub fn ready_since(&self) -> Option<Timestamp> {
        self.condition("Ready").filter(|c| &*c.status == "True")?.last_transition_time
    }

    /// Ready for at least `min_ready_seconds` (upstream `podutil.IsPodAvailable`).
    pub fn is_available(&self, min_ready_seconds: i64, now: Timestamp) -> bool {
        self.is_ready() && (min_ready_seconds == 0 || self.available_in(min_ready_seconds, now).is_some_and(|s| s <= 0))
    }

    /// Seconds until a ready pod is available.
    pub fn available_in(&self, min_ready_seconds: i64, now: Timestamp) -> Option<i64> {
        Some(min_ready_seconds.saturating_sub(now.duration_since(self.ready_since()?).as_secs()))
    }

    /// Whether the pod has terminated: `Succeeded` or `Failed`.
    pub fn is_terminal(&self) -> bool {
        matches!(&*self.status.phase, "Succeeded" | "Failed")
    }

    pub fn max_restarts(&self) -> i64 {
        self.status.container_statuses.iter().map(|c| c.restart_count).max().unwrap_or(0)
    }
}

/// Whether the pod has neither terminated nor is being deleted (upstream `IsPodActive`).
pub fn is_active(p: &PodEntry) -> bool {
    !p.view.is_terminal() && !p.meta.is_deleting()
}

pub fn pods() -> ApiResource {
    ApiResource::typed::<k8s_openapi::api::core::v1::Pod>()
}

/// Finds a condition in an object's status.
pub fn condition<'a>(conditions: Option<&'a Value>, kind: &str) -> Option<&'a Value> {
    conditions?.as_array()?.iter().find(|c| c["type"] == kind)
}

/// An upper bound of counts; sums of a few do not overflow.
pub const MAX_COUNT: i64 = 1 << 40;

/// Resolves a count, or a percentage of `total` (upstream `GetScaledValueFromIntOrPercent`).
pub fn scaled(v: &Value, total: i64, round: fn(f64) -> f64) -> i64 {
    match v.as_str() {
        Some(s) => {
            let percent: f64 = s.strip_suffix('%').and_then(|p| p.parse().ok()).unwrap_or(0.0);
            (round(percent * total as f64 / 100.0) as i64).clamp(-MAX_COUNT, MAX_COUNT)
        }
        None => v.as_i64().unwrap_or(0).clamp(-MAX_COUNT, MAX_COUNT),
    }
}

/// A selector as Go prints a `*metav1.LabelSelector`, for the text of an event.
pub fn selector_text(selector: Option<&Value>) -> String {
    let Some(s) = selector.filter(|s| !s.is_null()) else { return "nil".into() };
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let labels: String =
        s["matchLabels"].as_object().into_iter().flatten().map(|(k, v)| format!("{k}: {},", text(v))).collect();
    let expressions: String = s["matchExpressions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|e| {
            let values: Vec<String> = e["values"].as_array().into_iter().flatten().map(text).collect();
            let (key, operator) = (text(&e["key"]), text(&e["operator"]));
            format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{}],}},", values.join(" "))
        })
        .collect();
    let labels = if s["matchLabels"].is_object() {
        format!("map[string]string{{{labels}}}")
    } else {
        "map[string]string{}".into()
    };
    format!("&LabelSelector{{MatchLabels:{labels},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}")
}

//! The configuration of the agent: upstream's `KubeletConfiguration` v1beta1, from a file and from flags.
//!
//! [`KubeletConfiguration`] has the fields that this agent uses. [`KubeletConfiguration::read`] decodes a file strictly (`form`),
//! applies upstream's defaults, refuses values of other fields that this agent cannot honour and names those without an effect
//! (`effects`), and validates with upstream's messages (`validate`).

mod effects;
mod form;
mod managers;
mod thresholds;
mod validate;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use codec::yaml::{DEPTH_LIMIT, Error as YamlError, parse_first};
use k8s_openapi::api::core::v1::Taint;
use meta::Quantity;
use runtime::LogLimits;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::affinity::CpuSet;
use crate::options::SeccompDefault;
use crate::pod::verification::Verification;
pub use managers::MemoryReservation;
pub use thresholds::{Amount, Pressure, Signal, Starved, Threshold};

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// The file cannot be read.
    #[error("failed to load kubelet config file, path: {}, error: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The file is no configuration.
    #[error("failed to load kubelet config file, path: {}, error: failed to decode, error: {message}", path.display())]
    Malformed { path: PathBuf, message: String },
    /// The configuration has invalid values.
    #[error("failed to validate kubelet configuration, error: {0}")]
    Invalid(String),
}

/// A duration in Go's notation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration {
    nanos: i64,
}

impl GoDuration {
    pub const fn seconds(seconds: u32) -> Self {
        Self { nanos: seconds as i64 * 1_000_000_000 }
    }

    /// The duration; zero if it is negative.
    pub fn get(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.nanos).unwrap_or(0))
    }
}

impl std::fmt::Display for GoDuration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&meta::time::go_duration(self.nanos))
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let nanos = meta::time::parse_go_duration(&text);
        nanos.map(|nanos| Self { nanos }).ok_or_else(|| D::Error::custom(format!("time: invalid duration {text:?}")))
    }
}

/// The version of cgroups that limits containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// Also that of hybrid machines.
    One,
    Two,
}

/// The fields that the agent uses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeletConfiguration {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub static_pod_path: String,
    pub file_check_frequency: GoDuration,
    pub address: String,
    pub port: i32,
    /// 0: none.
    pub healthz_port: i32,
    pub healthz_bind_address: String,
    pub authentication: Authentication,
    pub authorization: Authorization,
    pub enable_debugging_handlers: bool,
    pub enable_system_log_handler: bool,
    pub oom_score_adj: i32,
    /// Empty: the domain of the cluster's DNS server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster_domain: String,
    /// Empty: the cluster's DNS server.
    #[serde(rename = "clusterDNS", skip_serializing_if = "Vec::is_empty")]
    pub cluster_dns: Vec<String>,
    /// Empty: pods have no resolver configuration of the node.
    pub resolv_conf: String,
    pub node_status_update_frequency: GoDuration,
    pub node_status_report_frequency: GoDuration,
    pub node_lease_duration_seconds: i32,
    pub node_status_max_images: i32,
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: GoDuration,
    #[serde(rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: GoDuration,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: i32,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: i32,
    pub max_pods: i32,
    pub pods_per_core: i32,
    pub pod_pids_limit: i64,
    pub serialize_image_pulls: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_parallel_image_pulls: Option<i32>,
    pub image_pull_credentials_verification_policy: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preloaded_images_verification_allowlist: Vec<String>,
    pub eviction_hard: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub eviction_soft: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub eviction_soft_grace_period: BTreeMap<String, String>,
    pub eviction_pressure_transition_period: GoDuration,
    #[serde(skip_serializing_if = "is_none")]
    pub eviction_max_pod_grace_period: i32,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    pub enforce_node_allocatable: Vec<String>,
    /// `None`: as the version of cgroups has it.
    #[serde(rename = "singleProcessOOMKill", skip_serializing_if = "Option::is_none")]
    pub single_process_oom_kill: Option<bool>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cpu_manager_policy: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    pub cpu_manager_reconcile_period: GoDuration,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub memory_manager_policy: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub topology_manager_policy: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub topology_manager_scope: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub topology_manager_policy_options: BTreeMap<String, String>,
    #[serde(rename = "reservedSystemCPUs", skip_serializing_if = "String::is_empty")]
    pub reserved_system_cpus: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserved_memory: Vec<MemoryReservation>,
    /// Only those that permit options.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub feature_gates: BTreeMap<String, bool>,
    pub merge_default_eviction_settings: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub system_reserved: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kube_reserved: BTreeMap<String, String>,
    pub container_log_max_size: String,
    pub container_log_max_files: i32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_unsafe_sysctls: Vec<String>,
    pub shutdown_grace_period: GoDuration,
    pub shutdown_grace_period_critical_pods: GoDuration,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriod>,
    pub crash_loop_back_off: CrashLoopBackOff,
    pub seccomp_default: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub register_with_taints: Vec<Taint>,
    /// Empty: the runtime in this program.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container_runtime_endpoint: String,
    /// Empty: that of the container runtime.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image_service_endpoint: String,
    /// The timeout of calls to a container runtime, and of starts of containers.
    pub runtime_request_timeout: GoDuration,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Authentication {
    pub webhook: AuthenticationWebhook,
}

/// How long the results of token reviews are cached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuthenticationWebhook {
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

impl Default for AuthenticationWebhook {
    fn default() -> Self {
        Self { cache_ttl: GoDuration::seconds(2 * 60) }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Authorization {
    pub webhook: AuthorizationWebhook,
}

/// How long the results of access reviews are cached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuthorizationWebhook {
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

impl Default for AuthorizationWebhook {
    fn default() -> Self {
        Self { cache_authorized_ttl: GoDuration::seconds(5 * 60), cache_unauthorized_ttl: GoDuration::seconds(30) }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrashLoopBackOff {
    pub max_container_restart_period: GoDuration,
}

impl Default for CrashLoopBackOff {
    fn default() -> Self {
        Self { max_container_restart_period: GoDuration::seconds(300) }
    }
}

/// How long pods of a priority, and of higher ones up to the next entry, may take when the node shuts down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ShutdownGracePeriod {
    pub priority: i32,
    pub shutdown_grace_period_seconds: i64,
}

/// Upstream's default thresholds of hard eviction on Linux.
const EVICTION_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

fn default_eviction() -> BTreeMap<String, String> {
    EVICTION_HARD.map(|(signal, threshold)| (signal.to_owned(), threshold.to_owned())).into()
}

impl Default for KubeletConfiguration {
    fn default() -> Self {
        Self {
            static_pod_path: String::new(),
            file_check_frequency: GoDuration::seconds(20),
            address: "0.0.0.0".into(),
            port: 10250,
            healthz_port: 10248,
            healthz_bind_address: "127.0.0.1".into(),
            authentication: Authentication::default(),
            authorization: Authorization::default(),
            enable_debugging_handlers: true,
            enable_system_log_handler: true,
            oom_score_adj: -999,
            cluster_domain: String::new(),
            cluster_dns: Vec::new(),
            resolv_conf: "/etc/resolv.conf".into(),
            node_status_update_frequency: GoDuration::seconds(10),
            node_status_report_frequency: GoDuration::seconds(5 * 60),
            node_lease_duration_seconds: 40,
            node_status_max_images: 50,
            image_minimum_gc_age: GoDuration::seconds(2 * 60),
            image_maximum_gc_age: GoDuration::default(),
            image_gc_high_threshold_percent: 85,
            image_gc_low_threshold_percent: 80,
            max_pods: 110,
            pods_per_core: 0,
            pod_pids_limit: -1,
            // Upstream pulls one image after the other unless a limit is given.
            serialize_image_pulls: false,
            max_parallel_image_pulls: None,
            image_pull_credentials_verification_policy: "NeverVerifyPreloadedImages".into(),
            preloaded_images_verification_allowlist: Vec::new(),
            eviction_hard: default_eviction(),
            eviction_soft: BTreeMap::new(),
            eviction_soft_grace_period: BTreeMap::new(),
            eviction_pressure_transition_period: GoDuration::seconds(5 * 60),
            eviction_max_pod_grace_period: 0,
            eviction_minimum_reclaim: BTreeMap::new(),
            enforce_node_allocatable: vec!["pods".into()],
            single_process_oom_kill: None,
            cpu_manager_policy: "none".into(),
            cpu_manager_policy_options: BTreeMap::new(),
            cpu_manager_reconcile_period: GoDuration::seconds(10),
            memory_manager_policy: "None".into(),
            topology_manager_policy: "none".into(),
            topology_manager_scope: "container".into(),
            topology_manager_policy_options: BTreeMap::new(),
            reserved_system_cpus: String::new(),
            reserved_memory: Vec::new(),
            feature_gates: BTreeMap::new(),
            merge_default_eviction_settings: false,
            system_reserved: BTreeMap::new(),
            kube_reserved: BTreeMap::new(),
            container_log_max_size: "10Mi".into(),
            container_log_max_files: 5,
            allowed_unsafe_sysctls: Vec::new(),
            shutdown_grace_period: GoDuration::default(),
            shutdown_grace_period_critical_pods: GoDuration::default(),
            shutdown_grace_period_by_pod_priority: Vec::new(),
            crash_loop_back_off: CrashLoopBackOff::default(),
            seccomp_default: false,
            register_with_taints: Vec::new(),
            container_runtime_endpoint: String::new(),
            image_service_endpoint: String::new(),
            runtime_request_timeout: GoDuration::seconds(2 * 60),
        }
    }
}

/// Fields whose zero value means the default, as upstream.
const UNSET_IF_ZERO: [&str; 21] = [
    "imagePullCredentialsVerificationPolicy",
    "fileCheckFrequency",
    "address",
    "port",
    "healthzBindAddress",
    "nodeStatusUpdateFrequency",
    "nodeStatusReportFrequency",
    "nodeLeaseDurationSeconds",
    "imageMinimumGCAge",
    "maxPods",
    "containerLogMaxSize",
    "evictionPressureTransitionPeriod",
    "cpuManagerPolicy",
    "cpuManagerReconcilePeriod",
    "memoryManagerPolicy",
    "topologyManagerPolicy",
    "topologyManagerScope",
    "runtimeRequestTimeout",
    "authentication/webhook/cacheTTL",
    "authorization/webhook/cacheAuthorizedTTL",
    "authorization/webhook/cacheUnauthorizedTTL",
];

impl KubeletConfiguration {
    /// Reads a file. Returns the configuration and the fields in it that have no effect here.
    pub fn read(path: &Path) -> Result<(Self, Vec<String>), ConfigurationError> {
        let unreadable = |source| ConfigurationError::Unreadable { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let malformed = |message| ConfigurationError::Malformed { path: path.to_owned(), message };
        let file = decode(&text).map_err(malformed)?;
        let ignored = effects::check(&file).map_err(ConfigurationError::Invalid)?;
        let configuration = with_defaults(file).map_err(malformed)?;
        configuration.validate()?;
        Ok((configuration, ignored))
    }

    /// Errors with all invalid values, with upstream's messages.
    pub fn validate(&self) -> Result<(), ConfigurationError> {
        schema::form::aggregate(&validate::errors(self)).map_err(ConfigurationError::Invalid)
    }

    /// Errors if a value takes another version of cgroups than this machine has.
    pub fn check_cgroups(&self, version: CgroupVersion) -> Result<(), ConfigurationError> {
        if version == CgroupVersion::One && self.single_process_oom_kill == Some(false) {
            let message =
                "invalid configuration: singleProcessOOMKill must not be explicitly set to false when using cgroup v1";
            return Err(ConfigurationError::Invalid(message.into()));
        }
        Ok(())
    }

    /// Whether all processes of a container are killed when it runs out of memory, where the kernel can do that (cgroup v2).
    pub fn kills_containers(&self) -> bool {
        self.single_process_oom_kill != Some(true)
    }

    /// Bytes and number of the files of a container's log.
    pub fn log_limits(&self) -> LogLimits {
        let default = LogLimits::default();
        LogLimits {
            max_size: validate::log_size(&self.container_log_max_size).unwrap_or(default.max_size),
            max_files: usize::try_from(self.container_log_max_files).unwrap_or(default.max_files),
        }
    }

    /// The maximum number of pods of a node with this number of processors.
    pub fn max_pods(&self, processors: u64) -> u32 {
        let per_core = u64::try_from(self.pods_per_core).unwrap_or(0).saturating_mul(processors);
        let limit = u32::try_from(self.max_pods).unwrap_or(0);
        if per_core == 0 { limit } else { limit.min(u32::try_from(per_core).unwrap_or(u32::MAX)) }
    }

    /// The address of the port for health checks, if there is one.
    pub fn healthz(&self) -> Option<SocketAddr> {
        let port = u16::try_from(self.healthz_port).ok().filter(|port| *port != 0)?;
        Some(SocketAddr::new(self.healthz_bind_address.parse().ok()?, port))
    }

    /// The seccomp profile of containers that have none.
    pub fn seccomp_default(&self) -> SeccompDefault {
        if self.seccomp_default { SeccompDefault::RuntimeDefault } else { SeccompDefault::Unconfined }
    }

    /// The amount of a resource that is reserved for the system and for Kubernetes; of CPU in thousandths.
    pub fn reserved(&self, resource: &str) -> u64 {
        if resource == "cpu" && !self.reserved_system_cpus.is_empty() {
            // As upstream, they replace the reserved amounts.
            let cpus = self.reserved_system_cpus.parse::<CpuSet>().map_or(0, |c| c.len());
            return 1000 * cpus as u64;
        }
        let amount = |reserved: &BTreeMap<String, String>| {
            let quantity = reserved.get(resource)?.parse::<Quantity>().ok()?;
            let amount = if resource == "cpu" { quantity.milli_value() } else { quantity.value() };
            u64::try_from(amount).ok()
        };
        [&self.system_reserved, &self.kube_reserved].into_iter().filter_map(amount).sum()
    }

    /// The images for which pods need credentials although they are present.
    pub(crate) fn verification(&self) -> Verification {
        let allowlist = &self.preloaded_images_verification_allowlist;
        // Patterns were validated.
        Verification::read(&self.image_pull_credentials_verification_policy, allowlist).unwrap_or(Verification::Always)
    }

    /// How many images may be pulled at a time.
    pub fn parallel_pulls(&self) -> Option<usize> {
        if self.serialize_image_pulls {
            return Some(1);
        }
        self.max_parallel_image_pulls.and_then(|n| usize::try_from(n).ok())
    }

    /// The thresholds of eviction. Only for a valid configuration.
    pub fn thresholds(&self) -> Vec<Threshold> {
        self.parse_thresholds().unwrap_or_default()
    }

    fn parse_thresholds(&self) -> Result<Vec<Threshold>, String> {
        thresholds::parse(thresholds::Sources {
            hard: &self.eviction_hard,
            soft: &self.eviction_soft,
            soft_grace_period: &self.eviction_soft_grace_period,
            minimum_reclaim: &self.eviction_minimum_reclaim,
            enforces_pods: self.enforces_pods(),
        })
    }

    /// Whether the limits of all pods together are enforced.
    pub fn enforces_pods(&self) -> bool {
        self.enforce_node_allocatable.iter().any(|what| what == "pods")
    }

    /// What a hard threshold of eviction keeps of a resource with this capacity.
    pub fn hard_threshold(&self, signal: Signal, capacity: u64) -> u64 {
        let capacity = i64::try_from(capacity).unwrap_or(i64::MAX);
        let all = self.thresholds().into_iter().filter(|t| t.signal == signal && t.is_hard());
        all.map(|t| u64::try_from(t.value.of_capacity(capacity).value()).unwrap_or(0)).next().unwrap_or(0)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_none(number: &i32) -> bool {
    *number == 0
}

fn decode(text: &str) -> Result<Value, String> {
    let (document, duplicates) = parse_first(text, DEPTH_LIMIT).map_err(|e| e.to_string())?;
    form::KIND.registered(&document)?;
    if !duplicates.is_empty() {
        return Err(format!("strict decoding error: {}", YamlError::Duplicates(duplicates)));
    }
    form::KIND.read(&document)
}

/// The fields that the agent uses, with upstream's defaults.
fn with_defaults(mut file: Value) -> Result<KubeletConfiguration, String> {
    for path in UNSET_IF_ZERO {
        let (parent, field) = path.rsplit_once('/').unwrap_or(("", path));
        let pointer = if parent.is_empty() { String::new() } else { format!("/{parent}") };
        if let Some(fields) = file.pointer_mut(&pointer).and_then(Value::as_object_mut)
            && fields.get(field).is_some_and(is_zero)
        {
            fields.remove(field);
        }
    }
    let has = |field: &str| file.get(field).is_some();
    let (reports, updates) = (has("nodeStatusReportFrequency"), has("nodeStatusUpdateFrequency"));
    let serializes = has("serializeImagePulls");
    let mut c: KubeletConfiguration = serde_json::from_value(file).map_err(|e| e.to_string())?;
    if updates && !reports {
        c.node_status_report_frequency = c.node_status_update_frequency;
    }
    if !serializes && c.max_parallel_image_pulls == Some(1) {
        c.serialize_image_pulls = true;
    }
    c.pod_pids_limit = c.pod_pids_limit.max(-1);
    if c.merge_default_eviction_settings {
        let own = std::mem::replace(&mut c.eviction_hard, default_eviction());
        c.eviction_hard.extend(own);
    }
    Ok(c)
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || meta::time::parse_go_duration(text) == Some(0),
        _ => false,
    }
}

#[cfg(test)]
mod tests;

//! Validation of the fields that the agent uses (`pkg/kubelet/apis/config/validation`), with upstream's messages.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use meta::{Quantity, names};

use super::{GoDuration, KubeletConfiguration};
use crate::pod::verification::{POLICIES, Verification};

const TAINT_EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// All errors, in upstream's order.
pub(super) fn errors(c: &KubeletConfiguration) -> Vec<String> {
    let mut errors = Vec::new();
    let mut check = |is_valid: bool, message: String| {
        if !is_valid {
            errors.push(format!("invalid configuration: {message}"));
        }
    };
    check(c.node_lease_duration_seconds > 0, "nodeLeaseDurationSeconds must be greater than 0".into());
    let (high, low) = (c.image_gc_high_threshold_percent, c.image_gc_low_threshold_percent);
    check(
        (0..=100).contains(&high),
        format!("imageGCHighThresholdPercent (--image-gc-high-threshold) {high} must be between 0 and 100, inclusive"),
    );
    check(
        (0..=100).contains(&low),
        format!("imageGCLowThresholdPercent (--image-gc-low-threshold) {low} must be between 0 and 100, inclusive"),
    );
    check(
        low < high,
        format!(
            "imageGCLowThresholdPercent (--image-gc-low-threshold) {low} must be less than imageGCHighThresholdPercent \
             (--image-gc-high-threshold) {high}"
        ),
    );
    let (minimum, maximum) = (c.image_minimum_gc_age, c.image_maximum_gc_age);
    check(minimum.nanos >= 0, format!("imageMinimumGCAge {minimum} must not be negative"));
    check(maximum.nanos >= 0, format!("imageMaximumGCAge {maximum} must not be negative"));
    check(
        maximum.nanos <= 0 || maximum > minimum,
        format!("imageMaximumGCAge {maximum} must be greater than imageMinimumGCAge {minimum}"),
    );
    let images = c.node_status_max_images;
    check(images >= -1, format!("nodeStatusMaxImages (--node-status-max-images) {images} must be -1 or greater"));
    let (policy, allowlist) =
        (&c.image_pull_credentials_verification_policy, &c.preloaded_images_verification_allowlist);
    check(
        POLICIES.contains(&policy.as_str()),
        format!(
            "option {policy:?} specified for imagePullCredentialsVerificationPolicy. Valid options are {:?}, {:?}, {:?} or {:?}",
            POLICIES[0], POLICIES[1], POLICIES[2], POLICIES[3]
        ),
    );
    let is_listed = policy == "NeverVerifyAllowlistedImages";
    check(
        allowlist.is_empty() || is_listed,
        "can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is not \"NeverVerifyAllowlistedImages\"".into(),
    );
    if let Err(why) = Verification::read(policy, allowlist) {
        check(false, format!("invalid image pattern in `preloadedImagesVerificationAllowlist`: {why}"));
    }
    check(c.max_pods >= 0, format!("maxPods (--max-pods) {} must not be a negative number", c.max_pods));
    check(
        (-1000..=1000).contains(&c.oom_score_adj),
        format!("oomScoreAdj (--oom-score-adj) {} must be between -1000 and 1000, inclusive", c.oom_score_adj),
    );
    check(
        c.pods_per_core >= 0,
        format!("podsPerCore (--pods-per-core) {} must not be a negative number", c.pods_per_core),
    );
    check((1..=65535).contains(&c.port), format!("port (--port) {} must be between 1 and 65535, inclusive", c.port));
    check(
        (0..=65535).contains(&c.healthz_port),
        format!("healthzPort (--healthz-port) {} must be between 1 and 65535, inclusive", c.healthz_port),
    );
    let pulls = c.max_parallel_image_pulls;
    check(
        pulls.is_none_or(|n| n >= 1),
        format!("maxParallelImagePulls {} must be a positive number", pulls.unwrap_or_default()),
    );
    check(
        !c.serialize_image_pulls || pulls.is_none_or(|n| n <= 1),
        "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is set to \
         false"
            .into(),
    );
    shutdown(c, &mut check);
    let restart = c.crash_loop_back_off.max_container_restart_period.get();
    check(
        (Duration::from_secs(1)..=Duration::from_secs(300)).contains(&restart),
        format!(
            "CrashLoopBackOff.MaxContainerRestartPeriod (got: {} seconds) must be set between 1s and 300s",
            restart.as_secs_f64()
        ),
    );
    check(c.container_log_max_files > 1, "containerLogMaxFiles must be greater than 1".into());
    if let Err(why) = log_size(&c.container_log_max_size) {
        check(false, why);
    }
    if let Err(why) = c.parse_thresholds() {
        check(false, why);
    }
    for why in c.manager_errors() {
        check(false, why);
    }
    for (field, reserved) in [("systemReserved", &c.system_reserved), ("kubeReserved", &c.kube_reserved)] {
        for (resource, quantity) in reserved {
            if let Err(why) = check_reserved(resource, quantity) {
                check(false, format!("{field}: {why}"));
            }
        }
    }
    for (field, address) in [("address", &c.address), ("healthzBindAddress", &c.healthz_bind_address)]
        .into_iter()
        .chain(c.cluster_dns.iter().map(|a| ("clusterDNS", a)))
    {
        check(address.parse::<IpAddr>().is_ok(), format!("{field} {address:?} must be an IP address"));
    }
    for (field, path) in [("staticPodPath", &c.static_pod_path), ("resolvConf", &c.resolv_conf)] {
        check(path.is_empty() || Path::new(path).is_absolute(), format!("{field} {path:?} must be an absolute path"));
    }
    errors.extend(c.register_with_taints.iter().filter(|t| !is_taint(t)).map(|t| {
        let value = t.value.as_ref().map(|v| format!("={v}")).unwrap_or_default();
        format!("invalid taint: {}{value}:{}", t.key, t.effect)
    }));
    errors
}

fn shutdown(c: &KubeletConfiguration, check: &mut impl FnMut(bool, String)) {
    let (all, critical) = (c.shutdown_grace_period, c.shutdown_grace_period_critical_pods);
    check(critical <= all, format!("shutdownGracePeriodCriticalPods {critical} must be <= shutdownGracePeriod {all}"));
    let is_long = |period: GoDuration| period.nanos == 0 || period >= GoDuration::seconds(1);
    check(is_long(all), format!("shutdownGracePeriod {all} must be either zero or otherwise >= 1 sec"));
    check(
        is_long(critical),
        format!("shutdownGracePeriodCriticalPods {critical} must be either zero or otherwise >= 1 sec"),
    );
    check(
        c.shutdown_grace_period_by_pod_priority.is_empty() || all.nanos <= 0 && critical.nanos <= 0,
        "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time".into(),
    );
}

/// The size of a log file in bytes.
pub(super) fn log_size(text: &str) -> Result<u64, String> {
    let quantity: Quantity =
        text.parse().map_err(|e| format!("failed to parse container log max size {text:?}: {e}"))?;
    let bytes = u64::try_from(quantity.value()).ok().filter(|b| *b > 0);
    bytes.ok_or_else(|| format!("containerLogMaxSize {text:?} must be positive"))
}

fn check_reserved(resource: &str, quantity: &str) -> Result<(), String> {
    if !matches!(resource, "cpu" | "memory" | "ephemeral-storage" | "pid") {
        return Err(format!("cannot reserve {resource:?} resource"));
    }
    let parsed: Quantity =
        quantity.parse().map_err(|_| format!("failed to parse quantity {quantity:?} for {resource:?} resource"))?;
    if parsed.sign() < 0 {
        return Err(format!("resource quantity for {resource:?} cannot be negative: {quantity}"));
    }
    Ok(())
}

fn is_taint(t: &Taint) -> bool {
    let value = t.value.as_deref().unwrap_or_default();
    names::qualified_name(&t.key).is_empty()
        && names::label_value(value).is_empty()
        && TAINT_EFFECTS.contains(&t.effect.as_str())
        && t.time_added.is_none()
}

//! `/configz`: the configuration of the agent as a `KubeletConfiguration` (`k8s.io/kubelet/config/v1beta1`). Only fields that the
//! agent uses.

use http::Response;
use serde_json::json;

use super::access::{ALLOWED, DENIED, TOKENS};
use super::{Body, json};
use crate::image_gc;
use crate::node::{HEARTBEAT, LEASE_SECONDS, STATUS_PERIOD};
use crate::options::{Options, SeccompDefault};
use crate::pod::backoff::go_duration;

pub(super) fn serve(options: &Options) -> Response<Body> {
    let dns: Vec<&String> = options.dns.server.iter().collect();
    json(&json!({"kubeletconfig": {
        "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "enableServer": true,
        "address": options.address.to_string(),
        "port": options.port,
        "authentication": {
            "x509": {}, "webhook": {"enabled": true, "cacheTTL": go_duration(TOKENS)}, "anonymous": {"enabled": false},
        },
        "authorization": {"mode": "Webhook", "webhook": {
            "cacheAuthorizedTTL": go_duration(ALLOWED), "cacheUnauthorizedTTL": go_duration(DENIED),
        }},
        "clusterDomain": options.dns.domain,
        "clusterDNS": dns,
        "nodeStatusUpdateFrequency": go_duration(HEARTBEAT),
        "nodeStatusReportFrequency": go_duration(STATUS_PERIOD),
        "nodeLeaseDurationSeconds": LEASE_SECONDS,
        "maxPods": options.max_pods,
        "podCIDR": options.pod_cidr.clone().unwrap_or_default(),
        "serializeImagePulls": false,
        "imageMinimumGCAge": go_duration(image_gc::MIN_AGE),
        "imageGCHighThresholdPercent": image_gc::HIGH_PERCENT,
        "imageGCLowThresholdPercent": image_gc::LOW_PERCENT,
        "podPidsLimit": options.pod_pids_limit.unwrap_or(-1),
        "seccompDefault": options.seccomp_default == SeccompDefault::RuntimeDefault,
        "allowedUnsafeSysctls": options.sysctls.unsafe_patterns(),
        "enableDebuggingHandlers": true,
        "enableSystemLogHandler": true,
        "enableSystemLogQuery": false,
        "enableProfilingHandler": false,
        "enableDebugFlagsHandler": false,
        "registerNode": true,
    }}))
}

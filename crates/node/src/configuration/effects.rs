//! What becomes of the fields that have an effect in upstream's kubelet and none here.
//!
//! A value is refused if a user would rely on it (security, resources of pods, where pods come from). Values that only tune upstream's
//! kubelet are accepted, and named in a warning.

use serde_json::Value;

/// What happens if a file has the field.
enum Effect {
    /// It is accepted without an effect.
    None,
    /// Only these values are accepted, as JSON: they say what this agent does anyway.
    Only(&'static [&'static str]),
}

use Effect::{None as Nothing, Only};

const FIELDS: &[(&str, Effect)] = &[
    ("enableServer", Only(&["true"])),
    ("podLogsDir", Nothing),
    ("syncFrequency", Nothing),
    ("httpCheckFrequency", Nothing),
    ("staticPodURL", Only(&["\"\""])),
    ("staticPodURLHeader", Only(&["{}"])),
    ("readOnlyPort", Only(&["0"])),
    ("tlsCertFile", Only(&["\"\""])),
    ("tlsPrivateKeyFile", Only(&["\"\""])),
    ("tlsCipherSuites", Only(&["[]"])),
    ("tlsCurvePreferences", Only(&["[]"])),
    ("tlsMinVersion", Only(&["\"\"", "\"VersionTLS12\""])),
    // Certificates of joined nodes are always rotated.
    ("rotateCertificates", Nothing),
    ("serverTLSBootstrap", Nothing),
    ("authentication/x509/clientCAFile", Only(&["\"\""])),
    ("authentication/webhook/enabled", Only(&["true"])),
    ("authentication/anonymous/enabled", Only(&["false"])),
    ("authorization/mode", Only(&["\"\"", "\"Webhook\""])),
    ("registryPullQPS", Nothing),
    ("registryBurst", Nothing),
    ("eventRecordQPS", Nothing),
    ("eventBurst", Nothing),
    ("enableContentionProfiling", Nothing),
    ("streamingConnectionIdleTimeout", Nothing),
    ("volumeStatsAggPeriod", Nothing),
    ("kubeletCgroups", Nothing),
    ("systemCgroups", Nothing),
    ("cgroupRoot", Only(&["\"\""])),
    ("cgroupsPerQOS", Only(&["true"])),
    ("cgroupDriver", Nothing),
    ("qosReserved", Only(&["{}"])),
    ("hairpinMode", Nothing),
    ("podCIDR", Only(&["\"\""])),
    ("runOnce", Only(&["false"])),
    ("cpuCFSQuota", Only(&["true"])),
    ("cpuCFSQuotaPeriod", Only(&["\"0s\"", "\"100ms\""])),
    ("maxOpenFiles", Nothing),
    ("contentType", Nothing),
    ("kubeAPIQPS", Nothing),
    ("kubeAPIBurst", Nothing),
    ("enableControllerAttachDetach", Nothing),
    ("protectKernelDefaults", Only(&["false"])),
    ("makeIPTablesUtilChains", Nothing),
    ("iptablesMasqueradeBit", Nothing),
    ("iptablesDropBit", Nothing),
    ("featureGates", Nothing),
    ("failSwapOn", Nothing),
    ("memorySwap/swapBehavior", Only(&["\"\"", "\"NoSwap\""])),
    ("containerLogMaxWorkers", Nothing),
    ("containerLogMonitorInterval", Nothing),
    ("configMapAndSecretChangeDetectionStrategy", Nothing),
    ("showHiddenMetricsForVersion", Nothing),
    ("systemReservedCgroup", Only(&["\"\""])),
    ("kubeReservedCgroup", Only(&["\"\""])),
    ("enforceNodeAllocatable", Only(&["[]", "[\"pods\"]", "[\"none\"]"])),
    ("volumePluginDir", Nothing),
    ("providerID", Nothing),
    ("kernelMemcgNotification", Nothing),
    ("logging", Nothing),
    ("enableSystemLogQuery", Only(&["false"])),
    ("enableProfilingHandler", Nothing),
    ("enableDebugFlagsHandler", Nothing),
    ("memoryThrottlingFactor", Nothing),
    ("memoryReservationPolicy", Only(&["\"\"", "\"None\""])),
    ("registerNode", Only(&["true"])),
    ("tracing", Nothing),
    ("localStorageCapacityIsolation", Nothing),
    ("failCgroupV1", Nothing),
    ("userNamespaces/idsPerPod", Only(&["65536"])),
];

/// The fields of a file that have no effect. Errors with all values that this agent cannot honour.
pub(super) fn check(file: &Value) -> Result<Vec<String>, String> {
    let (mut ignored, mut errors) = (Vec::new(), Vec::new());
    for (path, effect) in FIELDS {
        let Some(value) = file.pointer(&format!("/{path}")).filter(|v| !v.is_null()) else { continue };
        let name = path.replace('/', ".");
        match effect {
            Nothing => ignored.push(name),
            Only(values) if values.contains(&value.to_string().as_str()) => {}
            Only(values) => {
                let why = match values {
                    ["\"\"" | "{}" | "[]"] => "it is not supported".to_owned(),
                    _ => format!(
                        "supported: {}",
                        values.iter().filter(|v| **v != "\"\"").copied().collect::<Vec<_>>().join(", ")
                    ),
                };
                errors.push(format!("invalid configuration: {name} {value} cannot be honoured by this node: {why}"));
            }
        }
    }
    schema::form::aggregate(&errors).map(|()| ignored)
}

#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FIELDS.iter().map(|(path, _)| *path)
}

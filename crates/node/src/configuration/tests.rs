use super::*;
use serde_json::json;

fn read(fields: Value) -> Result<(KubeletConfiguration, Vec<String>), String> {
    let mut file = json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"});
    file.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    text(&file.to_string())
}

fn text(text: &str) -> Result<(KubeletConfiguration, Vec<String>), String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubelet.yaml");
    std::fs::write(&path, text).unwrap();
    KubeletConfiguration::read(&path).map_err(|e| e.to_string().replace(path.to_str().unwrap(), "FILE"))
}

#[test]
fn an_empty_configuration_is_the_default() {
    let (configuration, ignored) = read(json!({})).unwrap();
    assert_eq!(configuration, KubeletConfiguration::default());
    assert_eq!(ignored, [""; 0]);
    // Zero means the default where upstream's fields are no pointers.
    assert_eq!(configuration.healthz(), Some("127.0.0.1:10248".parse().unwrap()));
    let off = read(json!({"healthzPort": 0})).unwrap().0;
    assert_eq!(off.healthz(), None, "the port of health checks is a pointer");
    let zeros = json!({"port": 0, "maxPods": 0, "address": "", "healthzBindAddress": "", "fileCheckFrequency": "0s",
        "authentication": {"webhook": {"cacheTTL": "0s"}}});
    assert_eq!(read(zeros).unwrap().0, KubeletConfiguration::default());
}

#[test]
fn fields_are_read() {
    let (c, ignored) = read(json!({
        "staticPodPath": "/etc/kubernetes/manifests", "maxPods": 5, "podPidsLimit": 100, "seccompDefault": true,
        "clusterDNS": ["10.0.0.10"], "clusterDomain": "example.org", "containerLogMaxSize": "1Mi",
        "nodeStatusUpdateFrequency": "4s", "maxParallelImagePulls": 1,
        "evictionHard": {"memory.available": "5%"}, "mergeDefaultEvictionSettings": true,
        "registerWithTaints": [{"key": "a", "value": "b", "effect": "NoSchedule"}],
        "shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s",
        "syncFrequency": "1m", "featureGates": {"X": true},
    }))
    .unwrap();
    assert_eq!((c.static_pod_path.as_str(), c.max_pods, c.pod_pids_limit), ("/etc/kubernetes/manifests", 5, 100));
    assert_eq!((c.cluster_dns[0].as_str(), c.cluster_domain.as_str()), ("10.0.0.10", "example.org"));
    assert_eq!(c.node_status_report_frequency, GoDuration::seconds(4), "as often as updates, unless it is set");
    assert!(c.serialize_image_pulls && c.seccomp_default);
    let of = |signal| c.thresholds().into_iter().find(|t| t.signal == signal).map(|t| t.value);
    assert_eq!(of(Signal::MemoryAvailable), Some(Amount::Share(0.05)));
    assert!(of(Signal::NodeFsAvailable).is_some(), "merged with the default");
    assert_eq!(c.shutdown_grace_period.get(), Duration::from_secs(30));
    assert_eq!(ignored, ["syncFrequency", "featureGates"]);
}

#[test]
fn decoding_is_strict() {
    let whole = "failed to load kubelet config file, path: FILE, error: failed to decode, error: ";
    for (file, message) in [
        (
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPod: 5\n",
            "strict decoding error: unknown field \"maxPod\"",
        ),
        (
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 5\nmaxPods: 6\n",
            "strict decoding error: ",
        ),
        (
            "apiVersion: kubelet.config.k8s.io/v1\nkind: KubeletConfiguration\n",
            "no kind \"KubeletConfiguration\" is registered for version \"kubelet.config.k8s.io/v1\"",
        ),
        ("maxPods: 5", "Object 'Kind' is missing in"),
    ] {
        let error = text(file).unwrap_err();
        assert!(error.starts_with(&format!("{whole}{message}")), "{error}");
    }
    let error = read(json!({"maxPods": "five"})).unwrap_err();
    assert!(error.contains("maxPods"), "{error}");
}

#[test]
fn soft_eviction_is_read() {
    let (c, _) = read(json!({
        "evictionSoft": {"memory.available": "1Gi"}, "evictionSoftGracePeriod": {"memory.available": "30s"},
        "evictionPressureTransitionPeriod": "0s", "evictionMaxPodGracePeriod": 60, "enforceNodeAllocatable": ["none"],
        "evictionMinimumReclaim": {"memory.available": "0"},
    }))
    .unwrap();
    let soft: Vec<Threshold> = c.thresholds().into_iter().filter(|t| !t.is_hard()).collect();
    assert_eq!((soft.len(), soft[0].grace_period), (1, Duration::from_secs(30)));
    assert_eq!(c.eviction_pressure_transition_period, GoDuration::seconds(300), "zero is the default");
    assert!(c.thresholds().iter().all(|t| t.signal != Signal::AllocatableMemoryAvailable));
    let error = read(json!({"evictionSoft": {"memory.available": "1Gi"}})).unwrap_err();
    assert!(
        error.ends_with("grace period must be specified for the soft eviction threshold memory.available"),
        "{error}"
    );
}

#[test]
fn invalid_values_have_upstreams_messages() {
    let check = |fields: Value, message: &str| {
        let whole = format!("failed to validate kubelet configuration, error: {message}");
        assert_eq!(read(fields.clone()).unwrap_err(), whole, "{fields}");
    };
    check(
        json!({"imagePullCredentialsVerificationPolicy": "Sometimes"}),
        "invalid configuration: option \"Sometimes\" specified for imagePullCredentialsVerificationPolicy. Valid options are \"NeverVerify\", \"NeverVerifyPreloadedImages\", \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\"",
    );
    check(
        json!({"preloadedImagesVerificationAllowlist": ["quay.io/a"]}),
        "invalid configuration: can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is not \"NeverVerifyAllowlistedImages\"",
    );
    check(
        json!({"imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages", "preloadedImagesVerificationAllowlist": ["quay.io/a:1"]}),
        "invalid configuration: invalid image pattern in `preloadedImagesVerificationAllowlist`: neither tag nor digest is accepted in an image reference: quay.io/a:1",
    );
    check(json!({"maxPods": -1}), "invalid configuration: maxPods (--max-pods) -1 must not be a negative number");
    check(
        json!({"imageGCHighThresholdPercent": 101, "port": 70000}),
        "[invalid configuration: imageGCHighThresholdPercent (--image-gc-high-threshold) 101 must be between 0 and 100, \
         inclusive, invalid configuration: port (--port) 70000 must be between 1 and 65535, inclusive]",
    );
    check(
        json!({"healthzPort": 70000}),
        "invalid configuration: healthzPort (--healthz-port) 70000 must be between 1 and 65535, inclusive",
    );
    check(
        json!({"healthzBindAddress": "localhost"}),
        "invalid configuration: healthzBindAddress \"localhost\" must be an IP address",
    );
    check(
        json!({"imageGCLowThresholdPercent": 85}),
        "invalid configuration: imageGCLowThresholdPercent (--image-gc-low-threshold) 85 must be less than \
         imageGCHighThresholdPercent (--image-gc-high-threshold) 85",
    );
    check(
        json!({"shutdownGracePeriod": "5s", "shutdownGracePeriodCriticalPods": "10s"}),
        "invalid configuration: shutdownGracePeriodCriticalPods 10s must be <= shutdownGracePeriod 5s",
    );
    check(
        json!({"maxParallelImagePulls": 2, "serializeImagePulls": true}),
        "invalid configuration: maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls \
         (--serialize-image-pulls) is set to false",
    );
    check(json!({"containerLogMaxFiles": 1}), "invalid configuration: containerLogMaxFiles must be greater than 1");
    check(
        json!({"evictionHard": {"memory.free": "1Mi"}}),
        "invalid configuration: unsupported eviction signal memory.free",
    );
    check(
        json!({"evictionHard": {"memory.available": "120%"}}),
        "invalid configuration: eviction percentage threshold memory.available must be <= 100%: 120%",
    );
    check(json!({"registerWithTaints": [{"key": "a", "effect": "Never"}]}), "invalid taint: a:Never");
}

#[test]
fn values_that_cannot_be_honoured_are_refused() {
    for fields in [
        json!({"staticPodURL": "http://192.0.2.1/pods"}),
        json!({"readOnlyPort": 10255}),
        json!({"authentication": {"anonymous": {"enabled": true}}}),
        json!({"authorization": {"mode": "AlwaysAllow"}}),
        json!({"cgroupRoot": "/kubelet"}),
        json!({"memorySwap": {"swapBehavior": "LimitedSwap"}}),
    ] {
        let error = read(fields.clone()).unwrap_err();
        assert!(error.contains("cannot be honoured by this node"), "{fields}: {error}");
    }
    let fine = json!({"readOnlyPort": 0, "authorization": {"mode": "Webhook"}, "cpuManagerPolicy": "none",
        "authentication": {"anonymous": {"enabled": false}}});
    assert!(read(fine).is_ok());
}

#[test]
fn version_1_of_cgroups_kills_single_processes() {
    let check = |value: Option<bool>, version, accepted: bool, all: bool| {
        let c = KubeletConfiguration { single_process_oom_kill: value, ..KubeletConfiguration::default() };
        assert_eq!((c.check_cgroups(version).is_ok(), c.kills_containers()), (accepted, all), "{value:?} {version:?}");
    };
    check(None, CgroupVersion::One, true, true);
    check(Some(true), CgroupVersion::One, true, false);
    check(Some(false), CgroupVersion::One, false, true);
    check(None, CgroupVersion::Two, true, true);
    check(Some(true), CgroupVersion::Two, true, false);
    check(Some(false), CgroupVersion::Two, true, true);
    assert!(read(json!({"singleProcessOOMKill": true})).is_ok());
}

/// Each field of upstream's is used, refused or named as without effect.
#[test]
fn every_field_is_accounted_for() {
    let fields: Vec<&str> = form::KIND.fields.1.iter().map(|(name, _)| *name).collect();
    let used = KubeletConfiguration {
        static_pod_path: "/m".into(),
        cluster_domain: "d".into(),
        cluster_dns: vec!["10.0.0.1".into()],
        max_parallel_image_pulls: Some(2),
        single_process_oom_kill: Some(true),
        preloaded_images_verification_allowlist: vec!["quay.io/a".into()],
        system_reserved: default_eviction(),
        kube_reserved: default_eviction(),
        allowed_unsafe_sysctls: vec!["a".into()],
        eviction_soft: default_eviction(),
        eviction_soft_grace_period: default_eviction(),
        eviction_max_pod_grace_period: 1,
        eviction_minimum_reclaim: default_eviction(),
        cpu_manager_policy_options: default_eviction(),
        topology_manager_policy_options: default_eviction(),
        reserved_system_cpus: "0".into(),
        reserved_memory: vec![MemoryReservation::default()],
        shutdown_grace_period_by_pod_priority: vec![ShutdownGracePeriod::default()],
        register_with_taints: vec![Taint::default()],
        container_runtime_endpoint: "unix:///c".into(),
        image_service_endpoint: "unix:///i".into(),
        ..KubeletConfiguration::default()
    };
    let used = serde_json::to_value(used).unwrap();
    let used: Vec<&str> = used.as_object().unwrap().keys().map(String::as_str).collect();
    for field in &fields {
        let is_named = effects::names().any(|path| path.split('/').next() == Some(field));
        assert!(used.contains(field) || is_named, "{field}");
    }
    for field in used.into_iter().chain(effects::names().map(|path| path.split('/').next().unwrap())) {
        assert!(fields.contains(&field), "{field}");
    }
}

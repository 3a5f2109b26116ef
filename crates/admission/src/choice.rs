//! Which plugins there are, in upstream's order, and which are on (`--enable-admission-plugins`, `--disable-admission-plugins`).

use crate::plugin::{Chain, Plugin, Remote, Step};
use crate::*;

/// One plugin: whether it is on unless somebody says otherwise, and how it is made.
struct Row {
    on: bool,
    make: fn() -> Step,
}

const fn on(make: fn() -> Step) -> Row {
    Row { on: true, make }
}

const fn off(make: fn() -> Step) -> Row {
    Row { on: false, make }
}

fn local(p: impl Plugin + 'static) -> Step {
    Step::Local(Box::new(p))
}

fn remote(p: impl Remote + 'static) -> Step {
    Step::Remote(Box::new(p))
}

const ALL: &[Row] = &[
    off(|| local(always::AlwaysAdmit)),
    on(|| local(namespace_lifecycle::NamespaceLifecycle)),
    off(|| local(namespace_exists::NamespaceExists)),
    off(|| local(limit_pod_hard_anti_affinity::LimitPodHardAntiAffinityTopology)),
    off(|| local(pod_preset::PodPreset)),
    on(|| local(limit_ranger::LimitRanger)),
    on(|| local(service_account::ServiceAccount)),
    off(|| local(node_restriction::NodeRestriction)),
    on(|| local(taint_nodes_by_condition::TaintNodesByCondition)),
    off(|| local(always_pull_images::AlwaysPullImages)),
    on(|| local(pod_security::PodSecurity)),
    off(|| local(pod_node_selector::PodNodeSelector)),
    on(|| local(priority::Priority::default())),
    on(|| local(default_toleration_seconds::DefaultTolerationSeconds)),
    off(|| local(extended_resource_toleration::ExtendedResourceToleration)),
    on(|| local(default_storage_class::DefaultStorageClass)),
    on(|| local(storage_object_in_use::StorageObjectInUseProtection)),
    off(|| local(owner_references::OwnerReferencesPermissionEnforcement)),
    on(|| local(persistent_volume_claim_resize::PersistentVolumeClaimResize)),
    on(|| local(runtime_class::RuntimeClass)),
    on(|| local(certificates::CertificateApproval)),
    on(|| local(certificates::CertificateSigning)),
    on(|| local(certificates::CertificateSubjectRestriction)),
    on(|| local(default_ingress_class::DefaultIngressClass)),
    off(|| local(deny_service_external_ips::DenyServiceExternalIPs)),
    on(|| local(pod_topology_labels::PodTopologyLabels)),
    on(|| local(node_declared_features::NodeDeclaredFeatureValidator)),
    on(|| local(pod_resize::PodResizeValidator)),
    on(|| remote(policy::Mutating::default())),
    on(|| remote(webhook::Mutating::default())),
    on(|| remote(policy::Validating::default())),
    on(|| remote(webhook::Validating::default())),
    on(|| local(resource_quota::ResourceQuota)),
    off(|| local(always::AlwaysDeny)),
];

/// The plugins that are on by default.
pub fn default_plugins() -> Chain {
    Chain { steps: ALL.iter().filter(|r| r.on).map(|r| (r.make)()).collect() }
}

/// The default plugins with some more and without others.
pub fn chain(enable: &[String], disable: &[String]) -> Result<Chain, String> {
    let all: Vec<(bool, Step)> = ALL.iter().map(|r| (r.on, (r.make)())).collect();
    let known = |n: &str| all.iter().any(|(_, s)| s.name() == n);
    for (flag, names) in [("enable-admission-plugins", enable), ("disable-admission-plugins", disable)] {
        if let Some(n) = names.iter().find(|n| !known(n)) {
            let names: Vec<&str> = all.iter().map(|(_, s)| s.name()).collect();
            return Err(format!("{flag} plugin {n:?} is unknown; there are {}", names.join(", ")));
        }
    }
    let both: Vec<&str> = enable.iter().filter(|n| disable.contains(n)).map(String::as_str).collect();
    if !both.is_empty() {
        let both = both.join(" ");
        return Err(format!("[{both}] in enable-admission-plugins and disable-admission-plugins overlapped"));
    }
    let says = |list: &[String], s: &Step| list.iter().any(|n| n == s.name());
    let chosen = all.into_iter().filter(|(on, s)| (*on || says(enable, s)) && !says(disable, s));
    Ok(Chain { steps: chosen.map(|(_, s)| s).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_chosen_by_name() {
        let names = |e: &[&str], d: &[&str]| -> Result<Vec<&'static str>, String> {
            let own = |l: &[&str]| -> Vec<String> { l.iter().map(|s| (*s).to_owned()).collect() };
            chain(&own(e), &own(d)).map(|c| c.names().collect())
        };
        let default = names(&[], &[]).unwrap();
        assert_eq!(default, default_plugins().names().collect::<Vec<_>>());
        assert!(default.contains(&"LimitRanger") && !default.contains(&"AlwaysPullImages"));
        assert!(names(&["AlwaysPullImages"], &[]).unwrap().contains(&"AlwaysPullImages"));
        assert!(!names(&[], &["LimitRanger"]).unwrap().contains(&"LimitRanger"));
        assert_eq!(names(&["LimitRanger"], &[]).unwrap(), default, "on already");
        let e = names(&["Limits"], &[]).unwrap_err();
        assert!(e.starts_with("enable-admission-plugins plugin \"Limits\" is unknown"), "{e}");
        let e = names(&["Priority"], &["Priority"]).unwrap_err();
        assert_eq!(e, "[Priority] in enable-admission-plugins and disable-admission-plugins overlapped");
    }
}

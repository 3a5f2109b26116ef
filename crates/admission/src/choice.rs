//! The list of plugins in upstream's order, and which are enabled (`--enable-admission-plugins`,
//! `--disable-admission-plugins`).

use crate::plugin::{Chain, Plugin, Remote, Step, Unmade};
use crate::*;
use meta::Value;

/// A plugin: whether it is enabled by default, and its constructor.
struct Row {
    on: bool,
    make: Make,
}

type MakeConfigured = fn(Option<&Value>) -> Result<Step, Unmade>;

#[derive(Clone, Copy)]
enum Make {
    Plain(fn() -> Step),
    /// Created from its configuration.
    Configured(&'static str, MakeConfigured),
    /// Known by name only: v1.36 with default feature gates serves none of its resources.
    Idle(&'static str),
}

impl Row {
    fn name(&self) -> &'static str {
        match self.make {
            Make::Plain(make) => make().name(),
            Make::Configured(name, _) | Make::Idle(name) => name,
        }
    }

    fn step(&self, configuration: &Configuration) -> Result<Option<Step>, String> {
        match self.make {
            Make::Plain(make) => Ok(Some(make())),
            Make::Configured(name, make) => make(configuration.get(name)?).map(Some).map_err(|why| why.message(name)),
            Make::Idle(_) => Ok(None),
        }
    }
}

const fn on(make: fn() -> Step) -> Row {
    Row { on: true, make: Make::Plain(make) }
}

const fn off(make: fn() -> Step) -> Row {
    Row { on: false, make: Make::Plain(make) }
}

const fn on_configured(name: &'static str, make: MakeConfigured) -> Row {
    Row { on: true, make: Make::Configured(name, make) }
}

const fn off_configured(name: &'static str, make: MakeConfigured) -> Row {
    Row { on: false, make: Make::Configured(name, make) }
}

const fn idle(name: &'static str) -> Row {
    Row { on: true, make: Make::Idle(name) }
}

fn local(p: impl Plugin + 'static) -> Step {
    Step::Local(Box::new(p))
}

fn remote(p: impl Remote + 'static) -> Step {
    Step::Remote(Box::new(p))
}

const ALL: &[Row] = &[
    off(|| local(always::AlwaysAdmit)),
    off(|| remote(namespace_auto_provision::NamespaceAutoProvision)),
    on(|| local(namespace_lifecycle::NamespaceLifecycle)),
    off(|| local(namespace_exists::NamespaceExists)),
    off(|| local(limit_pod_hard_anti_affinity::LimitPodHardAntiAffinityTopology)),
    off(|| local(pod_preset::PodPreset)),
    on(|| local(limit_ranger::LimitRanger)),
    on(|| local(service_account::ServiceAccount)),
    off(|| local(node_restriction::NodeRestriction)),
    on(|| local(taint_nodes_by_condition::TaintNodesByCondition)),
    off(|| local(always_pull_images::AlwaysPullImages)),
    off_configured("ImagePolicyWebhook", |c| Ok(remote(image_policy::ImagePolicyWebhook::new(c)?))),
    on_configured("PodSecurity", |c| Ok(local(pod_security::PodSecurity::new(c)?))),
    off_configured("PodNodeSelector", |c| Ok(local(pod_node_selector::PodNodeSelector::new(c)))),
    on(|| local(priority::Priority::default())),
    on(|| local(default_toleration_seconds::DefaultTolerationSeconds)),
    off_configured("PodTolerationRestriction", |c| {
        Ok(local(pod_toleration_restriction::PodTolerationRestriction::new(c)?))
    }),
    off_configured("EventRateLimit", |c| Ok(local(event_rate_limit::EventRateLimit::new(c)?))),
    off(|| local(extended_resource_toleration::ExtendedResourceToleration)),
    on(|| local(default_storage_class::DefaultStorageClass)),
    on(|| local(storage_object_in_use::StorageObjectInUseProtection)),
    idle("PodGroupProtection"),
    off(|| local(owner_references::OwnerReferencesPermissionEnforcement)),
    on(|| local(persistent_volume_claim_resize::PersistentVolumeClaimResize)),
    on(|| local(runtime_class::RuntimeClass)),
    on(|| local(certificates::CertificateApproval)),
    on(|| local(certificates::CertificateSigning)),
    idle("ClusterTrustBundleAttest"),
    on(|| local(certificates::CertificateSubjectRestriction)),
    on(|| local(default_ingress_class::DefaultIngressClass)),
    off(|| local(deny_service_external_ips::DenyServiceExternalIPs)),
    on(|| local(pod_topology_labels::PodTopologyLabels)),
    idle("PodGroupWorkloadExists"),
    on(|| local(node_declared_features::NodeDeclaredFeatureValidator)),
    idle("JobValidation"),
    on(|| local(pod_resize::PodResizeValidator)),
    on_configured("MutatingAdmissionPolicy", |c| Ok(remote(policy::Mutating::new(c)?))),
    on_configured("MutatingAdmissionWebhook", |c| Ok(remote(webhook::Mutating::new(c)?))),
    on_configured("ValidatingAdmissionPolicy", |c| Ok(remote(policy::Validating::new(c)?))),
    on_configured("ValidatingAdmissionWebhook", |c| Ok(remote(webhook::Validating::new(c)?))),
    on_configured("ResourceQuota", |c| Ok(local(resource_quota::ResourceQuota::new(c)?))),
    off(|| local(always::AlwaysDeny)),
];

/// The plugins enabled by default.
pub fn default_plugins() -> Chain {
    let nothing = Configuration::default();
    Chain { steps: ALL.iter().filter(|r| r.on).filter_map(|r| r.step(&nothing).ok().flatten()).collect() }
}

/// The default plugins, with some enabled and others disabled.
pub fn chain(enable: &[String], disable: &[String]) -> Result<Chain, String> {
    configured(enable, disable, &Configuration::default())
}

/// Like [`chain`], with plugin configurations.
pub fn configured(enable: &[String], disable: &[String], configuration: &Configuration) -> Result<Chain, String> {
    let names: Vec<&str> = ALL.iter().map(Row::name).collect();
    for (flag, listed) in [("enable-admission-plugins", enable), ("disable-admission-plugins", disable)] {
        if let Some(n) = listed.iter().find(|n| !names.contains(&n.as_str())) {
            return Err(format!("{flag} plugin {n:?} is unknown; there are {}", names.join(", ")));
        }
    }
    let both: Vec<&str> = enable.iter().filter(|n| disable.contains(n)).map(String::as_str).collect();
    if !both.is_empty() {
        let both = both.join(" ");
        return Err(format!("[{both}] in enable-admission-plugins and disable-admission-plugins overlapped"));
    }
    let contains = |list: &[String], name: &str| list.iter().any(|n| n == name);
    let chosen = ALL.iter().zip(names).filter(|(r, n)| (r.on || contains(enable, n)) && !contains(disable, n));
    let steps = chosen.filter_map(|(r, _)| r.step(configuration).transpose()).collect::<Result<_, String>>()?;
    Ok(Chain { steps })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
        assert_eq!(names(&[], &["JobValidation"]).unwrap(), default, "known, and has nothing to do");
        let e = names(&["EventRateLimit"], &[]).unwrap_err();
        let why = "limits: Invalid value: null: must not be empty";
        assert_eq!(e, format!("couldn't init admission plugin \"EventRateLimit\": {why}"));
        let configuration = Configuration::default().with("PodSecurity", Value::Null);
        let e = configured(&[], &[], &configuration).err().unwrap();
        assert_eq!(e, "couldn't init admission plugin \"PodSecurity\": Object 'Kind' is missing in 'null'");
        assert!(
            configured(&[], &["PodSecurity".into()], &configuration).is_ok(),
            "the configuration of a disabled plugin is ignored"
        );
    }

    #[test]
    fn policies_come_from_the_api_alone() {
        for plugin in ["ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"] {
            let error = |more: Value| {
                let mut error =
                    json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": format!("{plugin}Configuration")});
                error.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                configured(&[], &[], &Configuration::default().with(plugin, error)).err().unwrap_or_default()
            };
            assert_eq!(error(json!({})), "");
            let why = "staticManifestsDir requires the ManifestBasedAdmissionControlConfig feature gate to be enabled";
            let expected = format!("couldn't init admission plugin {plugin:?}: staticManifestsDir: Forbidden: {why}");
            assert_eq!(error(json!({"staticManifestsDir": "/a"})), expected);
        }
    }

    #[test]
    fn names_are_checked() {
        let names = |e: &[&str], d: &[&str]| {
            let own = |l: &[&str]| -> Vec<String> { l.iter().map(|s| (*s).to_owned()).collect() };
            chain(&own(e), &own(d)).map(|c| c.names().count())
        };
        let e = names(&["Limits"], &[]).unwrap_err();
        assert!(e.starts_with("enable-admission-plugins plugin \"Limits\" is unknown"), "{e}");
        let e = names(&["Priority"], &["Priority"]).unwrap_err();
        assert_eq!(e, "[Priority] in enable-admission-plugins and disable-admission-plugins overlapped");
    }
}

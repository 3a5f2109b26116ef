//! Converts configurations of versions that Kubernetes no longer has into the current one: `KubeSchedulerConfiguration` of v1alpha1 and
//! v1alpha2, and `Policy` (upstream v1.18 `apis/config` and `framework/plugins/legacy_registry.go`).

use super::Arguments;
use super::read::{EXTENDER, KIND, MANAGED, PLUGIN_CONFIG, PLUGIN_SET, TLS, VERSION, list, parse};
use crate::framework::Point;
use crate::plugins::{DEFAULT, Handle, build};
use meta::Value;
use schema::form::{ANY, BOOLEAN, Fields, Form, Kind, LONG, NUMBER, TEXT};
use serde_json::{Map, json};
use std::path::Path;

const ALPHA1: &str = "kubescheduler.config.k8s.io/v1alpha1";
const ALPHA2: &str = "kubescheduler.config.k8s.io/v1alpha2";
const POLICY: &str = "v1";

const PLUGINS: Form = Form::Object(Fields(
    "Plugins",
    &[
        ("queueSort", PLUGIN_SET),
        ("preFilter", PLUGIN_SET),
        ("filter", PLUGIN_SET),
        ("postFilter", PLUGIN_SET),
        ("preScore", PLUGIN_SET),
        ("score", PLUGIN_SET),
        ("reserve", PLUGIN_SET),
        ("permit", PLUGIN_SET),
        ("preBind", PLUGIN_SET),
        ("bind", PLUGIN_SET),
        ("postBind", PLUGIN_SET),
        ("unreserve", PLUGIN_SET),
    ],
));

const ALPHA1_KIND: Kind = Kind {
    versions: &[(ALPHA1, "KubeSchedulerConfiguration")],
    fields: Fields(
        "KubeSchedulerConfiguration",
        &[
            ("schedulerName", TEXT),
            (
                "algorithmSource",
                Form::Object(Fields(
                    "SchedulerAlgorithmSource",
                    &[
                        (
                            "policy",
                            Form::Object(Fields(
                                "SchedulerPolicySource",
                                &[
                                    ("file", Form::Object(Fields("SchedulerPolicyFileSource", &[("path", TEXT)]))),
                                    ("configMap", ANY),
                                ],
                            )),
                        ),
                        ("provider", TEXT),
                    ],
                )),
            ),
            ("hardPodAffinitySymmetricWeight", NUMBER),
            ("leaderElection", ANY),
            ("clientConnection", ANY),
            ("healthzBindAddress", TEXT),
            ("metricsBindAddress", TEXT),
            ("enableProfiling", BOOLEAN),
            ("enableContentionProfiling", BOOLEAN),
            ("disablePreemption", BOOLEAN),
            ("percentageOfNodesToScore", NUMBER),
            ("bindTimeoutSeconds", LONG),
            ("podInitialBackoffSeconds", LONG),
            ("podMaxBackoffSeconds", LONG),
            ("plugins", PLUGINS),
            ("pluginConfig", Form::List(&PLUGIN_CONFIG)),
        ],
    ),
};

const ALPHA2_KIND: Kind = Kind {
    versions: &[(ALPHA2, "KubeSchedulerConfiguration")],
    fields: Fields(
        "KubeSchedulerConfiguration",
        &[
            ("leaderElection", ANY),
            ("clientConnection", ANY),
            ("healthzBindAddress", TEXT),
            ("metricsBindAddress", TEXT),
            ("enableProfiling", BOOLEAN),
            ("enableContentionProfiling", BOOLEAN),
            ("disablePreemption", BOOLEAN),
            ("percentageOfNodesToScore", NUMBER),
            ("bindTimeoutSeconds", LONG),
            ("podInitialBackoffSeconds", LONG),
            ("podMaxBackoffSeconds", LONG),
            (
                "profiles",
                Form::List(&Form::Object(Fields(
                    "KubeSchedulerProfile",
                    &[("schedulerName", TEXT), ("plugins", PLUGINS), ("pluginConfig", Form::List(&PLUGIN_CONFIG))],
                ))),
            ),
            ("extenders", Form::List(&EXTENDER)),
        ],
    ),
};

const POLICY_KIND: Kind = Kind {
    versions: &[(POLICY, "Policy")],
    fields: Fields(
        "Policy",
        &[
            ("predicates", Form::List(&Form::Object(Fields("PredicatePolicy", &[("name", TEXT), ("argument", ANY)])))),
            (
                "priorities",
                Form::List(&Form::Object(Fields(
                    "PriorityPolicy",
                    &[("name", TEXT), ("weight", LONG), ("argument", ANY)],
                ))),
            ),
            (
                "extenders",
                Form::List(&Form::Object(Fields(
                    "LegacyExtender",
                    &[
                        ("urlPrefix", TEXT),
                        ("filterVerb", TEXT),
                        ("preemptVerb", TEXT),
                        ("prioritizeVerb", TEXT),
                        ("weight", LONG),
                        ("bindVerb", TEXT),
                        ("enableHttps", BOOLEAN),
                        ("tlsConfig", TLS),
                        // Nanoseconds.
                        ("httpTimeout", LONG),
                        ("nodeCacheCapable", BOOLEAN),
                        ("managedResources", Form::List(&MANAGED)),
                        ("ignorable", BOOLEAN),
                    ],
                ))),
            ),
            ("hardPodAffinitySymmetricWeight", NUMBER),
            ("alwaysCheckAllPredicates", BOOLEAN),
        ],
    ),
};

/// The plugin of a predicate of a `Policy`; none if it has no counterpart.
fn predicate_plugins(name: &str) -> Option<&'static [&'static str]> {
    Some(match name {
        "GeneralPredicates" => &["NodeResourcesFit", "NodeName", "NodePorts", "NodeAffinity"],
        "PodFitsResources" => &["NodeResourcesFit"],
        "PodFitsHostPorts" | "PodFitsPorts" => &["NodePorts"],
        "HostName" => &["NodeName"],
        "MatchNodeSelector" => &["NodeAffinity"],
        "PodToleratesNodeTaints" => &["TaintToleration"],
        "CheckNodeUnschedulable" => &["NodeUnschedulable"],
        "CheckVolumeBinding" => &["VolumeBinding"],
        "NoVolumeZoneConflict" => &["VolumeZone"],
        "NoDiskConflict" => &["VolumeRestrictions"],
        // The limits of volumes in the tree are those of CSI drivers now.
        "MaxCSIVolumeCountPred"
        | "MaxEBSVolumeCount"
        | "MaxGCEPDVolumeCount"
        | "MaxAzureDiskVolumeCount"
        | "MaxCinderVolumeCount" => &["NodeVolumeLimits"],
        "MatchInterPodAffinity" => &["InterPodAffinity"],
        "EvenPodsSpread" => &["PodTopologySpread"],
        _ => return None,
    })
}

/// Predicates that every `Policy` has.
const MANDATORY: [&str; 2] = ["PodToleratesNodeTaints", "CheckNodeUnschedulable"];

/// What became of a scoring plugin or priority function.
enum Scoring {
    /// It is this plugin.
    Plugin(&'static str),
    /// It is NodeResourcesFit with this strategy.
    Strategy(&'static str),
    /// It is gone and nothing takes its place, or it did nothing.
    Nothing,
}

fn priority(name: &str) -> Option<Scoring> {
    Some(match name {
        "SelectorSpreadPriority" | "ServiceSpreadingPriority" | "EvenPodsSpreadPriority" => {
            Scoring::Plugin("PodTopologySpread")
        }
        "InterPodAffinityPriority" => Scoring::Plugin("InterPodAffinity"),
        "NodeAffinityPriority" => Scoring::Plugin("NodeAffinity"),
        "TaintTolerationPriority" => Scoring::Plugin("TaintToleration"),
        "ImageLocalityPriority" => Scoring::Plugin("ImageLocality"),
        "BalancedResourceAllocation" => Scoring::Plugin("NodeResourcesBalancedAllocation"),
        "LeastRequestedPriority" => Scoring::Strategy("LeastAllocated"),
        "MostRequestedPriority" => Scoring::Strategy("MostAllocated"),
        "RequestedToCapacityRatioPriority" => Scoring::Strategy("RequestedToCapacityRatio"),
        "EqualPriority" | "NodePreferAvoidPodsPriority" => Scoring::Nothing,
        _ => return None,
    })
}

/// What became of a plugin of an older version; none if it is a plugin still, or one that no version had.
fn former_plugin(name: &str) -> Option<Scoring> {
    Some(match name {
        "SelectorSpread" | "DefaultPodTopologySpread" => Scoring::Plugin("PodTopologySpread"),
        "NodeResourcesLeastAllocated" => Scoring::Strategy("LeastAllocated"),
        "NodeResourcesMostAllocated" => Scoring::Strategy("MostAllocated"),
        "RequestedToCapacityRatio" => Scoring::Strategy("RequestedToCapacityRatio"),
        "NodePreferAvoidPods" | "EBSLimits" | "GCEPDLimits" | "AzureDiskLimits" | "CinderLimits" => Scoring::Nothing,
        _ => return None,
    })
}

/// A document of the current version, and what its author should know.
pub(super) struct Converted {
    pub document: Value,
    pub warnings: Vec<String>,
}

type Convert = fn(&Value, &mut Conversion) -> Result<Value, String>;

fn conversion(document: &Value) -> Option<Convert> {
    match (document["apiVersion"].as_str()?, document["kind"].as_str()?) {
        (ALPHA1, "KubeSchedulerConfiguration") => Some(alpha1),
        (ALPHA2, "KubeSchedulerConfiguration") => Some(alpha2),
        (POLICY, "Policy") => Some(policy),
        _ => None,
    }
}

/// Whether a document is of a version that is converted.
pub(super) fn is_older(document: &Value) -> bool {
    conversion(document).is_some()
}

/// Converts a document of an older version; none if it is of another one. Errors if it is invalid, or uses what has no counterpart.
pub(super) fn convert(document: &Value) -> Option<Result<Converted, String>> {
    let convert = conversion(document)?;
    let mut conversion = Conversion::default();
    let what = format!("{} {}", text(document, "apiVersion"), text(document, "kind"));
    conversion.warn(format!("{what} is no longer a version of Kubernetes; it is converted to {VERSION}"));
    let result = convert(document, &mut conversion);
    Some(result.map(|document| Converted { document, warnings: conversion.warnings }))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn current(fields: Map<String, Value>) -> Value {
    let mut document = Value::Object(fields);
    document["apiVersion"] = VERSION.into();
    document["kind"] = KIND.versions[0].1.into();
    document
}

#[derive(Default)]
struct Conversion {
    warnings: Vec<String>,
}

impl Conversion {
    fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Removes fields without an effect.
    fn drop_fields(&mut self, fields: &mut Map<String, Value>, names: &[&str]) {
        for name in names {
            if fields.remove(*name).is_some() {
                self.warn(format!("{name} has no effect"));
            }
        }
    }

    /// Converts the plugins and arguments of a profile.
    fn profile(&mut self, profile: &mut Value, point_names: fn(&str) -> Option<&str>) -> Result<(), String> {
        let mut strategy = None;
        let mut points = Map::new();
        let former = profile["plugins"].as_object().cloned().unwrap_or_default();
        for (point, set) in former {
            let Some(name) = point_names(&point) else {
                self.warn(format!("plugins.{point} has no effect"));
                continue;
            };
            points.insert(name.to_owned(), self.plugin_set(&point, &set, &mut strategy)?);
        }
        if !points.is_empty() {
            profile["plugins"] = points.into();
        }
        let mut configs: Vec<Value> = Vec::new();
        let mut strategy_args = Value::Null;
        for config in list(profile, "pluginConfig") {
            let name = text(config, "name");
            let mut args = config["args"].clone();
            if let Some(fields) = args.as_object_mut() {
                fields.remove("apiVersion");
                fields.remove("kind");
            }
            match former_plugin(name) {
                Some(Scoring::Strategy(of)) => {
                    if strategy.unwrap_or("LeastAllocated") == of {
                        strategy_args = args;
                    }
                }
                Some(_) => self.warn(format!("the arguments of the plugin {name} have no effect")),
                None => {
                    if name == "PodTopologySpread"
                        && args["defaultingType"].is_null()
                        && args["defaultConstraints"].is_array()
                    {
                        args["defaultingType"] = "List".into();
                    }
                    configs.push(json!({"name": name, "args": args}));
                }
            }
        }
        profile["pluginConfig"] = configs.into();
        if strategy.is_some() || !strategy_args.is_null() {
            set_argument(profile, "NodeResourcesFit", "scoringStrategy", scoring_strategy(strategy, &strategy_args));
        }
        if profile["pluginConfig"] == json!([])
            && let Some(fields) = profile.as_object_mut()
        {
            fields.remove("pluginConfig");
        }
        Ok(())
    }

    fn plugin_set(&mut self, point: &str, set: &Value, strategy: &mut Option<&'static str>) -> Result<Value, String> {
        let (mut enabled, mut disabled): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
        let mut disables_strategy = false;
        for plugin in list(set, "disabled") {
            let name = text(plugin, "name");
            match former_plugin(name) {
                Some(Scoring::Strategy(_)) => disables_strategy = true,
                Some(_) => self.warn(format!("plugins.{point} disables {name}, which is gone")),
                None => disabled.push(plugin.clone()),
            }
        }
        for plugin in list(set, "enabled") {
            let name = text(plugin, "name");
            let mut add = |name: &str| {
                let mut plugin = plugin.clone();
                plugin["name"] = name.into();
                // One plugin may have several former names.
                if !enabled.iter().any(|e: &Value| e["name"] == name) {
                    enabled.push(plugin);
                }
            };
            match former_plugin(name) {
                Some(Scoring::Strategy(of)) => {
                    one_strategy(strategy, of)?;
                    add("NodeResourcesFit");
                }
                Some(Scoring::Plugin(now)) => {
                    add(now);
                    self.warn(format!("the plugin {now} takes the place of {name}"));
                }
                Some(Scoring::Nothing) => self.warn(format!("the plugin {name} is gone and has no effect")),
                None => add(name),
            }
        }
        if disables_strategy && !enabled.iter().any(|e| e["name"] == "NodeResourcesFit") {
            disabled.push(json!({"name": "NodeResourcesFit"}));
        }
        Ok(json!({"enabled": enabled, "disabled": disabled}))
    }

    /// `disablePreemption`.
    fn preemption(fields: &mut Map<String, Value>, profiles: &mut [Value]) {
        if fields.remove("disablePreemption") == Some(Value::Bool(true)) {
            profiles.iter_mut().for_each(|p| disable(p, "postFilter", "DefaultPreemption"));
        }
    }

    /// `bindTimeoutSeconds` limits how long volumes may take to be bound.
    fn bind_timeout(fields: &mut Map<String, Value>, profiles: &mut [Value]) {
        if let Some(seconds) = fields.remove("bindTimeoutSeconds") {
            profiles.iter_mut().for_each(|p| set_argument(p, "VolumeBinding", "bindTimeoutSeconds", seconds.clone()));
        }
    }
}

/// Only one strategy can score the resources of nodes.
fn one_strategy(strategy: &mut Option<&'static str>, of: &'static str) -> Result<(), String> {
    match strategy.replace(of) {
        Some(other) if other != of => {
            Err(format!("{other} and {of} cannot both score the resources of nodes; NodeResourcesFit has one strategy"))
        }
        _ => Ok(()),
    }
}

fn scoring_strategy(strategy: Option<&str>, args: &Value) -> Value {
    let kind = strategy.unwrap_or("LeastAllocated");
    let mut scoring = json!({"type": kind});
    if !args["resources"].is_null() {
        scoring["resources"] = args["resources"].clone();
    }
    if kind == "RequestedToCapacityRatio" {
        scoring["requestedToCapacityRatio"] = json!({"shape": args["shape"]});
    }
    scoring
}

fn disable(profile: &mut Value, point: &str, plugin: &str) {
    add_plugin(profile, point, "disabled", json!({"name": plugin}));
}

fn add_plugin(profile: &mut Value, point: &str, which: &str, plugin: Value) {
    let set = &mut profile["plugins"][point][which];
    match set.as_array_mut() {
        Some(all) => all.push(plugin),
        None => *set = json!([plugin]),
    }
}

/// Sets an argument of a plugin, unless the profile has it.
fn set_argument(profile: &mut Value, plugin: &str, argument: &str, value: Value) {
    if !profile["pluginConfig"].is_array() {
        profile["pluginConfig"] = json!([]);
    }
    let Some(configs) = profile["pluginConfig"].as_array_mut() else { return };
    let position = configs.iter().position(|c| c["name"] == plugin).unwrap_or_else(|| {
        configs.push(json!({"name": plugin, "args": {}}));
        configs.len() - 1
    });
    let args = &mut configs[position]["args"];
    if args[argument].is_null() {
        args[argument] = value;
    }
}

/// v1alpha1 had the point `postFilter` where `preScore` is now.
fn alpha1_points(point: &str) -> Option<&str> {
    match point {
        "postFilter" => Some("preScore"),
        other => alpha2_points(other),
    }
}

/// What `unreserve` did is part of `reserve` now.
fn alpha2_points(point: &str) -> Option<&str> {
    (point != "unreserve").then_some(point)
}

fn fields_of(document: Value) -> Map<String, Value> {
    match document {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn alpha1(document: &Value, conversion: &mut Conversion) -> Result<Value, String> {
    let mut fields = fields_of(ALPHA1_KIND.read(document)?);
    conversion.drop_fields(&mut fields, &["healthzBindAddress", "metricsBindAddress"]);
    let source = fields.remove("algorithmSource").unwrap_or_default();
    let mut profile = json!({});
    for name in ["schedulerName", "plugins", "pluginConfig"] {
        if let Some(value) = fields.remove(name) {
            profile[name] = value;
        }
    }
    conversion.profile(&mut profile, alpha1_points)?;
    if let Some(weight) = fields.remove("hardPodAffinitySymmetricWeight") {
        set_argument(&mut profile, "InterPodAffinity", "hardPodAffinityWeight", weight);
    }
    match text(&source, "provider") {
        "" | "DefaultProvider" => {}
        "ClusterAutoscalerProvider" => {
            let strategy = scoring_strategy(Some("MostAllocated"), &Value::Null);
            set_argument(&mut profile, "NodeResourcesFit", "scoringStrategy", strategy);
        }
        other => return Err(format!("algorithmSource.provider: unknown provider {other:?}")),
    }
    if !source["policy"]["configMap"].is_null() {
        return Err("algorithmSource.policy.configMap: a Policy is only read from a file; name it in \
                    algorithmSource.policy.file.path"
            .into());
    }
    let path = text(&source["policy"]["file"], "path");
    if !path.is_empty() {
        let content = std::fs::read_to_string(Path::new(path)).map_err(|e| {
            format!("algorithmSource.policy.file.path: open {path}: {}", client::kubeconfig::os_error(&e))
        })?;
        let read = parse(&content, |d| POLICY_KIND.registered(d))
            .and_then(|document| policy(&document, conversion))
            .map_err(|why| format!("{path}: {why}"))?;
        merge_policy(&mut fields, &mut profile, read);
    }
    let mut profiles = [profile];
    Conversion::preemption(&mut fields, &mut profiles);
    Conversion::bind_timeout(&mut fields, &mut profiles);
    fields.insert("profiles".into(), profiles.to_vec().into());
    Ok(current(fields))
}

/// A policy decides on filters, scores and extenders of the one profile of v1alpha1.
fn merge_policy(fields: &mut Map<String, Value>, profile: &mut Value, mut policy: Value) {
    if policy["extenders"].is_array() {
        fields.insert("extenders".into(), policy["extenders"].take());
    }
    let mut of_policy = policy["profiles"][0].take();
    for (point, set) in of_policy["plugins"].as_object().cloned().unwrap_or_default() {
        for which in ["enabled", "disabled"] {
            list(&set, which).for_each(|plugin| add_plugin(profile, &point, which, plugin.clone()));
        }
    }
    for config in of_policy["pluginConfig"].as_array_mut().into_iter().flatten() {
        let plugin = text(config, "name").to_owned();
        for (argument, value) in fields_of(config["args"].take()) {
            set_argument(profile, &plugin, &argument, value);
        }
    }
}

fn alpha2(document: &Value, conversion: &mut Conversion) -> Result<Value, String> {
    let mut fields = fields_of(ALPHA2_KIND.read(document)?);
    conversion.drop_fields(&mut fields, &["healthzBindAddress", "metricsBindAddress"]);
    let mut profiles = match fields.remove("profiles") {
        Some(Value::Array(profiles)) if !profiles.is_empty() => profiles,
        _ => vec![json!({})],
    };
    for profile in &mut profiles {
        conversion.profile(profile, alpha2_points)?;
    }
    Conversion::preemption(&mut fields, &mut profiles);
    Conversion::bind_timeout(&mut fields, &mut profiles);
    fields.insert("profiles".into(), profiles.into());
    Ok(current(fields))
}

/// A filter or scoring plugin that has this extension point.
fn has_point(plugin: &str, point: Point) -> bool {
    build(plugin, &Arguments::default(), &Handle::default()).is_some_and(|p| p.points().contains(&point))
}

fn policy(document: &Value, conversion: &mut Conversion) -> Result<Value, String> {
    let policy = POLICY_KIND.read(document)?;
    let mut profile = json!({});
    let filters = match policy["predicates"].is_array() {
        true => Some(filters(&policy)?),
        false => None,
    };
    let scores = match policy["priorities"].is_array() {
        true => Some(scores(&policy, &mut profile, conversion)?),
        false => None,
    };
    for plugin in DEFAULT {
        let (can_filter, can_score) = (has_point(plugin, Point::Filter), has_point(plugin, Point::Score));
        let filters = can_filter && filters.as_ref().is_none_or(|chosen| chosen.contains(plugin));
        let score = scores.as_ref().map(|chosen| chosen.iter().find(|(name, _)| name == plugin));
        let scores = can_score && score != Some(None);
        // Devices have no predicate, and are no choice.
        if (!can_filter && !can_score) || *plugin == "DynamicResources" {
            continue;
        }
        if !filters && !scores {
            disable(&mut profile, "multiPoint", plugin);
            continue;
        }
        if can_filter && !filters {
            ["preFilter", "filter"].iter().for_each(|point| disable(&mut profile, point, plugin));
        }
        if can_score && !scores {
            ["preScore", "score"].iter().for_each(|point| disable(&mut profile, point, plugin));
        }
        if let Some(Some((_, weight))) = score {
            add_plugin(&mut profile, "score", "enabled", json!({"name": plugin, "weight": weight}));
        }
    }
    if let Some(weight) = policy["hardPodAffinitySymmetricWeight"].as_i64().filter(|w| *w != 0) {
        set_argument(&mut profile, "InterPodAffinity", "hardPodAffinityWeight", weight.into());
    }
    if policy["alwaysCheckAllPredicates"] == true {
        conversion.warn("alwaysCheckAllPredicates has no effect".into());
    }
    let mut fields = Map::new();
    fields.insert("profiles".into(), json!([profile]));
    let extenders: Vec<Value> = list(&policy, "extenders").map(extender).collect();
    if !extenders.is_empty() {
        fields.insert("extenders".into(), extenders.into());
    }
    Ok(current(fields))
}

fn filters(policy: &Value) -> Result<Vec<&'static str>, String> {
    let mut chosen: Vec<&'static str> = Vec::new();
    let names = list(policy, "predicates").map(|p| text(p, "name"));
    for name in MANDATORY.into_iter().chain(names) {
        let plugins = predicate_plugins(name).ok_or_else(|| {
            format!("predicates: Kubernetes has no plugin any more for the predicate {name:?}, or never had one")
        })?;
        chosen.extend(plugins);
    }
    Ok(chosen)
}

/// The scoring plugins with their weights.
fn scores(
    policy: &Value,
    profile: &mut Value,
    conversion: &mut Conversion,
) -> Result<Vec<(&'static str, i64)>, String> {
    let mut chosen: Vec<(&'static str, i64)> = Vec::new();
    let (mut strategy, mut arguments) = (None, Value::Null);
    for priority_policy in list(policy, "priorities") {
        let name = text(priority_policy, "name");
        let argument = &priority_policy["argument"]["requestedToCapacityRatioArguments"];
        let scoring = match argument.is_object() {
            // A name of the author's own.
            true => Some(Scoring::Strategy("RequestedToCapacityRatio")),
            false => priority(name),
        };
        let scoring = scoring.ok_or_else(|| {
            format!("priorities: Kubernetes has no plugin any more for the priority {name:?}, or never had one")
        })?;
        let weight = priority_policy["weight"].as_i64().unwrap_or(0);
        if weight <= 0 || weight > i64::from(i32::MAX) {
            return Err(format!("Priority {name} should have a positive weight applied to it or it has overflown"));
        }
        let plugin = match scoring {
            Scoring::Plugin(plugin) => plugin,
            Scoring::Strategy(of) => {
                one_strategy(&mut strategy, of)?;
                arguments = argument.clone();
                "NodeResourcesFit"
            }
            Scoring::Nothing => {
                conversion.warn(format!("the priority {name} has no effect"));
                continue;
            }
        };
        match chosen.iter_mut().find(|(name, _)| *name == plugin) {
            Some((_, sum)) => *sum += weight,
            None => chosen.push((plugin, weight)),
        }
    }
    if strategy.is_some() {
        set_argument(profile, "NodeResourcesFit", "scoringStrategy", scoring_strategy(strategy, &arguments));
    }
    Ok(chosen)
}

fn extender(policy: &Value) -> Value {
    let mut fields = fields_of(policy.clone());
    if let Some(https) = fields.remove("enableHttps") {
        fields.insert("enableHTTPS".into(), https);
    }
    if let Some(nanoseconds) = fields.get("httpTimeout").and_then(Value::as_i64) {
        fields.insert("httpTimeout".into(), format!("{nanoseconds}ns").into());
    }
    fields.into()
}

#[cfg(test)]
#[path = "conversion_tests.rs"]
mod tests;

//! The arguments of plugins (`pluginConfig`).

use super::read::{VERSION, list};
use crate::plugins::{InterPodAffinity, NodeResourcesFit, PodTopologySpread, Strategy};
use crate::preemption::Candidates;
use crate::spread::Constraint;
use meta::Value;
use schema::form::{ANY, BOOLEAN, Fields, Form, FormError, Kind, LONG, NUMBER, TEXT, TEXTS};
use std::time::Duration;

/// The arguments of all plugins that have some.
#[derive(Clone, Debug)]
pub struct Arguments {
    pub preemption: Candidates,
    pub inter_pod_affinity: InterPodAffinity,
    pub fit: NodeResourcesFit,
    /// The resources that NodeResourcesBalancedAllocation balances; empty for the default ones.
    pub balanced: Vec<Box<str>>,
    pub spread: PodTopologySpread,
    /// Affinity that NodeAffinity adds to that of each pod.
    pub added_affinity: placement::NodeAffinity,
    /// How long VolumeBinding waits until volumes are bound.
    pub bind_timeout: Duration,
    /// How long DynamicResources waits until devices are bound.
    pub device_timeout: Duration,
    /// How long the search for devices may take in one attempt to schedule a pod (`filterTimeout`); zero: any time.
    pub device_search_time: Duration,
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            preemption: Candidates::default(),
            inter_pod_affinity: InterPodAffinity::default(),
            fit: NodeResourcesFit::default(),
            balanced: Vec::new(),
            spread: PodTopologySpread::default(),
            added_affinity: placement::NodeAffinity::default(),
            bind_timeout: Duration::from_secs(600),
            device_timeout: Duration::from_secs(600),
            device_search_time: Duration::from_secs(10),
        }
    }
}

const RESOURCE: Form = Form::Object(Fields("ResourceSpec", &[("name", TEXT), ("weight", LONG)]));
const DURATION: Form = Form::Plain(schema::Type::Duration);
const SHAPE_POINT: Form = Form::Object(Fields("UtilizationShapePoint", &[("utilization", NUMBER), ("score", NUMBER)]));
const SHAPE: Form = Form::List(&SHAPE_POINT);
const STRATEGY: Form = Form::Object(Fields(
    "ScoringStrategy",
    &[
        ("type", TEXT),
        ("resources", Form::List(&RESOURCE)),
        ("requestedToCapacityRatio", Form::Object(Fields("RequestedToCapacityRatioParam", &[("shape", SHAPE)]))),
    ],
));

/// The arguments of each plugin.
const KINDS: &[(&str, Kind)] = &[
    (
        "DefaultPreemption",
        Kind {
            versions: &[(VERSION, "DefaultPreemptionArgs")],
            fields: Fields(
                "DefaultPreemptionArgs",
                &[("minCandidateNodesPercentage", NUMBER), ("minCandidateNodesAbsolute", NUMBER)],
            ),
        },
    ),
    (
        "InterPodAffinity",
        Kind {
            versions: &[(VERSION, "InterPodAffinityArgs")],
            fields: Fields(
                "InterPodAffinityArgs",
                &[("hardPodAffinityWeight", NUMBER), ("ignorePreferredTermsOfExistingPods", BOOLEAN)],
            ),
        },
    ),
    (
        "NodeAffinity",
        Kind {
            versions: &[(VERSION, "NodeAffinityArgs")],
            fields: Fields("NodeAffinityArgs", &[("addedAffinity", ANY)]),
        },
    ),
    (
        "NodeResourcesBalancedAllocation",
        Kind {
            versions: &[(VERSION, "NodeResourcesBalancedAllocationArgs")],
            fields: Fields("NodeResourcesBalancedAllocationArgs", &[("resources", Form::List(&RESOURCE))]),
        },
    ),
    (
        "NodeResourcesFit",
        Kind {
            versions: &[(VERSION, "NodeResourcesFitArgs")],
            fields: Fields(
                "NodeResourcesFitArgs",
                &[("ignoredResources", TEXTS), ("ignoredResourceGroups", TEXTS), ("scoringStrategy", STRATEGY)],
            ),
        },
    ),
    (
        "PodTopologySpread",
        Kind {
            versions: &[(VERSION, "PodTopologySpreadArgs")],
            fields: Fields(
                "PodTopologySpreadArgs",
                &[("defaultConstraints", Form::List(&ANY)), ("defaultingType", TEXT)],
            ),
        },
    ),
    (
        "VolumeBinding",
        Kind {
            versions: &[(VERSION, "VolumeBindingArgs")],
            fields: Fields("VolumeBindingArgs", &[("bindTimeoutSeconds", LONG), ("shape", SHAPE)]),
        },
    ),
    (
        "DynamicResources",
        Kind {
            versions: &[(VERSION, "DynamicResourcesArgs")],
            fields: Fields("DynamicResourcesArgs", &[("filterTimeout", DURATION), ("bindingTimeout", DURATION)]),
        },
    ),
];

/// Decodes the arguments of all profiles in place. Those of an unknown plugin stay as they are.
pub(super) fn decode(configuration: &mut Value) -> Result<(), String> {
    let mut strict = Vec::new();
    let profiles = configuration["profiles"].as_array_mut().into_iter().flatten().enumerate();
    for (i, profile) in profiles {
        for (j, plugin) in profile["pluginConfig"].as_array_mut().into_iter().flatten().enumerate() {
            let name = plugin["name"].as_str().unwrap_or_default().to_owned();
            let Some((_, kind)) = KINDS.iter().find(|(n, _)| *n == name) else { continue };
            let at = format!("decoding .profiles[{i}].pluginConfig[{j}]");
            let document = declared(&name, &plugin["args"]).map_err(|why| format!("{at}: {why}"))?;
            match kind.decode(&document) {
                Ok(read) => plugin["args"] = read,
                Err(e @ FormError::Unknown(_)) => {
                    strict.push(format!("{at}: strict decoding error: decoding args for plugin {name}: {e}"));
                }
                Err(e) => return Err(format!("{at}: decoding args for plugin {name}: {e}")),
            }
        }
    }
    if strict.is_empty() { Ok(()) } else { Err(format!("strict decoding error: {}", strict.join(", "))) }
}

/// Arguments with their kind, which they need not declare. Errors if they declare that of another plugin.
fn declared(name: &str, args: &Value) -> Result<Value, String> {
    let mut document = if args.is_object() { args.clone() } else { serde_json::json!({}) };
    for (field, default) in [("apiVersion", VERSION.to_owned()), ("kind", format!("{name}Args"))] {
        if document[field].is_null() {
            document[field] = default.into();
        }
    }
    let group = VERSION.split_once('/').map_or("", |(group, _)| group);
    let given = document["kind"].as_str().unwrap_or_default();
    if given != format!("{name}Args") && KINDS.iter().any(|(n, _)| format!("{n}Args") == given) {
        return Err(format!("args for plugin {name} were not of type {name}Args.{group}, got {given}.{group}"));
    }
    Ok(document)
}

impl Arguments {
    /// Reads valid arguments.
    pub(super) fn read<'a>(all: impl Iterator<Item = &'a Value>) -> Self {
        let mut arguments = Self::default();
        for plugin in all {
            let args = &plugin["args"];
            match plugin["name"].as_str().unwrap_or_default() {
                "DefaultPreemption" => {
                    let count = |field: &str, default: usize| {
                        args[field].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(default)
                    };
                    let default = Candidates::default();
                    arguments.preemption = Candidates {
                        percentage: count("minCandidateNodesPercentage", default.percentage),
                        absolute: count("minCandidateNodesAbsolute", default.absolute),
                    };
                }
                "InterPodAffinity" => {
                    arguments.inter_pod_affinity = InterPodAffinity {
                        hard_weight: args["hardPodAffinityWeight"].as_i64().unwrap_or(1),
                        ignore_preferences_of_others: args["ignorePreferredTermsOfExistingPods"] == true,
                    };
                }
                "NodeAffinity" => {
                    arguments.added_affinity = placement::NodeAffinity::read(&Value::Null, &args["addedAffinity"]);
                }
                "NodeResourcesBalancedAllocation" => {
                    arguments.balanced = resources(&args["resources"]).into_iter().map(|(name, _)| name).collect();
                }
                "NodeResourcesFit" => arguments.fit = fit(args),
                "PodTopologySpread" if args["defaultingType"] == "List" => {
                    let defaults = list(args, "defaultConstraints").map(Constraint::read);
                    arguments.spread = PodTopologySpread { defaults: defaults.collect(), system: false };
                }
                "VolumeBinding" => {
                    let timeout = args["bindTimeoutSeconds"].as_u64();
                    arguments.bind_timeout = timeout.map_or(arguments.bind_timeout, Duration::from_secs);
                }
                "DynamicResources" => {
                    let time = |name: &str| {
                        let nanos = args[name].as_str().and_then(meta::time::parse_go_duration)?;
                        u64::try_from(nanos).ok().map(Duration::from_nanos)
                    };
                    arguments.device_timeout = time("bindingTimeout").unwrap_or(arguments.device_timeout);
                    arguments.device_search_time = time("filterTimeout").unwrap_or(arguments.device_search_time);
                }
                _ => {}
            }
        }
        arguments
    }
}

/// Names and weights; a missing or zero weight is 1.
fn resources(value: &Value) -> Vec<(Box<str>, i64)> {
    let all = value.as_array().into_iter().flatten();
    let weight = |r: &Value| r["weight"].as_i64().filter(|w| *w != 0).unwrap_or(1);
    all.map(|r| (r["name"].as_str().unwrap_or_default().into(), weight(r))).collect()
}

fn fit(args: &Value) -> NodeResourcesFit {
    let texts = |field: &str| list(args, field).filter_map(Value::as_str).map(Into::into).collect();
    let strategy = &args["scoringStrategy"];
    let mut fit = NodeResourcesFit {
        ignored: texts("ignoredResources"),
        ignored_groups: texts("ignoredResourceGroups"),
        strategy: match strategy["type"].as_str().unwrap_or_default() {
            "MostAllocated" => Strategy::MostAllocated,
            "RequestedToCapacityRatio" => {
                let number = |p: &Value, field: &str| p[field].as_i64().unwrap_or(0);
                let shape = list(&strategy["requestedToCapacityRatio"], "shape");
                // Scores of files are from 0 to 10.
                let point = |p| (number(p, "utilization"), number(p, "score") * 10);
                Strategy::RequestedToCapacityRatio(shape.map(point).collect())
            }
            _ => Strategy::LeastAllocated,
        },
        ..NodeResourcesFit::default()
    };
    let resources = resources(&strategy["resources"]);
    if !resources.is_empty() {
        fit.resources = resources;
    }
    fit
}

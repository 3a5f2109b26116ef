//! Validates a decoded configuration (upstream `apis/config/validation`).

use super::read::{VERSION, list};
use meta::{FieldError, FieldPath, Value};
use schema::form::aggregate;

/// Plugins of older versions.
const REMOVED: &[&str] = &["AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits"];

/// Checks all fields. Errors with all problems.
pub(super) fn check(configuration: &Value) -> Result<(), String> {
    let mut errors: Vec<FieldError> = Vec::new();
    let top = FieldPath::new;
    if let Some(parallelism) = configuration["parallelism"].as_i64().filter(|p| *p <= 0) {
        let why = "should be an integer value greater than zero";
        errors.push(FieldError::invalid(&top("parallelism"), parallelism, why));
    }
    let mut names: Vec<&str> = Vec::new();
    for (i, profile) in list(configuration, "profiles").enumerate() {
        let path = top("profiles").index(i);
        let name = profile["schedulerName"].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("schedulerName"), ""));
        }
        percentage(&path, profile, &mut errors);
        check_profile(&path, profile, &mut errors);
        if let Some(first) = names.iter().position(|n| *n == name) {
            let first = top("profiles").index(first).child("schedulerName").text();
            errors.push(FieldError::duplicate(&path.child("schedulerName"), first));
        }
        names.push(name);
    }
    queue_sort(configuration, &mut errors);
    percentage(&FieldPath::root(), configuration, &mut errors);
    let initial = configuration["podInitialBackoffSeconds"].as_i64().unwrap_or(1);
    let max = configuration["podMaxBackoffSeconds"].as_i64().unwrap_or(10);
    if initial <= 0 {
        errors.push(FieldError::invalid(&top("podInitialBackoffSeconds"), initial, "must be greater than 0"));
    }
    if max < initial {
        let why = "must be greater than or equal to PodInitialBackoffSeconds";
        errors.push(FieldError::invalid(&top("podMaxBackoffSeconds"), max, why));
    }
    check_extenders(configuration, &mut errors);
    aggregate(&errors)
}

fn percentage(path: &FieldPath, value: &Value, errors: &mut Vec<FieldError>) {
    if let Some(p) = value["percentageOfNodesToScore"].as_i64().filter(|p| !(0..=100).contains(p)) {
        let path = path.child("percentageOfNodesToScore");
        errors.push(FieldError::invalid(&path, p, "not in valid range [0-100]"));
    }
}

/// One plugin sorts the queue, the same for all profiles.
fn queue_sort(configuration: &Value, errors: &mut Vec<FieldError>) {
    let path = FieldPath::new("profiles");
    let mut sets = list(configuration, "profiles").map(|p| &p["plugins"]["queueSort"]);
    let Some(first) = sets.next() else { return };
    let enabled = first["enabled"].as_array().map_or(0, Vec::len);
    if enabled > 1 {
        let at = path.index(0).child("plugins").child("queueSort").child("Enabled");
        errors.push(FieldError::invalid(&at, enabled as i64, "only one queue sort plugin can be enabled"));
    }
    for (i, other) in sets.enumerate().filter(|(_, other)| *other != first) {
        let at = path.index(i + 1).child("plugins").child("queueSort");
        errors.push(FieldError::invalid(&at, other.clone(), "must be the same for all profiles"));
    }
}

fn check_profile(path: &FieldPath, profile: &Value, errors: &mut Vec<FieldError>) {
    let removed = format!("was invalid in version \"{VERSION}\" (KubeSchedulerConfiguration is version \"{VERSION}\")");
    for (point, set) in profile["plugins"].as_object().into_iter().flatten().filter(|(p, _)| *p != "multiPoint") {
        let path = path.child("plugins").child(point).child("enabled");
        for (i, plugin) in list(set, "enabled").enumerate() {
            let name = plugin["name"].as_str().unwrap_or_default();
            if REMOVED.contains(&name) {
                errors.push(FieldError::invalid(&path.index(i), name, &removed));
            }
        }
    }
    let mut seen: Vec<&str> = Vec::new();
    for (i, plugin) in list(profile, "pluginConfig").enumerate() {
        let path = path.child("pluginConfig").index(i);
        let name = plugin["name"].as_str().unwrap_or_default();
        if seen.contains(&name) {
            errors.push(FieldError::duplicate(&path, name));
        }
        seen.push(name);
        if REMOVED.contains(&name) {
            errors.push(FieldError::invalid(&path, name, &removed));
        }
        check_arguments(name, &path.child("args"), &plugin["args"], errors);
    }
}

fn range(path: &FieldPath, value: &Value, least: i64, most: i64, why: &str, errors: &mut Vec<FieldError>) {
    if let Some(n) = value.as_i64().filter(|n| !(least..=most).contains(n)) {
        errors.push(FieldError::invalid(path, n, why));
    }
}

fn check_arguments(plugin: &str, path: &FieldPath, args: &Value, errors: &mut Vec<FieldError>) {
    match plugin {
        "DefaultPreemption" => {
            let (percentage, absolute) = ("minCandidateNodesPercentage", "minCandidateNodesAbsolute");
            range(&path.child(percentage), &args[percentage], 0, 100, "not in valid range [0, 100]", errors);
            range(&path.child(absolute), &args[absolute], 0, i64::MAX, "not in valid range [0, inf)", errors);
            if args[percentage] == 0 && args[absolute] == 0 {
                let zero = |other: &str| format!("cannot be zero at the same time as {other}");
                errors.push(FieldError::invalid(&path.child(percentage), 0, zero(absolute)));
                errors.push(FieldError::invalid(&path.child(absolute), 0, zero(percentage)));
            }
        }
        "InterPodAffinity" => {
            let field = "hardPodAffinityWeight";
            range(&path.child(field), &args[field], 0, 100, "not in valid range [0, 100]", errors);
        }
        "NodeResourcesBalancedAllocation" => {
            let mut seen: Vec<&str> = Vec::new();
            for (i, resource) in list(args, "resources").enumerate() {
                let path = path.child("resources").index(i);
                let name = resource["name"].as_str().unwrap_or_default();
                if seen.contains(&name) {
                    errors.push(FieldError::duplicate(&path.child("name"), name));
                }
                seen.push(name);
                if let Some(weight) = resource["weight"].as_i64().filter(|w| !matches!(w, 0 | 1)) {
                    errors.push(FieldError::invalid(&path.child("weight"), weight, "must be 1"));
                }
            }
        }
        "DynamicResources" => {
            for (field, least, why) in [
                ("filterTimeout", 0, "must be zero or positive"),
                ("bindingTimeout", 1_000_000_000, "must be at least 1 second"),
            ] {
                let nanoseconds = args[field].as_str().and_then(meta::time::parse_go_duration);
                if nanoseconds.is_some_and(|n| n < least) {
                    errors.push(FieldError::invalid(&path.child(field), args[field].clone(), why));
                }
            }
        }
        "NodeResourcesFit" => check_fit(path, args, errors),
        "PodTopologySpread" => check_spread(path, args, errors),
        "VolumeBinding" => {
            let field = "bindTimeoutSeconds";
            let why = "invalid BindTimeoutSeconds, should not be a negative value";
            range(&path.child(field), &args[field], 0, i64::MAX, why, errors);
            if args["shape"].is_array() {
                let why = "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring";
                errors.push(FieldError::invalid(&path.child("shape"), args["shape"].clone(), why));
            }
        }
        _ => {}
    }
}

fn check_fit(path: &FieldPath, args: &Value, errors: &mut Vec<FieldError>) {
    for field in ["ignoredResources", "ignoredResourceGroups"] {
        for (i, name) in list(args, field).enumerate() {
            let (path, name) = (path.child(field).index(i), name.as_str().unwrap_or_default());
            if field == "ignoredResourceGroups" && name.contains('/') {
                errors.push(FieldError::invalid(&path, name, "resource group name can't contain '/'"));
            }
            errors
                .extend(meta::names::qualified_name(name).into_iter().map(|why| FieldError::invalid(&path, name, why)));
        }
    }
    let strategy = &args["scoringStrategy"];
    if strategy.is_null() {
        return;
    }
    let path = path.child("scoringStrategy");
    const TYPES: [&str; 3] = ["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"];
    let kind = strategy["type"].as_str().unwrap_or_default();
    if !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(&path.child("type"), kind, &TYPES));
    }
    for (i, resource) in list(strategy, "resources").enumerate() {
        let name = resource["name"].as_str().unwrap_or_default();
        let why = format!("resource weight of {name} not in valid range (0, 100]");
        range(&path.child("resources").index(i).child("weight"), &resource["weight"], 0, 100, &why, errors);
    }
    let ratio = path.child("requestedToCapacityRatio");
    match (kind, &strategy["requestedToCapacityRatio"]) {
        ("RequestedToCapacityRatio", Value::Null) => {
            errors.push(FieldError::required(&ratio, "must be specified when type is RequestedToCapacityRatio"));
        }
        ("RequestedToCapacityRatio", given) => check_shape(&ratio.child("shape"), &given["shape"], errors),
        (_, Value::Null) => {}
        _ => errors.push(FieldError::forbidden(&ratio, "must be nil when type is not RequestedToCapacityRatio")),
    }
}

fn check_shape(path: &FieldPath, shape: &Value, errors: &mut Vec<FieldError>) {
    let points = shape.as_array().map_or(&[][..], Vec::as_slice);
    if points.is_empty() {
        errors.push(FieldError::required(path, "at least one point must be specified"));
    }
    let utilization = |p: &Value| p["utilization"].as_i64().unwrap_or(0);
    if let Some(i) = points.windows(2).position(|w| utilization(&w[0]) >= utilization(&w[1])) {
        let why = "values must be sorted in increasing order";
        let path = path.index(i + 1).child("utilization");
        errors.push(FieldError::invalid(&path, utilization(&points[i + 1]), why));
    }
    for (i, point) in points.iter().enumerate() {
        let path = path.index(i);
        range(&path.child("utilization"), &point["utilization"], 0, 100, "not in valid range [0, 100]", errors);
        range(&path.child("score"), &point["score"], 0, 10, "not in valid range [0, 10]", errors);
    }
}

fn check_spread(path: &FieldPath, args: &Value, errors: &mut Vec<FieldError>) {
    let kind = args["defaultingType"].as_str().unwrap_or("System");
    let constraints = args["defaultConstraints"].as_array().map_or(&[][..], Vec::as_slice);
    let at = path.child("defaultingType");
    match kind {
        "System" if !constraints.is_empty() => {
            errors.push(FieldError::invalid(&at, kind, "when .defaultConstraints are not empty"));
        }
        "System" | "List" => {}
        _ => errors.push(FieldError::not_supported(&at, kind, &["System", "List"])),
    }
    let text = |c: &Value, field: &str| c[field].as_str().unwrap_or_default().to_owned();
    for (i, c) in constraints.iter().enumerate() {
        let at = path.child("defaultConstraints").index(i);
        if c["maxSkew"].as_i64().unwrap_or(0) <= 0 {
            let skew = c["maxSkew"].as_i64().unwrap_or(0);
            errors.push(FieldError::invalid(&at.child("maxSkew"), skew, "not in valid range (0, inf)"));
        }
        let (key, when) = (text(c, "topologyKey"), text(c, "whenUnsatisfiable"));
        let at_key = at.child("topologyKey");
        if key.is_empty() {
            errors.push(FieldError::required(&at_key, "can not be empty"));
        } else {
            let problems = meta::names::qualified_name(&key).into_iter();
            errors.extend(problems.map(|why| FieldError::invalid(&at_key, key.as_str(), why)));
        }
        const ACTIONS: [&str; 2] = ["DoNotSchedule", "ScheduleAnyway"];
        let at_when = at.child("whenUnsatisfiable");
        match when.as_str() {
            "" => errors.push(FieldError::required(&at_when, "can not be empty")),
            other if !ACTIONS.contains(&other) => errors.push(FieldError::not_supported(&at_when, other, &ACTIONS)),
            _ => {}
        }
        if !c["labelSelector"].is_null() {
            let why = "constraint must not define a selector, as they deduced for each pod";
            errors.push(FieldError::forbidden(&at.child("labelSelector"), why));
        }
        let same = |o: &Value| text(o, "topologyKey") == key && text(o, "whenUnsatisfiable") == when;
        if constraints[..i].iter().any(same) {
            errors.push(FieldError::duplicate(&at, format!("{{{key}, {when}}}")));
        }
    }
}

fn check_extenders(configuration: &Value, errors: &mut Vec<FieldError>) {
    let path = FieldPath::new("extenders");
    let mut managed: Vec<&str> = Vec::new();
    let mut binders = 0;
    for (i, extender) in list(configuration, "extenders").enumerate() {
        let path = path.index(i);
        let has = |verb: &str| extender[verb].as_str().is_some_and(|v| !v.is_empty());
        let weight = extender["weight"].as_i64().unwrap_or(0);
        if has("prioritizeVerb") && weight <= 0 {
            let why = "must have a positive weight applied to it";
            errors.push(FieldError::invalid(&path.child("weight"), weight, why));
        }
        binders += usize::from(has("bindVerb"));
        for (j, resource) in list(extender, "managedResources").enumerate() {
            let path = path.child("managedResources").index(j).child("name");
            let name = resource["name"].as_str().unwrap_or_default();
            let problems = meta::names::qualified_name(name);
            let extended = name.contains('/') && !name.starts_with("requests.") && !is_native(name);
            if problems.is_empty() && !extended {
                errors.push(FieldError::invalid(&path, name, "is an invalid extended resource name"));
            }
            errors.extend(problems.into_iter().map(|why| FieldError::invalid(&path, name, why)));
            if managed.contains(&name) {
                errors.push(FieldError::invalid(&path, name, "duplicate extender managed resource name"));
            }
            managed.push(name);
        }
    }
    if binders > 1 {
        let found = format!("found {binders} extenders implementing bind");
        errors.push(FieldError::invalid(&path, found, "only one extender can implement bind"));
    }
}

/// Whether a resource name belongs to Kubernetes itself.
fn is_native(name: &str) -> bool {
    name.split_once('/').is_none_or(|(domain, _)| domain == "kubernetes.io" || domain.ends_with(".kubernetes.io"))
}

//! Reads a `KubeSchedulerConfiguration` from a file, with upstream's errors.

use super::extender::ExtenderConfiguration;
use super::{
    Arguments, Configuration, ConfigurationError, Enabled, PluginSet, Profile, arguments, conversion, validate,
};
use crate::framework::Point;
use crate::queue::Backoff;
use codec::yaml::{DEPTH_LIMIT, Error, parse_first};
use meta::Value;
use schema::form::{ANY, BOOLEAN, Fields, Form, Kind, LONG, NUMBER, TEXT};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(super) const VERSION: &str = "kubescheduler.config.k8s.io/v1";

pub(super) const KIND: Kind = Kind {
    versions: &[(VERSION, "KubeSchedulerConfiguration")],
    fields: Fields(
        "KubeSchedulerConfiguration",
        &[
            ("parallelism", NUMBER),
            ("leaderElection", ANY),
            ("clientConnection", ANY),
            ("enableProfiling", BOOLEAN),
            ("enableContentionProfiling", BOOLEAN),
            ("percentageOfNodesToScore", NUMBER),
            ("podInitialBackoffSeconds", LONG),
            ("podMaxBackoffSeconds", LONG),
            ("profiles", Form::List(&PROFILE)),
            ("extenders", Form::List(&EXTENDER)),
            ("delayCacheUntilActive", BOOLEAN),
        ],
    ),
};
const PROFILE: Form = Form::Object(Fields(
    "KubeSchedulerProfile",
    &[
        ("schedulerName", TEXT),
        ("percentageOfNodesToScore", NUMBER),
        ("plugins", PLUGINS),
        ("pluginConfig", Form::List(&PLUGIN_CONFIG)),
    ],
));
const PLUGINS: Form = Form::Object(Fields(
    "Plugins",
    &[
        ("preEnqueue", PLUGIN_SET),
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
        ("multiPoint", PLUGIN_SET),
        ("placementGenerate", PLUGIN_SET),
        ("placementScore", PLUGIN_SET),
    ],
));
pub(super) const PLUGIN_SET: Form =
    Form::Object(Fields("PluginSet", &[("enabled", Form::List(&PLUGIN)), ("disabled", Form::List(&PLUGIN))]));
const PLUGIN: Form = Form::Object(Fields("Plugin", &[("name", TEXT), ("weight", NUMBER)]));
pub(super) const PLUGIN_CONFIG: Form = Form::Object(Fields("PluginConfig", &[("name", TEXT), ("args", ANY)]));
pub(super) const EXTENDER: Form = Form::Object(Fields(
    "Extender",
    &[
        ("urlPrefix", TEXT),
        ("filterVerb", TEXT),
        ("preemptVerb", TEXT),
        ("prioritizeVerb", TEXT),
        ("weight", LONG),
        ("bindVerb", TEXT),
        ("enableHTTPS", BOOLEAN),
        ("tlsConfig", TLS),
        ("httpTimeout", Form::Plain(schema::Type::Duration)),
        ("nodeCacheCapable", BOOLEAN),
        ("managedResources", Form::List(&MANAGED)),
        ("ignorable", BOOLEAN),
    ],
));
pub(super) const TLS: Form = Form::Object(Fields(
    "ExtenderTLSConfig",
    &[
        ("insecure", BOOLEAN),
        ("serverName", TEXT),
        ("certFile", TEXT),
        ("keyFile", TEXT),
        ("caFile", TEXT),
        ("certData", TEXT),
        ("keyData", TEXT),
        ("caData", TEXT),
    ],
));
pub(super) const MANAGED: Form =
    Form::Object(Fields("ExtenderManagedResource", &[("name", TEXT), ("ignoredByScheduler", BOOLEAN)]));

impl Configuration {
    /// Reads a file. Errors if it cannot be read, is no such configuration, or is invalid.
    pub fn read(path: &Path) -> Result<Self, ConfigurationError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigurationError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(&text)
    }

    /// Reads the text of a configuration file. Older versions are converted.
    pub fn parse(text: &str) -> Result<Self, ConfigurationError> {
        let is_known = |d: &Value| if conversion::is_older(d) { Ok(()) } else { KIND.registered(d) };
        let mut document = parse(text, is_known).map_err(ConfigurationError::Invalid)?;
        let mut warnings = Vec::new();
        if let Some(converted) = conversion::convert(&document) {
            let converted = converted.map_err(ConfigurationError::Invalid)?;
            (document, warnings) = (converted.document, converted.warnings);
        }
        let mut read = KIND.read(&document).map_err(ConfigurationError::Invalid)?;
        arguments::decode(&mut read).map_err(ConfigurationError::Invalid)?;
        name_single_profile(&mut read);
        validate::check(&read).map_err(ConfigurationError::Invalid)?;
        let extenders: Result<Vec<_>, _> = list(&read, "extenders").map(ExtenderConfiguration::read).collect();
        let mut extenders = extenders.map_err(ConfigurationError::Invalid)?;
        // Those that may fail come last.
        extenders.sort_by_key(|e| e.ignorable);
        let mut profiles: Vec<Profile> = list(&read, "profiles").map(profile).collect();
        let ignored: Vec<Box<str>> = extenders.iter().flat_map(|e| e.ignored_resources()).collect();
        if !ignored.is_empty() {
            for profile in &mut profiles {
                profile.arguments.fit.ignored = ignored.clone();
            }
        }
        let seconds = |field: &str, default| read[field].as_u64().map_or(default, Duration::from_secs);
        let default = Backoff::default();
        let backoff = Backoff {
            initial: seconds("podInitialBackoffSeconds", default.initial),
            max: seconds("podMaxBackoffSeconds", default.max),
        };
        Ok(Self { profiles, percentage: percentage(&read), backoff, extenders, warnings })
    }
}

/// Parses the text of a file. Errors if the document is not of a known kind, or has a field twice.
pub(super) fn parse(text: &str, is_known: impl FnOnce(&Value) -> Result<(), String>) -> Result<Value, String> {
    let (document, twice) = parse_first(text, DEPTH_LIMIT).map_err(|e| e.to_string())?;
    is_known(&document)?;
    if twice.is_empty() {
        return Ok(document);
    }
    let twice = Error::Duplicates(twice);
    Err(format!("strict decoding error: {twice}"))
}

pub(super) fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

fn percentage(value: &Value) -> Option<u32> {
    value["percentageOfNodesToScore"].as_u64().and_then(|p| u32::try_from(p).ok())
}

/// Adds the default profile if there is none, and the default name if there is one without.
fn name_single_profile(read: &mut Value) {
    if read["profiles"].as_array().is_none_or(Vec::is_empty) {
        read["profiles"] = Value::Array(vec![serde_json::json!({})]);
    }
    if let Some([only]) = read["profiles"].as_array_mut().map(Vec::as_mut_slice)
        && only["schedulerName"].is_null()
    {
        only["schedulerName"] = "default-scheduler".into();
    }
}

fn profile(value: &Value) -> Profile {
    let name: Arc<str> = value["schedulerName"].as_str().unwrap_or_default().into();
    let mut profile = Profile::new(&name);
    profile.percentage = percentage(value);
    let plugins = &value["plugins"];
    profile.merge_multi_point(plugin_set(&plugins["multiPoint"]));
    for point in Point::ALL {
        let set = plugin_set(&plugins[point.field()]);
        if set != PluginSet::default() {
            profile.points.insert(*point, set);
        }
    }
    profile.arguments = Arguments::read(list(value, "pluginConfig"));
    profile
}

fn plugin_set(value: &Value) -> PluginSet {
    let name = |p: &Value| -> Box<str> { p["name"].as_str().unwrap_or_default().into() };
    PluginSet {
        enabled: list(value, "enabled").map(|p| Enabled { name: name(p), weight: p["weight"].as_i64() }).collect(),
        disabled: list(value, "disabled").map(name).collect(),
    }
}

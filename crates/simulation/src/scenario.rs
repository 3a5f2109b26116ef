//! Scenarios: what happens to a simulated cluster, as data in YAML or JSON.
//!
//! Everything that a run depends on is in the scenario, its seed included, so that its text repeats the run.

use crate::assumptions::Assumptions;
use crate::component::Caches;
use crate::expectations::Expectation;
use crate::link::CrashPoint;
pub use crate::name::ObjectName;
use crate::node_spec::NodeSpec;
use crate::operations::{Drain, Rollout, UpgradeNodes};
use crate::span::{Offset, Span};
use codec::yaml;
use meta::Value;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// A scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// The seed of everything random.
    #[serde(default)]
    pub seed: u64,
    /// When it begins, as `2026-01-01T00:00:00Z`, which is the default.
    #[serde(default, deserialize_with = "read_start", skip_serializing_if = "Option::is_none")]
    pub start: Option<jiff::Timestamp>,
    /// The controllers that run, and `scheduler`. Empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<String>,
    /// How long requests of components and their responses take, each; at least 1 ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// The nodes at the start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeSpec>,
    /// What is assumed of containers. Without it they start and stop in a second; a rehearsal has other defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assume: Option<Assumptions>,
    /// What must hold during a rehearsal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<Expectation>,
    /// Whether a rehearsal ignores PodDisruptionBudgets with fewer healthy pods than they demand.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ignore_budgets: bool,
    /// What happens, in order.
    pub steps: Vec<Step>,
    /// The objects of files that steps apply, by the name in the step.
    #[serde(skip)]
    pub files: BTreeMap<String, Vec<Value>>,
}

/// A random time between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Latency {
    pub minimum: Span,
    pub maximum: Span,
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Step {
    /// Creates an object.
    Create(Value),
    /// Applies an object as kubectl does on the server, with the field manager `scenario`.
    Apply(Value),
    /// Merges a patch into an object.
    Patch { object: ObjectName, patch: Value },
    /// Deletes an object.
    Delete {
        object: ObjectName,
        #[serde(default)]
        propagation: Propagation,
    },
    /// Sets the number of replicas.
    Scale { object: ObjectName, replicas: i64 },
    /// Stops the machine of a node.
    FailNode(String),
    /// Starts the machine of a node again, or heals its connection.
    HealNode(String),
    /// Cuts a node off from the API server; its containers run on.
    CutNode(String),
    /// Fails and heals a node several times. Later steps happen meanwhile.
    FlapNode { node: String, times: u32, down: Span, up: Span },
    /// Stops the machines of all nodes in a zone.
    FailZone(String),
    /// Starts the machines of all nodes in a zone again.
    HealZone(String),
    /// Cordons a node and evicts its pods.
    Drain(Drain),
    /// Drains nodes, a few at a time, and starts each again with another version.
    UpgradeNodes(UpgradeNodes),
    /// Changes the pods of a workload.
    Rollout(Rollout),
    /// Applies the objects of files, as [`Step::Apply`] does. The caller reads them into [`Scenario::files`].
    ApplyFiles(Vec<String>),
    /// Makes a node schedulable again.
    Uncordon(String),
    /// Containers of this image never become ready from now on.
    BreakImage(String),
    /// Sets the CPU, in thousandths of cores, that the pods with this label `app` use together.
    Load { app: String, milli_cores: u64 },
    /// Cuts a component off from the API server.
    Cut(String),
    /// Heals the connection of a component.
    Heal(String),
    /// Stops the API server for a time: requests of components and nodes are refused, and watches end. What was committed stays.
    StopServer(Span),
    /// Delays the watch events of a component, so that its caches are old.
    DelayWatches { component: String, by: Span },
    /// Sets a clock forward or back: of a component, of a node, or of the API server (`server`).
    JumpClock { of: String, by: Offset },
    /// Kills a component at a point, and starts it again.
    Crash(Crash),
    /// Starts a component that is down.
    Restart {
        component: String,
        #[serde(default)]
        caches: Caches,
    },
    /// Lets time pass.
    Advance(Span),
    /// Lets time pass until a condition holds.
    WaitFor(Condition),
    /// Heals everything, lets time pass until nothing is written any more, and checks what must hold then.
    Settle {
        /// How long nothing must be written.
        #[serde(default = "quiet")]
        quiet: Span,
        #[serde(default = "limit")]
        within: Span,
    },
    /// Lets time pass until nothing is written any more.
    Rest {
        #[serde(default = "quiet")]
        quiet: Span,
        #[serde(default = "limit")]
        within: Span,
    },
}

fn quiet() -> Span {
    Span(Duration::from_secs(360))
}

fn limit() -> Span {
    Span(Duration::from_secs(2 * 3600))
}

impl Step {
    /// The step in a few words.
    pub(crate) fn describe(&self) -> String {
        let object = |verb: &str, o: &Value| {
            let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
            let (kind, name) = (text(&o["kind"]).to_lowercase(), text(&o["metadata"]["name"]));
            format!("{verb} {kind} {name}")
        };
        match self {
            Self::Create(o) => object("create", o),
            Self::Apply(o) => object("apply", o),
            Self::Patch { object, .. } => format!("patch {object}"),
            Self::Delete { object, .. } => format!("delete {object}"),
            Self::Scale { object, replicas } => format!("scale {object} to {replicas}"),
            Self::Drain(d) => format!("drain {}", d.node),
            Self::UpgradeNodes(u) => {
                let nodes = u.selector.as_ref().map_or_else(|| u.nodes.join(", "), |s| format!("with {s}"));
                format!("upgrade nodes {nodes}, {} at a time", u.max_unavailable)
            }
            Self::Rollout(r) => match &r.image {
                Some(image) => format!("roll out {} with image {image}", r.object),
                None => format!("restart {}", r.object),
            },
            Self::Advance(time) => format!("advance {time}"),
            Self::WaitFor(c) => format!("wait for {}", c.object),
            Self::Settle { .. } => "heal everything and settle".into(),
            Self::Rest { .. } => "wait until nothing changes".into(),
            Self::ApplyFiles(files) => format!("apply {}", files.join(", ")),
            other => match serde_json::to_value(other).unwrap_or_default() {
                Value::Object(fields) => {
                    fields.iter().map(|(k, v)| format!("{k} {}", plain(v))).collect::<Vec<_>>().join(", ")
                }
                name => plain(&name),
            },
        }
    }

    /// A settlement with the default limits.
    pub fn settle() -> Self {
        Self::Settle { quiet: quiet(), within: limit() }
    }
}

/// A value as text without the marks of JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => fields.iter().map(|(k, v)| format!("{k} {}", plain(v))).collect::<Vec<_>>().join(" "),
        Value::Null => "nothing".into(),
        other => other.to_string(),
    }
}

/// What happens to the dependents of a deleted object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Propagation {
    #[default]
    Background,
    Foreground,
    Orphan,
}

/// A crash of a component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Crash {
    pub component: String,
    #[serde(default = "now")]
    pub point: CrashPoint,
    /// How long it is down; none: until a step restarts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_after: Option<Span>,
    /// The caches that it then has.
    #[serde(default)]
    pub caches: Caches,
    /// How often this happens, each time after the restart.
    #[serde(default = "once")]
    pub times: u32,
}

fn now() -> CrashPoint {
    CrashPoint::Now
}

fn once() -> u32 {
    1
}

/// A condition of one object. With no other field, it holds when the object exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Condition {
    pub object: ObjectName,
    /// It holds when the object does not exist.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
    /// The condition of this type in `status.conditions` is `True`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// Fields, such as `status.readyReplicas`, and their values; `null` is an absent field.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub fields: serde_json::Map<String, Value>,
    #[serde(default = "patience")]
    pub within: Span,
}

fn patience() -> Span {
    Span(Duration::from_secs(1800))
}

impl Condition {
    /// A field of an object that must have a value.
    pub fn field(object: ObjectName, field: &str, value: impl Into<Value>) -> Self {
        let fields = serde_json::Map::from_iter([(field.to_owned(), value.into())]);
        Self { object, absent: false, condition: None, fields, within: patience() }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.object)?;
        if self.absent {
            return f.write_str(" is absent");
        }
        let mut parts: Vec<String> = self.condition.iter().map(|c| format!("the condition {c}")).collect();
        parts.extend(self.fields.iter().map(|(path, value)| format!("{path} {}", plain(value))));
        match parts.is_empty() {
            true => f.write_str(" exists"),
            false => write!(f, " with {}", parts.join(", ")),
        }
    }
}

/// Why a text is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    #[error("the scenario is not valid YAML: {0}")]
    Yaml(#[from] yaml::Error),
    #[error("the file is empty: a scenario has at least `steps`")]
    Empty,
    #[error("the file has {0} documents instead of one scenario")]
    Documents(usize),
    /// The path of the field, and what is wrong with it.
    #[error("{path}: {problem}")]
    Field { path: String, problem: String },
}

/// How deep the objects of a scenario may be nested.
const MOST_LEVELS: usize = 1_000;

/// The latest start of a scenario, in seconds: 3000-01-01.
const LATEST_START: i64 = 32_503_680_000;

/// The place and the problem of a scenario that is not a map with a list of steps, each a map with one key.
fn misshapen(scenario: &Value) -> Option<(String, String)> {
    let steps = match scenario {
        Value::Object(fields) => match fields.get("steps")? {
            Value::Array(steps) => steps,
            other => return Some(("steps".into(), format!("must be a list of steps, not {}", sort(other)))),
        },
        other => return Some(("scenario".into(), format!("must be a map with `steps`, not {}", sort(other)))),
    };
    steps.iter().enumerate().find_map(|(i, step)| {
        let problem = match step {
            Value::Object(step) if step.len() == 1 => return None,
            Value::Object(step) => {
                let names: Vec<&str> = step.keys().map(String::as_str).collect();
                format!("must have one key, the name of the step, not {} ({})", names.len(), names.join(", "))
            }
            Value::String(name) => format!("must be a map such as `{{{name}: …}}`, not a string"),
            other => format!("must be a map such as `{{advance: 5m}}`, not {}", sort(other)),
        };
        Some((format!("steps[{i}]"), problem))
    })
}

/// The sort of a value, in words of YAML.
fn sort(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

/// A message of the decoder with the words of YAML in place of those of Rust.
fn in_plain_words(message: &str) -> String {
    const TYPES: [(&str, &str); 6] = [
        ("struct", "a map"),
        ("a sequence", "a list"),
        ("u64", "a whole number that is not negative"),
        ("u32", "a whole number that is not negative"),
        ("i64", "a whole number"),
        ("i32", "a whole number"),
    ];
    let message =
        message.replace("unknown variant", "unknown name").replace("invalid type: sequence", "invalid type: list");
    let Some((problem, expected)) = message.rsplit_once(", expected ") else { return message };
    match TYPES.iter().find(|(rust, _)| expected.starts_with(rust)) {
        Some((_, plain)) => format!("{problem}, expected {plain}"),
        None => message,
    }
}

/// Reads the time at which a scenario begins.
fn read_start<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<jiff::Timestamp>, D::Error> {
    let Some(text) = Option::<String>::deserialize(d)? else { return Ok(None) };
    let problem = || serde::de::Error::custom(format!("{text:?} is not a time such as 2026-01-01T00:00:00Z"));
    meta::time::parse(&text).map(Some).ok_or_else(problem)
}

impl Scenario {
    /// Parses YAML or JSON, and validates it.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let scenario = Self::decode(text)?;
        scenario.validate()?;
        Ok(scenario)
    }

    /// Parses YAML or JSON whose nodes are not known yet.
    pub fn decode(text: &str) -> Result<Self, ParseError> {
        if meta::depth::of_text(text.as_bytes()) > MOST_LEVELS {
            let problem = format!("is nested deeper than {MOST_LEVELS} levels");
            return Err(ParseError::Field { path: "scenario".into(), problem });
        }
        let mut documents = yaml::parse_strict(text)?;
        match (documents.pop(), documents.len()) {
            (Some(document), 0) => Self::from_value(document),
            (None, _) => Err(ParseError::Empty),
            (last, n) => Err(ParseError::Documents(n + usize::from(last.is_some()))),
        }
    }

    fn from_value(value: Value) -> Result<Self, ParseError> {
        if let Some((path, problem)) = misshapen(&value) {
            return Err(ParseError::Field { path, problem });
        }
        serde_path_to_error::deserialize(value).map_err(|e| {
            let path = e.path().to_string();
            let path = if path == "." { "scenario".to_owned() } else { path };
            ParseError::Field { path, problem: in_plain_words(&e.into_inner().to_string()) }
        })
    }

    /// The objects that a step creates or applies.
    pub(crate) fn objects<'a>(&'a self, step: &'a Step) -> Vec<&'a Value> {
        match step {
            Step::Create(object) | Step::Apply(object) => vec![object],
            Step::ApplyFiles(files) => files.iter().filter_map(|f| self.files.get(f)).flatten().collect(),
            _ => Vec::new(),
        }
    }

    /// The nodes, each with its own name.
    pub fn node_specs(&self) -> Vec<NodeSpec> {
        self.nodes.iter().flat_map(NodeSpec::each).collect()
    }

    /// Validates a scenario with its nodes.
    pub fn validate(&self) -> Result<(), ParseError> {
        let names: Vec<String> = self.node_specs().into_iter().map(|n| n.name).collect();
        self.validate_with(&names)
    }

    /// Errors with the first value that the types allow, but makes no sense with these nodes.
    pub fn validate_with(&self, nodes: &[String]) -> Result<(), ParseError> {
        let error = |path: String, problem: &str| Err(ParseError::Field { path, problem: problem.to_owned() });
        if let Some(l) = self.latency
            && l.maximum < l.minimum
        {
            return error("latency.maximum".into(), "must not be less than minimum");
        }
        if self.start.is_some_and(|start| !(0..=LATEST_START).contains(&start.as_second())) {
            return error("start".into(), "must be between the years 1970 and 3000");
        }
        let mut known = BTreeSet::new();
        for (i, node) in self.nodes.iter().enumerate() {
            if let Some((field, problem)) = node.problem() {
                return error(format!("nodes[{i}].{field}"), &problem);
            }
            if let Some(twice) = node.each().into_iter().map(|n| n.name).find(|name| !known.insert(name.clone())) {
                return error(format!("nodes[{i}].name"), &format!("there are two nodes {twice:?}"));
            }
        }
        if let Some((field, problem)) = self.assume.as_ref().and_then(Assumptions::problem) {
            return error(format!("assume.{field}"), &problem);
        }
        for (i, expectation) in self.expect.iter().enumerate() {
            if let Some((field, problem)) = expectation.problem() {
                return error(format!("expect[{i}].{field}"), &problem);
            }
        }
        for (i, component) in self.components.iter().enumerate() {
            if component != crate::SCHEDULER && !controllers::names().any(|name| name == component) {
                return error(format!("components[{i}]"), &format!("there is no component {component:?}"));
            }
        }
        for (i, step) in self.steps.iter().enumerate() {
            self.validate_step(step, nodes)
                .or_else(|(field, problem)| error(format!("steps[{i}].{field}"), &problem))?;
        }
        Ok(())
    }

    /// The field and the problem of a step that can never be executed.
    fn validate_step(&self, step: &Step, nodes: &[String]) -> Result<(), (&'static str, String)> {
        let component = |field, name: &String| {
            let known = name == crate::SCHEDULER || controllers::names().any(|n| n == name);
            let runs = self.components.is_empty() || self.components.contains(name);
            match (known, runs) {
                (false, _) => Err((field, format!("there is no component {name:?}"))),
                (_, false) => Err((field, format!("component {name:?} is not among components"))),
                _ => Ok(()),
            }
        };
        let node = |field, name: &String| {
            let known = nodes.contains(name);
            if known { Ok(()) } else { Err((field, format!("there is no node {name:?}"))) }
        };
        let object = |field, value: &Value| {
            let text = |f: &str| value[f].as_str().is_some_and(|s| !s.is_empty());
            if !text("kind") || !text("apiVersion") {
                return Err((field, "must be an object with apiVersion and kind".to_owned()));
            }
            let metadata = &value["metadata"];
            let named = ["name", "generateName"].iter().any(|f| metadata[*f].as_str().is_some_and(|s| !s.is_empty()));
            if named { Ok(()) } else { Err((field, "must have metadata.name".to_owned())) }
        };
        match step {
            Step::Create(o) => object("create", o),
            Step::Apply(o) => object("apply", o),
            Step::Cut(c) => component("cut", c),
            Step::Heal(c) => component("heal", c),
            Step::DelayWatches { component: c, .. } => component("delayWatches.component", c),
            Step::Crash(c) if c.times == 0 => Err(("crash.times", "must be at least 1".to_owned())),
            Step::Crash(c) => component("crash.component", &c.component),
            Step::Restart { component: c, .. } => component("restart.component", c),
            Step::FailNode(n) => node("failNode", n),
            Step::HealNode(n) => node("healNode", n),
            Step::CutNode(n) => node("cutNode", n),
            Step::Drain(d) => node("drain.node", &d.node),
            Step::UpgradeNodes(u) => match u.problem() {
                Some((field, problem)) => Err((field, problem)),
                None => u.nodes.iter().try_for_each(|n| node("upgradeNodes.nodes", n)),
            },
            Step::Rollout(r) => r.problem().map_or(Ok(()), |problem| Err(("rollout", problem))),
            Step::Uncordon(n) => node("uncordon", n),
            Step::FlapNode { node: n, .. } => node("flapNode.node", n),
            Step::JumpClock { of, .. } if of == "server" || nodes.contains(of) => Ok(()),
            Step::JumpClock { of, .. } => component("jumpClock.of", of),
            _ => Ok(()),
        }
    }

    /// The scenario as YAML.
    pub fn to_yaml(&self) -> String {
        yaml::to_string(&serde_json::to_value(self).unwrap_or_default())
    }

    /// Whether the API server stops.
    pub(crate) fn stops_server(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::StopServer(_)))
    }

    /// Components whose connection has faults.
    pub(crate) fn faulty(&self) -> impl Iterator<Item = &String> {
        self.steps.iter().filter_map(|step| match step {
            Step::Cut(component) | Step::DelayWatches { component, .. } => Some(component),
            _ => None,
        })
    }
}

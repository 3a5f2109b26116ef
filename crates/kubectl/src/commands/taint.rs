//! `kubectl taint`: `KEY=VALUE:EFFECT` adds, `KEY:EFFECT-` and `KEY-` remove.

use crate::error::{Error, Result, text};
use crate::flags::{DryRunFlag, DryRunStrategy, PrintFlags, ValidateFlag};
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::Info;
use crate::resource::select::{Selection, gather};
use client::{Patch, WriteOptions};
use meta::{Object, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// `node`, names of nodes, then taints.
    pub words: Vec<String>,
    /// Label selector for nodes.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Taint all nodes.
    #[arg(long)]
    pub all: bool,
    /// Overwrite taints with another value.
    #[arg(long)]
    pub overwrite: bool,
    /// Name of the field manager.
    #[arg(long, default_value = "kubectl-taint", hide_default_value = true)]
    pub field_manager: String,
    #[command(flatten)]
    pub validate: ValidateFlag,
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Taint {
    key: String,
    value: String,
    /// Empty in a taint to remove: every effect.
    effect: String,
}

impl Taint {
    fn parse(word: &str) -> Result<Self> {
        let wrong = |why: &str| text(format!("invalid taint spec: {word}{why}"));
        let mut t = Self::default();
        match word.split(':').collect::<Vec<_>>().as_slice() {
            [key] => t.key = (*key).to_owned(),
            [pair, effect] => {
                if !matches!(*effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
                    return text(format!("invalid taint effect: {effect}, unsupported taint effect"));
                }
                t.effect = (*effect).to_owned();
                match pair.split('=').collect::<Vec<_>>().as_slice() {
                    [key] => t.key = (*key).to_owned(),
                    [key, value] => {
                        let errors = meta::names::label_value(value);
                        if !errors.is_empty() {
                            return wrong(&format!(", {}", errors.join("; ")));
                        }
                        (t.key, t.value) = ((*key).to_owned(), (*value).to_owned());
                    }
                    _ => return wrong(""),
                }
            }
            _ => return wrong(""),
        }
        match meta::names::qualified_name(&t.key) {
            errors if errors.is_empty() => Ok(t),
            errors => wrong(&format!(", {}", errors.join("; "))),
        }
    }

    fn matches(&self, v: &Value) -> bool {
        v["key"] == self.key.as_str() && (self.effect.is_empty() || v["effect"] == self.effect.as_str())
    }

    fn document(&self) -> Value {
        let mut v = json!({"effect": self.effect, "key": self.key});
        if !self.value.is_empty() {
            v["value"] = self.value.as_str().into();
        }
        v
    }
}

/// Formats as Go's `Taint.ToString`.
impl std::fmt::Display for Taint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.value.as_str(), self.effect.as_str()) {
            ("", "") => write!(f, "{}", self.key),
            ("", e) => write!(f, "{}:{e}", self.key),
            (v, "") => write!(f, "{}={v}:", self.key),
            (v, e) => write!(f, "{}={v}:{e}", self.key),
        }
    }
}

#[derive(Debug, Default)]
struct Changes {
    add: Vec<Taint>,
    remove: Vec<Taint>,
}

/// Splits words into the nodes and the changes.
fn changes(words: &[String]) -> Result<(Vec<String>, Changes)> {
    let is_taint = |w: &String| w.contains('=') || w.contains(':') || w.ends_with('-');
    let first = words.iter().position(is_taint).unwrap_or(words.len());
    let (resources, taints) = words.split_at(first);
    if let Some(w) = taints.iter().find(|w| !is_taint(w)) {
        return text(format!("all resources must be specified before taint changes: {w}"));
    }
    if resources.is_empty() {
        return text("one or more resources must be specified as <resource> <name>");
    }
    if taints.is_empty() {
        return text("at least one taint update is required");
    }
    let mut c = Changes::default();
    let parsed = || -> Result<Changes> {
        for w in taints {
            if let Some(w) = w.strip_suffix('-') {
                c.remove.push(Taint { value: String::new(), ..Taint::parse(w)? });
                continue;
            }
            let t = Taint::parse(w)?;
            if t.effect.is_empty() {
                return text(format!("invalid taint spec: {w}"));
            }
            if c.add.iter().any(|o| o.key == t.key && o.effect == t.effect) {
                let shown = format!("{{{} {} {} <nil>}}", t.key, t.value, t.effect);
                return text(format!("duplicated taints with the same key and effect: {shown}"));
            }
            c.add.push(t);
        }
        Ok(c)
    };
    let parsed = parsed().map_err(|e| Error::Text(format!("{e}\nSee 'kubectl taint -h' for help and examples")))?;
    Ok((resources.to_vec(), parsed))
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let dry = a.dry.strategy()?;
    // As in upstream, the output does not mention the dry run.
    let mut printer = Printer::new(&a.print, DryRunStrategy::None)?.typed();
    let (resources, changes) = changes(&a.words)?;
    let kind = resources[0].to_lowercase();
    let r = k.resource(&kind).await?;
    if r.kind != "Node" || !r.group.is_empty() {
        return text(format!("invalid resource type {kind}, only node types are supported"));
    }
    let both: Vec<String> = changes
        .add
        .iter()
        .flat_map(|t| changes.remove.iter().filter(|o| o.key == t.key && (o.effect.is_empty() || o.effect == t.effect)))
        .map(|o| format!("{}={}", o.key, o.effect))
        .collect();
    if !both.is_empty() {
        return text(format!(
            "can not both modify and remove the following taint(s) in the same command: {}",
            both.join(", ")
        ));
    }
    if a.all && !a.selector.is_empty() {
        return text("setting 'all' parameter with a non empty selector is prohibited");
    }
    let selects = a.all || !a.selector.is_empty();
    if !selects && resources.len() < 2 {
        return text("at least one resource name must be specified since 'all' parameter is not set");
    }
    let words = if selects { &resources[..1] } else { &resources[..] };
    let s = Selection { labels: &a.selector, bare_type_is_all: a.all, nothing_but_all: a.all, ..Selection::default() };
    let (found, mut errors) = gather(k, words, &Default::default(), &s).await?;
    let options = WriteOptions {
        dry_run: dry.option(),
        field_validation: a.validate.validation()?,
        ..WriteOptions::manager(&a.field_manager)
    };
    for i in found {
        match taint_node(k, &i, &changes, a.overwrite, dry, &options).await {
            Ok((o, operation)) => printer.print(k, &o, operation)?,
            Err(e) => errors.push(e),
        }
    }
    Error::collect(errors)
}

async fn taint_node(
    k: &mut Kube,
    i: &Info,
    changes: &Changes,
    overwrite: bool,
    dry: DryRunStrategy,
    options: &WriteOptions,
) -> Result<(Object, &'static str)> {
    let mut o = i.object.clone().unwrap_or_default();
    let old = o.at(&["spec", "taints"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let (new, operation) = changed(&i.name, &old, changes, overwrite)?;
    if dry == DryRunStrategy::Client {
        o.set(&["spec", "taints"], new);
        return Ok((o, operation));
    }
    let mut after = o.clone();
    match new.is_empty() {
        true => _ = after.remove(&["spec", "taints"]),
        false => after.set(&["spec", "taints"], new),
    }
    let schema = kinds::catalog().schema_of(&i.resource.gvk());
    let patch = merge::strategic::two_way(&o.0, &after.0, schema.map(|s| &**s));
    let mut patch = Value::Object(patch.map_err(|e| Error::Text(e.to_string()))?);
    // The list is replaced as a whole, and the resource version protects changes of others.
    patch["metadata"]["resourceVersion"] = o.resource_version().into();
    let patch = Patch::Strategic(patch);
    Ok((k.api(&i.resource, "").await?.patch(&i.name, options, &patch).await?, operation))
}

/// Returns the taints after the changes, and the operation for the output.
fn changed(node: &str, old: &[Value], changes: &Changes, overwrite: bool) -> Result<(Vec<Value>, &'static str)> {
    if !overwrite {
        let existing: Vec<&str> =
            changes.add.iter().filter(|t| old.iter().any(|o| t.matches(o))).map(|t| t.key.as_str()).collect();
        if !existing.is_empty() {
            return text(format!(
                "node {node} already has {} taint(s) with same effect(s) and --overwrite is false",
                existing.join(",")
            ));
        }
    }
    let mut new: Vec<Value> = changes.add.iter().map(Taint::document).collect();
    new.extend(old.iter().filter(|o| !changes.add.iter().any(|t| t.matches(o))).cloned());
    let added = new.len() != old.len();
    let mut errors = Vec::new();
    let mut removed = false;
    for t in &changes.remove {
        let before = new.len();
        new.retain(|o| !t.matches(o));
        removed = new.len() != before;
        if !removed {
            errors.push(Error::Text(format!("taint {:?} not found", t.to_string())));
        }
    }
    Error::collect(errors)?;
    Ok((
        new,
        match (added, removed) {
            (true, true) => "modified",
            _ if overwrite => "modified",
            (true, false) => "tainted",
            (false, _) => "untainted",
        },
    ))
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    #[tokio::test]
    async fn adds_and_removes_taints() {
        let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n", "resourceVersion": "7"}, "spec": {"taints": [
            {"key": "a", "value": "1", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute"},
        ]}});
        let patch = "PATCH /api/v1/nodes/n?fieldManager=kubectl-taint&fieldValidation=Strict";
        let s = Server::new()
            .on("GET /api/v1/nodes/n", 200, node.clone())
            .on(
                "GET /api/v1/nodes?limit=500",
                200,
                json!({"kind": "NodeList", "metadata": {}, "items": [node.clone()]}),
            )
            .on(patch, 200, node.clone());
        let a = |v: &str, e: &str| json!({"key": "a", "value": v, "effect": e});
        let bare = json!({"key": "a", "effect": "NoExecute"});
        for (line, expected, sent) in [
            (
                "taint nodes n b=2:NoSchedule",
                "node/n tainted\n",
                json!([{"effect": "NoSchedule", "key": "b", "value": "2"}, a("1", "NoSchedule"), bare]),
            ),
            ("taint node n a-", "node/n untainted\n", json!(null)),
            ("taint no n a:NoExecute-", "node/n untainted\n", json!([a("1", "NoSchedule")])),
            ("taint node --all a=2:NoSchedule --overwrite", "node/n modified\n", json!([a("2", "NoSchedule"), bare])),
            (
                "taint node n a:NoExecute- c:NoSchedule",
                "node/n modified\n",
                json!([{"effect": "NoSchedule", "key": "c"}, a("1", "NoSchedule")]),
            ),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
            assert_eq!(
                s.body_of(patch),
                json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": sent}}),
                "{line}"
            );
        }
        let see = "! See 'kubectl taint -h' for help and examples\nexit 1\n";
        for (line, expected) in [
            (
                "taint node n a=2:NoSchedule",
                "! error: node n already has a taint(s) with same effect(s) and --overwrite is false\nexit 1\n".to_owned(),
            ),
            ("taint node n x-", "! error: taint \"x\" not found\nexit 1\n".into()),
            ("taint node n a:PreferNoSchedule-", "! error: taint \"a:PreferNoSchedule\" not found\nexit 1\n".into()),
            ("taint node n a=2:No", format!("! error: invalid taint effect: No, unsupported taint effect\n{see}")),
            ("taint node n a=2", format!("! error: invalid taint spec: a=2, a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')\n{see}").replace("a qualified name", "name part")),
            (
                "taint node n b:NoSchedule b:NoSchedule-",
                "! error: can not both modify and remove the following taint(s) in the same command: b=NoSchedule\nexit 1\n".into(),
            ),
            ("taint node n", "! error: at least one taint update is required\nexit 1\n".into()),
            ("taint pods n a-", "! error: invalid resource type pods, only node types are supported\nexit 1\n".into()),
            ("taint node a-", "! error: at least one resource name must be specified since 'all' parameter is not set\nexit 1\n".into()),
            ("taint node n a- m", "! error: all resources must be specified before taint changes: m\nexit 1\n".into()),
            ("taint node n b:NoSchedule --dry-run=client", "node/n tainted\n".into()),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }
}

//! `kubectl set`: changes single features of objects, a file each. A change is sent as a strategic merge patch of the live
//! object.

mod env;
mod image;
mod references;
mod resources;
mod selector;
mod serviceaccount;
mod subject;

use super::delete::MISSING_RESOURCES;
use crate::error::{Error, Result, text};
use crate::flags::{DryRunFlag, DryRunStrategy, FileFlags, PrintFlags};
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::Info;
use crate::resource::scheme;
use crate::resource::select::{Selection, gather, gather_alone};
use client::{Patch, WriteOptions};
use meta::{Map, Object, Value};

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    pub subcommand: Subcommand,
}

#[derive(clap::Subcommand, Clone, Debug)]
pub enum Subcommand {
    /// Set environment variables of containers.
    Env(env::Arguments),
    /// Set images of containers.
    Image(image::Arguments),
    /// Set resource requests and limits of containers.
    Resources(resources::Arguments),
    /// Set the selector of a service.
    Selector(selector::Arguments),
    /// Set the service account of pods.
    #[command(name = "serviceaccount", visible_alias = "sa")]
    ServiceAccount(serviceaccount::Arguments),
    /// Add users, groups and service accounts to a binding.
    Subject(subject::Arguments),
}

/// The flags of every feature.
#[derive(clap::Args, Clone, Debug)]
pub struct SetFlags {
    #[command(flatten)]
    pub files: FileFlags,
    /// All objects of the type in the namespace.
    #[arg(long)]
    pub all: bool,
    /// Change the objects of files without contacting the server, and print them.
    #[arg(long)]
    pub local: bool,
    /// Name of the field manager.
    #[arg(long, default_value = "kubectl-set", hide_default_value = true)]
    pub field_manager: String,
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    k.scheme = Some(scheme::KUBECTL);
    match a.subcommand {
        Subcommand::Env(a) => env::run(a, k).await,
        Subcommand::Image(a) => image::run(a, k).await,
        Subcommand::Resources(a) => resources::run(a, k).await,
        Subcommand::Selector(a) => selector::run(a, k).await,
        Subcommand::ServiceAccount(a) => serviceaccount::run(a, k).await,
        Subcommand::Subject(a) => subject::run(a, k).await,
    }
}

impl SetFlags {
    fn check(&self, selector: &str) -> Result<DryRunStrategy> {
        let dry = self.dry.strategy()?;
        if self.local && dry == DryRunStrategy::Server {
            return text("cannot specify --local and --dry-run=server - did you mean --dry-run=client?");
        }
        if self.all && !selector.is_empty() {
            return text("cannot set --all and --selector at the same time");
        }
        Ok(dry)
    }

    async fn gather(&self, k: &mut Kube, words: &[String], selector: &str) -> Result<(Vec<Info>, Vec<Error>)> {
        if self.local {
            return gather_alone(k, words, &self.files).await;
        }
        if words.is_empty() && self.files.is_empty() {
            return text(MISSING_RESOURCES);
        }
        let s = Selection { labels: selector, all: self.all, ..Selection::default() };
        gather(k, words, &self.files, &s).await
    }
}

/// The messages about a change.
struct Messages {
    done: &'static str,
    /// The text before the reason of a refusal.
    failed: &'static str,
    /// Whether an unchanged object is skipped silently.
    skip_unchanged: bool,
}

/// Changes objects, sends the differences and prints the results.
async fn change(
    k: &mut Kube,
    f: &SetFlags,
    w: &Messages,
    (found, mut errors): (Vec<Info>, Vec<Error>),
    mut each: impl FnMut(&mut Object) -> Result,
) -> Result {
    let dry = f.dry.strategy()?;
    let mut printer = Printer::new(&f.print, dry)?.typed();
    for i in found {
        let before = i.object.clone().unwrap_or_default();
        let mut after = before.clone();
        if let Err(e) = each(&mut after) {
            // Without a server only the kind is known.
            let type_name = if f.local { i.resource.group_kind() } else { i.resource.plural.clone() };
            // With a group, upstream's name of the object ends with a line break.
            let end = if f.local && type_name.contains('.') { "\n" } else { "" };
            errors.push(Error::Text(format!("error: {type_name}/{}{end} {e}\n", i.name)));
            continue;
        }
        k.record(&mut after);
        if before == after && w.skip_unchanged {
            continue;
        }
        if f.local || dry == DryRunStrategy::Client {
            printer.print(k, &with_go_defaults(after), w.done)?;
            continue;
        }
        match send(k, f, dry, &i, &before, &after).await {
            Ok(o) => printer.print(k, &o, w.done)?,
            Err(e) if w.failed.is_empty() => errors.push(e),
            Err(e) => errors.push(Error::Text(format!("{}{e}", w.failed))),
        }
    }
    Error::collect(errors)
}

/// Adds the structs that Go's type of the object always writes.
fn with_go_defaults(o: Object) -> Object {
    let Some(schema) = o.gvk().and_then(|g| kinds::catalog().schema_of(&g)) else { return o };
    let mut v = o.clone().into_value();
    if schema::typed::typed(&mut v, schema).is_err() {
        return o;
    }
    Object::from_value(v).unwrap_or(o)
}

async fn send(
    k: &mut Kube,
    f: &SetFlags,
    dry: DryRunStrategy,
    i: &Info,
    before: &Object,
    after: &Object,
) -> Result<Object> {
    let schema = kinds::catalog().schema_of(&i.resource.gvk());
    let patch =
        merge::strategic::two_way(&before.0, &after.0, schema.map(|s| &**s)).map_err(|e| Error::Text(e.to_string()))?;
    let options = WriteOptions { dry_run: dry.option(), ..WriteOptions::manager(&f.field_manager) };
    let api = k.api(&i.resource, &i.namespace).await?;
    let patch = Value::Object(patch);
    let patch = if schema.is_some() { Patch::Strategic(patch) } else { Patch::Merge(patch) };
    Ok(api.patch(&i.name, &options, &patch).await?)
}

/// Returns the pod spec of an object.
fn pod_spec(o: &mut Object) -> Result<&mut Map<String, Value>> {
    let path: &[&str] = match o.kind() {
        "Pod" => &["spec"],
        "CronJob" => &["spec", "jobTemplate", "spec", "template", "spec"],
        "Deployment" | "DaemonSet" | "ReplicaSet" | "StatefulSet" | "ReplicationController" | "Job" => {
            &["spec", "template", "spec"]
        }
        _ => &[],
    };
    let version = o.api_version().rsplit('/').next().unwrap_or_default();
    let refused =
        Error::Text(format!("the object is not a pod or does not have a pod template: *{version}.{}", o.kind()));
    let (Some(first), rest) = (path.first(), path.get(1..).unwrap_or_default()) else { return Err(refused) };
    let mut at = o.0.get_mut(*first);
    for p in rest {
        at = at.and_then(|v| v.get_mut(*p));
    }
    at.and_then(Value::as_object_mut).ok_or(refused)
}

/// Returns the containers with names that match a pattern with `*`, in upstream's order: containers before init containers.
fn containers<'a>(spec: &'a mut Map<String, Value>, pattern: &str) -> Vec<&'a mut Map<String, Value>> {
    let (mut own, mut init) = (Vec::new(), Vec::new());
    for (key, list) in spec.iter_mut() {
        let into = match key.as_str() {
            "containers" => &mut own,
            "initContainers" => &mut init,
            _ => continue,
        };
        for c in list.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            if matches(c.get("name").and_then(Value::as_str).unwrap_or_default(), pattern) {
                into.push(c);
            }
        }
    }
    own.extend(init);
    own
}

fn matches(name: &str, pattern: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return name == pattern };
    let Some(mut left) = name.strip_prefix(first) else { return false };
    let parts: Vec<&str> = rest.split('*').collect();
    let Some((last, middle)) = parts.split_last() else { return true };
    for m in middle {
        match left.find(m) {
            Some(at) => left = &left[at + m.len()..],
            None => return false,
        }
    }
    left.ends_with(last)
}

/// Splits words into those before the first pair, and the pairs.
fn split<'a>(words: &'a [String], kind: &str, is_pair: impl Fn(&str) -> bool) -> Result<(Vec<String>, &'a [String])> {
    let at = words.iter().position(|w| is_pair(w)).unwrap_or(words.len());
    let (resources, pairs) = words.split_at(at);
    match pairs.iter().find(|w| !is_pair(w)) {
        Some(w) => text(format!("all resources must be specified before {kind} changes: {w}")),
        None => Ok((resources.to_vec(), pairs)),
    }
}

#[cfg(test)]
mod tests;

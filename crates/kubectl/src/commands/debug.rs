//! `kubectl debug`: an ephemeral container in a pod, a copy of a pod, or a pod on a node.

mod profile;

use super::attach::{Options, PreviousLog, join};
use super::pods;
use crate::error::{Error, Result, text};
use crate::flags::FileFlags;
use crate::kube::Kube;
use crate::resource::Info;
use crate::resource::scheme;
use crate::resource::select::{Selection, gather};
use client::{DeleteOptions, Patch, WriteOptions};
use meta::{Map, Object, Value};
use profile::{Profile, Style};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// POD, or TYPE/NAME of a pod or node.
    pub names: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    /// Take the words after `--` as arguments instead of the command.
    #[arg(long)]
    pub arguments_only: bool,
    /// Attach to the container once it runs; the default with -i.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub attach: Option<String>,
    /// Name of the container.
    #[arg(short = 'c', long, default_value = "", hide_default_value = true)]
    pub container: String,
    /// Copy the pod under this name.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub copy_to: String,
    /// Delete the original pod.
    #[arg(long)]
    pub replace: bool,
    /// Environment variables NAME=VALUE,… of the container.
    #[arg(long, value_delimiter = ',', value_parser = crate::flags::key_value)]
    pub env: Vec<String>,
    /// Image of the debugging container.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub image: String,
    /// What the copy keeps of the pod.
    #[command(flatten)]
    pub keep: Keep,
    /// Images of the copy, CONTAINER=IMAGE,…; `*` means every container.
    #[arg(long, value_delimiter = ',', value_parser = crate::flags::key_value)]
    pub set_image: Vec<String>,
    /// Pull policy of the image: Always, IfNotPresent or Never.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub image_pull_policy: String,
    /// Pass standard input to the container.
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Print only output of the container.
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Run the copy on the same node.
    #[arg(long)]
    pub same_node: bool,
    /// Share the process namespace among the containers of the copy.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub share_processes: Option<String>,
    /// Share the process namespace of this container.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub target: String,
    /// Allocate a terminal.
    #[arg(short = 't', long)]
    pub tty: bool,
    /// Security profile of the container: general, baseline, restricted, netadmin or sysadmin.
    #[arg(long, default_value = "general", hide_default_value = true)]
    pub profile: String,
    /// File with a partial container spec that overrides the profile.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub custom: String,
    /// Command of the container.
    #[arg(last = true)]
    pub args: Vec<String>,
}

#[derive(clap::Args, Clone, Debug)]
pub struct Keep {
    /// Keep the labels in the copy.
    #[arg(long)]
    pub keep_labels: bool,
    /// Keep the annotations in the copy.
    #[arg(long)]
    pub keep_annotations: bool,
    /// Keep the liveness probes in the copy.
    #[arg(long)]
    pub keep_liveness: bool,
    /// Keep the readiness probes in the copy.
    #[arg(long)]
    pub keep_readiness: bool,
    /// Keep the startup probes in the copy.
    #[arg(long)]
    pub keep_startup: bool,
    /// Keep the init containers in the copy.
    #[arg(long, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set, hide_default_value = true)]
    pub keep_init_containers: bool,
}

fn flag(given: Option<&String>) -> Result<Option<bool>> {
    given.map(|g| crate::flags::go_bool(g).map_err(Error::Text)).transpose()
}

impl Arguments {
    fn check(&self, k: &Kube) -> Result {
        if flag(self.attach.as_ref())? == Some(true) && self.image.is_empty() && self.container.is_empty() {
            return text("you must specify --container or create a new container using --image in order to attach.");
        }
        if self.copy_to.is_empty() {
            if self.replace {
                return text("--replace may only be used with --copy-to.");
            }
            if self.same_node {
                return text("--same-node may only be used with --copy-to.");
            }
            if !self.set_image.is_empty() {
                return text("--set-image may only be used with --copy-to.");
            }
            if self.image.is_empty() {
                return text("you must specify --image when not using --copy-to.");
            }
        } else {
            if self.image.is_empty() && self.set_image.is_empty() && self.args.is_empty() {
                return text("you must specify --image, --set-image or command arguments.");
            }
            if !self.args.is_empty() && self.container.is_empty() && self.image.is_empty() {
                return text("you must specify an existing container or a new image when specifying args.");
            }
        }
        if self.image.chars().any(char::is_whitespace) {
            return text(format!("invalid image name {:?}: invalid reference format", self.image));
        }
        if self.names.is_empty() && self.files.is_empty() {
            return text("NAME or filename is required for debug");
        }
        if !matches!(self.image_pull_policy.as_str(), "" | "Always" | "IfNotPresent" | "Never") {
            return text(format!("invalid image pull policy: {}", self.image_pull_policy));
        }
        if !self.target.is_empty() {
            if !self.copy_to.is_empty() {
                return text("--target is incompatible with --copy-to. Use --share-processes instead.");
            }
            if !self.quiet {
                k.println(format!(
                    "Targeting container {:?}. If you don't see processes from this container it may be because the container runtime doesn't support this feature.",
                    self.target
                ));
            }
        }
        if self.tty && !self.stdin {
            return text("-i/--stdin is required for containers with -t/--tty=true");
        }
        Ok(())
    }

    fn variables(&self) -> Vec<Value> {
        let pairs = self.env.iter().filter_map(|e| e.split_once('='));
        pairs.map(|(n, v)| if v.is_empty() { json!({"name": n}) } else { json!({"name": n, "value": v}) }).collect()
    }

    /// Sets the fields of a container from the flags.
    fn set_fields(&self, c: &mut Map<String, Value>) {
        if !self.args.is_empty() {
            c.insert(if self.arguments_only { "args" } else { "command" }.into(), self.args.clone().into());
        }
        let env = self.variables();
        if !env.is_empty() {
            c.insert("env".into(), env.into());
        }
        for (field, v) in [("image", &self.image), ("imagePullPolicy", &self.image_pull_policy)] {
            if !v.is_empty() {
                c.insert(field.into(), v.as_str().into());
            }
        }
        for (field, on) in [("stdin", self.stdin), ("tty", self.tty)] {
            match on {
                true => c.insert(field.into(), true.into()),
                false => c.remove(field),
            };
        }
    }

    /// Returns a container name that is unused in the pod.
    fn name(&self, k: &Kube, pod: &Object) -> String {
        if !self.container.is_empty() {
            return self.container.clone();
        }
        let used: Vec<&str> = ["containers", "initContainers", "ephemeralContainers"]
            .iter()
            .flat_map(|of| pods::names(pod, of))
            .collect();
        let mut name = String::new();
        while name.is_empty() || used.contains(&name.as_str()) {
            name = format!("debugger-{}", meta::random::suffix(&*k.shell.rng, 5));
        }
        if !self.quiet {
            k.println(format!("Defaulting debug container name to {name}."));
        }
        name
    }
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    k.scheme = Some(scheme::KUBECTL);
    let profile = Profile::parse(&a.profile)?;
    let custom = match a.custom.as_str() {
        "" => None,
        path => Some(profile::custom(path)?),
    };
    a.check(k)?;
    if let Some(c) = &custom
        && ["name", "command", "image", "lifecycle", "volumeDevices"].iter().any(|f| c.contains_key(*f))
    {
        return text("name, command, image, lifecycle and volume devices are not modifiable via custom profile");
    }
    if profile == Profile::Legacy {
        k.warn("--profile=legacy is deprecated and planned to be removed in v1.39. It is recommended to specify other profile, for example \"--profile=general\".");
    }
    let words = match a.names.first() {
        Some(n) if !n.contains('/') => [vec!["pods".to_owned()], a.names.clone()].concat(),
        _ => a.names.clone(),
    };
    let (found, errors) =
        gather(k, &words, &a.files, &Selection { files_as_given: true, ..Selection::default() }).await?;
    Error::collect(errors)?;
    for i in found {
        let (pod, container) = match i.resource.kind.as_str() {
            "Node" => on_node(&a, k, &i, profile, custom.as_ref()).await?,
            "Pod" if a.copy_to.is_empty() => add_ephemeral(&a, k, &i, profile, custom.as_ref()).await?,
            "Pod" => copy(&a, k, &i, profile, custom.as_ref()).await?,
            _ => {
                let gvk = i.resource.gvk();
                return text(format!(
                    "{:?} not supported by debug",
                    format!("{}, Kind={}", gvk.api_version(), gvk.kind)
                ));
            }
        };
        if flag(a.attach.as_ref())?.unwrap_or(a.stdin) && !container.is_empty() {
            let options = Options { stdin: a.stdin, tty: a.tty, quiet: a.quiet, detach_keys: String::new() };
            join(k, pod, &container, &options, PreviousLog::Skip).await?;
        }
    }
    Ok(())
}

/// Applies the profile and the custom spec to one container.
fn apply_profile(
    pod: &mut Object,
    of: &str,
    name: &str,
    a: &Arguments,
    profile: Profile,
    style: Style,
    custom: Option<&Map<String, Value>>,
) -> Result {
    profile.apply(pod, name, style, &a.keep);
    let Some(custom) = custom else { return Ok(()) };
    let pod_schema = kinds::catalog().schema_of(&meta::Gvk::new("", "v1", "Pod"));
    let mut patch = custom.clone();
    patch.insert("name".into(), name.into());
    // The container is found by its name, as in a strategic merge patch of the pod.
    let patch = json!({"spec": {of: [patch]}});
    let patch = patch.as_object().cloned().unwrap_or_default();
    merge::strategic::apply(&mut pod.0, patch, pod_schema.map(|s| &**s)).map_err(|e| Error::Text(e.to_string()))
}

/// Warns if a non-root container cannot use its capabilities.
fn warn_non_root(k: &Kube, pod: &Object, field: &str, name: &str) {
    let user = pod.int_at(&["spec", "securityContext", "runAsUser"]).unwrap_or(0);
    let all = pod.at(&["spec", field]).and_then(Value::as_array);
    let Some(c) = all.and_then(|a| a.iter().find(|c| c["name"] == name)) else { return };
    let s = &c["securityContext"];
    let has_capabilities =
        s["privileged"] == true || s["capabilities"]["add"].as_array().is_some_and(|a| !a.is_empty());
    if user != 0 && has_capabilities && s["runAsUser"] != 0 {
        k.warn("Warning: Non-root user is configured for the entire target Pod, and some capabilities granted by debug profile may not work. Please consider using \"--custom\" with a custom profile that specifies \"securityContext.runAsUser: 0\".");
    }
}

type DebugTarget = (Info, String);

async fn add_ephemeral(
    a: &Arguments,
    k: &mut Kube,
    i: &Info,
    profile: Profile,
    custom: Option<&Map<String, Value>>,
) -> Result<DebugTarget> {
    let old = i.object.clone().unwrap_or_default();
    let mut new = old.clone();
    let name = a.name(k, &old);
    let mut c = Map::new();
    c.insert("name".into(), name.as_str().into());
    c.insert("resources".into(), json!({}));
    c.insert("terminationMessagePolicy".into(), "File".into());
    a.set_fields(&mut c);
    if !a.target.is_empty() {
        c.insert("targetContainerName".into(), a.target.as_str().into());
    }
    let mut all = old.at(&["spec", "ephemeralContainers"]).and_then(Value::as_array).cloned().unwrap_or_default();
    all.push(c.into());
    new.set(&["spec", "ephemeralContainers"], all);
    apply_profile(&mut new, "ephemeralContainers", &name, a, profile, Style::Ephemeral, custom)?;
    warn_non_root(k, &new, "ephemeralContainers", &name);
    let schema = kinds::catalog().schema_of(&i.resource.gvk());
    let patch =
        merge::strategic::two_way(&old.0, &new.0, schema.map(|s| &**s)).map_err(|e| Error::Text(e.to_string()))?;
    let api = k.api(&i.resource, &i.namespace).await?;
    let patch = Patch::Strategic(Value::Object(patch));
    let o: Object = api.patch_subresource(&i.name, "ephemeralcontainers", &WriteOptions::default(), &patch).await?;
    Ok((Info { object: Some(o), ..i.clone() }, name))
}

async fn copy(
    a: &Arguments,
    k: &mut Kube,
    i: &Info,
    profile: Profile,
    custom: Option<&Map<String, Value>>,
) -> Result<DebugTarget> {
    let pod = i.object.clone().unwrap_or_default();
    let mut o = Object::new(&i.resource.gvk());
    o.set_name(&a.copy_to);
    o.set_namespace(pod.namespace());
    for field in ["labels", "annotations"] {
        if let Some(v) = pod.at(&["metadata", field]) {
            o.set(&["metadata", field], v.clone());
        }
    }
    o.set(&["spec"], pod.get("spec").cloned().unwrap_or_default());
    o.remove(&["spec", "ephemeralContainers"]);
    if let Some(share) = flag(a.share_processes.as_ref())? {
        o.set(&["spec", "shareProcessNamespace"], share);
    }
    if !a.same_node {
        o.remove(&["spec", "nodeName"]);
    }
    let images: Vec<(&str, &str)> = a.set_image.iter().filter_map(|s| s.split_once('=')).collect();
    let mut all = o.at(&["spec", "containers"]).and_then(Value::as_array).cloned().unwrap_or_default();
    for c in &mut all {
        let image_of = |n: &str| images.iter().find(|(name, _)| *name == n).map(|(_, i)| *i);
        if let Some(image) = c["name"].as_str().and_then(image_of).or_else(|| image_of("*")) {
            c["image"] = image.into();
        }
    }
    let mut name = a.container.clone();
    let position = |all: &[Value], n: &str| all.iter().position(|c| c["name"] == n);
    let at = match position(&all, &name) {
        Some(at) => Some(at),
        None if a.image.is_empty() && !images.is_empty() => None,
        None if a.image.is_empty() => return text("you must specify image when creating new container"),
        None => {
            if name.is_empty() {
                name = a.name(k, &pod);
            }
            all.push(json!({"name": name, "resources": {}, "terminationMessagePolicy": "File"}));
            Some(all.len() - 1)
        }
    };
    if let Some(c) = at.and_then(|n| all[n].as_object_mut()) {
        if !a.args.is_empty() && !a.arguments_only {
            c.remove("args");
        }
        a.set_fields(c);
    }
    o.set(&["spec", "containers"], all);
    if at.is_some() {
        apply_profile(&mut o, "containers", &name, a, profile, Style::Copy, custom)?;
        warn_non_root(k, &o, "containers", &name);
    }
    let api = k.api(&i.resource, &i.namespace).await?;
    let made = api.create(&WriteOptions::default(), &o).await?;
    if a.replace {
        api.delete(&i.name, &DeleteOptions::default().with_grace(0)).await?;
    }
    let info = Info { name: a.copy_to.clone(), object: Some(made), ..i.clone() };
    Ok((info, if at.is_some() { name } else { String::new() }))
}

async fn on_node(
    a: &Arguments,
    k: &mut Kube,
    i: &Info,
    profile: Profile,
    custom: Option<&Map<String, Value>>,
) -> Result<DebugTarget> {
    let container = if a.container.is_empty() { "debugger" } else { &a.container };
    let pod = format!("node-debugger-{}-{}", i.name, meta::random::suffix(&*k.shell.rng, 5));
    if !a.quiet {
        k.println(format!("Creating debugging pod {pod} with container {container} on node {}.", i.name));
    }
    let mut c = Map::new();
    c.insert("name".into(), container.into());
    c.insert("resources".into(), json!({}));
    c.insert("terminationMessagePolicy".into(), "File".into());
    a.set_fields(&mut c);
    let v = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": pod, "labels": {"app.kubernetes.io/managed-by": "kubectl-debug"}},
        "spec": {
            "containers": [c], "nodeName": i.name, "restartPolicy": "Never", "tolerations": [{"operator": "Exists"}],
        },
    });
    let mut o = Object::from_value(v).unwrap_or_default();
    apply_profile(&mut o, "containers", container, a, profile, Style::Node, custom)?;
    let resource = k.resource("pods").await?;
    let (namespace, _) = k.namespace()?;
    let made = k.api(&resource, &namespace).await?.create(&WriteOptions::default(), &o).await?;
    let info = Info { resource, namespace, name: made.name().to_owned(), source: String::new(), object: Some(made) };
    Ok((info, container.to_owned()))
}

#[cfg(test)]
mod tests;

//! `kubectl create`: creates objects from files, or of a kind from arguments; a file per family of kinds.

mod config;
mod edit;
mod ingress;
mod key_pair;
mod policy;
mod rbac;
mod service;
mod simple;
mod token;
pub mod workload;

use super::recreate::create;
use crate::error::{Error, Result, text};
use crate::flags::{DryRunFlag, FileFlags, PrintFlags, ValidateFlag};
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::from_files_validated;
use crate::resource::last_applied::{annotate, annotate_generated};
use client::WriteOptions;
use meta::Object;

#[derive(clap::Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(flatten)]
    pub files: FileFlags,
    #[command(flatten)]
    pub write: WriteFlags,
    /// POST the file to this URI of the server.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub raw: String,
    /// Edit the objects in an editor before creating them.
    #[arg(long)]
    pub edit: bool,
    /// With --edit, use Windows line endings.
    #[arg(long)]
    pub windows_line_endings: bool,
    /// Only objects of the files with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Arguments that are no known kind.
    #[arg(hide = true)]
    pub words: Vec<String>,
    #[command(subcommand)]
    pub subcommand: Option<Subcommand>,
}

macro_rules! generators {
    ($($(#[$attribute:meta])* $variant:ident($arguments:ty),)*) => {
        #[derive(clap::Subcommand, Clone, Debug)]
        pub enum Subcommand {
            $($(#[$attribute])* $variant($arguments),)*
            /// Create a secret of a given type.
            Secret(config::Secret),
            /// Create a service of a given type.
            #[command(visible_alias = "svc")]
            Service(service::Service),
            /// Request a token of a service account.
            Token(token::Arguments),
        }

        impl Subcommand {
            fn generator(&self) -> Option<(&dyn Generator, &WriteFlags)> {
                match self {
                    $(Self::$variant(a) => Some((a, &a.write)),)*
                    Self::Secret(s) => Some(s.generator()),
                    Self::Service(s) => Some(s.generator()),
                    Self::Token(_) => None,
                }
            }
        }
    };
}

generators! {
    /// Create a cluster role.
    #[command(name = "clusterrole")]
    ClusterRole(rbac::ClusterRole),
    /// Create a cluster role binding.
    #[command(name = "clusterrolebinding")]
    ClusterRoleBinding(rbac::ClusterRoleBinding),
    /// Create a config map from literals, files and directories.
    #[command(name = "configmap", visible_alias = "cm")]
    ConfigMap(config::ConfigMap),
    /// Create a cron job.
    #[command(name = "cronjob", visible_alias = "cj")]
    CronJob(workload::CronJob),
    /// Create a deployment.
    #[command(visible_alias = "deploy")]
    Deployment(workload::Deployment),
    /// Create an ingress.
    #[command(visible_alias = "ing")]
    Ingress(ingress::Ingress),
    /// Create a job, also from a cron job.
    Job(workload::Job),
    /// Create a namespace.
    #[command(visible_alias = "ns")]
    Namespace(simple::Namespace),
    /// Create a pod disruption budget.
    #[command(name = "poddisruptionbudget", visible_alias = "pdb")]
    Budget(policy::Budget),
    /// Create a priority class.
    #[command(name = "priorityclass", visible_alias = "pc")]
    PriorityClass(policy::PriorityClass),
    /// Create a resource quota.
    #[command(name = "quota", visible_alias = "resourcequota")]
    Quota(policy::Quota),
    /// Create a role.
    Role(rbac::Role),
    /// Create a role binding.
    #[command(name = "rolebinding")]
    RoleBinding(rbac::RoleBinding),
    /// Create a service account.
    #[command(name = "serviceaccount", visible_alias = "sa")]
    ServiceAccount(simple::ServiceAccount),
}

/// Builds an object from arguments.
pub trait Generator: Send + Sync {
    fn build(&self) -> Result<meta::Value>;

    /// What must be looked up first: a cron job to copy, a resource to find its group.
    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    /// Warnings to print before the object is created.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// [`Self::build`] with what was looked up.
    fn build_with(&self, found: Resolved<'_>) -> Result<meta::Value> {
        let _ = found;
        self.build()
    }
}

/// What a generator needs besides its arguments.
pub enum Needs<'a> {
    Nothing,
    /// `cronjob/NAME`.
    Object(&'a str),
    /// The resources with these names.
    Resources(Vec<&'a str>),
    /// Environment variables.
    Environment,
    /// Random numbers, for names.
    Random,
}

/// What was looked up for a generator.
pub enum Resolved<'a> {
    Nothing,
    Environment(&'a dyn Fn(&str) -> Option<String>),
    Random(&'a dyn meta::Rng),
    Object(Object),
    Resources(Vec<std::sync::Arc<crate::discovery::Resource>>),
}

/// Flags of every way of creating.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct WriteFlags {
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
    #[command(flatten)]
    pub validate: ValidateFlag,
    /// Name of the field manager.
    #[arg(long, default_value = "kubectl-create", hide_default_value = true)]
    pub field_manager: String,
    /// Store the configuration in an annotation for a later `kubectl apply`.
    #[arg(long)]
    pub save_config: bool,
}

impl WriteFlags {
    /// Returns the options of the write.
    pub fn options(&self) -> Result<WriteOptions> {
        Ok(WriteOptions {
            field_manager: self.field_manager.clone(),
            dry_run: self.dry.strategy()?.option(),
            field_validation: self.validate.validation()?,
            force: false,
        })
    }
}

/// Builds an object with a generator and creates it.
pub async fn generate(k: &mut Kube, g: &dyn Generator, w: &WriteFlags) -> Result {
    let dry = w.dry.strategy()?;
    let mut printer = Printer::new(&w.print, dry)?.typed();
    let (namespace, explicit) = k.namespace()?;
    g.warnings().iter().for_each(|w| k.warn(w));
    let found = match g.needs() {
        Needs::Nothing => Resolved::Nothing,
        Needs::Object(word) => {
            if !word.contains('/') {
                k.resource(word).await?;
            }
            let info = super::pods::target(k, &[word.to_owned()]).await?;
            let mut o = info.fetch(k).await?;
            o.set_gvk(&info.resource.gvk());
            Resolved::Object(o)
        }
        Needs::Resources(words) => {
            let mut all = Vec::new();
            for w in words {
                let group = w.split_once('.').map(|(_, g)| format!(" in group {g:?}")).unwrap_or_default();
                all.push(k.resource(w).await.map_err(|e| match e {
                    Error::Text(t) => Error::Bare(t + &group),
                    e => e,
                })?);
            }
            Resolved::Resources(all)
        }
        Needs::Environment => Resolved::Environment(&*k.shell.environment),
        Needs::Random => Resolved::Random(&*k.shell.rng),
    };
    let mut o = Object::from_value(g.build_with(found)?).unwrap_or_default();
    let cluster_scoped = CLUSTER_SCOPED.contains(&o.kind());
    if explicit && !cluster_scoped {
        o.set_namespace(&namespace);
    }
    if w.save_config {
        annotate_generated(&mut o);
    }
    let o = submit(k, w, o, &namespace).await?;
    printer.print(k, &o, "created")
}

/// Generated kinds that are cluster-scoped.
const CLUSTER_SCOPED: [&str; 4] = ["Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass"];

/// Creates an object on the server, unless the dry run is client-side.
pub async fn submit(k: &mut Kube, w: &WriteFlags, o: Object, namespace: &str) -> Result<Object> {
    if w.dry.strategy()? == crate::flags::DryRunStrategy::Client {
        return Ok(o);
    }
    let gvk = o.gvk().unwrap_or_default();
    let Some(r) = k.resource_of(&gvk).await? else {
        return text(format!("no matches for kind {:?} in version {:?}", gvk.kind, gvk.api_version()));
    };
    let namespace = if !r.namespaced {
        ""
    } else if o.namespace().is_empty() {
        namespace
    } else {
        o.namespace()
    };
    let made = create(&k.api(&r, namespace).await?, &w.options()?, &o).await;
    let word = match gvk.kind.as_str() {
        "PodDisruptionBudget" => "poddisruptionbudgets".to_owned(),
        "ResourceQuota" => "quota".to_owned(),
        "Service" => format!("{} service", o.str_at(&["spec", "type"]).unwrap_or_default()),
        other => other.to_lowercase(),
    };
    made.map_err(|e| match gvk.kind.as_str() {
        "Namespace" | "Role" | "ClusterRole" | "Pod" => e.into(),
        "Service" if w.field_manager == "kubectl-expose" => e.into(),
        "HorizontalPodAutoscaler" if gvk.version == "v1" => e.into(),
        "Secret" => Error::Text(format!("failed to create secret {e}")),
        _ => Error::Text(format!("failed to create {word}: {e}")),
    })
}

pub async fn run(mut a: Arguments, k: &mut Kube) -> Result {
    match &mut a.subcommand {
        Some(Subcommand::RoleBinding(b)) => b.users = std::mem::take(&mut k.global.user),
        Some(Subcommand::ClusterRoleBinding(b)) => b.users = std::mem::take(&mut k.global.user),
        _ => {}
    }
    match &a.subcommand {
        Some(Subcommand::Token(t)) => return token::run(t, k).await,
        Some(subcommand) => {
            if let Some((g, w)) = subcommand.generator() {
                return generate(k, g, w).await;
            }
        }
        None => {}
    }
    if !a.words.is_empty() {
        let all = a.words.join(" ");
        return text(format!("Unexpected args: [{all}]\nSee 'kubectl create -h' for help and examples"));
    }
    if a.files.is_empty() {
        return text("must specify one of -f and -k");
    }
    if !a.raw.is_empty() && a.edit {
        return text("--raw and --edit are mutually exclusive");
    }
    if a.edit {
        return edit::run(&a, k).await;
    }
    if !a.raw.is_empty() {
        super::raw::check(&a.raw, &a.files, &[("--output", !a.write.print.output.is_empty())])?;
        return super::raw::send(k, http::Method::POST, &a.raw, &a.files).await;
    }
    let dry = a.write.dry.strategy()?;
    let options = a.write.options()?;
    let mut printer = Printer::new(&a.write.print, dry)?;
    let (mut errors, mut unread) = (Vec::new(), Vec::new());
    let mut count = 0;
    let selector = meta::LabelSelector::parse(&a.selector).map_err(Error::Text)?;
    for i in from_files_validated(k, &a.files, options.field_validation).await? {
        if let Ok(Some(o)) = i.as_ref().map(|i| &i.object)
            && !selector.matches(|key| o.label(key))
        {
            continue;
        }
        count += 1;
        let i = match i {
            Ok(i) => i,
            Err(e) => {
                unread.push(e);
                continue;
            }
        };
        let made = async {
            let mut o = i.object.clone().unwrap_or_default();
            if a.write.save_config {
                annotate(&mut o);
            }
            k.record(&mut o);
            if dry != crate::flags::DryRunStrategy::Client {
                let api = k.api(&i.resource, &i.namespace).await?;
                o = create(&api, &options, &o).await.map_err(|e| Error::from(e).about("creating", &i.source))?;
            }
            printer.print(k, &o, "created")
        };
        if let Err(e) = made.await {
            errors.push(e);
        }
    }
    // Read errors are printed last, as in upstream.
    errors.extend(unread);
    finish(count, "create", errors)
}

/// Ends a command on objects of files. No objects at all are an error.
pub fn finish(count: usize, verb: &str, errors: Vec<Error>) -> Result {
    if count == 0 {
        return text(format!("no objects passed to {verb}"));
    }
    Error::collect(errors)
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    const CM: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
    const POST: &str = "POST /api/v1/namespaces/default/configmaps?fieldManager=kubectl-create&fieldValidation=Strict";

    #[tokio::test]
    async fn creates_objects_from_a_file() {
        let made = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}});
        let s = Server::new().on(POST, 201, made);
        assert_eq!(snapshot(&s, "create -f -", CM).await, "configmap/a created\n");
        assert_eq!(s.body_of(POST)["metadata"], json!({"name": "a", "namespace": "default"}));
        assert_eq!(snapshot(&s, "create -f - --save-config", CM).await, "configmap/a created\n");
        let text = s.body_of(POST)["metadata"]["annotations"][crate::resource::last_applied::LAST_APPLIED].clone();
        assert_eq!(
            text,
            "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"annotations\":{},\"name\":\"a\",\"namespace\":\"default\"}}\n"
        );
        assert_eq!(snapshot(&s, "create -f - --dry-run=client", CM).await, "configmap/a created (dry run)\n");
        let exists = json!({"kind": "Status", "status": "Failure", "reason": "AlreadyExists", "code": 409, "message": "configmaps \"a\" already exists"});
        let s = Server::new().on(POST, 409, exists);
        assert_eq!(
            snapshot(&s, "create -f -", CM).await,
            "! Error from server (AlreadyExists): error when creating \"STDIN\": configmaps \"a\" already exists\nexit 1\n"
        );
        for (line, input, expected) in [
            ("create", "", "! error: must specify one of -f and -k\nexit 1\n"),
            ("create -f -", "", "! error: no objects passed to create\nexit 1\n"),
            (
                "create -f -",
                "a: b\n---\napiVersion: v1\n",
                "! error: error validating \"STDIN\": error validating data: [apiVersion not set, kind not set]; if you choose to ignore these errors, turn validation off with --validate=false\nexit 1\n",
            ),
            (
                "create -f - --validate=false",
                "a: b\n",
                "! error: unable to decode \"STDIN\": Object 'Kind' is missing in '{\"a\":\"b\"}'\nexit 1\n",
            ),
            ("create -f /nowhere.yaml", "", "! error: the path \"/nowhere.yaml\" does not exist\nexit 1\n"),
            (
                "create -f - -n other",
                "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: b}\n",
                "! error: the namespace from the provided object \"b\" does not match the namespace \"other\". You must pass '--namespace=b' to perform this operation.\nexit 1\n",
            ),
            (
                "create -f -",
                "apiVersion: v9\nkind: Frob\nmetadata: {name: a}\n",
                "! error: resource mapping not found for name: \"a\" namespace: \"\" from \"STDIN\": no matches for kind \"Frob\" in version \"v9\"\n! ensure CRDs are installed first\nexit 1\n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, input).await, expected, "{line}");
        }
    }
}

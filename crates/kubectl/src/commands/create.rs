//! `kubectl create`: objects from files, or of a kind from arguments, a file for each family of kinds.

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
    /// POST the file to this path.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub raw: String,
    /// Edit the objects of the files before they are made.
    #[arg(long)]
    pub edit: bool,
    /// With --edit, lines end as on Windows.
    #[arg(long)]
    pub windows_line_endings: bool,
    /// Only objects of the files with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// What is no kind that can be made here.
    #[arg(hide = true)]
    pub words: Vec<String>,
    #[command(subcommand)]
    pub of: Option<Of>,
}

macro_rules! generators {
    ($($(#[$attribute:meta])* $variant:ident($arguments:ty),)*) => {
        #[derive(clap::Subcommand, Clone, Debug)]
        pub enum Of {
            $($(#[$attribute])* $variant($arguments),)*
            /// Create a secret of one of its types.
            Secret(config::Secret),
            /// Create a service of one of its types.
            #[command(visible_alias = "svc")]
            Service(service::Service),
            /// Ask for a token of a service account.
            Token(token::Arguments),
        }

        impl Of {
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
    /// Bind a cluster role for the whole cluster.
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
    /// Create a quota.
    #[command(name = "quota", visible_alias = "resourcequota")]
    Quota(policy::Quota),
    /// Create a role.
    Role(rbac::Role),
    /// Bind a role in a namespace.
    #[command(name = "rolebinding")]
    RoleBinding(rbac::RoleBinding),
    /// Create a service account.
    #[command(name = "serviceaccount", visible_alias = "sa")]
    ServiceAccount(simple::ServiceAccount),
}

/// Makes an object from arguments.
pub trait Generator: Send + Sync {
    fn make(&self) -> Result<meta::Value>;

    /// What only the server knows: a cron job to make a job of, a resource to name its group.
    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    /// What is odd, but done.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// [`Self::make`] with what was needed.
    fn make_with(&self, found: Found<'_>) -> Result<meta::Value> {
        let _ = found;
        self.make()
    }
}

pub enum Needs<'a> {
    Nothing,
    /// `cronjob/NAME`.
    Object(&'a str),
    /// The resources of these words.
    Resources(Vec<&'a str>),
    /// Variables of this process.
    Environment,
}

pub enum Found<'a> {
    Nothing,
    Environment(&'a dyn Fn(&str) -> Option<String>),
    Object(Object),
    Resources(Vec<std::sync::Arc<crate::discovery::Resource>>),
}

/// What every way of creating has.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct WriteFlags {
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
    #[command(flatten)]
    pub validate: ValidateFlag,
    /// Who the fields of the object will belong to.
    #[arg(long, default_value = "kubectl-create", hide_default_value = true)]
    pub field_manager: String,
    /// Keep the configuration in an annotation, for `apply` later.
    #[arg(long)]
    pub save_config: bool,
}

impl WriteFlags {
    pub fn options(&self) -> Result<WriteOptions> {
        Ok(WriteOptions {
            field_manager: self.field_manager.clone(),
            dry_run: self.dry.strategy()?.option(),
            field_validation: self.validate.validation()?,
            force: false,
        })
    }
}

/// Creates what a generator makes.
pub async fn generate(k: &mut Kube, g: &dyn Generator, w: &WriteFlags) -> Result {
    let dry = w.dry.strategy()?;
    let mut printer = Printer::new(&w.print, dry)?.typed();
    let (namespace, explicit) = k.namespace()?;
    g.warnings().iter().for_each(|w| k.warn(w));
    let found = match g.needs() {
        Needs::Nothing => Found::Nothing,
        Needs::Object(word) => {
            if !word.contains('/') {
                k.resource(word).await?;
            }
            let info = super::pods::target(k, &[word.to_owned()]).await?;
            let mut o = info.fetch(k).await?;
            o.set_gvk(&info.resource.gvk());
            Found::Object(o)
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
            Found::Resources(all)
        }
        Needs::Environment => Found::Environment(&*k.shell.environment),
    };
    let mut o = Object::from_value(g.make_with(found)?).unwrap_or_default();
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

/// Kinds of generators that live outside of namespaces.
const CLUSTER_SCOPED: [&str; 4] = ["Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass"];

/// Sends an object, unless the rehearsal is the client's.
pub async fn submit(k: &mut Kube, w: &WriteFlags, o: Object, namespace: &str) -> Result<Object> {
    if w.dry.strategy()? == crate::flags::Dry::Client {
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
    match &mut a.of {
        Some(Of::RoleBinding(b)) => b.users = std::mem::take(&mut k.global.user),
        Some(Of::ClusterRoleBinding(b)) => b.users = std::mem::take(&mut k.global.user),
        _ => {}
    }
    match &a.of {
        Some(Of::Token(t)) => return token::run(t, k).await,
        Some(of) => {
            if let Some((g, w)) = of.generator() {
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
            if dry != crate::flags::Dry::Client {
                let api = k.api(&i.resource, &i.namespace).await?;
                o = create(&api, &options, &o).await.map_err(|e| Error::from(e).about("creating", &i.source))?;
            }
            printer.print(k, &o, "created")
        };
        if let Err(e) = made.await {
            errors.push(e);
        }
    }
    // What could not be read is told last, as upstream does.
    errors.extend(unread);
    done(count, "create", errors)
}

/// How a command on the objects of files ends: without objects it was called wrongly.
pub fn done(count: usize, verb: &str, errors: Vec<Error>) -> Result {
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
    async fn from_a_file() {
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
        let there = json!({"kind": "Status", "status": "Failure", "reason": "AlreadyExists", "code": 409, "message": "configmaps \"a\" already exists"});
        let s = Server::new().on(POST, 409, there);
        assert_eq!(
            snapshot(&s, "create -f -", CM).await,
            "! Error from server (AlreadyExists): error when creating \"STDIN\": configmaps \"a\" already exists\nexit 1\n"
        );
        for (line, input, want) in [
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
            assert_eq!(snapshot(&s, line, input).await, want, "{line}");
        }
    }
}

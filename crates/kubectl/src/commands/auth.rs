//! `kubectl auth`: check permissions, show the current user, reconcile roles.

mod reconcile;

use crate::error::{Error, Result, text};
use crate::flags::{DryRunStrategy, PrintFlags};
use crate::kube::Kube;
use crate::printer::table::Aligner;
use crate::printer::{Formats, Output, Printer};
use client::client::{JSON, request};
use http::Method;
use meta::{Object, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(clap::Subcommand, Clone, Debug)]
pub enum Command {
    /// Check whether an action is allowed: VERB TYPE[/NAME].
    #[command(name = "can-i")]
    CanI(CanI),
    /// Add missing rules and subjects from files to roles and bindings.
    Reconcile(reconcile::Arguments),
    /// Show the user that the server authenticates.
    Whoami(Whoami),
}

#[derive(clap::Args, Clone, Debug)]
pub struct CanI {
    /// VERB, then TYPE[/NAME] or a non-resource URL.
    pub words: Vec<String>,
    /// In all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Print nothing; only set the exit code.
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Subresource to check.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub subresource: String,
    /// List all allowed actions in the namespace.
    #[arg(long)]
    pub list: bool,
    /// With --list, do not print headers.
    #[arg(long)]
    pub no_headers: bool,
}

#[derive(clap::Args, Clone, Debug)]
pub struct Whoami {
    /// Accepted and ignored.
    #[arg(hide = true)]
    pub words: Vec<String>,
    #[command(flatten)]
    pub print: PrintFlags,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    match a.command {
        Command::CanI(a) => can_i(a, k).await,
        Command::Reconcile(a) => reconcile::run(a, k).await,
        Command::Whoami(a) => whoami(a, k).await,
    }
}

async fn review(k: &mut Kube, group: &str, resource: &str, kind: &str, spec: Option<Value>) -> Result<Value> {
    let mut v = json!({"apiVersion": format!("{group}/v1"), "kind": kind});
    if let Some(s) = spec {
        v["spec"] = s;
    }
    let body = serde_json::to_vec(&v).map_err(|e| Error::Text(e.to_string()))?;
    let path = format!("/apis/{group}/v1/{resource}");
    Ok(k.client().await?.json(request(Method::POST, &path, JSON, Some((JSON, body)))?).await?)
}

/// Known verbs of resources.
const VERBS: [&str; 16] = [
    "*",
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "use",
    "bind",
    "impersonate",
    "escalate",
    "approve",
    "sign",
    "attest",
];

/// Known verbs of non-resource URLs.
const NON_RESOURCE_VERBS: [&str; 8] = ["*", "get", "put", "post", "head", "options", "delete", "patch"];

async fn can_i(a: CanI, k: &mut Kube) -> Result {
    let namespace = if a.all_namespaces { String::new() } else { k.namespace()?.0 };
    let group = "authorization.k8s.io";
    if a.list {
        if !a.words.is_empty() {
            return text("list option must be specified with no arguments");
        }
        if a.quiet || a.all_namespaces || !a.subresource.is_empty() {
            return text("list option can't be specified with neither quiet, all-namespaces nor subresource options");
        }
        let spec = json!({"namespace": namespace});
        let v = review(k, group, "selfsubjectrulesreviews", "SelfSubjectRulesReview", Some(spec)).await?;
        let mut rows: Vec<Vec<String>> = Vec::new();
        if !a.no_headers {
            rows.push(["Resources", "Non-Resource URLs", "Resource Names", "Verbs"].map(str::to_owned).to_vec());
        }
        let rules_of = |key: &str| v["status"][key].as_array().cloned().unwrap_or_default();
        let rules = [rules_of("resourceRules"), rules_of("nonResourceRules")].concat();
        let all = json!({"rules": rules});
        let all = Object::from_value(all).unwrap_or_default();
        rows.extend(super::describe::rbac::rows(&all).into_iter().map(Vec::from));
        k.out.write(Aligner::default().lines(&rows).as_bytes());
        return Ok(());
    }
    let (verb, what) = match a.words.as_slice() {
        [v, w] => (v.clone(), w.clone()),
        _ => {
            return text(
                "you must specify two arguments: verb resource or verb resource/resourceName.\nSee 'kubectl auth can-i -h' for help and examples.",
            );
        }
    };
    let spec = if what.starts_with('/') {
        if !a.subresource.is_empty() {
            return text("--subresource can not be used with NonResourceURL");
        }
        if !NON_RESOURCE_VERBS.contains(&verb.as_str()) {
            k.warn(format!("Warning: verb '{verb}' is not a known verb\n"));
        }
        json!({"nonResourceAttributes": {"path": what, "verb": verb}})
    } else {
        // kubectl prints this warning after the one about the resource.
        let known = VERBS.contains(&verb.as_str());
        let (word, name) = what.split_once('/').unwrap_or((&what, ""));
        let (plural, group_name) = match k.resource(word).await {
            _ if word == "*" => ("*".to_owned(), "*".to_owned()),
            Ok(r) => {
                if !r.namespaced && !a.all_namespaces {
                    k.warn(format!(
                        "Warning: resource '{}' is not namespace scoped{}\n",
                        r.plural,
                        if r.group.is_empty() { String::new() } else { format!(" in group '{}'", r.group) }
                    ));
                }
                (r.plural.clone(), r.group.clone())
            }
            Err(Error::Text(_)) => {
                // Users and groups are not served as resources.
                if !["users", "groups"].contains(&word) {
                    let (name, group) = word.split_once('.').unwrap_or((word, ""));
                    let group = if group.is_empty() { String::new() } else { format!(" in group '{group}'") };
                    k.warn(format!("Warning: the server doesn't have a resource type '{name}'{group}\n"));
                }
                (word.to_owned(), String::new())
            }
            Err(e) => return Err(e),
        };
        if !known {
            k.warn(format!("Warning: verb '{verb}' is not a known verb\n"));
        }
        json!({"resourceAttributes": {
            "namespace": namespace, "verb": verb, "group": group_name, "resource": plural, "name": name, "subresource": a.subresource,
        }})
    };
    if a.no_headers {
        return text("--no-headers cannot be set without --list specified");
    }
    let v = review(k, group, "selfsubjectaccessreviews", "SelfSubjectAccessReview", Some(spec)).await?;
    let allowed = v["status"]["allowed"] == true;
    if !a.quiet {
        let mut answer = if allowed { "yes" } else { "no" }.to_owned();
        if let Some(r) = v["status"]["reason"].as_str().filter(|r| !r.is_empty() && !allowed) {
            answer.push_str(&format!(" - {r}"));
        }
        if let Some(e) = v["status"]["evaluationError"].as_str().filter(|e| !e.is_empty()) {
            answer.push_str(&format!(" - {e}"));
        }
        k.println(answer);
    }
    if allowed { Ok(()) } else { Err(Error::Exit(1)) }
}

async fn whoami(a: Whoami, k: &mut Kube) -> Result {
    let output = Output::parse(&a.print, Formats::Objects, true)?;
    let v = review(k, "authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview", None).await?;
    match output.is_human() {
        false => Printer::new(&a.print, DryRunStrategy::None)?.typed().print(
            k,
            &Object::from_value(v).unwrap_or_default(),
            "",
        )?,
        true => {
            let u = &v["status"]["userInfo"];
            let list = |v: &Value| {
                format!(
                    "[{}]",
                    v.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
                )
            };
            let mut rows = vec![vec!["ATTRIBUTE".to_owned(), "VALUE".to_owned()]];
            for (title, key) in [("Username", "username"), ("UID", "uid")] {
                if let Some(t) = u[key].as_str().filter(|t| !t.is_empty()) {
                    rows.push(vec![title.into(), t.into()]);
                }
            }
            if u["groups"].is_array() {
                rows.push(vec!["Groups".into(), list(&u["groups"])]);
            }
            for (name, v) in u["extra"].as_object().into_iter().flatten() {
                rows.push(vec![format!("Extra: {name}"), list(v)]);
            }
            k.out.write(Aligner::default().lines(&rows).as_bytes());
        }
    }
    Ok(())
}

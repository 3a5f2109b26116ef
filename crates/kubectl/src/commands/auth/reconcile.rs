//! `kubectl auth reconcile`: adds missing rules of a file to roles, and missing subjects to bindings
//! (`k8s.io/component-helpers/auth/rbac/reconciliation`).

use crate::commands::recreate::{DELETION_TIMEOUT, Replacement, create};
use crate::error::{Error, Result, text};
use crate::flags::{DryRunFlag, DryRunStrategy, FileFlags, PrintFlags};
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::{Info, file, located, scheme};
use client::{DeleteOptions, WriteOptions};
use meta::{Map, Object, Value};
use serde_json::json;
use tokio::time::Instant;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    pub words: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    /// Remove rules that are not in the file.
    #[arg(long)]
    pub remove_extra_permissions: bool,
    /// Remove subjects that are not in the file.
    #[arg(long)]
    pub remove_extra_subjects: bool,
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
}

/// Whether the role or binding has a version that is not served any more.
fn is_old(o: &Object) -> bool {
    let gvk = o.gvk().unwrap_or_default();
    let known = ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"].contains(&gvk.kind.as_str());
    known && gvk.group == "rbac.authorization.k8s.io" && matches!(gvk.version.as_str(), "v1alpha1" | "v1beta1")
}

/// Annotation that protects an object from being changed.
const OPT_OUT: &str = "rbac.authorization.kubernetes.io/autoupdate";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Nothing,
    Create,
    Update,
    /// The role of a binding is immutable.
    Recreate,
}

/// The result for an object: what to write and what to report.
struct Outcome {
    object: Object,
    action: Action,
    protected: bool,
    missing: Vec<Value>,
    extra: Vec<Value>,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if a.files.is_empty() {
        return text("must specify one of -f and -k");
    }
    if !a.words.is_empty() {
        return text("no arguments are allowed");
    }
    let dry = a.dry.strategy()?;
    if dry == DryRunStrategy::Server {
        return text("--dry-run=server for command reconcile is not supported yet");
    }
    let mut printer = Printer::new(&a.print, dry)?.typed();
    let mut errors = Vec::new();
    k.scheme = Some(scheme::KUBECTL);
    let mut documents = file::read(k, &a.files).await?;
    documents.retain(|d| match d {
        Ok(d) if is_old(&d.object) => {
            let gvk = d.object.gvk().unwrap_or_default();
            let go_type = format!("*{}.{}", gvk.version, gvk.kind);
            errors.push(Error::Text(format!("only rbac.authorization.k8s.io/v1 is supported: not {go_type}")));
            false
        }
        _ => true,
    });
    for i in located(k, documents).await? {
        let done = async {
            let i = i?;
            let kind = i.resource.kind.clone();
            if i.resource.group != "rbac.authorization.k8s.io" {
                return Ok(());
            }
            let binding = kind.ends_with("Binding");
            let remove = if binding { a.remove_extra_subjects } else { a.remove_extra_permissions };
            let done = reconcile_object(k, &i, binding, remove, dry).await?;
            printer.print(k, &done.object, "reconciled")?;
            report(k, &done, binding, remove);
            Ok(())
        };
        if let Err(e) = done.await {
            errors.push(e);
        }
    }
    Error::collect(errors)
}

async fn reconcile_object(k: &mut Kube, i: &Info, binding: bool, remove: bool, dry: DryRunStrategy) -> Result<Outcome> {
    let mut desired = i.object.clone().unwrap_or_default();
    if binding {
        qualify(&mut desired);
    }
    let api = k.api(&i.resource, &i.namespace).await?;
    let Some(live) = client::error::optional(api.get(&i.name).await)? else {
        let field = if binding { "subjects" } else { "rules" };
        let missing = desired.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
        let protected = desired.annotation(OPT_OUT) == Some("false");
        if dry == DryRunStrategy::None && !protected {
            ensure_namespace(k, &i.namespace).await?;
            desired = create(&api, &WriteOptions::default(), &desired).await?;
        }
        return Ok(Outcome { object: desired, action: Action::Create, protected, missing, extra: Vec::new() });
    };
    let mut done = if binding { subjects(&live, &desired, remove) } else { rules(&live, &desired, remove) };
    if dry == DryRunStrategy::None && !done.protected {
        match done.action {
            Action::Update => done.object = api.update(&i.name, &WriteOptions::default(), &done.object).await?,
            Action::Recreate => {
                let (old, options) = (Some(live.clone()), WriteOptions::default());
                let mut replacement = Replacement::dry_run(api, &i.name, old, &options, done.object).await?;
                replacement.delete(&DeleteOptions::uid(live.uid())).await?;
                replacement.wait_deleted(Instant::now() + DELETION_TIMEOUT).await?;
                done.object = replacement.create(k).await?;
            }
            Action::Nothing | Action::Create => {}
        }
    }
    Ok(done)
}

async fn ensure_namespace(k: &mut Kube, namespace: &str) -> Result {
    if namespace.is_empty() {
        return Ok(());
    }
    let r = k.resource("namespaces").await?;
    let api = k.api(&r, "").await?;
    if client::error::optional(api.get(namespace).await)?.is_none() {
        let made =
            Object::from_value(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}));
        api.create(&WriteOptions::default(), &made.unwrap_or_default()).await?;
    }
    Ok(())
}

/// Sets the API group of users and groups in which the file omits it.
fn qualify(o: &mut Object) {
    for s in o.0.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
        if matches!(s["kind"].as_str(), Some("User" | "Group")) && s["apiGroup"].as_str().unwrap_or_default().is_empty()
        {
            s["apiGroup"] = "rbac.authorization.k8s.io".into();
        }
    }
}

/// Adds labels and annotations of the file that the object lacks, and returns whether there were any.
fn with_metadata(live: &Object, desired: &Object) -> (Object, Action) {
    let mut out = live.clone();
    let mut action = Action::Nothing;
    for (k, v) in desired.labels().filter(|(k, _)| live.label(k).is_none()) {
        out.set_label(k, v);
        action = Action::Update;
    }
    for (k, v) in desired.annotations().filter(|(k, _)| live.annotation(k).is_none()) {
        out.set_annotation(k, v);
        action = Action::Update;
    }
    (out, action)
}

fn list(o: &Object, field: &str) -> Vec<Value> {
    o.get(field).and_then(Value::as_array).cloned().unwrap_or_default()
}

fn rules(live: &Object, desired: &Object, remove: bool) -> Outcome {
    let protected = live.annotation(OPT_OUT) == Some("false");
    let (mut object, mut action) = with_metadata(live, desired);
    let (old, new) = (list(live, "rules"), list(desired, "rules"));
    let (mut missing, mut extra) = (Vec::new(), Vec::new());
    if desired.get("aggregationRule").is_none_or(Value::is_null) {
        missing = uncovered(&old, &new);
        extra = uncovered(&new, &old);
        if remove && !(missing.is_empty() && extra.is_empty()) {
            object.set(&["rules"], new);
            action = Action::Update;
        } else if !remove && !missing.is_empty() {
            object.set(&["rules"], [old, missing.clone()].concat());
            action = Action::Update;
        }
    }
    let path = ["aggregationRule", "clusterRoleSelectors"];
    let selectors = |o: &Object| o.at(&path).and_then(Value::as_array).cloned().unwrap_or_default();
    let (old, new) = (selectors(live), selectors(desired));
    let lacking: Vec<Value> = new.iter().filter(|s| !old.contains(s)).cloned().collect();
    if remove && old != new && (!lacking.is_empty() || old.iter().any(|s| !new.contains(s))) {
        object.set(&path, new);
        action = Action::Update;
    } else if !remove && !lacking.is_empty() {
        object.set(&path, [old, lacking].concat());
        action = Action::Update;
    }
    Outcome { object, action, protected, missing, extra }
}

fn subjects(live: &Object, desired: &Object, remove: bool) -> Outcome {
    let protected = live.annotation(OPT_OUT) == Some("false");
    if live.get("roleRef") != desired.get("roleRef") {
        let nothing = Vec::new();
        return Outcome {
            object: desired.clone(),
            action: Action::Recreate,
            protected,
            missing: nothing.clone(),
            extra: nothing,
        };
    }
    let (mut object, mut action) = with_metadata(live, desired);
    let (old, new) = (list(live, "subjects"), list(desired, "subjects"));
    let missing: Vec<Value> = new.iter().filter(|s| !old.contains(s)).cloned().collect();
    let extra: Vec<Value> = old.iter().filter(|s| !new.contains(s)).cloned().collect();
    if remove && !(missing.is_empty() && extra.is_empty()) {
        object.set(&["subjects"], new);
        action = Action::Update;
    } else if !remove && !missing.is_empty() {
        object.set(&["subjects"], [old, missing.clone()].concat());
        action = Action::Update;
    }
    Outcome { object, action, protected, missing, extra }
}

const LISTS: [&str; 5] = ["verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs"];

fn strings<'a>(rule: &'a Value, field: &str) -> Vec<&'a str> {
    rule[field].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Returns the permissions in `requested` that no rule of `owned` covers, as rules of one verb and one resource
/// (`validation.Covers`).
fn uncovered(owned: &[Value], requested: &[Value]) -> Vec<Value> {
    requested.iter().flat_map(split_rule).filter(|r| !owned.iter().any(|o| covers(o, r))).collect()
}

/// Splits a rule into rules of one verb and one resource or path.
fn split_rule(rule: &Value) -> Vec<Value> {
    let mut out = Vec::new();
    for group in strings(rule, "apiGroups") {
        for resource in strings(rule, "resources") {
            for verb in strings(rule, "verbs") {
                let names = strings(rule, "resourceNames");
                let permission = json!({"verbs": [verb], "apiGroups": [group], "resources": [resource]});
                if names.is_empty() {
                    out.push(permission);
                    continue;
                }
                for n in names {
                    let mut permission = permission.clone();
                    permission["resourceNames"] = json!([n]);
                    out.push(permission);
                }
            }
        }
    }
    for url in strings(rule, "nonResourceURLs") {
        for verb in strings(rule, "verbs") {
            out.push(json!({"verbs": [verb], "nonResourceURLs": [url]}));
        }
    }
    out
}

fn covers(owner: &Value, permission: &Value) -> bool {
    let has = |field: &str, fits: &dyn Fn(&str, &str) -> bool| {
        let owned = strings(owner, field);
        strings(permission, field).iter().all(|w| owned.iter().any(|o| *o == "*" || o == w || fits(o, w)))
    };
    let no = |_: &str, _: &str| false;
    // `*/scale` is the subresource of every resource.
    let resource =
        |o: &str, w: &str| o.strip_prefix("*/").zip(w.split_once('/')).is_some_and(|(sub, (_, of))| sub == of);
    let url = |o: &str, w: &str| o.strip_suffix('*').is_some_and(|p| w.starts_with(p));
    let names = strings(owner, "resourceNames");
    let desired = strings(permission, "resourceNames");
    let named = names.is_empty() || !desired.is_empty() && desired.iter().all(|w| names.contains(w));
    has("verbs", &no) && has("apiGroups", &no) && has("resources", &resource) && has("nonResourceURLs", &url) && named
}

fn report(k: &Kube, done: &Outcome, binding: bool, remove: bool) {
    let caveat = match done.protected {
        true => format!(", but object opted out ({OPT_OUT}: false)"),
        false => String::new(),
    };
    let word = match done.action {
        Action::Nothing => return,
        Action::Create => "create",
        Action::Update => "update",
        Action::Recreate => "recreate",
    };
    k.warn(format!("\treconciliation required {word}{caveat}"));
    let what = if binding { "subjects" } else { "rules" };
    let lines = |title: String, all: &[Value]| {
        if !all.is_empty() {
            k.warn(format!("\t{title}:"));
            all.iter().for_each(|v| k.warn(format!("\t\t{}", if binding { subject(v) } else { rule(v) })));
        }
    };
    lines(format!("missing {what} added"), &done.missing);
    if remove {
        lines(format!("extra {what} removed"), &done.extra);
    }
}

/// Formats a rule as Go prints the struct.
fn rule(v: &Value) -> String {
    let names = ["Verbs", "APIGroups", "Resources", "ResourceNames", "NonResourceURLs"];
    let all: Vec<String> =
        names.iter().zip(LISTS).map(|(n, field)| format!("{n}:[{}]", strings(v, field).join(" "))).collect();
    format!("{{{}}}", all.join(" "))
}

fn subject(v: &Value) -> String {
    let empty = Map::new();
    let m = v.as_object().unwrap_or(&empty);
    let s = |f: &str| m.get(f).and_then(Value::as_str).unwrap_or_default().to_owned();
    format!("{{Kind:{} APIGroup:{} Name:{} Namespace:{}}}", s("kind"), s("apiGroup"), s("name"), s("namespace"))
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    const PATH: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";

    #[tokio::test]
    async fn adds_missing_rules_to_roles() {
        let file = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: r, labels: {a: b}}\nrules:\n- {verbs: [get, list], apiGroups: [''], resources: [pods]}\n";
        let role = |rules| json!({"kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "r", "uid": "1"}, "rules": rules});
        let put = format!("PUT {PATH}/r");
        let s = Server::new()
            .on(
                &format!("GET {PATH}/r"),
                200,
                role(json!([{"verbs": ["get", "watch"], "apiGroups": ["*"], "resources": ["pods"]}])),
            )
            .on(&put, 200, role(json!([])));
        let name = "clusterrole.rbac.authorization.k8s.io/r";
        let added = "! \treconciliation required update\n! \tmissing rules added:\n! \t\t{Verbs:[list] APIGroups:[] Resources:[pods] ResourceNames:[] NonResourceURLs:[]}\n";
        assert_eq!(snapshot(&s, "auth reconcile -f -", file).await, format!("{name} reconciled\n{added}"));
        assert_eq!(
            s.body_of(&put)["rules"],
            json!([{"verbs": ["get", "watch"], "apiGroups": ["*"], "resources": ["pods"]}, {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}])
        );
        assert_eq!(s.body_of(&put)["metadata"]["labels"], json!({"a": "b"}));
        let output = snapshot(&s, "auth reconcile -f - --remove-extra-permissions --dry-run=client", file).await;
        assert!(
            output.starts_with(&format!("{name} reconciled (dry run)\n{added}! \textra rules removed:\n")),
            "{output}"
        );
        for (line, expected) in [
            ("auth reconcile", "! error: must specify one of -f and -k\nexit 1\n"),
            (
                "auth reconcile -f - --dry-run=server",
                "! error: --dry-run=server for command reconcile is not supported yet\nexit 1\n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, file).await, expected, "{line}");
        }
    }

    /// Old versions are refused by name, not as unknown kinds.
    #[tokio::test]
    async fn refuses_old_versions() {
        for (version, refused) in [
            ("v1beta1", "error: only rbac.authorization.k8s.io/v1 is supported: not *v1beta1.Role"),
            ("v2", "no kind \"Role\" is registered for version \"rbac.authorization.k8s.io/v2\""),
        ] {
            let file = format!("apiVersion: rbac.authorization.k8s.io/{version}\nkind: Role\nmetadata: {{name: r}}\n");
            let text = snapshot(&Server::new(), "auth reconcile -f -", &file).await;
            assert!(text.contains(refused) && text.ends_with("exit 1\n"), "{text}");
        }
    }

    #[tokio::test]
    async fn recreates_a_binding_to_another_role() {
        let file = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: r}\nroleRef: {kind: ClusterRole, name: new, apiGroup: rbac.authorization.k8s.io}\nsubjects: [{kind: User, name: u}]\n";
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        let live = json!({"kind": "ClusterRoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "r", "uid": "1"}, "roleRef": {}});
        let s = Server::new()
            .on(&format!("GET {path}/r"), 200, live.clone())
            .on(&format!("GET {path}/r"), 404, json!({"kind": "Status", "reason": "NotFound", "code": 404}))
            .on(&format!("DELETE {path}/r"), 200, json!({}))
            .on(
                &format!("POST {path}?dryRun=All"),
                409,
                json!({"kind": "Status", "reason": "AlreadyExists", "code": 409}),
            )
            .on(&format!("POST {path}"), 201, live);
        assert_eq!(
            snapshot(&s, "auth reconcile -f -", file).await,
            "clusterrolebinding.rbac.authorization.k8s.io/r reconciled\n! \treconciliation required recreate\n"
        );
    }
}

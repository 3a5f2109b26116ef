//! `kubectl replace`: replaces objects by those in files.

use super::create::finish;
use super::delete::{cascade, report};
use super::recreate::{DELETION_TIMEOUT, Replacement};
use crate::error::{Error, Result, text};
use crate::flags::{DryRunFlag, DryRunStrategy, FileFlags, PrintFlags, ValidateFlag, duration};
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::last_applied::{LAST_APPLIED, annotate};
use crate::resource::{Info, from_files_validated};
use client::{DeleteOptions, Propagation, WriteOptions};
use meta::Object;
use tokio::time::Instant;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// Accepted and ignored.
    #[arg(hide = true)]
    pub words: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    /// Delete and recreate the objects.
    #[arg(long)]
    pub force: bool,
    /// With --force, how to delete dependents: background, foreground or orphan.
    #[arg(long, default_value = "background", num_args = 0..=1, require_equals = true, default_missing_value = "background", hide_default_value = true)]
    pub cascade: String,
    /// With --force, time limit for the deletion; 0 is five minutes.
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub timeout: String,
    /// With --force, wait for the deletion, which happens in any case.
    #[arg(long)]
    pub wait: bool,
    /// Subresource to replace: status or scale.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub subresource: String,
    /// PUT the file to this URI of the server.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub raw: String,
    /// With --force, the grace period of the deletion in seconds.
    #[arg(long, default_value = "-1", hide_default_value = true)]
    pub grace_period: i64,
    /// Store the configuration in the annotation of `kubectl apply`.
    #[arg(long)]
    pub save_config: bool,
    /// Name of the field manager.
    #[arg(long, default_value = "kubectl-replace", hide_default_value = true)]
    pub field_manager: String,
    #[command(flatten)]
    pub validate: ValidateFlag,
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let propagation = cascade(&a.cascade)?;
    if a.files.is_empty() {
        return text("must specify one of -f and -k");
    }
    let timeout = duration("timeout", &a.timeout)?.filter(|t| !t.is_zero());
    if a.grace_period >= 0 && !a.force {
        return text("--grace-period must have --force specified");
    }
    if timeout.is_some() && !a.force {
        return text("--timeout must have --force specified");
    }
    if !a.raw.is_empty() {
        super::raw::check(&a.raw, &a.files, &[("--output", !a.print.output.is_empty())])?;
        return super::raw::send(k, http::Method::PUT, &a.raw, &a.files).await;
    }
    let dry = a.dry.strategy()?;
    if a.force && dry != DryRunStrategy::None {
        return text("--dry-run can not be used when --force is set");
    }
    let mut printer = Printer::new(&a.print, dry)?;
    let options = WriteOptions {
        dry_run: dry.option(),
        field_validation: a.validate.validation()?,
        ..WriteOptions::manager(&a.field_manager)
    };
    let (mut errors, mut unread) = (Vec::new(), Vec::new());
    let mut count = 0;
    let mut found = Vec::new();
    for i in from_files_validated(k, &a.files, options.field_validation).await? {
        count += 1;
        match i {
            Ok(i) => found.push(i),
            Err(e) => unread.push(e),
        }
    }
    if a.force {
        if count == 0 {
            k.println("No resources found");
        }
        let mut accepted = Vec::new();
        for i in found {
            let api = k.api(&i.resource, &i.namespace).await?;
            let dry_run = async {
                let old = api.get_opt(&i.name).await?;
                Replacement::dry_run(api, &i.name, old, &options, configured(&a, k, &i)).await
            };
            match dry_run.await {
                Ok(replacement) => accepted.push((i, replacement)),
                Err(e) => errors.push(Error::from(e).about("replacing", &i.source)),
            }
        }
        // Nothing is created before everything is deleted. An object that is not deleted does not prevent the recreation of
        // others.
        let mut replaceable = Vec::new();
        let deleted = delete(&a, k, accepted, propagation, &mut errors).await;
        let limit = Instant::now() + timeout.unwrap_or(DELETION_TIMEOUT);
        for (i, replacement) in deleted {
            match replacement.wait_deleted(limit).await {
                Ok(()) => replaceable.push((i, replacement)),
                Err(e) => errors.push(e),
            }
        }
        for (i, replacement) in replaceable {
            match replacement.create(k).await {
                Ok(o) => printer.print(k, &o, "replaced")?,
                Err(e) => errors.push(e.about("replacing", &i.source)),
            }
        }
        found = Vec::new();
    }
    for i in found {
        let mut o = configured(&a, k, &i);
        if dry != DryRunStrategy::Client {
            match put(&a, k, &i, o, &options).await {
                Ok(answer) => o = answer,
                Err(e) => {
                    errors.push(e.about("replacing", &i.source));
                    continue;
                }
            }
        }
        printer.print(k, &o, "replaced")?;
    }
    errors.extend(unread);
    finish(count, "replace", errors)
}

/// Returns the object of a file, with its configuration in the annotation if requested.
fn configured(a: &Arguments, k: &Kube, i: &Info) -> Object {
    let mut o = i.object.clone().unwrap_or_default();
    if a.save_config || o.annotation(LAST_APPLIED).is_some() {
        annotate(&mut o);
    }
    k.record(&mut o);
    o
}

async fn put(a: &Arguments, k: &mut Kube, i: &Info, mut o: Object, options: &WriteOptions) -> Result<Object> {
    let api = k.api(&i.resource, &i.namespace).await?;
    // Kinds that require a resource version are updated at the newest one.
    if o.resource_version().is_empty()
        && let Some(live) = api.get_opt(&i.name).await?
    {
        o.set(&["metadata", "resourceVersion"], live.resource_version());
    }
    Ok(match a.subresource.as_str() {
        "" => api.update(&i.name, options, &o).await?,
        sub => api.update_subresource(&i.name, sub, options, &o).await?,
    })
}

/// Deletes the old objects, and returns those that are deleted.
async fn delete(
    a: &Arguments,
    k: &Kube,
    all: Vec<(Info, Replacement)>,
    propagation: Propagation,
    errors: &mut Vec<Error>,
) -> Vec<(Info, Replacement)> {
    // As in upstream, a grace period of zero would lose data.
    let grace = if a.grace_period == 0 { 1 } else { a.grace_period };
    let mut options = DeleteOptions::propagation(propagation);
    if grace >= 0 {
        options.grace_period_seconds = Some(grace);
    }
    let mut deleted = Vec::new();
    for (i, mut replacement) in all {
        match replacement.delete(&options).await {
            Ok(was_there) => {
                if was_there {
                    report(k, &i, &a.print.output, grace, DryRunStrategy::None);
                }
                deleted.push((i, replacement));
            }
            Err(e) => errors.push(Error::from(e).about("deleting", &i.source)),
        }
    }
    k.out.flush();
    deleted
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    #[tokio::test]
    async fn rejects_empty_input() {
        let s = Server::new();
        let line = "replace --force -f -";
        assert_eq!(snapshot(&s, line, "").await, "No resources found\n! error: no objects passed to replace\nexit 1\n");
    }

    /// New objects may need what is still to be deleted.
    #[tokio::test]
    async fn force_deletes_all_objects_before_creating() {
        let path = "/api/v1/namespaces/default/configmaps";
        let cm =
            |n: &str| json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": n, "namespace": "default"}});
        let post = format!("POST {path}?fieldManager=kubectl-replace&fieldValidation=Strict");
        let s = Server::new()
            .on(&format!("GET {path}/a"), 404, json!({"kind": "Status", "reason": "NotFound", "code": 404}))
            .on(&format!("GET {path}/b"), 200, cm("b"))
            .on(&format!("GET {path}/b"), 404, json!({"kind": "Status", "reason": "NotFound", "code": 404}))
            .on(&dry_run_of(&post), 409, json!({"kind": "Status", "reason": "AlreadyExists", "code": 409}))
            .on(&format!("DELETE {path}/a"), 200, json!({}))
            .on(&format!("DELETE {path}/b"), 200, json!({}))
            .on(&post, 201, cm("a"))
            .on(&post, 201, cm("b"));
        let files = format!("{}{}", cm("a"), cm("b"));
        assert_eq!(
            snapshot(&s, "replace --force --grace-period=0 -f -", &files).await,
            "configmap \"a\" deleted from default namespace\nconfigmap \"b\" deleted from default namespace\nconfigmap/a replaced\nconfigmap/b replaced\n"
        );
        assert_eq!(s.body_of(&format!("DELETE {path}/a"))["gracePeriodSeconds"], 1);
        let writes: Vec<String> = s.requests().into_iter().filter(|l| !l.starts_with("GET")).collect();
        let (a, b) = (format!("DELETE {path}/a"), format!("DELETE {path}/b"));
        assert_eq!(writes, [dry_run_of(&post), a, b, post.clone(), post]);
    }

    /// Returns the query of a creation as a dry run.
    fn dry_run_of(post: &str) -> String {
        post.replace("?fieldManager", "?dryRun=All&fieldManager")
    }

    #[tokio::test]
    async fn refused_dry_run_deletes_nothing() {
        let path = "/api/v1/namespaces/default/configmaps";
        let cm = |version: &str| {
            let metadata = json!({"name": "a", "namespace": "default", "resourceVersion": version});
            json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata})
        };
        let status = |code: u16, reason: &str, message: &str, causes: serde_json::Value| json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": message, "details": {"causes": causes}});
        let post = format!("POST {path}?fieldManager=kubectl-replace&fieldValidation=Strict");
        let line = "replace --force -f -";
        let server = || {
            Server::new()
                .on(&format!("GET {path}/a"), 200, cm("7"))
                .on(&format!("GET {path}/a"), 404, status(404, "NotFound", "", json!([])))
                .on(&format!("DELETE {path}/a"), 200, json!({}))
        };
        let wrong = status(422, "Invalid", "ConfigMap \"a\" is invalid", json!([{"message": "no", "field": "data"}]));
        let s = server().on(&dry_run_of(&post), 422, wrong.clone());
        assert!(snapshot(&s, line, &cm("7").to_string()).await.ends_with("exit 1\n"));
        assert!(!s.requests().iter().any(|l| l.starts_with("DELETE")), "{:?}", s.requests());
        let restore = format!("POST {path}?fieldManager=kubectl-replace");
        let quotas = "GET /api/v1/namespaces/default/resourcequotas?limit=1";
        let list = |items: serde_json::Value| json!({"kind": "ResourceQuotaList", "apiVersion": "v1", "items": items});
        let exists = status(409, "AlreadyExists", "configmaps \"a\" already exists", json!([]));
        let forbidden = status(403, "Forbidden", "configmaps \"a\" is forbidden: q", json!([]));
        let bad = status(400, "BadRequest", "refused", json!([]));
        let old_dry_run = dry_run_of(&restore);
        let code = |refused: &serde_json::Value| u16::try_from(refused["code"].as_u64().unwrap()).unwrap();
        // The old object holds a name or quota that is free after its deletion, or the server knows no dry run.
        for (refused, further, response) in [
            (&exists, "", json!({})),
            (&forbidden, quotas, list(json!([{"metadata": {"name": "q"}}]))),
            (&bad, old_dry_run.as_str(), bad.clone()),
        ] {
            let s = server().on(&dry_run_of(&post), code(refused), refused.clone()).on(&post, 201, cm(""));
            let status_code = if response["code"].is_null() { 200 } else { code(&response) };
            let s = if further.is_empty() { s } else { s.on(further, status_code, response) };
            let output = snapshot(&s, line, &cm("7").to_string()).await;
            assert!(output.ends_with("configmap/a replaced\n"), "{refused}: {output}");
            assert_eq!(s.body_of(&post)["metadata"]["resourceVersion"], json!(null), "{refused}");
        }
        // Refused whether or not the old object exists.
        for (refused, further, response_code, response) in [
            (&forbidden, quotas, 200, list(json!([]))),
            (&forbidden, quotas, 403, forbidden.clone()),
            (&bad, old_dry_run.as_str(), 409, exists.clone()),
        ] {
            let s =
                server().on(&dry_run_of(&post), code(refused), refused.clone()).on(further, response_code, response);
            let output = snapshot(&s, line, &cm("7").to_string()).await;
            assert!(output.ends_with("exit 1\n"), "{refused}: {output}");
            assert!(!s.requests().iter().any(|l| l.starts_with("DELETE")), "{:?}", s.requests());
        }
        // Refused in spite of the dry run: the old object is created again.
        let s = server().on(&dry_run_of(&post), 409, exists).on(&post, 422, wrong).on(&restore, 201, cm("9"));
        assert!(snapshot(&s, line, &cm("").to_string()).await.ends_with("exit 1\n"));
        assert_eq!(s.requests().last(), Some(&restore));
    }
}

//! `kubectl replace`.

use super::create::{LAST_APPLIED, annotate, done};
use super::delete::{cascade, gone, tell, uid};
use crate::error::{Error, Result, text};
use crate::flags::{Dry, DryRunFlag, FileFlags, PrintFlags, ValidateFlag, duration};
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::{Info, from_files_validated};
use client::{DeleteOptions, Propagation, WriteOptions};
use meta::Object;
use std::time::Duration;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    pub files: FileFlags,
    /// Delete and create anew.
    #[arg(long)]
    pub force: bool,
    /// With --force, what becomes of what the objects own: background, foreground or orphan.
    #[arg(long, default_value = "background", num_args = 0..=1, require_equals = true, default_missing_value = "background", hide_default_value = true)]
    pub cascade: String,
    /// With --force, how long to wait until an object is gone; 0 is five minutes.
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub timeout: String,
    /// With --force, wait until an object is gone, which is done in any case.
    #[arg(long)]
    pub wait: bool,
    /// Of this subresource: status, scale.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub subresource: String,
    /// PUT the file to this path.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub raw: String,
    #[arg(long, default_value = "-1", hide_default_value = true)]
    pub grace_period: i64,
    /// Keep the configuration in an annotation.
    #[arg(long)]
    pub save_config: bool,
    /// Who the fields will belong to.
    #[arg(long, default_value = "kubectl-replace", hide_default_value = true)]
    pub field_manager: String,
    #[command(flatten)]
    pub validate: ValidateFlag,
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
}

/// How long a forced replacement waits for the end of an object when nothing else is said.
const PATIENCE: Duration = Duration::from_secs(300);

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
    if a.force && dry != Dry::None {
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
            k.say("No resources found");
        }
        // Nothing is made anew before everything is gone.
        delete(&a, k, &found, propagation, timeout.unwrap_or(PATIENCE)).await?;
    }
    for i in found {
        let mut o = i.object.clone().unwrap_or_default();
        if a.save_config || o.annotation(LAST_APPLIED).is_some() {
            annotate(&mut o);
        }
        if dry != Dry::Client {
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
    done(count, "replace", errors)
}

async fn put(a: &Arguments, k: &mut Kube, i: &Info, mut o: Object, options: &WriteOptions) -> Result<Object> {
    let api = k.api(&i.resource, &i.namespace).await?;
    if a.force {
        return Ok(api.create(options, &o).await?);
    }
    // Kinds that are updated only at a version are updated at the newest.
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

async fn delete(a: &Arguments, k: &mut Kube, all: &[Info], propagation: Propagation, patience: Duration) -> Result {
    // A grace period of nothing would lose data, as upstream has it.
    let grace = if a.grace_period == 0 { 1 } else { a.grace_period };
    let mut options = DeleteOptions::propagation(propagation);
    if grace >= 0 {
        options.grace_period_seconds = Some(grace);
    }
    let mut waiting = Vec::new();
    for i in all {
        match k.api(&i.resource, &i.namespace).await?.delete(&i.name, &options).await {
            Ok(answer) => {
                tell(k, i, grace, Dry::None);
                waiting.push((i, uid(&answer)));
            }
            Err(e) if e.is_not_found() => {}
            Err(e) => return Err(Error::from(e).about("deleting", &i.source)),
        }
    }
    k.out.flush();
    let limit = tokio::time::Instant::now() + patience;
    for (i, uid) in waiting {
        gone(k, i, &uid, limit).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    #[tokio::test]
    async fn of_nothing_nothing_is_made() {
        let s = Server::new();
        let line = "replace --force -f -";
        assert_eq!(snapshot(&s, line, "").await, "No resources found\n! error: no objects passed to replace\nexit 1\n");
    }

    /// What is made anew could need what is still to be deleted.
    #[tokio::test]
    async fn by_force_everything_goes_first() {
        let path = "/api/v1/namespaces/default/configmaps";
        let cm =
            |n: &str| json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": n, "namespace": "default"}});
        let post = format!("POST {path}?fieldManager=kubectl-replace&fieldValidation=Strict");
        let s = Server::new()
            .on(&format!("DELETE {path}/a"), 200, json!({}))
            .on(&format!("DELETE {path}/b"), 200, json!({}))
            .on(&format!("GET {path}?fieldSelector=metadata.name%3Da"), 200, json!({"items": []}))
            .on(&format!("GET {path}?fieldSelector=metadata.name%3Db"), 200, json!({"items": []}))
            .on(&post, 201, cm("a"))
            .on(&post, 201, cm("b"));
        let files = format!("{}{}", cm("a"), cm("b"));
        assert_eq!(
            snapshot(&s, "replace --force --grace-period=0 -f -", &files).await,
            "configmap \"a\" deleted from default namespace\nconfigmap \"b\" deleted from default namespace\nconfigmap/a replaced\nconfigmap/b replaced\n"
        );
        assert_eq!(s.body_of(&format!("DELETE {path}/a"))["gracePeriodSeconds"], 1);
        let verbs: Vec<String> =
            s.asked().iter().filter_map(|l| l.split(' ').next()).filter(|v| *v != "GET").map(str::to_owned).collect();
        assert_eq!(verbs, ["DELETE", "DELETE", "POST", "POST"]);
    }
}

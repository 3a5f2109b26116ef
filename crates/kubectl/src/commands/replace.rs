//! `kubectl replace`.

use super::create::{LAST_APPLIED, annotate, done};
use super::delete::{gone, uid};
use crate::error::{Error, Result, text};
use crate::flags::{Dry, DryRunFlag, FileFlags, PrintFlags, ValidateFlag};
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::from_files;
use client::{DeleteOptions, Propagation, WriteOptions};
use std::time::Duration;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    pub files: FileFlags,
    /// Delete and create anew.
    #[arg(long)]
    pub force: bool,
    /// PUT the file to this path.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub raw: String,
    #[arg(long, default_value = "-1", hide_default_value = true)]
    pub grace_period: i64,
    /// Keep the configuration in an annotation.
    #[arg(long)]
    pub save_config: bool,
    #[arg(long, default_value = "kubectl-replace", hide = true)]
    pub field_manager: String,
    #[command(flatten)]
    pub validate: ValidateFlag,
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if a.files.is_empty() {
        return text("must specify one of -f and -k");
    }
    if !a.raw.is_empty() {
        super::raw::check(&a.raw, &a.files, &[("--output", !a.print.output.is_empty())])?;
        return super::raw::send(k, http::Method::PUT, &a.raw, &a.files).await;
    }
    let dry = a.dry.strategy()?;
    let mut printer = Printer::new(&a.print, dry)?;
    let options = WriteOptions {
        dry_run: dry.option(),
        field_validation: a.validate.validation()?,
        ..WriteOptions::manager(&a.field_manager)
    };
    let mut errors = Vec::new();
    let mut count = 0;
    for i in from_files(k, &a.files).await? {
        count += 1;
        let put = async {
            let i = i?;
            let mut o = i.object.clone().unwrap_or_default();
            if a.save_config || o.annotation(LAST_APPLIED).is_some() {
                annotate(&mut o);
            }
            if dry == Dry::Client {
                return printer.print(k, &o, "replaced");
            }
            let api = k.api(&i.resource, &i.namespace).await?;
            if a.force {
                let mut d = DeleteOptions::propagation(Propagation::Background);
                if a.grace_period >= 0 {
                    d.grace_period_seconds = Some(a.grace_period);
                }
                match api.delete(&i.name, &d).await {
                    Ok(answer) => {
                        let limit = tokio::time::Instant::now() + Duration::from_secs(300);
                        gone(k, &i, &uid(&answer), limit).await?;
                        super::delete::tell(k, &i, -1, dry);
                    }
                    Err(e) if e.is_not_found() => {}
                    Err(e) => return Err(Error::from(e).about("deleting", &i.source)),
                }
            }
            // Kinds that are updated only at a version are updated at the newest.
            if !a.force
                && o.resource_version().is_empty()
                && let Some(live) = api.get_opt(&i.name).await?
            {
                o.set(&["metadata", "resourceVersion"], live.resource_version());
            }
            let answer = if a.force { api.create(&options, &o).await } else { api.update(&i.name, &options, &o).await };
            let o = answer.map_err(|e| Error::from(e).about("replacing", &i.source))?;
            printer.print(k, &o, "replaced")
        };
        if let Err(e) = put.await {
            errors.push(e);
        }
    }
    done(count, "replace", errors)
}

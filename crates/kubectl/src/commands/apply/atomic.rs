//! `kubectl apply --atomic`: applies all objects or none, in dependency order, and waits until they are ready. Upstream has
//! no such flag.
//!
//! A dry run on the server precedes all writes. If a later step fails, or the objects are not ready in time, everything
//! that was written is undone. The record of an apply is kept for `kubectl undo`.
//!
//! Left out: a single transaction. Others see objects while they are applied, as with any apply.

mod foreign;
pub mod journal;
mod order;
mod ready;
pub mod records;
mod view;

use super::Apply;
use crate::commands::delete::confirm;
use crate::commands::diff::secret;
use crate::commands::diff::sides::Sides;
use crate::error::{Error, Result, text};
use crate::flags::{DryRunStrategy, duration};
use crate::kube::Kube;
use crate::printer::{Printer, without_managed_fields};
use crate::resource::file::{self, Document};
use crate::resource::{Info, locate};
use client::{DryRun, WriteOptions};
use journal::Step;
use meta::{Gvk, Object};
use order::{Stage, rank, stage};
use ready::State;
use std::time::Duration;
use tokio::time::Instant;
use view::View;

/// Default time limit until all objects are ready.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The pause between two checks of objects that are not ready.
const READY_POLL: Duration = Duration::from_millis(250);

pub(super) async fn run(apply: &Apply, k: &mut Kube) -> Result {
    if apply.dry != DryRunStrategy::None {
        return text("--dry-run cannot be used with --atomic (--confirm shows the changes before they are made)");
    }
    if !matches!(apply.a.print.output.as_str(), "" | "name") {
        return text("--atomic prints names only (-o name)");
    }
    let timeout = duration("timeout", &apply.a.timeout)?.filter(|d| !d.is_zero()).unwrap_or(TIMEOUT);
    let documents = documents(apply, k).await?;
    let results = dry_run_all(apply, k, &documents).await?;
    if apply.a.confirm && !ask_confirmation(k, &results)? {
        return text("not confirmed, nothing was changed");
    }
    let mut steps = Vec::new();
    let done = tokio::select! {
        r = apply_all(apply, k, &documents, &mut steps, timeout) => r,
        // Without a signal handler there is nothing to wait for.
        Ok(()) = tokio::signal::ctrl_c() => text("interrupted"),
    };
    let Err(e) = done else {
        if steps.is_empty() {
            k.warn("nothing to do: everything is as the files say");
            return Ok(());
        }
        match records::save(k, &steps)? {
            Some(_) => k.warn("'kubectl undo' takes this back"),
            None => k.warn("this cannot be undone later: there is no directory to keep it in"),
        }
        return Ok(());
    };
    if steps.is_empty() {
        return Err(e);
    }
    k.warn("failed, taking everything back");
    match journal::revert(k, &steps).await {
        Ok(()) => Err(e),
        Err(more) => Err(Error::Many(vec![e, more])),
    }
}

/// Reads the objects of the files, in order. A single error stops the apply before anything is written.
async fn documents(apply: &Apply, k: &mut Kube) -> Result<Vec<Document>> {
    let selector = meta::LabelSelector::parse(&apply.a.selector).map_err(Error::Text)?;
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for d in file::read(k, &apply.a.files).await? {
        match d {
            Ok(d) if d.object.name().is_empty() => {
                errors.push(Error::Text(format!("{}: an object without a name cannot be applied", d.source)))
            }
            Ok(d) if selector.matches(|key| d.object.label(key)) => found.push(d),
            Ok(_) => {}
            Err(e) => errors.push(e),
        }
    }
    Error::collect(errors)?;
    if found.is_empty() {
        return text("no objects passed to apply");
    }
    found.sort_by_key(|d| rank(&d.object));
    Ok(found)
}

/// An object with its live state and the result of its dry run.
struct DryRunResult {
    info: Info,
    live: Option<Object>,
    merged: Object,
}

/// Does a dry run of every object. An object with a namespace or definition of the same apply has none.
async fn dry_run_all(apply: &Apply, k: &mut Kube, documents: &[Document]) -> Result<Vec<DryRunResult>> {
    let options = WriteOptions { dry_run: DryRun::All, ..apply.options.clone() };
    let dry_run_apply = Apply { a: apply.a.clone(), dry: DryRunStrategy::Server, options };
    let mut out = Vec::new();
    let mut errors = Vec::new();
    for d in documents {
        let Some(gvk) = d.object.gvk() else { continue };
        if k.resource_of(&gvk).await?.is_none() && documents.iter().any(|o| defines(&o.object, &gvk)) {
            continue;
        }
        let info = match locate(k, &d.source, d.object.clone()).await {
            Ok(i) => i,
            Err(e) => {
                errors.push(e);
                continue;
            }
        };
        let namespace_is_new =
            documents.iter().any(|o| stage(&o.object) == Stage::Namespaces && o.object.name() == info.namespace);
        let live = k.api(&info.resource, &info.namespace).await?.get_opt(&info.name).await?;
        if live.is_none() && namespace_is_new {
            let merged = info.object.clone().unwrap_or_default();
            out.push(DryRunResult { info, live, merged });
            continue;
        }
        match dry_run_apply.apply(k, &info).await {
            Ok((merged, _)) => out.push(DryRunResult { info, live, merged }),
            Err(e) => errors.push(e),
        }
    }
    if !errors.is_empty() {
        k.warn("nothing was changed");
    }
    Error::collect(errors)?;
    Ok(out)
}

/// Whether an object is the definition of a kind.
fn defines(o: &Object, gvk: &Gvk) -> bool {
    stage(o) == Stage::Definitions
        && o.str_at(&["spec", "group"]) == Some(&gvk.group)
        && o.str_at(&["spec", "names", "kind"]) == Some(&gvk.kind)
}

/// Shows all differences and asks for confirmation.
fn ask_confirmation(k: &mut Kube, all: &[DryRunResult]) -> Result<bool> {
    let sides = Sides::new(k)?;
    for r in all {
        let (mut live, mut merged) = (r.live.clone(), r.merged.clone());
        live.iter_mut().for_each(without_managed_fields);
        without_managed_fields(&mut merged);
        if r.info.resource.kind == "Secret" && r.info.resource.group.is_empty() {
            secret::mask(live.as_mut(), &mut merged);
        }
        sides.write(&r.info, live, Some(merged))?;
    }
    match sides.compare(k) {
        Ok(()) => k.println("no differences"),
        Err(Error::Exit(1)) => {}
        Err(e) => return Err(e),
    }
    k.out.write(b"Apply these changes? (y/N): ");
    k.out.flush();
    confirm(k)
}

async fn apply_all(
    apply: &Apply,
    k: &mut Kube,
    documents: &[Document],
    steps: &mut Vec<Step>,
    timeout: Duration,
) -> Result {
    let limit = Instant::now() + timeout;
    let mut printer = Printer::new(&apply.a.print, DryRunStrategy::None)?;
    let mut applied: Vec<Info> = Vec::new();
    for (n, d) in documents.iter().enumerate() {
        let before = n.checked_sub(1).map(|p| stage(&documents[p].object));
        if before == Some(Stage::Definitions) && stage(&d.object) == Stage::Rest {
            wait_ready(k, &applied, limit).await?;
            k.forget_discovery();
        }
        let info = locate(k, &d.source, d.object.clone()).await?;
        let before = k.api(&info.resource, &info.namespace).await?.get_opt(&info.name).await?;
        let gvk = info.resource.gvk();
        let (namespace, name) = (info.namespace.clone(), info.name.clone());
        let manager = apply.options.field_manager.clone();
        steps.push(Step { gvk, namespace, name, manager, before, after: None });
        let result = apply.apply(k, &info).await;
        let Some(step) = steps.last_mut() else { continue };
        let (o, what) = match result {
            Ok(done) => done,
            Err(e) => {
                // The server refused: nothing was written.
                if e.status().is_some() {
                    steps.pop();
                }
                return Err(e);
            }
        };
        // A patch may change nothing ($retainKeys alone, for example).
        let same = step.before.as_ref().is_some_and(|b| b.resource_version() == o.resource_version());
        let what = if same { "unchanged" } else { what };
        if what == "unchanged" {
            steps.pop();
        } else {
            step.after = Some(o.clone());
        }
        printer.print(k, &o, what)?;
        applied.push(info);
    }
    k.out.flush();
    wait_ready(k, &applied, limit).await
}

/// Waits until the objects are ready.
async fn wait_ready(k: &mut Kube, all: &[Info], limit: Instant) -> Result {
    let mut view = View::new(k, all.iter().map(Info::to_name).collect());
    loop {
        let mut states = Vec::with_capacity(all.len());
        for i in all {
            states.push(match i.fetch(k).await {
                Ok(mut o) => {
                    // Some servers omit kind and version in a single object.
                    o.set_gvk(&i.resource.gvk());
                    ready::state(&o)
                }
                Err(e) if e.is_not_found() => State::Failed("is gone".to_owned()),
                Err(e) => return Err(e),
            });
        }
        view.show(k, &states);
        let mut waiting = None;
        for (i, s) in all.iter().zip(&states) {
            match s {
                State::Ready => {}
                State::Failed(why) => return text(format!("{}: {why}", i.to_name())),
                State::Waiting(why) => waiting = waiting.or(Some((i, why))),
            }
        }
        let Some((i, why)) = waiting else { return Ok(()) };
        if Instant::now() + READY_POLL > limit {
            return text(format!("timed out waiting for {}: {why}", i.to_name()));
        }
        tokio::time::sleep(READY_POLL).await;
    }
}

#[cfg(test)]
#[path = "atomic/tests.rs"]
mod tests;

//! `kubectl undo`: undoes exactly one `kubectl apply --atomic`. Upstream has no such command.
//!
//! It undoes all or nothing: if another client has changed an object since the apply, no object is changed.

use super::apply::atomic::{journal, records};
use crate::error::{Error, Result, text};
use crate::kube::Kube;
use crate::printer::{table::age, tabwriter};

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// The apply to undo, as --list names it; by default the last one.
    pub id: Option<String>,
    /// List the applies that can be undone.
    #[arg(long)]
    pub list: bool,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let mut all = records::list(k)?;
    if a.list {
        let mut text = "ID\tAGE\tOBJECTS\n".to_owned();
        for r in &all {
            let names: Vec<String> = r.steps.iter().map(journal::Step::to_name).collect();
            text.push_str(&format!("{}\t{}\t{}\n", r.id, age(&r.time, k.now()), names.join(",")));
        }
        k.out.write(tabwriter::align(&text, 0, 3).as_bytes());
        return Ok(());
    }
    let found = match &a.id {
        None => all.pop(),
        Some(id) => all.into_iter().find(|r| r.id == *id),
    };
    let Some(record) = found else {
        return match a.id {
            Some(id) => text(format!("no atomic apply {id:?} is known on this machine (see kubectl undo --list)")),
            None => text("no atomic apply of this machine can be taken back (see kubectl apply --atomic)"),
        };
    };
    let mut errors = Vec::new();
    for s in &record.steps {
        if let Err(e) = s.check(k, &record.steps).await {
            errors.push(e);
        }
    }
    if !errors.is_empty() {
        k.warn("nothing was changed");
    }
    Error::collect(errors)?;
    journal::revert(k, &record.steps).await?;
    record.forget()
}

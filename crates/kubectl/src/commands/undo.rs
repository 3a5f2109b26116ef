//! `kubectl undo`: takes exactly one `kubectl apply --atomic` back. Upstream has no such command.
//!
//! All or nothing, too: where somebody else has changed since what the apply wrote, nothing is touched.

use super::apply::atomic::{journal, records};
use crate::error::{Error, Result, text};
use crate::kube::Kube;
use crate::printer::{table::age, tabwriter};

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// Which apply, as --list names it; the last if none is named.
    pub id: Option<String>,
    /// Show what can be taken back.
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

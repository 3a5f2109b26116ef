//! `kubectl events`.

use crate::commands::describe::events::{interval, last};
use crate::error::{Result, text};
use crate::kube::Kube;
use crate::printer::table::Aligner;
use crate::resource::Collection;
use crate::resource::select::{Selection, list};

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE/NAME: only events about this object.
    #[arg(long = "for", default_value = "", hide_default_value = true)]
    pub about: String,
    /// Normal, Warning.
    #[arg(long, value_delimiter = ',')]
    pub types: Vec<String>,
    /// In all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    #[arg(long)]
    pub no_headers: bool,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if a.types.iter().any(|t| !t.eq_ignore_ascii_case("Normal") && !t.eq_ignore_ascii_case("Warning")) {
        return text("valid --types are Normal or Warning");
    }
    let mut fields = Vec::new();
    if !a.about.is_empty() {
        let Some((word, name)) = a.about.split_once('/') else {
            return text("--for must be in resource/name form");
        };
        let r = k.resource(word).await?;
        fields.push(format!("involvedObject.kind={},involvedObject.name={name}", r.kind));
    }
    let resource = k.resource("events").await?;
    let namespace = if a.all_namespaces { String::new() } else { k.namespace()?.0 };
    let c = Collection { resource, namespace: namespace.clone() };
    let fields = fields.join(",");
    let mut all = list(k, &c, &Selection { fields: &fields, ..Selection::default() }).await?;
    all.retain(|e| {
        let ty = e.object.as_ref().and_then(|o| o.str_at(&["type"])).unwrap_or_default();
        a.types.is_empty() || a.types.iter().any(|t| t.eq_ignore_ascii_case(ty))
    });
    all.sort_by_key(|e| e.object.as_ref().map(last));
    if all.is_empty() {
        match a.all_namespaces {
            true => k.warn("No events found."),
            false => k.warn(format!("No events found in {namespace} namespace.")),
        }
        return Ok(());
    }
    let mut rows = Vec::new();
    if !a.no_headers {
        let mut h = vec!["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
        if a.all_namespaces {
            h.insert(0, "NAMESPACE");
        }
        rows.push(h.into_iter().map(str::to_owned).collect());
    }
    for e in all {
        let Some(o) = e.object else { continue };
        let at = |p: &[&str]| o.str_at(p).unwrap_or_default().to_owned();
        let mut row = vec![
            interval(&o, k.now()),
            at(&["type"]),
            at(&["reason"]),
            format!("{}/{}", at(&["involvedObject", "kind"]), at(&["involvedObject", "name"])),
            at(&["message"]).trim().to_owned(),
        ];
        if a.all_namespaces {
            row.insert(0, o.namespace().to_owned());
        }
        rows.push(row);
    }
    k.out.write(Aligner::default().lines(&rows).as_bytes());
    Ok(())
}

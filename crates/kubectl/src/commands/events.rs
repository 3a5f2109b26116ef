//! `kubectl events`: lists and watches events.

use crate::commands::describe::events::{interval, last};
use crate::error::{Error, Result, text};
use crate::flags::{DryRunStrategy, PrintFlags};
use crate::kube::Kube;
use crate::printer::shape::Order;
use crate::printer::table::{Aligner, escape};
use crate::printer::{Formats, Output, Printer, ordered};
use crate::resource::Collection;
use crate::resource::select::{Selection, list};
use client::{WatchEvent, WatchOptions};
use futures::StreamExt as _;
use meta::Object;
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// Only events about this object: TYPE/NAME.
    #[arg(long = "for", default_value = "", hide_default_value = true)]
    pub about: String,
    /// Only events of these types: Normal, Warning.
    #[arg(long, value_delimiter = ',')]
    pub types: Vec<String>,
    /// In all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Do not print headers.
    #[arg(long)]
    pub no_headers: bool,
    /// Watch for new events.
    #[arg(short = 'w', long)]
    pub watch: bool,
    /// Page size of lists; 0 is no paging.
    #[arg(long, default_value = "500", hide_default_value = true, allow_negative_numbers = true)]
    pub chunk_size: i64,
    #[command(flatten)]
    pub print: PrintFlags,
    /// Accepted and ignored, as in upstream.
    #[arg(hide = true)]
    pub ignored: Vec<String>,
}

impl Arguments {
    fn matches(&self, e: &Object) -> bool {
        let ty = e.str_at(&["type"]).unwrap_or_default();
        self.types.is_empty() || self.types.iter().any(|t| t.eq_ignore_ascii_case(ty))
    }

    fn header(&self) -> Vec<String> {
        let mut h = vec!["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
        if self.all_namespaces {
            h.insert(0, "NAMESPACE");
        }
        h.into_iter().map(str::to_owned).collect()
    }

    fn row(&self, o: &Object, now: jiff::Timestamp) -> Vec<String> {
        let at = |p: &[&str]| escape(o.str_at(p).unwrap_or_default());
        let mut row = vec![
            interval(o, now),
            at(&["type"]),
            at(&["reason"]),
            format!("{}/{}", at(&["involvedObject", "kind"]), at(&["involvedObject", "name"])),
            escape(o.str_at(&["message"]).unwrap_or_default().trim()),
        ];
        if self.all_namespaces {
            row.insert(0, o.namespace().to_owned());
        }
        row
    }
}

pub async fn run(mut a: Arguments, k: &mut Kube) -> Result {
    if a.types == [""] {
        a.types.clear();
    }
    let output = Output::parse(&a.print, Formats::Objects, true)?;
    if a.types.iter().any(|t| !t.eq_ignore_ascii_case("Normal") && !t.eq_ignore_ascii_case("Warning")) {
        return text("valid --types are Normal or Warning");
    }
    let mut fields = String::new();
    if !a.about.is_empty() {
        let Some((word, name)) = a.about.split_once('/') else {
            return text("--for must be in resource/name form");
        };
        if name.contains('/') {
            return text("arguments in resource/name form may not have more than one slash");
        }
        // Kinds of other groups may have the same name.
        let Some(r) = k.find_resource(word).await? else {
            let group = word.split_once('.').map(|(_, g)| format!(" in group {g:?}")).unwrap_or_default();
            let resource = word.split('.').next().unwrap_or(word);
            return Err(Error::Bare(format!("the server doesn't have a resource type {resource:?}{group}")));
        };
        fields = format!(
            "involvedObject.kind={},involvedObject.apiVersion={},involvedObject.name={name}",
            r.kind,
            r.group_version()
        );
    }
    let resource = k.resource("events").await?;
    let namespace = if a.all_namespaces { String::new() } else { k.namespace()?.0 };
    let c = Collection { resource, namespace };
    if a.watch {
        return crate::shell::interruptible(watch(&a, k, &c, fields, &output)).await;
    }
    let selection = Selection { fields: &fields, page: Some(a.chunk_size), ..Selection::default() };
    let mut all: Vec<Object> = list(k, &c, &selection).await?.into_iter().filter_map(|i| i.object).collect();
    all.retain(|e| a.matches(e));
    all.sort_by_key(last);
    if all.is_empty() {
        match a.all_namespaces {
            true => k.warn("No events found."),
            false => k.warn(format!("No events found in {} namespace.", c.namespace)),
        }
        return Ok(());
    }
    // Upstream's name printer rejects this list and drops the error.
    if matches!(output, Output::Name) {
        return Ok(());
    }
    if !output.is_human() {
        let list = json!({"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": all});
        let list = Object::from_value(list).unwrap_or_default();
        k.out.write(ordered(&output, list, a.print.show_managed_fields, Order::ByType)?.as_bytes());
        return Ok(());
    }
    let header = (!a.no_headers).then(|| a.header());
    let rows: Vec<_> = header.into_iter().chain(all.iter().map(|o| a.row(o, k.now()))).collect();
    k.out.write(Aligner::default().lines(&rows).as_bytes());
    Ok(())
}

/// Prints existing events and then new ones. Events that expire are not reported.
async fn watch(a: &Arguments, k: &mut Kube, c: &Collection, fields: String, output: &Output) -> Result {
    let api = k.api(&c.resource, &c.namespace).await?;
    let options = WatchOptions { field_selector: fields, ..WatchOptions::default() };
    let mut printer = Printer::new(&a.print, DryRunStrategy::None)?.typed();
    let mut aligner = Aligner::default();
    let mut header = (!a.no_headers).then(|| a.header());
    let mut events = std::pin::pin!(api.watch(&options).await?);
    while let Some(e) = events.next().await {
        let mut o = match e? {
            WatchEvent::Added(o) | WatchEvent::Modified(o) if a.matches(&o) => o,
            _ => continue,
        };
        o.set_gvk(&c.resource.gvk());
        if output.is_human() {
            let rows: Vec<_> = header.take().into_iter().chain([a.row(&o, k.now())]).collect();
            k.out.write(aligner.lines(&rows).as_bytes());
        } else {
            printer.print(k, &o, "events")?;
        }
        k.out.flush();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    #[tokio::test]
    async fn escapes_control_characters() {
        let event = json!({"metadata": {"name": "e", "namespace": "default"}, "type": "\x1b[T", "reason": "\x1b[R", "message": "one\r\x1b[2J ",
            "firstTimestamp": "2026-11-21T11:59:00Z", "lastTimestamp": "2026-11-21T11:59:00Z", "involvedObject": {"kind": "\x1b[K", "name": "\x1b[N"}});
        let s = Server::new().on("GET /api/v1/namespaces/default/events?limit=500", 200, json!({"items": [event]}));
        assert_eq!(snapshot(&s, "events --no-headers", "").await, "60s   ^[[T   ^[[R   ^[[K/^[[N   one\\r^[[2J\n");
    }

    #[tokio::test]
    async fn lists_and_watches_events() {
        let event = |reason: &str, ty: &str| json!({"metadata": {"name": reason, "namespace": "default"}, "type": ty, "reason": reason, "message": "m ", "firstTimestamp": "2026-11-21T11:59:00Z", "lastTimestamp": "2026-11-21T11:59:00Z", "involvedObject": {"kind": "Pod", "name": "p"}});
        let change = |t: &str, o: meta::Value| format!("{}\n", json!({"type": t, "object": o}));
        let changes = change("ADDED", event("B", "Normal"))
            + &change("ADDED", event("C", "Warning"))
            + &change("DELETED", event("D", "Warning"));
        let path = "GET /api/v1/namespaces/default/events";
        let s = Server::new().on(&format!("{path}?limit=7"), 200, json!({"items": [event("A", "Normal")]})).on_bytes(
            &format!("{path}?watch=true"),
            200,
            changes.into_bytes(),
        );
        let selector =
            "involvedObject.kind%3DDeployment%2CinvolvedObject.apiVersion%3Dapps%2Fv1%2CinvolvedObject.name%3Dp";
        let s = s.on(&format!("{path}?fieldSelector={selector}&limit=500"), 200, json!({"items": []}));
        for (line, expected) in [
            (
                "events --chunk-size=7",
                "LAST SEEN   TYPE     REASON   OBJECT   MESSAGE\n60s         Normal   A        Pod/p    m\n",
            ),
            ("events --chunk-size=7 -o jsonpath={.items[*].reason}", "A"),
            ("events --chunk-size=7 -o name", ""),
            ("events --chunk-size=7 --types= word -o jsonpath={.items[*].reason}", "A"),
            ("events --for=deploy/p", "! No events found in default namespace.\n"),
            ("events --for=pod.v1/p", "! the server doesn't have a resource type \"pod\" in group \"v1\"\nexit 1\n"),
            ("events --chunk-size=7 --types=Warning", "! No events found in default namespace.\n"),
            (
                "events -w --types=warning",
                "LAST SEEN   TYPE      REASON   OBJECT   MESSAGE\n60s         Warning   C        Pod/p    m\n",
            ),
            ("events -w -o name --types=Warning", "event/C\n"),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }
}

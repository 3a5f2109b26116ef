//! `kubectl get --watch`: prints the list and then its changes.

use super::Arguments;
use super::show::{Show, append, as_table, list_page, namespace};
use crate::error::{Error, Result, text};
use crate::kube::Kube;
use crate::printer::table::{self, Aligner};
use crate::printer::{Output, document};
use crate::resource::select::info;
use crate::resource::{Collection, Info, Target};
use client::client::JSON;
use client::{WatchEvent, WatchOptions};
use codec::json::{Html, to_string};
use futures::StreamExt as _;
use meta::{Object, Value};
use serde_json::json;

pub async fn run(a: &Arguments, k: &mut Kube, output: Output, mut all: Vec<Target>) -> Result {
    if a.files.is_empty() && several_types(&all) {
        return text("you may only specify a single resource type");
    }
    if !a.sort_by.is_empty() {
        k.warn(match a.watch_only && !a.watch {
            true => "warning: --watch-only requested, --sort-by will be ignored",
            false => "warning: --watch requested, --sort-by will be ignored for watch events received",
        });
    }
    let mut show = Show::new(a, k, &all)?;
    if all.len() > 1 {
        return print_and_refuse(a, k, output, &show, all).await;
    }
    let Some(target) = all.pop() else { return Ok(()) };
    let mut a = a.clone();
    let c = match target {
        Target::All(c) => c,
        Target::Named(i) => {
            // The object must exist before it is watched.
            match i.fetch(k).await {
                Err(e) if e.is_not_found() && a.ignore_not_found => return Ok(()),
                found => found?,
            };
            a.field_selector = format!("metadata.name={}", i.name);
            Collection { resource: i.resource, namespace: i.namespace }
        }
    };
    show.table.with_kind = a.show_kind.then(String::new);
    let mut screen = EventPrinter::new(&a, output, show.options_for(&c.resource));
    let human = screen.output.is_human();
    let accept = if human { show.accept() } else { JSON };
    let mut joined: Option<Value> = None;
    let mut go_on = String::new();
    let mut version;
    loop {
        let page = list_page(k, &a, &c, accept, Default::default(), &go_on).await?;
        version = page["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        go_on = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        match &mut joined {
            Some(t) if human => append(t, as_table(page, k.now())),
            Some(t) => {
                if let (Some(Value::Array(items)), Some(Value::Array(more))) =
                    (t.get_mut("items"), page.get("items").cloned())
                {
                    items.extend(more);
                }
            }
            None if human => joined = Some(as_table(page, k.now())),
            None => joined = Some(page),
        }
        if go_on.is_empty() {
            break;
        }
    }
    if !a.watch_only
        && let Some(list) = joined
    {
        if human {
            screen.table(k, list, "ADDED");
        } else {
            let items = list.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
            screen.widen(&items);
            for o in items.into_iter().filter_map(Object::from_value) {
                if let Some(o) = info(&c.resource, o).object {
                    screen.object(k, o, "ADDED")?;
                }
            }
        }
        k.out.flush();
    }
    let options = WatchOptions {
        label_selector: a.selector.clone(),
        field_selector: a.field_selector.clone(),
        resource_version: version,
        ..WatchOptions::default()
    };
    let mut api = k.client().await?.dynamic(&c.resource.api()).accept(accept);
    if let Some(n) = namespace(&c.namespace) {
        api = api.namespace(n);
    }
    let mut events = api.watch(&options).await?;
    while let Some(event) = events.next().await {
        let (o, what) = match event {
            Ok(WatchEvent::Added(o)) => (o, "ADDED"),
            Ok(WatchEvent::Modified(o)) => (o, "MODIFIED"),
            Ok(WatchEvent::Deleted(o)) => (o, "DELETED"),
            Ok(WatchEvent::Bookmark { .. }) => continue,
            Err(e) => return Err(Error::Client(e)),
        };
        if human {
            let now = k.now();
            screen.table(k, as_table(o.into_value(), now), what);
        } else {
            screen.object(k, o, what)?;
        }
        k.out.flush();
    }
    Ok(())
}

fn several_types(all: &[Target]) -> bool {
    all.windows(2).any(|pair| pair[0].resource() != pair[1].resource())
}

/// Prints several objects, of files or of one type, once. Returns why they cannot be watched.
async fn print_and_refuse(a: &Arguments, k: &mut Kube, output: Output, show: &Show<'_>, all: Vec<Target>) -> Result {
    let mut named: Vec<Info> = Vec::new();
    for t in all {
        if let Target::Named(i) = t {
            named.push(i);
        }
    }
    let Some(first) = named.first() else { return Ok(()) };
    let mut screen = EventPrinter::new(a, output, show.options_for(&first.resource));
    let mut found = Vec::new();
    for i in &named {
        let read = match screen.output.is_human() {
            true => show.named_table(k, i).await,
            false => show.named(k, i).await.map(Object::into_value),
        };
        match read {
            Err(e) if e.is_not_found() && a.ignore_not_found => return Ok(()),
            read => found.push(read?),
        }
    }
    let mut rows = Vec::new();
    for v in found.into_iter().filter(|_| !a.watch_only) {
        if screen.output.is_human() {
            rows.extend(screen.rows(v, "ADDED"));
        } else if let Some(o) = Object::from_value(v) {
            screen.object(k, o, "ADDED")?;
        }
    }
    k.out.write(screen.aligner.lines(&rows).as_bytes());
    k.out.flush();
    let one_source = !a.files.is_empty() && named.iter().all(|i| i.source == named[0].source);
    text(match one_source {
        true => format!(
            "watch is only supported on individual resources and resource collections - {} resources were found",
            named.len()
        ),
        false => "you may only watch a single resource or type of resource at a time".into(),
    })
}

struct EventPrinter {
    options: table::Options,
    aligner: Aligner,
    /// The columns of the last table with columns; their headers are printed.
    columns: Value,
    no_headers: bool,
    events: bool,
    output: Output,
    managed: bool,
    documents: usize,
}

impl EventPrinter {
    fn new(a: &Arguments, output: Output, options: table::Options) -> Self {
        Self {
            no_headers: options.no_headers,
            options,
            aligner: Aligner::default(),
            columns: Value::Null,
            events: a.output_watch_events,
            output,
            managed: a.print.show_managed_fields,
            documents: 0,
        }
    }

    fn table(&mut self, k: &Kube, t: Value, event: &str) {
        let rows = self.rows(t, event);
        k.out.write(self.aligner.lines(&rows).as_bytes());
    }

    /// Returns the rows of a table, with headers if its columns are new.
    fn rows(&mut self, mut t: Value, event: &str) -> Vec<Vec<String>> {
        // Tables of events may lack columns.
        let columns = &t["columnDefinitions"];
        if columns.as_array().is_none_or(Vec::is_empty) {
            t["columnDefinitions"] = self.columns.clone();
        } else if *columns != self.columns {
            self.columns = columns.clone();
            self.options.no_headers = self.no_headers;
        }
        if t["rows"].as_array().is_none_or(Vec::is_empty) {
            return Vec::new();
        }
        let mut rows = table::rows(&t, &self.options);
        if self.events {
            for (i, r) in rows.iter_mut().enumerate() {
                let word = if i == 0 && !self.options.no_headers { "EVENT" } else { event };
                // As wide as the longest event type.
                r.insert(0, format!("{word:<8}"));
            }
        }
        self.options.no_headers = true;
        rows
    }

    /// Widens custom columns for all items of a list.
    fn widen(&mut self, items: &[Value]) {
        let events = self.events;
        let shown = |o: &Value| if events { json!({"object": o, "type": "ADDED"}) } else { o.clone() };
        if let Output::Columns(c) = &self.output {
            let rows: Vec<Vec<String>> =
                c.header().into_iter().chain(items.iter().filter_map(|o| c.row(&shown(o)).ok())).collect();
            self.aligner.lines(&rows);
        }
    }

    fn object(&mut self, k: &Kube, o: Object, event: &str) -> Result {
        if self.documents > 0 && matches!(self.output, Output::Yaml) {
            k.out.write(b"---\n");
        }
        self.documents += 1;
        let o = if self.events {
            let mut o = o;
            if !self.managed {
                crate::printer::without_managed_fields(&mut o);
            }
            match self.output {
                Output::Name => o,
                _ => Object::from_value(json!({"object": o, "type": event})).unwrap_or_default(),
            }
        } else {
            o
        };
        // The headers of custom columns are printed once, and columns keep their widths.
        if let Output::Columns(c) = &self.output {
            let mut rows: Vec<Vec<String>> =
                if self.documents == 1 { c.header().into_iter().collect() } else { Vec::new() };
            let row = c.row(&o.into_value());
            rows.extend(row.as_ref().ok().cloned());
            k.out.write(self.aligner.lines(&rows).as_bytes());
            return row.map(drop);
        }
        let text = match self.output {
            // An event is one line.
            Output::Json if self.events => format!("{}\n", to_string(&o.into_value(), Html::Escape)),
            _ => document(&self.output, o, self.managed)?,
        };
        k.out.write(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, run_with, snapshot};
    use serde_json::{Value, json};

    fn path(of: &str) -> String {
        format!("GET /api/v1/namespaces/default/{of}")
    }

    fn table(column: &str, cells: [&str; 2]) -> Value {
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1",
            "columnDefinitions": [{"name": "Name", "format": "name"}, {"name": column}],
            "rows": [{"cells": cells, "object": {"metadata": {"name": cells[0]}}}],
        })
    }

    /// Several objects are printed once, and the error says that only one or a type can be watched.
    #[tokio::test]
    async fn prints_several_objects_and_refuses_to_watch_them() {
        let s = Server::new()
            .on(&path("pods/web"), 200, table("Status", ["web", "Running"]))
            .on(&path("pods/b"), 200, table("Status", ["b", "Pending"]))
            .on(&path("configmaps/settings"), 200, table("Data", ["settings", "3"]));
        let sources = "! error: you may only watch a single resource or type of resource at a time\nexit 1\n";
        for line in ["get pods web b -w", "get pod/web pod/b -w"] {
            let both = "NAME   STATUS\nweb    Running\nb      Pending\n";
            assert_eq!(snapshot(&s, line, "").await, format!("{both}{sources}"), "{line}");
        }
        assert_eq!(snapshot(&s, "get pods web b --watch-only", "").await, sources);
        let files = "{kind: Pod, apiVersion: v1, metadata: {name: web}}\n---\n{kind: ConfigMap, apiVersion: v1, metadata: {name: settings}}\n";
        assert_eq!(
            snapshot(&s, "get -f - -w", files).await,
            "NAME       STATUS\nweb        Running\nNAME       DATA\nsettings   3\n! error: watch is only supported on individual resources and resource collections - 2 resources were found\nexit 1\n"
        );
        for line in ["get pods,configmaps -w", "get pod/web configmap/settings -w"] {
            let types = "! error: you may only specify a single resource type\nexit 1\n";
            assert_eq!(snapshot(&s, line, "").await, types, "{line}");
        }
        let missing = "! Error from server (NotFound): pods \"none\" not found\nexit 1\n";
        assert_eq!(snapshot(&s, "get pods web none -w", "").await, missing);
        for line in ["get pods web none -w --ignore-not-found", "get pods none -w --ignore-not-found"] {
            assert_eq!(snapshot(&s, line, "").await, "", "{line}");
        }
    }

    /// A request timeout ends a watch without an error, which the log explains from level 5 on.
    #[tokio::test(start_paused = true)]
    async fn logs_that_a_request_timeout_ended_a_watch() {
        let watched = path("pods?watch=true&fieldSelector=metadata.name%3Dweb&resourceVersion=7");
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web"}});
        let mut list = table("Status", ["web", "Running"]);
        list["metadata"] = json!({"resourceVersion": "7"});
        let s = Server::new()
            .on(&path("pods/web"), 200, pod)
            .on(&path("pods?fieldSelector=metadata.name%3Dweb&limit=500"), 200, list)
            .hang(&watched);
        for (level, logged) in [("--v=4", false), ("--v=5", true)] {
            let (code, out, err) = run_with(&s, &["get", "pod", "web", "-w", "--request-timeout=1", level], "").await;
            assert_eq!((code, out.as_str()), (0, "NAME   STATUS\nweb    Running\n"), "{err}");
            assert_eq!(err.contains("streamwatcher.go:123] ") && err.contains("Client.Timeout"), logged, "{err}");
        }
    }
}

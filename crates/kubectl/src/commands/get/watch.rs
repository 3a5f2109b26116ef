//! `kubectl get --watch`: prints the list and then its changes.

use super::Arguments;
use super::show::{Show, append, as_table, list_page, namespace};
use crate::error::{Error, Result, text};
use crate::kube::Kube;
use crate::printer::table::{self, Aligner};
use crate::printer::{Output, document};
use crate::resource::select::info;
use crate::resource::{Collection, Target};
use client::client::JSON;
use client::{WatchEvent, WatchOptions};
use codec::json::{Html, to_string};
use futures::StreamExt as _;
use meta::{Object, Value};
use serde_json::json;

pub async fn run(a: &Arguments, k: &mut Kube, output: Output, mut all: Vec<Target>) -> Result {
    if all.len() != 1 {
        return text("you may only specify a single resource type");
    }
    if !a.sort_by.is_empty() {
        k.warn(match a.watch_only && !a.watch {
            true => "warning: --watch-only requested, --sort-by will be ignored",
            false => "warning: --watch requested, --sort-by will be ignored for watch events received",
        });
    }
    let mut show = Show::new(a, k, &all)?;
    let Some(target) = all.pop() else { return Ok(()) };
    let mut a = a.clone();
    let c = match target {
        Target::All(c) => c,
        Target::Named(i) => {
            // The object must exist before it is watched.
            i.fetch(k).await?;
            a.field_selector = format!("metadata.name={}", i.name);
            Collection { resource: i.resource, namespace: i.namespace }
        }
    };
    show.table.with_kind = a.show_kind.then(String::new);
    let mut screen = EventPrinter {
        options: show.options_for(&c.resource),
        aligner: Aligner::default(),
        columns: Value::Null,
        events: a.output_watch_events,
        output,
        managed: a.print.show_managed_fields,
        documents: 0,
    };
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

struct EventPrinter {
    options: table::Options,
    aligner: Aligner,
    /// The columns of the first table; later tables are printed without headers.
    columns: Value,
    events: bool,
    output: Output,
    managed: bool,
    documents: usize,
}

impl EventPrinter {
    fn table(&mut self, k: &Kube, mut t: Value, event: &str) {
        if self.columns.is_null() {
            self.columns = t["columnDefinitions"].clone();
        } else {
            t["columnDefinitions"] = self.columns.clone();
        }
        if t["rows"].as_array().is_none_or(Vec::is_empty) {
            return;
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
        k.out.write(self.aligner.lines(&rows).as_bytes());
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

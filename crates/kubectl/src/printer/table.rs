//! Text in columns, as Go's `text/tabwriter` aligns it for kubectl, and the server's `Table`.

use meta::{Object, Value};

/// Aligns cells with a minimum width of six and three spaces between. Remembers the widths for rows that are printed later,
/// as a watch does.
#[derive(Clone, Debug, Default)]
pub struct Aligner {
    widths: Vec<usize>,
}

impl Aligner {
    /// Returns lines that end with a newline. The last cell of a row is not padded.
    pub fn lines(&mut self, rows: &[Vec<String>]) -> String {
        for row in rows {
            for (i, cell) in row.iter().enumerate().take(row.len().saturating_sub(1)) {
                if self.widths.len() <= i {
                    self.widths.push(6);
                }
                self.widths[i] = self.widths[i].max(cell.chars().count() + 3);
            }
        }
        let mut out = String::new();
        for row in rows {
            for (i, cell) in row.iter().enumerate() {
                out.push_str(cell);
                if i + 1 < row.len() {
                    let pad = self.widths[i].saturating_sub(cell.chars().count());
                    out.extend(std::iter::repeat_n(' ', pad));
                }
            }
            out.push('\n');
        }
        out
    }
}

/// Which parts of a table are shown.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub no_headers: bool,
    pub wide: bool,
    pub with_namespace: bool,
    /// The kind before each name: `pod`, `deployment.apps`.
    pub with_kind: Option<String>,
    pub show_labels: bool,
    pub label_columns: Vec<String>,
}

/// Returns the rows of a `meta.k8s.io` table, headers first.
pub fn rows(table: &Value, o: &Options) -> Vec<Vec<String>> {
    let all = table["columnDefinitions"].as_array().map_or(&[][..], Vec::as_slice);
    let shown: Vec<usize> =
        (0..all.len()).filter(|&i| o.wide || all[i]["priority"].as_i64().unwrap_or(0) == 0).collect();
    let name_column = all.iter().position(|c| c["format"] == "name").unwrap_or(0);
    let mut out = Vec::new();
    if !o.no_headers && !all.is_empty() {
        let mut header: Vec<String> = Vec::new();
        if o.with_namespace {
            header.push("NAMESPACE".into());
        }
        header.extend(shown.iter().map(|&i| all[i]["name"].as_str().unwrap_or_default().to_uppercase()));
        for l in &o.label_columns {
            header.push(l.rsplit('/').next().unwrap_or(l).to_uppercase());
        }
        if o.show_labels {
            header.push("LABELS".into());
        }
        out.push(header);
    }
    for row in table["rows"].as_array().map_or(&[][..], Vec::as_slice) {
        let metadata = &row["object"]["metadata"];
        let mut line: Vec<String> = Vec::new();
        if o.with_namespace {
            line.push(metadata["namespace"].as_str().unwrap_or_default().to_owned());
        }
        for &i in &shown {
            let text = cell(&row["cells"][i]);
            line.push(match &o.with_kind {
                Some(kind) if i == name_column => format!("{kind}/{text}"),
                _ => text,
            });
        }
        let labels = &metadata["labels"];
        for l in &o.label_columns {
            line.push(labels[l].as_str().unwrap_or_default().to_owned());
        }
        if o.show_labels {
            line.push(labels_text(labels));
        }
        out.push(line);
    }
    out
}

/// `a=b,c=d`, or `<none>`.
pub fn labels_text(labels: &Value) -> String {
    let all: Vec<String> = labels
        .as_object()
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default()))
        .collect();
    if all.is_empty() { "<none>".into() } else { all.join(",") }
}

fn cell(v: &Value) -> String {
    let text = match v {
        Value::String(s) => s.clone(),
        Value::Null => String::new(),
        other => codec::jsonpath::text(std::slice::from_ref(other)),
    };
    // Only the first line of a cell is shown, without control characters.
    match text.find(['\n', '\r', '\x0c']) {
        Some(i) => escape(&format!("{}...", &text[..i])),
        None => escape(&text),
    }
}

/// Makes terminal control characters visible.
pub fn escape(text: &str) -> String {
    text.replace('\x1b', "^[").replace('\r', "\\r")
}

/// Builds a table with name and age for objects that the server could not print.
pub fn generic(objects: &[Object], now: jiff::Timestamp) -> Value {
    let rows: Vec<Value> = objects
        .iter()
        .map(|o| serde_json::json!({"cells": [o.name(), age(o.creation_timestamp(), now)], "object": o.0}))
        .collect();
    serde_json::json!({
        "columnDefinitions": [{"name": "Name", "format": "name"}, {"name": "Age"}],
        "rows": rows,
    })
}

/// Formats the time since `then`; `<unknown>` if it is empty.
pub fn age(then: &str, now: jiff::Timestamp) -> String {
    match meta::time::parse(then) {
        Some(t) => kinds::columns::duration(now.as_second() - t.as_second()),
        None => "<unknown>".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn aligns_tables_as_kubectl_does() {
        let table = json!({
            "columnDefinitions": [
                {"name": "Name", "format": "name", "priority": 0},
                {"name": "Ready", "priority": 0},
                {"name": "IP", "priority": 1},
            ],
            "rows": [
                {"cells": ["a", "1/1", "10.0.0.1"], "object": {"metadata": {"namespace": "n", "labels": {"x/app": "A", "b": "c"}}}},
                {"cells": ["longer-name", "two\nlines", null], "object": {"metadata": {"namespace": "nn"}}},
            ],
        });
        let show = |o: Options| Aligner::default().lines(&rows(&table, &o));
        assert_eq!(show(Options::default()), "NAME          READY\na             1/1\nlonger-name   two...\n");
        assert_eq!(
            show(Options { wide: true, no_headers: true, with_kind: Some("pod".into()), ..Options::default() }),
            "pod/a             1/1      10.0.0.1\npod/longer-name   two...   \n"
        );
        assert_eq!(
            show(Options {
                with_namespace: true,
                show_labels: true,
                label_columns: vec!["x/app".into()],
                ..Options::default()
            }),
            concat!(
                "NAMESPACE   NAME          READY    APP   LABELS\n",
                "n           a             1/1      A     b=c,x/app=A\n",
                "nn          longer-name   two...         <none>\n",
            )
        );
    }

    #[test]
    fn remembers_widths() {
        let mut a = Aligner::default();
        a.lines(&[vec!["wide-enough".into(), "x".into()]]);
        assert_eq!(a.lines(&[vec!["b".into(), "y".into()]]), "b             y\n");
    }
}

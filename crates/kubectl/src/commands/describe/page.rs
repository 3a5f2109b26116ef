//! The lines of a description, with tabs between columns.
//!
//! **Invariant**: content of objects reaches the terminal as text. Descriptions are written only here, and control
//! characters are made visible here (upstream's `PrefixWriter`).

use crate::printer::table::escape;
use jiff::tz::TimeZone;
use meta::{Object, Value};

/// Longer annotations are wrapped.
const MAX_LENGTH: usize = 140;

/// The text of a description.
pub struct Page {
    pub text: String,
    /// The time zone of printed times.
    pub zone: TimeZone,
    /// The page size of lists of related objects: `--chunk-size`.
    pub chunk_size: i64,
}

impl Page {
    pub fn new(zone: TimeZone, chunk_size: i64) -> Self {
        Self { text: String::new(), zone, chunk_size }
    }

    /// Writes a line at an indentation level.
    pub fn line(&mut self, level: usize, text: impl AsRef<str>) {
        for _ in 0..level {
            self.text.push_str("  ");
        }
        self.text.push_str(&escape(text.as_ref()));
        self.text.push('\n');
    }

    /// Writes `NAME: VALUE`.
    pub fn field(&mut self, name: &str, value: impl AsRef<str>) {
        self.at(0, name, value);
    }

    /// Writes `NAME: VALUE` at an indentation level.
    pub fn at(&mut self, level: usize, name: &str, value: impl AsRef<str>) {
        self.line(level, format!("{name}:\t{}", value.as_ref()));
    }

    /// Writes `a=b` per line, or `<none>`.
    pub fn labels(&mut self, level: usize, title: &str, labels: Option<&Value>) {
        let all: Vec<String> = pairs(labels).map(|(k, v)| format!("{k}={v}")).collect();
        self.many(level, title, &all);
    }

    /// Writes one annotation per line, without the last applied configuration.
    pub fn annotations(&mut self, level: usize, title: &str, annotations: Option<&Value>) {
        let mut all = Vec::new();
        for (k, v) in pairs(annotations) {
            if k == crate::resource::last_applied::LAST_APPLIED {
                continue;
            }
            let v = v.strip_suffix('\n').unwrap_or(&v);
            if k.len() + v.len() + 2 > MAX_LENGTH || v.contains('\n') {
                all.push(format!("{k}:"));
                all.extend(v.split('\n').map(|l| format!("  {}", shorten(l, MAX_LENGTH - 2))));
            } else {
                all.push(format!("{k}: {v}"));
            }
        }
        self.many(level, title, &all);
    }

    /// Writes the first value beside the title, the others below it.
    pub fn many(&mut self, level: usize, title: &str, values: &[String]) {
        match values.split_first() {
            None => self.at(level, title, "<none>"),
            Some((first, rest)) => {
                self.at(level, title, first);
                for v in rest {
                    self.line(level, format!("\t{v}"));
                }
            }
        }
    }

    /// Formats a time as Go's RFC1123Z.
    pub fn time(&self, v: &str) -> String {
        match meta::time::parse(v) {
            Some(t) => t.to_zoned(self.zone.clone()).strftime("%a, %d %b %Y %H:%M:%S %z").to_string(),
            None => "Mon, 01 Jan 0001 00:00:00 +0000".into(),
        }
    }

    /// Writes the name, and the namespace unless the object is cluster-scoped.
    pub fn name_and_namespace(&mut self, o: &Object) {
        self.field("Name", o.name());
        if !o.namespace().is_empty() {
            self.field("Namespace", o.namespace());
        }
    }

    /// Writes the conditions of an object whose type has `metav1.Condition`s or the like.
    pub fn conditions(&mut self, all: &[Value]) {
        if all.is_empty() {
            return;
        }
        self.line(0, "Conditions:");
        self.line(1, "Type\tStatus\tLastTransitionTime\tReason\tMessage");
        self.line(1, "----\t------\t------------------\t------\t-------");
        for c in all {
            let since = self.time(c["lastTransitionTime"].as_str().unwrap_or_default());
            let [kind, status, reason, message] = ["type", "status", "reason", "message"].map(|k| show(&c[k]));
            self.line(1, format!("{kind}\t{status}\t{since}\t{reason}\t{message}"));
        }
    }

    /// Writes labels and annotations.
    pub fn metadata(&mut self, o: &Object) {
        self.labels(0, "Labels", o.at(&["metadata", "labels"]));
        self.annotations(0, "Annotations", o.at(&["metadata", "annotations"]));
    }
}

fn shorten(s: &str, n: usize) -> String {
    match s.char_indices().nth(n) {
        Some((i, _)) => format!("{}...", &s[..i]),
        None => s.to_owned(),
    }
}

/// Returns the members of a map, with values as text.
pub fn pairs(v: Option<&Value>) -> impl Iterator<Item = (String, String)> + '_ {
    v.and_then(Value::as_object).into_iter().flatten().map(|(k, v)| (k.clone(), show(v)))
}

/// Formats a scalar as text; null is empty.
pub fn show(v: &Value) -> String {
    match v {
        Value::String(s) => s.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Returns the items of a list; none if it is absent.
pub fn list(v: Option<&Value>) -> &[Value] {
    v.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Formats a label selector.
pub fn selector(v: Option<&Value>) -> String {
    match v {
        None | Some(Value::Null) => "<none>".into(),
        Some(v) if v.get("matchLabels").is_none() && v.get("matchExpressions").is_none() => {
            let all: Vec<String> = pairs(Some(v)).map(|(k, v)| format!("{k}={v}")).collect();
            if all.is_empty() { "<none>".into() } else { all.join(",") }
        }
        Some(v) => match meta::LabelSelector::from_value(Some(v)) {
            Ok(mut s) => {
                s.requirements.sort_by(|a, b| a.key.cmp(&b.key));
                if s.is_everything() { "<none>".into() } else { s.to_string() }
            }
            Err(_) => String::new(),
        },
    }
}

/// Formats a boolean as `True` or `False`.
pub fn title_bool(b: bool) -> &'static str {
    if b { "True" } else { "False" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_times_in_the_time_zone() {
        let time = |zone: TimeZone, t: &str| Page::new(zone, 0).time(t);
        let tokyo = TimeZone::get("Asia/Tokyo").unwrap();
        assert_eq!(time(tokyo, "2026-11-21T20:00:00Z"), "Sun, 22 Nov 2026 05:00:00 +0900");
        assert_eq!(time(TimeZone::UTC, "2026-11-21T20:00:00Z"), "Sat, 21 Nov 2026 20:00:00 +0000");
        assert_eq!(time(TimeZone::UTC, ""), "Mon, 01 Jan 0001 00:00:00 +0000");
    }
}

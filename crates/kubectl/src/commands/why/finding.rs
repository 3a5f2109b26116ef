//! What explanations consist of, as data, and how they are printed.

use meta::Value;
use serde::Serialize;
use serde_json::json;
use std::fmt::Write as _;

/// The name of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectName {
    pub api_version: String,
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
}

impl ObjectName {
    pub fn new(api_version: &str, kind: &str, namespace: &str, name: &str) -> Self {
        let text = |t: &str| t.to_owned();
        Self { api_version: text(api_version), kind: text(kind), namespace: text(namespace), name: text(name) }
    }
}

/// One fact that explains the state of an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// A word in the style of condition reasons, which does not change: `InsufficientResources`.
    pub reason: &'static str,
    /// A sentence with names and numbers.
    pub message: String,
    /// The object that the fact is about, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectName>,
    /// What would help.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suggestions: Vec<String>,
    /// When the event happened that shows the fact. None: it is the current state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_time: Option<String>,
    /// Why it is so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Self>,
}

impl Finding {
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), ..Self::default() }
    }

    #[must_use]
    pub fn about(mut self, object: ObjectName) -> Self {
        self.object = Some(object);
        self
    }

    #[must_use]
    pub fn suggest(mut self, suggestion: impl Into<String>) -> Self {
        self.suggestions.push(suggestion.into());
        self
    }

    #[must_use]
    pub fn because(mut self, children: impl IntoIterator<Item = Self>) -> Self {
        self.children.extend(children);
        self
    }
}

/// The state of an object, in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    #[default]
    Healthy,
    Completed,
    Pending,
    Waiting,
    Restarting,
    NotReady,
    Failed,
    Progressing,
    Paused,
    Suspended,
    Terminating,
}

impl State {
    /// Whether nothing has to be explained.
    pub fn is_healthy(self) -> bool {
        matches!(self, Self::Healthy | Self::Completed)
    }
}

/// Why an object is in its state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    pub state: State,
    /// The rest of the sentence that begins with the object: `is pending: no node fits`.
    pub summary: String,
    pub findings: Vec<Finding>,
    /// The decision of the scheduler that the findings are made from.
    pub decision: Option<Value>,
}

impl Explanation {
    pub fn new(state: State, summary: impl Into<String>) -> Self {
        Self { state, summary: summary.into(), ..Self::default() }
    }

    #[must_use]
    pub fn because(mut self, findings: impl IntoIterator<Item = Finding>) -> Self {
        self.findings.extend(findings);
        self
    }

    /// The document for `-o json` and `-o yaml`.
    pub fn document(&self, object: &ObjectName, unreadable: &[String]) -> Value {
        let mut document = json!({
            "apiVersion": "kemudi/v1", "kind": "Explanation", "object": object, "state": self.state,
            "healthy": self.state.is_healthy(), "summary": self.summary, "findings": self.findings,
            "unreadable": unreadable,
        });
        if let Some(decision) = &self.decision {
            document["decision"] = decision.clone();
        }
        document
    }

    /// The text, with a line for each finding, indented below the one that it explains.
    pub fn text(&self, name: &str, now: jiff::Timestamp) -> String {
        let mut out = format!("{name} {}\n", one_line(&self.summary));
        self.findings.iter().for_each(|f| write_finding(&mut out, f, 1, now));
        out
    }
}

fn write_finding(out: &mut String, finding: &Finding, depth: usize, now: jiff::Timestamp) {
    let indent = "  ".repeat(depth);
    let age = finding.event_time.as_ref().map(|time| crate::printer::table::age(time, now));
    let age = age.map(|age| format!(" (event {age} ago)")).unwrap_or_default();
    let _ = writeln!(out, "{indent}{}{age}", one_line(&finding.message));
    finding.children.iter().for_each(|f| write_finding(out, f, depth + 1, now));
    for suggestion in &finding.suggestions {
        let _ = writeln!(out, "{indent}  => {}", one_line(suggestion));
    }
}

/// A text of an object on one line, without control characters that would change the terminal.
fn one_line(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    text.trim().chars().map(clean).collect()
}

/// The end of a noun.
pub fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// At most five names, and how many more there are.
pub fn some(names: &[String]) -> String {
    const MOST: usize = 5;
    let first = names.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MOST) {
        0 => first,
        n => format!("{first} and {n} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_findings_below_what_they_explain() {
        let event =
            Finding { event_time: Some("2026-11-21T11:58:00Z".into()), ..Finding::new("B", "failed\u{1b}[2J\nhere") };
        let finding = Finding::new("A", "the cause").because([event]).suggest("do this");
        let e = Explanation::new(State::Pending, "is pending").because([finding]);
        let now = "2026-11-21T12:00:00Z".parse().unwrap();
        let expect = "pod/x is pending\n  the cause\n    failed [2J here (event 2m ago)\n    => do this\n";
        assert_eq!(e.text("pod/x", now), expect);
        let document = e.document(&ObjectName::new("v1", "Pod", "d", "x"), &["secrets in d".into()]);
        assert_eq!(document["findings"][0]["children"][0]["eventTime"], "2026-11-21T11:58:00Z");
        assert_eq!((&document["state"], &document["healthy"]), (&json!("pending"), &json!(false)));
        assert_eq!(document["unreadable"], json!(["secrets in d"]));
    }

    #[test]
    fn lists_some_names() {
        let names: Vec<String> = (0..7).map(|i| format!("n{i}")).collect();
        assert_eq!(some(&names), "n0, n1, n2, n3, n4 and 2 more");
        assert_eq!(some(&names[..1]), "n0");
    }
}

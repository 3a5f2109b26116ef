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
        let mut out = format!("{} {}\n", one_line(name), one_line(&self.summary));
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

/// How many characters of a message are printed.
const MOST_CHARACTERS: usize = 1000;

/// A text of an object on one line of bounded length. Characters that would change the terminal or the order of the text are escaped.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for c in shortened(text.trim(), MOST_CHARACTERS).chars() {
        match c {
            '\n' | '\r' | '\t' => line.push(' '),
            _ if c.is_control() || is_invisible(c) => line.extend(c.escape_unicode()),
            _ => line.push(c),
        }
    }
    line
}

/// Whether a character changes the order of a text, or breaks its line, and is not seen.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// The first characters of a text, and how many more there are.
pub fn shortened(text: &str, most: usize) -> String {
    match text.chars().count().saturating_sub(most) {
        0 => text.to_owned(),
        more => format!("{}… ({more} more character{})", text.chars().take(most).collect::<String>(), plural(more)),
    }
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
        let expect = "pod/x is pending\n  the cause\n    failed\\u{1b}[2J here (event 2m ago)\n    => do this\n";
        assert_eq!(e.text("pod/x", now), expect);
        let document = e.document(&ObjectName::new("v1", "Pod", "d", "x"), &["secrets in d".into()]);
        assert_eq!(document["findings"][0]["children"][0]["eventTime"], "2026-11-21T11:58:00Z");
        assert_eq!((&document["state"], &document["healthy"]), (&json!("pending"), &json!(false)));
        assert_eq!(document["unreadable"], json!(["secrets in d"]));
    }

    #[test]
    fn escapes_characters_that_change_the_terminal() {
        assert_eq!(one_line("a\u{9b}b\u{202e}c\u{2066}d\u{7f}e"), "a\\u{9b}b\\u{202e}c\\u{2066}d\\u{7f}e");
        assert_eq!(one_line(&"x".repeat(MOST_CHARACTERS)).len(), MOST_CHARACTERS);
        let long = one_line(&"é".repeat(5000));
        assert!(long.ends_with("é… (4000 more characters)") && long.chars().count() < 1100, "{long}");
        let name = Explanation::new(State::Healthy, "is healthy").text("pod/\u{1b}x", jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(name, "pod/\\u{1b}x is healthy\n");
    }

    #[test]
    fn lists_some_names() {
        let names: Vec<String> = (0..7).map(|i| format!("n{i}")).collect();
        assert_eq!(some(&names), "n0, n1, n2, n3, n4 and 2 more");
        assert_eq!(some(&names[..1]), "n0");
    }
}

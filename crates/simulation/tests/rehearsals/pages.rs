//! Text, JSON and HTML of results.

use crate::support::*;
use serde_json::json;

/// A zone, an expectation and an image of somebody who tries to write a page of their own.
const HOSTILE: &str = "<script>alert(1)</script>\"'&";

/// Clauses: G05.report
#[test]
fn hostile_names_are_text_in_the_page_and_harmless_in_the_terminal() {
    let image = format!("{HOSTILE}\u{1b}[2J\u{202e}\u{1b}]0;title\u{7}");
    let scenario = json!({
        "nodes": [{"name": "n", "zones": ["a"], "labels": {"note": "x"}}],
        "assume": {"pods": [{"image": image, "neverReady": true}]},
        "expect": [{"available": {"object": "deployment/web", "atLeast": 2}}],
        "steps": [
            {"breakImage": image},
            {"rollout": {"object": "deployment/web", "image": image, "timeout": "1m"}},
        ],
    });
    let r = run(
        &web(2, json!({"rollingUpdate": {"maxUnavailable": 1}}), json!({"maxUnavailable": 0})),
        &scenario.to_string(),
    );
    let page = r.to_html();
    assert!(!page.contains("<script"), "{page}");
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;"));
    for outside in
        ["http://", "https://", "src=", "url(", "@import", "<link", "<img", "<iframe", "onload", "javascript:"]
    {
        assert!(!page.to_lowercase().contains(outside), "{outside}");
    }
    assert!(page.contains("Content-Security-Policy\" content=\"default-src 'none'"));
    for text in [page, r.to_text(), r.summary()] {
        assert!(!text.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')), "{text:?}");
    }
    // Every element is closed.
    let page = r.to_html();
    for element in ["table", "tr", "td", "th", "ul", "li", "div", "h2", "p", "i", "body", "html"] {
        let open = page.matches(&format!("<{element}>")).count() + page.matches(&format!("<{element} ")).count();
        assert_eq!(open, page.matches(&format!("</{element}>")).count(), "{element}");
    }
}

/// Clauses: G05.report
#[test]
fn json_has_the_documented_fields() {
    let r = run(
        &web(2, json!(null), json!({"maxUnavailable": 1})),
        "{expect: [{available: {atLeast: 2}}], steps: [{drain: {node: node-1}}]}",
    );
    let value = r.to_json();
    let fields = |path: &str| {
        let found = value.pointer(path).unwrap_or_else(|| panic!("{path}: {value:#}"));
        let mut names: Vec<&str> = found.as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        names.join(" ")
    };
    assert_eq!(
        fields(""),
        "basis budgets drains elapsed omitted problem seed services timeline verdict violations workloads"
    );
    assert_eq!(fields("/basis"), "assumed copied missing notes real");
    assert_eq!(fields("/workloads/0"), "desired longestGap minimumAvailable secondsBelow secondsWithout workload");
    assert_eq!(fields("/services/0"), "endpoints longestGap minimumEndpoints secondsWithout service");
    assert_eq!(fields("/budgets/0"), "budget minimumHealthy required secondsBroken");
    assert_eq!(fields("/drains/0"), "began blocked ended node outcome");
    assert_eq!(fields("/violations/0"), "cause expectation from object problem until");
    assert_eq!(fields("/timeline/0"), "at cause kind object step text");
    assert_eq!(value["verdict"], "broken");
    assert_eq!(value["timeline"][0]["kind"], "step");
}

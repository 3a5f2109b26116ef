//! The result of a rehearsal as one HTML page, without scripts and without anything from a network.

use crate::report::{Rehearsal, Verdict, duration, moment};
use crate::text::{clean, describe};
use crate::timeline::{Entry, Kind};
use std::fmt::Write;
use std::time::Duration;

/// Bars of the chart that are drawn; the timeline below has all.
const BARS: usize = 500;

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --bad: #c62828; --good: #2e7d32; --bar: #e57373; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap; } .scroll { overflow-x: auto; }
.verdict { padding: .6rem 1rem; border-left: .4rem solid var(--good); background: #8881; } .verdict.bad { border-color: var(--bad); }
tr.bad td:nth-child(2) { color: var(--bad); font-weight: 600; } tr.step td { background: #8882; font-weight: 600; }
.chart td { padding: .15rem .6rem; } .track { position: relative; height: .9rem; min-width: 20rem; background: #8882; }
.track i { position: absolute; top: 0; bottom: 0; min-width: 2px; background: var(--bar); }
ul { margin: .3rem 0; padding-left: 1.2rem; } li { overflow-wrap: anywhere; } td { overflow-wrap: anywhere; }
";

impl Rehearsal {
    /// The result as a page.
    pub fn to_html(&self) -> String {
        let mut out = String::new();
        let policy = "default-src 'none'; style-src 'unsafe-inline'";
        let _ = write!(
            out,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>Rehearsal</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>Rehearsal</h1>\n"
        );
        let class = if self.verdict == Verdict::Held { "verdict" } else { "verdict bad" };
        let end = format!("{} Virtual time: {}. Seed: {}.", self.headline(), duration(self.elapsed), self.seed);
        let _ = writeln!(out, "<p class=\"{class}\">{}</p>", escape(&end));
        if let Some(problem) = &self.problem {
            let _ = writeln!(out, "<p class=\"verdict bad\">{}</p>", escape(problem));
        }
        self.violations_table(&mut out);
        self.chart(&mut out);
        for (title, head, rows) in self.tables() {
            table(&mut out, title, &head, rows.iter().map(|row| ("", row.clone())));
        }
        let rows =
            self.timeline.iter().map(|e| (class_of(e), vec![moment(e.at), e.kind.label().to_owned(), describe(e)]));
        table(&mut out, "Timeline", &["Time", "Event", "What and why"], rows);
        for (head, lines) in self.sections() {
            let _ = writeln!(out, "<h2>{}</h2>\n<ul>", escape(head));
            for line in lines {
                let _ = writeln!(out, "<li>{}</li>", escape(&line));
            }
            out += "</ul>\n";
        }
        out += "</body>\n</html>\n";
        out
    }

    fn violations_table(&self, out: &mut String) {
        if self.violations.is_empty() {
            return;
        }
        let rows = self.violations.iter().map(|v| {
            let until = v.until.map_or_else(|| "end".to_owned(), moment);
            let what = if v.object.is_empty() { v.problem.clone() } else { format!("{}: {}", v.object, v.problem) };
            ("", vec![moment(v.from), until, what, v.cause.clone().unwrap_or_default(), v.expectation.clone()])
        });
        table(out, "Violations", &["From", "Until", "What", "Cause", "Expected"], rows);
    }

    /// When each object was unavailable, as bars over time.
    fn chart(&self, out: &mut String) {
        let mut rows: Vec<(String, Vec<&Entry>)> = Vec::new();
        let is_gap = |e: &&Entry| {
            matches!(e.kind, Kind::Unavailable | Kind::NoEndpoints | Kind::BudgetBroken | Kind::DrainBlocked)
        };
        for entry in self.timeline.iter().filter(is_gap).take(BARS) {
            let name = format!("{}: {}", entry.object, entry.kind.label());
            match rows.iter_mut().find(|(n, _)| *n == name) {
                Some((_, bars)) => bars.push(entry),
                None => rows.push((name, vec![entry])),
            }
        }
        if rows.is_empty() || self.elapsed.is_zero() {
            return;
        }
        let _ = writeln!(out, "<h2>Gaps</h2>\n<div class=\"scroll\"><table class=\"chart\">");
        let share = |time: Duration| 100.0 * time.as_secs_f64() / self.elapsed.as_secs_f64();
        for (name, bars) in rows {
            let _ = write!(out, "<tr><td>{}</td><td><div class=\"track\">", escape(&name));
            for bar in bars {
                let until = bar.until.unwrap_or(self.elapsed);
                let (left, width) = (share(bar.at), share(until.saturating_sub(bar.at)));
                let title = format!("{} to {}: {}", moment(bar.at), moment(until), bar.text);
                let _ = write!(out, "<i style=\"left:{left:.2}%;width:{width:.2}%\" title=\"{}\"></i>", escape(&title));
            }
            out.push_str("</div></td></tr>\n");
        }
        let _ = writeln!(out, "</table></div>\n<p>From 0:00:00 to {}.</p>", moment(self.elapsed));
    }
}

fn class_of(e: &Entry) -> &'static str {
    match e.kind {
        Kind::Step => "step",
        kind if kind.is_bad() => "bad",
        _ => "",
    }
}

fn table<'a>(out: &mut String, title: &str, head: &[&str], rows: impl Iterator<Item = (&'a str, Vec<String>)>) {
    let _ = write!(out, "<h2>{}</h2>\n<div class=\"scroll\"><table>\n<tr>", escape(title));
    for cell in head {
        let _ = write!(out, "<th>{}</th>", escape(cell));
    }
    out.push_str("</tr>\n");
    for (class, row) in rows {
        let _ = write!(out, "<tr class=\"{class}\">");
        for (i, cell) in row.iter().enumerate() {
            let class = if i == 0 { " class=\"n\"" } else { "" };
            let _ = write!(out, "<td{class}>{}</td>", escape(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

/// A text that is no markup, in elements and in quoted attributes.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in clean(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

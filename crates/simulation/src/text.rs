//! The result of a rehearsal as text for terminals.
//!
//! Control characters in names and messages are escaped, so that they cannot steer a terminal.

use crate::report::{Rehearsal, duration, moment};
use crate::timeline::{Entry, Kind};
use std::fmt::Write;
use std::time::Duration;

impl Rehearsal {
    /// The result as text: what it is based on, the timeline, the tables, and the violations.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for (head, lines) in self.sections() {
            paragraph(&mut out, head, &lines);
        }
        out += "TIMELINE (time since the first step)\n";
        for entry in &self.timeline {
            let line = entry_line(entry);
            let _ = writeln!(out, "  {}", clean(&line));
        }
        if self.timeline.is_empty() {
            out += "  nothing happened\n";
        }
        out += "\n";
        for (_, head, rows) in self.tables() {
            table(&mut out, &head, &rows);
        }
        out += &self.summary();
        out
    }

    /// The violations and the verdict.
    pub fn summary(&self) -> String {
        let mut out = String::new();
        if !self.violations.is_empty() {
            out += "VIOLATIONS\n";
        }
        for v in &self.violations {
            let object = if v.object.is_empty() { String::new() } else { format!("{}: ", v.object) };
            let until = match v.until {
                None => ", to the end".to_owned(),
                Some(until) if until > v.from => format!(", for {}", duration(until - v.from)),
                Some(_) => String::new(),
            };
            let cause = v.cause.as_ref().map(|c| format!("; {c}")).unwrap_or_default();
            let line = format!("{}  {object}{}{until}{cause} (expected: {})", moment(v.from), v.problem, v.expectation);
            let _ = writeln!(out, "  {}", clean(&line));
        }
        if !self.violations.is_empty() {
            out += "\n";
        }
        if let Some(problem) = &self.problem {
            let _ = writeln!(out, "{}", clean(problem));
        }
        if self.omitted > 0 {
            let _ = writeln!(out, "{} more entries are not shown.", self.omitted);
        }
        let _ = writeln!(out, "{} Virtual time: {}. Seed: {}.", self.headline(), duration(self.elapsed), self.seed);
        out
    }

    /// What the result is based on, as paragraphs.
    pub(crate) fn sections(&self) -> Vec<(&'static str, Vec<String>)> {
        let b = &self.basis;
        let all = [
            ("COPIED", &b.copied),
            ("REAL", &b.real),
            ("ASSUMED (set it with `assume` in the scenario)", &b.assumed),
            ("NOT SIMULATED", &b.missing),
            ("NOTES", &b.notes),
        ];
        all.into_iter().filter(|(_, lines)| !lines.is_empty()).map(|(head, lines)| (head, lines.clone())).collect()
    }

    /// The tables: a title, the head, and the rows.
    pub(crate) fn tables(&self) -> Vec<(&'static str, Vec<&'static str>, Vec<Vec<String>>)> {
        let workloads = self.workloads.iter().map(|w| {
            let times = [w.below, w.longest, w.none].map(duration);
            [vec![w.workload.to_string(), w.desired.to_string(), w.minimum.to_string()], times.to_vec()].concat()
        });
        let services = self.services.iter().map(|s| {
            let counts = vec![s.service.to_string(), s.endpoints.to_string(), s.minimum.to_string()];
            [counts, [s.none, s.longest].map(duration).to_vec()].concat()
        });
        let budgets = self
            .budgets
            .iter()
            .map(|b| vec![b.budget.to_string(), b.required.to_string(), b.minimum.to_string(), duration(b.broken)]);
        let drains = self.drains.iter().map(|d| {
            let took = duration(d.ended.unwrap_or(self.elapsed).saturating_sub(d.began));
            let blocked = d.blocked_by.iter().map(|(by, (a, b))| format!("{by} ({} to {})", moment(*a), moment(*b)));
            vec![d.node.clone(), moment(d.began), took, d.outcome.clone(), blocked.collect::<Vec<_>>().join(", ")]
        });
        let all = [
            (
                "Workloads",
                vec!["WORKLOAD", "DESIRED", "MIN AVAILABLE", "TIME BELOW", "LONGEST GAP", "NONE AVAILABLE"],
                workloads.collect::<Vec<_>>(),
            ),
            (
                "Services",
                vec!["SERVICE", "ENDPOINTS", "MIN ENDPOINTS", "TIME WITHOUT", "LONGEST GAP"],
                services.collect(),
            ),
            ("Budgets", vec!["BUDGET", "REQUIRED", "MIN HEALTHY", "TIME BROKEN"], budgets.collect()),
            ("Drains", vec!["DRAIN", "BEGAN", "TOOK", "OUTCOME", "BLOCKED BY"], drains.collect()),
        ];
        all.into_iter().filter(|(_, _, rows)| !rows.is_empty()).collect()
    }
}

/// An entry of the timeline in one line.
fn entry_line(e: &Entry) -> String {
    format!("{}  {:<14} {}", moment(e.at), e.kind.label(), describe(e))
}

/// What happened, where, why, and until when.
pub(crate) fn describe(e: &Entry) -> String {
    let mut line = String::new();
    if e.kind == Kind::Step {
        return format!("steps[{}]: {}", e.step.unwrap_or(0), e.text);
    }
    if e.kind.counts_pods() {
        let pods = if e.count == 1 { "pod".to_owned() } else { format!("{} pods", e.count) };
        if e.object.kind == "Pod" {
            let _ = write!(line, "{}", e.object);
        } else {
            let more = if e.count > e.names.len() { ", …" } else { "" };
            let _ = write!(line, "{pods} of {} ({}{more})", e.object, e.names.join(", "));
        }
        if !e.node.is_empty() {
            let _ = write!(line, " on {}", e.node);
        }
    } else if !e.object.name.is_empty() {
        line += &e.object.to_string();
    }
    if !e.text.is_empty() {
        let _ = write!(line, "{}{}", if line.is_empty() { "" } else { ": " }, e.text);
    }
    if e.kind == Kind::DrainBlocked {
        let _ =
            write!(line, ": {} of {} cannot be evicted", if e.count == 1 { "pod" } else { "pods" }, e.names.join(", "));
    }
    if let Some(cause) = &e.cause {
        let _ = write!(line, " — {cause}");
    }
    match e.until.map(|until| (until, until.saturating_sub(e.at))) {
        Some((_, took)) if took < Duration::from_millis(100) => {}
        Some((_, took)) if e.kind.counts_pods() => _ = write!(line, " (within {})", duration(took)),
        Some((until, _)) => _ = write!(line, " (until {})", moment(until)),
        None if matches!(e.kind, Kind::Unavailable | Kind::NoEndpoints | Kind::BudgetBroken) => line += " (to the end)",
        None => {}
    }
    line
}

/// A text without characters that steer a terminal.
pub fn clean(text: &str) -> String {
    let is_hidden = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

fn paragraph(out: &mut String, head: &str, lines: &[String]) {
    let _ = writeln!(out, "{head}");
    for line in lines {
        let _ = writeln!(out, "  {}", clean(line));
    }
    *out += "\n";
}

fn table(out: &mut String, head: &[&str], rows: &[Vec<String>]) {
    let cleaned: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| clean(cell)).collect()).collect();
    let width = |i: usize| {
        cleaned.iter().filter_map(|row| row.get(i)).map(|c| c.chars().count()).chain([head[i].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("   ").trim_end().to_owned()
    };
    let _ = writeln!(out, "{}", line(head.to_vec()));
    for row in &cleaned {
        let _ = writeln!(out, "{}", line(row.iter().map(String::as_str).collect()));
    }
    *out += "\n";
}

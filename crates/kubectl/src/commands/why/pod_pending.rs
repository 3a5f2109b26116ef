//! Why a pod has no node: from the scheduler's explanation, and from the objects that it waits for. Pure.

use super::fields::{condition, list, name, namespace, text};
use super::finding::{Finding, ObjectName, plural, some};
use meta::Value;
use scheduler::PodDecision;
use scheduler::explain::{Explanation, NodeExplanation, PodName, Shortfall, amount_text};
use std::collections::BTreeMap;

/// How the nodes are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// Nodes that miss the same, in one line.
    Grouped,
    /// One line for each node.
    Each,
}

/// The scheduling gates of a pod.
pub fn gates(pod: &Value) -> Option<Finding> {
    let names: Vec<String> = list(pod, "/spec/schedulingGates").iter().map(|g| text(g, "/name").to_owned()).collect();
    let message = || {
        let several = plural(names.len());
        format!(
            "the scheduler does not take the pod before its scheduling gate{several} {} gone: {}",
            if names.len() == 1 { "is" } else { "are" },
            some(&names)
        )
    };
    (!names.is_empty()).then(|| Finding::new("SchedulingGated", message()))
}

/// The preemption that makes room for a pod. `on_node`: the pods of its nominated node.
pub fn preemption(pod: &Value, on_node: &[Value], unreadable: bool) -> Option<Finding> {
    let node = Some(text(pod, "/status/nominatedNodeName")).filter(|n| !n.is_empty())?;
    let leaving = on_node.iter().filter(|p| super::fields::is_deleting(p));
    let names: Vec<String> = leaving.map(|p| format!("{}/{}", namespace(p), name(p))).collect();
    let message = match names.len() {
        _ if unreadable => format!("the scheduler has chosen node {node} and waits for pods that leave it"),
        0 => format!("the scheduler has chosen node {node} for it, where pods of lower priority were removed"),
        n => format!(
            "the scheduler has chosen node {node} and waits for {n} pod{} that end{} there: {}",
            plural(n),
            if n == 1 { "s" } else { "" },
            some(&names)
        ),
    };
    Some(Finding::new("Preempting", message).about(ObjectName::new("v1", "Node", "", node)))
}

/// The summary and the findings of the scheduler's explanation.
pub fn explained(e: &Explanation, nodes: Nodes) -> (String, Vec<Finding>) {
    if e.node_count == 0 {
        return ("the cluster has no nodes".into(), vec![Finding::new("NoNodes", "the cluster has no nodes")]);
    }
    if let Some(refused) = &e.refused {
        let finding = Finding::new("Refused", format!("{}: {}", refused.rule, refused.message));
        return ("no node can be chosen".into(), vec![finding.because(suggested(e))]);
    }
    if e.fitting_count > 0 {
        let message = format!(
            "the pod fits {} of {} nodes now: {}",
            e.fitting_count,
            e.node_count,
            listed(&e.fitting, e.fitting_count)
        );
        return ("it has no node yet".into(), vec![Finding::new("Fits", message)]);
    }
    let mut findings = match nodes {
        Nodes::Each => e.nodes.iter().map(of_node).collect(),
        Nodes::Grouped => grouped(&e.nodes),
    };
    if e.unexplained_count > 0 {
        let (n, plural) = (e.unexplained_count, plural(e.unexplained_count));
        findings.push(Finding::new("TookTooLong", format!("{n} more node{plural} were left out: it took too long")));
    }
    findings.extend(suggested(e));
    (format!("none of {} node{} fits", e.node_count, plural(e.node_count)), findings)
}

/// The changes that make the pod fit, or what the nearest nodes miss.
fn suggested(e: &Explanation) -> Option<Finding> {
    if !e.suggestions.is_empty() {
        let mut would_fit = Finding::new("WouldFit", "one change is enough:");
        would_fit.suggestions = e.suggestions.iter().map(|s| s.message.clone()).collect();
        return Some(would_fit);
    }
    if e.nearest.is_empty() {
        return None;
    }
    let nearest = e.nearest.iter().map(|n| {
        let missing: Vec<&str> = n.shortfalls.iter().map(|s| s.message.as_str()).collect();
        let count = missing.len();
        Finding::new("NearestNode", format!("{} misses {count} thing{}: {}", n.node, plural(count), missing.join("; ")))
    });
    let (reason, message) = match e.needs_several_changes {
        true => ("NoSingleChange", "no single change is enough; the nearest nodes:"),
        false => ("NoSuggestion", "no change is suggested; the nearest nodes:"),
    };
    Some(Finding::new(reason, message).because(nearest))
}

fn of_node(n: &NodeExplanation) -> Finding {
    let misses = n.shortfalls.iter().map(|s| of_shortfall(s, &s.message));
    let about = ObjectName::new("v1", "Node", "", &n.node);
    Finding::new("NodeRefused", format!("{}:", n.node)).about(about).because(misses)
}

fn of_shortfall(s: &Shortfall, message: &str) -> Finding {
    let mut message = format!("{}: {message}", s.rule);
    let mut names: Vec<String> = s.pods.iter().map(|p: &PodName| format!("{}/{}", p.namespace, p.name)).collect();
    if s.hidden_pods > 0 {
        names.push(format!("{} that you may not list", s.hidden_pods));
    }
    if !names.is_empty() {
        message.push_str(&format!(" by {}", names.join(", ")));
    }
    Finding::new("NodeRefused", message)
}

/// The nodes by what they miss, the largest group first.
fn grouped(nodes: &[NodeExplanation]) -> Vec<Finding> {
    let mut groups: BTreeMap<Vec<(&str, &str)>, Vec<&NodeExplanation>> = BTreeMap::new();
    for n in nodes {
        let what = n.shortfalls.iter().map(|s| (s.rule.as_str(), s.what.as_str())).collect();
        groups.entry(what).or_default().push(n);
    }
    let mut groups: Vec<(Vec<(&str, &str)>, Vec<&NodeExplanation>)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, members)| std::cmp::Reverse(members.len()));
    let total = groups.len();
    let mut findings: Vec<Finding> =
        groups.into_iter().take(MOST_GROUPS).map(|(_, members)| of_group(&members)).collect();
    if total > MOST_GROUPS {
        let more = total - MOST_GROUPS;
        let message = format!("and {more} more group{} of nodes; --nodes shows all", plural(more));
        findings.push(Finding::new("MoreNodes", message));
    }
    findings
}

/// How many groups of nodes are printed.
const MOST_GROUPS: usize = 10;

/// The nodes that miss the same.
fn of_group(members: &[&NodeExplanation]) -> Finding {
    let Some(first) = members.first() else { return Finding::default() };
    let names: Vec<String> = members.iter().map(|n| n.node.clone()).collect();
    let head = match names.len() {
        1 => format!("{}:", names[0]),
        n => format!("{n} nodes ({}):", some(&names)),
    };
    let misses = first.shortfalls.iter().enumerate().flat_map(|(i, s)| {
        let all: Vec<&Shortfall> = members.iter().filter_map(|n| n.shortfalls.get(i)).collect();
        match range(s, &all) {
            Some(message) => vec![of_shortfall(s, &message)],
            None => distinct(&all),
        }
    });
    Finding::new("NodeRefused", head).because(misses)
}

/// The message of a shortfall of a resource that several nodes have: with the smallest and the largest free amount. None without amounts.
fn range(s: &Shortfall, all: &[&Shortfall]) -> Option<String> {
    let free = |s: &&Shortfall| meta::Quantity::parse(&s.amounts.as_ref()?.free).ok();
    let (Some(amounts), Some(least), Some(most)) =
        (&s.amounts, all.iter().filter_map(free).min(), all.iter().filter_map(free).max())
    else {
        return None;
    };
    if least == most && all.iter().all(|other| other.message == s.message) {
        return Some(s.message.clone());
    }
    let text = |q: &meta::Quantity| amount_text(&s.what, q);
    let (least, most) = (text(&least), text(&most));
    Some(format!("the pod requests {} {}, between {least} and {most} are free", amounts.requested, s.what))
}

/// How many messages of one kind of shortfall are printed.
const MOST_MESSAGES: usize = 5;

/// The messages of shortfalls of one kind, each with its number of nodes if they differ; the most frequent first.
fn distinct(all: &[&Shortfall]) -> Vec<Finding> {
    let mut counts: Vec<(&Shortfall, usize)> = Vec::new();
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for s in all {
        let at = *known.entry(s.message.as_str()).or_insert(counts.len());
        match counts.get_mut(at) {
            Some((_, count)) => *count += 1,
            None => counts.push((s, 1)),
        }
    }
    if let [(single, _)] = counts.as_slice() {
        return vec![of_shortfall(single, &single.message)];
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let of_nodes = |count: usize| format!("({count} node{})", plural(count));
    let shown = counts.iter().take(MOST_MESSAGES);
    let mut findings: Vec<Finding> =
        shown.map(|(s, count)| of_shortfall(s, &format!("{} {}", s.message, of_nodes(*count)))).collect();
    let rest = counts.get(MOST_MESSAGES..).unwrap_or_default();
    if let Some((s, _)) = rest.first() {
        let nodes = of_nodes(rest.iter().map(|(_, count)| count).sum());
        let message = format!("{}: the same with other values {nodes}; --nodes shows all", s.rule);
        findings.push(Finding::new("NodeRefused", message));
    }
    findings
}

fn listed(names: &[String], count: usize) -> String {
    match count.saturating_sub(names.len()) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// The nodes that an extender refused in the last attempt.
pub fn of_extender(refusal: &scheduler::ExtenderRefusal) -> Finding {
    let (count, nodes) = (refusal.node_count, listed(&refusal.nodes, refusal.node_count));
    let message = if refusal.message.is_empty() { "it gave no reason" } else { &refusal.message };
    let extender = &refusal.extender;
    let message = format!("the extender {extender} refused {count} node{} ({nodes}): {message}", plural(count));
    Finding::new("ExtenderRefused", message)
}

/// Where the decision comes from: the last line of the explanation.
pub fn provenance(decision: Option<&PodDecision>, now: jiff::Timestamp) -> Finding {
    let Some(d) = decision else {
        return Finding::new(
            "DecidedHere",
            "computed by this program from the objects of the API, with the default configuration of the scheduler",
        );
    };
    let mut message = format!("decided by scheduler {}, {}", d.scheduler, position(&d.queue));
    if let Some(last) = &d.last_decision {
        let last_time = if d.queue.attempts == 0 { "looked at" } else { "last attempt" };
        message.push_str(&format!("; {last_time} {} ago", crate::printer::table::age(&last.time, now)));
    }
    Finding::new("DecidedByScheduler", message)
}

fn position(p: &scheduler::queue::Position) -> String {
    use scheduler::queue::StageName;
    let attempts = match p.attempts {
        0 => "not tried yet".to_owned(),
        1 => "tried once".to_owned(),
        n => format!("tried {n} times"),
    };
    let seconds = p.seconds_to_retry.map(|s| kinds::columns::duration(i64::try_from(s).unwrap_or(i64::MAX)));
    match (p.stage, seconds) {
        (StageName::Active, _) => format!("in the active queue, {attempts}"),
        (StageName::Backoff, Some(s)) => format!("backing off for {s}, {attempts}"),
        (StageName::Backoff, None) => format!("backing off, {attempts}"),
        (StageName::Gated, _) if !p.refused_by.is_empty() => {
            format!("held back until something changes that concerns {}", p.refused_by.join(", "))
        }
        (StageName::Gated, _) => format!("held back before the queue, {attempts}"),
        (StageName::Unschedulable, s) => {
            let retry = s.map(|s| format!(", or in {s}")).unwrap_or_default();
            format!("{attempts}; tried again when something changes that concerns {}{retry}", p.refused_by.join(", "))
        }
    }
}

/// The condition that the scheduler has written, if nothing else explains the pod.
pub fn written_condition(pod: &Value) -> Option<Finding> {
    let c = condition(pod, "PodScheduled").filter(|c| c["status"] == "False")?;
    let message = format!("the scheduler wrote: {}: {}", text(c, "/reason"), text(c, "/message"));
    Some(Finding::new("PodScheduled", message))
}

#[cfg(test)]
#[path = "pod_pending_tests.rs"]
mod tests;

use super::*;
use scheduler::explain::{Amounts, Change, Suggestion};
use serde_json::json;

fn shortfall(rule: &str, what: &str, message: &str) -> Shortfall {
    Shortfall::new(what, message).of_rule(rule)
}

fn of_cpu(free: i64) -> Shortfall {
    let message = format!("the pod requests 2 cpu, {free}m of 4 are free");
    let amounts = Amounts { requested: "2".into(), free: format!("{free}m"), allocatable: "4".into() };
    Shortfall { amounts: Some(amounts), ..shortfall("NodeResourcesFit", "cpu", &message) }
}

fn refused(nodes: Vec<(String, Vec<Shortfall>)>) -> Explanation {
    let nodes: Vec<NodeExplanation> =
        nodes.into_iter().map(|(node, shortfalls)| NodeExplanation { node, shortfalls }).collect();
    Explanation { node_count: nodes.len(), nodes, ..Explanation::default() }
}

fn text(e: &Explanation, nodes: Nodes) -> String {
    let (summary, findings) = explained(e, nodes);
    let e = super::super::finding::Explanation::new(super::super::finding::State::Pending, summary).because(findings);
    e.text("pod/p", "2026-11-21T12:00:00Z".parse().unwrap())
}

/// Clauses: G01.pending
#[test]
fn groups_nodes_that_miss_the_same() {
    let taint = || {
        shortfall(
            "TaintToleration",
            "dedicated=gpu:NoSchedule",
            "the pod does not tolerate the taint dedicated=gpu:NoSchedule",
        )
    };
    let mut e =
        refused(vec![("a".into(), vec![of_cpu(1700)]), ("b".into(), vec![of_cpu(500)]), ("c".into(), vec![taint()])]);
    e.suggestions.push(Suggestion {
        change: Change::Uncordon,
        nodes: vec!["a".into()],
        node_count: 1,
        message: "fits a with 300m less cpu".into(),
    });
    let expect = "\
pod/p none of 3 nodes fits
  2 nodes (a, b):
    NodeResourcesFit: the pod requests 2 cpu, between 500m and 1700m are free
  c:
    TaintToleration: the pod does not tolerate the taint dedicated=gpu:NoSchedule
  one change is enough:
    => fits a with 300m less cpu
";
    assert_eq!(text(&e, Nodes::Grouped), expect);
    let each = text(&e, Nodes::Each);
    assert!(each.contains("  b:\n    NodeResourcesFit: the pod requests 2 cpu, 500m of 4 are free\n"), "{each}");
    let mut hidden = shortfall("NodePorts", "80/TCP", "host port 80/TCP is in use");
    hidden.hidden_pods = 1;
    let mut two = refused(vec![("a".into(), vec![hidden, taint()])]);
    two.nearest = two.nodes.clone();
    two.needs_several_changes = true;
    let text = text(&two, Nodes::Grouped);
    assert!(text.contains("NodePorts: host port 80/TCP is in use by 1 that you may not list\n"), "{text}");
    assert!(
        text.contains(
            "no single change is enough; the nearest nodes:\n    a misses 2 things: host port 80/TCP is in use; "
        ),
        "{text}"
    );
}

#[test]
fn prints_few_lines_for_thousands_of_nodes() {
    let node = |i: i64| {
        let own = shortfall("TaintToleration", &format!("tenant=t{i}:NoSchedule"), "not tolerated");
        (format!("n{i}"), if i < 4_000 { vec![of_cpu(i % 1_000)] } else { vec![own] })
    };
    let e = refused((0..5_000).map(node).collect());
    let begun = tokio::time::Instant::now();
    let text = text(&e, Nodes::Grouped);
    assert!(begun.elapsed().as_millis() < 1_000, "{:?}", begun.elapsed());
    assert!(text.lines().count() < 30, "{text}");
    assert!(text.contains("4000 nodes (n0, n1, n2, n3, n4 and 3995 more):"), "{text}");
    assert!(text.contains("and 991 more groups of nodes; --nodes shows all"), "{text}");
}

#[test]
fn explains_gates_preemption_and_refusals_of_all_nodes() {
    let gated = json!({"spec": {"schedulingGates": [{"name": "example.com/a"}]}});
    assert_eq!(
        gates(&gated).unwrap().message,
        "the scheduler does not take the pod before its scheduling gate is gone: example.com/a"
    );
    let nominated = json!({"status": {"nominatedNodeName": "n"}});
    let leaving =
        [json!({"metadata": {"name": "v", "namespace": "d", "deletionTimestamp": "2026-11-21T12:00:00Z"}}), json!({})];
    let message = |unreadable| preemption(&nominated, &leaving, unreadable).unwrap().message;
    assert_eq!(message(false), "the scheduler has chosen node n and waits for 1 pod that ends there: d/v");
    assert_eq!(message(true), "the scheduler has chosen node n and waits for pods that leave it");
    assert!(preemption(&json!({}), &leaving, false).is_none());
    let e = Explanation {
        node_count: 2,
        refused: Some(shortfall("VolumeBinding", "x", "no such claim")),
        ..Explanation::default()
    };
    assert_eq!(text(&e, Nodes::Grouped), "pod/p no node can be chosen\n  VolumeBinding: no such claim\n");
    assert_eq!(
        text(&Explanation::default(), Nodes::Grouped),
        "pod/p the cluster has no nodes\n  the cluster has no nodes\n"
    );
}

/// Each message of a group is printed with its number of nodes.
#[test]
fn shows_each_message_of_a_group_with_its_count() {
    let of = |node: &str, domain: &str| {
        let message = format!("{domain} would have 2 matching pods; maxSkew is 1");
        (node.to_owned(), vec![shortfall("PodTopologySpread", "zone", &message)])
    };
    let mut nodes = vec![of("a", "zone=x"), of("b", "zone=y"), of("c", "zone=y")];
    nodes.push(("d".into(), vec![shortfall("PodTopologySpread", "zone minDomains", "2 domains, minDomains is 3")]));
    let e = refused(nodes);
    let expect = "\
pod/p none of 4 nodes fits
  3 nodes (a, b, c):
    PodTopologySpread: zone=y would have 2 matching pods; maxSkew is 1 (2 nodes)
    PodTopologySpread: zone=x would have 2 matching pods; maxSkew is 1 (1 node)
  d:
    PodTopologySpread: 2 domains, minDomains is 3
";
    assert_eq!(text(&e, Nodes::Grouped), expect);
    let many: Vec<_> = (0..9).map(|i| of(&format!("n{i}"), &format!("zone=z{i}"))).collect();
    let text = text(&refused(many), Nodes::Grouped);
    assert!(text.ends_with("PodTopologySpread: the same with other values (4 nodes); --nodes shows all\n"), "{text}");
}

#[test]
fn claims_that_several_changes_are_needed_only_if_they_are() {
    let mut e =
        refused(vec![("a".into(), vec![shortfall("NodeAffinity", "os=windows", "the pod requires os=windows")])]);
    e.nearest = e.nodes.clone();
    let text = text(&e, Nodes::Grouped);
    assert!(text.contains("no change is suggested; the nearest nodes:\n    a misses 1 thing: "), "{text}");
}

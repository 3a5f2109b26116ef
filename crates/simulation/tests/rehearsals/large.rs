//! Many nodes and pods. `KEMUDI_PODS=10000` sets how many pods; there is a node for every ten.

use crate::support::*;
use meta::Object;
use serde_json::{Value, json};
use simulation::{Copy, Source, Verdict};

/// Clauses: G05.large
#[test]
fn many_pods_on_many_nodes_are_rehearsed() {
    let pods: u32 = std::env::var("KEMUDI_PODS").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let (workloads, nodes) = (pods.div_ceil(100), pods / 10);
    let mut copy = Copy { namespace: "default".into(), ..Copy::default() };
    for i in 0..workloads {
        for source in web(100, Value::Null, json!({"maxUnavailable": "5%"})).sources {
            let text =
                serde_json::to_string(&source.object.into_value()).unwrap().replace("\"web\"", &format!("\"web-{i}\""));
            let object = Object::from_value(serde_json::from_str(&text).unwrap()).unwrap();
            copy.sources.push(Source { object, origin: format!("web-{i}") });
        }
    }
    let scenario = format!(
        "{{nodes: [{{name: w, count: {nodes}, cpu: '16', zones: [a, b, c]}}], ignoreBudgets: true, expect: [{{drain: {{within: 5m}}}}],
           steps: [{{rollout: {{object: deployment/web-1, image: 'web:2'}}}}, {{drain: {{node: w-1}}}}, {{failZone: a}}, {{advance: 8m}}]}}"
    );
    let r = run(&copy, &scenario);
    assert_eq!(r.verdict, Verdict::Held, "{}", r.summary());
    assert_eq!(r.workloads.len(), workloads as usize);
    let lost: usize = r.timeline.iter().filter(|e| e.kind == simulation::timeline::Kind::Lost).map(|e| e.count).sum();
    assert!(lost > pods as usize / 4, "{lost} of {pods} pods were in the zone");
    assert!(r.timeline.len() < 20_000 && r.to_html().len() < 20 << 20);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{:?} in the end: {}", r.elapsed, status.lines().find(|l| l.starts_with("VmHWM")).unwrap_or_default());
}

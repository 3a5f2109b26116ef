//! Random scenarios: a story for each controller, with crashes, cuts and old caches at random points.

use crate::objects::*;
use meta::Rng;
use serde_json::{Value, json};
use simulation::operations::Drain;
use simulation::scenario::{Crash, Latency, Propagation, Scenario, Step};
use simulation::{Caches, CrashPoint, NodeSpec, Offset, Span, WriteMatch};
use std::sync::Arc;
use std::time::Duration;
use testkit::SeededRng;

/// What a story begins with, and something that happens in it.
type Begin = fn(&Random) -> Vec<Value>;
type Action = fn(&Random) -> Vec<Step>;

/// Each controller: how many schedules `./x test` runs, what else runs, and its story.
pub const TARGETS: &[(&str, u64, &[&str], Begin, Action)] = &[
    ("deployment-controller", 6, WEB, web, change_web),
    ("replicaset-controller", 6, WEB, web, change_web),
    ("replication-controller", 6, SETS, replication, change_replication),
    ("statefulset-controller", 6, SETS, stateful, change_stateful),
    ("daemon-set-controller", 6, SETS, daemons, change_daemons),
    ("job-controller", 6, SETS, jobs, change_jobs),
    ("cronjob-controller", 4, &["job-controller", "generic-garbage-collector", "scheduler"], cron, change_cron),
    (
        "ttl-after-finished-controller",
        4,
        &["job-controller", "generic-garbage-collector", "scheduler"],
        expiring,
        change_jobs,
    ),
    ("disruption-controller", 6, WEB, guarded, change_guarded),
    ("horizontal-pod-autoscaler", 6, WEB, autoscaled, change_load),
    ("generic-garbage-collector", 6, WEB, owned, change_owned),
    (
        "namespace-controller",
        4,
        &["service-account-controller", "replicaset-controller", "scheduler"],
        spaces,
        change_spaces,
    ),
    ("node-controller", 4, NODES, guarded_web, change_nodes),
    ("endpoint-controller", 6, WEB, web, change_services),
    ("endpointslice-controller", 6, WEB, web, change_services),
    ("resourcequota-controller", 6, WEB, limited, change_limited),
    ("service-account-controller", 4, &["namespace-controller"], spaces, change_accounts),
    ("resource-claim-controller", 4, SETS, claiming, change_claiming),
    (
        "ephemeral-volume-controller",
        4,
        &["replicaset-controller", "generic-garbage-collector", "pvc-protection-controller", "scheduler"],
        volumes,
        change_claiming,
    ),
    (
        "persistent-volume-binder",
        6,
        &["pvc-protection-controller", "pv-protection-controller"],
        claims_and_disks,
        change_claims_and_disks,
    ),
    ("scheduler", 6, WEB, crowded, change_web),
];

const WEB: &[&str] = &[
    "deployment-controller",
    "replicaset-controller",
    "endpointslice-controller",
    "disruption-controller",
    "generic-garbage-collector",
    "scheduler",
];
const SETS: &[&str] = &["replicaset-controller", "generic-garbage-collector", "scheduler"];
const NODES: &[&str] = &[
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "disruption-controller",
    "pod-garbage-collector",
    "generic-garbage-collector",
    "scheduler",
];

/// Random choices.
pub struct Random(Arc<SeededRng>);

impl Random {
    /// A number below `n`.
    pub fn below(&self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    fn range(&self, from: i64, to: i64) -> i64 {
        from + self.below((to - from + 1) as u64) as i64
    }

    fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Clone>(&self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }

    /// A time up to `maximum` milliseconds, short ones as often as long ones.
    fn span(&self, maximum: u64) -> Span {
        let bits = 64 - maximum.leading_zeros() as u64;
        Span(Duration::from_millis(self.below((1 << (1 + self.below(bits))).min(maximum)) + 1))
    }
}

/// The schedule of a controller and a seed.
pub fn scenario(target: &str, seed: u64) -> Scenario {
    let (_, _, others, begin, action) = TARGETS.iter().find(|(name, ..)| *name == target).unwrap();
    let random = Random(SeededRng::new(seed));
    let mut components: Vec<String> = others.iter().map(|c| (*c).to_owned()).collect();
    if !components.iter().any(|c| c == target) {
        components.push(target.to_owned());
    }
    let mut steps: Vec<Step> = Vec::new();
    fault(&random, target, &mut steps);
    for object in begin(&random) {
        steps.push(Step::Create(object));
    }
    let begun = steps.len();
    for _ in 0..random.range(3, 7) {
        steps.push(Step::Advance(random.span(60_000)));
        if !random.one_in(3) {
            fault(&random, target, &mut steps);
        }
        steps.extend(action(&random));
    }
    steps.push(Step::Advance(random.span(120_000)));
    // Not by itself: it would write for ever.
    if target == "cronjob-controller" {
        for name in ["allow", "forbid", "replace"] {
            steps.push(Step::Patch { object: named("CronJob", name), patch: json!({"spec": {"suspend": true}}) });
        }
    }
    steps.push(Step::settle());
    if SERVER_STOPS.contains(&target) {
        stop_server(&Random(SeededRng::new(!seed)), &mut steps, begun);
    }
    let latency = random.one_in(2).then(|| Latency { minimum: Span(Duration::ZERO), maximum: random.span(200) });
    let nodes = ["n1", "n2", "n3"].map(|name| NodeSpec::new(name, "4")).to_vec();
    Scenario { seed, components, latency, nodes, steps, ..Scenario::default() }
}

/// Targets in whose schedules the API server stops as well.
const SERVER_STOPS: &[&str] = &["deployment-controller", "statefulset-controller", "job-controller", "node-controller"];

/// In one schedule of three, stops the API server before a random step, `first` or a later one.
fn stop_server(random: &Random, steps: &mut Vec<Step>, first: usize) {
    if random.one_in(3) {
        let at = random.range(first as i64, steps.len() as i64 - 1) as usize;
        steps.insert(at, Step::StopServer(random.span(90_000)));
    }
}

/// Something that happens to the controller itself.
fn fault(random: &Random, target: &str, steps: &mut Vec<Step>) {
    let component = target.to_owned();
    let matching = || WriteMatch {
        method: random.pick(&["", "POST", "PUT", "PATCH", "DELETE"]).to_owned(),
        resource: String::new(),
        number: random.range(1, 3) as u32,
    };
    match random.below(10) {
        0 => steps.extend([Step::Cut(component.clone()), Step::Advance(random.span(90_000)), Step::Heal(component)]),
        1 => steps.push(Step::DelayWatches { component, by: random.span(4000) }),
        2 => {
            let by = Offset(random.pick(&[-3_600_000, -5000, 5000, 60_000]));
            steps.push(Step::JumpClock { of: component, by });
        }
        _ => steps.push(Step::Crash(Crash {
            component,
            point: match random.below(8) {
                0 => CrashPoint::Now,
                1 | 2 => CrashPoint::Before(matching()),
                3 | 4 => CrashPoint::After(matching()),
                _ => CrashPoint::AfterWrites(random.range(1, 6) as u32),
            },
            restart_after: Some(random.span(30_000)),
            // A scheduler over-commits nodes if it begins with a cache that lacks bindings of its predecessor. No process of v1.36 does: its informers
            // begin with a consistent snapshot, also behind an API server whose watch cache is late (`WatchListClient`, `reflector.go`, asks for one
            // without a resource version). Kemudi's first list is one, too.
            caches: match random.pick(&[Caches::Empty, Caches::Kept]) {
                _ if target == "scheduler" => Caches::Empty,
                caches => caches,
            },
            times: random.range(1, 4) as u32,
        })),
    }
}

fn scale(kind: &str, name: &str, replicas: i64) -> Step {
    Step::Scale { object: named(kind, name), replicas }
}

fn delete_with(random: &Random, kind: &str, name: &str) -> Step {
    let propagation = random.pick(&[Propagation::Background, Propagation::Foreground]);
    Step::Delete { object: named(kind, name), propagation }
}

fn rolling(random: &Random) -> Value {
    random.pick(&[
        json!({}),
        json!({"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}),
        json!({"strategy": {"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}}}),
        json!({"strategy": {"rollingUpdate": {"maxSurge": "50%", "maxUnavailable": "50%"}}}),
        json!({"strategy": {"type": "Recreate"}}),
    ])
}

fn web(random: &Random) -> Vec<Value> {
    vec![service("web"), deployment("web", random.range(1, 6), rolling(random))]
}

fn change_web(random: &Random) -> Vec<Step> {
    let image = format!("app:{}", random.range(1, 4));
    match random.below(8) {
        0 | 1 => vec![scale("Deployment", "web", random.range(0, 8))],
        2..=4 => vec![set_image("Deployment", "web", &image)],
        5 => vec![Step::Patch {
            object: named("Deployment", "web"),
            patch: json!({"spec": {"paused": random.one_in(2)}}),
        }],
        6 => vec![Step::FailNode("n2".into()), Step::Advance(random.span(30_000)), Step::HealNode("n2".into())],
        _ => vec![
            delete_with(random, "Deployment", "web"),
            Step::Advance(Span(Duration::from_secs(90))),
            Step::Apply(deployment("web", random.range(1, 4), json!({}))),
        ],
    }
}

fn replication(random: &Random) -> Vec<Value> {
    let replicas = random.range(1, 6);
    vec![json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "rc"}, "spec": {
        "replicas": replicas, "selector": {"app": "rc"}, "template": template("rc", "app:1")}})]
}

fn change_replication(random: &Random) -> Vec<Step> {
    match random.below(4) {
        0 | 1 => vec![scale("ReplicationController", "rc", random.range(0, 8))],
        // Orphans of another one are adopted.
        2 => vec![
            Step::Delete { object: named("ReplicationController", "rc"), propagation: Propagation::Orphan },
            Step::Advance(Span(Duration::from_secs(90))),
            Step::Apply(replication(random).remove(0)),
        ],
        _ => vec![Step::FailNode("n1".into()), Step::Advance(random.span(20_000)), Step::HealNode("n1".into())],
    }
}

fn stateful(random: &Random) -> Vec<Value> {
    let more = random.pick(&[
        json!({}),
        json!({"podManagementPolicy": "Parallel"}),
        json!({"updateStrategy": {"rollingUpdate": {"partition": 1}}}),
        json!({"ordinals": {"start": 3}}),
    ]);
    let mut set = workload("apps/v1", "StatefulSet", "db", random.range(1, 4), more);
    set["spec"]["serviceName"] = "db".into();
    vec![set]
}

fn change_stateful(random: &Random) -> Vec<Step> {
    match random.below(6) {
        0 | 1 => vec![scale("StatefulSet", "db", random.range(0, 5))],
        2 | 3 => vec![set_image("StatefulSet", "db", &format!("app:{}", random.range(1, 4)))],
        4 => vec![Step::CutNode("n2".into()), Step::Advance(random.span(60_000)), Step::HealNode("n2".into())],
        _ => vec![Step::FailNode("n1".into()), Step::Advance(random.span(20_000)), Step::HealNode("n1".into())],
    }
}

fn daemons(random: &Random) -> Vec<Value> {
    let strategy = random.pick(&[
        json!({}),
        json!({"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}),
        json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}}}),
        json!({"updateStrategy": {"type": "OnDelete"}}),
    ]);
    let mut set = workload("apps/v1", "DaemonSet", "agent", 0, strategy);
    set["spec"].as_object_mut().unwrap().remove("replicas");
    vec![set]
}

fn change_daemons(random: &Random) -> Vec<Step> {
    let node = random.pick(&["n1", "n2", "n3"]);
    let label = if random.one_in(2) { json!("yes") } else { Value::Null };
    match random.below(5) {
        0 | 1 => vec![set_image("DaemonSet", "agent", &format!("app:{}", random.range(1, 4)))],
        2 => {
            let patch = json!({"spec": {"template": {"spec": {"nodeSelector": {"agent": label}}}}});
            vec![Step::Patch { object: named("DaemonSet", "agent"), patch }]
        }
        3 => {
            vec![Step::Patch { object: named("Node", node), patch: json!({"metadata": {"labels": {"agent": label}}}) }]
        }
        _ => vec![Step::FailNode(node.into()), Step::Advance(random.span(20_000)), Step::HealNode(node.into())],
    }
}

fn random_job(random: &Random, name: &str, more: &Value) -> Value {
    let image = random.pick(&["exit:0", "exit:0", "exit:1", "flaky:3", "flaky:2"]);
    let completions = random.range(1, 6);
    let mut spec =
        json!({"completions": completions, "parallelism": random.range(1, 4), "backoffLimit": random.range(0, 4)});
    if random.one_in(3) {
        spec["completionMode"] = "Indexed".into();
        spec.as_object_mut().unwrap().remove("backoffLimit");
        spec["backoffLimitPerIndex"] = random.range(0, 2).into();
    }
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    job(name, image, spec)
}

fn jobs(random: &Random) -> Vec<Value> {
    vec![random_job(random, "a", &json!({})), random_job(random, "b", &json!({}))]
}

fn expiring(random: &Random) -> Vec<Value> {
    let ttl = json!({"ttlSecondsAfterFinished": random.range(0, 60)});
    vec![random_job(random, "a", &ttl), random_job(random, "b", &ttl), random_job(random, "kept", &json!({}))]
}

fn change_jobs(random: &Random) -> Vec<Step> {
    let name = random.pick(&["c", "d", "e"]);
    let more = if random.one_in(2) { json!({"ttlSecondsAfterFinished": random.range(0, 90)}) } else { json!({}) };
    match random.below(4) {
        0 | 1 => {
            let mut job = random_job(random, "", &more);
            job["metadata"] = json!({"generateName": name});
            vec![Step::Create(job)]
        }
        2 => vec![Step::FailNode("n1".into()), Step::Advance(random.span(10_000)), Step::HealNode("n1".into())],
        _ => vec![Step::CutNode("n2".into()), Step::Advance(random.span(60_000)), Step::HealNode("n2".into())],
    }
}

fn cron(random: &Random) -> Vec<Value> {
    ["Allow", "Forbid", "Replace"]
        .map(|policy| {
            let image = random.pick(&["exit:0", "flaky:3"]);
            let more = json!({"concurrencyPolicy": policy, "jobTemplate": {"spec": job_spec(image, json!({"backoffLimit": 1}))}});
            cron_job(&policy.to_lowercase(), "* * * * *", more)
        })
        .to_vec()
}

fn change_cron(random: &Random) -> Vec<Step> {
    let object = named("CronJob", random.pick(&["allow", "forbid", "replace"]));
    match random.below(3) {
        0 => vec![Step::Patch { object, patch: json!({"spec": {"suspend": random.one_in(2)}}) }],
        1 => vec![Step::Patch {
            object,
            patch: json!({"spec": {"schedule": random.pick(&["* * * * *", "*/2 * * * *"])}}),
        }],
        _ => vec![Step::Advance(random.span(300_000))],
    }
}

fn guarded(random: &Random) -> Vec<Value> {
    let demand = random.pick(&[
        json!({"minAvailable": 2}),
        json!({"maxUnavailable": 1}),
        json!({"minAvailable": "50%"}),
        json!({"maxUnavailable": "30%"}),
    ]);
    vec![deployment("web", random.range(3, 6), json!({})), budget("web", demand)]
}

fn change_guarded(random: &Random) -> Vec<Step> {
    let node = random.pick(&["n1", "n2", "n3"]).to_owned();
    match random.below(6) {
        0..=2 => {
            vec![Step::Drain(Drain::in_background(&node)), Step::Advance(random.span(60_000)), Step::Uncordon(node)]
        }
        3 => vec![scale("Deployment", "web", random.range(2, 7))],
        4 => vec![Step::FailNode(node.clone()), Step::Advance(random.span(20_000)), Step::HealNode(node)],
        _ => vec![set_image("Deployment", "web", &format!("app:{}", random.range(1, 4)))],
    }
}

fn autoscaled(random: &Random) -> Vec<Value> {
    let mut all = web(random);
    all.push(json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"}, "spec": {
        "minReplicas": 1, "maxReplicas": 6, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 30}},
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]}}));
    all
}

fn change_load(random: &Random) -> Vec<Step> {
    let set = |n| Step::Load { app: "web".into(), milli_cores: n };
    match random.below(4) {
        0..=2 => vec![set(random.below(2000)), Step::Advance(random.span(240_000))],
        _ => vec![set_image("Deployment", "web", &format!("app:{}", random.range(1, 4)))],
    }
}

fn owned(random: &Random) -> Vec<Value> {
    let mut all = web(random);
    all.push(config_map("root", json!([])));
    all
}

fn change_owned(random: &Random) -> Vec<Step> {
    let kind = random.pick(&[Propagation::Background, Propagation::Foreground, Propagation::Orphan]);
    match random.below(4) {
        0 => vec![
            Step::Delete { object: named("Deployment", "web"), propagation: kind },
            Step::Advance(Span(Duration::from_secs(150))),
            Step::Apply(deployment("web", random.range(1, 4), json!({}))),
        ],
        1 => vec![Step::Create({
            let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": format!("no-{}", random.below(3))}]);
            let mut map = config_map("", owners);
            map["metadata"].as_object_mut().unwrap().remove("name");
            map["metadata"]["generateName"] = "dangling-".into();
            map
        })],
        _ => change_web(random),
    }
}

fn space(name: &str) -> Vec<Value> {
    let mut set = workload("apps/v1", "ReplicaSet", "set", 2, json!({}));
    set["metadata"]["namespace"] = name.into();
    let mut map = config_map("kept", json!([]));
    map["metadata"]["namespace"] = name.into();
    vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}), map, set]
}

fn spaces(_: &Random) -> Vec<Value> {
    ["one", "two"].iter().flat_map(|name| space(name)).collect()
}

fn change_spaces(random: &Random) -> Vec<Step> {
    let name = random.pick(&["one", "two"]);
    let mut steps = vec![delete("Namespace", name)];
    let mut gone = simulation::scenario::Condition::field(named("Namespace", name), "metadata.name", "");
    gone.fields.clear();
    gone.absent = true;
    steps.push(Step::Advance(random.span(20_000)));
    steps.push(Step::WaitFor(gone));
    steps.extend(space(name).into_iter().map(Step::Create));
    steps
}

fn change_accounts(random: &Random) -> Vec<Step> {
    let mut account = named("ServiceAccount", "default");
    account.namespace = random.pick(&["one", "two"]).to_owned();
    let present = Step::WaitFor(simulation::scenario::Condition::field(account.clone(), "metadata.name", "default"));
    match random.below(3) {
        0 => change_spaces(random),
        _ => vec![present, Step::Delete { object: account, propagation: Propagation::Background }],
    }
}

fn guarded_web(random: &Random) -> Vec<Value> {
    let mut all = guarded(random);
    all.extend(stateful(random));
    all
}

fn change_nodes(random: &Random) -> Vec<Step> {
    let node = random.pick(&["n1", "n2", "n3"]).to_owned();
    match random.below(6) {
        0 => vec![Step::FailNode(node.clone()), Step::Advance(random.span(600_000)), Step::HealNode(node)],
        1 => vec![Step::CutNode(node.clone()), Step::Advance(random.span(600_000)), Step::HealNode(node)],
        2 => {
            let (down, up) = (random.span(90_000), random.span(60_000));
            vec![Step::FlapNode { node, times: 4, down, up }, Step::Advance(Span(Duration::from_secs(300)))]
        }
        3 => vec![Step::JumpClock { of: node, by: Offset(random.pick(&[-7_200_000, 7_200_000])) }],
        4 => vec![set_image("StatefulSet", "db", &format!("app:{}", random.range(1, 4)))],
        _ => vec![scale("Deployment", "web", random.range(2, 7))],
    }
}

fn change_services(random: &Random) -> Vec<Step> {
    match random.below(5) {
        0 => vec![delete("Service", "web"), Step::Advance(random.span(5000)), Step::Create(service("web"))],
        1 => {
            let patch = json!({"spec": {"selector": {"app": random.pick(&["web", "other"])}}});
            vec![Step::Patch { object: named("Service", "web"), patch }]
        }
        _ => change_web(random),
    }
}

fn limited(random: &Random) -> Vec<Value> {
    let mut all = web(random);
    all.insert(
        0,
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods"}, "spec": {
        "hard": {"pods": "5", "requests.cpu": "3", "count/configmaps": "10"}}}),
    );
    all
}

fn change_limited(random: &Random) -> Vec<Step> {
    match random.below(4) {
        0 => {
            let patch = json!({"spec": {"hard": {"pods": random.range(2, 8).to_string()}}});
            vec![Step::Patch { object: named("ResourceQuota", "pods"), patch }]
        }
        _ => change_web(random),
    }
}

fn claiming(random: &Random) -> Vec<Value> {
    let mut set = workload("apps/v1", "ReplicaSet", "gpu", random.range(1, 3), json!({}));
    set["spec"]["template"]["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimTemplateName": "gpu"}]);
    let class = json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]});
    vec![
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "gpu"}, "spec": {"spec": {"devices": class}}}),
        set,
    ]
}

fn volumes(random: &Random) -> Vec<Value> {
    let mut set = workload("apps/v1", "ReplicaSet", "gpu", random.range(1, 3), json!({}));
    let claim = json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    set["spec"]["template"]["spec"]["volumes"] = json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": claim}}]);
    vec![set]
}

fn claim(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}})
}

fn disk(name: &str, size: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}, "hostPath": {"path": "/disk"}}})
}

/// Two volumes, and more claims than that.
fn claims_and_disks(random: &Random) -> Vec<Value> {
    let mut all: Vec<Value> = ["a", "b", "c"].map(claim).to_vec();
    let at = random.below(4) as usize;
    all.splice(at..at, [disk("disk-1", "1Gi"), disk("disk-2", "2Gi")]);
    all
}

/// Objects that are deleted have names of their own, so that none is deleted twice.
fn change_claims_and_disks(random: &Random) -> Vec<Step> {
    let fresh = |prefix: &str| format!("{prefix}-{}", random.below(1_000_000_000));
    let (name, of_disk) = (fresh("claim"), fresh("disk"));
    let wait = Step::Advance(random.span(20_000));
    match random.below(5) {
        0 => vec![Step::Create(claim(&name))],
        1 | 2 => vec![
            Step::Create(claim(&name)),
            wait,
            delete_with(random, "PersistentVolumeClaim", &name),
            Step::Advance(random.span(5000)),
            Step::Create(claim(&name.replace("claim", "next"))),
        ],
        // An administrator makes a volume available again, whatever it holds.
        3 => {
            let kept = random.pick(&["disk-1", "disk-2"]);
            vec![Step::Patch { object: named("PersistentVolume", kept), patch: json!({"spec": {"claimRef": null}}) }]
        }
        _ => vec![Step::Create(disk(&of_disk, "1Gi")), wait, delete_with(random, "PersistentVolume", &of_disk)],
    }
}

fn change_claiming(random: &Random) -> Vec<Step> {
    vec![scale("ReplicaSet", "gpu", random.range(0, 4))]
}

fn crowded(random: &Random) -> Vec<Value> {
    let mut all = web(random);
    // More than the nodes have room for.
    all.push(workload("apps/v1", "ReplicaSet", "many", 30, json!({})));
    all
}

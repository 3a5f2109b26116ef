use super::super::topology::machines::machine;
use super::*;
use serde_json::{Value, json};

fn container(name: &str, cpu: &str) -> Value {
    json!({"name": name, "resources": {"limits": {"cpu": cpu, "memory": "1Mi"}, "requests": {"cpu": cpu, "memory": "1Mi"}}})
}

fn pod(uid: &str, spec: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": uid, "uid": uid}, "spec": spec})).unwrap()
}

/// Admits all containers of a pod. Returns their processors.
fn admit(cpus: &mut StaticCpus, pod: &Pod, nodes: Option<Nodes>) -> Result<Vec<String>, CpuError> {
    let spec = pod.spec.clone().unwrap();
    let uid = pod.metadata.uid.clone().unwrap();
    let all: Vec<Container> = spec.init_containers.into_iter().flatten().chain(spec.containers).collect();
    for c in &all {
        cpus.allocate(pod, c, nodes)?;
    }
    Ok(all.iter().map(|c| cpus.cpus(&uid, &c.name).to_string()).collect())
}

fn policy(topology: Topology, options: CpuOptions, reserved: &str) -> StaticCpus {
    StaticCpus::new(topology, options, Ok(reserved.parse().unwrap()), None).unwrap()
}

#[test]
fn only_whole_processors_of_guaranteed_pods_are_exclusive() {
    let mut cpus = policy(machine(1, 1, 4, 2), CpuOptions::default(), "0");
    for (name, spec, expected) in [
        ("whole", json!({"containers": [container("a", "2"), container("b", "1")]}), vec!["1,5", "4"]),
        ("part", json!({"containers": [container("a", "1500m")]}), vec!["0,2-3,6-7"]),
        ("best-effort", json!({"containers": [{"name": "a"}]}), vec!["0,2-3,6-7"]),
        (
            "burstable",
            json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "2"}}}]}),
            vec!["0,2-3,6-7"],
        ),
        ("mixed", json!({"containers": [container("a", "2"), container("b", "500m")]}), vec!["2,6", "0,3,7"]),
    ] {
        assert_eq!(admit(&mut cpus, &pod(name, spec), None).unwrap(), expected, "{name}");
    }
    let error = admit(&mut cpus, &pod("large", json!({"containers": [container("a", "3")]})), None).unwrap_err();
    assert_eq!(error.to_string(), "not enough cpus available to satisfy request: requested=3, available=2");
    assert_eq!(cpus.cpus("part", "a").to_string(), "0,3,7", "what others take is not shared");
    assert!(cpus.release("whole") && !cpus.release("whole"));
    assert_eq!(cpus.cpus("part", "a").to_string(), "0-1,3-5,7");
    assert_eq!(cpus.allocatable().to_string(), "1-7");
}

/// Init containers end before the others start; sidecars do not.
#[test]
fn containers_reuse_what_init_containers_had() {
    let mut cpus = policy(machine(1, 1, 8, 1), CpuOptions::default(), "0");
    let mut sidecar = container("side", "1");
    sidecar["restartPolicy"] = "Always".into();
    let spec = json!({"initContainers": [container("init", "3"), sidecar], "containers": [container("app", "2")]});
    let pod = pod("p", spec);
    assert_eq!(exclusive_cpus_of_pod(&pod), 3);
    let had = admit(&mut cpus, &pod, None).unwrap();
    assert_eq!(had, ["1-3", "1", "2-3"]);
    assert_eq!(cpus.state().default_cpu_set.to_string(), "0,4-7");
    cpus.release("p");
    assert_eq!(cpus.state().default_cpu_set.to_string(), "0-7");
}

#[test]
fn whole_cores_can_be_required() {
    let options = CpuOptions { full_cores_only: true, ..CpuOptions::default() };
    let mut cpus = policy(machine(1, 1, 4, 2), options, "0");
    let ask = |cpus: &mut StaticCpus, uid, n| admit(cpus, &pod(uid, json!({"containers": [container("a", n)]})), None);
    let error = ask(&mut cpus, "odd", "3").unwrap_err().to_string();
    assert_eq!(error, "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2");
    assert_eq!(ask(&mut cpus, "p", "4").unwrap(), ["1-2,5-6"]);
    // The sibling of a reserved processor is none of whole cores.
    let error = ask(&mut cpus, "large", "4").unwrap_err().to_string();
    assert_eq!(
        error,
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, requested CPUs = 4, CPUs per core = 2"
    );
    assert_eq!(ask(&mut cpus, "last", "2").unwrap(), ["3,7"]);
}

#[test]
fn reserved_processors_are_shared_unless_the_reservation_is_strict() {
    let shared = |options| policy(machine(2, 1, 2, 2), options, "0,4").state().default_cpu_set.to_string();
    assert_eq!(shared(CpuOptions::default()), "0-7");
    assert_eq!(shared(CpuOptions { strict_reservation: true, ..CpuOptions::default() }), "1-3,5-7");
    // The first cores are reserved if only a number is given.
    let by_number = StaticCpus::new(machine(2, 1, 2, 2), CpuOptions::default(), Err(2), None).unwrap();
    assert_eq!(by_number.allocatable().to_string(), "1-3,5-7");
    let error = |reserved| StaticCpus::new(machine(1, 1, 2, 1), CpuOptions::default(), reserved, None).unwrap_err();
    assert_eq!(
        error(Err(0)),
        "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
    );
    assert_eq!(error(Err(3)), "[cpumanager] unable to reserve the required amount of CPUs (size of  did not equal 3)");
}

#[test]
fn nodes_are_followed_and_options_change_the_choice() {
    let two = |name| pod(name, json!({"containers": [container("a", "2")]}));
    let on = |node: u32| Some([node].into_iter().collect::<Nodes>());
    let mut cpus = policy(machine(2, 1, 4, 1), CpuOptions::default(), "0");
    assert_eq!(admit(&mut cpus, &two("first"), on(1)).unwrap(), ["4-5"]);
    let six = pod("six", json!({"containers": [container("a", "4")]}));
    // More than the node has.
    assert_eq!(admit(&mut cpus, &six, on(1)).unwrap(), ["1-2,6-7"]);
    let options = CpuOptions { distribute_across_numa: true, ..CpuOptions::default() };
    let mut cpus = policy(machine(2, 1, 4, 1), options, "0");
    assert_eq!(
        admit(&mut cpus, &pod("p", json!({"containers": [container("a", "6")]})), None).unwrap(),
        ["1-3,4-6".replace("1-3,4-6", "1-6")]
    );
    let options = CpuOptions { distribute_across_cores: true, ..CpuOptions::default() };
    let mut cpus = policy(machine(1, 1, 4, 2), options, "0");
    assert_eq!(admit(&mut cpus, &two("p"), None).unwrap(), ["1-2"]);
    assert_eq!(admit(&mut cpus, &two("q"), None).unwrap(), ["3-4"]);
    // Two sockets of two nodes each; node 1 is on the socket of node 0.
    let options = CpuOptions { align_by_socket: true, ..CpuOptions::default() };
    let mut cpus = policy(machine(2, 2, 2, 1), options, "0");
    assert_eq!(admit(&mut cpus, &pod("p", json!({"containers": [container("a", "3")]})), on(1)).unwrap(), ["1-3"]);
}

fn proposals(hints: Hints) -> Vec<(Vec<u32>, bool)> {
    let hints = hints.get("cpu").cloned().flatten().unwrap_or_default();
    hints.into_iter().map(|h| (h.nodes.unwrap().to_vec(), h.preferred)).collect()
}

#[test]
fn hints_prefer_the_fewest_nodes_that_could_ever_do() {
    let mut cpus = policy(machine(2, 1, 4, 1), CpuOptions::default(), "0");
    let p = |name: &str, n: &str| pod(name, json!({"containers": [container("a", n)]}));
    let hints = |cpus: &StaticCpus, pod: &Pod| proposals(cpus.hints(pod, &pod.spec.as_ref().unwrap().containers[0]));
    assert_eq!(hints(&cpus, &p("x", "2")), [(vec![0], true), (vec![1], true), (vec![0, 1], false)]);
    assert_eq!(hints(&cpus, &p("x", "4")), [(vec![1], true), (vec![0, 1], false)]);
    assert_eq!(hints(&cpus, &p("x", "5")), [(vec![0, 1], true)]);
    assert_eq!(hints(&cpus, &p("x", "8")), []);
    assert_eq!(cpus.hints(&p("x", "1500m"), &Container::default()), Hints::new());
    let first = p("first", "2");
    admit(&mut cpus, &first, Some([1].into_iter().collect())).unwrap();
    // Those of what it has.
    assert_eq!(hints(&cpus, &first), [(vec![1], true), (vec![0, 1], false)]);
    assert_eq!(cpus.pod_hints(&first), cpus.hints(&first, &first.spec.as_ref().unwrap().containers[0]));
    // One node could do, but none has as many left.
    assert_eq!(hints(&cpus, &p("x", "4")), [(vec![0, 1], false)]);
    let options = CpuOptions { align_by_socket: true, ..CpuOptions::default() };
    let cpus = policy(machine(2, 2, 2, 1), options, "0");
    let on_a_socket = |n: &(Vec<u32>, bool)| n.0 == [0, 1] || n.0 == [2, 3] || n.0.len() == 1;
    assert!(hints(&cpus, &p("x", "2")).iter().filter(|h| h.1).all(on_a_socket));
}

#[test]
fn a_checkpoint_is_taken_over_only_if_it_fits() {
    let options = CpuOptions::default();
    let mut before = policy(machine(1, 1, 4, 1), options, "0");
    let p = pod("p", json!({"containers": [container("a", "2")]}));
    admit(&mut before, &p, None).unwrap();
    let saved = serde_json::to_value(before.state()).unwrap();
    assert_eq!(saved, json!({"policyName": "static", "defaultCpuSet": "0,3", "entries": {"p": {"a": "1-2"}}}));
    let open = |topology, options, reserved: &str, saved: Value| {
        let saved = serde_json::from_value(saved).unwrap();
        StaticCpus::new(topology, options, Ok(reserved.parse().unwrap()), Some(saved))
    };
    let mut after = open(machine(1, 1, 4, 1), options, "0", saved.clone()).unwrap();
    assert_eq!(after.cpus("p", "a").to_string(), "1-2");
    assert_eq!(admit(&mut after, &p, None).unwrap(), ["1-2"], "it is not allocated twice");
    let strict = CpuOptions { strict_reservation: true, ..options };
    for (topology, options, reserved, saved, expected) in [
        (
            machine(1, 1, 8, 1),
            options,
            "0",
            saved.clone(),
            "current set of available CPUs \"0-7\" doesn't match with CPUs in state \"0-3\"",
        ),
        (
            machine(1, 1, 4, 1),
            options,
            "1",
            saved.clone(),
            "not all reserved cpus: \"1\" are present in defaultCpuSet: \"0,3\"",
        ),
        (
            machine(1, 1, 4, 1),
            strict,
            "0",
            saved,
            "some of strictly reserved cpus: \"0\" are present in defaultCpuSet: \"0,3\"",
        ),
        (
            machine(1, 1, 4, 1),
            options,
            "0",
            json!({"policyName": "static", "defaultCpuSet": "0-3", "entries": {"p": {"a": "1"}}}),
            "pod: p, container: a cpuset: \"1\" overlaps with default cpuset \"0-3\"",
        ),
        (
            machine(1, 1, 4, 1),
            options,
            "0",
            json!({"policyName": "static", "defaultCpuSet": "", "entries": {"p": {"a": "1"}}}),
            "default cpuset cannot be empty",
        ),
    ] {
        assert_eq!(open(topology, options, reserved, saved).unwrap_err(), expected);
    }
}

use super::super::topology::machines::machine;
use super::*;
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

fn container(name: &str, gib: u64) -> Value {
    let resources = json!({"cpu": "1", "memory": format!("{gib}Gi")});
    json!({"name": name, "resources": {"limits": resources, "requests": resources}})
}

fn pod(uid: &str, spec: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": uid, "uid": uid}, "spec": spec})).unwrap()
}

fn single(uid: &str, gib: u64) -> Pod {
    pod(uid, json!({"containers": [container("a", gib)]}))
}

/// Nodes of 8 GiB, of which one is reserved on the first.
fn policy(nodes: u32, saved: Option<MemoryState>) -> Result<StaticMemory, String> {
    let reserved = [(0, [("memory".to_owned(), GIB)].into())].into();
    StaticMemory::new(&machine(1, nodes, 1, 1), &reserved, saved)
}

fn admit(memory: &mut StaticMemory, pod: &Pod, nodes: &[u32], preferred: bool) -> Result<Vec<Vec<u32>>, MemoryError> {
    let hint = Hint { nodes: (!nodes.is_empty()).then(|| nodes.iter().copied().collect()), preferred };
    let spec = pod.spec.clone().unwrap();
    let all: Vec<Container> = spec.init_containers.into_iter().flatten().chain(spec.containers).collect();
    for c in &all {
        memory.allocate(pod, c, hint)?;
    }
    let uid = pod.metadata.uid.as_deref().unwrap();
    Ok(all.iter().map(|c| memory.nodes(uid, &c.name).map(Nodes::to_vec).unwrap_or_default()).collect())
}

fn proposals(memory: &StaticMemory, pod: &Pod) -> Vec<(Vec<u32>, bool)> {
    let hints = memory.hints(pod, &pod.spec.as_ref().unwrap().containers[0]);
    let hints = hints.get("memory").cloned().flatten().unwrap_or_default();
    hints.into_iter().map(|h| (h.nodes.unwrap().to_vec(), h.preferred)).collect()
}

#[test]
fn memory_is_counted_against_nodes() {
    let mut memory = policy(2, None).unwrap();
    assert_eq!(proposals(&memory, &single("x", 7)), [(vec![0], true), (vec![1], true), (vec![0, 1], false)]);
    assert_eq!(proposals(&memory, &single("x", 8)), [(vec![1], true), (vec![0, 1], false)]);
    assert_eq!(proposals(&memory, &single("x", 9)), [(vec![0, 1], true)]);
    assert_eq!(admit(&mut memory, &single("first", 5), &[1], true).unwrap(), [[1]]);
    assert_eq!(memory.state().machine_state[&1].memory_map["memory"].free, 3 * GIB);
    // The second node is used alone, so not with others.
    assert_eq!(proposals(&memory, &single("x", 4)), [(vec![0], true)]);
    assert_eq!(proposals(&memory, &single("x", 9)), []);
    // Without a topology manager, the best node.
    assert_eq!(admit(&mut memory, &single("second", 4), &[], true).unwrap(), [[0]]);
    assert_eq!(admit(&mut memory, &single("third", 4), &[], true), Err(MemoryError::NoNodes));
    assert_eq!(admit(&mut memory, &single("third", 4), &[0], true), Err(MemoryError::NoExtension));
    let best_effort = pod("free", json!({"containers": [{"name": "a"}]}));
    assert_eq!(admit(&mut memory, &best_effort, &[], true).unwrap(), [Vec::<u32>::new()]);
    assert!(memory.release("first") && !memory.release("first"));
    assert_eq!(memory.state().machine_state[&1].memory_map["memory"].free, 8 * GIB);
}

#[test]
fn nodes_are_used_together_by_the_same_group() {
    let mut memory = policy(3, None).unwrap();
    assert_eq!(admit(&mut memory, &single("wide", 10), &[], true).unwrap(), [[0, 1]]);
    assert_eq!(memory.state().machine_state[&0].cells, [0, 1]);
    assert_eq!(proposals(&memory, &single("x", 2)), [(vec![2], true), (vec![0, 1], false)]);
    assert_eq!(admit(&mut memory, &single("other", 2), &[1, 2], false), Err(MemoryError::Violation));
    // A hint that is too narrow is widened.
    memory.release("wide");
    assert_eq!(admit(&mut memory, &single("wide", 10), &[1], false).unwrap(), [[0, 1]]);
}

#[test]
fn containers_reuse_the_memory_of_init_containers() {
    let mut memory = policy(1, None).unwrap();
    let p = pod("p", json!({"initContainers": [container("init", 5)], "containers": [container("app", 3)]}));
    assert_eq!(requests_of_pod(&p)["memory"], 5 * GIB);
    assert_eq!(admit(&mut memory, &p, &[], true).unwrap(), [[0], [0]]);
    assert_eq!(memory.state().machine_state[&0].memory_map["memory"].free, 2 * GIB);
}

#[test]
fn a_checkpoint_is_taken_over_only_if_it_fits() {
    let mut before = policy(2, None).unwrap();
    admit(&mut before, &single("p", 3), &[1], true).unwrap();
    let json = serde_json::to_value(before.state()).unwrap();
    assert_eq!(json["entries"]["p"]["a"], json!([{"numaAffinity": [1], "type": "memory", "size": 3 * GIB}]));
    let after = policy(2, Some(before.state().clone())).unwrap();
    assert_eq!(after.state(), before.state());
    let mut strange = before.state().clone();
    strange.entries.get_mut("p").unwrap().get_mut("a").unwrap()[0].numa_affinity = vec![7];
    assert_eq!(
        policy(2, Some(strange)).unwrap_err(),
        "[memorymanager] (pod: p, container: a) the memory assignment uses the NUMA that does not exist"
    );
    let mut smaller = before.state().clone();
    smaller.machine_state.get_mut(&0).unwrap().memory_map.get_mut("memory").unwrap().total = 1;
    assert_eq!(
        policy(2, Some(smaller)).unwrap_err(),
        "[memorymanager] the expected machine state is different from the real one"
    );
    let none = StaticMemory::new(&machine(1, 1, 1, 1), &ReservedMemory::new(), None).unwrap_err();
    assert_eq!(none, "[memorymanager] you should specify the system reserved memory");
}

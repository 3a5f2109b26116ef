use super::topology::machines::machine;
use super::*;
use serde_json::{Value, json};

struct Fake(Topology);

impl TopologySource for Fake {
    fn read(&self) -> std::io::Result<Topology> {
        Ok(self.0.clone())
    }
}

/// Two sockets of four cores and 8 GiB; a processor and a GiB of each are reserved.
fn open(directory: &std::path::Path, more: Value) -> Result<Managers, String> {
    let mut fields = json!({
        "cpuManagerPolicy": "static", "reservedSystemCPUs": "0,4",
        "memoryManagerPolicy": "Static", "systemReserved": {"memory": "2Gi"}, "evictionHard": {},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}, {"numaNode": 1, "limits": {"memory": "1Gi"}}],
    });
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let configuration: KubeletConfiguration = serde_json::from_value(fields).unwrap();
    configuration.validate().map_err(|e| e.to_string())?;
    let root = KubeletRoot { path: directory.to_owned(), shown_as: KubeletRoot::USUAL.into() };
    Managers::open(&configuration, root, &Fake(machine(2, 1, 4, 1)), Arc::new(|_| {}))
}

fn pod(uid: &str, containers: &[(&str, &str)]) -> Pod {
    let container = |(i, (cpu, memory)): (usize, &(&str, &str))| {
        let resources = json!({"cpu": cpu, "memory": memory});
        json!({"name": format!("c{i}"), "resources": {"limits": resources, "requests": resources}})
    };
    let containers: Vec<Value> = containers.iter().enumerate().map(container).collect();
    serde_json::from_value(json!({"metadata": {"name": uid, "uid": uid}, "spec": {"containers": containers}})).unwrap()
}

fn placed(m: &Managers, uid: &str, container: &str) -> (String, String) {
    let mut limits = Resources { cpu_quota: Some(1), ..Resources::default() };
    m.apply(uid, container, &mut limits);
    (limits.cpuset_cpus.unwrap_or_default(), limits.cpuset_mems.unwrap_or_default())
}

/// Clauses: R03.numa
#[tokio::test]
async fn managers_agree_by_policy_and_scope() {
    let rejected = Err(("TopologyAffinityError".to_owned(), TOPOLOGY.1.to_owned()));
    let two = [("2", "1Gi"), ("2", "1Gi")];
    for (policy, scope, pods, expected) in [
        // The second container's node is the first with as many processors left.
        ("none", "container", &two[..], Ok([("1-2", "0"), ("3,5", "0")])),
        ("best-effort", "container", &two[..], Ok([("1-2", "0"), ("5-6", "1")])),
        ("restricted", "container", &two[..], Ok([("1-2", "0"), ("5-6", "1")])),
        ("single-numa-node", "container", &two[..], Ok([("1-2", "0"), ("5-6", "1")])),
        // No node has processors for both.
        ("single-numa-node", "pod", &two[..], rejected.clone()),
        // A node could, if nothing were reserved.
        ("restricted", "pod", &two[..], rejected.clone()),
        ("best-effort", "pod", &[("2", "1Gi"), ("1", "1Gi")][..], Ok([("1-2", "0"), ("3", "0")])),
        ("single-numa-node", "pod", &[("2", "1Gi"), ("1", "1Gi")][..], Ok([("1-2", "0"), ("3", "0")])),
        ("single-numa-node", "container", &[("2", "8Gi"), ("1", "1Gi")][..], rejected.clone()),
        ("none", "container", &[("6", "8Gi"), ("1", "1Gi")][..], Err((
            "UnexpectedAdmissionError".to_owned(),
            "Allocate failed due to not enough cpus available to satisfy request: requested=1, available=0, which is unexpected"
                .to_owned(),
        ))),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let m = open(directory.path(), json!({"topologyManagerPolicy": policy, "topologyManagerScope": scope})).unwrap();
        let result = m.admit(&pod("p", pods)).await.map_err(|r| (r.reason, r.message));
        let result = result.map(|()| ["c0", "c1"].map(|c| placed(&m, "p", c)));
        let expected = expected.map(|all| all.map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert_eq!(result, expected, "{policy} {scope} {pods:?}");
        if result.is_err() {
            // Nothing of it stays.
            assert_eq!(placed(&m, "p", "c0"), ("0-7".to_owned(), String::new()));
        }
    }
}

#[tokio::test]
async fn allocations_survive_a_restart_and_end_with_the_pod() {
    let directory = tempfile::tempdir().unwrap();
    let m = open(directory.path(), json!({})).unwrap();
    m.admit(&pod("p", &[("2", "1Gi")])).await.unwrap();
    m.admit(&pod("q", &[("1", "1Gi")])).await.unwrap();
    drop(m);
    let m = open(directory.path(), json!({})).unwrap();
    assert_eq!(placed(&m, "p", "c0"), ("1-2".to_owned(), "0".to_owned()));
    assert_eq!(placed(&m, "other", "c").0, "0,4-7");
    assert!(m.has_exclusive_cpus("p") && !m.has_exclusive_cpus("other"));
    m.retain(&["p".to_owned()].into()).await;
    drop(m);
    let m = open(directory.path(), json!({})).unwrap();
    assert_eq!(placed(&m, "other", "c").0, "0,3-7", "the other pod ended meanwhile");
    m.release("p").await;
    assert_eq!(placed(&m, "other", "c").0, "0-7");
    drop(m);

    let error = open(directory.path(), json!({"cpuManagerPolicy": "none"})).err().unwrap();
    let path = directory.path().join("cpu_manager_state");
    let path = path.display();
    assert_eq!(
        error,
        format!(
            "could not restore state from checkpoint: configured policy \"none\" differs from state checkpoint policy \"static\", \
             please drain this node and delete the CPU manager checkpoint file \"{path}\" before restarting Kubelet"
        )
    );
    std::fs::write(directory.path().join("cpu_manager_state"), "{").unwrap();
    let error = open(directory.path(), json!({})).err().unwrap();
    assert!(error.starts_with("could not restore state from checkpoint: EOF"), "{error}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let check = |more: Value, message: &str| {
        let directory = tempfile::tempdir().unwrap();
        let error = open(directory.path(), more.clone()).err().unwrap_or_else(|| panic!("{more}"));
        let error = error.strip_prefix("failed to validate kubelet configuration, error: ").unwrap_or(&error);
        assert!(error.contains(message), "{more}: {error}");
    };
    check(json!({"cpuManagerPolicy": "dynamic"}), "unknown policy: \"dynamic\"");
    check(json!({"memoryManagerPolicy": "static"}), "unknown policy: \"static\"");
    check(
        json!({"topologyManagerPolicy": "strict"}),
        "invalid configuration: topologyManagerPolicy (--topology-manager-policy) \"strict\" must be one of: [\"none\" \"best-effort\" \
         \"restricted\" \"single-numa-node\"]",
    );
    check(
        json!({"topologyManagerScope": "node"}),
        "invalid configuration: topologyManagerScope (--topology-manager-scope) \"node\" must be one of: \"container\", or \"pod\"",
    );
    check(json!({"cpuManagerPolicyOptions": {"x": "true"}}), "unknown CPU Manager Policy option: \"x\"");
    check(
        json!({"cpuManagerPolicyOptions": {"full-pcpus-only": "yes"}}),
        "bad value for option \"full-pcpus-only\": strconv.ParseBool: parsing \"yes\": invalid syntax",
    );
    check(
        json!({"cpuManagerPolicyOptions": {"align-by-socket": "true"}}),
        "CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided",
    );
    check(
        json!({"cpuManagerPolicyOptions": {"prefer-align-cpus-by-uncorecache": "true", "distribute-cpus-across-numa": "true"}}),
        "static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can not be used at the same time",
    );
    check(
        json!({"cpuManagerPolicyOptions": {"align-by-socket": "true"}, "topologyManagerPolicy": "single-numa-node",
            "featureGates": {"CPUManagerPolicyAlphaOptions": true}}),
        "Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy option",
    );
    check(json!({"reservedSystemCPUs": "0-"}), "unable to parse reservedSystemCPUs (--reserved-cpus) 0-");
    check(json!({"reservedSystemCPUs": "9"}), "unable to build the reserved physical CPUs from the reserved set");
    check(json!({"reservedMemory": []}), "the total amount \"0\" of type \"memory\" is not equal to the value \"2Gi\"");
    check(
        json!({"reservedMemory": [{"numaNode": 5, "limits": {"memory": "2Gi"}}]}),
        "the reserved memory configuration references a NUMA node 5 that does not exist on this machine",
    );
    check(
        json!({"topologyManagerPolicy": "restricted", "topologyManagerPolicyOptions": {"x": "1"}}),
        "unknown Topology Manager Policy option: \"x\"",
    );
}

/// Clauses: R03.metrics
#[tokio::test]
async fn requests_and_errors_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let m = open(directory.path(), json!({"topologyManagerPolicy": "single-numa-node"})).unwrap();
    let has = |line: &str| assert!(m.meters().text().lines().any(|l| l == line), "{line} in {}", m.meters().text());
    has("kubelet_cpu_manager_shared_pool_size_millicores 6000");
    has("kubelet_cpu_manager_pinning_requests_total 0");
    m.admit(&pod("a", &[("2", "1Gi")])).await.unwrap();
    m.admit(&pod("shared", &[("500m", "1Gi")])).await.unwrap();
    m.admit(&pod("large", &[("4", "1Gi")])).await.unwrap_err();
    has("kubelet_topology_manager_admission_requests_total 3");
    has("kubelet_topology_manager_admission_errors_total 1");
    has("kubelet_topology_manager_admission_duration_ms_count 3");
    has("kubelet_cpu_manager_pinning_requests_total 1");
    has("kubelet_cpu_manager_pinning_errors_total 0");
    has("kubelet_memory_manager_pinning_requests_total 2");
    has("kubelet_cpu_manager_shared_pool_size_millicores 4000");
    has("kubelet_cpu_manager_exclusive_cpu_allocation_count 2");
    m.release("a").await;
    has("kubelet_cpu_manager_shared_pool_size_millicores 6000");
    let m = open(directory.path(), json!({"topologyManagerPolicy": "none"})).unwrap();
    m.admit(&pod("b", &[("7", "1Gi")])).await.unwrap_err();
    let text = m.meters().text();
    for line in [
        "kubelet_cpu_manager_pinning_errors_total 1",
        "kubelet_topology_manager_admission_requests_total 1",
        "kubelet_topology_manager_admission_errors_total 0",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

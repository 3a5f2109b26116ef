use super::*;
use serde_json::{Value, json};

fn pod(resources: Value, reported: Value) -> Pod {
    let status = json!({"containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": true,
        "restartCount": 0, "resources": reported}]});
    let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    let spec = json!({"containers": [{"name": "a", "resources": resources, "resizePolicy": policy}, {"name": "b"}]});
    serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec, "status": status})).unwrap()
}

fn requirements(v: Value) -> ResourceRequirements {
    serde_json::from_value(v).unwrap()
}

#[test]
fn an_agent_that_starts_again_takes_what_was_reported() {
    let small = json!({"requests": {"cpu": "100m"}});
    let p = pod(json!({"requests": {"cpu": "2"}}), small.clone());
    let allocation = Allocation::of_status(&p);
    assert!(!allocation.is_desired_by(&p));
    let allocated = allocation.apply(&p);
    assert_eq!(allocated.spec.unwrap().containers[0].resources, Some(requirements(small)));
    assert!(Allocation::of_spec(&p).is_desired_by(&p));
    // The same amount written differently is no resize.
    let p = pod(json!({"requests": {"cpu": "0.1"}}), json!({"requests": {"cpu": "100m"}}));
    assert!(Allocation::of_status(&p).is_desired_by(&p));
}

/// Pods whose resize did not fit got it when the agent started again.
#[test]
fn an_agent_that_starts_again_does_not_grant_what_the_pod_waits_for() {
    let pod = |spec: Value, status: Value| -> Pod {
        let containers = json!([{"name": "a"}]);
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": containers, "resources": spec},
            "status": {"resources": status}}))
        .unwrap()
    };
    let old = json!({"requests": {"memory": "32Mi"}, "limits": {"memory": "64Mi"}});
    let p = pod(json!({"requests": {"memory": "18Gi"}, "limits": {"memory": "20Gi", "cpu": "1"}}), old.clone());
    let allocation = Allocation::of_status(&p);
    assert!(!allocation.is_desired_by(&p));
    assert_eq!(allocation.pod, Some(requirements(old.clone())));
    // A pod without resources of its own shows the sum of its containers.
    assert_eq!(Allocation::of_status(&pod(Value::Null, old)).pod, None);
    let p = pod(json!({"limits": {"cpu": "1"}}), Value::Null);
    assert!(Allocation::of_status(&p).is_desired_by(&p), "nothing was reported yet");
}

#[test]
fn containers_restart_for_the_resources_that_say_so() {
    let spec = pod(json!({}), json!({})).spec.unwrap().containers.remove(0);
    let old = requirements(json!({"limits": {"cpu": "1", "memory": "1Gi"}}));
    let check = |new: Value, expected| assert_eq!(restarts(&spec, &old, &requirements(new)), expected);
    check(json!({"limits": {"cpu": "2", "memory": "1024Mi"}}), false);
    check(json!({"limits": {"cpu": "1", "memory": "2Gi"}}), true);
}

#[test]
fn control_groups_are_widened_first() {
    let limits = |quota, memory| Resources { cpu_quota: quota, memory_limit: memory, ..Resources::default() };
    assert_eq!(widest(&limits(Some(1), Some(9)), &limits(Some(2), Some(3))), limits(Some(2), Some(9)));
    let none = settings(&widest(&limits(None, Some(9)), &limits(Some(2), None)));
    assert_eq!(none, limits(Some(-1), Some(-1)));
}

#[test]
fn memory_limits_stay_above_usage() {
    assert_eq!([lowered(Some(9), Some(5)), lowered(None, Some(5))], [Some(5), Some(5)]);
    assert_eq!([lowered(Some(5), Some(5)), lowered(Some(5), Some(9)), lowered(Some(5), None)], [None, None, None]);
    assert_eq!(check_usage("pod", 5, 5), Ok(()));
    let message = "attempting to set pod memory limit (5) below current usage (6)";
    assert_eq!(check_usage("pod", 5, 6), Err(message.to_owned()));
}

#[test]
fn events_have_the_desired_resources() {
    let p = pod(json!({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}), Value::Null);
    assert_eq!(
        message("Deferred", &p, Some(3), Some("no room")),
        r#"Pod resize Deferred: {"containers":[{"name":"a","resources":{"limits":{"cpu":"2"},"requests":{"cpu":"1"}}},{"name":"b","resources":{}}],"generation":3,"error":"no room"}"#
    );
}

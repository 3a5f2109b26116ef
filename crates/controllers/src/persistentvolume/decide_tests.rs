use super::super::testing::{claim, class, volume};
use super::*;
use serde_json::{Value, json};

/// A step as text: its name and its event.
fn text(step: &ClaimStep) -> String {
    match step {
        ClaimStep::Bind(v) => format!("bind {}", v.meta.name),
        ClaimStep::SetClass(name) => format!("class {name}"),
        ClaimStep::Wait(None) => "wait".to_owned(),
        ClaimStep::Wait(Some(n)) => format!("wait {}: {}", n.reason, n.message),
        ClaimStep::Provision(p) => format!("provision {p}"),
        ClaimStep::Lose(n) => format!("lose {}: {}", n.reason, n.message),
    }
}

fn of_class(name: &str) -> Value {
    json!({"spec": {"storageClassName": name}})
}

fn selected(class: &str) -> Value {
    json!({"spec": {"storageClassName": class}, "metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n"}}})
}

#[test]
fn claims_without_a_volume_wait_or_are_provisioned() {
    let now = class("now", json!({}));
    let late = class("late", json!({"volumeBindingMode": "WaitForFirstConsumer"}));
    let none = class("none", json!({"provisioner": "kubernetes.io/no-provisioner"}));
    let of_nodes = |name, mode| class(name, json!({"provisioner": OF_NODES, "volumeBindingMode": mode}));
    let (node_now, node_late) = (of_nodes("node-now", "Immediate"), of_nodes("node-late", "WaitForFirstConsumer"));
    let classes = [now, late, none, node_now, node_late];
    let cases = [
        (
            json!({}),
            &[][..],
            "wait FailedBinding: no persistent volumes available for this claim and no storage class is set",
        ),
        (
            of_class(""),
            &[],
            "wait FailedBinding: no persistent volumes available for this claim and no storage class is set",
        ),
        (of_class("now"), &[], "provision example.com/x"),
        (of_class("gone"), &[], "wait ProvisioningFailed: storageclass.storage.k8s.io \"gone\" not found"),
        (of_class("none"), &[], "wait ProvisioningFailed: no volume plugin matched name: kubernetes.io/no-provisioner"),
        (of_class("late"), &[], "wait WaitForFirstConsumer: waiting for first consumer to be created before binding"),
        (of_class("late"), &["a"], "wait WaitForPodScheduled: waiting for pod a to be scheduled"),
        (of_class("late"), &["a", "b"], "wait WaitForPodScheduled: waiting for pods a,b to be scheduled"),
        (selected("late"), &["a"], "provision example.com/x"),
        // It waited without a reason.
        (
            of_class("node-now"),
            &["a"],
            "wait ProvisioningFailed: failed to provision volume with StorageClass \"node-now\": no node is selected: \
             volumes of kemudi.local/directory need a class with volumeBindingMode: WaitForFirstConsumer",
        ),
        (selected("node-now"), &["a"], "provision kemudi.local/directory"),
        (selected("node-late"), &["a"], "provision kemudi.local/directory"),
    ];
    for (changes, pods, expect) in cases {
        let pods = || pods.iter().map(|p| (*p).to_owned()).collect();
        let step = unbound_claim(&claim("c", changes), &Classes(&classes), |_| None, pods);
        assert_eq!(text(&step), expect);
    }
}

#[test]
fn the_newest_default_class_is_set() {
    let default = |name: &str, created: &str| {
        class(
            name,
            json!({"metadata": {"creationTimestamp": created,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}),
        )
    };
    let classes = [
        default("older", "2026-01-01T00:00:00Z"),
        default("newer-b", "2026-01-02T00:00:00Z"),
        default("newer-a", "2026-01-02T00:00:00Z"),
        class("other", json!({})),
    ];
    let step = |changes: Value| text(&unbound_claim(&claim("c", changes), &Classes(&classes), |_| None, Vec::new));
    assert_eq!(step(json!({})), "class newer-a");
    assert!(step(of_class("")).starts_with("wait FailedBinding"), "an empty class is a choice");
    assert_eq!(step(of_class("other")), "provision example.com/x");
    let found = unbound_claim(&claim("c", json!({})), &Classes(&classes), |_| Some(volume("v", json!({}))), Vec::new);
    assert_eq!(text(&found), "bind v", "a volume goes before the class");
}

fn reference(name: &str, uid: &str) -> Value {
    json!({"spec": {"claimRef": {"namespace": "ns", "name": name, "uid": uid}}})
}

#[test]
fn claims_that_name_a_volume() {
    let named = json!({"spec": {"volumeName": "v"}});
    let cases = [
        (None, "wait"),
        (Some(json!({})), "bind v"),
        (Some(reference("c", "")), "bind v"),
        (Some(reference("c", "uid-c")), "bind v"),
        (Some(reference("c", "old")), "wait FailedBinding: volume \"v\" already bound to a different claim."),
        (Some(reference("d", "")), "wait FailedBinding: volume \"v\" already bound to a different claim."),
        (
            Some(of_class("x")),
            "wait VolumeMismatch: Cannot bind to requested volume \"v\": storageClassName does not match",
        ),
    ];
    for (changes, expect) in cases {
        let found = changes.map(|c| volume("v", c));
        assert_eq!(text(&prebound_claim(&claim("c", named.clone()), found.as_ref())), expect);
    }
}

#[test]
fn bound_claims_keep_or_lose_their_volume() {
    let bound = claim("c", json!({"spec": {"volumeName": "v"}}));
    let gone = "lose ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!";
    let taken = "lose ClaimMisbound: Two claims are bound to the same volume, this one is bound incorrectly";
    let cases = [
        (None, gone),
        (Some(json!({})), "bind v"),
        (Some(reference("c", "uid-c")), "bind v"),
        (Some(reference("c", "old")), taken),
        (Some(reference("d", "uid-d")), taken),
    ];
    for (changes, expect) in cases {
        let found = changes.map(|c| volume("v", c));
        assert_eq!(text(&bound_claim(&bound, found.as_ref())), expect);
    }
    let unnamed = "lose ClaimLost: Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
    assert_eq!(text(&bound_claim(&claim("c", json!({})), None)), unnamed);
}

#[test]
fn phases_of_volumes_follow_their_claims() {
    let to_v = claim("c", json!({"spec": {"volumeName": "v"}}));
    let to_other = claim("c", json!({"spec": {"volumeName": "w"}}));
    let to_none = claim("c", json!({}));
    let provisioned = |policy: &str| {
        let mut v = reference("c", "uid-c");
        v["metadata"] = json!({"annotations": {"pv.kubernetes.io/provisioned-by": "example.com/x"}});
        v["spec"]["persistentVolumeReclaimPolicy"] = policy.into();
        v
    };
    let cases = [
        (json!({}), None, VolumeStep::SetPhase("Available")),
        (reference("c", ""), None, VolumeStep::SetPhase("Available")),
        (reference("c", "uid-c"), None, VolumeStep::Release),
        (reference("c", "uid-c"), Some(&to_v), VolumeStep::SetPhase("Bound")),
        (reference("c", "uid-c"), Some(&to_none), VolumeStep::SyncClaim),
        (reference("c", "uid-c"), Some(&to_other), VolumeStep::Unbind),
        (provisioned("Retain"), Some(&to_other), VolumeStep::Unbind),
        (provisioned("Delete"), Some(&to_other), VolumeStep::Release),
    ];
    for (changes, claim, expect) in cases {
        assert_eq!(volume_step(&volume("v", changes), claim.map(|c| &**c)), expect);
    }
    let mut block = reference("c", "uid-c");
    block["spec"]["volumeMode"] = "Block".into();
    let VolumeStep::Mismatch(of_volume, of_claim) = volume_step(&volume("v", block), Some(&to_none)) else { panic!() };
    assert!(of_volume.message.contains("PersistentVolumeClaim \"c\" due to incompatible volumeMode"));
    assert!(of_claim.message.contains("PersistentVolume \"v\" to requested"));
}

#[test]
fn reclaim_policies() {
    let with = |policy: &str, provisioner: &str, spec: Value| {
        let mut v = json!({"spec": spec});
        v["spec"]["persistentVolumeReclaimPolicy"] = policy.into();
        if !provisioner.is_empty() {
            v["metadata"] = json!({"annotations": {"pv.kubernetes.io/provisioned-by": provisioner}});
        }
        volume("v", v)
    };
    let fail = |reason, message: &str| Reclaim::Fail(Notice::warning(reason, message));
    let no_plugin = "error getting deleter volume plugin for volume \"v\": no deletable volume plugin matched";
    let cases = [
        (with("Retain", "", json!({})), Reclaim::Keep),
        (with("Delete", "example.com/x", json!({})), Reclaim::Keep),
        (with("Delete", "", json!({"csi": {"driver": "d"}})), Reclaim::Keep),
        (with("Delete", "", json!({})), fail("VolumeFailedDelete", no_plugin)),
        (
            with("Delete", "kubernetes.io/host-path", json!({})),
            fail("VolumeFailedDelete", "no volume plugin matched name: kubernetes.io/host-path"),
        ),
        (with("Recycle", "", json!({})), fail("VolumeFailedRecycle", "No recycler plugin found for the volume!")),
    ];
    for (volume, expect) in cases {
        assert_eq!(reclaim(&volume, Vec::new), expect);
    }
    let used = reclaim(&with("Recycle", "", json!({})), || vec!["ns/p".into()]);
    assert_eq!(used, Reclaim::Wait(Notice::normal("VolumeFailedRecycle", "Volume is used by pods: ns/p")));
}

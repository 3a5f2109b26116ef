use super::*;
use crate::claims::Claims;
use crate::env::Source;
use crate::fields::NodeInfo;
use crate::objects::{Data, Kind};
use crate::volumes::token::{self, Tokens};
use crate::volumes::{Memory, Volumes};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A claim and a volume, as the API has them.
struct Api {
    claim: Value,
    volume: Value,
}

fn found<T: serde::de::DeserializeOwned>(what: &str, object: &Value) -> Result<T, client::Error> {
    match object {
        Value::Null => Err(client::Error::Unexpected(format!("{what} not found"))),
        object => Ok(serde_json::from_value(object.clone()).unwrap()),
    }
}

#[async_trait::async_trait]
impl Claims for Api {
    async fn claim(&self, _: &str, name: &str) -> Result<PersistentVolumeClaim, client::Error> {
        found(&format!("persistentvolumeclaims {name:?}"), &self.claim)
    }

    async fn volume(&self, name: &str) -> Result<PersistentVolume, client::Error> {
        found(&format!("persistentvolumes {name:?}"), &self.volume)
    }

    async fn node_labels(&self) -> Result<BTreeMap<String, String>, client::Error> {
        Ok([("kubernetes.io/hostname".into(), "here".into())].into())
    }
}

struct NoObjects;

#[async_trait::async_trait]
impl Source for NoObjects {
    async fn data(&self, _: Kind, _: &str, _: &str) -> Result<Option<Arc<Data>>, crate::objects::Error> {
        Ok(None)
    }
}

#[async_trait::async_trait]
impl Tokens for NoObjects {
    async fn issue(&self, _: &Pod, _: Option<&str>, _: Option<i64>) -> Result<token::Issued, token::Error> {
        Ok(token::Issued::default())
    }
}

struct Now;

impl meta::Clock for Now {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH
    }
}

fn claim() -> Value {
    json!({"metadata": {"name": "c", "namespace": "ns", "uid": "uid-c"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}})
}

fn volume(source: &str, path: &Path) -> Value {
    let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["here"]});
    json!({"metadata": {"name": "pv"}, "spec": {source: {"path": path}, "claimRef": {"namespace": "ns", "name": "c", "uid": "uid-c"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}}})
}

fn pod(spec: Value) -> Pod {
    let mut pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "uid-p"}, "spec": {
        "containers": [{"name": "a", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]}});
    pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(pod).unwrap()
}

async fn set_up(pod: &Pod, claim: Value, volume: Value) -> Result<PathBuf, String> {
    let root = tempfile::tempdir().unwrap();
    let api = Arc::new(Api { claim, volume });
    let volumes = Volumes::new(root.path().to_owned(), Arc::new(Now), Memory::Plain, usize::MAX, api);
    let node = NodeInfo { node_name: "here".into(), ..NodeInfo::default() };
    let paths = volumes.set_up(pod, &NoObjects, &NoObjects, &node, None).await.map_err(|e| e.to_string())?;
    Ok(paths["data"].clone())
}

#[tokio::test]
async fn mounts_local_and_host_path_volumes() {
    let directory = tempfile::tempdir().unwrap();
    for source in ["local", "hostPath"] {
        let mounted = set_up(&pod(json!({})), claim(), volume(source, directory.path())).await;
        assert_eq!(mounted.as_deref(), Ok(directory.path()), "{source}");
    }
    let ephemeral = pod(json!({"volumes": [{"name": "data", "ephemeral": {}}]}));
    let mut owned = claim();
    owned["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": true}]);
    assert!(set_up(&ephemeral, owned, volume("local", directory.path())).await.is_ok());
}

#[tokio::test]
async fn refuses_claims_that_cannot_be_used_with_upstreams_texts() {
    let directory = tempfile::tempdir().unwrap();
    let good = || volume("local", directory.path());
    let change = |mut base: Value, pointer: &str, to: Value| {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        base.pointer_mut(parent).unwrap()[key] = to;
        base
    };
    let unable = |why: &str| {
        format!(
            "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process volumes=[data]: \
             error processing PVC ns/c: {why}"
        )
    };
    let mount = |stage: &str, why: &str| format!("MountVolume.{stage} failed for volume \"pv\" : {why}");
    let other_node =
        json!([{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["there"]}]}]);
    let missing = directory.path().join("missing");
    let not_found = "failed to fetch PVC from API server: unexpected answer: persistentvolumeclaims \"c\" not found";
    let cases = [
        (Value::Null, good(), unable(not_found)),
        (change(claim(), "/status/phase", "Pending".into()), good(), unable("PVC is not bound")),
        (
            change(claim(), "/metadata/deletionTimestamp", "2026-01-01T00:00:00Z".into()),
            good(),
            unable("PVC is being deleted"),
        ),
        (
            claim(),
            Value::Null,
            unable("failed to fetch PV pv from API server: unexpected answer: persistentvolumes \"pv\" not found"),
        ),
        (
            claim(),
            change(good(), "/spec/claimRef/uid", "other".into()),
            unable("found PV object pv but its pv.Spec.ClaimRef.UID other does not point to claim.UID uid-c"),
        ),
        (
            claim(),
            change(good(), "/spec/volumeMode", "Block".into()),
            unable("volume data has volumeMode Block, but is specified in volumeMounts"),
        ),
        (
            claim(),
            change(good(), "/spec/nodeAffinity/required/nodeSelectorTerms", other_node),
            mount("NodeAffinity check", "no matching NodeSelectorTerms"),
        ),
        (
            claim(),
            volume("local", &missing),
            mount("NewMounter initialization", &format!("path {missing:?} does not exist")),
        ),
        (
            claim(),
            change(change(good(), "/spec/local", Value::Null), "/spec/nfs", json!({"server": "s", "path": "/"})),
            mount(
                "FindPluginBySpec",
                "this kind of persistent volume is not supported by this node (only csi, hostPath and local are)",
            ),
        ),
    ];
    for (claim, volume, expect) in cases {
        assert_eq!(set_up(&pod(json!({})), claim, volume).await.unwrap_err(), expect);
    }
    let device = json!([{"name": "a", "volumeDevices": [{"name": "data", "devicePath": "/dev/x"}]}]);
    let block = change(good(), "/spec/volumeMode", "Block".into());
    let refused = set_up(&pod(json!({"containers": device})), claim(), block).await.unwrap_err();
    assert_eq!(refused, unable("volume data has volumeMode Block, which is not supported by this node"));
    let ephemeral = pod(json!({"volumes": [{"name": "data", "ephemeral": {}}]}));
    let refused = set_up(&ephemeral, claim(), good()).await.unwrap_err();
    assert!(refused.ends_with("PVC ns/c was not created for pod ns/p (pod is not owner)"), "{refused}");
}

/// The files of a volume belong to the group of the pod, but what a link leads to does not.
#[tokio::test]
async fn gives_local_volumes_to_the_group() {
    let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = |p: &str| directory.path().join(p);
    fs::create_dir_all(at("a/b")).unwrap();
    for file in [at("a/b/file"), elsewhere.path().join("file")] {
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    }
    std::os::unix::fs::symlink(elsewhere.path().join("file"), at("link")).unwrap();
    let group = fs::metadata(elsewhere.path()).unwrap().gid() + 7;
    let with = |policy: &str| pod(json!({"securityContext": {"fsGroup": group, "fsGroupChangePolicy": policy}}));
    set_up(&with("Always"), claim(), volume("local", directory.path())).await.unwrap();
    let state = |path: &Path| fs::metadata(path).map(|m| (m.gid(), m.permissions().mode() & 0o7777)).unwrap();
    assert_eq!((state(directory.path()).0, state(directory.path()).1 & 0o2770), (group, 0o2770));
    assert_eq!(state(&at("a/b")).0, group);
    assert_eq!(state(&at("a/b")).1 & 0o2770, 0o2770);
    assert_eq!(state(&at("a/b/file")), (group, 0o660));
    assert_eq!(state(&elsewhere.path().join("file")), (group - 7, 0o600));
    fs::set_permissions(at("a/b/file"), fs::Permissions::from_mode(0o600)).unwrap();
    set_up(&with("OnRootMismatch"), claim(), volume("local", directory.path())).await.unwrap();
    assert_eq!(state(&at("a/b/file")).1, 0o600, "the directory belongs to the group already");
}

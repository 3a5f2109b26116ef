use super::mounts::find_mounts;
use super::*;
use crate::objects::{Data, Kind};
use k8s_openapi::api::core::v1::Container;
use runtime::{HandlerFeatures, MountSource};
use serde_json::{Value, json};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

struct At(jiff::Timestamp);

impl Clock for At {
    fn now(&self) -> jiff::Timestamp {
        self.0
    }
}

/// The objects of the API, before or after they changed.
#[derive(Clone, Copy)]
enum Objects {
    Before,
    After,
}

#[async_trait::async_trait]
impl Source for Objects {
    async fn data(&self, kind: Kind, _: &str, name: &str) -> Result<Option<Arc<Data>>, crate::objects::Error> {
        let data = |p: &[(&str, &str)]| {
            let all: Data = p.iter().map(|(k, v)| ((*k).to_owned(), v.to_string().into())).collect();
            Some(Arc::new(all))
        };
        if matches!(self, Self::After) {
            return Ok(match (kind, name) {
                (Kind::ConfigMap, "cm") => data(&[("one", "new"), ("three", "3")]),
                (Kind::Secret, "s") => data(&[("password", "changed")]),
                _ => None,
            });
        }
        Ok(match (kind, name) {
            (Kind::ConfigMap, "cm") => data(&[("one", "1"), (".two", "2")]),
            (Kind::ConfigMap, "big") => data(&[("k", &"x".repeat(1 << 20))]),
            (Kind::Secret, "s") => data(&[("password", "pw")]),
            _ => None,
        })
    }
}

#[async_trait::async_trait]
impl Tokens for Objects {
    async fn issue(&self, _: &Pod, audience: Option<&str>, _: Option<i64>) -> Result<token::Issued, token::Error> {
        let token = if matches!(self, Self::Before) { "token" } else { "renewed token" };
        let token = format!("{token} for {}", audience.unwrap_or("the API"));
        Ok(token::Issued { token, ..token::Issued::default() })
    }
}

/// A cluster without claims.
struct NoClaims;

#[async_trait::async_trait]
impl Claims for NoClaims {
    async fn claim(&self, _: &str, name: &str) -> Result<api::PersistentVolumeClaim, client::Error> {
        Err(client::Error::Unexpected(format!("persistentvolumeclaims {name:?} not found")))
    }

    async fn volume(&self, name: &str) -> Result<api::PersistentVolume, client::Error> {
        Err(client::Error::Unexpected(format!("persistentvolumes {name:?} not found")))
    }

    async fn node_labels(&self) -> Result<BTreeMap<String, String>, client::Error> {
        Ok(BTreeMap::new())
    }
}

fn pod(volumes: serde_json::Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u1", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c"}], "volumes": volumes}
    }))
    .unwrap()
}

async fn set_up(root: &Path, volumes: serde_json::Value) -> Result<BTreeMap<String, PathBuf>, SetUpError> {
    manager(root).set_up(&pod(volumes), &Objects::Before, &Objects::Before, &NodeInfo::default(), None).await
}

fn manager(root: &Path) -> Volumes {
    let clock = Arc::new(At(jiff::Timestamp::from_second(1_000).unwrap()));
    Volumes::new(root.to_owned(), clock, Memory::Plain, usize::MAX, Arc::new(NoClaims))
}

/// File system calls ran on the threads that serve all pods: one that hung blocked them all.
#[test]
fn the_kernel_is_not_waited_for_on_a_worker_thread() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let root = tempfile::tempdir().unwrap();
        let made = root.path().join("made");
        let volumes = json!([
            {"name": "a", "hostPath": {"path": made, "type": "DirectoryOrCreate"}},
            {"name": "b", "emptyDir": {}},
        ]);
        for (volume, path) in [("a", made.clone()), ("b", root.path().join("u1"))] {
            let only = volumes.as_array().unwrap().iter().filter(|v| v["name"] == volume).cloned().collect();
            // The only blocking thread is busy.
            let (free, busy) = std::sync::mpsc::channel::<()>();
            tokio::task::spawn_blocking(move || busy.recv());
            let mut set_up = std::pin::pin!(set_up(root.path(), only));
            let early = tokio::time::timeout(std::time::Duration::from_millis(50), set_up.as_mut()).await;
            assert!(early.is_err() && !path.exists(), "{volume} was made on the worker thread");
            drop(free);
            assert!(set_up.await.is_ok() && path.exists(), "{volume}");
        }
    });
}

fn files(at: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(at).unwrap().flatten().filter(|e| !e.file_name().to_string_lossy().starts_with(".."));
    entries
        .filter(|e| e.path().is_file())
        .map(|e| (e.file_name().to_string_lossy().into_owned(), fs::read_to_string(e.path()).unwrap()))
        .collect()
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

/// Many items of one or several volumes may show the same large value.
#[tokio::test]
async fn content_does_not_multiply() {
    let dir = tempfile::tempdir().unwrap();
    let items = |n: usize| -> Vec<_> { (0..n).map(|i| json!({"key": "k", "path": format!("{i}")})).collect() };
    let one = |n| json!({"configMap": {"name": "big", "items": items(n)}});
    let source = one(1000);
    for volumes in [
        json!([{"name": "v", "projected": {"sources": [source, one(1)]}}]),
        (0..70).map(|i| json!({"name": format!("v{i}"), "configMap": {"name": "big"}})).collect(),
    ] {
        let e = set_up(dir.path(), volumes).await.unwrap_err();
        assert!(e.to_string().contains("take more than 64 MiB"), "{e}");
    }
    let mut few = one(10);
    few["name"] = "v".into();
    set_up(dir.path(), json!([few])).await.unwrap();
}

#[test]
fn a_container_has_only_so_many_mounts() {
    let many: Vec<_> = (0..1001).map(|i| json!({"name": "v", "mountPath": format!("/{i}")})).collect();
    let c: Container = serde_json::from_value(json!({"name": "c", "volumeMounts": many})).unwrap();
    let volumes = BTreeMap::from([("v".to_owned(), PathBuf::from("/"))]);
    let e = find_mounts(&pod(json!([])), &c, &volumes, &[], HandlerFeatures::ALL).unwrap_err();
    assert!(e.to_string().contains("1001 volume mounts"), "{e}");
}

/// Clauses: K06
#[tokio::test]
async fn volumes_hold_what_they_are_made_from() {
    let dir = tempfile::tempdir().unwrap();
    let got = set_up(
        dir.path(),
        json!([
            {"name": "all", "configMap": {"name": "cm"}},
            {"name": "some", "configMap": {"name": "cm", "items": [{"key": "one", "path": "uno", "mode": 0o400}]}},
            {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o440}},
            {"name": "absent", "secret": {"secretName": "none", "optional": true}},
            {"name": "self", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            {"name": "mix", "projected": {"sources": [
                {"configMap": {"name": "cm", "items": [{"key": "one", "path": "one"}]}},
                {"serviceAccountToken": {"path": "token", "audience": "vault"}},
                {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}},
            {"name": "scratch", "emptyDir": {}},
        ]),
    )
    .await
    .unwrap();
    let check = |name: &str, expected: &[(&str, &str)]| assert_eq!(files(&got[name]), map(expected), "{name}");
    check("all", &[("one", "1"), (".two", "2")]);
    check("some", &[("uno", "1")]);
    check("secret", &[("password", "pw")]);
    check("absent", &[]);
    check("self", &[("labels", "a=\"b\"")]);
    check("mix", &[("one", "1"), ("token", "token for vault"), ("name", "p")]);
    let mode = |p: PathBuf| fs::metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(got["some"].join("uno")), 0o400);
    assert_eq!(mode(got["secret"].join("password")), 0o440);
    assert_eq!(mode(got["scratch"].clone()), 0o777);
    manager(dir.path()).tear_down("u1").await.unwrap();
    assert!(!dir.path().join("u1").exists());
}

#[tokio::test]
async fn reports_missing_objects() {
    let dir = tempfile::tempdir().unwrap();
    let check = async |v: serde_json::Value, expected: &str| {
        let e = set_up(dir.path(), json!([v])).await.unwrap_err();
        assert_eq!(e.to_string(), format!("MountVolume.SetUp failed for volume \"v\" : {expected}"));
    };
    check(json!({"name": "v", "configMap": {"name": "none"}}), "configmap \"none\" not found").await;
    check(json!({"name": "v", "secret": {"secretName": "none"}}), "secret \"none\" not found").await;
    let items = json!([{"key": "nope", "path": "x"}]);
    check(
        json!({"name": "v", "configMap": {"name": "cm", "items": items}}),
        "references non-existent config key: nope",
    )
    .await;
}

#[test]
fn sub_paths_stay_inside() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("v");
    fs::create_dir(&root).unwrap();
    std::os::unix::fs::symlink("/etc", root.join("out")).unwrap();
    fs::write(root.join("file"), "x").unwrap();
    let pod = pod(json!([{"name": "v", "emptyDir": {}}]));
    let volumes = BTreeMap::from([("v".to_owned(), root.clone())]);
    let env = [("POD".to_owned(), "p1".to_owned())];
    let check = |mount: serde_json::Value| {
        let c: Container = serde_json::from_value(json!({"name": "c", "volumeMounts": [mount]})).unwrap();
        find_mounts(&pod, &c, &volumes, &env, HandlerFeatures::ALL).map(|m| match &m[0].source {
            MountSource::Below { root: r, path } if *r == root => path.display().to_string(),
            other => format!("{other:?}"),
        })
    };
    let at = |extra: serde_json::Value| {
        let mut m = json!({"name": "v", "mountPath": "/v"});
        m.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        m
    };
    assert_eq!(check(at(json!({"subPath": "a/b"}))).unwrap(), "a/b");
    assert_eq!(check(at(json!({"subPath": "file"}))).unwrap(), "file");
    assert_eq!(check(at(json!({"subPathExpr": "logs/$(POD)"}))).unwrap(), "logs/p1");
    assert!(check(at(json!({"subPathExpr": "$(NOPE)"}))).is_err());
    assert!(check(at(json!({"subPath": "../x"}))).is_err());
    let refused = check(at(json!({"subPath": "out/passwd"}))).unwrap_err().to_string();
    let expected = "failed to prepare subPath for volumeMount \"v\" of container \"c\": subPath \"out/passwd\" leads out of its volume";
    assert_eq!(refused, expected);
}

/// The token of a service account belongs to the user of all containers, also where the pod's volumes have a group.
#[tokio::test]
async fn a_token_belongs_to_the_user_of_the_containers() {
    for (group, mode) in [(None, 0o600), (Some(3000), 0o640)] {
        let dir = tempfile::tempdir().unwrap();
        let mut p = pod(json!([{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]));
        let context = json!({"runAsUser": 2000, "fsGroup": group});
        p.spec.as_mut().unwrap().security_context = Some(serde_json::from_value(context).unwrap());
        let volumes = manager(dir.path());
        let got = volumes.set_up(&p, &Objects::Before, &Objects::Before, &NodeInfo::default(), None).await.unwrap();
        let file = fs::metadata(got["v"].join("token")).unwrap();
        let owner = (file.uid(), file.permissions().mode() & 0o777);
        assert_eq!(owner, (2000, mode), "group {group:?}");
        assert!(group.is_none_or(|g| g == file.gid()));
    }
}

/// A volume of each type, its files after it is set up and after a refresh, and the objects that it reads.
struct Case {
    field: &'static str,
    source: Value,
    files: &'static [(&'static str, &'static str)],
    refreshed: &'static [(&'static str, &'static str)],
    references: &'static [(Kind, &'static str)],
    shows_metadata: bool,
    is_in_memory: bool,
}

fn cases(host: &Path) -> Vec<Case> {
    const CM: (Kind, &str) = (Kind::ConfigMap, "cm");
    const SECRET: (Kind, &str) = (Kind::Secret, "s");
    let labels = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
    let plain = |field, source, files, refreshed, references| Case {
        field,
        source,
        files,
        refreshed,
        references,
        shows_metadata: false,
        is_in_memory: false,
    };
    vec![
        plain("hostPath", json!({"path": host, "type": "DirectoryOrCreate"}), &[], &[("kept", "k")], &[]),
        plain("emptyDir", json!({}), &[], &[("kept", "k")], &[]),
        Case { is_in_memory: true, ..plain("emptyDir", json!({"medium": "Memory"}), &[], &[("kept", "k")], &[]) },
        plain(
            "configMap",
            json!({"name": "cm"}),
            &[("one", "1"), (".two", "2")],
            &[("one", "new"), ("three", "3"), ("kept", "k")],
            &[CM],
        ),
        Case {
            is_in_memory: true,
            ..plain(
                "secret",
                json!({"secretName": "s"}),
                &[("password", "pw")],
                &[("password", "changed"), ("kept", "k")],
                &[SECRET],
            )
        },
        Case {
            is_in_memory: true,
            shows_metadata: true,
            ..plain(
                "downwardAPI",
                json!({"items": labels}),
                &[("labels", "a=\"b\"")],
                &[("labels", "a=\"c\""), ("kept", "k")],
                &[],
            )
        },
        Case {
            is_in_memory: true,
            shows_metadata: true,
            ..plain(
                "projected",
                json!({"sources": [
                    {"configMap": {"name": "cm"}},
                    {"secret": {"name": "s", "items": [{"key": "password", "path": "one"}]}},
                    {"downwardAPI": {"items": labels}},
                    {"serviceAccountToken": {"path": "token"}},
                ]}),
                &[("one", "pw"), (".two", "2"), ("labels", "a=\"b\""), ("token", "token for the API")],
                &[
                    ("one", "changed"),
                    ("three", "3"),
                    ("labels", "a=\"c\""),
                    ("token", "renewed token for the API"),
                    ("kept", "k"),
                ],
                &[CM, SECRET],
            )
        },
    ]
}

/// Sets up, refreshes and tears down a volume of each type. A file that a container wrote survives the refresh.
#[tokio::test]
async fn sets_up_refreshes_and_tears_down_every_type() {
    let root = tempfile::tempdir().unwrap();
    let host = root.path().join("host");
    for case in cases(&host) {
        let field = case.field;
        let mut p = pod(json!([{"name": "v", field: case.source}]));
        let volumes = manager(root.path());
        let node = NodeInfo::default();
        let paths = volumes.set_up(&p, &Objects::Before, &Objects::Before, &node, None).await.unwrap();
        let path = &paths["v"];
        assert_eq!(files(path), map(case.files), "{field}");
        fs::write(path.join("kept"), "k").unwrap();
        p.metadata.labels = Some(map(&[("a", "c")]));
        volumes.refresh(&p, &Objects::After, &Objects::After, &node, None).await.unwrap();
        assert_eq!(files(path), map(case.refreshed), "{field}");

        let expected = case.references.iter().map(|(kind, name)| Reference {
            kind: *kind,
            namespace: "n".into(),
            name: (*name).into(),
        });
        assert_eq!(references(&p), expected.collect(), "{field}");
        assert_eq!(shows_metadata(&p), case.shows_metadata, "{field}");
        assert_eq!(count_in_memory(&p), usize::from(case.is_in_memory), "{field}");

        volumes.tear_down("u1").await.unwrap();
        assert!(!root.path().join("u1").exists(), "{field}");
        assert_eq!(path.exists(), field == "hostPath", "{field}");
    }
    // Claims have tests of their own, in `claim_tests`, and drivers in `csi`; images have no files on the host.
    let others = ["persistentVolumeClaim", "ephemeral", "image", "csi", "nfs"];
    let tested: BTreeSet<&str> = cases(&host).iter().map(|c| c.field).chain(others).collect();
    assert_eq!(tested, TYPES.iter().map(|t| t.field).collect(), "every type has a case");
}

/// Clauses: P02.image-volume
#[test]
fn images_are_mounted_read_only_by_the_runtime() {
    let pod = pod(json!([{"name": "v", "image": {"reference": "example.org/data:1"}}]));
    let container = |mount: serde_json::Value| -> api::Container {
        let mut mount = mount;
        (mount["name"], mount["mountPath"]) = ("v".into(), "/data".into());
        serde_json::from_value(json!({"name": "c", "volumeMounts": [mount]})).unwrap()
    };
    let volumes = std::collections::BTreeMap::from([("v".to_owned(), std::path::PathBuf::new())]);
    let find = |mount| mounts::find_mounts(&pod, &container(mount), &volumes, &[], HandlerFeatures::ALL);
    for (mount, path) in [(json!({}), ""), (json!({"subPath": "a/b"}), "a/b")] {
        let found = &find(mount).unwrap()[0];
        let source = runtime::MountSource::Image { image: "example.org/data:1".into(), path: path.into() };
        assert_eq!((&found.source, found.read_only), (&source, true));
    }
    let error = find(json!({"subPath": "../b"})).unwrap_err().to_string();
    assert_eq!(error, "subPath \"../b\" must be relative and must not contain '..'");
    assert_eq!(images(&pod, &container(json!({}))).len(), 1);
    let other: api::Container = serde_json::from_value(json!({"name": "c"})).unwrap();
    assert!(images(&pod, &other).is_empty(), "only what is mounted is pulled");
}

/// Every type of the schema that has no row in the table is refused, and so is a source of a projected volume.
#[tokio::test]
async fn refuses_types_without_a_row() {
    let root = tempfile::tempdir().unwrap();
    let schema = kinds::catalog().definitions.get("io.k8s.api.core.v1.Volume").unwrap();
    let known: BTreeSet<&str> = TYPES.iter().map(|t| t.field).chain(["name"]).collect();
    let fields: Vec<&str> = schema.fields.iter().map(|f| &*f.name).collect();
    assert!(known.iter().all(|name| fields.contains(name)), "{fields:?}");
    for field in fields.into_iter().filter(|f| !known.contains(f)) {
        let volume = json!({"name": "v", field: {}});
        // Fields that the source requires do not matter here.
        let Ok(spec) = serde_json::from_value::<Pod>(json!({"spec": {"containers": [], "volumes": [volume]}})) else {
            panic!("{field}")
        };
        assert!(references(&spec).is_empty() && !shows_metadata(&spec), "{field}");
        let e = set_up(root.path(), json!([volume])).await.unwrap_err().to_string();
        let message = "MountVolume.SetUp failed for volume \"v\" : this kind of volume is not supported by this node";
        assert_eq!(e, message, "{field}");
    }
    let source = json!({"clusterTrustBundle": {"path": "p", "name": "n"}});
    let e = set_up(root.path(), json!([{"name": "v", "projected": {"sources": [source]}}])).await.unwrap_err();
    let message =
        "MountVolume.SetUp failed for volume \"v\" : this source of a projected volume is not supported by this node";
    assert_eq!(e.to_string(), message);
    // A source that the API server emptied, as its feature is off.
    set_up(root.path(), json!([{"name": "v", "projected": {"sources": [{}]}}])).await.unwrap();
}

/// A type that holds something outside of its directory.
struct Attached(String);

#[async_trait::async_trait]
impl Volume for Attached {
    fn from_spec(volume: &api::Volume) -> Option<Self> {
        volume.nfs.as_ref().map(|s| Self(s.path.clone()))
    }

    async fn set_up(&self, _: &PodContext<'_>, directory: &Path) -> Result<PathBuf, Error> {
        fs::create_dir_all(directory).map_err(io_error("creating"))?;
        fs::write(directory.join("attached"), &self.0).map_err(io_error("attaching"))?;
        Ok(directory.to_owned())
    }

    async fn tear_down(directory: &Path) -> Result<(), Error> {
        let device = fs::read_to_string(directory.join("attached")).map_err(io_error("detaching"))?;
        fs::remove_file(device).map_err(io_error("detaching"))
    }
}

/// A row is all that a new type needs. Its volumes are torn down from their directories, also of a pod that is gone from the API, and
/// the directory stays for another try if that fails.
#[tokio::test]
async fn tears_down_from_the_directory_of_a_volume() {
    static TYPES: &[Type] = &[Type::new::<Attached>("nfs", "attached")];
    let root = tempfile::tempdir().unwrap();
    let device = root.path().join("device");
    fs::write(&device, "").unwrap();
    let mut volumes = manager(root.path());
    volumes.types = TYPES;
    let p = pod(json!([{"name": "v", "nfs": {"server": "s", "path": device}}]));
    volumes.set_up(&p, &Objects::Before, &Objects::Before, &NodeInfo::default(), None).await.unwrap();
    fs::rename(&device, root.path().join("busy")).unwrap();
    assert!(volumes.tear_down("u1").await.is_err() && root.path().join("u1").exists());
    fs::rename(root.path().join("busy"), &device).unwrap();
    volumes.tear_down("u1").await.unwrap();
    assert!(!device.exists() && !root.path().join("u1").exists());
}

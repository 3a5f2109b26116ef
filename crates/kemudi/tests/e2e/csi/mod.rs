//! Volumes of a CSI driver that runs in a pod, with manifests as drivers have them. The test has the duties of the driver's provisioner,
//! attacher and resizer.

pub mod driver;

use crate::cluster::data_dir;
use crate::runner::Case;
use crate::story::{Story, condition};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

pub const TESTS: &[Case] = &[
    ("csi::pods_share_a_volume_that_is_attached_first", pods_share_a_volume_that_is_attached_first),
    ("csi::inline_volumes_and_disks_come_and_go_with_their_pods", inline_volumes_and_disks_come_and_go_with_their_pods),
    ("csi::devices_are_in_containers_that_list_them", devices_are_in_containers_that_list_them),
    ("csi::a_volume_grows_while_a_pod_uses_it", a_volume_grows_while_a_pod_uses_it),
];

pub const ALONE: &[Case] =
    &[("csi::a_killed_agent_finds_its_volumes_and_undoes_them", a_killed_agent_finds_its_volumes_and_undoes_them)];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// A driver in a pod of a test.
struct Driver<'a> {
    s: &'a Story,
    name: String,
    data: PathBuf,
}

impl<'a> Driver<'a> {
    /// Starts the driver and waits until it is registered.
    fn start(s: &'a Story, spec: Value) -> Self {
        // Names of drivers are short; this part of a namespace's is its own.
        let number = s.ns.split('-').next().unwrap();
        let driver = Self { s, name: format!("{number}.csi.example.com"), data: s.dir.join("csi") };
        let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": driver.name},
            "spec": spec});
        s.post("/apis/storage.k8s.io/v1/csidrivers", object);
        driver.pod();
        let node = s.until_at("/apis/storage.k8s.io/v1/csinodes/e2e", |n| driver.entry(n).is_some());
        let entry = driver.entry(&node).unwrap();
        assert_eq!(entry["nodeID"], "the-node");
        assert_eq!(entry["allocatable"]["count"], 7);
        assert_eq!(entry["topologyKeys"], json!(["topology.test.example.com/rack"]));
        driver
    }

    fn pod(&self) {
        let host = |name: &str, path: &str, kind: &str| json!({"name": name, "hostPath": {"path": path, "type": kind}});
        let exe = std::env::current_exe().unwrap();
        let plugin = format!("/var/lib/kubelet/plugins/{}", self.name);
        let volumes = json!([
            host("socket-dir", &plugin, "DirectoryOrCreate"),
            host("mountpoint-dir", "/var/lib/kubelet/pods", "DirectoryOrCreate"),
            host("plugins-dir", "/var/lib/kubelet/plugins", "Directory"),
            host("registration-dir", "/var/lib/kubelet/plugins_registry", "Directory"),
            host("dev-dir", "/dev", "Directory"),
            host("data", self.data.to_str().unwrap(), "DirectoryOrCreate"),
            host("exe", exe.parent().unwrap().to_str().unwrap(), "Directory"),
            host("lib", "/lib", "Directory"),
            host("lib64", "/lib64", "Directory"),
            host("usr", "/usr", "Directory"),
            host("sbin", "/sbin", "Directory"),
            host("bin", "/bin", "Directory"),
        ]);
        let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
        let both =
            |name: &str, path: &str| json!({"name": name, "mountPath": path, "mountPropagation": "Bidirectional"});
        let mounts = json!([
            mount("socket-dir", driver::SOCKETS),
            both("mountpoint-dir", "/var/lib/kubelet/pods"),
            both("plugins-dir", "/var/lib/kubelet/plugins"),
            mount("registration-dir", driver::REGISTRATION),
            mount("dev-dir", "/dev"),
            mount("data", driver::DATA),
            mount("exe", "/exe"),
            mount("lib", "/lib"),
            mount("lib64", "/lib64"),
            mount("usr", "/usr"),
            mount("sbin", "/sbin"),
            mount("bin", "/bin"),
        ]);
        let program = format!("/exe/{}", exe.file_name().unwrap().to_str().unwrap());
        let container = json!({"name": "driver", "image": crate::story::IMAGE, "command": [program, driver::MODE, self.name],
            "securityContext": {"privileged": true}, "volumeMounts": mounts});
        let spec = json!({"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 0});
        self.s.create("pods", json!({"metadata": {"name": "driver"}, "spec": spec}));
    }

    fn entry(&self, node: &Value) -> Option<Value> {
        let drivers = node["spec"]["drivers"].as_array()?;
        drivers.iter().find(|d| d["name"] == self.name.as_str()).cloned()
    }

    /// A claim bound to a volume of the driver, as its provisioner makes it.
    fn volume(&self, name: &str, handle: &str, mode: &str) {
        self.volume_of_mode(name, handle, mode, "Filesystem");
    }

    fn volume_of_mode(&self, name: &str, handle: &str, mode: &str, volume_mode: &str) {
        let s = self.s;
        let spec = json!({"accessModes": [mode], "volumeMode": volume_mode, "storageClassName": "", "volumeName": self.volume_name(name),
            "resources": {"requests": {"storage": "16Mi"}}});
        s.create("persistentvolumeclaims", json!({"metadata": {"name": name}, "spec": spec}));
        let volume = json!({"metadata": {"name": self.volume_name(name)}, "spec": {
            "capacity": {"storage": "16Mi"}, "accessModes": [mode], "volumeMode": volume_mode, "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": s.ns, "name": name},
            "csi": {"driver": self.name, "volumeHandle": handle, "fsType": "ext4", "volumeAttributes": {"who": "provisioner"}}}});
        s.post("/api/v1/persistentvolumes", volume);
        s.until(&format!("persistentvolumeclaims/{name}"), |c| c["status"]["phase"] == "Bound");
    }

    fn volume_name(&self, claim: &str) -> String {
        format!("{}-{claim}", self.s.ns)
    }

    fn consumer(&self, pod: &str, claim: &str, more: Value) {
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
        let mut spec = json!({"volumes": volumes, "terminationGracePeriodSeconds": 1});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.s.shell_pod(pod, FOREVER, spec, json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
    }

    /// The attachment of the driver's only volume.
    fn attachment(&self) -> Option<Value> {
        let all = self.s.get_at("/apis/storage.k8s.io/v1/volumeattachments");
        all["items"].as_array()?.iter().find(|a| a["spec"]["attacher"] == self.name.as_str()).cloned()
    }

    /// Attaches the volume, as the attacher does.
    fn attach(&self) {
        let attachment = self.s.eventually("the attachment", || self.attachment());
        let name = attachment["metadata"]["name"].as_str().unwrap();
        self.s.patch_at(
            &format!("/apis/storage.k8s.io/v1/volumeattachments/{name}/status"),
            json!({"status": {"attached": true, "attachmentMetadata": {"device": "sdx"}}}),
        );
    }

    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.data.join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn count(&self, call: &str) -> usize {
        self.calls().iter().filter(|c| *c == call).count()
    }

    /// Mount points of the machine with volumes of this driver: those of a pod, by its UID, or `staged` ones.
    fn mounts(&self, part: &str) -> Vec<String> {
        let part = if part == "staged" { &self.name } else { part };
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let node = format!("{}/node/", data_dir(&self.s.cluster.directory));
        let points = table.lines().filter_map(|l| l.split(' ').nth(4));
        points.filter(|p| p.starts_with(&node) && p.contains("csi") && p.contains(part)).map(str::to_owned).collect()
    }

    fn end(self) {
        self.s.ok(&["delete", "pod", "driver"]);
        self.s.gone("pods/driver");
        // A driver that ends in order removes its socket; this one was killed.
        fs::remove_file(self.socket()).unwrap();
        self.s.until_at("/apis/storage.k8s.io/v1/csinodes/e2e", |n| self.entry(n).is_none());
        self.s.ok(&["delete", "csidriver", &self.name]);
    }

    fn socket(&self) -> PathBuf {
        let node = PathBuf::from(data_dir(&self.s.cluster.directory)).join("node");
        node.join("plugins_registry").join(format!("{}-reg.sock", self.name))
    }
}

/// Clauses: P02.csi
fn pods_share_a_volume_that_is_attached_first(s: &Story) {
    let d = Driver::start(s, json!({"attachRequired": true, "podInfoOnMount": true, "fsGroupPolicy": "File"}));
    d.volume("data", "shared", "ReadWriteOnce");
    d.consumer("p", "data", json!({"securityContext": {"fsGroup": 4242}}));
    let attachment = s.eventually("the attachment", || d.attachment());
    assert_eq!(attachment["spec"]["nodeName"], "e2e");
    assert_ne!(condition(&s.get("pods/p"), "Ready"), "True");
    assert_eq!(d.count("stage shared"), 0, "it is not attached");
    d.attach();
    s.ready("p");
    assert!(s.event("p", "SuccessfulAttachVolume").starts_with("AttachVolume.Attach succeeded for volume"));
    s.sh("p", "echo kept > /v/file");
    assert_eq!(fs::read_to_string(d.data.join("shared/file")).unwrap(), "kept\n");
    assert_eq!(s.sh("p", "stat -c %g /v"), "4242\n");
    assert!(fs::read_to_string(d.data.join("stage-context")).unwrap().contains("\"device\": \"sdx\""));
    let context = fs::read_to_string(d.data.join("publish-context")).unwrap();
    assert!(context.contains("\"csi.storage.k8s.io/pod.name\": \"p\"") && context.contains("provisioner"), "{context}");
    let unique = format!("kubernetes.io/csi/{}^shared", d.name);
    let node = s.get_at("/api/v1/nodes/e2e");
    assert!(node["status"]["volumesInUse"].as_array().unwrap().contains(&json!(unique)));
    assert!(node["status"]["volumesAttached"].to_string().contains(&unique));
    assert_eq!(node["metadata"]["labels"]["topology.test.example.com/rack"], "r1");

    d.consumer("q", "data", json!({}));
    s.ready("q");
    assert_eq!(s.sh("q", "cat /v/file"), "kept\n");
    s.ok(&["delete", "pod", "p"]);
    s.gone("pods/p");
    assert_eq!(s.sh("q", "cat /v/file"), "kept\n");
    assert_eq!((d.count("unpublish shared"), d.count("unstage shared")), (1, 0));
    s.ok(&["delete", "pod", "q"]);
    s.gone("pods/q");
    s.eventually("the attachment to be deleted", || d.attachment().is_none().then_some(()));
    assert_eq!((d.count("unpublish shared"), d.count("unstage shared")), (2, 1));
    assert!(d.mounts("staged").is_empty());
    d.end();
}

/// Clauses: P02.csi
fn inline_volumes_and_disks_come_and_go_with_their_pods(s: &Story) {
    let modes = json!(["Persistent", "Ephemeral"]);
    let d = Driver::start(s, json!({"attachRequired": false, "volumeLifecycleModes": modes}));
    let volumes = json!([{"name": "v", "csi": {"driver": d.name, "readOnly": true}}]);
    let mounts = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    s.shell_pod("inline", FOREVER, json!({"volumes": volumes, "terminationGracePeriodSeconds": 1}), mounts);
    s.ready("inline");
    assert!(!s.exec("inline", &["touch", "/v/file"]).status.success(), "it is read-only");
    s.ok(&["delete", "pod", "inline"]);
    s.gone("pods/inline");

    // Only one pod may use it, and the driver fails first.
    d.volume("disk", "disk1", "ReadWriteOncePod");
    fs::create_dir_all(d.data.join("fail")).unwrap();
    fs::write(d.data.join("fail/stage"), "").unwrap();
    d.consumer("p", "disk", json!({}));
    let why = s.event("p", "FailedMount");
    assert!(why.contains("MountVolume.MountDevice failed for volume"), "{why}");
    assert!(why.contains("rpc error: code = Internal desc = made to fail"), "{why}");
    fs::remove_file(d.data.join("fail/stage")).unwrap();
    s.ready("p");
    assert!(s.sh("p", "mount").contains(" on /v type ext4"));
    s.sh("p", "echo x > /v/file");
    s.ok(&["delete", "pod", "p"]);
    s.gone("pods/p");
    d.consumer("p", "disk", json!({}));
    s.ready("p");
    assert_eq!(s.sh("p", "cat /v/file"), "x\n");
    s.ok(&["delete", "pod", "p"]);
    s.gone("pods/p");
    assert!(d.mounts("staged").is_empty());
    d.end();
}

/// Clauses: P02.csi P02.block
fn devices_are_in_containers_that_list_them(s: &Story) {
    let d = Driver::start(s, json!({"attachRequired": false}));
    d.volume_of_mode("data", "raw", "ReadWriteOnce", "Block");
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let devices = json!({"volumeDevices": [{"name": "v", "devicePath": "/dev/data"}]});
    s.shell_pod("p", FOREVER, json!({"volumes": volumes, "terminationGracePeriodSeconds": 1}), devices);
    s.ready("p");
    s.sh("p", "echo kept | dd of=/dev/data bs=512 conv=sync");
    assert!(s.sh("p", "dd if=/dev/data bs=5 count=1").starts_with("kept"));
    assert!(fs::read(d.data.join("raw")).unwrap().starts_with(b"kept"), "it is the driver's device");
    let uid = s.get("pods/p")["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_eq!(d.mounts(&uid).len(), 1);
    s.ok(&["delete", "pod", "p"]);
    s.gone("pods/p");
    assert!(d.mounts(&uid).is_empty());
    assert_eq!((d.count("unpublish raw"), d.count("unstage raw")), (1, 1));

    // A local volume that is a device, which no container may mount.
    let wrong = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    s.shell_pod("wrong", FOREVER, json!({"volumes": volumes}), wrong);
    let why = s.event("wrong", "FailedMount");
    assert!(why.contains("volume v has volumeMode Block, but is specified in volumeMounts"), "{why}");
    s.ok(&["delete", "pod", "wrong", "--grace-period=0", "--force"]);
    d.end();
}

/// Clauses: P02.csi
fn a_volume_grows_while_a_pod_uses_it(s: &Story) {
    let d = Driver::start(s, json!({"attachRequired": false}));
    d.volume("data", "grows", "ReadWriteOnce");
    d.consumer("p", "data", json!({}));
    s.ready("p");
    // The driver's resizer has made the volume larger, and the node has to make the file system larger.
    s.patch_at(
        &format!("/api/v1/persistentvolumes/{}", d.volume_name("data")),
        json!({"spec": {"capacity": {"storage": "32Mi"}}}),
    );
    let pending = json!([{"type": "FileSystemResizePending", "status": "True"}]);
    s.patch_at(
        &format!("/api/v1/namespaces/{}/persistentvolumeclaims/data/status", s.ns),
        json!({"status": {"conditions": pending}}),
    );
    let mut claim = Value::Null;
    for _ in 0..4 {
        claim = s.eventually("the size of the claim, or half a minute", {
            let begun = tokio::time::Instant::now();
            move || {
                let c = s.get("persistentvolumeclaims/data");
                let done = c["status"]["capacity"]["storage"] == "32Mi";
                (done || begun.elapsed().as_secs() > 25).then_some(c)
            }
        });
        if claim["status"]["capacity"]["storage"] == "32Mi" {
            break;
        }
    }
    assert_eq!(claim["status"]["capacity"]["storage"], "32Mi");
    assert_eq!(claim["status"]["conditions"], Value::Null);
    assert_eq!(fs::read_to_string(d.data.join("expanded")).unwrap(), (32 << 20).to_string());
    assert!(s.event("data", "FileSystemResizeSuccessful").contains("MountVolume.NodeExpandVolume succeeded"));
    s.ok(&["delete", "pod", "p"]);
    s.gone("pods/p");
    d.end();
}

/// Clauses: P02.csi P02.restart
fn a_killed_agent_finds_its_volumes_and_undoes_them(s: &Story) {
    let d = Driver::start(s, json!({"attachRequired": false}));
    d.volume("data", "stays", "ReadWriteOnce");
    d.consumer("p", "data", json!({}));
    s.ready("p");
    s.sh("p", "echo kept > /v/file");
    let uid = s.get("pods/p")["metadata"]["uid"].as_str().unwrap().to_owned();
    s.cluster.kill();
    s.cluster.start_again();
    s.until_at("/apis/storage.k8s.io/v1/csinodes/e2e", |n| d.entry(n).is_some());
    assert_eq!(s.sh("p", "cat /v/file"), "kept\n");
    assert_eq!((d.mounts(&uid).len(), d.mounts("staged").len()), (1, 1), "nothing is mounted twice");
    d.consumer("q", "data", json!({}));
    s.ready("q");
    // The agent ends while the driver refuses to unpublish, and the pod is deleted meanwhile.
    fs::create_dir_all(d.data.join("fail")).unwrap();
    fs::write(d.data.join("fail/unpublish"), "").unwrap();
    s.ok(&["delete", "pod", "p", "--wait=false"]);
    s.eventually("a failed call", || (d.count("unpublish stays") > 0).then_some(()));
    s.cluster.kill();
    fs::remove_file(d.data.join("fail/unpublish")).unwrap();
    s.cluster.start_again();
    s.gone("pods/p");
    assert!(d.mounts(&uid).is_empty());
    assert_eq!(s.sh("q", "cat /v/file"), "kept\n");
    s.ok(&["delete", "pod", "q"]);
    s.gone("pods/q");
    assert!(d.mounts("staged").is_empty());
    assert_eq!(d.count("unstage stays"), 1);
    d.end();
}

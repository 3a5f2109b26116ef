//! Volumes that show the files of an image.

use crate::runner::Case;
use crate::story::Story;
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("image_volumes::files_of_an_image_are_read_only", read_only),
    ("image_volumes::paths_in_an_image", sub_paths),
    ("image_volumes::missing_images", missing),
];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
const IMAGE: &str = "kemudi.local/demo";

fn pod(s: &Story, name: &str, source: Value, mounts: Value) {
    let volumes = json!([{"name": "v", "image": source}]);
    s.shell_pod(name, FOREVER, json!({"volumes": volumes}), json!({"volumeMounts": mounts}));
}

/// Clauses: P02.image-volume
fn read_only(s: &Story) {
    pod(s, "p", json!({"reference": IMAGE}), json!([{"name": "v", "mountPath": "/data"}]));
    let status = s.ready("p");
    let mounts = status["status"]["containerStatuses"][0]["volumeMounts"].as_array().unwrap();
    assert!(mounts.iter().any(|m| m["name"] == "v" && m["mountPath"] == "/data"), "{mounts:?}");
    assert!(s.sh("p", "ls /data").contains("kemudi"), "the program of the image");
    assert_eq!(s.sh("p", "touch /data/new 2> /dev/null || echo read-only"), "read-only\n");
    let options = s.sh("p", "grep ' /data ' /proc/self/mountinfo");
    for option in ["ro,", "nosuid", "nodev", "noexec"] {
        assert!(options.contains(option), "{option} in {options}");
    }
    let message = format!("Container image \"{IMAGE}\" already present on machine and can be accessed by the pod");
    assert!(s.events("p").contains(&("Pulled".to_owned(), message)));
}

/// Clauses: P02.image-volume
fn sub_paths(s: &Story) {
    let source = json!({"reference": IMAGE, "pullPolicy": "Never"});
    pod(s, "whole", source.clone(), json!([{"name": "v", "mountPath": "/data"}]));
    s.ready("whole");
    let directory = s.sh("whole", "cd /data; for f in *; do test -d $f && echo $f; done | head -n 1");
    let directory = directory.trim();
    pod(s, "part", source.clone(), json!([{"name": "v", "mountPath": "/data", "subPath": directory}]));
    s.ready("part");
    assert_eq!(s.sh("part", "ls /data"), s.sh("whole", &format!("ls /data/{directory}")));
    pod(s, "none", source, json!([{"name": "v", "mountPath": "/data", "subPath": "no/such/path"}]));
    let status = s.container("none", |c| c["state"]["waiting"]["reason"] == "CreateContainerError");
    let message = status["state"]["waiting"]["message"].as_str().unwrap();
    assert!(message.starts_with("ImageVolumeMountFailed: "), "{message}");
}

/// Clauses: P02.image-volume P08.err-image-never-pull P08.image-pull-back-off
fn missing(s: &Story) {
    let mount = json!([{"name": "v", "mountPath": "/data"}]);
    let never = json!({"reference": "example.invalid/none:1", "pullPolicy": "Never"});
    pod(s, "never", never.clone(), mount.clone());
    pod(s, "pulled", json!({"reference": "127.0.0.1:1/none:1"}), mount);
    // A volume that no container mounts is no reason to wait.
    pod(s, "unused", never, json!([]));
    s.ready("unused");
    let status = s.container("never", |c| c["state"]["waiting"]["reason"] == "ErrImageNeverPull");
    let message = "Container image \"example.invalid/none:1\" is not present with pull policy of Never";
    assert_eq!(status["state"]["waiting"]["message"], message);
    s.container("pulled", |c| c["state"]["waiting"]["reason"] == "ImagePullBackOff");
    assert_eq!(s.event("pulled", "Pulling"), "Pulling image \"127.0.0.1:1/none:1\"");
}

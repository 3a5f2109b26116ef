//! Validation of each volume source of a pod.

use crate::field_errors::{FieldCase, check_errors};
use crate::pods::{PODS, cluster, pod};
use serde_json::{Value, json};

const V: &str = "/spec/volumes/0";

#[tokio::test]
async fn sources_of_volumes() {
    let c = cluster().await;
    let one = |kind: &str, s: Value| json!({"name": "v", kind: s});
    // A volume that is wrong is none to be mounted.
    const GONE: &str = "spec.containers[0].volumeMounts[0].name: Not found: \"v\"";
    let cases: Vec<FieldCase> = vec![
        (V, json!({"name": "v"}), &[]),
        (
            V,
            one("hostPath", json!({"path": "/a/../b"})),
            &[GONE, "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'"],
        ),
        (V, one("emptyDir", json!({"sizeLimit": "-1"})), &[GONE, "spec.volumes[0].emptyDir.sizeLimit: Forbidden"]),
        (
            V,
            json!({"name": "v", "emptyDir": {}, "cephfs": {"monitors": ["m"]}}),
            &[GONE, "spec.volumes[0].cephFS: Forbidden"],
        ),
        (
            V,
            one("gcePersistentDisk", json!({"pdName": "", "partition": 256})),
            &[
                GONE,
                "spec.volumes[0].persistentDisk.partition: Invalid value: 256: must be between 1 and 255, inclusive",
                "spec.volumes[0].persistentDisk.pdName: Required value",
            ],
        ),
        (
            V,
            one("awsElasticBlockStore", json!({"volumeID": ""})),
            &[GONE, "spec.volumes[0].awsElasticBlockStore.volumeID: Required"],
        ),
        (
            V,
            one("nfs", json!({"server": "s", "path": ""})),
            &[
                GONE,
                "spec.volumes[0].nfs.path: Invalid value: \"\": must be an absolute path",
                "spec.volumes[0].nfs.path: Required",
            ],
        ),
        (
            V,
            one("iscsi", json!({"targetPortal": "t", "iqn": "bad", "lun": 256, "chapAuthSession": true})),
            &[
                GONE,
                "spec.volumes[0].iscsi.iqn: Invalid value: \"bad\": must be valid format starting with iqn, eui, or naa",
                "spec.volumes[0].iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive",
                "spec.volumes[0].iscsi.secretRef: Required",
            ],
        ),
        (V, one("iscsi", json!({"targetPortal": "t", "iqn": "iqn.2001-04.com.example:storage", "lun": 0})), &[]),
        (
            V,
            one("fc", json!({"targetWWNs": ["a"]})),
            &[GONE, "spec.volumes[0].fc.lun: Required value: lun is required if"],
        ),
        (
            V,
            one("flexVolume", json!({"driver": "d", "options": {"k8s.io/a": "b"}})),
            &[
                GONE,
                "spec.volumes[0].flexVolume.options[k8s.io/a]: Invalid value: \"k8s.io/a\": kubernetes.io and k8s.io namespaces are reserved",
            ],
        ),
        (
            V,
            one("azureDisk", json!({"diskName": "d", "diskURI": "u", "kind": "Managed"})),
            &[GONE, "spec.volumes[0].azureDisk.diskURI: Unsupported value: \"u\""],
        ),
        (V, one("csi", json!({"driver": ""})), &[GONE, "spec.volumes[0].csi.driver: Required value"]),
        (V, one("ephemeral", json!({})), &[GONE, "spec.volumes[0].ephemeral.volumeClaimTemplate: Required"]),
        (
            V,
            one(
                "ephemeral",
                json!({"volumeClaimTemplate": {"metadata": {"name": "n"}, "spec": {"accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}}}}),
            ),
            &[GONE, "spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.name: Forbidden: cannot be set"],
        ),
        (V, one("image", json!({})), &[GONE, "spec.volumes[0].image.reference: Required"]),
        (
            V,
            one("secret", json!({"secretName": "s", "defaultMode": 512})),
            &[
                GONE,
                "spec.volumes[0].secret.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
            ],
        ),
        (
            V,
            one("configMap", json!({"name": "m", "items": [{"key": "k", "path": "..a"}]})),
            &[GONE, "spec.volumes[0].configMap.items[0].path: Invalid value: \"..a\": must not start with '..'"],
        ),
        (
            V,
            one(
                "projected",
                json!({"sources": [{"secret": {"name": "s", "items": [{"key": "k", "path": "p"}]}},
                {"configMap": {"name": "m", "items": [{"key": "k", "path": "p"}]}}]}),
            ),
            &[GONE, "spec.volumes[0].projected: Invalid value: \"m\": conflicting duplicate paths"],
        ),
        (
            V,
            one("projected", json!({"sources": [{"secret": {"name": "s"}, "configMap": {"name": "m"}}]})),
            &[
                GONE,
                "spec.volumes[0].projected.sources[0]: Forbidden: may not specify more than 1 volume type per source",
            ],
        ),
        (
            V,
            one(
                "downwardAPI",
                json!({"items": [{"path": "p", "resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}}]}),
            ),
            &[
                GONE,
                "spec.volumes[0].downwardAPI.resourceFieldRef.containerName: Required",
                "spec.volumes[0].downwardAPI.resourceFieldRef.divisor: Invalid value: \"limits.cpu\": only divisor's values 1m and 1 are supported with the cpu resource",
            ],
        ),
    ];
    check_errors(&c, "POST", PODS, &pod(), &cases).await;
}

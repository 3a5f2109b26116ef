//! Describes volume sources: a row per type of source, with its fields.
//!
//! The same rows describe volumes of pods and persistent volumes, whose sources differ in few fields.

use super::claim_spec::{claim_spec, storage_class};
use super::page::{Page, list, pairs, show};
use meta::Value;

/// Longer lines are cut.
const MAX_LENGTH: usize = 140;

/// How a value is formatted, as Go formats its type.
#[derive(Clone, Copy)]
enum Format {
    Text,
    /// The text for a missing value.
    Or(&'static str),
    Flag,
    Number,
    /// `[a b]`
    Words,
    /// `a, b`
    List,
    /// A pointer to a struct of names.
    Reference,
    /// `map[a:b]`
    Map,
    /// A quantity; zero counts as unset.
    Limit,
}
use Format::*;

#[derive(Clone, Copy, PartialEq)]
enum Holder {
    Both,
    Pod,
    Volume,
}
use Holder::*;

/// Title, pointer into the source, format, and the kinds of volumes that have the field.
type Field = (&'static str, &'static str, Format, Holder);

struct Source {
    key: &'static str,
    kind: &'static str,
    fields: &'static [Field],
}

const fn text(title: &'static str, path: &'static str) -> Field {
    (title, path, Text, Both)
}
const READ_ONLY: Field = ("ReadOnly:", "/readOnly", Flag, Both);
const OPTIONAL: Field = ("Optional:", "/optional", Flag, Both);
const FS_TYPE: Field = text("FSType:", "/fsType");
const PATH: Field = text("Path:", "/path");
const VOLUME_ID: Field = text("VolumeID:", "/volumeID");
const PARTITION: Field = ("Partition:", "/partition", Number, Both);
const SECRET: Field = ("SecretRef:", "/secretRef", Reference, Both);

const SOURCES: &[Source] = &[
    Source {
        key: "hostPath",
        kind: "HostPath (bare host directory volume)",
        fields: &[PATH, ("HostPathType:", "/type", Or("<none>"), Both)],
    },
    Source {
        key: "emptyDir",
        kind: "EmptyDir (a temporary directory that shares a pod's lifetime)",
        fields: &[text("Medium:", "/medium"), ("SizeLimit:", "/sizeLimit", Limit, Both)],
    },
    Source {
        key: "gcePersistentDisk",
        kind: "GCEPersistentDisk (a Persistent Disk resource in Google Compute Engine)",
        fields: &[text("PDName:", "/pdName"), FS_TYPE, PARTITION, READ_ONLY],
    },
    Source {
        key: "awsElasticBlockStore",
        kind: "AWSElasticBlockStore (a Persistent Disk resource in AWS)",
        fields: &[VOLUME_ID, FS_TYPE, PARTITION, READ_ONLY],
    },
    Source {
        key: "gitRepo",
        kind: "GitRepo (a volume that is pulled from git when the pod is created)",
        fields: &[text("Repository:", "/repository"), text("Revision:", "/revision")],
    },
    Source {
        key: "secret",
        kind: "Secret (a volume populated by a Secret)",
        fields: &[text("SecretName:", "/secretName"), OPTIONAL],
    },
    Source {
        key: "configMap",
        kind: "ConfigMap (a volume populated by a ConfigMap)",
        fields: &[text("Name:", "/name"), OPTIONAL],
    },
    Source {
        key: "nfs",
        kind: "NFS (an NFS mount that lasts the lifetime of a pod)",
        fields: &[text("Server:", "/server"), PATH, READ_ONLY],
    },
    Source {
        key: "iscsi",
        kind: "ISCSI (an ISCSI Disk resource that is attached to a kubelet's host machine and then exposed to the pod)",
        fields: &[
            text("TargetPortal:", "/targetPortal"),
            text("IQN:", "/iqn"),
            ("Lun:", "/lun", Number, Both),
            text("ISCSIInterface", "/iscsiInterface"),
            FS_TYPE,
            READ_ONLY,
            ("Portals:", "/portals", Words, Both),
            ("DiscoveryCHAPAuth:", "/chapAuthDiscovery", Flag, Both),
            ("SessionCHAPAuth:", "/chapAuthSession", Flag, Both),
            SECRET,
            ("InitiatorName:", "/initiatorName", Or("<none>"), Both),
        ],
    },
    Source {
        key: "glusterfs",
        kind: "Glusterfs (a Glusterfs mount on the host that shares a pod's lifetime)",
        fields: &[
            text("EndpointsName:", "/endpoints"),
            ("EndpointsNamespace:", "/endpointsNamespace", Or("<unset>"), Volume),
            PATH,
            READ_ONLY,
        ],
    },
    Source {
        key: "persistentVolumeClaim",
        kind: "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)",
        fields: &[text("ClaimName:", "/claimName"), READ_ONLY],
    },
    Source {
        key: "ephemeral",
        kind: "EphemeralVolume (an inline specification for a volume that gets created and deleted with the pod)",
        fields: &[],
    },
    Source {
        key: "rbd",
        kind: "RBD (a Rados Block Device mount on the host that shares a pod's lifetime)",
        fields: &[
            ("CephMonitors:", "/monitors", Words, Both),
            text("RBDImage:", "/image"),
            FS_TYPE,
            text("RBDPool:", "/pool"),
            text("RadosUser:", "/user"),
            text("Keyring:", "/keyring"),
            SECRET,
            READ_ONLY,
        ],
    },
    Source {
        key: "quobyte",
        kind: "Quobyte (a Quobyte mount on the host that shares a pod's lifetime)",
        fields: &[text("Registry:", "/registry"), text("Volume:", "/volume"), READ_ONLY],
    },
    Source { key: "downwardAPI", kind: "DownwardAPI (a volume populated by information about the pod)", fields: &[] },
    Source {
        key: "azureDisk",
        kind: "AzureDisk (an Azure Data Disk mount on the host and bind mount to the pod)",
        fields: &[
            text("DiskName:", "/diskName"),
            text("DiskURI:", "/diskURI"),
            text("Kind: ", "/kind"),
            FS_TYPE,
            text("CachingMode:", "/cachingMode"),
            READ_ONLY,
        ],
    },
    Source {
        key: "vsphereVolume",
        kind: "vSphereVolume (a Persistent Disk resource in vSphere)",
        fields: &[text("VolumePath:", "/volumePath"), FS_TYPE, text("StoragePolicyName:", "/storagePolicyName")],
    },
    Source {
        key: "cinder",
        kind: "Cinder (a Persistent Disk resource in OpenStack)",
        fields: &[VOLUME_ID, FS_TYPE, READ_ONLY, SECRET],
    },
    Source {
        key: "photonPersistentDisk",
        kind: "PhotonPersistentDisk (a Persistent Disk resource in photon platform)",
        fields: &[text("PdID:", "/pdID"), FS_TYPE],
    },
    Source { key: "portworxVolume", kind: "PortworxVolume (a Portworx Volume resource)", fields: &[VOLUME_ID] },
    Source {
        key: "scaleIO",
        kind: "ScaleIO (a persistent volume backed by a block device in ScaleIO)",
        fields: &[
            text("Gateway:", "/gateway"),
            text("System:", "/system"),
            text("Protection Domain:", "/protectionDomain"),
            text("Storage Pool:", "/storagePool"),
            text("Storage Mode:", "/storageMode"),
            text("VolumeName:", "/volumeName"),
            ("SecretName:", "/secretRef/name", Text, Volume),
            ("SecretNamespace:", "/secretRef/namespace", Text, Volume),
            FS_TYPE,
            READ_ONLY,
        ],
    },
    Source {
        key: "local",
        kind: "LocalVolume (a persistent volume backed by local storage on a node)",
        fields: &[PATH],
    },
    Source {
        key: "cephfs",
        kind: "CephFS (a CephFS mount on the host that shares a pod's lifetime)",
        fields: &[
            ("Monitors:", "/monitors", Words, Both),
            PATH,
            text("User:", "/user"),
            text("SecretFile:", "/secretFile"),
            SECRET,
            READ_ONLY,
        ],
    },
    Source {
        key: "storageos",
        kind: "StorageOS (a StorageOS Persistent Disk resource)",
        fields: &[text("VolumeName:", "/volumeName"), text("VolumeNamespace:", "/volumeNamespace"), FS_TYPE, READ_ONLY],
    },
    Source {
        key: "fc",
        kind: "FC (a Fibre Channel disk)",
        fields: &[("TargetWWNs:", "/targetWWNs", List, Both), ("LUN:", "/lun", Or("<none>"), Both), FS_TYPE, READ_ONLY],
    },
    Source {
        key: "azureFile",
        kind: "AzureFile (an Azure File Service mount on the host and bind mount to the pod)",
        fields: &[
            text("SecretName:", "/secretName"),
            ("SecretNamespace:", "/secretNamespace", Text, Volume),
            text("ShareName:", "/shareName"),
            READ_ONLY,
        ],
    },
    Source {
        key: "flexVolume",
        kind: "FlexVolume (a generic volume resource that is provisioned/attached using an exec based plugin)",
        fields: &[text("Driver:", "/driver"), FS_TYPE, SECRET, READ_ONLY, ("Options:", "/options", Map, Both)],
    },
    Source {
        key: "flocker",
        kind: "Flocker (a Flocker volume mounted by the Flocker agent)",
        fields: &[text("DatasetName:", "/datasetName"), text("DatasetUUID:", "/datasetUUID")],
    },
    Source {
        key: "projected",
        kind: "Projected (a volume that contains injected data from multiple sources)",
        fields: &[],
    },
    Source {
        key: "csi",
        kind: "CSI (a Container Storage Interface (CSI) volume source)",
        fields: &[text("Driver:", "/driver"), FS_TYPE, ("VolumeHandle:", "/volumeHandle", Text, Volume), READ_ONLY],
    },
    Source {
        key: "image",
        kind: "Image (a container image or OCI artifact)",
        fields: &[text("Reference:", "/reference"), text("PullPolicy:", "/pullPolicy")],
    },
];

/// Writes the source of a pod's volume.
pub fn pod_source(p: &mut Page, level: usize, volume: &Value) {
    if !write(p, level, volume, Pod) {
        // Upstream indents this one level less.
        p.line(level - 1, "<unknown>");
    }
}

/// Writes the source of a persistent volume.
pub fn volume_source(p: &mut Page, spec: &Value) {
    if !write(p, 2, spec, Volume) {
        p.line(1, "<unknown>");
    }
}

fn write(p: &mut Page, level: usize, holder: &Value, side: Holder) -> bool {
    let found = SOURCES.iter().find_map(|s| Some((s, holder.get(s.key).filter(|v| !v.is_null())?)));
    let Some((source, v)) = found else { return false };
    p.at(level, "Type", source.kind);
    for (title, path, form, holders) in source.fields {
        if *holders == Both || *holders == side {
            p.line(level, format!("{title}\t{}", format_value(v.pointer(path).unwrap_or(&Value::Null), *form, side)));
        }
    }
    match source.key {
        "csi" => attributes(p, level, v.get("volumeAttributes")),
        "ephemeral" if v["volumeClaimTemplate"].is_object() => template(p, level, &v["volumeClaimTemplate"]),
        "downwardAPI" => {
            p.line(level, "Items:");
            items(p, level + 1, v);
        }
        "projected" => list(v.get("sources")).iter().for_each(|s| projected(p, level, s)),
        _ => {}
    }
    true
}

fn format_value(v: &Value, form: Format, side: Holder) -> String {
    let words = |by: &str| list(Some(v)).iter().map(show).collect::<Vec<_>>().join(by);
    match form {
        Text => show(v),
        Or(none) if v.is_null() => none.into(),
        Or(_) => show(v),
        Flag => v.as_bool().unwrap_or(false).to_string(),
        Number => v.as_i64().unwrap_or(0).to_string(),
        Words => format!("[{}]", words(" ")),
        List => words(", "),
        Map => format!("map[{}]", pairs(Some(v)).map(|(k, v)| format!("{k}:{v}")).collect::<Vec<_>>().join(" ")),
        Limit if v.is_null() || show(v) == "0" => "<unset>".into(),
        Limit => show(v),
        Reference if v.is_null() => "nil".into(),
        Reference if side == Volume => {
            format!("&SecretReference{{Name:{},Namespace:{},}}", show(&v["name"]), show(&v["namespace"]))
        }
        Reference => format!("&LocalObjectReference{{Name:{},}}", show(&v["name"])),
    }
}

/// Writes the claim template of an ephemeral volume.
fn template(p: &mut Page, level: usize, v: &Value) {
    let (metadata, spec) = (&v["metadata"], &v["spec"]);
    p.at(level, "StorageClass", storage_class(Some(metadata), Some(spec)));
    let metadata = |p: &mut Page| {
        let (mut own, pad) = (Page::new(p.zone.clone(), p.chunk_size), "  ".repeat(level));
        own.labels(0, "Labels", metadata.get("labels"));
        own.annotations(0, "Annotations", metadata.get("annotations"));
        // Upstream indents the values as well.
        own.text.lines().for_each(|l| p.line(level, l.replacen('\t', &format!("\t{pad}"), 1)));
    };
    claim_spec(p, level, spec, metadata, Default::default());
}

/// Writes the attributes for the CSI driver.
fn attributes(p: &mut Page, level: usize, v: Option<&Value>) {
    let all: Vec<String> = pairs(v).map(|(k, v)| format!("{k}={v}").chars().take(MAX_LENGTH).collect()).collect();
    let pad = "  ".repeat(level);
    match all.split_first() {
        None => p.line(level, "VolumeAttributes:\t<none>"),
        Some((first, rest)) => {
            p.line(level, format!("VolumeAttributes:\t{pad}{first}"));
            rest.iter().for_each(|a| p.line(level, format!("{pad}\t{pad}{a}")));
        }
    }
}

fn projected(p: &mut Page, level: usize, s: &Value) {
    let optional = |v: &Value| format_value(&v["optional"], Flag, Pod);
    if s["secret"].is_object() {
        p.at(level, "SecretName", show(&s["secret"]["name"]));
        p.at(level, "Optional", optional(&s["secret"]));
    } else if s["downwardAPI"].is_object() {
        p.at(level, "DownwardAPI", "true");
    } else if s["configMap"].is_object() {
        p.at(level, "ConfigMapName", show(&s["configMap"]["name"]));
        p.at(level, "Optional", optional(&s["configMap"]));
    } else if s["serviceAccountToken"].is_object() {
        p.at(level, "TokenExpirationSeconds", show(&s["serviceAccountToken"]["expirationSeconds"]));
    }
}

fn items(p: &mut Page, level: usize, v: &Value) {
    for i in list(v.get("items")) {
        let from = if i["fieldRef"].is_object() {
            show(&i["fieldRef"]["fieldPath"])
        } else {
            show(&i["resourceFieldRef"]["resource"])
        };
        p.line(level, format!("{from} -> {}", show(&i["path"])));
    }
}

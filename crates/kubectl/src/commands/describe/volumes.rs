//! Persistent volumes and claims.

use super::page::{Page, list, pairs, show};
use crate::error::Result;
use crate::kube::Kube;
use client::ListOptions;
use meta::{Object, Value};

fn modes(v: Option<&Value>) -> String {
    let short = |m: &Value| match m.as_str().unwrap_or_default() {
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        "ReadWriteMany" => "RWX",
        "ReadWriteOncePod" => "RWOP",
        _ => "",
    };
    list(v).iter().map(short).collect::<Vec<_>>().join(",")
}

fn finalizers(o: &Object) -> String {
    let all = list(o.at(&["metadata", "finalizers"]));
    format!("[{}]", all.iter().map(show).collect::<Vec<_>>().join(" "))
}

/// `a in [b c], d exists` of requirements on labels.
pub fn expressions(all: &Value) -> String {
    let one = |e: &Value| {
        let values: Vec<String> = list(e.get("values")).iter().map(show).collect();
        let operator = e["operator"].as_str().unwrap_or("In").to_lowercase();
        match values.is_empty() {
            true => format!("{} {operator}", show(&e["key"])),
            false => format!("{} {operator} [{}]", show(&e["key"]), values.join(", ")),
        }
    };
    let all: Vec<String> = list(Some(all)).iter().map(one).collect();
    if all.is_empty() { "<none>".into() } else { all.join("\n                      ") }
}

fn class<'a>(o: &'a Object, annotation: &'a str) -> &'a str {
    o.annotation(annotation).or_else(|| o.str_at(&["spec", "storageClassName"])).unwrap_or_default()
}

fn status(o: &Object) -> String {
    if o.is_deleting() { "Terminating".into() } else { o.str_at(&["status", "phase"]).unwrap_or_default().to_owned() }
}

const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub async fn claim(p: &mut Page, o: &Object, k: &mut Kube) -> Result {
    super::name_and_namespace(p, o);
    p.field("StorageClass", class(o, CLASS));
    p.field("Status", status(o));
    p.field("Volume", o.str_at(&["spec", "volumeName"]).unwrap_or_default());
    p.metadata(o);
    p.field("Finalizers", finalizers(o));
    let bound = o.str_at(&["spec", "volumeName"]).is_some_and(|v| !v.is_empty());
    let capacity = o.str_at(&["status", "capacity", "storage"]).filter(|_| bound);
    p.field("Capacity", capacity.unwrap_or_default());
    p.field("Access Modes", if bound { modes(o.at(&["status", "accessModes"])) } else { String::new() });
    if let Some(m) = o.str_at(&["spec", "volumeMode"]) {
        p.field("VolumeMode", m);
    }
    if let Some(s) = o.at(&["spec", "dataSource"]) {
        p.line(0, "DataSource:");
        for (title, key) in [("APIGroup", "apiGroup"), ("Kind", "kind"), ("Name", "name")] {
            if !s[key].is_null() {
                p.at(1, title, show(&s[key]));
            }
        }
    }
    let users = users(k, o).await?;
    p.many(0, "Used By", &users);
    let conditions = list(o.at(&["status", "conditions"]));
    if !conditions.is_empty() {
        p.line(0, "Conditions:\n  Type\tStatus\tLastProbeTime\tLastTransitionTime\tReason\tMessage");
        p.line(1, "----\t------\t-----------------\t------------------\t------\t-------");
        for c in conditions {
            let [t, s, r, m] = ["type", "status", "reason", "message"].map(|k| show(&c[k]));
            let [probe, change] =
                ["lastProbeTime", "lastTransitionTime"].map(|k| super::page::time(c[k].as_str().unwrap_or_default()));
            p.line(1, format!("{t} \t{s} \t{probe} \t{change} \t{r} \t{m}"));
        }
    }
    Ok(())
}

/// The names of pods that mount a claim.
async fn users(k: &mut Kube, o: &Object) -> Result<Vec<String>> {
    let pods = k.resource("pods").await?;
    let pods =
        k.api(&pods, o.namespace()).await?.list(&ListOptions::default()).await.map(|l| l.items).unwrap_or_default();
    let uses = |p: &&Object| {
        list(p.at(&["spec", "volumes"])).iter().any(|v| {
            v["persistentVolumeClaim"]["claimName"] == *o.name()
                || v.get("ephemeral").is_some() && format!("{}-{}", p.name(), show(&v["name"])) == o.name()
        })
    };
    Ok(pods.iter().filter(uses).map(|p| p.name().to_owned()).collect())
}

pub fn volume(p: &mut Page, o: &Object) {
    let text = |path: &[&str]| o.at(path).map(show).unwrap_or_default();
    p.field("Name", o.name());
    p.metadata(o);
    p.field("Finalizers", finalizers(o));
    p.field("StorageClass", class(o, CLASS));
    p.field("Status", status(o));
    match o.at(&["spec", "claimRef"]) {
        Some(c) => p.field("Claim", format!("{}/{}", show(&c["namespace"]), show(&c["name"]))),
        None => p.field("Claim", ""),
    }
    p.field("Reclaim Policy", text(&["spec", "persistentVolumeReclaimPolicy"]));
    p.field("Access Modes", modes(o.at(&["spec", "accessModes"])));
    if o.at(&["spec", "volumeMode"]).is_some() {
        p.field("VolumeMode", text(&["spec", "volumeMode"]));
    }
    p.field("Capacity", text(&["spec", "capacity", "storage"]));
    let terms = list(o.at(&["spec", "nodeAffinity", "required", "nodeSelectorTerms"]));
    if terms.is_empty() {
        p.field("Node Affinity", "<none>");
    } else {
        p.line(0, "Node Affinity:\t\n  Required Terms:\t");
        for (i, t) in terms.iter().enumerate() {
            p.line(2, format!("Term {i}:\t{}", expressions(&t["matchExpressions"])));
        }
    }
    p.field("Message", text(&["status", "message"]));
    source(p, o.get("spec").unwrap_or(&Value::Null));
}

fn source(p: &mut Page, spec: &Value) {
    p.line(0, "Source:");
    let mut fields = |title: &str, v: &Value, names: &[(&str, &str)]| {
        p.at(2, "Type", title);
        for (name, key) in names {
            p.at(2, name, if v[*key].is_null() && *key == "readOnly" { "false".into() } else { show(&v[*key]) });
        }
    };
    if let Some(v) = spec.get("hostPath") {
        fields("HostPath (bare host directory volume)", v, &[("Path", "path"), ("HostPathType", "type")]);
    } else if let Some(v) = spec.get("nfs") {
        let names = [("Server", "server"), ("Path", "path"), ("ReadOnly", "readOnly")];
        fields("NFS (an NFS mount that lasts the lifetime of a pod)", v, &names);
    } else if let Some(v) = spec.get("local") {
        fields("LocalVolume (a persistent volume backed by local storage on a node)", v, &[("Path", "path")]);
    } else if let Some(v) = spec.get("csi") {
        let names =
            [("Driver", "driver"), ("FSType", "fsType"), ("VolumeHandle", "volumeHandle"), ("ReadOnly", "readOnly")];
        fields("CSI (a Container Storage Interface (CSI) volume source)", v, &names);
        attributes(p, v.get("volumeAttributes"));
    } else {
        p.line(2, "<unknown>");
    }
}

/// What a driver is told of a volume, in no column.
pub fn attributes(p: &mut Page, v: Option<&Value>) {
    let all: Vec<String> = pairs(v).map(|(k, v)| format!("{k}={v}")).collect();
    match all.split_first() {
        None => p.line(2, "VolumeAttributes:      <none>"),
        Some((first, rest)) => {
            p.line(2, format!("VolumeAttributes:      {first}"));
            rest.iter().for_each(|a| p.line(5, a));
        }
    }
}

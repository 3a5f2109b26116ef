//! Describes persistent volumes and claims.

use super::claim_spec::{claim_spec, storage_class};
use super::page::{Page, list, show};
use super::related;
use crate::error::Result;
use crate::kube::Kube;
use crate::resource::select::Selection;
use jiff::Timestamp;
use meta::{Object, Value};

fn modes(v: Option<&Value>) -> String {
    const MODES: [(&str, &str); 4] =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let has = |mode: &str| list(v).iter().any(|m| m == mode);
    MODES.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

fn finalizers(o: &Object) -> String {
    let all = list(o.at(&["metadata", "finalizers"]));
    format!("[{}]", all.iter().map(show).collect::<Vec<_>>().join(" "))
}

/// Writes `a in [b, c]` and `d exists` of label requirements, one per line.
pub fn requirements(p: &mut Page, level: usize, title: &str, all: &Value) {
    let requirement = |e: &Value| {
        let values: Vec<String> = list(e.get("values")).iter().map(show).collect();
        let operator = e["operator"].as_str().unwrap_or("In").to_lowercase();
        match values.is_empty() {
            true => format!("{} {operator}", show(&e["key"])),
            false => format!("{} {operator} [{}]", show(&e["key"]), values.join(", ")),
        }
    };
    let all: Vec<String> = list(Some(all)).iter().map(requirement).collect();
    p.many(level, title, &all);
}

fn status(o: &Object, now: Timestamp) -> String {
    match o.deletion_timestamp() {
        Some(t) => format!("Terminating (lasts {})", crate::printer::table::age(t, now)),
        None => o.str_at(&["status", "phase"]).unwrap_or_default().to_owned(),
    }
}

pub async fn claim(p: &mut Page, o: &Object, k: &mut Kube) -> Result {
    p.name_and_namespace(o);
    p.field("StorageClass", storage_class(o.get("metadata"), o.get("spec")));
    p.field("Status", status(o, k.now()));
    let metadata = |p: &mut Page| {
        p.metadata(o);
        p.field("Finalizers", finalizers(o));
    };
    let has =
        [o.str_at(&["status", "capacity", "storage"]).unwrap_or("0").into(), modes(o.at(&["status", "accessModes"]))];
    claim_spec(p, 0, o.get("spec").unwrap_or(&Value::Null), metadata, has);
    let users = users(k, o, p.chunk_size).await?;
    p.many(0, "Used By", &users);
    let conditions = list(o.at(&["status", "conditions"]));
    if !conditions.is_empty() {
        p.line(0, "Conditions:\n  Type\tStatus\tLastProbeTime\tLastTransitionTime\tReason\tMessage");
        p.line(1, "----\t------\t-----------------\t------------------\t------\t-------");
        for c in conditions {
            let [t, s, r, m] = ["type", "status", "reason", "message"].map(|k| show(&c[k]));
            let [probe, change] =
                ["lastProbeTime", "lastTransitionTime"].map(|k| p.time(c[k].as_str().unwrap_or_default()));
            p.line(1, format!("{t} \t{s} \t{probe} \t{change} \t{r} \t{m}"));
        }
    }
    Ok(())
}

/// Returns the names of pods that mount a claim.
async fn users(k: &mut Kube, o: &Object, chunk_size: i64) -> Result<Vec<String>> {
    let selection = Selection { page: Some(chunk_size), ..Selection::default() };
    let pods = related::objects(k, "pods", o.namespace(), &selection).await?;
    let uses = |p: &&Object| {
        list(p.at(&["spec", "volumes"])).iter().any(|v| {
            v["persistentVolumeClaim"]["claimName"] == *o.name()
                || v.get("ephemeral").is_some() && format!("{}-{}", p.name(), show(&v["name"])) == o.name()
        })
    };
    let mut names: Vec<String> = pods.iter().filter(uses).map(|p| p.name().to_owned()).collect();
    names.sort();
    Ok(names)
}

pub fn volume(p: &mut Page, o: &Object, now: Timestamp) {
    let text = |path: &[&str]| o.at(path).map(show).unwrap_or_default();
    p.field("Name", o.name());
    p.metadata(o);
    p.field("Finalizers", finalizers(o));
    p.field("StorageClass", storage_class(o.get("metadata"), o.get("spec")));
    p.field("Status", status(o, now));
    match o.at(&["spec", "claimRef"]) {
        Some(c) => p.field("Claim", format!("{}/{}", show(&c["namespace"]), show(&c["name"]))),
        None => p.field("Claim", ""),
    }
    p.field("Reclaim Policy", text(&["spec", "persistentVolumeReclaimPolicy"]));
    p.field("Access Modes", modes(o.at(&["spec", "accessModes"])));
    if o.at(&["spec", "volumeMode"]).is_some() {
        p.field("VolumeMode", text(&["spec", "volumeMode"]));
    }
    p.field("Capacity", o.str_at(&["spec", "capacity", "storage"]).unwrap_or("0"));
    match o.at(&["spec", "nodeAffinity", "required"]).map(|required| list(required.get("nodeSelectorTerms"))) {
        None => p.field("Node Affinity", "<none>"),
        Some([]) => p.line(0, "Node Affinity:\t\n  Required Terms:\t<none>"),
        Some(terms) => {
            p.line(0, "Node Affinity:\t\n  Required Terms:\t");
            for (i, t) in terms.iter().enumerate() {
                requirements(p, 2, &format!("Term {i}"), &t["matchExpressions"]);
            }
        }
    }
    p.field("Message", text(&["status", "message"]));
    p.line(0, "Source:");
    super::sources::volume_source(p, o.get("spec").unwrap_or(&Value::Null));
}

//! What pods mount: their volumes, by where those come from.

use super::page::{Page, list, show};
use meta::Value;

pub fn volumes(p: &mut Page, level: usize, v: Option<&Value>, pad: &str) {
    let all = list(v);
    if all.is_empty() {
        return p.at(level, &format!("{pad}Volumes"), "<none>");
    }
    p.line(level, format!("{pad}Volumes:"));
    let inner = if pad.is_empty() { "  " } else { " " };
    let l = level + 2;
    for v in all {
        p.line(level, format!("{pad}{inner}{}:", show(&v["name"])));
        let optional = |r: &Value| r["optional"].as_bool().unwrap_or(false).to_string();
        if let Some(e) = v["emptyDir"].as_object() {
            p.at(l, "Type", "EmptyDir (a temporary directory that shares a pod's lifetime)");
            p.at(l, "Medium", e.get("medium").map(show).unwrap_or_default());
            p.at(l, "SizeLimit", e.get("sizeLimit").map_or("<unset>".into(), show));
        } else if v["configMap"].is_object() {
            p.at(l, "Type", "ConfigMap (a volume populated by a ConfigMap)");
            p.at(l, "Name", show(&v["configMap"]["name"]));
            p.at(l, "Optional", optional(&v["configMap"]));
        } else if v["secret"].is_object() {
            p.at(l, "Type", "Secret (a volume populated by a Secret)");
            p.at(l, "SecretName", show(&v["secret"]["secretName"]));
            p.at(l, "Optional", optional(&v["secret"]));
        } else if v["hostPath"].is_object() {
            p.at(l, "Type", "HostPath (bare host directory volume)");
            p.at(l, "Path", show(&v["hostPath"]["path"]));
            p.at(l, "HostPathType", show(&v["hostPath"]["type"]));
        } else if v["persistentVolumeClaim"].is_object() {
            let c = &v["persistentVolumeClaim"];
            p.at(l, "Type", "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)");
            p.at(l, "ClaimName", show(&c["claimName"]));
            p.at(l, "ReadOnly", c["readOnly"].as_bool().unwrap_or(false).to_string());
        } else if v["nfs"].is_object() {
            p.at(l, "Type", "NFS (an NFS mount that lasts the lifetime of a pod)");
            p.at(l, "Server", show(&v["nfs"]["server"]));
            p.at(l, "Path", show(&v["nfs"]["path"]));
            p.at(l, "ReadOnly", v["nfs"]["readOnly"].as_bool().unwrap_or(false).to_string());
        } else if v["csi"].is_object() {
            let c = &v["csi"];
            p.at(l, "Type", "CSI (a Container Storage Interface (CSI) volume source)");
            p.at(l, "Driver", show(&c["driver"]));
            p.at(l, "FSType", show(&c["fsType"]));
            p.at(l, "ReadOnly", c["readOnly"].as_bool().unwrap_or(false).to_string());
            super::volumes::attributes(p, c.get("volumeAttributes"));
        } else if v["image"].is_object() {
            p.at(l, "Type", "Image (a container image or OCI artifact)");
            p.at(l, "Reference", show(&v["image"]["reference"]));
            p.at(l, "PullPolicy", show(&v["image"]["pullPolicy"]));
        } else if v["downwardAPI"].is_object() {
            p.at(l, "Type", "DownwardAPI (a volume populated by information about the pod)");
            p.line(l, "Items:");
            items(p, l + 1, &v["downwardAPI"]);
        } else if v["projected"].is_object() {
            p.at(l, "Type", "Projected (a volume that contains injected data from multiple sources)");
            for s in list(v["projected"].get("sources")) {
                if s["secret"].is_object() {
                    p.at(l, "SecretName", show(&s["secret"]["name"]));
                    p.at(l, "Optional", optional(&s["secret"]));
                } else if s["downwardAPI"].is_object() {
                    p.at(l, "DownwardAPI", "true");
                } else if s["configMap"].is_object() {
                    p.at(l, "ConfigMapName", show(&s["configMap"]["name"]));
                    p.at(l, "Optional", optional(&s["configMap"]));
                } else if s["serviceAccountToken"].is_object() {
                    p.at(l, "TokenExpirationSeconds", show(&s["serviceAccountToken"]["expirationSeconds"]));
                }
            }
        } else if let Some((kind, _)) = v.as_object().and_then(|m| m.iter().find(|(k, _)| *k != "name")) {
            p.at(l, "Type", kind);
        } else {
            p.line(l, "<unknown>");
        }
    }
}

fn items(p: &mut Page, l: usize, v: &Value) {
    for i in list(v.get("items")) {
        let from = if i["fieldRef"].is_object() {
            show(&i["fieldRef"]["fieldPath"])
        } else {
            show(&i["resourceFieldRef"]["resource"])
        };
        p.line(l, format!("{from} -> {}", show(&i["path"])));
    }
}

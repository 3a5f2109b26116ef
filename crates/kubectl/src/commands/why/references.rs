//! The ConfigMaps, Secrets and claims that a pod needs before its containers start.

use super::fields::{list, namespace, text};
use super::finding::{Finding, ObjectName};
use super::reader::{Read, Reader};
use crate::error::Result;
use meta::Value;

/// A ConfigMap or Secret that a pod needs, or one of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub kind: &'static str,
    pub name: String,
    pub key: Option<String>,
    /// What refers to it: `env LEVEL of container app`.
    pub user: String,
}

/// The required ConfigMaps and Secrets of a pod. Pure.
pub fn references(pod: &Value) -> Vec<Reference> {
    let mut all = Vec::new();
    let mut add = |kind: &'static str, name: &str, key: Option<&str>, source: &Value, user: String| {
        if !name.is_empty() && source["optional"] != true {
            all.push(Reference { kind, name: name.into(), key: key.map(str::to_owned), user });
        }
    };
    let mut volume_source = |kind, source: &Value, name_field: &str, user: &str| {
        let keys = list(source, "/items");
        let name = text(source, name_field);
        if keys.is_empty() {
            add(kind, name, None, source, user.to_owned());
        }
        keys.iter().for_each(|item| add(kind, name, Some(text(item, "/key")), source, user.to_owned()));
    };
    for volume in list(pod, "/spec/volumes") {
        let user = format!("volume {}", text(volume, "/name"));
        volume_source("ConfigMap", &volume["configMap"], "/name", &user);
        volume_source("Secret", &volume["secret"], "/secretName", &user);
        for source in list(volume, "/projected/sources") {
            volume_source("ConfigMap", &source["configMap"], "/name", &user);
            volume_source("Secret", &source["secret"], "/name", &user);
        }
    }
    for container in list(pod, "/spec/initContainers").iter().chain(list(pod, "/spec/containers")) {
        let of = format!("of container {}", text(container, "/name"));
        for source in list(container, "/envFrom") {
            for (kind, field) in [("ConfigMap", "configMapRef"), ("Secret", "secretRef")] {
                add(kind, text(&source[field], "/name"), None, &source[field], format!("envFrom {of}"));
            }
        }
        for variable in list(container, "/env") {
            let from = &variable["valueFrom"];
            for (kind, field) in [("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")] {
                let user = format!("variable {} {of}", text(variable, "/name"));
                add(kind, text(&from[field], "/name"), Some(text(&from[field], "/key")), &from[field], user);
            }
        }
    }
    all
}

/// Looks up what a pod refers to, and reports what does not exist.
pub async fn missing(r: &mut Reader<'_>, pod: &Value) -> Result<Vec<Finding>> {
    let ns = namespace(pod);
    let mut known: Vec<((&str, String), Read)> = Vec::new();
    let mut findings: Vec<Finding> = Vec::new();
    for reference in references(pod) {
        let Reference { kind, name, key, user } = &reference;
        let (id, plural) = ((*kind, name.clone()), if *kind == "Secret" { "secrets" } else { "configmaps" });
        if !known.iter().any(|(known, _)| *known == id) {
            let object = r.get("v1", ns, plural, name).await?;
            known.push((id.clone(), object));
        }
        let object = known.iter().find(|(known, _)| *known == id).map(|(_, object)| object);
        let finding = match (object, key) {
            (Some(Read::Missing), _) => {
                Finding::new("ReferenceNotFound", format!("{kind} {name} does not exist ({user})"))
            }
            (Some(Read::Found(v)), Some(key)) if v["data"].get(key).is_none() && v["binaryData"].get(key).is_none() => {
                Finding::new("KeyNotFound", format!("{kind} {name} has no key {key} ({user})"))
            }
            _ => continue,
        };
        let finding = finding.about(ObjectName::new("v1", kind, ns, name));
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    Ok(findings)
}

/// The names of the claims that a pod uses, and whether each is made for the pod.
pub fn claims(pod: &Value) -> Vec<(String, bool)> {
    let claim = |volume: &Value| match text(volume, "/persistentVolumeClaim/claimName") {
        "" if volume["ephemeral"].is_object() => {
            Some((format!("{}-{}", super::fields::name(pod), text(volume, "/name")), true))
        }
        "" => None,
        name => Some((name.to_owned(), false)),
    };
    list(pod, "/spec/volumes").iter().filter_map(claim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn finds_required_references() {
        let pod = json!({"spec": {
            "volumes": [
                {"name": "a", "configMap": {"name": "files"}},
                {"name": "b", "secret": {"secretName": "cert", "items": [{"key": "tls.crt", "path": "x"}]}},
                {"name": "c", "projected": {"sources": [{"configMap": {"name": "p", "optional": true}}, {"secret": {"name": "q"}}]}},
                {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "e", "ephemeral": {}},
            ],
            "containers": [{"name": "app", "envFrom": [{"configMapRef": {"name": "all"}}], "env": [
                {"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "Y", "valueFrom": {"fieldRef": {"fieldPath": "x"}}},
                {"name": "Z", "value": "1"}]}],
        }, "metadata": {"name": "web"}});
        let found: Vec<String> = references(&pod)
            .iter()
            .map(|r| format!("{} {} {} {}", r.kind, r.name, r.key.as_deref().unwrap_or("-"), r.user))
            .collect();
        let expect = [
            "ConfigMap files - volume a",
            "Secret cert tls.crt volume b",
            "Secret q - volume c",
            "ConfigMap all - envFrom of container app",
            "Secret s k variable X of container app",
        ];
        assert_eq!(found, expect);
        assert_eq!(claims(&pod), [("data".to_owned(), false), ("web-e".to_owned(), true)]);
        assert!(references(&json!({"spec": 3})).is_empty());
    }
}

//! The bootstrap roles and bindings, and their reconciliation (`k8s.io/component-helpers/auth/rbac/reconciliation`):
//! missing items are added, additional ones kept. Objects with the annotation
//! `rbac.authorization.kubernetes.io/autoupdate: "false"` are not changed.

use super::GROUP;
use auth::rbac::{PolicyRule, cover};
use futures::stream::{self, StreamExt, TryStreamExt};
use meta::{Gvr, Object, Reason, Status, Value};
use registry::{AdmitAll, Registry, Request, Target, WriteOptions};
use serde_json::json;

/// Objects that are reconciled at a time.
const CONCURRENT: usize = 64;
const TABLE: &str = include_str!("policy.txt");
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// Reconciles the stored objects with the table. The namespaces of the roles must exist. Many writes share a transaction of the store, so
/// that a busy machine does not delay each of them.
pub async fn bootstrap(registry: &Registry) -> Result<(), Status> {
    let reconcile = |expected: Value| async move {
        let resource = format!("{}s", expected["kind"].as_str().unwrap_or_default().to_lowercase());
        write(registry, &resource, expected).await
    };
    stream::iter(bootstrap_objects()).map(Ok).try_for_each_concurrent(CONCURRENT, reconcile).await
}

/// Returns the resources of roles and bindings that are not served (`--runtime-config`).
pub fn unserved(registry: &Registry) -> Vec<&'static str> {
    let rows = registry.rows();
    let missing = |r: &&str| {
        let gvr = Gvr { group: GROUP.into(), version: "v1".into(), resource: (*r).into() };
        rows.resource(&gvr).is_none()
    };
    ["clusterroles", "clusterrolebindings", "roles", "rolebindings"].into_iter().filter(missing).collect()
}

async fn write(registry: &Registry, resource: &str, expected: Value) -> Result<(), Status> {
    let rows = registry.rows();
    let row = rows.resource(&Gvr { group: GROUP.into(), version: "v1".into(), resource: resource.into() });
    let text = |k: &str| expected["metadata"][k].as_str().unwrap_or_default().to_owned();
    // Without the group, other authorizers decide.
    let Some(row) = row else { return Ok(()) };
    let request = Request::own(row.clone(), "", &text("namespace"), &text("name"));
    let schema = &request.resource.kind.schema;
    let mut expected = expected;
    schema::typed(&mut expected, schema).map_err(Status::internal)?;
    schema::fill(&mut expected, schema);
    let expected = Object::from_value(expected).ok_or_else(|| Status::internal("no object"))?;
    let options = WriteOptions::by("kube-apiserver");
    let stored = || {
        let key = request.resource.key(&request.namespace, &request.name);
        Ok::<_, Status>(key.map(|k| registry.stored_object(&k)).transpose()?.flatten())
    };
    let made = match stored()? {
        None => match registry.create(&request, expected.clone(), &options, &AdmitAll).await {
            Err(s) if s.is(Reason::AlreadyExists) => stored()?,
            other => return other.map(|_| ()),
        },
        found => found,
    };
    // The role of a binding is immutable, so the binding is replaced.
    let other_role = |o: &Object| o.get("roleRef") != expected.get("roleRef");
    if made.as_ref().is_some_and(|o| other_role(o) && !is_protected(o)) {
        registry.delete(&request, &Default::default(), &AdmitAll).await?;
        return registry.create(&request, expected, &options, &AdmitAll).await.map(|_| ());
    }
    if made.is_none_or(|o| reconciled(&o, &expected).is_none()) {
        return Ok(());
    }
    let change = |live: Option<&Object>, _: &_| {
        let reconciled = live.and_then(|live| reconciled(live, &expected));
        let unchanged = || live.cloned().unwrap_or_else(|| expected.clone());
        Ok(Target::object(reconciled.unwrap_or_else(unchanged)))
    };
    registry.update(&request, &change, &Default::default(), &options, &AdmitAll).await.map(|_| ())
}

fn is_protected(o: &Object) -> bool {
    o.annotation(AUTO_UPDATE) == Some("false")
}

/// Returns the object with missing items added; `None` if nothing is missing, or the object is protected.
fn reconciled(live: &Object, expected: &Object) -> Option<Object> {
    if is_protected(live) {
        return None;
    }
    let mut new = live.clone();
    for (k, v) in expected.labels().filter(|(k, _)| live.label(k).is_none()) {
        new.set_label(k, v);
    }
    for (k, v) in expected.annotations().filter(|(k, _)| live.annotation(k).is_none()) {
        new.set_annotation(k, v);
    }
    let list = |o: &Object, path: &[&str]| o.at(path).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut add = |path: &[&str]| {
        let mut all = list(live, path);
        let missing: Vec<Value> = list(expected, path).into_iter().filter(|x| !all.contains(x)).collect();
        if !missing.is_empty() {
            all.extend(missing);
            new.set(path, all);
        }
    };
    if expected.kind().ends_with("Binding") {
        add(&["subjects"]);
    } else if expected.get("aggregationRule").is_some_and(|a| !a.is_null()) {
        // The rules of an aggregated role belong to its controller.
        add(&["aggregationRule", "clusterRoleSelectors"]);
    } else {
        let rules = |o: &Object| -> Vec<PolicyRule> { list(o, &["rules"]).iter().map(PolicyRule::read).collect() };
        // Roles that are too large to compare are not changed.
        let missing = cover::missing(&rules(live), &rules(expected)).unwrap_or_default();
        if !missing.is_empty() {
            let mut all = list(live, &["rules"]);
            all.extend(missing.iter().map(PolicyRule::to_value));
            new.set(&["rules"], all);
        }
    }
    (new != *live).then_some(new)
}

/// Parses the table of bootstrap objects.
fn bootstrap_objects() -> Vec<Value> {
    const READ: [&str; 3] = ["get", "list", "watch"];
    const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];
    let mut out: Vec<Value> = Vec::new();
    let (mut name, mut namespace) = ("", "");
    for line in TABLE.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let role = out.iter_mut().rev().find(|o| o["kind"] == "ClusterRole" || o["kind"] == "Role");
        match (&fields[..], role) {
            (["role", n], _) => {
                (namespace, name) = n.split_once('/').unwrap_or(("", n));
                let kind = if namespace.is_empty() { "ClusterRole" } else { "Role" };
                out.push(object(kind, namespace, name, json!({"rules": []})));
            }
            (["label", key], Some(role)) => role["metadata"]["labels"][format!("{AGGREGATE}{key}")] = "true".into(),
            (["gather", key], Some(role)) => {
                let labels = json!({format!("{AGGREGATE}{key}"): "true"});
                role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": labels}]});
            }
            (["bind", kind, who], _) => {
                let subject = match who.split_once('/') {
                    Some((ns, n)) if *kind == "ServiceAccount" => json!({"kind": kind, "namespace": ns, "name": n}),
                    _ => json!({"kind": kind, "name": who, "apiGroup": GROUP}),
                };
                let (binding, of) =
                    if namespace.is_empty() { ("ClusterRoleBinding", "ClusterRole") } else { ("RoleBinding", "Role") };
                let is = |o: &&mut Value| {
                    o["kind"] == binding
                        && o["metadata"]["name"] == name
                        && o["metadata"]["namespace"].as_str().unwrap_or_default() == namespace
                };
                if let Some(list) = out.iter_mut().find(is).and_then(|o| o["subjects"].as_array_mut()) {
                    list.push(subject);
                    continue;
                }
                let to = json!({"apiGroup": GROUP, "kind": of, "name": name});
                out.push(object(binding, namespace, name, json!({"roleRef": to, "subjects": [subject]})));
            }
            (rule, Some(role)) => {
                let rule = match rule {
                    ["events"] => {
                        let verbs = ["create", "patch", "update"];
                        json!({"verbs": verbs, "apiGroups": ["", "events.k8s.io"], "resources": ["events"]})
                    }
                    [verbs, rest @ ..] => {
                        let verbs: Vec<&str> = match *verbs {
                            "R" => READ.to_vec(),
                            "W" => WRITE.to_vec(),
                            "RW" => [&WRITE[..], &READ[..]].concat(),
                            v => v.split(',').collect(),
                        };
                        rule_of(&verbs, rest)
                    }
                    [] => continue,
                };
                if let Some(rules) = role["rules"].as_array_mut() {
                    rules.push(rule);
                }
            }
            (_, None) => {}
        }
    }
    out
}

fn rule_of(verbs: &[&str], of: &[&str]) -> Value {
    let list = |i: usize| -> Vec<&str> { of.get(i).map(|t| t.split(',').collect()).unwrap_or_default() };
    if of.first().is_some_and(|u| u.starts_with('/')) {
        return json!({"verbs": verbs, "nonResourceURLs": of});
    }
    let groups: Vec<&str> = list(0).into_iter().map(|g| if g == "core" { "" } else { g }).collect();
    let mut rule = json!({"verbs": verbs, "apiGroups": groups, "resources": list(1)});
    if of.len() > 2 {
        rule["resourceNames"] = json!(list(2));
    }
    rule
}

fn object(kind: &str, namespace: &str, name: &str, content: Value) -> Value {
    let mut o = json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {
        "name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}, "annotations": {AUTO_UPDATE: "true"}}});
    if !namespace.is_empty() {
        o["metadata"]["namespace"] = namespace.into();
    }
    for (k, v) in content.as_object().into_iter().flatten() {
        o[k] = v.clone();
    }
    o
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_has_rules_and_every_binding_a_subject() {
        let all = bootstrap_objects();
        assert!(all.len() > 60);
        for o in all {
            let list = if o["kind"].as_str().unwrap().ends_with("Role") { &o["rules"] } else { &o["subjects"] };
            let gathers = o["aggregationRule"].is_object();
            assert_eq!(list.as_array().is_some_and(|l| !l.is_empty()), !gathers, "{o}");
        }
    }

    #[test]
    fn adds_missing_items_and_keeps_others() {
        let rule = |verbs: &[&str], resource: &str| json!({"verbs": verbs, "apiGroups": [""], "resources": [resource]});
        let role = |rules: Value| Object::from_value(object("ClusterRole", "", "r", json!({"rules": rules}))).unwrap();
        let expected = role(json!([rule(&["get", "list", "watch"], "pods")]));
        assert!(reconciled(&expected, &expected).is_none());
        let mut live = role(json!([rule(&["get"], "pods"), rule(&["delete"], "nodes")]));
        live.set_label("own", "x");
        live.remove(&["metadata", "annotations"]);
        let new = reconciled(&live, &expected).unwrap();
        let added = json!([rule(&["get"], "pods"), rule(&["delete"], "nodes"), rule(&["list", "watch"], "pods")]);
        assert_eq!(new.get("rules"), Some(&added));
        assert_eq!((new.label("own"), new.annotation(AUTO_UPDATE)), (Some("x"), Some("true")));
        live.set_annotation(AUTO_UPDATE, "false");
        assert!(reconciled(&live, &expected).is_none(), "a protected role is not changed");

        let subject = |n: &str| json!({"kind": "User", "name": n, "apiGroup": GROUP});
        let binding = |s: Value| {
            let content = json!({"roleRef": {"name": "r"}, "subjects": s});
            Object::from_value(object("ClusterRoleBinding", "", "r", content)).unwrap()
        };
        let new = reconciled(&binding(json!([subject("b")])), &binding(json!([subject("a")]))).unwrap();
        assert_eq!(new.get("subjects"), Some(&json!([subject("b"), subject("a")])));
    }
}

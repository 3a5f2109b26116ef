//! Discovery of servers that publish one document per version (before Kubernetes v1.26, and most aggregated API servers), converted to
//! aggregated discovery (`apidiscovery.k8s.io/v2`).

use crate::{Client, Error};
use futures::StreamExt;
use meta::{GroupVersion, Value};
use serde_json::json;
use std::collections::BTreeMap;

/// Maximum number of versions requested at a time.
const AT_ONCE: usize = 16;

/// Converts the response to `/api` or `/apis` (an `APIVersions` or an `APIGroupList`) to an `APIGroupDiscoveryList`, and requests the
/// resources of each version. A group's preferred version comes first. A version that cannot be read is `Stale` and has no resources.
///
/// # Errors
/// `answer` is neither of the two.
pub async fn aggregate(client: &Client, answer: &Value) -> Result<Value, Error> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let all = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let groups: Vec<(String, Vec<String>)> = match answer["kind"].as_str() {
        Some("APIVersions") => vec![(String::new(), all(&answer["versions"]).iter().map(text).collect())],
        Some("APIGroupList") => all(&answer["groups"])
            .iter()
            .map(|g| {
                let preferred = text(&g["preferredVersion"]["version"]);
                let mut versions: Vec<String> = all(&g["versions"]).iter().map(|v| text(&v["version"])).collect();
                versions.sort_by_key(|v| *v != preferred);
                (text(&g["name"]), versions)
            })
            .collect(),
        _ => {
            let why = format!("discovery: the server sent {} in place of APIGroupDiscoveryList", answer["kind"]);
            return Err(Error::Unexpected(why));
        }
    };
    let versions =
        groups.iter().flat_map(|(g, versions)| versions.iter().map(move |v| GroupVersion::new(g.clone(), v.clone())));
    let answers = futures::stream::iter(versions.map(|gv| version(client, gv))).buffered(AT_ONCE);
    let mut answers = std::pin::pin!(answers);
    let mut items = Vec::new();
    for (name, versions) in &groups {
        let found = answers.by_ref().take(versions.len()).collect::<Vec<Value>>().await;
        let metadata = if name.is_empty() { json!({}) } else { json!({"name": name}) };
        items.push(json!({"metadata": metadata, "versions": found}));
    }
    Ok(json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items}))
}

async fn version(client: &Client, gv: GroupVersion) -> Value {
    let path = if gv.group.is_empty() { format!("/api/{}", gv.version) } else { format!("/apis/{gv}") };
    match client.get::<Value>(&path).await {
        Ok(list) => json!({"version": gv.version, "resources": from_legacy(&gv, &list), "freshness": "Current"}),
        Err(_) => json!({"version": gv.version, "resources": [], "freshness": "Stale"}),
    }
}

/// Converts an `APIResourceList` of this version to the resources of aggregated discovery.
pub fn from_legacy(gv: &GroupVersion, list: &Value) -> Vec<Value> {
    let mut out: BTreeMap<String, Value> = BTreeMap::new();
    let all: Vec<&Value> = list["resources"].as_array().into_iter().flatten().collect();
    let kind = |r: &Value| {
        let or = |key: &str, otherwise: &str| r[key].as_str().filter(|t| !t.is_empty()).unwrap_or(otherwise).to_owned();
        json!({"group": or("group", &gv.group), "version": or("version", &gv.version), "kind": r["kind"]})
    };
    for r in all.iter().filter(|r| !r["name"].as_str().unwrap_or("/").contains('/')) {
        let name = r["name"].as_str().unwrap_or_default();
        let mut v = json!({"resource": name, "responseKind": kind(r), "verbs": r["verbs"],
            "scope": if r["namespaced"] == true { "Namespaced" } else { "Cluster" }, "singularResource": r["singularName"]});
        for key in ["shortNames", "categories"].into_iter().filter(|k| r[*k].is_array()) {
            v[key] = r[key].clone();
        }
        out.insert(name.to_owned(), v);
    }
    for r in all {
        let Some((name, sub)) = r["name"].as_str().and_then(|n| n.split_once('/')) else { continue };
        let Some(of) = out.get_mut(name) else { continue };
        let v = json!({"subresource": sub, "responseKind": kind(r), "verbs": r["verbs"]});
        match of["subresources"].as_array_mut() {
            Some(subs) => subs.push(v),
            None => of["subresources"] = json!([v]),
        }
    }
    out.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_legacy_resource_lists() {
        let list = json!({"kind": "APIResourceList", "groupVersion": "g/v1", "resources": [
            {"name": "flunders/status", "singularName": "", "namespaced": true, "kind": "Flunder", "verbs": ["get"]},
            {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": ["get", "list"], "shortNames": ["fl"]}]});
        let kind = json!({"group": "g", "version": "v1", "kind": "Flunder"});
        assert_eq!(
            from_legacy(&GroupVersion::new("g", "v1"), &list),
            [json!({"resource": "flunders", "responseKind": kind,
            "verbs": ["get", "list"], "scope": "Namespaced", "singularResource": "flunder", "shortNames": ["fl"],
            "subresources": [{"subresource": "status", "responseKind": kind, "verbs": ["get"]}]})]
        );
    }
}

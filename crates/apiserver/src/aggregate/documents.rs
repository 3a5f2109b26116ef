//! Merges the discovery and OpenAPI documents of other servers into our own.

use super::check::get;
use super::local::group_priority;
use super::{Aggregator, Remote, Table};
use crate::openapi::{Texts, V2};
use aws_lc_rs::digest::{SHA256, digest};
use meta::{GroupVersion, Value};
use registry::Registry;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The documents of one version.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RemoteDocuments {
    /// As in aggregated discovery; none if it was never fetched.
    version: Option<Value>,
    /// The last fetch failed.
    stale: bool,
    /// OpenAPI v2 of its paths, and the path of v3.
    v2: Option<Arc<RemoteOpenApi>>,
    v3: Option<String>,
}

/// The parts of another server's OpenAPI v2. Schemas and paths stay text, which takes a fraction of the memory of
/// values.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RemoteOpenApi {
    paths: Texts,
    definitions: Texts,
    parameters: serde_json::Map<String, Value>,
    /// The hash of the document.
    #[serde(skip)]
    hash: Box<[u8]>,
}

impl PartialEq for RemoteOpenApi {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

fn base_path(gv: &GroupVersion) -> String {
    format!("apis/{}/{}", gv.group, gv.version)
}

/// Fetches a server's documents; keeps the previous ones on failure.
pub(super) async fn find(
    a: &Aggregator,
    registry: &Registry,
    r: &Remote,
    before: Option<&RemoteDocuments>,
) -> RemoteDocuments {
    let mut found = before.cloned().unwrap_or_default();
    let version = if r.available { version(a, registry, r).await } else { None };
    found.stale = version.is_none();
    if version.is_some() {
        found.version = version;
        found.v2 = v2(a, registry, r).await;
        found.v3 = v3(a, registry, r).await;
    }
    found
}

async fn document(
    a: &Aggregator,
    registry: &Registry,
    r: &Remote,
    path: &str,
    accept: &str,
) -> Option<(String, Value)> {
    let (media, body) = get(a, registry, r, path, accept).await.ok()?;
    Some((media, serde_json::from_slice(&body).ok()?))
}

async fn version(a: &Aggregator, registry: &Registry, r: &Remote) -> Option<Value> {
    let gv = &r.group_version;
    if let Some((media, v)) = document(a, registry, r, "/apis", AGGREGATED).await
        && media.contains("as=APIGroupDiscoveryList")
    {
        let groups = v["items"].as_array().into_iter().flatten();
        let mut versions =
            groups.filter(|g| g["metadata"]["name"] == *gv.group).flat_map(|g| g["versions"].as_array()).flatten();
        return versions.find(|v| v["version"] == *gv.version).cloned();
    }
    let (_, list) = document(a, registry, r, &format!("/{}", base_path(gv)), "application/json").await?;
    Some(json!({"version": gv.version, "resources": client::discovery::from_legacy(gv, &list)}))
}

async fn v2(a: &Aggregator, registry: &Registry, r: &Remote) -> Option<Arc<RemoteOpenApi>> {
    let (_, body) = get(a, registry, r, "/openapi/v2", "application/json").await.ok()?;
    let mut theirs: RemoteOpenApi = serde_json::from_slice(&body).ok()?;
    theirs.hash = digest(&SHA256, &body).as_ref().into();
    let own = format!("/{}/", base_path(&r.group_version));
    let bare = own.trim_end_matches('/').to_owned();
    theirs.paths.retain(|path, _| path.starts_with(&own) || *path == bare);
    Some(Arc::new(theirs))
}

async fn v3(a: &Aggregator, registry: &Registry, r: &Remote) -> Option<String> {
    let (_, v) = document(a, registry, r, "/openapi/v3", "application/json").await?;
    v["paths"][base_path(&r.group_version)]["serverRelativeURL"].as_str().map(str::to_owned)
}

impl Table {
    /// The versions of other servers by group, preferred first, with the group's priority.
    fn groups(&self) -> BTreeMap<&str, (i64, Vec<&Arc<Remote>>)> {
        let mut out: BTreeMap<&str, (i64, Vec<&Arc<Remote>>)> = BTreeMap::new();
        for r in self.remotes.values() {
            let entry = out.entry(&r.group_version.group).or_default();
            entry.0 = entry.0.max(r.group_priority);
            entry.1.push(r);
        }
        for (_, versions) in out.values_mut() {
            versions.sort_by_key(|r| (std::cmp::Reverse(r.version_priority), r.group_version.version.clone()));
        }
        out
    }

    /// Inserts the groups of other servers into a list by priority. `name` returns the name of a listed group,
    /// `versions` its versions, and `version` the entry for a version.
    fn add(
        &self,
        list: &mut Vec<Value>,
        name: impl Fn(&Value) -> &str,
        version: impl Fn(&Remote) -> Value,
        group: impl Fn(&str, Vec<Value>) -> Value,
    ) {
        for (g, (priority, versions)) in self.groups() {
            let mut all: Vec<Value> = versions.iter().map(|r| version(r)).collect();
            if let Some(own) = list.iter_mut().find(|x| name(x) == g) {
                // Local versions come first; one served by another server is no longer local.
                let ours = own["versions"].as_array().cloned().unwrap_or_default();
                let mut kept: Vec<Value> =
                    ours.into_iter().filter(|o| !all.iter().any(|v| v["version"] == o["version"])).collect();
                kept.append(&mut all);
                own["versions"] = kept.into();
                continue;
            }
            let index = list.iter().position(|x| i64::from(group_priority(name(x))) < priority).unwrap_or(list.len());
            list.insert(index, group(g, all));
        }
    }

    /// Merges into the groups of `/apis`.
    pub fn add_groups(&self, list: &mut Vec<Value>) {
        let version = |r: &Remote| {
            let gv = &r.group_version;
            json!({"groupVersion": format!("{}/{}", gv.group, gv.version), "version": gv.version})
        };
        let group = |name: &str, versions: Vec<Value>| json!({"name": name, "preferredVersion": versions.first(), "versions": versions});
        self.add(list, |g| g["name"].as_str().unwrap_or_default(), version, group);
    }

    /// Merges into aggregated discovery.
    pub fn add_aggregated(&self, list: &mut Vec<Value>) {
        let version = |r: &Remote| {
            let found = self.found.get(&r.group_version);
            let mut v =
                found.and_then(|f| f.version.clone()).unwrap_or_else(|| json!({"version": r.group_version.version}));
            let stale = !r.available || found.is_none_or(|f| f.stale);
            v["freshness"] = if stale { "Stale" } else { "Current" }.into();
            v
        };
        let group = |name: &str, versions: Vec<Value>| json!({"metadata": {"name": name}, "versions": versions});
        self.add(list, |g| g["metadata"]["name"].as_str().unwrap_or_default(), version, group);
    }

    /// Merges into the index of OpenAPI v3.
    pub fn add_v3(&self, index: &mut Value) {
        for (gv, found) in &self.found {
            if let Some(url) = found.v3.as_ref().filter(|_| self.remotes.contains_key(gv)) {
                index["paths"][base_path(gv)] = json!({"serverRelativeURL": url});
            }
        }
    }

    /// Merges into OpenAPI v2. Keeps existing definitions.
    pub fn add_v2(&self, document: &mut V2) {
        for (_, found) in self.found.iter().filter(|(gv, _)| self.remotes.contains_key(gv)) {
            let Some(theirs) = &found.v2 else { continue };
            for (from, into) in [(&theirs.paths, &mut document.paths), (&theirs.definitions, &mut document.definitions)]
            {
                for (k, v) in from {
                    into.entry(k.clone()).or_insert_with(|| v.clone());
                }
            }
            if let Some(into) = document.parameters.as_object_mut() {
                for (k, v) in &theirs.parameters {
                    into.entry(k.clone()).or_insert_with(|| v.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_others_have_their_place() {
        let remote = |group: &str, version: &str, group_priority, version_priority| {
            let group_version = GroupVersion::new(group, version);
            let r = Remote {
                name: format!("{version}.{group}"),
                group_version: group_version.clone(),
                namespace: "n".into(),
                service: "s".into(),
                port: 443,
                ca: Vec::new(),
                insecure: false,
                group_priority,
                version_priority,
                available: version != "v1beta1",
            };
            (group_version, Arc::new(r))
        };
        let mut table = Table::default();
        table.remotes.extend([
            remote("metrics.k8s.io", "v1beta1", 100, 100),
            remote("wardle.example.com", "v1", 17_000, 20),
            remote("wardle.example.com", "v1alpha1", 1_000, 30),
            remote("apps", "v2", 1, 1),
        ]);
        let own = |g: &str| json!({"name": g, "versions": [{"groupVersion": format!("{g}/v1"), "version": "v1"}]});
        let mut list = vec![own("apps"), own("batch"), own("scheduling.k8s.io"), own("crd.example.com")];
        table.add_groups(&mut list);
        let names: Vec<&str> = list.iter().map(|g| g["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            ["apps", "batch", "wardle.example.com", "scheduling.k8s.io", "crd.example.com", "metrics.k8s.io"]
        );
        let versions = |g: &Value| {
            g["versions"]
                .as_array()
                .unwrap()
                .iter()
                .map(|v| v["version"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(versions(&list[0]), ["v1", "v2"]);
        assert_eq!(
            (versions(&list[2]), &list[2]["preferredVersion"]["version"]),
            (vec!["v1alpha1".into(), "v1".into()], &json!("v1alpha1"))
        );
        let mut aggregated = Vec::new();
        table.add_aggregated(&mut aggregated);
        let metrics = aggregated.iter().find(|g| g["metadata"]["name"] == "metrics.k8s.io").unwrap();
        assert_eq!(metrics["versions"], json!([{"version": "v1beta1", "freshness": "Stale"}]));
    }
}

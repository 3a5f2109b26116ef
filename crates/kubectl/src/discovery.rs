//! The resources of the server (aggregated discovery, `apidiscovery.k8s.io/v2`, or one document per version from older
//! servers), and how words of the command line name them.
//!
//! The documents are cached in kubectl's cache directory with their ETags. They are revalidated after six hours, and when a
//! resource name is unknown, so that a new definition is found.

use client::{ApiResource, Client};
use http::Method;
use meta::{GroupVersion, Gvk, Value};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

/// How long the cached documents are valid, in seconds.
pub const TTL: i64 = 6 * 3600;

/// A resource that the server serves in one version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub namespaced: bool,
    pub verbs: Vec<String>,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub subresources: Vec<String>,
    /// Whether the group prefers this version.
    pub preferred: bool,
}

impl Resource {
    /// Returns the resource as the client addresses it.
    pub fn api(&self) -> ApiResource {
        ApiResource::named(&self.group, &self.version, &self.plural, &self.kind, self.namespaced)
    }

    pub fn gvk(&self) -> Gvk {
        Gvk::new(self.group.clone(), self.version.clone(), self.kind.clone())
    }

    pub fn group_version(&self) -> String {
        GroupVersion::new(self.group.clone(), self.version.clone()).to_string()
    }

    /// `deployments.apps`.
    pub fn group_resource(&self) -> String {
        dotted(&self.plural, &self.group)
    }

    /// `deployment.apps`, as messages name objects.
    pub fn group_kind(&self) -> String {
        dotted(&self.kind.to_lowercase(), &self.group)
    }

    /// Whether the resource supports a verb.
    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }
}

/// Appends the group unless it is empty: `deployments.apps`.
pub fn dotted(a: &str, group: &str) -> String {
    if group.is_empty() { a.to_owned() } else { format!("{a}.{group}") }
}

/// The resources and versions of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Discovery {
    /// In the server's order: the core group first, and the preferred version first in each group.
    pub resources: Vec<Arc<Resource>>,
    pub versions: Vec<String>,
    /// Group versions whose resources are unknown at the moment because their backend is down.
    pub stale: Vec<String>,
    /// The documents of the core group and of the other groups.
    documents: [Document; 2],
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Document {
    /// Empty if the server sent none.
    etag: String,
    /// How many resources and versions come from this document.
    resources: usize,
    versions: usize,
}

/// Fetches a document and its ETag; `None` if the document still has `etag`.
async fn fetch(client: &Client, path: &str, etag: &str) -> Result<Option<(String, Value)>, client::Error> {
    let request = client::client::request(Method::GET, path, ACCEPT, None)?;
    let Some((etag, bytes)) = client.changed(request, etag).await? else { return Ok(None) };
    let list: Value = serde_json::from_slice(&bytes)
        .map_err(|e| client::Error::Unexpected(format!("discovery: {path} is no JSON: {e}")))?;
    if list["kind"] == "APIGroupDiscoveryList" {
        return Ok(Some((etag, list)));
    }
    // The ETag belongs to the list of versions and does not cover their resources.
    Ok(Some((String::new(), client::discovery::aggregate(client, &list).await?)))
}

impl Discovery {
    /// Fetches both documents at once, and reuses from `known` what has not changed.
    pub async fn fetch(client: &Client, known: &Self) -> Result<Self, client::Error> {
        let [core, groups] = &known.documents;
        let answers =
            futures::future::try_join(fetch(client, "/api", &core.etag), fetch(client, "/apis", &groups.etag));
        let (core, groups) = answers.await?;
        let mut all = Self::default();
        let (mut resources, mut versions) = (known.resources.iter(), known.versions.iter());
        for (i, answer) in [core, groups].into_iter().enumerate() {
            let Document { etag, resources: r, versions: v } = &known.documents[i];
            let (same_resources, same_versions) = (resources.by_ref().take(*r), versions.by_ref().take(*v));
            let before = (all.resources.len(), all.versions.len());
            let etag = match answer {
                None => {
                    all.resources.extend(same_resources.cloned());
                    let versions: Vec<String> = same_versions.cloned().collect();
                    all.stale.extend(known.stale.iter().filter(|v| versions.contains(v)).cloned());
                    all.versions.extend(versions);
                    etag.clone()
                }
                Some((etag, list)) => {
                    // Skip the known ones.
                    same_resources.for_each(drop);
                    same_versions.for_each(drop);
                    all.add(&list);
                    etag
                }
            };
            let (resources, versions) = (all.resources.len() - before.0, all.versions.len() - before.1);
            all.documents[i] = Document { etag, resources, versions };
        }
        Ok(all)
    }

    fn add(&mut self, list: &Value) {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let items = |v: &Value| v.as_array().cloned().unwrap_or_default();
        let texts = |v: &Value| items(v).iter().map(text).collect::<Vec<_>>();
        for g in items(&list["items"]) {
            let group = text(&g["metadata"]["name"]);
            for (i, v) in items(&g["versions"]).iter().enumerate() {
                let version = text(&v["version"]);
                let name = GroupVersion::new(group.clone(), version.clone()).to_string();
                if v["freshness"] == "Stale" {
                    self.stale.push(name.clone());
                }
                self.versions.push(name);
                for r in items(&v["resources"]) {
                    let kind = text(&r["responseKind"]["kind"]);
                    let plural = text(&r["resource"]);
                    let singular = match text(&r["singularResource"]) {
                        s if s.is_empty() => kind.to_lowercase(),
                        s => s,
                    };
                    self.resources.push(Arc::new(Resource {
                        group: group.clone(),
                        version: version.clone(),
                        plural,
                        singular,
                        kind,
                        namespaced: r["scope"] == "Namespaced",
                        verbs: texts(&r["verbs"]),
                        short_names: texts(&r["shortNames"]),
                        categories: texts(&r["categories"]),
                        subresources: items(&r["subresources"]).iter().map(|s| text(&s["subresource"])).collect(),
                        preferred: i == 0,
                    }));
                }
            }
        }
    }

    /// Whether the resource is in the preferred version of its group, or in the first version that has it.
    pub fn is_preferred(&self, r: &Resource) -> bool {
        let mut of_name = self.resources.iter().filter(|o| o.group == r.group && o.plural == r.plural);
        let preferred = of_name.clone().find(|o| o.preferred).or_else(|| of_name.next());
        preferred.is_some_and(|p| p.version == r.version)
    }

    /// Loads the cache file; `None` if it is missing or malformed.
    pub fn load(path: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    /// Saves the documents, best effort: without the cache the next command sends one more request. The file is replaced
    /// atomically because other processes may read it.
    pub fn save(&self, path: &Path, unique: u64) {
        let Some(dir) = path.parent() else { return };
        let temporary = dir.join(format!(".discovery-{unique:016x}"));
        if std::fs::create_dir_all(dir).is_err() {
            return;
        }
        if let Ok(bytes) = serde_json::to_vec(self)
            && std::fs::write(&temporary, bytes).is_ok()
            && std::fs::rename(&temporary, path).is_err()
        {
            let _ = std::fs::remove_file(&temporary);
        }
    }

    /// Finds the resource of a kind in exactly this version.
    pub fn by_kind(&self, gvk: &Gvk) -> Option<Arc<Resource>> {
        self.resources.iter().find(|r| r.kind == gvk.kind && r.group == gvk.group && r.version == gvk.version).cloned()
    }

    /// Returns other resources with the same short name as `taken`: `events.events.k8s.io`.
    pub fn also_named(&self, word: &str, taken: &Resource) -> Vec<String> {
        let lower = word.to_lowercase();
        let (name, group) = lower.split_once('.').unwrap_or((&lower, ""));
        let mut of_group = self.resources.iter().filter(|r| group.is_empty() || r.group == group);
        if of_group.any(|r| r.plural == name || r.singular == name) {
            return Vec::new();
        }
        let mut out = Vec::new();
        for r in &self.resources {
            let other = r.group != taken.group || r.plural != taken.plural;
            let full = dotted(&r.plural, &r.group);
            if other
                && r.short_names.iter().any(|s| s == name)
                && (group.is_empty() || r.group == group)
                && !out.contains(&full)
            {
                out.push(full);
            }
        }
        out
    }

    /// Finds the resource that a word names: `pods`, `po`, `Pod`, `deployments.apps`, `deployments.v1.apps`.
    pub fn by_word(&self, word: &str) -> Option<Arc<Resource>> {
        let lower = word.to_lowercase();
        let (name, rest) = lower.split_once('.').unwrap_or((&lower, ""));
        let short = word.split('.').next().unwrap_or_default();
        // Short names are case-sensitive.
        let named = |r: &Resource, n: &str| {
            r.plural == n || r.singular == n || r.kind.to_lowercase() == n || r.short_names.iter().any(|s| s == short)
        };
        let pick = |accept: &dyn Fn(&Resource) -> bool| {
            let mut found: Vec<&Arc<Resource>> = self.resources.iter().filter(|r| accept(r)).collect();
            // A plural or singular name has precedence over a short name, and the preferred version over others.
            found.sort_by_key(|r| (r.plural != name && r.singular != name, !r.preferred));
            found.first().map(|r| Arc::clone(r))
        };
        if rest.is_empty() {
            return pick(&|r| named(r, name));
        }
        if let Some((version, group)) = rest.split_once('.') {
            // A short name is resolved without its version, to the preferred one.
            let is_short = |r: &Resource| r.plural != name && r.singular != name && r.kind.to_lowercase() != name;
            let fits = |r: &Resource| named(r, name) && r.group == group && (r.version == version || is_short(r));
            if let Some(r) = pick(&fits) {
                return Some(r);
            }
        }
        pick(&|r| named(r, name) && r.group == rest)
            .or_else(|| pick(&|r| named(r, name) && !r.group.is_empty() && r.group.starts_with(rest)))
    }

    /// Returns the resources of a category (`all`) in preferred versions.
    pub fn by_category(&self, category: &str) -> Vec<Arc<Resource>> {
        self.resources
            .iter()
            .filter(|r| r.preferred && r.has_verb("list") && r.categories.iter().any(|c| c == category))
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Server;
    use serde_json::json;

    /// Unchanged documents are not sent again, and keep their order.
    #[tokio::test]
    async fn reads_only_changed_documents() {
        let server = Server::new();
        let client = Client::new(server.clone(), "t");
        let first = Discovery::fetch(&client, &Discovery::default()).await.unwrap();
        assert!(first.documents.iter().all(|d| !d.etag.is_empty() && d.resources > 0 && d.versions > 0));
        let emptied = Discovery { resources: vec![Arc::default(); first.resources.len()], ..first.clone() };
        let again = Discovery::fetch(&client, &emptied).await.unwrap();
        assert_eq!(again, emptied, "a document that is known is taken for what is known");
        let core = json!({"kind": "APIGroupDiscoveryList", "items": [{"metadata": {}, "versions": [{"version": "v1", "resources": []}]}]});
        server.replace("GET /api", 200, core);
        let changed = Discovery::fetch(&client, &first).await.unwrap();
        let others: Vec<_> = first.resources.iter().filter(|r| !r.group.is_empty()).cloned().collect();
        assert_eq!((&changed.resources, &changed.versions), (&others, &first.versions));
        assert_eq!(changed.documents[1], first.documents[1]);
        server.replace("GET /apis", 200, json!({"kind": "Pod"}));
        let wrong = Discovery::fetch(&client, &first).await.unwrap_err();
        assert!(wrong.to_string().contains("APIGroupDiscoveryList"), "{wrong}");
    }

    #[test]
    fn reports_ambiguous_short_names() {
        let of = |group: &str, plural: &str| {
            Arc::new(Resource {
                group: group.into(),
                plural: plural.into(),
                short_names: vec!["ev".into()],
                ..Resource::default()
            })
        };
        let (core, other) = (of("", "events"), of("events.k8s.io", "events"));
        let d = Discovery { resources: vec![core.clone(), other.clone(), other.clone()], ..Discovery::default() };
        assert_eq!(d.also_named("ev", &core), ["events.events.k8s.io"]);
        assert!(d.also_named("events", &core).is_empty() && d.also_named("ev.events.k8s.io", &other).is_empty());
    }
}

//! Which resources the server has (aggregated discovery, `apidiscovery.k8s.io/v2`), and which of them a word means.
//!
//! The answer is kept in kubectl's cache directory for six hours; a word that it does not know makes it be asked again, so a
//! definition made a moment ago is found.

use client::{ApiResource, Client};
use http::Method;
use meta::{GroupVersion, Gvk, Value};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

/// How long an answer is good, in seconds.
pub const TTL: i64 = 6 * 3600;

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
    /// Whether this is the version its group prefers.
    pub preferred: bool,
}

impl Resource {
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

    /// `deployment.apps`, as objects are named in messages.
    pub fn group_kind(&self) -> String {
        dotted(&self.kind.to_lowercase(), &self.group)
    }

    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }
}

pub fn dotted(a: &str, group: &str) -> String {
    if group.is_empty() { a.to_owned() } else { format!("{a}.{group}") }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Discovery {
    /// In the server's order: the core group first, a group's versions from the preferred on.
    pub resources: Vec<Arc<Resource>>,
    pub versions: Vec<String>,
}

impl Discovery {
    pub async fn fetch(client: &Client) -> Result<Self, client::Error> {
        let ask = |path: &'static str| async move {
            client.json::<Value>(client::client::request(Method::GET, path, ACCEPT, None)?).await
        };
        let (core, groups) = futures::future::try_join(ask("/api"), ask("/apis")).await?;
        let mut all = Self::default();
        for list in [&core, &groups] {
            if list["kind"] != "APIGroupDiscoveryList" {
                return Err(client::Error::Unexpected(format!(
                    "discovery: the server sent {} in place of APIGroupDiscoveryList",
                    list["kind"]
                )));
            }
            all.add(list);
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
                self.versions.push(GroupVersion::new(group.clone(), version.clone()).to_string());
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

    pub fn load(path: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    /// Best effort: a directory that cannot be written costs a request next time. Whole or not at all, for the sake of
    /// others that read it meanwhile.
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

    /// The resource of a kind, in that very version.
    pub fn of_kind(&self, gvk: &Gvk) -> Option<Arc<Resource>> {
        self.resources.iter().find(|r| r.kind == gvk.kind && r.group == gvk.group && r.version == gvk.version).cloned()
    }

    /// The resource that a word means: `pods`, `po`, `Pod`, `deployments.apps`, `deployments.v1.apps`.
    pub fn of_word(&self, word: &str) -> Option<Arc<Resource>> {
        let lower = word.to_lowercase();
        let (name, rest) = lower.split_once('.').unwrap_or((&lower, ""));
        let named = |r: &Resource, n: &str| {
            r.plural == n || r.singular == n || r.kind.to_lowercase() == n || r.short_names.iter().any(|s| s == n)
        };
        let pick = |accept: &dyn Fn(&Resource) -> bool| {
            let mut found: Vec<&Arc<Resource>> = self.resources.iter().filter(|r| accept(r)).collect();
            // A plural or singular name is meant before a short name, the preferred version before others.
            found.sort_by_key(|r| (r.plural != name && r.singular != name, !r.preferred));
            found.first().map(|r| Arc::clone(r))
        };
        if rest.is_empty() {
            return pick(&|r| named(r, name));
        }
        if let Some((version, group)) = rest.split_once('.')
            && let Some(r) = pick(&|r| named(r, name) && r.version == version && r.group == group)
        {
            return Some(r);
        }
        pick(&|r| named(r, name) && r.group == rest)
            .or_else(|| pick(&|r| named(r, name) && r.group.is_empty() && r.version == rest))
            .or_else(|| pick(&|r| named(r, name) && !r.group.is_empty() && r.group.starts_with(rest)))
    }

    /// The resources of a category (`all`), in preferred versions.
    pub fn of_category(&self, category: &str) -> Vec<Arc<Resource>> {
        self.resources
            .iter()
            .filter(|r| r.preferred && r.has_verb("list") && r.categories.iter().any(|c| c == category))
            .cloned()
            .collect()
    }
}

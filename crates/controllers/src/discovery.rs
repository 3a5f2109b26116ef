//! Resources from the server's discovery.

use client::{ApiResource, Client, Error};
use meta::{GroupVersion, names};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// A resource and its verbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    pub resource: ApiResource,
    pub verbs: BTreeSet<String>,
}

impl Served {
    pub fn can(&self, verb: &str) -> bool {
        self.verbs.contains(verb)
    }
}

#[derive(Deserialize)]
struct Groups {
    #[serde(default)]
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    preferred_version: Version,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Version {
    group_version: String,
}

#[derive(Deserialize)]
struct Resources {
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
    kind: String,
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
}

/// The result of discovery.
#[derive(Debug, Default)]
pub struct Discovered {
    /// Every resource once, in its preferred version.
    pub served: Vec<Served>,
    /// Group versions that cannot be read, and why. Their resources are unknown.
    pub failed: BTreeMap<String, Error>,
}

impl Discovered {
    /// Groups with a version that cannot be read.
    pub fn failed_groups(&self) -> impl Iterator<Item = String> {
        self.failed.keys().filter_map(|v| GroupVersion::parse(v)).map(|gv| gv.group)
    }

    pub fn has_failed(&self, group: &str) -> bool {
        self.failed_groups().any(|g| g == group)
    }

    /// The error text for groups that cannot be read; none if all can (client-go `ErrGroupDiscoveryFailed`).
    pub fn failure(&self) -> Option<String> {
        let all: Vec<String> = self.failed.iter().map(|(version, e)| format!("{version}: {e}")).collect();
        (!all.is_empty()).then(|| format!("unable to retrieve the complete list of server APIs: {}", all.join(", ")))
    }
}

/// Returns every resource once, in its preferred version (upstream `ServerPreferredResources`), of all groups that can be read.
pub async fn preferred(client: &Client) -> Result<Discovered, Error> {
    let groups: Groups = client.get("/apis").await?;
    let mut all = Discovered::default();
    let mut seen = BTreeSet::new();
    read(client, "/api/v1", &GroupVersion::new("", "v1"), &mut seen, &mut all.served).await?;
    for g in &groups.groups {
        let others = g.versions.iter().filter(|v| **v != g.preferred_version);
        for v in std::iter::once(&g.preferred_version).chain(others) {
            let Some(gv) = GroupVersion::parse(&v.group_version) else { continue };
            match read(client, &format!("/apis/{gv}"), &gv, &mut seen, &mut all.served).await {
                // It was removed after the list of groups was read.
                Err(e) if !e.is_not_found() => all.failed.insert(gv.to_string(), e),
                _ => None,
            };
        }
    }
    Ok(all)
}

/// Whether a group and a version are names. References that users write may contain anything, and must not become other paths.
fn is_name(group: &str, version: &str) -> bool {
    (group.is_empty() || names::dns_subdomain(group).is_empty()) && names::dns_label(version).is_empty()
}

/// The resources of one version of a group; none if the version cannot exist.
pub async fn of_version(client: &Client, gv: &GroupVersion) -> Result<Vec<ApiResource>, Error> {
    if !is_name(&gv.group, &gv.version) {
        return Ok(Vec::new());
    }
    let mut out = Vec::new();
    let path = if gv.group.is_empty() { format!("/api/{}", gv.version) } else { format!("/apis/{gv}") };
    read(client, &path, gv, &mut BTreeSet::new(), &mut out).await?;
    Ok(out.into_iter().map(|s| s.resource).collect())
}

/// The versions of a group, the preferred one first; none if the group cannot exist. Fails with *not found* if the server does not serve
/// the group.
pub async fn versions(client: &Client, group: &str) -> Result<Vec<GroupVersion>, Error> {
    if !is_name(group, "v1") {
        return Ok(Vec::new());
    }
    if group.is_empty() {
        return Ok(vec![GroupVersion::new("", "v1")]);
    }
    let found: Group = client.get(&format!("/apis/{group}")).await?;
    let others = found.versions.iter().filter(|v| **v != found.preferred_version);
    Ok(std::iter::once(&found.preferred_version)
        .chain(others)
        .filter_map(|v| GroupVersion::parse(&v.group_version))
        .collect())
}

async fn read(
    client: &Client,
    path: &str,
    gv: &GroupVersion,
    seen: &mut BTreeSet<(String, String)>,
    out: &mut Vec<Served>,
) -> Result<(), Error> {
    let list: Resources = client.get(path).await?;
    for r in list.resources.into_iter().filter(|r| !r.name.contains('/')) {
        if seen.insert((gv.group.clone(), r.name.clone())) {
            let resource = ApiResource::new(gv.with_resource(r.name), r.kind, r.namespaced);
            out.push(Served { resource, verbs: r.verbs.into_iter().collect() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An owner reference with such an `apiVersion` would be a request to another path with the rights of a controller.
    #[test]
    fn versions_are_names() {
        let cases = [
            ("", "v1", true),
            ("apps", "v1", true),
            ("a.example.com", "v1beta1", true),
            ("", "v1?x=y", false),
            ("..", "v1", false),
            ("apps", "..", false),
            ("a/b", "v1", false),
            ("apps", "", false),
            ("a%2Fb", "v1", false),
        ];
        for (group, version, expected) in cases {
            assert_eq!(is_name(group, version), expected, "{group} {version}");
        }
    }
}

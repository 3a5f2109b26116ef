//! Objects of others that would be deleted together with a namespace or a definition.

use super::order::{Stage, stage};
use crate::discovery::Resource;
use crate::error::{Result, text};
use crate::kube::Kube;
use client::ListOptions;
use meta::Object;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How many objects an error names.
const MAX_NAMED: usize = 5;

/// Checks that `created` holds for every object that would be deleted together with `o`.
///
/// # Errors
/// The namespace or definition has an object that the apply did not create.
pub async fn check_none(k: &mut Kube, o: &Object, created: impl Fn(&Resource, &Object) -> bool) -> Result {
    let (namespace, resources) = match stage(o) {
        Stage::Rest => return Ok(()),
        Stage::Namespaces => (o.name(), resources(k, |r| r.namespaced).await?),
        Stage::Definitions => {
            let (group, plural) = (o.str_at(&["spec", "group"]), o.str_at(&["spec", "names", "plural"]));
            ("", resources(k, |r| Some(r.group.as_str()) == group && Some(r.plural.as_str()) == plural).await?)
        }
    };
    let mut found = Vec::new();
    for r in resources {
        let page = match k.api(&r, namespace).await?.list_all(&ListOptions::default()).await {
            Ok(page) => page,
            // Its definition was deleted in the meantime.
            Err(e) if e.is_not_found() => continue,
            Err(e) => return Err(e.into()),
        };
        let foreign = page.items.iter().filter(|o| !created(&r, o) && !is_generated(&r, o));
        found.extend(foreign.map(|o| format!("{}/{}", r.group_kind(), o.name())));
    }
    if found.is_empty() {
        return Ok(());
    }
    let more = if found.len() > MAX_NAMED { format!(" and {} more", found.len() - MAX_NAMED) } else { String::new() };
    found.truncate(MAX_NAMED);
    text(format!("{} {:?} holds objects of others: {}{more}", o.kind(), o.name(), found.join(", ")))
}

/// Returns the matching resources, one version per kind.
async fn resources(k: &mut Kube, matches: impl Fn(&Resource) -> bool) -> Result<Vec<Arc<Resource>>> {
    let mut seen = BTreeSet::new();
    // The cached discovery may lack new kinds.
    let all = k.refresh().await?;
    let listed = all.resources.iter().filter(|r| matches(r) && r.has_verb("list") && !is_auxiliary(r));
    Ok(listed.filter(|r| seen.insert((r.group.clone(), r.plural.clone()))).cloned().collect())
}

/// Kinds that describe other objects and are of no use without them.
fn is_auxiliary(r: &Resource) -> bool {
    matches!(
        (r.group.as_str(), r.kind.as_str()),
        ("" | "events.k8s.io", "Event") | ("", "Endpoints") | ("discovery.k8s.io", "EndpointSlice")
    )
}

/// Whether a controller creates the object in every namespace or for another object.
fn is_generated(r: &Resource, o: &Object) -> bool {
    let first = matches!(
        (r.group.as_str(), r.kind.as_str(), o.name()),
        ("", "ServiceAccount", "default") | ("", "ConfigMap", "kube-root-ca.crt")
    );
    first || o.owner_references().next().is_some()
}

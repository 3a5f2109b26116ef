//! The objects that parameterise a policy.

use super::read::ParamRef;
use crate::plugin::Review;
use meta::{Gvk, Object};
use std::sync::Arc;

/// The parameters of a binding: one evaluation is made for each. A policy without any is evaluated once.
pub(super) async fn find(
    kind: Option<&Gvk>,
    reference: Option<&ParamRef>,
    review: &Review<'_>,
) -> Result<Vec<Option<Object>>, String> {
    let (Some(kind), Some(r)) = (kind, reference) else { return Ok(vec![None]) };
    let named = || format!("paramKind kind `{}, Kind={}` not known", kind.api_version(), kind.kind);
    let (resource, namespaced) = review.host.resource(kind).ok_or_else(named)?;
    let namespace = match (namespaced, r.namespace.as_str(), review.attributes.namespace.as_str()) {
        (false, "", _) => "",
        (false, ..) => return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".into()),
        (true, "", "") => {
            return Err("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".into());
        }
        (true, "", of_request) => of_request,
        (true, said, _) => said,
    };
    let found: Vec<Object> = match (&r.selector, r.name.is_empty()) {
        (_, false) => review
            .lookup
            .get(&resource.group, &resource.resource, namespace, &r.name)
            .map(Arc::unwrap_or_clone)
            .into_iter()
            .collect(),
        (Some(selector), true) => {
            let selector = selector.as_ref().map_err(Clone::clone)?;
            let scope = namespaced.then_some(namespace);
            let mut all = review.lookup.list(&resource.group, &resource.resource, scope);
            all.retain(|o| selector.matches(|k| o.label(k)));
            all
        }
        (None, true) => return Err("one of name or selector must be provided".into()),
    };
    if found.is_empty() && r.denies_absence {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".into());
    }
    let mut versioned = Vec::with_capacity(found.len());
    for o in found {
        versioned.push(Some(match o.api_version() == kind.api_version() {
            true => o,
            false => review.host.convert(o, kind).await.map_err(|s| s.message)?,
        }));
    }
    Ok(versioned)
}

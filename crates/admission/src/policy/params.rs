//! Parameters of policies.

use crate::plugin::{Lookup, ReadScope, Review, WriteRequest};
use meta::{Gvk, Gvr, LabelSelector, Object};
use std::sync::Arc;

/// Maximum number and total stored size of objects that a selector may match: users who may label objects of the kind
/// could otherwise slow down every request that the binding matches.
const MOST: usize = 1_000;
const MOST_BYTES: usize = 16 << 20;

/// `paramRef` of a binding.
pub(super) struct ParamRef {
    pub name: String,
    pub namespace: String,
    pub selector: Option<Result<LabelSelector, String>>,
    pub denies_absence: bool,
}

/// The parameters of a binding, read one by one: the policy is evaluated for each. A policy without `paramKind` is
/// evaluated once.
pub(super) enum Params<'a> {
    None { over: bool },
    Some { kind: &'a Gvk, resource: Gvr, namespace: String, names: std::vec::IntoIter<String> },
}

/// The namespace of the parameters: from the reference, or else of the request.
fn namespace<'a>(r: &'a ParamRef, namespaced: bool, of_request: &'a str) -> Result<&'a str, String> {
    match (namespaced, r.namespace.as_str(), of_request) {
        (false, "", _) => Ok(""),
        (false, ..) => Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".into()),
        (true, "", "") => {
            Err("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".into())
        }
        (true, "", of_request) => Ok(of_request),
        (true, namespace, _) => Ok(namespace),
    }
}

/// The stored size of a binding's parameters in bytes.
pub(super) fn bytes(kind: &Gvk, r: &ParamRef, write: &WriteRequest<'_>, lookup: &dyn Lookup) -> usize {
    let Some((resource, namespaced)) = lookup.resource(kind) else { return 0 };
    let Ok(namespace) = namespace(r, namespaced, write.namespace) else { return 0 };
    match &r.selector {
        _ if !r.name.is_empty() => {
            lookup.bytes(&resource.group, &resource.resource, Some(namespace), ReadScope::Named(&r.name))
        }
        Some(Ok(selector)) => {
            let found = lookup.find(&resource.group, &resource.resource, namespace, selector);
            found.iter().map(|f| f.size).sum::<usize>().min(MOST_BYTES)
        }
        _ => 0,
    }
}

/// Finds the parameters of a binding. Errors if the reference is invalid, or, by `parameterNotFoundAction`, if none
/// exist.
pub(super) fn find<'a>(
    kind: Option<&'a Gvk>,
    reference: Option<&ParamRef>,
    review: &Review<'_>,
) -> Result<Params<'a>, String> {
    let (Some(kind), Some(r)) = (kind, reference) else { return Ok(Params::None { over: false }) };
    let named = || format!("paramKind kind `{}, Kind={}` not known", kind.api_version(), kind.kind);
    let (resource, namespaced) = review.lookup.resource(kind).ok_or_else(named)?;
    let namespace = namespace(r, namespaced, &review.attributes.namespace)?;
    let lookup = review.lookup;
    let names = match (&r.selector, r.name.is_empty()) {
        (_, false) => {
            let known = lookup.labels(&resource.group, &resource.resource, namespace, &r.name).is_some();
            known.then(|| r.name.clone()).into_iter().collect()
        }
        (Some(selector), true) => {
            let selector = selector.as_ref().map_err(Clone::clone)?;
            let found = lookup.find(&resource.group, &resource.resource, namespace, selector);
            if found.len() > MOST || found.iter().map(|f| f.size).sum::<usize>() > MOST_BYTES {
                return Err(format!(
                    "the selector of paramRef chooses {} objects, more than {MOST} or than {} MiB in all",
                    found.len(),
                    MOST_BYTES >> 20
                ));
            }
            found.into_iter().map(|f| f.name).collect::<Vec<_>>()
        }
        (None, true) => return Err("one of name or selector must be provided".into()),
    };
    if names.is_empty() && r.denies_absence {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".into());
    }
    let namespace = namespace.to_owned();
    Ok(Params::Some { kind, resource, namespace, names: names.into_iter() })
}

impl Params<'_> {
    /// The next parameter, in the version of `paramKind`; `None` once for a policy without parameters. Yields to
    /// other tasks in between. Errors if conversion fails.
    pub(super) async fn next(&mut self, review: &Review<'_>) -> Option<Result<Option<Object>, String>> {
        let (kind, resource, namespace, names) = match self {
            Self::None { over } => return (!std::mem::replace(over, true)).then_some(Ok(None)),
            Self::Some { kind, resource, namespace, names } => (kind, resource, namespace, names),
        };
        loop {
            let name = names.next()?;
            // Skip an object deleted in the meantime.
            let o = match review.lookup.get(&resource.group, &resource.resource, namespace, &name) {
                Ok(Some(o)) => o,
                Ok(None) => continue,
                Err(s) => return Some(Err(s.message)),
            };
            tokio::task::yield_now().await;
            let o = Arc::unwrap_or_clone(o);
            return Some(match o.api_version() == kind.api_version() {
                true => Ok(Some(o)),
                false => review.host.convert(o, kind).await.map(Some).map_err(|s| s.message),
            });
        }
    }
}

//! Who may write which part of the status of a claim (`DRAResourceClaimGranularStatusAuthorization`): besides `resourceclaims/status`,
//! allocations and consumers take `resourceclaims/binding`, and what a driver reports of devices takes `resourceclaims/driver` with
//! the driver's name. Verbs of drivers say whether they write for the node of their own pod only, or for any.

use std::collections::{BTreeMap, BTreeSet};

use auth::{Attributes, Authorizer, Decision, User};
use meta::{FieldError, FieldPath, Object, Status, Value};
use registry::Request;

use crate::read::items;

/// The user's node, in the extra attributes of a service account.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Errors (422) if the user may not write what an update of the status changes.
pub fn check(authorizer: &dyn Authorizer, request: &Request, new: &Object, old: Option<&Object>) -> Result<(), Status> {
    let ("status", Some(old), false) = (&*request.subresource, old, request.verb.is_empty()) else { return Ok(()) };
    let mut errors = Vec::new();
    let field = |o: &Object, name: &str| o.at(&["status", name]).cloned().filter(|v| !is_empty(v));
    if ["allocation", "reservedFor"].iter().any(|f| field(new, f) != field(old, f)) {
        let a = attributes(request, request.verb.into(), "binding", "", "");
        if let Err(why) = authorized(authorizer, &a) {
            let needs = format!("resource=\"resourceclaims/binding\", verb={:?} permission: {why}", a.verb);
            let why = format!("changing status.allocation or status.reservedFor requires {needs}");
            errors.push(FieldError::forbidden(&FieldPath::new("status.allocation"), &why));
        }
    }
    // What drivers report goes with the devices.
    if let Some(allocation) = field(new, "allocation") {
        let is_own = own_node(&request.user).is_some_and(|node| allocated_node(&allocation) == Some(node));
        let prefixes: &[&str] = if is_own { &["associated-node:", "arbitrary-node:"] } else { &["arbitrary-node:"] };
        let verbs: Vec<String> = prefixes.iter().map(|p| format!("{p}{}", request.verb)).collect();
        for driver in changed_drivers(new, old) {
            let tries = verbs.iter().map(|verb| {
                let a = attributes(request, verb.clone(), "driver", &request.namespace, &driver);
                authorized(authorizer, &a)
            });
            let tries: Vec<Result<(), String>> = tries.collect();
            if let (false, Some(Err(why))) = (tries.iter().any(Result::is_ok), tries.first()) {
                let needs = format!("resource=\"resourceclaims/driver\", verb=\"[{}]\" permission", verbs.join(" "));
                let why = format!("changing status.devices requires {needs}: {why}");
                errors.push(FieldError::forbidden(&FieldPath::new("status.devices"), &why));
            }
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&request.resource.group_kind(), new.name(), &errors))
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

fn attributes(request: &Request, verb: String, subresource: &str, namespace: &str, name: &str) -> Attributes {
    Attributes {
        user: request.user.clone(),
        verb,
        group: request.group_resource().group,
        version: "v1".into(),
        resource: "resourceclaims".into(),
        subresource: subresource.into(),
        namespace: namespace.into(),
        name: name.into(),
        ..Attributes::default()
    }
}

/// Errors with the message of a request that is not allowed.
fn authorized(authorizer: &dyn Authorizer, a: &Attributes) -> Result<(), String> {
    let why = match authorizer.authorize(a) {
        Decision::Allow(_) => return Ok(()),
        Decision::Deny(why) | Decision::NoOpinion(why) => why,
    };
    let tail = if why.is_empty() { String::new() } else { format!(": {why}") };
    let place = match a.namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let of = if a.name.is_empty() { String::new() } else { format!(" {:?}", a.name) };
    let (user, group) = (&a.user.name, &a.group);
    let resource = format!("{}/{}", a.resource, a.subresource);
    Err(format!(
        "{}.{group}{of} is forbidden: User {user:?} cannot {} resource {resource:?} in API group {group:?} {place}{tail}",
        a.resource, a.verb
    ))
}

/// The drivers whose entries in `status.devices` are new, changed or gone.
fn changed_drivers(new: &Object, old: &Object) -> BTreeSet<String> {
    let entries = |o: &Object| -> BTreeMap<[String; 4], Value> {
        let status = o.get("status").cloned().unwrap_or_default();
        let key =
            |d: &Value| ["driver", "pool", "device", "shareID"].map(|f| d[f].as_str().unwrap_or_default().to_owned());
        items(&status, "devices").iter().map(|d| (key(d), d.clone())).collect()
    };
    let (new, old) = (entries(new), entries(old));
    let keys = new.keys().chain(old.keys()).filter(|key| new.get(*key) != old.get(*key));
    keys.map(|[driver, ..]| driver.clone()).collect()
}

/// The node of the pod whose service account the user is.
fn own_node(user: &User) -> Option<&str> {
    if !user.name.starts_with("system:serviceaccount:") {
        return None;
    }
    match user.extra.get(NODE_NAME).map(Vec::as_slice) {
        Some([node]) if !node.is_empty() => Some(node),
        _ => None,
    }
}

/// The node to which an allocation ties a pod, if it is one.
fn allocated_node(allocation: &Value) -> Option<&str> {
    let [term] = items(&allocation["nodeSelector"], "nodeSelectorTerms") else { return None };
    let [field] = items(term, "matchFields") else { return None };
    let is_name = field["key"] == "metadata.name" && field["operator"] == "In";
    let [node] = items(field, "values") else { return None };
    node.as_str().filter(|_| is_name && items(term, "matchExpressions").is_empty())
}

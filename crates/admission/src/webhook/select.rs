//! Which hooks a request concerns, and in which version of the object they want to hear of it.

use super::conditions;
use super::hook::{Hook, Rule};
use crate::plugin::{Operation, Review};
use meta::{GroupResource, Gvk, Gvr, LabelSelector, Object, Status};

/// A hook is to be called with this.
pub(super) struct Invocation<'a> {
    pub hook: &'a Hook,
    pub resource: Gvr,
    pub kind: Gvk,
}

/// Configurations of admission are not admitted by it: a bad hook could not be taken away again.
pub(super) fn is_exempt(review: &Review<'_>) -> bool {
    let kinds = [
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    ];
    review.attributes.group == super::hook::GROUP && kinds.contains(&&*review.attributes.resource)
}

pub(super) fn select<'a>(
    hook: &'a Hook,
    review: &Review<'_>,
    object: Option<&Object>,
) -> Result<Option<Invocation<'a>>, Status> {
    // A selector that cannot be read counts only where the rules match.
    let namespaces = match_namespace(hook, review, object);
    if matches!(namespaces, Ok(false)) {
        return Ok(None);
    }
    let objects = match_object(hook, review, object);
    if matches!(objects, Ok(false)) {
        return Ok(None);
    }
    let Some(invocation) = match_rules(hook, review) else { return Ok(None) };
    namespaces?;
    objects?;
    Ok(conditions::hold(hook, review, object)?.then_some(invocation))
}

fn match_rules<'a>(hook: &'a Hook, review: &Review<'_>) -> Option<Invocation<'a>> {
    let a = review.attributes;
    let asked = Gvr { group: a.group.clone(), version: a.version.clone(), resource: a.resource.clone() };
    if hook.rules.iter().any(|r| matches(r, review, &asked)) {
        return Some(Invocation { hook, resource: asked, kind: review.kind.clone() });
    }
    if !hook.equivalent {
        return None;
    }
    let others = review.host.equivalents(&asked, &a.subresource);
    // The first rule wins, not the first version.
    let mut pairs = hook.rules.iter().flat_map(|r| others.iter().map(move |o| (r, o)));
    let (_, (resource, kind)) = pairs.find(|(r, (resource, _))| matches(r, review, resource))?;
    Some(Invocation { hook, resource: resource.clone(), kind: kind.clone() })
}

fn matches(rule: &Rule, review: &Review<'_>, resource: &Gvr) -> bool {
    let one_of = |list: &[String], x: &str| list.iter().any(|i| i == "*" || i == x);
    let part = &review.attributes.subresource;
    let in_namespace = !review.attributes.namespace.is_empty();
    let is_namespace = resource.group.is_empty() && resource.resource == "namespaces";
    let scope = match rule.scope.as_str() {
        "Namespaced" => in_namespace && !is_namespace,
        "Cluster" => !in_namespace || is_namespace,
        _ => true,
    };
    scope
        && one_of(&rule.operations, review.operation.as_str())
        && one_of(&rule.groups, &resource.group)
        && one_of(&rule.versions, &resource.version)
        && rule.resources.iter().any(|r| {
            let (main, sub) = r.split_once('/').unwrap_or((r, ""));
            (main == "*" || main == resource.resource) && (sub == "*" || sub == part)
        })
}

fn selects(selector: &LabelSelector, o: &Object) -> bool {
    selector.matches(|k| o.label(k))
}

fn match_namespace(hook: &Hook, review: &Review<'_>, object: Option<&Object>) -> Result<bool, Status> {
    let a = review.attributes;
    // What is in no namespace, and is none, is never left out.
    if a.namespace.is_empty() && a.resource != "namespaces" {
        return Ok(true);
    }
    let selector = hook.namespaces.as_ref().map_err(Status::internal)?;
    if selector.is_everything() {
        return Ok(true);
    }
    let itself = a.resource == "namespaces" && a.subresource.is_empty();
    if itself
        && matches!(review.operation, Operation::Create | Operation::Update)
        && let Some(o) = object
    {
        return Ok(selects(selector, o));
    }
    match review.lookup.namespace_labels(&a.namespace) {
        Some(labels) => Ok(selector.matches(|k| labels.get(k).map(String::as_str))),
        None => {
            let gr = GroupResource { group: String::new(), resource: "namespaces".into() };
            Err(Status::not_found(&gr, &a.namespace))
        }
    }
}

fn match_object(hook: &Hook, review: &Review<'_>, object: Option<&Object>) -> Result<bool, Status> {
    let selector = hook.objects.as_ref().map_err(Status::internal)?;
    Ok(selector.is_everything() || object.into_iter().chain(review.old).any(|o| selects(selector, o)))
}

//! Privilege escalation checks (`k8s.io/kubernetes/pkg/registry/rbac`, the storages named `policybased`): writing a
//! role requires its rules or the verb `escalate`; writing a binding requires the rules of its role or the verb `bind`.

use super::GROUP;
use auth::rbac::{PolicyRule, cover};
use auth::{Attributes, Authorizer};
use meta::{Object, Status, Value};
use registry::{Env, Request};

const ROLES: &str = "rbac.authorization.k8s.io/roles";
const CLUSTER_ROLES: &str = "rbac.authorization.k8s.io/clusterroles";

/// Returns an error (403) if the write grants rules that the user does not have.
pub fn check(
    authorizer: &dyn Authorizer,
    env: Env<'_>,
    request: &Request,
    object: &Object,
    old: Option<&Object>,
) -> Result<(), Status> {
    let user = &request.user;
    if user.is_in(auth::user::GROUP_MASTERS) || old.is_some_and(|old| changes_only_gc_fields(object, old)) {
        return Ok(());
    }
    let forbidden = |why: &str| Status::forbidden(&request.group_resource(), object.name(), why);
    if matches!(object.kind(), "RoleBinding" | "ClusterRoleBinding") {
        let (resource, namespace) = match object.str_at(&["roleRef", "kind"]) {
            Some("Role") => ("roles", request.namespace.as_str()),
            Some("ClusterRole") => ("clusterroles", ""),
            // Validation reports the error.
            _ => return Ok(()),
        };
        let name = object.str_at(&["roleRef", "name"]).unwrap_or_default();
        if object.str_at(&["roleRef", "apiGroup"]) != Some(GROUP) || name.is_empty() {
            return Ok(());
        }
        if may(authorizer, request, "bind", resource, name) {
            return Ok(());
        }
        let role = role(env, request, resource, namespace, name)?;
        return held(authorizer, request, &rules(&role)).map_err(|why| forbidden(&why));
    }
    if may(authorizer, request, "escalate", &request.resource.kind.plural, &request.name) {
        return Ok(());
    }
    held(authorizer, request, &rules(object)).map_err(|why| forbidden(&why))?;
    let aggregates = |o: &Object| o.get("aggregationRule").is_some_and(|a| !a.is_null());
    if aggregates(object) || old.is_some_and(aggregates) {
        let everything = held(authorizer, request, &everything());
        everything.map_err(|_| forbidden("must have cluster-admin privileges to use an aggregationRule"))?;
    }
    Ok(())
}

/// Returns the bytes that a check reads: the largest role.
pub fn reads(env: Env<'_>, namespace: &str) -> usize {
    let snapshot = env.registry.store.snapshot();
    let largest = |resource: &str, namespace| stored::amount::largest(&snapshot, resource, namespace);
    let own = if namespace.is_empty() { 0 } else { largest(ROLES, Some(namespace)) };
    own.max(largest(CLUSTER_ROLES, None))
}

/// Whether an update changes only fields of garbage collection.
fn changes_only_gc_fields(object: &Object, old: &Object) -> bool {
    let rest = |o: &Object| {
        let mut o = o.clone();
        for key in ["finalizers", "ownerReferences", "managedFields", "resourceVersion"] {
            o.metadata_mut().remove(key);
        }
        o
    };
    rest(object) == rest(old)
}

fn may(authorizer: &dyn Authorizer, request: &Request, verb: &str, resource: &str, name: &str) -> bool {
    let a = Attributes {
        user: request.user.clone(),
        verb: verb.into(),
        group: GROUP.into(),
        version: "*".into(),
        resource: resource.into(),
        namespace: request.namespace.clone(),
        name: name.into(),
        ..Attributes::default()
    };
    authorizer.authorize(&a).allowed()
}

fn role(env: Env<'_>, request: &Request, resource: &str, namespace: &str, name: &str) -> Result<Object, Status> {
    let rows = env.registry.rows();
    let key = rows.stored(GROUP, resource).and_then(|r| r.key(namespace, name));
    let object = key.map(|k| env.registry.stored_object(&k)).transpose()?.flatten();
    // Upstream's error has the resource of the request.
    object.ok_or_else(|| Status::not_found(&request.group_resource(), name))
}

fn rules(role: &Object) -> Vec<PolicyRule> {
    role.get("rules").and_then(Value::as_array).into_iter().flatten().map(PolicyRule::read).collect()
}

fn everything() -> [PolicyRule; 2] {
    let all = || vec!["*".to_owned()];
    [
        PolicyRule { verbs: all(), groups: all(), resources: all(), ..PolicyRule::default() },
        PolicyRule { verbs: all(), urls: all(), ..PolicyRule::default() },
    ]
}

/// Checks that the user has all requested rules in the request's namespace.
fn held(authorizer: &dyn Authorizer, request: &Request, requested: &[PolicyRule]) -> Result<(), String> {
    let user = &request.user;
    let lacks = match cover::missing(&authorizer.rules(user, &request.namespace), requested) {
        Ok(missing) if missing.is_empty() => return Ok(()),
        Ok(missing) => cover::describe(&missing),
        Err(why) => why.to_string(),
    };
    let groups = cover::quoted(&user.groups);
    Err(format!(
        "user {:?} (groups={groups}) is attempting to grant RBAC permissions not currently held:\n{lacks}",
        user.name
    ))
}

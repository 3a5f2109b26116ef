//! Nobody grants what they do not hold (`k8s.io/kubernetes/pkg/registry/rbac`, the storages named `policybased`): who writes a
//! role must have its rules or may `escalate` it, who writes a binding must have the rules of its role or may `bind` it.

use super::GROUP;
use auth::rbac::{PolicyRule, cover};
use auth::{Attributes, Authorizer};
use meta::{GroupResource, Object, Status, Value};
use registry::{Env, Request};

const ROLES: &str = "rbac.authorization.k8s.io/roles";
const CLUSTER_ROLES: &str = "rbac.authorization.k8s.io/clusterroles";

/// Refuses with 403 what would give more than the user has.
pub fn check(
    authorizer: &dyn Authorizer,
    env: Env<'_>,
    request: &Request,
    object: &Object,
    old: Option<&Object>,
) -> Result<(), Status> {
    let user = &request.user;
    if user.is_in(auth::user::GROUP_MASTERS) || old.is_some_and(|old| is_same_but_for_its_end(object, old)) {
        return Ok(());
    }
    let forbidden = |why: &str| Status::forbidden(&request.group_resource(), object.name(), why);
    if matches!(object.kind(), "RoleBinding" | "ClusterRoleBinding") {
        let (resource, namespace) = match object.str_at(&["roleRef", "kind"]) {
            Some("Role") => ("roles", request.namespace.as_str()),
            Some("ClusterRole") => ("clusterroles", ""),
            // Validation says what is wrong.
            _ => return Ok(()),
        };
        let name = object.str_at(&["roleRef", "name"]).unwrap_or_default();
        if object.str_at(&["roleRef", "apiGroup"]) != Some(GROUP) || name.is_empty() {
            return Ok(());
        }
        if may(authorizer, request, "bind", resource, name) {
            return Ok(());
        }
        let role = role(env, resource, namespace, name)?;
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

/// A binding is compared with the role that it names: returns the bytes of the largest one.
pub fn reads(env: Env<'_>, namespace: &str) -> usize {
    let snapshot = env.registry.store.snapshot();
    let largest = |resource: &str, namespace| stored::amount::largest(&snapshot, resource, namespace);
    let own = if namespace.is_empty() { 0 } else { largest(ROLES, Some(namespace)) };
    own.max(largest(CLUSTER_ROLES, None))
}

/// Nothing differs but what garbage collection changes.
fn is_same_but_for_its_end(object: &Object, old: &Object) -> bool {
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

fn role(env: Env<'_>, resource: &str, namespace: &str, name: &str) -> Result<Object, Status> {
    let rows = env.registry.rows();
    let key = rows.stored(GROUP, resource).and_then(|r| r.key(namespace, name));
    let object = key.map(|k| env.registry.stored_object(&k)).transpose()?.flatten();
    let gr = GroupResource { group: GROUP.into(), resource: resource.into() };
    object.ok_or_else(|| Status::not_found(&gr, name))
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

/// The user holds all of this where the request is made.
fn held(authorizer: &dyn Authorizer, request: &Request, wanted: &[PolicyRule]) -> Result<(), String> {
    let user = &request.user;
    let lacks = match cover::missing(&authorizer.rules(user, &request.namespace), wanted) {
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

//! The variables of admission expressions and their types. Objects are `dyn`: a policy may apply to kinds of any shape.

use cel::{Decl, Env, Field, Object, Type};
use std::sync::Arc;

/// Whether a policy has parameters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Params {
    /// The variable `params` does not exist.
    None,
    /// The variable `params` exists.
    Some,
}

/// The environment of webhook match conditions.
pub fn webhook_env() -> Env {
    authorizer(base())
}

/// The environment of validations, match conditions and variables of a policy.
pub fn policy_env(params: Params) -> Env {
    authorizer(message_env(params))
}

/// The environment of message expressions and audit annotations, without the authorizer.
pub fn message_env(params: Params) -> Env {
    match params {
        Params::None => base(),
        Params::Some => base().with("params", Type::Dyn),
    }
}

fn base() -> Env {
    Env::default()
        .with("object", Type::Dyn)
        .with("oldObject", Type::Dyn)
        .with("request", request())
        .with("namespaceObject", namespace())
}

fn authorizer(env: Env) -> Env {
    env.with("authorizer", Type::Opaque("kubernetes.authorization.Authorizer"))
        .with("authorizer.requestResource", Type::Opaque("kubernetes.authorization.ResourceCheck"))
}

fn object(name: &str, fields: &[(&str, Type)]) -> Type {
    let field = |(n, t): &(&str, Type)| ((*n).to_owned(), Field { json: (*n).to_owned(), decl: Decl::from(t.clone()) });
    Type::Object(Arc::new(Object { name: name.into(), fields: fields.iter().map(field).collect(), open: false }))
}

fn request() -> Type {
    let text = || Type::String;
    let kind = object("kubernetes.GroupVersionKind", &[("group", text()), ("version", text()), ("kind", text())]);
    let resource =
        object("kubernetes.GroupVersionResource", &[("group", text()), ("version", text()), ("resource", text())]);
    let user = object(
        "kubernetes.UserInfo",
        &[
            ("username", text()),
            ("uid", text()),
            ("groups", Type::list(text())),
            ("extra", Type::map(text(), Type::list(text()))),
        ],
    );
    object(
        "kubernetes.AdmissionRequest",
        &[
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("subResource", text()),
            ("requestKind", kind),
            ("requestResource", resource),
            ("requestSubResource", text()),
            ("name", text()),
            ("namespace", text()),
            ("operation", text()),
            ("userInfo", user),
            ("dryRun", Type::Bool),
            ("options", Type::Dyn),
        ],
    )
}

fn namespace() -> Type {
    let text = || Type::String;
    let texts = || Type::map(text(), text());
    let metadata = object(
        "kubernetes.NamespaceMetadata",
        &[
            ("name", text()),
            ("generateName", text()),
            ("namespace", text()),
            ("labels", texts()),
            ("annotations", texts()),
            ("UID", text()),
            ("creationTimestamp", Type::Timestamp),
            ("deletionGracePeriodSeconds", Type::Int),
            ("deletionTimestamp", Type::Timestamp),
            ("generation", Type::Int),
            ("resourceVersion", text()),
            ("finalizers", Type::list(text())),
        ],
    );
    let spec = object("kubernetes.NamespaceSpec", &[("finalizers", Type::list(text()))]);
    let status = object("kubernetes.NamespaceStatus", &[("phase", text())]);
    object("kubernetes.Namespace", &[("metadata", metadata), ("status", status), ("spec", spec)])
}

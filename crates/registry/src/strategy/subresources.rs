use super::{Env, Request};
use crate::row::Function;
use meta::{Object, Status};
use std::sync::Arc;

/// Subresources and their backends (`rest.Connecter`, `rest.Redirector`).
pub trait Subresources: Send + Sync {
    fn subresource(&self, _name: &str) -> Option<Sub> {
        None
    }

    /// The target of the `proxy` subresource. `_segment` holds the scheme and port of the path.
    fn proxy(
        &self,
        _env: Env<'_>,
        request: &Request,
        _object: &Object,
        _segment: &ProxyTarget,
    ) -> Result<Upstream, Status> {
        Err(Status::method_not_supported(&request.group_resource(), "proxy"))
    }
}

/// How a subresource is served.
pub enum Sub {
    /// A part of the object with its own validation: `status`, `finalize`, `approval`.
    Part,
    /// `autoscaling/v1` Scale over these paths.
    Scale(Scale),
    Function(Arc<dyn Function>),
    /// A stream to a backend: `log`, `exec`, `proxy`.
    Connect,
}

/// The paths of an object's scale.
#[derive(Clone, Debug)]
pub struct Scale {
    pub spec_replicas: Vec<String>,
    pub status_replicas: Vec<String>,
    pub selector: ScaleSelector,
}

#[derive(Clone, Debug)]
pub enum ScaleSelector {
    /// Computed from the object.
    Of(fn(&Object) -> String),
    /// A field with the selector as text.
    At(Vec<String>),
    None,
}

impl Scale {
    /// The paths of built-in kinds.
    pub fn usual(selector: fn(&Object) -> String) -> Self {
        let path = |a: &str| vec![a.to_owned(), "replicas".to_owned()];
        Self { spec_replicas: path("spec"), status_replicas: path("status"), selector: ScaleSelector::Of(selector) }
    }

    pub fn selector_of(&self, o: &Object) -> String {
        match &self.selector {
            ScaleSelector::Of(f) => f(o),
            ScaleSelector::At(path) => at(o, path).and_then(meta::Value::as_str).unwrap_or_default().to_owned(),
            ScaleSelector::None => String::new(),
        }
    }
}

/// The value at a path.
pub fn at<'a>(o: &'a Object, path: &[String]) -> Option<&'a meta::Value> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    o.at(&path)
}

/// The `scheme:name:port` segment of a proxy path, without the name; omitted parts are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyTarget {
    pub scheme: String,
    pub port: String,
}

/// The target of a proxy subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    Address {
        tls: bool,
        host: String,
        port: u16,
    },
    /// The kubelet of a node.
    Agent(String),
}

//! What a command is about: objects in files, and objects of the server by type, name and selector
//! (`k8s.io/cli-runtime/pkg/resource`).

pub mod file;
pub mod kustomization;
pub mod scheme;
pub mod select;
mod url;
mod validation;

use crate::discovery::Resource;
use crate::error::{Error, Result, text};
use crate::kube::Kube;
use client::FieldValidation;
use meta::Object;
use std::sync::Arc;

/// One object: as a file has it, or by name.
#[derive(Clone, Debug)]
pub struct Info {
    pub resource: Arc<Resource>,
    /// Empty for cluster-scoped resources.
    pub namespace: String,
    pub name: String,
    /// The file it came from; empty for names.
    pub source: String,
    pub object: Option<Object>,
}

impl Info {
    /// `deployment.apps/web`.
    pub fn to_name(&self) -> String {
        format!("{}/{}", self.resource.group_kind(), self.name)
    }

    /// Refuses an object of a namespace that none is known of: it comes from a file, and all namespaces are meant (`-A`).
    pub fn placed(&self) -> Result {
        if self.resource.namespaced && self.namespace.is_empty() {
            let r = &self.resource;
            let gvr = format!("{}/{}, Resource={}", r.group, r.version, r.plural);
            return text(format!("no namespace set on resource {gvr} {:?}", self.name));
        }
        Ok(())
    }

    pub async fn fetch(&self, k: &mut Kube) -> Result<Object> {
        // An object without a name is not on the server.
        if self.name.is_empty()
            && let Some(o) = &self.object
        {
            return Ok(o.clone());
        }
        self.placed()?;
        scheme::knows(k.scheme, &self.resource.gvk()).map_err(Error::Text)?;
        let asked = k.api(&self.resource, &self.namespace).await?.get(&self.name).await;
        self.found(k, asked).await
    }

    /// An answer of the server to a question for this object. Of one that is not there for want of its namespace, the namespace
    /// is said to be missing.
    pub async fn found<T>(&self, k: &mut Kube, answer: std::result::Result<T, client::Error>) -> Result<T> {
        let error = match answer {
            Err(e) if e.is_not_found() && !matches!(self.namespace.as_str(), "" | "default") => e,
            other => return Ok(other?),
        };
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        let asked = k.client().await?.get::<meta::Value>(&path).await;
        Err(asked.err().filter(client::Error::is_not_found).unwrap_or(error).into())
    }
}

/// Everything of a resource, or what selectors leave of it.
#[derive(Clone, Debug)]
pub struct Collection {
    pub resource: Arc<Resource>,
    /// Empty: all namespaces, or a cluster-scoped resource.
    pub namespace: String,
}

#[derive(Clone, Debug)]
pub enum Target {
    Named(Info),
    All(Collection),
}

/// An object of a kind that the server does not serve.
pub fn unmapped(source: &str, object: &Object) -> Error {
    Error::Text(format!(
        "resource mapping not found for name: {:?} namespace: {:?} from {source:?}: no matches for kind {:?} in version {:?}\nensure CRDs are installed first",
        object.name(),
        object.namespace(),
        object.kind(),
        object.api_version(),
    ))
}

/// An object of another namespace than the command works in.
pub fn elsewhere(of_object: &str, namespace: &str) -> Error {
    Error::Text(format!(
        "the namespace from the provided object {of_object:?} does not match the namespace {namespace:?}. You must pass '--namespace={of_object}' to perform this operation."
    ))
}

/// Finds the resource of an object from a file, and puts it into its namespace.
pub async fn locate(k: &mut Kube, source: &str, mut object: Object) -> Result<Info> {
    let Some(gvk) = object.gvk() else {
        return text(format!("unable to decode {source:?}: unexpected GroupVersion string: {}", object.api_version()));
    };
    let Some(resource) = k.resource_of(&gvk).await? else {
        return Err(unmapped(source, &object));
    };
    let mut namespace = String::new();
    if resource.namespaced {
        let (default, explicit) = k.namespace()?;
        let everywhere = k.global.all_namespaces;
        if object.namespace().is_empty() {
            if !everywhere {
                object.set_namespace(&default);
            }
        } else if explicit && !everywhere && object.namespace() != default {
            return Err(elsewhere(object.namespace(), &default));
        }
        namespace = object.namespace().to_owned();
    } else if !object.namespace().is_empty() {
        object.set_namespace("");
    }
    Ok(Info { name: object.name().to_owned(), namespace, source: source.to_owned(), resource, object: Some(object) })
}

/// The objects of files, each located or with its error.
pub async fn from_files(k: &mut Kube, flags: &crate::flags::FileFlags) -> Result<Vec<Result<Info>>> {
    let documents = file::read(k, flags).await?;
    located(k, documents).await
}

/// [`from_files`] for a command that sends them and has them validated.
pub async fn from_files_validated(
    k: &mut Kube,
    flags: &crate::flags::FileFlags,
    validation: FieldValidation,
) -> Result<Vec<Result<Info>>> {
    let documents = file::read_for(k, flags, validation).await?;
    located(k, documents).await
}

/// The resources of objects that were read.
pub async fn located(k: &mut Kube, documents: Vec<Result<file::Document>>) -> Result<Vec<Result<Info>>> {
    let mut out = Vec::new();
    for document in documents {
        match document {
            Err(e) => out.push(Err(e)),
            Ok(d) => match locate(k, &d.source, d.object).await {
                Err(e @ Error::Client(_)) => return Err(e),
                r => out.push(r),
            },
        }
    }
    Ok(out)
}

/// The objects of files without a server (`--local`): of kinds this program knows, and of others as they are.
pub async fn from_files_alone(k: &mut Kube, flags: &crate::flags::FileFlags) -> Result<Vec<Result<Info>>> {
    let documents = file::read(k, flags).await?;
    let alone = |d: file::Document| {
        let gvk = d.object.gvk().unwrap_or_default();
        let known = kinds::catalog().kind(&gvk);
        let lower = gvk.kind.to_lowercase();
        let resource = Resource {
            plural: known.map_or_else(|| format!("{lower}s"), |n| n.plural.to_string()),
            singular: lower,
            namespaced: known.is_none_or(|n| n.namespaced),
            group: gvk.group,
            version: gvk.version,
            kind: gvk.kind,
            ..Resource::default()
        };
        Info {
            name: d.object.name().to_owned(),
            namespace: d.object.namespace().to_owned(),
            source: d.source,
            resource: Arc::new(resource),
            object: Some(d.object),
        }
    };
    Ok(documents.into_iter().map(|d| d.map(alone)).collect())
}

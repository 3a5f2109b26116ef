//! The objects that a command works on: from files, or from the server by type, name and selector
//! (`k8s.io/cli-runtime/pkg/resource`).

pub mod deletion;
pub mod file;
pub mod kustomization;
pub mod last_applied;
pub mod scheme;
pub mod select;
mod url;
mod validation;

use crate::discovery::Resource;
use crate::error::{Error, Result, text};
use crate::flags::FileFlags;
use crate::kube::{CHANGE_CAUSE, Kube};
use client::{FieldValidation, Patch, WriteOptions};
use meta::{Gvk, Object};
use std::sync::Arc;

/// An object from a file, or the name of one on the server.
#[derive(Clone, Debug)]
pub struct Info {
    pub resource: Arc<Resource>,
    /// Empty for cluster-scoped resources.
    pub namespace: String,
    pub name: String,
    /// The file that the object comes from; empty for names.
    pub source: String,
    pub object: Option<Object>,
}

impl Info {
    /// `deployment.apps/web`.
    pub fn to_name(&self) -> String {
        format!("{}/{}", self.resource.group_kind(), self.name)
    }

    /// Rejects a namespaced object without a namespace: it comes from a file, and `-A` is given.
    pub fn check_namespace(&self) -> Result {
        if self.resource.namespaced && self.namespace.is_empty() {
            let r = &self.resource;
            let gvr = format!("{}/{}, Resource={}", r.group, r.version, r.plural);
            return text(format!("no namespace set on resource {gvr} {:?}", self.name));
        }
        Ok(())
    }

    /// Reads the object from the server.
    pub async fn fetch(&self, k: &mut Kube) -> Result<Object> {
        // An object without a name cannot be on the server.
        if self.name.is_empty()
            && let Some(o) = &self.object
        {
            return Ok(o.clone());
        }
        self.check_namespace()?;
        scheme::knows(k.scheme, &self.resource.gvk()).map_err(Error::Text)?;
        let response = k.api(&self.resource, &self.namespace).await?.get(&self.name).await;
        self.found(k, response).await
    }

    /// Checks the server's response for this object. If the object is not found because its namespace does not exist,
    /// returns the error about the namespace.
    pub async fn found<T>(&self, k: &mut Kube, answer: std::result::Result<T, client::Error>) -> Result<T> {
        let error = match answer {
            Err(e) if e.is_not_found() && !matches!(self.namespace.as_str(), "" | "default") => e,
            other => return Ok(other?),
        };
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        let response = k.client().await?.get::<meta::Value>(&path).await;
        Err(response.err().filter(client::Error::is_not_found).unwrap_or(error).into())
    }

    /// Records the cause of a change with a patch of its own (`--record`), for changes that do not write the object itself
    /// (`scale`, `patch`). Returns `None` without a cause. Errors are ignored, as upstream does: the change itself is done.
    pub async fn record_cause(&self, k: &mut Kube, subresource: &str, options: &WriteOptions) -> Option<Object> {
        let cause = k.global.cause.clone()?;
        let patch = Patch::Merge(serde_json::json!({"metadata": {"annotations": {CHANGE_CAUSE: cause}}}));
        let api = k.api(&self.resource, &self.namespace).await.ok()?;
        match subresource {
            "" => api.patch(&self.name, options, &patch).await.ok(),
            subresource => api.patch_subresource(&self.name, subresource, options, &patch).await.ok(),
        }
    }
}

/// All objects of a resource, or those that match selectors.
#[derive(Clone, Debug)]
pub struct Collection {
    pub resource: Arc<Resource>,
    /// Empty: all namespaces, or a cluster-scoped resource.
    pub namespace: String,
}

/// An argument of a command.
#[derive(Clone, Debug)]
pub enum Target {
    Named(Info),
    All(Collection),
}

impl Target {
    pub fn resource(&self) -> &Arc<Resource> {
        match self {
            Self::Named(i) => &i.resource,
            Self::All(c) => &c.resource,
        }
    }
}

/// Error for an object of a kind that the server does not serve.
pub fn unmapped(source: &str, object: &Object) -> Error {
    Error::Text(format!(
        "resource mapping not found for name: {:?} namespace: {:?} from {source:?}: no matches for kind {:?} in version {:?}\nensure CRDs are installed first",
        object.name(),
        object.namespace(),
        object.kind(),
        object.api_version(),
    ))
}

/// Error for an object in another namespace than the command's.
pub fn other_namespace(of_object: &str, namespace: &str) -> Error {
    Error::Text(format!(
        "the namespace from the provided object {of_object:?} does not match the namespace {namespace:?}. You must pass '--namespace={of_object}' to perform this operation."
    ))
}

/// Finds the resource of an object from a file, and sets its namespace.
pub async fn locate(k: &mut Kube, source: &str, mut object: Object) -> Result<Info> {
    let Some(gvk) = object.gvk() else {
        return text(format!("unable to decode {source:?}: unexpected GroupVersion string: {}", object.api_version()));
    };
    let found = match gvk.version.is_empty() {
        // The kind of the core group, whose path lacks the version.
        true => {
            let found = k.resource_of(&Gvk::new("", "v1", &*gvk.kind)).await?;
            found.map(|r| Arc::new(Resource { version: String::new(), ..(*r).clone() }))
        }
        false => k.resource_of(&gvk).await?,
    };
    let Some(resource) = found else {
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
            return Err(other_namespace(object.namespace(), &default));
        }
        namespace = object.namespace().to_owned();
    } else if !object.namespace().is_empty() {
        object.set_namespace("");
    }
    Ok(Info { name: object.name().to_owned(), namespace, source: source.to_owned(), resource, object: Some(object) })
}

/// Reads the objects of files. Each is located, or an error.
pub async fn from_files(k: &mut Kube, flags: &FileFlags) -> Result<Vec<Result<Info>>> {
    let documents = file::read(k, flags).await?;
    located(k, documents).await
}

/// [`from_files`] for a command that writes them and validates them.
pub async fn from_files_validated(
    k: &mut Kube,
    flags: &FileFlags,
    validation: FieldValidation,
) -> Result<Vec<Result<Info>>> {
    let documents = file::read_for(k, flags, validation).await?;
    located(k, documents).await
}

/// Finds the resources of objects that were read.
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

/// Reads the objects of files without a server (`--local`): built-in kinds by their description, others with guessed names.
pub async fn from_files_alone(k: &mut Kube, flags: &FileFlags) -> Result<Vec<Result<Info>>> {
    let documents = file::read(k, flags).await?;
    let local = |d: file::Document| {
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
    Ok(documents.into_iter().map(|d| d.map(local)).collect())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    const MAP: &str = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}";

    /// Regression: `delete -f FILE -A` deleted in the namespace of the kubeconfig.
    #[tokio::test]
    async fn rejects_files_without_namespace_in_all_namespaces() {
        let s = Server::new();
        let unknown = "no namespace set on resource /v1, Resource=configmaps \"a\"";
        for (line, expected) in [
            (
                "delete -f - -A",
                "! error: error when deleting \"STDIN\": an empty namespace may not be set when a resource name is provided\nexit 1\n"
                    .to_owned(),
            ),
            ("label -f - -A x=y", format!("! error: {unknown}\nexit 1\n")),
            ("annotate -f - -A x=y", format!("! error: {unknown}\nexit 1\n")),
            ("get -f - -A", format!("! {unknown}\nexit 1\n")),
            ("get -f - -A -o name", format!("! {unknown}\nexit 1\n")),
            ("wait -f - -A --for=delete", format!("! error: {unknown}\nexit 1\n")),
            (
                "describe -f - -A",
                "! Error from server (NotFound): the server could not find the requested resource\nexit 1\n".to_owned(),
            ),
        ] {
            let output = snapshot(&s, line, MAP).await;
            let output = output.strip_prefix("List").unwrap_or(&output);
            assert_eq!(output, expected, "{line}");
        }
        assert_eq!(s.requests(), [""; 0]);
    }

    #[tokio::test]
    async fn standard_input_is_read_once() {
        for line in [
            "apply -f - -f -",
            "create -f - -f -",
            "delete -f - -f -",
            "get -f - -f -",
            "label -f - -f - a=b",
            "set image -f - -f - a=b",
            "rollout status -f - -f -",
            "scale -f - -f - --replicas=1",
        ] {
            assert_eq!(
                snapshot(&Server::new(), line, MAP).await,
                "! error: standard input cannot be used for multiple arguments\nexit 1\n",
                "{line}"
            );
        }
    }

    /// Commands on built-in kinds do nothing if one of several objects is of another kind, or does not fit its type.
    #[tokio::test]
    async fn rejects_objects_without_a_go_type() {
        let widget = json!({"kind": "Widget", "apiVersion": "example.com/v1", "metadata": {"name": "w"}});
        let d = json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "d"}, "spec": {"template": {"spec": {"containers": [{"name": "c"}]}}}});
        let s = Server::new().on("GET /apis/example.com/v1/namespaces/default/widgets/w", 200, widget.clone()).on(
            "GET /apis/apps/v1/namespaces/default/deployments/d",
            200,
            d.clone(),
        );
        let none =
            "no kind \"Widget\" is registered for version \"example.com/v1\" in scheme \"pkg/scheme/scheme.go:28\"";
        for line in [
            "set image deploy/d widget/w c=i",
            "set env widget/w A=b",
            "expose widget w --port=1",
            "rollout status widget/w",
            "rollout restart widget/w",
            "logs widget/w",
        ] {
            assert_eq!(snapshot(&s, line, "").await, format!("! error: {none}\nexit 1\n"), "{line}");
        }
        let bad = "{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {ports: [{port: x}]}}";
        for (file, why) in [
            (widget.to_string(), none.to_owned()),
            (
                bad.to_owned(),
                "json: cannot unmarshal string into Go struct field ServicePort.spec.ports.port of type int32"
                    .to_owned(),
            ),
        ] {
            let file = format!("---\n{d}\n---\n{file}\n");
            let expected = format!("! error: unable to decode \"STDIN\": {why}\nexit 1\n");
            assert_eq!(snapshot(&s, "set image -f - c=i", &file).await, expected, "{file}");
        }
        assert!(s.requests().iter().all(|l| l.starts_with("GET ")), "{:?}", s.requests());
    }
}

//! The size of any object with a `scale` subresource.

use crate::context::Error;
use crate::discovery;
use client::{Api, ApiResource, Client, WriteOptions, optional};
use meta::{GroupVersion, Object};

/// An object that can be scaled.
pub struct Scalable {
    api: Api<Object>,
    /// `resource.group`, for messages.
    pub name: String,
}

/// Finds the resource of a kind; none if the server does not serve it.
pub async fn resource(client: &Client, api_version: &str, kind: &str) -> Result<Option<ApiResource>, Error> {
    let Some(gv) = GroupVersion::parse(api_version) else {
        let why = format!("unexpected GroupVersion string: {api_version}");
        return Err(Error::Invalid { what: "apiVersion", why });
    };
    let served = optional(discovery::of_version(client, &gv).await)?;
    Ok(served.into_iter().flatten().find(|r| r.kind() == kind))
}

/// Finds the resource of a kind in the first version of its group that has it, starting with the preferred one.
pub async fn resource_in_group(client: &Client, group: &str, kind: &str) -> Result<ApiResource, Error> {
    for gv in optional(discovery::versions(client, group).await)?.unwrap_or_default() {
        let served = optional(discovery::of_version(client, &gv).await)?;
        if let Some(found) = served.into_iter().flatten().find(|r| r.kind() == kind) {
            return Ok(found);
        }
    }
    Err(Error::Waiting(format!("no matches for kind {kind:?} in group {group:?}")))
}

impl Scalable {
    /// The scalable objects of a resource in a namespace.
    pub fn new(client: &Client, namespace: &str, resource: &ApiResource) -> Self {
        let name = resource.gvr().group_resource().to_string();
        Self { api: client.dynamic(resource).namespace(namespace), name }
    }

    /// The scalable objects of a kind in a namespace.
    pub async fn find(client: &Client, namespace: &str, api_version: &str, kind: &str) -> Result<Self, Error> {
        let Some(resource) = resource(client, api_version, kind).await? else {
            return Err(Error::Waiting(format!("no matches for kind \"{kind}\" in version \"{api_version}\"")));
        };
        Ok(Self::new(client, namespace, &resource))
    }

    /// The scale of an object (`autoscaling/v1`). Fails with *not found* if there is no such object, or if it cannot be scaled.
    pub async fn scale(&self, object: &str) -> Result<Object, client::Error> {
        self.api.get_subresource(object, "scale").await
    }

    /// Writes the scale of an object.
    pub async fn update(&self, scale: &Object) -> Result<(), client::Error> {
        let options = WriteOptions::default();
        self.api.update_subresource(scale.name(), "scale", &options, scale).await.map(|_: Object| ())
    }

    /// The scale of an object (`autoscaling/v1`); none if there is no such object.
    pub async fn get(&self, object: &str) -> Result<Option<Object>, Error> {
        if let Some(scale) = optional(self.scale(object).await)? {
            return Ok(Some(scale));
        }
        match self.api.get_opt(object).await? {
            Some(_) => Err(Error::Unsupported(format!("{} does not implement the scale subresource", self.name))),
            None => Ok(None),
        }
    }
}

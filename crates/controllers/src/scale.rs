//! The size of any object with a `scale` subresource, named by its API version and kind.

use crate::context::Error;
use crate::discovery;
use client::{Api, ApiResource, Client, optional};
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

impl Scalable {
    /// The scalable objects of a kind in a namespace.
    pub async fn find(client: &Client, namespace: &str, api_version: &str, kind: &str) -> Result<Self, Error> {
        let Some(resource) = resource(client, api_version, kind).await? else {
            return Err(Error::Waiting(format!("no matches for kind \"{kind}\" in version \"{api_version}\"")));
        };
        let name = resource.gvr().group_resource().to_string();
        Ok(Self { api: client.dynamic(&resource).namespace(namespace), name })
    }

    /// The scale of an object (`autoscaling/v1`); none if there is no such object.
    pub async fn get(&self, object: &str) -> Result<Option<Object>, Error> {
        if let Some(scale) = optional(self.api.get_subresource(object, "scale").await)? {
            return Ok(Some(scale));
        }
        match self.api.get_opt(object).await? {
            Some(_) => Err(Error::Waiting(format!("{} does not implement the scale subresource", self.name))),
            None => Ok(None),
        }
    }
}

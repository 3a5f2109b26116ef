//! Binds pods through the API.

use crate::framework::{Plugin, Point};
use crate::pod::Pod;
use client::{Client, Error};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1 as core;
use std::sync::Arc;

/// The client has the scheduler's identity. Without one, nothing is bound.
pub struct DefaultBinder(pub Option<Client>);

impl Plugin for DefaultBinder {
    fn name(&self) -> &'static str {
        "DefaultBinder"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::Bind]
    }

    fn bind(&self, pod: &Arc<Pod>, node: &Arc<str>) -> Option<BoxFuture<'static, Result<(), Error>>> {
        let (client, pod, node) = (self.0.clone()?, pod.clone(), node.clone());
        Some(Box::pin(async move {
            let pods = client.api::<core::Pod>().namespace(&pod.meta.namespace);
            pods.bind(&pod.meta.name, &pod.meta.uid, &node).await.map(|_| ())
        }))
    }
}

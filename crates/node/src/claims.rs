//! What volumes of claims are made from: claims, persistent volumes, and the labels of the node.

use std::collections::BTreeMap;

use client::Client;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};

/// Reads the current objects from the API, as kubelet does: a cached claim may not be bound any more.
#[async_trait::async_trait]
pub trait Claims: Send + Sync {
    async fn claim(&self, namespace: &str, name: &str) -> Result<PersistentVolumeClaim, client::Error>;
    async fn volume(&self, name: &str) -> Result<PersistentVolume, client::Error>;
    async fn node_labels(&self) -> Result<BTreeMap<String, String>, client::Error>;
}

/// Reads from the API server with the identity of the node, which may read the claims and volumes of its pods.
pub struct ClaimReader {
    pub client: Client,
    pub node_name: String,
}

#[async_trait::async_trait]
impl Claims for ClaimReader {
    async fn claim(&self, namespace: &str, name: &str) -> Result<PersistentVolumeClaim, client::Error> {
        self.client.api::<PersistentVolumeClaim>().namespace(namespace).get(name).await
    }

    async fn volume(&self, name: &str) -> Result<PersistentVolume, client::Error> {
        self.client.api::<PersistentVolume>().get(name).await
    }

    async fn node_labels(&self) -> Result<BTreeMap<String, String>, client::Error> {
        let node = self.client.api::<Node>().get(&self.node_name).await?;
        Ok(node.metadata.labels.unwrap_or_default())
    }
}

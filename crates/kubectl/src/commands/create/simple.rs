//! Creates kinds that need only a name: namespaces and service accounts.

use super::{Generator, WriteFlags};
use crate::error::Result;
use meta::Value;
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Namespace {
    /// Name of the namespace.
    pub name: String,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for Namespace {
    fn build(&self) -> Result<Value> {
        Ok(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}, "spec": {}, "status": {}}))
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct ServiceAccount {
    /// Name of the service account.
    pub name: String,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for ServiceAccount {
    fn build(&self) -> Result<Value> {
        Ok(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": self.name}}))
    }
}

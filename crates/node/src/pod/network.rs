//! How the pods of a node are connected: by the pod network of this program, or by CNI plugins.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use meta::Quantity;
use network::PodNetwork;
use network::cni::{Bandwidth, PluginNetwork, Sandbox};
use runtime::Condition;

use super::files::{self, DnsOptions};
use super::ports;
use super::spec::text;

/// The network of a node's pods. Cheap to clone.
#[derive(Clone)]
pub enum Network {
    /// The pod network of this program.
    Own(PodNetwork),
    /// That of the CNI plugins of a network configuration.
    Plugins(PluginNetwork),
}

impl Network {
    /// The pods that are connected, or were not disconnected, with their addresses.
    pub async fn attached(&self) -> BTreeMap<String, Vec<IpAddr>> {
        match self {
            Self::Own(network) => network.attached().await,
            Self::Plugins(network) => network.attached().await,
        }
    }

    /// Disconnects a pod. No error if it is not connected.
    pub async fn detach(&self, uid: &str) -> network::Result<()> {
        match self {
            Self::Own(network) => network.detach(uid).await,
            Self::Plugins(network) => network.detach(uid).await,
        }
    }

    /// Whether pods can be connected, with the reason and message of container runtimes.
    pub async fn status(&self) -> Condition {
        match self {
            Self::Own(_) => Condition { is_ready: true, reason: String::new(), message: String::new() },
            Self::Plugins(network) => match network.status().await {
                Ok(()) => Condition { is_ready: true, reason: String::new(), message: String::new() },
                Err(error) => Condition {
                    is_ready: false,
                    reason: "NetworkPluginNotReady".into(),
                    message: format!("Network plugin returns error: {error}"),
                },
            },
        }
    }
}

/// A pod, as plugins know it. Errors if an annotation is invalid.
pub fn sandbox(pod: &Pod, dns: &DnsOptions) -> Result<Sandbox, String> {
    let m = &pod.metadata;
    Ok(Sandbox {
        uid: text(&m.uid).to_owned(),
        name: text(&m.name).to_owned(),
        namespace: text(&m.namespace).to_owned(),
        ports: pod.spec.as_ref().map(ports::host_ports).unwrap_or_default(),
        bandwidth: bandwidth(pod).map_err(|e| format!("failed to get bandwidth info from annotations: {e}"))?,
        dns: files::name_servers(pod, dns),
    })
}

/// Bits per second of a pod: upstream's bounds.
const LEAST: u64 = 1_000;
const MOST: u64 = 1_000_000_000_000_000;

/// The limits in a pod's annotations.
fn bandwidth(pod: &Pod) -> Result<Bandwidth, String> {
    let limit = |direction: &str| {
        let annotations = pod.metadata.annotations.as_ref();
        let Some(value) = annotations.and_then(|a| a.get(&format!("kubernetes.io/{direction}-bandwidth"))) else {
            return Ok(None);
        };
        let quantity: Quantity = value.parse().map_err(|e| format!("{e}"))?;
        let bits = u64::try_from(quantity.value()).unwrap_or_default();
        match bits {
            ..LEAST => Err("resource is unreasonably small (< 1kbit)".to_owned()),
            LEAST..=MOST => Ok(Some(bits)),
            _ => Err("resource is unreasonably large (> 1Pbit)".to_owned()),
        }
    };
    Ok(Bandwidth { ingress: limit("ingress")?, egress: limit("egress")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_are_in_annotations() {
        let check = |annotations: serde_json::Value| {
            bandwidth(&serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap())
        };
        let both = json!({"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "1Ki"});
        assert_eq!(check(both).unwrap(), Bandwidth { ingress: Some(10_000_000), egress: Some(1024) });
        assert_eq!(check(json!({"other": "x"})).unwrap(), Bandwidth::default());
        for (value, error) in [
            ("999", "unreasonably small"),
            ("-5", "unreasonably small"),
            ("2P", "unreasonably large"),
            ("fast", "quantit"),
        ] {
            let found = check(json!({"kubernetes.io/egress-bandwidth": value})).unwrap_err();
            assert!(found.contains(error), "{value}: {found}");
        }
    }
}

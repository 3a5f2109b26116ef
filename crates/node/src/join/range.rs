//! The ranges of pod addresses that the control plane gives a node.

use std::net::IpAddr;
use std::time::Duration;

use client::{Client, Patch, WriteOptions};
use k8s_openapi::api::core::v1::Node;
use network::Ranges;
use serde_json::{Value, json};

use super::Error;

/// The annotation of nodes that take part in the pod network of Kemudi: they get a range of pod addresses, and routes to each other.
pub const POD_NETWORK: &str = "kemudi.io/pod-network";

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// When a user is told that the node still waits.
const LONG: Duration = Duration::from_secs(10);

/// Creates the node with its addresses, unless it exists, and waits until it has its ranges. Logs a warning if they are of fewer families than the
/// cluster has. Fails if another machine that is ready has the node's name.
pub async fn await_ranges(client: &Client, name: &str, addresses: &[IpAddr], families: usize) -> Result<Ranges, Error> {
    let api = client.api::<Node>();
    let started = tokio::time::Instant::now();
    let (mut pause, mut noted) = (FIRST_PAUSE, false);
    loop {
        match api.get_opt(name).await? {
            None => {
                let node = json!({"metadata": {"name": name, "annotations": {POD_NETWORK: "vxlan"}},
                    "status": {"addresses": shown(name, addresses)}});
                let node = serde_json::from_value(node).unwrap_or_default();
                match api.create(&WriteOptions::default(), &node).await {
                    Err(e) if !e.is_already_exists() => return Err(e.into()),
                    _ => {}
                }
            }
            Some(node) => {
                check_owner(&node, name, addresses)?;
                if !shows(&node, addresses) {
                    // Certificates are approved for addresses of the status only.
                    let mut all = shown(name, addresses);
                    all.push(json!({"$patch": "replace"}));
                    let patch = Patch::Strategic(json!({"status": {"addresses": all}}));
                    let _: Node = api.patch_subresource(name, "status", &WriteOptions::default(), &patch).await?;
                }
                let spec = node.spec.unwrap_or_default();
                let ranges = spec.pod_cidrs.unwrap_or_else(|| spec.pod_cidr.into_iter().collect());
                if !ranges.is_empty() {
                    if ranges.len() < families {
                        tracing::warn!(
                            "pods of this node have addresses of one family only, since the node is older than the second family of the cluster"
                        );
                    }
                    let text = ranges.join(",");
                    return text.parse().map_err(|_| Error::Range(text));
                }
                if started.elapsed() > LONG && !noted {
                    noted = true;
                    tracing::warn!(
                        "the node waits for a range of pod addresses: are all ranges of --cluster-cidr in use?"
                    );
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LAST_PAUSE);
            }
        }
    }
}

/// Addresses in the status of a node.
fn shown(name: &str, addresses: &[IpAddr]) -> Vec<Value> {
    let own = addresses.iter().map(|ip| json!({"type": "InternalIP", "address": ip.to_string()}));
    own.chain([json!({"type": "Hostname", "address": name})]).collect()
}

/// Whether the status has all these addresses.
fn shows(node: &Node, addresses: &[IpAddr]) -> bool {
    let status = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let own: Vec<&str> = status.filter(|a| a.type_ == "InternalIP").map(|a| a.address.as_str()).collect();
    addresses.iter().all(|ip| own.contains(&ip.to_string().as_str()))
}

/// Refuses the name of a node that is ready at another address.
fn check_owner(node: &Node, name: &str, own: &[IpAddr]) -> Result<(), Error> {
    let Some(status) = &node.status else { return Ok(()) };
    let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    let mut addresses = status.addresses.iter().flatten().filter(|a| a.type_ == "InternalIP");
    match addresses.next() {
        Some(other) if ready && !own.iter().any(|ip| other.address == ip.to_string()) => {
            Err(Error::NameTaken(format!("the node {name} is ready already, at {}", other.address)))
        }
        _ => Ok(()),
    }
}

//! The host ports of a pod.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::PodSpec;
use network::{HostPort, Protocol};

use crate::resources::is_sidecar;

/// The host ports of app containers and sidecars, as in upstream's kubelet. None for a pod in the node's network, which has its
/// ports there anyway.
pub fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    if spec.host_network == Some(true) {
        return Vec::new();
    }
    let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    let mut all: Vec<HostPort> = ports
        .filter_map(|p| {
            let number = |n: i32| u16::try_from(n).ok().filter(|n| *n > 0);
            let address = match p.host_ip.as_deref().unwrap_or_default() {
                "" => None,
                text => Some(text.parse::<IpAddr>().ok()?).filter(|a| !a.is_unspecified()),
            };
            let protocol = match p.protocol.as_deref().unwrap_or("TCP") {
                "TCP" => Protocol::Tcp,
                "UDP" => Protocol::Udp,
                "SCTP" => Protocol::Sctp,
                _ => return None,
            };
            Some(HostPort { address, protocol, port: number(p.host_port?)?, target: number(p.container_port)? })
        })
        .collect();
    all.sort();
    // Of the same port twice in a pod, the first counts.
    let mut kept: Vec<HostPort> = Vec::new();
    for port in all {
        if !kept.iter().any(|k| k.conflicts(&port)) {
            kept.push(port);
        }
    }
    kept
}

/// The first of these ports that the node itself uses.
pub fn used_by_node<'a>(ports: &'a [HostPort], own: &[HostPort]) -> Option<&'a HostPort> {
    ports.iter().find(|p| own.iter().any(|o| o.conflicts(p)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ports_are_those_of_containers_that_stay() {
        let port = |host: u16, ip: &str, protocol: &str| json!({"containerPort": 80, "hostPort": host, "hostIP": ip, "protocol": protocol});
        let spec = |more: serde_json::Value| {
            let mut spec = json!({"containers": [{"name": "c", "ports": [
                port(1, "", "TCP"), port(2, "192.0.2.1", "UDP"), port(3, "0.0.0.0", "TCP"), port(4, "::1", "TCP"),
                {"containerPort": 81}, port(1, "192.0.2.1", "TCP"),
            ]}]});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value::<PodSpec>(spec).unwrap()
        };
        let found = |more| host_ports(&spec(more)).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found(json!({})), ["0.0.0.0:1/tcp", "0.0.0.0:3/tcp", "192.0.2.1:2/udp", "[::1]:4/tcp"]);
        assert!(found(json!({"hostNetwork": true})).is_empty());
        let all = host_ports(&spec(json!({})));
        let own = |last: Option<u8>, protocol, port| {
            let address = last.map(|n| IpAddr::from([192, 0, 2, n]));
            HostPort { address, protocol, port, target: port }
        };
        let taken = |own: &[HostPort]| used_by_node(&all, own).map(ToString::to_string);
        assert_eq!(taken(&[own(None, Protocol::Tcp, 6443), own(None, Protocol::Tcp, 3)]), Some("0.0.0.0:3/tcp".into()));
        let others = [own(None, Protocol::Tcp, 2), own(None, Protocol::Udp, 3), own(Some(9), Protocol::Udp, 2)];
        assert_eq!(taken(&others), None, "of another protocol or address");
        assert_eq!(taken(&[own(Some(1), Protocol::Udp, 2)]), Some("192.0.2.1:2/udp".into()));
        assert_eq!(taken(&[own(Some(9), Protocol::Tcp, 1)]), Some("0.0.0.0:1/tcp".into()));
        let init = |policy: serde_json::Value| json!({"initContainers": [{"name": "i", "restartPolicy": policy, "ports": [port(9, "", "TCP")]}]});
        assert_eq!(found(init(json!("Always"))).len(), 5);
        assert_eq!(found(init(json!(null))).len(), 4);
    }
}

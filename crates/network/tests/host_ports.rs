//! Ports of the node that lead to pods, by address and protocol.
#![allow(clippy::unwrap_used)] // helpers of tests

mod node;

use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use network::*;
use node::{ANY, LOOPBACK, NODE, Node, read_reply, serve};

fn port(address: Option<IpAddr>, protocol: Protocol, port: u16) -> HostPort {
    HostPort { address, protocol, port, target: if protocol == Protocol::Udp { 90 } else { 80 } }
}

/// Sends datagrams back with its name before them.
fn echo(namespace: &Path, name: &'static str) {
    let socket = namespace::run_in(Some(namespace), || UdpSocket::bind((ANY, 90))).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 100];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(name.as_bytes(), from);
        }
    });
}

fn socket(namespace: &Path) -> UdpSocket {
    let socket = namespace::run_in(Some(namespace), || UdpSocket::bind((ANY, 0))).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    socket
}

fn exchange(socket: &UdpSocket, to: IpAddr, port: u16) -> Option<String> {
    socket.send_to(b"x", (to, port)).unwrap();
    let mut buffer = [0; 100];
    let length = socket.recv(&mut buffer).ok()?;
    Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// The name of the server that answers, without the client's address.
fn who(namespace: &Path, to: IpAddr, port: u16) -> Option<String> {
    read_reply(namespace, to, port).ok()?.split(' ').next().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_leads_to_the_pod_of_its_address_and_protocol() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let [loopback, outer, udp, every, client] = [
        network.attach("loopback").await,
        network.attach("outer").await,
        network.attach("udp").await,
        network.attach("every").await,
        network.attach("client").await,
    ]
    .map(Result::unwrap);
    for (pod, name) in [(&loopback, "loopback"), (&outer, "outer"), (&every, "every")] {
        serve(&pod.namespace, 80, name);
    }
    echo(&udp.namespace, "udp");
    let local = LOOPBACK;
    network.publish("loopback", &[port(Some(local), Protocol::Tcp, 5432)]).await.unwrap();
    network.publish("outer", &[port(Some(NODE), Protocol::Tcp, 5432)]).await.unwrap();
    network.publish("udp", &[port(Some(NODE), Protocol::Udp, 5432)]).await.unwrap();
    network.publish("every", &[port(None, Protocol::Tcp, 6000)]).await.unwrap();
    let taken = network.publish("client", &[port(None, Protocol::Tcp, 5432)]).await;
    assert!(matches!(taken, Err(Error::PortTaken { .. })), "{taken:?}");

    let check = |after: &str| {
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(who(&node.node, local, 5432), some("loopback"), "{after}");
        assert_eq!(who(&node.node, NODE, 5432), some("outer"), "{after}");
        assert_eq!(who(&node.outside, NODE, 5432), some("outer"), "{after}");
        assert_eq!(who(&client.namespace, NODE, 5432), some("outer"), "{after}");
        assert_eq!(who(&outer.namespace, NODE, 5432), some("outer"), "to itself, {after}");
        for from in [&node.node, &node.outside, &client.namespace] {
            assert_eq!(exchange(&socket(from), NODE, 5432), some("udp"), "{after}");
            assert_eq!(who(from, NODE, 6000), some("every"), "{after}");
        }
        assert_eq!(who(&node.node, local, 6000), some("every"), "{after}");
        assert_eq!(who(&client.namespace, network.gateway(), 6000), some("every"), "{after}");
        assert_eq!(who(&node.outside, network.gateway(), 5432), None, "no pod has it there, {after}");
    };
    check("at first");
    let again = PodNetwork::open(node.options.clone()).await.unwrap();
    check("by the rules of a second process");

    // Another pod replaces a deleted one, also for a client that keeps its port.
    let old = socket(&node.outside);
    assert_eq!(exchange(&old, NODE, 5432).as_deref(), Some("udp"));
    again.detach("udp").await.unwrap();
    let heir = again.attach("heir").await.unwrap();
    echo(&heir.namespace, "heir");
    again.publish("heir", &[port(Some(NODE), Protocol::Udp, 5432)]).await.unwrap();
    assert_eq!(exchange(&old, NODE, 5432).as_deref(), Some("heir"));
    for pod in ["loopback", "outer", "heir", "every"] {
        again.detach(pod).await.unwrap();
    }
    assert!(!node.nft("list tables").contains("kemudi-ports"), "rules without ports");
    node.finish().await;
}

//! A pod that sends to addresses without neighbours, for which the node would need entries in a table of the whole machine.
#![allow(clippy::unwrap_used)] // helpers of tests

mod node;

use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use network::*;
use node::{ANY, Node, read_reply, serve};

/// Sends datagrams to every address of the ranges, which are unused.
fn scan(namespace: &Path, ranges: &[Cidr]) {
    namespace::run_in(Some(namespace), || {
        let socket = UdpSocket::bind((ANY, 0))?;
        for to in ranges.iter().flat_map(|r| (2..r.size().min(2000)).filter_map(|n| r.nth(n as u32))) {
            // An error of an earlier packet is reported here, and does not matter.
            while socket.send_to(b"x", (to, 7)).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock) {}
        }
        Ok(())
    })
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_pod_fills_the_table_of_neighbours() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let [pod, server] = [network.attach("p").await, network.attach("s").await].map(Result::unwrap);
    serve(&server.namespace, 80, "server");
    let ranges = [node.options.pod_ranges, node.options.service_ranges, node.options.cluster_ranges];
    // Those of pods are permanent, and do not count in the kernel's bound.
    let requested = || {
        let all = node.ip(&node.node, &format!("neigh show dev {}", node.options.bridge()));
        all.lines().filter(|l| !l.contains("PERMANENT")).count()
    };
    // A packet to an unused address fails with its first answer: the kernel gives few per second, so it may be that of the second
    // packet, after one second. A neighbour that does not answer takes three.
    let nobody = node.options.pod_ranges.first().nth(200).unwrap();
    for to in [nobody, node.options.service_ranges.first().nth(77).unwrap()] {
        let begun = tokio::time::Instant::now();
        let error = read_reply(&pod.namespace, to, 80).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::HostUnreachable, "{to}: {error}");
        assert!(begun.elapsed() < Duration::from_millis(2500), "{to} after {:?}", begun.elapsed());
    }
    for from in [&pod.namespace, &node.node] {
        scan(from, &ranges.map(|all| all.first()));
        assert_eq!(requested(), 0);
    }
    assert_eq!(read_reply(&pod.namespace, server.address(), 80).unwrap(), format!("server {}", pod.address()));
    // A detached pod loses its route, the next one with its address gets one, and another process adopts them.
    let way = |of: IpAddr| node.ip(&node.node, &format!("route show {of}/32"));
    assert!(way(server.address()).contains(&node.options.bridge()));
    let former = format!("{} dev {} src {}", node.options.pod_ranges, node.options.bridge(), network.gateway());
    drop(network);
    node.ip(&node.node, &format!("route add {former} proto static"));
    node.ip(&node.node, &format!("route del {}/32", server.address()));
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    assert!(way(server.address()).contains(&node.options.bridge()));
    assert_eq!(
        node.ip(&node.node, &format!("route show {}", node.options.pod_ranges)).trim(),
        "",
        "of an earlier version"
    );
    assert_eq!(read_reply(&pod.namespace, server.address(), 80).unwrap(), format!("server {}", pod.address()));
    network.detach("s").await.unwrap();
    assert_eq!(way(server.address()).trim(), "");
    drop(network);
    node.finish().await;
}

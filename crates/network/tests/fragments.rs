//! A pod with `NET_RAW` that sends fragments of packets that never complete: the node keeps them for a while, with one budget for
//! all.
#![allow(clippy::unwrap_used)] // helpers of tests

mod node;

use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use network::*;
use node::frames::{Wire, fragment};
use node::{ANY, Node, v4};

const PORT: u16 = 5998;
/// Of 14 fragments.
const LARGE: usize = 20_000;

fn socket(namespace: &Path, port: u16) -> UdpSocket {
    let socket = namespace::run_in(Some(namespace), || UdpSocket::bind((ANY, port))).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    socket
}

/// Sends back what it gets.
fn echo(namespace: &Path) {
    let socket = socket(namespace, PORT);
    socket.set_read_timeout(None).unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; LARGE];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
}

fn comes_back(socket: &UdpSocket, to: IpAddr, size: usize) -> bool {
    socket.send_to(&vec![7; size], (to, PORT)).unwrap();
    let mut buffer = vec![0; LARGE];
    socket.recv(&mut buffer).is_ok_and(|n| n == size)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_pod_takes_the_fragments_of_others() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let [attacker, server, friend] =
        [network.attach("evil").await, network.attach("s").await, network.attach("f").await].map(Result::unwrap);
    let gateway = network.gateway();
    echo(&server.namespace);
    echo(&node.node);
    let (client, outside) = (socket(&friend.namespace, 0), socket(&node.outside, 0));
    node.ip(&node.outside, &format!("route add {} via {}", node.options.pod_ranges, node::NODE));
    assert!(comes_back(&client, server.address(), LARGE), "before the attack");
    let wire = namespace::run_in(Some(&attacker.namespace), || Wire::open("eth0")).unwrap();
    // Beginnings, and what would come later; to another pod and to the node itself: far more than the budget holds.
    let flood = |from: u16| {
        for id in from..from + 10_000 {
            for (to, offset) in [(server.address(), 0), (gateway, 0), (server.address(), 1480 * 3)] {
                wire.send(&fragment(v4(attacker.address()), v4(gateway), v4(to), id, offset));
            }
        }
    };
    for round in 0..3 {
        flood(round * 10_000);
        for to in [server.address(), gateway] {
            assert!(comes_back(&client, to, LARGE), "{to} in round {round}");
        }
        assert!(comes_back(&outside, server.address(), LARGE), "from outside in round {round}");
    }
    // The attacker's small packets pass, and its large ones again when it leaves off.
    let own = socket(&attacker.namespace, 0);
    assert!(comes_back(&own, server.address(), 100));
    let begun = tokio::time::Instant::now();
    while !comes_back(&own, server.address(), LARGE) {
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    drop(network);
    node.finish().await;
}

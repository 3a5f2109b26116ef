//! Pods that try to fill the node's table of connections.
#![allow(clippy::unwrap_used)] // helpers of tests

mod node;

use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;

use network::*;
use node::{Node, OUTSIDE, read_reply, serve};

fn setting(node: &Node, name: &str) -> u32 {
    let path = format!("/proc/sys/net/netfilter/{name}");
    namespace::run_in(Some(&node.node), || std::fs::read_to_string(&path)).unwrap().trim().parse().unwrap()
}

/// Opens `count` connections to closed ports, each from another port or to another one.
fn flood(pod: &Path, from: IpAddr, to: &[IpAddr], count: u32) {
    namespace::run_in(Some(pod), || {
        let mut left = count;
        loop {
            let socket = UdpSocket::bind((from, 0))?;
            for to in to {
                for port in 1..=u16::MAX {
                    if left == 0 {
                        return Ok(());
                    }
                    left -= 1;
                    // An error that comes back is returned with a later packet.
                    let _ = socket.send_to(b"x", (*to, port));
                }
            }
        }
    })
    .unwrap();
}

/// Two pods without any privilege: no packet of others finds room in a table that is full.
#[tokio::test(flavor = "multi_thread")]
async fn no_pod_fills_the_table_of_connections() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let [one, two, friend, server] = [
        network.attach("one").await,
        network.attach("two").await,
        network.attach("f").await,
        network.attach("s").await,
    ]
    .map(Result::unwrap);
    serve(&server.namespace, 80, "server");
    let max = setting(&node, "nf_conntrack_max");
    // All pods of a node together leave some of the table.
    let share = max / 128;
    let count = || setting(&node, "nf_conntrack_count");
    let to = [server.address(), friend.address(), network.gateway(), OUTSIDE];
    std::thread::scope(|scope| {
        for pod in [&one, &two] {
            scope.spawn(|| flood(&pod.namespace, pod.address(), &to, share * 4));
        }
    });
    assert_eq!(read_reply(&friend.namespace, server.address(), 80).unwrap(), format!("server {}", friend.address()));
    assert_eq!(read_reply(&node.node, server.address(), 80).unwrap(), format!("server {}", network.gateway()));
    let filled = count();
    assert!(filled < share * 9 / 4, "two pods began {filled} of {max} connections");
    assert!(filled > share * 3 / 2, "each had its share: {filled} of {max}");
    // A second process goes on counting where the first was.
    drop(network);
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    flood(&one.namespace, one.address(), &to, share * 2);
    let now = count();
    assert!(now < share * 9 / 4, "{now} of {max} connections after a restart");
    assert!(read_reply(&one.namespace, server.address(), 80).is_err(), "only its own connections are dropped");
    assert_eq!(read_reply(&friend.namespace, server.address(), 80).unwrap(), format!("server {}", friend.address()));
    drop(network);
    node.finish().await;
}

/// The times, in seconds, of half-closed connections of a client.
fn half_closed(node: &Node, client: IpAddr) -> Vec<u32> {
    let text =
        namespace::run_in(Some(&node.node), || std::fs::read_to_string("/proc/thread-self/net/nf_conntrack")).unwrap();
    let of_client = text.lines().filter(|l| l.contains("CLOSE_WAIT") && l.contains(&format!(" src={client} ")));
    of_client.map(|l| l.split_ascii_whitespace().nth(4).unwrap().parse().unwrap()).collect()
}

/// A client that has sent all and reads goes on for as long as with kube-proxy. A server that never ends its side does not fill the share of
/// its clients for an hour.
#[tokio::test(flavor = "multi_thread")]
async fn a_few_half_closed_connections_are_tracked_for_an_hour() {
    let node = Node::new();
    let share = setting(&node, "nf_conntrack_max") as usize / 128;
    // Half of its share is a pod's for certain.
    let many = (share / 2).min(3000);
    let descriptors = (many + 1024) as u64;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, descriptors, descriptors).unwrap();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let [client, server] = [network.attach("c").await, network.attach("s").await].map(Result::unwrap);
    let listener = namespace::run_in(Some(&server.namespace), || TcpListener::bind((server.address(), 80))).unwrap();
    let mut open = Vec::new();
    let mut begin = |count: usize| {
        for _ in 0..count {
            let to = (server.address(), 80);
            drop(namespace::run_in(Some(&client.namespace), || TcpStream::connect(to)).unwrap());
            open.push(listener.accept().unwrap());
        }
    };
    begin(1);
    let until = async |count: usize| {
        for _ in 0..600 {
            let times = half_closed(&node, client.address());
            if times.len() >= count {
                return times;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("there are no {count} half-closed connections");
    };
    let first = until(1).await;
    assert!((3500..=3600).contains(&first[0]), "{first:?}");
    begin(many - 1);
    let all = until(many).await;
    let long = all.iter().filter(|seconds| **seconds > 60).count();
    assert!(long <= share.max(512) / 8, "{long} of {many} connections, with a share of {share}");
    drop(network);
    node.finish().await;
}

/// Connections of one pod to one place differ in their source ports alone, and are spread all the same.
#[tokio::test(flavor = "multi_thread")]
async fn half_of_its_share_is_a_pods_for_certain() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let [client, server] = [network.attach("c").await, network.attach("s").await].map(Result::unwrap);
    let wanted = (setting(&node, "nf_conntrack_max") / 256).min(8000);
    let before = setting(&node, "nf_conntrack_count");
    namespace::run_in(Some(&client.namespace), || {
        for port in 0..wanted {
            UdpSocket::bind((client.address(), 20_000 + port as u16))?.send_to(b"x", (server.address(), 53))?;
        }
        Ok(())
    })
    .unwrap();
    // On a busy machine the kernel takes packets later than it was given them.
    let begun = tokio::time::Instant::now();
    let made = || setting(&node, "nf_conntrack_count").saturating_sub(before);
    while made() < wanted {
        assert!(begun.elapsed().as_secs() < 10, "{} of {wanted} connections", made());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    drop(network);
    node.finish().await;
}

/// Begins `count` connections to `to`, each to a port of its own.
fn begin(from: &Attachment, to: IpAddr, count: u16) {
    namespace::run_in(Some(&from.namespace), || {
        let socket = UdpSocket::bind((from.address(), 0))?;
        for port in 0..count {
            let _ = socket.send_to(b"x", (to, 10_000 + port));
        }
        Ok(())
    })
    .unwrap();
}

/// Addresses are used again, and connections stay for minutes: without it, pods that follow each other fill the table.
#[tokio::test(flavor = "multi_thread")]
async fn connections_of_a_pod_go_with_it() {
    const EACH: u16 = 20; // few, so that no list is full where the table is small
    let one_pods = 2 * u32::from(EACH);
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let count = || setting(&node, "nf_conntrack_count");
    let names = ["a", "b", "c", "d", "e"];
    let mut pods = Vec::new();
    for name in names {
        pods.push(network.attach(name).await.unwrap());
    }
    let [friend, server] = [network.attach("f").await, network.attach("s").await].map(Result::unwrap);
    serve(&server.namespace, 80, "server");
    begin(&friend, server.address(), EACH);
    let others = count();
    for pod in &pods {
        begin(pod, server.address(), EACH);
        begin(&friend, pod.address(), EACH);
        read_reply(&pod.namespace, server.address(), 80).unwrap();
    }
    assert!(count() >= others + 5 * one_pods, "{} connections", count());
    network.detach("a").await.unwrap();
    let left = count();
    assert!(
        (others + 4 * one_pods..others + 4 * one_pods + 12).contains(&left),
        "{left} connections, {others} of others"
    );
    // Together, and with those that an earlier process left.
    let (b, c) = tokio::join!(network.detach("b"), network.detach("c"));
    b.and(c).unwrap();
    network.retain(|pod| ["f", "s"].contains(&pod)).await.unwrap();
    let left = count();
    assert!((others..others + 5).contains(&left), "{left} connections, {others} of others");
    assert_eq!(read_reply(&friend.namespace, server.address(), 80).unwrap(), format!("server {}", friend.address()));
    drop(network);
    node.finish().await;
}

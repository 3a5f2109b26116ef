//! Pods of one node, seen from each other, from the node and from outside.
#![allow(clippy::unwrap_used)] // helpers of tests

mod node;

use network::*;
use node::{NODE, Node, OUTSIDE, read_reply, serve};

#[tokio::test(flavor = "multi_thread")]
async fn pods_reach_each_other_the_node_and_the_outside() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let a = network.attach("a").await.unwrap();
    let b = network.attach("b").await.unwrap();
    assert_eq!((a.address().to_string(), b.address().to_string()), ("10.1.3.2".into(), "10.1.3.3".into()));
    assert_eq!(network.attach("a").await.unwrap(), a, "attaching again changes nothing");
    serve(&b.namespace, 80, "b");
    serve(&node.node, 81, "node");
    serve(&node.outside, 82, "outside");
    assert_eq!(read_reply(&a.namespace, b.address(), 80).unwrap(), "b 10.1.3.2");
    assert_eq!(read_reply(&b.namespace, b.address(), 80).unwrap(), "b 10.1.3.3");
    assert_eq!(read_reply(&node.node, b.address(), 80).unwrap(), "b 10.1.3.1");
    assert_eq!(read_reply(&a.namespace, network.gateway(), 81).unwrap(), "node 10.1.3.2");
    assert_eq!(read_reply(&a.namespace, OUTSIDE, 82).unwrap(), format!("outside {NODE}"));

    // A second process adopts the network.
    drop(network);
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    assert_eq!(read_reply(&a.namespace, b.address(), 80).unwrap(), "b 10.1.3.2");
    assert_eq!(network.attached().await.len(), 2);
    network.retain(|pod| pod == "a").await.unwrap();
    assert!(!namespace::exists(&b.namespace) && namespace::exists(&a.namespace));
    node.finish().await;
}

/// A bridge without an address of its own takes the lowest of its ports', and a pod that has just learnt the former one sends into
/// nothing for half a minute.
#[tokio::test(flavor = "multi_thread")]
async fn the_node_keeps_its_hardware_address_while_pods_come_and_go() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let bridge = node.options.bridge();
    let address =
        || node.ip(&node.node, &format!("-o link show {bridge}")).split("link/ether ").nth(1).unwrap()[..17].to_owned();
    serve(&node.node, 81, "node");
    let witness = network.attach("witness").await.unwrap();
    assert_eq!(read_reply(&witness.namespace, network.gateway(), 81).unwrap(), "node 10.1.3.2");
    let before = address();

    network.attach("other").await.unwrap();
    let ports = node.ip(&node.node, &format!("-o link show master {bridge}"));
    let newest = ports.lines().last().unwrap().split([' ', '@', ':']).nth(2).unwrap();
    node.ip(&node.node, &format!("link set {newest} address 02:00:00:00:00:01"));
    assert_eq!(
        read_reply(&witness.namespace, network.gateway(), 81).unwrap(),
        "node 10.1.3.2",
        "a port with a lower address came"
    );
    network.detach("other").await.unwrap();
    assert_eq!(read_reply(&witness.namespace, network.gateway(), 81).unwrap(), "node 10.1.3.2", "and went");
    assert_eq!(address(), before);

    // What a former version has made, without an address of its own, is given one.
    drop(network);
    node.ip(&node.node, &format!("link set {bridge} address 02:00:00:00:00:02"));
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    assert_eq!(address(), before);
    drop(network);
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_masquerade_pods_do_not_reach_the_outside() {
    let mut node = Node::new();
    node.options.masquerade = false;
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let a = network.attach("a").await.unwrap();
    serve(&node.outside, 82, "outside");
    let before = node::leaked(&node);
    assert!(read_reply(&a.namespace, OUTSIDE, 82).is_err());
    assert_eq!(node::leaked(&node), before);
    node.finish().await;
}

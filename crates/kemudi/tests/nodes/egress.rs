//! Connections of pods to a machine beside that of the cluster.

use crate::machine::Machine;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const POD: &str = "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {terminationGracePeriodSeconds: 0, \
    containers: [{name: web, image: 'kemudi.local/demo:latest'}]}}";

/// The source address of a connection of the pod to the other machine; none if it fails.
fn source(m: &Machine, listener: &TcpListener) -> Option<IpAddr> {
    let port = listener.local_addr().unwrap().port();
    let connect = || TcpStream::connect_timeout(&(OUTSIDE, port).into(), Duration::from_secs(3));
    let stream = network::namespace::run_in(Some(&namespace(m)), connect).ok()?;
    let (_, peer) = listener.accept().unwrap();
    drop(stream);
    Some(peer.ip())
}

/// The network namespace of the pod.
fn namespace(m: &Machine) -> PathBuf {
    let running = || Some(m.json(&["pod", "web"])).filter(|p| p["status"]["phase"] == "Running");
    let pod = m.eventually("the pod runs", running);
    let (node, uid) = (pod["spec"]["nodeName"].as_str().unwrap(), pod["metadata"]["uid"].as_str().unwrap());
    let of_node = m.data().join("nodes").join(node);
    if of_node.exists() { of_node } else { m.data() }.join("netns").join(uid)
}

#[test]
fn pods_reach_other_machines_by_the_address_of_theirs() {
    let mut m = Machine::new("egress");
    let outside = Machine::new("outside");
    m.ip(&format!("link add out0 type veth peer name eth0 netns {}", outside.name));
    m.ip("addr add 192.0.2.1/24 dev out0");
    m.ip("link set out0 up");
    outside.ip("addr add 192.0.2.2/24 dev eth0");
    outside.ip("link set eth0 up");
    let listener = outside.inside(|| TcpListener::bind((OUTSIDE, 0))).unwrap();
    let own = Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
    for (flags, expect) in [
        (&["up"][..], own),
        (&["up", "--pod-egress=false"], None),
        (&["up", "--nodes", "2"], own),
        (&["up", "--nodes", "2", "--pod-egress=false"], None),
    ] {
        m.start(flags);
        m.eventually("the service account of pods", || m.kubectl(&["get", "serviceaccount", "default"]).ok());
        m.apply(POD);
        assert_eq!(source(&m, &listener), expect, "{flags:?}");
        m.purge();
    }
    m.ip("link del out0");
    assert_eq!(m.left(), Vec::<String>::new());
}

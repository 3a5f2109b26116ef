//! What a cluster with data of an earlier start gets when its ranges have a second family: the default ServiceCIDR and the nodes that exist
//! get a second range. Services and pods keep their one address, and nothing else changes.
//!
//! Nodes of clusters with several servers keep their one range until they are created again: no server alone knows which ranges are free.

use crate::cluster_network::ClusterNetwork;
use meta::{Gvr, Object, Status, Value};
use network::Cidr;
use registry::{AdmitAll, Registry, Request, Target, WriteOptions};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;
use stored::encode;
use strategies::core::node::with_growing_ranges;

const NODES: &str = "nodes";

/// Adds the second ranges of `cluster` to what exists. `own` is the node in this process, which has the first ranges. Controllers do not run yet.
pub async fn extend(registry: &Registry, cluster: &ClusterNetwork, own: Option<&str>) -> Result<(), Status> {
    extend_services(registry, cluster).await?;
    if registry.store.is_shared() {
        return Ok(());
    }
    let nodes = nodes(registry);
    let mut used: BTreeSet<Cidr> = nodes.iter().flat_map(ranges).collect();
    used.extend(cluster.first().iter());
    for node in &nodes {
        let is_own = own == Some(node.name());
        if !is_own && node.str_at(&["metadata", "annotations", node::join::POD_NETWORK]).is_none() {
            continue;
        }
        let Some((first, second)) = second_range(cluster, &ranges(node), is_own, &used) else { continue };
        used.insert(second);
        set_ranges(registry, node.name(), &[first, second]).await?;
    }
    Ok(())
}

/// Adds the second range to the default ServiceCIDR (upstream's `defaultservicecidr`), if it has the first one alone.
async fn extend_services(registry: &Registry, cluster: &ClusterNetwork) -> Result<(), Status> {
    let Some(request) = request(registry, "networking.k8s.io", "servicecidrs", "kubernetes") else { return Ok(()) };
    let key = request.resource.key("", "kubernetes");
    let Some(found) = key.and_then(|key| registry.store.snapshot().get(&key)) else { return Ok(()) };
    let Some(found) = encode::decode_or_log(&found) else { return Ok(()) };
    let texts: Vec<String> = cluster.services.iter().map(|range| range.to_string()).collect();
    let has: Vec<&str> = strings(found.at(&["spec", "cidrs"])).collect();
    if has == texts {
        return Ok(());
    }
    if !matches!((has.as_slice(), texts.as_slice()), ([only], [first, _]) if only == first) {
        tracing::warn!(
            "the default ServiceCIDR {} does not match --service-cluster-ip-range {}",
            has.join(","),
            cluster.services
        );
        return Ok(());
    }
    set(registry, &request, "cidrs", &texts).await
}

/// Sets a field of the specification of an object.
async fn set(registry: &Registry, request: &Request, field: &str, ranges: &[String]) -> Result<(), Status> {
    let change = |old: Option<&Object>, _: &_| {
        let mut new = old.cloned().unwrap_or_default();
        new.set(&["spec", field], json!(ranges));
        Ok(Target::object(new))
    };
    let options = WriteOptions::by("kube-apiserver");
    registry.update(request, &change, &Default::default(), &options, &AdmitAll).await.map(drop)
}

fn strings(list: Option<&Value>) -> impl Iterator<Item = &str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn request(registry: &Registry, group: &str, resource: &str, name: &str) -> Option<Request> {
    let gvr = Gvr { group: group.into(), version: "v1".into(), resource: resource.into() };
    Some(Request::own(registry.rows().resource(&gvr)?.clone(), "", "", name))
}

fn nodes(registry: &Registry) -> Vec<Object> {
    let snapshot = registry.store.snapshot();
    snapshot.range(NODES, None, None).filter_map(|entry| encode::decode_or_log(entry)).collect()
}

fn ranges(node: &Object) -> Vec<Cidr> {
    strings(node.at(&["spec", "podCIDRs"])).filter_map(|text| text.parse().ok()).collect()
}

/// The range of a node, and the one that it gets: with the same number in the second range of the cluster as it has in the first, if it is free.
/// None if the node has no range or both already, or none is free.
fn second_range(cluster: &ClusterNetwork, has: &[Cidr], is_own: bool, used: &BTreeSet<Cidr>) -> Option<(Cidr, Cidr)> {
    let [first] = has else { return None };
    let mut pods = cluster.pods.iter();
    let (all_first, all_second) = (pods.next()?, pods.next()?);
    if !all_first.contains_range(first) {
        return None;
    }
    let family = all_second.family();
    if is_own {
        return Some((*first, cluster.first().of(family)?));
    }
    let bits = cluster.node_bits(family)?;
    let parts = || all_second.parts(bits);
    let number = all_first.parts(first.length()).position(|part| part == *first)?;
    let free = |part: &Cidr| !used.contains(part);
    parts().nth(number).filter(free).or_else(|| parts().find(free)).map(|second| (*first, second))
}

async fn set_ranges(registry: &Registry, name: &str, ranges: &[Cidr]) -> Result<(), Status> {
    let Some(mut request) = request(registry, "", NODES, name) else { return Ok(()) };
    let Some(row) = with_growing_ranges(&request.resource) else { return Ok(()) };
    request.resource = Arc::new(row);
    let texts: Vec<String> = ranges.iter().map(Cidr::to_string).collect();
    set(registry, &request, "podCIDRs", &texts).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use network::{Family, Ranges};
    use std::path::Path;

    #[test]
    fn nodes_get_a_range_with_the_number_of_their_first() {
        let mut cluster = ClusterNetwork::recorded(Path::new("/nonexistent"));
        cluster.pods = "10.244.0.0/16,fd00::/56".parse::<Ranges>().unwrap();
        let cidrs = |texts: &[&str]| texts.iter().map(|t| t.parse().unwrap()).collect::<Vec<Cidr>>();
        let check = |has: &[&str], is_own, used: &[&str]| {
            let used = cidrs(used).into_iter().collect();
            second_range(&cluster, &cidrs(has), is_own, &used).map(|(_, second)| second.to_string())
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(check(&["10.244.3.0/24"], false, &[]), some("fd00:0:0:3::/64"));
        assert_eq!(check(&["10.244.3.0/24"], false, &["fd00:0:0:3::/64", "fd00::/64"]), some("fd00:0:0:1::/64"));
        assert_eq!(check(&["10.244.0.0/24"], true, &["fd00::/64"]), some("fd00::/64"));
        assert_eq!(check(&["10.245.0.0/24"], false, &[]), None);
        assert_eq!(check(&["10.244.3.0/24", "fd00::/64"], false, &[]), None);
        assert_eq!((check(&[], true, &[]), Family::V6.to_string()), (None, "IPv6".into()));
        cluster.pods = "10.244.0.0/16,fd00::/64".parse().unwrap();
        let all = ["fd00::/64".parse().unwrap()].into();
        assert_eq!(second_range(&cluster, &cidrs(&["10.244.3.0/24"]), false, &all), None, "all are in use");
    }
}

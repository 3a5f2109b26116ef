//! Reads the spec of a service.

use meta::{Object, Value};

/// Returns the type of a service; `ClusterIP` if absent.
pub(super) fn ty(o: &Object) -> &str {
    o.str_at(&["spec", "type"]).unwrap_or("ClusterIP")
}

/// Returns a list field of the spec.
pub(super) fn list<'a>(o: &'a Object, field: &str) -> &'a [Value] {
    o.at(&["spec", field]).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Whether the service has cluster IPs, or may have.
pub(super) fn has_address(o: &Object) -> bool {
    ty(o) != "ExternalName"
}

/// Whether the service has no cluster IP on purpose.
pub(super) fn is_headless(o: &Object) -> bool {
    o.str_at(&["spec", "clusterIP"]) == Some("None")
}

/// Whether the service has a selector.
pub(super) fn selects(o: &Object) -> bool {
    o.at(&["spec", "selector"]).and_then(Value::as_object).is_some_and(|s| !s.is_empty())
}

/// Whether the service has ports on nodes.
pub(super) fn reaches_nodes(o: &Object) -> bool {
    matches!(ty(o), "NodePort" | "LoadBalancer")
}

/// Whether the service has a load balancer.
pub(super) fn is_balanced(o: &Object) -> bool {
    ty(o) == "LoadBalancer"
}

/// Whether load balancers check which nodes have local endpoints.
pub(super) fn is_checked(o: &Object) -> bool {
    is_balanced(o) && o.str_at(&["spec", "externalTrafficPolicy"]) == Some("Local")
}

/// Whether the service is externally accessible: through nodes, a load balancer or external IPs.
pub(super) fn accepts_external_traffic(o: &Object) -> bool {
    reaches_nodes(o) || (ty(o) == "ClusterIP" && !list(o, "externalIPs").is_empty())
}

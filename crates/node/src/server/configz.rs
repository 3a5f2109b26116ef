//! `/configz`: the configuration in force, as a `KubeletConfiguration` with the fields that the agent uses.

use http::Response;
use serde_json::{Value, json};

use super::{Body, json};
use crate::options::Options;

pub(super) fn serve(options: &Options) -> Response<Body> {
    json(&json!({"kubeletconfig": shown(options)}))
}

fn shown(options: &Options) -> Value {
    let mut shown = json!({
        "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "enableServer": true,
        "enableSystemLogQuery": false,
        "enableProfilingHandler": false,
        "enableDebugFlagsHandler": false,
        "registerNode": true,
        "podCIDR": options.pod_cidrs.join(","),
    });
    let configuration = serde_json::to_value(&options.configuration).unwrap_or_default();
    if let (Some(shown), Value::Object(fields)) = (shown.as_object_mut(), configuration) {
        shown.extend(fields);
    }
    // What the node uses in fact.
    shown["address"] = options.address.to_string().into();
    shown["port"] = options.port.into();
    shown["clusterDomain"] = options.dns.domain.as_str().into();
    shown["clusterDNS"] = json!(options.dns.servers);
    shown["allowedUnsafeSysctls"] = json!(options.sysctls.unsafe_patterns());
    shown["authentication"]["x509"] = json!({});
    shown["authentication"]["webhook"]["enabled"] = true.into();
    shown["authentication"]["anonymous"] = json!({"enabled": false});
    shown["authorization"]["mode"] = "Webhook".into();
    shown
}

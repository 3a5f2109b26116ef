//! `kubectl expose`: creates a service for a workload, pod or service.

use super::create::{WriteFlags, submit};
use super::run::Overrides;
use crate::error::{Error, Result, text};
use crate::flags::{DryRunStrategy, FileFlags, labels};
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::last_applied::annotate_generated;
use crate::resource::scheme;
use crate::resource::select::{Selection, gather};
use meta::{Map, Object, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE NAME, or TYPE/NAME.
    pub resources: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    /// Port of the service.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub port: String,
    /// Port of the pods, by number or name.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub target_port: String,
    /// Protocol of the port.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub protocol: String,
    /// Name of the service.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub name: String,
    /// Service type: ClusterIP, NodePort, LoadBalancer or ExternalName.
    #[arg(long = "type", default_value = "", hide_default_value = true)]
    pub ty: String,
    /// Label selector of the service.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Labels of the service.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub labels: String,
    /// Cluster IP, or None for a headless service.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub cluster_ip: String,
    /// Additional external IP of the service.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub external_ip: String,
    /// Requested IP of the load balancer.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub load_balancer_ip: String,
    /// Session affinity: None or ClientIP.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub session_affinity: String,
    #[command(flatten)]
    pub overrides: Overrides,
    #[command(flatten)]
    pub write: WriteFlags,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    k.scheme = Some(scheme::KUBECTL);
    if a.resources.is_empty() && a.files.is_empty() {
        return text(super::delete::MISSING_RESOURCES);
    }
    let dry = a.write.dry.strategy()?;
    let mut printer = Printer::new(&a.write.print, dry)?.typed();
    let (found, unread) =
        gather(k, &a.resources, &a.files, &Selection { files_as_given: true, ..Selection::default() }).await?;
    let (_, explicit) = k.namespace()?;
    let mut errors = Vec::new();
    for i in found {
        let done = async {
            let from = i.object.clone().unwrap_or_default();
            let o = a.overrides.apply(service(&a, &from, &i.resource.kind)?)?;
            let mut o = Object::from_value(o).unwrap_or_default();
            k.record(&mut o);
            if a.write.save_config && dry != DryRunStrategy::Client {
                annotate_generated(&mut o);
            }
            if explicit {
                o.set_namespace(&i.namespace);
            }
            let made = submit(k, &a.write, o, &i.namespace).await?;
            printer.print(k, &made, "exposed")
        };
        if let Err(e) = done.await {
            errors.push(e);
        }
    }
    errors.extend(unread);
    Error::collect(errors)
}

fn service(a: &Arguments, from: &Object, kind: &str) -> Result<Value> {
    let selector: Map<String, Value> = match (a.selector.as_str(), kind) {
        ("", "Pod" | "Service" | "ReplicationController" | "Deployment" | "ReplicaSet") => selector_labels(from, kind)
            .map_err(|why| {
                Error::Text(format!("couldn't retrieve selectors via --selector flag or introspection: {why}"))
            })?,
        ("", other) => {
            let group = from.api_version().split_once('/').map_or("", |(g, _)| g);
            return text(format!("cannot expose a {}", crate::discovery::dotted(other, group)));
        }
        (s, _) => labels(s)?,
    };
    if selector.is_empty() {
        return text("selector must be specified");
    }
    let ports = ports(a, from, kind)?;
    let labels = match a.labels.as_str() {
        "" => from.at(&["metadata", "labels"]).and_then(Value::as_object).cloned().unwrap_or_default(),
        l => labels(l)?,
    };
    // Names of services are shorter than those of other objects.
    let name = if a.name.is_empty() { from.name().get(..63).unwrap_or(from.name()) } else { &a.name };
    let mut metadata = json!({"name": name});
    if !labels.is_empty() {
        metadata["labels"] = labels.into();
    }
    if !["", "None", "ClientIP"].contains(&a.session_affinity.as_str()) {
        return text(format!("unknown session affinity: {}", a.session_affinity));
    }
    let mut spec = json!({"selector": selector});
    if !ports.is_empty() {
        spec["ports"] = ports.into();
    }
    for (key, v) in [("type", &a.ty), ("clusterIP", &a.cluster_ip), ("sessionAffinity", &a.session_affinity)] {
        if !v.is_empty() {
            spec[key] = v.clone().into();
        }
    }
    if a.ty == "LoadBalancer" && !a.load_balancer_ip.is_empty() {
        spec["loadBalancerIP"] = a.load_balancer_ip.clone().into();
    }
    if !a.external_ip.is_empty() {
        spec["externalIPs"] = json!([a.external_ip]);
    }
    Ok(
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec, "status": {"loadBalancer": {}}}),
    )
}

/// Returns the labels with which an object selects pods, or the reason why it has none.
fn selector_labels(from: &Object, kind: &str) -> std::result::Result<Map<String, Value>, String> {
    let map = |path: &[&str]| from.at(path).and_then(Value::as_object).cloned().unwrap_or_default();
    let (selector, missing) = match kind {
        "Pod" => (map(&["metadata", "labels"]), "the pod has no labels and cannot be exposed"),
        "Service" => (map(&["spec", "selector"]), "the service has no pod selector set"),
        "ReplicationController" => return Ok(map(&["spec", "selector"])),
        "Deployment" => {
            (map(&["spec", "selector", "matchLabels"]), "invalid deployment: no selectors, therefore cannot be exposed")
        }
        _ => {
            (map(&["spec", "selector", "matchLabels"]), "invalid replicaset: no selectors, therefore cannot be exposed")
        }
    };
    if selector.is_empty() {
        return Err(missing.into());
    }
    match from.at(&["spec", "selector", "matchExpressions"]).and_then(Value::as_array).map(Vec::as_slice) {
        None | Some([]) => Ok(selector),
        Some(_) if kind == "Service" => Ok(selector),
        Some(all) => {
            // Formats as Go does.
            let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
            let requirement = |e: &Value| {
                let values: Vec<String> = e["values"].as_array().into_iter().flatten().map(text).collect();
                format!("{{Key:{} Operator:{} Values:[{}]}}", text(&e["key"]), text(&e["operator"]), values.join(" "))
            };
            let all: Vec<String> = all.iter().map(requirement).collect();
            Err(format!("couldn't convert expressions - \"[{}]\" to map-based selector format", all.join(" ")))
        }
    }
}

/// Returns the ports that an object declares, with their protocols, without duplicates.
fn declared_ports(from: &Object, kind: &str) -> Vec<(i64, String)> {
    let list = |path: &[&str]| from.at(path).and_then(Value::as_array).cloned().unwrap_or_default();
    let of_containers = |all: Vec<Value>| -> Vec<Value> {
        all.iter().flat_map(|c| c["ports"].as_array().cloned().unwrap_or_default()).collect()
    };
    let (all, number) = match kind {
        "Service" => (list(&["spec", "ports"]), "port"),
        "Pod" => (of_containers(list(&["spec", "containers"])), "containerPort"),
        _ => (of_containers(list(&["spec", "template", "spec", "containers"])), "containerPort"),
    };
    let mut out: Vec<(i64, String)> = Vec::new();
    for p in all {
        let port = (p[number].as_i64().unwrap_or(0), p["protocol"].as_str().unwrap_or("TCP").to_owned());
        if !out.contains(&port) {
            out.push(port);
        }
    }
    out
}

/// Returns the ports of the service: those of the flag, or all declared ones. The target port is the same unless a flag
/// sets it.
fn ports(a: &Arguments, from: &Object, kind: &str) -> Result<Vec<Value>> {
    let declared_ports = declared_ports(from, kind);
    let mut numbers: Vec<i64> = Vec::new();
    if a.port.is_empty() {
        for (n, _) in &declared_ports {
            if !numbers.contains(n) {
                numbers.push(*n);
            }
        }
        if numbers.is_empty() && a.cluster_ip != "None" {
            return text("couldn't find port via --port flag or introspection");
        }
    } else {
        for p in a.port.split(',') {
            numbers.push(p.parse().map_err(|_| Error::Text(format!("strconv.Atoi: parsing {p:?}: invalid syntax")))?);
        }
    }
    let mut out = Vec::new();
    for (i, n) in numbers.iter().enumerate() {
        let target = match a.target_port.as_str() {
            "" => (*n).into(),
            t => t.parse::<i64>().map_or_else(|_| t.into(), Value::from),
        };
        let of_port = || declared_ports.iter().filter(|(d, _)| d == n).map(|(_, p)| p.as_str());
        let protocols: Vec<&str> = match (a.protocol.as_str(), of_port().count()) {
            ("", 0) => vec!["TCP"],
            ("", _) => of_port().collect(),
            (given, _) => vec![given],
        };
        for protocol in &protocols {
            let mut port = json!({"port": n, "protocol": protocol, "targetPort": target});
            // Several ports need names.
            if protocols.len() > 1 {
                port["name"] = format!("port-{}-{}", i + 1, protocol.to_lowercase()).into();
            } else if numbers.len() > 1 {
                port["name"] = format!("port-{}", i + 1).into();
            }
            out.push(port);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    /// The service is built from the file, whether or not the server has the object, and stores its configuration if
    /// requested.
    #[tokio::test]
    async fn exposes_an_object_of_a_file() {
        let post = "POST /api/v1/namespaces/default/services?fieldManager=kubectl-expose";
        let made = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}});
        let s = Server::new().on(&format!("{post}&fieldValidation=Strict"), 201, made.clone()).on(post, 201, made);
        let file = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {app: a}}\nspec: {containers: [{name: c, ports: [{containerPort: 80}]}]}\n";
        assert_eq!(snapshot(&s, "expose -f -", file).await, "service/a exposed\n");
        let [line] = s.requests().try_into().unwrap();
        let sent = s.body_of(&line);
        assert_eq!(sent["spec"]["ports"], json!([{"port": 80, "protocol": "TCP", "targetPort": 80}]));
        assert_eq!(sent["metadata"], json!({"name": "a", "labels": {"app": "a"}}));
        assert_eq!(snapshot(&s, "expose -f - --save-config", file).await, "service/a exposed\n");
        let kept = s.body_of(&line)["metadata"]["annotations"][crate::resource::last_applied::LAST_APPLIED].clone();
        let kept: meta::Value = serde_json::from_str(kept.as_str().unwrap()).unwrap();
        assert_eq!(kept["spec"], sent["spec"]);
        assert_eq!(
            snapshot(&s, "expose -f - --save-config --dry-run=client -o jsonpath={.metadata.annotations}", file).await,
            ""
        );
    }

    /// Overrides are read as a service: unknown fields and wrong types are errors.
    #[tokio::test]
    async fn overrides_must_be_fields_of_a_service() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"app": "a"}}});
        let s = Server::new().on("GET /api/v1/namespaces/default/pods/a", 200, pod);
        for (overrides, path, expected) in [
            (
                r#"{"nosuch":1,"spec":{"type":"NodePort","other":2}}"#,
                "{.spec}",
                r#"{"ports":[{"port":80,"protocol":"TCP","targetPort":80}],"selector":{"app":"a"},"type":"NodePort"}"#,
            ),
            (r#"{"spec":{"ports":[{"port":90,"x":1}]}}"#, "{.spec.ports}", r#"[{"port":90,"targetPort":0}]"#),
            (r#"{"spec":null}"#, "{.spec}", "{}"),
        ] {
            let line = format!("expose pod a --port=80 --dry-run=client -o jsonpath={path} --overrides={overrides}");
            assert_eq!(snapshot(&s, &line, "").await, expected, "{line}");
        }
        for (overrides, expected) in [
            ("x", "! error: Invalid JSON Patch\nexit 1\n"),
            (
                r#"{"apiVersion":"v2"}"#,
                "! error: no kind \"Service\" is registered for version \"v2\" in scheme \"pkg/scheme/scheme.go:28\"\nexit 1\n",
            ),
        ] {
            let line = format!("expose pod a --port=80 --dry-run=client --overrides={overrides}");
            assert_eq!(snapshot(&s, &line, "").await, expected, "{line}");
        }
        let wrong = r#"expose pod a --port=80 --dry-run=client --overrides={"spec":{"type":5}}"#;
        assert!(
            snapshot(&s, wrong, "").await.starts_with("! error: json: cannot unmarshal number into Go struct field")
        );
    }

    /// A service for a service targets its ports; protocols are those of the object.
    #[tokio::test]
    async fn derives_ports_and_selector_from_the_object() {
        let spec =
            |spec: meta::Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": spec});
        let s = Server::new()
            .on(
                "GET /api/v1/namespaces/default/services/a",
                200,
                spec(json!({"selector": {"a": "b"}, "ports": [{"port": 80, "targetPort": "web", "name": "n", "appProtocol": "http"}]})),
            )
            .on(
                "GET /api/v1/namespaces/default/services/dns",
                200,
                spec(json!({"selector": {"a": "b"}, "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}, {"port": 54, "protocol": "UDP"}]})),
            )
            .on("GET /api/v1/namespaces/default/services/none", 200, spec(json!({"ports": [{"port": 53}]})))
            .on(
                "GET /apis/apps/v1/namespaces/default/deployments/d",
                200,
                json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "z", "operator": "Exists"}, {"key": "y", "operator": "In", "values": ["1", "2"]}]}}}),
            );
        for (line, expected) in [
            ("svc a -o jsonpath={.spec.ports}", "[{\"port\":80,\"protocol\":\"TCP\",\"targetPort\":80}]"),
            (
                "svc a --target-port=x --protocol=UDP -o jsonpath={.spec.ports}",
                "[{\"port\":80,\"protocol\":\"UDP\",\"targetPort\":\"x\"}]",
            ),
            (
                "svc dns -o jsonpath={.spec.ports[*].name}:{.spec.ports[*].protocol}",
                "port-1-udp port-1-tcp port-2:UDP TCP UDP",
            ),
            (
                "svc none",
                "! error: couldn't retrieve selectors via --selector flag or introspection: the service has no pod selector set\nexit 1\n",
            ),
            (
                "deploy d --port=80",
                "! error: couldn't retrieve selectors via --selector flag or introspection: couldn't convert expressions - \"[{Key:z Operator:Exists Values:[]} {Key:y Operator:In Values:[1 2]}]\" to map-based selector format\nexit 1\n",
            ),
        ] {
            let line = format!("expose {line} --dry-run=client --name=x");
            assert_eq!(snapshot(&s, &line, "").await, expected, "{line}");
        }
    }
}

//! Table cells of a service (upstream `printService`).

use kinds::columns::{Cell, display, list_at, load_balancer, or_none};
use meta::{Object, Value};

/// Evaluates the table cell functions of the kind.
pub fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "clusterIP" => or_none(list_at(o, &["spec", "clusterIPs"]).first().map(display)),
        "externalIP" => external_ip(o).into(),
        "servicePorts" => service_ports(o).into(),
        _ => return None,
    })
}

fn external_ip(o: &Object) -> String {
    let external: Vec<String> = list_at(o, &["spec", "externalIPs"]).iter().map(display).collect();
    match o.str_at(&["spec", "type"]).unwrap_or_default() {
        "LoadBalancer" => {
            let mut all = Vec::new();
            let balancer = load_balancer(o);
            if !balancer.is_empty() {
                all.push(balancer);
            }
            all.extend(external);
            if all.is_empty() { "<pending>".into() } else { all.join(",") }
        }
        "ExternalName" => display(o.at(&["spec", "externalName"]).unwrap_or(&Value::Null)),
        _ if external.is_empty() => "<none>".into(),
        _ => external.join(","),
    }
}

fn service_ports(o: &Object) -> String {
    let all: Vec<String> = list_at(o, &["spec", "ports"])
        .iter()
        .map(|p| match p["nodePort"].as_i64() {
            Some(n) if n > 0 => format!("{}:{n}/{}", display(&p["port"]), display(&p["protocol"])),
            _ => format!("{}/{}", display(&p["port"]), display(&p["protocol"])),
        })
        .collect();
    if all.is_empty() { "<none>".into() } else { all.join(",") }
}

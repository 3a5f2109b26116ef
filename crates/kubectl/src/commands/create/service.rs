//! Creates services.

use super::{Generator, WriteFlags};
use crate::error::{Error, Result, text};
use meta::Value;
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Service {
    #[command(subcommand)]
    service_type: ServiceType,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum ServiceType {
    /// Create a service with a cluster-internal address.
    #[command(name = "clusterip")]
    ClusterIp(ClusterIp),
    /// Create a service on a port of every node.
    #[command(name = "nodeport")]
    NodePort(NodePort),
    /// Create a service with a load balancer.
    #[command(name = "loadbalancer")]
    LoadBalancer(LoadBalancer),
    /// Create an alias of an external host name.
    #[command(name = "externalname")]
    ExternalName(ExternalName),
}

impl Service {
    pub fn generator(&self) -> (&dyn Generator, &WriteFlags) {
        match &self.service_type {
            ServiceType::ClusterIp(a) => (a, &a.write),
            ServiceType::NodePort(a) => (a, &a.write),
            ServiceType::LoadBalancer(a) => (a, &a.write),
            ServiceType::ExternalName(a) => (a, &a.write),
        }
    }
}

/// Parses `80` or `80:8080`; the target is a number or a name.
fn ports(all: &[String], node_port: i64) -> Result<Vec<Value>> {
    all.iter()
        .map(|p| {
            // Text after a second colon is ignored.
            let mut parts = p.split(':');
            let port = parts.next().unwrap_or_default();
            let target = parts.next().unwrap_or(port);
            let n: u16 = port.parse().map_err(|_| {
                let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
                let why = if digits { "value out of range" } else { "invalid syntax" };
                Error::Text(format!("strconv.ParseUint: parsing {port:?}: {why}"))
            })?;
            let target: Value = match target.parse::<i64>() {
                Ok(n) if !(1..65536).contains(&n) => {
                    return text(format!("invalid port {n}: must be between 1 and 65535, inclusive"));
                }
                Ok(n) => n.into(),
                Err(_) => match meta::names::port_name(target).as_slice() {
                    [] => target.into(),
                    wrong => return text(wrong.join(",")),
                },
            };
            let name = if p.contains(':') { p.replace(':', "-") } else { port.to_owned() };
            let mut v = json!({"name": name, "port": n, "protocol": "TCP", "targetPort": target});
            if node_port != 0 {
                v["nodePort"] = node_port.into();
            }
            Ok(v)
        })
        .collect()
}

fn service(name: &str, ty: &str, ports: Vec<Value>) -> Value {
    let labels = json!({"app": name});
    let mut o = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": labels},
        "spec": {"selector": labels, "type": ty}, "status": {"loadBalancer": {}},
    });
    if !ports.is_empty() {
        o["spec"]["ports"] = ports.into();
    }
    o
}

#[derive(clap::Args, Clone, Debug)]
pub struct ClusterIp {
    /// Name of the service.
    pub name: String,
    /// PORT or PORT:TARGET; may be repeated.
    #[arg(long, value_delimiter = ',')]
    pub tcp: Vec<String>,
    /// Cluster IP, or None for a headless service.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub clusterip: String,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for ClusterIp {
    fn build(&self) -> Result<Value> {
        if self.clusterip != "None" && self.tcp.is_empty() {
            return text("at least one tcp port specifier must be provided");
        }
        let mut o = service(&self.name, "ClusterIP", ports(&self.tcp, 0)?);
        if !self.clusterip.is_empty() {
            o["spec"]["clusterIP"] = self.clusterip.clone().into();
        }
        Ok(o)
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct NodePort {
    /// Name of the service.
    pub name: String,
    /// PORT or PORT:TARGET; may be repeated.
    #[arg(long, value_delimiter = ',')]
    pub tcp: Vec<String>,
    /// Port of the nodes.
    #[arg(long, default_value = "0", hide_default_value = true)]
    pub node_port: i64,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for NodePort {
    fn build(&self) -> Result<Value> {
        if self.tcp.is_empty() {
            return text("at least one tcp port specifier must be provided");
        }
        Ok(service(&self.name, "NodePort", ports(&self.tcp, self.node_port)?))
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct LoadBalancer {
    /// Name of the service.
    pub name: String,
    /// PORT or PORT:TARGET; may be repeated.
    #[arg(long, value_delimiter = ',')]
    pub tcp: Vec<String>,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for LoadBalancer {
    fn build(&self) -> Result<Value> {
        if self.tcp.is_empty() {
            return text("at least one tcp port specifier must be provided");
        }
        Ok(service(&self.name, "LoadBalancer", ports(&self.tcp, 0)?))
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct ExternalName {
    /// Name of the service.
    pub name: String,
    /// External host name.
    #[arg(long, required = true)]
    pub external_name: String,
    /// PORT or PORT:TARGET; may be repeated.
    #[arg(long, value_delimiter = ',')]
    pub tcp: Vec<String>,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for ExternalName {
    fn build(&self) -> Result<Value> {
        if !meta::names::dns_subdomain(&self.external_name).is_empty() {
            return text(format!("invalid service external name {}", self.external_name));
        }
        let mut o = service(&self.name, "ExternalName", ports(&self.tcp, 0)?);
        o["spec"]["externalName"] = self.external_name.clone().into();
        Ok(o)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};

    #[tokio::test]
    async fn checks_ports_and_names() {
        for (line, expected) in [
            ("clusterip c --tcp=1:2:3 -o jsonpath={.spec.ports[0].targetPort}{.spec.ports[0].name}", "21-2-3"),
            ("clusterip c --tcp=1:web -o jsonpath={.spec.ports[0].targetPort}", "web"),
            ("externalname e --external-name=a.b -o jsonpath={.spec.externalName}", "a.b"),
            ("externalname e --external-name=a.b.", "! error: invalid service external name a.b.\nexit 1\n"),
            ("externalname e --external-name=bad_name", "! error: invalid service external name bad_name\nexit 1\n"),
        ] {
            let line = format!("create service {line} --dry-run=client");
            assert_eq!(snapshot(&Server::new(), &line, "").await, expected, "{line}");
        }
    }
}

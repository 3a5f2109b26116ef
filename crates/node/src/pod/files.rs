//! `/etc/hosts` and `/etc/resolv.conf` of a pod, and its host name.

use k8s_openapi::api::core::v1::Pod;

/// DNS settings of the node and the cluster.
#[derive(Clone, Debug, Default)]
pub struct DnsOptions {
    /// Addresses of the cluster's DNS service; empty for none.
    pub servers: Vec<String>,
    /// The domain of the cluster, for example `cluster.local`.
    pub domain: String,
    /// The node's own resolv.conf, for `dnsPolicy: Default`.
    pub node: String,
}

/// The host name that replaces the pod's own one, without a domain.
fn name_override(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.hostname_override.as_deref().filter(|h| !h.is_empty())
}

/// The pod's host name: its own, or its name, of at most 63 characters.
pub fn hostname(pod: &Pod) -> String {
    let own = pod.spec.as_ref().and_then(|s| s.hostname.as_deref()).filter(|h| !h.is_empty());
    let name = name_override(pod).or(own).or(pod.metadata.name.as_deref()).unwrap_or_default();
    let cut: String = name.chars().take(63).collect();
    cut.trim_end_matches(['-', '.']).to_owned()
}

/// The pod's fully qualified name under a headless service, if it has a subdomain. That of a pod with `hostnameOverride` is the name
/// alone: DNS has no record of it.
pub fn fqdn(pod: &Pod, domain: &str) -> Option<String> {
    if name_override(pod).is_some() {
        return None;
    }
    let sub = pod.spec.as_ref()?.subdomain.as_deref().filter(|s| !s.is_empty())?;
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    Some(format!("{}.{sub}.{namespace}.svc.{domain}", hostname(pod)))
}

/// Content of /etc/hosts for a pod with addresses of its own.
pub fn hosts(pod: &Pod, ips: &[String], domain: &str) -> String {
    let mut out = String::from(
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
    );
    for ip in ips {
        let name = hostname(pod);
        match fqdn(pod, domain) {
            Some(full) => out.push_str(&format!("{ip}\t{full}\t{name}\n")),
            None => out.push_str(&format!("{ip}\t{name}\n")),
        }
    }
    out.push_str(&aliases(pod));
    out
}

/// Content of /etc/hosts for a pod in the node's network.
pub fn host_network_hosts(pod: &Pod, node: &str) -> String {
    format!("# Kubernetes-managed hosts file (host network).\n{}\n{}", node.trim_end(), aliases(pod))
}

fn aliases(pod: &Pod) -> String {
    let list = pod.spec.as_ref().and_then(|s| s.host_aliases.as_deref()).unwrap_or_default();
    if list.is_empty() {
        return String::new();
    }
    let mut out = String::from("\n# Entries added by HostAliases.\n");
    for a in list {
        out.push_str(&format!("{}\t{}\n", a.ip, a.hostnames.as_deref().unwrap_or_default().join("\t")));
    }
    out
}

#[derive(Default)]
struct Resolv {
    servers: Vec<String>,
    searches: Vec<String>,
    options: Vec<String>,
}

impl Resolv {
    fn parse(text: &str) -> Self {
        let mut out = Self::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") => out.servers.extend(words.next().map(str::to_owned)),
                Some("search") => out.searches = words.map(str::to_owned).filter(|s| s != ".").collect(),
                Some("options") => out.options = words.map(str::to_owned).collect(),
                _ => {}
            }
        }
        out
    }
}

/// How a pod resolves names (kubelet `dns.GetPodDNS`).
fn resolv(pod: &Pod, options: &DnsOptions) -> Resolv {
    let spec = pod.spec.as_ref();
    let host_network = spec.is_some_and(|s| s.host_network == Some(true));
    let node = Resolv::parse(&options.node);
    let policy = spec.and_then(|s| s.dns_policy.as_deref()).unwrap_or("ClusterFirst");
    let cluster = match policy {
        "ClusterFirstWithHostNet" => true,
        "ClusterFirst" => !host_network,
        _ => false,
    };
    let mut out = match (policy, cluster, options.servers.as_slice()) {
        ("None", ..) => Resolv::default(),
        (_, true, servers @ [_, ..]) => {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let d = &options.domain;
            let mut searches = vec![format!("{namespace}.svc.{d}"), format!("svc.{d}"), d.clone()];
            searches.extend(node.searches);
            Resolv { servers: servers.to_vec(), searches, options: vec!["ndots:5".into()] }
        }
        _ => node,
    };
    if let Some(c) = spec.and_then(|s| s.dns_config.as_ref()) {
        let extra = |into: &mut Vec<String>, from: &Option<Vec<String>>| {
            for v in from.iter().flatten() {
                if !into.contains(v) {
                    into.push(v.clone());
                }
            }
        };
        extra(&mut out.servers, &c.nameservers);
        extra(&mut out.searches, &c.searches);
        for o in c.options.iter().flatten() {
            let Some(name) = &o.name else { continue };
            let text = match o.value.as_deref().filter(|v| !v.is_empty()) {
                Some(v) => format!("{name}:{v}"),
                None => name.clone(),
            };
            out.options.retain(|e| e.split(':').next() != Some(name));
            out.options.push(text);
        }
    }
    out
}

/// The name servers, search domains and options of a pod.
pub fn name_servers(pod: &Pod, options: &DnsOptions) -> [Vec<String>; 3] {
    let Resolv { servers, searches, options } = resolv(pod, options);
    [servers, searches, options]
}

/// Content of /etc/resolv.conf.
pub fn resolv_conf(pod: &Pod, options: &DnsOptions) -> String {
    let out = resolv(pod, options);
    let mut text = String::new();
    if !out.searches.is_empty() {
        text.push_str(&format!("search {}\n", out.searches.join(" ")));
    }
    for s in &out.servers {
        text.push_str(&format!("nameserver {s}\n"));
    }
    if !out.options.is_empty() {
        text.push_str(&format!("options {}\n", out.options.join(" ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn resolves_names_by_dns_policy() {
        let options = DnsOptions {
            servers: vec!["10.96.0.10".into()],
            domain: "cluster.local".into(),
            node: "search example.org\nnameserver 192.0.2.53\n".into(),
        };
        let check = |spec: serde_json::Value, expected: &str| {
            let pod: Pod = serde_json::from_value(json!({"metadata": {"namespace": "n"}, "spec": spec})).unwrap();
            assert_eq!(resolv_conf(&pod, &options), expected, "{spec}");
        };
        let cluster = "search n.svc.cluster.local svc.cluster.local cluster.local example.org\n\
                       nameserver 10.96.0.10\noptions ndots:5\n";
        let node = "search example.org\nnameserver 192.0.2.53\n";
        check(json!({"containers": []}), cluster);
        check(json!({"containers": [], "dnsPolicy": "Default"}), node);
        check(json!({"containers": [], "hostNetwork": true}), node);
        check(json!({"containers": [], "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}), cluster);
        let config =
            json!({"nameservers": ["9.9.9.9"], "searches": ["x"], "options": [{"name": "ndots", "value": "2"}]});
        check(
            json!({"containers": [], "dnsPolicy": "None", "dnsConfig": config}),
            "search x\nnameserver 9.9.9.9\noptions ndots:2\n",
        );
        let both = "search n.svc.cluster.local svc.cluster.local cluster.local example.org x\n\
                    nameserver 10.96.0.10\nnameserver 9.9.9.9\noptions ndots:2\n";
        check(json!({"containers": [], "dnsConfig": config}), both);
    }

    #[test]
    fn hosts_know_the_pod() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "web-0", "namespace": "n"},
            "spec": {"containers": [], "subdomain": "web", "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}]}}))
        .unwrap();
        let text = hosts(&pod, &["10.0.0.5".into(), "fd00::5".into()], "cluster.local");
        assert!(text.contains("10.0.0.5\tweb-0.web.n.svc.cluster.local\tweb-0\n"), "{text}");
        assert!(text.contains("fd00::5\tweb-0.web.n.svc.cluster.local\tweb-0\n"), "{text}");
        assert!(text.ends_with("1.2.3.4\ta\tb\n"));
    }

    #[test]
    fn a_name_that_replaces_the_own_one_has_no_domain() {
        let spec =
            json!({"containers": [], "hostname": "own", "subdomain": "web", "hostnameOverride": "other.example"});
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})).unwrap();
        assert_eq!((hostname(&pod).as_str(), fqdn(&pod, "cluster.local")), ("other.example", None));
        let text = hosts(&pod, &["10.0.0.5".into()], "cluster.local");
        assert!(text.contains("10.0.0.5\tother.example\n"), "{text}");
    }
}

//! The first objects of a cluster: namespaces, roles, priority classes, the service of the API server. Missing ones are created, and
//! changed ones are left alone. Kinds that are turned off (`--runtime-config`) are skipped.

use crate::cluster_network;
use crate::dns_endpoints::Endpoint;
use futures::future::try_join_all;
use meta::{Gvr, Object, Reason, Status};
use registry::{AdmitAll, Registry, Request, WriteOptions};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The address of the cluster's DNS service within the service range.
pub const DNS_HOST: u64 = 10;

/// How often what was deleted is looked for.
const KEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Where pods reach a server.
#[derive(Clone, Copy)]
pub struct ServerAddress {
    pub address: IpAddr,
    pub port: u16,
}

/// Addresses and CA of the cluster.
pub struct ClusterInfo {
    pub cluster_ip: IpAddr,
    pub address: IpAddr,
    pub port: u16,
    pub service_cidrs: Vec<String>,
    /// The CA of the cluster, PEM.
    pub ca: String,
    /// The data of `extension-apiserver-authentication`.
    pub trust: Value,
    /// Whether a node of this process provisions volumes.
    pub has_node: bool,
}

/// The name of the storage class that a new cluster has.
const STORAGE_CLASS: &str = "local";

static NONE: Vec<String> = Vec::new();

/// Creates missing objects. Independent ones are written at the same time, so that they share transactions of the store: on a busy
/// machine each transaction waits for its turn.
pub async fn run(registry: &Registry, cluster: &ClusterInfo) -> Result<(), Status> {
    // Before the namespaces, by which a cluster is known to exist: afterwards the class is its users'.
    if cluster.has_node && !exists(registry, "", "v1", "namespaces", &json!({"metadata": {"name": "kube-system"}})) {
        storage_class(registry).await?;
    }
    namespaces(registry).await?;
    let (data, classes) = (trust(registry, &cluster.trust), priority_classes(registry));
    let roles = strategies::rbac::bootstrap(registry);
    tokio::try_join!(
        roles,
        data,
        classes,
        cluster_info(registry, cluster),
        token_tracking(registry),
        joining(registry),
        api_service(registry, cluster)
    )?;
    Ok(())
}

/// Those without which a cluster does not work. Without the last one, nodes cannot renew their leases.
async fn namespaces(registry: &Registry) -> Result<(), Status> {
    let all = ["default", "kube-system", "kube-public", "kube-node-lease"]
        .map(|name| create(registry, "", "v1", "namespaces", json!({"metadata": {"name": name}})));
    try_join_all(all).await.map(drop)
}

/// Creates namespaces and the service of the API server again when somebody has deleted them, for ever (upstream `systemnamespaces` and
/// `kubernetesservice`). It depends on no watch, so it finds what was deleted while the namespace could not be written.
pub async fn keep(registry: &Registry, cluster: &ClusterInfo) {
    loop {
        tokio::time::sleep(KEEP_INTERVAL).await;
        let kept = async {
            namespaces(registry).await?;
            api_service(registry, cluster).await
        };
        if let Err(error) = kept.await {
            tracing::warn!(%error, "creating a namespace or the service of the API server again failed; it is tried again");
        }
    }
}

/// Records since when the use of tokens in secrets is known.
async fn token_tracking(registry: &Registry) -> Result<(), Status> {
    let since = registry.clock.now().strftime("%Y-%m-%d").to_string();
    let metadata = json!({"name": "kube-apiserver-legacy-service-account-token-tracking", "namespace": "kube-system"});
    create(registry, "", "v1", "configmaps", json!({"metadata": metadata, "data": {"since": since}})).await
}

async fn priority_classes(registry: &Registry) -> Result<(), Status> {
    for (name, value) in [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)] {
        let class = json!({"metadata": {"name": name}, "value": value,
            "description": "For what the cluster cannot do without."});
        create(registry, "scheduling.k8s.io", "v1", "priorityclasses", class).await?;
    }
    Ok(())
}

/// The default storage class: file systems of the size of their claims. Directories, whose size nothing limits, if this machine cannot
/// make file systems.
async fn storage_class(registry: &Registry) -> Result<(), Status> {
    let obstacle = supervisor::blocking(|| node::file_volume_obstacle(node::Format::Ext4)).await;
    if let Some(why) = &obstacle {
        tracing::warn!(
            "volumes of the StorageClass {STORAGE_CLASS} are directories without a limit of their size: {why}"
        );
    }
    let kind = if obstacle.is_none() { "file" } else { "directory" };
    let annotations = json!({"storageclass.kubernetes.io/is-default-class": "true"});
    let class = json!({"metadata": {"name": STORAGE_CLASS, "annotations": annotations},
        "provisioner": node::PROVISIONER, "parameters": {"type": kind}, "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true});
    create(registry, "storage.k8s.io", "v1", "storageclasses", class).await
}

/// The default range of service addresses, and the service of the API server with its endpoints.
async fn api_service(registry: &Registry, cluster: &ClusterInfo) -> Result<(), Status> {
    let cidr = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": cluster.service_cidrs}});
    create(registry, "networking.k8s.io", "v1", "servicecidrs", cidr).await?;
    let labels = json!({"component": "apiserver", "provider": "kubernetes"});
    let service = json!({"metadata": {"name": "kubernetes", "namespace": "default", "labels": labels},
        "spec": {"clusterIP": cluster.cluster_ip.to_string(), "type": "ClusterIP",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": cluster.port}]}});
    create(registry, "", "v1", "services", service).await?;
    if registry.store.is_shared() {
        // Its endpoints are those of all servers.
        return Ok(());
    }
    endpoints(registry, &[ServerAddress { address: cluster.address, port: cluster.port }]).await
}

/// Publishes the CAs and headers by which extension API servers authenticate clients.
pub async fn trust(registry: &Registry, data: &Value) -> Result<(), Status> {
    let metadata = json!({"name": "extension-apiserver-authentication", "namespace": "kube-system"});
    replace(registry, "", "v1", "configmaps", json!({"metadata": metadata, "data": data})).await
}

/// The ConfigMap `cluster-info`: address and CA for holders of a bootstrap token. The bootstrap signer controller signs it.
async fn cluster_info(registry: &Registry, cluster: &ClusterInfo) -> Result<(), Status> {
    let server = format!("https://{}", std::net::SocketAddr::new(cluster.address, cluster.port));
    let ca = schema::base64(cluster.ca.as_bytes());
    let kubeconfig = format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {ca}\n    server: {server}\n  name: \"\"\ncontexts: null\n\
current-context: \"\"\nkind: Config\nusers: null\n"
    );
    let metadata = json!({"name": "cluster-info", "namespace": "kube-public"});
    create(registry, "", "v1", "configmaps", json!({"metadata": metadata, "data": {"kubeconfig": kubeconfig}})).await
}

/// The service of the DNS servers of nodes. Pods use the one of their own node.
pub async fn dns(registry: &Registry, cluster_ip: IpAddr, servers: &[Endpoint]) -> Result<(), Status> {
    let labels =
        json!({"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"});
    let ports = json!([{"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53}]);
    let service = json!({"metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
        "spec": {"clusterIP": cluster_ip.to_string(), "type": "ClusterIP", "ports": ports,
            "internalTrafficPolicy": "Local"}});
    create(registry, "", "v1", "services", service).await?;
    let metadata = json!({"name": "kube-dns", "namespace": "kube-system",
        "labels": {"kubernetes.io/service-name": "kube-dns", "endpointslice.kubernetes.io/managed-by": "kemudi"}});
    let endpoint =
        |e: &Endpoint| json!({"addresses": [e.address.to_string()], "conditions": {"ready": true}, "nodeName": e.node});
    let endpoints: Vec<Value> = servers.iter().map(endpoint).collect();
    let family = if cluster_ip.is_ipv6() { "IPv6" } else { "IPv4" };
    let slice = json!({"metadata": metadata, "addressType": family, "endpoints": endpoints,
        "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]});
    replace(registry, "discovery.k8s.io", "v1", "endpointslices", slice).await
}

/// The group of bootstrap tokens for nodes.
pub const JOINING: &str = "system:bootstrappers:kemudi:nodes";

/// The user who reads what network policies depend on. Nodes impersonate it: as themselves they read their own pods only.
pub const POLICY_READER: &str = "system:kemudi:network-policies";

/// The permissions of machines that join the cluster, and of nodes besides those that the Node authorizer gives them.
async fn joining(registry: &Registry) -> Result<(), Status> {
    const RBAC: &str = "rbac.authorization.k8s.io";
    let group = |name: &str| json!({"kind": "Group", "apiGroup": RBAC, "name": name});
    let nodes = || group(auth::user::GROUP_NODES);
    let read = |groups: Value, resources: Value| json!({"apiGroups": groups, "resources": resources, "verbs": ["get", "list", "watch"]});
    let roles = [
        (
            "clusterroles",
            "",
            "kemudi:node",
            vec![
                read(json!([""]), json!(["nodes", "services"])),
                read(json!(["discovery.k8s.io"]), json!(["endpointslices"])),
                // For the provisioner of directories. NodeRestriction limits the writes to the node's own.
                read(json!([""]), json!(["persistentvolumes", "persistentvolumeclaims"])),
                read(json!(["storage.k8s.io"]), json!(["storageclasses"])),
                json!({"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["create", "update", "delete"]}),
            ],
        ),
        (
            "clusterroles",
            "",
            "kemudi:impersonate-network-policies",
            vec![
                json!({"apiGroups": [""], "resources": ["users"], "resourceNames": [POLICY_READER], "verbs": ["impersonate"]}),
            ],
        ),
        (
            "clusterroles",
            "",
            "kemudi:network-policies",
            vec![
                read(json!([""]), json!(["pods", "namespaces"])),
                read(json!(["networking.k8s.io"]), json!(["networkpolicies"])),
            ],
        ),
        (
            "roles",
            cluster_network::NAMESPACE,
            "kemudi:cluster-network",
            vec![json!({"apiGroups": [""],
            "resources": ["configmaps"], "resourceNames": [cluster_network::NAME], "verbs": ["get"]})],
        ),
        (
            "roles",
            "kube-public",
            "kemudi:cluster-info",
            vec![json!({"apiGroups": [""],
            "resources": ["configmaps"], "resourceNames": ["cluster-info"], "verbs": ["get"]})],
        ),
    ];
    let roles = roles.map(|(resource, namespace, name, rules)| {
        let role = json!({"metadata": {"name": name, "namespace": namespace}, "rules": rules});
        create(registry, RBAC, "v1", resource, role)
    });
    let requests = "system:certificates.k8s.io:certificatesigningrequests";
    let approver = json!({"kind": "ServiceAccount", "namespace": "kube-system", "name": "certificate-controller"});
    let bindings = [
        ("", "kemudi:node", "kemudi:node".to_owned(), nodes()),
        ("", "kemudi:impersonate-network-policies", "kemudi:impersonate-network-policies".to_owned(), nodes()),
        (
            "",
            "kemudi:network-policies",
            "kemudi:network-policies".to_owned(),
            json!({"kind": "User", "apiGroup": RBAC, "name": POLICY_READER}),
        ),
        (cluster_network::NAMESPACE, "kemudi:cluster-network", "kemudi:cluster-network".to_owned(), nodes()),
        (
            "kube-public",
            "kemudi:cluster-info",
            "kemudi:cluster-info".to_owned(),
            json!({"kind": "User", "apiGroup": RBAC, "name": "system:anonymous"}),
        ),
        ("", "kemudi:node-bootstrapper", "system:node-bootstrapper".to_owned(), group(JOINING)),
        ("", "kemudi:approve-node-clients", format!("{requests}:nodeclient"), group(JOINING)),
        ("", "kemudi:renew-node-clients", format!("{requests}:selfnodeclient"), nodes()),
        (
            "",
            "kemudi:approve-kubelet-serving",
            "system:certificates.k8s.io:kubelet-serving-approver".to_owned(),
            approver,
        ),
    ];
    let bindings = bindings.map(|(namespace, name, role, subject)| {
        let (resource, kind) = match namespace {
            "" => ("clusterrolebindings", "ClusterRole"),
            _ => ("rolebindings", "Role"),
        };
        let reference = json!({"apiGroup": RBAC, "kind": kind, "name": role});
        let binding =
            json!({"metadata": {"name": name, "namespace": namespace}, "roleRef": reference, "subjects": [subject]});
        create(registry, RBAC, "v1", resource, binding)
    });
    tokio::try_join!(try_join_all(roles), try_join_all(bindings)).map(drop)
}

/// Sets the endpoints of the service `kubernetes` to these servers, unless they are already. Without an address that pods can reach
/// there are none.
pub async fn endpoints(registry: &Registry, servers: &[ServerAddress]) -> Result<(), Status> {
    // No node agent, and the server listens on loopback only: no pod can reach it, and upstream's service has no endpoints either.
    let reachable: Vec<&ServerAddress> = servers.iter().filter(|s| !s.address.is_loopback()).collect();
    if reachable.len() < servers.len() {
        tracing::debug!("the service default/kubernetes has no endpoints for servers with a loopback address");
    }
    let Some(first) = reachable.first() else { return Ok(()) };
    let family = if first.address.is_ipv6() { "IPv6" } else { "IPv4" };
    let served: Vec<&&ServerAddress> =
        reachable.iter().filter(|s| s.address.is_ipv6() == first.address.is_ipv6()).collect();
    let mut by_port: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    served.iter().for_each(|s| by_port.entry(s.port).or_default().push(s.address.to_string()));
    let subsets: Vec<Value> = by_port
        .iter()
        .map(|(port, ips)| {
            let addresses: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
            json!({"addresses": addresses, "ports": [{"name": "https", "port": port, "protocol": "TCP"}]})
        })
        .collect();
    let metadata = json!({"name": "kubernetes", "namespace": "default",
        "labels": {"kubernetes.io/service-name": "kubernetes", "endpointslice.kubernetes.io/skip-mirror": "true"}});
    // The slice has one port for all addresses: that of most servers, if they differ.
    let (port, ips) =
        by_port.iter().max_by_key(|(port, ips)| (ips.len(), Reverse(**port))).unwrap_or((&first.port, &NONE));
    let endpoints: Vec<Value> =
        ips.iter().map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}})).collect();
    let slice = json!({"metadata": metadata, "addressType": family, "endpoints": endpoints,
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}]});
    let old = json!({"metadata": metadata, "subsets": subsets});
    for (group, resource, object) in [("discovery.k8s.io", "endpointslices", slice), ("", "endpoints", old)] {
        match replace(registry, group, "v1", resource, object).await {
            Err(s) if s.is(Reason::Invalid) => {
                tracing::warn!("the service default/kubernetes has no endpoints: {s}");
            }
            other => other?,
        }
    }
    Ok(())
}

/// None if the kind is not served.
fn request(registry: &Registry, group: &str, version: &str, resource: &str, o: &Value) -> Option<Request> {
    let rows = registry.rows();
    let row = rows.resource(&Gvr { group: group.into(), version: version.into(), resource: resource.into() });
    let text = |k: &str| o["metadata"][k].as_str().unwrap_or_default().to_owned();
    Some(Request::own(row?.clone(), "", &text("namespace"), &text("name")))
}

fn object(request: &Request, mut o: Value) -> Result<Object, Status> {
    let kind = &request.resource.kind;
    o["apiVersion"] = kind.gvk().api_version().into();
    o["kind"] = (*kind.kind).into();
    schema::typed(&mut o, &kind.schema).map_err(Status::internal)?;
    schema::fill(&mut o, &kind.schema);
    let mut o = Object::from_value(o).ok_or_else(|| Status::internal("no object"))?;
    request.resource.strategy.default(&mut o);
    Ok(o)
}

/// Whether an object is stored.
fn exists(registry: &Registry, group: &str, version: &str, resource: &str, o: &Value) -> bool {
    let Some(request) = request(registry, group, version, resource, o) else { return false };
    let key = request.resource.key(&request.namespace, &request.name);
    key.is_some_and(|k| registry.store.snapshot().get(&k).is_some())
}

pub async fn create(registry: &Registry, group: &str, version: &str, resource: &str, o: Value) -> Result<(), Status> {
    let Some(request) = request(registry, group, version, resource, &o) else { return Ok(()) };
    if exists(registry, group, version, resource, &o) {
        return Ok(());
    }
    let o = object(&request, o)?;
    let options = WriteOptions::by("kube-apiserver");
    match registry.create(&request, o, &options, &AdmitAll).await {
        Ok(_) => Ok(()),
        Err(s) if s.is(Reason::AlreadyExists) => Ok(()),
        Err(s) if registry.store.is_shared() => {
            // Another server that starts at the same time may have created it, and what belongs to it.
            registry.refresh("").await?;
            let key = request.resource.key(&request.namespace, &request.name);
            if key.is_some_and(|k| registry.store.snapshot().get(&k).is_some()) { Ok(()) } else { Err(s) }
        }
        Err(s) => Err(s),
    }
}

pub async fn replace(registry: &Registry, group: &str, version: &str, resource: &str, o: Value) -> Result<(), Status> {
    create(registry, group, version, resource, o.clone()).await?;
    let Some(request) = request(registry, group, version, resource, &o) else { return Ok(()) };
    let object = object(&request, o)?;
    let change = |_: Option<&Object>, _: &_| Ok(registry::Target::object(object.clone()));
    let options = WriteOptions::by("kube-apiserver");
    registry.update(&request, &change, &Default::default(), &options, &AdmitAll).await.map(|_| ())
}

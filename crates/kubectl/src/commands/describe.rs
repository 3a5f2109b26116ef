//! `kubectl describe`: details of objects with their related objects and events.

mod addresses;
mod certificate;
mod claim_spec;
pub mod events;
mod generic;
mod limits;
mod mounted;
mod network;
mod node;
mod page;
mod plain;
pub mod pod;
pub mod rbac;
mod related;
mod service;
mod sources;
mod volumes;
mod workload;

use crate::error::{Error, Result, text};
use crate::flags::FileFlags;
use crate::kube::Kube;
use crate::printer::tabwriter;
use crate::resource::select::{Selection, list, reject_both, targets, types};
use crate::resource::{Collection, Info, Target, from_files};
use meta::{Gvk, Object, Reason, Status};
use page::Page;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE [NAME or prefix…], or TYPE/NAME….
    pub resources: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    /// Only objects with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// In all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Show the events of each object.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub show_events: Option<bool>,
    /// Page size of lists.
    #[arg(long, default_value = "500", hide_default_value = true, allow_negative_numbers = true)]
    pub chunk_size: i64,
}

const RBAC: &str = "rbac.authorization.k8s.io";
const NETWORKING: &str = "networking.k8s.io";

/// Kinds without events in their description.
const WITHOUT_EVENTS: [&str; 9] = [
    "Secret",
    "Namespace",
    "Role",
    "ClusterRole",
    "RoleBinding",
    "ClusterRoleBinding",
    "ResourceQuota",
    "LimitRange",
    "NetworkPolicy",
];

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if a.resources.is_empty() && a.files.is_empty() {
        return text(
            "You must specify the type of resource to describe. Use \"kubectl api-resources\" for a complete list of supported resources.\n",
        );
    }
    let s = Selection {
        labels: &a.selector,
        all_namespaces: a.all_namespaces,
        bare_type_is_all: true,
        page: Some(a.chunk_size),
        ..Selection::default()
    };
    let mut errors = Vec::new();
    let mut found: Vec<Info> = Vec::new();
    let mut guessed = false;
    reject_both(&a.resources, &a.files)?;
    let mut all = targets(k, &a.resources, &s).await?;
    for i in from_files(k, &a.files).await? {
        match i {
            Ok(i) => all.push(Target::Named(i)),
            // As in upstream, the message omits the word.
            Err(Error::Text(t)) => errors.push(Error::Bare(t)),
            Err(e) => errors.push(e),
        }
    }
    for t in all {
        match t {
            Target::All(c) => match list(k, &c, &s).await {
                Ok(l) => found.extend(l),
                Err(e) => errors.push(e),
            },
            Target::Named(i) => match named(k, i).await {
                Ok(i) => found.push(i),
                Err(e) => errors.push(e),
            },
        }
    }
    // A type and a word that is no name: a prefix of names.
    let missing = errors.iter().position(Error::is_not_found);
    if let ([type_name, prefix], Some(missing)) = (a.resources.as_slice(), missing) {
        let mut beginning = matching(k, type_name, prefix).await?;
        if beginning.is_empty() {
            return Err(errors.swap_remove(missing));
        }
        guessed = true;
        errors.clear();
        found = std::mem::take(&mut beginning);
    }
    let none = found.is_empty();
    let show_events = a.show_events.unwrap_or(found.len() + errors.len() == 1 && !guessed);
    for (n, i) in found.into_iter().enumerate() {
        match describe_object(k, &i, show_events, a.chunk_size).await {
            Ok(text) => {
                // Objects that match a prefix are described one by one.
                if n > 0 && !guessed {
                    k.out.write(b"\n\n");
                }
                k.out.write(text.as_bytes());
                if guessed {
                    k.out.write(b"\n");
                }
            }
            Err(e) => errors.push(e),
        }
    }
    if none && errors.is_empty() {
        if a.all_namespaces {
            k.warn("No resources found");
        } else {
            let (namespace, _) = k.namespace()?;
            k.warn(format!("No resources found in {namespace} namespace."));
        }
    }
    Error::collect(errors)
}

/// Returns the objects of a type with this name prefix.
async fn matching(k: &mut Kube, type_name: &str, prefix: &str) -> Result<Vec<Info>> {
    if type_name.contains('/') {
        return Ok(Vec::new());
    }
    let [resource] = &types(k, type_name).await?[..] else {
        return text("you may only specify a single resource type");
    };
    let namespace = if resource.namespaced { k.namespace()?.0 } else { String::new() };
    let c = Collection { resource: resource.clone(), namespace };
    let mut all = list(k, &c, &Selection::default()).await.unwrap_or_default();
    all.retain(|o| o.name.starts_with(prefix));
    Ok(all)
}

async fn named(k: &mut Kube, mut i: Info) -> Result<Info> {
    if i.name.is_empty() {
        return text("resource name may not be empty");
    }
    // Upstream requests it outside of any namespace, a path that the server lacks.
    if i.check_namespace().is_err() {
        let status = Status::new(404, Reason::NotFound, "the server could not find the requested resource");
        return Err(client::Error::from(status).into());
    }
    i.object = Some(i.fetch(k).await?);
    Ok(i)
}

async fn describe_object(k: &mut Kube, i: &Info, show_events: bool, chunk_size: i64) -> Result<String> {
    let o = i.object.clone().unwrap_or_default();
    let has_events = !WITHOUT_EVENTS.contains(&i.resource.kind.as_str());
    let events = if show_events && has_events { Some(events::about(k, &o, chunk_size).await?) } else { None };
    let mut p = Page::new(k.shell.zone.clone(), chunk_size);
    let core = i.resource.group.is_empty();
    match i.resource.kind.as_str() {
        "Pod" if core => pod::describe(&mut p, &o, k.now()),
        "ConfigMap" if core => plain::config_map(&mut p, &o),
        "Secret" if core => plain::secret(&mut p, &o),
        "ServiceAccount" if core => plain::service_account(&mut p, &o),
        "Namespace" if core => plain::namespace(&mut p, &o, k).await?,
        "Service" if core => service::describe(&mut p, &o, k).await?,
        "Node" if core => node::describe(&mut p, &o, k).await?,
        "Deployment" if i.resource.group == "apps" => workload::deployment(&mut p, &o, i, k).await?,
        "ReplicaSet" if i.resource.group == "apps" => workload::replica_set(&mut p, &o, k).await?,
        "ReplicationController" if core => workload::replica_set(&mut p, &o, k).await?,
        "DaemonSet" if i.resource.group == "apps" => workload::daemon_set(&mut p, &o, k).await?,
        "StatefulSet" if i.resource.group == "apps" => workload::stateful_set(&mut p, &o, k).await?,
        "Job" if i.resource.group == "batch" => workload::job(&mut p, &o, k.now()),
        "CronJob" if i.resource.group == "batch" => workload::cron_job(&mut p, &o),
        "Role" | "ClusterRole" if i.resource.group == RBAC => rbac::role(&mut p, &o),
        "RoleBinding" | "ClusterRoleBinding" if i.resource.group == RBAC => rbac::binding(&mut p, &o),
        "ResourceQuota" if core => limits::quota(&mut p, &o),
        "LimitRange" if core => limits::range(&mut p, &o),
        "PodDisruptionBudget" if i.resource.group == "policy" => limits::budget(&mut p, &o),
        "PriorityClass" if i.resource.group == "scheduling.k8s.io" => limits::priority(&mut p, &o),
        "HorizontalPodAutoscaler" if i.resource.group == "autoscaling" => {
            limits::autoscaler(&mut p, &newest_autoscaler(k, i, o.clone()).await);
        }
        "StorageClass" if i.resource.group == "storage.k8s.io" => limits::storage_class(&mut p, &o),
        "VolumeAttributesClass" if i.resource.group == "storage.k8s.io" => limits::attributes_class(&mut p, &o),
        "PersistentVolumeClaim" if core => volumes::claim(&mut p, &o, k).await?,
        "PersistentVolume" if core => volumes::volume(&mut p, &o, k.now()),
        "Endpoints" if core => network::old_endpoints(&mut p, &o),
        "EndpointSlice" if i.resource.group == "discovery.k8s.io" => network::slice(&mut p, &o),
        "Ingress" if i.resource.group == NETWORKING => network::ingress(&mut p, &o, k).await?,
        "IngressClass" if i.resource.group == NETWORKING => network::class(&mut p, &o),
        "NetworkPolicy" if i.resource.group == NETWORKING => network::policy(&mut p, &o),
        "ServiceCIDR" if i.resource.group == NETWORKING => addresses::range(&mut p, &o),
        "IPAddress" if i.resource.group == NETWORKING => addresses::address(&mut p, &o),
        "CSINode" if i.resource.group == "storage.k8s.io" => addresses::csi_node(&mut p, &o),
        "CertificateSigningRequest" if i.resource.group == "certificates.k8s.io" => certificate::request(&mut p, &o)?,
        _ => generic::describe(&mut p, &o),
    }
    if let Some(e) = events {
        events::write(&mut p, &e, k.now());
    }
    Ok(tabwriter::describe(&p.text))
}

/// Reads an autoscaler in the version with all metrics; falls back to the version that was read.
async fn newest_autoscaler(k: &mut Kube, i: &Info, read: Object) -> Object {
    let gvk = Gvk::new("autoscaling", "v2", "HorizontalPodAutoscaler");
    if i.resource.gvk() == gvk {
        return read;
    }
    let Ok(Some(resource)) = k.resource_of(&gvk).await else { return read };
    Info { resource, ..i.clone() }.fetch(k).await.unwrap_or(read)
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    fn server(path: &str, o: meta::Value) -> Server {
        let (name, uid) = (o["metadata"]["name"].as_str().unwrap(), o["metadata"]["uid"].as_str().unwrap());
        let namespace = o["metadata"]["namespace"].as_str().unwrap();
        let kind = o["kind"].as_str().unwrap();
        let events = about(namespace, name, kind, uid, 500);
        let event = json!({"type": "Warning", "reason": "Bad", "message": "it is\n", "count": 3, "firstTimestamp": "2026-11-21T11:00:00Z", "lastTimestamp": "2026-11-21T11:59:00Z", "source": {"component": "kubelet", "host": "n"}, "involvedObject": {"fieldPath": "spec.containers{c}"}});
        let items = if kind == "Pod" { json!([event]) } else { json!([]) };
        Server::new().on(path, 200, o).on(&events, 200, json!({"items": items}))
    }

    /// The request for the events of an object.
    fn about(namespace: &str, name: &str, kind: &str, uid: &str, limit: u32) -> String {
        let scope = if namespace.is_empty() { String::new() } else { format!("namespaces/{namespace}/") };
        let kind = if kind == "Pod" { String::new() } else { format!("involvedObject.kind%3D{kind}%2C") };
        format!(
            "GET /api/v1/{scope}events?fieldSelector=involvedObject.name%3D{name}%2CinvolvedObject.namespace%3D{namespace}%2C{kind}involvedObject.uid%3D{uid}&limit={limit}"
        )
    }

    /// The content of an object must not control the terminal of its reader.
    #[tokio::test]
    async fn escapes_control_characters() {
        let bad = "\x1b]0;mine\x07\x1b[2Jone\rtwo";
        let shown = "^[]0;mine\x07^[[2Jone\\rtwo";
        let ended = json!({"terminated": {"reason": bad, "message": bad, "exitCode": 3}});
        let waiting = json!({"waiting": {"reason": "Error", "message": bad}});
        let status = |state| json!([{"name": "c", "state": state, "lastState": ended, "imageID": bad}]);
        let pod = |state| {
            json!({
                "kind": "Pod", "apiVersion": "v1",
                "metadata": {"name": "p", "namespace": "default", "uid": "u", "annotations": {"short": bad, "long": bad.repeat(20)}},
                "spec": {"containers": [{"name": "c", "image": bad, "args": [bad], "env": [{"name": "E", "value": bad}]}]},
                "status": {"phase": "Failed", "reason": bad, "message": bad, "containerStatuses": status(state)},
            })
        };
        let map = json!({
            "kind": "ConfigMap", "apiVersion": "v1", "data": {"key": bad, "other": bad},
            "metadata": {"name": "m", "namespace": "default", "uid": "u"},
        });
        for (line, path, o, times) in [
            ("describe pod p", "pods/p", pod(ended.clone()), 14),
            ("describe pod p", "pods/p", pod(waiting), 13),
            ("describe configmap m", "configmaps/m", map, 2),
        ] {
            let mut s = server(&format!("GET /api/v1/namespaces/default/{path}"), o);
            let event = json!({"type": bad, "reason": bad, "message": bad, "count": 1, "source": {"component": bad}});
            s = s.on(&about("default", "p", "Pod", "u", 500), 200, json!({"items": [event]}));
            let text = snapshot(&s, line, "").await;
            assert!(!text.contains(['\x1b', '\r']), "{line}: {text:?}");
            assert!(text.matches(shown).count() >= times, "{line}: {text}");
        }
    }

    /// Kubelets report about their node with its name as UID, controllers with its UID.
    #[tokio::test]
    async fn a_node_has_the_events_of_kubelet_and_controllers() {
        let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n", "uid": "u"}, "spec": {}, "status": {}});
        let pods = "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn%2Cstatus.phase%21%3DFailed%2Cstatus.phase%21%3DSucceeded&limit=500";
        let mut s = Server::new().on("GET /api/v1/nodes/n", 200, node).on(pods, 200, json!({"items": []}));
        for (uid, reason) in [("n", "Starting"), ("u", "RegisteredNode")] {
            let event = json!({"type": "Normal", "reason": reason, "message": "m", "source": {"component": "c"}});
            s = s.on(&about("", "n", "Node", uid, 500), 200, json!({"items": [event]}));
        }
        let text = snapshot(&s, "describe node n", "").await;
        assert!(text.contains("Starting") && text.contains("RegisteredNode"), "{text}");
    }

    /// The rows of pods follow their status while they are resized, the sums do not; sidecars, overhead and resources of pods as a whole
    /// count in both.
    #[tokio::test]
    async fn a_node_shows_what_its_pods_take() {
        let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n", "uid": "u"}, "spec": {},
            "status": {"capacity": {"cpu": "9"}, "allocatable": {"cpu": "1", "memory": "1Gi", "pods": "9", "example.com/a": "4"}}});
        let container = |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu, "example.com/a": "1"}, "limits": {"cpu": cpu, "example.com/a": "1"}}});
        let sidecar = json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}});
        let pod = |name: &str, spec: meta::Value, status: meta::Value| json!({"metadata": {"name": name, "namespace": "x", "creationTimestamp": "2026-11-21T11:00:00Z"}, "spec": spec, "status": status});
        let resized = json!({"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "290m"}, "resources": {"limits": {"cpu": "250m"}}}]});
        let whole = json!({"containers": [container("c", "10m")], "resources": {"requests": {"cpu": "50m", "memory": "100Mi"}}});
        let overhead = json!({"cpu": "5m", "memory": "1Mi"});
        let items = json!([
            pod("resized", json!({"containers": [container("c", "200m")]}), resized),
            pod(
                "sidecar",
                json!({"containers": [container("c", "10m")], "initContainers": [sidecar, container("i", "5m")], "overhead": overhead}),
                json!({})
            ),
            pod("whole", whole, json!({})),
        ]);
        let pods = "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn%2Cstatus.phase%21%3DFailed%2Cstatus.phase%21%3DSucceeded&limit=500";
        let s = Server::new().on("GET /api/v1/nodes/n", 200, node).on(pods, 200, json!({"items": items}));
        let text = snapshot(&s, "describe node n", "").await;
        let expected = "\
Non-terminated Pods:          (3 in total)
  Namespace                   Name       CPU Requests  CPU Limits  Memory Requests  Memory Limits  Age
  ---------                   ----       ------------  ----------  ---------------  -------------  ---
  x                           resized    290m (28%)    250m (25%)  0 (0%)           0 (0%)         60m
  x                           sidecar    115m (11%)    15m (1%)    1Mi (0%)         0 (0%)         60m
  x                           whole      50m (5%)      10m (1%)    100Mi (9%)       0 (0%)         60m
Allocated resources:
  (Total limits may be over 100 percent, i.e., overcommitted.)
  Resource           Requests    Limits
  --------           --------    ------
  cpu                365m (36%)  225m (22%)
  memory             101Mi (9%)  0 (0%)
  ephemeral-storage  0 (0%)      0 (0%)
  example.com/a      3           3
";
        assert!(text.contains(expected), "{text}");
    }

    /// Related objects are listed in pages of `--chunk-size`; what the user may not list is said in the description.
    #[tokio::test]
    async fn related_objects_are_listed_in_pages() {
        let forbidden = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no pods"});
        let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n", "uid": "u"}, "spec": {}, "status": {}});
        let pods_of_node = "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn%2Cstatus.phase%21%3DFailed%2Cstatus.phase%21%3DSucceeded&limit=3";
        let set = json!({"kind": "ReplicaSet", "apiVersion": "apps/v1", "metadata": {"name": "r", "namespace": "default", "uid": "u"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {}}});
        let pods_of_set = "GET /api/v1/namespaces/default/pods?labelSelector=a%3Db&limit=3";
        let event =
            |reason: &str| json!({"type": "Normal", "reason": reason, "message": "m", "source": {"component": "c"}});
        let first = |next: &str| json!({"metadata": {"continue": next}, "items": [event("First")]});
        let events = about("default", "r", "ReplicaSet", "u", 3);
        let s = Server::new()
            .on("GET /api/v1/nodes/n", 200, node)
            .on(pods_of_node, 403, forbidden.clone())
            .on("GET /apis/apps/v1/namespaces/default/replicasets/r", 200, set)
            .on(pods_of_set, 403, forbidden)
            .on(&events, 200, first("next"))
            .on(&format!("{events}&continue=next"), 200, json!({"items": [event("Second")]}));
        let page = snapshot(&s, "describe node n --chunk-size=3", "").await;
        assert!(page.contains("\nPods:") && page.contains("not authorized\n"), "{page}");
        assert!(s.requests().contains(&about("", "n", "Node", "n", 3)), "{:?}", s.requests());
        let page = snapshot(&s, "describe rs r --chunk-size=3", "").await;
        assert!(page.contains("error in fetching pods: no pods\n"), "{page}");
        assert!(page.contains("First") && page.contains("Second"), "{page}");
    }

    #[tokio::test]
    async fn describes_a_pod() {
        let pod = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": "p", "namespace": "default", "uid": "u", "labels": {"a": "b", "c": "d"}, "annotations": {"x": "y"}},
            "spec": {
                "nodeName": "n", "serviceAccountName": "default", "priority": 0,
                "containers": [{
                    "name": "c", "image": "i", "ports": [{"containerPort": 80, "protocol": "TCP"}], "command": ["sh"], "args": ["-c", "x y"],
                    "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "100m", "memory": "1Gi"}},
                    "livenessProbe": {"httpGet": {"path": "/h", "port": 80, "scheme": "HTTP"}, "periodSeconds": 10, "timeoutSeconds": 1, "successThreshold": 1, "failureThreshold": 3},
                    "env": [{"name": "E", "value": "1"}, {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                    "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true}],
                }],
                "volumes": [{"name": "v", "configMap": {"name": "cm"}}],
                "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "hostIP": "1.2.3.4", "qosClass": "Burstable",
                "startTime": "2026-11-21T11:00:00Z",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "c", "ready": true, "restartCount": 2, "imageID": "sha", "containerID": "kemudi://1",
                    "state": {"running": {"startedAt": "2026-11-21T11:30:00Z"}},
                    "lastState": {"terminated": {"reason": "Error", "exitCode": 1, "startedAt": "2026-11-21T11:00:00Z", "finishedAt": "2026-11-21T11:29:00Z"}}}],
            },
        });
        let s = server("GET /api/v1/namespaces/default/pods/p", pod);
        let expected = "\
Name:             p
Namespace:        default
Priority:         0
Service Account:  default
Node:             n/1.2.3.4
Start Time:       Sat, 21 Nov 2026 11:00:00 +0000
Labels:           a=b
                  c=d
Annotations:      x: y
Status:           Running
IP:               10.0.0.1
IPs:
  IP:  10.0.0.1
Containers:
  c:
    Container ID:  kemudi://1
    Image:         i
    Image ID:      sha
    Port:          80/TCP
    Host Port:     0/TCP
    Command:
      sh
    Args:
      -c
      x y
    State:          Running
      Started:      Sat, 21 Nov 2026 11:30:00 +0000
    Last State:     Terminated
      Reason:       Error
      Exit Code:    1
      Started:      Sat, 21 Nov 2026 11:00:00 +0000
      Finished:     Sat, 21 Nov 2026 11:29:00 +0000
    Ready:          True
    Restart Count:  2
    Limits:
      cpu:  1
    Requests:
      cpu:     100m
      memory:  1Gi
    Liveness:  http-get http://:80/h delay=0s timeout=1s period=10s #success=1 #failure=3
    Environment:
      E:  1
      S:  <set to the key 'k' in secret 's'>  Optional: false
    Mounts:
      /v from v (ro)
Conditions:
  Type    Status
  Ready   True 
Volumes:
  v:
    Type:        ConfigMap (a volume populated by a ConfigMap)
    Name:        cm
    Optional:    false
QoS Class:       Burstable
Node-Selectors:  <none>
Tolerations:     k:NoExecute op=Exists for 300s
Events:
  Type     Reason  Age                From     Message
  ----     ------  ----               ----     -------
  Warning  Bad     60s (x3 over 60m)  kubelet  spec.containers{c}: it is
";
        assert_eq!(snapshot(&s, "describe pod p", "").await, expected);
    }

    /// Describes a cluster-scoped object.
    async fn page(path: &str, o: meta::Value) -> String {
        let (name, kind) = (o["metadata"]["name"].as_str().unwrap(), o["kind"].as_str().unwrap().to_lowercase());
        let line = format!("describe {kind} {name} --show-events=false");
        snapshot(&Server::new().on(&format!("GET {path}/{name}"), 200, o), &line, "").await
    }

    #[tokio::test]
    async fn describes_a_signing_request() {
        use base64::Engine as _;
        let key = rcgen::KeyPair::generate().unwrap();
        let names = ["a.example", "b.example", "10.0.0.1"].map(str::to_owned);
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "carla");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "team");
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let o = json!({
            "kind": "CertificateSigningRequest", "apiVersion": "certificates.k8s.io/v1",
            "metadata": {"name": "c", "uid": "u", "creationTimestamp": "2026-11-21T11:00:00Z", "labels": {"a": "b", "c": "d"}},
            "spec": {"username": "ann", "signerName": "example.com/x", "expirationSeconds": 3600,
                "request": base64::engine::general_purpose::STANDARD.encode(pem)},
            "status": {"conditions": [{"type": "Approved"}], "certificate": "eA=="},
        });
        let expected = "\
Name:                c
Labels:              a=b,c=d
Annotations:         <none>
CreationTimestamp:   Sat, 21 Nov 2026 11:00:00 +0000
Requesting User:     ann
Signer:              example.com/x
Requested Duration:  60m
Status:              Approved,Issued
Subject:
  Common Name:    carla
  Serial Number:  
  Organization:   team
Subject Alternative Names:
  DNS Names:     a.example
                 b.example
  IP Addresses:  10.0.0.1
";
        assert_eq!(page("/apis/certificates.k8s.io/v1/certificatesigningrequests", o).await, expected);
    }

    #[tokio::test]
    async fn hides_values_of_secrets() {
        let o = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s", "namespace": "default", "uid": "u"}, "type": "Opaque", "data": {"password": "aHVudGVyMg=="}});
        let s = server("GET /api/v1/namespaces/default/secrets/s", o);
        let output = snapshot(&s, "describe secret s", "").await;
        assert_eq!(
            output,
            "Name:         s\nNamespace:    default\nLabels:       <none>\nAnnotations:  <none>\n\nType:  Opaque\n\nData\n====\npassword:  7 bytes\n"
        );
    }

    /// The token of a service account is read from its description.
    #[tokio::test]
    async fn shows_tokens() {
        let o = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s", "namespace": "default", "uid": "u"}, "type": "kubernetes.io/service-account-token", "data": {"token": "aHVudGVyMg==", "x": "eA=="}});
        let s = server("GET /api/v1/namespaces/default/secrets/s", o);
        let page = snapshot(&s, "describe secret s", "").await;
        assert!(page.ends_with("token:  hunter2\nx:      1 bytes\n"), "{page}");
    }

    #[tokio::test]
    async fn describes_workloads_and_services() {
        let has = async |path: &str, o: meta::Value, parts: &[&str]| {
            let (name, kind) = (o["metadata"]["name"].as_str().unwrap(), o["kind"].as_str().unwrap().to_lowercase());
            let line = format!("describe {kind} {name} --show-events=false");
            let s = Server::new().on(&format!("GET {path}/{name}"), 200, o).on(
                "GET /api/v1/namespaces/default/pods?labelSelector=a%2C%21b%2Cz%3Dz&limit=500",
                200,
                json!({"items": []}),
            );
            let page = snapshot(&s, &line, "").await;
            parts.iter().for_each(|part| assert!(page.contains(part), "{part}: {page}"));
        };
        let metadata = json!({"name": "x", "namespace": "default", "uid": "u"});
        has(
            "/api/v1/namespaces/default/services",
            json!({"kind": "Service", "apiVersion": "v1", "metadata": metadata, "status": {"loadBalancer": {"ingress": [{"ip": "1.1.1.1", "ipMode": "Proxy"}, {"hostname": "h"}]}}}),
            &["1.1.1.1 (Proxy), h\n"],
        )
        .await;
        has(
            "/apis/apps/v1/namespaces/default/replicasets",
            json!({"kind": "ReplicaSet", "apiVersion": "apps/v1", "metadata": metadata, "spec": {
                "selector": {"matchLabels": {"z": "z"}, "matchExpressions": [{"key": "b", "operator": "DoesNotExist"}, {"key": "a", "operator": "Exists"}]},
                "template": {"spec": {"containers": [{"name": "c", "livenessProbe": {"httpGet": {"path": "/x?y=%20", "port": 80, "host": "fe80::1", "scheme": "HTTP"}}}]}},
            }}),
            &["a,!b,z=z\n", "http-get http://[fe80::1]:80/x%3Fy=%2520 delay"],
        )
        .await;
        has(
            "/apis/apps/v1/namespaces/default/daemonsets",
            json!({"kind": "DaemonSet", "apiVersion": "apps/v1", "metadata": metadata, "spec": {
                "selector": {"matchLabels": {"z": "z"}, "matchExpressions": [{"key": "b", "operator": "DoesNotExist"}, {"key": "a", "operator": "Exists"}]},
                "template": {"spec": {"nodeSelector": {"a": "b", "c": "d"}, "containers": []}},
            }}),
            &["Node-Selector:  a=b,c=d\n"],
        )
        .await;
        has(
            "/api/v1/namespaces",
            json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "x", "uid": "u"}, "status": {"conditions": [
                {"type": "NamespaceContentRemaining", "status": "True", "lastTransitionTime": "2026-11-21T11:00:00Z", "reason": "R", "message": "m"}]}}),
            &["Conditions:\n  Type", "NamespaceContentRemaining  True    Sat, 21 Nov 2026 11:00:00 +0000  R       m\n"],
        )
        .await;
        has(
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            json!({"kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "x", "uid": "u"}, "rules": [
                {"apiGroups": ["apps"], "resources": ["*"], "verbs": ["get", "get"]}, {"nonResourceURLs": ["/x"], "verbs": ["get", "post"]}]}),
            &["[/x]               []              [get]\n", "[/x]               []              [post]\n", "*.apps     []                 []              [get]\n"],
        )
        .await;
        let ended =
            json!({"name": "x", "namespace": "default", "uid": "u", "deletionTimestamp": "2026-11-21T11:00:00Z"});
        let profile = json!({"type": "Localhost", "localhostProfile": "a.json"});
        has(
            "/api/v1/namespaces/default/pods",
            json!({"kind": "Pod", "apiVersion": "v1", "metadata": ended, "status": {"phase": "Failed"}, "spec": {
                "securityContext": {"seccompProfile": profile}, "resources": {"requests": {"cpu": "1"}},
                "containers": [{"name": "c", "envFrom": [{"prefix": "p"}], "env": [{"name": "E", "valueFrom": {"fileKeyRef": {}}}],
                    "volumeDevices": [{"name": "v", "devicePath": "/v"}]}]}}),
            &["Failed\n", "LocalhostProfile:  a.json\n", "Resources:\n  Requests:\n    cpu:  1\n", "Environment:\n    Mounts:", "<none>\n      /v from v\n"],
        )
        .await;
    }
}

//! The simulated control plane for stories of tests: short names of resources, and waits that panic.

use async_trait::async_trait;
use bytes::Bytes;
use client::transport::Body;
use client::{ApiResource, Transport, Upgrade, WriteOptions};
use controllers::certificates::Authority;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use meta::{Object, Value};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use serde_json::json;
use simulation::{ControlPlane, NodeSpec, Options};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::Cluster;

pub struct Plane {
    plane: ControlPlane,
    /// The certificate authority, PEM.
    pub ca: String,
    /// Answers the controllers' requests for metrics.
    pub metrics: Arc<Mutex<MetricsServer>>,
    /// How many of the next updates of scales conflict with another one.
    pub conflicts: Arc<AtomicUsize>,
}

impl Deref for Plane {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.plane
    }
}

/// Answers a request for a path, by its path and query: a code and a body.
pub type MetricsServer = Option<Box<dyn Fn(&str) -> (u16, Value) + Send>>;

/// Sends requests for metrics to a [`MetricsServer`], as if it were registered with the API server, and others on. Updates of scales
/// conflict if they are meant to.
struct WithMetrics(Arc<dyn Transport>, Arc<Mutex<MetricsServer>>, Arc<AtomicUsize>);

fn response(code: u16, text: String) -> Response<Body> {
    let body = Full::new(Bytes::from(text)).map_err(|e| match e {}).boxed_unsync();
    Response::builder().status(code).body(body).unwrap()
}

#[async_trait]
impl Transport for WithMetrics {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, client::Error> {
        let path = request.uri().path_and_query().unwrap().as_str().to_owned();
        if path.starts_with("/apis/")
            && path[6..].split('/').next().unwrap().ends_with("metrics.k8s.io")
            && let Some(server) = &*self.1.lock().unwrap()
        {
            let (code, body) = server(&path);
            let text = if code == 503 { "service unavailable".into() } else { body.to_string() };
            return Ok(response(code, text));
        }
        let taken = |n: usize| n.checked_sub(1);
        if request.method() == "PUT"
            && path.ends_with("/scale")
            && self.2.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
        {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 409, "reason": "Conflict",
                "message": "somebody else was faster", "details": {}});
            return Ok(response(409, status.to_string()));
        }
        self.0.send(request).await
    }

    async fn upgrade(&self, request: Request<Bytes>) -> Result<Upgrade, client::Error> {
        self.0.upgrade(request).await
    }
}

/// A certificate authority: its certificate, and what signs with it.
fn authority() -> (String, Authority) {
    let key = KeyPair::generate().unwrap();
    let mut p = CertificateParams::default();
    p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    p.distinguished_name.push(DnType::CommonName, "test-ca");
    let pem = p.self_signed(&key).unwrap().pem();
    let authority = Authority::new(&pem, &key.serialize_pem(), jiff::SignedDuration::from_hours(8760)).unwrap();
    (pem, authority)
}

impl Plane {
    pub async fn start() -> Self {
        Self::over(Cluster::start(7).await).await
    }

    pub async fn over(cluster: Cluster) -> Self {
        let metrics: Arc<Mutex<MetricsServer>> = Arc::default();
        let conflicts: Arc<AtomicUsize> = Arc::default();
        let (ca, authority) = authority();
        let (answers, fails) = (metrics.clone(), conflicts.clone());
        let options = Options {
            layer: Some(Arc::new(move |t| Arc::new(WithMetrics(t, answers.clone(), fails.clone())))),
            authority: Some(Arc::new(authority)),
            load_balancers: Some("10.97.0.0/30,fd00:97::/126".parse().unwrap()),
            ..Options::default()
        };
        Self { plane: ControlPlane::start(cluster, options).await, ca, metrics, conflicts }
    }

    pub fn api(&self, resource: &str) -> client::Api<Object> {
        let kind = |g: &str, r: &str, k: &str, ns| ApiResource::named(g, "v1", r, k, ns);
        let r = match resource {
            "pods" => kind("", "pods", "Pod", true),
            "nodes" => kind("", "nodes", "Node", false),
            "events" => kind("", "events", "Event", true),
            "services" => kind("", "services", "Service", true),
            "endpoints" => kind("", "endpoints", "Endpoints", true),
            "configmaps" => kind("", "configmaps", "ConfigMap", true),
            "namespaces" => kind("", "namespaces", "Namespace", false),
            "leases" => kind("coordination.k8s.io", "leases", "Lease", true),
            "deployments" => kind("apps", "deployments", "Deployment", true),
            "replicasets" => kind("apps", "replicasets", "ReplicaSet", true),
            "replicationcontrollers" => kind("", "replicationcontrollers", "ReplicationController", true),
            "statefulsets" => kind("apps", "statefulsets", "StatefulSet", true),
            "daemonsets" => kind("apps", "daemonsets", "DaemonSet", true),
            "poddisruptionbudgets" => kind("policy", "poddisruptionbudgets", "PodDisruptionBudget", true),
            "resourceclaims" => kind("resource.k8s.io", "resourceclaims", "ResourceClaim", true),
            "resourceclaimtemplates" => {
                kind("resource.k8s.io", "resourceclaimtemplates", "ResourceClaimTemplate", true)
            }
            "controllerrevisions" => kind("apps", "controllerrevisions", "ControllerRevision", true),
            "persistentvolumeclaims" => kind("", "persistentvolumeclaims", "PersistentVolumeClaim", true),
            "jobs" => kind("batch", "jobs", "Job", true),
            "cronjobs" => kind("batch", "cronjobs", "CronJob", true),
            "horizontalpodautoscalers" => {
                let r = ApiResource::named(
                    "autoscaling",
                    "v2",
                    "horizontalpodautoscalers",
                    "HorizontalPodAutoscaler",
                    true,
                );
                return self.client.dynamic(&r).namespace("default");
            }
            "endpointslices" => kind("discovery.k8s.io", "endpointslices", "EndpointSlice", true),
            other => panic!("{other}"),
        };
        let api = self.client.dynamic(&r);
        if r.namespaced() { api.namespace("default") } else { api }
    }

    pub async fn create(&self, resource: &str, v: Value) -> Object {
        let o = Object::from_value(v).unwrap();
        self.api(resource).create(&WriteOptions::default(), &o).await.unwrap_or_else(|e| panic!("{resource}: {e}"))
    }

    pub async fn patch(&self, resource: &str, name: &str, v: Value) -> Object {
        let p = client::Patch::Strategic(v);
        self.api(resource).patch(name, &WriteOptions::default(), &p).await.unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    pub async fn list(&self, resource: &str) -> Vec<Object> {
        self.api(resource).list(&client::ListOptions::default()).await.unwrap().items
    }

    pub async fn node(&self, name: &str, cpu: &str) {
        self.add_node(&NodeSpec::new(name, cpu)).await.unwrap();
    }

    pub fn kill_node(&self, name: &str) {
        assert!(self.nodes.fail(name));
    }

    pub async fn revive_node(&self, name: &str) {
        assert!(self.nodes.heal(name));
    }

    pub fn break_image(&self, image: &str) {
        self.nodes.break_image(image);
    }

    /// Waits, in virtual time, until `f` has something to give.
    pub async fn until<T, F: AsyncFn() -> Option<T>>(&self, what: &str, f: F) -> T {
        for _ in 0..20_000 {
            if let Some(v) = f().await {
                return v;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for r in ["nodes", "deployments", "replicasets", "pods", "events"] {
            for mut o in self.list(r).await {
                o.metadata_mut().remove("managedFields");
                eprintln!("{r}: {}", Value::Object(o.0));
            }
        }
        panic!("waited in vain for {what}");
    }

    /// Waits until the status of a workload shows these counts and its newest generation.
    pub async fn status_counts(&self, resource: &str, name: &str, expected: &[(&str, i64)]) -> Object {
        self.until(&format!("{expected:?}"), async || {
            let o = self.api(resource).get(name).await.unwrap();
            let n = |k: &str| o.int_at(&["status", k]).unwrap_or(0);
            let done = n("observedGeneration") == o.generation() && expected.iter().all(|(k, v)| n(k) == *v);
            done.then_some(o)
        })
        .await
    }

    pub async fn deployment(&self, name: &str, replicas: i64, image: &str) -> Object {
        self.create("deployments", json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "replicas": replicas, "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {"containers": [{"name": "c", "image": image, "ports": [{"name": "http", "containerPort": 8080}]}]},
                },
            },
        }))
        .await
    }

    /// Waits until a deployment has rolled out as wished.
    pub async fn rolled_out(&self, name: &str) -> Object {
        self.until(&format!("{name} to roll out"), async || {
            let d = self.api("deployments").get(name).await.unwrap();
            let n = |f: &str| d.int_at(&["status", f]).unwrap_or(0);
            let wish = d.int_at(&["spec", "replicas"]).unwrap();
            let done = n("observedGeneration") == d.generation()
                && [n("replicas"), n("updatedReplicas"), n("availableReplicas")].iter().all(|x| *x == wish);
            done.then_some(d)
        })
        .await
    }
}

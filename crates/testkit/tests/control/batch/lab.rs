//! The controllers of jobs against the real API server in virtual time, without nodes: pods run where they are.

use client::{ApiResource, Client, DeleteOptions, Informers, ListOptions, Patch, Scope, Trigger, WriteOptions};
use controllers::Context;
use meta::{Clock, Object, Value};
use serde_json::json;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::Cluster;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// A clock that a test sets forward and back.
pub struct Skewed {
    clock: Arc<dyn Clock>,
    seconds: AtomicI64,
}

impl Clock for Skewed {
    fn now(&self) -> jiff::Timestamp {
        self.clock.now() + jiff::SignedDuration::from_secs(self.seconds.load(Ordering::SeqCst))
    }
}

impl Skewed {
    pub fn jump(&self, seconds: i64) {
        self.seconds.fetch_add(seconds, Ordering::SeqCst);
    }

    /// Jumps to a moment.
    pub fn set(&self, time: &str) {
        let to = meta::time::parse(time).unwrap();
        self.jump(to.duration_since(self.now()).as_secs());
    }
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The writes that a process may still send before it dies, which it does when the last one has been executed.
#[derive(Default)]
struct Life {
    left: AtomicUsize,
    over: Notify,
}

pub struct Lab {
    pub cluster: Cluster,
    pub client: Client,
    pub clock: Arc<Skewed>,
    /// How often controllers died.
    pub deaths: Arc<AtomicUsize>,
    /// So many pods that start fail, whatever their image.
    pub failing: Arc<AtomicUsize>,
    informers: Informers,
    _trigger: Trigger,
    /// The controllers, which end with the lab.
    tasks: JoinSet<()>,
}

impl Lab {
    pub async fn start() -> Self {
        let mut lab = Self::dying_after(usize::MAX).await;
        lab.supervise("generic-garbage-collector", usize::MAX, |c| Box::pin(controllers::garbagecollector::run(c)));
        lab.supervise("pod-garbage-collector", usize::MAX, |c| Box::pin(controllers::podgc::run(c, 12_500)));
        lab
    }

    /// Controllers die after so many writes, and are started again. There are no garbage collectors, which do
    /// much over days.
    pub async fn dying_after(writes: usize) -> Self {
        let cluster = Cluster::start(7).await;
        let client = cluster.client(admin());
        let (trigger, shutdown) = client::shutdown();
        let informers = Informers::new(client.clone(), cluster.rng.clone(), shutdown);
        let clock = Arc::new(Skewed { clock: cluster.clock.clone(), seconds: AtomicI64::new(0) });
        let mut lab = Self {
            cluster,
            client,
            clock,
            deaths: Arc::default(),
            failing: Arc::default(),
            informers,
            _trigger: trigger,
            tasks: JoinSet::new(),
        };
        lab.supervise("job-controller", writes, |c| Box::pin(controllers::job::run(c)));
        lab.supervise("cronjob-controller", writes, |c| Box::pin(controllers::cronjob::run(c)));
        lab.supervise("ttl-after-finished-controller", writes, |c| Box::pin(controllers::ttlafterfinished::run(c)));
        lab.run_pods();
        lab
    }

    fn supervise(&mut self, name: &'static str, writes: usize, run: fn(Context) -> Running) {
        let (server, informers) = (self.cluster.server.clone(), self.informers.clone());
        let (clock, rng, deaths) = (self.clock.clone(), self.cluster.rng.clone(), self.deaths.clone());
        self.tasks.spawn(async move {
            for life_number in 0.. {
                // Every other time the whole process was started again: its caches are empty.
                let (cached, watching) = client::shutdown();
                let informers = match life_number % 2 {
                    0 => informers.clone(),
                    _ => Informers::new(informers.client().clone(), rng.clone(), watching),
                };
                let life = Arc::new(Life { left: AtomicUsize::new(writes), over: Notify::new() });
                let (trigger, shutdown) = client::shutdown();
                let (server, alive) = (server.clone(), life.clone());
                let handler = move |request: http::Request<bytes::Bytes>| {
                    let (server, life) = (server.clone(), alive.clone());
                    let counts = request.method() != http::Method::GET && !request.uri().path().contains("/events");
                    async move {
                        if life.left.load(Ordering::SeqCst) == 0 {
                            std::future::pending::<()>().await;
                        }
                        let response = server.handle(apiserver::as_identity(request, admin())).await;
                        let counts = counts && response.status().is_success();
                        if counts && life.left.fetch_sub(1, Ordering::SeqCst) == 1 {
                            life.over.notify_one();
                            std::future::pending::<()>().await;
                        }
                        response
                    }
                };
                let client = Client::new(client::InProcess(handler), name);
                let (clock, rng) = (clock.clone(), rng.clone());
                tokio::select! {
                    () = run(Context { name, client, informers, clock, rng, shutdown }) => {}
                    () = life.over.notified() => {}
                }
                trigger.trigger();
                cached.trigger();
                deaths.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }

    pub fn api(&self, resource: &str) -> client::Api<Object> {
        let r = match resource {
            "pods" => ApiResource::named("", "v1", "pods", "Pod", true),
            "events" => ApiResource::named("", "v1", "events", "Event", true),
            "jobs" => ApiResource::named("batch", "v1", "jobs", "Job", true),
            "cronjobs" => ApiResource::named("batch", "v1", "cronjobs", "CronJob", true),
            other => panic!("{other}"),
        };
        self.client.dynamic(&r).namespace("default")
    }

    pub async fn list(&self, resource: &str) -> Vec<Object> {
        self.api(resource).list_all(&ListOptions::default()).await.unwrap().items
    }

    /// The pods that a job controls.
    pub async fn pods_of(&self, job: &Object) -> Vec<Object> {
        let all = self.list("pods").await;
        all.into_iter().filter(|p| p.controller_of().is_some_and(|o| o.uid == job.uid())).collect()
    }

    /// Creates a job with pods of an image. Members of `spec` are added.
    pub async fn job(&self, name: &str, image: &str, spec: Value) -> Object {
        self.create(
            "jobs",
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": job_spec(image, spec)}),
        )
        .await
    }

    pub async fn create(&self, resource: &str, v: Value) -> Object {
        let o = Object::from_value(v).unwrap();
        self.api(resource).create(&WriteOptions::default(), &o).await.unwrap_or_else(|e| panic!("{resource}: {e}"))
    }

    pub async fn patch(&self, resource: &str, name: &str, v: Value) -> Object {
        self.api(resource)
            .patch(name, &WriteOptions::default(), &Patch::Merge(v))
            .await
            .unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    pub async fn patch_status(&self, resource: &str, name: &str, v: Value) -> Object {
        let patch = Patch::Strategic(json!({"status": v}));
        self.api(resource)
            .patch_status(name, &WriteOptions::default(), &patch)
            .await
            .unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Waits, in virtual time, until `f` returns something.
    pub async fn until<T, F: AsyncFn() -> Option<T>>(&self, what: &str, f: F) -> T {
        for _ in 0..20_000 {
            if let Some(v) = f().await {
                return v;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for r in ["cronjobs", "jobs", "pods", "events"] {
            for mut o in self.list(r).await.into_iter().take(20) {
                o.metadata_mut().remove("managedFields");
                eprintln!("{r}: {}", Value::Object(o.0));
            }
        }
        panic!("{what}: not reached");
    }

    /// Waits until a job has this condition.
    pub async fn condition(&self, job: &str, kind: &str) -> Object {
        self.until(&format!("{job} {kind}"), async || {
            let job = self.api("jobs").get(job).await.unwrap();
            condition(&job, kind).filter(|c| c["status"] == "True")?;
            Some(job)
        })
        .await
    }

    /// Waits until a job has this number at a path of its status.
    pub async fn count(&self, job: &str, field: &str, n: i64) -> Object {
        self.until(&format!("{job} {field} {n}"), async || {
            let job = self.api("jobs").get(job).await.unwrap();
            (job.int_at(&["status", field]).unwrap_or(0) == n).then_some(job)
        })
        .await
    }

    /// Reasons and messages of the events of an object, in the order in which they were recorded.
    pub async fn events(&self, kind: &str, name: &str) -> Vec<(String, String)> {
        // Events are sent by a task.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mut all = self.list("events").await;
        all.retain(|e| {
            e.str_at(&["involvedObject", "kind"]) == Some(kind) && e.str_at(&["involvedObject", "name"]) == Some(name)
        });
        all.sort_by_key(|e| e.name().rsplit('.').next().map(|t| i64::from_str_radix(t, 16).unwrap()));
        let text = |e: &Object, f: &str| e.str_at(&[f]).unwrap_or_default().to_owned();
        all.iter().map(|e| (text(e, "reason"), text(e, "message"))).collect()
    }

    /// Ends a pod: its container exits with a code.
    pub async fn end(&self, pod: &str, code: i64) {
        self.patch_status("pods", pod, ended(code, self.cluster.clock.now())).await;
    }

    /// Runs pods after a second. Those of the image `exit:1,0` exit a second later; the first code is that of index 0, the last one of
    /// all further indexes. Others run until they are deleted, and then fail.
    fn run_pods(&self) {
        let pods = self.informers.informer::<Value>(self.api("pods").resource(), &Scope::default());
        let (api, clock, failing) = (self.api("pods"), self.cluster.clock.clone(), self.failing.clone());
        let started: Arc<Mutex<std::collections::BTreeSet<String>>> = Arc::default();
        pods.on_change(move |c| {
            let Some(pod) = c.new.clone() else { return };
            let (api, clock, name, uid) = (
                api.clone().namespace(&pod.meta.namespace),
                clock.clone(),
                pod.meta.name.clone(),
                pod.meta.uid.to_string(),
            );
            let phase = pod.view["status"]["phase"].as_str().unwrap_or_default().to_owned();
            let set = move |status: Value, uid: &str| {
                let (api, name) = (api.clone(), name.clone());
                let patch = Patch::Strategic(json!({"metadata": {"uid": uid}, "status": status}));
                async move { api.patch_status(&name, &WriteOptions::default(), &patch).await.is_ok() }
            };
            if pod.meta.is_deleting() {
                if phase == "Running" {
                    tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_secs(3)).await;
                        set(ended(137, clock.now()), &uid).await;
                    });
                }
                return;
            }
            if phase != "Pending" || !started.lock().unwrap().insert(uid.clone()) {
                return;
            }
            let image = pod.view["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned();
            let index = pod.view["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"].as_str();
            let index: usize = index.and_then(|i| i.parse().ok()).unwrap_or(0);
            let codes: Option<Vec<i64>> =
                image.strip_prefix("exit:").map(|c| c.split(',').map(|c| c.parse().unwrap()).collect());
            let code = codes.map(|c| c[index.min(c.len() - 1)]);
            let fails = failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
            let code = if fails { Some(1) } else { code };
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let now = meta::time::format(clock.now());
                let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": now}]);
                let running = set(json!({"phase": "Running", "conditions": ready}), &uid).await;
                if let (true, Some(code)) = (running, code) {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    set(ended(code, clock.now()), &uid).await;
                }
            });
        });
    }
}

fn admin() -> auth::User {
    auth::User::new("system:admin", &[auth::user::GROUP_MASTERS])
}

/// The status of a pod whose container exited.
fn ended(code: i64, now: jiff::Timestamp) -> Value {
    let now = meta::time::format(now);
    json!({
        "phase": if code == 0 { "Succeeded" } else { "Failed" },
        "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": now}],
        "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {
            "exitCode": code, "startedAt": now, "finishedAt": now,
        }}}],
    })
}

/// The spec of a job with pods of an image.
pub fn job_spec(image: &str, spec: Value) -> Value {
    let mut all =
        json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": image}]}}});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    all
}

pub fn condition<'a>(o: &'a Object, kind: &str) -> Option<&'a Value> {
    o.at(&["status", "conditions"])?.as_array()?.iter().find(|c| c["type"] == kind)
}

/// The counts of a job: active, ready, terminating, succeeded and failed.
pub fn counts(job: &Object) -> [i64; 5] {
    ["active", "ready", "terminating", "succeeded", "failed"].map(|f| job.int_at(&["status", f]).unwrap_or(0))
}

/// Whether any pod still has the finalizer of jobs.
pub fn tracked(pods: &[Object]) -> bool {
    pods.iter().any(|p| p.finalizers().any(|f| f == "batch.kubernetes.io/job-tracking"))
}

/// Deletes in one of the three ways.
pub fn delete(policy: client::Propagation) -> DeleteOptions {
    DeleteOptions::propagation(policy)
}

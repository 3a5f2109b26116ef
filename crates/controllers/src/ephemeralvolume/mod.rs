//! Claims of generic ephemeral volumes: each belongs to its pod and is deleted with it (upstream `pkg/controller/volume/ephemeral`).

use crate::context::{Context, Error, object};
use crate::controller::{Builder, Reconcile};
use crate::meters;
use crate::ownership::controller_reference;
use crate::views::{Pod, pods};
use client::{ApiResource, Change, Informer, Key, Outcome, Recorder, Regarding, WorkQueue, WriteOptions};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use meta::{Object, Value};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// How long after its deletion a claim is created again.
const RECREATE_DELAY: Duration = Duration::from_secs(1);

struct Controller {
    context: Context,
    pods: Informer<Pod>,
    claims: Informer<()>,
    recorder: Recorder,
}

fn claims() -> ApiResource {
    ApiResource::typed::<PersistentVolumeClaim>()
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let c = Arc::new(Controller {
        pods: builder.watch(&pods()),
        claims: builder.watch(&claims()),
        recorder: context.recorder_as("ephemeral_volume"),
        context,
    });
    builder.on_change(&c.pods, |change, queue| {
        if change.old.is_none() && change.latest().view.spec.has_ephemeral_volumes() {
            queue.add(change.key());
        }
    });
    builder.handle(&c, &c.claims, Controller::claim_changed);
    builder.run(5, c).await;
}

fn claim_name(pod: &str, volume: &str) -> String {
    format!("{pod}-{volume}")
}

impl Controller {
    /// A claim that was deleted while its pod is there comes again, but not at once: while the cache of pods is old, the garbage collector
    /// deletes the claims of pods that are gone as soon as they are created.
    fn claim_changed(&self, change: &Change<()>, queue: &WorkQueue<Key>) {
        let (Some(old), None) = (&change.old, &change.new) else { return };
        let Some(owner) = old.meta.controller().filter(|o| o.kind == "Pod") else { return };
        let key = Key::new(old.meta.namespace.clone(), owner.name.as_str());
        if self.pods.get(&key).is_some_and(|p| p.meta.uid == owner.uid) {
            queue.add_after(key, RECREATE_DELAY);
        }
    }

    /// Creates the claim of a volume if it is missing. Fails if another object has its name.
    async fn create(&self, pod: &Object, volume: &Value) -> Result<(), String> {
        let name = claim_name(pod.name(), volume["name"].as_str().unwrap_or_default());
        if let Some(held) = self.claims.get(&Key::new(pod.namespace(), &*name)) {
            return match held.meta.controller() {
                Some(o) if &*o.uid == pod.uid() => Ok(()),
                _ => Err(format!(
                    "PVC {}/{name} was not created for pod {}/{} (pod is not owner)",
                    pod.namespace(),
                    pod.namespace(),
                    pod.name()
                )),
            };
        }
        let template = &volume["ephemeral"]["volumeClaimTemplate"];
        let mut claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": pod.namespace(), "ownerReferences": [controller_reference(pod)]},
            "spec": template["spec"],
        });
        for k in ["labels", "annotations"] {
            if let Some(v) = template["metadata"].get(k) {
                claim["metadata"][k] = v.clone();
            }
        }
        let api = self.context.client.dynamic(&claims()).namespace(pod.namespace());
        let claim = Object::from_value(claim).unwrap_or_default();
        meters::count(&meters::VOLUME_CLAIMS, &[]);
        match api.create(&WriteOptions::default(), &claim).await {
            Ok(_) => Ok(()),
            Err(e) => {
                meters::count(&meters::VOLUME_CLAIM_FAILURES, &[]);
                Err(format!("create PVC {name}: {e}"))
            }
        }
    }
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(entry) = self.pods.get(&key).filter(|p| !p.meta.is_deleting()) else { return Ok(Outcome::Done) };
        let pod = object(&pods(), &entry)?;
        let volumes = pod.at(&["spec", "volumes"]).and_then(Value::as_array);
        for volume in volumes.into_iter().flatten().filter(|v| v["ephemeral"].is_object()) {
            if let Err(e) = self.create(&pod, volume).await {
                let why = format!("ephemeral volume {}: {e}", volume["name"].as_str().unwrap_or_default());
                self.recorder.warning(Regarding::object(&pod), "FailedBinding", why.clone());
                return Err(Error::Waiting(format!("pod {key}, {why}")));
            }
        }
        Ok(Outcome::Done)
    }
}

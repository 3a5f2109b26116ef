//! Claims that request more than they have (upstream `pkg/controller/volume/expand`). No volume plugin of v1.36's controller manager expands
//! volumes itself: the resizer of the volume's driver does it, and the controller tells so in an event.

use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use client::informer::or_default;
use client::{ApiResource, Change, Informer, Key, Outcome, Recorder, Regarding};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use meta::Quantity;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// The fields of a claim that this controller reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Claim {
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    resources: Resources,
    volume_name: Box<str>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    requests: Storage,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: Box<str>,
    #[serde(deserialize_with = "or_default")]
    capacity: Storage,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Storage {
    storage: Value,
}

impl Storage {
    fn bytes(&self) -> Option<i64> {
        Quantity::parse(self.storage.as_str()?).ok().map(|q| q.value())
    }
}

impl Claim {
    /// Whether a bound claim requests more than it has.
    fn wants_more(&self) -> bool {
        &*self.status.phase == "Bound"
            && !self.spec.volume_name.is_empty()
            && self.spec.resources.requests.bytes() > self.status.capacity.bytes()
    }
}

struct Controller {
    claims: Informer<Claim>,
    recorder: Recorder,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let claims = ApiResource::typed::<PersistentVolumeClaim>();
    let c = Arc::new(Controller { claims: builder.watch(&claims), recorder: context.recorder_as("volume_expand") });
    builder.on_change(&c.claims, |change: &Change<Claim>, queue| {
        let (old, new) = (change.old.as_ref(), change.new.as_ref());
        let has_grown =
            |c: &Claim| old.is_none_or(|o| o.view.spec.resources.requests.bytes() < c.spec.resources.requests.bytes());
        if new.is_some_and(|n| n.view.wants_more() && has_grown(&n.view)) {
            queue.add(change.key());
        }
    });
    builder.run(1, c).await;
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        if let Some(claim) = self.claims.get(&key).filter(|c| c.view.wants_more()) {
            let about = Regarding::from_meta("v1", "PersistentVolumeClaim", &claim.meta);
            self.recorder.normal(about, "ExternalExpanding", "waiting for an external controller to expand this PVC");
        }
        Ok(Outcome::Done)
    }
}

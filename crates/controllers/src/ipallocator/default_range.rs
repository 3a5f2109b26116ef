//! The range that `--service-cluster-ip-range` says is there, as the ServiceCIDR `kubernetes`. It is made again when it is gone,
//! and never changed: what differs is told of.

use crate::context::{Context, Error};
use crate::servicecidrs::{condition, ready, resource};
use client::panics::caught;
use client::{Recorder, Regarding, WriteOptions};
use meta::{Object, Value};
use serde_json::json;
use std::time::Duration;

const COMPONENT: &str = "kubernetes-service-cidr-controller";
const NAME: &str = "kubernetes";
const EVERY: Duration = Duration::from_secs(10);

/// What is told once.
#[derive(Default)]
struct Told {
    differs: bool,
    not_ready: bool,
}

/// Looks after it until shutdown.
pub async fn keep(context: Context, ranges: Vec<String>) {
    if ranges.is_empty() {
        return;
    }
    let (recorder, mut told) = (context.recorder(COMPONENT), Told::default());
    let work = async {
        loop {
            let synced = caught("default-service-range", NAME, sync(&context, &recorder, &ranges, &mut told)).await;
            if let Ok(Err(e)) = synced {
                tracing::debug!("the default range of services: {e}");
            }
            tokio::time::sleep(EVERY).await;
        }
    };
    context.shutdown.race(work).await;
}

async fn sync(context: &Context, recorder: &Recorder, ranges: &[String], told: &mut Told) -> Result<(), Error> {
    let api = context.client.dynamic(&resource());
    let live = match api.get_opt(NAME).await? {
        Some(live) => live,
        None => {
            let v = json!({"kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": NAME},
                "spec": {"cidrs": ranges}});
            api.create(&WriteOptions::default(), &Object::from_value(v).unwrap_or_default()).await?
        }
    };
    if live.is_deleting() {
        return Ok(());
    }
    let has = live.at(&["spec", "cidrs"]).and_then(Value::as_array).cloned().unwrap_or_default();
    if has != ranges {
        if !std::mem::replace(&mut told.differs, true) {
            let (has, flags): (Vec<&str>, _) = (has.iter().filter_map(Value::as_str).collect(), ranges.join(" "));
            let has = has.join(" ");
            let why =
                format!("The default ServiceCIDR [{has}] does not match the controller flag configurations [{flags}]");
            recorder.warning(Regarding::object(&live), "KubernetesDefaultServiceCIDRInconsistent", why);
        }
        return Ok(());
    }
    match ready(&live) {
        Some(("True", _)) => {}
        Some(("False", message)) => {
            if !std::mem::replace(&mut told.not_ready, true) {
                let why = format!("Configuration matches, but {message}");
                recorder.warning(Regarding::object(&live), "KubernetesDefaultServiceCIDRError", why);
            }
        }
        _ => {
            let options = WriteOptions { force: true, ..WriteOptions::manager(COMPONENT) };
            let patch = condition(NAME, "True", None, "Kubernetes default Service CIDR is ready", context.now());
            api.patch_status(NAME, &options, &patch).await?;
        }
    }
    Ok(())
}

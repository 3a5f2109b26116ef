//! The range of `--service-cluster-ip-range` as the ServiceCIDR `kubernetes`. It is created where it is missing and never changed: a
//! difference is reported by an event.

use crate::context::{Context, Error};
use crate::servicecidrs::ranges::resource;
use crate::servicecidrs::{condition, ready};
use client::{Recorder, Regarding, WriteOptions};
use meta::{Object, Value};
use parking_lot::Mutex;
use serde_json::json;
use std::time::Duration;

const NAME: &str = "kubernetes";
const PERIOD: Duration = Duration::from_secs(10);

/// Which problems were reported.
#[derive(Clone, Copy, Default)]
struct Reported {
    differs: bool,
    not_ready: bool,
}

/// Runs until shutdown. Without ranges it does nothing.
pub async fn run(context: Context, ranges: Vec<String>) {
    if ranges.is_empty() {
        return context.shutdown.wait().await;
    }
    let (recorder, reported) = (context.recorder(), Mutex::new(Reported::default()));
    let round = || async {
        let mut now = *reported.lock();
        if let Err(e) = sync(&context, &recorder, &ranges, &mut now).await {
            tracing::debug!("synchronizing the default ServiceCIDR failed: {e}");
        }
        *reported.lock() = now;
    };
    context.every(PERIOD, round).await;
}

async fn sync(context: &Context, recorder: &Recorder, ranges: &[String], reported: &mut Reported) -> Result<(), Error> {
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
        if !std::mem::replace(&mut reported.differs, true) {
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
            if !std::mem::replace(&mut reported.not_ready, true) {
                let why = format!("Configuration matches, but {message}");
                recorder.warning(Regarding::object(&live), "KubernetesDefaultServiceCIDRError", why);
            }
        }
        _ => {
            let options = WriteOptions { force: true, ..WriteOptions::manager(context.name) };
            let patch = condition(NAME, "True", None, "Kubernetes default Service CIDR is ready", context.now());
            api.patch_status(NAME, &options, &patch).await?;
        }
    }
    Ok(())
}

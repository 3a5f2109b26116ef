//! Lifecycle hooks: `postStart` and `preStop`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use runtime::Runtime;

use crate::probe::{Action, Attempt, Names, Purpose, Target};

/// The timeout of a hook that has none.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Runs a hook to its end. If the future is dropped, a command of the hook keeps running. Errors with a message.
pub async fn run(
    handler: &LifecycleHandler,
    runtime: &Arc<dyn Runtime>,
    container_id: &str,
    spec: &Container,
    pod_ip: Option<IpAddr>,
    node_namespace: Option<PathBuf>,
    names: &Names,
) -> Result<(), String> {
    if let Some(s) = &handler.sleep {
        tokio::time::sleep(meta::time::seconds(s.seconds)).await;
        return Ok(());
    }
    let action = match (&handler.exec, &handler.http_get) {
        (Some(e), _) => Action::Exec(e),
        (None, Some(h)) => Action::Http(h, Purpose::Hook),
        (None, None) => return Err("invalid handler: it holds no action".into()),
    };
    let target = Target { runtime: &**runtime, container_id, spec, pod_ip, node_namespace, names };
    match target.attempt(&action, FOREVER).await {
        Attempt::Success | Attempt::Warning(_) => Ok(()),
        Attempt::Failure(why) => Err(why),
    }
}

//! The binding cycle of a pod: Permit, PreBind, Bind and PostBind. It runs concurrently with the scheduling of other pods.

use crate::extender::{Extender, ExtenderError};
use crate::framework::{Framework, Permit, Point, Refusal};
use crate::pod::Pod;
use client::Error;
use futures::future::{BoxFuture, try_join_all};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// The longest wait for a Permit plugin (upstream `maxTimeout`).
const PERMIT_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Why a pod was not bound.
#[derive(Debug, thiserror::Error)]
pub enum BindingError {
    #[error("{}", .0.reasons.join(", "))]
    Refused(Refusal),
    #[error("{}running {point} plugin \"{plugin}\": {source}", if *.point == "Bind" { "binding rejected: " } else { "" })]
    Failed {
        point: &'static str,
        plugin: &'static str,
        #[source]
        source: Error,
    },
    #[error("binding rejected: {0}")]
    Extender(ExtenderError),
    #[error("no plugin binds pods")]
    NoBinder,
    #[error("a plugin panicked")]
    Panicked,
}

impl BindingError {
    /// Whether the binding failed because the pod does not exist any more.
    pub fn pod_is_gone(&self) -> bool {
        matches!(self, Self::Failed { point: "Bind", source, .. } if source.is_not_found())
    }
}

/// The Permit plugins that have not answered yet, by name.
pub type Waits = Vec<(&'static str, BoxFuture<'static, Result<(), String>>)>;

/// Calls the Permit plugins; returns those to wait for.
pub fn permits(framework: &Framework, pod: &Pod, node: &str) -> Waits {
    let all = framework.at(Point::Permit).map(|p| (p.name(), p.permit(pod, node)));
    let waits = all.filter_map(|(plugin, permit)| match permit {
        Permit::Allow => None,
        Permit::Wait(allowed) => Some((plugin, allowed)),
    });
    waits.collect()
}

/// Waits until all Permit plugins let a pod go ahead. Errors when one rejects it, or has not answered in time, or `cancelled` completes.
pub async fn permitted(waits: Waits, cancelled: oneshot::Receiver<&'static str>) -> Result<(), BindingError> {
    let first = waits.first().map_or("", |(plugin, _)| *plugin);
    let refused = |plugin, reason: String| BindingError::Refused(Refusal::resolvable(plugin, reason));
    let all = waits.into_iter().map(|(plugin, allowed)| async move {
        let late = format!("rejected due to timeout after waiting 15m0s at plugin {plugin}");
        let answer = tokio::time::timeout(PERMIT_TIMEOUT, allowed).await.unwrap_or(Err(late));
        answer.map_err(|reason| refused(plugin, reason))
    });
    tokio::select! {
        answers = try_join_all(all) => answers.map(|_| ()),
        reason = cancelled => Err(refused(first, reason.unwrap_or("the pod is gone or bound").into())),
    }
}

/// Binds a pod to a node, through `extender` if there is one.
pub async fn bind(
    framework: &Framework,
    extender: Option<&Extender>,
    pod: &Arc<Pod>,
    node: &Arc<str>,
) -> Result<(), BindingError> {
    for plugin in framework.at(Point::PreBind) {
        if let Some(prepared) = plugin.pre_bind(pod, node) {
            let failed = |source| BindingError::Failed { point: "PreBind", plugin: plugin.name(), source };
            prepared.await.map_err(failed)?;
        }
    }
    if let Some(extender) = extender {
        extender.bind(pod, node).await.map_err(BindingError::Extender)?;
        framework.at(Point::PostBind).for_each(|p| p.post_bind(pod, node));
        return Ok(());
    }
    let binder = framework.at(Point::Bind).find_map(|p| Some((p.name(), p.bind(pod, node)?)));
    let (plugin, bound) = binder.ok_or(BindingError::NoBinder)?;
    bound.await.map_err(|source| BindingError::Failed { point: "Bind", plugin, source })?;
    framework.at(Point::PostBind).for_each(|p| p.post_bind(pod, node));
    Ok(())
}

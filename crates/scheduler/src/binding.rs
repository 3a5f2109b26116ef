//! The binding cycle of a pod: Permit, PreBind, Bind and PostBind. It runs concurrently with the scheduling of other pods.

use crate::framework::{Framework, Permit, Refusal};
use crate::pod::Pod;
use client::Error;
use std::sync::Arc;

/// Why a pod was not bound.
#[derive(Debug, thiserror::Error)]
pub enum BindingError {
    #[error("{}", .0.reasons.join(", "))]
    Refused(Refusal),
    #[error("running {point} plugin \"{plugin}\": {source}")]
    Failed {
        point: &'static str,
        plugin: &'static str,
        #[source]
        source: Error,
    },
    #[error("no plugin binds pods")]
    NoBinder,
}

impl BindingError {
    /// Whether the binding failed because the pod does not exist any more.
    pub fn pod_is_gone(&self) -> bool {
        matches!(self, Self::Failed { point: "Bind", source, .. } if source.is_not_found())
    }
}

/// Binds a pod to a node.
pub async fn bind(framework: &Framework, pod: &Arc<Pod>, node: &Arc<str>) -> Result<(), BindingError> {
    let permits: Vec<_> = framework.plugins().map(|p| (p.name(), p.permit(pod, node))).collect();
    for (plugin, permit) in permits {
        if let Permit::Wait(allowed) = permit {
            let refused = |reason: String| BindingError::Refused(Refusal::resolvable(plugin, reason));
            allowed.await.map_err(refused)?;
        }
    }
    for plugin in framework.plugins() {
        if let Some(prepared) = plugin.pre_bind(pod, node) {
            let failed = |source| BindingError::Failed { point: "PreBind", plugin: plugin.name(), source };
            prepared.await.map_err(failed)?;
        }
    }
    let binder = framework.plugins().find_map(|p| Some((p.name(), p.bind(pod, node)?)));
    let (plugin, bound) = binder.ok_or(BindingError::NoBinder)?;
    bound.await.map_err(|source| BindingError::Failed { point: "Bind", plugin, source })?;
    framework.plugins().for_each(|p| p.post_bind(pod, node));
    Ok(())
}

//! The control groups above those of pods: that of all pods, and those of the quality of service classes below it.
//!
//! **Invariant.** A class competes for processors with what its pods request: the group of burstable pods has the sum of their requests as
//! its weight, so that guaranteed pods, which are beside that group, get their share (upstream `pkg/kubelet/cm/qos_container_manager_linux.go`).

use std::time::Duration;

use runtime::Resources;
use supervisor::blocking;

use crate::admission::Admission;
use crate::options::Options;
use crate::resources::shares;

/// The control group of all pods.
pub const PODS: &str = "kubepods";
const BURSTABLE: &str = "kubepods/burstable";
const BEST_EFFORT: &str = "kubepods/besteffort";
/// What a program changed meanwhile is written again (upstream `periodicQOSCgroupUpdateInterval`).
const INTERVAL: Duration = Duration::from_secs(60);

/// Creates the groups on a machine with so many processors. A failure is logged: pods then run without these limits. Blocks.
pub fn set_up(options: &Options, processors: u64) {
    // Against other programs of the machine, those of this node have the weight of what is not reserved.
    let reserved = if options.configuration.enforces_pods() { options.configuration.reserved("cpu") } else { 0 };
    let all = weight(i64::try_from((processors * 1000).saturating_sub(reserved)).unwrap_or(i64::MAX));
    let pods = Resources { pids_limit: crate::node::pids_for_pods(), ..Resources::default() };
    // Best-effort pods get what the others leave. Burstable ones are not known yet.
    for (path, resources) in [("", all), (PODS, pods), (BURSTABLE, Resources::default()), (BEST_EFFORT, weight(0))] {
        if let Err(error) = options.host.set_cgroup(path, &resources) {
            tracing::warn!(path, %error, "setting up a cgroup of the node failed; its limits do not apply");
        }
    }
}

/// Keeps the weight of burstable pods.
pub async fn follow(options: &Options, admission: &Admission) {
    loop {
        let (host, burstable) = (options.host.clone(), weight(admission.burstable_cpu()));
        let set = blocking(move || host.set_cgroup(BURSTABLE, &burstable)).await;
        if let Err(error) = set {
            tracing::warn!(%error, "setting the weight of burstable pods failed; guaranteed pods may get less than they request");
        }
        // It returns an error when the time is over.
        let _ = tokio::time::timeout(INTERVAL, admission.changed()).await;
    }
}

/// The weight of a request, in thousandths of a processor.
fn weight(cpu: i64) -> Resources {
    Resources { cpu_shares: Some(shares(cpu)), ..Resources::default() }
}

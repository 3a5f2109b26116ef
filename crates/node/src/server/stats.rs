//! `/stats/summary`: usage of the node, its pods and their containers.

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Full};
use runtime::Stats;
use serde_json::{Value, json};

use super::{Body, Error};
use crate::agent::Options;
use crate::pod::container::{POD_NAME, POD_NAMESPACE, POD_UID};

fn usage(s: &Stats) -> (Value, Value) {
    let at = meta::time::format(crate::instant(s.at));
    (
        json!({"time": at, "usageCoreNanoSeconds": s.cpu_nanoseconds}),
        json!({"time": at, "usageBytes": s.memory_usage, "workingSetBytes": s.memory_working_set, "rssBytes": s.memory_rss}),
    )
}

pub(super) async fn summary(options: &Options) -> Result<Response<Body>, Error> {
    let runtime = &options.runtime;
    let containers = runtime.list_containers().await?;
    let mut pods = Vec::new();
    for pod in runtime.list_pods().await? {
        let Ok(stats) = runtime.pod_stats(&pod.id).await else { continue };
        let label = |name: &str| pod.config.labels.get(name).cloned().unwrap_or_default();
        let mut inside = Vec::new();
        for c in containers.iter().filter(|c| c.pod == pod.id && c.pid.is_some()) {
            let Ok(s) = runtime.container_stats(&c.id).await else { continue };
            let (cpu, memory) = usage(&s);
            let start = c.started_at.map(|t| meta::time::format(crate::instant(t)));
            inside.push(json!({"name": c.name, "startTime": start, "cpu": cpu, "memory": memory,
                "rootfs": {"usedBytes": s.fs_used, "inodesUsed": s.fs_inodes}}));
        }
        let (cpu, memory) = usage(&stats);
        pods.push(json!({
            "podRef": {"name": label(POD_NAME), "namespace": label(POD_NAMESPACE), "uid": label(POD_UID)},
            "startTime": meta::time::format(crate::instant(pod.created_at)),
            "containers": inside, "cpu": cpu, "memory": memory, "process_stats": {"process_count": stats.pids},
        }));
    }
    let all = options.host.usage("");
    let at = meta::time::format(options.clock.now());
    let body = json!({
        "node": {
            "nodeName": options.node_name,
            "cpu": {"time": at, "usageCoreNanoSeconds": all.cpu_nanoseconds},
            "memory": {"time": at, "usageBytes": all.memory, "workingSetBytes": all.working_set, "rssBytes": all.rss},
        },
        "pods": pods,
    });
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())).boxed_unsync());
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    Ok(response)
}

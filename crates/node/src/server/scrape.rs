//! `/metrics/resource` (`pkg/kubelet/metrics/collectors/resource_metrics.go`) and `/metrics/cadvisor` (`google/cadvisor`,
//! `metrics`): usage under upstream's names. Left out of cAdvisor's: values that are not measured here (disk I/O, sockets, tasks by
//! state).

use std::collections::HashSet;

use metrics::{Row, Scrape};
use nix::sys::statvfs::statvfs;
use runtime::Timestamp;
use runtime::Usage;

use super::Handle;
use super::usage::{Disks, Everything, PodUsage, collect};
use crate::node::meminfo;

const POD: &[&str] = &["namespace", "pod"];
const CONTAINER: &[&str] = &["container", "namespace", "pod"];

const NODE_CPU: Row =
    Row::counter("node_cpu_usage_seconds_total", &[], "Cumulative cpu time consumed by the node in core-seconds");
const NODE_MEMORY: Row =
    Row::real_gauge("node_memory_working_set_bytes", &[], "Current working set of the node in bytes");
const NODE_SWAP: Row = Row::real_gauge("node_swap_usage_bytes", &[], "Current swap usage of the node in bytes");
const POD_CPU: Row =
    Row::counter("pod_cpu_usage_seconds_total", POD, "Cumulative cpu time consumed by the pod in core-seconds");
const POD_MEMORY: Row = Row::real_gauge("pod_memory_working_set_bytes", POD, "Current working set of the pod in bytes");
const POD_SWAP: Row = Row::real_gauge("pod_swap_usage_bytes", POD, "Current swap usage of the pod in bytes");
const CONTAINER_CPU: Row = Row::counter(
    "container_cpu_usage_seconds_total",
    CONTAINER,
    "Cumulative cpu time consumed by the container in core-seconds",
);
const CONTAINER_MEMORY: Row =
    Row::real_gauge("container_memory_working_set_bytes", CONTAINER, "Current working set of the container in bytes");
const CONTAINER_SWAP: Row =
    Row::real_gauge("container_swap_usage_bytes", CONTAINER, "Current swap usage of the container in bytes");
const CONTAINER_START: Row = Row::real_gauge(
    "container_start_time_seconds",
    CONTAINER,
    "Start time of the container since unix epoch in seconds",
);
const SCRAPE_ERROR: Row =
    Row::gauge("scrape_error", &[], "1 if there was an error while getting container metrics, 0 otherwise");
const RESOURCE_SCRAPE_ERROR: Row =
    Row::gauge("resource_scrape_error", &[], "1 if there was an error while getting container metrics, 0 otherwise");

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn since_epoch(t: Timestamp) -> f64 {
    t.secs as f64 + f64::from(t.nanos) / 1e9
}

fn milliseconds(t: Timestamp) -> Option<i64> {
    Some(crate::instant(t).as_millisecond())
}

/// The text of `/metrics/resource`.
pub(super) async fn resource(handle: &Handle) -> String {
    let mut s = Scrape::default();
    let failed = match collect(handle, Disks::Left).await {
        Ok(all) => {
            resources(&mut s, &all);
            0.0
        }
        Err(error) => {
            tracing::warn!(%error, "reading the usage failed; metrics are incomplete");
            1.0
        }
    };
    s.sample(&SCRAPE_ERROR, &[], failed, None);
    s.sample(&RESOURCE_SCRAPE_ERROR, &[], failed, None);
    s.text()
}

fn resources(s: &mut Scrape, all: &Everything) {
    let (node, at) = (&all.node.usage, Some(all.at.as_millisecond()));
    s.sample(&NODE_CPU, &[], seconds(node.cpu_nanoseconds), at);
    s.sample(&NODE_MEMORY, &[], node.working_set as f64, at);
    s.sample(&NODE_SWAP, &[], node.swap as f64, at);
    for p in &all.pods {
        let (labels, at) = ([p.pod.namespace.as_str(), &p.pod.name], milliseconds(p.at));
        s.sample(&POD_CPU, &labels, seconds(p.usage.cpu_nanoseconds), at);
        s.sample(&POD_MEMORY, &labels, p.usage.working_set as f64, at);
        s.sample(&POD_SWAP, &labels, p.usage.swap as f64, at);
        for c in &p.containers {
            let (labels, at) = ([c.container.name.as_str(), &p.pod.namespace, &p.pod.name], milliseconds(c.at));
            s.sample(&CONTAINER_CPU, &labels, seconds(c.usage.cpu_nanoseconds), at);
            s.sample(&CONTAINER_MEMORY, &labels, c.usage.working_set as f64, at);
            s.sample(&CONTAINER_SWAP, &labels, c.usage.swap as f64, at);
            if let Some(t) = c.container.started_at {
                s.sample(&CONTAINER_START, &labels, since_epoch(t), None);
            }
        }
    }
}

/// A metric of cAdvisor with the labels of a container, or of a pod with an empty `container`.
macro_rules! cadvisor {
    ($($name:ident = $kind:ident $metric:literal [$($label:literal),*] $help:literal;)*) => {
        $(const $name: Row = Row::$kind(
            $metric,
            &["container", "id", "image", "name", "namespace", "pod" $(, $label)*],
            $help,
        );)*
    };
}

cadvisor! {
    CPU = counter "container_cpu_usage_seconds_total" ["cpu"] "Cumulative cpu time consumed in seconds.";
    CPU_USER = counter "container_cpu_user_seconds_total" [] "Cumulative user cpu time consumed in seconds.";
    CPU_SYSTEM = counter "container_cpu_system_seconds_total" [] "Cumulative system cpu time consumed in seconds.";
    CPU_PERIODS = counter "container_cpu_cfs_periods_total" [] "Periods in which processes of the container were ready to run under its limit.";
    CPU_THROTTLED_PERIODS = counter "container_cpu_cfs_throttled_periods_total" [] "Periods in which the limit stopped the container.";
    CPU_THROTTLED = counter "container_cpu_cfs_throttled_seconds_total" [] "Time for which the limit stopped the container.";
    CPU_PERIOD = real_gauge "container_spec_cpu_period" [] "Microseconds of a period of the limit.";
    CPU_QUOTA = real_gauge "container_spec_cpu_quota" [] "Microseconds of processor time in each period.";
    CPU_SHARES = real_gauge "container_spec_cpu_shares" [] "Weight against other containers.";
    PEAK = real_gauge "container_memory_max_usage_bytes" [] "The most memory that was in use, in bytes";
    USAGE = real_gauge "container_memory_usage_bytes" [] "Current memory usage in bytes, including all memory regardless of when it was accessed";
    WORKING_SET = real_gauge "container_memory_working_set_bytes" [] "Current working set in bytes.";
    RSS = real_gauge "container_memory_rss" [] "Size of RSS in bytes.";
    CACHE = real_gauge "container_memory_cache" [] "Number of bytes of page cache memory.";
    SWAP = real_gauge "container_memory_swap" [] "Container swap usage in bytes.";
    FAILURES = counter "container_memory_failures_total" ["failure_type", "scope"] "Cumulative count of memory allocation failures.";
    LIMIT = real_gauge "container_spec_memory_limit_bytes" [] "Memory limit for the container.";
    THREADS = real_gauge "container_threads" [] "Number of threads running inside the container";
    START = real_gauge "container_start_time_seconds" [] "Start time of the container since unix epoch in seconds.";
    LAST_SEEN = real_gauge "container_last_seen" [] "Last time a container was seen by the exporter";
    FS_USAGE = real_gauge "container_fs_usage_bytes" ["device"] "Number of bytes that are consumed by the container on this filesystem.";
    FS_LIMIT = real_gauge "container_fs_limit_bytes" ["device"] "Number of bytes that can be consumed by the container on this filesystem.";
    RECEIVED = counter "container_network_receive_bytes_total" ["interface"] "Cumulative count of bytes received";
    RECEIVED_PACKETS = counter "container_network_receive_packets_total" ["interface"] "Cumulative count of packets received";
    RECEIVE_ERRORS = counter "container_network_receive_errors_total" ["interface"] "Cumulative count of errors encountered while receiving";
    RECEIVE_DROPS = counter "container_network_receive_packets_dropped_total" ["interface"] "Cumulative count of packets dropped while receiving";
    SENT = counter "container_network_transmit_bytes_total" ["interface"] "Cumulative count of bytes transmitted";
    SENT_PACKETS = counter "container_network_transmit_packets_total" ["interface"] "Cumulative count of packets transmitted";
    SEND_ERRORS = counter "container_network_transmit_errors_total" ["interface"] "Cumulative count of errors encountered while transmitting";
    SEND_DROPS = counter "container_network_transmit_packets_dropped_total" ["interface"] "Cumulative count of packets dropped while transmitting";
}

const CORES: Row =
    Row::gauge("machine_cpu_cores", &["boot_id", "machine_id", "system_uuid"], "Number of logical CPU cores.");
const MEMORY: Row = Row::gauge(
    "machine_memory_bytes",
    &["boot_id", "machine_id", "system_uuid"],
    "Amount of memory installed on the machine.",
);
const ERROR: Row =
    Row::gauge("container_scrape_error", &[], "1 if there was an error while getting container metrics, 0 otherwise");

/// The text of `/metrics/cadvisor`.
pub(super) async fn cadvisor(handle: &Handle) -> String {
    let mut s = Scrape::default();
    let failed = match collect(handle, Disks::Walked).await {
        Ok(all) => {
            containers(&mut s, handle, &all);
            0.0
        }
        Err(error) => {
            tracing::warn!(%error, "reading the usage failed; metrics are incomplete");
            1.0
        }
    };
    s.sample(&ERROR, &[], failed, None);
    let ids =
        ["/proc/sys/kernel/random/boot_id", "/etc/machine-id", "/sys/class/dmi/id/product_uuid"].map(crate::node::file);
    let ids = ids.each_ref().map(String::as_str);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    s.sample(&CORES, &ids, cores as f64, None);
    s.sample(&MEMORY, &ids, meminfo("MemTotal").unwrap_or(0) as f64, None);
    s.text()
}

fn containers(s: &mut Scrape, handle: &Handle, all: &Everything) {
    let capacity = statvfs(&handle.options.data_dir).map_or(0, |f| f.blocks() * f.fragment_size());
    let now = all.at.as_millisecond();
    common(s, &["", "/", "", "", "", ""], &all.node.usage, None, Some(now));
    common(s, &["", "/kubepods", "", "", "", ""], &all.node.pods, None, Some(now));
    for p in &all.pods {
        let id = format!("/{}", p.cgroup);
        let labels = ["", &id, "", "", &p.pod.namespace, &p.pod.name];
        common(s, &labels, &p.usage, Some(p.created), milliseconds(p.at));
        network(s, p, &id);
        for c in &p.containers {
            let (at, id) = (milliseconds(c.at), format!("{id}/{}", c.container.id));
            let container = &c.container;
            let labels = [&container.name, &id, &container.image, &container.id, &p.pod.namespace, &p.pod.name];
            let labels = labels.map(String::as_str);
            common(s, &labels, &c.usage, container.started_at, at);
            if let Some((bytes, _)) = c.layer {
                s.sample(&FS_USAGE, &with(&labels, &[""]), bytes as f64, at);
                s.sample(&FS_LIMIT, &with(&labels, &[""]), capacity as f64, at);
            }
        }
    }
}

const CLAIM: &[&str] = &["namespace", "persistentvolumeclaim"];
const VOLUME_CAPACITY: Row =
    Row::real_gauge("kubelet_volume_stats_capacity_bytes", CLAIM, "Capacity in bytes of the volume");
const VOLUME_AVAILABLE: Row =
    Row::real_gauge("kubelet_volume_stats_available_bytes", CLAIM, "Number of available bytes in the volume");
const VOLUME_USED: Row =
    Row::real_gauge("kubelet_volume_stats_used_bytes", CLAIM, "Number of used bytes in the volume");
const VOLUME_INODES: Row =
    Row::real_gauge("kubelet_volume_stats_inodes", CLAIM, "Maximum number of inodes in the volume");
const VOLUME_INODES_FREE: Row =
    Row::real_gauge("kubelet_volume_stats_inodes_free", CLAIM, "Number of free inodes in the volume");
const VOLUME_INODES_USED: Row =
    Row::real_gauge("kubelet_volume_stats_inodes_used", CLAIM, "Number of used inodes in the volume");

/// The metrics of the volumes of claims, which belong to `/metrics`. A claim of several pods is there once.
pub(super) async fn volumes(handle: &Handle) -> String {
    let mut s = Scrape::default();
    let mut seen = HashSet::new();
    for (_, claimed, usage) in handle.known.volumes.all().await {
        let labels = [claimed.namespace.as_str(), &claimed.claim];
        if !seen.insert(labels.map(str::to_owned)) {
            continue;
        }
        let bytes = usage.bytes;
        let rows = [(&VOLUME_CAPACITY, bytes.total), (&VOLUME_AVAILABLE, bytes.available), (&VOLUME_USED, bytes.used)];
        let inodes = usage
            .inodes
            .map(|i| [(&VOLUME_INODES, i.total), (&VOLUME_INODES_FREE, i.available), (&VOLUME_INODES_USED, i.used)]);
        for (row, value) in rows.into_iter().chain(inodes.into_iter().flatten()) {
            s.sample(row, &labels, value as f64, None);
        }
    }
    s.text()
}

fn with<'a>(labels: &[&'a str; 6], more: &[&'a str]) -> Vec<&'a str> {
    labels.iter().chain(more).copied().collect()
}

fn common(s: &mut Scrape, labels: &[&str; 6], u: &Usage, started: Option<Timestamp>, at: Option<i64>) {
    s.sample(&CPU, &with(labels, &["total"]), seconds(u.cpu_nanoseconds), at);
    s.sample(&CPU_USER, labels, seconds(u.cpu_user), at);
    s.sample(&CPU_SYSTEM, labels, seconds(u.cpu_system), at);
    for (row, bytes) in
        [(&USAGE, u.memory), (&WORKING_SET, u.working_set), (&RSS, u.rss), (&CACHE, u.cache), (&SWAP, u.swap)]
    {
        s.sample(row, labels, bytes as f64, at);
    }
    for (kind, count) in [("pgfault", u.page_faults), ("pgmajfault", u.major_page_faults)] {
        s.sample(&FAILURES, &with(labels, &[kind, "hierarchy"]), count as f64, at);
    }
    if let Some(limit) = u.cpu_limit {
        s.sample(&CPU_PERIODS, labels, u.cpu_periods as f64, at);
        s.sample(&CPU_THROTTLED_PERIODS, labels, u.cpu_throttled_periods as f64, at);
        s.sample(&CPU_THROTTLED, labels, seconds(u.cpu_throttled), at);
        s.sample(&CPU_PERIOD, labels, limit.period as f64, None);
        s.sample(&CPU_QUOTA, labels, limit.quota as f64, None);
    }
    if let Some(shares) = u.cpu_shares {
        s.sample(&CPU_SHARES, labels, shares as f64, None);
    }
    if let Some(peak) = u.memory_peak {
        s.sample(&PEAK, labels, peak as f64, at);
    }
    s.sample(&LIMIT, labels, u.memory_limit.unwrap_or(0) as f64, None);
    s.sample(&THREADS, labels, u.pids as f64, at);
    if let Some(t) = started {
        s.sample(&START, labels, since_epoch(t), None);
    }
    if let Some(at) = at {
        s.sample(&LAST_SEEN, labels, at as f64 / 1e3, Some(at));
    }
}

/// Metrics of the pod's network interface, with the labels of its sandbox.
fn network(s: &mut Scrape, p: &PodUsage, id: &str) {
    let Some(i) = &p.network else { return };
    let labels = ["", id, "", &p.id, &p.pod.namespace, &p.pod.name];
    let at = milliseconds(p.at);
    let rows = [
        [&RECEIVED, &RECEIVED_PACKETS, &RECEIVE_ERRORS, &RECEIVE_DROPS],
        [&SENT, &SENT_PACKETS, &SEND_ERRORS, &SEND_DROPS],
    ];
    for (rows, counts) in rows.into_iter().zip([i.received, i.sent]) {
        for (row, count) in rows.into_iter().zip(counts) {
            s.sample(row, &with(&labels, &[&i.name]), count as f64, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Labels have the order of the rows.
    #[test]
    fn labels_of_containers_are_upstreams() {
        let mut s = Scrape::default();
        let usage = Usage { cpu_nanoseconds: 1_500_000_000, page_faults: 7, ..Usage::default() };
        common(&mut s, &["c", "/pod1/x", "image:1", "x", "ns", "p"], &usage, None, Some(2000));
        let text = s.text();
        let labels = "container=\"c\",id=\"/pod1/x\",image=\"image:1\",name=\"x\",namespace=\"ns\",pod=\"p\"";
        for line in [
            format!("container_cpu_usage_seconds_total{{{labels},cpu=\"total\"}} 1.5 2000"),
            format!("container_memory_failures_total{{{labels},failure_type=\"pgfault\",scope=\"hierarchy\"}} 7 2000"),
            format!("container_last_seen{{{labels}}} 2 2000"),
        ] {
            assert!(text.contains(&line), "{line} in {text}");
        }
    }
}

//! `/stats/summary`: usage of the node, its pods and their containers (`k8s.io/kubelet/pkg/apis/stats/v1alpha1`).

use http::Response;
use nix::sys::statvfs::statvfs;
use runtime::{Timestamp, Usage};
use serde_json::{Value, json};
use supervisor::blocking;

use super::usage::{ContainerUsage, Disks, Everything, Interface, NodeUsage, PodUsage, collect};
use super::{Body, Error, Handle, json};
use crate::node::{most_pids, processes};
use crate::options::Options;
use crate::volumes::usage::{ClaimedVolume, PodVolume, VolumeUsage};

/// The file system of pods, images and logs. Bytes and inodes.
struct FileSystem {
    available: u64,
    used: u64,
    capacity: u64,
    inodes: u64,
    inodes_free: u64,
}

impl FileSystem {
    fn read(options: &Options) -> Option<Self> {
        let s = statvfs(&options.data_dir).ok()?;
        Some(Self {
            available: s.blocks_available() * s.fragment_size(),
            used: s.blocks().saturating_sub(s.blocks_free()) * s.fragment_size(),
            capacity: s.blocks() * s.fragment_size(),
            inodes: s.files(),
            inodes_free: s.files_free(),
        })
    }

    /// The JSON of a user of the file system with these bytes and inodes; `None` for all that is used.
    fn json(&self, at: &str, used: Option<(u64, Option<u64>)>) -> Value {
        let all = (self.used, Some(self.inodes.saturating_sub(self.inodes_free)));
        let (bytes, inodes) = used.unwrap_or(all);
        let mut out = json!({"time": at, "availableBytes": self.available, "capacityBytes": self.capacity,
            "usedBytes": bytes, "inodesFree": self.inodes_free, "inodes": self.inodes});
        if let Some(inodes) = inodes {
            out["inodesUsed"] = inodes.into();
        }
        out
    }
}

fn time(t: Timestamp) -> String {
    meta::time::format(crate::instant(t))
}

fn cpu(at: &str, u: &Usage, rate: Option<u64>) -> Value {
    let mut out = json!({"time": at, "usageCoreNanoSeconds": u.cpu_nanoseconds});
    if let Some(rate) = rate {
        out["usageNanoCores"] = rate.into();
    }
    out
}

fn memory(at: &str, u: &Usage, limit: Option<u64>) -> Value {
    let mut out = json!({"time": at, "usageBytes": u.memory, "workingSetBytes": u.working_set, "rssBytes": u.rss,
        "pageFaults": u.page_faults, "majorPageFaults": u.major_page_faults});
    if let Some(limit) = limit {
        out["availableBytes"] = limit.saturating_sub(u.working_set).into();
    }
    out
}

fn swap(at: &str, u: &Usage) -> Value {
    json!({"time": at, "swapUsageBytes": u.swap})
}

fn interface(i: &Interface) -> Value {
    let ([received, _, receive_errors, _], [sent, _, send_errors, _]) = (i.received, i.sent);
    json!({"name": i.name, "rxBytes": received, "rxErrors": receive_errors, "txBytes": sent, "txErrors": send_errors})
}

fn network(at: &str, default: Option<&Interface>, all: &[Interface]) -> Value {
    let mut out = default.map_or_else(|| json!({"name": ""}), interface);
    out["time"] = at.into();
    out["interfaces"] = all.iter().map(interface).collect();
    out
}

pub(super) async fn summary(handle: &Handle, only_cpu_and_memory: bool) -> Result<Response<Body>, Error> {
    let disks = if only_cpu_and_memory { Disks::Left } else { Disks::Walked };
    let all = collect(handle, disks).await?;
    let (options, started) = (handle.options.clone(), handle.known.started().to_owned());
    let images: u64 = match only_cpu_and_memory {
        true => 0,
        false => options.images.list().await.unwrap_or_default().iter().map(|i| i.size).sum(),
    };
    let volumes = if only_cpu_and_memory { Vec::new() } else { handle.known.volumes.all().await };
    // It reads the machine, and encodes all pods.
    let answer = blocking(move || {
        let files = if only_cpu_and_memory { None } else { FileSystem::read(&options) };
        let pods = all.pods.iter().map(|p| {
            let mut out = pod(p, files.as_ref());
            let own: Vec<Value> = volumes.iter().filter(|v| v.0.pod == p.pod.uid).map(|v| volume(all.at, v)).collect();
            if !own.is_empty() {
                out["volume"] = own.into();
            }
            out
        });
        let pods: Vec<Value> = pods.collect();
        json(&json!({"node": node(&options, &started, &all, images, files.as_ref()), "pods": pods}))
    });
    Ok(answer.await)
}

fn container(c: &ContainerUsage, files: Option<&FileSystem>) -> Value {
    let at = time(c.at);
    let mut out = json!({"name": c.container.name, "startTime": c.container.started_at.map(time),
        "cpu": cpu(&at, &c.usage, c.rate), "memory": memory(&at, &c.usage, c.usage.memory_limit),
        "swap": swap(&at, &c.usage)});
    if let Some(files) = files {
        if let Some((bytes, inodes)) = c.layer {
            out["rootfs"] = files.json(&at, Some((bytes, Some(inodes))));
        }
        if let Some(bytes) = c.log_bytes {
            out["logs"] = files.json(&at, Some((bytes, Some(1))));
        }
    }
    out
}

/// How full the volume of a claim is.
fn volume(now: jiff::Timestamp, (volume, claimed, usage): &(PodVolume, ClaimedVolume, VolumeUsage)) -> Value {
    let at = meta::time::format(meta::time::plus(now, -i64::try_from(usage.age).unwrap_or(0)));
    let mut out = json!({"name": volume.volume, "time": at, "availableBytes": usage.bytes.available,
        "capacityBytes": usage.bytes.total, "usedBytes": usage.bytes.used,
        "pvcRef": {"name": claimed.claim, "namespace": claimed.namespace}});
    if let Some(inodes) = usage.inodes {
        out["inodes"] = inodes.total.into();
        out["inodesFree"] = inodes.available.into();
        out["inodesUsed"] = inodes.used.into();
    }
    out
}

fn pod(p: &PodUsage, files: Option<&FileSystem>) -> Value {
    let at = time(p.at);
    let containers: Vec<Value> = p.containers.iter().map(|c| container(c, files)).collect();
    let mut out = json!({
        "podRef": {"name": p.pod.name, "namespace": p.pod.namespace, "uid": p.pod.uid},
        "startTime": time(p.created), "containers": containers,
        "cpu": cpu(&at, &p.usage, p.rate), "memory": memory(&at, &p.usage, p.usage.memory_limit),
        "swap": swap(&at, &p.usage),
    });
    if let Some(files) = files {
        let sum = |f: fn(&ContainerUsage) -> u64| p.containers.iter().map(f).sum::<u64>();
        let bytes = sum(|c| c.layer.map_or(0, |l| l.0) + c.log_bytes.unwrap_or(0));
        let inodes = sum(|c| c.layer.map_or(0, |l| l.1) + u64::from(c.log_bytes.is_some()));
        out["ephemeral-storage"] = files.json(&at, Some((bytes, Some(inodes))));
        out["process_stats"] = json!({"process_count": p.usage.pids});
        if let Some(i) = &p.network {
            out["network"] = network(&at, Some(i), std::slice::from_ref(i));
        }
    }
    out
}

fn node(options: &Options, started: &str, all: &Everything, images: u64, files: Option<&FileSystem>) -> Value {
    let at = meta::time::format(all.at);
    let NodeUsage { usage, rate, memory: total, pods, pods_rate, interfaces, default } = &all.node;
    let system = json!({"name": "pods", "startTime": started, "cpu": cpu(&at, pods, *pods_rate),
        "memory": memory(&at, pods, Some(*total)), "swap": swap(&at, pods)});
    let mut out = json!({
        "nodeName": options.node_name, "systemContainers": [system], "startTime": boot_time(all.at),
        "cpu": cpu(&at, usage, *rate), "memory": memory(&at, usage, Some(*total)), "swap": swap(&at, usage),
    });
    if let Some(files) = files {
        out["fs"] = files.json(&at, None);
        out["runtime"] = json!({"imageFs": files.json(&at, Some((images, None)))});
        out["network"] = network(&at, default.as_ref(), interfaces);
        out["rlimit"] = json!({"time": at, "maxpid": most_pids(), "curproc": processes()});
    }
    out
}

/// When the machine was started.
fn boot_time(now: jiff::Timestamp) -> String {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = uptime.split('.').next().and_then(|s| s.parse().ok()).unwrap_or(0_i64);
    meta::time::format(meta::time::plus(now, -seconds))
}

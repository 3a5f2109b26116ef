//! Current usage of the node, its pods and their containers, from control groups, `/proc` and file systems.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use runtime::{Container, ContainerState, Host, Runtime, Timestamp, Usage};
use supervisor::blocking;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Error, Handle};
use crate::counts::PodLabels;
use crate::node::{meminfo, processes};
use crate::pod::container::{POD_NAME, POD_NAMESPACE, POD_UID};
use crate::pod::network::Network;

/// A rate is the mean over at least this many nanoseconds, once an earlier sample is so old.
const WINDOW: u64 = 10_000_000_000;
/// How long the size of a layer is cached, and how long the first walk of one is waited for.
const FRESH: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(5);
/// Ticks of processor time in `/proc/stat`, per second.
const TICKS: u64 = 100;

/// Bytes and inodes.
type Layer = (u64, u64);

/// Traffic of a network interface, from the side of its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    pub name: String,
    /// Bytes, packets, errors and drops.
    pub received: [u64; 4],
    pub sent: [u64; 4],
}

pub(super) struct ContainerUsage {
    pub container: Container,
    pub at: Timestamp,
    pub usage: Usage,
    /// Nanoseconds of processor time per second.
    pub rate: Option<u64>,
    /// Its writable layer.
    pub layer: Option<Layer>,
    pub log_bytes: Option<u64>,
}

pub(super) struct PodUsage {
    pub id: String,
    pub pod: PodLabels,
    pub created: Timestamp,
    pub cgroup: String,
    pub at: Timestamp,
    pub usage: Usage,
    pub rate: Option<u64>,
    /// Traffic of its own interface, if it has one.
    pub network: Option<Interface>,
    pub containers: Vec<ContainerUsage>,
}

pub(super) struct NodeUsage {
    pub usage: Usage,
    pub rate: Option<u64>,
    /// Bytes of memory of the machine.
    pub memory: u64,
    /// All pods together.
    pub pods: Usage,
    pub pods_rate: Option<u64>,
    pub interfaces: Vec<Interface>,
    /// Traffic of the interface of the default route.
    pub default: Option<Interface>,
}

pub(super) struct Everything {
    pub at: jiff::Timestamp,
    pub node: NodeUsage,
    pub pods: Vec<PodUsage>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Disks {
    /// Writable layers are walked.
    Walked,
    Left,
}

/// Processor times of earlier samples, for rates.
#[derive(Default)]
pub(super) struct Rates(Mutex<HashMap<String, [(u64, u64); 2]>>);

impl Rates {
    /// Nanoseconds of processor time per second since an earlier sample; `None` without one. `at` is in nanoseconds.
    fn rate(&self, id: &str, at: u64, used: u64) -> Option<u64> {
        let mut all = self.0.lock();
        let Some([old, new]) = all.get_mut(id) else {
            all.insert(id.to_owned(), [(at, used); 2]);
            return None;
        };
        if at.saturating_sub(new.0) >= WINDOW {
            *old = std::mem::replace(new, (at, used));
        }
        let time = at.checked_sub(old.0).filter(|t| *t > 0)?;
        let rate = u128::from(used.saturating_sub(old.1)) * 1_000_000_000 / u128::from(time);
        u64::try_from(rate).ok()
    }

    fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.0.lock().retain(|id, _| is_there(id));
    }
}

/// Sizes of writable layers. One task at a time walks a layer, and not again for a while: it may be very large.
#[derive(Default)]
pub(super) struct Layers {
    sizes: Mutex<HashMap<String, (Instant, Layer)>>,
    walked: Mutex<HashSet<String>>,
    ended: Notify,
}

impl Layers {
    /// The recent size of a container's layer; `None` if the first walk takes too long.
    async fn size(self: &Arc<Self>, runtime: &Arc<dyn Runtime>, id: &str) -> Option<Layer> {
        let end = Instant::now() + PATIENCE;
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            // Registered before the check, so no notification is missed.
            ended.as_mut().enable();
            let known = self.sizes.lock().get(id).copied();
            if let Some((at, size)) = known
                && at.elapsed() < FRESH
            {
                return Some(size);
            }
            self.walk(runtime, id);
            if tokio::time::timeout_at(end, ended).await.is_err() {
                return known.map(|(_, size)| size);
            }
            if !self.walked.lock().contains(id) && !self.sizes.lock().contains_key(id) {
                return None;
            }
        }
    }

    fn walk(self: &Arc<Self>, runtime: &Arc<dyn Runtime>, id: &str) {
        if !self.walked.lock().insert(id.to_owned()) {
            return;
        }
        let (this, runtime, id) = (self.clone(), runtime.clone(), id.to_owned());
        tokio::spawn(async move {
            let size = runtime.container_layer(&id).await;
            if let Ok(size) = size {
                this.sizes.lock().insert(id.clone(), (Instant::now(), size));
            }
            this.walked.lock().remove(&id);
            this.ended.notify_waiters();
        });
    }

    fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.sizes.lock().retain(|id, _| is_there(id));
    }
}

fn nanoseconds(t: Timestamp) -> u64 {
    t.secs.saturating_mul(1_000_000_000).saturating_add(u64::from(t.nanos))
}

/// The containers that run, by the ids of their sandboxes.
pub(super) fn running_by_pod(all: Vec<Container>) -> HashMap<String, Vec<Container>> {
    let mut by_pod: HashMap<String, Vec<Container>> = HashMap::new();
    for c in all.into_iter().filter(|c| c.state == ContainerState::Running) {
        by_pod.entry(c.pod.clone()).or_default().push(c);
    }
    by_pod
}

/// Collects the usage of everything that runs. Containers that end meanwhile are left out.
pub(super) async fn collect(handle: &Handle, disks: Disks) -> Result<Everything, Error> {
    let (options, rates) = (&handle.options, &handle.rates);
    let runtime = &options.runtime;
    let attached = match &options.network {
        Some(n) => n.attached().await,
        None => Default::default(),
    };
    // Those of plugins have a device with a name of the plugin on the node.
    let namespaces = match &options.network {
        Some(Network::Plugins(n)) => n.namespaces().await,
        _ => Default::default(),
    };
    let node_namespace = options.node_namespace.clone();
    let host = options.host.clone();
    let (devices, machine) = blocking(move || (devices(node_namespace.as_deref()), Machine::read(&*host))).await;
    let mut running = running_by_pod(runtime.list_containers().await?);
    let mut pods = Vec::new();
    let devices_by_name: HashMap<&str, &Interface> = devices.iter().map(|i| (i.name.as_str(), i)).collect();
    for pod in runtime.list_pods().await? {
        let Ok(stats) = runtime.pod_stats(&pod.id).await else { continue };
        let label = |name: &str| pod.config.labels.get(name).cloned().unwrap_or_default();
        let mut containers = Vec::new();
        for c in running.remove(&pod.id).unwrap_or_default() {
            let Ok(stats) = runtime.container_stats(&c.id).await else { continue };
            let layer = match disks {
                Disks::Walked => handle.layers.size(runtime, &c.id).await,
                Disks::Left => None,
            };
            let log = c.log_path.clone();
            let log_bytes = blocking(move || runtime::rotation::size(&log)).await;
            containers.push(ContainerUsage {
                at: stats.at,
                usage: stats.usage,
                rate: rates.rate(&c.id, nanoseconds(stats.at), stats.usage.cpu_nanoseconds),
                layer,
                log_bytes,
                container: c,
            });
        }
        let uid = label(POD_UID);
        let network = match namespaces.get(&uid).cloned() {
            Some(namespace) => {
                let inside = blocking(move || self::devices(Some(&namespace))).await;
                inside.into_iter().find(|i| i.name == "eth0")
            }
            None => {
                let device = attached.get(&uid).map(|a| network::interface(a));
                device.and_then(|d| devices_by_name.get(&*d)).map(|node_side| Interface {
                    name: "eth0".into(),
                    // The pod receives what the node sends into the pair.
                    received: node_side.sent,
                    sent: node_side.received,
                })
            }
        };
        pods.push(PodUsage {
            pod: PodLabels { name: label(POD_NAME), namespace: label(POD_NAMESPACE), uid },
            created: pod.created_at,
            cgroup: pod.config.cgroup_parent.clone(),
            at: stats.at,
            rate: rates.rate(&pod.id, nanoseconds(stats.at), stats.usage.cpu_nanoseconds),
            usage: stats.usage,
            network,
            containers,
            id: pod.id,
        });
    }
    let at = options.clock.now();
    let node = node(handle, u64::try_from(at.as_nanosecond()).unwrap_or(0), devices, machine);
    let containers = pods.iter().flat_map(|p| p.containers.iter().map(|c| c.container.id.clone()));
    let ids: HashSet<String> = pods.iter().map(|p| p.id.clone()).chain(containers).collect();
    let known = |id: &str| id.starts_with('/') || ids.contains(id);
    rates.retain(known);
    handle.layers.retain(known);
    Ok(Everything { at, node, pods })
}

/// Values read from the machine.
struct Machine {
    usage: Usage,
    pods: Usage,
    memory: u64,
    /// The device of the default route.
    default_device: Option<String>,
}

impl Machine {
    fn read(host: &dyn Host) -> Self {
        let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap_or_default();
        Self {
            usage: machine(),
            pods: host.usage("kubepods"),
            memory: meminfo("MemTotal").unwrap_or(0),
            default_device: default_device(&routes),
        }
    }
}

fn node(handle: &Handle, at: u64, devices: Vec<Interface>, machine: Machine) -> NodeUsage {
    let Machine { usage, pods, memory, default_device } = machine;
    let own = |name: &str| name != "lo" && !name.starts_with("km");
    NodeUsage {
        rate: handle.rates.rate("/", at, usage.cpu_nanoseconds),
        pods_rate: handle.rates.rate("/kubepods", at, pods.cpu_nanoseconds),
        memory,
        default: devices.iter().find(|d| Some(&d.name) == default_device.as_ref()).cloned(),
        interfaces: devices.into_iter().filter(|d| own(&d.name)).collect(),
        usage,
        pods,
    }
}

/// Usage of all processes of the machine.
fn machine() -> Usage {
    let memory = |name: &str| meminfo(name).unwrap_or(0);
    let used = memory("MemTotal").saturating_sub(memory("MemFree"));
    let [user, system] = processor_times(&std::fs::read_to_string("/proc/stat").unwrap_or_default());
    let faults = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let fault = |name: &str| {
        let value = faults.lines().find_map(|l| l.split_once(' ').filter(|(k, _)| *k == name));
        value.and_then(|(_, v)| v.trim().parse().ok()).unwrap_or(0)
    };
    Usage {
        cpu_nanoseconds: user + system,
        cpu_user: user,
        cpu_system: system,
        memory: used,
        working_set: used.saturating_sub(memory("Inactive(file)")),
        rss: memory("AnonPages"),
        cache: memory("Cached"),
        swap: memory("SwapTotal").saturating_sub(memory("SwapFree")),
        memory_limit: None,
        page_faults: fault("pgfault"),
        major_page_faults: fault("pgmajfault"),
        pids: processes(),
        ..Usage::default()
    }
}

/// Parses `/proc/stat`: nanoseconds of user and system time. User time includes that of guests.
fn processor_times(stat: &str) -> [u64; 2] {
    let line = stat.lines().find_map(|l| l.strip_prefix("cpu ")).unwrap_or_default();
    let times: Vec<u64> = line.split_ascii_whitespace().map(|n| n.parse().unwrap_or(0)).collect();
    let time = |i: usize| times.get(i).copied().unwrap_or(0);
    // user nice system idle iowait irq softirq steal
    [time(0) + time(1), time(2) + time(5) + time(6) + time(7)].map(|t| t * (1_000_000_000 / TICKS))
}

/// The interfaces of the node.
fn devices(node: Option<&Path>) -> Vec<Interface> {
    let read = || std::fs::read_to_string("/proc/thread-self/net/dev");
    network::namespace::run_in(node, read).map(|t| parse_devices(&t)).unwrap_or_default()
}

fn parse_devices(text: &str) -> Vec<Interface> {
    let line = |l: &str| {
        let (name, counts) = l.split_once(':')?;
        let counts: Vec<u64> = counts.split_ascii_whitespace().map(|n| n.parse().unwrap_or(0)).collect();
        let four = |from: usize| counts.get(from..from + 4).and_then(|c| c.try_into().ok());
        Some(Interface { name: name.trim().to_owned(), received: four(0)?, sent: four(8)? })
    };
    text.lines().filter_map(line).collect()
}

fn default_device(routes: &str) -> Option<String> {
    let mut lines = routes.lines().skip(1).map(|l| l.split_ascii_whitespace());
    lines.find_map(|mut l| l.next().filter(|_| l.next() == Some("00000000"))).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        let stat = "cpu  100 20 30 4000 50 6 7 8 9 0\ncpu0 1 2 3 4\n";
        assert_eq!(processor_times(stat), [1_200_000_000, 510_000_000]);
        let devices = "Inter-|   Receive                                                |  Transmit\n\
             face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n\
            km0af40002:    1200      12    1    2    0     0          0         0      340       4    5    6    0     0       0          0\n";
        let expected = Interface { name: "km0af40002".into(), received: [1200, 12, 1, 2], sent: [340, 4, 5, 6] };
        assert_eq!(parse_devices(devices), [expected]);
        let routes = "Iface\tDestination\tGateway\neth1\t0000F40A\t0\nens3\t00000000\t0102000A\n";
        assert_eq!(default_device(routes).as_deref(), Some("ens3"));
        assert_eq!(default_device("Iface\tDestination\n"), None);
    }

    #[test]
    fn rates_are_means_over_a_while() {
        let rates = Rates::default();
        let second = 1_000_000_000;
        assert_eq!(rates.rate("a", 0, 0), None);
        assert_eq!(rates.rate("a", second, second / 2), Some(500_000_000));
        assert_eq!(rates.rate("a", 10 * second, 5 * second), Some(500_000_000));
        assert_eq!(rates.rate("a", 20 * second, 5 * second), Some(0), "half of the time before is forgotten");
        rates.retain(|id| id != "a");
        assert_eq!(rates.rate("a", 30 * second, 0), None);
    }
}

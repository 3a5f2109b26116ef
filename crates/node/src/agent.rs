//! The agent of a node, which runs the pods bound to it.

use std::collections::BTreeSet;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use client::{ApiResource, Informers, Lookups, Recorder, Scope, Shutdown, Source};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::storage::v1::CSIDriver;
use parking_lot::Mutex;
use plugins::KubeletRoot;
use plugins::api::registration::{CSI_PLUGIN, DEVICE_PLUGIN, DRA_PLUGIN};
use plugins::registration::Handler;
use runtime::Resources;
use supervisor::blocking;
use supervisor::panics::restarted;

use crate::admission::Admission;
use crate::affinity::{self, Managers, TopologySource};
use crate::claims::ClaimReader;
use crate::configuration::KubeletConfiguration;
use crate::counts::Known;
use crate::credentials::Providers;
use crate::csi::Csi;
use crate::csi::cluster::ApiCluster;
use crate::devices;
use crate::dispatch::{Wakes, dispatch, listen, wake};
use crate::dra::{self, Dra};
use crate::env::ServiceView;
use crate::eviction;
use crate::hugepages::PageSizes;
use crate::image_gc::ImageCollector;
use crate::node::{Capacity, Reporter, regarding};
use crate::objects::{Objects, Whole};
use crate::options::Options;
use crate::plugin_types;
use crate::pod::starts::Starts;
use crate::pod::users::Users;
use crate::pod_resources;
use crate::probe::Names;
use crate::qos;
use crate::server::Handle;
use crate::shared::Shared;
use crate::shutdown;
use crate::static_pods::{self, StaticPodSource, mirror};
use crate::volumes::token::TokenRequests;
use crate::volumes::{Memory, Plugins, Volumes};

/// How often the limit of all pods is tried again.
const ENFORCEMENT_RETRY: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("reading what this machine has: {0}")]
    Capacity(#[source] std::io::Error),
    #[error("runtime: {0}")]
    Runtime(#[from] runtime::Error),
    #[error("network: {0}")]
    Network(#[from] network::Error),
    /// The managers of processors, memory and topology cannot start.
    #[error("{0}")]
    Managers(String),
    #[error("user namespaces of pods: {0}")]
    Users(#[from] crate::pod::users::Error),
}

/// Errors if an agent with this directory could not run on this machine, as often as it were started: its configuration is impossible here,
/// or contradicts what an earlier one has left. Blocks.
pub fn check_machine(
    configuration: &KubeletConfiguration,
    data_dir: &Path,
    topology: &dyn TopologySource,
) -> Result<(), Error> {
    let root = KubeletRoot { path: data_dir.to_owned(), shown_as: data_dir.to_owned() };
    Managers::open(configuration, root.clone(), topology, Arc::new(|_| ())).map_err(Error::Managers)?;
    Dra::check(&root).map_err(Error::Managers)
}

pub struct Agent {
    options: Arc<Options>,
    known: Arc<Known>,
}

impl Agent {
    pub fn new(options: Options) -> Self {
        let known = Arc::new(Known::new(&options.node_name, options.clock.now()));
        Self { options: Arc::new(options), known }
    }

    /// Returns the handle that serves the kubelet's HTTP API. It works before and after the agent runs, too.
    pub fn handle(&self) -> Handle {
        Handle::new(self.options.clone(), self.known.clone())
    }

    /// Runs until `shutdown`. Containers keep running.
    pub fn run(self: Arc<Self>, shutdown: Shutdown) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        Box::pin(self.work(shutdown))
    }

    async fn work(self: Arc<Self>, shutdown: Shutdown) -> Result<(), Error> {
        let (options, known) = (self.options.clone(), self.known.clone());
        let wakes: Wakes = Arc::default();
        let root = KubeletRoot { path: options.data_dir.clone(), shown_as: options.kubelet_root.clone() };
        let (machine, own_root) = (options.clone(), root.clone());
        let woken = {
            let wakes = wakes.clone();
            Arc::new(move |uid: &str| wake(&wakes, uid))
        };
        let (capacity, users, managers) = blocking(move || {
            let capacity = Capacity::read(&machine.data_dir, &machine.configuration).map_err(Error::Capacity)?;
            qos::set_up(&machine, capacity.cpus);
            let managers = Managers::open(&machine.configuration, own_root, &*machine.topology, woken);
            let users = Users::open(machine.data_dir.join("pods"), &machine.node_name)?;
            Ok::<_, Error>((capacity, users, Arc::new(managers.map_err(Error::Managers)?)))
        })
        .await?;
        *known.managers.write() = managers.meters();
        let client = options.client.clone();
        let (own_root, own_client) = (root.clone(), client.clone());
        let woken = {
            let wakes = wakes.clone();
            Arc::new(move |uid: &str| wake(&wakes, uid))
        };
        let own_name = options.node_name.clone();
        let dra = blocking(move || Dra::open(own_root, own_client, own_name, woken)).await;
        let dra = Arc::new(dra.map_err(Error::Managers)?);
        let source = Source::Core { component: "kubelet".into(), host: options.node_name.clone() };
        let recorder = Recorder::start(&client, source, options.clock.clone(), shutdown.clone());
        let informers = Informers::new(client.clone(), options.rng.clone(), shutdown.clone());
        let dirty: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let admission = {
            let wakes = wakes.clone();
            Arc::new(Admission::new(&options.node_name, Arc::new(move |uid: &str| wake(&wakes, uid))))
        };
        let changed = {
            let (wakes, dirty) = (wakes.clone(), dirty.clone());
            Arc::new(move |uid: &str| {
                dirty.lock().insert(uid.to_owned());
                wake(&wakes, uid);
            })
        };
        if let Err(error) = blocking(crate::pod::apparmor::load).await {
            tracing::warn!(%error, "loading AppArmor's default profile for containers failed; containers run without it");
        }
        let tokens = Arc::new(TokenRequests::new(client.clone(), options.clock.clone()));
        let (plugins, accounts) = (options.credential_plugins.clone(), Arc::new(client.clone()));
        let node = informers.informer::<Whole>(
            &ApiResource::typed::<Node>(),
            &Scope { field_selector: format!("metadata.name={}", options.node_name), ..Scope::default() },
        );
        let cluster = Arc::new(ApiCluster::new(
            client.clone(),
            options.node_name.clone(),
            recorder.clone(),
            options.clock.clone(),
            node.clone(),
            informers.informer::<Whole>(&ApiResource::typed::<CSIDriver>(), &Scope::default()),
        ));
        let csi = Arc::new(Csi::new(root.clone(), &options.node_name, cluster.clone()));
        let shared = Arc::new(Shared {
            recorder: recorder.clone(),
            objects: Arc::new(Objects::new(informers.clone(), changed)),
            credential_providers: Providers::new(plugins, options.clock.clone(), accounts, tokens.clone()),
            verification: options.configuration.verification(),
            tokens,
            volumes: Volumes::new(
                options.data_dir.join("pods"),
                options.clock.clone(),
                Memory::Mounted,
                // An eighth of the machine's memory, since most of the files are in memory.
                usize::try_from(capacity.memory / 8).unwrap_or(usize::MAX),
                Arc::new(ClaimReader { client: client.clone(), node_name: options.node_name.clone() }),
            )
            .with_plugins(Plugins {
                root: root.clone(),
                csi: csi.clone(),
                files: options.file_volumes.clone(),
                usages: known.volumes.clone(),
            }),
            users: Arc::new(users),
            services: informers.typed::<Service, ServiceView>(),
            allocatable: capacity.allocatable(),
            memory: capacity.memory,
            page_sizes: PageSizes::new(capacity.hugepages.keys()),
            starts: Starts::new(capacity.cpus as usize),
            lookups: Arc::new(Lookups::new(Names::MAX)),
            admission,
            managers: managers.clone(),
            dra: dra.clone(),
            client,
            dirty,
            known: known.clone(),
            options: options.clone(),
        });
        // A node with a runtime that works is ready when it registers.
        known.runtime.check(&*options.runtime, options.network.as_ref()).await;
        let reporter =
            Reporter::new(options.clone(), capacity, recorder.clone(), known.clone(), managers.devices.clone());
        let (own_node, admission) = (reporter.own_node(), shared.admission.clone());
        let events = options.runtime.subscribe();
        let pods = informers.informer::<Whole>(
            &ApiResource::typed::<Pod>(),
            &Scope { field_selector: format!("spec.nodeName={}", options.node_name), ..Scope::default() },
        );
        *known.pods.write() = Some(pods.clone());
        let images = Arc::new(ImageCollector::new(options.clone()));
        let memory = shared.memory;
        let work = async {
            tokio::join!(
                limit_pods(options.clone(), memory, recorder.clone()),
                restarted("node status", || reporter.run()),
                restarted("image garbage collection", || {
                    let (images, recorder, node) = (images.clone(), recorder.clone(), regarding(&options.node_name));
                    async move { images.run(recorder, node).await }
                }),
                restarted("device plugins", || devices::run(managers.devices.clone())),
                // Drivers publish them again when they register.
                dra.delete_slices(None),
                restarted("pod resources", || pod_resources::run(root.path.clone(), shared.clone())),
                restarted("plugins", || {
                    let devices = devices::Registration(managers.devices.clone());
                    let handlers: [(_, Arc<dyn Handler>); 3] = [
                        (DEVICE_PLUGIN, Arc::new(devices)),
                        (DRA_PLUGIN, Arc::new(dra::Registration(dra.clone()))),
                        (CSI_PLUGIN, Arc::new(crate::csi::Registration(csi.clone()))),
                    ];
                    plugin_types::follow(&root, handlers.into())
                }),
                restarted("CPUs of containers", || {
                    let period = options.configuration.cpu_manager_reconcile_period.get();
                    affinity::run(managers.clone(), options.runtime.clone(), period)
                }),
                restarted("weights of pods", || qos::follow(&options, &admission)),
                restarted("eviction", || eviction::run(shared.clone(), images.clone(), wakes.clone())),
                listen(events, wakes.clone(), &*options.runtime),
                dispatch(shared.clone(), pods, node.clone(), own_node, wakes.clone()),
                known.runtime.follow(&*options.runtime, options.network.as_ref()),
                shutdown::run(&known.shutdown, &options.configuration, &admission, &wakes),
                follow_manifests(&options, &known),
                restarted("CSINode", || plugin_types::keep_csi_node(&cluster, &csi, &node, &options.node_name)),
                restarted("mirror pods", || {
                    let (client, name) = (options.client.clone(), options.node_name.clone());
                    mirror::run(client, name, node.clone(), known.static_pods.clone())
                })
            )
        };
        shutdown.race(work).await;
        Ok(())
    }
}

/// Reads the manifests of static pods and follows their changes.
async fn follow_manifests(options: &Options, known: &Known) {
    let configuration = &options.configuration;
    if configuration.static_pod_path.is_empty() {
        return known.static_pods.set_none();
    }
    restarted("static pods", || {
        let source = StaticPodSource {
            path: configuration.static_pod_path.clone().into(),
            check_frequency: configuration.file_check_frequency.get(),
            decoder: options.decoder.clone(),
            node: options.node_name.clone(),
            clock: options.clock.clone(),
        };
        static_pods::follow(source, known.static_pods.clone())
    })
    .await;
}

/// Limits the memory of all pods to what is not reserved, and reports it once. While pods use more, the kernel may refuse the limit; it
/// is tried again (upstream `enforceNodeAllocatableCgroups`).
async fn limit_pods(options: Arc<Options>, memory: u64, recorder: Recorder) {
    let limit = match options.configuration.enforces_pods() {
        true => memory.saturating_sub(options.configuration.reserved("memory")),
        // That of an earlier configuration ends.
        false => {
            return set_limit(&options, -1)
                .await
                .unwrap_or_else(|error| tracing::debug!(%error, "removing the limit failed"));
        }
    };
    loop {
        let about = regarding(&options.node_name);
        match set_limit(&options, i64::try_from(limit).unwrap_or(i64::MAX)).await {
            Ok(()) => {
                let message = "Updated Node Allocatable limit across pods";
                return recorder.normal(about, "NodeAllocatableEnforced", message);
            }
            Err(error) => {
                let message = format!("Failed to update Node Allocatable Limits \"kubepods\": {error}");
                recorder.warning(about, "FailedNodeAllocatableEnforcement", message);
            }
        }
        tokio::time::sleep(ENFORCEMENT_RETRY).await;
    }
}

async fn set_limit(options: &Arc<Options>, bytes: i64) -> Result<(), runtime::Error> {
    let host = options.host.clone();
    let limit = Resources { memory_limit: Some(bytes), ..Resources::default() };
    blocking(move || host.set_cgroup(qos::PODS, &limit)).await
}

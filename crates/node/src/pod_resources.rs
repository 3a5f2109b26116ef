//! The API by which monitoring programs learn which devices, processors and memory the containers of pods have
//! (`pkg/kubelet/apis/podresources`). It is served on the socket `pod-resources/kubelet.sock`, for root of the node.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use client::Key;
use k8s_openapi::api::core::v1::{Container, Pod};
use plugins::api::pod_resources::{
    AllocatableResponse, ContainerResources, GET, GET_ALLOCATABLE, GetRequest, GetResponse, LIST, ListResponse,
    PodResources,
};
use plugins::{Server, SocketPath, Status};
use supervisor::blocking;

use crate::pod::spec::text;
use crate::resources::is_sidecar;
use crate::shared::Shared;

const DIRECTORY: &str = "pod-resources";
const SOCKET: &str = "kubelet.sock";

/// Serves the API, for ever.
pub(crate) async fn run(root: PathBuf, shared: Arc<Shared>) {
    let directory = root.join(DIRECTORY);
    let [list, get, allocatable] = [shared.clone(), shared.clone(), shared];
    let server = Server::new()
        .unary(&LIST, move |_| {
            let shared = list.clone();
            async move { Ok(ListResponse { pods: shared.pods().iter().map(|p| shared.resources_of(p)).collect() }) }
        })
        .unary(&GET, move |request: GetRequest| {
            let shared = get.clone();
            async move { find(&shared, &request).map(|pod| GetResponse { pod: Some(pod) }) }
        })
        .unary(&GET_ALLOCATABLE, move |_| {
            let shared = allocatable.clone();
            async move {
                let (cpu_ids, memory) = shared.managers.allocatable();
                Ok(AllocatableResponse { devices: shared.managers.devices.allocatable(), cpu_ids, memory })
            }
        });
    loop {
        let path = directory.clone();
        let prepared = blocking(move || {
            std::fs::create_dir_all(&path)?;
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o750))
        });
        match prepared.await.and_then(|()| server.clone().serve(&SocketPath::below(&directory, SOCKET))) {
            Ok(_running) => return std::future::pending().await,
            Err(error) => {
                tracing::warn!(directory = %directory.display(), %error, "serving the resources of pods failed; it is tried again");
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        }
    }
}

fn find(shared: &Shared, request: &GetRequest) -> Result<PodResources, Status> {
    let found = shared
        .pods()
        .into_iter()
        .find(|p| text(&p.metadata.name) == request.name && text(&p.metadata.namespace) == request.namespace);
    let GetRequest { name, namespace } = request;
    let missing = || Status::unknown(format!("pod {name} in namespace {namespace} not found"));
    found.map(|pod| shared.resources_of(&pod)).ok_or_else(missing)
}

impl Shared {
    /// The admitted pods that have not ended, static ones included.
    fn pods(&self) -> Vec<Pod> {
        let informer = self.known.pods.read().clone();
        let from_api = |view: &scheduler::pod::Pod| {
            let key = Key::new(&*view.meta.namespace, &*view.meta.name);
            let entry = informer.as_ref()?.get(&key).filter(|e| e.meta.uid == view.meta.uid)?;
            entry.decode::<Pod>().ok()
        };
        let pods = self.admission.running().into_iter().filter_map(|view| from_api(&view));
        pods.chain(self.known.static_pods.running().into_values().map(|pod| (*pod).clone())).collect()
    }

    fn resources_of(&self, pod: &Pod) -> PodResources {
        let uid = text(&pod.metadata.uid);
        let spec = pod.spec.as_ref();
        let sidecars = spec.and_then(|s| s.init_containers.as_ref()).into_iter().flatten().filter(|c| is_sidecar(c));
        let of_container = |c: &Container| ContainerResources {
            name: c.name.clone(),
            devices: self.managers.devices.of_container(uid, &c.name),
            cpu_ids: self.managers.exclusive_cpus(uid, &c.name),
            memory: self.managers.memory(uid, &c.name),
            dynamic_resources: self.dra.resources(pod, c),
        };
        PodResources {
            name: text(&pod.metadata.name).to_owned(),
            namespace: text(&pod.metadata.namespace).to_owned(),
            containers: sidecars.chain(spec.into_iter().flat_map(|s| &s.containers)).map(of_container).collect(),
        }
    }
}

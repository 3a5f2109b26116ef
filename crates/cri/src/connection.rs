//! gRPC over the socket of a runtime: one call of the interface, one function.
//!
//! The connection is made when it is needed, and again after it broke.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use k8s_cri::v1;
use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use runtime::{Error, Result};
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::endpoint::Endpoint;
use crate::signals;

/// Bytes of a response: lists of thousands of containers with their annotations.
const MAX_RESPONSE: usize = 64 << 20;

/// A connection to the services of a runtime.
#[derive(Clone)]
pub(crate) struct Connection {
    pub endpoint: Endpoint,
    channel: Channel,
    timeout: Duration,
}

/// Connects to the socket, whatever the URI says.
#[derive(Clone)]
struct Connector(Endpoint);

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<UnixStream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let endpoint = self.0.clone();
        Box::pin(async move { Ok(TokioIo::new(UnixStream::connect(endpoint.path()).await?)) })
    }
}

/// The error of a call. The cause of a connection that was not made is among the sources of the status.
pub(crate) fn failed(status: &Status) -> Error {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text += &format!(": {more}");
        }
        source = cause.source();
    }
    Error::Service {
        message: format!("rpc error: code = {} desc = {text}", plugins::code_name(status.code())),
        is_unavailable: status.code() == Code::Unavailable,
    }
}

/// The error of a call for one object.
fn failed_for(what: &'static str, id: &str, status: &Status) -> Error {
    match status.code() {
        Code::NotFound => Error::NotFound { what, id: id.to_owned() },
        _ => failed(status),
    }
}

/// Errors of a call, other than that the object is not there.
fn unless_absent<T>(result: std::result::Result<T, Status>) -> Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::NotFound => Ok(()),
        Err(status) => Err(failed(&status)),
    }
}

impl Connection {
    pub fn new(endpoint: &Endpoint, timeout: Duration) -> Self {
        // The authority is not used, but HTTP needs one.
        let channel = Channel::builder(Uri::from_static("http://localhost"));
        Self {
            channel: channel.connect_with_connector_lazy(Connector(endpoint.clone())),
            endpoint: endpoint.clone(),
            timeout,
        }
    }

    fn runtime(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_RESPONSE)
    }

    fn image(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_RESPONSE)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        self.request_within(message, self.timeout)
    }

    fn request_within<T>(&self, message: T, timeout: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(timeout);
        request
    }

    /// The name and version of the runtime.
    pub async fn version(&self) -> Result<(String, String)> {
        let request = self.request(v1::VersionRequest { version: "v1".into() });
        let v = self.runtime().version(request).await.map_err(|s| failed(&s))?.into_inner();
        Ok((v.runtime_name, v.runtime_version))
    }

    pub async fn status(&self, verbose: bool) -> Result<v1::StatusResponse> {
        let request = self.request(v1::StatusRequest { verbose });
        Ok(self.runtime().status(request).await.map_err(|s| failed(&s))?.into_inner())
    }

    /// Whether the runtime leaves control groups to systemd. Older runtimes show it only in their configuration.
    pub async fn uses_systemd(&self, status: &v1::StatusResponse) -> bool {
        if let Ok(answer) = self.runtime().runtime_config(self.request(v1::RuntimeConfigRequest {})).await {
            let linux = answer.into_inner().linux;
            return linux.is_some_and(|l| l.cgroup_driver() == v1::CgroupDriver::Systemd);
        }
        let config: serde_json::Value =
            status.info.get("config").and_then(|c| serde_json::from_str(c).ok()).unwrap_or_default();
        let containerd = &config["containerd"];
        let handler = containerd["defaultRuntimeName"].as_str().unwrap_or("runc");
        containerd["runtimes"][handler]["options"]["SystemdCgroup"] == true || config["systemdCgroup"] == true
    }

    pub async fn run_pod(&self, config: v1::PodSandboxConfig, handler: &str) -> Result<String> {
        let message = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: handler.to_owned() };
        // CNI plugins may take their time.
        let request = self.request_within(message, self.timeout * 2);
        Ok(self.runtime().run_pod_sandbox(request).await.map_err(|s| failed(&s))?.into_inner().pod_sandbox_id)
    }

    pub async fn stop_pod(&self, id: &str) -> Result<()> {
        let request = self.request(v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() });
        unless_absent(self.runtime().stop_pod_sandbox(request).await)
    }

    pub async fn remove_pod(&self, id: &str) -> Result<()> {
        let request = self.request(v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() });
        unless_absent(self.runtime().remove_pod_sandbox(request).await)
    }

    pub async fn list_pods(&self, label_selector: [(&str, &str); 1]) -> Result<Vec<v1::PodSandbox>> {
        let filter = v1::PodSandboxFilter { label_selector: labels(label_selector), ..Default::default() };
        let request = self.request(v1::ListPodSandboxRequest { filter: Some(filter) });
        Ok(self.runtime().list_pod_sandbox(request).await.map_err(|s| failed(&s))?.into_inner().items)
    }

    pub async fn pod_status(&self, id: &str) -> Result<v1::PodSandboxStatus> {
        let request = self.request(v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false });
        let answer = self.runtime().pod_sandbox_status(request).await.map_err(|s| failed_for("pod", id, &s))?;
        answer.into_inner().status.ok_or_else(|| Error::NotFound { what: "pod", id: id.to_owned() })
    }

    pub async fn create_container(
        &self,
        pod: &str,
        config: &v1::ContainerConfig,
        stop_signal: i32,
        sandbox: v1::PodSandboxConfig,
    ) -> Result<String> {
        const METHOD: &str = "/runtime.v1.RuntimeService/CreateContainer";
        let (config, sandbox_config) = (signals::config(config, stop_signal), Some(sandbox));
        let request = signals::CreateContainerRequest { pod_sandbox_id: pod.to_owned(), config, sandbox_config };
        let answer: v1::CreateContainerResponse =
            self.call(METHOD, request).await.map_err(|s| failed_for("pod", pod, &s))?;
        Ok(answer.container_id)
    }

    /// Calls a method with messages that the crate of the interface does not have.
    async fn call<Q, R>(&self, method: &'static str, message: Q) -> std::result::Result<R, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        R: prost::Message + Default + Send + Sync + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_RESPONSE);
        grpc.ready().await.map_err(|e| Status::unknown(format!("Service was not ready: {e}")))?;
        let codec = ProstCodec::<Q, R>::default();
        let answer = grpc.unary(self.request(message), PathAndQuery::from_static(method), codec).await?;
        Ok(answer.into_inner())
    }

    /// The error is the message of the runtime.
    pub async fn start_container(&self, id: &str) -> std::result::Result<(), Status> {
        let request = self.request(v1::StartContainerRequest { container_id: id.to_owned() });
        self.runtime().start_container(request).await.map(drop)
    }

    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let timeout = i64::try_from(grace.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
        let message = v1::StopContainerRequest { container_id: id.to_owned(), timeout };
        let request = self.request_within(message, grace.saturating_add(self.timeout));
        unless_absent(self.runtime().stop_container(request).await)
    }

    pub async fn remove_container(&self, id: &str) -> Result<()> {
        let request = self.request(v1::RemoveContainerRequest { container_id: id.to_owned() });
        unless_absent(self.runtime().remove_container(request).await)
    }

    pub async fn list_containers(&self, label_selector: [(&str, &str); 1]) -> Result<Vec<v1::Container>> {
        let filter = v1::ContainerFilter { label_selector: labels(label_selector), ..Default::default() };
        let request = self.request(v1::ListContainersRequest { filter: Some(filter) });
        Ok(self.runtime().list_containers(request).await.map_err(|s| failed(&s))?.into_inner().containers)
    }

    pub async fn container_status(&self, id: &str) -> Result<signals::Status> {
        const METHOD: &str = "/runtime.v1.RuntimeService/ContainerStatus";
        let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let answer: signals::ContainerStatusResponse =
            self.call(METHOD, request).await.map_err(|s| failed_for("container", id, &s))?;
        let status = answer.status.ok_or_else(|| Error::NotFound { what: "container", id: id.to_owned() })?;
        signals::Status::decode(&status).map_err(|e| failed(&Status::internal(e.to_string())))
    }

    pub async fn update_container(&self, id: &str, linux: v1::LinuxContainerResources) -> Result<()> {
        let message = v1::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
            ..Default::default()
        };
        let request = self.request(message);
        self.runtime().update_container_resources(request).await.map_err(|s| failed_for("container", id, &s))?;
        Ok(())
    }

    /// The events of all containers from now on, for as long as the stream lasts.
    pub async fn container_events(&self) -> std::result::Result<tonic::Streaming<v1::ContainerEventResponse>, Status> {
        let call = async { self.runtime().get_container_events(v1::GetEventsRequest {}).await };
        let begun = tokio::time::timeout(self.timeout, call).await;
        let answer = begun.unwrap_or_else(|_| Err(Status::deadline_exceeded("context deadline exceeded")));
        Ok(answer?.into_inner())
    }

    pub async fn reopen_log(&self, id: &str) -> Result<()> {
        let request = self.request(v1::ReopenContainerLogRequest { container_id: id.to_owned() });
        self.runtime().reopen_container_log(request).await.map_err(|s| failed_for("container", id, &s))?;
        Ok(())
    }

    /// `None` if the command did not end in time.
    pub async fn exec_sync(
        &self,
        id: &str,
        cmd: Vec<String>,
        limit: Option<Duration>,
    ) -> Result<Option<v1::ExecSyncResponse>> {
        // Zero means no timeout.
        let timeout = limit.map_or(0, |l| i64::try_from(l.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1));
        let message = v1::ExecSyncRequest { container_id: id.to_owned(), cmd, timeout };
        let request = match limit {
            Some(limit) => self.request_within(message, limit.saturating_add(self.timeout)),
            None => Request::new(message),
        };
        match self.runtime().exec_sync(request).await {
            Ok(answer) => Ok(Some(answer.into_inner())),
            Err(status) if limit.is_some() && status.code() == Code::DeadlineExceeded => Ok(None),
            Err(status) => Err(failed_for("container", id, &status)),
        }
    }

    /// The URL of a command's streams.
    pub async fn exec(&self, message: v1::ExecRequest) -> Result<String> {
        let id = message.container_id.clone();
        let answer = self.runtime().exec(self.request(message)).await.map_err(|s| failed_for("container", &id, &s))?;
        Ok(answer.into_inner().url)
    }

    /// The URL of a container's streams.
    pub async fn attach(&self, message: v1::AttachRequest) -> Result<String> {
        let id = message.container_id.clone();
        let answer =
            self.runtime().attach(self.request(message)).await.map_err(|s| failed_for("container", &id, &s))?;
        Ok(answer.into_inner().url)
    }

    /// The URL of connections to a port.
    pub async fn port_forward(&self, pod: &str, port: u16) -> Result<String> {
        let request =
            self.request(v1::PortForwardRequest { pod_sandbox_id: pod.to_owned(), port: vec![i32::from(port)] });
        let answer = self.runtime().port_forward(request).await.map_err(|s| failed_for("pod", pod, &s))?;
        Ok(answer.into_inner().url)
    }

    pub async fn container_stats(&self, id: &str) -> Result<v1::ContainerStats> {
        let request = self.request(v1::ContainerStatsRequest { container_id: id.to_owned() });
        let answer = self.runtime().container_stats(request).await.map_err(|s| failed_for("container", id, &s))?;
        answer.into_inner().stats.ok_or_else(|| Error::NotFound { what: "container", id: id.to_owned() })
    }

    pub async fn list_images(&self) -> Result<Vec<v1::Image>> {
        let request = self.request(v1::ListImagesRequest { filter: None });
        Ok(self.image().list_images(request).await.map_err(|s| failed(&s))?.into_inner().images)
    }

    /// `None` if there is no image of the name.
    pub async fn image_status(&self, name: &str) -> Result<Option<v1::Image>> {
        let request = self.request(v1::ImageStatusRequest { image: Some(image(name)), verbose: false });
        match self.image().image_status(request).await {
            Ok(answer) => Ok(answer.into_inner().image),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(failed(&status)),
        }
    }

    /// Pulls an image, however long it takes.
    pub async fn pull_image(&self, name: &str, auth: Option<v1::AuthConfig>) -> std::result::Result<String, Status> {
        let message = v1::PullImageRequest { image: Some(image(name)), auth, sandbox_config: None };
        Ok(self.image().pull_image(Request::new(message)).await?.into_inner().image_ref)
    }

    pub async fn remove_image(&self, id: &str) -> Result<()> {
        let request = self.request(v1::RemoveImageRequest { image: Some(image(id)) });
        unless_absent(self.image().remove_image(request).await)
    }

    pub async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse> {
        let request = self.request(v1::ImageFsInfoRequest {});
        Ok(self.image().image_fs_info(request).await.map_err(|s| failed(&s))?.into_inner())
    }
}

fn labels(selector: [(&str, &str); 1]) -> std::collections::HashMap<String, String> {
    selector.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

pub(crate) fn image(name: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: name.to_owned(), user_specified_image: name.to_owned(), ..Default::default() }
}

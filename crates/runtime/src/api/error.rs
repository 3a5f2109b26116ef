//! The errors of the runtime.

use std::path::PathBuf;
use std::time::Duration;

use super::ContainerState;

/// The error of a call of the runtime.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no pod or container with the id.
    #[error("{what} {id:?} not found")]
    NotFound {
        /// `pod` or `container`.
        what: &'static str,
        /// The id of the request.
        id: String,
    },
    /// The pod exists, or the pod has a container with the same name and attempt.
    #[error("{what} {id:?} already exists")]
    AlreadyExists {
        /// `pod` or `container`.
        what: &'static str,
        /// The id, or the name with the attempt.
        id: String,
    },
    /// The runtime has no such handler (RuntimeClass). The message is that of containerd.
    #[error("failed to get sandbox runtime: no runtime for {handler:?} is configured")]
    NoHandler {
        /// The handler of the request.
        handler: String,
    },
    /// A request has an invalid value; nothing was created.
    #[error("invalid {field}: {message}")]
    Invalid {
        /// The invalid setting.
        field: &'static str,
        /// Why it is invalid.
        message: String,
    },
    /// The image is not present. The caller pulls it before it creates a container.
    #[error("failed to pull image {image:?}: {message}")]
    ImagePull {
        /// The image as in the request.
        image: String,
        /// Why it is not available.
        message: String,
    },
    /// An image cannot be mounted as requested (the message begins with upstream's `ImageVolumeMountFailed`).
    #[error("ImageVolumeMountFailed: image {image:?}: {message}")]
    ImageVolume {
        /// The image as in the request.
        image: String,
        /// Why it cannot be mounted.
        message: String,
    },
    /// The image store failed.
    #[error("image: {0}")]
    Image(#[from] crate::image::Error),
    /// The pod's shim could not set the pod up.
    #[error("cannot start pod {pod:?}: {message}")]
    PodStart {
        /// The id of the sandbox.
        pod: String,
        /// The failed step and its cause.
        message: String,
    },
    /// The container's process could not be started (upstream reason `StartError`, exit code 128).
    #[error("failed to start container {container:?}: {message}")]
    Start {
        /// The name of the container.
        container: String,
        /// The failed step and its cause.
        message: String,
    },
    /// A command could not be started in a container.
    #[error("failed to exec in container {container:?}: {message}")]
    Exec {
        /// The name of the container.
        container: String,
        /// The failed step and its cause.
        message: String,
    },
    /// The call is not possible in the current state of the container.
    #[error("container {container:?} is {state:?}, not {expected}")]
    State {
        /// The id of the container.
        container: String,
        /// Its current state.
        state: ContainerState,
        /// The state that the call needs.
        expected: &'static str,
    },
    /// A command did not end within its timeout, and was killed.
    #[error("command {command:?} timed out after {after:?}")]
    Timeout {
        /// The command as text.
        command: String,
        /// The timeout.
        after: Duration,
    },
    /// The pod's shim has ended, so the pod has no running containers.
    #[error("the shim of pod {pod:?} is gone")]
    ShimGone {
        /// The id of the sandbox.
        pod: String,
    },
    /// The container runtime does not offer what the pod needs.
    #[error("the container runtime {runtime} does not support {feature}")]
    Unsupported {
        /// Name and version of the runtime.
        runtime: String,
        /// The feature, for users.
        feature: &'static str,
    },
    /// A call of the container runtime interface failed.
    #[error("{message}")]
    Service {
        /// The code of gRPC and the message of the runtime.
        message: String,
        /// Whether the runtime could not be reached.
        is_unavailable: bool,
    },
    /// A file, cgroup or mount of the runtime could not be read or changed.
    #[error("{what}")]
    Io {
        /// The object and the cause, for users.
        what: String,
        /// The error of the kernel.
        #[source]
        source: std::io::Error,
    },
    /// A record on disk is invalid.
    #[error("state file {path}: {message}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        message: String,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what: format!("{what}: {source}"), source }
    }
}

/// The result of a call of the runtime.
pub type Result<T, E = Error> = std::result::Result<T, E>;

//! The address of a runtime (`containerRuntimeEndpoint`): a Unix socket.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The socket of a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

/// Why a text is no endpoint.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Another protocol.
    #[error(
        "protocol {0:?} not supported: the endpoint of a container runtime is a Unix socket, such as unix:///run/containerd/containerd.sock"
    )]
    Protocol(String),
    /// The path is missing or relative.
    #[error("endpoint {0:?} is not the absolute path of a socket, such as unix:///run/containerd/containerd.sock")]
    Path(String),
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    /// Reads `unix:///PATH`, or `/PATH` alone as older kubelets did.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let path = match text.split_once("://") {
            Some(("unix", path)) => path,
            Some((protocol, _)) => return Err(EndpointError::Protocol(protocol.to_owned())),
            None => text,
        };
        let is_absolute = path.starts_with('/') && path.len() > 1;
        if is_absolute { Ok(Self(path.into())) } else { Err(EndpointError::Path(text.to_owned())) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

impl Endpoint {
    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_unix_sockets() {
        for text in ["unix:///run/c.sock", "/run/c.sock"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), "unix:///run/c.sock");
        }
        assert_eq!("tcp://127.0.0.1:1".parse::<Endpoint>(), Err(EndpointError::Protocol("tcp".into())));
        for text in ["", "run/c.sock", "unix://c.sock", "/", "unix:///"] {
            assert!(matches!(text.parse::<Endpoint>(), Err(EndpointError::Path(_))), "{text}");
        }
    }
}

//! Stop signals of containers: parts of the interface since Kubernetes v1.33 that the crate of its messages lacks. A runtime that does not know them
//! ignores the request and reports none.

use k8s_cri::v1;
use prost::Message;

/// The signals by their numbers in the interface, from 1 on.
const SIGNALS: [&str; 65] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGRTMIN",
    "SIGRTMIN+1",
    "SIGRTMIN+2",
    "SIGRTMIN+3",
    "SIGRTMIN+4",
    "SIGRTMIN+5",
    "SIGRTMIN+6",
    "SIGRTMIN+7",
    "SIGRTMIN+8",
    "SIGRTMIN+9",
    "SIGRTMIN+10",
    "SIGRTMIN+11",
    "SIGRTMIN+12",
    "SIGRTMIN+13",
    "SIGRTMIN+14",
    "SIGRTMIN+15",
    "SIGRTMAX-14",
    "SIGRTMAX-13",
    "SIGRTMAX-12",
    "SIGRTMAX-11",
    "SIGRTMAX-10",
    "SIGRTMAX-9",
    "SIGRTMAX-8",
    "SIGRTMAX-7",
    "SIGRTMAX-6",
    "SIGRTMAX-5",
    "SIGRTMAX-4",
    "SIGRTMAX-3",
    "SIGRTMAX-2",
    "SIGRTMAX-1",
    "SIGRTMAX",
];

/// The number of a signal in the interface.
pub(crate) fn number(name: &str) -> Option<i32> {
    let index = SIGNALS.iter().position(|s| *s == name)?;
    i32::try_from(index + 1).ok()
}

/// The name of a signal; `None` if the runtime reports none.
fn name(number: i32) -> Option<String> {
    let index = usize::try_from(number).ok()?.checked_sub(1)?;
    SIGNALS.get(index).map(|s| (*s).to_owned())
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CreateContainerRequest {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
    /// A configuration as encoded by [`config`].
    #[prost(bytes = "vec", tag = "2")]
    pub config: Vec<u8>,
    #[prost(message, optional, tag = "3")]
    pub sandbox_config: Option<v1::PodSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct ConfiguredSignal {
    #[prost(int32, tag = "18")]
    stop_signal: i32,
}

/// Encodes a configuration with a signal (0 for none), which is a field of it.
pub(crate) fn config(config: &v1::ContainerConfig, stop_signal: i32) -> Vec<u8> {
    let mut bytes = config.encode_to_vec();
    bytes.extend(ConfiguredSignal { stop_signal }.encode_to_vec());
    bytes
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatusResponse {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub status: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct ReportedSignal {
    #[prost(int32, tag = "19")]
    stop_signal: i32,
}

/// A status, and the signal that ends the container.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Status {
    pub status: v1::ContainerStatus,
    pub stop_signal: Option<String>,
}

impl Status {
    pub fn decode(bytes: &[u8]) -> Result<Self, prost::DecodeError> {
        let signal = ReportedSignal::decode(bytes)?.stop_signal;
        Ok(Self { status: v1::ContainerStatus::decode(bytes)?, stop_signal: name(signal) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_the_numbers_of_the_interface() {
        for (text, expected) in
            [("SIGABRT", 1), ("SIGTERM", 23), ("SIGUSR1", 29), ("SIGRTMIN+15", 50), ("SIGRTMAX", 65)]
        {
            assert_eq!((number(text), name(expected).as_deref()), (Some(expected), Some(text)));
        }
        assert_eq!((number("SIGNOPE"), name(0), name(66), name(-1)), (None, None, None, None));
    }

    #[test]
    fn messages_carry_what_the_crate_lacks() {
        let before = v1::ContainerConfig { log_path: "log".into(), tty: true, ..v1::ContainerConfig::default() };
        let bytes = config(&before, 29);
        assert_eq!(v1::ContainerConfig::decode(bytes.as_slice()).unwrap(), before, "an older runtime ignores it");
        assert_eq!(ConfiguredSignal::decode(bytes.as_slice()).unwrap().stop_signal, 29);
        let status = v1::ContainerStatus { id: "c".into(), exit_code: 3, ..v1::ContainerStatus::default() };
        let mut bytes = status.encode_to_vec();
        assert_eq!(Status::decode(&bytes).unwrap(), Status { status: status.clone(), stop_signal: None });
        bytes.extend(ReportedSignal { stop_signal: 23 }.encode_to_vec());
        assert_eq!(Status::decode(&bytes).unwrap(), Status { status, stop_signal: Some("SIGTERM".into()) });
        assert!(Status::decode(&[0xff]).is_err());
    }
}

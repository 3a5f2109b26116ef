//! Stop signals of containers: parts of the interface since Kubernetes v1.33 that the crate of its messages lacks. A runtime that does not know them
//! ignores the request and reports none.

use k8s_cri::v1;
use prost::Message;

/// The signals with names of their own, by their numbers in the interface, from 1 on. Those of real time follow.
const NAMED: [&str; 34] = [
    "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT", "KILL", "PIPE", "POLL",
    "PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM", "TRAP", "TSTP", "TTIN", "TTOU", "URG", "USR1",
    "USR2", "VTALRM", "WINCH", "XCPU", "XFSZ",
];
/// The number of the last signal, `SIGRTMAX`.
const LAST: i32 = 65;

/// The number of a signal in the interface.
pub(crate) fn number(signal: &str) -> Option<i32> {
    (1..=LAST).find(|number| name(*number).as_deref() == Some(signal))
}

/// The name of a signal; `None` if the runtime reports none.
fn name(number: i32) -> Option<String> {
    match number {
        1..=34 => NAMED.get(usize::try_from(number - 1).ok()?).map(|name| format!("SIG{name}")),
        35 => Some("SIGRTMIN".into()),
        36..=50 => Some(format!("SIGRTMIN+{}", number - 35)),
        51..=64 => Some(format!("SIGRTMAX-{}", LAST - number)),
        LAST => Some("SIGRTMAX".into()),
        _ => None,
    }
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
        for (text, expected) in [
            ("SIGABRT", 1),
            ("SIGTERM", 23),
            ("SIGUSR1", 29),
            ("SIGXFSZ", 34),
            ("SIGRTMIN", 35),
            ("SIGRTMIN+15", 50),
            ("SIGRTMAX-14", 51),
            ("SIGRTMAX", 65),
        ] {
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

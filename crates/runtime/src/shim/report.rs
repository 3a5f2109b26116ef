//! Reports of the start of a container to the shim, one packet each.

/// Kinds of reports of helper and child: the child's process id (as text), the master of its terminal, or an error. End of file
/// after the process id means success, since the socket is close-on-exec.
pub const REPORT_CHILD: u8 = b'P';
pub const REPORT_TERMINAL: u8 = b'T';
pub const REPORT_ERROR: u8 = b'E';
/// The hooks of the machine are due; the sender waits for [`GO`].
pub const REPORT_HOOKS: u8 = b'H';

/// The shim's answer to [`REPORT_HOOKS`].
pub const GO: u8 = b'G';

/// Maximum bytes of a reported error.
pub const MAX_ERROR: usize = 4096;

/// One packet from the start of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportPacket {
    /// The process that becomes the program; `None` if the id is invalid.
    Child(Option<i32>),
    /// A terminal comes with the packet.
    Terminal,
    /// The hooks of the machine are due.
    Hooks,
    /// Why the start failed, for users.
    Error(String),
    /// The kind of the packet is unknown, or the packet is empty.
    Unknown,
}

/// Parses one packet. A process id is always positive and not 1, whatever the packet contains.
pub fn read_report(packet: &[u8]) -> ReportPacket {
    let Some((kind, rest)) = packet.split_first() else { return ReportPacket::Unknown };
    let text = || String::from_utf8_lossy(rest).into_owned();
    match *kind {
        REPORT_CHILD => ReportPacket::Child(text().parse().ok().filter(|pid| *pid > 1)),
        REPORT_TERMINAL => ReportPacket::Terminal,
        REPORT_HOOKS => ReportPacket::Hooks,
        REPORT_ERROR => ReportPacket::Error(text()),
        _ => ReportPacket::Unknown,
    }
}

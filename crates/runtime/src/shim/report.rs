//! What the start of a container reports to the shim: one packet each.

/// What helper and child report before the program runs: the child's process id (as text), the master of its terminal, or why
/// it failed. End of file after the process id is success, since the socket closes on exec.
pub const REPORT_CHILD: u8 = b'P';
pub const REPORT_TERMINAL: u8 = b'T';
pub const REPORT_ERROR: u8 = b'E';

/// Bytes of an error that are reported.
pub const MAX_ERROR: usize = 4096;

/// One packet from the start of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportPacket {
    /// The process that becomes the program; `None` if the number is none.
    Child(Option<i32>),
    /// A terminal comes with the packet.
    Terminal,
    Error(String),
    Unknown,
}

/// Reads one packet. Whatever it holds, a process number is that of one process.
pub fn read_report(packet: &[u8]) -> ReportPacket {
    let Some((kind, rest)) = packet.split_first() else { return ReportPacket::Unknown };
    let text = || String::from_utf8_lossy(rest).into_owned();
    match *kind {
        REPORT_CHILD => ReportPacket::Child(text().parse().ok().filter(|pid| *pid > 1)),
        REPORT_TERMINAL => ReportPacket::Terminal,
        REPORT_ERROR => ReportPacket::Error(text()),
        _ => ReportPacket::Unknown,
    }
}

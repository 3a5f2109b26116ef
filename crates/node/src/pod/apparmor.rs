//! The AppArmor profile of containers without one, and of `RuntimeDefault`.
//!
//! It protects the kernel's files even if a mount of the container should be changed. Left out: hosts without `apparmor_parser`,
//! where containers can only use profiles that are loaded already.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The name of the profile in the kernel.
pub const DEFAULT: &str = "kemudi-default";

/// Paths of the program that loads profiles. `PATH` is not searched, since it runs as root.
const PARSER_DIRECTORIES: &[&str] = &["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// Files of the kernel that change or show the whole machine, with the denied permissions.
const DENIED: &[(&str, &str)] = &[
    ("/proc/sys/**", "wkl"),
    ("/proc/sysrq-trigger", "rwkl"),
    ("/proc/kcore", "rwkl"),
    ("/proc/mem", "rwkl"),
    ("/proc/kmem", "rwkl"),
    ("/proc/{acpi,asound,bus,driver,fs,irq,scsi,tty}/**", "wkl"),
    ("/sys/{block,bus,class,dev,devices,hypervisor,kernel,module,power}/**", "wkl"),
    ("/sys/fs/{[^c],[^c]*,c[^g]*}/**", "wkl"),
    ("/sys/firmware/**", "rwkl"),
    ("/sys/devices/virtual/powercap/**", "rwkl"),
    ("/sys/kernel/security/**", "rwkl"),
];

/// The source of the profile.
fn text() -> String {
    let mut text = format!("profile {DEFAULT} flags=(attach_disconnected,mediate_deleted) {{\n");
    // Other code limits capabilities, files and networks.
    text.push_str("  capability,\n  file,\n  network,\n  umount,\n  deny mount,\n");
    for (path, access) in DENIED {
        text.push_str(&format!("  deny {path} {access},\n"));
    }
    // Containers may signal each other; the shim and the host may signal containers.
    text.push_str("  signal (receive) peer=unconfined,\n");
    text.push_str(&format!("  signal (send, receive) peer={DEFAULT},\n"));
    text.push_str(&format!("  ptrace (trace, read, tracedby, readby) peer={DEFAULT},\n}}\n"));
    text
}

fn parser() -> Option<PathBuf> {
    PARSER_DIRECTORIES.iter().map(|d| Path::new(d).join("apparmor_parser")).find(|p| p.is_file())
}

/// Loads the profile, or replaces that of an earlier agent. Does nothing without AppArmor or its program.
pub fn load() -> io::Result<()> {
    let enabled = std::fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    match parser().filter(|_| enabled.is_ok_and(|e| e.starts_with('Y'))) {
        Some(parser) => load_with(&parser, &text()),
        None => Ok(()),
    }
}

fn load_with(parser: &Path, text: &str) -> io::Result<()> {
    let mut command = Command::new(parser);
    // Replace what is there, and keep no copy on disk.
    command.args(["--replace", "--skip-cache"]).env_clear().current_dir("/");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    if output.status.success() {
        return written;
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{}: {}: {}", parser.display(), output.status, message.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_denies_what_changes_the_machine() {
        let text = text();
        for line in [
            "profile kemudi-default flags=(attach_disconnected,mediate_deleted) {",
            "  deny mount,",
            "  deny /proc/sys/** wkl,",
            "  deny /proc/sysrq-trigger rwkl,",
            "  deny /sys/kernel/security/** rwkl,",
            "  signal (send, receive) peer=kemudi-default,",
            "  ptrace (trace, read, tracedby, readby) peer=kemudi-default,",
            "}",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        let inside = text.lines().filter(|l| l.starts_with("  "));
        assert!(inside.clone().all(|l| l.ends_with(',')), "{text}");
        assert_eq!(inside.count() + 2, text.lines().count());
    }

    #[test]
    fn passes_the_profile_to_the_program_and_returns_its_errors() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let parser = directory.path().join("apparmor_parser");
        let got = directory.path().join("got");
        let write = |script: String| {
            std::fs::write(&parser, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&parser, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        write(format!("echo \"$@\" > {0}; while read -r line; do echo \"$line\" >> {0}; done", got.display()));
        load_with(&parser, "profile x {\n}\n").unwrap();
        assert_eq!(std::fs::read_to_string(&got).unwrap(), "--replace --skip-cache\nprofile x {\n}\n");
        write("while read -r line; do :; done; echo 'syntax error' >&2; exit 1".to_owned());
        let error = load_with(&parser, "x").unwrap_err().to_string();
        assert!(error.contains("syntax error") && error.contains("exit status: 1"), "{error}");
    }
}

//! The process that the tests start as shim, and whose file is their demo image.
#![allow(unsafe_code)] // one system call

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some(kemudi_runtime::shim::COMMAND) => kemudi_runtime::shim::main(&args[1..]),
        Some("keyring") => {
            const GET_KEYRING_ID: libc::c_long = 0;
            const SESSION_KEYRING: libc::c_long = -3;
            // SAFETY: takes numbers only.
            println!("{}", unsafe { libc::syscall(libc::SYS_keyctl, GET_KEYRING_ID, SESSION_KEYRING, 0) });
            ExitCode::SUCCESS
        }
        Some("demo-app") => {
            println!("demo {}", args[1..].join(" "));
            ExitCode::SUCCESS
        }
        _ => ExitCode::from(2),
    }
}

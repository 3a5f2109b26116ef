//! The process that the tests start as shim; its file is their demo image.
#![allow(unsafe_code, clippy::unwrap_used)] // system calls; what fails here fails its test

mod attacks;
mod quotas;

use std::process::ExitCode;

fn main() -> ExitCode {
    if runtime::shim::is_requested() {
        return runtime::shim::main();
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["keyring"] => {
            const GET_KEYRING_ID: libc::c_long = 0;
            const SESSION_KEYRING: libc::c_long = -3;
            // SAFETY: takes numbers only.
            println!("{}", unsafe { libc::syscall(libc::SYS_keyctl, GET_KEYRING_ID, SESSION_KEYRING, 0) });
        }
        ["demo-app", words @ ..] => println!("demo {}", words.join(" ")),
        ["steal", count, secret] => attacks::steal(count.parse().unwrap(), secret),
        ["immutable", directories @ ..] => attacks::immutable(directories),
        ["park"] => attacks::park(),
        ["cat", file] => print!("{}", std::fs::read_to_string(file).unwrap()),
        ["kill"] => attacks::kill(),
        ["hold", lies @ ..] => attacks::hold(lies),
        ["fill-keys"] => quotas::fill_keys(),
        ["deep-cgroups"] => quotas::deep_cgroups(),
        ["descriptors-in-flight"] => quotas::descriptors_in_flight(),
        ["raise-limits", megabytes] => attacks::raise_limits(megabytes.parse().unwrap()),
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

//! kubectl alone, without the rest of the binary: `cargo run -p kemudi-kubectl --example kubectl -- get pods`.

#![allow(clippy::unwrap_used, reason = "a test may")]

fn main() -> std::process::ExitCode {
    kubectl::main(std::env::args_os().collect())
}

//! What the final binary does for the node agent, for this crate's tests: be a shim, and be the demo.
use std::process::ExitCode;

fn main() -> ExitCode {
    if runtime::shim::is_requested() {
        return runtime::shim::main();
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.split_first() {
        Some((first, rest)) if first == "demo-app" => match rest {
            [command, path, mib] if command == "fill" => fill(path, mib),
            [command] if command == "ignore-signals" => wait(),
            _ => node::demo::main(rest),
        },
        _ => {
            eprintln!("started by tests only");
            ExitCode::from(2)
        }
    }
}

/// Writes a file of this many MiB, and stays.
fn fill(path: &str, mib: &str) -> ExitCode {
    let size = mib.parse::<usize>().unwrap_or(0) << 20;
    match std::fs::write(path, vec![1; size]) {
        Ok(()) => wait(),
        Err(error) => {
            eprintln!("{path}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Stays for ever. The first process of a container gets no signals that it does not handle.
fn wait() -> ExitCode {
    loop {
        std::thread::park();
    }
}

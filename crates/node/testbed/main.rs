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
            [command, device, variable] if command == "use-device" => use_device(device, variable),
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

/// Stays if a device can be read and an environment variable has a value.
fn use_device(device: &str, variable: &str) -> ExitCode {
    use std::io::Read;
    let mut byte = [0];
    let read = std::fs::File::open(device).and_then(|mut file| file.read_exact(&mut byte));
    let value = std::env::var(variable).unwrap_or_default();
    match (read, value.is_empty()) {
        (Ok(()), false) => wait(),
        (read, _) => {
            eprintln!("{device}: {read:?}, {variable}={value}");
            ExitCode::FAILURE
        }
    }
}

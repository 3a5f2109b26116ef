//! What the final binary does for the node agent, for this crate's tests: be a shim, and be the demo.
use std::process::ExitCode;

fn main() -> ExitCode {
    if runtime::shim::is_requested() {
        return runtime::shim::main();
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.split_first() {
        Some((first, rest)) if first == "demo-app" => node::demo::main(rest),
        _ => {
            eprintln!("started by tests only");
            ExitCode::from(2)
        }
    }
}

//! The process that the tests start as shim, and whose file is their demo image.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some(kemudi_runtime::shim::COMMAND) => kemudi_runtime::shim::main(&args[1..]),
        Some("demo-app") => {
            println!("demo {}", args[1..].join(" "));
            ExitCode::SUCCESS
        }
        _ => ExitCode::from(2),
    }
}

//! Checks of the repository itself: `cargo xtask tidy` and `cargo xtask features`.

mod features;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from).unwrap_or_default();
    let result = match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy::run(&root),
        Some("features") => features::run(&root),
        _ => Err(vec!["usage: cargo xtask tidy | features".to_owned()]),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problems) => {
            problems.iter().for_each(|p| eprintln!("{p}"));
            eprintln!("{} problem(s)", problems.len());
            ExitCode::FAILURE
        }
    }
}

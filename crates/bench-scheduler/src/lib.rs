//! Measures the scheduler as upstream's `scheduler_perf` does: with a real API server in the same process, over a store in memory.
//!
//! A case is a row of [`cases::CASES`]: nodes, pods that are there, pods that come and go meanwhile, and the pods that are
//! measured. The rate is that from the first create of a measured pod to the last binding, so that it has the API server's work in it.

mod cases;
mod run;

use bench::{Format, Report, Row};
use cases::{CASES, Case};
use clap::Args;
use std::process::ExitCode;

/// The command line of `kemudi bench sched`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Run only these cases.
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(CASES.iter().map(|c| c.name)))]
    pub only: Vec<String>,
    /// Number of nodes. The numbers of pods change in the same proportion.
    #[arg(long, default_value_t = cases::NODES, value_parser = clap::value_parser!(u64).range(10..=20_000))]
    pub nodes: u64,
    /// Output format of the results.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

/// Runs the selected cases, prints the results, and returns the exit code.
pub fn main(options: &Options) -> ExitCode {
    let report = run_cases(options);
    print!("{}", report.print(options.output));
    if report.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs the selected cases, one after the other, each with a server of its own.
pub fn run_cases(options: &Options) -> Report {
    let selected = |case: &&Case| options.only.is_empty() || options.only.iter().any(|name| name == case.name);
    let rows = CASES.iter().filter(selected).map(|case| {
        eprintln!("{}: {}", case.name, case.about);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let measured = runtime.map_err(run::Error::from).and_then(|runtime| {
            let measured = runtime.block_on(run::measure(case, options.nodes));
            runtime.shutdown_background();
            measured
        });
        measured.unwrap_or_else(|e| Row::failed(case.name, e.to_string()))
    });
    Report { server: "in this process, in memory".into(), rows: rows.collect(), ..Report::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every case ends, with all its pods bound.
    #[test]
    fn measures_every_case_on_a_few_nodes() {
        let report = run_cases(&Options { only: Vec::new(), nodes: 20, output: Format::Table });
        assert!(!report.failed(), "{}", report.print(Format::Table));
        assert_eq!(report.rows.len(), CASES.len());
    }
}

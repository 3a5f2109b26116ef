//! Measures an API server as a client: the one of a kubeconfig, or one that is started for it.
//!
//! A benchmark is one file in `benches/` and one row of [`BENCHES`]. Each is bounded in count and in time, works in a namespace of
//! its own that is removed after it, and counts every answer that is an error: a run with one of them does not count. Left out:
//! comparing runs, and values that only the server knows.

mod benches;
mod cluster;
mod context;
mod load;
mod objects;
mod options;
mod report;

pub use options::{Format, Options};
pub use report::{Report, Row};

use async_trait::async_trait;
use benches::{apply, create, exec, get, idle_pods, large, list, run, scale, schedule, services, start, watch};
use context::Context;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How long one benchmark may take with everything it prepares.
const LIMIT: Duration = Duration::from_secs(600);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Client(#[from] client::Error),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("no benchmark is called {0:?}; there are {1}")]
    Unknown(String, String),
    #[error("start needs --start: which program to start")]
    NothingToStart,
    #[error("starting {program}: {source}")]
    Start { program: String, source: std::io::Error },
    #[error("the server ended early ({status}):\n{log}")]
    Ended { status: String, log: String },
    #[error("{what} not within {limit:?}")]
    Late { what: String, limit: Duration },
    #[error("{0}")]
    Answer(String),
}

/// The result of a benchmark.
pub enum Outcome {
    Measured(Vec<Row>),
    /// It cannot be measured here, for this reason.
    Skipped(String),
}

#[async_trait]
pub trait Bench: Sync {
    fn name(&self) -> &'static str;
    /// One line for `--help`: what is measured.
    fn about(&self) -> &'static str;
    /// Whether it runs without `--only`.
    fn is_default(&self) -> bool {
        true
    }
    /// How long it may take.
    fn limit(&self) -> Duration {
        LIMIT
    }
    async fn run(&self, cx: &mut Context) -> Result<Outcome, Error>;
}

/// All benchmarks, in the order in which they run.
pub const BENCHES: &[&dyn Bench] = &[
    &start::Start,
    &create::CONFIG_MAPS,
    &create::PODS,
    &get::Get,
    &list::List,
    &watch::Watch,
    &apply::Apply,
    &schedule::Schedule,
    &scale::Scale,
    &scale::DeleteNamespace,
    &run::RunPods,
    &exec::Exec,
    &services::Services,
    &idle_pods::IdlePods,
    &large::Large,
];

/// Runs the selected benchmarks, prints the results, and returns the exit code.
pub fn main(options: &Options) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(r) => r,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(measure(options)) {
        Ok(report) => {
            print!("{}", report.print(options.output));
            if report.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the selected benchmarks. Everything created on the server or this machine is removed, also after Ctrl-C.
pub async fn measure(options: &Options) -> Result<Report, Error> {
    let selected = select(options)?;
    let mut cx = Context::open(options).await?;
    let report = run_all(&selected, options, &mut cx).await;
    cx.close().await;
    report
}

async fn run_all(selected: &[&dyn Bench], options: &Options, cx: &mut Context) -> Result<Report, Error> {
    // `start` starts the server that the others measure; without it one must be running.
    if options.start.is_some() && !selected.iter().any(|b| b.name() == start::NAME) {
        cx.start_server().await?;
    }
    let mut report = Report::default();
    for bench in selected {
        eprintln!("{}: {}", bench.name(), bench.about());
        let outcome = tokio::select! {
            o = tokio::time::timeout(bench.limit(), bench.run(cx)) => {
                o.unwrap_or_else(|_| Err(Error::Late { what: bench.name().into(), limit: bench.limit() }))
            }
            _ = tokio::signal::ctrl_c() => Err(Error::Answer("interrupted".into())),
        };
        let interrupted = matches!(&outcome, Err(Error::Answer(why)) if why == "interrupted");
        match outcome {
            Ok(Outcome::Measured(rows)) => report.rows.extend(rows),
            Ok(Outcome::Skipped(why)) if options.only.is_empty() => report.skipped.push((bench.name(), why)),
            Ok(Outcome::Skipped(why)) => report.rows.push(Row::failed(bench.name(), why)),
            Err(e) => report.rows.push(Row::failed(bench.name(), e.to_string())),
        }
        cx.leave().await;
        if interrupted {
            break;
        }
    }
    report.server = cx.version().await;
    Ok(report)
}

fn select(options: &Options) -> Result<Vec<&'static dyn Bench>, Error> {
    if options.only.is_empty() {
        let all = BENCHES.iter().copied().filter(|b| b.is_default());
        return Ok(all.filter(|b| b.name() != start::NAME || options.start.is_some()).collect());
    }
    for name in &options.only {
        if !BENCHES.iter().any(|b| b.name() == name) {
            let names: Vec<_> = BENCHES.iter().map(|b| b.name()).collect();
            return Err(Error::Unknown(name.clone(), names.join(", ")));
        }
        if name == start::NAME && options.start.is_none() {
            return Err(Error::NothingToStart);
        }
    }
    Ok(BENCHES.iter().copied().filter(|b| options.only.iter().any(|n| n == b.name())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn names(args: &[&str]) -> Result<Vec<&'static str>, String> {
        let cli = Cli::parse_from([&["bench"], args].concat());
        select(&cli.options).map(|v| v.iter().map(|b| b.name()).collect()).map_err(|e| e.to_string())
    }

    #[test]
    fn selected_benchmarks_run_in_the_order_of_the_table() {
        assert_eq!(names(&["--only", "get,create-pods"]), Ok(vec!["create-pods", "get"]));
        assert_eq!(names(&[]).unwrap()[0], "create-configmaps", "nothing is started unless requested");
        assert_eq!(names(&["--start", "kemudi"]).unwrap()[0], "start");
        assert!(names(&["--only", "start"]).unwrap_err().contains("--start"));
        assert!(names(&["--only", "nap"]).unwrap_err().contains("create-configmaps"));
    }
}

//! The command line.

use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Json,
}

#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Kubeconfig of the cluster to measure. Default: the one that `kubectl` uses.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current context.
    #[arg(long)]
    pub context: Option<String>,
    /// Run only these benchmarks.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Number of concurrent connections. Default: 64 (16 for apply).
    #[arg(long)]
    pub connections: Option<usize>,
    /// Maximum duration of each measurement in seconds.
    #[arg(long, default_value = "10", value_parser = seconds)]
    pub duration: Duration,
    /// Maximum count of each measurement: requests, objects in a list, watchers or pods. Every benchmark has its own default.
    #[arg(long)]
    pub count: Option<u64>,
    /// Number of nodes without agents that `schedule` makes. Default: one for each 100 pods.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=50_000))]
    pub nodes: Option<u64>,
    /// Image of the pods that run.
    #[arg(long, default_value = "kemudi.local/demo:latest")]
    pub image: String,
    /// Start this kemudi program with an empty directory, measure it, and stop it at the end. Arguments after `--` are passed to its
    /// `up` command.
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["kubeconfig", "context"])]
    pub start: Option<PathBuf>,
    /// Data directory of the started server. Default: a temporary directory.
    #[arg(long, requires = "start")]
    pub data_dir: Option<PathBuf>,
    /// Idle time in seconds of the started server before its memory and processor usage are read.
    #[arg(long, default_value = "60", value_parser = seconds)]
    pub idle: Duration,
    /// Output format of the results.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
    /// More arguments for the started server.
    #[arg(last = true)]
    pub args: Vec<String>,
}

impl Options {
    /// The requested count, or the default of the benchmark.
    pub fn count_or(&self, own: u64) -> u64 {
        self.count.unwrap_or(own).max(1)
    }

    pub fn connections_or(&self, own: usize) -> usize {
        self.connections.unwrap_or(own).max(1)
    }
}

/// Seconds, with or without an `s`.
fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    let value: f64 = number.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    Duration::try_from_secs_f64(value).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::seconds;
    use std::time::Duration;

    #[test]
    fn durations_are_seconds() {
        assert_eq!(seconds("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(seconds("-1").is_err() && seconds("1h").is_err());
    }
}

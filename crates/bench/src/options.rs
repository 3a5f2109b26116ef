//! What may be said on the command line.

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
    /// The cluster to measure. Default: what `kubectl` would talk to.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig. Default: its current one.
    #[arg(long)]
    pub context: Option<String>,
    /// Measure these only, by name.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// How many connections send at the same time. Default: 64 (16 for apply).
    #[arg(long)]
    pub connections: Option<usize>,
    /// How long each measurement goes on at most, in seconds.
    #[arg(long, default_value = "10", value_parser = seconds)]
    pub duration: Duration,
    /// How much each measurement does at most: requests, objects in a list, watchers, pods. Every benchmark has its own default.
    #[arg(long)]
    pub count: Option<u64>,
    /// The image of the pods that are run.
    #[arg(long, default_value = "kemudi.local/demo:latest")]
    pub image: String,
    /// Start this kemudi on an empty directory, measure that, and stop it at the end. What follows `--` goes to its `up`.
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["kubeconfig", "context"])]
    pub start: Option<PathBuf>,
    /// Where the started server keeps its data. Default: a temporary directory.
    #[arg(long, requires = "start")]
    pub data_dir: Option<PathBuf>,
    /// How long the started server is left alone before its memory and its use of the processor are read, in seconds.
    #[arg(long, default_value = "60", value_parser = seconds)]
    pub idle: Duration,
    /// How the results are printed.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
    /// More arguments for the started server.
    #[arg(last = true)]
    pub args: Vec<String>,
}

impl Options {
    /// How much to do: what was asked for, or the benchmark's own measure.
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

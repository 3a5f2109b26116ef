//! Flags of the API server, under upstream's names.

use apiserver::audit;
use clap::{ArgMatches, Args};
use client::https::ClientIdentity;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("loading audit policy file: {source}: from file {path}")]
    Policy { path: PathBuf, source: audit::Error },
    #[error("{0}")]
    Audit(String),
    #[error("invalid argument {0:?} for \"--feature-gates\" flag: {1}")]
    Gate(String, String),
}

/// Answers and bodies in CBOR. The store keeps JSON whatever the name of the gate says.
const CBOR: &str = "CBORServingAndStorage";

#[derive(Args)]
#[group(id = "api")]
pub struct Flags {
    /// The longest time a request may take that is no watch and no stream.
    #[arg(long, default_value = "1m", value_parser = apiserver::duration)]
    pub request_timeout: Duration,
    /// Seconds: a watch that asks for no end lives for once to twice as long.
    #[arg(long, default_value_t = 1800)]
    pub min_request_timeout: u64,
    /// Requests that only read, at a time; 0 for any number.
    #[arg(long, default_value_t = 400)]
    pub max_requests_inflight: usize,
    /// Requests that may change something, at a time; 0 for any number.
    #[arg(long, default_value_t = 200)]
    pub max_mutating_requests_inflight: usize,
    /// Whether FlowSchemas and PriorityLevelConfigurations govern requests; the two numbers above together are their seats.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub enable_priority_and_fairness: bool,
    /// How long the server goes on serving after it was asked to stop, while /readyz already says that it ends.
    #[arg(long, default_value = "0s", value_parser = apiserver::duration)]
    pub shutdown_delay_duration: Duration,
    /// The certificate by which extension API servers know this one, with its key. Default: one of this cluster's own CA.
    #[arg(long, requires = "proxy_client_key_file")]
    pub proxy_client_cert_file: Option<PathBuf>,
    #[arg(long, requires = "proxy_client_cert_file")]
    pub proxy_client_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub audit: crate::audit::Flags,
    /// Which built-in APIs are served: `api/all`, `api/ga`, `api/beta`, `api/alpha`, `group/version` or `group/version/resource`
    /// with `=true` or `=false`.
    #[arg(long, value_delimiter = ',')]
    pub runtime_config: Vec<String>,
    /// Features that are off by default, as `CBORServingAndStorage=true`. `AllAlpha` and `AllBeta` mean all of that stage.
    #[arg(long, value_delimiter = ',')]
    pub feature_gates: Vec<String>,
    /// How long an event is kept after it was last written; 0 for ever.
    #[arg(long, default_value = "1h", value_parser = apiserver::duration)]
    pub event_ttl: Duration,
}

/// The flags of a command with their values, given or not, by the names they have on the command line.
pub fn shown(matches: &ArgMatches) -> BTreeMap<String, String> {
    let value = |id: &str| {
        let raw = matches.try_get_raw(id).ok().flatten()?;
        Some(raw.map(|v| v.to_string_lossy()).collect::<Vec<_>>().join(","))
    };
    matches.ids().filter_map(|id| Some((id.as_str().replace('_', "-"), value(id.as_str())?))).collect()
}

impl Flags {
    pub async fn server(&self) -> Result<apiserver::Options, Error> {
        Ok(apiserver::Options {
            request_timeout: self.request_timeout,
            min_request_timeout: Duration::from_secs(self.min_request_timeout),
            max_requests_in_flight: self.max_requests_inflight,
            max_mutating_requests_in_flight: self.max_mutating_requests_inflight,
            priority_and_fairness: self.enable_priority_and_fairness,
            proxy_client: self.proxy_client()?,
            audit: self.audit.audit().await?,
            flags: BTreeMap::new(),
            cbor: self.gate(CBOR)?,
            ..apiserver::Options::default()
        })
    }

    /// Whether a feature is on. All of them are alpha so far.
    fn gate(&self, name: &str) -> Result<bool, Error> {
        let (mut said, mut alpha) = (None, false);
        for given in &self.feature_gates {
            let wrong = |why: String| Error::Gate(self.feature_gates.join(","), why);
            let (k, v) =
                given.trim().split_once('=').ok_or_else(|| wrong(format!("missing bool value for {given}")))?;
            let v = match v {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                _ => {
                    let why = format!("strconv.ParseBool: parsing {v:?}: invalid syntax");
                    return Err(wrong(format!("invalid value of {k}={v}, err: {why}")));
                }
            };
            match k {
                _ if k == name => said = Some(v),
                "AllAlpha" => alpha = v,
                "AllBeta" | CBOR => {}
                _ => return Err(wrong(format!("unrecognized feature gate: {k}"))),
            }
        }
        Ok(said.unwrap_or(alpha))
    }

    fn proxy_client(&self) -> Result<Option<ClientIdentity>, Error> {
        let (Some(crt), Some(key)) = (&self.proxy_client_cert_file, &self.proxy_client_key_file) else {
            return Ok(None);
        };
        let read = |path: &PathBuf| std::fs::read(path).map_err(|source| Error::File { path: path.clone(), source });
        Ok(Some(ClientIdentity { certificates: read(crt)?, key: read(key)? }))
    }
}

#[cfg(test)]
mod tests {
    use super::{CBOR, Flags};
    use clap::{Args, FromArgMatches};

    fn gate(given: &str) -> Result<bool, String> {
        let command = Flags::augment_args(clap::Command::new("up"));
        let matches = command.get_matches_from(["up", "--feature-gates", given]);
        Flags::from_arg_matches(&matches).unwrap().gate(CBOR).map_err(|e| e.to_string())
    }

    #[test]
    fn gates_are_read_as_upstream_reads_them() {
        assert_eq!(gate("CBORServingAndStorage=true"), Ok(true));
        assert_eq!(gate("AllAlpha=true"), Ok(true));
        assert_eq!(gate("AllAlpha=true,CBORServingAndStorage=false"), Ok(false), "the name itself weighs more");
        assert_eq!(gate("AllBeta=true"), Ok(false));
        let refused = |given: &str| gate(given).unwrap_err();
        assert!(refused("Nosuch=true").ends_with("unrecognized feature gate: Nosuch"));
        assert!(refused("CBORServingAndStorage").ends_with("missing bool value for CBORServingAndStorage"));
        assert!(
            refused("AllAlpha=yes")
                .ends_with("invalid value of AllAlpha=yes, err: strconv.ParseBool: parsing \"yes\": invalid syntax")
        );
    }
}

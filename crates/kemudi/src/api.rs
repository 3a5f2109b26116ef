//! Flags of the API server, under upstream's names.

use crate::flag_error::Error;
use clap::{ArgMatches, Args};
use client::https::ClientIdentity;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

/// Serves CBOR. The store keeps JSON, in spite of the gate's name.
const CBOR: &str = "CBORServingAndStorage";
/// Fields of the API that features bring, by the names of their gates.
const FIELDS: [&str; 2] = ["ContainerStopSignals", MAX_UNAVAILABLE];
/// StatefulSets end several pods at a time in a rolling update. The only gate of the stage beta.
const MAX_UNAVAILABLE: &str = "MaxUnavailableStatefulSet";

#[derive(Args)]
#[group(id = "api")]
pub struct Flags {
    /// Maximum duration of a request that is neither a watch nor a stream.
    #[arg(long, default_value = "1m", value_parser = apiserver::duration)]
    pub request_timeout: Duration,
    /// Minimum duration in seconds of a watch without a timeout; it lasts up to twice as long.
    #[arg(long, default_value_t = 1800)]
    pub min_request_timeout: u64,
    /// Maximum number of concurrent read-only requests; 0 for no limit.
    #[arg(long, default_value_t = 400)]
    pub max_requests_inflight: usize,
    /// Maximum number of concurrent mutating requests; 0 for no limit.
    #[arg(long, default_value_t = 200)]
    pub max_mutating_requests_inflight: usize,
    /// Enables priority and fairness (FlowSchemas and PriorityLevelConfigurations). Its seats are the sum of both limits above.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub enable_priority_and_fairness: bool,
    /// How long the server keeps serving after a signal to stop, while /readyz already fails.
    #[arg(long, default_value = "0s", value_parser = apiserver::duration)]
    pub shutdown_delay_duration: Duration,
    /// Client certificate for extension API servers. Default: one of the cluster's own CA.
    #[arg(long, requires = "proxy_client_key_file")]
    pub proxy_client_cert_file: Option<PathBuf>,
    #[arg(long, requires = "proxy_client_cert_file")]
    pub proxy_client_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub audit: crate::audit::Flags,
    /// Turns built-in APIs on or off: `api/all`, `api/ga`, `api/beta`, `api/alpha`, `group/version` or `group/version/resource`
    /// with `=true` or `=false`.
    #[arg(long, value_delimiter = ',')]
    pub runtime_config: Vec<String>,
    /// Turns features on or off, such as `CBORServingAndStorage=true`. `AllAlpha` and `AllBeta` are the features of a stage.
    #[arg(long, value_delimiter = ',')]
    pub feature_gates: Vec<String>,
    /// How long an event is kept after its last update; 0 for ever.
    #[arg(long, default_value = "1h", value_parser = apiserver::duration)]
    pub event_ttl: Duration,
}

/// The flags of a command with their values, including defaults, by name.
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

    /// Whether a feature is on. Those of the stage beta are off without a flag, too.
    fn gate(&self, name: &str) -> Result<bool, Error> {
        let stage = if name == MAX_UNAVAILABLE { "AllBeta" } else { "AllAlpha" };
        let (mut value, mut all) = (None, false);
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
                _ if k == name => value = Some(v),
                _ if k == stage => all = v,
                "AllAlpha" | "AllBeta" | CBOR => {}
                _ if FIELDS.contains(&k) => {}
                _ => return Err(wrong(format!("unrecognized feature gate: {k}"))),
            }
        }
        Ok(value.unwrap_or(all))
    }

    /// The gates of fields that are enabled.
    pub fn features(&self) -> Result<BTreeSet<String>, Error> {
        let mut enabled = BTreeSet::new();
        for name in FIELDS {
            if self.gate(name)? {
                enabled.insert(name.to_owned());
            }
        }
        Ok(enabled)
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
    use super::{CBOR, Flags, MAX_UNAVAILABLE};
    use clap::{Args, FromArgMatches};

    fn gate(given: &str) -> Result<bool, String> {
        gate_of(CBOR, given)
    }

    fn gate_of(name: &str, given: &str) -> Result<bool, String> {
        let command = Flags::augment_args(clap::Command::new("up"));
        let matches = command.get_matches_from(["up", "--feature-gates", given]);
        Flags::from_arg_matches(&matches).unwrap().gate(name).map_err(|e| e.to_string())
    }

    #[test]
    fn gates_are_read_as_upstream_reads_them() {
        assert_eq!(gate("CBORServingAndStorage=true"), Ok(true));
        assert_eq!(gate("AllAlpha=true"), Ok(true));
        assert_eq!(gate("AllAlpha=true,CBORServingAndStorage=false"), Ok(false), "the name itself weighs more");
        assert_eq!(gate("AllBeta=true"), Ok(false));
        assert_eq!(gate("ContainerStopSignals=true"), Ok(false), "another one");
        assert_eq!(gate_of(MAX_UNAVAILABLE, "AllAlpha=true"), Ok(false));
        assert_eq!(gate_of(MAX_UNAVAILABLE, "AllBeta=true"), Ok(true));
        assert_eq!(gate_of(MAX_UNAVAILABLE, "MaxUnavailableStatefulSet=false,AllBeta=true"), Ok(false));
        let refused = |given: &str| gate(given).unwrap_err();
        assert!(refused("Nosuch=true").ends_with("unrecognized feature gate: Nosuch"));
        assert!(refused("CBORServingAndStorage").ends_with("missing bool value for CBORServingAndStorage"));
        assert!(
            refused("AllAlpha=yes")
                .ends_with("invalid value of AllAlpha=yes, err: strconv.ParseBool: parsing \"yes\": invalid syntax")
        );
    }
}

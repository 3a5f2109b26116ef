//! The global flags of kubectl.

use super::duration_text;
use clap::Args;

/// Flags that every command has.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Global options")]
pub struct GlobalFlags {
    /// Kubeconfig file to use instead of KUBECONFIG and ~/.kube/config.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub kubeconfig: String,
    /// Kubeconfig context to use.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub context: String,
    /// Kubeconfig cluster to use.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub cluster: String,
    /// Kubeconfig user to use.
    #[arg(long, global = true)]
    pub user: Vec<String>,
    /// Namespace to use.
    #[arg(short = 'n', long, global = true, default_value = "", hide_default_value = true)]
    pub namespace: String,
    /// Address of the API server.
    #[arg(short = 's', long, global = true, default_value = "", hide_default_value = true)]
    pub server: String,
    /// Bearer token for authentication.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub token: String,
    /// File with the CA certificates to trust.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub certificate_authority: String,
    /// File with the client certificate.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub client_certificate: String,
    /// File with the key of the client certificate.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub client_key: String,
    /// Do not verify the server's certificate. Anybody between client and server can read and change the traffic.
    #[arg(long, global = true)]
    pub insecure_skip_tls_verify: bool,
    /// Name to expect in the server's certificate.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub tls_server_name: String,
    /// User name for basic authentication.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub username: String,
    /// Password for basic authentication.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub password: String,
    /// User to impersonate.
    #[arg(long = "as", global = true, default_value = "", hide_default_value = true)]
    pub impersonate: String,
    /// Group to impersonate; may be repeated.
    #[arg(long, global = true)]
    pub as_group: Vec<String>,
    /// UID to impersonate.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub as_uid: String,
    /// Extra field KEY=VALUE of the user to impersonate; may be repeated.
    #[arg(long, global = true)]
    pub as_user_extra: Vec<String>,
    /// File with preferences (aliases and default flags) instead of ~/.kube/kuberc.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub kuberc: String,
    /// Accepted without effect: responses are never compressed.
    #[arg(long, global = true)]
    pub disable_compression: bool,
    /// Time limit of a single request; 0 is no limit.
    #[arg(long, global = true, default_value = "0", hide_default_value = true)]
    pub request_timeout: String,
    /// Directory of the discovery cache.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub cache_dir: String,
    /// Verbosity of the log.
    #[arg(short = 'v', long = "v", global = true, default_value = "0", hide_default_value = true)]
    pub verbosity: i32,
    /// Accepted without effect: verbosity per source file, PATTERN=N,….
    #[arg(long, global = true, default_value = "", hide_default_value = true, value_parser = vmodule)]
    pub vmodule: String,
    /// Accepted without effect: the log is not buffered.
    #[arg(long, global = true, default_value = "5s", hide_default_value = true, value_parser = frequency)]
    pub log_flush_frequency: String,
    /// Only none is possible: this program has no Go runtime to profile.
    #[arg(long, global = true, default_value = "none", hide_default_value = true)]
    pub profile: String,
    /// Accepted without effect: file for the profile.
    #[arg(long, global = true, default_value = "profile.pprof", hide_default_value = true)]
    pub profile_output: String,
    /// Fail if server and client have different versions.
    #[arg(long, global = true)]
    pub match_server_version: bool,
    /// Treat warnings of the server as errors.
    #[arg(long, global = true)]
    pub warnings_as_errors: bool,
    /// The fields of this struct that the command line sets, even to an empty value.
    #[arg(skip)]
    pub given: Vec<String>,
    /// The fields of the command's arguments that the command line sets, even to an empty value.
    #[arg(skip)]
    pub own: Vec<String>,
    /// How many times `--record` is given.
    #[arg(skip)]
    pub recorded: usize,
    /// Whether the command reads standard input.
    #[arg(skip)]
    pub stdin_in_use: bool,
    /// Whether the command works on all namespaces.
    #[arg(skip)]
    pub all_namespaces: bool,
    /// The value of `--dry-run`, if the command has the flag.
    #[arg(skip)]
    pub dry_run: Option<String>,
    /// The command line as the cause of a change, if it must be recorded.
    #[arg(skip)]
    pub cause: Option<String>,
}

/// Checks `--vmodule`: pairs of a pattern and a number.
fn vmodule(s: &str) -> Result<String, String> {
    let fits = |pair: &str| pair.split_once('=').is_some_and(|(p, n)| !p.is_empty() && n.parse::<i32>().is_ok());
    match s.split(',').filter(|p| !p.is_empty()).all(fits) {
        true => Ok(s.to_owned()),
        false => Err("syntax error: expect comma-separated list of filename=N".into()),
    }
}

/// Checks `--log-flush-frequency`, with an error message of its own.
fn frequency(s: &str) -> Result<String, String> {
    duration_text(s).map_err(|_| "parse error".into())
}

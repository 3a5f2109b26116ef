//! The global flags of kubectl.

use super::duration_text;
use clap::Args;

/// Flags that every command has.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Global options")]
pub struct GlobalFlags {
    /// The kubeconfig file to use, in place of KUBECONFIG and ~/.kube/config.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub kubeconfig: String,
    /// The context of the kubeconfig to use.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub context: String,
    /// The cluster of the kubeconfig to use.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub cluster: String,
    /// The user of the kubeconfig to use.
    #[arg(long, global = true)]
    pub user: Vec<String>,
    /// The namespace to work in.
    #[arg(short = 'n', long, global = true, default_value = "", hide_default_value = true)]
    pub namespace: String,
    /// Address of the API server.
    #[arg(short = 's', long, global = true, default_value = "", hide_default_value = true)]
    pub server: String,
    /// Bearer token.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub token: String,
    /// File with the certificates to trust.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub certificate_authority: String,
    /// File with a client certificate.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub client_certificate: String,
    /// File with the key of the client certificate.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub client_key: String,
    /// Trust any certificate of the server. Whoever is in between can read and change everything.
    #[arg(long, global = true)]
    pub insecure_skip_tls_verify: bool,
    /// The name that the server's certificate must carry.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub tls_server_name: String,
    /// The name for basic authentication.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub username: String,
    /// The password for basic authentication.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub password: String,
    /// The user to act as.
    #[arg(long = "as", global = true, default_value = "", hide_default_value = true)]
    pub impersonate: String,
    /// A group to act as; may be repeated.
    #[arg(long, global = true)]
    pub as_group: Vec<String>,
    /// The UID to act as.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub as_uid: String,
    /// KEY=VALUE of the user to act as; may be repeated.
    #[arg(long, global = true)]
    pub as_user_extra: Vec<String>,
    /// A file with aliases and defaults of flags, in place of ~/.kube/kuberc.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub kuberc: String,
    /// Answers are never compressed here.
    #[arg(long, global = true)]
    pub disable_compression: bool,
    /// How long one request may take; 0 is for ever.
    #[arg(long, global = true, default_value = "0", hide_default_value = true)]
    pub request_timeout: String,
    /// Where answers about the server's resources are kept.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    pub cache_dir: String,
    /// How much to say about what goes on.
    #[arg(short = 'v', long = "v", global = true, default_value = "0", hide_default_value = true)]
    pub verbosity: i32,
    /// How much to say about what goes on, file by file: PATTERN=N,….
    #[arg(long, global = true, default_value = "", hide_default_value = true, value_parser = vmodule)]
    pub vmodule: String,
    /// How often what is said about that goes out; it is never held back here.
    #[arg(long, global = true, default_value = "5s", hide_default_value = true, value_parser = frequency)]
    pub log_flush_frequency: String,
    /// none, or a profile of a Go runtime, which is refused: this program has none.
    #[arg(long, global = true, default_value = "none", hide_default_value = true)]
    pub profile: String,
    /// Where the profile would go.
    #[arg(long, global = true, default_value = "profile.pprof", hide_default_value = true)]
    pub profile_output: String,
    /// Refuse a server of another version than this program.
    #[arg(long, global = true)]
    pub match_server_version: bool,
    /// A warning of the server is an error.
    #[arg(long, global = true)]
    pub warnings_as_errors: bool,
    /// Which of these were on the command line, even if empty, by the names of the fields.
    #[arg(skip)]
    pub given: Vec<String>,
    /// Which flags of the command were on the command line, even if empty, by the names of the fields.
    #[arg(skip)]
    pub own: Vec<String>,
    /// How often `--record` is on the command line.
    #[arg(skip)]
    pub recorded: usize,
    /// Whether the command reads standard input.
    #[arg(skip)]
    pub stdin_in_use: bool,
    /// Whether the command is about all namespaces.
    #[arg(skip)]
    pub all_namespaces: bool,
    /// The value of `--dry-run`, if the command has it.
    #[arg(skip)]
    pub dry_run: Option<String>,
    /// The command line as the cause of a change, if it is to be kept.
    #[arg(skip)]
    pub cause: Option<String>,
}

/// `--vmodule`: pairs of a pattern and a number. What Go's files would say is not said here.
fn vmodule(s: &str) -> Result<String, String> {
    let fits = |pair: &str| pair.split_once('=').is_some_and(|(p, n)| !p.is_empty() && n.parse::<i32>().is_ok());
    match s.split(',').filter(|p| !p.is_empty()).all(fits) {
        true => Ok(s.to_owned()),
        false => Err("syntax error: expect comma-separated list of filename=N".into()),
    }
}

/// `--log-flush-frequency`, refused in words of its own.
fn frequency(s: &str) -> Result<String, String> {
    duration_text(s).map_err(|_| "parse error".into())
}

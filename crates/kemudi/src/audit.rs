//! Audit flags, under upstream's names, and the backends that they configure.

use crate::flag_error::Error;
use crate::system::{SystemClock, SystemRng};
use apiserver::audit::{Audit, AuditBackend, Batch, Limits, Log, Mode, Policy, Rotation, Sink, Webhook};
use auth::remote::Remote;
use clap::Args;
use meta::Clock;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Timeout of a webhook for one batch.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// Delivery options of a backend. Only the names differ between backends.
macro_rules! batches {
    ($name:ident, $plugin:literal, $mode:literal, $size:literal, $wait:literal, $throttle:literal, $qps:literal, $burst:literal) => {
        #[derive(Args)]
        pub struct $name {
            /// When events are delivered: `batch`, `blocking` (before the response) or `blocking-strict` (and a request fails if its first
            /// event is lost).
            #[arg(id = concat!("audit-", $plugin, "-mode"), long = concat!("audit-", $plugin, "-mode"), default_value = $mode,
                value_parser = ["batch", "blocking", "blocking-strict"])]
            mode: String,
            /// Maximum number of events that wait for a batch; further ones are lost.
            #[arg(id = concat!("audit-", $plugin, "-batch-buffer-size"), long = concat!("audit-", $plugin, "-batch-buffer-size"),
                default_value_t = 10_000)]
            buffer: usize,
            /// Maximum number of events in a batch.
            #[arg(id = concat!("audit-", $plugin, "-batch-max-size"), long = concat!("audit-", $plugin, "-batch-max-size"),
                default_value_t = $size)]
            size: usize,
            /// Maximum wait before a batch that is not full is sent.
            #[arg(id = concat!("audit-", $plugin, "-batch-max-wait"), long = concat!("audit-", $plugin, "-batch-max-wait"),
                default_value = $wait, value_parser = apiserver::duration)]
            wait: Duration,
            /// Limits the number of batches per second.
            #[arg(id = concat!("audit-", $plugin, "-batch-throttle-enable"), long = concat!("audit-", $plugin, "-batch-throttle-enable"),
                default_value_t = $throttle, action = clap::ArgAction::Set, default_missing_value = "true", num_args = 0..=1,
                require_equals = true)]
            throttle: bool,
            /// Maximum number of batches per second.
            #[arg(id = concat!("audit-", $plugin, "-batch-throttle-qps"), long = concat!("audit-", $plugin, "-batch-throttle-qps"),
                default_value_t = $qps)]
            qps: f64,
            /// Burst of batches after a pause.
            #[arg(id = concat!("audit-", $plugin, "-batch-throttle-burst"), long = concat!("audit-", $plugin, "-batch-throttle-burst"),
                default_value_t = $burst)]
            burst: u32,
            /// Truncates events and batches that are too large: an event loses its objects.
            #[arg(id = concat!("audit-", $plugin, "-truncate-enabled"), long = concat!("audit-", $plugin, "-truncate-enabled"),
                default_value_t = false, action = clap::ArgAction::Set, default_missing_value = "true", num_args = 0..=1,
                require_equals = true)]
            truncate: bool,
            /// Maximum size of an event in bytes.
            #[arg(id = concat!("audit-", $plugin, "-truncate-max-event-size"), long = concat!("audit-", $plugin, "-truncate-max-event-size"),
                default_value_t = 100 * 1024)]
            event_bytes: usize,
            /// Maximum size of a batch in bytes.
            #[arg(id = concat!("audit-", $plugin, "-truncate-max-batch-size"), long = concat!("audit-", $plugin, "-truncate-max-batch-size"),
                default_value_t = 10 * 1024 * 1024)]
            batch_bytes: usize,
        }

        impl $name {
            fn limits(&self) -> Result<Option<Limits>, Error> {
                let (event, batch, plugin) = (self.event_bytes, self.batch_bytes, $plugin);
                let bad = |why: String| Err(Error::Audit(format!("invalid audit truncate {plugin} {why}")));
                match () {
                    () if !self.truncate => Ok(None),
                    () if batch == 0 => bad(format!("max batch size {batch}, must be a positive number")),
                    () if event == 0 || event > batch => {
                        bad(format!("max event size {event}, must be a positive number not greater than the max batch size {batch}"))
                    }
                    () => Ok(Some(Limits { event, batch })),
                }
            }

            fn mode(&self) -> Result<Mode, Error> {
                let bad = |what: &str, value: &dyn std::fmt::Display| {
                    let plugin = $plugin;
                    let why = format!("invalid audit batch {plugin} {what} {value}, must be a positive number");
                    Err(Error::Audit(why))
                };
                Ok(match self.mode.as_str() {
                    "blocking" => Mode::Blocking,
                    "blocking-strict" => Mode::Strict,
                    _ if self.buffer == 0 => return bad("buffer size", &self.buffer),
                    _ if self.size == 0 => return bad("max batch size", &self.size),
                    _ if self.throttle && self.qps <= 0.0 => return bad("throttle QPS", &self.qps),
                    _ if self.throttle && self.burst == 0 => return bad("throttle burst", &self.burst),
                    _ => Mode::Batch(Batch {
                        buffer: self.buffer,
                        size: self.size,
                        wait: self.wait,
                        throttle: self.throttle.then_some((self.qps, self.burst)),
                    }),
                })
            }
        }
    };
}

batches!(LogBatches, "log", "blocking", 1, "0s", false, 0.0, 0);
batches!(WebhookBatches, "webhook", "batch", 400, "30s", true, 10.0, 15);

#[derive(Args)]
#[group(id = "audit")]
pub struct Flags {
    /// Audit policy file (audit.k8s.io/v1 Policy): which requests are logged, in what detail.
    #[arg(long)]
    audit_policy_file: Option<PathBuf>,
    /// Path of the audit log; `-` for standard output.
    #[arg(long)]
    audit_log_path: Option<PathBuf>,
    /// Days after which old audit logs are deleted; 0 for never.
    #[arg(long, default_value_t = 0)]
    audit_log_maxage: u32,
    /// Number of old audit logs to keep; 0 for all.
    #[arg(long, default_value_t = 0)]
    audit_log_maxbackup: usize,
    /// Size in megabytes at which the audit log is rotated.
    #[arg(long, default_value_t = 100)]
    audit_log_maxsize: u64,
    /// API version of events in the log.
    #[arg(long, default_value = VERSION, value_parser = [VERSION])]
    audit_log_version: String,
    #[command(flatten)]
    log: LogBatches,
    /// Kubeconfig of the audit webhook.
    #[arg(long)]
    audit_webhook_config_file: Option<PathBuf>,
    /// Delay before the first retry of a failed delivery.
    #[arg(long, alias = "audit-webhook-batch-initial-backoff", default_value = "10s", value_parser = apiserver::duration)]
    audit_webhook_initial_backoff: Duration,
    /// API version of events sent to the webhook.
    #[arg(long, default_value = VERSION, value_parser = [VERSION])]
    audit_webhook_version: String,
    #[command(flatten)]
    webhook: WebhookBatches,
}

const VERSION: &str = "audit.k8s.io/v1";

impl Flags {
    /// Opens the backends; none without a policy or a backend.
    pub async fn audit(&self) -> Result<Option<Audit>, Error> {
        let Some(policy) = &self.audit_policy_file else { return Ok(None) };
        let file = |path: &PathBuf| {
            let path = path.clone();
            move |source| Error::File { path, source }
        };
        // Flags are validated even if no backend uses them.
        let text = std::fs::read_to_string(policy).map_err(file(policy))?;
        let policy = Policy::parse(&text).map_err(|source| Error::Policy { path: policy.clone(), source })?;
        let mut to = Vec::new();
        if let Some(path) = &self.audit_log_path {
            let rotation = Rotation {
                megabytes: self.audit_log_maxsize,
                files: self.audit_log_maxbackup,
                days: self.audit_log_maxage.into(),
            };
            let log = Log::open(path, rotation, Arc::new(SystemClock)).map_err(file(path))?;
            to.push(AuditBackend { sink: Sink::Log(log), mode: self.log.mode()?, limits: self.log.limits()? });
        }
        if let Some(path) = &self.audit_webhook_config_file {
            let clock: Arc<dyn Clock> = Arc::new(SystemClock);
            let remote = Remote::of_file(path.clone(), WEBHOOK_TIMEOUT, &clock).await;
            let remote = remote.map_err(|e| Error::Audit(format!("initializing audit webhook: {e}")))?;
            let initial_backoff = self.audit_webhook_initial_backoff;
            let webhook = Webhook { remote, initial_backoff, rng: Arc::new(SystemRng) };
            let (mode, limits) = (self.webhook.mode()?, self.webhook.limits()?);
            to.push(AuditBackend { sink: Sink::Webhook(webhook), mode, limits });
        }
        Ok(Some(Audit { policy, to }).filter(|a| !a.to.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: Flags,
    }

    fn flags(args: &[&str]) -> Flags {
        Command::try_parse_from([&["kemudi"], args].concat()).unwrap().flags
    }

    #[test]
    fn logs_are_blocking_and_webhooks_batched_by_default() {
        let f = flags(&[]);
        assert!(matches!(f.log.mode().unwrap(), Mode::Blocking));
        let Mode::Batch(b) = f.webhook.mode().unwrap() else { panic!("batches") };
        assert_eq!((b.buffer, b.size, b.wait, b.throttle), (10_000, 400, Duration::from_secs(30), Some((10.0, 15))));
        let f = flags(&[
            "--audit-webhook-mode=blocking-strict",
            "--audit-log-mode=batch",
            "--audit-log-batch-max-size=7",
            "--audit-webhook-initial-backoff=3s",
        ]);
        assert!(matches!(f.webhook.mode().unwrap(), Mode::Strict));
        assert!(matches!(f.log.mode().unwrap(), Mode::Batch(b) if b.size == 7 && b.throttle.is_none()));
        assert_eq!(f.audit_webhook_initial_backoff, Duration::from_secs(3));
        let wrong = flags(&["--audit-webhook-batch-max-size=0"]).webhook.mode().unwrap_err();
        let why = "invalid audit batch webhook max batch size 0, must be a positive number";
        assert_eq!(wrong.to_string(), why);
        assert_eq!(f.log.limits().unwrap(), None);
        let cut =
            flags(&["--audit-log-truncate-enabled", "--audit-log-truncate-max-event-size=7"]).log.limits().unwrap();
        assert_eq!(cut, Some(Limits { event: 7, batch: 10_485_760 }));
        let wrong =
            flags(&["--audit-webhook-truncate-enabled=true", "--audit-webhook-truncate-max-batch-size=1"]).webhook;
        assert!(
            wrong.limits().unwrap_err().to_string().starts_with("invalid audit truncate webhook max event size 102400")
        );
        assert!(Command::try_parse_from(["kemudi", "--audit-log-mode=sometimes"]).is_err());
        assert!(Command::try_parse_from(["kemudi", "--audit-webhook-version=audit.k8s.io/v1beta1"]).is_err());
    }
}

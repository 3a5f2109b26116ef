//! What the service proxy says about itself, on the ports of kube-proxy (upstream `pkg/proxy/healthcheck/proxy_health.go`,
//! `cmd/kube-proxy/app/server.go`).
//!
//! Load balancers ask `/healthz` whether the node should get new connections; `/livez` leaves out whether the node is about to go. On a second
//! port, for the machine itself: `/proxyMode`, `/healthz` and `/metrics`.

use jiff::Timestamp;
use meta::Clock;
use metrics::{Counter, Histogram, RealGauge, Row, Set};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use supervisor::Shutdown;
use supervisor::plain_http::{Response, on_all_addresses, opened, serve};
use tokio::net::TcpListener;

/// The port that load balancers ask, unless it is configured otherwise.
pub const HEALTH_PORT: u16 = 10_256;
/// The port for the machine, unless it is configured otherwise.
pub const METRICS_PORT: u16 = 10_249;

/// After this time, changes that are not in the rules make the proxy unhealthy (twice kube-proxy's `syncPeriod`).
const LATE: Duration = Duration::from_secs(60);
/// What kube-proxy calls rules of nftables.
const MODE: &str = "nftables";

const BUCKETS: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384, 32.768];
const DURATION: Row = Row::histogram(
    "kubeproxy_sync_proxy_rules_duration_seconds",
    &[],
    BUCKETS,
    "How long writing the rules of changed services took, in seconds.",
);
const WRITTEN: Row = Row::real_gauge(
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
    &[],
    "When the rules had all changes for the last time, in seconds of Unix time.",
);
const QUEUED: Row = Row::real_gauge(
    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
    &[],
    "When the last change of services or endpoints came, in seconds of Unix time.",
);
const HEALTHZ: Row = Row::counter("kubeproxy_proxy_healthz_total", &["code"], "Responses of /healthz, by status code.");
const LIVEZ: Row = Row::counter("kubeproxy_proxy_livez_total", &["code"], "Responses of /livez, by status code.");

/// Where the proxy says how it is.
#[derive(Clone)]
pub struct StatusOptions {
    /// For everybody, on all addresses of the node; `None` for no port.
    pub health_port: Option<u16>,
    /// For the machine; `None` for no socket.
    pub metrics: Option<SocketAddr>,
    /// The families of services: `IPv4`, `IPv6`.
    pub families: Vec<&'static str>,
    pub clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Times {
    /// When the rules had all changes for the last time.
    updated: Option<Timestamp>,
    /// Since when a change waits.
    pending: Option<Timestamp>,
}

/// Whether the rules follow the services.
pub(crate) struct Status {
    clock: Arc<dyn Clock>,
    families: Vec<&'static str>,
    times: Mutex<Times>,
    metrics: Set,
    duration: Histogram,
    written: RealGauge,
    queued: RealGauge,
    healthz: [Counter; 2],
    livez: [Counter; 2],
}

fn seconds(time: Timestamp) -> f64 {
    time.as_millisecond() as f64 / 1000.0
}

impl Status {
    pub fn new(options: &StatusOptions) -> Arc<Self> {
        let metrics = Set::new(&[DURATION, WRITTEN, QUEUED, HEALTHZ, LIVEZ]).with_process();
        let by_code = |row| ["200", "503"].map(|code| metrics.counter(row, &[code]));
        Arc::new(Self {
            clock: options.clock.clone(),
            families: options.families.clone(),
            times: Mutex::default(),
            duration: metrics.histogram(&DURATION, &[]),
            written: metrics.real_gauge(&WRITTEN, &[]),
            queued: metrics.real_gauge(&QUEUED, &[]),
            healthz: by_code(&HEALTHZ),
            livez: by_code(&LIVEZ),
            metrics,
        })
    }

    /// A service or endpoint has changed.
    pub fn queued(&self) {
        let now = self.clock.now();
        self.queued.set(seconds(now));
        self.times.lock().pending.get_or_insert(now);
    }

    /// Rules were written, and the rest is next. The namespaces with few services come first, so one with many delays no others.
    pub fn advanced(&self) {
        self.times.lock().pending = None;
    }

    /// The rules have all changes that had come when writing began.
    pub fn updated(&self, took: Duration) {
        let now = self.clock.now();
        self.duration.observe(took.as_secs_f64());
        self.written.set(seconds(now));
        *self.times.lock() = Times { updated: Some(now), pending: None };
    }

    /// The response to load balancers; `eligible` says whether the node gets new connections, if that was asked.
    fn health(&self, eligible: Option<bool>) -> Response {
        let now = self.clock.now();
        let (updated, late) = {
            let times = self.times.lock();
            let waits = times.pending.map(|since| Duration::try_from(now.duration_since(since)).unwrap_or_default());
            // Without any rules yet, the proxy starts.
            let late = times.updated.is_some() && waits.is_some_and(|w| w >= LATE);
            (times.updated, late)
        };
        let is_healthy = !late && eligible != Some(false);
        let show = |time: Option<Timestamp>| time.map_or_else(|| "0001-01-01T00:00:00Z".to_owned(), |t| t.to_string());
        let each: BTreeMap<&str, _> = updated
            .iter()
            .flat_map(|_| &self.families)
            .map(|family| (*family, json!({"lastUpdated": show(updated), "healthy": !late})))
            .collect();
        let mut body = json!({
            "lastUpdated": show(if is_healthy { Some(now) } else { updated }),
            "currentTime": show(Some(now)),
            "healthy": !late,
            "status": each,
        });
        if let Some(eligible) = eligible {
            body["nodeEligible"] = eligible.into();
        }
        let counters = if eligible.is_some() { &self.healthz } else { &self.livez };
        counters[usize::from(!is_healthy)].inc();
        Response::json(if is_healthy { 200 } else { 503 }, body.to_string())
    }
}

/// Serves until shutdown. `eligible` says whether load balancers should send new connections to this node.
pub(crate) async fn run(
    options: StatusOptions,
    status: Arc<Status>,
    eligible: impl Fn() -> bool + Send + Sync + 'static,
    shutdown: Shutdown,
) {
    let (asked, shown) = (status.clone(), status);
    let health = move |path: &str, _: &str| match path {
        "/healthz" => asked.health(Some(eligible())),
        "/livez" => asked.health(None),
        _ => Response::not_found(),
    };
    let machine = move |path: &str, _: &str| match path {
        "/proxyMode" => Response::plain(200, MODE.into()),
        "/healthz" => Response::plain(200, "ok".into()),
        "/metrics" => Response::plain(200, shown.metrics.text()),
        _ => Response::not_found(),
    };
    let both = async {
        tokio::join!(
            async {
                if let Some(port) = options.health_port {
                    serve(
                        opened(&format!("{port} for health checks of the service proxy"), || on_all_addresses(port))
                            .await,
                        health,
                    )
                    .await;
                }
            },
            async {
                if let Some(address) = options.metrics {
                    serve(
                        opened(&format!("{address} for metrics of the service proxy"), || TcpListener::bind(address))
                            .await,
                        machine,
                    )
                    .await;
                }
            }
        )
    };
    shutdown.race(both).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering};

    struct Hand(AtomicI64);

    impl Clock for Hand {
        fn now(&self) -> Timestamp {
            Timestamp::from_second(self.0.load(Ordering::Relaxed)).unwrap()
        }
    }

    #[test]
    fn changes_that_wait_too_long_make_the_proxy_unhealthy() {
        let clock = Arc::new(Hand(AtomicI64::new(1_000)));
        let families = vec!["IPv4", "IPv6"];
        let status = Status::new(&StatusOptions { health_port: None, metrics: None, families, clock: clock.clone() });
        let code = |eligible| {
            let text = format!("{:?}", status.health(eligible));
            (text.contains("status: 200"), text)
        };
        status.queued();
        clock.0.fetch_add(1_000, Ordering::Relaxed);
        assert!(code(Some(true)).0, "it starts");
        status.updated(Duration::from_millis(3));
        let (ok, text) = code(Some(true));
        assert!(ok && text.contains("nodeEligible") && text.contains("IPv6") && text.contains("lastUpdated"), "{text}");
        // The cluster autoscaler removes the node: it lives, and gets no new connections.
        assert!(!code(Some(false)).0 && code(None).0);
        status.queued();
        clock.0.fetch_add(59, Ordering::Relaxed);
        status.queued();
        assert!(code(None).0);
        clock.0.fetch_add(1, Ordering::Relaxed);
        assert!(!code(None).0 && !code(Some(true)).0);
        // A namespace that changes all the time does not make it unhealthy.
        status.advanced();
        assert!(code(Some(true)).0);
        status.updated(Duration::from_millis(3));
        assert!(code(Some(true)).0);
        let text = status.metrics.text();
        for line in [
            "kubeproxy_proxy_healthz_total{code=\"503\"} 2",
            "kubeproxy_sync_proxy_rules_duration_seconds_count 2",
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds 2059",
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds 2060",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}

//! Leader election with leases: one holder at a time (client-go `tools/leaderelection`).
//!
//! The holder renews its lease; the others watch it. A lease has expired when *this* process has seen
//! it unchanged for its duration; clocks of two machines are never compared.

use crate::{Api, Client, Error, Shutdown, WriteOptions};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use meta::{Clock, Rng};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The lease, the identity of the candidate, and the times (client-go's defaults: 15 s, 10 s, 2 s).
#[derive(Clone, Debug)]
pub struct Election {
    /// Namespace of the lease.
    pub namespace: String,
    /// Name of the lease.
    pub name: String,
    /// Identity of this candidate; unique among candidates.
    pub identity: String,
    /// Time after which an unchanged lease has expired.
    pub duration: Duration,
    /// Time within which the holder must renew the lease, or it stops leading.
    pub renew_deadline: Duration,
    /// Interval between attempts to acquire or renew the lease.
    pub retry: Duration,
}

impl Election {
    /// Election with client-go's default times.
    pub fn new(namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// A candidate of an election.
pub struct Elector {
    api: Api<Lease>,
    election: Election,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    /// The lease as it was last seen to change, and when.
    seen: Option<(Lease, Instant)>,
}

impl Elector {
    /// Creates a candidate. `rng` spreads the attempts of candidates.
    pub fn new(client: &Client, election: Election, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        let api = client.api::<Lease>().namespace(&election.namespace);
        Self { api, election, clock, rng, seen: None }
    }

    /// Waits until this process holds the lease, then runs what `lead` returns and keeps renewing. When the lease is lost or at
    /// `shutdown`, the signal that `lead` was given ends it, and this returns after it has ended. The lease is released unless it
    /// was lost.
    pub async fn run<F: Future<Output = ()>>(mut self, shutdown: Shutdown, lead: impl FnOnce(Shutdown) -> F) {
        let acquire = async {
            loop {
                match self.step().await {
                    Ok(true) => return,
                    Ok(false) => {}
                    Err(e) => tracing::debug!(lease = self.election.name, "acquiring: {e}"),
                }
                let jitter = crate::backoff::unit(&*self.rng) * 1.2;
                tokio::time::sleep(self.election.retry.mul_f64(1.0 + jitter)).await;
            }
        };
        if shutdown.race(acquire).await.is_none() {
            return;
        }
        let renew = async {
            let mut good = Instant::now();
            while good.elapsed() < self.election.renew_deadline {
                tokio::time::sleep(self.election.retry).await;
                let left = self.election.renew_deadline.saturating_sub(good.elapsed());
                match tokio::time::timeout(left, self.step()).await {
                    Ok(Ok(true)) => good = Instant::now(),
                    Ok(Ok(false)) => break,
                    Ok(Err(e)) => tracing::debug!(lease = self.election.name, "renewing: {e}"),
                    Err(_) => break,
                }
            }
            tracing::warn!(lease = self.election.name, "leader election lost: the lease was not renewed in time");
        };
        let (trigger, term) = crate::shutdown();
        let mut leading = std::pin::pin!(lead(term));
        let mut ended = false;
        let held = tokio::select! {
            biased;
            () = shutdown.wait() => true,
            () = &mut leading => {
                ended = true;
                true
            }
            () = renew => false,
        };
        trigger.trigger();
        if !ended {
            leading.await;
        }
        if held {
            self.release().await;
        }
    }

    /// Acquires or renews the lease once; returns whether this process holds it.
    async fn step(&mut self) -> Result<bool, Error> {
        let now = MicroTime(self.clock.now());
        let seconds = i32::try_from(self.election.duration.as_secs()).unwrap_or(i32::MAX);
        let Some(held) = self.api.get_opt(&self.election.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta { name: Some(self.election.name.clone()), ..ObjectMeta::default() },
                spec: Some(LeaseSpec {
                    holder_identity: Some(self.election.identity.clone()),
                    lease_duration_seconds: Some(seconds),
                    acquire_time: Some(now.clone()),
                    renew_time: Some(now),
                    lease_transitions: Some(0),
                    ..LeaseSpec::default()
                }),
            };
            let made = self.api.create(&WriteOptions::default(), &lease).await?;
            self.seen = Some((made, Instant::now()));
            return Ok(true);
        };
        if self.seen.as_ref().is_none_or(|(l, _)| l.spec != held.spec) {
            self.seen = Some((held.clone(), Instant::now()));
        }
        let old = held.spec.clone().unwrap_or_default();
        let holder = old.holder_identity.clone().unwrap_or_default();
        let ours = holder == self.election.identity;
        let lasts = meta::time::seconds(old.lease_duration_seconds.unwrap_or(0));
        let fresh = self.seen.as_ref().is_some_and(|(_, at)| at.elapsed() < lasts);
        if !holder.is_empty() && !ours && fresh {
            return Ok(false);
        }
        let transitions = old.lease_transitions.unwrap_or(0).saturating_add(i32::from(!ours));
        let mut next = held;
        next.spec = Some(LeaseSpec {
            holder_identity: Some(self.election.identity.clone()),
            lease_duration_seconds: Some(seconds),
            acquire_time: if ours { old.acquire_time.clone() } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..old
        });
        let made = self.api.update(&self.election.name, &WriteOptions::default(), &next).await?;
        self.seen = Some((made, Instant::now()));
        Ok(true)
    }

    async fn release(&mut self) {
        let Some((mut lease, _)) = self.seen.take() else { return };
        if let Some(s) = &mut lease.spec {
            s.holder_identity = Some(String::new());
            s.lease_duration_seconds = Some(1);
        }
        if let Err(e) = self.api.update(&self.election.name, &WriteOptions::default(), &lease).await {
            tracing::debug!(lease = self.election.name, "releasing the lease failed: {e}");
        }
    }
}

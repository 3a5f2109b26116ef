//! The servers of a cluster: each keeps a lease in `kube-system` while it runs, and the service `kubernetes` has the addresses of those
//! that do (upstream's `reconcilers/lease.go`, and its leases of API server identities).

use crate::bootstrap::{self, ServerAddress};
use client::{Api, Client, DeleteOptions, ListOptions, WriteOptions};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use meta::Clock;
use registry::Registry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use supervisor::Shutdown;
use tokio::time::Instant;

/// How often a server renews its lease and looks at those of others.
const RENEW: Duration = Duration::from_secs(3);
/// A lease that was not renewed for so long is that of a dead server. Measured here: clocks of two machines are never compared.
const EXPIRED: Duration = Duration::from_secs(12);
/// When the lease of a dead server is deleted.
const FORGOTTEN: Duration = Duration::from_secs(3600);
const LABEL: &str = "apiserver.kubernetes.io/identity";
/// The address of a server, an annotation of its lease.
const ADDRESS: &str = "kemudi.io/address";

/// A server among its peers.
pub struct Peer {
    pub registry: Arc<Registry>,
    pub client: Client,
    pub clock: Arc<dyn Clock>,
    /// The advertised address.
    pub address: SocketAddr,
    /// Identity of this process.
    pub identity: String,
}

/// The leases of the servers as they were last seen to change.
#[derive(Default)]
struct Seen(BTreeMap<String, (Option<MicroTime>, Instant)>);

impl Seen {
    /// The age of a lease since it was last seen to change.
    fn age(&mut self, lease: &Lease, now: Instant) -> Duration {
        let name = lease.metadata.name.clone().unwrap_or_default();
        let renewed = lease.spec.as_ref().and_then(|s| s.renew_time.clone());
        let entry = self.0.entry(name).or_insert_with(|| (renewed.clone(), now));
        if entry.0 != renewed {
            *entry = (renewed, now);
        }
        now.duration_since(entry.1)
    }
}

impl Peer {
    /// Keeps lease and endpoints up to date until the shutdown, and then takes this server out of both.
    pub async fn run(self: Arc<Self>, shutdown: Shutdown) {
        let mut seen = Seen::default();
        loop {
            if let Err(e) = self.step(&mut seen).await {
                tracing::warn!("updating the addresses of the service default/kubernetes: {e}");
            }
            if shutdown.race(tokio::time::sleep(RENEW)).await.is_none() {
                break;
            }
        }
        let deleted = self.leases().delete(&self.name(), &DeleteOptions::default()).await.map(drop);
        if let Err(e) = deleted.map_err(|e| e.to_string()) {
            tracing::debug!("deleting the lease of this server: {e}");
        }
        if let Err(e) = self.publish(&mut seen).await {
            tracing::debug!("leaving the service default/kubernetes: {e}");
        }
    }

    fn leases(&self) -> Api<Lease> {
        self.client.api::<Lease>().namespace("kube-system")
    }

    /// The name of this server's lease, which it has after a restart too.
    fn name(&self) -> String {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, self.address.to_string().as_bytes());
        let hash: String = digest.as_ref().iter().take(13).map(|b| format!("{b:02x}")).collect();
        format!("apiserver-{hash}")
    }

    async fn step(&self, seen: &mut Seen) -> Result<(), String> {
        self.renew().await.map_err(|e| e.to_string())?;
        self.publish(seen).await
    }

    async fn renew(&self) -> Result<(), client::Error> {
        let (leases, now) = (self.leases(), MicroTime(self.clock.now()));
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(EXPIRED.as_secs() as i32),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..LeaseSpec::default()
        };
        let metadata = ObjectMeta {
            name: Some(self.name()),
            labels: Some([(LABEL.to_owned(), "kube-apiserver".to_owned())].into()),
            annotations: Some([(ADDRESS.to_owned(), self.address.to_string())].into()),
            ..ObjectMeta::default()
        };
        let Some(mut lease) = leases.get_opt(&self.name()).await? else {
            let lease = Lease { metadata, spec: Some(spec) };
            return leases.create(&WriteOptions::default(), &lease).await.map(drop);
        };
        let old = lease.spec.take().unwrap_or_default();
        let ours = old.holder_identity.as_deref() == Some(&self.identity);
        lease.spec = Some(LeaseSpec { acquire_time: old.acquire_time.filter(|_| ours).or(spec.acquire_time), ..spec });
        lease.metadata.annotations.get_or_insert_default().insert(ADDRESS.into(), self.address.to_string());
        leases.update(&self.name(), &WriteOptions::default(), &lease).await.map(drop)
    }

    /// Writes the addresses of the living servers, if they changed, and deletes leases of servers that are long dead.
    async fn publish(&self, seen: &mut Seen) -> Result<(), String> {
        let options = ListOptions { label_selector: format!("{LABEL}=kube-apiserver"), ..ListOptions::default() };
        let leases = self.leases().list(&options).await.map_err(|e| e.to_string())?.items;
        let now = Instant::now();
        let mut alive = BTreeSet::new();
        for lease in &leases {
            let age = seen.age(lease, now);
            let annotations = lease.metadata.annotations.as_ref();
            let address = annotations.and_then(|a| a.get(ADDRESS)?.parse::<SocketAddr>().ok());
            match address {
                Some(address) if age < EXPIRED => drop(alive.insert(address)),
                _ if age > FORGOTTEN => {
                    let name = lease.metadata.name.clone().unwrap_or_default();
                    let _ = self.leases().delete(&name, &DeleteOptions::default()).await;
                }
                _ => {}
            }
        }
        seen.0.retain(|name, _| leases.iter().any(|l| l.metadata.name.as_ref() == Some(name)));
        let servers: Vec<ServerAddress> =
            alive.iter().map(|a| ServerAddress { address: a.ip(), port: a.port() }).collect();
        bootstrap::endpoints(&self.registry, &servers).await.map_err(|s| s.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ages_until_it_is_seen_to_change() {
        let lease = |second: i64| Lease {
            metadata: ObjectMeta { name: Some("a".into()), ..ObjectMeta::default() },
            spec: Some(LeaseSpec {
                renew_time: Some(MicroTime(jiff::Timestamp::from_second(second).unwrap())),
                ..LeaseSpec::default()
            }),
        };
        let (mut seen, start) = (Seen::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        // The clock of the other machine is an hour ahead.
        assert_eq!(seen.age(&lease(7200), at(0)), Duration::ZERO);
        assert_eq!(seen.age(&lease(7200), at(11)), Duration::from_secs(11));
        assert_eq!(seen.age(&lease(7203), at(12)), Duration::ZERO);
        assert_eq!(seen.age(&lease(7100), at(20)), Duration::ZERO, "its clock may be set back");
    }
}

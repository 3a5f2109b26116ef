//! DNS lookups of host names that users choose.
//!
//! The system's resolver blocks a thread while it waits for a DNS server that may never answer, and the caller cannot
//! cancel it. **Invariant.** At most as many threads wait as [`Lookups::new`] allows, and for each [`Share`] at most its limit; a lookup
//! keeps its permits until its thread ends, even if its caller stopped waiting. So the lookups of one tenant do not
//! delay those of others for long, and never use up the blocking threads of the process.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

type Resolver = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// A tenant's share of concurrent lookups.
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    /// The tenant.
    pub key: &'a str,
    /// Maximum number of concurrent lookups of the tenant.
    pub limit: usize,
}

/// Runs lookups on blocking threads, within limits.
pub struct Lookups {
    resolver: Arc<Resolver>,
    total: Arc<Semaphore>,
    /// Shares with lookups in progress.
    shares: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Lookups {
    /// Uses the system's resolver, with at most `limit` lookups at a time.
    pub fn new(limit: usize) -> Self {
        Self::with_resolver(limit, |host, port| (host, port).to_socket_addrs().map(Iterator::collect))
    }

    /// Like [`Self::new`], with another blocking resolver of host and port.
    pub fn with_resolver(
        limit: usize,
        resolver: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self { resolver: Arc::new(resolver), total: Arc::new(Semaphore::new(limit)), shares: Mutex::default() }
    }

    /// Returns the addresses of a host in the resolver's order; an IP address is returned as it is. Waits for a permit of each of
    /// the shares.
    pub async fn lookup(&self, shares: &[Share<'_>], host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let mut permits = Vec::with_capacity(shares.len() + 1);
        for share in shares {
            permits.push(acquire(self.share(share)).await?);
        }
        permits.push(acquire(self.total.clone()).await?);
        let (resolver, host) = (self.resolver.clone(), host.to_owned());
        let looked_up = tokio::task::spawn_blocking(move || {
            let _permits = permits;
            resolver(&host, port)
        });
        looked_up.await.map_err(io::Error::other)?
    }

    fn share(&self, share: &Share) -> Arc<Semaphore> {
        let mut shares = self.shares.lock();
        if let Some(known) = shares.get(share.key).and_then(Weak::upgrade) {
            return known;
        }
        shares.retain(|_, known| known.strong_count() > 0);
        let made = Arc::new(Semaphore::new(share.limit));
        shares.insert(share.key.to_owned(), Arc::downgrade(&made));
        made
    }
}

/// The permit holds the semaphore too, so a share exists as long as it has lookups.
async fn acquire(semaphore: Arc<Semaphore>) -> io::Result<OwnedSemaphorePermit> {
    semaphore.acquire_owned().await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Condvar;
    use std::collections::BTreeMap;
    use std::time::Duration;

    const MAX: usize = 6;
    const PER_NAMESPACE: usize = 4;
    const PER_POD: usize = 2;
    const THREADS: usize = MAX + 2;

    /// Lookups in progress, by host; they end when the gate opens.
    #[derive(Default)]
    struct Mute {
        now: Mutex<BTreeMap<String, usize>>,
        gate: Mutex<bool>,
        opened: Condvar,
    }

    /// Probes with an unresponsive DNS server blocked every blocking thread of the process: nothing started, and nothing was deleted.
    #[test]
    fn unresponsive_dns_blocks_few_threads() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().max_blocking_threads(THREADS).build().unwrap();
        runtime.block_on(async {
            let mute = Arc::new(Mute::default());
            let server = mute.clone();
            let lookups = Arc::new(Lookups::with_resolver(MAX, move |host, port| {
                *server.now.lock().entry(host.to_owned()).or_default() += 1;
                server.opened.wait_while(&mut server.gate.lock(), |open| !*open);
                *server.now.lock().entry(host.to_owned()).or_default() -= 1;
                Ok(vec![SocketAddr::new([192, 0, 2, 1].into(), port)])
            }));
            let one = |namespace: &str, pod: &str| {
                let (lookups, namespace, pod) = (lookups.clone(), namespace.to_owned(), pod.to_owned());
                async move {
                    let shares = [Share { key: &pod, limit: PER_POD }, Share { key: &namespace, limit: PER_NAMESPACE }];
                    let limit = Duration::from_millis(20);
                    tokio::time::timeout(limit, lookups.lookup(&shares, &pod, 80)).await.map(Result::unwrap)
                }
            };
            for round in 0..10 {
                let pods = ["ns/a", "ns/a", "ns/a", "ns/b", "ns/b", "ns/c", "ns/d"];
                let tries = futures::future::join_all(pods.map(|pod| one("ns", pod))).await;
                assert!(tries.iter().all(Result::is_err));
                let now = mute.now.lock().clone();
                assert!(now.values().all(|n| *n <= PER_POD), "{now:?}");
                assert_eq!(now.values().sum::<usize>(), PER_NAMESPACE, "round {round}: {now:?}");
            }
            // Another namespace has its own permits, and IP addresses need none.
            let _ = one("other", "other/a").await;
            assert_eq!(mute.now.lock()["other/a"], 1);
            assert_eq!(one("ns", "192.0.2.9").await.unwrap(), ["192.0.2.9:80".parse().unwrap()]);
            let other_work = tokio::task::spawn_blocking(|| "done");
            assert_eq!(tokio::time::timeout(Duration::from_secs(20), other_work).await.unwrap().unwrap(), "done");
            *mute.gate.lock() = true;
            mute.opened.notify_all();
            // They end, and all permits return.
            let address = loop {
                if let Ok(found) = one("ns", "ns/e").await {
                    break found;
                }
            };
            assert_eq!(address, ["192.0.2.1:80".parse().unwrap()]);
            let all = lookups.total.acquire_many(MAX as u32);
            drop(tokio::time::timeout(Duration::from_secs(20), all).await.unwrap().unwrap());
            assert_eq!(mute.now.lock().values().sum::<usize>(), 0);
            let share = lookups.share(&Share { key: "new", limit: 1 });
            assert_eq!(lookups.shares.lock().len(), 1, "a share without lookups is removed");
            drop(share);
        });
    }
}

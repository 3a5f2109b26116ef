//! Looking up the addresses of host names that others choose.
//!
//! The system's resolver blocks a thread for as long as it waits for a DNS server, which may be mute, and whoever wanted the address cannot
//! end that. **Invariant.** No more threads than [`Lookups::new`] says wait for it, and of each [`Share`] no more than its limit: a lookup
//! keeps its place until its thread has ended, even if its caller has stopped waiting. So those of one tenant keep
//! no others waiting for long, and never take the threads that the rest of the process works with.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

type Resolver = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Whose lookup it is, and how many of those there are at a time.
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    pub key: &'a str,
    pub most: usize,
}

pub struct Lookups {
    resolver: Arc<Resolver>,
    all: Arc<Semaphore>,
    /// Of shares that have lookups now.
    shares: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Lookups {
    /// With the system's resolver, and at most so many lookups at a time.
    pub fn new(most: usize) -> Self {
        Self::with(most, |host, port| (host, port).to_socket_addrs().map(Iterator::collect))
    }

    pub fn with(
        most: usize,
        resolver: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self { resolver: Arc::new(resolver), all: Arc::new(Semaphore::new(most)), shares: Mutex::default() }
    }

    /// The addresses of a host, in the resolver's order; one that is an address already is not looked up. Waits for its turn in each of
    /// the shares.
    pub async fn lookup(&self, shares: &[Share<'_>], host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let mut places = Vec::with_capacity(shares.len() + 1);
        for share in shares {
            places.push(acquire(self.share(share)).await?);
        }
        places.push(acquire(self.all.clone()).await?);
        let (resolver, host) = (self.resolver.clone(), host.to_owned());
        let looked_up = tokio::task::spawn_blocking(move || {
            let _places = places;
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
        let made = Arc::new(Semaphore::new(share.most));
        shares.insert(share.key.to_owned(), Arc::downgrade(&made));
        made
    }
}

/// The permit holds the semaphore too, so a share is known as long as it has lookups.
async fn acquire(semaphore: Arc<Semaphore>) -> io::Result<OwnedSemaphorePermit> {
    semaphore.acquire_owned().await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Condvar;
    use std::collections::BTreeMap;
    use std::time::Duration;

    const MOST: usize = 6;
    const OF_NAMESPACE: usize = 4;
    const OF_POD: usize = 2;
    const THREADS: usize = MOST + 2;

    /// Lookups that are at work, by host; they end when the gate opens.
    #[derive(Default)]
    struct Mute {
        now: Mutex<BTreeMap<String, usize>>,
        gate: Mutex<bool>,
        opened: Condvar,
    }

    /// Probes whose DNS server is mute took every thread of the process that may block: nothing started, and nothing was deleted.
    #[test]
    fn a_mute_server_takes_few_threads() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().max_blocking_threads(THREADS).build().unwrap();
        runtime.block_on(async {
            let mute = Arc::new(Mute::default());
            let server = mute.clone();
            let lookups = Arc::new(Lookups::with(MOST, move |host, port| {
                *server.now.lock().entry(host.to_owned()).or_default() += 1;
                server.opened.wait_while(&mut server.gate.lock(), |open| !*open);
                *server.now.lock().entry(host.to_owned()).or_default() -= 1;
                Ok(vec![SocketAddr::new([192, 0, 2, 1].into(), port)])
            }));
            let one = |namespace: &str, pod: &str| {
                let (lookups, namespace, pod) = (lookups.clone(), namespace.to_owned(), pod.to_owned());
                async move {
                    let shares = [Share { key: &pod, most: OF_POD }, Share { key: &namespace, most: OF_NAMESPACE }];
                    let limit = Duration::from_millis(20);
                    tokio::time::timeout(limit, lookups.lookup(&shares, &pod, 80)).await.map(Result::unwrap)
                }
            };
            for round in 0..10 {
                let pods = ["ns/a", "ns/a", "ns/a", "ns/b", "ns/b", "ns/c", "ns/d"];
                let tries = futures::future::join_all(pods.map(|pod| one("ns", pod))).await;
                assert!(tries.iter().all(Result::is_err));
                let now = mute.now.lock().clone();
                assert!(now.values().all(|n| *n <= OF_POD), "{now:?}");
                assert_eq!(now.values().sum::<usize>(), OF_NAMESPACE, "round {round}: {now:?}");
            }
            // Another namespace has its own, and addresses take none.
            let _ = one("other", "other/a").await;
            assert_eq!(mute.now.lock()["other/a"], 1);
            assert_eq!(one("ns", "192.0.2.9").await.unwrap(), ["192.0.2.9:80".parse().unwrap()]);
            let other_work = tokio::task::spawn_blocking(|| "done");
            assert_eq!(tokio::time::timeout(Duration::from_secs(20), other_work).await.unwrap().unwrap(), "done");
            *mute.gate.lock() = true;
            mute.opened.notify_all();
            // They end, and all places come back.
            let address = loop {
                if let Ok(found) = one("ns", "ns/e").await {
                    break found;
                }
            };
            assert_eq!(address, ["192.0.2.1:80".parse().unwrap()]);
            let all = lookups.all.acquire_many(MOST as u32);
            drop(tokio::time::timeout(Duration::from_secs(20), all).await.unwrap().unwrap());
            assert_eq!(mute.now.lock().values().sum::<usize>(), 0);
            let share = lookups.share(&Share { key: "new", most: 1 });
            assert_eq!(lookups.shares.lock().len(), 1, "what has no lookups is forgotten");
            drop(share);
        });
    }
}

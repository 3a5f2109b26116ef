//! Limits open TCP connections, in total and for each client address, so that one pod cannot use up the connections of others.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// The most open connections in total.
const MAX_TOTAL: usize = 512;
/// The most open connections from one address.
const MAX_PER_ADDRESS: usize = 16;

#[derive(Default)]
pub struct ConnectionLimit(Mutex<HashMap<IpAddr, usize>>);

/// Permission for one open connection; dropping it closes the slot.
pub struct ConnectionPermit {
    limit: Arc<ConnectionLimit>,
    address: IpAddr,
}

impl ConnectionLimit {
    /// `None` if the address or the server has reached its limit.
    pub fn acquire(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionPermit> {
        let address = address.to_canonical();
        let mut open = self.0.lock();
        if open.values().sum::<usize>() >= MAX_TOTAL {
            return None;
        }
        let own = open.entry(address).or_default();
        if *own >= MAX_PER_ADDRESS {
            return None;
        }
        *own += 1;
        Some(ConnectionPermit { limit: self.clone(), address })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.limit.0.lock();
        if let Some(own) = open.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_limited_per_address_and_in_total() {
        let limit = Arc::new(ConnectionLimit::default());
        let from = |n: usize| IpAddr::from([10, 0, (n / 256) as u8, (n % 256) as u8]);
        let mut own: Vec<ConnectionPermit> = (0..MAX_PER_ADDRESS).map(|_| limit.acquire(from(0)).unwrap()).collect();
        assert!(limit.acquire(from(0)).is_none() && limit.acquire(from(1)).is_some());
        own.pop();
        assert!(limit.acquire(from(0)).is_some(), "after a connection was closed");
        let others: Vec<ConnectionPermit> = (1..MAX_TOTAL).filter_map(|n| limit.acquire(from(n))).collect();
        assert_eq!(own.len() + others.len(), MAX_TOTAL);
        assert!(limit.acquire(from(MAX_TOTAL)).is_none(), "the total is reached");
        drop((own, others));
        assert!(limit.0.lock().is_empty());
    }
}

//! Places for TCP connections, so many in all and so many for each address: a pod that opens more than its share is refused,
//! and takes none from others.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Open connections in all, and from one address.
const ALL: usize = 512;
const EACH: usize = 16;

#[derive(Default)]
pub struct Places(Mutex<HashMap<IpAddr, usize>>);

/// A place, until this is dropped.
pub struct Place {
    places: Arc<Places>,
    address: IpAddr,
}

impl Places {
    /// None when the address has its share, or all places are taken.
    pub fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = address.to_canonical();
        let mut taken = self.0.lock();
        if taken.values().sum::<usize>() >= ALL {
            return None;
        }
        let own = taken.entry(address).or_default();
        if *own >= EACH {
            return None;
        }
        *own += 1;
        Some(Place { places: self.clone(), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock();
        if let Some(own) = taken.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_share_and_no_more() {
        let places = Arc::new(Places::default());
        let from = |n: usize| IpAddr::from([10, 0, (n / 256) as u8, (n % 256) as u8]);
        let mut own: Vec<Place> = (0..EACH).map(|_| places.take(from(0)).unwrap()).collect();
        assert!(places.take(from(0)).is_none() && places.take(from(1)).is_some());
        own.pop();
        assert!(places.take(from(0)).is_some(), "a place that was given back");
        let others: Vec<Place> = (1..ALL).filter_map(|n| places.take(from(n))).collect();
        assert_eq!(own.len() + others.len(), ALL);
        assert!(places.take(from(ALL)).is_none(), "all are taken");
        drop((own, others));
        assert!(places.0.lock().is_empty());
    }
}

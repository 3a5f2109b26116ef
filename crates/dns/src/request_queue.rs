//! Requests over UDP that wait for an answer. Clients take turns, so that a client with many requests delays only itself.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use tokio::sync::Semaphore;

/// The most waiting requests in total. Further ones are dropped, as a full socket buffer drops them, and clients send them again.
const MAX_TOTAL: usize = 4096;
/// The most waiting requests of one client address.
const MAX_PER_CLIENT: usize = 64;

/// A datagram and its sender.
pub type DnsRequest = (Vec<u8>, SocketAddr);

pub struct RequestQueue {
    waiting: Mutex<Waiting>,
    /// One permit for each waiting request.
    ready: Semaphore,
}

#[derive(Default)]
struct Waiting {
    by_client: HashMap<IpAddr, VecDeque<DnsRequest>>,
    /// Clients with waiting requests, the next one first.
    turns: VecDeque<IpAddr>,
    count: usize,
}

impl Default for RequestQueue {
    fn default() -> Self {
        Self { waiting: Mutex::default(), ready: Semaphore::new(0) }
    }
}

impl RequestQueue {
    /// Adds a request, or drops it if a limit is reached.
    pub fn push(&self, request: DnsRequest) {
        let client = request.1.ip();
        let mut waiting = self.waiting.lock();
        if waiting.count >= MAX_TOTAL {
            return;
        }
        let own = waiting.by_client.entry(client).or_default();
        if own.len() >= MAX_PER_CLIENT {
            return;
        }
        own.push_back(request);
        if own.len() == 1 {
            waiting.turns.push_back(client);
        }
        waiting.count += 1;
        self.ready.add_permits(1);
    }

    /// Removes the next request; waits until there is one.
    pub async fn pop(&self) -> DnsRequest {
        loop {
            // The semaphore is never closed.
            if let Ok(permit) = self.ready.acquire().await {
                permit.forget();
            }
            if let Some(request) = self.waiting.lock().take() {
                return request;
            }
        }
    }
}

impl Waiting {
    fn take(&mut self) -> Option<DnsRequest> {
        let client = self.turns.pop_front()?;
        let own = self.by_client.get_mut(&client)?;
        let request = own.pop_front();
        if own.is_empty() {
            self.by_client.remove(&client);
        } else {
            self.turns.push_back(client);
        }
        self.count -= usize::from(request.is_some());
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(client: u16, number: u8) -> DnsRequest {
        let [high, low] = client.to_be_bytes();
        (vec![number], SocketAddr::from(([10, 0, high, low], 1000 + u16::from(number))))
    }

    #[tokio::test]
    async fn clients_take_turns() {
        let queue = RequestQueue::default();
        (0..200).for_each(|n| queue.push(from(1, n)));
        queue.push(from(2, 0));
        queue.push(from(2, 1));
        queue.push(from(3, 0));
        let mut order = Vec::new();
        for _ in 0..MAX_PER_CLIENT + 3 {
            order.push(queue.pop().await);
        }
        assert_eq!(order[..6], [from(1, 0), from(2, 0), from(3, 0), from(1, 1), from(2, 1), from(1, 2)]);
        assert_eq!(order.last().unwrap(), &from(1, MAX_PER_CLIENT as u8 - 1), "the rest was dropped");
        let waiting = queue.waiting.lock();
        assert!(waiting.by_client.is_empty() && waiting.turns.is_empty() && waiting.count == 0);
    }

    #[test]
    fn the_total_is_limited() {
        let queue = RequestQueue::default();
        (0..MAX_TOTAL as u16 + 10).for_each(|client| queue.push(from(client, 0)));
        assert_eq!((queue.waiting.lock().count, queue.ready.available_permits()), (MAX_TOTAL, MAX_TOTAL));
    }
}

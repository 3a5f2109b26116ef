//! Questions that wait for an answer, by client: each client has one answered in turn, so that whoever asks very much waits for itself.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use tokio::sync::Semaphore;

/// Questions that wait, in all and of one address. More are dropped, as a full socket would do, and asked again by their clients.
const ALL: usize = 4096;
const EACH: usize = 64;

/// A datagram and where it came from.
pub type Question = (Vec<u8>, SocketAddr);

pub struct Questions {
    waiting: Mutex<Waiting>,
    /// One permit for each that waits.
    ready: Semaphore,
}

#[derive(Default)]
struct Waiting {
    by_client: HashMap<IpAddr, VecDeque<Question>>,
    /// Clients with questions; the first has its turn next.
    turns: VecDeque<IpAddr>,
    count: usize,
}

impl Default for Questions {
    fn default() -> Self {
        Self { waiting: Mutex::default(), ready: Semaphore::new(0) }
    }
}

impl Questions {
    /// Adds a question, if there is room for it.
    pub fn put(&self, question: Question) {
        let client = question.1.ip();
        let mut waiting = self.waiting.lock();
        if waiting.count >= ALL {
            return;
        }
        let own = waiting.by_client.entry(client).or_default();
        if own.len() >= EACH {
            return;
        }
        own.push_back(question);
        if own.len() == 1 {
            waiting.turns.push_back(client);
        }
        waiting.count += 1;
        self.ready.add_permits(1);
    }

    /// Takes the next question; waits until there is one.
    pub async fn next(&self) -> Question {
        loop {
            // The semaphore is never closed.
            if let Ok(permit) = self.ready.acquire().await {
                permit.forget();
            }
            if let Some(question) = self.waiting.lock().take() {
                return question;
            }
        }
    }
}

impl Waiting {
    fn take(&mut self) -> Option<Question> {
        let client = self.turns.pop_front()?;
        let own = self.by_client.get_mut(&client)?;
        let question = own.pop_front();
        if own.is_empty() {
            self.by_client.remove(&client);
        } else {
            self.turns.push_back(client);
        }
        self.count -= usize::from(question.is_some());
        question
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(client: u16, number: u8) -> Question {
        let [high, low] = client.to_be_bytes();
        (vec![number], SocketAddr::from(([10, 0, high, low], 1000 + u16::from(number))))
    }

    #[tokio::test]
    async fn clients_take_turns() {
        let questions = Questions::default();
        (0..200).for_each(|n| questions.put(from(1, n)));
        questions.put(from(2, 0));
        questions.put(from(2, 1));
        questions.put(from(3, 0));
        let mut order = Vec::new();
        for _ in 0..EACH + 3 {
            order.push(questions.next().await);
        }
        assert_eq!(order[..6], [from(1, 0), from(2, 0), from(3, 0), from(1, 1), from(2, 1), from(1, 2)]);
        assert_eq!(order.last().unwrap(), &from(1, EACH as u8 - 1), "the rest was dropped");
        let waiting = questions.waiting.lock();
        assert!(waiting.by_client.is_empty() && waiting.turns.is_empty() && waiting.count == 0);
    }

    #[test]
    fn all_together_are_bounded() {
        let questions = Questions::default();
        (0..ALL as u16 + 10).for_each(|client| questions.put(from(client, 0)));
        assert_eq!((questions.waiting.lock().count, questions.ready.available_permits()), (ALL, ALL));
    }
}

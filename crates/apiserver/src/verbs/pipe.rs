//! The way from a watch to its connection, and when a client that does not read is left.
//!
//! Invariant: a watch that is not read holds a few pieces for a second, then only what fits into its user's room, and that for
//! half a minute. Who reads loses nothing, and a client that was left goes on from the last revision it has seen.

use crate::Server;
use crate::call::Call;
use crate::listen::Connection;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::timeout;

/// Pieces that wait for a connection.
const PENDING: usize = 4;
/// Small events are sent together up to this size.
pub(super) const PIECE: usize = 32 << 10;
/// From this size on, an event is sent as the bytes that the store or another watcher has of it.
pub(super) const SHARED: usize = 8 << 10;
/// A client may be slow for this long without taking room.
const BRIEF: Duration = Duration::from_secs(1);
const STALLED: Duration = Duration::from_secs(30);
/// What a connection keeps of an answer that is not read.
const IN_CONNECTION: usize = 256 << 10;

pub(super) struct Pipe {
    server: Arc<Server>,
    sender: mpsc::Sender<Bytes>,
    /// None in this process, where everybody reads.
    connection: Option<Arc<Connection>>,
    user: String,
    left: metrics::Counter,
}

/// Nobody reads any more.
pub(super) struct ClientGone;

impl Pipe {
    pub fn new(server: &Arc<Server>, call: &Call, left: metrics::Counter) -> (Self, mpsc::Receiver<Bytes>) {
        let (sender, receiver) = mpsc::channel(PENDING);
        let connection = call.parts.extensions.get::<Arc<Connection>>().cloned();
        (Self { server: server.clone(), sender, connection, user: call.user.name.clone(), left }, receiver)
    }

    /// Returns when nobody reads any more.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }

    /// Sends a piece. `held` are the bytes that stay in memory while it waits.
    pub async fn send(&self, piece: Bytes, held: usize) -> Result<(), ClientGone> {
        let piece = match self.sender.try_send(piece) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(ClientGone),
            Err(TrySendError::Full(piece)) => piece,
        };
        let Some(connection) = &self.connection else {
            return self.sender.send(piece).await.map_err(|_| ClientGone);
        };
        let mut permit = timeout(BRIEF, self.sender.reserve()).await;
        if permit.is_err() {
            let bytes = IN_CONNECTION + held + PENDING * piece.len();
            if let Some(_room) = self.server.watches.take_part(&self.user, bytes, Duration::ZERO).await {
                permit = timeout(STALLED, self.sender.reserve()).await;
            }
        }
        match permit {
            Ok(Ok(permit)) => {
                permit.send(piece);
                Ok(())
            }
            Ok(Err(_)) => Err(ClientGone),
            Err(_) => {
                tracing::debug!(user = self.user, "a watch was left: its client does not read");
                self.left.inc();
                // What the connection has taken already goes with it.
                connection.close();
                Err(ClientGone)
            }
        }
    }
}

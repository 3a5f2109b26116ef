//! Sends watch events to a connection, and drops clients that do not read.
//!
//! Invariant: an unread watch buffers a few pieces for a second, then only what its user's budget allows, for half a
//! minute. A client that reads loses nothing, and a dropped one resumes from its last revision.

use crate::Server;
use crate::call::Call;
use crate::listen::Connection;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::timeout;

/// Buffered pieces per connection.
const PENDING: usize = 4;
/// Small events are batched up to this size.
pub(super) const PIECE: usize = 32 << 10;
/// From this size on, an event is sent as shared bytes of the store or the encoding cache.
pub(super) const SHARED: usize = 8 << 10;
/// How long a client may be slow without using budget.
const BRIEF: Duration = Duration::from_secs(1);
const STALLED: Duration = Duration::from_secs(30);
/// How long an unread response may use budget.
const IN_CONNECTION: usize = 256 << 10;

pub(super) struct Pipe {
    server: Arc<Server>,
    sender: mpsc::Sender<Bytes>,
    /// None in the same process, whose clients always read.
    connection: Option<Arc<Connection>>,
    user: String,
    left: metrics::Counter,
}

/// The receiver is gone.
pub(super) struct ClientGone;

impl Pipe {
    pub fn new(server: &Arc<Server>, call: &Call, left: metrics::Counter) -> (Self, mpsc::Receiver<Bytes>) {
        let (sender, receiver) = mpsc::channel(PENDING);
        let connection = call.parts.extensions.get::<Arc<Connection>>().cloned();
        (Self { server: server.clone(), sender, connection, user: call.user.name.clone(), left }, receiver)
    }

    /// Returns when the receiver is gone.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }

    /// Sends a piece. `held` are the bytes kept in memory while it waits.
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
                // Includes what the connection has buffered already.
                connection.close();
                Err(ClientGone)
            }
        }
    }
}

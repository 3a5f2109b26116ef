//! Connections that hold memory or room: unread watches, unread answers, slow bodies, silence after the handshake.

use crate::runner::Case;

pub const TESTS: &[Case] = &[];

//! Requests that cost the server more than they cost the client: duplicate keys, aliases, patterns, depth.

use crate::runner::Case;

pub const TESTS: &[Case] = &[];

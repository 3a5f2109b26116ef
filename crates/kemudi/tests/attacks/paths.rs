//! Out of a container by a path: symbolic links where the node agent walks, sysctls, and the data directory of the server.

use crate::runner::Case;

pub const TESTS: &[Case] = &[];

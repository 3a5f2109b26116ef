//! Strings of schemas.

use std::sync::Arc;

/// A shared string.
pub type Str = Arc<str>;

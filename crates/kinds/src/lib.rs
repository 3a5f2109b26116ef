//! The one description of every built-in kind.

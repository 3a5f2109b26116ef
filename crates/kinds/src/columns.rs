//! Table cells.

//! An in-memory cluster in virtual time for tests.

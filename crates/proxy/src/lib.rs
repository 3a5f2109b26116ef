//! The service proxy.

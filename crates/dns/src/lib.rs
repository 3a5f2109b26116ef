//! The cluster DNS server.

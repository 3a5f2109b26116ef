//! Credentials that allow less than what is tried: nodes, paths of requests, proxies, credential plugins.

use crate::runner::Case;

pub const TESTS: &[Case] = &[];

//! Out of a container: descriptors, the window of exec, fields of a pod that weaken its isolation, privileges by level.

use crate::runner::Case;

pub const TESTS: &[Case] = &[];

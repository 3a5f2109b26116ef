//! Leases: who leads is not coordinated here (`CoordinatedLeaderElection` is off), and what would say so is not kept.

use meta::Object;
use registry::{Env, Request, Strategy};

pub struct Lease;

impl Strategy for Lease {
    fn prepare_for_create(&self, _env: Env<'_>, _request: &Request, o: &mut Object) {
        forget(o, None);
    }

    fn prepare_for_update(&self, _env: Env<'_>, _request: &Request, o: &mut Object, old: &Object) {
        forget(o, Some(old));
    }
}

fn forget(o: &mut Object, old: Option<&Object>) {
    for key in ["strategy", "preferredHolder"] {
        if old.is_none_or(|old| old.at(&["spec", key]).is_none_or(|v| v.is_null())) {
            o.remove(&["spec", key]);
        }
    }
}

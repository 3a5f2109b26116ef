//! The mirror pod of a static pod, through which its status is reported.

use super::{Origin, Worker, revision};

impl Worker {
    /// The UID of the pod's object in the API. `None` for a static pod that no mirror pod shows.
    pub(super) fn api_uid(&self) -> Option<&str> {
        match self.origin {
            Origin::Api => Some(&self.uid),
            Origin::Manifest => self.mirror_uid.as_deref(),
        }
    }

    /// Takes over the status of the mirror pod, which another client may have deleted or changed.
    pub(super) fn follow_mirror(&mut self) {
        if self.origin == Origin::Api {
            return;
        }
        let Some(found) = self.shared.known.static_pods.mirror(&self.pod) else {
            self.mirror_uid = None;
            return;
        };
        let status = found.status.clone().unwrap_or_default();
        let is_known = self.mirror_uid == found.metadata.uid;
        // One that shows an earlier end of the pod will be replaced.
        if !is_known && matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return;
        }
        if !is_known || revision(&found) > self.base.0 {
            self.base = (revision(&found), status);
        }
        self.mirror_uid = found.metadata.uid.clone();
    }
}

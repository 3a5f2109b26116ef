//! Creating objects that may have been on a server before, and putting a new object in the place of one that is deleted for it.

use crate::error::{Error, text};
use client::{Api, DryRun, WriteOptions};
use meta::Object;

/// Creates an object, whatever version it had where it was read (`resource.Helper.Create` of cli-runtime): servers refuse a
/// creation with a resource version.
pub async fn create(api: &Api<Object>, options: &WriteOptions, o: &Object) -> Result<Object, client::Error> {
    if o.resource_version().is_empty() {
        return api.create(options, o).await;
    }
    let mut unversioned = o.clone();
    unversioned.remove(&["metadata", "resourceVersion"]);
    api.create(options, &unversioned).await
}

/// A creation in the place of an object that must be deleted first.
///
/// **Invariant.** Nobody is left without both: the server has said that it would take the new object before the old one is deleted, and if it
/// does not take it all the same, the old one is created again.
pub struct Replacement {
    old: Option<Object>,
    new: Object,
    options: WriteOptions,
}

impl Replacement {
    /// Lets the server rehearse the creation while the old object is there (dry run). Without an old one there is nothing to rehearse.
    ///
    /// # Errors
    /// What the server would refuse the new object with.
    pub async fn rehearse(
        api: &Api<Object>,
        old: Option<Object>,
        options: &WriteOptions,
        new: Object,
    ) -> Result<Self, client::Error> {
        if old.is_some() {
            let rehearsal = WriteOptions { dry_run: DryRun::All, ..options.clone() };
            match create(api, &rehearsal, &new).await {
                Err(e) if !is_due_to_the_old_one(&e) => return Err(e),
                _ => {}
            }
        }
        Ok(Self { old, new, options: options.clone() })
    }

    /// Creates the new object, after the old one is gone.
    pub async fn create(self, api: &Api<Object>) -> Result<Object, Error> {
        let failed = match create(api, &self.options, &self.new).await {
            Ok(o) => return Ok(o),
            Err(e) => e,
        };
        if let Some(old) = &self.old
            && let Err(e) = create(api, &WriteOptions::manager(&self.options.field_manager), old).await
            && !e.is_already_exists()
        {
            return text(format!(
                "An error occurred force-replacing the existing object with the newly provided one:\n\n{failed}.\n\nAdditionally, an error occurred attempting to restore the original object:\n\n{e}"
            ));
        }
        Err(Error::from(failed))
    }
}

/// Whether a rehearsal failed by what will not be there any more, or cannot be rehearsed.
fn is_due_to_the_old_one(e: &client::Error) -> bool {
    let Some(status) = e.status() else { return false };
    let causes = || status.details.iter().flat_map(|d| &d.causes);
    e.is_already_exists()
        || e.is_forbidden() && status.message.contains("exceeded quota")
        || e.is_invalid() && causes().next().is_some() && causes().all(|c| c.message.contains("already allocated"))
        || status.message.contains("does not support dry run")
}

//! Creates objects that were read from a server, and replaces an object by deleting and creating it.

use crate::error::{Error, text};
use crate::kube::Kube;
use crate::temporary;
use client::{Api, ApiResource, DeleteOptions, DryRun, ListOptions, WriteOptions};
use meta::{Object, Reason, Value};
use std::io::Write as _;
use std::time::Duration;
use tokio::time::Instant;

/// Creates an object without the resource version that it was read with (`resource.Helper.Create` of cli-runtime): servers
/// reject a creation with one.
pub async fn create(api: &Api<Object>, options: &WriteOptions, o: &Object) -> Result<Object, client::Error> {
    if o.resource_version().is_empty() {
        return api.create(options, o).await;
    }
    let mut unversioned = o.clone();
    unversioned.remove(&["metadata", "resourceVersion"]);
    api.create(options, &unversioned).await
}

/// How many times a request without response is sent.
const ATTEMPTS: usize = 4;

/// The pauses before a request is repeated, and between checks whether an object is deleted.
const RETRY_PAUSES: [Duration; 4] =
    [Duration::from_millis(20), Duration::from_millis(100), Duration::from_millis(300), Duration::from_secs(1)];

async fn pause(round: usize) {
    tokio::time::sleep(RETRY_PAUSES[round.min(RETRY_PAUSES.len() - 1)]).await;
}

/// Default time limit until the old object is deleted.
pub const DELETION_TIMEOUT: Duration = Duration::from_secs(300);

/// What is known about the old object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OldState {
    Exists,
    Deleting,
    Deleted,
    /// The server does not respond.
    Unknown,
}

/// Replaces an object that must be deleted first.
///
/// **Invariant.** One of the two objects exists at the end: the old object is deleted only after the server accepted a dry
/// run of the new one, and is created again if the server then refuses the new one. A request without response is repeated.
/// If the old object cannot be restored because the server is unreachable, it is written to a file.
pub struct Replacement {
    api: Api<Object>,
    name: String,
    old: Option<Object>,
    new: Object,
    options: WriteOptions,
}

impl Replacement {
    /// Does a dry run of the creation while the old object exists. Without an old object there is none.
    ///
    /// # Errors
    /// The server refuses the new object.
    pub async fn dry_run(
        api: Api<Object>,
        name: &str,
        old: Option<Object>,
        options: &WriteOptions,
        new: Object,
    ) -> Result<Self, client::Error> {
        if let Some(old) = &old {
            let dry_run_options = WriteOptions { dry_run: DryRun::All, ..options.clone() };
            if let Err(e) = create(&api, &dry_run_options, &new).await
                && !is_caused_by_old(&e, old, &new)
                && !may_be_quota(&api, &e, old.namespace()).await
                && !is_caused_by_dry_run(&api, &e, options, old).await
            {
                return Err(e);
            }
        }
        Ok(Self { api, name: name.to_owned(), old, new, options: options.clone() })
    }

    /// Deletes the old object; returns false if there was none.
    ///
    /// # Errors
    /// The old object could not be deleted.
    pub async fn delete(&mut self, options: &DeleteOptions) -> Result<bool, client::Error> {
        let failed = match self.api.delete(&self.name, options).await {
            Ok(_) => return Ok(true),
            Err(e) if e.is_not_found() => {
                // Another client deleted it, so it is not restored.
                self.old = None;
                return Ok(false);
            }
            Err(e) => e,
        };
        // The server may have deleted the object without a response.
        if !failed.is_transient() || self.find_old().await == OldState::Exists {
            return Err(failed);
        }
        Ok(true)
    }

    /// Waits until the old object is deleted, or the server does not respond. Another object of the same name does not
    /// count.
    ///
    /// # Errors
    /// The time is over, and the old object is still being deleted.
    pub async fn wait_deleted(&self, limit: Instant) -> Result<(), Error> {
        let wait = async {
            for round in 0.. {
                if matches!(self.find_old().await, OldState::Deleted | OldState::Unknown) {
                    return;
                }
                pause(round).await;
            }
        };
        match tokio::time::timeout_at(limit, wait).await {
            Ok(()) => Ok(()),
            Err(_) => text(format!(
                "timed out waiting for the condition on {}/{}",
                self.api.resource().gvr().resource,
                self.name
            )),
        }
    }

    async fn find_old(&self) -> OldState {
        let uid = self.old.as_ref().map_or("", Object::uid);
        for round in 0..ATTEMPTS {
            match self.api.get_opt(&self.name).await {
                Ok(None) => return OldState::Deleted,
                Ok(Some(o)) if !uid.is_empty() && o.uid() != uid => return OldState::Deleted,
                Ok(Some(o)) if o.is_deleting() => return OldState::Deleting,
                Ok(Some(_)) => return OldState::Exists,
                Err(e) if e.is_transient() => pause(round).await,
                Err(_) => break,
            }
        }
        OldState::Unknown
    }

    /// Creates the new object after the old one was deleted.
    ///
    /// # Errors
    /// The server refused it. The old object was restored, or the error names the file that contains it.
    pub async fn create(self, k: &Kube) -> Result<Object, Error> {
        let failed = match create_with_retries(&self.api, &self.options, &self.new).await {
            Ok(o) => return Ok(o),
            Err(e) => e,
        };
        let Some(old) = &self.old else { return Err(Error::from(failed)) };
        match create_with_retries(&self.api, &WriteOptions::manager(&self.options.field_manager), old).await {
            Ok(_) => Err(Error::from(failed)),
            Err(e) if e.is_already_exists() => Err(Error::from(failed)),
            Err(e) => {
                let both = format!(
                    "An error occurred force-replacing the existing object with the newly provided one:\n\n{failed}.\n\nAdditionally, an error occurred attempting to restore the original object:\n\n{e}"
                );
                text(both + "\n\n" + &save_to_file(k, old))
            }
        }
    }
}

/// Creates an object and repeats a request without response. If a response was lost and the object exists then, returns the
/// first error: the creator is unknown.
async fn create_with_retries(api: &Api<Object>, options: &WriteOptions, o: &Object) -> Result<Object, client::Error> {
    let mut lost_response = None;
    for round in 0..ATTEMPTS {
        match create(api, options, o).await {
            Err(e) if e.is_transient() => lost_response = Some(lost_response.unwrap_or(e)),
            Err(e) if e.is_already_exists() => return Err(lost_response.unwrap_or(e)),
            response => return response,
        }
        if round + 1 < ATTEMPTS {
            pause(round).await;
        }
    }
    Err(lost_response.unwrap_or_else(|| client::Error::Unexpected("no answer".into())))
}

/// Writes an object that no server has any more to a file, and returns a message about it.
fn save_to_file(k: &Kube, o: &Object) -> String {
    let written = temporary::create_file(k, "kubectl-original", "yaml").and_then(|(path, mut file)| {
        file.write_all(codec::yaml::to_string(&o.0.clone().into()).as_bytes())
            .map_err(|e| Error::Text(format!("{}: {}", path.display(), crate::error::os_message(&e))))?;
        Ok(path)
    });
    match written {
        Ok(path) => format!("A copy of the original object has been stored to {:?}", path.display().to_string()),
        Err(e) => format!("Storing a copy of the original object failed: {e}"),
    }
}

/// Whether a dry run was refused only because the old object still exists.
fn is_caused_by_old(e: &client::Error, old: &Object, new: &Object) -> bool {
    let Some(status) = e.status() else { return false };
    let causes = || status.details.iter().flat_map(|d| &d.causes);
    e.is_already_exists()
        || e.is_invalid() && causes().next().is_some() && causes().all(|c| holds_value(old, new, &c.field))
}

/// Whether a dry run may have been refused because the old object uses up a quota: nothing else in the response tells the refusals
/// of a quota from others, so that a namespace with a quota counts.
async fn may_be_quota(api: &Api<Object>, e: &client::Error, namespace: &str) -> bool {
    if !e.is_forbidden() || namespace.is_empty() {
        return false;
    }
    let quotas = ApiResource::named("", "v1", "resourcequotas", "ResourceQuota", true);
    let quotas = api.client().dynamic(&quotas).namespace(namespace);
    quotas.list(&ListOptions { limit: 1, ..ListOptions::default() }).await.is_ok_and(|list| !list.items.is_empty())
}

/// Whether the server refuses dry runs as such, as for a webhook with side effects: then it refuses one of the old object too,
/// which it accepted before.
async fn is_caused_by_dry_run(api: &Api<Object>, e: &client::Error, options: &WriteOptions, old: &Object) -> bool {
    let refused = |e: &client::Error| e.status().is_some_and(|s| s.is(Reason::BadRequest));
    let dry_run = WriteOptions { dry_run: DryRun::All, ..WriteOptions::manager(&options.field_manager) };
    refused(e) && create(api, &dry_run, old).await.is_err_and(|e| refused(&e))
}

/// Whether the value of an invalid field of a new service is a cluster IP or node port that the old service holds.
fn holds_value(old: &Object, new: &Object, field: &str) -> bool {
    let addresses = |o: &Object| -> Vec<Value> {
        let listed = o.at(&["spec", "clusterIPs"]).and_then(Value::as_array).cloned().unwrap_or_default();
        listed.into_iter().chain(o.at(&["spec", "clusterIP"]).cloned()).collect()
    };
    let node_ports = |o: &Object| -> Vec<Value> {
        let ports = o.at(&["spec", "ports"]).and_then(Value::as_array).cloned().unwrap_or_default();
        ports.iter().map(|p| p["nodePort"].clone()).collect()
    };
    if matches!(field, "spec.clusterIPs" | "spec.clusterIP") {
        let held = addresses(old);
        return addresses(new).iter().any(|a| held.contains(a));
    }
    let index = field.strip_prefix("spec.ports[").and_then(|f| f.strip_suffix("].nodePort"));
    let requested = index.and_then(|i| node_ports(new).get(i.parse::<usize>().ok()?).cloned());
    requested.is_some_and(|port| !port.is_null() && node_ports(old).contains(&port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use meta::Status;
    use serde_json::json;

    #[test]
    fn refusals_caused_by_the_old_service_allow_its_replacement() {
        let service = |spec: Value| Object::from_value(json!({"kind": "Service", "spec": spec})).unwrap();
        let old = service(
            json!({"clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"], "ports": [{"nodePort": 30000}, {"nodePort": 30001}]}),
        );
        for (spec, fields, expected) in [
            (json!({"clusterIP": "10.0.0.5"}), vec!["spec.clusterIPs"], true),
            (json!({"clusterIPs": ["10.0.0.6"]}), vec!["spec.clusterIPs"], false),
            (json!({"ports": [{"nodePort": 30001}]}), vec!["spec.ports[0].nodePort"], true),
            // Another service holds the port.
            (json!({"ports": [{"nodePort": 30002}]}), vec!["spec.ports[0].nodePort"], false),
            (json!({"ports": [{}]}), vec!["spec.ports[0].nodePort"], false),
            (json!({"clusterIP": "10.0.0.5"}), vec!["spec.clusterIPs", "spec.type"], false),
            (json!({}), vec![], false),
        ] {
            let causes =
                fields.iter().map(|f| meta::status::Cause { field: (*f).into(), ..Default::default() }).collect();
            let details = meta::status::Details { causes, ..Default::default() };
            let refusal = Status::new(422, Reason::Invalid, "refused").with_details(details);
            assert_eq!(is_caused_by_old(&refusal.into(), &old, &service(spec.clone())), expected, "{spec} {fields:?}");
        }
    }
}

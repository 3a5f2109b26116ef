//! Creating objects that may have been on a server before, and putting a new object in the place of one that is deleted for it.

use crate::error::{Error, text};
use crate::kube::Kube;
use crate::temporary;
use client::{Api, DeleteOptions, DryRun, WriteOptions};
use meta::{Object, Value};
use std::io::Write as _;
use std::time::Duration;
use tokio::time::Instant;

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

/// How often a request is made whose answer does not arrive.
const ATTEMPTS: usize = 4;

/// How long to wait before a request is made again, and between two looks whether an object is gone.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(20), Duration::from_millis(100), Duration::from_millis(300), Duration::from_secs(1)];

async fn pause(round: usize) {
    tokio::time::sleep(PAUSES[round.min(PAUSES.len() - 1)]).await;
}

/// How long to wait until the old object is gone, where no `--timeout` is given.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// What is known of the old object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Old {
    There,
    Deleting,
    Gone,
    /// The server does not say.
    Unknown,
}

/// A creation in the place of an object that must be deleted first.
///
/// **Invariant.** Nobody is left without both: the server has said that it would take the new object before the old one is deleted, and if it
/// does not take it all the same, the old one is created again. An answer that does not arrive is asked for again. What cannot be
/// brought back, since the server is not in reach any more, is written to a file.
pub struct Replacement {
    api: Api<Object>,
    name: String,
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
        api: Api<Object>,
        name: &str,
        old: Option<Object>,
        options: &WriteOptions,
        new: Object,
    ) -> Result<Self, client::Error> {
        if let Some(old) = &old {
            let rehearsal = WriteOptions { dry_run: DryRun::All, ..options.clone() };
            match create(&api, &rehearsal, &new).await {
                Err(e) if !is_caused_by_old(&e, old, &new) => return Err(e),
                _ => {}
            }
        }
        Ok(Self { api, name: name.to_owned(), old, new, options: options.clone() })
    }

    /// Deletes the old object; false if there was none.
    ///
    /// # Errors
    /// The old object is still there, and why.
    pub async fn delete(&mut self, options: &DeleteOptions) -> Result<bool, client::Error> {
        let failed = match self.api.delete(&self.name, options).await {
            Ok(_) => return Ok(true),
            Err(e) if e.is_not_found() => {
                // Somebody else deleted it: it is not ours to bring back.
                self.old = None;
                return Ok(false);
            }
            Err(e) => e,
        };
        // The server may have done what it could not say.
        if !failed.is_transient() || self.find_old().await == Old::There {
            return Err(failed);
        }
        Ok(true)
    }

    /// Waits until the old object is gone, or nobody answers. Another object of the same name is another object.
    ///
    /// # Errors
    /// The time is over, and the old object is still being deleted.
    pub async fn gone(&self, limit: Instant) -> Result<(), Error> {
        let wait = async {
            for round in 0.. {
                if matches!(self.find_old().await, Old::Gone | Old::Unknown) {
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

    async fn find_old(&self) -> Old {
        let uid = self.old.as_ref().map_or("", Object::uid);
        for round in 0..ATTEMPTS {
            match self.api.get_opt(&self.name).await {
                Ok(None) => return Old::Gone,
                Ok(Some(o)) if !uid.is_empty() && o.uid() != uid => return Old::Gone,
                Ok(Some(o)) if o.is_deleting() => return Old::Deleting,
                Ok(Some(_)) => return Old::There,
                Err(e) if e.is_transient() => pause(round).await,
                Err(_) => break,
            }
        }
        Old::Unknown
    }

    /// Creates the new object, after the old one is gone.
    ///
    /// # Errors
    /// The server did not take it; the old object is there again, or the error names the file in which it is.
    pub async fn create(self, k: &Kube) -> Result<Object, Error> {
        let failed = match insist(&self.api, &self.options, &self.new).await {
            Ok(o) => return Ok(o),
            Err(e) => e,
        };
        let Some(old) = &self.old else { return Err(Error::from(failed)) };
        match insist(&self.api, &WriteOptions::manager(&self.options.field_manager), old).await {
            Ok(_) => Err(Error::from(failed)),
            Err(e) if e.is_already_exists() => Err(Error::from(failed)),
            Err(e) => {
                let both = format!(
                    "An error occurred force-replacing the existing object with the newly provided one:\n\n{failed}.\n\nAdditionally, an error occurred attempting to restore the original object:\n\n{e}"
                );
                text(both + "\n\n" + &keep(k, old))
            }
        }
    }
}

/// Creates an object, again if no answer arrives. If the first answer is lost and the object is there then, that is the first error:
/// it is not known who made it.
async fn insist(api: &Api<Object>, options: &WriteOptions, o: &Object) -> Result<Object, client::Error> {
    let mut lost = None;
    for round in 0..ATTEMPTS {
        match create(api, options, o).await {
            Err(e) if e.is_transient() => lost = Some(lost.unwrap_or(e)),
            Err(e) if e.is_already_exists() => return Err(lost.unwrap_or(e)),
            answer => return answer,
        }
        if round + 1 < ATTEMPTS {
            pause(round).await;
        }
    }
    Err(lost.unwrap_or_else(|| client::Error::Unexpected("no answer".into())))
}

/// Writes an object that is on no server any more to a file, and says which.
fn keep(k: &Kube, o: &Object) -> String {
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

/// Whether a rehearsal was refused only because the old object still exists, or because a webhook cannot rehearse.
fn is_caused_by_old(e: &client::Error, old: &Object, new: &Object) -> bool {
    let Some(status) = e.status() else { return false };
    let causes = || status.details.iter().flat_map(|d| &d.causes);
    e.is_already_exists()
        || e.is_invalid() && causes().next().is_some() && causes().all(|c| holds_value(old, new, &c.field))
        // Reason and details of these two are those of any other refusal: only the message differs.
        || e.is_forbidden() && status.message.contains("exceeded quota")
        || status.message.contains("does not support dry run")
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
    use meta::{Reason, Status};
    use serde_json::json;

    #[test]
    fn refusals_caused_by_the_old_service_allow_its_replacement() {
        let service = |spec: Value| Object::from_value(json!({"kind": "Service", "spec": spec})).unwrap();
        let old = service(
            json!({"clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"], "ports": [{"nodePort": 30000}, {"nodePort": 30001}]}),
        );
        for (spec, fields, want) in [
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
            assert_eq!(is_caused_by_old(&refusal.into(), &old, &service(spec.clone())), want, "{spec} {fields:?}");
        }
    }
}

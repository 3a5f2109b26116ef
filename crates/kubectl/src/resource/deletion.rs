//! Waiting for the end of a deletion.

use super::Info;
use crate::error::{Error, Result, text};
use crate::kube::{Kube, POLL_INTERVAL};
use client::{ListOptions, WatchEvent, WatchOptions};
use futures::StreamExt as _;
use tokio::time::Instant;

/// Waits until the object with this UID is deleted, or until `limit`. An object with another UID is another object.
///
/// # Errors
/// The time is over, or the server refuses to list or watch the object.
pub async fn wait_deleted(k: &mut Kube, i: &Info, uid: &str, limit: Instant) -> Result {
    let api = k.api(&i.resource, &i.namespace).await?;
    let name = &i.name;
    let wait = async {
        loop {
            let fields = format!("metadata.name={name}");
            let options = ListOptions { field_selector: fields.clone(), ..ListOptions::default() };
            let page = match api.list(&options).await {
                // The kind was deleted, and with it all its objects.
                Err(e) if e.is_not_found() => return Ok(()),
                listed => listed?,
            };
            let Some(live) = page.items.first() else { return Ok(()) };
            if !uid.is_empty() && live.uid() != uid {
                return Ok(());
            }
            let options = WatchOptions {
                field_selector: fields,
                resource_version: page.resource_version,
                ..WatchOptions::default()
            };
            let mut events = api.watch(&options).await?;
            while let Some(event) = events.next().await {
                match event {
                    Ok(WatchEvent::Deleted(_)) => return Ok(()),
                    Ok(_) => {}
                    // The version expired, or the server ended the watch: list again.
                    Err(e) if e.is_expired() || e.is_transient() => break,
                    Err(e) => return Err(Error::from(e)),
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    match tokio::time::timeout_at(limit, wait).await {
        Ok(r) => r,
        Err(_) => text(format!("timed out waiting for the condition on {}/{name}", i.resource.plural)),
    }
}

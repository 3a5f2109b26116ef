//! What the workers of all pods share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use client::{Client, Informer, Lookups, Recorder};
use parking_lot::Mutex;

use crate::admission::Admission;
use crate::affinity::Managers;
use crate::counts::Known;
use crate::credentials::Providers;
use crate::dra::Dra;
use crate::env::ServiceView;
use crate::hugepages::PageSizes;
use crate::objects::Objects;
use crate::options::Options;
use crate::pod::starts::Starts;
use crate::pod::users::Users;
use crate::pod::verification::Verification;
use crate::volumes::Volumes;
use crate::volumes::token::TokenRequests;

/// What workers share.
pub(crate) struct Shared {
    pub options: Arc<Options>,
    pub client: Client,
    pub recorder: Recorder,
    pub objects: Arc<Objects>,
    pub tokens: Arc<TokenRequests>,
    pub credential_providers: Providers,
    pub verification: Verification,
    pub volumes: Volumes,
    pub users: Arc<Users>,
    pub services: Informer<ServiceView>,
    pub allocatable: BTreeMap<String, String>,
    /// Bytes of memory of the node.
    pub memory: u64,
    /// The sizes of huge pages that the node has.
    pub page_sizes: PageSizes,
    pub starts: Starts,
    pub lookups: Arc<Lookups>,
    pub known: Arc<Known>,
    pub admission: Arc<Admission>,
    pub managers: Arc<Managers>,
    pub dra: Arc<Dra>,
    pub dirty: Arc<Mutex<BTreeSet<String>>>,
}

impl Shared {
    /// Whether an object that the pod references has changed since the last call.
    pub fn take_dirty(&self, uid: &str) -> bool {
        self.dirty.lock().remove(uid)
    }

    /// The addresses that the pod has from an earlier agent; none if it has none.
    pub async fn addresses(&self, uid: &str) -> Vec<std::net::IpAddr> {
        match &self.options.network {
            Some(network) => network.attached().await.remove(uid).unwrap_or_default(),
            None => Vec::new(),
        }
    }
}

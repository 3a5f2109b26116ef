//! What claims take of extended resources: which classes offer them, and which pods count them already, is in other objects.

use client::{ApiResource, Client, Error, ListOptions};
use k8s_openapi::api::resource::v1::DeviceClass;
use meta::{Object, Value};
use quota::{Amounts, extended};
use serde_json::json;
use std::collections::HashMap;

use crate::views::pods;

/// The claims of a namespace, as far as their extended resources need them.
#[derive(Default)]
pub struct Claims {
    /// The devices of claims that belong to no pod.
    devices: Amounts,
    /// The claims made for a pod, by its UID.
    of_pods: HashMap<String, Vec<OfPod>>,
}

struct OfPod {
    /// The claim's metadata.
    claim: Object,
    devices: Amounts,
}

impl Claims {
    pub fn add(&mut self, claim: &Object, usage: &Amounts) {
        match extended::made_for(claim) {
            None => quota::add(&mut self.devices, usage.clone()),
            Some(owner) => {
                let metadata = claim.at(&["metadata"]).cloned().unwrap_or(Value::Null);
                let Some(claim) = Object::from_value(json!({"metadata": metadata})) else { return };
                let of_pod = OfPod { claim, devices: usage.clone() };
                self.of_pods.entry(owner.uid.to_owned()).or_default().push(of_pod);
            }
        }
    }

    /// What all of them take of extended resources.
    pub async fn extended(self, client: &Client, namespace: &str, now: &str) -> Result<Amounts, Error> {
        let mut all = Amounts::new();
        if self.of_pods.is_empty() && extended::classes(&self.devices).next().is_none() {
            return Ok(all);
        }
        let mut resources = HashMap::new();
        let read = |class: Object| {
            let name = class.str_at(&["spec", "extendedResourceName"]).map(str::to_owned);
            resources.extend(name.map(|name| (class.name().to_owned(), name)));
        };
        client.dynamic(&ApiResource::typed::<DeviceClass>()).each(&ListOptions::default(), read).await?;
        let mut add = |devices: Amounts, counted: &Amounts| {
            let mut with = devices.clone();
            extended::add(&mut with, counted, |class| resources.get(class).cloned());
            with.retain(|name, _| !devices.contains_key(name));
            quota::add(&mut all, with);
        };
        add(self.devices, &Amounts::new());
        let mut of_pods = self.of_pods;
        let mut count = |pod: Option<&Object>, claims: Vec<OfPod>| {
            let first = claims.iter().map(|c| extended::age(&c.claim)).min();
            for OfPod { claim, devices } in claims {
                let is_first = first.as_ref() == Some(&extended::age(&claim));
                let counted = pod.map(|pod| extended::counted_by(pod, &claim, is_first, Some(now)));
                add(devices, &counted.unwrap_or_default());
            }
        };
        if !of_pods.is_empty() {
            let see = |pod: Object| {
                if let Some(claims) = of_pods.remove(pod.uid()) {
                    count(Some(&pod), claims);
                }
            };
            client.dynamic(&pods()).namespace(namespace).each(&ListOptions::default(), see).await?;
        }
        // Their pods are gone.
        of_pods.into_values().for_each(|claims| count(None, claims));
        Ok(all)
    }
}

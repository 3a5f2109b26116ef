//! Writing the slices that one controller manages.

use super::{MANAGED_BY, SERVICE};
use crate::context::{Context, Error, object};
use client::{ApiResource, DeleteOptions, Informer, Key, Scope, WriteOptions};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use meta::Object;

/// The slices of one controller, which it knows by their label.
pub(super) struct Slices {
    context: Context,
    pub(super) written: Informer<()>,
    managed_by: &'static str,
}

impl Slices {
    pub(super) fn resource() -> ApiResource {
        ApiResource::of::<EndpointSlice>()
    }

    pub(super) fn new(context: Context, managed_by: &'static str) -> Self {
        let written = context.informers.informer(&Self::resource(), &Scope::default());
        Self { context, written, managed_by }
    }

    /// Brings the slices of a service to the contents in `wanted`; those that are too many are deleted.
    pub(super) async fn write(&self, service: &Key, wanted: Vec<Object>) -> Result<(), Error> {
        let resource = Self::resource();
        let api = self.context.client.dynamic(&resource).namespace(&service.namespace);
        let mut have: Vec<Object> = self
            .written
            .cache()
            .in_namespace(&service.namespace)
            .filter(|e| {
                e.meta.label(SERVICE) == Some(&*service.name) && e.meta.label(MANAGED_BY) == Some(self.managed_by)
            })
            .map(|e| object(&resource, e))
            .collect::<Result<_, _>>()?;
        have.sort_by(|a, b| a.name().cmp(b.name()));
        // The addresses of a slice are of one kind for good.
        let mut kept = Vec::new();
        for content in wanted {
            let kind = content.get("addressType").cloned();
            let same = have.iter().position(|h| h.get("addressType") == kind.as_ref());
            kept.push((same.map(|i| have.remove(i)), content));
        }
        for (old, content) in kept {
            let mut o = old.unwrap_or_else(|| {
                let mut o = Object::new(&resource.gvk());
                o.set_namespace(&service.namespace);
                o.metadata_mut().insert("generateName".into(), format!("{}-", service.name).into());
                o
            });
            let before = o.clone();
            for (k, v) in content.0 {
                if k != "metadata" {
                    o.0.insert(k, v);
                    continue;
                }
                for (k, v) in v.as_object().into_iter().flatten() {
                    match v.is_null() {
                        true => o.metadata_mut().remove(k),
                        false => o.metadata_mut().insert(k.clone(), v.clone()),
                    };
                }
            }
            if o.name().is_empty() {
                api.create(&WriteOptions::default(), &o).await?;
            } else if o != before {
                let name = o.name().to_owned();
                api.update(&name, &WriteOptions::default(), &o).await?;
            }
        }
        for o in have {
            client::optional(api.delete(o.name(), &DeleteOptions::default()).await)?;
        }
        Ok(())
    }
}

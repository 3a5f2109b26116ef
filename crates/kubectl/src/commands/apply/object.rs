//! Applies one object: by the server, or client-side with a three-way patch.

use super::super::delete::cascade;
use super::super::recreate::{DELETION_TIMEOUT, Replacement, create};
use super::{ATTEMPTS, Arguments, conflict, migrate, patch};
use crate::error::{Error, Result, text};
use crate::flags::{DryRunStrategy, duration};
use crate::kube::Kube;
use crate::resource::Info;
use crate::resource::last_applied::{LAST_APPLIED, annotate};
use client::{DeleteOptions, Patch, WriteOptions};
use meta::Object;
use tokio::time::Instant;

/// An apply with its parsed options.
pub struct Apply {
    pub a: Arguments,
    pub dry: DryRunStrategy,
    pub options: WriteOptions,
}

impl Apply {
    /// Applies one object. Returns its new state and the operation for the output.
    pub async fn apply(&self, k: &mut Kube, i: &Info) -> Result<(Object, &'static str)> {
        if i.name.is_empty() {
            let generate = i.object.as_ref().map(Object::generate_name).unwrap_or_default();
            if !generate.is_empty() {
                return text(format!("from {generate}: cannot use generate name with apply"));
            }
            return text(format!(
                "error when retrieving current configuration of:\n{}\nfrom server for: {:?}: resource name may not be empty",
                describe(i),
                i.source
            ));
        }
        if self.a.server_side { self.on_server(k, i).await } else { self.on_client(k, i).await }
    }

    async fn on_server(&self, k: &mut Kube, i: &Info) -> Result<(Object, &'static str)> {
        let api = k.api(&i.resource, &i.namespace).await?;
        let mut o = i.object.clone().unwrap_or_default();
        k.record(&mut o);
        let patch = Patch::Apply(o.into_value());
        let done = match self.a.subresource.as_str() {
            "" => api.patch(&i.name, &self.options, &patch).await,
            sub => api.patch_subresource(&i.name, sub, &self.options, &patch).await,
        };
        match done {
            Ok(mut o) => {
                warn_if_deleting(k, i, &o);
                if self.a.subresource.is_empty() {
                    migrate::migrate_annotation(k, i, &o, &self.options).await;
                }
                if self.dry == DryRunStrategy::None && self.a.subresource.is_empty() {
                    match migrate::migrate(k, i, &o, &self.options.field_manager).await {
                        Ok(true) => match api.patch(&i.name, &self.options, &patch).await {
                            Ok(again) => o = again,
                            Err(e) => k.warn(format!(
                                "Warning: failed to re-apply configuration after performing Server-Side Apply migration. This is non-fatal and will be retried next time you apply. Error: {e}"
                            )),
                        },
                        Ok(false) => {}
                        Err(e) => k.warn(format!(
                            "Warning: server rejected managed fields migration to Server-Side Apply. This is non-fatal and will be retried next time you apply. Error: {e}"
                        )),
                    }
                }
                Ok((o, "serverside-applied"))
            }
            Err(e) if e.is_conflict() => {
                let explanation = conflict::explain(k, i, &e, &self.options.field_manager).await;
                text(format!("{e}\n{explanation}{CONFLICT_ADVICE}"))
            }
            Err(e) => Err(e.into()),
        }
    }

    async fn on_client(&self, k: &mut Kube, i: &Info) -> Result<(Object, &'static str)> {
        let api = k.api(&i.resource, &i.namespace).await?;
        let mut modified = i.object.clone().unwrap_or_default();
        k.record(&mut modified);
        annotate(&mut modified);
        // A creation omits null fields, as a patch of the same configuration would: as a value, null is a quantity of 0.
        // The annotation keeps them.
        let creatable = || {
            let mut o = modified.clone();
            o.0.retain(|_, v| !v.is_null());
            o.0.iter_mut().for_each(|(_, v)| without_nulls(v));
            o
        };
        let Some(live) = api.get_opt(&i.name).await.map_err(|e| {
            let doing = format!("retrieving current configuration of:\n{}\nfrom server for:", describe(i));
            Error::from(e).about(doing, &i.source)
        })?
        else {
            if self.dry == DryRunStrategy::Client {
                return Ok((creatable(), "created"));
            }
            let made = create(&api, &self.options, &creatable()).await;
            return match made {
                Ok(o) => {
                    if i.resource.group == "apiextensions.k8s.io" || i.resource.group == "apiregistration.k8s.io" {
                        k.forget_discovery();
                    }
                    Ok((o, "created"))
                }
                Err(e) => Err(Error::from(e).about("creating", &i.source)),
            };
        };
        if live.annotation(LAST_APPLIED).is_none() {
            k.warn(format!(
                "Warning: resource {}/{} is missing the {LAST_APPLIED} annotation which is required by kubectl apply. kubectl apply should only be used on resources created declaratively by either kubectl create --save-config or kubectl apply. The missing annotation will be patched automatically.",
                i.resource.plural, i.name
            ));
        }
        let mut current = live;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let made = patch::three_way(i, &current, &modified, self.a.overwrite)?;
            if made.text == "{}" {
                warn_if_deleting(k, i, &current);
                return Ok((current, "unchanged"));
            }
            if self.dry == DryRunStrategy::Client {
                return Ok((super::super::patch::locally(&current, &made.patch)?, "configured"));
            }
            let failed = match api.patch(&i.name, &self.options, &made.patch).await {
                Ok(o) => {
                    warn_if_deleting(k, i, &o);
                    return Ok((o, "configured"));
                }
                Err(e) => e,
            };
            if failed.is_conflict() && attempt < ATTEMPTS {
                current = api.get(&i.name).await?;
            } else if self.a.force && (failed.is_conflict() || failed.is_invalid()) {
                let doing = format!("applying patch:\n{}\nto:\n{}\nfor:", made.text, describe(i));
                return self.replace(k, i, current, creatable()).await.map_err(|e| e.about(doing, &i.source));
            } else {
                let doing = format!("applying patch:\n{}\nto:\n{}\nfor:", made.text, describe(i));
                return Err(Error::from(failed).about("patching", &i.source).about(doing, &i.source));
            }
        }
    }

    /// Deletes the object and creates it again.
    async fn replace(&self, k: &mut Kube, i: &Info, live: Object, modified: Object) -> Result<(Object, &'static str)> {
        let api = k.api(&i.resource, &i.namespace).await?;
        let mut replacement = Replacement::dry_run(api, &i.name, Some(live), &self.options, modified).await?;
        let mut options = DeleteOptions::propagation(cascade(&self.a.cascade)?);
        if self.a.grace_period >= 0 {
            options.grace_period_seconds = Some(self.a.grace_period);
        }
        let timeout = duration("timeout", &self.a.timeout)?.filter(|d| !d.is_zero());
        replacement.delete(&options).await?;
        replacement.wait_deleted(Instant::now() + timeout.unwrap_or(DELETION_TIMEOUT)).await?;
        Ok((replacement.create(k).await?, "configured"))
    }
}

/// Removes null members, also inside of lists; list items stay.
fn without_nulls(v: &mut meta::Value) {
    match v {
        meta::Value::Object(m) => {
            m.retain(|_, v| !v.is_null());
            m.iter_mut().for_each(|(_, v)| without_nulls(v));
        }
        meta::Value::Array(all) => all.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// Warns that an object with changes is being deleted.
pub fn warn_if_deleting(k: &Kube, i: &Info, o: &Object) {
    if o.is_deleting() {
        k.warn(format!("Warning: Detected changes to resource {} which is currently being deleted.", i.name));
    }
}

/// Describes the object for long messages.
fn describe(i: &Info) -> String {
    let r = &i.resource;
    let group = &r.group;
    format!(
        "Resource: \"{group}/{}, Resource={}\", GroupVersionKind: \"{group}/{}, Kind={}\"\nName: {:?}, Namespace: {:?}",
        r.version, r.plural, r.version, r.kind, i.name, i.namespace
    )
}

/// The advice that kubectl prints after a conflict.
const CONFLICT_ADVICE: &str = "Please review the fields above--they currently have other managers. Here
are the ways you can resolve this warning:
* If you intend to manage all of these fields, please re-run the apply
  command with the `--force-conflicts` flag.
* If you do not intend to manage all of the fields, please edit your
  manifest to remove references to the fields that should keep their
  current managers.
* You may co-own fields by updating your manifest to match the existing
  value; in this case, you'll become the manager if the other manager(s)
  stop managing the field (remove it from their configuration).
See https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts";

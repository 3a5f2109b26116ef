//! The content of volumes that are made from objects of the API: config map, secret, downward API, service account token.

use std::collections::BTreeMap;

use bytes::Bytes;
use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, DownwardAPIVolumeFile, KeyToPath, Pod, ProjectedVolumeSource, SecretVolumeSource,
};
use parking_lot::Mutex;

use super::atomic::{File, Payload, check_path};
use super::token::Tokens;
use super::{Error, MOST_CONTENT};
use crate::env::{Room, Source};
use crate::fields::{self, Place};
use crate::objects::{Data, Kind};

const DEFAULT_MODE: i32 = 0o644;

/// What payloads are made from.
pub struct Sources<'a> {
    pub pod: &'a Pod,
    pub objects: &'a dyn Source,
    pub tokens: &'a dyn Tokens,
    pub place: &'a Place,
    /// The user all containers run as, who then owns tokens.
    pub user: Option<u32>,
    pub has_group: bool,
    /// What the volumes of the pod may still take.
    pub room: &'a Mutex<Room>,
}

/// What a file takes besides its content.
const FILE: usize = 512;

impl Sources<'_> {
    fn file(&self, content: impl Into<Bytes>, mode: i32) -> Result<File, Error> {
        let content = content.into();
        if self.room.lock().take(FILE + content.len()).is_err() {
            let most = MOST_CONTENT >> 20;
            return Err(Error::Content(format!(
                "the files that the pod's volumes are made of take more than {most} MiB"
            )));
        }
        Ok(File { content, mode: mode as u32 & 0o777, user: None })
    }

    /// The files that `items` choose from `data`; all of them without items.
    fn select(
        &self,
        out: &mut Payload,
        data: &Data,
        items: &[KeyToPath],
        mode: i32,
        optional: bool,
        what: &str,
    ) -> Result<(), Error> {
        if items.is_empty() {
            for (key, value) in data {
                out.insert(key.clone(), self.file(value.clone(), mode)?);
            }
            return Ok(());
        }
        for item in items {
            match data.get(&item.key) {
                Some(value) => {
                    check_path(&item.path).map_err(Error::Content)?;
                    out.insert(item.path.clone(), self.file(value.clone(), item.mode.unwrap_or(mode))?);
                }
                None if optional => {}
                None => return Err(Error::Content(format!("references non-existent {what} key: {}", item.key))),
            }
        }
        Ok(())
    }

    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    async fn object(
        &self,
        out: &mut Payload,
        kind: Kind,
        name: &str,
        items: Option<&[KeyToPath]>,
        mode: i32,
        optional: bool,
    ) -> Result<(), Error> {
        let what = if kind == Kind::ConfigMap { "config" } else { "secret" };
        match self.objects.data(kind, self.namespace(), name).await? {
            Some(data) => self.select(out, &data, items.unwrap_or_default(), mode, optional, what),
            None if optional => Ok(()),
            None => Err(Error::Content(format!("{} \"{name}\" not found", kind.noun()))),
        }
    }

    pub async fn config_map(&self, s: &ConfigMapVolumeSource) -> Result<Payload, Error> {
        let mut out = Payload::new();
        let mode = s.default_mode.unwrap_or(DEFAULT_MODE);
        self.object(&mut out, Kind::ConfigMap, &s.name, s.items.as_deref(), mode, s.optional == Some(true)).await?;
        Ok(out)
    }

    pub async fn secret(&self, s: &SecretVolumeSource) -> Result<Payload, Error> {
        let mut out = Payload::new();
        let name = s.secret_name.as_deref().unwrap_or_default();
        let mode = s.default_mode.unwrap_or(DEFAULT_MODE);
        self.object(&mut out, Kind::Secret, name, s.items.as_deref(), mode, s.optional == Some(true)).await?;
        Ok(out)
    }

    pub fn downward(&self, items: &[DownwardAPIVolumeFile], mode: i32) -> Result<Payload, Error> {
        let mut out = BTreeMap::new();
        for item in items {
            check_path(&item.path).map_err(Error::Content)?;
            let value = if let Some(f) = &item.field_ref {
                fields::field(self.pod, &f.field_path, self.place)?
            } else if let Some(r) = &item.resource_field_ref {
                fields::resource(self.pod, "", r, self.place)?
            } else {
                continue;
            };
            out.insert(item.path.clone(), self.file(value, item.mode.unwrap_or(mode))?);
        }
        Ok(out)
    }

    pub async fn projected(&self, s: &ProjectedVolumeSource) -> Result<Payload, Error> {
        let mut out = Payload::new();
        let mode = s.default_mode.unwrap_or(DEFAULT_MODE);
        for source in s.sources.iter().flatten() {
            if let Some(c) = &source.config_map {
                let optional = c.optional == Some(true);
                self.object(&mut out, Kind::ConfigMap, &c.name, c.items.as_deref(), mode, optional).await?;
            } else if let Some(c) = &source.secret {
                let optional = c.optional == Some(true);
                self.object(&mut out, Kind::Secret, &c.name, c.items.as_deref(), mode, optional).await?;
            } else if let Some(d) = &source.downward_api {
                out.extend(self.downward(d.items.as_deref().unwrap_or_default(), mode)?);
            } else if let Some(t) = &source.service_account_token {
                check_path(&t.path).map_err(Error::Content)?;
                let token = self.tokens.token(self.pod, t.audience.as_deref(), t.expiration_seconds).await?;
                // A token is for its owner only: the user of all containers, and the group of the pod's volumes, which may read it.
                let mode = if self.has_group || self.user.is_some() { 0o600 } else { mode };
                out.insert(t.path.clone(), File { user: self.user, ..self.file(token, mode)? });
            } else {
                return Err(Error::Unsupported("this source of a projected volume"));
            }
        }
        Ok(out)
    }
}

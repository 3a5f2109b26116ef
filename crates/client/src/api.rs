//! The verbs of one resource.

use crate::client::{Client, JSON, collect_at_most, decode, request};
use crate::error::Error;
use crate::options::{DeleteOptions, ListOptions, Patch, Query, WatchOptions, WriteOptions};
use crate::resource::ApiResource;
use crate::shared::{self, Handover};
use crate::watch::{Events, RawEvents};
use bytes::Bytes;
use http::{Method, Request};
use meta::Object;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::marker::PhantomData;
use std::time::Duration;

/// The objects of one resource, in one namespace or in all. `T` is [`Object`] or a typed view.
pub struct Api<T> {
    client: Client,
    resource: ApiResource,
    namespace: Option<String>,
    accept: &'static str,
    marker: PhantomData<fn() -> T>,
}

/// Byte limit of a page that an informer lists from a server in another process.
const MAX_PAGE: usize = 256 << 20;

impl<T> Clone for Api<T> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            resource: self.resource.clone(),
            namespace: self.namespace.clone(),
            accept: self.accept,
            marker: PhantomData,
        }
    }
}

/// One page of a list.
#[derive(Clone, Debug, Default)]
pub struct List<T> {
    /// Revision of the list.
    pub resource_version: String,
    /// Empty on the last page.
    pub continue_token: String,
    /// Estimated number of items after this page; none on the last page, and with selectors.
    pub remaining: Option<i64>,
    /// Objects of this page.
    pub items: Vec<T>,
}

/// How much of a list is read from a server that is not trusted.
#[derive(Clone, Copy, Debug)]
pub struct ListLimits {
    /// The most pages.
    pub pages: usize,
    /// The most bytes of all pages.
    pub bytes: usize,
    /// The longest time for all pages.
    pub time: Duration,
}

/// Error for a page with the token of the page before it.
pub(crate) fn repeated_page() -> Error {
    Error::Unexpected("the list does not end: a page continues with itself".into())
}

/// A page, encoded or handed over.
pub(crate) enum Listed {
    Shared(shared::Page),
    Encoded(List<Bytes>),
}

/// Watch events, encoded or handed over.
pub(crate) enum Watched {
    Shared(shared::Batches),
    Encoded(RawEvents),
}

#[derive(Deserialize)]
struct RawList<'a> {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ListMeta,
    /// None if the field is missing; empty if it is null.
    #[serde(borrow, default, deserialize_with = "present")]
    items: Option<Vec<&'a RawValue>>,
}

fn present<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Vec<&'de RawValue>>, D::Error> {
    Option::deserialize(d).map(|items| Some(items.unwrap_or_default()))
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    r#continue: String,
    remaining_item_count: Option<i64>,
}

impl Client {
    /// The objects of a typed view, in all namespaces until [`Api::namespace`] narrows it.
    pub fn api<K>(&self) -> Api<K>
    where
        K: k8s_openapi::Resource,
        K::Scope: 'static,
    {
        Api::new(self.clone(), ApiResource::typed::<K>())
    }

    /// The objects of any resource, as JSON.
    pub fn dynamic(&self, resource: &ApiResource) -> Api<Object> {
        Api::new(self.clone(), resource.clone())
    }
}

impl<T> Api<T> {
    /// The objects of `resource`, in all namespaces until [`Self::namespace`] narrows it.
    pub fn new(client: Client, resource: ApiResource) -> Self {
        Self { client, resource, namespace: None, accept: JSON, marker: PhantomData }
    }

    /// Restricts requests to one namespace. No effect on a cluster-scoped resource.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// Requests another representation; see [`crate::client::PARTIAL_METADATA`].
    #[must_use]
    pub fn accept(mut self, accept: &'static str) -> Self {
        self.accept = accept;
        self
    }

    /// The resource of the requests.
    pub fn resource(&self) -> &ApiResource {
        &self.resource
    }

    /// The client that sends the requests.
    pub fn client(&self) -> &Client {
        &self.client
    }

    fn build(
        &self,
        method: Method,
        name: Option<&str>,
        sub: Option<&str>,
        query: &Query,
        body: Option<(&str, Vec<u8>)>,
    ) -> Result<Request<Bytes>, Error> {
        let mut path = self.resource.path(self.namespace.as_deref(), name, sub)?;
        path.push_str(query.as_str());
        request(method, &path, self.accept, body)
    }

    fn encode<B: Serialize>(&self, body: &B) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(body).map_err(|source| Error::Encode { what: "request body", source })
    }

    /// Lists a page of items that are not decoded, each a slice of the response.
    pub async fn list_raw(&self, options: &ListOptions) -> Result<List<Bytes>, Error> {
        self.cut(&self.client.bytes(self.build(Method::GET, None, None, &options.query(), None)?).await?)
    }

    fn cut(&self, bytes: &Bytes) -> Result<List<Bytes>, Error> {
        let list: RawList<'_> = serde_json::from_slice(bytes)
            .map_err(|source| Error::Decode { what: format!("list of {:?}", self.resource), source })?;
        if list.items.is_none() && !list.kind.is_empty() && !list.kind.ends_with("List") {
            let why = format!("the server sent a {} in place of a list of {}", list.kind, self.resource.gvr().resource);
            return Err(Error::Unexpected(why));
        }
        let items = list.items.unwrap_or_default();
        Ok(List {
            items: items.into_iter().map(|r| bytes.slice_ref(r.get().as_bytes())).collect(),
            resource_version: list.metadata.resource_version,
            continue_token: list.metadata.r#continue,
            remaining: list.metadata.remaining_item_count,
        })
    }

    /// Watches without decoding the objects. The stream ends when the server ends the watch, or after an error.
    pub async fn watch_raw(&self, options: &WatchOptions) -> Result<RawEvents, Error> {
        let r = self.build(Method::GET, None, None, &options.query(), None)?;
        Ok(RawEvents::new(self.client.checked(r).await?.into_body()))
    }

    /// Like [`Self::list_raw`]; a server in the same process may hand over its objects instead.
    pub(crate) async fn list_shared(&self, options: &ListOptions) -> Result<Listed, Error> {
        let mut r = self.build(Method::GET, None, None, &options.query(), None)?;
        r.extensions_mut().insert(shared::HandoverRequest);
        let response = self.client.checked(r).await?;
        match Handover::take(response.extensions()) {
            Some(page) => Ok(Listed::Shared(page)),
            None => self.cut(&collect_at_most(response.into_body(), MAX_PAGE).await?).map(Listed::Encoded),
        }
    }

    /// Like [`Self::watch_raw`]; a server in the same process may hand over its objects instead.
    pub(crate) async fn watch_shared(&self, options: &WatchOptions) -> Result<Watched, Error> {
        let mut r = self.build(Method::GET, None, None, &options.query(), None)?;
        r.extensions_mut().insert(shared::HandoverRequest);
        let response = self.client.checked(r).await?;
        Ok(match Handover::take(response.extensions()) {
            Some(batches) => Watched::Shared(batches),
            None => Watched::Encoded(RawEvents::new(response.into_body())),
        })
    }

    /// Deletes one object. Returns the response: the object while its deletion is in progress, otherwise a `Status`.
    pub async fn delete(&self, name: &str, options: &DeleteOptions) -> Result<Value, Error> {
        let body = Some((JSON, options.body()?));
        self.client.json(self.build(Method::DELETE, Some(name), None, &Query::default(), body)?).await
    }

    /// Deletes the objects that `list` selects.
    pub async fn delete_collection(&self, options: &DeleteOptions, list: &ListOptions) -> Result<(), Error> {
        let body = Some((JSON, options.body()?));
        self.client.bytes(self.build(Method::DELETE, None, None, &list.query(), body)?).await.map(drop)
    }

    /// Lists a page and passes each object to `see`, decoding one at a time.
    pub async fn each<U: DeserializeOwned>(&self, options: &ListOptions, mut see: impl FnMut(U)) -> Result<(), Error> {
        for b in &self.list_raw(options).await?.items {
            see(decode(b, || format!("item of {:?}", self.resource))?);
        }
        Ok(())
    }

    /// GET of a subresource with a kind of its own: `scale`.
    pub async fn get_subresource<R: DeserializeOwned>(&self, name: &str, sub: &str) -> Result<R, Error> {
        self.client.json(self.build(Method::GET, Some(name), Some(sub), &Query::default(), None)?).await
    }

    /// POST to a subresource: `binding`, `eviction`, `token`.
    pub async fn create_subresource<B: Serialize, R: DeserializeOwned>(
        &self,
        name: &str,
        sub: &str,
        options: &WriteOptions,
        body: &B,
    ) -> Result<R, Error> {
        let body = Some((JSON, self.encode(body)?));
        self.client.json(self.build(Method::POST, Some(name), Some(sub), &options.query(), body)?).await
    }

    /// PUT of a subresource: `status`, `scale`, `finalize`, `approval`.
    pub async fn update_subresource<B: Serialize, R: DeserializeOwned>(
        &self,
        name: &str,
        sub: &str,
        options: &WriteOptions,
        body: &B,
    ) -> Result<R, Error> {
        let body = Some((JSON, self.encode(body)?));
        self.client.json(self.build(Method::PUT, Some(name), Some(sub), &options.query(), body)?).await
    }

    /// Patches a subresource. Returns the response, decoded as `R`.
    pub async fn patch_subresource<R: DeserializeOwned>(
        &self,
        name: &str,
        sub: &str,
        options: &WriteOptions,
        patch: &Patch,
    ) -> Result<R, Error> {
        let body = Some((patch.content_type(), self.encode(patch.document())?));
        self.client.json(self.build(Method::PATCH, Some(name), Some(sub), &options.query(), body)?).await
    }

    /// Builds a request for a subresource that streams (`log`) or switches protocols, for [`Client::checked`] and
    /// [`Client::upgrade`].
    pub fn subresource_request(
        &self,
        method: Method,
        name: &str,
        sub: &str,
        query: &Query,
    ) -> Result<Request<Bytes>, Error> {
        self.build(method, Some(name), Some(sub), query, None)
    }

    /// Binds a pod to a node (`pods/binding`).
    pub async fn bind(&self, pod: &str, uid: &str, node: &str) -> Result<Value, Error> {
        let mut metadata = json!({"name": pod, "uid": uid});
        if let Some(ns) = &self.namespace {
            metadata["namespace"] = ns.as_str().into();
        }
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        self.create_subresource(pod, "binding", &WriteOptions::default(), &binding).await
    }

    /// Evicts a pod (`pods/eviction`); a disruption budget may reject it with *too many requests*.
    pub async fn evict(&self, pod: &str, options: &DeleteOptions) -> Result<Value, Error> {
        let mut metadata = json!({"name": pod});
        if let Some(ns) = &self.namespace {
            metadata["namespace"] = ns.as_str().into();
        }
        let options =
            serde_json::to_value(options).map_err(|source| Error::Encode { what: "DeleteOptions", source })?;
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options,
        });
        self.create_subresource(pod, "eviction", &WriteOptions::default(), &eviction).await
    }
}

impl<T: DeserializeOwned> Api<T> {
    /// Reads the newest state of an object. Fails with *not found* if there is none.
    pub async fn get(&self, name: &str) -> Result<T, Error> {
        self.get_at(name, "").await
    }

    /// Like [`Self::get`], from a state at least as new as `resource_version` (`0`: any).
    pub async fn get_at(&self, name: &str, resource_version: &str) -> Result<T, Error> {
        let mut q = Query::default();
        q.add("resourceVersion", resource_version);
        self.client.json(self.build(Method::GET, Some(name), None, &q, None)?).await
    }

    /// Like [`Self::get`], but none if the object does not exist.
    pub async fn get_opt(&self, name: &str) -> Result<Option<T>, Error> {
        crate::error::optional(self.get(name).await)
    }

    /// Lists one page.
    pub async fn list(&self, options: &ListOptions) -> Result<List<T>, Error> {
        let raw = self.list_raw(options).await?;
        let mut items = Vec::with_capacity(raw.items.len());
        for b in &raw.items {
            items.push(decode(b, || format!("item of {:?}", self.resource))?);
        }
        let (resource_version, continue_token) = (raw.resource_version, raw.continue_token);
        Ok(List { resource_version, continue_token, remaining: raw.remaining, items })
    }

    /// Lists all pages of one consistent list.
    pub async fn list_all(&self, options: &ListOptions) -> Result<List<T>, Error> {
        let mut options = options.clone();
        let mut all = self.list(&options).await?;
        while !all.continue_token.is_empty() {
            options.continue_token = std::mem::take(&mut all.continue_token);
            options.resource_version.clear();
            let page = self.list(&options).await?;
            if page.continue_token == options.continue_token {
                return Err(repeated_page());
            }
            all.items.extend(page.items);
            all.continue_token = page.continue_token;
            all.remaining = page.remaining;
        }
        Ok(all)
    }

    /// Like [`Self::list_all`] for a server that is not trusted. Fails when the list exceeds a limit.
    pub async fn list_within(&self, options: &ListOptions, limits: &ListLimits) -> Result<Vec<T>, Error> {
        let read = self.list_pages(options, limits);
        let late = |_| Error::Unexpected(format!("the list did not end within {:?}", limits.time));
        tokio::time::timeout(limits.time, read).await.map_err(late)?
    }

    async fn list_pages(&self, options: &ListOptions, limits: &ListLimits) -> Result<Vec<T>, Error> {
        let mut options = options.clone();
        let (mut items, mut left) = (Vec::new(), limits.bytes);
        for _ in 0..limits.pages {
            let request = self.build(Method::GET, None, None, &options.query(), None)?;
            let bytes = collect_at_most(self.client.checked(request).await?.into_body(), left).await?;
            left -= bytes.len();
            let page = self.cut(&bytes)?;
            for b in &page.items {
                items.push(decode(b, || format!("item of {:?}", self.resource))?);
            }
            if page.continue_token.is_empty() {
                return Ok(items);
            }
            if page.continue_token == options.continue_token {
                return Err(repeated_page());
            }
            options.continue_token = page.continue_token;
            options.resource_version.clear();
        }
        Err(Error::Unexpected(format!("the list has more than {} pages", limits.pages)))
    }

    /// Watches objects. The stream ends when the server closes the watch.
    pub async fn watch(&self, options: &WatchOptions) -> Result<Events<T>, Error> {
        Ok(Events::new(self.watch_raw(options).await?))
    }

    /// Patches an object. Only server-side apply creates an absent one.
    pub async fn patch(&self, name: &str, options: &WriteOptions, patch: &Patch) -> Result<T, Error> {
        let body = Some((patch.content_type(), self.encode(patch.document())?));
        self.client.json(self.build(Method::PATCH, Some(name), None, &options.query(), body)?).await
    }
}

impl<T: DeserializeOwned + Serialize> Api<T> {
    /// Creates an object. Returns it as the server stored it.
    pub async fn create(&self, options: &WriteOptions, object: &T) -> Result<T, Error> {
        let body = Some((JSON, self.encode(object)?));
        self.client.json(self.build(Method::POST, None, None, &options.query(), body)?).await
    }

    /// Replaces the object of that name. If it has a `resourceVersion`, fails with a conflict unless that is the current one.
    pub async fn update(&self, name: &str, options: &WriteOptions, object: &T) -> Result<T, Error> {
        let body = Some((JSON, self.encode(object)?));
        self.client.json(self.build(Method::PUT, Some(name), None, &options.query(), body)?).await
    }

    /// Replaces the `status` of an object; the server ignores other fields.
    pub async fn update_status(&self, name: &str, options: &WriteOptions, object: &T) -> Result<T, Error> {
        self.update_subresource(name, "status", options, object).await
    }

    /// Patches the `status` of an object; the server ignores other fields.
    pub async fn patch_status(&self, name: &str, options: &WriteOptions, patch: &Patch) -> Result<T, Error> {
        self.patch_subresource(name, "status", options, patch).await
    }
}

impl Api<Object> {
    /// Creates the object or replaces an existing one.
    pub async fn put(&self, object: &Object, options: &WriteOptions) -> Result<Object, Error> {
        match self.update(object.name(), options, object).await {
            Err(e) if e.is_not_found() => self.create(options, object).await,
            other => other,
        }
    }
}

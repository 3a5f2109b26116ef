//! Prints the results of `get`: tables of the server, or documents.

use super::{Arguments, sort};
use crate::discovery::Resource;
use crate::error::{Error, Result};
use crate::kube::Kube;
use crate::printer::table::{self, Aligner};
use crate::printer::{Output, document};
use crate::resource::select::{info, list_error};
use crate::resource::{Collection, Info, Target};
use client::Query;
use client::client::{JSON, TABLE, request};
use http::Method;
use meta::{Object, Value};
use serde_json::json;
use std::sync::Arc;

/// How this command prints its results.
pub struct Show<'a> {
    a: &'a Arguments,
    pub table: table::Options,
    namespace: String,
    all_namespaced: bool,
    single: bool,
}

/// The table of one resource; pages and single objects are added to it.
struct Group {
    resource: Arc<Resource>,
    table: Value,
    /// Whether this or an earlier resource is namespaced: with `-A`, upstream has the column for all that follow.
    with_namespace: bool,
}

impl<'a> Show<'a> {
    pub fn new(a: &'a Arguments, k: &mut Kube, all: &[Target]) -> Result<Self> {
        let mut resources: Vec<Arc<Resource>> = all.iter().map(|t| t.resource().clone()).collect();
        resources.dedup();
        let namespaced = resources.iter().any(|r| r.namespaced);
        Ok(Self {
            a,
            table: table::Options {
                no_headers: a.no_headers,
                wide: a.print.output == "wide",
                with_namespace: a.all_namespaces && namespaced,
                with_kind: a.show_kind.then(String::new),
                show_labels: a.show_labels,
                label_columns: a.label_columns.clone(),
            },
            namespace: k.namespace()?.0,
            all_namespaced: resources.iter().all(|r| r.namespaced),
            single: match a.files.is_empty() {
                true => matches!(all, [Target::Named(_)]),
                false => a.files.is_one(),
            },
        })
    }

    /// Returns how the table of a resource is printed.
    pub fn options_for(&self, r: &Resource) -> table::Options {
        let mut o = self.table.clone();
        o.with_kind = o.with_kind.map(|_| r.group_kind());
        o.with_namespace &= r.namespaced;
        o
    }

    /// Fetches and prints tables.
    pub async fn tables(&mut self, k: &mut Kube, all: Vec<Target>, errors: &mut Vec<Error>) {
        let mut groups: Vec<Group> = Vec::new();
        let several = all.len() > 1;
        let mut with_namespace = false;
        for t in all {
            let resource = t.resource().clone();
            let table = match t {
                Target::Named(i) => self.named_table(k, &i).await,
                Target::All(c) => self.collection_table(k, &c).await,
            };
            match table {
                Ok(table) => match groups.last_mut().filter(|g| g.resource == resource) {
                    Some(g) => append(&mut g.table, table),
                    None => {
                        with_namespace |= resource.namespaced && self.a.all_namespaces;
                        groups.push(Group { resource, table, with_namespace });
                    }
                },
                Err(e) if e.is_not_found() && self.a.ignore_not_found => {}
                Err(e) => errors.push(e),
            }
        }
        if groups.iter().any(|g| g.resource != groups[0].resource) {
            self.table.with_kind = Some(String::new());
        }
        groups.retain(|g| g.table["rows"].as_array().is_some_and(|r| !r.is_empty()));
        // Tables of several kinds are sorted one by one, so there is little to sort.
        if !self.a.sort_by.is_empty() && groups.len() > 1 {
            let mut tables: Vec<Value> = groups.iter().map(|g| g.table.clone()).collect();
            if let Err(e) = sort::sort_by_path(&self.a.sort_by, &mut tables, |t| t) {
                return errors.push(e.error(k, false));
            }
        }
        let mut first = true;
        for mut g in groups {
            // Upstream ignores that sorting a table failed, and then has nothing to show. One row is not sorted.
            if !self.a.sort_by.is_empty()
                && !self.single
                && let Some(Value::Array(rows)) = g.table.get_mut("rows")
                && rows.len() > 1
                && let Err(e) = sort::sort_by_path(&self.a.sort_by, rows, |row| &row["object"])
            {
                match e {
                    sort::Failure::Path(_) if !several => continue,
                    sort::Failure::Path(e) => return errors.push(e),
                    e => return errors.push(e.error(k, true)),
                }
            }
            if !std::mem::take(&mut first) && !self.table.no_headers {
                k.out.write(b"\n");
            }
            let options = table::Options { with_namespace: g.with_namespace, ..self.options_for(&g.resource) };
            let rows = table::rows(&g.table, &options);
            k.out.write(Aligner::default().lines(&rows).as_bytes());
        }
        if first && errors.is_empty() && !self.a.ignore_not_found {
            self.nothing(k);
        }
    }

    fn nothing(&self, k: &Kube) {
        if self.all_namespaced && !self.a.all_namespaces {
            k.warn(format!("No resources found in {} namespace.", self.namespace));
        } else {
            k.warn("No resources found");
        }
    }

    fn query(&self) -> Query {
        let mut q = Query::default();
        if !self.a.sort_by.is_empty() && self.a.server_print {
            q.add("includeObject", "Object");
        }
        q
    }

    /// Returns the `Accept` header: tables for people, else JSON.
    pub fn accept(&self) -> &'static str {
        if self.a.server_print { TABLE } else { JSON }
    }

    pub async fn named_table(&self, k: &mut Kube, i: &Info) -> Result<Value> {
        if i.name.is_empty()
            && let Some(o) = &i.object
        {
            return Ok(as_table(o.clone().into_value(), k.now()));
        }
        i.check_namespace().map_err(bare)?;
        let sub = (!self.a.subresource.is_empty()).then_some(self.a.subresource.as_str());
        let path = i.resource.api().path(namespace(&i.namespace), Some(&i.name), sub)?;
        let path = format!("{path}{}", self.query().as_str());
        let response = k.client().await?.json(request(Method::GET, &path, self.accept(), None)?).await;
        Ok(as_table(i.found(k, response).await?, k.now()))
    }

    async fn collection_table(&self, k: &mut Kube, c: &Collection) -> Result<Value> {
        let mut joined: Option<Value> = None;
        let mut go_on = String::new();
        loop {
            let page = list_page(k, self.a, c, self.accept(), self.query(), &go_on).await?;
            go_on = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            let page = as_table(page, k.now());
            match &mut joined {
                Some(t) => append(t, page),
                None => joined = Some(page),
            }
            if go_on.is_empty() {
                return Ok(joined.unwrap_or_default());
            }
        }
    }

    /// Fetches and prints documents.
    pub async fn documents(
        &mut self,
        k: &mut Kube,
        output: &Output,
        all: Vec<Target>,
        errors: &mut Vec<Error>,
    ) -> Result {
        let mut objects: Vec<Value> = Vec::new();
        for t in all {
            let found = match t {
                Target::Named(i) => self.named(k, &i).await.map(|o| vec![o.into_value()]),
                Target::All(c) => self.collection(k, &c).await,
            };
            match found {
                Ok(o) => objects.extend(o),
                Err(e) if e.is_not_found() && self.a.ignore_not_found => {}
                Err(e) => errors.push(e),
            }
        }
        // What counts as a single object is not printed in part.
        if self.single && (!errors.is_empty() || objects.is_empty() && !self.a.ignore_not_found) {
            return Ok(());
        }
        if self.single && objects.len() == 1 {
            if let Some(o) = objects.pop().and_then(Object::from_value) {
                k.out.write(document(output, o, self.a.print.show_managed_fields)?.as_bytes());
            }
            return Ok(());
        }
        if !self.a.sort_by.is_empty() {
            sort::sort_by_path(&self.a.sort_by, &mut objects, |o| o).map_err(|e| e.error(k, false))?;
        }
        if objects.is_empty() && self.a.ignore_not_found {
            return Ok(());
        }
        let list = json!({"apiVersion": "v1", "items": objects, "kind": "List", "metadata": {"resourceVersion": ""}});
        if let Some(o) = Object::from_value(list) {
            k.out.write(document(output, o, self.a.print.show_managed_fields)?.as_bytes());
        }
        Ok(())
    }

    pub async fn named(&self, k: &mut Kube, i: &Info) -> Result<Object> {
        // A single document fails with its error, others with a list of errors.
        i.check_namespace().map_err(|e| if self.single { e } else { bare(e) })?;
        let api = k.api(&i.resource, &i.namespace).await?;
        let response = match self.a.subresource.as_str() {
            "" => api.get(&i.name).await,
            part => api.get_subresource(&i.name, part).await,
        };
        i.found(k, response).await
    }

    async fn collection(&self, k: &mut Kube, c: &Collection) -> Result<Vec<Value>> {
        let mut out = Vec::new();
        let mut go_on = String::new();
        loop {
            let mut page = list_page(k, self.a, c, JSON, Query::default(), &go_on).await?;
            if let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) {
                let objects = items.into_iter().filter_map(Object::from_value);
                out.extend(objects.filter_map(|o| info(&c.resource, o).object).map(Object::into_value));
            }
            go_on = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if go_on.is_empty() {
                return Ok(out);
            }
        }
    }
}

/// An error about one of several objects, printed without the prefix `error:`.
fn bare(e: Error) -> Error {
    match e {
        Error::Text(t) => Error::Bare(t),
        e => e,
    }
}

/// Returns `None` for cluster scope.
pub fn namespace(n: &str) -> Option<&str> {
    (!n.is_empty()).then_some(n)
}

/// Fetches a page of a list in the given representation.
pub async fn list_page(
    k: &mut Kube,
    a: &Arguments,
    c: &Collection,
    accept: &str,
    mut q: Query,
    go_on: &str,
) -> Result<Value> {
    q.add("labelSelector", &a.selector);
    q.add("fieldSelector", &a.field_selector);
    // A list that will be sorted is fetched without paging.
    if a.chunk_size > 0 && a.sort_by.is_empty() {
        q.add("limit", &a.chunk_size.to_string());
    }
    q.add("continue", go_on);
    let path = format!("{}{}", c.resource.api().path(namespace(&c.namespace), None, None)?, q.as_str());
    let response = k.client().await?.json(request(Method::GET, &path, accept, None)?).await;
    response.map_err(|e| list_error(&c.resource, &a.selector, &a.field_selector, e))
}

/// Converts the response of a server without tables to a table of names and ages.
pub fn as_table(v: Value, now: jiff::Timestamp) -> Value {
    if v["kind"] == "Table" {
        return v;
    }
    let objects: Vec<Object> = match v.get("items").and_then(Value::as_array) {
        Some(items) => items.iter().cloned().filter_map(Object::from_value).collect(),
        None => Object::from_value(v).into_iter().collect(),
    };
    table::generic(&objects, now)
}

/// Appends the rows of another page to a table.
pub fn append(to: &mut Value, mut more: Value) {
    if let (Some(Value::Array(rows)), Some(Value::Array(more))) =
        (to.get_mut("rows"), more.get_mut("rows").map(Value::take))
    {
        rows.extend(more);
    }
}

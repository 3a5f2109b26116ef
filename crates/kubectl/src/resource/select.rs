//! Types, names and selectors on the command line.

use super::{Collection, Info, Target};
use crate::discovery::Resource;
use crate::error::{Error, Result, text};
use crate::flags::{FileFlags, SelectFlags};
use crate::kube::Kube;
use client::ListOptions;
use meta::Object;
use std::sync::Arc;

/// Which objects of a type are selected.
#[derive(Clone, Debug, Default)]
pub struct Selection<'a> {
    pub labels: &'a str,
    pub fields: &'a str,
    /// `--all`: a type alone selects all its objects; names override it.
    pub all: bool,
    /// `--all` that rejects names beside it (`delete`) instead of being overridden.
    pub nothing_but_all: bool,
    pub all_namespaces: bool,
    /// A type alone selects all its objects (`get`, `describe`).
    pub bare_type_is_all: bool,
    /// Take objects of files as they are, without reading them from the server (cli-runtime's builder without `Latest`).
    pub files_as_given: bool,
    /// The page size of lists; 0 is no paging, `None` the default.
    pub page: Option<i64>,
}

impl Selection<'_> {
    /// Whether labels or fields are selected.
    pub fn selects(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }

    /// Returns the options of list requests.
    pub fn options(&self) -> ListOptions {
        ListOptions {
            label_selector: self.labels.to_owned(),
            field_selector: self.fields.to_owned(),
            ..ListOptions::default()
        }
    }
}

impl SelectFlags {
    /// Returns the selection of the flags.
    pub fn selection(&self) -> Selection<'_> {
        Selection {
            labels: &self.selector,
            fields: &self.field_selector,
            all: self.all,
            nothing_but_all: false,
            all_namespaces: self.all_namespaces,
            bare_type_is_all: false,
            files_as_given: false,
            page: None,
        }
    }
}

/// Finds the resources of `pods,svc` or `all`.
pub async fn types(k: &mut Kube, words: &str) -> Result<Vec<Arc<Resource>>> {
    let mut out: Vec<Arc<Resource>> = Vec::new();
    for word in words.split(',') {
        if word.is_empty() {
            return text("the server doesn't have a resource type \"\"");
        }
        let by_category = k.discovery().await?.by_category(word);
        let found = if by_category.is_empty() { vec![k.resource(word).await?] } else { by_category };
        for r in found {
            if !out.contains(&r) {
                out.push(r);
            }
        }
    }
    Ok(out)
}

/// Parses the arguments of a command.
pub async fn targets(k: &mut Kube, args: &[String], s: &Selection<'_>) -> Result<Vec<Target>> {
    if s.all && s.selects() && !s.labels.is_empty() {
        return text("cannot set --all and --selector at the same time");
    }
    let (namespace, _) = k.namespace()?;
    let in_namespace = |r: &Resource| if r.namespaced { namespace.clone() } else { String::new() };
    let mut out = Vec::new();
    if args.iter().any(|a| a.contains('/')) {
        for a in args {
            let Some((kind, name)) = a.split_once('/') else {
                return text(
                    "there is no need to specify a resource type as a separate argument when passing arguments in resource/name form (e.g. 'kubectl get resource/<resource_name>' instead of 'kubectl get resource resource/<resource_name>'",
                );
            };
            if name.contains('/') {
                return text("arguments in resource/name form may not have more than one slash");
            }
            if kind.is_empty() || name.is_empty() || kind.contains(',') {
                return text("arguments in resource/name form must have a single resource and name");
            }
            let resource = k.resource(kind).await?;
            out.push((resource, name.to_owned()));
        }
        if s.selects() || s.nothing_but_all {
            return text("selectors and the all flag cannot be used when passing resource/name arguments");
        }
        return named(out, &in_namespace, s);
    }
    let Some((first, names)) = args.split_first() else { return Ok(Vec::new()) };
    let resources = types(k, first).await?;
    if names.is_empty() {
        if !s.selects() && !s.all && !s.bare_type_is_all {
            return text("resource(s) were provided, but no name was specified");
        }
        return Ok(resources
            .into_iter()
            .map(|resource| {
                let namespace = if s.all_namespaces { String::new() } else { in_namespace(&resource) };
                Target::All(Collection { resource, namespace })
            })
            .collect());
    }
    if s.selects() || s.nothing_but_all {
        return text("name cannot be provided when a selector is specified");
    }
    for name in names {
        if name.is_empty() {
            return text("resource name may not be empty");
        }
    }
    for r in &resources {
        out.extend(names.iter().map(|name| (r.clone(), name.clone())));
    }
    named(out, &in_namespace, s)
}

fn named(
    all: Vec<(Arc<Resource>, String)>,
    in_namespace: &dyn Fn(&Resource) -> String,
    s: &Selection<'_>,
) -> Result<Vec<Target>> {
    all.into_iter()
        .map(|(resource, name)| {
            if s.all_namespaces && resource.namespaced {
                return text("a resource cannot be retrieved by name across all namespaces");
            }
            let namespace = in_namespace(&resource);
            Ok(Target::Named(Info { resource, namespace, name, source: String::new(), object: None }))
        })
        .collect()
}

/// Fetches the targets in order.
pub async fn fetch(
    k: &mut Kube,
    targets: Vec<Target>,
    s: &Selection<'_>,
    errors: &mut Vec<Error>,
) -> Result<Vec<Info>> {
    let mut out = Vec::new();
    for t in targets {
        match t {
            Target::Named(info) if s.files_as_given && info.object.is_some() => out.push(info),
            Target::Named(mut info) => match info.fetch(k).await {
                Ok(o) => {
                    info.object = Some(o);
                    out.push(info);
                }
                Err(e) => errors.push(e),
            },
            Target::All(c) => match list(k, &c, s).await {
                Ok(infos) => out.extend(infos),
                Err(e) => errors.push(e),
            },
        }
    }
    Ok(out)
}

/// The default page size of lists.
const PAGE: u32 = 500;

/// Lists the objects of a collection.
pub async fn list(k: &mut Kube, c: &Collection, s: &Selection<'_>) -> Result<Vec<Info>> {
    let api = k.api(&c.resource, &c.namespace).await?;
    let options = ListOptions { limit: s.page.map_or(PAGE, |p| u32::try_from(p).unwrap_or(0)), ..s.options() };
    let all = api.list_all(&options).await.map_err(|e| list_error(&c.resource, s.labels, s.fields, e))?;
    Ok(all.items.into_iter().map(|o| info(&c.resource, o)).collect())
}

/// Adds the resource and the selectors to the error of a list request.
pub fn list_error(r: &Resource, labels: &str, fields: &str, e: client::Error) -> Error {
    let client::Error::Api(mut status) = e else { return e.into() };
    if matches!(status.reason, meta::Reason::BadRequest | meta::Reason::NotFound) {
        let gvr = format!("{}/{}, Resource={}", r.group, r.version, r.plural);
        status.message = if labels.is_empty() && fields.is_empty() {
            format!("Unable to list {gvr:?}: {}", status.message)
        } else {
            format!(
                "Unable to find {gvr:?} that match label selector {labels:?}, field selector {fields:?}: {}",
                status.message
            )
        };
    }
    client::Error::Api(status).into()
}

/// Rejects arguments beside files: objects come from one of the two.
pub fn reject_both(args: &[String], files: &FileFlags) -> Result {
    match args.is_empty() || files.is_empty() {
        true => Ok(()),
        false => {
            text("when paths, URLs, or stdin is provided as input, you may not specify resource arguments as well")
        }
    }
}

/// Fetches the objects that arguments or files name. Objects that cannot be fetched are in the errors.
pub async fn gather(
    k: &mut Kube,
    args: &[String],
    files: &FileFlags,
    s: &Selection<'_>,
) -> Result<(Vec<Info>, Vec<Error>)> {
    let mut errors = Vec::new();
    reject_both(args, files)?;
    let all = targets(k, args, s).await?;
    let documents = super::from_files(k, files).await?;
    let mut found = fetch(k, all, s, &mut errors).await?;
    // Errors keep the order of the documents.
    for i in documents {
        match i {
            Ok(i) => found.extend(fetch(k, vec![Target::Named(i)], s, &mut errors).await?),
            Err(e) => errors.push(e),
        }
    }
    Ok((found, errors))
}

/// [`gather`] for a command without a server (`--local`): only files.
pub async fn gather_alone(k: &mut Kube, args: &[String], files: &FileFlags) -> Result<(Vec<Info>, Vec<Error>)> {
    if !args.is_empty() || files.is_empty() {
        return text(
            "you must specify resources by --filename when --local is set.\nExample resource specifications include:\n   '-f rsrc.yaml'\n   '--filename=rsrc.json'",
        );
    }
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for i in super::from_files_alone(k, files).await? {
        match i {
            Ok(i) => found.push(i),
            Err(e) => errors.push(e),
        }
    }
    Ok((found, errors))
}

/// Makes an [`Info`] of an object of the server. Items of lists lack their kind.
pub fn info(resource: &Arc<Resource>, mut o: Object) -> Info {
    o.set_gvk(&resource.gvk());
    Info {
        resource: resource.clone(),
        namespace: o.namespace().to_owned(),
        name: o.name().to_owned(),
        source: String::new(),
        object: Some(o),
    }
}

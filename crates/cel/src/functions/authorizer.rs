//! Functions of authorization checks (`k8s.io/apiserver/pkg/cel/library/authz.go`).

use super::{Fault, Price, Result, Row, no_overload, row};
use crate::libraries::authorizer::{Decision, Question, Request, Stage};
use crate::value::{Opaque, Val};
use crate::work;
use meta::names;

pub(super) const ROWS: &[Row] = &[
    row("serviceAccount", ".authorizer,string,string:authorizer", Price::Fixed(1), |a| {
        let (Some(namespace), Some(name)) = (a[1].as_str(), a[2].as_str()) else { return no_overload() };
        if !names::dns_subdomain(name).is_empty() {
            return Err("Invalid service account name".into());
        }
        if !names::dns_label(namespace).is_empty() {
            return Err("Invalid service account namespace".into());
        }
        next(a, Stage::Start, Stage::Start, |q, _| {
            q.service_account = Some((namespace.to_owned(), name.to_owned()));
            Ok(())
        })
    }),
    row("path", ".authorizer,string:path", Price::Fixed(1), |a| {
        next(a, Stage::Start, Stage::Path, |q, s| set(q.path.insert(String::new()), s, "path must not be empty"))
    }),
    row("group", ".authorizer,string:group", Price::Fixed(1), |a| {
        next(a, Stage::Start, Stage::Group, |q, s| set(&mut q.group, s, ""))
    }),
    row("resource", ".group,string:resource", Price::Fixed(1), |a| {
        next(a, Stage::Group, Stage::Resource, |q, s| set(&mut q.resource, s, "resource must not be empty"))
    }),
    row("subresource", ".resource,string:resource", Price::Fixed(1), |a| {
        next(a, Stage::Resource, Stage::Resource, |q, s| set(&mut q.subresource, s, ""))
    }),
    row("namespace", ".resource,string:resource", Price::Fixed(1), |a| {
        next(a, Stage::Resource, Stage::Resource, |q, s| set(&mut q.namespace, s, ""))
    }),
    row("name", ".resource,string:resource", Price::Fixed(1), |a| {
        next(a, Stage::Resource, Stage::Resource, |q, s| set(&mut q.name, s, ""))
    }),
    row("fieldSelector", ".resource,string:resource", Price::Selector, |a| {
        next(a, Stage::Resource, Stage::Resource, |q, s| set(&mut q.field_selector, s, ""))
    }),
    row("labelSelector", ".resource,string:resource", Price::Selector, |a| {
        next(a, Stage::Resource, Stage::Resource, |q, s| set(&mut q.label_selector, s, ""))
    }),
    row("check", ".path,string:decision;.resource,string:decision", Price::Fixed(350_000), check),
    row("allowed", ".decision:bool", Price::Fixed(1), |a| decided(a, |d| Val::Bool(d.allowed))),
    row("reason", ".decision:string", Price::Fixed(1), |a| decided(a, |d| Val::string(&*d.reason))),
    row("errored", ".decision:bool", Price::Fixed(1), |a| decided(a, |d| Val::Bool(d.error.is_some()))),
    row("error", ".decision:string", Price::Fixed(1), |a| {
        decided(a, |d| Val::string(d.error.as_deref().unwrap_or_default()))
    }),
];

fn set(field: &mut String, s: &str, when_empty: &str) -> std::result::Result<(), Fault> {
    if s.is_empty() && !when_empty.is_empty() {
        return Err(when_empty.into());
    }
    s.clone_into(field);
    Ok(())
}

fn request<'v, 'a>(v: &'v Val<'a>) -> Option<&'v Request<'a>> {
    match v {
        Val::Opaque(o) => match &**o {
            Opaque::Authorizer(r) => Some(r),
            _ => None,
        },
        _ => None,
    }
}

fn next<'a>(
    args: &[Val<'a>],
    from: Stage,
    to: Stage,
    change: impl Fn(&mut Question, &str) -> std::result::Result<(), Fault>,
) -> Result<'a> {
    let (Some(r), Some(s)) = (request(&args[0]).filter(|r| r.stage == from), args[1].as_str()) else {
        return no_overload();
    };
    let q = &r.question;
    let parts = [&q.group, &q.resource, &q.subresource, &q.namespace, &q.name, &q.field_selector, &q.label_selector];
    let path = q.path.as_ref().map_or(0, String::len);
    work::count(s.len() + path + parts.iter().map(|p| p.len()).sum::<usize>());
    let mut r = Request { stage: to, ..r.clone() };
    change(&mut r.question, s)?;
    Ok(Val::opaque(Opaque::Authorizer(r)))
}

fn check<'a>(args: &[Val<'a>]) -> Result<'a> {
    let (Some(r), Some(verb)) = (request(&args[0]), args[1].as_str()) else { return no_overload() };
    if !matches!(r.stage, Stage::Path | Stage::Resource) {
        return no_overload();
    }
    let question = Question { verb: verb.to_owned(), ..r.question.clone() };
    Ok(Val::opaque(Opaque::Decision(r.authorizer.decide(&question))))
}

fn decided<'a>(args: &[Val<'a>], f: impl Fn(&Decision) -> Val<'a>) -> Result<'a> {
    match &args[0] {
        Val::Opaque(o) => match &**o {
            Opaque::Decision(d) => Ok(f(d)),
            _ => no_overload(),
        },
        _ => no_overload(),
    }
}

//! Updates `managedFields` on every write.

use crate::Registry;
use crate::options::WriteOptions;
use crate::strategy::{Request, USER_METADATA};
use crate::versions::{Conversions, Versions};
use merge::fieldset::Set;
use merge::managed::{self, Context, Force};
use meta::{Object, time};
use std::borrow::Cow;
use std::sync::LazyLock;

static STATUS: LazyLock<Set> = LazyLock::new(|| Set::of_fields(&[&["status"]]));
static SPEC: LazyLock<Set> = LazyLock::new(|| Set::of_fields(&[&["spec"]]));
static METADATA_AND_SPEC: LazyLock<Set> = LazyLock::new(|| Set::of_fields(&[&["metadata"], &["spec"]]));

/// Fields that no write through this path owns, since the strategy resets them.
fn reset_fields(request: &Request) -> Cow<'static, Set> {
    let (row, subresource) = (&request.resource, request.subresource.as_str());
    if let Some(fields) = row.strategy.resets(subresource) {
        return Cow::Owned(Set::of_fields(fields));
    }
    match subresource {
        "" if row.kind.subresource("status").is_some() => Cow::Borrowed(&STATUS),
        "status" => match row.strategy.fixed_by_status(row.empty()) {
            [] => Cow::Borrowed(&SPEC),
            all if all.starts_with(USER_METADATA) => Cow::Borrowed(&METADATA_AND_SPEC),
            fixed => {
                let fixed: Vec<[&str; 2]> = fixed.iter().map(|f| ["metadata", *f]).collect();
                let all: Vec<&[&str]> = fixed.iter().map(|f| &f[..]).chain([&["spec"][..]]).collect();
                Cow::Owned(Set::of_fields(&all))
            }
        },
        _ => Cow::Borrowed(Set::EMPTY),
    }
}

fn with_context<T>(
    registry: &Registry,
    request: &Request,
    conversions: &Conversions,
    manager: &str,
    subresource: &str,
    work: impl FnOnce(&Context<'_>) -> T,
) -> T {
    let kind = &request.resource.kind;
    let versions = Versions { request, conversions, rows: registry.rows() };
    let (now, version) = (time::format(registry.clock.now()), kind.group_version().to_string());
    work(&Context {
        manager,
        api_version: &version,
        subresource,
        schema: Some(&kind.schema),
        time: &now,
        reset_fields: &reset_fields(request),
        versions: &versions,
    })
}

pub async fn on_create(registry: &Registry, request: &Request, object: &mut Object, options: &WriteOptions) {
    if options.untracked {
        return;
    }
    let empty = request.resource.empty();
    let made = |object: &mut Object, conversions: &Conversions| {
        with_context(registry, request, conversions, &options.manager, "", |cx| {
            managed::update(Some(empty), object, cx)
        });
    };
    until_converted(registry, request, object, made).await;
}

pub async fn on_update(registry: &Registry, request: &Request, new: &mut Object, old: &Object, options: &WriteOptions) {
    let made = |new: &mut Object, conversions: &Conversions| track(registry, request, conversions, new, old, options);
    until_converted(registry, request, new, made).await;
}

/// Runs `make`, and again after each round of conversions that it needs.
async fn until_converted(
    registry: &Registry,
    request: &Request,
    object: &mut Object,
    make: impl Fn(&mut Object, &Conversions),
) {
    let conversions = Conversions::default();
    if request.resource.strategy.converter().is_none() {
        return make(object, &conversions);
    }
    let before = object.clone();
    make(object, &conversions);
    while registry.convert_pending(request, &conversions).await {
        *object = before.clone();
        make(object, &conversions);
    }
}

fn track(
    registry: &Registry,
    request: &Request,
    conversions: &Conversions,
    new: &mut Object,
    old: &Object,
    options: &WriteOptions,
) {
    if options.untracked {
        return;
    }
    match &options.through {
        Some((subresource, field)) => {
            with_context(registry, request, conversions, &options.manager, subresource, |cx| {
                let field: Vec<&str> = field.iter().map(String::as_str).collect();
                managed::update_field(old, new, &field, cx);
            })
        }
        None => with_context(registry, request, conversions, &options.manager, &request.subresource, |cx| {
            managed::update(Some(old), new, cx);
        }),
    }
}

/// Whether only the timestamps in `managedFields` differ.
pub fn same(new: &Object, old: &Object) -> bool {
    new == old || managed::same_but_for_times(new, old)
}

impl Registry {
    /// Server-side apply: merges a configuration into the live object; none creates it. The result has managed fields
    /// but is not yet typed and defaulted; none if nothing changes. Records the conversions that it lacks in `conversions`; the caller of
    /// [`Registry::update`] receives those.
    pub fn apply(
        &self,
        request: &Request,
        conversions: &Conversions,
        live: Option<&Object>,
        configuration: &Object,
        manager: &str,
        force: Force,
    ) -> Result<Option<Object>, managed::Error> {
        with_context(self, request, conversions, manager, &request.subresource, |cx| {
            managed::apply(live, configuration, force, cx)
        })
    }
}

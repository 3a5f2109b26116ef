//! Values of the kubeconfig by their paths: `clusters.NAME.server`. A name may contain dots and ends where a known field
//! begins.

use super::files::Files;
use crate::error::{Result, text};
use base64::Engine as _;
use meta::{Map, Value};

#[derive(Clone, Copy, PartialEq)]
enum Type {
    Text,
    Bool,
    Bytes,
    /// A field with several values, which can only be removed.
    Composite,
}

/// Returns the fields of a list by their names in paths, with their names in files where these differ.
fn fields(list: &str) -> &'static [(&'static str, &'static str, Type)] {
    use Type::{Bool, Bytes, Composite, Text};
    match list {
        "clusters" => &[
            ("server", "server", Text),
            ("tls-server-name", "tls-server-name", Text),
            ("insecure-skip-tls-verify", "insecure-skip-tls-verify", Bool),
            ("certificate-authority", "certificate-authority", Text),
            ("certificate-authority-data", "certificate-authority-data", Bytes),
            ("proxy-url", "proxy-url", Text),
            ("disable-compression", "disable-compression", Bool),
            ("extensions", "extensions", Composite),
        ],
        "contexts" => &[
            ("cluster", "cluster", Text),
            ("user", "user", Text),
            ("namespace", "namespace", Text),
            ("extensions", "extensions", Composite),
        ],
        _ => &[
            ("client-certificate", "client-certificate", Text),
            ("client-certificate-data", "client-certificate-data", Bytes),
            ("client-key", "client-key", Text),
            ("client-key-data", "client-key-data", Bytes),
            ("token", "token", Text),
            ("tokenFile", "tokenFile", Text),
            ("act-as", "as", Text),
            ("act-as-uid", "as-uid", Text),
            ("act-as-groups", "as-groups", Composite),
            ("act-as-user-extra", "as-user-extra", Composite),
            ("username", "username", Text),
            ("password", "password", Text),
            ("auth-provider", "auth-provider", Composite),
            ("exec", "exec", Composite),
            ("extensions", "extensions", Composite),
        ],
    }
}

/// What a path names.
enum Target {
    Current,
    /// `kind` and `apiVersion`, which are the same in every file.
    Fixed,
    Preferences,
    Colors,
    /// A field of the preferences or of the top level.
    Extensions(&'static [&'static str]),
    List(&'static str),
    Entry(&'static str, String),
    Field(&'static str, String, &'static str, Type),
}

fn parse_path(path: &str) -> Result<Target> {
    let parts: Vec<&str> = path.split('.').collect();
    let list = match parts[0] {
        "current-context" if parts.len() == 1 => return Ok(Target::Current),
        "current-context" => return text(format!("unable to parse one or more field values of {path}")),
        "kind" | "apiVersion" if parts.len() == 1 => return Ok(Target::Fixed),
        "kind" | "apiVersion" => return text(format!("unable to parse one or more field values of {path}")),
        "extensions" if parts.len() == 1 => return Ok(Target::Extensions(&["extensions"])),
        "preferences" => return preference(path, &parts[1..]),
        "clusters" => "clusters",
        "contexts" => "contexts",
        "users" => "users",
        _ => return text(format!("unable to parse {path} after [] at api.Config")),
    };
    let rest = &parts[1..];
    if rest.is_empty() {
        return Ok(Target::List(list));
    }
    let known = fields(list);
    let at = rest[1..].iter().position(|p| known.iter().any(|(n, ..)| n == p)).map(|n| n + 1);
    let Some(at) = at else { return Ok(Target::Entry(list, rest.join("."))) };
    let name = rest[..at].join(".");
    let Some(&(_, field, ty)) = known.iter().find(|(n, ..)| *n == rest[at]) else {
        return Ok(Target::Entry(list, name));
    };
    if rest.len() > at + 1 {
        return text(format!("unable to parse one or more field values of {path}"));
    }
    Ok(Target::Field(list, name, field, ty))
}

fn preference(path: &str, rest: &[&str]) -> Result<Target> {
    match rest {
        [] => Ok(Target::Preferences),
        ["colors"] => Ok(Target::Colors),
        ["extensions"] => Ok(Target::Extensions(&["preferences", "extensions"])),
        ["colors" | "extensions", ..] => text(format!("unable to parse one or more field values of {path}")),
        // Upstream prints the address of the type here.
        _ => text(format!("unable to parse {path} after [{{preferences 0x0}}] at api.Preferences")),
    }
}

/// Sets the value at a path.
pub fn set(f: &mut Files, path: &str, value: &str, raw: bool) -> Result {
    let map_error = |what: &str| text(format!("can't set a map to a value: {what}"));
    match parse_path(path)? {
        Target::Current => f.set_current(value),
        Target::Fixed => {}
        Target::Preferences => {
            return text(format!(
                "unable to locate path config.navigationStep{{stepValue:\"\", stepType:reflect.Type(nil)}} under {{{} map[]}}",
                f.colors()
            ));
        }
        Target::Colors => match crate::flags::go_bool(value) {
            Ok(colors) => f.set_top(&["preferences", "colors"], colors.then(|| true.into())),
            Err(e) => return text(e),
        },
        Target::Extensions(_) => return map_error("map[]"),
        Target::List(list) => return map_error(list),
        Target::Entry(list, name) => return map_error(&format!("{list}.{name}")),
        Target::Field(list, name, field, ty) => {
            let engine = base64::engine::general_purpose::STANDARD;
            let made: Value = match ty {
                Type::Text => value.into(),
                Type::Bool => match crate::flags::go_bool(value) {
                    Ok(b) => b.into(),
                    Err(e) => return text(e),
                },
                Type::Bytes if raw => engine.encode(value).into(),
                Type::Bytes => match crate::base64::decode(value) {
                    Ok(b) => engine.encode(b).into(),
                    Err(at) => {
                        return text(format!("error decoding input value: illegal base64 data at input byte {at}"));
                    }
                },
                Type::Composite => return map_error(field),
            };
            let mut e = f.entry(list, &name).unwrap_or_default();
            put(&mut e, field, made);
            f.put(list, &name, e);
        }
    }
    Ok(())
}

/// Empty and false values are not written.
fn put(e: &mut Map<String, Value>, field: &str, v: Value) {
    if v == "" || v == false {
        e.remove(field);
    } else {
        e.insert(field.into(), v);
    }
}

/// Removes the value at a path.
pub fn unset(f: &mut Files, path: &str) -> Result {
    match parse_path(path)? {
        Target::Current => f.set_current(""),
        Target::Fixed => {}
        Target::Preferences => f.set_top(&["preferences"], None),
        Target::Colors => f.set_top(&["preferences", "colors"], None),
        Target::Extensions(path) => f.set_top(path, None),
        Target::List(list) => f.names(list).iter().for_each(|n| f.remove(list, n)),
        Target::Entry(list, name) => f.remove(list, &name),
        Target::Field(list, name, field, _) => {
            let Some(mut e) = f.entry(list, &name) else {
                return text(format!("current map key `{name}` is invalid"));
            };
            e.remove(field);
            f.put(list, &name, e);
        }
    }
    Ok(())
}

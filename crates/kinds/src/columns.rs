//! Table cells: the values of columns (`k8s.io/kubernetes/pkg/printers/internalversion/printers.go`).

use crate::Column;
use codec::jsonpath::Template;
use meta::{Object, Value, time};

/// A cell computed by a function.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a> {
    /// The name of the function, and its arguments, as the description of the kind has them.
    pub function: &'a str,
    /// The arguments of the function, as the description of the kind has them.
    pub arguments: &'a [&'a str],
    /// The object of the row.
    pub object: &'a Object,
    /// The current time as the API writes it.
    pub now: &'a str,
}

/// Functions of a single kind. None for an unknown function.
pub type OwnCells<'a> = &'a dyn Fn(&Cell<'_>) -> Option<Value>;

/// The columns of a table.
pub struct Columns<'a> {
    columns: &'a [Column],
    /// For each column, the parsed JSON path of a definition; none for a plain path, or an invalid one.
    paths: Vec<Option<Template>>,
    /// The current time as the API writes it.
    now: &'a str,
    own: OwnCells<'a>,
}

impl<'a> Columns<'a> {
    /// Prepares the columns of a table. `now` is the current time as the API writes it, `own` has the functions of single kinds.
    pub fn new(columns: &'a [Column], now: &'a str, own: OwnCells<'a>) -> Self {
        let path = |c: &Column| {
            let path = path_of(c).filter(|p| !is_simple(p))?;
            Template::parse(&format!("{{{path}}}")).ok()
        };
        Self { columns, paths: columns.iter().map(path).collect(), now, own }
    }

    /// The cells of an object, one for each column.
    pub fn cells(&self, object: &Object) -> Vec<Value> {
        let mut document = Document { value: None, work: 0, bytes: MOST_TEXT };
        let all = self.columns.iter().zip(&self.paths);
        all.map(|(c, path)| cell(c, path.as_ref(), object, self.now, self.own, &mut document)).collect()
    }
}

/// The path of a definition's column.
fn path_of(column: &Column) -> Option<&str> {
    let (first, arguments) = column.value.split_first()?;
    (&**first == "@jsonpath").then(|| arguments.first().map_or("", |a| a))
}

/// Whether a path has nothing but names.
fn is_simple(path: &str) -> bool {
    path.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'_') && !path.contains("..")
}

/// Maximum bytes of text that the columns of a definition show for an object: each may name the same large part.
const MOST_TEXT: usize = 4 << 20;
/// Maximum values that the paths of a definition visit, in addition to twenty times those of the object.
const LEAST_WORK: usize = 10_000;

/// An object for the paths of a definition, with limits on time and text: the author of the definition is not trusted.
struct Document {
    /// The decoded object, computed for the first path that is not plain.
    value: Option<Value>,
    /// Values that may still be visited.
    work: usize,
    /// What is left of [`MOST_TEXT`].
    bytes: usize,
}

impl Document {
    /// The first value at a path. None if there is none, and if finding it takes too long.
    fn first(&mut self, path: &Template, object: &Object) -> Option<Value> {
        let work = &mut self.work;
        let value = self.value.get_or_insert_with(|| {
            let value = Value::Object(object.0.clone());
            *work = LEAST_WORK + 20 * count(&value);
            value
        });
        path.first_within(value, work).ok()?
    }

    fn text(&mut self, v: &Value) -> Value {
        let text = codec::jsonpath::text(std::slice::from_ref(v));
        let left = self.bytes.checked_sub(text.len());
        self.bytes = left.unwrap_or_default();
        left.map_or(Value::Null, |_| text.into())
    }
}

/// The number of values in a value, itself included.
fn count(v: &Value) -> usize {
    let members: usize = match v {
        Value::Object(m) => m.values().map(count).sum(),
        Value::Array(a) => a.iter().map(count).sum(),
        _ => 0,
    };
    1 + members
}

fn cell(
    column: &Column,
    path: Option<&Template>,
    object: &Object,
    now: &str,
    own: OwnCells<'_>,
    document: &mut Document,
) -> Value {
    if let Some(names) = path_of(column) {
        let found = match path {
            _ if is_simple(names) => follow(object, names).cloned(),
            path => path.and_then(|p| document.first(p, object)),
        };
        return defined(column, found, now, document);
    }
    let (first, arguments) = match column.value.split_first() {
        Some(x) => x,
        None => return Value::Null,
    };
    match first.strip_prefix('@') {
        None => typed(column, follow(object, first)),
        Some(function) => {
            let a: Vec<&str> = arguments.iter().map(|a| &**a).collect();
            let cell = Cell { function, arguments: &a, object, now };
            compute(&cell).or_else(|| own(&cell)).unwrap_or(Value::Null)
        }
    }
}

/// A cell of a column of a definition (`k8s.io/apiextensions-apiserver/…/tableconvertor`). Empty if the path finds nothing, or a value of another
/// type, or takes too long.
fn defined(column: &Column, found: Option<Value>, now: &str, document: &mut Document) -> Value {
    match (&*column.ty, found) {
        (_, None) => Value::Null,
        ("string", Some(v)) => document.text(&v),
        ("integer", Some(v)) => v.as_i64().or(v.as_f64().map(|f| f as i64)).map_or(Value::Null, Into::into),
        ("number", Some(v)) if v.is_number() => v,
        ("boolean", Some(v)) if v.is_boolean() => v,
        ("date", Some(Value::String(s))) if time::parse(&s).is_some() => age(&s, now).into(),
        ("date", Some(Value::String(_))) => "<invalid>".into(),
        _ => Value::Null,
    }
}

fn typed(column: &Column, v: Option<&Value>) -> Value {
    match (v, &*column.ty) {
        (None | Some(Value::Null), "integer") => 0.into(),
        (None | Some(Value::Null), "boolean") => false.into(),
        (None | Some(Value::Null), _) => "".into(),
        // The cells of numbers are numbers, whatever the column says.
        (Some(v), "string") if !v.is_number() => display(v).into(),
        (Some(v), _) => v.clone(),
    }
}

/// Follows a path such as `.spec.replicas`.
fn follow<'a>(object: &'a Object, path: &str) -> Option<&'a Value> {
    let steps: Vec<&str> = path.split('.').filter(|s| !s.is_empty()).collect();
    object.at(&steps)
}

/// The text of a value in a cell: strings without quotes, empty for null.
pub fn display(v: &Value) -> String {
    match v {
        Value::String(s) => s.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn int(v: Option<&Value>) -> i64 {
    v.and_then(Value::as_i64).unwrap_or(0)
}

fn list(v: Option<&Value>) -> &[Value] {
    v.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn or(v: Option<&Value>, otherwise: &str) -> Value {
    match v.map(display) {
        Some(t) if !t.is_empty() => t.into(),
        _ => otherwise.into(),
    }
}

/// The value of a function that several kinds use. None if there is no such function.
fn compute(cell: &Cell<'_>) -> Option<Value> {
    let Cell { function, arguments: a, object: o, now } = *cell;
    let arg = |i: usize| follow(o, a.get(i).copied().unwrap_or_default());
    Some(match function {
        "age" => age(o.creation_timestamp(), now).into(),
        "since" => arg(0).and_then(Value::as_str).map_or("<none>".into(), |t| age(t, now).into()),
        // The name of a class, with a mark if one of these annotations makes it the default.
        "nameOfClass" => {
            let is_default = o.annotations().any(|(key, value)| value == "true" && a.contains(&key));
            format!("{}{}", o.name(), if is_default { " (default)" } else { "" }).into()
        }
        "int" => int(arg(0)).into(),
        "bool" => arg(0).and_then(Value::as_bool).unwrap_or(false).into(),
        "boolTrue" => arg(0).and_then(Value::as_bool).unwrap_or(true).into(),
        "count" => arg(0).map_or(0, |v| v.as_array().map_or(0, Vec::len)).into(),
        "countData" => {
            let n = |k: &str| o.get(k).and_then(Value::as_object).map_or(0, |m| m.len());
            (n("data") + n("binaryData")).into()
        }
        "orNone" | "orUnset" if arg(0).is_some_and(Value::is_number) => arg(0).cloned().unwrap_or_default(),
        "orNone" => or(arg(0), "<none>"),
        "orUnset" => or(arg(0), "<unset>"),
        "orNA" => or(arg(0), "N/A"),
        "orUnknown" => or(arg(0), "<unknown>"),
        "join" => list(arg(0)).iter().map(display).collect::<Vec<_>>().join(",").into(),
        "joinOrNone" => or(Some(&list(arg(0)).iter().map(display).collect::<Vec<_>>().join(",").into()), "<none>"),
        "ready" => format!("{}/{}", int(arg(0)), int(arg(1))).into(),
        "containers" | "images" => {
            let spec = containers_of(o, a.first().copied());
            let key = if function == "containers" { "name" } else { "image" };
            spec.iter().map(|c| display(&c[key])).collect::<Vec<_>>().join(",").into()
        }
        "formatSelector" => selector(arg(0)).into(),
        "controller" => match o.controller_of() {
            Some(c) => {
                let group = c.api_version.split_once('/').map_or("", |(g, _)| g);
                let dot = if group.is_empty() { "" } else { "." };
                format!("{}{dot}{group}/{}", c.kind.to_lowercase(), c.name).into()
            }
            None => "<none>".into(),
        },
        "pairs" => pairs(arg(0)).into(),
        "loadBalancer" => load_balancer(o).into(),
        _ => return None,
    })
}

/// The condition of a type in the status.
pub fn condition<'a>(o: &'a Object, ty: &str) -> Option<&'a Value> {
    list(follow(o, ".status.conditions")).iter().find(|c| c["type"] == ty)
}

fn containers_of<'a>(o: &'a Object, template: Option<&str>) -> &'a [Value] {
    let paths = [
        template.map_or(".spec.template.spec.containers".to_owned(), |t| format!("{t}.spec.containers")),
        ".spec.jobTemplate.spec.template.spec.containers".to_owned(),
    ];
    paths.iter().map(|p| list(follow(o, p))).find(|c| !c.is_empty()).unwrap_or(&[])
}

/// A map as `a=b,c=d`.
fn pairs(v: Option<&Value>) -> String {
    let all: Vec<String> =
        v.and_then(Value::as_object).into_iter().flatten().map(|(k, v)| format!("{k}={}", display(v))).collect();
    if all.is_empty() { "<none>".into() } else { all.join(",") }
}

/// A label selector, or a plain map of labels.
pub fn selector(v: Option<&Value>) -> String {
    let Some(v) = v else { return "<none>".into() };
    if v.get("matchLabels").is_none() && v.get("matchExpressions").is_none() {
        return pairs(Some(v));
    }
    match meta::LabelSelector::from_value(Some(v)) {
        Ok(s) if s.is_everything() => "<none>".into(),
        Ok(s) => s.to_string(),
        Err(_) => "<error>".into(),
    }
}

/// The list at a path; empty if there is none.
pub fn list_at<'a>(o: &'a Object, path: &[&str]) -> &'a [Value] {
    o.at(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A text, or `<none>`.
pub fn or_none(s: Option<String>) -> Value {
    s.filter(|s| !s.is_empty()).unwrap_or_else(|| "<none>".into()).into()
}

/// At most three items, then the number of others.
pub fn limited(all: &[String], none: &str) -> String {
    match all.len() {
        0 => none.into(),
        n if n > 3 => format!("{} + {} more...", all[..3].join(","), n - 3),
        _ => all.join(","),
    }
}

/// The addresses of a load balancer.
pub fn load_balancer(o: &Object) -> String {
    let all = list_at(o, &["status", "loadBalancer", "ingress"]).iter();
    all.map(|i| if i["ip"].is_string() { display(&i["ip"]) } else { display(&i["hostname"]) })
        .collect::<Vec<_>>()
        .join(",")
}

/// The time between `then` and `now`, short.
pub fn age(then: &str, now: &str) -> String {
    match (time::parse(then), time::parse(now)) {
        (Some(t), Some(n)) => duration(n.as_second() - t.as_second()),
        _ => "<unknown>".into(),
    }
}

/// Seconds as `5s`, `3m20s`, `2d3h`, as `k8s.io/apimachinery/pkg/util/duration` writes them.
pub fn duration(seconds: i64) -> String {
    let two = |a: i64, unit: &str, b: i64, small: &str| match b {
        0 => format!("{a}{unit}"),
        b => format!("{a}{unit}{b}{small}"),
    };
    let (m, h, d) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        s if s < -1 => "<invalid>".into(),
        s if s < 0 => "0s".into(),
        s if s < 120 => format!("{s}s"),
        s if m < 10 => two(m, "m", s % 60, "s"),
        _ if m < 180 => format!("{m}m"),
        _ if h < 8 => two(h, "h", m % 60, "m"),
        _ if h < 48 => format!("{h}h"),
        _ if h < 192 => two(d, "d", h % 24, "h"),
        _ if d < 730 => format!("{d}d"),
        _ if d < 8 * 365 => two(d / 365, "y", d % 365, "d"),
        _ => format!("{}y", d / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream's printers mark the default of StorageClasses and IngressClasses.
    #[test]
    fn default_classes_are_marked() {
        let name = |annotations: Value| {
            let class = serde_json::json!({"metadata": {"name": "local", "annotations": annotations}});
            let object = Object::from_value(class).unwrap();
            let cell =
                Cell { function: "nameOfClass", arguments: &["a/default", "b/default"], object: &object, now: "" };
            compute(&cell).unwrap()
        };
        assert_eq!(name(serde_json::json!({"b/default": "true"})), "local (default)");
        assert_eq!(name(serde_json::json!({"b/default": "false", "c": "true"})), "local");
        assert_eq!(name(Value::Null), "local");
    }

    #[test]
    fn ages_are_short() {
        for (s, want) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (3600, "60m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_100, "3h5m"),
            (86_400, "24h"),
            (172_800, "2d"),
            (183_600, "2d3h"),
            (86_400 * 100, "100d"),
            (86_400 * 800, "2y70d"),
        ] {
            assert_eq!(duration(s), want);
        }
    }
}

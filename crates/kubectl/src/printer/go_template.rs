//! `-o go-template`: Go's `text/template` over the object, with the two additional functions of kubectl.
//!
//! Whole numbers are integers in templates, as kubectl decodes them.

mod fault;

use crate::error::{Error, Result, text};
use base64::Engine as _;
use codec::jsonpath::Missing;
use gotmpl::{MissingKey, Template, TemplateError, Value as GoValue};
use meta::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A parsed template.
#[derive(Clone)]
pub struct GoTemplate {
    template: Arc<Template>,
    source: String,
}

impl std::fmt::Debug for GoTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GoTemplate({:?})", self.source)
    }
}

impl GoTemplate {
    /// Parses a template. Errors are those of Go.
    pub fn parse(source: &str, missing: Missing) -> Result<Self> {
        let key = if missing == Missing::Error { MissingKey::Error } else { MissingKey::Invalid };
        let made = Template::new("output")
            .missing_key(key)
            .func("exists", |args| Ok(GoValue::Bool(exists(args))))
            .func("base64decode", base64decode)
            .func("index", fault::index)
            .func("len", fault::len)
            .parse(source);
        match made {
            Ok(_) if let Some((line, why)) = fault::blocks(source) => {
                text(format!("error parsing template {source}, template: output:{line}: {why}"))
            }
            Ok(t) => Ok(Self { template: Arc::new(t), source: source.to_owned() }),
            Err(TemplateError::Parse { line, message, .. } | TemplateError::Lex { line, message, .. }) => {
                let message = fault::unread(source, &message);
                text(format!("error parsing template {source}, template: output:{line}: {message}"))
            }
            Err(e) => text(format!("error parsing template {source}, template: output: {e}")),
        }
    }

    /// Executes the template on an object.
    pub fn render(&self, v: &Value) -> Result<String> {
        let mut out = String::new();
        let data = to_go(v);
        let Err(e) = self.template.execute_fmt(&mut out, &data) else { return Ok(out) };
        // Go checks functions when it parses a template.
        if let Some(f) = e.to_string().split_once("undefined function: ").map(|(_, f)| f.to_owned()) {
            return text(format!(
                "error parsing template {}, template: output:1: function {f:?} not defined",
                self.source
            ));
        }
        if let TemplateError::UndefinedVariable(name) = &e {
            let name = name.trim_start_matches('$');
            return text(format!(
                "error parsing template {}, template: output:1: undefined variable \"${name}\"",
                self.source
            ));
        }
        let why = fault::message(&e, &self.source);
        let raw = codec::json::to_string(v, codec::json::Html::Escape);
        out.push_str(&format!(
            "Error executing template: {why}. Printing more information for debugging the template:\n\ttemplate was:\n\t\t{}\n\traw data was:\n\t\t{raw}\n\tobject given to template engine was:\n\t\t{data}\n\n",
            self.source
        ));
        let error = Error::Text(format!("error executing template {:?}: {why}", self.source));
        Err(Error::WithOutput { out, error: Box::new(error) })
    }
}

fn base64decode(args: &[GoValue]) -> std::result::Result<GoValue, TemplateError> {
    let encoded = args.first().and_then(GoValue::as_str).unwrap_or_default();
    match base64::engine::general_purpose::STANDARD.decode(encoded) {
        Ok(b) => Ok(GoValue::String(String::from_utf8_lossy(&b).into())),
        Err(_) => {
            let why =
                format!("base64 decode failed: illegal base64 data at input byte {}", crate::base64::wrong_at(encoded));
            Err(fault::named("base64decode", why))
        }
    }
}

/// Whether the indices lead to an item.
fn exists(args: &[GoValue]) -> bool {
    let Some((first, rest)) = args.split_first() else { return false };
    let mut at = first.clone();
    for index in rest {
        let next = match (&at, index) {
            (GoValue::Map(m), GoValue::String(k)) => m.get(k).cloned(),
            (GoValue::List(l), i) => i.as_int().and_then(|i| l.get(usize::try_from(i).ok()?).cloned()),
            _ => None,
        };
        match next {
            Some(n) => at = n,
            None => return false,
        }
    }
    true
}

fn to_go(v: &Value) -> GoValue {
    match v {
        Value::Null => GoValue::Nil,
        Value::Bool(b) => GoValue::Bool(*b),
        Value::Number(n) => n.as_i64().map_or_else(|| GoValue::Float(n.as_f64().unwrap_or_default()), GoValue::Int),
        Value::String(s) => GoValue::String(s.as_str().into()),
        Value::Array(a) => GoValue::List(a.iter().map(to_go).collect()),
        Value::Object(m) => {
            let all: BTreeMap<Arc<str>, GoValue> = m.iter().map(|(k, v)| (k.as_str().into(), to_go(v))).collect();
            GoValue::Map(Arc::new(all))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn renders_templates_as_go_does() {
        let o = json!({
            "kind": "Deployment", "metadata": {"name": "d", "labels": {"app": "d"}, "generation": 12345678},
            "spec": {"replicas": 1, "f": 1.5, "c": [{"image": "i"}]},
        });
        for (t, expected) in [
            ("{{.metadata.name}}", "d"),
            ("{{.foo}} {{.foo.bar}}", "<no value> <no value>"),
            ("{{.spec.replicas}} {{.metadata.generation}} {{.spec.f}}", "1 12345678 1.5"),
            ("{{range .spec.c}}{{.image}}{{\"\\n\"}}{{end}}", "i\n"),
            ("{{range $k, $v := .metadata.labels}}{{$k}}={{$v}};{{end}}", "app=d;"),
            ("{{printf \"%d %v %s\" .spec.replicas .spec.replicas .metadata.name}}", "1 1 d"),
            ("{{.metadata.labels}} {{index .spec.c 0}}", "map[app:d] map[image:i]"),
            ("{{exists . \"metadata\" \"name\"}} {{exists . \"x\"}} {{exists .spec.c 0}}", "true false true"),
            ("{{base64decode \"eA==\"}}", "x"),
            ("{{if eq .kind \"Deployment\"}}yes{{else}}no{{end}} {{len .metadata.name}}", "yes 1"),
            ("{{html \"<a>\"}} {{urlquery \"a b\"}} {{- \"c\" -}}  b", "&lt;a&gt; a+bcb"),
        ] {
            assert_eq!(GoTemplate::parse(t, Missing::Allowed).unwrap().render(&o).unwrap(), expected, "{t}");
        }
        for (t, expected) in [
            ("{{.metadata", "error parsing template {{.metadata, template: output:1: unclosed action"),
            (
                "{{nosuch .}}",
                "error parsing template {{nosuch .}}, template: output:1: function \"nosuch\" not defined",
            ),
            ("{{if}}", "error parsing template {{if}}, template: output:1: missing value for if"),
            ("{{end}}", "error parsing template {{end}}, template: output:1: unexpected {{end}}"),
            ("{{else}}", "error parsing template {{else}}, template: output:1: unexpected {{else}}"),
            ("{{if .a}}", "error parsing template {{if .a}}, template: output:1: unexpected EOF"),
            ("{{$x}}", "error parsing template {{$x}}, template: output:1: undefined variable \"$x\""),
            ("{{\"a}}", "error parsing template {{\"a}}, template: output:1: unterminated quoted string"),
        ] {
            let e = GoTemplate::parse(t, Missing::Allowed).and_then(|t| t.render(&o)).unwrap_err();
            assert_eq!(e.to_string(), expected, "{t}");
        }
        let e = GoTemplate::parse("{{.foo}}", Missing::Error).unwrap().render(&o).unwrap_err();
        assert_eq!(
            e.to_string(),
            "error executing template \"{{.foo}}\": template: output:1:2: executing \"output\" at <.foo>: map has no entry for key \"foo\""
        );
    }

    /// Expected messages are those of Go's own program, position by position.
    #[test]
    fn reports_errors_with_their_position() {
        let o = json!({"metadata": {"name": "a"}, "items": [1]});
        for (t, expected) in [
            (
                "{{index .metadata.name 100}}",
                "1:2: <index .metadata.name 100>: error calling index: index out of range: 100",
            ),
            ("{{index}}", "1:2: <index>: wrong number of args for index: want at least 1 got 0"),
            ("{{not}}", "1:2: <not>: wrong number of args for not: want 1 got 0"),
            ("{{and}}", "1:2: <and>: wrong number of args for and: want at least 1 got 0"),
            ("{{len 3}}", "1:2: <len 3>: error calling len: len of type int"),
            ("{{len}}", "1:2: <len>: wrong number of args for len: want 1 got 0"),
            (
                "{{index .metadata \"name\" \"x\"}}",
                "1:2: <index .metadata \"name\" \"x\">: error calling index: cannot index slice/array with type string",
            ),
            (
                "{{ (index .metadata 3).foo }}",
                "1:4: <index .metadata 3>: error calling index: value has type int; should be string",
            ),
            (
                "{{ .metadata |  index   .metadata }}",
                "1:16: <index .metadata>: error calling index: value has type map[string]interface {}; should be string",
            ),
            (
                "{{index .metadata \"none\" \"x\"}}",
                "1:2: <index .metadata \"none\" \"x\">: error calling index: index of nil pointer",
            ),
            ("{{index 3 \"x\"}}", "1:2: <index 3 \"x\">: error calling index: can't index item of type int"),
            (
                "{{index .metadata nil}}",
                "1:2: <index .metadata nil>: error calling index: value is nil; should be of type string",
            ),
            ("{{eq .metadata.name}}", "1:2: <eq .metadata.name>: error calling eq: missing argument for comparison"),
            (
                "{{lt .metadata.name 1}}",
                "1:2: <lt .metadata.name 1>: error calling lt: incompatible types for comparison: string and int",
            ),
            (
                "{{base64decode \"%%\"}}",
                "1:2: <base64decode \"%%\">: error calling base64decode: base64 decode failed: illegal base64 data at input byte 0",
            ),
            ("{{ .metadata.name.foo }}", "1:12: <.metadata.name.foo>: can't evaluate field foo in type interface {}"),
            (
                "x\n {{if .metadata.name}}  {{ .metadata.foo.foo }}{{end}}",
                "2:36: <.metadata.foo.foo>: map has no entry for key \"foo\"",
            ),
        ] {
            let (place, rest) = expected.split_once(": ").unwrap();
            let e = GoTemplate::parse(t, Missing::Error).unwrap().render(&o).unwrap_err();
            let stderr =
                format!("error executing template {t:?}: template: output:{place}: executing \"output\" at {rest}");
            assert_eq!(e.to_string(), stderr, "{t}");
        }
        assert_eq!(GoTemplate::parse("{{index .metadata.name}}", Missing::Allowed).unwrap().render(&o).unwrap(), "a");
        let none = GoTemplate::parse("{{index .none 0 }}", Missing::Allowed).unwrap().render(&o).unwrap_err();
        let stderr = "executing \"output\" at <index .none 0>: error calling index: index of untyped nil";
        assert!(none.to_string().ends_with(stderr), "{none}");
        // Which of the two calls failed is unknown.
        let twice = GoTemplate::parse("{{len .items}}{{len 3}}", Missing::Allowed).unwrap().render(&o).unwrap_err();
        assert!(twice.to_string().ends_with("template: output: error calling len: len of type int"), "{twice}");
    }
}

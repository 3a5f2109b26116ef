//! How objects are printed: the server's tables for people, and the formats of `-o`.

pub mod columns;
mod go_template;
pub mod kyaml;
pub mod shape;
pub mod table;
pub mod tabwriter;

use crate::error::{Error, Result, text};
use crate::flags::{DryRunStrategy, PrintFlags};
use crate::kube::Kube;
use codec::json::to_string_indent;
use codec::jsonpath::{Missing, Template};
use columns::Columns;
use go_template::GoTemplate;
use meta::{Object, Value};
use shape::{Order, Shape};

/// A format of `-o`.
#[derive(Clone, Debug)]
pub enum Output {
    /// For people: a table, or the operation.
    Human,
    Wide,
    Name,
    Json,
    Yaml,
    Kyaml,
    JsonPath {
        template: Template,
        text: String,
        missing: Missing,
    },
    JsonPathAsJson {
        template: Template,
        text: String,
        missing: Missing,
    },
    Columns(Columns),
    GoTemplate(GoTemplate),
}

/// The names of all formats, as the error about an unknown one lists them.
const FORMATS: &str = "custom-columns,custom-columns-file,go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,kyaml,name,template,templatefile,wide,yaml";
const FORMATS_OF_WRITES: &str =
    "go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,kyaml,name,template,templatefile,yaml";

/// Which formats a command offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formats {
    /// `get`: also tables and custom columns.
    Tables,
    Objects,
}

impl Output {
    /// Parses `-o` and `--template`.
    pub fn parse(flags: &PrintFlags, formats: Formats, headers: bool) -> Result<Self> {
        let (name, rest) = match flags.output.split_once('=') {
            Some((n, r)) => (n, Some(r)),
            // A template without a format is a Go template.
            None if flags.output.is_empty() && !flags.template.is_empty() => ("go-template", None),
            None => (flags.output.as_str(), None),
        };
        let missing = if flags.allow_missing_template_keys { Missing::Allowed } else { Missing::Error };
        let template = || {
            rest.filter(|r| !r.is_empty())
                .map(str::to_owned)
                .or_else(|| (!flags.template.is_empty()).then(|| flags.template.clone()))
                .ok_or_else(|| Error::Text("template format specified but no template given".into()))
        };
        let file = |path: &str, what: &str| {
            std::fs::read_to_string(path).map_err(|e| {
                Error::Text(format!("error reading {what} {path}, open {path}: {}", crate::error::os_message(&e)))
            })
        };
        let path = |text: String| -> Result<(Template, String)> {
            match Template::parse(&text) {
                Ok(t) => Ok((t, text)),
                Err(e) => Err(Error::Text(format!("error parsing jsonpath {text}, {e}"))),
            }
        };
        let bare = rest.is_none();
        match name {
            "" => Ok(Self::Human),
            "wide" if bare && formats == Formats::Tables => Ok(Self::Wide),
            "name" if bare => Ok(Self::Name),
            "json" if bare => Ok(Self::Json),
            "yaml" if bare => Ok(Self::Yaml),
            "kyaml" if bare => Ok(Self::Kyaml),
            "jsonpath" => path(template()?).map(|(template, text)| Self::JsonPath { template, text, missing }),
            "jsonpath-file" => {
                let t = template()?;
                path(file(&t, "--template")?).map(|(template, text)| Self::JsonPath { template, text, missing })
            }
            "jsonpath-as-json" => {
                path(template()?).map(|(template, text)| Self::JsonPathAsJson { template, text, missing })
            }
            "custom-columns" if formats == Formats::Tables => match template() {
                Ok(spec) => Columns::parse(&spec, headers).map(Self::Columns),
                Err(_) => text("custom-columns format specified but no custom columns given"),
            },
            "custom-columns-file" if formats == Formats::Tables => match template() {
                Ok(path) => Columns::from_file(&file(&path, "template")?, headers).map(Self::Columns),
                Err(_) => text("custom-columns format specified but no custom columns given"),
            },
            "go-template" | "template" => GoTemplate::parse(&template()?, missing).map(Self::GoTemplate),
            "go-template-file" | "templatefile" => {
                let path = template()?;
                let read = std::fs::read_to_string(&path).map_err(|e| {
                    let why = crate::error::os_message(&e);
                    Error::Text(format!("error reading --template {path}, open {path}: {why}"))
                })?;
                GoTemplate::parse(&read, missing).map(Self::GoTemplate)
            }
            _ => text(format!(
                "unable to match a printer suitable for the output format {:?}, allowed formats are: {}",
                flags.output,
                if formats == Formats::Tables { FORMATS } else { FORMATS_OF_WRITES }
            )),
        }
    }

    /// Whether the format is for people.
    pub fn is_human(&self) -> bool {
        matches!(self, Self::Human | Self::Wide)
    }
}

/// `deployment.apps/web`.
pub fn object_name(o: &Object) -> String {
    let group = match o.api_version().split_once('/') {
        Some((g, _)) => g,
        None => "",
    };
    let name = if o.name().is_empty() { "<unknown>" } else { o.name() };
    format!("{}/{name}", crate::discovery::dotted(&o.kind().to_lowercase(), group))
}

/// Prints the objects of a command that writes: the operation, or the object in the format of `-o`.
#[derive(Clone, Debug)]
pub struct Printer {
    output: Output,
    managed: bool,
    dry: DryRunStrategy,
    documents: usize,
    order: Order,
}

impl Printer {
    pub fn new(flags: &PrintFlags, dry: DryRunStrategy) -> Result<Self> {
        Ok(Self {
            output: Output::parse(flags, Formats::Objects, true)?,
            managed: flags.show_managed_fields,
            dry,
            documents: 0,
            order: Order::ByName,
        })
    }

    /// Orders fields as in a kubeconfig.
    pub fn kubeconfig(self) -> Self {
        Self { order: Order::Kubeconfig, ..self }
    }

    /// For a command that builds objects, or decodes them into Go types.
    pub fn typed(self) -> Self {
        Self { order: Order::ByType, ..self }
    }

    /// `operation` follows the name of the object: `created`.
    pub fn print(&mut self, k: &Kube, o: &Object, operation: &str) -> Result {
        if self.output.is_human() {
            k.println(format!("{} {operation}{}", object_name(o), self.dry.suffix()));
            return Ok(());
        }
        let text = ordered(&self.output, o.clone(), self.managed, self.order)?;
        if self.documents > 0 && matches!(self.output, Output::Yaml) {
            k.out.write(b"---\n");
        }
        self.documents += 1;
        k.out.write(text.as_bytes());
        Ok(())
    }
}

/// Removes the managed fields of an object, or of the items of a list.
pub fn without_managed_fields(o: &mut Object) {
    o.remove(&["metadata", "managedFields"]);
    if let Some(Value::Array(items)) = o.0.get_mut("items") {
        for i in items {
            if let Some(m) = i.get_mut("metadata").and_then(Value::as_object_mut) {
                m.remove("managedFields");
            }
        }
    }
}

/// Formats an object or `List`. Not for tables.
pub fn document(output: &Output, o: Object, managed: bool) -> Result<String> {
    ordered(output, o, managed, Order::ByName)
}

/// [`document`], with a choice of the order of fields where the format has one.
pub fn ordered(output: &Output, mut o: Object, managed: bool, order: Order) -> Result<String> {
    // Templates and paths see all fields.
    if !managed && matches!(output, Output::Json | Output::Yaml | Output::Kyaml) {
        without_managed_fields(&mut o);
    }
    let is_list = o.get("items").is_some_and(Value::is_array) && o.kind().ends_with("List");
    let evaluate = |t: &Template, text: &str, missing: Missing, v: &Value| {
        t.find(v, missing).map_err(|e| jsonpath_error(text, &e, v))
    };
    Ok(match output {
        Output::Json => Shape::new(&o.into_value(), order).json(),
        Output::Kyaml => kyaml::document(&Shape::new(&o.into_value(), order)),
        Output::Yaml => codec::yaml::to_string(&o.into_value()),
        Output::Name if is_list => {
            let items = o.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
            items.into_iter().filter_map(Object::from_value).map(|i| format!("{}\n", object_name(&i))).collect()
        }
        Output::Name | Output::Human | Output::Wide => format!("{}\n", object_name(&o)),
        Output::JsonPath { template, text, missing } => {
            let v = o.into_value();
            evaluate(template, text, *missing, &v)?.iter().map(|r| codec::jsonpath::text(r)).collect()
        }
        Output::JsonPathAsJson { template, text, missing } => {
            let v = o.into_value();
            evaluate(template, text, *missing, &v)?.into_iter().map(|r| to_string_indent(&Value::Array(r))).collect()
        }
        Output::GoTemplate(t) => t.render(&o.into_value())?,
        Output::Columns(c) => {
            let items = match o.get("items").and_then(Value::as_array) {
                Some(items) if is_list => items.clone(),
                _ => vec![o.into_value()],
            };
            c.render(&items)?
        }
    })
}

fn jsonpath_error(template: &str, e: &codec::jsonpath::Error, v: &Value) -> Error {
    Error::Text(format!(
        "error executing jsonpath {template:?}: Error executing template: {e}. Printing more information for debugging the template:\n\ttemplate was:\n\t\t{template}\n\tobject given to jsonpath engine was:\n\t\t{}\n\n\n",
        go_syntax(v)
    ))
}

/// Formats a value as Go's `%#v`.
fn go_syntax(v: &Value) -> String {
    match v {
        Value::Object(m) => format!(
            "map[string]interface {{}}{{{}}}",
            m.iter().map(|(k, v)| format!("{k:?}:{}", go_syntax(v))).collect::<Vec<_>>().join(", ")
        ),
        Value::Array(a) => {
            format!("[]interface {{}}{{{}}}", a.iter().map(go_syntax).collect::<Vec<_>>().join(", "))
        }
        Value::Null => "interface {}(nil)".into(),
        other => codec::json::to_string(other, codec::json::Html::Keep),
    }
}

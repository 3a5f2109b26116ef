//! `-o custom-columns`.

use super::table::Aligner;
use crate::error::{Error, Result, text};
use codec::jsonpath::{Missing, Template};
use meta::Value;

/// Custom columns.
#[derive(Clone, Debug)]
pub struct Columns {
    /// Headers and the paths of the values. An invalid path is an error once the headers are printed.
    columns: Vec<(String, std::result::Result<Template, String>)>,
    headers: bool,
}

impl Columns {
    /// `NAME:.metadata.name,AGE:.metadata.creationTimestamp`.
    pub fn parse(spec: &str, headers: bool) -> Result<Self> {
        if spec.is_empty() {
            return text("custom-columns format specified but no custom columns given");
        }
        let mut columns = Vec::new();
        for part in spec.split(',') {
            let Some((name, path)) = part.split_once(':') else {
                return text(format!("unexpected custom-columns spec: {part}, expected <header>:<json-path-expr>"));
            };
            columns.push((name.to_owned(), Template::relaxed(path).map_err(|e| e.to_string())));
        }
        Ok(Self { columns, headers })
    }

    /// Parses two lines: headers, and the paths below them.
    pub fn from_file(content: &str, headers: bool) -> Result<Self> {
        let mut lines = content.lines();
        let mut next = |what: &str| {
            let form =
                "Expected format is one line of space separated headers, one line of space separated column specs.";
            lines.next().ok_or_else(|| Error::Text(format!("invalid template, missing {what} line. {form}")))
        };
        let (names, paths) = (next("header")?, next("spec")?);
        let (names, paths): (Vec<&str>, Vec<&str>) =
            (names.split_whitespace().collect(), paths.split_whitespace().collect());
        if names.len() != paths.len() {
            return text(format!(
                "number of headers ({}) and field specifications ({}) don't match",
                names.len(),
                paths.len()
            ));
        }
        Self::parse(&names.iter().zip(&paths).map(|(n, p)| format!("{n}:{p}")).collect::<Vec<_>>().join(","), headers)
    }

    /// Returns the headers unless they are turned off.
    pub fn header(&self) -> Option<Vec<String>> {
        self.headers.then(|| self.columns.iter().map(|(n, _)| n.clone()).collect())
    }

    /// Returns the cells of an object.
    pub fn row(&self, object: &Value) -> Result<Vec<String>> {
        self.columns
            .iter()
            .map(|(_, t)| {
                let t = t.as_ref().map_err(|why| Error::Text(why.clone()))?;
                let found = t.find(object, Missing::Allowed)?.concat();
                if found.is_empty() {
                    return Ok("<none>".into());
                }
                let text = |v: &Value| match v {
                    Value::Null => "<nil>".to_owned(),
                    v => super::table::escape(&go(v)),
                };
                Ok(found.iter().map(text).collect::<Vec<_>>().join(","))
            })
            .collect()
    }

    /// Formats a table of objects.
    pub fn render(&self, objects: &[Value]) -> Result<String> {
        let mut rows: Vec<Vec<String>> = self.header().into_iter().collect();
        for o in objects {
            match self.row(o) {
                Ok(row) => rows.push(row),
                // Rows before the error are printed.
                Err(e) => return Err(Error::WithOutput { out: Aligner::default().lines(&rows), error: Box::new(e) }),
            }
        }
        Ok(Aligner::default().lines(&rows))
    }
}

/// Formats a value as Go's `%v`.
fn go(v: &Value) -> String {
    match v {
        Value::Object(m) => {
            format!("map[{}]", m.iter().map(|(k, v)| format!("{k}:{}", go(v))).collect::<Vec<_>>().join(" "))
        }
        Value::Array(a) => format!("[{}]", a.iter().map(go).collect::<Vec<_>>().join(" ")),
        Value::Null => "<nil>".into(),
        other => codec::jsonpath::text(std::slice::from_ref(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_show_values_of_paths() {
        let c = Columns::parse("NAME:.metadata.name,IMAGES:{.spec.c[*].image},X:.x", true).unwrap();
        let items = [
            json!({"metadata": {"name": "a"}, "spec": {"c": [{"image": "i"}, {"image": "j"}]}}),
            json!({"metadata": {"name": "b"}, "x": {"k": [1, true]}}),
        ];
        assert_eq!(
            c.render(&items).unwrap(),
            "NAME   IMAGES   X\na      i,j      <none>\nb      <none>   map[k:[1 true]]\n"
        );
        let hostile =
            Columns::parse("X:.x", false).unwrap().render(&[json!({"x": {"k\x1b": ["v\r\x1b[2J"]}})]).unwrap();
        assert_eq!(hostile, "map[k^[:[v\\r^[[2J]]\n", "keys are written by others, too");
        assert!(Columns::parse("NAME", true).is_err());
        let f = Columns::from_file("A B\n.a .b\n", false).unwrap();
        assert_eq!(f.render(&[json!({"a": 1})]).unwrap(), "1     <none>\n");
    }
}

//! Reads `data/*.kinds`.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Default)]
pub struct Data {
    pub versions: Vec<Value>,
    pub messages: BTreeMap<String, Message>,
}

#[derive(Default)]
pub struct Message {
    pub atomic: bool,
    /// What validation looks at first.
    pub order: Vec<String>,
    /// Of a definition without fields: the shapes it may have, and their protobuf numbers.
    pub either: Vec<(String, u32)>,
    pub fields: BTreeMap<String, Field>,
}

#[derive(Clone, Default)]
pub struct Field {
    pub number: u32,
    /// Where it stands among the fields of its type.
    pub place: usize,
    pub presence: String,
    /// The name of its type in Go, where that is none of Go's own.
    pub go: Option<String>,
    pub required: Option<bool>,
    pub inline_of: String,
    pub facts: Vec<(String, String)>,
    pub fill: Option<(Value, Option<(String, Vec<String>)>)>,
    pub rules: Vec<String>,
}

impl Field {
    pub fn write(&self, m: &mut Map<String, Value>) {
        if self.number > 0 {
            m.insert("p".into(), self.number.into());
        }
        if self.place > 0 {
            m.insert("o".into(), self.place.into());
        }
        if let Some(go) = &self.go {
            m.insert("go".into(), go.clone().into());
        }
        if !self.presence.is_empty() {
            m.insert("e".into(), self.presence.clone().into());
        }
        if !self.inline_of.is_empty() {
            m.insert("i".into(), self.inline_of.clone().into());
        }
        for (k, v) in &self.facts {
            let value = match k.as_str() {
                "default" => serde_json::from_str(v).unwrap(),
                // A blank in a value is written `~`.
                "map" | "enum" => {
                    v.split(',').filter(|x| !x.is_empty()).map(|x| x.trim_matches('"').replace('~', " ")).collect()
                }
                _ if v.is_empty() => Value::Bool(true),
                _ => v.clone().into(),
            };
            m.insert(k.clone(), value);
        }
        if !self.rules.is_empty() {
            m.insert("rules".into(), self.rules.clone().into());
        }
        if let Some((value, when)) = &self.fill {
            m.insert("fill".into(), value.clone());
            if let Some((field, values)) = when {
                m.insert("when".into(), json!([field, values]));
            }
        }
    }
}

pub fn read(dir: &Path) -> Data {
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut data = Data::default();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        read_file(&text, &mut data).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
    data
}

fn read_file(text: &str, data: &mut Data) -> Result<(), String> {
    let mut prefix = String::new();
    let mut message = String::new();
    let mut stack: Vec<String> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let fail = |why: &str| format!("line {}: {why}: {line}", i + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let words = words(line);
        let first = words.first().map(String::as_str).unwrap_or_default();
        if !line.starts_with(' ') {
            message.clear();
            match first {
                "version" => {
                    prefix = words[2].clone();
                    if words[1] != "-" {
                        let (g, v) = words[1].split_once('/').unwrap_or(("", &words[1]));
                        data.versions.push(json!({"group": g, "version": v, "prefix": prefix, "kinds": []}));
                    }
                }
                "kind" => {
                    let kind = json!({"kind": words[1], "plural": words[2], "namespaced": words[3] == "namespaced"});
                    let version = data.versions.last_mut().ok_or_else(|| fail("no version above"))?;
                    version["kinds"].as_array_mut().unwrap().push(kind);
                }
                "message" => {
                    message = format!("{prefix}.{}", words[1]);
                    if data.messages.insert(message.clone(), Message::default()).is_some() {
                        return Err(fail("described twice"));
                    }
                }
                _ => return Err(fail("not understood")),
            }
            continue;
        }
        match data.messages.get_mut(&message) {
            Some(m) => message_line(m, &words, &mut stack, &prefix).map_err(|e| fail(&e))?,
            None => {
                let kinds =
                    data.versions.last_mut().map(|v| &mut v["kinds"]).ok_or_else(|| fail("no version above"))?;
                let kind = kinds.as_array_mut().unwrap().last_mut().ok_or_else(|| fail("no kind above"))?;
                kind_line(kind, &words).map_err(|e| fail(&e))?;
            }
        }
    }
    Ok(())
}

/// Words separated by blanks; `"two words"` are one.
fn words(line: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let end = match rest.strip_prefix('"') {
            Some(r) if !line.trim_start().starts_with(['=', ':']) => r.find('"').map(|i| i + 2).unwrap_or(rest.len()),
            _ => rest.find(' ').unwrap_or(rest.len()),
        };
        let word = &rest[..end];
        let quoted = word.len() > 1 && word.starts_with('"') && !line.trim_start().starts_with(['=', ':']);
        out.push(if quoted { word.trim_matches('"').to_owned() } else { word.to_owned() });
        rest = rest[end..].trim_start();
    }
    out
}

fn kind_line(kind: &mut Value, words: &[String]) -> Result<(), String> {
    let rest: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    let list = |kind: &mut Value, key: &str, v: Value| match kind[key].as_array_mut() {
        Some(a) => a.push(v),
        None => kind[key] = vec![v].into(),
    };
    match words[0].as_str() {
        "singular" => kind["singular"] = rest[0].into(),
        "revisioned" => kind["revisioned"] = true.into(),
        "put-creates" => kind["put_creates"] = true.into(),
        "any-finalizer" => kind["any_finalizer"] = true.into(),
        "answers-deleted" => kind["answers_deleted"] = true.into(),
        "metadata-checks" => {
            let checks: Vec<&str> = rest[0].split(',').filter(|c| *c != "none").collect();
            if checks.iter().any(|c| !matches!(*c, "object" | "change")) {
                return Err("an unknown check".into());
            }
            let parts = if rest.get(1) == Some(&"in") { &rest[2..] } else { &[""] };
            parts.iter().for_each(|p| list(kind, "metadata_checks", json!([p, checks])));
        }
        "stored" => kind["stored"] = rest[0].into(),
        "orphans" => kind["orphans"] = true.into(),
        "expires" => kind["expires"] = true.into(),
        "generation" => kind["generation"] = rest.first().copied().unwrap_or("spec").into(),
        "warning" => kind["warning"] = rest[0].into(),
        key @ ("verbs" | "short" | "categories") => kind[key] = rest.into(),
        "select" => rest.into_iter().for_each(|s| list(kind, "select", s.into())),
        "sub" => {
            let verbs: Vec<&str> = rest[1].split(',').collect();
            let mut sub = json!({"name": rest[0], "verbs": verbs});
            if rest.get(2) == Some(&"as") {
                sub["as"] = json!([rest[3], rest[4]]);
            }
            list(kind, "sub", sub);
        }
        "column" => {
            let (ty, format) = rest[1].split_once('/').unwrap_or((rest[1], ""));
            let wide = rest[2] == "wide";
            let value: Vec<&str> = rest[if wide { 3 } else { 2 }..].to_vec();
            if value.is_empty() {
                return Err("a column without a value".into());
            }
            list(kind, "columns", json!([rest[0], ty, format, wide as u8, value]));
        }
        _ => return Err("not understood".into()),
    }
    Ok(())
}

fn message_line(m: &mut Message, words: &[String], stack: &mut Vec<String>, prefix: &str) -> Result<(), String> {
    match words[0].as_str() {
        // Read by the macro that names the types of `k8s-openapi`.
        "absent" => {}
        "::" => m.atomic = words[1] == "atomic",
        "either" => {
            for w in &words[1..] {
                let (ty, number) = w.split_once('=').ok_or("a shape without a number")?;
                let number = number.parse().map_err(|_| "a shape without a number")?;
                let name = ty.trim_start_matches('[');
                let (list, own) = (&ty[..ty.len() - name.len()], name.starts_with(char::is_uppercase));
                let name = if own { format!("&{prefix}.{name}") } else { name.to_owned() };
                m.either.push((format!("{list}{name}"), number));
            }
        }
        ">" => {
            for w in &words[1..] {
                let name = w.split('.').next().unwrap_or_default();
                let name = name.trim_end_matches("[]");
                let is_field = name.is_empty() || name == "+" || m.fields.contains_key(name);
                if !is_field && w != "*" && !w.starts_with('~') {
                    return Err(format!("no field {name} above"));
                }
                m.order.push(w.trim_start_matches('~').to_owned());
            }
        }
        ":" => {
            let field = m.fields.get_mut(&words[1]).ok_or("no such field above")?;
            for w in &words[2..] {
                let (k, v) = w.split_once('=').unwrap_or((w, ""));
                match k {
                    "required" => field.required = Some(v != "false"),
                    _ => field.facts.push((k.to_owned(), v.to_owned())),
                }
            }
        }
        "go" => {
            for w in &words[1..] {
                let (name, go) = w.split_once('=').ok_or("a field without a type")?;
                m.fields.get_mut(name).ok_or("no such field above")?.go = Some(go.to_owned());
            }
        }
        "?" => {
            for name in words[1].split(',') {
                let field = m.fields.get_mut(name).ok_or("no such field above")?;
                field.rules.extend(words[2..].iter().cloned());
            }
        }
        "=" => {
            let field = m.fields.get_mut(&words[1]).ok_or("no such field above")?;
            let value = serde_json::from_str(&words[2]).map_err(|e| e.to_string())?;
            let when = words
                .get(3)
                .and_then(|w| w.split_once('='))
                .map(|(f, v)| (f.to_owned(), v.split(',').map(str::to_owned).collect::<Vec<_>>()));
            field.fill = Some((value, when));
        }
        _ => {
            for w in words {
                if w == ")" {
                    stack.pop();
                    continue;
                }
                let (name, number) = w.split_once('=').ok_or("a field without a number")?;
                if let Some(n) = number.strip_suffix('(') {
                    stack.push(format!("{name}#{n}"));
                    continue;
                }
                let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
                let field = Field {
                    number: digits.parse().map_err(|_| "a field without a number")?,
                    place: m.fields.len(),
                    presence: number[digits.len()..].to_owned(),
                    inline_of: stack.join("/"),
                    ..Field::default()
                };
                m.fields.insert(name.to_owned(), field);
            }
        }
    }
    Ok(())
}

//! The file in the editor, and the editor.

use crate::error::{Error, Result, text};
use crate::kube::Kube;
use crate::printer::kyaml;
use crate::printer::shape::{Order, Shape};
use crate::resource::file::{Document, documents};
use crate::resource::unmapped;
use crate::temporary;
use meta::Value;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The format of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Yaml,
    Kyaml,
    Json,
}

impl Form {
    /// `-o`, where nothing is YAML.
    pub fn parse(output: &str) -> Result<Self> {
        match output {
            "" | "yaml" => Ok(Self::Yaml),
            "kyaml" => Ok(Self::Kyaml),
            "json" => Ok(Self::Json),
            other => text(format!(
                "unable to match a printer suitable for the output format {other:?}, allowed formats are: json,kyaml,yaml"
            )),
        }
    }

    pub fn write(self, v: &Value) -> String {
        match self {
            Self::Yaml => codec::yaml::to_string(v),
            Self::Kyaml => kyaml::document(&Shape::of(v, Order::ByName)),
            Self::Json => codec::json::to_string_indent(v),
        }
    }
}

/// Why a file comes back.
pub struct Reason {
    pub head: String,
    pub causes: Vec<String>,
}

/// What the file says at its top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Explanation {
    Object,
    LastApplied,
}

impl Explanation {
    fn lines(self) -> &'static str {
        match self {
            Self::Object => {
                "# Please edit the object below. Lines beginning with a '#' will be ignored,
# and an empty file will abort the edit. If an error occurs while saving this file will be
# reopened with the relevant failures.
#
"
            }
            Self::LastApplied => {
                "# Please edit the 'last-applied-configuration' annotations below.
# Lines beginning with a '#' will be ignored, and an empty file will abort the edit.
#
"
            }
        }
    }
}

/// A text that is edited until it is accepted, or nothing is changed any more.
pub struct Session {
    pub form: Form,
    pub explanation: Explanation,
    pub windows_line_endings: bool,
    /// A file that holds nothing is not valid; without validation it ends the session.
    pub validates: bool,
    /// What errors of the text are about: `deployments.apps "web"`.
    pub what: String,
    /// The text before it was edited.
    original: String,
    /// What the editor was left with last, once something was wrong with it.
    wrong: Option<String>,
    reasons: Vec<Reason>,
}

impl Session {
    pub fn new(form: Form, original: &Value, what: String) -> Self {
        Self {
            form,
            explanation: Explanation::Object,
            windows_line_endings: false,
            validates: true,
            what,
            original: form.write(original),
            wrong: None,
            reasons: Vec::new(),
        }
    }

    /// Opens the editor until it leaves a file that can be read, of kinds that the server serves: the file and its objects. None if
    /// nothing was changed, or nothing is left. Errors if the editor fails, and if a wrong file was saved unchanged.
    pub async fn edit(&mut self, k: &mut Kube) -> Result<Option<(Draft, Vec<Document>)>> {
        loop {
            let draft = Draft::edit(k, &self.page(), self.form)?;
            let edited = stripped(&draft.text);
            if self.wrong.as_deref().is_some_and(|w| normalized(w) == normalized(&edited)) {
                return draft.keep(k, Error::Text("Edit cancelled, no valid changes were saved.".into()));
            }
            // Validation comes first.
            let read = if self.validates && edited.trim().is_empty() {
                text("invalid object to validate")
            } else {
                if !draft.changed(k, &self.original) {
                    return Ok(None);
                }
                let mut read = Vec::new();
                documents("edited-file", edited.as_bytes(), &mut read);
                read.into_iter().collect::<Result<Vec<_>>>()
            };
            let e = match read {
                Ok(all) => match unserved(k, &all).await? {
                    None => return Ok(Some((draft, all))),
                    Some(e) => {
                        let head = format!("The edited file had a syntax error: {e}");
                        self.refused(&draft, vec![Reason { head, causes: Vec::new() }]);
                        continue;
                    }
                },
                Err(e) => e,
            };
            k.warn(format!("error: {} is invalid", self.what));
            let cause = format!("<nil>: Invalid value: \"The edited file failed validation\": {e}");
            let reason = Reason { head: format!("{} was not valid", self.what), causes: vec![cause] };
            self.refused(&draft, vec![reason]);
        }
    }

    /// The next file is this one again, with reasons on top.
    pub fn refused(&mut self, draft: &Draft, reasons: Vec<Reason>) {
        self.wrong = Some(stripped(&draft.text));
        self.reasons = reasons;
    }

    /// What is edited, below an explanation and the reasons for editing it again.
    fn page(&self) -> String {
        let mut out = String::new();
        if self.form != Form::Json {
            out.push_str(self.explanation.lines());
            for r in &self.reasons {
                let comment = |t: &str| t.replace('\n', "\n# ");
                let end = if r.causes.is_empty() { "" } else { ":" };
                out.push_str(&format!("# {}{end}\n", comment(&r.head)));
                r.causes.iter().for_each(|c| out.push_str(&format!("# * {}\n", comment(c))));
                out.push_str("#\n");
            }
        }
        out.push_str(self.wrong.as_ref().unwrap_or(&self.original));
        if self.windows_line_endings { out.replace('\n', "\r\n") } else { out }
    }
}

/// A text without its comments, as it counts.
fn stripped(text: &str) -> String {
    let lines = text.lines().filter(|l| !l.starts_with('#')).map(|l| l.trim_end_matches('\r'));
    lines.map(|l| format!("{l}\n")).collect()
}

/// What a text means: neither comments nor the form it is written in count. Of a text that is no YAML, the lines.
fn normalized(text: &str) -> String {
    match codec::yaml::parse(text) {
        Ok(all) => all.iter().map(codec::yaml::to_string).collect::<Vec<_>>().join("---\n"),
        Err(_) => stripped(text),
    }
}

/// The error of the first object of a kind that the server does not serve.
async fn unserved(k: &mut Kube, all: &[Document]) -> Result<Option<Error>> {
    for d in all {
        let served = match d.object.gvk() {
            Some(gvk) => k.resource_of(&gvk).await?.is_some(),
            None => false,
        };
        if !served {
            return Ok(Some(unmapped(&d.source, &d.object)));
        }
    }
    Ok(None)
}

/// An edited file, gone with this unless it is kept.
pub struct Draft {
    path: PathBuf,
    text: String,
    kept: std::cell::Cell<bool>,
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.kept.get() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Draft {
    /// Writes a page, has it edited, and reads it again.
    fn edit(k: &Kube, page: &str, form: Form) -> Result<Self> {
        let ending = if form == Form::Json { "json" } else { "yaml" };
        let (path, mut file) = temporary::create_file(k, "kubectl-edit", ending)?;
        let mut draft = Self { path, text: String::new(), kept: false.into() };
        let wrong = |e: std::io::Error, path: &Path| Error::Text(format!("{}: {e}", path.display()));
        file.write_all(page.as_bytes()).map_err(|e| wrong(e, &draft.path))?;
        drop(file);
        open(k, &draft.path)?;
        draft.text = std::fs::read_to_string(&draft.path).map_err(|e| wrong(e, &draft.path))?;
        Ok(draft)
    }

    /// Whether something was made of `body`, comments aside. If not, somebody is told.
    fn changed(&self, k: &Kube, body: &str) -> bool {
        let edited = stripped(&self.text);
        if normalized(&edited) == normalized(body) {
            k.warn("Edit cancelled, no changes made.");
            return false;
        }
        if edited.trim().is_empty() {
            k.warn("Edit cancelled, saved file was empty.");
            return false;
        }
        true
    }

    /// Leaves the file where it is.
    pub fn keep_file(&self) -> String {
        self.kept.set(true);
        self.path.display().to_string()
    }

    /// Leaves the file where it is, says so, and ends with an error.
    pub fn keep<T>(&self, k: &Kube, e: Error) -> Result<T> {
        k.warn(format!("A copy of your changes has been stored to {:?}", self.keep_file()));
        Err(e)
    }
}

/// `KUBE_EDITOR`, else `EDITOR`, else vi; a shell reads it when it has spaces and quotes.
fn open(k: &Kube, path: &Path) -> Result {
    let of = |n: &str| (k.shell.environment)(n).filter(|v| !v.is_empty());
    let editor = of("KUBE_EDITOR").or_else(|| of("EDITOR")).unwrap_or_else(|| "vi".into());
    let in_shell = editor.contains(' ') && editor.contains(['"', '\'', '\\']);
    let (mut command, shown) = if in_shell {
        let shell = of("SHELL").unwrap_or_else(|| "/bin/bash".into());
        let mut c = Command::new(&shell);
        c.arg("-c").arg(format!("{editor} \"{}\"", path.display()));
        (c, format!("{shell} -c {editor}"))
    } else {
        let mut words = editor.split(' ').filter(|w| !w.is_empty());
        let mut c = Command::new(words.next().unwrap_or("vi"));
        c.args(words).arg(path);
        (c, editor)
    };
    let searched = !command.get_program().to_string_lossy().contains('/');
    match k.shell.status(&mut command) {
        Ok(s) if s.success() => Ok(()),
        // Only a program that no directory of PATH has counts as not found.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && searched => {
            text(format!("unable to launch the editor {shown:?}"))
        }
        _ => text(format!("there was a problem with the editor {shown:?}")),
    }
}

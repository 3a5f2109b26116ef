//! Edit sessions: the file, its checks, and the editor.

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
    /// Parses `-o`; the default is YAML.
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

    /// Formats a value for the editor.
    pub fn write(self, v: &Value) -> String {
        match self {
            Self::Yaml => codec::yaml::to_string(v),
            Self::Kyaml => kyaml::document(&Shape::new(v, Order::ByName)),
            Self::Json => codec::json::to_string_indent(v),
        }
    }
}

/// Why the file is opened again.
pub struct Reason {
    pub head: String,
    pub causes: Vec<String>,
}

/// The comment at the top of the file.
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

/// A text that is edited until it is accepted or left unchanged.
pub struct Session {
    pub form: Form,
    pub explanation: Explanation,
    pub windows_line_endings: bool,
    /// Whether an empty file is invalid; otherwise it ends the session.
    pub validates: bool,
    /// The name of the object in error messages: `deployments.apps "web"`.
    pub what: String,
    /// The text before it was edited.
    original: String,
    /// The last text from the editor, if it was invalid.
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

    /// Opens the editor until the file is valid and all its kinds are served. Returns the file and its objects, or `None`
    /// if nothing was changed or left. Errors if the editor fails, or if an invalid file was saved unchanged.
    pub async fn edit(&mut self, k: &mut Kube) -> Result<Option<(Draft, Vec<Document>)>> {
        loop {
            let draft = Draft::edit(k, &self.page(), self.form)?;
            let edited = strip_comments(&draft.text);
            if self.wrong.as_deref().is_some_and(|w| normalize(w) == normalize(&edited)) {
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
                Ok(all) => match check_served(k, &all).await? {
                    None => return Ok(Some((draft, all))),
                    Some(e) => {
                        let head = format!("The edited file had a syntax error: {e}");
                        self.reopen(&draft, vec![Reason { head, causes: Vec::new() }]);
                        continue;
                    }
                },
                Err(e) => e,
            };
            k.warn(format!("error: {} is invalid", self.what));
            let cause = format!("<nil>: Invalid value: \"The edited file failed validation\": {e}");
            let reason = Reason { head: format!("{} was not valid", self.what), causes: vec![cause] };
            self.reopen(&draft, vec![reason]);
        }
    }

    /// Opens this file again next time, with the reasons at the top.
    pub fn reopen(&mut self, draft: &Draft, reasons: Vec<Reason>) {
        self.wrong = Some(strip_comments(&draft.text));
        self.reasons = reasons;
    }

    /// Returns the text for the editor: the explanation, the reasons and the objects.
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

/// Removes comments and carriage returns.
fn strip_comments(text: &str) -> String {
    let lines = text.lines().filter(|l| !l.starts_with('#')).map(|l| l.trim_end_matches('\r'));
    lines.map(|l| format!("{l}\n")).collect()
}

/// Normalizes a text for comparison: comments and YAML formatting do not count. Text that is no YAML is compared by lines.
fn normalize(text: &str) -> String {
    match codec::yaml::parse(text) {
        Ok(all) => all.iter().map(codec::yaml::to_string).collect::<Vec<_>>().join("---\n"),
        Err(_) => strip_comments(text),
    }
}

/// Returns an error for the first object of a kind that the server does not serve.
async fn check_served(k: &mut Kube, all: &[Document]) -> Result<Option<Error>> {
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

/// An edited file. It is deleted on drop unless it is kept.
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
    /// Writes a page, opens it in the editor, and reads it again.
    fn edit(k: &Kube, page: &str, form: Form) -> Result<Self> {
        let ending = if form == Form::Json { "json" } else { "yaml" };
        let (path, mut file) = temporary::create_file(k, "kubectl-edit", ending)?;
        let mut draft = Self { path, text: String::new(), kept: false.into() };
        let wrong = |e: std::io::Error, path: &Path| Error::Text(format!("{}: {e}", path.display()));
        file.write_all(page.as_bytes()).map_err(|e| wrong(e, &draft.path))?;
        drop(file);
        run_editor(k, &draft.path)?;
        draft.text = std::fs::read_to_string(&draft.path).map_err(|e| wrong(e, &draft.path))?;
        Ok(draft)
    }

    /// Whether the user changed `body`, comments aside. If not, prints a message.
    fn changed(&self, k: &Kube, body: &str) -> bool {
        let edited = strip_comments(&self.text);
        if normalize(&edited) == normalize(body) {
            k.warn("Edit cancelled, no changes made.");
            return false;
        }
        if edited.trim().is_empty() {
            k.warn("Edit cancelled, saved file was empty.");
            return false;
        }
        true
    }

    /// Keeps the file, and returns its path.
    pub fn keep_file(&self) -> String {
        self.kept.set(true);
        self.path.display().to_string()
    }

    /// Keeps the file, prints its path, and returns the error.
    pub fn keep<T>(&self, k: &Kube, e: Error) -> Result<T> {
        k.warn(format!("A copy of your changes has been stored to {:?}", self.keep_file()));
        Err(e)
    }
}

/// Runs `KUBE_EDITOR`, `EDITOR` or vi. A command with spaces and quotes is passed to a shell.
fn run_editor(k: &Kube, path: &Path) -> Result {
    let variable = |n: &str| (k.shell.environment)(n).filter(|v| !v.is_empty());
    let editor = variable("KUBE_EDITOR").or_else(|| variable("EDITOR")).unwrap_or_else(|| "vi".into());
    let in_shell = editor.contains(' ') && editor.contains(['"', '\'', '\\']);
    let (mut command, shown) = if in_shell {
        let shell = variable("SHELL").unwrap_or_else(|| "/bin/bash".into());
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
        // Only a program that is in no directory of PATH counts as not found.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && searched => {
            text(format!("unable to launch the editor {shown:?}"))
        }
        _ => text(format!("there was a problem with the editor {shown:?}")),
    }
}

//! `kemudi sim`: rehearses a scenario against manifests or a copy of a running cluster, in virtual time.

use crate::output::{note, print_line};
use crate::system::SystemClock;
use client::kubeconfig::{Overrides, Sources};
use manifests::{Document, FileTypes};
use meta::{Clock, Value};
use simulation::copy::{Copy, Source};
use simulation::rehearsal::{Error, Options, Progress};
use simulation::{Rehearsal, Scenario, Span, Step, Verdict};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// The exit codes, which docs/simulation.md lists. 1 is for failures of the machine or of the cluster.
const FAILED: u8 = 1;
const BAD_INPUT: u8 = 2;
const BROKEN: u8 = 3;
const UNFINISHED: u8 = 4;
const OUT_OF_TIME: u8 = 5;
/// The largest file that is read.
const MOST_BYTES: u64 = 64 << 20;
/// How long a rehearsal that is stopped may take to write what it has.
const GRACE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

#[derive(clap::Args)]
#[command(after_help = "Exit codes:
  0  everything that was expected held, and every PodDisruptionBudget
  1  the cluster cannot be read, or a file cannot be written
  2  the flags, the scenario or the manifests are wrong
  3  a PodDisruptionBudget or an expectation was broken, or a step failed
  4  the rehearsal did not come to its end within the timeout
  5  the rehearsal did not come to its end within --max-real-time")]
pub struct SimOptions {
    /// Scenario to rehearse (YAML or JSON); `-` reads standard input.
    scenario: PathBuf,
    /// File or directory with manifests, or `-` for standard input; may be repeated.
    #[arg(short = 'f', long, value_delimiter = ',')]
    filename: Vec<String>,
    /// Also read subdirectories.
    #[arg(short = 'R', long, requires = "filename")]
    recursive: bool,
    /// Kustomization directory to build instead of reading files.
    #[arg(short = 'k', long, conflicts_with = "filename")]
    kustomize: Option<String>,
    /// Namespace of manifests that name none.
    #[arg(short = 'n', long, default_value = "default")]
    namespace: String,
    /// Copy a running cluster. It is only read, with lists; the contents of Secrets and ConfigMaps are not.
    #[arg(long, conflicts_with_all = ["filename", "kustomize"])]
    from_cluster: bool,
    /// Kubeconfig file of the running cluster.
    #[arg(long, requires = "from_cluster")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long, default_value = "", hide_default_value = true, requires = "from_cluster")]
    context: String,
    /// Output format.
    #[arg(short = 'o', long, value_enum, default_value = "text")]
    output: Format,
    /// Also write the result to this file, as one HTML page that needs no network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Virtual time that the steps may take, such as 90m or 12h.
    #[arg(long, default_value = "4h", value_parser = simulation::Span::parse)]
    timeout: simulation::Span,
    /// Real time that the rehearsal may take; 0s for no limit.
    #[arg(long, default_value = "5m", value_parser = simulation::Span::parse)]
    max_real_time: simulation::Span,
    /// Use another seed than the scenario's.
    #[arg(long)]
    seed: Option<u64>,
    /// Print only violations, and nothing if there are none.
    #[arg(short = 'q', long)]
    quiet: bool,
}

/// Why there is no result.
enum Failure {
    Input(Vec<String>),
    OutOfTime(String),
    Other(String),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        match e {
            Error::Input(problems) => Self::Input(problems),
            Error::Stopped(phase) => Self::OutOfTime(phase),
            Error::Runtime(e) => Self::Other(format!("cannot start a runtime: {e}")),
        }
    }
}

fn bad(problem: impl ToString) -> Failure {
    Failure::Input(vec![problem.to_string()])
}

/// Rehearses, and writes the result. Returns the exit code.
pub fn main(o: &SimOptions) -> ExitCode {
    let page = match o.html.as_deref().map(Page::prepare).transpose() {
        Ok(page) => page,
        Err(problem) => {
            print_error(&problem);
            return ExitCode::from(FAILED);
        }
    };
    let progress = Arc::<Progress>::default();
    let _watchdog = watch(o.max_real_time, progress.clone());
    let (code, problems) = match rehearse(o, progress) {
        Ok(rehearsal) => match write(o, page, &rehearsal) {
            Ok(()) if rehearsal.stopped => {
                (OUT_OF_TIME, vec![out_of_time(o.max_real_time, rehearsal.problem.as_deref().unwrap_or_default())])
            }
            Ok(()) => {
                return ExitCode::from(match rehearsal.verdict {
                    Verdict::Held => 0,
                    Verdict::Broken => BROKEN,
                    Verdict::Unfinished => UNFINISHED,
                });
            }
            Err(problem) => (FAILED, vec![problem]),
        },
        Err(Failure::Input(problems)) => (BAD_INPUT, problems),
        Err(Failure::OutOfTime(phase)) => (OUT_OF_TIME, vec![out_of_time(o.max_real_time, &phase)]),
        Err(Failure::Other(problem)) => (FAILED, vec![problem]),
    };
    for problem in problems {
        print_error(&problem);
    }
    ExitCode::from(code)
}

/// Prints an error. Further lines of it are indented, so that none looks like another error.
fn print_error(problem: &str) {
    let lines: Vec<String> = problem.lines().map(|line| simulation::printable(line).trim_end().to_owned()).collect();
    note!("error: {}", lines.join("\n  "));
}

fn out_of_time(limit: Span, phase: &str) -> String {
    format!("stopped after {limit} of real time (--max-real-time): {phase}")
}

/// Stops a rehearsal after a real time, and ends the process if it does not stop. Ends when the returned sender is dropped.
fn watch(limit: Span, progress: Arc<Progress>) -> Option<mpsc::Sender<()>> {
    if limit.0.is_zero() {
        return None;
    }
    let (sender, ended) = mpsc::channel::<()>();
    let is_over = move |time: Duration| ended.recv_timeout(time) == Err(mpsc::RecvTimeoutError::Timeout);
    std::thread::spawn(move || {
        if !is_over(limit.0) {
            return;
        }
        progress.stop();
        if is_over(GRACE) {
            print_error(&out_of_time(limit, &progress.phase()));
            std::process::exit(i32::from(OUT_OF_TIME));
        }
    });
    Some(sender)
}

/// The file for the page, opened before the rehearsal so that a wrong path is found at once.
struct Page {
    path: PathBuf,
    file: Option<std::fs::File>,
    /// Whether the file did not exist before.
    is_new: bool,
}

impl Page {
    fn prepare(path: &Path) -> Result<Self, String> {
        let is_new = !path.exists();
        let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|e| format!("write {}: {}", path.display(), manifests::os_message(&e)))?;
        Ok(Self { path: path.to_owned(), file: Some(file), is_new })
    }

    fn write(mut self, text: &str) -> Result<(), String> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        // A device or a pipe has no length.
        let written = match file.metadata().is_ok_and(|m| m.is_file()) {
            true => file.set_len(0).and_then(|()| file.write_all(text.as_bytes())),
            false => file.write_all(text.as_bytes()),
        };
        written.map_err(|e| format!("write {}: {}", self.path.display(), manifests::os_message(&e)))
    }
}

impl Drop for Page {
    /// Removes a file that was made and not written.
    fn drop(&mut self) {
        if self.file.is_some() && self.is_new {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn rehearse(o: &SimOptions, progress: Arc<Progress>) -> Result<Rehearsal, Failure> {
    let inputs = o.filename.iter().map(Path::new).chain([o.scenario.as_path()]).filter(|path| is_standard_input(path));
    if inputs.count() > 1 {
        return Err(bad("standard input (`-`) can be read only once"));
    }
    let name = source_name(&o.scenario);
    let bytes = match is_standard_input(&o.scenario) {
        true => manifests::read_within(std::io::stdin(), MOST_BYTES),
        false => manifests::read_file_within(&o.scenario, MOST_BYTES, FileTypes::RegularAndPipes),
    };
    let bytes = bytes.map_err(|why| bad(format!("open {name}: {why}")))?;
    let text = manifests::decode_text(&bytes);
    let mut scenario = Scenario::decode(&text).map_err(|e| bad(format!("{name}: {e}")))?;
    if let Some(seed) = o.seed {
        scenario.seed = seed;
    }
    let base = o.scenario.parent().unwrap_or(Path::new("."));
    read_applied_files(&mut scenario, base).map_err(|e| e.at(&name))?;
    let copy = if o.from_cluster { from_cluster(o, &progress)? } else { from_manifests(o)? };
    let options = Options { timeout: o.timeout.0, progress };
    simulation::rehearse(scenario, &copy, &options).map_err(|e| match e {
        Error::Input(problems) => {
            // Problems of manifests name their file.
            let of_manifest = |p: &String| copy.sources.iter().any(|s| p.starts_with(&s.origin));
            Failure::Input(
                problems.into_iter().map(|p| if of_manifest(&p) { p } else { format!("{name}: {p}") }).collect(),
            )
        }
        e => e.into(),
    })
}

fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn source_name(path: &Path) -> String {
    if is_standard_input(path) { "standard input".into() } else { path.display().to_string() }
}

/// Reads the objects of one path of `--filename`.
fn read_manifests(path: &str, recursive: bool) -> Result<Vec<Document>, Failure> {
    let read = if is_standard_input(Path::new(path)) {
        let bytes = manifests::read_within(std::io::stdin(), MOST_BYTES);
        let bytes = bytes.map_err(|why| bad(format!("open standard input: {why}")))?;
        manifests::read_stream("standard input", &bytes)
    } else {
        let given = [path.to_owned()];
        manifests::read_files_within(&given, recursive, MOST_BYTES, FileTypes::RegularAndPipes)
    };
    read.map_err(|errors| match !recursive && has_only_subdirectories(path) {
        true => Failure::Input(problems(errors).map(|p| p + "; -R also reads subdirectories").collect()),
        false => Failure::Input(problems(errors).collect()),
    })
}

/// Whether a directory has other directories and no manifest.
fn has_only_subdirectories(path: &str) -> bool {
    let is_empty = manifests::expand(Path::new(path), path, false).is_err();
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    is_empty && entries.into_iter().any(|e| e.file_type().is_ok_and(|t| t.is_dir()))
}

/// Reads the files that steps apply. Paths are relative to the scenario.
fn read_applied_files(scenario: &mut Scenario, base: &Path) -> Result<(), Failure> {
    for (i, step) in scenario.steps.iter().enumerate() {
        let Step::ApplyFiles(files) = step else { continue };
        if files.is_empty() {
            return Err(bad(format!("steps[{i}].applyFiles: must name a file")));
        }
        for file in files {
            let path = base.join(file).to_string_lossy().into_owned();
            let documents = manifests::read_files_within(&[path], false, MOST_BYTES, FileTypes::Regular)
                .map_err(|e| Failure::Input(problems(e).collect()).at(&format!("steps[{i}].applyFiles")))?;
            if documents.is_empty() {
                return Err(bad(format!("steps[{i}].applyFiles: {file} has no objects")));
            }
            let objects = documents.into_iter().map(|d| d.object.into_value()).collect();
            scenario.files.insert(file.clone(), objects);
        }
    }
    Ok(())
}

fn problems(errors: Vec<manifests::Error>) -> impl Iterator<Item = String> {
    errors.into_iter().map(|e| e.brief())
}

impl Failure {
    /// Adds the place in the scenario to problems of input.
    fn at(self, place: &str) -> Self {
        match self {
            Self::Input(problems) => Self::Input(problems.into_iter().map(|p| format!("{place}: {p}")).collect()),
            other => other,
        }
    }
}

fn from_manifests(o: &SimOptions) -> Result<Copy, Failure> {
    let mut notes = Vec::new();
    let documents = match &o.kustomize {
        Some(directory) => {
            let (documents, warnings) = manifests::read_kustomization(directory).map_err(|e| bad(e.brief()))?;
            notes.extend(warnings);
            documents
        }
        None if o.filename.is_empty() => {
            return Err(bad("one of --filename, --kustomize and --from-cluster is needed"));
        }
        None => {
            let mut documents = Vec::new();
            for path in &o.filename {
                let read = read_manifests(path, o.recursive)?;
                if read.is_empty() {
                    return Err(bad(format!("{} has no objects", source_name(Path::new(path)))));
                }
                documents.extend(read);
            }
            documents
        }
    };
    if let Some(directory) = o.kustomize.as_ref().filter(|_| documents.is_empty()) {
        return Err(bad(format!("{directory} has no objects")));
    }
    let source = |d: Document| {
        let Document { source, number, object } = d;
        Source { object, origin: format!("{source}, document {number}") }
    };
    let names = o.filename.iter().map(|path| source_name(Path::new(path))).collect::<Vec<_>>();
    let files = o.kustomize.clone().unwrap_or_else(|| names.join(", "));
    let described = vec![format!("{} objects of {files}", documents.len())];
    let sources = documents.into_iter().map(source).collect();
    Ok(Copy { sources, taken: None, namespace: o.namespace.clone(), described, notes })
}

fn from_cluster(o: &SimOptions, progress: &Progress) -> Result<Copy, Failure> {
    progress.set_phase("reading the cluster".into());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::Other(format!("cannot start a runtime: {e}")))?;
    let environment = |name: &str| std::env::var(name).ok();
    let overrides = Overrides { context: o.context.clone(), ..Overrides::default() };
    let resolved = Sources::find(o.kubeconfig.clone(), environment).resolve(&overrides, environment).map_err(bad)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let server = resolved.https.server.clone();
    runtime.block_on(async {
        let client = resolved.client("kemudi-sim", &clock).await.map_err(bad)?.with_timeout(Duration::from_secs(120));
        let read = simulation::snapshot::read(&client, &server, clock.now()).await;
        read.map_err(|e| Failure::Other(format!("reading the cluster at {server}: {e}")))
    })
}

fn write(o: &SimOptions, page: Option<Page>, rehearsal: &Rehearsal) -> Result<(), String> {
    if let Some(page) = page {
        page.write(&rehearsal.to_html())?;
    }
    match o.output {
        Format::Json => {
            let value: Value = rehearsal.to_json();
            print_line!("{}", serde_json::to_string_pretty(&value).unwrap_or_default());
        }
        Format::Text if !o.quiet => print_line!("{}", rehearsal.to_text().trim_end()),
        Format::Text if rehearsal.verdict != Verdict::Held => print_line!("{}", rehearsal.summary().trim_end()),
        Format::Text => {}
    }
    Ok(())
}

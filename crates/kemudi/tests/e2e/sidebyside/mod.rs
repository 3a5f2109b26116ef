//! The real kubectl and ours must respond alike to the same command lines: standard output, exit code, and messages.
//!
//! `cases/` has command lines, a file per test. A test has two namespaces with the same objects (`files/fixture.yaml`), one
//! for each program, and runs its lines in order, both programs at the same time. Lines of files that begin with `# reads`
//! change nothing and run in parallel. `NS` in a line is the namespace. Variable parts of the output are replaced before
//! the comparison ([`smooth`]).
//!
//! `differences.txt` lists the lines that may differ, with a reason for each. A difference that is not listed fails the
//! test, and so does a listed line that no longer differs. At most two of a hundred lines may be listed
//! ([`the_list_is_short`]).
//!
//! The real program is the one of `KEMUDI_KUBECTL`, or else of `KUBECTL`, or else in `PATH`. v1.36 runs every line. An
//! older one runs the lines that begin with its version or an older one (`20: get pods`), on which they agree.

mod flags;
mod smooth;

use crate::cluster::KEMUDI;
use crate::runner::Case;
use crate::story::{Story, Tool, minor};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

pub const TESTS: &[Case] = &[
    ("sidebyside::the_list_is_short", the_list_is_short),
    ("sidebyside::flags", flags::agree),
    ("sidebyside::gets", |s| agree(s, "gets")),
    ("sidebyside::tells", |s| agree(s, "tells")),
    ("sidebyside::changes", |s| agree(s, "changes")),
    ("sidebyside::sets", |s| agree(s, "sets")),
    ("sidebyside::writes", |s| agree(s, "writes")),
    ("sidebyside::makes", |s| agree(s, "makes")),
    ("sidebyside::talks", |s| agree(s, "talks")),
    ("sidebyside::refusals", |s| agree(s, "refusals")),
    ("sidebyside::uses", |s| agree(s, "uses")),
    ("sidebyside::describes", |s| agree(s, "describes")),
];

/// The version for which all lines are written.
const OURS: u32 = 36;

/// How many reading commands run at the same time.
const AT_ONCE: usize = 4;

/// Lines with output in any order: the real program iterates over Go maps of limits.
const ANY_ORDER: [&str; 2] = ["describe limits lr", "describe -f fixture.yaml --show-events=false"];

/// The time limit of a command.
const PATIENCE: Duration = Duration::from_secs(40);

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/sidebyside").join(path)
}

/// A line of a case file.
struct Line {
    /// The oldest minor version that responds like v1.36.
    since: u32,
    command: String,
}

fn lines(section: &str) -> (bool, Vec<Line>) {
    let text = std::fs::read_to_string(data(&format!("cases/{section}.txt"))).unwrap();
    let reads = text.starts_with("# reads\n");
    let of = |l: &str| match l.split_once(": ").and_then(|(n, rest)| Some((n.parse().ok()?, rest))) {
        Some((since, rest)) => Line { since, command: rest.to_owned() },
        None => Line { since: OURS, command: l.to_owned() },
    };
    (reads, text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).map(of).collect())
}

/// Reads the allowed differences. A line that begins with `words: ` concerns only standard error.
fn differences() -> BTreeMap<String, String> {
    listed("differences.txt")
}

/// Parses lines with indented reasons below them.
fn listed(file: &str) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(data(file)).unwrap();
    let mut out: BTreeMap<String, String> = BTreeMap::new();
    let mut last = String::new();
    for l in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        match l.strip_prefix("  ") {
            Some(reason) => out.entry(last.clone()).or_default().push_str(reason),
            None => {
                last = l.to_owned();
                assert!(out.insert(last.clone(), String::new()).is_none(), "{l} is listed twice");
            }
        }
    }
    out
}

fn the_list_is_short(_: &Story) {
    let of_cases = |n: &&str| !matches!(*n, "the_list_is_short" | "flags");
    let sections = TESTS.iter().filter_map(|(n, _)| n.strip_prefix("sidebyside::")).filter(of_cases);
    let all: Vec<String> = sections.flat_map(|s| lines(s).1).map(|l| l.command).collect();
    let listed = differences();
    for (line, reason) in &listed {
        let command = line.strip_prefix("words: ").unwrap_or(line);
        assert!(all.iter().any(|c| c == command), "{line} is no case");
        assert!(!reason.is_empty(), "{line} has no reason");
    }
    let answers = listed.keys().filter(|l| !l.starts_with("words: ")).count();
    assert!(answers * 50 <= all.len(), "{answers} of {} cases may differ, more than two of a hundred", all.len());
}

/// Returns the real program and its minor version.
fn real() -> Option<(PathBuf, u32)> {
    let given = std::env::var_os("KEMUDI_KUBECTL").map(PathBuf::from);
    let program = given.or_else(|| Tool::Kubectl.program().map(|c| PathBuf::from(c.get_program())))?;
    let minor = minor(&program)?;
    Some((program, minor))
}

/// One of the two programs, with its own namespace, configuration and directory.
struct Side {
    program: PathBuf,
    first: Option<&'static str>,
    ns: String,
    kubeconfig: PathBuf,
    dir: PathBuf,
}

#[derive(PartialEq, Eq)]
struct Answer {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Side {
    fn prepare(s: &Story, program: PathBuf, first: Option<&'static str>, letter: char) -> Self {
        let ns = format!("{}-{letter}", s.ns);
        s.post("/api/v1/namespaces", serde_json::json!({"metadata": {"name": ns}}));
        let dir = s.cluster.directory.join(&ns);
        copy(&data("files"), &dir, &ns);
        let kubeconfig = dir.join(".config");
        let side = Self { program, first, ns, kubeconfig, dir };
        side.configure(&s.cluster.kubeconfig);
        let at = |p: &str| p.replace("NS", &side.ns);
        s.until_at(&at("/api/v1/namespaces/NS/serviceaccounts/default"), |v| !v.is_null());
        s.until_at(&at("/api/v1/namespaces/NS/configmaps/kube-root-ca.crt"), |v| !v.is_null());
        let made = side.command("create -f fixture.yaml").output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        // Wait until the controllers have written their fields.
        let has = |p: &'static [&'static str]| move |v: &Value| p.iter().try_fold(v, |v, k| v.get(k)).is_some();
        s.until_at(&at("/apis/discovery.k8s.io/v1/namespaces/NS/endpointslices"), |v| {
            v["items"].as_array().is_some_and(|l| !l.is_empty())
        });
        s.until_at(&at("/apis/apps/v1/namespaces/NS/replicasets"), |v| {
            v["items"].as_array().is_some_and(|l| l.len() == 2 && l.iter().all(has(&["status", "observedGeneration"])))
        });
        s.until_at(&at("/apis/apps/v1/namespaces/NS/deployments/web"), |v| {
            let all = v["status"]["conditions"].as_array();
            all.is_some_and(|l| l.iter().any(|c| c["type"] == "Available" && c["status"] == "True"))
        });
        for (path, field) in [
            ("/api/v1/namespaces/NS/resourcequotas/quota", &["status", "used", "configmaps"][..]),
            ("/api/v1/namespaces/NS/pods/p1", &["status", "conditions"]),
            ("/api/v1/namespaces/NS/pods/p2", &["status", "conditions"]),
        ] {
            s.until_at(&at(path), |v| field.iter().try_fold(v, |v, k| v.get(k)).is_some());
        }
        side
    }

    /// Writes a kubeconfig with the namespace in its context.
    fn configure(&self, from: &Path) {
        let o = Command::new(KEMUDI)
            .args(["kubectl", "config", "view", "--raw", "-o", "json"])
            .env("KUBECONFIG", from)
            .output()
            .unwrap();
        let mut v: Value = serde_json::from_slice(&o.stdout).unwrap();
        for c in v["contexts"].as_array_mut().unwrap() {
            c["context"]["namespace"] = self.ns.clone().into();
        }
        std::fs::write(&self.kubeconfig, v.to_string()).unwrap();
    }

    /// Waits until controllers have observed the last command: the output of the next one depends on it.
    fn settle(&self, s: &Story) {
        let seen = |o: &Value| {
            let going = !o["metadata"]["deletionTimestamp"].is_null();
            going || o["status"]["observedGeneration"].as_i64() >= o["metadata"]["generation"].as_i64()
        };
        for plural in ["deployments", "replicasets"] {
            let path = format!("/apis/apps/v1/namespaces/{}/{plural}", self.ns);
            s.until_at(&path, |v| v["items"].as_array().is_none_or(|l| l.iter().all(seen)));
        }
        let path = format!("/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers", self.ns);
        let has_conditions = |o: &Value| !o["status"]["conditions"].is_null();
        s.until_at(&path, |v| v["items"].as_array().is_none_or(|l| l.iter().all(has_conditions)));
    }

    fn command(&self, line: &str) -> Command {
        let mut c = Command::new(&self.program);
        let words = words(line).into_iter().map(|w| w.replace("NS", &self.ns));
        c.args(self.first).args(words).current_dir(&self.dir).stdin(Stdio::null());
        c.env("KUBECONFIG", &self.kubeconfig).env("HOME", &self.dir).env("EDITOR", "true").env_remove("KUBECTL");
        c
    }

    fn answer(&self, line: &str) -> Answer {
        let mut child = self.command(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        let (done, over) = std::sync::mpsc::channel::<()>();
        let guard = thread::spawn(move || {
            if over.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
        });
        let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let read = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = std::io::Read::read_to_end(&mut err, &mut text);
            text
        });
        let mut text = Vec::new();
        std::io::Read::read_to_end(&mut out, &mut text).unwrap();
        let stderr = read.join().unwrap();
        let code = child.wait().unwrap().code();
        let _ = done.send(());
        let _ = guard.join();
        let smooth = |t: &[u8]| smooth::text(&String::from_utf8_lossy(t), &self.ns, &self.dir);
        Answer { code, out: smooth(&text), err: smooth(&stderr) }
    }
}

/// Copies the files for one side: cluster-scoped names begin with `NS-`, which becomes the namespace of the side.
fn copy(from: &Path, to: &Path, ns: &str) {
    std::fs::create_dir_all(to).unwrap();
    for e in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(e.file_name());
        match e.file_type().unwrap().is_dir() {
            true => copy(&e.path(), &to, ns),
            false => {
                let text = std::fs::read_to_string(e.path()).unwrap();
                std::fs::write(to, text.replace("NS-", &format!("{ns}-"))).unwrap();
            }
        }
    }
}

/// Splits a line into words like a shell: with quotes, without variables.
fn words(line: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some('"'), '\\') | (None, '\\') => word.get_or_insert_default().extend(chars.next()),
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => out.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    out.extend(word);
    out
}

fn agree(s: &Story, section: &str) {
    let Some((program, minor)) = real() else {
        println!("sidebyside::{section}: skipped: there is no kubectl on this machine");
        return;
    };
    let (reads, all) = lines(section);
    let total = all.len();
    let expected: Vec<String> = all.into_iter().filter(|l| l.since <= minor).map(|l| l.command).collect();
    if minor != OURS {
        println!("sidebyside::{section}: kubectl is v1.{minor}, so {} of {total} cases are asked", expected.len());
    }
    let (ours, theirs) = thread::scope(|t| {
        let a = t.spawn(|| Side::prepare(s, KEMUDI.into(), Some("kubectl"), 'o'));
        let b = t.spawn(|| Side::prepare(s, program, None, 'r'));
        (a.join().unwrap(), b.join().unwrap())
    });
    let listed = differences();
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    thread::scope(|t| {
        for _ in 0..if reads { AT_ONCE } else { 1 } {
            t.spawn(|| {
                while let Some(line) = expected.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !reads {
                        ours.settle(s);
                        theirs.settle(s);
                    }
                    let compare = || {
                        let (a, b) = thread::scope(|t| {
                            let real = t.spawn(|| theirs.answer(line));
                            (ours.answer(line), real.join().unwrap())
                        });
                        judge(line, &a, &b, &listed)
                    };
                    let mut what = compare();
                    // Other tests add kinds and namespaces between the two commands. Real differences appear every time.
                    for _ in 1..if reads { ATTEMPTS } else { 1 } {
                        what = what.and_then(|_| compare());
                    }
                    wrong.lock().unwrap().extend(what);
                }
            });
        }
    });
    for side in [&ours, &theirs] {
        let gone = side.command("delete ns NS --wait=false").output();
        assert!(gone.is_ok());
    }
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), expected.len(), wrong.join("\n"));
}

/// How many times a reading command is repeated until both outputs agree.
const ATTEMPTS: usize = 3;

/// Compares two outputs, considering the allowed differences.
fn judge(line: &str, ours: &Answer, real: &Answer, listed: &BTreeMap<String, String>) -> Option<String> {
    let lines = |a: &Answer| {
        let mut all: Vec<String> = a.out.lines().map(str::to_owned).collect();
        if ANY_ORDER.contains(&line) {
            all.sort();
        }
        (a.code, a.out.ends_with('\n'), all)
    };
    let same = lines(ours) == lines(real);
    let words = listed.contains_key(&format!("words: {line}"));
    match (same, listed.contains_key(line)) {
        (true, true) => Some(format!("### {line}\nis listed, and the same again")),
        (false, true) => None,
        (false, false) => Some(format!(
            "### {line}\nexit code: ours {:?}, the real {:?}\n{}{}",
            ours.code,
            real.code,
            both(&ours.out, &real.out),
            both(&ours.err, &real.err)
        )),
        (true, false) if words && ours.err == real.err => {
            Some(format!("### words: {line}\nis listed, and the same again"))
        }
        (true, false) if !words && ours.err != real.err => {
            Some(format!("### words: {line}\n{}", both(&ours.err, &real.err)))
        }
        (true, false) => None,
    }
}

/// Returns the lines that only one of two texts has.
fn both(ours: &str, real: &str) -> String {
    let only = |a: &str, b: &str, mark: &str| {
        let b: Vec<&str> = b.lines().collect();
        a.lines().filter(|l| !b.contains(l)).map(|l| format!("{mark} {l}\n")).collect::<String>()
    };
    let text = only(real, ours, "-") + &only(ours, real, "+");
    if text.is_empty() && ours != real { "the order of lines differs\n".into() } else { text }
}

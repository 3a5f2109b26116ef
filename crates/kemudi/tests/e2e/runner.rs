//! Runs the tests, a few at a time, between the start of the cluster and its end. Supports the arguments of `cargo test`:
//! `--list`, `--exact`, `--test-threads`, and parts of names.

use crate::cluster::{Cluster, Engine};
use crate::containerd::Containerd;
use crate::story::{Story, Tool, minor};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use tokio::time::Instant;

/// The name of a test and its body.
pub type Case = (&'static str, fn(&Story));

#[derive(Clone)]
pub struct Test {
    name: String,
    tool: Tool,
    /// The oldest minor version of the real kubectl that supports the test.
    since: u32,
    /// Whether the test runs after all others, by itself.
    alone: bool,
    body: fn(&Story),
}

/// The number of tests that run at the same time. They mostly wait, so it exceeds the number of processors.
const AT_ONCE: usize = 8;

/// Tests that run with our own kubectl.
pub fn own(cases: &[Case]) -> Vec<Test> {
    named(cases, Tool::Kemudi)
}

/// Tests that run with the real kubectl alone, because ours lacks the commands.
pub fn real(cases: &[Case]) -> Vec<Test> {
    named(cases, Tool::Kubectl)
}

/// Tests that run with our own kubectl, and again with the real one.
pub fn both(cases: &[Case]) -> Vec<Test> {
    [named(cases, Tool::Kemudi), named(cases, Tool::Kubectl)].concat()
}

/// Like [`both`], but the real kubectl must have at least a minor version.
pub fn both_since(since: u32, cases: &[Case]) -> Vec<Test> {
    both(cases).into_iter().map(|t| Test { since, ..t }).collect()
}

/// Tests that run after all others, one at a time.
pub fn alone(tests: Vec<Test>) -> Vec<Test> {
    tests.into_iter().map(|t| Test { alone: true, ..t }).collect()
}

fn named(cases: &[Case], tool: Tool) -> Vec<Test> {
    let suffix = match tool {
        Tool::Kemudi => "kemudi",
        Tool::Kubectl => "kubectl",
    };
    cases
        .iter()
        .map(|(name, body)| Test { name: format!("{name}::{suffix}"), tool, since: 0, alone: false, body: *body })
        .collect()
}

#[derive(Default)]
struct Arguments {
    list: bool,
    exact: bool,
    quiet: bool,
    threads: Option<usize>,
    filters: Vec<String>,
    skip: Vec<String>,
    /// `--runtime containerd`: the tests that run on other container runtimes, on that one.
    engine: Option<Engine>,
}

impl Arguments {
    fn read() -> Self {
        let mut a = Self::default();
        let mut words = std::env::args().skip(1);
        while let Some(w) = words.next() {
            match w.as_str() {
                "--list" => a.list = true,
                "--exact" => a.exact = true,
                "-q" | "--quiet" => a.quiet = true,
                "--runtime" if words.next().as_deref() == Some("containerd") => a.engine = Some(Engine::Containerd),
                "--skip" => a.skip.extend(words.next()),
                "--test-threads" => a.threads = words.next().and_then(|n| n.parse().ok()),
                w if w.starts_with("--test-threads=") => a.threads = w[15..].parse().ok(),
                // Other arguments of `cargo test` have no effect here.
                w if w.starts_with('-') => {}
                w => a.filters.push(w.into()),
            }
        }
        a
    }

    fn selects(&self, name: &str) -> bool {
        let meets = |f: &String| if self.exact { name == f } else { name.contains(f.as_str()) };
        (self.filters.is_empty() || self.filters.iter().any(meets)) && !self.skip.iter().any(meets)
    }
}

/// Runs `tests` on the runtime of kemudi, or with `--runtime containerd` those of `on_others` on containerd.
pub fn main(tests: Vec<Test>, on_others: impl Fn() -> Vec<Test>) -> ExitCode {
    let arguments = Arguments::read();
    let engine = arguments.engine.unwrap_or(Engine::Embedded);
    let tests = if engine == Engine::Embedded { tests } else { on_others() };
    let mut tests: Vec<Test> = tests.into_iter().filter(|t| arguments.selects(&t.name)).collect();
    if arguments.list {
        tests.iter().for_each(|t| println!("{}: test", t.name));
        return ExitCode::SUCCESS;
    }
    if tests.is_empty() {
        println!("e2e: no test has such a name");
        return ExitCode::SUCCESS;
    }
    if !nix::unistd::geteuid().is_root() {
        println!("e2e: skipped {} tests: containers and packet rules want root", tests.len());
        return ExitCode::SUCCESS;
    }
    if engine == Engine::Containerd && !Containerd::is_there() {
        println!("e2e: skipped {} tests: there is no containerd on this machine", tests.len());
        return ExitCode::SUCCESS;
    }
    let before = tests.len();
    match Tool::Kubectl.program().map(|p| minor(p.get_program()).unwrap_or(0)) {
        None => {
            tests.retain(|t| t.tool == Tool::Kemudi);
            println!("e2e: skipped {} tests: there is no kubectl on this machine", before - tests.len());
        }
        Some(minor) => {
            tests.retain(|t| t.tool == Tool::Kemudi || t.since <= minor);
            println!("e2e: skipped {} tests of newer versions: kubectl is v1.{minor}", before - tests.len());
        }
    }
    let started = Instant::now();
    let cluster = match Cluster::start(engine) {
        Ok(c) => Arc::new(c),
        Err(e) => {
            eprintln!("e2e: {e}");
            return ExitCode::FAILURE;
        }
    };
    let interrupted = cluster.clone();
    cluster.runtime.spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            interrupted.end();
            std::process::exit(130);
        }
    });
    println!("e2e: the cluster runs after {} ms; {} tests", started.elapsed().as_millis(), tests.len());
    let total = tests.len();
    let (alone, together): (Vec<Test>, Vec<Test>) = tests.into_iter().partition(|t| t.alone);
    let mut failed = run_all(&cluster, together, &arguments);
    for t in alone {
        failed.extend(run_all(&cluster, vec![t], &arguments));
    }
    let left = cluster.end();
    for l in &left {
        println!("left behind: {l}");
    }
    for f in &failed {
        println!("failed: {f}");
    }
    let seconds = started.elapsed().as_secs();
    println!("e2e: {} passed, {} failed, {} left behind, {seconds} s", total - failed.len(), failed.len(), left.len());
    if failed.is_empty() && left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_all(cluster: &Arc<Cluster>, tests: Vec<Test>, arguments: &Arguments) -> Vec<String> {
    let threads = arguments.threads.unwrap_or(AT_ONCE).clamp(1, tests.len().max(1));
    let queue: Arc<Mutex<VecDeque<Test>>> = Arc::new(Mutex::new(tests.into()));
    let failed = Arc::new(Mutex::new(Vec::new()));
    let quiet = arguments.quiet;
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let (queue, failed, cluster) = (queue.clone(), failed.clone(), cluster.clone());
            thread::spawn(move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(test) = next else { return };
                    let started = Instant::now();
                    let passed = run(&cluster, &test);
                    if !passed {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push(test.name.clone());
                    }
                    if !quiet || !passed {
                        let word = if passed { "ok" } else { "FAILED" };
                        println!("test {} ... {word} ({:.1} s)", test.name, started.elapsed().as_secs_f64());
                    }
                }
            })
        })
        .collect();
    for w in workers {
        let _ = w.join();
    }
    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner).clone();
    failed.sort();
    failed
}

fn run(cluster: &Arc<Cluster>, test: &Test) -> bool {
    let work = || {
        let story = Story::begin(cluster.clone(), &test.name, test.tool);
        let passed = catch_unwind(AssertUnwindSafe(|| (test.body)(&story))).is_ok();
        story.end(passed);
        passed
    };
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(false)
}

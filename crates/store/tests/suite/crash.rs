//! Kills a process that writes, hundreds of times, and checks what it leaves behind.

use crate::work::{Acknowledged, check, mix, write};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

const ROUNDS: u64 = 300;
/// Names the directory to the process that is going to be killed.
const DIRECTORY: &str = "KEMUDI_CRASH_DIRECTORY";

/// Not a test of its own: what the killed process runs.
#[test]
#[ignore = "started by the crash test in a process of its own"]
fn writer() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(write(Path::new(&directory), true, std::io::stdout())).unwrap();
}

/// One life of the writer: killed after some acknowledgements; everything that it got out before it died counts.
fn live_and_die(directory: &Path, acknowledgements: u64, acknowledged: &mut Acknowledged) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::writer", "--ignored", "--nocapture"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    let before = acknowledged.count as u64;
    while (acknowledged.count as u64) < before + acknowledgements {
        line.clear();
        if lines.read_line(&mut line).unwrap() == 0 {
            let mut why = String::new();
            child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
            panic!("the writer ended by itself: {why}");
        }
        acknowledged.note(&line);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    rest.split_inclusive('\n').for_each(|line| acknowledged.note(line));
}

#[tokio::test]
async fn a_killed_process_loses_nothing_that_it_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = Acknowledged::default();
    for round in 0..ROUNDS {
        // Sometimes while it opens, mostly after some work.
        let acknowledgements = mix(round) % 8 * (mix(round + 1_000) % 40);
        live_and_die(directory.path(), acknowledgements, &mut acknowledged);
        check(directory.path(), &acknowledged).await.unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    assert!(acknowledged.count > 5_000, "{}", acknowledged.count);
}

/// The check itself can fail: data that lacks an acknowledged step is noticed.
#[tokio::test]
async fn the_check_notices_what_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = Acknowledged::default();
    live_and_die(directory.path(), 100, &mut acknowledged);
    check(directory.path(), &acknowledged).await.unwrap();
    let mut more = acknowledged.clone();
    more.note("ack 3 1000000 2000000 w3-1 0\n");
    let error = check(directory.path(), &more).await.unwrap_err().to_string();
    assert!(error.starts_with("lost: writer 3"), "{error}");
    let error = check(directory.path(), &Acknowledged::default()).await.unwrap_err().to_string();
    assert!(error.starts_with("invented"), "{error}");
}

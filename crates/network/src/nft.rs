//! Runs `nft`. A script is one transaction, which applies as a whole or not at all.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::runtime::Handle;

use crate::{Error, Family, Result, namespace};

/// Applies a script in a network namespace (`None`: that of the process). An error has the message of nft.
pub async fn apply(namespace: Option<&Path>, script: &str) -> Result<()> {
    run(namespace, &["-f", "-"], script).await.map(drop)
}

/// Applies a script that some kernels do not support, which refuse `probe` as well. Returns whether it applies; if not, logs the
/// warning `otherwise`.
pub async fn apply_where_possible(
    namespace: Option<&Path>,
    script: &str,
    probe: &str,
    otherwise: &'static str,
) -> Result<bool> {
    let Err(error) = apply(namespace, script).await else { return Ok(true) };
    // An error in rules that the kernel supports is returned.
    let Err(missing) = apply(namespace, probe).await else { return Err(error) };
    tracing::warn!(error = %missing, "{otherwise}");
    Ok(false)
}

/// Names of the tables `(family, name)` in a namespace.
pub async fn tables(namespace: Option<&Path>) -> Result<Vec<(String, String)>> {
    let text = run(namespace, &["list", "tables"], "").await?;
    let parse = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    };
    Ok(text.lines().filter_map(parse).collect())
}

/// Commands that remove a table, whether it exists or not.
pub fn removal(family: Family, table: &str) -> String {
    let family = family.word();
    format!("add table {family} {table}\ndelete table {family} {table}\n")
}

/// Removes the tables of this name, of whichever families they are.
pub async fn remove(namespace: Option<&Path>, name: &str) -> Result<()> {
    let all = tables(namespace).await?;
    let own = all.iter().filter(|(_, table)| table == name);
    let script: String = own.map(|(family, table)| format!("delete table {family} {table}\n")).collect();
    if script.is_empty() { Ok(()) } else { apply(namespace, &script).await }
}

/// The content of a table, as nft prints it; empty if the table does not exist.
pub async fn list(namespace: Option<&Path>, family: &str, table: &str) -> Result<String> {
    if !tables(namespace).await?.iter().any(|(f, t)| f == family && t == table) {
        return Ok(String::new());
    }
    run(namespace, &["list", "table", family, table], "").await
}

async fn run(namespace: Option<&Path>, args: &[&str], input: &str) -> Result<String> {
    let program = program();
    let mut command = Command::new(&program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let fail = || Error::io(format!("{} (package nftables)", program.display()));
    let runtime = Handle::current();
    // A process begins in the namespace of its thread. With a step between fork and exec instead, the kernel copies this process's page tables.
    let spawned = namespace::run_in(namespace, move || {
        let _runtime = runtime.enter();
        command.spawn()
    });
    let mut child = spawned.map_err(fail())?;
    let mut stdin = child.stdin.take();
    let write = async {
        if let Some(stdin) = &mut stdin {
            // nft may stop reading at an error, which its message explains.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        drop(stdin.take());
    };
    let ((), output) = tokio::join!(write, child.wait_with_output());
    let output = output.map_err(fail())?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Nft { message });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `/usr/sbin` may be missing in PATH.
fn program() -> PathBuf {
    let found = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft"].into_iter().map(PathBuf::from).find(|p| p.exists());
    found.unwrap_or_else(|| "nft".into())
}

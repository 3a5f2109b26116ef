//! `kemudi image`: pulls images from registries, or imports them from files. It works on the data directory whether a cluster
//! is running or not; a running one sees changes at once.

use crate::{agent, containers, data_dir, machine};
use distribution::{Credentials, Limits, Progress, Puller};
use runtime::image::{Error, Image};
use runtime::{Embedded, ImageStore};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(clap::Subcommand)]
pub enum Command {
    /// Pulls images from registries, with the mirrors, certificates and credentials of the cluster's configuration of registries
    /// (`kemudi up --registries`, or `registries.yaml` in the data directory).
    Pull {
        /// Names of images, such as nginx:1.29 or registry.example.com/app@sha256:...
        #[arg(required = true)]
        images: Vec<String>,
        /// User name at the registry.
        #[arg(long, requires = "password_stdin")]
        username: Option<String>,
        /// Reads the password from standard input.
        #[arg(long, requires = "username")]
        password_stdin: bool,
        #[command(flatten)]
        directory: DataDir,
    },
    /// Imports images from archives: OCI layouts, or the output of `docker save`. `-` is standard input.
    Import {
        /// Archives, or directories with an OCI layout.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Name of the image, replacing the names in the archive; required if the archive has none.
        #[arg(long)]
        name: Option<String>,
        /// Maximum unpacked size of a file, such as 20Gi. Default: the free disk space, less a tenth of the disk.
        #[arg(long, value_name = "QUANTITY", value_parser = bytes)]
        max_size: Option<u64>,
        #[command(flatten)]
        directory: DataDir,
    },
    /// Lists the images of the node.
    #[command(alias = "ls")]
    List {
        #[command(flatten)]
        directory: DataDir,
    },
    /// Removes images by name or ID prefix. Images in use are kept.
    #[command(name = "rm", alias = "remove")]
    Remove {
        #[arg(required = true)]
        images: Vec<String>,
        #[command(flatten)]
        directory: DataDir,
    },
}

/// How often the progress of a pull is shown.
const PROGRESS_PERIOD: std::time::Duration = std::time::Duration::from_millis(200);
/// Returns to the start of the line of a terminal, and clears it.
const CLEAR_LINE: &str = "\r\x1b[K";

#[derive(clap::Args)]
pub struct DataDir {
    /// Data directory of the cluster, as given to `kemudi up`.
    #[arg(long, default_value = "/var/lib/kemudi")]
    pub data_dir: PathBuf,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{path}: {source}")]
    File { path: String, source: io::Error },
    #[error("the standard input is empty; give it an image archive, as from `docker save`")]
    Empty,
    #[error("the standard input has no password")]
    NoPassword,
    #[error("failed to pull image {0:?}: {1}")]
    Pull(String, Arc<distribution::Error>),
    /// An error of the copy of standard input, without its temporary path.
    #[error("{0}")]
    Stdin(String),
    #[error(transparent)]
    Runtime(#[from] runtime::Error),
    #[error("the images of this node are in the container runtime at {0}: use its own tools, such as crictl")]
    Elsewhere(cri::Endpoint),
    #[error(transparent)]
    Image(#[from] Error),
}

impl DataDir {
    /// The directories of the nodes: this one, or those of `kemudi up --nodes`.
    fn nodes(&self) -> Vec<DataDir> {
        let nodes: Vec<DataDir> =
            machine::node_directories(&self.data_dir).into_iter().map(|data_dir| DataDir { data_dir }).collect();
        if nodes.is_empty() { vec![DataDir { data_dir: self.data_dir.clone() }] } else { nodes }
    }

    /// The name of the node of this directory.
    fn name(&self) -> String {
        self.data_dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn root(&self) -> PathBuf {
        self.data_dir.join("runtime")
    }

    /// The configuration of registries that the node was started with, if it was given one.
    fn registries(&self) -> Option<PathBuf> {
        agent::recorded_registries(&self.data_dir)
    }

    /// Opens the image store; `write` creates it if necessary.
    fn images(&self, write: bool) -> Result<ImageStore, Failure> {
        if let Some(runtime) = containers::recorded(&self.data_dir) {
            return Err(Failure::Elsewhere(runtime));
        }
        let failed = |source| Failure::File { path: self.data_dir.display().to_string(), source };
        if write {
            data_dir::prepare(&self.data_dir).map_err(failed)?;
        } else {
            std::fs::metadata(&self.data_dir).map_err(failed)?;
        }
        Ok(Embedded::images_at(&self.root())?)
    }
}

/// Parses a quantity as a number of bytes.
fn bytes(text: &str) -> Result<u64, String> {
    let quantity = meta::Quantity::parse(text).map_err(|e| e.to_string())?;
    u64::try_from(quantity.value()).map_err(|_| "must not be negative".into())
}

pub fn main(command: &Command) -> ExitCode {
    let mut out = io::stdout().lock();
    let result = match command {
        Command::Import { files, name, max_size, directory } => {
            import(directory, files, name.as_deref(), *max_size, &mut out)
        }
        Command::Pull { images, username, directory, .. } => pull(directory, images, username.as_deref(), &mut out),
        Command::List { directory } => list(directory, &mut out),
        Command::Remove { images, directory } => remove(directory, images, &mut out),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            crate::output::note!("error: {}", visible(&e.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// Escapes control characters, because names in archives are untrusted.
fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0'..='\x1f' | '\x7f' => out.extend(['^', char::from(c as u8 ^ 0x40)]),
            c if c.is_control() => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

/// `username` has its password on standard input.
fn pull(directory: &DataDir, images: &[String], username: Option<&str>, out: &mut dyn Write) -> Result<(), Failure> {
    let credentials = username.map(|name| password(io::stdin().lock()).map(|p| credentials(name, p))).transpose()?;
    let credentials: Vec<Credentials> = credentials.into_iter().collect();
    let puller = |node: &DataDir| {
        let registries = node.registries().unwrap_or_else(|| directory.data_dir.join(agent::REGISTRIES));
        node.images(true).map(|store| Puller::for_administrator(store, registries, Limits::default()))
    };
    let pullers = directory.nodes().iter().map(puller).collect::<Result<Vec<_>, _>>()?;
    let failed = |source| Failure::File { path: "starting".into(), source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    for name in images {
        let mut reference = None;
        for puller in &pullers {
            let pulled = runtime.block_on(show_progress(name, puller, puller.pull(name, &credentials)));
            let image = pulled.map_err(|error| Failure::Pull(name.clone(), error))?.image;
            reference = Some(image.reference(name).to_string());
        }
        if let Some(reference) = reference {
            check_import(writeln!(out, "Pulled image: {reference}"))?;
        }
    }
    Ok(())
}

/// Waits for a pull, and meanwhile shows its progress in a line of the standard error if that is a terminal.
async fn show_progress<T>(name: &str, puller: &Puller, pull: impl Future<Output = T>) -> T {
    if !io::stderr().is_terminal() {
        return pull.await;
    }
    let show = |text: &str| drop(write!(io::stderr(), "{text}"));
    let mut pull = std::pin::pin!(pull);
    let mut ticks = tokio::time::interval(PROGRESS_PERIOD);
    loop {
        tokio::select! {
            outcome = &mut pull => {
                show(CLEAR_LINE);
                return outcome;
            }
            _ = ticks.tick() => {
                show(&format!("{CLEAR_LINE}{}", visible(&progress_line(name, puller.progress()))));
            }
        }
    }
}

fn progress_line(name: &str, progress: Progress) -> String {
    let Progress { downloaded, total } = progress;
    match total {
        0 => format!("{name}: reading the manifest"),
        _ if downloaded >= total => format!("{name}: unpacking {}", size(total)),
        _ => format!("{name}: {} of {}", size(downloaded), size(total)),
    }
}

fn credentials(username: &str, password: String) -> Credentials {
    Credentials { username: username.to_owned(), password }
}

/// The first line of the input.
fn password(input: impl BufRead) -> Result<String, Failure> {
    let failed = |source| Failure::File { path: "the standard input".into(), source };
    let line = input.take(64 << 10).lines().next().transpose().map_err(failed)?;
    line.filter(|l| !l.is_empty()).ok_or(Failure::NoPassword)
}

fn import(
    directory: &DataDir,
    files: &[PathBuf],
    name: Option<&str>,
    limit: Option<u64>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let stores = directory.nodes().iter().map(|node| node.images(true)).collect::<Result<Vec<_>, _>>()?;
    for file in files {
        let shown = file.display().to_string();
        let input = match (shown.as_str(), stores.first()) {
            ("-", Some(first)) => Some(spool(first, io::stdin().lock(), limit)?),
            _ => None,
        };
        let mut names = BTreeSet::new();
        for store in &stores {
            let images = match &input {
                Some(copy) => from_copy(store, copy, name, limit)?,
                None => store.import(file, name, limit)?,
            };
            // An archive may list an image once for each of its names.
            names.extend(images.into_iter().flat_map(|i| i.names));
        }
        for name in names {
            check_import(writeln!(out, "Loaded image: {name}"))?;
        }
    }
    Ok(())
}

/// Copies the standard input to a file beside the images, where there is space for it.
fn spool(store: &ImageStore, input: impl Read, limit: Option<u64>) -> Result<tempfile::NamedTempFile, Failure> {
    let failed = |source| Failure::File { path: "the standard input".into(), source };
    let mut copy =
        tempfile::NamedTempFile::new_in(store.layers_root().parent().unwrap_or(Path::new("."))).map_err(failed)?;
    // The copy and its unpacked contents exist at the same time.
    let most = limit.map_or_else(|| store.room().map(|room| room.bytes), Ok)?;
    match io::copy(&mut input.take(most), &mut copy).map_err(failed)? {
        0 => Err(Failure::Empty),
        n if n == most => Err(Error::TooLarge { path: "the standard input".into(), limit: most }.into()),
        _ => Ok(copy),
    }
}

fn from_copy(
    store: &ImageStore,
    copy: &tempfile::NamedTempFile,
    name: Option<&str>,
    limit: Option<u64>,
) -> Result<Vec<Image>, Failure> {
    let path = copy.path().display().to_string();
    let named = |e: Error| Failure::Stdin(e.to_string().replace(&path, "the standard input"));
    store.import(copy.path(), name, limit).map_err(named)
}

/// The names of an image that are shown, and its columns.
fn rows(image: &Image) -> impl Iterator<Item = [String; 3]> {
    let id = image.id.strip_prefix("sha256:").unwrap_or(&image.id).chars().take(12).collect::<String>();
    // An image that has only names with digests is shown by them.
    let has_tags = image.names.iter().any(|n| !n.contains('@'));
    let names = image.names.iter().filter(move |n| !has_tags || !n.contains('@'));
    names.map(move |n| [n.clone(), id.clone(), size(image.size)])
}

/// Lists images; with several nodes, also the nodes that have them.
fn list(directory: &DataDir, out: &mut dyn Write) -> Result<(), Failure> {
    let nodes = directory.nodes();
    let mut found: BTreeMap<[String; 3], Vec<String>> = BTreeMap::new();
    for node in &nodes {
        for image in node.images(false)?.list() {
            rows(&image).for_each(|row| found.entry(row).or_default().push(node.name()));
        }
    }
    let heads = ["NAME", "IMAGE ID", "SIZE", "NODES"].map(str::to_owned);
    let lines = found.into_iter().map(|([name, id, size], nodes)| [name, id, size, nodes.join(",")]);
    let table: Vec<[String; 4]> = [heads].into_iter().chain(lines).collect();
    let width = |column: usize| table.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let (first, second, third) = (width(0), width(1), width(2));
    for [name, id, size, on] in &table {
        let line = match nodes.len() {
            1 => writeln!(out, "{name:first$}   {id:second$}   {size}"),
            _ => writeln!(out, "{name:first$}   {id:second$}   {size:third$}   {on}"),
        };
        check_import(line)?;
    }
    Ok(())
}

/// Removes images from the nodes that have them. Fails if none has one.
fn remove(directory: &DataDir, images: &[String], out: &mut dyn Write) -> Result<(), Failure> {
    let nodes = directory.nodes();
    for name in images {
        let (mut removed, mut missing) = (None, None);
        for node in &nodes {
            let (store, root) = (node.images(false)?, node.root());
            match store.remove(name, |layer| Embedded::user_of_layer(&root, layer)) {
                Ok(image) => removed = Some(image.id),
                Err(e @ Error::NotFound(_)) => missing = Some(e),
                Err(e) => return Err(e.into()),
            }
        }
        match (removed, missing) {
            (Some(id), _) => check_import(writeln!(out, "Removed: {name} ({id})"))?,
            (None, Some(e)) => return Err(e.into()),
            (None, None) => {}
        }
    }
    Ok(())
}

fn check_import(result: io::Result<()>) -> Result<(), Failure> {
    result.map_err(|source| Failure::File { path: "the standard output".into(), source })
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes}B"),
        1_000..1_000_000 => format!("{:.1}kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}MB", bytes as f64 / 1e6),
        _ => format!("{:.1}GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_one_line() {
        assert_eq!(password("secret\r\nmore".as_bytes()).unwrap(), "secret");
        for empty in ["", "\n"] {
            assert!(matches!(password(empty.as_bytes()), Err(Failure::NoPassword)), "{empty:?}");
        }
    }

    /// `kemudi image pull` used another configuration than the node.
    #[test]
    fn pulls_use_the_registries_of_the_node() {
        let directory = tempfile::tempdir().unwrap();
        let node = DataDir { data_dir: directory.path().to_owned() };
        assert_eq!(node.registries(), None);
        agent::record_registries(directory.path(), Some(Path::new("/etc/other.yaml"))).unwrap();
        assert_eq!(node.registries(), Some("/etc/other.yaml".into()));
        for _ in 0..2 {
            agent::record_registries(directory.path(), None).unwrap();
            assert_eq!(node.registries(), None);
        }
    }

    #[test]
    fn progress_is_a_line() {
        let line = |downloaded, total| progress_line("a:1", Progress { downloaded, total });
        assert_eq!(line(0, 0), "a:1: reading the manifest");
        assert_eq!(line(1_500_000, 12_000_000), "a:1: 1.5MB of 12.0MB");
        assert_eq!(line(12_000_000, 12_000_000), "a:1: unpacking 12.0MB");
    }

    #[test]
    fn empty_input_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::images_at(&dir.path().join("runtime")).unwrap();
        assert!(matches!(spool(&store, io::empty(), None), Err(Failure::Empty)));
    }
}

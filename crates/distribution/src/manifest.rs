//! Manifests and indexes: OCI and Docker's schema 2.

use std::collections::HashSet;

use http::header::CONTENT_TYPE;
use serde::Deserialize;

use crate::blob::digest_of;
use crate::error::Error;
use crate::reference::Reference;
use crate::session::{Session, Text, accept};

/// Maximum bytes of a manifest or a configuration.
pub(crate) const MAX_DOCUMENT: u64 = 4 << 20;
/// Maximum layers of an image, as for imports.
const MAX_LAYERS: usize = 500;
/// Indexes in indexes that are followed.
const MAX_DEPTH: usize = 3;

const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Media types of configurations of container images. Old tools wrote the last one.
const CONFIGURATIONS: [&str; 3] = [
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
    "application/octet-stream",
];

/// Names of platforms that errors show. The last one of each is that of attestations.
const SYSTEMS: [&str; 6] = ["linux", "windows", "darwin", "freebsd", "wasip1", "unknown"];
const ARCHITECTURES: [&str; 13] = [
    "amd64", "arm64", "arm", "386", "loong64", "mips64", "mips64le", "mipsle", "ppc64le", "riscv64", "s390x", "wasm",
    "unknown",
];

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: String,
    pub size: u64,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Clone, Debug, Deserialize)]
struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    #[serde(default)]
    schema_version: u32,
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
struct Configuration {
    #[serde(flatten)]
    platform: Platform,
}

/// A manifest and its digest.
pub(crate) struct Raw {
    pub digest: String,
    pub media_type: String,
    pub text: Text,
}

/// The manifest of an image for this machine.
pub(crate) struct Manifest {
    pub raw: Raw,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

impl Manifest {
    /// The layers, each digest once.
    pub fn distinct_layers(&self) -> Vec<&Descriptor> {
        let mut digests = HashSet::new();
        self.layers.iter().filter(|layer| digests.insert(layer.digest.as_str())).collect()
    }
}

/// The architecture of this machine in the terms of images.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

impl Platform {
    fn fits(&self) -> bool {
        self.os == "linux" && self.architecture == architecture()
    }

    /// The platform in errors, which quote only names of known ones.
    fn shown(&self) -> String {
        let known = |text: &str, names: &[&'static str]| {
            names.iter().find(|name| **name == text).copied().unwrap_or("other").to_owned()
        };
        format!("{}/{}", known(&self.os, &SYSTEMS), known(&self.architecture, &ARCHITECTURES))
    }
}

fn mismatch(found: Vec<String>) -> Error {
    Error::Platform { platform: format!("linux/{}", architecture()), found }
}

/// Where a document is wrong, without its content.
fn position(error: &serde_json::Error) -> String {
    let problem = match error.classify() {
        serde_json::error::Category::Data => "unexpected content",
        serde_json::error::Category::Eof => "it ends too early",
        serde_json::error::Category::Syntax | serde_json::error::Category::Io => "it is no JSON",
    };
    format!("{problem} at line {} column {}", error.line(), error.column())
}

/// Whether the text is a SHA-256 digest.
fn is_digest(text: &str) -> bool {
    let hex = text.strip_prefix("sha256:").unwrap_or_default();
    hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Fetches the manifest or index that a reference names.
pub(crate) async fn fetch(session: &Session<'_>, reference: &Reference) -> Result<Raw, Error> {
    get(session, reference.tag_or_digest(), reference.digest()).await
}

async fn get(session: &Session<'_>, tag_or_digest: &str, expected: Option<&str>) -> Result<Raw, Error> {
    let types = accept(&[OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST]);
    let response = session.get(&format!("manifests/{tag_or_digest}"), &types).await?;
    let media_type = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default().trim().to_owned();
    let text = session.read(response, "the manifest", MAX_DOCUMENT).await?;
    let digest = digest_of(&text);
    match expected {
        Some(expected) if expected != digest => {
            Err(Error::Digest { what: format!("the manifest {expected}"), found: digest })
        }
        _ => Ok(Raw { digest, media_type, text }),
    }
}

/// The manifest itself, or the one for this machine from an index.
pub(crate) async fn resolve(session: &Session<'_>, mut raw: Raw) -> Result<Manifest, Error> {
    for _ in 0..=MAX_DEPTH {
        let document: Document = serde_json::from_slice(&raw.text).map_err(|e| Error::Manifest(position(&e)))?;
        if let Some(media_type) = document.media_type {
            raw.media_type = media_type;
        }
        if document.schema_version == 1 {
            return Err(Error::Manifest("Docker's schema 1 is not supported; push the image again".into()));
        }
        let Some(manifests) = document.manifests else {
            let (Some(config), Some(layers)) = (document.config, document.layers) else {
                return Err(Error::Manifest("it is no image".into()));
            };
            return check(Manifest { raw, config, layers });
        };
        let chosen = choose(manifests)?;
        raw = get(session, &chosen.digest, Some(&chosen.digest)).await?;
    }
    Err(Error::Manifest(format!("its indexes are nested more than {MAX_DEPTH} times")))
}

fn choose(manifests: Vec<Descriptor>) -> Result<Descriptor, Error> {
    let fits = |d: &&Descriptor| d.platform.as_ref().is_some_and(Platform::fits);
    let any = |d: &&Descriptor| d.platform.is_none();
    let chosen = manifests.iter().find(fits).or_else(|| manifests.iter().find(any));
    match chosen {
        Some(d) if !is_digest(&d.digest) => Err(Error::Manifest("unknown digest".into())),
        Some(d) => Ok(d.clone()),
        None => {
            let mut found: Vec<String> = manifests.iter().filter_map(|d| Some(d.platform.as_ref()?.shown())).collect();
            found.retain(|p| p != "unknown/unknown"); // attestations
            found.dedup();
            found.truncate(20);
            Err(mismatch(found))
        }
    }
}

fn check(manifest: Manifest) -> Result<Manifest, Error> {
    let kind = &manifest.config.media_type;
    if !kind.is_empty() && !CONFIGURATIONS.contains(&kind.as_str()) {
        return Err(Error::Manifest("it is no container image, its configuration has another media type".into()));
    }
    if manifest.layers.len() > MAX_LAYERS {
        return Err(Error::Manifest(format!("{} layers, more than {MAX_LAYERS}", manifest.layers.len())));
    }
    for d in manifest.layers.iter().chain([&manifest.config]) {
        if !is_digest(&d.digest) {
            return Err(Error::Manifest("unknown digest".into()));
        }
    }
    if manifest.config.size > MAX_DOCUMENT {
        return Err(Error::TooLarge { what: "the configuration".into(), limit: MAX_DOCUMENT });
    }
    Ok(manifest)
}

/// Refuses the configuration of an image for other machines.
pub(crate) fn check_configuration(text: &[u8]) -> Result<(), Error> {
    let configuration: Configuration =
        serde_json::from_slice(text).map_err(|e| Error::Manifest(format!("its configuration: {}", position(&e))))?;
    let platform = configuration.platform;
    let is_other = |text: &str, own: &str| !text.is_empty() && text != own;
    if is_other(&platform.os, "linux") || is_other(&platform.architecture, architecture()) {
        return Err(mismatch(vec![platform.shown()]));
    }
    Ok(())
}

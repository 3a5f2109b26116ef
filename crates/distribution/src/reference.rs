//! References to images in registries.

use std::fmt;

use runtime::image::normalize;

use crate::error::Error;

/// A full reference: registry, repository, and tag or digest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// Host, and port unless it is the default.
    pub registry: String,
    /// The path in the registry.
    pub repository: String,
    version: Version,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Version {
    Tag(String),
    Digest(String),
}

impl Reference {
    /// Parses a name as Kubernetes reads it: `nginx` is `docker.io/library/nginx:latest`.
    pub fn parse(name: &str) -> Result<Reference, Error> {
        let full = normalize(name).map_err(Error::Name)?;
        let (registry, rest) = full.split_once('/').unwrap_or(("docker.io", &full));
        let (repository, version) = match (rest.split_once('@'), rest.rsplit_once(':')) {
            (Some((repository, digest)), _) => (repository, Version::Digest(digest.to_owned())),
            (None, Some((repository, tag))) => (repository, Version::Tag(tag.to_owned())),
            (None, None) => (rest, Version::Tag("latest".into())),
        };
        Ok(Reference { registry: registry.to_owned(), repository: repository.to_owned(), version })
    }

    /// The digest of a reference by digest.
    pub fn digest(&self) -> Option<&str> {
        match &self.version {
            Version::Digest(digest) => Some(digest),
            Version::Tag(_) => None,
        }
    }

    /// The last part of the path of the manifest.
    pub(crate) fn tag_or_digest(&self) -> &str {
        let (Version::Tag(version) | Version::Digest(version)) = &self.version;
        version
    }

    /// The repository with its registry, such as `docker.io/library/nginx`.
    pub fn full_repository(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// The name of the same repository with a digest.
    pub(crate) fn with_digest(&self, digest: &str) -> String {
        format!("{}/{}@{digest}", self.registry, self.repository)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (separator, version) = match &self.version {
            Version::Tag(tag) => (':', tag),
            Version::Digest(digest) => ('@', digest),
        };
        write!(f, "{}/{}{separator}{version}", self.registry, self.repository)
    }
}

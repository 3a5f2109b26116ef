//! `CredentialProviderConfig` (`kubelet.config.k8s.io`): which programs return credentials, and for which images.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use codec::yaml::{DEPTH_LIMIT, Error as YamlError, parse_first};
use meta::{FieldError, FieldPath, names};
use schema::Type;
use schema::form::{BOOLEAN, Fields, Form, Kind, TEXT, TEXTS, aggregate};
use serde::Deserialize;

use crate::configuration::GoDuration;

/// Why the programs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// The configuration cannot be read.
    #[error("unable to access path {path:?}: {source}")]
    Unreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The directory has no `.json`, `.yaml` or `.yml` file.
    #[error("no configuration files found in directory {0:?}")]
    Empty(PathBuf),
    /// A file is no configuration.
    #[error("error decoding config {path:?}: {message}")]
    Malformed { path: PathBuf, message: String },
    /// Two files have a program of the same name.
    #[error("duplicate provider name {0:?} found in configuration file(s)")]
    Duplicate(String),
    /// The configuration has invalid values.
    #[error("failed to validate credential provider config: {0}")]
    Invalid(String),
    /// The directory of programs does not exist.
    #[error("plugin binary directory {} did not exist", .0.display())]
    NoDirectory(PathBuf),
    /// A program does not exist or cannot be executed.
    #[error("plugin binary executable {} did not exist", .0.display())]
    NoProgram(PathBuf),
}

/// A program, and the images that it has credentials for.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Provider {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub match_images: Vec<String>,
    /// Zero: responses without a duration of their own are not kept.
    #[serde(default)]
    pub default_cache_duration: GoDuration,
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: Vec<Variable>,
    pub token_attributes: Option<TokenAttributes>,
}

/// An environment variable of a program.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Variable {
    pub name: String,
    pub value: String,
}

/// The service account token that a program gets.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenAttributes {
    pub service_account_token_audience: String,
    pub cache_type: CacheType,
    /// Whether pods without a service account get no credentials.
    pub require_service_account: bool,
    pub required_service_account_annotation_keys: Vec<String>,
    pub optional_service_account_annotation_keys: Vec<String>,
}

/// How long a response for a service account is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum CacheType {
    /// For the service account.
    #[default]
    ServiceAccount,
    /// For one token.
    Token,
}

const VERSIONS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
];
const CACHE_TYPES: [&str; 2] = ["ServiceAccount", "Token"];

const TOKEN_ATTRIBUTES: Form = Form::Object(Fields(
    "ServiceAccountTokenAttributes",
    &[
        ("serviceAccountTokenAudience", TEXT),
        ("cacheType", TEXT),
        ("requireServiceAccount", BOOLEAN),
        ("requiredServiceAccountAnnotationKeys", TEXTS),
        ("optionalServiceAccountAnnotationKeys", TEXTS),
    ],
));
const VARIABLE: Form = Form::Object(Fields("ExecEnvVar", &[("name", TEXT), ("value", TEXT)]));
const PROVIDER: Form = Form::Object(Fields(
    "CredentialProvider",
    &[
        ("name", TEXT),
        ("matchImages", TEXTS),
        ("defaultCacheDuration", Form::Plain(Type::Duration)),
        ("apiVersion", TEXT),
        ("args", TEXTS),
        ("env", Form::List(&VARIABLE)),
        ("tokenAttributes", TOKEN_ATTRIBUTES),
    ],
));
const KIND: Kind = Kind {
    versions: &[
        ("kubelet.config.k8s.io/v1", "CredentialProviderConfig"),
        ("kubelet.config.k8s.io/v1beta1", "CredentialProviderConfig"),
        ("kubelet.config.k8s.io/v1alpha1", "CredentialProviderConfig"),
    ],
    fields: Fields("CredentialProviderConfig", &[("providers", Form::List(&PROVIDER))]),
};

/// Reads a file, or all files of a directory in the order of their names.
pub fn read(path: &Path) -> Result<Vec<Provider>, ConfigurationError> {
    let unreadable = |source| ConfigurationError::Unreadable { path: path.to_owned(), source };
    let mut files = vec![path.to_owned()];
    if path.metadata().map_err(unreadable)?.is_dir() {
        files.clear();
        for entry in path.read_dir().map_err(unreadable)? {
            let file = entry.map_err(unreadable)?.path();
            let known = file.extension().is_some_and(|e| e == "json" || e == "yaml" || e == "yml");
            if known && !file.is_dir() {
                files.push(file);
            }
        }
        files.sort();
        if files.is_empty() {
            return Err(ConfigurationError::Empty(path.to_owned()));
        }
    }
    let (mut documents, mut known) = (Vec::new(), BTreeSet::new());
    for file in files {
        let text = std::fs::read_to_string(&file)
            .map_err(|source| ConfigurationError::Unreadable { path: file.clone(), source })?;
        for provider in decode(&text).map_err(|message| ConfigurationError::Malformed { path: file, message })? {
            let name = provider["name"].as_str().unwrap_or_default().to_owned();
            if !known.insert(name.clone()) {
                return Err(ConfigurationError::Duplicate(name));
            }
            documents.push(provider);
        }
    }
    aggregate(&errors(&documents)).map_err(ConfigurationError::Invalid)?;
    let decoded = documents.into_iter().map(serde_json::from_value).collect::<Result<_, _>>();
    decoded.map_err(|e| ConfigurationError::Malformed { path: path.to_owned(), message: e.to_string() })
}

/// The providers of a document.
fn decode(text: &str) -> Result<Vec<serde_json::Value>, String> {
    let (document, duplicates) = parse_first(text, DEPTH_LIMIT).map_err(|e| e.to_string())?;
    KIND.registered(&document)?;
    if !duplicates.is_empty() {
        return Err(format!("strict decoding error: {}", YamlError::Duplicates(duplicates)));
    }
    Ok(KIND.read(&document)?["providers"].as_array().cloned().unwrap_or_default())
}

/// All errors, with upstream's messages.
fn errors(providers: &[serde_json::Value]) -> Vec<FieldError> {
    let path = FieldPath::new("providers");
    if providers.is_empty() {
        return vec![FieldError::required(&path, "at least 1 item in plugins is required")];
    }
    providers.iter().flat_map(|p| errors_of(p, &path)).collect()
}

fn errors_of(provider: &serde_json::Value, path: &FieldPath) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let text = |field: &str| provider[field].as_str().unwrap_or_default();
    let name = text("name");
    let why = match name {
        n if n.contains('/') => Some("provider name cannot contain '/'"),
        n if n.contains(' ') => Some("provider name cannot contain spaces"),
        "." => Some("provider name cannot be '.'"),
        ".." => Some("provider name cannot be '..'"),
        // Upstream finds out when it looks for the program.
        "" => Some("provider name cannot be empty"),
        _ => None,
    };
    errors.extend(why.map(|why| FieldError::invalid(&path.child("name"), name, why)));
    match text("apiVersion") {
        "" => errors.push(FieldError::required(&path.child("apiVersion"), "")),
        v if VERSIONS.contains(&v) => {}
        v => errors.push(FieldError::not_supported(&path.child("apiVersion"), v, &VERSIONS)),
    }
    let images = provider["matchImages"].as_array().map_or(&[][..], Vec::as_slice);
    if images.is_empty() {
        errors.push(FieldError::required(&path.child("matchImages"), "at least 1 item in matchImages is required"));
    }
    for image in images.iter().filter_map(|i| i.as_str()) {
        if image.contains(char::is_whitespace) || image.contains("://") {
            let why = format!(
                "match image is invalid: parse {:?}: invalid character in host name",
                format!("https://{image}")
            );
            errors.push(FieldError::invalid(&path.child("matchImages"), image, why));
        }
    }
    match provider.get("defaultCacheDuration").and_then(|d| d.as_str()) {
        None => errors.push(FieldError::required(&path.child("defaultCacheDuration"), "")),
        Some(d) if d.starts_with('-') => {
            let why = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(&path.child("defaultCacheDuration"), d, why));
        }
        Some(_) => {}
    }
    if let Some(attributes) = provider.get("tokenAttributes").filter(|a| a.is_object()) {
        errors.extend(errors_of_token(attributes, text("apiVersion"), &path.child("tokenAttributes")));
    }
    errors
}

fn errors_of_token(attributes: &serde_json::Value, version: &str, path: &FieldPath) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let text = |field: &str| attributes[field].as_str().unwrap_or_default();
    let texts = |field: &str| -> Vec<&str> {
        attributes[field].as_array().into_iter().flatten().filter_map(|v| v.as_str()).collect()
    };
    if text("serviceAccountTokenAudience").is_empty() {
        errors.push(FieldError::required(&path.child("serviceAccountTokenAudience"), ""));
    }
    let required = attributes["requireServiceAccount"].as_bool();
    if required.is_none() {
        errors.push(FieldError::required(&path.child("requireServiceAccount"), ""));
    }
    if version != VERSIONS[0] {
        let why = format!("tokenAttributes is only supported for {} API version", VERSIONS[0]);
        errors.push(FieldError::forbidden(path, &why));
    }
    let (must, may) = (texts("requiredServiceAccountAnnotationKeys"), texts("optionalServiceAccountAnnotationKeys"));
    if required == Some(false) && !must.is_empty() {
        let why = "requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set";
        errors.push(FieldError::forbidden(&path.child("requiredServiceAccountAnnotationKeys"), why));
    }
    for (field, keys) in
        [("requiredServiceAccountAnnotationKeys", &must), ("optionalServiceAccountAnnotationKeys", &may)]
    {
        let (at, mut seen) = (path.child(field), BTreeSet::new());
        for key in keys {
            let invalid = names::qualified_name(&key.to_lowercase());
            errors.extend(invalid.into_iter().map(|why| FieldError::invalid(&at, *key, why)));
            if !seen.insert(key) {
                errors.push(FieldError::duplicate(&at, *key));
            }
        }
    }
    let both: Vec<&str> = must.iter().filter(|k| may.contains(k)).copied().collect();
    if !both.is_empty() {
        let why = "annotation keys cannot be both required and optional";
        errors.push(FieldError::invalid(path, serde_json::json!(both), why));
    }
    let at = path.child("cacheType");
    match text("cacheType") {
        "" => {
            let why = "cacheType is required to be set when tokenAttributes is specified. Supported values are: ServiceAccount, Token";
            errors.push(FieldError::required(&at, why));
        }
        t if CACHE_TYPES.contains(&t) => {}
        t => errors.push(FieldError::not_supported(&at, t, &CACHE_TYPES)),
    }
    errors
}

/// The path of a program.
pub fn find_program(directory: &Path, name: &str) -> Result<PathBuf, ConfigurationError> {
    if !directory.is_dir() {
        return Err(ConfigurationError::NoDirectory(directory.to_owned()));
    }
    let program = directory.join(name);
    let is_executable = program.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    if is_executable { Ok(program) } else { Err(ConfigurationError::NoProgram(program)) }
}

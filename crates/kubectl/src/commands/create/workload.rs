//! Creates deployments, jobs and cron jobs.

use super::{Generator, Needs, Resolved, WriteFlags};
use crate::error::{Result, text};
use meta::{Rng, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Deployment {
    /// Name of the deployment.
    pub name: String,
    /// Image; may be repeated for several containers.
    #[arg(long, required = true, value_delimiter = ',')]
    pub image: Vec<String>,
    /// Container port.
    #[arg(long, default_value = "-1", hide_default_value = true)]
    pub port: i64,
    /// Number of replicas.
    #[arg(short = 'r', long, default_value = "1", hide_default_value = true)]
    pub replicas: i64,
    /// Command of the container.
    #[arg(last = true)]
    pub command: Vec<String>,
    #[command(flatten)]
    pub write: WriteFlags,
}

/// Derives the container name from an image: `registry:5000/team/app:v2` becomes `app`. A name with `_` or `.` gets `-` instead, and
/// random letters at its end.
fn container_name(image: &str, rng: Option<&dyn Rng>) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    let name = last.split(['@', ':']).next().unwrap_or(last);
    match rng.filter(|_| name.contains(['_', '.'])) {
        Some(rng) => format!("{}-{}", name.replace(['_', '.'], "-"), meta::random::suffix(rng, 5)),
        None => name.to_owned(),
    }
}

impl Generator for Deployment {
    fn needs(&self) -> Needs<'_> {
        Needs::Random
    }

    fn build(&self) -> Result<Value> {
        self.build_with(Resolved::Nothing)
    }

    fn build_with(&self, found: Resolved<'_>) -> Result<Value> {
        let rng = if let Resolved::Random(rng) = found { Some(rng) } else { None };
        if self.image.len() > 1 && !self.command.is_empty() {
            return text("cannot specify multiple --image options and command");
        }
        let labels = json!({"app": self.name});
        let containers: Vec<Value> = self
            .image
            .iter()
            .enumerate()
            .map(|(n, i)| {
                let mut c = json!({"name": container_name(i, rng), "image": i, "resources": {}});
                if !self.command.is_empty() {
                    c["command"] = self.command.clone().into();
                }
                if self.port >= 0 && n == 0 {
                    c["ports"] = json!([{"containerPort": self.port}]);
                }
                c
            })
            .collect();
        Ok(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": self.name, "labels": labels},
            "spec": {
                "replicas": self.replicas, "selector": {"matchLabels": labels}, "strategy": {},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
            },
            "status": {},
        }))
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct Job {
    /// Name of the job.
    pub name: String,
    /// Image of the container.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub image: String,
    /// Run a cron job once: cronjob/NAME.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub from: String,
    /// Command of the container.
    #[arg(last = true)]
    pub command: Vec<String>,
    #[command(flatten)]
    pub write: WriteFlags,
}

fn container(name: &str, image: &str, command: &[String]) -> Value {
    let mut c = json!({"name": name, "image": image, "resources": {}});
    if !command.is_empty() {
        c["command"] = command.to_vec().into();
    }
    c
}

impl Generator for Job {
    fn needs(&self) -> Needs<'_> {
        if self.from.is_empty() || !self.image.is_empty() { Needs::Nothing } else { Needs::Object(&self.from) }
    }

    fn build_with(&self, found: Resolved<'_>) -> Result<Value> {
        if self.image.is_empty() == self.from.is_empty() {
            return text("either --image or --from must be specified");
        }
        let Resolved::Object(c) = found else { return self.build() };
        if !self.command.is_empty() {
            return text("cannot specify --from and command");
        }
        if c.kind() != "CronJob" {
            let version = c.api_version().rsplit('/').next().unwrap_or_default();
            return text(format!("unknown object type *{version}.{}", c.kind()));
        }
        let template = c.at(&["spec", "jobTemplate"]).cloned().unwrap_or_default();
        let mut annotations = template["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
        annotations.insert("cronjob.kubernetes.io/instantiate".into(), "manual".into());
        let mut metadata = json!({
            "name": self.name, "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": c.api_version(), "kind": "CronJob", "name": c.name(), "uid": c.uid(), "controller": true,
            }],
        });
        if let Some(l) = template["metadata"]["labels"].as_object() {
            metadata["labels"] = l.clone().into();
        }
        Ok(
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template["spec"], "status": {}}),
        )
    }

    fn build(&self) -> Result<Value> {
        Ok(json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": self.name},
            "spec": {"template": {"metadata": {}, "spec": {
                "containers": [container(&self.name, &self.image, &self.command)], "restartPolicy": "Never",
            }}},
            "status": {},
        }))
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct CronJob {
    /// Name of the cron job.
    pub name: String,
    /// Image of the container.
    #[arg(long, required = true)]
    pub image: String,
    /// Schedule in cron format.
    #[arg(long, required = true)]
    pub schedule: String,
    /// Restart policy: OnFailure (default) or Never.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub restart: String,
    /// Command of the container.
    #[arg(last = true)]
    pub command: Vec<String>,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for CronJob {
    fn build(&self) -> Result<Value> {
        Ok(json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": self.name},
            "spec": {
                "jobTemplate": {"metadata": {"name": self.name}, "spec": {"template": {"metadata": {}, "spec": {
                    "containers": [container(&self.name, &self.image, &self.command)], "restartPolicy": if self.restart.is_empty() { "OnFailure" } else { &self.restart },
                }}}},
                "schedule": self.schedule,
            },
            "status": {},
        }))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};

    /// Two images may differ in what a name of a container cannot have. Capitals stay, and the server refuses them.
    #[tokio::test]
    async fn containers_have_the_names_of_their_images() {
        let line = "create deployment d --image=r:5000/t/app:v2 --image=Up@sha256:0 --image=a_b.c --dry-run=client -o jsonpath={.spec.template.spec.containers[*].name}";
        let names = snapshot(&Server::new(), line, "").await;
        let (names, suffix) = names.rsplit_once('-').unwrap_or_default();
        assert_eq!((names, suffix.trim().len()), ("app Up a-b-c", 5), "{names}-{suffix}");
    }
}

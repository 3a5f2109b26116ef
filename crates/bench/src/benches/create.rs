//! Creating objects, each under a new name.

use crate::context::{Context, call};
use crate::load::{Load, drive};
use crate::{Bench, Error, Outcome, objects};
use async_trait::async_trait;
use client::client::JSON;
use http::Method;
use serde_json::Value;

pub struct Create {
    name: &'static str,
    about: &'static str,
    resource: &'static str,
    object: fn(&str, u64) -> Value,
}

pub const CONFIG_MAPS: Create = Create {
    name: "create-configmaps",
    about: "creates of ConfigMaps of 1 KB",
    resource: "configmaps",
    object: |name, _| objects::config_map(name),
};

pub const PODS: Create = Create {
    name: "create-pods",
    about: "creates of Pods that no scheduler binds",
    resource: "pods",
    object: |name, number| objects::pod(name, number, 0),
};

#[async_trait]
impl Bench for Create {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    async fn run(&self, cx: &mut Context) -> Result<Outcome, Error> {
        let namespace = cx.enter().await?;
        let o = &cx.options;
        let load = Load { connections: o.connections_or(64), count: o.count_or(1_000_000), duration: o.duration };
        let path = format!("/api/v1/namespaces/{namespace}/{}", self.resource);
        let object = self.object;
        let samples = drive(cx, &load, move |t| {
            let body = object(&format!("c-{}-{}", t.worker, t.number), t.number);
            call(Method::POST, &path, Some((JSON, body.to_string().into())))
        });
        Ok(Outcome::Measured(vec![samples.await?.row(self.name)]))
    }
}

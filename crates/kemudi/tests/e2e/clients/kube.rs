//! A program written with the `kube` crate, as operators are.

use crate::story::Story;
use ::kube::api::{Api, AttachParams, DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams};
use ::kube::config::{KubeConfigOptions, Kubeconfig};
use ::kube::runtime::wait::{await_condition, conditions};
use ::kube::runtime::{WatchStreamExt, watcher};
use ::kube::{Client, Config, Error, ResourceExt};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use serde_json::json;
use std::time::Duration;
use tokio::io::AsyncReadExt;

pub fn run(s: &Story) {
    s.shell_pod("p", "echo begun; while :; do sleep 0.1; done", json!({}), json!({}));
    s.cluster.runtime.block_on(async {
        let told = Kubeconfig::read_from(&s.cluster.kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(told, &KubeConfigOptions::default()).await.unwrap();
        let client = Client::try_from(config).unwrap();
        assert_eq!(client.apiserver_version().await.unwrap().minor, "36");
        config_maps(&client, &s.ns).await;
        watches(&client, &s.ns).await;
        pods(&client, &s.ns).await;
    });
}

fn code(e: &Error) -> u16 {
    match e {
        Error::Api(s) => s.code,
        other => panic!("{other}"),
    }
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": {"set": "kube"}}, "data": {"a": "1"}})).unwrap()
}

/// Clauses: S01.conflict
async fn config_maps(client: &Client, ns: &str) {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), ns);
    let made = api.create(&PostParams::default(), &map("k")).await.unwrap();
    assert_eq!(code(&api.create(&PostParams::default(), &map("k")).await.unwrap_err()), 409);
    assert_eq!(code(&api.get("none").await.unwrap_err()), 404);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    api.create(&dry, &map("dry")).await.unwrap();
    assert!(api.get_opt("dry").await.unwrap().is_none());
    let apply = |v: &str| {
        Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "k"}, "data": {"a": v}}))
    };
    let refused = api.patch("k", &PatchParams::apply("other"), &apply("2")).await.unwrap_err();
    assert_eq!(code(&refused), 409, "{refused}");
    let forced = api.patch("k", &PatchParams::apply("other").force(), &apply("2")).await.unwrap();
    assert_eq!(forced.data.as_ref().unwrap()["a"], "2");
    assert!(forced.managed_fields().iter().any(|e| e.manager.as_deref() == Some("other")));
    let again = api.patch("k", &PatchParams::apply("other").force(), &apply("2")).await.unwrap();
    assert_eq!(again.resource_version(), forced.resource_version(), "nothing changed");
    let stale = api.replace("k", &PostParams::default(), &made).await.unwrap_err();
    assert_eq!(code(&stale), 409, "{stale}");
    let merged = api.patch("k", &PatchParams::default(), &Patch::Merge(json!({"data": {"b": "3"}}))).await.unwrap();
    assert_eq!(merged.data.unwrap().len(), 2);
}

/// The reflector of operators sees what is there, what comes and what goes.
async fn watches(client: &Client, ns: &str) {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), ns);
    for initial in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let mut events = watcher(api.clone(), initial.labels("set=kube")).boxed();
        let mut seen = Vec::new();
        let follow = async {
            while let Some(e) = events.try_next().await.unwrap() {
                let stderr = match e {
                    watcher::Event::Init => "init".to_owned(),
                    watcher::Event::InitApply(o) => format!("has {}", o.name_any()),
                    watcher::Event::InitDone => {
                        api.create(&PostParams::default(), &map("new")).await.unwrap();
                        "done".to_owned()
                    }
                    watcher::Event::Apply(o) => {
                        api.delete(&o.name_any(), &DeleteParams::default()).await.unwrap();
                        format!("put {}", o.name_any())
                    }
                    watcher::Event::Delete(o) => format!("gone {}", o.name_any()),
                };
                seen.push(stderr);
                if seen.len() == 5 {
                    break;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), follow).await.unwrap();
        assert_eq!(seen, ["init", "has k", "done", "put new", "gone new"]);
    }
    let page = api.list(&ListParams::default().limit(1)).await.unwrap();
    assert!(page.items.len() == 1 && page.metadata.continue_.is_some());
    let all = watcher(api, watcher::Config::default()).applied_objects().boxed();
    assert!(all.take(2).try_collect::<Vec<_>>().await.unwrap().len() == 2);
}

async fn pods(client: &Client, ns: &str) {
    let api: Api<Pod> = Api::namespaced(client.clone(), ns);
    let running = await_condition(api.clone(), "p", conditions::is_pod_running());
    tokio::time::timeout(Duration::from_secs(60), running).await.unwrap().unwrap();
    let mut process =
        api.exec("p", ["sh", "-c", "echo out; exit 3"], &AttachParams::default().stderr(false)).await.unwrap();
    let mut out = String::new();
    process.stdout().unwrap().read_to_string(&mut out).await.unwrap();
    assert_eq!(out, "out\n");
    let status = process.take_status().unwrap().await.unwrap();
    assert_eq!(status.reason.as_deref(), Some("NonZeroExitCode"));
    assert_eq!(api.logs("p", &LogParams::default()).await.unwrap(), "begun\n");
    api.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
}

//! What an object costs in memory beside its bytes: entry, index, and its place in the state.
//! Clauses: A03.memory
#![allow(clippy::unwrap_used)] // a broken setup is a failed test

use cap::Cap;
use meta::Object;
use serde_json::{Value, json};
use std::alloc::System;
use std::sync::Arc;
use store::{Action, Expect, Key, Lmdb, LmdbOptions, Op, Options, Retention, Store};
use stored::encode;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const COUNT: usize = 20_000;
/// Of the encoded object.
const BYTES: usize = 5_000;

/// A running pod of a deployment, about as large as such pods are.
fn pod(number: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("web-{:05}-6b7f9c8d5f-{:05}", number / 50, number),
            "namespace": format!("team-{}", number % 40),
            "uid": format!("00000000-0000-4000-8000-{number:012}"),
            "labels": {
                "app": format!("web-{}", number / 50),
                "pod-template-hash": "6b7f9c8d5f",
                "tier": "frontend",
            },
            "annotations": { "filler": "x".repeat(BYTES - 1_050) },
        },
        "spec": {
            "nodeName": format!("node-{}", number % 200),
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "serviceAccountName": "default",
            "containers": [{ "name": "web", "image": "registry.example.com/web:1", "ports": [{ "containerPort": 8080 }] }],
        },
        "status": {
            "phase": "Running",
            "podIP": format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255),
            "conditions": [
                { "type": "Initialized", "status": "True" },
                { "type": "Ready", "status": "True" },
                { "type": "ContainersReady", "status": "True" },
                { "type": "PodScheduled", "status": "True" },
            ],
        },
    })
}

#[tokio::test]
async fn an_object_costs_its_bytes_and_half_a_kilobyte() {
    let directory = tempfile::tempdir().unwrap();
    let open = async || {
        let options = Options {
            index: encode::index_fn(strategies::selectable_fields()),
            transform: None,
            retention: Retention::default(),
            clock: Arc::new(|| 1_000),
        };
        let engine = Lmdb::open(directory.path(), LmdbOptions { sync: false, reserve: 0, ..LmdbOptions::default() });
        Store::open(engine.unwrap(), options).await.unwrap()
    };
    let store = open().await;
    let mut bytes = 0;
    for first in (0..COUNT).step_by(1_000) {
        let op = |number: usize| {
            let value = encode::encode(&Object::from_value(pod(number)).unwrap());
            let namespace = format!("team-{}", number % 40);
            let name = format!("web-{:05}-6b7f9c8d5f-{:05}", number / 50, number);
            Op { key: Key::new("pods", &namespace, &name), expect: Expect::Any, action: Action::Put(value) }
        };
        let ops: Vec<Op> = (first..first + 1_000).map(op).collect();
        for op in &ops {
            let Action::Put(value) = &op.action else { unreachable!("only puts were made") };
            bytes += value.len();
        }
        store.commit(ops).await.unwrap();
    }
    store.close().await;
    let before = ALLOCATOR.allocated();
    let store = open().await;
    let opened = ALLOCATOR.allocated() - before;
    let (each, over) = (bytes / COUNT, (opened - bytes) / COUNT);
    println!("{COUNT} pods of {each} bytes: {opened} bytes allocated, {over} each beside their own");
    assert!((4_500..5_500).contains(&each), "{each}");
    // The promise is half of the object's bytes and 400 more; this is below it for objects of every size.
    assert!(over < 500, "{over} bytes beside those of the object");
    store.close().await;
}

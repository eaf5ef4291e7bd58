//! Background work tells in the metrics how it fares.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/stores.rs"]
mod stores;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::sync::Arc;
use std::time::Duration;
use stores::{
    Database, Directory, Gate, GatedBlobs, GatedMeta, Node, config, eventually, key, payload, request, soon,
};
use turnkeep::clock::SystemClock;
use turnkeep::engine::{Engine, Options};
use turnkeep::entropy::Entropy;
use turnkeep::store::faulty::{Fault, FaultyBlobs};
use turnkeep::store::meta::SealPolicy;

/// A counter's value; nothing while it was never counted.
fn counted(metrics: &PrometheusHandle, name: &str) -> Option<u64> {
    let page = metrics.render();
    let line = page.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().parse().unwrap())
}

/// Starts an engine with its background work.
async fn start(database: &Database, blobs: &Arc<FaultyBlobs>, options: Options) -> Engine {
    let entropy = Arc::new(Entropy::from_os());
    Engine::start(database.meta.clone(), blobs.clone(), Arc::new(SystemClock), entropy, options)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_seal_that_fails_is_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let database = Database::sqlite().await;
    let directory = Directory::new();
    let blobs = Arc::new(FaultyBlobs::new(directory.blobs.clone()));
    let options = Options {
        // Each turn is due at once, and no scan looks for it.
        seal: SealPolicy { raw_bytes: 1, ..Options::default().seal },
        seal_interval: Duration::from_hours(1),
        ..Options::default()
    };
    let engine = start(&database, &blobs, options).await;
    let key = key("s");
    engine.create_session(key.clone(), config()).await.unwrap();
    blobs.set(Fault::Down);
    engine.persist(request(&key, "r1", vec![payload("r1", 100)])).await.unwrap();
    let failures = eventually("a failure that is counted", async || {
        counted(&recorder.handle(), "turnkeep_upkeep_failures_total{work=\"seal\"}")
    })
    .await;
    assert_eq!(failures, 1);
    assert_eq!(counted(&recorder.handle(), "turnkeep_seals_total"), None);
    soon("the end of the process", engine.drain()).await;
}

#[tokio::test]
async fn a_drain_does_not_wait_for_background_work() {
    let database = Database::sqlite().await;
    let directory = Directory::new();
    let blobs = Arc::new(FaultyBlobs::new(directory.blobs.clone()));
    let options = Options {
        seal: SealPolicy { raw_bytes: 1, ..Options::default().seal },
        blob_timeout: Duration::from_hours(1),
        ..Options::default()
    };
    let engine = start(&database, &blobs, options).await;
    let key = key("s");
    engine.create_session(key.clone(), config()).await.unwrap();
    blobs.set(Fault::Hang);
    engine.persist(request(&key, "r1", vec![payload("r1", 100)])).await.unwrap();
    eventually("a seal that hangs", async || (blobs.puts() > 0).then_some(())).await;
    soon("the end of the process", engine.drain()).await;
    let node = Node::start(database.meta.clone(), directory.blobs.clone()).await;
    assert_eq!(node.read(&key).await.unwrap().entries, [(1, payload("r1", 100))]);
    assert!(node.seal(&key).await.is_ok());
}

#[tokio::test]
async fn a_roll_up_that_lost_is_not_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let database = Database::sqlite().await;
    let directory = Directory::new();
    let node = Node::start(database.meta.clone(), directory.blobs.clone()).await;
    let gate = Gate::new();
    let meta = Arc::new(GatedMeta { inner: database.meta.clone(), gate: gate.clone() });
    let blobs = Arc::new(GatedBlobs { inner: directory.blobs.clone(), gate: gate.clone() });
    let stalling = Node::at(meta, blobs, Options::default(), node.clock.clone()).await;
    let key = key("s");
    node.create(&key).await;
    for i in 0..4 {
        let id = format!("r{i}");
        node.persist(&key, &id, payload(&id, 100)).await.unwrap();
        node.seal(&key).await.unwrap();
    }
    let branch = node.branch(&key).await;
    let mut commit = gate.hold("commit_roll_up");
    let losing = tokio::spawn({
        let (engine, branch) = (stalling.engine.clone(), branch.clone());
        async move { engine.roll_up_branch(&branch).await }
    });
    commit.reached().await;
    assert!(node.engine.roll_up_branch(&branch).await.unwrap());
    commit.release();
    assert!(!soon("the roll-up that loses", losing).await.unwrap().unwrap());
    assert_eq!(counted(&recorder.handle(), "turnkeep_roll_ups_total"), Some(1));
    node.assert_healthy().await;
}

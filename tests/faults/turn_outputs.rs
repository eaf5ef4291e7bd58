//! Tool outputs that a turn brings, over stores that fail: turn and outputs are
//! there together or not at all.

use super::{BLOB_TIMEOUT, Site, assert_retryable};
use crate::stores::{
    Database, Gate, GatedMeta, Node, blob_keys, config, key, on_both_databases, payload, request,
};
use bytes::Bytes;
use std::sync::Arc;
use turnkeep::engine::{FsckOptions, Options, PersistReply, Reason, SessionConfig};
use turnkeep::model::WireFormat;
use turnkeep::store::ErrorKind;
use turnkeep::store::faulty::Fault;
use turnkeep::store::meta::SessionKey;

on_both_databases![
    a_turn_does_not_wait_long_for_a_store_that_hangs,
    a_retry_gets_its_answer_without_the_object_store,
    a_commit_of_unknown_outcome_is_read_back_with_its_outputs,
    outputs_of_a_turn_that_is_refused_are_never_seen_and_are_swept,
    outputs_whose_generation_is_fenced_are_put_again,
    of_turns_that_race_each_has_its_outputs,
];

pub(super) fn result(mark: &str) -> Bytes {
    let text = format!("line of {mark}\\n").repeat(20_000);
    format!(r#"{{"role":"tool","tool_call_id":"call_1","content":"{text}"}}"#).into()
}

pub(super) async fn create(node: &Node, key: &SessionKey) {
    let config = SessionConfig { format: WireFormat::OpenaiChat, ..config() };
    node.engine.create_session(key.clone(), config).await.unwrap();
}

pub(super) async fn outputs(node: &Node, key: &SessionKey) -> usize {
    node.engine.list_outputs(key, None, 100).await.unwrap().outputs.len()
}

pub(super) async fn assert_sound(node: &Node, outputs: u64) {
    let report = node.engine.fsck(FsckOptions { deep: true }, |_| ()).await.unwrap();
    assert_eq!((report.outputs, report.findings), (outputs, vec![]));
}

pub(super) async fn gated(site: &Site) -> (Arc<Gate>, Node) {
    let gate = Gate::new();
    let meta = Arc::new(GatedMeta { inner: site.database.meta.clone(), gate: gate.clone() });
    let options = Options { blob_timeout: BLOB_TIMEOUT, ..Options::default() };
    (gate, Node::at(meta, site.faults.clone(), options, site.node.clock.clone()).await)
}

async fn a_turn_does_not_wait_long_for_a_store_that_hangs(database: Database) {
    let site = Site::new(database).await;
    let key = key("s");
    create(&site.node, &key).await;
    for (i, fault) in [Fault::Hang, Fault::Down, Fault::ReadOnly, Fault::LostAnswers].into_iter().enumerate()
    {
        site.faults.set(fault);
        let entries = vec![result("a"), payload("other", 100), result("b")];
        let reply = site.node.engine.persist(request(&key, &format!("r{i}"), entries)).await.unwrap();
        assert_eq!((reply.offloaded.len(), reply.changed.len()), (2, 2), "{fault:?}");
        assert_eq!(site.node.meta.held_output_count().await.unwrap(), 2 * (i as u64 + 1));
    }
    site.faults.set(Fault::None);
    let reply = site.node.engine.persist(request(&key, "then", vec![result("a")])).await.unwrap();
    assert_eq!(reply.offloaded.len(), 1);
    assert_eq!(site.node.meta.held_output_count().await.unwrap(), 8);
    assert_eq!(outputs(&site.node, &key).await, 9);
    assert_sound(&site.node, 9).await;
}

async fn a_retry_gets_its_answer_without_the_object_store(database: Database) {
    let site = Site::new(database).await;
    let key = key("s");
    create(&site.node, &key).await;
    let again = || request(&key, "r1", vec![result("a"), result("b")]);
    let first = site.node.engine.persist(again()).await.unwrap();
    assert_eq!((first.offloaded.len(), first.changed.len()), (2, 2));
    let puts = site.faults.puts();
    for fault in [Fault::None, Fault::Down] {
        site.faults.set(fault);
        for node in [&site.node, &site.another().await] {
            assert_eq!(node.engine.persist(again()).await.unwrap(), first);
        }
    }
    site.faults.set(Fault::None);
    assert_eq!((site.faults.puts(), outputs(&site.node, &key).await), (puts, 2));
}

async fn a_commit_of_unknown_outcome_is_read_back_with_its_outputs(database: Database) {
    let site = Site::new(database).await;
    let (gate, node) = gated(&site).await;
    let key = key("s");
    create(&node, &key).await;
    gate.fail("commit_turn", ErrorKind::Unknown);
    let reply = node.engine.persist(request(&key, "r1", vec![result("a")])).await.unwrap();
    assert!(gate.has_failed());
    assert_eq!((reply.offloaded.len(), outputs(&node, &key).await), (1, 1));
    assert_eq!(node.engine.persist(request(&key, "r1", vec![result("a")])).await.unwrap(), reply);
    assert_sound(&node, 1).await;
}

async fn outputs_of_a_turn_that_is_refused_are_never_seen_and_are_swept(database: Database) {
    let site = Site::new(database).await;
    let (gate, node) = gated(&site).await;
    let key = key("s");
    create(&node, &key).await;
    gate.fail("commit_turn", ErrorKind::Unavailable);
    let refused = node.engine.persist(request(&key, "r1", vec![result("a")])).await;
    assert_retryable(refused, Reason::MetadataUnavailable);
    assert_eq!(outputs(&node, &key).await, 0);
    assert_eq!(blob_keys(site.directory.blobs.as_ref()).await.len(), 1);
    let reply = node.engine.persist(request(&key, "r1", vec![result("a")])).await.unwrap();
    assert_eq!((reply.offloaded.len(), outputs(&node, &key).await), (1, 1));
    node.wait_long();
    assert_eq!(site.another().await.engine.sweep().await.unwrap().orphans_erased, 1);
    assert_sound(&node, 1).await;
}

async fn outputs_whose_generation_is_fenced_are_put_again(database: Database) {
    let site = Site::new(database).await;
    for (i, more) in [0, 2_000_000].into_iter().enumerate() {
        let (gate, node) = gated(&site).await;
        let key = key(&format!("s{i}"));
        create(&node, &key).await;
        let mut held = gate.hold("commit_turn");
        let (engine, key_of_turn) = (node.engine.clone(), key.clone());
        let persist = tokio::spawn(async move {
            let entries = vec![result("a"), payload("large", more)];
            engine.persist(request(&key_of_turn, "r1", entries)).await
        });
        held.reached().await;
        node.wait_long();
        let swept = site.another().await.engine.sweep().await.unwrap();
        assert!(swept.generations_fenced >= 1 && swept.orphans_erased >= 1, "{swept:?}");
        held.release();
        let reply = persist.await.unwrap().unwrap();
        assert_eq!((reply.offloaded.len(), outputs(&node, &key).await), (1, 1));
        assert_sound(&node, 1 + i as u64).await;
    }
}

async fn of_turns_that_race_each_has_its_outputs(database: Database) {
    let site = Site::new(database).await;
    let key = key("s");
    create(&site.node, &key).await;
    let other = site.another().await;
    let persist = |node: &Node, i: usize| {
        let (engine, key) = (node.engine.clone(), key.clone());
        tokio::spawn(async move { engine.persist(request(&key, &format!("r{i}"), vec![result("a")])).await })
    };
    let racing: Vec<_> = (0..6).map(|i| persist(if i % 2 == 0 { &site.node } else { &other }, i)).collect();
    let mut replies: Vec<PersistReply> = Vec::new();
    for persisted in racing {
        replies.push(persisted.await.unwrap().unwrap());
    }
    assert!(replies.iter().all(|reply| reply.offloaded[0].seq == reply.changed[0].seq));
    assert_eq!(outputs(&site.node, &key).await, 6);
    assert_sound(&site.node, 6).await;
}

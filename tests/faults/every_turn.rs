//! Turns that are sealed before they are acknowledged.

use super::{BLOB_TIMEOUT, Site, assert_retryable};
use crate::stores::{Database, Node, config, id_of, key, on_both_databases, payload, request};
use turnkeep::engine::{ForkRequest, Input, NewEntry, Options, PersistRequest, Reason, RewindRequest};
use turnkeep::model::{EntryKind, Labels, Seq, Version};
use turnkeep::store::faulty::Fault;
use turnkeep::store::meta::SessionKey;

on_both_databases![
    every_turn_is_in_the_object_store_when_it_is_acknowledged,
    a_turn_is_refused_while_the_store_is_down_and_never_shows,
    a_turn_after_a_rewind_is_in_the_object_store_too,
    turns_without_entries_rewinds_and_forks_are_in_the_object_store_too,
    a_rewind_is_refused_while_the_store_is_down_and_never_shows,
    a_fork_is_told_of_once_it_is_in_the_object_store,
    what_a_turn_continues_is_in_the_object_store_whatever_the_setting_was,
];

async fn site(database: Database) -> (Site, SessionKey) {
    let options = Options { seal_every_turn: true, blob_timeout: BLOB_TIMEOUT, ..Options::default() };
    let site = Site::with(database, options).await;
    let key = key("s");
    site.node.create(&key).await;
    (site, key)
}

async fn every_turn_is_in_the_object_store_when_it_is_acknowledged(database: Database) {
    let (site, key) = site(database).await;
    let branch = site.node.branch(&key).await;
    for i in 1..=3 {
        let reply = site.persist(&key, &format!("r{i}"), 100).await.unwrap();
        let segments = site.node.meta.segments(&branch, Seq(0), Seq(u64::MAX)).await.unwrap();
        assert_eq!(segments.last().unwrap().last_version, reply.version);
        assert_eq!(site.database.rows("SELECT version FROM journal").await, [[""; 1]; 0]);
    }
    site.node.assert_healthy().await;
}

async fn a_turn_is_refused_while_the_store_is_down_and_never_shows(database: Database) {
    let (site, key) = site(database).await;
    let acknowledged = site.persist(&key, "r1", 100).await.unwrap();
    for fault in [Fault::Down, Fault::Hang, Fault::LostAnswers] {
        site.faults.set(fault);
        assert_eq!(site.persist(&key, "r1", 100).await.unwrap(), acknowledged);
        assert_retryable(site.persist(&key, "r2", 100).await, Reason::ObjectsUnavailable);
        let empty = site.node.engine.persist(request(&key, "empty", vec![])).await;
        assert_retryable(empty, Reason::ObjectsUnavailable);
        let told = site.another().await.meta.tip(&key, Some(Version(0))).await.unwrap().unwrap();
        assert_eq!((told.head.version, told.journal), (Version(1), vec![]));
    }
    site.faults.set(Fault::None);
    let reply = site.persist(&key, "r2", 100).await.unwrap();
    assert_eq!(reply.version, Version(2));
    let told = site.another().await.read(&key).await.unwrap();
    assert_eq!(told.entries, [(1, payload("r1", 100)), (2, payload("r2", 100))]);
}

/// A list that takes the place of the log after its first entry.
fn snapshot(key: &SessionKey, id: &str) -> PersistRequest {
    let entries = ["r1", "other"].map(|text| NewEntry {
        payload: payload(text, 100),
        kind: EntryKind::Message,
        at: None,
    });
    let input = Input::Snapshot { entries: entries.into(), window_id: String::new(), allow_rewind: true };
    PersistRequest { input, create_if_missing: Some(config()), ..request(key, id, vec![]) }
}

async fn a_turn_after_a_rewind_is_in_the_object_store_too(database: Database) {
    let (site, key) = site(database).await;
    for id in ["r1", "r2"] {
        site.persist(&key, id, 100).await.unwrap();
    }
    site.faults.set(Fault::Down);
    assert_retryable(site.node.engine.persist(snapshot(&key, "r3")).await, Reason::ObjectsUnavailable);
    site.faults.set(Fault::None);
    let reply = site.node.engine.persist(snapshot(&key, "r3")).await.unwrap();
    assert_eq!((reply.version, reply.rewound_to), (Version(3), Some(Version(1))));
    assert_eq!(site.database.rows("SELECT version FROM journal").await, [[""; 1]; 0]);
    let told = site.another().await.read(&key).await.unwrap();
    assert_eq!(told.entries, [(1, payload("r1", 100)), (2, payload("other", 100))]);
    // The branch goes on.
    site.persist(&key, "r4", 100).await.unwrap();
    assert_eq!(site.another().await.read(&key).await.unwrap().entries.len(), 3);
    site.node.assert_healthy().await;
}

fn rewind(key: &SessionKey, version: u64) -> RewindRequest {
    RewindRequest {
        key: key.clone(),
        version: Version(version),
        expected_version: None,
        request_id: id_of("rewind"),
    }
}

fn fork(source: &SessionKey, session: &str) -> ForkRequest {
    ForkRequest {
        source: source.clone(),
        version: None,
        session: Some(key(session).session),
        labels: Labels::new(),
        request_id: id_of("fork"),
    }
}

/// Each session is sealed to its newest turn.
async fn assert_all_is_sealed(site: &Site) {
    for key in site.node.meta.all_sessions(None, 9).await.unwrap() {
        let tip = site.node.meta.tip(&key, Some(Version(0))).await.unwrap().unwrap();
        assert_eq!((tip.branch.sealed_version, tip.journal), (tip.head.version, vec![]), "{key:?}");
    }
}

async fn turns_without_entries_rewinds_and_forks_are_in_the_object_store_too(database: Database) {
    let (site, key) = site(database).await;
    site.persist(&key, "r1", 100).await.unwrap();
    site.node.engine.persist(request(&key, "empty", vec![])).await.unwrap();
    assert_all_is_sealed(&site).await;
    site.node.engine.rewind_session(rewind(&key, 1)).await.unwrap();
    assert_all_is_sealed(&site).await;
    site.node.engine.fork_session(fork(&key, "fork")).await.unwrap();
    assert_all_is_sealed(&site).await;
    assert_eq!(site.database.rows("SELECT session_id FROM manifest ORDER BY 1").await, [["fork"], ["s"]]);
    // A repetition puts nothing.
    let puts = site.faults.puts();
    site.node.engine.rewind_session(rewind(&key, 1)).await.unwrap();
    site.node.engine.fork_session(fork(&key, "fork")).await.unwrap();
    assert_eq!(site.faults.puts(), puts);
    site.node.assert_healthy().await;
}

async fn a_rewind_is_refused_while_the_store_is_down_and_never_shows(database: Database) {
    let (site, key) = site(database).await;
    for id in ["r1", "r2"] {
        site.persist(&key, id, 100).await.unwrap();
    }
    let before = site.database.dump().await;
    for fault in [Fault::Down, Fault::LostAnswers] {
        site.faults.set(fault);
        let refused = site.node.engine.rewind_session(rewind(&key, 1)).await;
        assert_retryable(refused, Reason::ObjectsUnavailable);
        assert!(site.database.dump().await == before);
    }
    site.faults.set(Fault::None);
    let view = site.node.engine.rewind_session(rewind(&key, 1)).await.unwrap();
    assert_eq!((view.head.version, view.head_seq), (Version(3), Seq(1)));
    assert_all_is_sealed(&site).await;
}

async fn a_fork_is_told_of_once_it_is_in_the_object_store(database: Database) {
    let (site, key) = site(database).await;
    site.persist(&key, "r1", 100).await.unwrap();
    site.faults.set(Fault::Down);
    for _ in 0..2 {
        // It may be there, so nobody is told that nothing was written.
        let refused = site.node.engine.fork_session(fork(&key, "fork")).await;
        assert_retryable(refused, Reason::OutcomeUnknown);
    }
    site.faults.set(Fault::None);
    let view = site.node.engine.fork_session(fork(&key, "fork")).await.unwrap();
    assert_eq!(view.head.version, Version(2));
    assert_all_is_sealed(&site).await;
    site.node.assert_healthy().await;
}

async fn what_a_turn_continues_is_in_the_object_store_whatever_the_setting_was(database: Database) {
    let site = Site::new(database).await;
    let key = key("s");
    site.node.create(&key).await;
    for id in ["r1", "r2"] {
        site.persist(&key, id, 100).await.unwrap();
    }
    site.node.engine.fork_session(fork(&key, "fork")).await.unwrap();
    let options = Options { seal_every_turn: true, ..Options::default() };
    let clock = site.node.clock.clone();
    let node = Node::at(site.node.meta.clone(), site.faults.clone(), options, clock).await;
    node.persist(&crate::stores::key("fork"), "own", payload("own", 100)).await.unwrap();
    assert_all_is_sealed(&site).await;
    site.node.assert_healthy().await;
}

//! Turns that are sealed before they are acknowledged.

use super::{BLOB_TIMEOUT, Site, assert_retryable};
use crate::stores::{Database, config, key, on_both_databases, payload, request};
use turnkeep::engine::{Input, NewEntry, Options, PersistRequest, Reason};
use turnkeep::model::{EntryKind, Seq, Version};
use turnkeep::store::faulty::Fault;
use turnkeep::store::meta::SessionKey;

on_both_databases![
    every_turn_is_in_the_object_store_when_it_is_acknowledged,
    a_turn_is_refused_while_the_store_is_down_and_never_shows,
    a_turn_after_a_rewind_is_in_the_object_store_too,
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
    // A turn without entries has nothing to be put.
    site.node.engine.persist(request(&key, "empty", vec![])).await.unwrap();
    site.node.assert_healthy().await;
}

async fn a_turn_is_refused_while_the_store_is_down_and_never_shows(database: Database) {
    let (site, key) = site(database).await;
    let acknowledged = site.persist(&key, "r1", 100).await.unwrap();
    for fault in [Fault::Down, Fault::Hang, Fault::LostAnswers] {
        site.faults.set(fault);
        assert_eq!(site.persist(&key, "r1", 100).await.unwrap(), acknowledged);
        assert_retryable(site.persist(&key, "r2", 100).await, Reason::ObjectsUnavailable);
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

//! More turns than one segment holds, in an outage and without entries.

use super::Site;
use crate::stores::{Database, Node, key, on_both_databases, payload, request};
use bytes::Bytes;
use std::sync::Arc;
use turnkeep::engine::{Input, NewEntry, PersistRequest};
use turnkeep::model::{EntryKind, Version};
use turnkeep::store::faulty::Fault;
use turnkeep::store::meta::SessionKey;

on_both_databases![
    turns_without_entries_are_sealed_with_those_that_have_some,
    turns_without_entries_alone_are_sealed_when_told,
    a_journal_that_lacks_a_turn_is_not_sealed,
];

/// A turn of which everything is stripped.
fn heartbeat(key: &SessionKey, id: &str) -> PersistRequest {
    let entry =
        NewEntry { payload: Bytes::from_static(br#"{"beat":1}"#), kind: EntryKind::Heartbeat, at: None };
    PersistRequest { input: Input::Append(vec![entry]), ..request(key, id, vec![]) }
}

async fn heartbeats(node: &Node, key: &SessionKey, ids: std::ops::Range<usize>) {
    for i in ids {
        node.engine.persist(heartbeat(key, &format!("beat-{i}"))).await.unwrap();
    }
}

async fn segments(site: &Site) -> Vec<Vec<String>> {
    site.database.rows("SELECT first_version, last_version FROM segment ORDER BY first_version").await
}

async fn turns_without_entries_are_sealed_with_those_that_have_some(database: Database) {
    let site = Site::new(database).await;
    let key = key("s");
    site.node.create(&key).await;
    // More than are read at once.
    heartbeats(&site.node, &key, 0..230).await;
    site.persist(&key, "r1", 100).await.unwrap();
    heartbeats(&site.node, &key, 230..250).await;
    assert_eq!(site.node.seal(&key).await.unwrap(), 1);
    assert_eq!(segments(&site).await, [["1", "251"]]);
    let told = site.another().await.read(&key).await.unwrap();
    assert_eq!((told.version, told.entries), (Version(251), vec![(1, payload("r1", 100))]));
    site.node.assert_healthy().await;
}

async fn turns_without_entries_alone_are_sealed_when_told(database: Database) {
    let site = Site::new(database).await;
    let key = key("s");
    site.node.create(&key).await;
    assert_eq!(site.node.seal(&key).await.unwrap(), 0);
    heartbeats(&site.node, &key, 0..3).await;
    assert_eq!(site.node.seal(&key).await.unwrap(), 1);
    assert_eq!(site.node.seal(&key).await.unwrap(), 0);
    assert_eq!(segments(&site).await, [["1", "3"]]);
    site.persist(&key, "r1", 100).await.unwrap();
    assert_eq!(site.another().await.restore(&key).await.unwrap().items.len(), 1);
    site.node.assert_healthy().await;
}

/// A segment with a gap would be a loss that looks like a log.
async fn a_journal_that_lacks_a_turn_is_not_sealed(database: Database) {
    let site = Site::new(database).await;
    let key = key("s");
    site.node.create(&key).await;
    for id in ["r1", "r2", "r3"] {
        site.persist(&key, id, 100).await.unwrap();
    }
    site.database.execute("DELETE FROM journal WHERE version = 2").await;
    site.node.seal(&key).await.unwrap_err();
    site.persist(&key, "large", 2 << 20).await.unwrap_err();
    assert_eq!(segments(&site).await, [[""; 2]; 0]);
}

mod heavy {
    use super::*;
    use turnkeep::limits::TURN_OBJECT_FIRST_BYTES;

    const MANY: usize = 10_050;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_session_with_ever_so_many_turns_without_entries_goes_on() {
        let site = Site::new(Database::sqlite().await).await;
        let key = key("s");
        site.node.create(&key).await;
        heartbeats(&site.node, &key, 0..MANY).await;
        for i in 0..3 {
            site.persist(&key, &format!("r{i}"), 200_000).await.unwrap();
        }
        assert_eq!(site.node.seal(&key).await.unwrap(), 2);
        assert_eq!(segments(&site).await, [["1", "10000"], ["10001", "10053"]]);
        assert_eq!(site.database.rows("SELECT version FROM journal").await, [[""; 1]; 0]);
        heartbeats(&site.node, &key, MANY..2 * MANY).await;
        site.persist(&key, "large", 2 * TURN_OBJECT_FIRST_BYTES).await.unwrap();
        assert_eq!(site.database.rows("SELECT version FROM journal").await, [[""; 1]; 0]);
        assert_eq!(site.another().await.read(&key).await.unwrap().entries.len(), 4);
        site.node.assert_healthy().await;
        let target = Database::sqlite().await;
        let blobs = site.directory.blobs.clone();
        let report = turnkeep::engine::rebuild(blobs.as_ref(), target.meta.as_ref(), |_| {}).await.unwrap();
        assert_eq!((report.turns, report.findings), (2 * MANY as u64 + 5, vec![]));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn ever_so_many_small_turns_of_an_outage_are_sealed_when_it_ends() {
        let site = Site::new(Database::sqlite().await).await;
        let key = key("s");
        site.node.create(&key).await;
        site.faults.set(Fault::Down);
        for i in 0..MANY {
            site.persist(&key, &format!("r{i}"), 10).await.unwrap();
        }
        site.faults.set(Fault::None);
        let node = Node::start(Arc::new(site.database.another().await), site.faults.clone()).await;
        node.persist(&key, "large", payload("large", 2 * TURN_OBJECT_FIRST_BYTES)).await.unwrap();
        assert_eq!(site.database.rows("SELECT version FROM journal").await, [[""; 1]; 0]);
        assert_eq!(node.read(&key).await.unwrap().entries.len(), MANY + 1);
        site.node.assert_healthy().await;
    }
}

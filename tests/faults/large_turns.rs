//! Large turns go to the object store first, and into the journal when it
//! fails, as far as that may grow.

use super::{BLOB_TIMEOUT, Site, assert_retryable};
use crate::stores::{Database, key, on_both_databases, payload, request};
use turnkeep::engine::{Error, Input, NewEntry, PersistRequest, Reason};
use turnkeep::limits::{JOURNAL_SESSION_BYTES_MAX, JOURNAL_TURN_BYTES_MAX, TURN_OBJECT_FIRST_BYTES};
use turnkeep::model::{EntryKind, Version};
use turnkeep::store::faulty::Fault;

const MIB: usize = 1 << 20;

on_both_databases![
    a_large_turn_takes_the_journal_before_it_along,
    a_large_turn_goes_into_the_journal_while_the_store_is_down,
    a_session_with_a_full_journal_is_refused_until_it_is_sealed,
];

async fn a_large_turn_takes_the_journal_before_it_along(database: Database) {
    let site = Site::new(database).await;
    let key = key("s");
    site.node.create(&key).await;
    site.persist(&key, "small", 100).await.unwrap();
    assert_eq!(site.faults.puts(), 0);
    let reply = site.persist(&key, "large", 2 * TURN_OBJECT_FIRST_BYTES).await.unwrap();
    assert_eq!(reply.version, Version(2));
    assert_eq!(site.database.rows("SELECT version FROM journal").await, [[""; 1]; 0]);
    let segments = site.database.rows("SELECT first_version, last_version FROM segment").await;
    assert_eq!(segments, [["1", "2"]]);
    // The manifest is named too, so that no sweep takes it.
    assert_eq!(site.database.rows("SELECT version FROM manifest").await, [["1"]]);
    let report = site.node.fsck().await;
    assert_eq!((report.orphans, report.findings), (0, vec![]));
}

async fn a_large_turn_goes_into_the_journal_while_the_store_is_down(database: Database) {
    let site = Site::new(database).await;
    let key = key("s");
    site.node.create(&key).await;
    site.faults.set(Fault::Down);
    site.persist(&key, "r1", 2 * MIB).await.unwrap();
    site.persist(&key, "r2", 100).await.unwrap();
    assert_eq!(site.database.rows("SELECT version FROM journal").await.len(), 2);
    // Beyond what the journal takes it is refused, and nothing of it is left.
    let before = site.database.dump().await;
    assert_retryable(site.persist(&key, "huge", 12 * MIB).await, Reason::ObjectsUnavailable);
    assert!(site.database.dump().await == before);
    site.faults.set(Fault::None);
    let huge = site.persist(&key, "huge", 12 * MIB).await.unwrap();
    assert_eq!(huge.version, Version(3));
    // A retry gets its answer without the object store, and puts nothing there.
    let puts = site.faults.puts();
    for fault in [Fault::None, Fault::Down] {
        site.faults.set(fault);
        assert_eq!(site.persist(&key, "huge", 12 * MIB).await.unwrap(), huge);
    }
    site.faults.set(Fault::None);
    assert_eq!(site.faults.puts(), puts);
    assert_eq!(site.database.rows("SELECT version FROM journal").await, [[""; 1]; 0]);
    let told = site.another().await.read(&key).await.unwrap();
    let expected = [("r1", 2 * MIB), ("r2", 100), ("huge", 12 * MIB)];
    let expected: Vec<_> = (1..).zip(expected.map(|(id, bytes)| payload(id, bytes))).collect();
    assert!(told.entries == expected, "the log is as it was persisted");
    site.node.assert_healthy().await;
}

async fn a_session_with_a_full_journal_is_refused_until_it_is_sealed(database: Database) {
    // As if there were so much of it: `heavy` below fills one in earnest.
    const FILL: &str = "UPDATE head SET journal_bytes = journal_bytes + 66200000 WHERE session_id = 'full'";
    const EMPTY: &str = "UPDATE head SET journal_bytes = journal_bytes - 66200000 WHERE session_id = 'full'";
    let site = Site::new(database).await;
    let (full, other) = (key("full"), key("other"));
    for key in [&full, &other] {
        site.node.create(key).await;
        site.persist(key, "r1", 1_000).await.unwrap();
    }
    let acknowledged = site.persist(&full, "r0", 900_000).await.unwrap();
    site.faults.set(Fault::Down);
    site.database.execute(FILL).await;
    let node = site.another().await;
    let before = site.database.dump().await;
    for _ in 0..2 {
        let refused = node.persist(&full, "r2", payload("r2", 900_000)).await;
        let Err(Error::JournalFull { session, bytes, limit }) = &refused else { panic!("{refused:?}") };
        assert_eq!((session, *limit), (&full.session, JOURNAL_SESSION_BYTES_MAX));
        assert!(*bytes > *limit);
        assert_retryable(refused, Reason::JournalFull);
    }
    assert!(site.database.dump().await == before);
    // What was acknowledged is not refused now.
    assert_eq!(node.persist(&full, "r0", payload("r0", 900_000)).await.unwrap(), acknowledged);
    // What fits still fits, and others have room of their own.
    node.persist(&full, "small", payload("small", 100)).await.unwrap();
    node.persist(&other, "r2", payload("r2", 900_000)).await.unwrap();
    site.faults.set(Fault::None);
    site.database.execute(EMPTY).await;
    node.seal(&full).await.unwrap();
    let node = site.another().await;
    assert_eq!(node.persist(&full, "r2", payload("r2", 900_000)).await.unwrap().version, Version(4));
    assert_eq!(node.read(&full).await.unwrap().entries.len(), 4);
    site.node.assert_healthy().await;
}

/// A list whose new part is larger than the journal takes, and which rewinds the
/// log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_turn_after_a_rewind_goes_to_the_object_store_too() {
    let site = Site::new(Database::sqlite().await).await;
    let key = key("s");
    site.node.create(&key).await;
    for id in ["r1", "r2"] {
        site.persist(&key, id, 100).await.unwrap();
    }
    let list = [("r1", 100), ("huge", 12 * MIB)].map(|(text, bytes)| NewEntry {
        payload: payload(text, bytes),
        kind: EntryKind::Message,
        at: None,
    });
    let input = Input::Snapshot { entries: list.into(), window_id: String::new(), allow_rewind: true };
    let snapshot = PersistRequest { input, ..request(&key, "list", vec![]) };
    let before = site.database.dump().await;
    site.faults.set(Fault::Down);
    assert_retryable(site.node.engine.persist(snapshot.clone()).await, Reason::ObjectsUnavailable);
    assert!(site.database.dump().await == before);
    site.faults.set(Fault::None);
    site.node.engine.persist(snapshot).await.unwrap();
    let bodies = site.database.rows("SELECT length(body) FROM journal").await;
    assert!(
        bodies.iter().all(|row| row[0].parse::<usize>().unwrap() <= JOURNAL_TURN_BYTES_MAX),
        "{bodies:?}"
    );
    let told = site.another().await.read(&key).await.unwrap();
    assert!(told.entries == [(1, payload("r1", 100)), (2, payload("huge", 12 * MIB))]);
    site.node.assert_healthy().await;
}

/// A disk that is not mounted, as the service finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_directory_that_is_away_is_an_outage_and_no_loss() {
    let site = Site::new(Database::sqlite().await).await;
    let key = key("s");
    site.node.create(&key).await;
    let large = site.persist(&key, "large", 2 * MIB).await.unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let away = elsewhere.path().join("away");
    std::fs::rename(site.directory.path(), &away).unwrap();
    let other = site.another().await;
    assert_retryable(other.restore(&key).await, Reason::ObjectsUnavailable);
    assert_retryable(other.read(&key).await, Reason::ObjectsUnavailable);
    assert_eq!(site.persist(&key, "large", 2 * MIB).await.unwrap(), large);
    assert_eq!(site.persist(&key, "next", 2 * MIB).await.unwrap().version, Version(2));
    assert_eq!(site.database.rows("SELECT version FROM journal").await, [["2"]]);
    std::fs::rename(&away, site.directory.path()).unwrap();
    assert_eq!(other.read(&key).await.unwrap().entries.len(), 2);
    site.node.assert_healthy().await;
}

mod heavy {
    use super::*;
    use bytes::Bytes;
    use std::time::Duration;
    use turnkeep::engine::Options;

    /// A journal that is as full as it may be.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_journal_that_an_outage_filled_is_sealed_whole_when_it_ends() {
        // As long as the deadline of the service, since these blobs are large.
        let options =
            Options { blob_timeout: BLOB_TIMEOUT.max(Duration::from_secs(30)), ..Options::default() };
        let site = Site::with(Database::sqlite().await, options).await;
        let key = key("s");
        site.node.create(&key).await;
        site.faults.set(Fault::Down);
        let mut turns = 0;
        loop {
            match site.persist(&key, &format!("r{turns}"), 10 * MIB).await {
                Ok(_) => turns += 1,
                Err(Error::JournalFull { .. }) => break,
                Err(other) => panic!("{other:?}"),
            }
        }
        assert!((8..=9).contains(&turns), "{turns} turns of 7.5 MiB");
        site.faults.set(Fault::None);
        // One segment a turn, since each is as large as one should be.
        assert_eq!(site.node.seal(&key).await.unwrap(), turns);
        assert_eq!(site.node.meta.tip(&key, None).await.unwrap().unwrap().head.journal_bytes, 0);
        site.persist(&key, &format!("r{turns}"), 10 * MIB).await.unwrap();
        let told = site.another().await.read(&key).await.unwrap();
        for (i, (seq, entry)) in told.entries.iter().enumerate() {
            assert!(*seq == i as u64 + 1 && *entry == payload(&format!("r{i}"), 10 * MIB), "entry {i}");
        }
        assert_eq!(told.entries.len(), turns + 1);
        site.node.assert_healthy().await;
    }

    /// What compresses well is small in the journal and large in a segment.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_large_turn_after_a_journal_that_decodes_to_more_than_a_segment_may_is_taken() {
        let options = Options { blob_timeout: Duration::from_secs(30), ..Options::default() };
        let site = Site::with(Database::sqlite().await, options).await;
        let key = key("s");
        site.node.create(&key).await;
        let plain = |i: usize| Bytes::from(format!(r#"{{"i":{i},"text":"{}"}}"#, "a".repeat(27 * MIB)));
        for i in 0..10 {
            site.node.persist(&key, &format!("r{i}"), plain(i)).await.unwrap();
        }
        assert_eq!(site.database.rows("SELECT version FROM journal").await.len(), 10);
        site.persist(&key, "large", 2 * MIB).await.unwrap();
        let told = site.another().await.read(&key).await.unwrap();
        assert_eq!(told.entries.len(), 11);
        assert!(told.entries[..10].iter().enumerate().all(|(i, (_, entry))| *entry == plain(i)));
        site.node.assert_healthy().await;
    }
}

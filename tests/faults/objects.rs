//! An object store that is down, slow, hangs, or loses its answers.

use super::{BLOB_TIMEOUT, Site, assert_retryable};
use crate::stores::{Database, key, on_both_databases, payload, request, soon};
use futures::future::join_all;
use std::time::Duration;
use turnkeep::clock::Stopwatch;
use turnkeep::engine::{FsckOptions, Reason};
use turnkeep::model::{DeletionState, Version};
use turnkeep::store::BlobStore;
use turnkeep::store::faulty::Fault;

on_both_databases![
    turns_go_on_into_the_journal_while_the_store_is_down_and_are_sealed_afterwards,
    what_is_in_memory_or_in_the_journal_is_restored_while_the_store_is_down,
    a_store_that_takes_nothing_still_gives,
    every_call_that_hangs_ends_at_its_deadline,
    a_slow_store_slows_no_turn_down,
    lost_answers_lose_and_double_nothing,
    a_session_is_deleted_while_the_store_is_down_and_erased_afterwards,
    a_journal_that_cannot_be_sealed_keeps_no_other_from_it,
];

async fn turns_go_on_into_the_journal_while_the_store_is_down_and_are_sealed_afterwards(database: Database) {
    let site = Site::new(database).await;
    let key = site.sealed_session("s", 2).await;
    site.faults.set(Fault::Down);
    let mut replies = Vec::new();
    for i in 0..5 {
        replies.push(site.persist(&key, &format!("down-{i}"), 500).await.unwrap());
    }
    let journal = site.database.rows("SELECT version, body FROM journal ORDER BY version").await;
    assert_eq!(journal.len(), 5);
    for _ in 0..2 {
        assert_retryable(site.node.seal(&key).await, Reason::ObjectsUnavailable);
    }
    let unharmed = site.database.rows("SELECT version, body FROM journal ORDER BY version").await;
    assert_eq!(unharmed, journal);
    site.faults.set(Fault::None);
    assert_eq!(site.node.seal(&key).await.unwrap(), 1);
    assert_eq!(site.database.rows("SELECT version FROM journal").await, [[""; 1]; 0]);
    let told = site.another().await.read(&key).await.unwrap();
    assert_eq!((told.version, told.receipt), (Version(7), replies[4].receipt));
    let ids =
        (1..=2).map(|i| (format!("sealed-{i}"), 1_000)).chain((0..5).map(|i| (format!("down-{i}"), 500)));
    let expected: Vec<_> = (1..).zip(ids.map(|(id, bytes)| payload(&id, bytes))).collect();
    assert_eq!(told.entries, expected);
    site.node.assert_healthy().await;
}

async fn what_is_in_memory_or_in_the_journal_is_restored_while_the_store_is_down(database: Database) {
    let site = Site::new(database).await;
    let cached = site.sealed_session("cached", 2).await;
    let before = site.node.restore(&cached).await.unwrap();
    let sealed = site.sealed_session("sealed", 2).await;
    site.persist(&sealed, "tail", 100).await.unwrap();
    let whole = site.node.read(&sealed).await.unwrap();
    let journaled = key("journaled");
    site.node.create(&journaled).await;
    site.persist(&journaled, "r1", 100).await.unwrap();
    let other = site.another().await;
    site.faults.set(Fault::Down);
    // In this process's memory.
    let restored = site.node.restore(&cached).await.unwrap();
    assert_eq!(restored.items, before.items);
    // In the journal, whoever asks.
    for node in [&site.node, &other] {
        assert_eq!(node.restore(&journaled).await.unwrap().items.len(), 1);
        assert_eq!(node.read(&journaled).await.unwrap().entries, [(1, payload("r1", 100))]);
    }
    // Nowhere but in the object store: never a part of it.
    assert_retryable(other.restore(&sealed).await, Reason::ObjectsUnavailable);
    assert_retryable(other.read(&sealed).await, Reason::ObjectsUnavailable);
    // And yet it grows.
    other.persist(&sealed, "more", payload("more", 100)).await.unwrap();
    site.faults.set(Fault::None);
    let told = other.read(&sealed).await.unwrap();
    assert_eq!(told.entries[..3], whole.entries);
    assert_eq!(told.entries[3], (4, payload("more", 100)));
    assert_eq!(other.restore(&sealed).await.unwrap().items.len(), 4);
}

async fn a_store_that_takes_nothing_still_gives(database: Database) {
    let site = Site::new(database).await;
    let key = site.sealed_session("s", 3).await;
    site.faults.set(Fault::ReadOnly);
    site.persist(&key, "r1", 100).await.unwrap();
    assert_retryable(site.node.seal(&key).await, Reason::ObjectsUnavailable);
    assert_eq!(site.another().await.restore(&key).await.unwrap().items.len(), 4);
}

async fn every_call_that_hangs_ends_at_its_deadline(database: Database) {
    let site = Site::new(database).await;
    let key = site.sealed_session("s", 2).await;
    let dead = site.sealed_session("dead", 1).await;
    site.persist(&key, "r1", 100).await.unwrap();
    let other = site.another().await;
    site.faults.set(Fault::Hang);
    let waited = Stopwatch::start();
    let (sealed, restored, read, large) = soon("calls of a store that hangs", async {
        futures::join!(
            site.node.seal(&key),
            other.restore(&key),
            other.read(&key),
            site.persist(&key, "large", 2 << 20),
        )
    })
    .await;
    assert_retryable(sealed, Reason::ObjectsUnavailable);
    assert_retryable(restored, Reason::ObjectsUnavailable);
    assert_retryable(read, Reason::ObjectsUnavailable);
    // The journal takes it.
    assert_eq!(large.unwrap().version, Version(4));
    assert!(waited.elapsed() >= BLOB_TIMEOUT);
    let receipt = soon("a deletion", site.node.engine.delete_session(dead, false)).await.unwrap();
    assert_eq!(receipt.state, DeletionState::Pending);
    site.node.wait_long();
    let engine = &site.node.engine;
    assert_retryable(soon("a burial", engine.bury()).await, Reason::ObjectsUnavailable);
    assert_retryable(soon("a sweep", engine.sweep()).await, Reason::ObjectsUnavailable);
    let fsck = soon("a check", engine.fsck(FsckOptions { deep: false }, |_| {})).await;
    assert_retryable(fsck, Reason::ObjectsUnavailable);
    soon("the end of the process", engine.drain()).await;
    site.faults.set(Fault::None);
    assert_eq!(other.read(&key).await.unwrap().entries.len(), 4);
    site.node.assert_healthy().await;
}

async fn a_slow_store_slows_no_turn_down(database: Database) {
    let site = Site::new(database).await;
    let key = site.sealed_session("s", 2).await;
    let other = site.another().await;
    let puts = site.faults.puts();
    let delay = BLOB_TIMEOUT / 2;
    site.faults.set(Fault::Slow(delay));
    for i in 0..10 {
        site.persist(&key, &format!("r{i}"), 100).await.unwrap();
    }
    // Not one of them went to the object store.
    assert_eq!(site.faults.puts(), puts);
    let waited = Stopwatch::start();
    assert_eq!(other.restore(&key).await.unwrap().items.len(), 12);
    // Both segments were asked for at the same time.
    assert!(delay <= waited.elapsed() && site.faults.gets() == 2, "{} gets", site.faults.gets());
    assert_eq!(site.node.seal(&key).await.unwrap(), 1);
    site.faults.set(Fault::None);
    site.node.assert_healthy().await;
}

async fn lost_answers_lose_and_double_nothing(database: Database) {
    let site = Site::new(database).await;
    let key = site.sealed_session("s", 1).await;
    site.faults.set(Fault::LostAnswers);
    site.persist(&key, "small", 100).await.unwrap();
    let large = site.persist(&key, "large", 2 << 20).await.unwrap();
    for _ in 0..2 {
        assert_retryable(site.node.seal(&key).await, Reason::ObjectsUnavailable);
    }
    // A repetition gets the recorded answer.
    assert_eq!(site.persist(&key, "large", 2 << 20).await.unwrap(), large);
    site.faults.set(Fault::None);
    assert_eq!(site.persist(&key, "large", 2 << 20).await.unwrap(), large);
    assert_eq!(site.node.seal(&key).await.unwrap(), 1);
    let other = site.another().await;
    let told = other.read(&key).await.unwrap();
    let expected = [("sealed-1", 1_000), ("small", 100), ("large", 2 << 20)];
    let expected: Vec<_> = (1..).zip(expected.map(|(id, bytes)| payload(id, bytes))).collect();
    assert!(told.entries == expected, "the log is as it was persisted");
    assert_eq!((told.version, told.receipt), (Version(3), large.receipt));
    // What was put and never named is erased once its writer is gone.
    let report = site.node.fsck().await;
    assert!(report.orphans >= 3, "{report:?}");
    site.node.engine.drain().await;
    let swept = other.engine.sweep().await.unwrap();
    assert_eq!(swept.orphans_erased as u64, report.orphans);
    assert!(other.read(&key).await.unwrap() == told);
    let report = site.node.fsck().await;
    assert_eq!((report.orphans, report.findings), (0, vec![]));
}

async fn a_session_is_deleted_while_the_store_is_down_and_erased_afterwards(database: Database) {
    let site = Site::new(database).await;
    let key = site.sealed_session("s", 2).await;
    site.faults.set(Fault::Down);
    let receipt = site.node.engine.delete_session(key.clone(), false).await.unwrap();
    assert_eq!(receipt.state, DeletionState::Pending);
    assert_eq!(site.node.read(&key).await.unwrap_err().reason(), Reason::SessionNotFound);
    site.node.wait_long();
    assert_retryable(site.node.engine.bury().await, Reason::ObjectsUnavailable);
    assert_eq!(site.node.engine.deletion(&key).await.unwrap().state, DeletionState::Pending);
    site.faults.set(Fault::None);
    for _ in 0..2 {
        site.node.engine.bury().await.unwrap();
    }
    let receipt = site.node.engine.deletion(&key).await.unwrap();
    assert_eq!((receipt.state, receipt.objects_pending), (DeletionState::Erased, 0));
    let left = crate::stores::blob_keys(site.directory.blobs.as_ref()).await;
    assert!(left.len() == 1 && left[0].starts_with("ledger/"), "{left:?}");
}

async fn a_journal_that_cannot_be_sealed_keeps_no_other_from_it(database: Database) {
    let site = Site::new(database).await;
    let (damaged, sound) = (key("damaged"), key("sound"));
    for (key, turns) in [(&damaged, 5), (&sound, 1)] {
        site.node.create(key).await;
        for i in 0..turns {
            site.persist(key, &format!("r{i}"), 500).await.unwrap();
        }
    }
    site.database.execute("UPDATE journal SET body = '' WHERE version = 3").await;
    site.node.clock.advance(Duration::from_hours(25));
    site.node.engine.seal_due().await.unwrap_err();
    let branch = site.node.branch(&sound).await;
    let left = site.node.meta.journal(&branch, Version(0), Version(u64::MAX)).await.unwrap();
    assert_eq!(left, [], "the other session's journal is sealed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_writers_in_an_outage_nobody_loses_a_turn() {
    let site = Site::new(Database::sqlite().await).await;
    let key = key("s");
    site.node.create(&key).await;
    let engine = &site.node.engine;
    let writers = (0..4).map(|writer| {
        let (engine, key) = (engine.clone(), key.clone());
        tokio::spawn(async move {
            let mut acknowledged = Vec::new();
            for i in 0..10 {
                let id = format!("w{writer}-{i}");
                let reply = loop {
                    match engine.persist(request(&key, &id, vec![payload(&id, 300)])).await {
                        Ok(reply) => break reply,
                        Err(error) => assert_eq!(error.reason(), Reason::Contention, "{error:?}"),
                    }
                };
                acknowledged.push((reply.first_seq.0, payload(&id, 300)));
            }
            acknowledged
        })
    });
    let writing = tokio::spawn(join_all(writers));
    for fault in [Fault::Down, Fault::None, Fault::LostAnswers, Fault::Hang, Fault::None].into_iter().cycle()
    {
        site.faults.set(fault);
        let _ = site.node.seal(&key).await;
        if writing.is_finished() {
            break;
        }
    }
    let mut expected: Vec<_> = writing.await.unwrap().into_iter().flat_map(Result::unwrap).collect();
    expected.sort();
    site.faults.set(Fault::None);
    site.node.seal(&key).await.unwrap();
    assert_eq!(site.another().await.read(&key).await.unwrap().entries, expected);
    assert_eq!(expected.len(), 40);
    site.node.assert_healthy().await;
    site.faults.probe().await.unwrap();
}

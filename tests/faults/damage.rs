//! Stored bytes that are altered, cut short or missing: they are noticed and
//! named, and never served, nor what is left around them as if it were whole.

use super::Site;
use crate::stores::{Database, Gate, GatedBlobs, Node, on_both_databases, payload};
use futures::StreamExt as _;
use std::fs;
use std::path::PathBuf;
use turnkeep::engine::{Error, LogRange};
use turnkeep::model::{Segment, Seq};
use turnkeep::store::faulty::Fault;
use turnkeep::store::meta::SessionKey;

on_both_databases![
    a_damaged_blob_is_data_loss_of_its_entries_until_it_is_whole_again,
    a_missing_blob_is_data_loss_of_its_entries_until_it_is_back,
    a_store_that_alters_what_it_gives_is_data_loss_until_it_stops,
    a_damaged_journal_row_is_data_loss_of_its_entries,
    rows_that_are_missing_are_data_loss_of_their_entries,
    a_blob_that_arrives_damaged_once_is_fetched_again,
];

/// A session of three sealed turns and one in the journal, and its segments.
async fn stored(site: &Site) -> (SessionKey, Vec<Segment>) {
    let key = site.sealed_session("s", 3).await;
    site.persist(&key, "tail", 100).await.unwrap();
    let branch = site.node.branch(&key).await;
    let segments = site.node.meta.segments(&branch, Seq(0), Seq(u64::MAX)).await.unwrap();
    assert_eq!(segments.len(), 3);
    (key, segments)
}

/// That entries are lost, and that this is said of them and of no others.
#[track_caller]
fn assert_lost<T: std::fmt::Debug>(outcome: Result<T, Error>, key: &SessionKey, entries: (u64, u64)) {
    match outcome.unwrap_err() {
        Error::DataLoss { session, first, last, .. } => {
            assert_eq!((session, (first.0, last.0)), (key.session.clone(), entries));
        }
        other => panic!("{other:?}"),
    }
}

/// What a reader gets up to the failure.
async fn read_until_failure(node: &Node, key: &SessionKey) -> (Vec<u64>, Result<(), Error>) {
    let (_, pieces) = match node.engine.read(key.clone(), LogRange::default()).await {
        Ok(read) => read,
        Err(error) => return (vec![], Err(error)),
    };
    let pieces: Vec<_> = pieces.collect().await;
    let mut seqs = Vec::new();
    for piece in pieces {
        match piece {
            Ok(entries) => seqs.extend(entries.iter().map(|entry| entry.seq.0)),
            Err(error) => return (seqs, Err(error)),
        }
    }
    (seqs, Ok(()))
}

async fn range(node: &Node, key: &SessionKey, first: u64, last: u64) -> Result<Vec<u64>, Error> {
    let range = LogRange { first: Some(Seq(first)), last: Some(Seq(last)), at_version: None };
    let (_, mut pieces) = node.engine.read(key.clone(), range).await?;
    let mut seqs = Vec::new();
    while let Some(piece) = pieces.next().await {
        seqs.extend(piece?.iter().map(|entry| entry.seq.0));
    }
    Ok(seqs)
}

/// Everything around the second entry is served, and nothing in its place.
async fn assert_second_entry_is_lost(site: &Site, key: &SessionKey) {
    let node = site.another().await;
    assert_lost(node.restore(key).await, key, (2, 2));
    let (seqs, failure) = read_until_failure(&node, key).await;
    assert_eq!(seqs, [1]);
    assert_lost(failure, key, (2, 2));
    assert_lost(range(&node, key, 2, 3).await, key, (2, 2));
    assert_eq!(range(&node, key, 1, 1).await.unwrap(), [1]);
    assert_eq!(range(&node, key, 3, 4).await.unwrap(), [3, 4]);
    // It fails again, and not only for whom it failed before.
    assert_lost(node.restore(key).await, key, (2, 2));
    // The session goes on.
    let id = format!("more-{}", node.meta.tip(key, None).await.unwrap().unwrap().head.version);
    node.persist(key, &id, payload(&id, 50)).await.unwrap();
}

async fn assert_whole(site: &Site, key: &SessionKey) {
    let node = site.another().await;
    let told = node.read(key).await.unwrap();
    assert_eq!(node.restore(key).await.unwrap().items.len(), told.entries.len());
    for (seq, entry) in told.entries.iter().take(3) {
        assert_eq!(*entry, payload(&format!("sealed-{seq}"), 1_000));
    }
    site.node.assert_healthy().await;
}

fn path(site: &Site, segment: &Segment) -> PathBuf {
    site.directory.path().join(&segment.key)
}

async fn a_damaged_blob_is_data_loss_of_its_entries_until_it_is_whole_again(database: Database) {
    let site = Site::new(database).await;
    let (key, segments) = stored(&site).await;
    let file = path(&site, &segments[1]);
    let sound = fs::read(&file).unwrap();
    let flipped = |i: usize| {
        let mut bytes = sound.clone();
        bytes[i] ^= 0x10;
        bytes
    };
    let middle = flipped(sound.len() / 2);
    let longer = [sound.as_slice(), b"x"].concat();
    let others = fs::read(path(&site, &segments[2])).unwrap();
    let cut = sound[..sound.len() - 1].to_vec();
    for damaged in [flipped(0), middle, flipped(sound.len() - 1), cut, vec![], longer, others] {
        fs::write(&file, damaged).unwrap();
        assert_second_entry_is_lost(&site, &key).await;
        fs::write(&file, &sound).unwrap();
        assert_whole(&site, &key).await;
    }
}

async fn a_missing_blob_is_data_loss_of_its_entries_until_it_is_back(database: Database) {
    let site = Site::new(database).await;
    let (key, segments) = stored(&site).await;
    let file = path(&site, &segments[1]);
    let elsewhere = site.directory.path().join(".elsewhere");
    fs::rename(&file, &elsewhere).unwrap();
    assert_second_entry_is_lost(&site, &key).await;
    fs::rename(&elsewhere, &file).unwrap();
    assert_whole(&site, &key).await;
}

async fn a_store_that_alters_what_it_gives_is_data_loss_until_it_stops(database: Database) {
    let site = Site::new(database).await;
    let (key, _) = stored(&site).await;
    for fault in [Fault::FlippedBit, Fault::CutShort] {
        site.faults.set(fault);
        let node = site.another().await;
        let (seqs, failure) = read_until_failure(&node, &key).await;
        assert_eq!(seqs, [0; 0]);
        assert_lost(failure, &key, (1, 1));
        node.restore(&key).await.unwrap_err();
        // What is in the journal does not come from there.
        assert_eq!(range(&node, &key, 4, 4).await.unwrap(), [4]);
        site.faults.set(Fault::None);
        assert_eq!(node.restore(&key).await.unwrap().items.len(), 4);
        assert_whole(&site, &key).await;
    }
}

async fn a_damaged_journal_row_is_data_loss_of_its_entries(database: Database) {
    let site = Site::new(database).await;
    let (key, _) = stored(&site).await;
    site.database.execute("UPDATE journal SET body = (SELECT request_digest FROM turn LIMIT 1)").await;
    let node = site.another().await;
    assert_lost(node.restore(&key).await, &key, (4, 4));
    assert_lost(range(&node, &key, 1, 9).await, &key, (4, 4));
    assert_eq!(range(&node, &key, 1, 3).await.unwrap(), [1, 2, 3]);
}

async fn rows_that_are_missing_are_data_loss_of_their_entries(database: Database) {
    let site = Site::new(database).await;
    let (key, _) = stored(&site).await;
    site.database.execute("DELETE FROM journal").await;
    let node = site.another().await;
    assert_lost(node.restore(&key).await, &key, (4, 4));
    assert_eq!(range(&node, &key, 1, 3).await.unwrap(), [1, 2, 3]);
    site.database.execute("DELETE FROM segment WHERE first_seq = 2").await;
    let node = site.another().await;
    assert_lost(range(&node, &key, 1, 3).await, &key, (2, 2));
    assert_lost(node.restore(&key).await, &key, (2, 2));
    assert_eq!(range(&node, &key, 3, 3).await.unwrap(), [3]);
}

async fn a_blob_that_arrives_damaged_once_is_fetched_again(database: Database) {
    let site = Site::new(database).await;
    let key = site.sealed_session("s", 1).await;
    let gate = Gate::new();
    let blobs = std::sync::Arc::new(GatedBlobs { inner: site.faults.clone(), gate: gate.clone() });
    let node = Node::start(site.node.meta.clone(), blobs).await;
    site.faults.set(Fault::FlippedBit);
    let mut first = gate.hold("get");
    let mut second = gate.hold("get");
    let reading = tokio::spawn(async move { node.read(&key).await });
    first.reached().await;
    first.release();
    second.reached().await;
    site.faults.set(Fault::None);
    second.release();
    assert_eq!(reading.await.unwrap().unwrap().entries, [(1, payload("sealed-1", 1_000))]);
}

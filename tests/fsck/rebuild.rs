//! The metadata is made anew from the blobs alone: all that was sealed, and the
//! deletions.

use super::Site;
use crate::stores::{Database, Node, blob_keys, key, on_both_databases, payload};
use std::collections::BTreeMap;
use turnkeep::engine::{Error, RebuildReport, rebuild};
use turnkeep::model::{DeletionState, Seq, Version};
use turnkeep::store::BlobStore;
use turnkeep::store::meta::SessionKey;

on_both_databases![
    what_was_sealed_comes_back_as_it_was,
    a_rebuilt_store_goes_on,
    what_was_in_the_journal_is_told_to_be_lost,
    a_deleted_session_stays_deleted_and_is_erased_in_the_end,
    a_fork_of_a_deleted_session_comes_back_whole,
    turns_that_were_sealed_at_once_come_back_with_their_configuration,
    what_blobs_show_to_be_missing_is_listed,
    a_rewind_that_was_not_sealed_is_as_if_it_had_not_been,
    a_target_that_is_not_empty_is_refused,
    a_session_without_a_manifest_comes_back_and_says_what_it_lost,
];

pub(super) struct Rebuilt {
    pub(super) database: Database,
    pub(super) node: Node,
    pub(super) report: RebuildReport,
}

pub(super) async fn rebuild_of(site: &Site) -> Rebuilt {
    let database = match site.database.url() {
        None => Database::sqlite().await,
        Some(_) => Database::postgres().await.unwrap(),
    };
    let mut told = 0;
    let blobs = site.directory.blobs.clone();
    let report = rebuild(blobs.as_ref(), database.meta.as_ref(), |blobs| told = blobs).await.unwrap();
    assert_eq!(told, report.blobs);
    let node =
        Node::at(database.meta.clone(), blobs, turnkeep::engine::Options::default(), site.node.clock.clone());
    Rebuilt { node: node.await, database, report }
}

/// Seals everything that can be.
pub(super) async fn seal_all(site: &Site) {
    let meta = &site.node.meta;
    for (tenant, branch) in meta.all_branches(None, 100).await.unwrap() {
        let key = turnkeep::store::meta::BranchKey { tenant, branch: branch.id };
        site.node.engine.seal_branch(&key).await.unwrap();
    }
}

async fn what_was_sealed_comes_back_as_it_was(database: Database) {
    let site = Site::new(database).await;
    // The fork of the deleted session has nothing of its own to be sealed.
    site.turn(&key("survivor"), "own", 300).await;
    seal_all(&site).await;
    let rebuilt = rebuild_of(&site).await;
    assert_eq!(rebuilt.report.findings, []);
    assert_eq!((rebuilt.report.sessions, rebuilt.report.deleted, rebuilt.report.branches), (3, 1, 5));
    let (mut ours, mut theirs) = (site.database.dump().await, rebuilt.database.dump().await);
    // Row by row and column by column, but for the time at which a segment was
    // written.
    for dump in [&mut ours, &mut theirs] {
        dump.get_mut("segment").unwrap().iter_mut().for_each(|row| drop(row.pop()));
    }
    for table in ["branch", "turn", "segment", "session", "session_label", "preamble", "journal"] {
        assert_eq!(ours[table], theirs[table], "{table}");
    }
    for session in ["main", "fork", "survivor"] {
        let key = key(session);
        let told = site.node.another().await.read(&key).await.unwrap();
        assert!(rebuilt.node.read(&key).await.unwrap() == told, "{session}");
        let (ours, theirs) =
            (site.node.restore(&key).await.unwrap(), rebuilt.node.restore(&key).await.unwrap());
        assert!(ours.items == theirs.items, "{session}");
        assert_eq!(ours.header.preamble, theirs.header.preamble, "{session}");
        let (ours, theirs) =
            (site.node.engine.get_session(&key).await, rebuilt.node.engine.get_session(&key).await);
        let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
        assert_eq!((ours.etag(), ours.log_tokens), (theirs.etag(), theirs.log_tokens));
        assert_eq!(ours.session, theirs.session);
        // A window that a worker holds of the old one is not taken for one of it.
        assert_eq!(theirs.head.window_revision, ours.head.window_revision + 1);
    }
    rebuilt.node.assert_healthy().await;
}

async fn a_rebuilt_store_goes_on(database: Database) {
    let site = Site::empty(database).await;
    let key = site.session("s", 3).await;
    let before = blob_keys(site.directory.blobs.as_ref()).await;
    let rebuilt = rebuild_of(&site).await;
    let node = &rebuilt.node;
    // A repetition of a request from before gets the answer of before.
    let again = node.persist(&key, "r2", payload("r2", 300)).await.unwrap();
    assert_eq!(again.version, Version(2));
    node.persist(&key, "r4", payload("r4", 300)).await.unwrap();
    assert_eq!(node.seal(&key).await.unwrap(), 1);
    assert!(node.engine.roll_up_branch(&node.branch(&key).await).await.unwrap());
    assert_eq!(node.read(&key).await.unwrap().entries.len(), 4);
    node.wait_long();
    node.engine.bury().await.unwrap();
    node.engine.drain().await;
    node.another().await.engine.sweep().await.unwrap();
    assert_eq!(node.another().await.read(&key).await.unwrap().entries.len(), 4);
    node.assert_healthy().await;
    // Of before, only what was rolled up or replaced is gone.
    let named = rebuilt.database.rows("SELECT blob_key FROM segment").await;
    assert_eq!(named.len(), 1);
    assert!(!before.contains(&named[0][0]));
}

async fn what_was_in_the_journal_is_told_to_be_lost(database: Database) {
    let site = Site::empty(database).await;
    let key = site.session("s", 2).await;
    site.turn(&key, "j1", 300).await;
    // The manifest of a seal tells how far the session was.
    let other = site.session("other", 1).await;
    site.turn(&other, "j1", 300).await;
    let rebuilt = rebuild_of(&site).await;
    for (key, turns) in [(&key, 2), (&other, 1)] {
        let told = rebuilt.node.read(key).await.unwrap();
        assert_eq!((told.version, told.entries.len()), (Version(turns as u64), turns));
    }
    rebuilt.node.assert_healthy().await;
    // A worker that goes on notices, since the version is not what it expects.
    let mut next = crate::stores::request(&key, "j2", vec![payload("j2", 300)]);
    next.expected_version = Some(Version(3));
    assert!(matches!(rebuilt.node.engine.persist(next).await, Err(Error::VersionMismatch { .. })));
}

async fn a_deleted_session_stays_deleted_and_is_erased_in_the_end(database: Database) {
    let site = Site::empty(database).await;
    let (doomed, kept) = (site.session("doomed", 5).await, site.session("kept", 1).await);
    site.node.engine.roll_up_due().await.unwrap();
    site.node.engine.delete_session(doomed.clone(), false).await.unwrap();
    // The metadata is lost before anything was erased.
    let rebuilt = rebuild_of(&site).await;
    assert_eq!((rebuilt.report.sessions, rebuilt.report.deleted), (1, 1));
    let node = &rebuilt.node;
    assert!(node.read(&doomed).await.is_err());
    let taken = node.engine.create_session(doomed.clone(), crate::stores::config()).await.unwrap_err();
    assert!(matches!(taken, Error::SessionExists { deleted: true, .. }), "{taken:?}");
    assert_ne!(node.engine.deletion(&doomed).await.unwrap().state, DeletionState::Erased);
    for _ in 0..3 {
        node.wait_long();
        node.engine.bury().await.unwrap();
    }
    let receipt = node.engine.deletion(&doomed).await.unwrap();
    assert_eq!((receipt.state, receipt.objects_pending), (DeletionState::Erased, 0));
    let branch = node.branch(&kept).await.branch.to_string();
    let left = blob_keys(site.directory.blobs.as_ref()).await;
    assert!(left.iter().all(|key| key.contains(&branch) || key.starts_with("ledger/")), "{left:?}");
    assert_eq!(node.read(&kept).await.unwrap().entries, [(1, payload("r1", 300))]);
    node.assert_healthy().await;
}

async fn a_fork_of_a_deleted_session_comes_back_whole(database: Database) {
    let site = Site::empty(database).await;
    let source = site.session("source", 3).await;
    let fork = site.fork(&source, Some(2), "fork").await;
    site.turn(&fork, "own", 300).await;
    site.node.seal(&fork).await.unwrap();
    let told = site.node.read(&fork).await.unwrap();
    site.node.engine.delete_session(source.clone(), false).await.unwrap();
    let rebuilt = rebuild_of(&site).await;
    assert_eq!(rebuilt.report.findings, []);
    assert_eq!(rebuilt.node.read(&fork).await.unwrap(), told);
    let receipt = rebuilt.node.engine.deletion(&source).await.unwrap();
    assert_eq!(receipt.state, DeletionState::RetainedByForks);
    assert_eq!(receipt.retained_by, std::slice::from_ref(&fork.session));
    for _ in 0..2 {
        rebuilt.node.wait_long();
        rebuilt.node.engine.bury().await.unwrap();
    }
    assert_eq!(rebuilt.node.another().await.read(&fork).await.unwrap(), told);
    rebuilt.node.assert_healthy().await;
    rebuilt.node.engine.delete_session(fork.clone(), false).await.unwrap();
    for _ in 0..3 {
        rebuilt.node.wait_long();
        rebuilt.node.engine.bury().await.unwrap();
    }
    let left = blob_keys(site.directory.blobs.as_ref()).await;
    assert!(left.iter().all(|key| key.starts_with("ledger/")), "{left:?}");
}

async fn turns_that_were_sealed_at_once_come_back_with_their_configuration(database: Database) {
    let mut site = Site::empty(database).await;
    let options = turnkeep::engine::Options { seal_every_turn: true, ..turnkeep::engine::Options::default() };
    let plain = site.node.clone();
    site.node = Node::at(plain.meta.clone(), plain.blobs.clone(), options, plain.clock.clone()).await;
    let key = key("s");
    site.node.create(&key).await;
    for id in ["r1", "r2", "r3"] {
        site.turn(&key, id, 300).await;
    }
    site.fork(&key, Some(2), "fork").await;
    site.fork(&key, None, "goes-on").await;
    site.turn(&crate::key("goes-on"), "own", 300).await;
    site.rewind(&key, 1).await;
    site.fork(&key, Some(4), "of-the-rewind").await;
    let change = turnkeep::engine::SessionChange {
        preamble: Some(bytes::Bytes::from_static(b"{\"other\": \"preamble\"}")),
        ..turnkeep::engine::SessionChange::default()
    };
    site.node.engine.update_session(key.clone(), change).await.unwrap();
    let mut usage = crate::stores::request(&key, "usage", vec![]);
    usage.usage = Some(turnkeep::model::Usage { input_tokens: 3, ..turnkeep::model::Usage::default() });
    site.node.engine.persist(usage).await.unwrap();
    let mut told = Vec::new();
    for session in ["s", "fork", "goes-on", "of-the-rewind"] {
        told.push(plain.another().await.read(&crate::key(session)).await.unwrap());
    }
    site.node.engine.drain().await;
    // What nobody names is gone by the time that it is needed.
    plain.wait_long();
    plain.engine.bury().await.unwrap();
    plain.engine.sweep().await.unwrap();
    let rebuilt = rebuild_of(&site).await;
    assert_eq!(rebuilt.report.findings, []);
    assert_eq!((rebuilt.report.sessions, rebuilt.report.branches), (4, 5));
    for (session, told) in ["s", "fork", "goes-on", "of-the-rewind"].into_iter().zip(told) {
        assert_eq!(rebuilt.node.read(&crate::key(session)).await.unwrap(), told, "{session}");
    }
    let (mut ours, mut theirs) = (site.database.dump().await, rebuilt.database.dump().await);
    for dump in [&mut ours, &mut theirs] {
        dump.get_mut("segment").unwrap().iter_mut().for_each(|row| drop(row.pop()));
    }
    for table in ["session", "session_label", "preamble", "branch", "turn", "segment", "manifest", "journal"]
    {
        assert_eq!(ours[table], theirs[table], "{table}");
    }
    rebuilt.node.assert_healthy().await;
}

async fn what_blobs_show_to_be_missing_is_listed(database: Database) {
    let site = Site::empty(database).await;
    // A turn that is in the journal when the session leaves its branch.
    let key = site.session("s", 2).await;
    site.turn(&key, "journaled", 300).await;
    let first = site.node.branch(&key).await.branch;
    site.rewind(&key, 1).await;
    // A branch without a segment, between two that have one.
    site.node.engine.persist(crate::stores::request(&key, "empty", vec![])).await.unwrap();
    let second = site.node.branch(&key).await.branch;
    site.rewind(&key, 2).await;
    site.turn(&key, "after", 300).await;
    site.node.seal(&key).await.unwrap();
    // A session of which nothing but the manifest is left, and one of which the
    // newest turns are lost.
    let lost = site.session("source", 1).await;
    let lost = site.fork(&lost, None, "lost").await;
    site.turn(&lost, "own", 300).await;
    site.node.seal(&lost).await.unwrap();
    for segment in segments_of(&site, &lost).await.values() {
        site.directory.blobs.delete(segment).await.unwrap();
    }
    let told = site.node.read(&key).await.unwrap();
    let rebuilt = rebuild_of(&site).await;
    let mut findings: Vec<_> =
        rebuilt.report.findings.iter().map(|f| (f.place.clone(), f.problem.as_str())).collect();
    findings.sort();
    let mut expected = [
        (format!("default/{first}"), "its turns 3 to 3 are not there"),
        (format!("default/{second}"), "its turns 4 to 5 are not there"),
        ("default/sessions/lost".to_owned(), "nothing of it could be made anew"),
    ];
    expected.sort();
    assert_eq!(findings, expected);
    assert!(rebuilt.report.not_in_blobs.contains("turns that were not sealed"));
    // All else is as it was, and goes on.
    assert_eq!(rebuilt.node.read(&key).await.unwrap(), told);
    let next = rebuilt.node.persist(&key, "next", payload("next", 300)).await.unwrap();
    assert_eq!(next.version, Version(8));
    rebuilt.node.assert_healthy().await;
}

/// A branch of which nothing came back is none that a later version may be
/// looked for on.
async fn a_rewind_that_was_not_sealed_is_as_if_it_had_not_been(database: Database) {
    let site = Site::empty(database).await;
    let key = site.session("s", 2).await;
    let first = site.node.branch(&key).await;
    site.turn(&key, "r3", 300).await;
    site.rewind(&key, 1).await;
    // The manifest of this seal knows the branch that is not sealed.
    assert_eq!(site.node.engine.seal_branch(&first).await.unwrap(), 1);
    let rebuilt = rebuild_of(&site).await;
    let [finding] = rebuilt.report.findings.clone().try_into().unwrap();
    assert_eq!(finding.place, "default/sessions/s");
    assert_eq!(finding.problem, "was at version 4 and comes back at 3");
    let node = &rebuilt.node;
    assert_eq!(node.persist(&key, "r4", payload("r4", 300)).await.unwrap().version, Version(4));
    assert_eq!(node.persist(&key, "r5", payload("r5", 300)).await.unwrap().version, Version(5));
    let range = turnkeep::engine::LogRange { at_version: Some(Version(4)), ..Default::default() };
    assert_eq!(node.engine.read(key.clone(), range).await.unwrap().0.version, Version(4));
    node.assert_healthy().await;
}

async fn a_target_that_is_not_empty_is_refused(database: Database) {
    let site = Site::empty(database).await;
    site.session("s", 1).await;
    let rebuilt = rebuild_of(&site).await;
    for target in [&site.database, &rebuilt.database] {
        let before = target.dump().await;
        let refused = rebuild(site.directory.blobs.as_ref(), target.meta.as_ref(), |_| {}).await.unwrap_err();
        assert!(matches!(refused, Error::InvalidField { .. }), "{refused:?}");
        assert_eq!(target.dump().await, before);
    }
    // Nor is one that holds nothing but a deletion.
    let deleted = Site::empty(super::Database::sqlite().await).await;
    let key = deleted.session("gone", 1).await;
    deleted.node.engine.delete_session(key, false).await.unwrap();
    let refused = rebuild(site.directory.blobs.as_ref(), deleted.database.meta.as_ref(), |_| {}).await;
    assert!(matches!(refused, Err(Error::InvalidField { .. })), "{refused:?}");
}

async fn a_session_without_a_manifest_comes_back_and_says_what_it_lost(database: Database) {
    let site = Site::empty(database).await;
    let key = site.session("s", 2).await;
    for blob in blob_keys(site.directory.blobs.as_ref()).await {
        if blob.contains("/m-") {
            site.directory.blobs.delete(&blob).await.unwrap();
        }
    }
    let rebuilt = rebuild_of(&site).await;
    let [finding] = rebuilt.report.findings.try_into().unwrap();
    assert_eq!(finding.place, "default/sessions/s");
    assert!(finding.problem.contains("configuration is lost"), "{finding:?}");
    let told = site.node.read(&key).await.unwrap();
    assert_eq!(rebuilt.node.read(&key).await.unwrap(), told);
    let view = rebuilt.node.engine.get_session(&key).await.unwrap();
    assert_eq!((view.session.format, view.preamble), (crate::stores::config().format, None));
}

/// Segments of a session, by first version, in the order of their keys.
pub(super) async fn segments_of(site: &Site, key: &SessionKey) -> BTreeMap<u64, String> {
    let branch = site.node.branch(key).await;
    let segments = site.node.meta.segments(&branch, Seq(0), Seq(u64::MAX)).await.unwrap();
    segments.into_iter().map(|segment| (segment.first_version.0, segment.key)).collect()
}

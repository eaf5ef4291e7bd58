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
async fn seal_all(site: &Site) {
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
    let site = Site::empty(database).await;
    let options = turnkeep::engine::Options { seal_every_turn: true, ..turnkeep::engine::Options::default() };
    let node =
        Node::at(site.node.meta.clone(), site.node.blobs.clone(), options, site.node.clock.clone()).await;
    let key = key("s");
    node.create(&key).await;
    for id in ["r1", "r2"] {
        node.persist(&key, id, payload(id, 300)).await.unwrap();
    }
    node.engine.drain().await;
    // What nobody names is gone by the time that it is needed.
    node.wait_long();
    site.node.engine.bury().await.unwrap();
    site.node.engine.sweep().await.unwrap();
    let rebuilt = rebuild_of(&site).await;
    assert_eq!(rebuilt.report.findings, []);
    let (ours, theirs) = (site.database.dump().await, rebuilt.database.dump().await);
    for table in ["session", "session_label", "preamble", "turn"] {
        assert_eq!(ours[table], theirs[table], "{table}");
    }
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

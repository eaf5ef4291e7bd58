//! Blobs that a crash or a lost race left behind, and such as contradict each
//! other: a rebuild chooses nothing silently.

use super::Site;
use super::rebuild::{rebuild_of, segments_of};
use crate::stores::{
    Database, Gate, GatedBlobs, GatedMeta, Node, id_of, key, on_both_databases, payload, soon,
};
use std::fs;
use std::sync::Arc;
use turnkeep::engine::{Options, RewindRequest};
use turnkeep::model::Version;
use turnkeep::store::meta::SessionKey;

on_both_databases![
    what_a_roll_up_left_behind_does_no_harm,
    the_blob_of_a_turn_that_lost_its_race_is_told_from_the_one_that_won,
    blobs_that_contradict_each_other_end_the_branch_before,
    a_damaged_blob_ends_its_branch_before_and_what_follows_is_listed,
    a_fork_whose_base_was_not_sealed_is_listed,
    a_rewind_that_lost_its_race_is_told_from_the_turns_that_won,
    a_turn_that_lost_its_race_with_a_rewind_is_told_from_it,
    a_manifest_tells_which_turn_was_committed_where_none_follows,
];

async fn what_a_roll_up_left_behind_does_no_harm(database: Database) {
    let site = Site::empty(database).await;
    let key = site.session("s", 5).await;
    let old = segments_of(&site, &key).await;
    // The merged blob, the old ones, and one that was put and not committed.
    assert_eq!(site.node.engine.roll_up_due().await.unwrap(), 1);
    let told = site.node.read(&key).await.unwrap();
    let rebuilt = rebuild_of(&site).await;
    assert_eq!(rebuilt.report.findings, []);
    assert_eq!(rebuilt.report.blobs, 5 + 1 + 5);
    assert_eq!(rebuilt.node.read(&key).await.unwrap(), told);
    let named = rebuilt.database.rows("SELECT blob_key FROM segment").await;
    assert!(named.len() == 1 && !old.values().any(|key| *key == named[0][0]), "{named:?}");
    rebuilt.node.assert_healthy().await;
}

/// A process that is held up after it has put the blob of a large turn.
async fn stalled(site: &Site) -> (Node, Arc<Gate>) {
    let gate = Gate::new();
    let meta = Arc::new(GatedMeta { inner: site.database.meta.clone(), gate: gate.clone() });
    let blobs = Arc::new(GatedBlobs { inner: site.directory.blobs.clone(), gate: gate.clone() });
    let options = Options { seal_every_turn: true, ..Options::default() };
    (Node::at(meta, blobs, options, site.node.clock.clone()).await, gate)
}

/// Two turns race for version 2: the one whose blob was there first loses.
async fn race(site: &Site) -> SessionKey {
    const LARGE: usize = 2 << 20;
    let key = site.session("s", 1).await;
    let (node, gate) = stalled(site).await;
    let mut commit = gate.hold("commit_turn");
    let losing = tokio::spawn({
        let (node, key) = (node.clone(), key.clone());
        async move { node.persist(&key, "loser", payload("loser", LARGE)).await }
    });
    commit.reached().await;
    site.turn(&key, "winner", LARGE).await;
    commit.release();
    // It comes after the winner then.
    let reply = soon("the loser", losing).await.unwrap().unwrap();
    assert_eq!(reply.version, Version(3));
    key
}

async fn the_blob_of_a_turn_that_lost_its_race_is_told_from_the_one_that_won(database: Database) {
    let site = Site::empty(database).await;
    let key = race(&site).await;
    let told = site.node.another().await.read(&key).await.unwrap();
    assert_eq!(told.entries.len(), 3);
    let rebuilt = rebuild_of(&site).await;
    assert!(rebuilt.node.read(&key).await.unwrap() == told, "all turns are there");
    // It is said which blob was passed over.
    let [finding] = rebuilt.report.findings.try_into().unwrap();
    let named = segments_of(&site, &key).await;
    assert!(!named.values().any(|key| *key == finding.place), "{finding:?}");
    assert!(finding.problem.contains("turn 2"), "{finding:?}");
    rebuilt.node.assert_healthy().await;
}

async fn blobs_that_contradict_each_other_end_the_branch_before(database: Database) {
    let site = Site::empty(database).await;
    let key = race(&site).await;
    // Without the turn after it nothing tells which of the two was committed.
    let third = segments_of(&site, &key).await.remove(&3).unwrap();
    fs::remove_file(site.directory.path().join(third)).unwrap();
    let rebuilt = rebuild_of(&site).await;
    let told = rebuilt.node.read(&key).await.unwrap();
    assert_eq!((told.version, told.entries), (Version(1), vec![(1, payload("r1", 300))]));
    let problems: Vec<_> = rebuilt.report.findings.iter().map(|finding| finding.problem.as_str()).collect();
    assert!(
        problems.iter().any(|problem| problem.contains("contradict each other on turn 2")),
        "{problems:?}"
    );
    // Both blobs are named, so that a person can look at them.
    let unused =
        rebuilt.report.findings.iter().filter(|finding| finding.problem.contains("cannot be reached"));
    assert_eq!(unused.count(), 2, "{:?}", rebuilt.report.findings);
    rebuilt.node.assert_healthy().await;
}

async fn a_damaged_blob_ends_its_branch_before_and_what_follows_is_listed(database: Database) {
    let site = Site::empty(database).await;
    let (damaged, sound) = (site.session("damaged", 4).await, site.session("sound", 2).await);
    let segments = segments_of(&site, &damaged).await;
    let path = site.directory.path().join(&segments[&2]);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    let rebuilt = rebuild_of(&site).await;
    let told = rebuilt.node.read(&damaged).await.unwrap();
    assert_eq!((told.version, told.entries.len()), (Version(1), 1));
    assert_eq!(rebuilt.node.read(&sound).await.unwrap(), site.node.read(&sound).await.unwrap());
    for version in [2, 3, 4] {
        let place = &segments[&version];
        assert!(
            rebuilt.report.findings.iter().any(|finding| finding.place == *place),
            "{:?}",
            rebuilt.report
        );
    }
    rebuilt.node.assert_healthy().await;
}

async fn a_fork_whose_base_was_not_sealed_is_listed(database: Database) {
    let site = Site::empty(database).await;
    let source = site.session("source", 1).await;
    site.turn(&source, "journaled", 300).await;
    let fork = site.fork(&source, None, "fork").await;
    site.turn(&fork, "own", 300).await;
    site.node.seal(&fork).await.unwrap();
    let rebuilt = rebuild_of(&site).await;
    assert_eq!(rebuilt.node.read(&source).await.unwrap().entries.len(), 1);
    assert!(rebuilt.node.read(&key("fork")).await.is_err());
    let branch = site.node.branch(&fork).await.branch;
    let place = format!("default/{branch}");
    assert!(rebuilt.report.findings.iter().any(|finding| finding.place == place), "{:?}", rebuilt.report);
    rebuilt.node.assert_healthy().await;
}

fn rewind(key: &SessionKey) -> RewindRequest {
    let request_id = id_of("rewind");
    RewindRequest { key: key.clone(), version: Version(1), expected_version: None, request_id }
}

/// The blob of a rewind is there, and another turn is committed in its place.
async fn a_rewind_that_lost_its_race_is_told_from_the_turns_that_won(database: Database) {
    let site = Site::empty(database).await;
    let key = site.session("s", 2).await;
    let (node, gate) = stalled(&site).await;
    let mut commit = gate.hold("commit_turn");
    let rewinding = tokio::spawn({
        let (engine, rewind) = (node.engine.clone(), rewind(&key));
        async move { engine.rewind_session(rewind).await }
    });
    commit.reached().await;
    for id in ["r3", "r4"] {
        site.turn(&key, id, 300).await;
        site.node.seal(&key).await.unwrap();
    }
    commit.release();
    // It comes after them then, by the same request.
    assert_eq!(soon("the rewind", rewinding).await.unwrap().unwrap().head.version, Version(5));
    site.turn(&key, "r6", 300).await;
    site.node.seal(&key).await.unwrap();
    let told = site.node.another().await.read(&key).await.unwrap();
    let rebuilt = rebuild_of(&site).await;
    assert_eq!(rebuilt.node.read(&key).await.unwrap(), told);
    let (ours, theirs) = (site.database.dump().await, rebuilt.database.dump().await);
    for table in ["branch", "turn"] {
        assert_eq!(ours[table], theirs[table], "{table}");
    }
    let [finding] = rebuilt.report.findings.try_into().unwrap();
    assert_eq!(finding.problem, "has another turn 3 than the one that was committed");
    rebuilt.node.assert_healthy().await;
}

/// The blob of a turn is there, and a rewind is committed in its place.
async fn a_turn_that_lost_its_race_with_a_rewind_is_told_from_it(database: Database) {
    let site = Site::empty(database).await;
    let key = site.session("s", 2).await;
    let (node, gate) = stalled(&site).await;
    let mut commit = gate.hold("commit_turn");
    let losing = tokio::spawn({
        let (node, key) = (node.clone(), key.clone());
        async move { node.persist(&key, "loser", payload("loser", 300)).await }
    });
    commit.reached().await;
    site.rewind(&key, 1).await;
    commit.release();
    assert_eq!(soon("the loser", losing).await.unwrap().unwrap().version, Version(4));
    let told = site.node.another().await.read(&key).await.unwrap();
    let rebuilt = rebuild_of(&site).await;
    assert_eq!(rebuilt.node.read(&key).await.unwrap(), told);
    let [finding] = rebuilt.report.findings.try_into().unwrap();
    assert_eq!(finding.problem, "has another turn 3 than the one that was committed");
    rebuilt.node.assert_healthy().await;
}

/// The blob of a rewind is there, another turn is committed in its place, and the
/// session leaves it again.
async fn a_manifest_tells_which_turn_was_committed_where_none_follows(database: Database) {
    let site = Site::empty(database).await;
    let key = site.session("s", 2).await;
    let (stalling, gate) = stalled(&site).await;
    let mut commit = gate.hold("commit_turn");
    let rewinding = tokio::spawn({
        let (engine, rewind) = (stalling.engine.clone(), rewind(&key));
        async move { engine.rewind_session(rewind).await }
    });
    commit.reached().await;
    let (node, _) = stalled(&site).await;
    node.persist(&key, "r3", payload("r3", 300)).await.unwrap();
    let back = RewindRequest { request_id: id_of("other"), ..rewind(&key) };
    node.engine.rewind_session(back).await.unwrap();
    rewinding.abort();
    let rebuilt = rebuild_of(&site).await;
    let (ours, theirs) = (site.database.dump().await, rebuilt.database.dump().await);
    for table in ["branch", "turn"] {
        assert_eq!(ours[table], theirs[table], "{table}");
    }
    let [finding] = rebuilt.report.findings.try_into().unwrap();
    assert_eq!(finding.problem, "has another turn 3 than the one that was committed");
    rebuilt.node.assert_healthy().await;
}

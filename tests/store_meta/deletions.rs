//! Deletions and their receipts.

use crate::stores::{Database, Line, generation, on_both_databases};
use futures::future::join_all;
use turnkeep::clock::Micros;
use turnkeep::limits::RECEIPT_FORKS_MAX;
use turnkeep::model::{Deletion, DeletionState, SessionId};
use turnkeep::store::MetaStore;
use turnkeep::store::meta::{CreateOutcome, ManifestRow, OpenDeletion};

on_both_databases![
    a_deleted_session_is_gone_at_once_and_its_blobs_are_buried,
    what_is_not_live_is_not_deleted,
    a_deletion_goes_from_pending_to_erased,
    a_deletion_that_a_fork_retains_waits_for_it,
    a_deletion_may_include_the_forks,
    a_fork_of_a_deleted_sessions_fork_retains_it_too,
    the_forks_of_a_deleted_session_can_still_be_deleted_with_it,
    of_racing_deletions_one_deletes,
    a_fork_that_races_with_a_deletion_has_its_source_or_is_refused,
    open_deletions_are_listed_the_oldest_first,
    a_receipt_names_so_many_forks_and_no_more,
];

const NOW: Micros = Micros(10);
const GRACE: Micros = Micros(20);

/// A session with a segment, a manifest and a journal row.
async fn stored(database: &Database, session: &str) -> Line {
    let meta = database.meta.as_ref();
    let mut line = Line::create(meta, session).await;
    line.append(meta, "r1").await;
    let mut seal = line.sealed(1, &format!("{session}-blob"), generation(meta).await);
    seal.run.manifest = Some(ManifestRow {
        session: line.key.session.clone(),
        key: format!("{session}-manifest"),
        version: line.tip.turn.version,
    });
    meta.commit_seal(seal).await.unwrap();
    line.append(meta, "r2").await;
    line
}

fn receipt(line: &Line, state: DeletionState) -> Deletion {
    Deletion {
        session: line.key.session.clone(),
        state,
        retained_by: vec![],
        objects_pending: 0,
        deleted_at: NOW,
        erased_at: None,
    }
}

async fn delete(database: &Database, line: &Line, include_forks: bool) -> Vec<SessionId> {
    database.meta.delete_session(&line.key, include_forks, NOW, GRACE).await.unwrap()
}

/// Erases all tombstones, as the sweep does.
async fn bury(database: &Database) -> Vec<String> {
    let due = database.meta.due_tombstones(Micros(i64::MAX), None, 1000).await.unwrap();
    for tombstone in &due {
        database.meta.remove_tombstone(tombstone).await.unwrap();
    }
    let mut keys: Vec<_> = due.into_iter().map(|tombstone| tombstone.key).collect();
    keys.sort();
    keys
}

async fn a_deleted_session_is_gone_at_once_and_its_blobs_are_buried(database: Database) {
    let meta = &database.meta;
    let line = stored(&database, "s").await;
    let other = stored(&database, "other").await;
    assert_eq!(delete(&database, &line, false).await, std::slice::from_ref(&line.key.session));
    assert!(meta.tip(&line.key, None).await.unwrap().is_none());
    assert_eq!(meta.preambles(&line.key).await.unwrap(), []);
    assert_eq!(meta.lineage(&line.branch_key()).await.unwrap(), []);
    assert_eq!(meta.branches_of_session(&line.key).await.unwrap(), []);
    assert_eq!(meta.turn_of_request(&line.key, &line.tip.turn.request_id).await.unwrap(), None);
    assert_eq!(meta.all_sessions(None, 9).await.unwrap(), [other.key]);
    // Of all that was stored only the id and the receipt are left.
    for (table, rows) in database.dump().await {
        let left = rows.iter().filter(|row| row.contains(&line.key.session.to_string())).count();
        let expected = match table {
            "head" | "deletion" => 1,
            "tombstone" => 2,
            _ => 0,
        };
        assert_eq!(left, expected, "{table}");
    }
    assert_eq!(meta.due_tombstones(Micros(19), None, 9).await.unwrap(), []);
    let pending = Deletion { objects_pending: 2, ..receipt(&line, DeletionState::Pending) };
    assert_eq!(meta.deletion(&line.key).await.unwrap(), Some(pending));
    assert_eq!(bury(&database).await, ["s-blob", "s-manifest"]);
}

async fn what_is_not_live_is_not_deleted(database: Database) {
    let meta = &database.meta;
    let line = stored(&database, "s").await;
    assert_eq!(delete(&database, &Line::new("nobody"), true).await, []);
    assert_eq!(meta.deletion(&line.key).await.unwrap(), None);
    delete(&database, &line, false).await;
    let before = database.dump().await;
    assert_eq!(meta.delete_session(&line.key, true, Micros(99), Micros(99)).await.unwrap(), []);
    assert_eq!(database.dump().await, before);
}

async fn a_deletion_goes_from_pending_to_erased(database: Database) {
    let meta = &database.meta;
    let line = stored(&database, "s").await;
    delete(&database, &line, false).await;
    let open = OpenDeletion { key: line.key.clone(), deleted_at: NOW, in_ledger: false };
    assert_eq!(meta.open_deletions(Micros(0), 9).await.unwrap(), std::slice::from_ref(&open));
    // Neither while blobs are there nor while the ledger lacks it.
    assert!(!meta.advance_deletion(&line.key, Micros(30), GRACE).await.unwrap());
    bury(&database).await;
    assert!(!meta.advance_deletion(&line.key, Micros(31), GRACE).await.unwrap());
    assert_eq!(meta.deletion(&line.key).await.unwrap(), Some(receipt(&line, DeletionState::Pending)));
    meta.deletion_in_ledger(&line.key).await.unwrap();
    assert_eq!(meta.open_deletions(Micros(0), 9).await.unwrap(), [OpenDeletion { in_ledger: true, ..open }]);
    assert!(meta.advance_deletion(&line.key, Micros(32), GRACE).await.unwrap());
    let erased = Deletion { erased_at: Some(Micros(32)), ..receipt(&line, DeletionState::Erased) };
    assert_eq!(meta.deletion(&line.key).await.unwrap(), Some(erased.clone()));
    assert_eq!(meta.open_deletions(Micros(0), 9).await.unwrap(), []);
    assert!(!meta.advance_deletion(&line.key, Micros(33), GRACE).await.unwrap());
    assert_eq!(meta.deletion(&line.key).await.unwrap(), Some(erased));
}

async fn a_deletion_that_a_fork_retains_waits_for_it(database: Database) {
    let meta = &database.meta;
    let line = stored(&database, "s").await;
    let fork = line.create_fork(meta.as_ref(), "fork").await;
    delete(&database, &line, false).await;
    meta.deletion_in_ledger(&line.key).await.unwrap();
    assert!(meta.tip(&line.key, None).await.unwrap().is_none());
    // The fork's log begins with the branch, its journal included.
    assert_eq!(meta.lineage(&fork.branch_key()).await.unwrap(), [line.branch.clone(), fork.branch.clone()]);
    assert_eq!(
        meta.journal(&line.branch_key(), turnkeep::model::Version(0), turnkeep::model::Version(9))
            .await
            .unwrap(),
        line.journal
    );
    assert_eq!(bury(&database).await, ["s-manifest"]);
    assert!(!meta.advance_deletion(&line.key, Micros(30), GRACE).await.unwrap());
    let retained = Deletion {
        retained_by: vec![fork.key.session.clone()],
        ..receipt(&line, DeletionState::RetainedByForks)
    };
    assert_eq!(meta.deletion(&line.key).await.unwrap(), Some(retained));
    delete(&database, &fork, false).await;
    assert!(!meta.advance_deletion(&line.key, Micros(40), GRACE).await.unwrap());
    assert_eq!(meta.deletion(&line.key).await.unwrap().unwrap().objects_pending, 1);
    assert_eq!(bury(&database).await, ["s-blob"]);
    assert!(meta.advance_deletion(&line.key, Micros(50), GRACE).await.unwrap());
    assert_eq!(meta.deletion(&line.key).await.unwrap().unwrap().state, DeletionState::Erased);
    assert_eq!(database.rows("SELECT branch_id FROM branch").await, [[""; 1]; 0]);
}

async fn a_deletion_may_include_the_forks(database: Database) {
    let meta = &database.meta;
    let line = stored(&database, "s").await;
    let fork = line.create_fork(meta.as_ref(), "fork").await;
    let second = fork.create_fork(meta.as_ref(), "second").await;
    let other = stored(&database, "other").await;
    let mut deleted = delete(&database, &line, true).await;
    deleted.sort();
    assert_eq!(deleted, [&fork, &line, &second].map(|line| line.key.session.clone()));
    for line in [&line, &fork, &second] {
        assert!(meta.tip(&line.key, None).await.unwrap().is_none());
        assert_eq!(meta.deletion(&line.key).await.unwrap().unwrap().state, DeletionState::Pending);
    }
    assert_eq!(database.rows("SELECT session_id FROM branch").await, [["other"]]);
    assert!(meta.tip(&other.key, None).await.unwrap().is_some());
}

async fn a_fork_of_a_deleted_sessions_fork_retains_it_too(database: Database) {
    let meta = &database.meta;
    let line = stored(&database, "s").await;
    let fork = line.create_fork(meta.as_ref(), "fork").await;
    let second = fork.create_fork(meta.as_ref(), "second").await;
    delete(&database, &line, false).await;
    delete(&database, &fork, false).await;
    for line in [&line, &fork] {
        meta.advance_deletion(&line.key, Micros(30), GRACE).await.unwrap();
        let receipt = meta.deletion(&line.key).await.unwrap().unwrap();
        assert_eq!(receipt.state, DeletionState::RetainedByForks);
        assert_eq!(receipt.retained_by, std::slice::from_ref(&second.key.session));
    }
    let lineage = [line.branch.clone(), fork.branch.clone(), second.branch.clone()];
    assert_eq!(meta.lineage(&second.branch_key()).await.unwrap(), lineage);
    delete(&database, &second, false).await;
    for line in [&line, &fork] {
        meta.advance_deletion(&line.key, Micros(40), GRACE).await.unwrap();
    }
    assert_eq!(database.rows("SELECT branch_id FROM branch").await, [[""; 1]; 0]);
}

async fn the_forks_of_a_deleted_session_can_still_be_deleted_with_it(database: Database) {
    let meta = &database.meta;
    let line = stored(&database, "s").await;
    let fork = line.create_fork(meta.as_ref(), "fork").await;
    let second = fork.create_fork(meta.as_ref(), "second").await;
    let other = stored(&database, "other").await;
    delete(&database, &line, false).await;
    let receipt_of = async |line: &Line| meta.deletion(&line.key).await.unwrap();
    assert_eq!(receipt_of(&line).await.unwrap().state, DeletionState::RetainedByForks);
    assert_eq!(delete(&database, &line, false).await, []);
    let mut deleted = delete(&database, &line, true).await;
    deleted.sort();
    assert_eq!(deleted, [&fork, &second].map(|line| line.key.session.clone()));
    assert_eq!(delete(&database, &line, true).await, []);
    assert_eq!(database.rows("SELECT session_id FROM branch").await, [["other"]]);
    bury(&database).await;
    for line in [&line, &fork, &second] {
        meta.deletion_in_ledger(&line.key).await.unwrap();
        assert!(meta.advance_deletion(&line.key, Micros(30), GRACE).await.unwrap());
        assert_eq!(receipt_of(line).await.unwrap().state, DeletionState::Erased);
    }
    assert!(meta.tip(&other.key, None).await.unwrap().is_some());
}

/// A fork of a fork that is made while the deletion waits for the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_that_is_made_while_forks_are_deleted_goes_with_them() {
    let Some(database) = Database::postgres().await else { return };
    let other = database.another().await;
    let line = stored(&database, "s").await;
    let fork = line.create_fork(database.meta.as_ref(), "fork").await;
    let keeps_it = "SELECT version FROM head WHERE session_id = 'fork' FOR SHARE";
    let reader = database.open_transaction(&[keeps_it]).await;
    let deleting = tokio::spawn({
        let key = line.key.clone();
        async move { other.delete_session(&key, true, NOW, GRACE).await.unwrap() }
    });
    database.waiters(1).await;
    let second = fork.create_fork(database.meta.as_ref(), "second").await;
    reader.commit().await;
    let mut deleted = deleting.await.unwrap();
    deleted.sort();
    assert_eq!(deleted, [&fork, &line, &second].map(|line| line.key.session.clone()));
    assert_eq!(database.rows("SELECT session_id FROM branch").await, [[""; 1]; 0]);
}

async fn of_racing_deletions_one_deletes(database: Database) {
    let other = database.another().await;
    let line = stored(&database, "s").await;
    line.create_fork(database.meta.as_ref(), "fork").await;
    let races = (0..6).map(|i: usize| {
        let meta = if i.is_multiple_of(2) { database.meta.as_ref() } else { &other };
        meta.delete_session(&line.key, i.is_multiple_of(3), NOW, GRACE)
    });
    let outcomes: Vec<_> = join_all(races).await.into_iter().map(Result::unwrap).collect();
    // The fork goes with the session, or with a later deletion that takes forks.
    let mut deleted = outcomes.concat();
    deleted.sort();
    assert_eq!(deleted.iter().map(SessionId::as_str).collect::<Vec<_>>(), ["fork", "s"], "{outcomes:?}");
    assert_eq!(database.meta.deletion(&line.key).await.unwrap().unwrap().deleted_at, NOW);
}

async fn a_fork_that_races_with_a_deletion_has_its_source_or_is_refused(database: Database) {
    let other = database.another().await;
    for round in 0..8 {
        let mut source = Line::create(database.meta.as_ref(), &format!("s{round}")).await;
        source.append(database.meta.as_ref(), "r1").await;
        let (fork, new) = source.fork(&format!("fork{round}"));
        let deletion = other.delete_session(&source.key, false, NOW, GRACE);
        let (created, deleted) = futures::join!(database.meta.create_session(new), deletion);
        assert_eq!(deleted.unwrap().len(), 1);
        let lineage = other.lineage(&fork.branch_key()).await.unwrap();
        let receipt = other.deletion(&source.key).await.unwrap().unwrap();
        match created.unwrap() {
            CreateOutcome::Created => {
                assert_eq!(lineage, [source.branch.clone(), fork.branch.clone()]);
                assert_eq!(receipt.retained_by, std::slice::from_ref(&fork.key.session));
            }
            outcome => {
                assert_eq!((outcome, lineage), (CreateOutcome::SourceGone, vec![]));
                assert_eq!(receipt.state, DeletionState::Pending);
            }
        }
    }
}

async fn open_deletions_are_listed_the_oldest_first(database: Database) {
    let meta = &database.meta;
    for (session, at) in [("a", 30), ("b", 10), ("c", 20)] {
        let line = Line::create(meta.as_ref(), session).await;
        meta.delete_session(&line.key, false, Micros(at), GRACE).await.unwrap();
    }
    let open = async |after, limit| {
        let open = meta.open_deletions(Micros(after), limit).await.unwrap();
        open.into_iter().map(|open| open.key.session.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(open(0, 9).await, ["b", "c", "a"]);
    assert_eq!(open(20, 9).await, ["c", "a"]);
    assert_eq!(open(0, 2).await, ["b", "c"]);
}

async fn a_receipt_names_so_many_forks_and_no_more(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    for i in 0..=RECEIPT_FORKS_MAX {
        line.create_fork(meta.as_ref(), &format!("fork{i:03}")).await;
    }
    delete(&database, &line, false).await;
    let receipt = meta.deletion(&line.key).await.unwrap().unwrap();
    assert_eq!(receipt.retained_by.len(), RECEIPT_FORKS_MAX);
    assert_eq!(receipt.state, DeletionState::RetainedByForks);
    assert_eq!(delete(&database, &line, true).await.len(), RECEIPT_FORKS_MAX + 1);
}

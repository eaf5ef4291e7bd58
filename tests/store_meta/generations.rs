//! Writer generations and what the sweep asks.

use crate::stores::{Database, Line, generation, leased, on_both_databases, polled, soon};
use std::sync::Arc;
use std::time::Duration;
use turnkeep::clock::Micros;
use turnkeep::model::GenerationId;
use turnkeep::store::meta::{
    CommitOutcome, GenerationRow, ManifestRow, NewRollUp, NewTurn, SealedRun, Tombstone, TurnEntries,
};
use turnkeep::store::{ErrorKind, MetaStore, StoreError};

on_both_databases![
    generations_are_told_apart_and_expire_by_their_lease,
    a_fence_is_for_good_and_may_be_repeated,
    nothing_that_names_a_blob_of_a_fenced_generation_commits,
    a_generation_that_was_never_registered_is_fenced,
    a_generation_is_forgotten_some_time_after_its_fence,
    fences_and_commits_that_race_end_in_an_order,
    a_key_is_referenced_by_segments_manifests_and_tombstones,
    tombstones_are_due_in_time_and_gone_when_removed,
];

async fn generations_are_told_apart_and_expire_by_their_lease(database: Database) {
    let meta = &database.meta;
    let other = database.another().await;
    let a = leased(meta.as_ref(), Micros(100)).await;
    let b = leased(&other, Micros(200)).await;
    let c = leased(meta.as_ref(), Micros(300)).await;
    let again = other.register_generation(a, Micros(400)).await.unwrap_err();
    assert_eq!(again.kind, ErrorKind::Duplicate);
    let mut rows = [a, b, c].map(|id| GenerationRow { id, fenced: false });
    rows.sort_by_key(|row| row.id);
    assert_eq!(meta.generations().await.unwrap(), rows);
    assert_eq!(meta.expired_generations(Micros(100)).await.unwrap(), []);
    assert_eq!(meta.expired_generations(Micros(101)).await.unwrap(), [a]);
    meta.fence_generation(a, Micros(101)).await.unwrap();
    assert_eq!(meta.expired_generations(Micros(201)).await.unwrap(), [b]);
    rows.iter_mut().filter(|row| row.id == a).for_each(|row| row.fenced = true);
    assert_eq!(other.generations().await.unwrap(), rows);
}

async fn a_fence_is_for_good_and_may_be_repeated(database: Database) {
    let meta = &database.meta;
    let id = generation(meta.as_ref()).await;
    meta.fence_generation(id, Micros(5)).await.unwrap();
    let before = database.dump().await;
    meta.fence_generation(id, Micros(9)).await.unwrap();
    assert_eq!(database.dump().await, before);
    // One that nobody registered is none, before and after.
    meta.fence_generation(GenerationId(987_654), Micros(9)).await.unwrap();
    assert_eq!(database.dump().await, before);
    assert_ne!(generation(meta.as_ref()).await, id);
}

async fn a_generation_is_forgotten_some_time_after_its_fence(database: Database) {
    let meta = &database.meta;
    let (live, old, new) =
        (generation(meta.as_ref()).await, generation(meta.as_ref()).await, generation(meta.as_ref()).await);
    meta.fence_generation(old, Micros(5)).await.unwrap();
    meta.fence_generation(new, Micros(6)).await.unwrap();
    assert_eq!(meta.forget_generations(Micros(5)).await.unwrap(), 0);
    assert_eq!(meta.forget_generations(Micros(6)).await.unwrap(), 1);
    let mut left = [GenerationRow { id: live, fenced: false }, GenerationRow { id: new, fenced: true }];
    left.sort_by_key(|row| row.id);
    assert_eq!(meta.generations().await.unwrap(), left);
    // It names nothing more than before.
    let mut line = Line::create(meta.as_ref(), "s").await;
    line.append(meta.as_ref(), "r1").await;
    let late = meta.commit_seal(line.sealed(1, "late", old)).await.unwrap_err();
    assert_eq!(late.kind, ErrorKind::Fenced);
}

/// A line with rows in the journal and two segments.
async fn prepared(meta: &dyn MetaStore, live: GenerationId) -> (Line, Vec<turnkeep::model::Segment>) {
    let mut line = Line::create(meta, "s").await;
    let mut segments = Vec::new();
    for i in 1..=2 {
        line.append(meta, &format!("r{i}")).await;
        let seal = line.sealed(1, &format!("blob-{i}"), live);
        segments.push(seal.run.segment.clone());
        assert_eq!(meta.commit_seal(seal).await.unwrap(), CommitOutcome::Committed);
    }
    line.append(meta, "r3").await;
    (line, segments)
}

fn roll_up(line: &Line, old: &[turnkeep::model::Segment], generation: GenerationId) -> NewRollUp {
    let (first, last) = (&old[0], &old[old.len() - 1]);
    NewRollUp {
        key: line.branch_key(),
        session: line.key.session.clone(),
        old: old.to_vec(),
        new: turnkeep::model::Segment {
            key: "merged".into(),
            last_seq: last.last_seq,
            last_version: last.last_version,
            ..first.clone()
        },
        generation,
        erase_not_before: Micros(1),
    }
}

/// The next turn, put into a segment with the journal before it.
fn object_first(line: &Line, run: SealedRun) -> NewTurn {
    let mut new = line.turn("large");
    let mut run = run;
    run.segment.last_version = new.turn.turn.version;
    run.segment.last_seq = new.turn.turn.last_seq;
    new.entries = TurnEntries::Segment(run);
    new
}

async fn nothing_that_names_a_blob_of_a_fenced_generation_commits(database: Database) {
    let meta = &database.meta;
    let (live, fenced) = (generation(meta.as_ref()).await, generation(meta.as_ref()).await);
    let (line, segments) = prepared(meta.as_ref(), live).await;
    meta.fence_generation(fenced, Micros(1)).await.unwrap();
    let before = database.dump().await;
    let is_fenced = |outcome: Result<CommitOutcome, StoreError>| {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Fenced);
    };
    let mut seal = line.clone().sealed(1, "late", fenced);
    seal.run.manifest = Some(ManifestRow {
        session: line.key.session.clone(),
        key: "m".into(),
        version: line.tip.turn.version,
    });
    is_fenced(meta.commit_seal(seal).await);
    is_fenced(meta.commit_roll_up(roll_up(&line, &segments, fenced)).await);
    is_fenced(meta.commit_turn(object_first(&line, line.clone().sealed(1, "late", fenced).run)).await);
    assert_eq!(database.dump().await, before);
    // A turn that names no blob needs no generation.
    line.clone().append(meta.as_ref(), "r4").await;
}

async fn a_generation_that_was_never_registered_is_fenced(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    line.append(meta.as_ref(), "r1").await;
    let seal = line.sealed(1, "blob", GenerationId(987_654));
    assert_eq!(meta.commit_seal(seal).await.unwrap_err().kind, ErrorKind::Fenced);
}

async fn fences_and_commits_that_race_end_in_an_order(database: Database) {
    let other = Arc::new(database.another().await);
    for round in 0..12 {
        let id = generation(database.meta.as_ref()).await;
        let mut line = Line::create(database.meta.as_ref(), &format!("s{round}")).await;
        line.append(database.meta.as_ref(), "r1").await;
        let blob = format!("blob-{round}");
        let seal = line.sealed(1, &blob, id);
        let (other, meta) = (other.clone(), database.meta.clone());
        let sealing = tokio::spawn(async move { meta.commit_seal(seal).await });
        other.fence_generation(id, Micros(1)).await.unwrap();
        // Whatever names the blob has done so by now: what the sweep goes by.
        let named = other.referenced(std::slice::from_ref(&blob)).await.unwrap();
        match sealing.await.unwrap() {
            Ok(outcome) => assert_eq!((outcome, named), (CommitOutcome::Committed, vec![blob])),
            Err(error) => assert_eq!((error.kind, named), (ErrorKind::Fenced, vec![])),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_waits_for_a_transaction_that_holds_the_generation() {
    let Some(database) = Database::postgres().await else { return };
    let id = generation(database.meta.as_ref()).await;
    let mut line = Line::create(database.meta.as_ref(), "s").await;
    line.append(database.meta.as_ref(), "r1").await;
    // The seal holds its generation and waits for the head.
    let head = database.open_transaction(&["UPDATE head SET updated_at = updated_at"]).await;
    let (meta, seal) = (database.meta.clone(), line.sealed(1, "blob", id));
    let sealing = tokio::spawn(async move { meta.commit_seal(seal).await });
    database.waiters(1).await;
    let other = database.another().await;
    let mut fence = Box::pin(other.fence_generation(id, Micros(1)));
    assert!(turnkeep::clock::deadline(Duration::from_millis(300), &mut fence).await.is_none());
    assert!(polled(1, &mut fence).await.is_none());
    head.roll_back().await;
    assert_eq!(sealing.await.unwrap().unwrap(), CommitOutcome::Committed);
    soon("the fence", fence).await.unwrap();
    assert_eq!(database.meta.referenced(&["blob".into()]).await.unwrap(), ["blob"]);
    assert_eq!(database.meta.generations().await.unwrap(), [GenerationRow { id, fenced: true }]);
}

async fn a_key_is_referenced_by_segments_manifests_and_tombstones(database: Database) {
    let meta = &database.meta;
    let live = generation(meta.as_ref()).await;
    let (mut line, segments) = prepared(meta.as_ref(), live).await;
    let mut seal = line.sealed(1, "blob-3", live);
    seal.run.manifest = Some(ManifestRow {
        session: line.key.session.clone(),
        key: "m".into(),
        version: line.tip.turn.version,
    });
    meta.commit_seal(seal).await.unwrap();
    meta.commit_roll_up(roll_up(&line, &segments, live)).await.unwrap();
    let keys = ["blob-1", "nobody", "blob-3", "merged", "m", "blob-2"].map(str::to_owned);
    let named = meta.referenced(&keys).await.unwrap();
    assert_eq!(named, ["blob-1", "blob-3", "merged", "m", "blob-2"]);
    assert_eq!(meta.referenced(&[]).await.unwrap(), [""; 0]);
}

async fn tombstones_are_due_in_time_and_gone_when_removed(database: Database) {
    let meta = &database.meta;
    let live = generation(meta.as_ref()).await;
    let (line, segments) = prepared(meta.as_ref(), live).await;
    let mut new = roll_up(&line, &segments, live);
    new.erase_not_before = Micros(50);
    meta.commit_roll_up(new).await.unwrap();
    let tombstone = |key: &str| Tombstone {
        tenant: line.key.tenant.clone(),
        key: key.to_owned(),
        session: line.key.session.clone(),
        not_before: Micros(50),
    };
    assert_eq!(meta.due_tombstones(Micros(49), None, 10).await.unwrap(), []);
    let due = meta.due_tombstones(Micros(50), None, 10).await.unwrap();
    assert_eq!(due, [tombstone("blob-1"), tombstone("blob-2")]);
    // One after the other, so that one which stays keeps no other from its turn.
    database.execute("UPDATE tombstone SET not_before = 49 WHERE blob_key = 'blob-2'").await;
    let mut after: Option<Tombstone> = None;
    for key in ["blob-2", "blob-1"] {
        let [next] = meta.due_tombstones(Micros(50), after.as_ref(), 1).await.unwrap().try_into().unwrap();
        assert_eq!(next.key, key);
        after = Some(next);
    }
    assert_eq!(meta.due_tombstones(Micros(50), after.as_ref(), 1).await.unwrap(), []);
    database.execute("UPDATE tombstone SET not_before = 50").await;
    meta.remove_tombstone(&due[0]).await.unwrap();
    meta.remove_tombstone(&due[0]).await.unwrap();
    assert_eq!(meta.due_tombstones(Micros(50), None, 10).await.unwrap(), due[1..]);
    assert_eq!(meta.referenced(&["blob-1".into(), "blob-2".into()]).await.unwrap(), ["blob-2"]);
}

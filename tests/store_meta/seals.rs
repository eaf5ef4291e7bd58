//! Segments, seals, roll-ups and manifests.

use crate::stores::{Database, Line, generation, on_both_databases};
use futures::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use turnkeep::clock::Micros;
use turnkeep::model::{GenerationId, Segment, Seq, Version};
use turnkeep::store::MetaStore;
use turnkeep::store::meta::{CommitOutcome, ManifestRow, NewRollUp, RollUpPolicy, SealCandidate, SealPolicy};

on_both_databases![
    a_seal_puts_a_segment_in_the_place_of_journal_rows,
    a_seal_of_part_of_the_journal_leaves_the_rest,
    a_seal_on_another_sealed_version_leaves_nothing,
    of_racing_seals_one_wins,
    seals_and_turns_do_not_disturb_each_other,
    segments_are_found_by_the_entries_that_they_hold,
    journals_are_due_by_size_and_age,
    the_newest_manifest_stays_and_the_others_get_tombstones,
    a_seal_of_a_deleted_session_brings_no_manifest_back,
    a_roll_up_replaces_rows_and_buries_the_old_blobs,
    a_roll_up_of_other_rows_leaves_nothing,
    of_racing_roll_ups_one_wins,
    branches_with_many_small_segments_are_candidates_for_a_roll_up,
    two_segments_that_fit_are_enough_once_a_branch_is_idle,
    what_no_roll_up_would_take_is_no_candidate,
];

async fn a_seal_puts_a_segment_in_the_place_of_journal_rows(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    for id in ["r1", "r2", "r3"] {
        line.append(meta.as_ref(), id).await;
    }
    let seal = line.sealed(3, "blob", generation(meta.as_ref()).await);
    let segment = seal.run.segment.clone();
    assert_eq!(meta.commit_seal(seal.clone()).await.unwrap(), CommitOutcome::Committed);
    let tip = meta.tip(&line.key, Some(Version(0))).await.unwrap().unwrap();
    assert_eq!((&tip.branch, &tip.journal, &tip.turn), (&line.branch, &vec![], &line.tip.turn));
    assert_eq!((tip.head.journal_bytes, tip.head.version), (0, Version(3)));
    assert_eq!(meta.segments(&line.branch_key(), Seq(1), Seq(3)).await.unwrap(), [segment]);
    assert_eq!(meta.blob_bytes(&line.key).await.unwrap(), 100);
    assert_eq!(meta.journal(&line.branch_key(), Version(0), Version(9)).await.unwrap(), []);
    // The rows of the turns stay.
    assert_eq!(meta.turns(&line.branch_key(), Version(0), Version(9), 9).await.unwrap().len(), 4);
    // A repetition finds that it is done.
    let before = database.dump().await;
    assert_eq!(meta.commit_seal(seal).await.unwrap(), CommitOutcome::NotAsExpected);
    assert_eq!(database.dump().await, before);
}

async fn a_seal_of_part_of_the_journal_leaves_the_rest(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    for id in ["r1", "r2", "r3"] {
        line.append(meta.as_ref(), id).await;
    }
    let generation = generation(meta.as_ref()).await;
    meta.commit_seal(line.sealed(2, "a", generation)).await.unwrap();
    let tip = meta.tip(&line.key, Some(Version(0))).await.unwrap().unwrap();
    assert_eq!((tip.branch, tip.journal), (line.branch.clone(), line.journal.clone()));
    assert_eq!(tip.head.journal_bytes, line.journal_bytes());
    line.append(meta.as_ref(), "r4").await;
    meta.commit_seal(line.sealed(2, "b", generation)).await.unwrap();
    let segments = meta.segments(&line.branch_key(), Seq(0), Seq(u64::MAX)).await.unwrap();
    let ranges: Vec<_> = segments.iter().map(|s| (s.key.as_str(), s.first_seq.0, s.last_seq.0)).collect();
    assert_eq!(ranges, [("a", 1, 2), ("b", 3, 4)]);
}

async fn a_seal_on_another_sealed_version_leaves_nothing(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    line.append(meta.as_ref(), "r1").await;
    line.append(meta.as_ref(), "r2").await;
    let generation = generation(meta.as_ref()).await;
    let mut early = line.clone();
    meta.commit_seal(line.sealed(1, "a", generation)).await.unwrap();
    let before = database.dump().await;
    let manifest = ManifestRow { session: line.key.session.clone(), key: "m".into(), version: Version(2) };
    let mut late = early.sealed(2, "late", generation);
    late.run.manifest = Some(manifest);
    assert_eq!(meta.commit_seal(late).await.unwrap(), CommitOutcome::NotAsExpected);
    assert_eq!(database.dump().await, before);
}

async fn of_racing_seals_one_wins(database: Database) {
    let other = database.another().await;
    let meta = &database.meta;
    let generation = generation(meta.as_ref()).await;
    for round in 0..4 {
        let mut line = Line::create(meta.as_ref(), &format!("s{round}")).await;
        for id in ["r1", "r2", "r3", "r4"] {
            line.append(meta.as_ref(), id).await;
        }
        let seals: Vec<_> =
            (0..4).map(|i| line.clone().sealed(i + 1, &format!("blob-{round}-{i}"), generation)).collect();
        let races = seals.iter().zip(0..).map(|(seal, i): (_, usize)| {
            let meta = if i.is_multiple_of(2) { meta.as_ref() } else { &other };
            meta.commit_seal(seal.clone())
        });
        let outcomes: Vec<_> = join_all(races).await.into_iter().map(Result::unwrap).collect();
        let winners: Vec<_> = (0..4).filter(|i| outcomes[*i] == CommitOutcome::Committed).collect();
        assert_eq!(winners.len(), 1, "{outcomes:?}");
        let sealed = winners[0] + 1;
        line.sealed(sealed, "x", generation);
        let tip = other.tip(&line.key, Some(Version(0))).await.unwrap().unwrap();
        assert_eq!((tip.branch, tip.journal), (line.branch.clone(), line.journal.clone()));
        assert_eq!(tip.head.journal_bytes, line.journal_bytes());
        let segments = meta.segments(&line.branch_key(), Seq(0), Seq(u64::MAX)).await.unwrap();
        assert_eq!(segments, [seals[winners[0]].run.segment.clone()]);
    }
}

async fn seals_and_turns_do_not_disturb_each_other(database: Database) {
    let mut line = Line::create(database.meta.as_ref(), "s").await;
    let generation = generation(database.meta.as_ref()).await;
    line.append(database.meta.as_ref(), "first").await;
    for round in 0..10 {
        let mut sealer = line.clone();
        let seal = sealer.sealed(sealer.journal.len(), &format!("blob-{round}"), generation);
        let sealing = database.meta.commit_seal(seal);
        let new = line.turn(&format!("r{round}"));
        let (sealed, committed) = futures::join!(sealing, database.meta.commit_turn(new.clone()));
        assert_eq!(sealed.unwrap(), CommitOutcome::Committed);
        assert_eq!(committed.unwrap(), CommitOutcome::Committed);
        line.advance(&new);
        (line.branch, line.journal) = (sealer.branch, vec![line.journal.pop().unwrap()]);
        let tip = database.meta.tip(&line.key, Some(Version(0))).await.unwrap().unwrap();
        assert_eq!((&tip.branch, &tip.journal), (&line.branch, &line.journal));
        assert_eq!(tip.head.journal_bytes, line.journal_bytes());
    }
}

/// A line with so many segments of one entry each.
async fn with_segments(
    meta: &dyn MetaStore,
    session: &str,
    count: usize,
) -> (Line, Vec<Segment>, GenerationId) {
    let mut line = Line::create(meta, session).await;
    let generation = generation(meta).await;
    let mut segments = Vec::new();
    for i in 1..=count {
        line.append(meta, &format!("r{i}")).await;
        let seal = line.sealed(1, &format!("{session}-{i}"), generation);
        segments.push(seal.run.segment.clone());
        assert_eq!(meta.commit_seal(seal).await.unwrap(), CommitOutcome::Committed);
    }
    (line, segments, generation)
}

async fn segments_are_found_by_the_entries_that_they_hold(database: Database) {
    let meta = &database.meta;
    let (line, segments, _) = with_segments(meta.as_ref(), "s", 4).await;
    with_segments(meta.as_ref(), "other", 2).await;
    let found = async |first, last| meta.segments(&line.branch_key(), Seq(first), Seq(last)).await.unwrap();
    assert_eq!(found(0, u64::MAX).await, segments);
    assert_eq!(found(2, 3).await, segments[1..3]);
    assert_eq!(found(4, 4).await, segments[3..]);
    assert_eq!(found(5, 9).await, []);
    assert_eq!(found(0, 0).await, []);
    assert_eq!(meta.blob_bytes(&line.key).await.unwrap(), 400);
}

async fn journals_are_due_by_size_and_age(database: Database) {
    let meta = &database.meta;
    let mut lines = Vec::new();
    for (session, turns) in [("a", 3), ("b", 1), ("c", 2)] {
        let mut line = Line::create(meta.as_ref(), session).await;
        for i in 1..=turns {
            line.append(meta.as_ref(), &format!("r{i}")).await;
        }
        lines.push(line);
    }
    let raw = |line: &Line| line.journal.iter().map(|row| row.raw_bytes).sum::<u64>();
    let candidate = |line: &Line| SealCandidate { key: line.branch_key(), raw_bytes: raw(line) };
    let (a, b, c) = (&lines[0], &lines[1], &lines[2]);
    // The oldest row of each is of this time.
    let made = Micros(1_700_000_000_000_001);
    let never = u64::from(u32::MAX);
    let policy = SealPolicy { raw_bytes: raw(a), old_raw_bytes: raw(c), old_seconds: 10, max_seconds: 1_000 };
    let due = async |policy, seconds, limit| {
        meta.seal_candidates(policy, made.plus(Duration::from_secs(seconds)), limit).await.unwrap()
    };
    assert_eq!(due(policy, 0, 9).await, [candidate(a)]);
    assert_eq!(due(policy, 9, 9).await, [candidate(a)]);
    assert_eq!(due(policy, 10, 9).await, [candidate(a), candidate(c)]);
    assert_eq!(due(policy, 1_000, 9).await, [candidate(a), candidate(c), candidate(b)]);
    assert_eq!(due(policy, 1_000, 2).await, [candidate(a), candidate(c)]);
    let rarely = SealPolicy { raw_bytes: u64::MAX >> 1, max_seconds: never, ..policy };
    assert_eq!(due(SealPolicy { old_seconds: never, ..rarely }, 1_000, 9).await, []);
}

async fn the_newest_manifest_stays_and_the_others_get_tombstones(database: Database) {
    let meta = &database.meta;
    let generation = generation(meta.as_ref()).await;
    let mut line = Line::create(meta.as_ref(), "s").await;
    // The third seal brings a manifest that was made before the second's.
    for (i, version) in [(1, 1), (2, 3), (3, 2), (4, 4)] {
        line.append(meta.as_ref(), &format!("r{i}")).await;
        let mut seal = line.sealed(1, &format!("blob-{i}"), generation);
        seal.run.manifest = Some(ManifestRow {
            session: line.key.session.clone(),
            key: format!("m{version}"),
            version: Version(version),
        });
        assert_eq!(meta.commit_seal(seal).await.unwrap(), CommitOutcome::Committed);
    }
    assert_eq!(database.rows("SELECT blob_key, version FROM manifest").await, [["m4", "4"]]);
    let mut due = meta.due_tombstones(Micros(i64::MAX), None, 9).await.unwrap();
    due.sort_by(|a, b| a.key.cmp(&b.key));
    let keys: Vec<_> = due.iter().map(|tombstone| tombstone.key.as_str()).collect();
    assert_eq!(keys, ["m1", "m2", "m3"]);
    assert!(due.iter().all(|tombstone| tombstone.session == line.key.session));
    // A reader of the bucket may still have the key of the one before.
    assert_eq!(meta.due_tombstones(Micros(1_700_000_000_000_000), None, 9).await.unwrap(), []);
}

async fn a_seal_of_a_deleted_session_brings_no_manifest_back(database: Database) {
    let meta = &database.meta;
    let generation = generation(meta.as_ref()).await;
    let mut line = Line::create(meta.as_ref(), "s").await;
    line.append(meta.as_ref(), "r1").await;
    // The fork keeps the branch, so that its journal is still to be sealed.
    line.create_fork(meta.as_ref(), "fork").await;
    let mut seal = line.sealed(1, "blob", generation);
    seal.run.manifest =
        Some(ManifestRow { session: line.key.session.clone(), key: "m".into(), version: Version(1) });
    meta.delete_session(&line.key, false, Micros(1), Micros(2)).await.unwrap();
    assert_eq!(meta.commit_seal(seal).await.unwrap(), CommitOutcome::Committed);
    // The manifest holds the labels and the preamble of what is deleted.
    assert_eq!(database.rows("SELECT blob_key FROM manifest").await, [[""; 1]; 0]);
    assert_eq!(meta.referenced(&["blob".into(), "m".into()]).await.unwrap(), ["blob"]);
}

fn roll_up(line: &Line, old: &[Segment], key: &str, generation: GenerationId) -> NewRollUp {
    let (first, last) = (&old[0], &old[old.len() - 1]);
    NewRollUp {
        key: line.branch_key(),
        session: line.key.session.clone(),
        old: old.to_vec(),
        new: Segment {
            key: key.to_owned(),
            last_seq: last.last_seq,
            last_version: last.last_version,
            ..first.clone()
        },
        generation,
        erase_not_before: Micros(50),
    }
}

async fn a_roll_up_replaces_rows_and_buries_the_old_blobs(database: Database) {
    let meta = &database.meta;
    let (line, segments, generation) = with_segments(meta.as_ref(), "s", 5).await;
    let new = roll_up(&line, &segments[1..4], "merged", generation);
    assert_eq!(meta.commit_roll_up(new.clone()).await.unwrap(), CommitOutcome::Committed);
    let found = meta.segments(&line.branch_key(), Seq(0), Seq(u64::MAX)).await.unwrap();
    assert_eq!(found, [segments[0].clone(), new.new.clone(), segments[4].clone()]);
    let tip = meta.tip(&line.key, Some(Version(0))).await.unwrap().unwrap();
    assert_eq!((tip.branch, tip.turn), (line.branch.clone(), line.tip.turn.clone()));
    let mut due: Vec<_> = meta
        .due_tombstones(Micros(50), None, 9)
        .await
        .unwrap()
        .into_iter()
        .map(|tombstone| tombstone.key)
        .collect();
    due.sort();
    assert_eq!(due, ["s-2", "s-3", "s-4"]);
    let before = database.dump().await;
    assert_eq!(meta.commit_roll_up(new).await.unwrap(), CommitOutcome::NotAsExpected);
    assert_eq!(database.dump().await, before);
}

async fn a_roll_up_of_other_rows_leaves_nothing(database: Database) {
    let meta = &database.meta;
    let (line, segments, generation) = with_segments(meta.as_ref(), "s", 4).await;
    let before = database.dump().await;
    // The last of them is another blob by now.
    let mut new = roll_up(&line, &segments, "merged", generation);
    new.old[3].key = "another".to_owned();
    assert_eq!(meta.commit_roll_up(new).await.unwrap(), CommitOutcome::NotAsExpected);
    assert_eq!(database.dump().await, before);
    meta.delete_session(&line.key, false, Micros(1), Micros(2)).await.unwrap();
    let before = database.dump().await;
    let late = roll_up(&line, &segments, "merged", generation);
    assert_eq!(meta.commit_roll_up(late).await.unwrap(), CommitOutcome::NotAsExpected);
    assert_eq!(database.dump().await, before);
}

async fn of_racing_roll_ups_one_wins(database: Database) {
    let other = database.another().await;
    let meta = &database.meta;
    let (line, segments, generation) = with_segments(meta.as_ref(), "s", 4).await;
    let keys: Vec<_> = (0..6).map(|i| format!("merged-{i}")).collect();
    let races = keys.iter().zip(0..).map(|(key, i): (_, usize)| {
        let meta = if i.is_multiple_of(2) { meta.as_ref() } else { &other };
        meta.commit_roll_up(roll_up(&line, &segments, key, generation))
    });
    let outcomes: Vec<_> = join_all(races).await.into_iter().map(Result::unwrap).collect();
    let winners: Vec<_> = (0..6).filter(|i| outcomes[*i] == CommitOutcome::Committed).collect();
    assert_eq!(winners.len(), 1, "{outcomes:?}");
    let named = meta.referenced(&keys).await.unwrap();
    assert_eq!(named, [keys[winners[0]].clone()]);
}

async fn branches_with_many_small_segments_are_candidates_for_a_roll_up(database: Database) {
    let meta = &database.meta;
    let (many, ..) = with_segments(meta.as_ref(), "many", 4).await;
    with_segments(meta.as_ref(), "few", 3).await;
    let (more, ..) = with_segments(meta.as_ref(), "more", 9).await;
    let candidates = async |small_bytes, raw_bytes_max| {
        let policy = RollUpPolicy { small_bytes, raw_bytes_max, idle_before: Micros(0) };
        meta.roll_up_candidates(policy, None, 9).await.unwrap()
    };
    let both = [many.branch_key(), more.branch_key()];
    assert_eq!(candidates(101, 4_000).await, both);
    assert_eq!(candidates(100, 4_000).await, []);
    assert_eq!(candidates(101, 3_999).await, []);
    // One after the other, so that those that cannot be rolled up keep no other
    // from it.
    let policy = RollUpPolicy { small_bytes: 101, raw_bytes_max: 4_000, idle_before: Micros(0) };
    let mut after = None;
    for branch in both {
        assert_eq!(
            meta.roll_up_candidates(policy, after.as_ref(), 1).await.unwrap(),
            std::slice::from_ref(&branch)
        );
        after = Some(branch);
    }
    assert_eq!(meta.roll_up_candidates(policy, after.as_ref(), 1).await.unwrap(), []);
}

async fn two_segments_that_fit_are_enough_once_a_branch_is_idle(database: Database) {
    let meta = &database.meta;
    let (idle, ..) = with_segments(meta.as_ref(), "idle", 2).await;
    let (busy, ..) = with_segments(meta.as_ref(), "busy", 2).await;
    with_segments(meta.as_ref(), "one", 1).await;
    let all = "UPDATE segment SET created_at = 7, raw_bytes = 1000";
    database.execute_made(all.to_owned()).await;
    let branch = busy.branch_key().branch;
    let newer =
        format!("UPDATE segment SET created_at = 8 WHERE branch_id = '{branch}' AND first_version = 2");
    database.execute_made(newer).await;
    let candidates = async |raw_bytes_max, idle_before| {
        let policy = RollUpPolicy { small_bytes: 0, raw_bytes_max, idle_before: Micros(idle_before) };
        meta.roll_up_candidates(policy, None, 9).await.unwrap()
    };
    assert_eq!(candidates(2_000, 7).await, []);
    assert_eq!(candidates(2_000, 8).await, [idle.branch_key()]);
    assert_eq!(candidates(2_000, 9).await.len(), 2);
    assert_eq!(candidates(1_999, 9).await, []);
}

async fn what_no_roll_up_would_take_is_no_candidate(database: Database) {
    let meta = &database.meta;
    let (line, ..) = with_segments(meta.as_ref(), "s", 6).await;
    let candidates = async || {
        let policy = RollUpPolicy { small_bytes: 101, raw_bytes_max: 1 << 20, idle_before: Micros(0) };
        meta.roll_up_candidates(policy, None, 9).await.unwrap().len()
    };
    let set = async |column: &str, values: [u64; 6]| {
        for (version, value) in (1..).zip(values) {
            let sql = format!("UPDATE segment SET {column} = {value} WHERE first_version = {version}");
            database.execute_made(sql).await;
        }
    };
    assert_eq!(meta.segments(&line.branch_key(), Seq(0), Seq(u64::MAX)).await.unwrap().len(), 6);
    for (raw_bytes, expected) in [
        ([1_000; 6], 1),
        // No four of them are as large together as twice the first.
        ([32_000, 16_000, 8_000, 4_000, 2_000, 1_000], 0),
        ([32_000, 16_000, 1_000, 1_000, 1_000, 1_000], 1),
        // Nor do four fit into one.
        ([300_000; 6], 0),
        ([300_000, 300_000, 200_000, 200_000, 200_000, 300_000], 1),
    ] {
        set("raw_bytes", raw_bytes).await;
        assert_eq!(candidates().await, expected, "{raw_bytes:?}");
    }
    set("raw_bytes", [1_000; 6]).await;
    for (stored_bytes, expected) in [
        // Four that are small, but not adjacent.
        ([100, 100, 100, 101, 100, 100], 0),
        ([101, 101, 100, 100, 100, 100], 1),
    ] {
        set("stored_bytes", stored_bytes).await;
        assert_eq!(candidates().await, expected, "{stored_bytes:?}");
    }
}

/// Whichever comes first: no blob is left that nothing names, since that would
/// outlive the deletion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_roll_up_that_meets_a_deletion_leaves_no_blob_unnamed() {
    let Some(database) = Database::postgres().await else { return };
    let (line, segments, generation) = with_segments(database.meta.as_ref(), "s", 4).await;
    // Another row with the key of the merged blob makes the roll-up wait in the
    // midst of its transaction.
    let hurdle = database
        .open_transaction(&[
            "INSERT INTO segment SELECT tenant, 'hurdle', first_version, last_version, first_seq, \
            last_seq, 'merged', sha256, stored_bytes, raw_bytes, format, created_at FROM segment LIMIT 1",
        ])
        .await;
    let meta = Arc::new(database.another().await);
    let rolling = tokio::spawn({
        let (meta, new) = (meta.clone(), roll_up(&line, &segments, "merged", generation));
        async move { meta.commit_roll_up(new).await }
    });
    database.waiters(1).await;
    let deleting = tokio::spawn({
        let (meta, key) = (meta.clone(), line.key.clone());
        async move { meta.delete_session(&key, false, Micros(1), Micros(2)).await }
    });
    database.waiters(2).await;
    hurdle.roll_back().await;
    assert_eq!(rolling.await.unwrap().unwrap(), CommitOutcome::Committed);
    assert_eq!(deleting.await.unwrap().unwrap(), std::slice::from_ref(&line.key.session));
    let mut buried: Vec<_> = meta
        .due_tombstones(Micros(i64::MAX), None, 9)
        .await
        .unwrap()
        .into_iter()
        .map(|found| found.key)
        .collect();
    buried.sort();
    assert_eq!(buried, ["merged", "s-1", "s-2", "s-3", "s-4"]);
    assert_eq!(database.rows("SELECT blob_key FROM segment").await, [[""; 1]; 0]);
}

/// A branch that only a fork kept is released while its journal is sealed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seal_that_meets_the_release_of_its_branch_leaves_no_row_behind() {
    let Some(database) = Database::postgres().await else { return };
    let meta = Arc::new(database.another().await);
    let generation = generation(meta.as_ref()).await;
    let mut line = Line::create(meta.as_ref(), "s").await;
    line.append(meta.as_ref(), "r1").await;
    line.append(meta.as_ref(), "r2").await;
    let fork = line.create_fork(meta.as_ref(), "fork").await;
    for key in [&line.key, &fork.key] {
        meta.delete_session(key, false, Micros(1), Micros(2)).await.unwrap();
    }
    let hurdle = database
        .open_transaction(&[
            "INSERT INTO segment (tenant, branch_id, first_version, last_version, first_seq, \
            last_seq, blob_key, sha256, stored_bytes, raw_bytes, format, created_at) \
            VALUES ('default', 'hurdle', 1, 1, 1, 1, 'blob', '', 1, 1, 1, 1)",
        ])
        .await;
    let sealing = tokio::spawn({
        let (meta, seal) = (meta.clone(), line.sealed(2, "blob", generation));
        async move { meta.commit_seal(seal).await }
    });
    database.waiters(1).await;
    let releasing = tokio::spawn({
        let (meta, key) = (meta.clone(), line.key.clone());
        async move { meta.advance_deletion(&key, Micros(1), Micros(2)).await }
    });
    database.waiters(2).await;
    hurdle.roll_back().await;
    assert_eq!(sealing.await.unwrap().unwrap(), CommitOutcome::Committed);
    releasing.await.unwrap().unwrap();
    for rows in [
        database.rows("SELECT branch_id FROM branch").await,
        database.rows("SELECT branch_id FROM segment").await,
        database.rows("SELECT branch_id FROM journal").await,
    ] {
        assert_eq!(rows, [[""; 1]; 0]);
    }
    assert_eq!(meta.referenced(&["blob".into()]).await.unwrap(), ["blob"]);
}

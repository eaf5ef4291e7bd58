//! Turns and the journal.

use crate::stores::{Database, Line, branch_id, eventually, generation, key, on_both_databases};
use futures::future::join_all;
use std::time::Duration;
use turnkeep::clock::{self, Micros};
use turnkeep::model::{Branch, RequestId, Seq, TurnKind, Version};
use turnkeep::store::meta::{
    CommitOutcome, ManifestRow, NewTurn, RecordedTurn, SealedRun, SessionKey, TurnEntries,
};
use turnkeep::store::{ErrorKind, MetaStore};

on_both_databases![
    committed_turns_are_read_back_as_they_were_given,
    the_newest_turns_of_a_range_come_in_order,
    a_turn_on_another_head_leaves_nothing,
    a_turn_for_a_session_that_is_not_there_leaves_nothing,
    a_used_request_id_is_a_duplicate_and_leaves_nothing,
    of_racing_turns_with_one_expectation_one_wins,
    a_request_that_races_with_itself_makes_one_turn,
    the_journal_takes_as_many_bytes_as_it_may_and_no_more,
    a_turn_without_entries_has_no_journal_row,
    a_rewind_moves_the_head_to_a_new_branch,
    a_turn_with_a_segment_takes_the_journal_before_it_along,
    a_turn_with_a_segment_on_another_sealed_version_leaves_nothing,
    a_turn_may_revise_the_window,
    whether_a_request_made_a_turn_is_told_when_its_transaction_has_ended,
    a_turn_that_is_settled_as_absent_does_not_come_later,
    a_tip_shows_one_moment,
];

fn request(id: &str) -> RequestId {
    RequestId::parse(id).unwrap()
}

async fn committed_turns_are_read_back_as_they_were_given(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    let mut turns = vec![line.tip.clone()];
    for id in ["r1", "r2", "r3"] {
        turns.push(line.append(meta.as_ref(), id).await);
    }
    let branch = line.branch_key();
    for turn in &turns {
        let found = meta.turn(&branch, turn.turn.version).await.unwrap();
        assert_eq!(found.as_ref(), Some(turn));
        let found = meta.turn_of_request(&line.key, &turn.turn.request_id).await.unwrap();
        assert_eq!(found.as_ref(), Some(turn));
    }
    assert_eq!(meta.turn(&branch, Version(4)).await.unwrap(), None);
    assert_eq!(meta.turn_of_request(&line.key, &request("r4")).await.unwrap(), None);
    assert_eq!(meta.turn_of_request(&key("nobody"), &request("r1")).await.unwrap(), None);
    let digests: Vec<_> = turns
        .iter()
        .map(|RecordedTurn { turn, .. }| (turn.version, turn.last_seq, turn.prefix_digest))
        .collect();
    assert_eq!(meta.prefix_digests(&branch, Version(0), Version(9)).await.unwrap(), digests);
    assert_eq!(meta.prefix_digests(&branch, Version(1), Version(2)).await.unwrap(), digests[1..3]);
    assert_eq!(meta.journal(&branch, Version(0), Version(9)).await.unwrap(), line.journal);
    assert_eq!(meta.journal(&branch, Version(2), Version(2)).await.unwrap(), line.journal[1..2]);
    for after in 0..4 {
        let tip = meta.tip(&line.key, Some(Version(after as u64))).await.unwrap().unwrap();
        assert_eq!(tip.journal, line.journal[after..]);
        assert_eq!((tip.head.version, tip.turn), (Version(3), turns[3].turn.clone()));
        assert_eq!(tip.head.journal_bytes, line.journal_bytes());
        assert_eq!(tip.head.updated_at, turns[3].turn.created_at);
    }
}

async fn the_newest_turns_of_a_range_come_in_order(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    for i in 1..=6 {
        line.append(meta.as_ref(), &format!("r{i}")).await;
    }
    let versions = async |first, last, limit| {
        let turns = meta.turns(&line.branch_key(), Version(first), Version(last), limit).await.unwrap();
        turns.iter().map(|recorded| recorded.turn.version.0).collect::<Vec<_>>()
    };
    assert_eq!(versions(0, u64::MAX, 10).await, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(versions(1, 5, 3).await, [3, 4, 5]);
    assert_eq!(versions(2, 2, 3).await, [2]);
    assert_eq!(versions(3, 2, 3).await, [0; 0]);
    assert_eq!(versions(7, 9, 3).await, [0; 0]);
}

/// A commit whose expectation is changed.
fn expecting(line: &Line, change: impl Fn(&mut NewTurn)) -> NewTurn {
    let mut new = line.turn("late");
    change(&mut new);
    new
}

async fn a_turn_on_another_head_leaves_nothing(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    line.append(meta.as_ref(), "r1").await;
    let before = database.dump().await;
    for new in [
        expecting(&line, |new| new.expected.version = Version(0)),
        expecting(&line, |new| new.expected.version = Version(2)),
        expecting(&line, |new| new.expected.branch = branch_id("another")),
        expecting(&line, |new| new.expected.config_revision = 2),
        expecting(&line, |new| new.expected.receipt.0[0] ^= 1),
    ] {
        assert_eq!(meta.commit_turn(new).await.unwrap(), CommitOutcome::NotAsExpected);
    }
    assert_eq!(database.dump().await, before);
    line.append(meta.as_ref(), "r2").await;
}

async fn a_turn_for_a_session_that_is_not_there_leaves_nothing(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    meta.delete_session(&line.key, false, Micros(1), Micros(2)).await.unwrap();
    let before = database.dump().await;
    for turn in [line.turn("r1"), Line::new("nobody").turn("r1")] {
        assert_eq!(meta.commit_turn(turn).await.unwrap(), CommitOutcome::NotAsExpected);
    }
    assert_eq!(database.dump().await, before);
}

async fn a_used_request_id_is_a_duplicate_and_leaves_nothing(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    line.append(meta.as_ref(), "r1").await;
    line.append(meta.as_ref(), "r2").await;
    let before = database.dump().await;
    let again = meta.commit_turn(line.turn("r1")).await.unwrap_err();
    assert_eq!(again.kind, ErrorKind::Duplicate);
    assert!(!again.is_retryable());
    assert_eq!(database.dump().await, before);
    // The connection that it failed on works again, and an id is a session's own.
    line.append(meta.as_ref(), "r3").await;
    Line::create(meta.as_ref(), "other").await.append(meta.as_ref(), "r1").await;
}

async fn of_racing_turns_with_one_expectation_one_wins(database: Database) {
    let other = database.another().await;
    let mut line = Line::create(database.meta.as_ref(), "s").await;
    for round in 0..5 {
        let turns: Vec<_> = (0..8).map(|i| line.turn(&format!("r{round}-{i}"))).collect();
        let races = turns.iter().zip(0..).map(|(new, i): (_, usize)| {
            let meta = if i.is_multiple_of(2) { database.meta.as_ref() } else { &other };
            meta.commit_turn(new.clone())
        });
        let outcomes: Vec<_> = join_all(races).await.into_iter().map(Result::unwrap).collect();
        let winners: Vec<_> = (0..8).filter(|i| outcomes[*i] == CommitOutcome::Committed).collect();
        assert_eq!(winners.len(), 1, "{outcomes:?}");
        line.advance(&turns[winners[0]]);
    }
    let tip = other.tip(&line.key, Some(Version(0))).await.unwrap().unwrap();
    assert_eq!((tip.turn, tip.journal), (line.tip.turn.clone(), line.journal.clone()));
    assert_eq!(tip.head.journal_bytes, line.journal_bytes());
    assert_eq!(database.rows("SELECT version FROM turn").await.len(), 6);
}

async fn a_request_that_races_with_itself_makes_one_turn(database: Database) {
    let mut line = Line::create(database.meta.as_ref(), "s").await;
    let new = line.turn("r1");
    let outcomes = join_all((0..8).map(|_| database.meta.commit_turn(new.clone()))).await;
    let committed = outcomes.iter().filter(|outcome| matches!(outcome, Ok(CommitOutcome::Committed)));
    assert_eq!(committed.count(), 1, "{outcomes:?}");
    for outcome in outcomes {
        let refused = outcome.as_ref().is_err_and(|error| error.kind == ErrorKind::Duplicate);
        assert!(refused || outcome.is_ok(), "{outcome:?}");
    }
    line.advance(&new);
    let tip = database.meta.tip(&line.key, Some(Version(0))).await.unwrap().unwrap();
    assert_eq!((tip.turn, tip.journal), (line.tip.turn, line.journal));
}

async fn the_journal_takes_as_many_bytes_as_it_may_and_no_more(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    line.append(meta.as_ref(), "r1").await;
    let mut new = line.turn("r2");
    let TurnEntries::Journal(row) = &new.entries else { panic!("an ordinary turn") };
    let full = line.journal_bytes() + row.body.len() as u64;
    let before = database.dump().await;
    new.journal_bytes_max = full - 1;
    assert_eq!(meta.commit_turn(new.clone()).await.unwrap(), CommitOutcome::NotAsExpected);
    assert_eq!(database.dump().await, before);
    new.journal_bytes_max = full;
    assert_eq!(meta.commit_turn(new).await.unwrap(), CommitOutcome::Committed);
    let head = meta.tip(&line.key, None).await.unwrap().unwrap().head;
    assert_eq!(head.journal_bytes, full);
}

async fn a_turn_without_entries_has_no_journal_row(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    line.append(meta.as_ref(), "r1").await;
    let mut new = line.turn("r2");
    new.entries = TurnEntries::None;
    new.turn.turn.last_seq = Seq(1);
    assert_eq!(meta.commit_turn(new.clone()).await.unwrap(), CommitOutcome::Committed);
    line.advance(&new);
    let tip = meta.tip(&line.key, Some(Version(0))).await.unwrap().unwrap();
    assert_eq!((tip.turn, tip.journal), (new.turn.turn, line.journal.clone()));
    assert_eq!(tip.head.journal_bytes, line.journal_bytes());
}

/// A turn that goes back to the base of a line, on a branch of its own.
fn rewind(line: &Line, to: &RecordedTurn, request: &str) -> NewTurn {
    let mut new = line.turn(request);
    let branch = Branch {
        id: branch_id(&format!("rewound-{request}")),
        parent: Some(to.turn.branch.clone()),
        base_version: to.turn.version,
        base_seq: to.turn.last_seq,
        first_version: new.turn.turn.version,
        sealed_seq: to.turn.last_seq,
        sealed_version: line.tip.turn.version,
        ..line.branch.clone()
    };
    let turn = &mut new.turn.turn;
    (turn.kind, turn.base_version, turn.branch) = (TurnKind::Rewind, to.turn.version, branch.id.clone());
    (turn.first_seq, turn.last_seq) = (to.turn.last_seq.next(), to.turn.last_seq);
    (new.entries, new.branch) = (TurnEntries::None, Some(branch));
    new
}

async fn a_rewind_moves_the_head_to_a_new_branch(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    let first = line.append(meta.as_ref(), "r1").await;
    line.append(meta.as_ref(), "r2").await;
    let new = rewind(&line, &first, "back");
    let branch = new.branch.clone().unwrap();
    let before = database.dump().await;
    let mut late = new.clone();
    late.expected.version = Version(1);
    assert_eq!(meta.commit_turn(late).await.unwrap(), CommitOutcome::NotAsExpected);
    let mut again = new.clone();
    again.turn.turn.request_id = request("r1");
    assert_eq!(meta.commit_turn(again).await.unwrap_err().kind, ErrorKind::Duplicate);
    assert_eq!(database.dump().await, before);
    assert_eq!(meta.commit_turn(new.clone()).await.unwrap(), CommitOutcome::Committed);
    let tip = meta.tip(&line.key, Some(Version(0))).await.unwrap().unwrap();
    assert_eq!((tip.branch, tip.turn), (branch.clone(), new.turn.turn));
    assert_eq!((tip.head.branch, tip.head.version), (branch.id.clone(), Version(3)));
    // The old branch's rows stay, and stay charged.
    assert_eq!(tip.journal, []);
    assert_eq!(tip.head.journal_bytes, line.journal_bytes());
    assert_eq!(meta.journal(&line.branch_key(), Version(0), Version(9)).await.unwrap(), line.journal);
    assert_eq!(meta.branches_of_session(&line.key).await.unwrap(), [line.branch, branch]);
}

/// The next turn with all of the journal in a segment.
fn with_segment(line: &mut Line, request: &str, run: SealedRun) -> NewTurn {
    let mut new = line.turn(request);
    let mut run = run;
    run.segment.last_version = new.turn.turn.version;
    run.segment.last_seq = new.turn.turn.last_seq;
    new.entries = TurnEntries::Segment(run);
    new
}

async fn a_turn_with_a_segment_takes_the_journal_before_it_along(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    line.append(meta.as_ref(), "r1").await;
    line.append(meta.as_ref(), "r2").await;
    let generation = generation(meta.as_ref()).await;
    let mut run = line.sealed(2, "blob", generation).run;
    run.manifest =
        Some(ManifestRow { session: line.key.session.clone(), key: "manifest".into(), version: Version(2) });
    let new = with_segment(&mut line, "r3", run);
    assert_eq!(meta.commit_turn(new.clone()).await.unwrap(), CommitOutcome::Committed);
    let TurnEntries::Segment(run) = &new.entries else { panic!("a segment") };
    let tip = meta.tip(&line.key, Some(Version(0))).await.unwrap().unwrap();
    assert_eq!((tip.turn, tip.journal), (new.turn.turn.clone(), vec![]));
    assert_eq!((tip.head.version, tip.head.journal_bytes), (Version(3), 0));
    assert_eq!((tip.branch.sealed_seq, tip.branch.sealed_version), (Seq(3), Version(3)));
    let segments = meta.segments(&line.branch_key(), Seq(1), Seq(9)).await.unwrap();
    assert_eq!(segments, std::slice::from_ref(&run.segment));
    // Without its row the manifest would be an orphan, and be swept.
    let named = meta.referenced(&["blob".into(), "manifest".into(), "other".into()]).await.unwrap();
    assert_eq!(named, ["blob", "manifest"]);
}

async fn a_turn_with_a_segment_on_another_sealed_version_leaves_nothing(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    for id in ["r1", "r2"] {
        line.append(meta.as_ref(), id).await;
    }
    let generation = generation(meta.as_ref()).await;
    let mut late = line.clone();
    meta.commit_seal(line.sealed(1, "sealed", generation)).await.unwrap();
    let before = database.dump().await;
    let run = late.sealed(2, "late", generation).run;
    let new = with_segment(&mut late, "r3", run);
    assert_eq!(meta.commit_turn(new).await.unwrap(), CommitOutcome::NotAsExpected);
    assert_eq!(database.dump().await, before);
}

async fn a_turn_may_revise_the_window(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    line.append(meta.as_ref(), "r1").await;
    let mut new = line.turn("r2");
    new.revise_window = true;
    meta.commit_turn(new).await.unwrap();
    let head = meta.tip(&line.key, None).await.unwrap().unwrap().head;
    assert_eq!((head.window_revision, head.config_revision), (2, 1));
}

async fn whether_a_request_made_a_turn_is_told_when_its_transaction_has_ended(database: Database) {
    const MOVE: &str = "UPDATE head SET version = 2";
    const INSERT: &str = "INSERT INTO turn (tenant, branch_id, version, session_id, kind, base_version, first_seq, \
        last_seq, request_id, request_digest, entries_digest, receipt, prefix_digest, calls, tokens, log_tokens, \
        payload_bytes, report, reply, created_at) \
        SELECT tenant, branch_id, 2, session_id, kind, base_version, first_seq, last_seq, 'slow', request_digest, \
        entries_digest, receipt, prefix_digest, calls, tokens, log_tokens, payload_bytes, report, reply, created_at \
        FROM turn WHERE version = 1";
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    line.append(meta.as_ref(), "r1").await;
    for commits in [false, true] {
        let open = database.open_transaction(&[MOVE, INSERT]).await;
        let (asked_of, key) = (database.another().await, line.key.clone());
        let ask = async move { asked_of.turn_of_request(&key, &request("slow")).await.unwrap() };
        let mut ask = tokio::spawn(ask);
        if database.url().is_some() {
            database.waiters(1).await;
        }
        assert!(clock::deadline(Duration::from_millis(100), &mut ask).await.is_none());
        if commits {
            open.commit().await;
        } else {
            open.roll_back().await;
        }
        let found = ask.await.unwrap().map(|recorded| recorded.turn.version);
        assert_eq!(found, commits.then_some(Version(2)));
    }
}

async fn a_turn_that_is_settled_as_absent_does_not_come_later(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    let first = line.append(meta.as_ref(), "r1").await;
    let late = line.turn("r2");
    assert_eq!(meta.settle_turn(&line.key, &late.turn.turn.request_id).await.unwrap(), None);
    let before = database.dump().await;
    assert_eq!(meta.commit_turn(late.clone()).await.unwrap(), CommitOutcome::NotAsExpected);
    assert_eq!(database.dump().await, before);
    assert_eq!(meta.settle_turn(&key("nobody"), &request("r1")).await.unwrap(), None);

    assert_eq!(meta.settle_turn(&line.key, &first.turn.request_id).await.unwrap(), Some(first));
    line.fence = meta.tip(&line.key, None).await.unwrap().unwrap().head.fence;
    let second = line.append(meta.as_ref(), "r2").await;
    assert_eq!(meta.turn_of_request(&line.key, &request("r2")).await.unwrap(), Some(second));
}

async fn a_tip_shows_one_moment(database: Database) {
    let mut line = Line::create(database.meta.as_ref(), "s").await;
    let generation = generation(database.meta.as_ref()).await;
    let writer = database.another().await;
    let key: SessionKey = line.key.clone();
    let write = async move {
        for i in 1..=60 {
            line.append(&writer, &format!("r{i}")).await;
            if line.journal.len() == 4 {
                let seal = line.sealed(3, &format!("blob-{i}"), generation);
                assert_eq!(writer.commit_seal(seal).await.unwrap(), CommitOutcome::Committed);
            }
        }
    };
    let writing = tokio::spawn(write);
    loop {
        let is_last = writing.is_finished();
        let tip = database.meta.tip(&key, Some(Version(0))).await.unwrap().unwrap();
        assert_eq!(tip.head.version, tip.turn.version);
        let unsealed = tip.branch.sealed_version.0 + 1..=tip.head.version.0;
        let journal: Vec<_> = tip.journal.iter().map(|row| row.version.0).collect();
        assert_eq!(journal, unsealed.collect::<Vec<_>>());
        let bytes: usize = tip.journal.iter().map(|row| row.body.len()).sum();
        assert_eq!(tip.head.journal_bytes, bytes as u64);
        if is_last {
            break;
        }
    }
    writing.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tip_reads_its_turn_alone_though_postgres_planned_it_on_empty_tables() {
    const TURNS: u64 = 100;
    const TIPS: u64 = 50;
    let Some(database) = Database::postgres().await else { return };
    database.execute("ALTER TABLE turn SET (autovacuum_enabled = off)").await;
    database.execute("ALTER TABLE journal SET (autovacuum_enabled = off)").await;
    let fetched = async || -> u64 {
        let sql = "SELECT CAST(sum(idx_tup_fetch + seq_tup_read) AS BIGINT) FROM pg_stat_user_tables \
                   WHERE schemaname = current_schema() AND relname IN ('turn', 'journal')";
        database.rows(sql).await[0][0].parse().unwrap()
    };
    let reader = database.with_writers(1).await;
    // After five executions Postgres keeps a plan, whatever the tables hold later.
    for _ in 0..10 {
        assert!(reader.tip(&key("s"), Some(Version(0))).await.unwrap().is_none());
    }
    let mut line = Line::create(database.meta.as_ref(), "s").await;
    for i in 1..=TURNS {
        line.append(database.meta.as_ref(), &format!("r{i}")).await;
    }
    let newest = Version(TURNS - 1);
    for _ in 0..TIPS {
        let tip = reader.tip(&line.key, Some(newest)).await.unwrap().unwrap();
        assert_eq!((tip.turn.version, tip.journal.len()), (Version(TURNS), 1));
    }
    // What a connection has read it tells when it closes.
    drop(reader);
    eventually("the reader's figures", async || (fetched().await >= 2 * TIPS).then_some(())).await;
    assert!(fetched().await <= 2 * TIPS + 20 * TURNS, "{} rows", fetched().await);
}

//! Calls that are dropped on the way: all of a write or nothing of it, and
//! nothing of later writes is lost.
//!
//! sqlx 0.9.0 gives a connection whose `BEGIN` was cancelled back to its pool
//! inside a transaction, which then swallows the writes that follow.

use crate::stores::{Database, Line, generation, leased, on_both_databases, polled, soon};
use turnkeep::clock::Micros;
use turnkeep::model::Version;
use turnkeep::store::MetaStore;
use turnkeep::store::meta::TurnEntries;
use turnkeep::store::sql::SqlMetaStore;

on_both_databases![
    a_turn_that_is_cancelled_anywhere_is_whole_or_absent_and_swallows_nothing,
    a_turn_with_a_segment_that_is_cancelled_anywhere_is_whole_or_absent,
    a_seal_that_is_cancelled_anywhere_is_whole_or_absent,
    a_creation_that_is_cancelled_anywhere_is_whole_or_absent,
    a_deletion_that_is_cancelled_anywhere_is_whole_or_absent,
    a_lookup_that_is_cancelled_anywhere_swallows_nothing,
];

/// More polls than any write needs.
const POLLS_MAX: usize = 400;

/// Writes on the pool of the cancelled call, which has one connection, and looks
/// for it on another.
async fn assert_nothing_is_swallowed(database: &Database, pool: &SqlMetaStore, probe: &mut Line, i: usize) {
    let turn = soon("a write after a cancelled one", probe.append(pool, &format!("probe-{i}"))).await.turn;
    let found = database.meta.tip(&probe.key, None).await.unwrap().unwrap();
    assert_eq!(found.turn, turn, "after a call that was cancelled at poll {i}");
}

async fn a_turn_that_is_cancelled_anywhere_is_whole_or_absent_and_swallows_nothing(database: Database) {
    let pool = database.with_writers(1).await;
    let mut line = Line::create(database.meta.as_ref(), "s").await;
    let mut probe = Line::create(database.meta.as_ref(), "probe").await;
    let mut absent = 0;
    // How far a number of polls gets depends on how fast the answers come.
    for round in 0..4 {
        for polls in 1.. {
            assert!(polls < POLLS_MAX);
            let new = line.turn(&format!("r{round}-{polls}"));
            let done = polled(polls, pool.commit_turn(new.clone())).await;
            let recorded = database.meta.settle_turn(&line.key, &new.turn.turn.request_id).await.unwrap();
            line.fence += 1;
            if recorded.is_some() {
                line.advance(&new);
            } else {
                absent += 1;
            }
            let tip = database.meta.tip(&line.key, Some(Version(0))).await.unwrap().unwrap();
            assert_eq!(
                (&tip.turn, &tip.journal),
                (&line.tip.turn, &line.journal),
                "cancelled at poll {polls}"
            );
            assert_eq!(tip.head.journal_bytes, line.journal_bytes());
            assert_nothing_is_swallowed(&database, &pool, &mut probe, round * POLLS_MAX + polls).await;
            if let Some(outcome) = done {
                assert!(outcome.is_ok() && recorded.is_some(), "{outcome:?}");
                break;
            }
        }
    }
    assert!(absent > 0, "no call was cancelled before it took effect");
    drop(pool);
    // What was acknowledged is there for a process that begins now.
    let later = database.another().await;
    assert_eq!(later.tip(&probe.key, None).await.unwrap().unwrap().turn, probe.tip.turn);
}

async fn a_turn_with_a_segment_that_is_cancelled_anywhere_is_whole_or_absent(database: Database) {
    let pool = database.with_writers(1).await;
    let generation = generation(database.meta.as_ref()).await;
    let mut probe = Line::create(database.meta.as_ref(), "probe").await;
    for polls in (1..).step_by(2) {
        assert!(polls < POLLS_MAX);
        let mut line = Line::create(database.meta.as_ref(), &format!("s{polls}")).await;
        line.append(database.meta.as_ref(), "r1").await;
        let mut new = line.turn("large");
        let mut run = line.clone().sealed(1, &format!("blob-{polls}"), generation).run;
        run.segment.last_version = Version(2);
        run.segment.last_seq = new.turn.turn.last_seq;
        new.entries = TurnEntries::Segment(run.clone());
        let done = polled(polls, pool.commit_turn(new.clone())).await;
        let recorded = database.meta.turn_of_request(&line.key, &new.turn.turn.request_id).await.unwrap();
        let tip = database.meta.tip(&line.key, Some(Version(0))).await.unwrap().unwrap();
        let segments = database
            .meta
            .segments(&line.branch_key(), turnkeep::model::Seq(0), turnkeep::model::Seq(99))
            .await
            .unwrap();
        if recorded.is_some() {
            assert_eq!((tip.head.version, tip.branch.sealed_version), (Version(2), Version(2)));
            assert_eq!((tip.journal, tip.head.journal_bytes, segments), (vec![], 0, vec![run.segment]));
        } else {
            assert_eq!((tip.head.version, tip.branch.sealed_version), (Version(1), Version(0)));
            assert_eq!((tip.journal, segments), (line.journal.clone(), vec![]));
        }
        assert_nothing_is_swallowed(&database, &pool, &mut probe, polls).await;
        if done.is_some() {
            return;
        }
    }
}

async fn a_seal_that_is_cancelled_anywhere_is_whole_or_absent(database: Database) {
    let pool = database.with_writers(1).await;
    let generation = generation(database.meta.as_ref()).await;
    for polls in (1..).step_by(2) {
        assert!(polls < POLLS_MAX);
        let mut line = Line::create(database.meta.as_ref(), &format!("s{polls}")).await;
        line.append(database.meta.as_ref(), "r1").await;
        let unsealed = line.clone();
        let done =
            polled(polls, pool.commit_seal(line.sealed(1, &format!("blob-{polls}"), generation))).await;
        // A transaction that locks the head comes after the seal's.
        database.meta.turn_of_request(&line.key, &line.tip.turn.request_id).await.unwrap();
        let tip = database.meta.tip(&line.key, Some(Version(0))).await.unwrap().unwrap();
        let expected = if tip.branch.sealed_version == Version(0) { &unsealed } else { &line };
        assert_eq!((&tip.branch, &tip.journal), (&expected.branch, &expected.journal));
        assert_eq!(tip.head.journal_bytes, expected.journal_bytes());
        // The pool of the background still works.
        soon("a write after a cancelled one", leased(&pool, Micros(1))).await;
        if done.is_some() {
            assert_eq!(tip.branch, line.branch);
            return;
        }
    }
}

async fn a_creation_that_is_cancelled_anywhere_is_whole_or_absent(database: Database) {
    let pool = database.with_writers(1).await;
    let mut probe = Line::create(database.meta.as_ref(), "probe").await;
    for polls in (1..).step_by(3) {
        assert!(polls < POLLS_MAX);
        let line = Line::new(&format!("s{polls}"));
        let done = polled(polls, pool.create_session(line.to_create())).await;
        // Comes after the creation's transaction, or fails with it.
        let again = database.meta.create_session(line.to_create()).await.unwrap();
        let tip = database.meta.tip(&line.key, None).await.unwrap().unwrap();
        assert_eq!((tip.session, tip.turn), (line.session.clone(), line.tip.turn.clone()), "{again:?}");
        assert_eq!(database.meta.preambles(&line.key).await.unwrap().len(), 1);
        assert_nothing_is_swallowed(&database, &pool, &mut probe, polls).await;
        if done.is_some() {
            return;
        }
    }
}

async fn a_deletion_that_is_cancelled_anywhere_is_whole_or_absent(database: Database) {
    let pool = database.with_writers(1).await;
    let mut probe = Line::create(database.meta.as_ref(), "probe").await;
    for polls in (1..).step_by(3) {
        assert!(polls < POLLS_MAX);
        let mut line = Line::create(database.meta.as_ref(), &format!("s{polls}")).await;
        line.append(database.meta.as_ref(), "r1").await;
        let done = polled(polls, pool.delete_session(&line.key, false, Micros(1), Micros(2))).await;
        database.meta.turn_of_request(&line.key, &line.tip.turn.request_id).await.unwrap();
        let tip = database.meta.tip(&line.key, Some(Version(0))).await.unwrap();
        let receipt = database.meta.deletion(&line.key).await.unwrap();
        match tip {
            Some(tip) => assert_eq!((tip.turn, tip.journal, receipt), (line.tip.turn, line.journal, None)),
            None => assert!(receipt.is_some()),
        }
        assert_nothing_is_swallowed(&database, &pool, &mut probe, polls).await;
        if done.is_some() {
            return;
        }
    }
}

async fn a_lookup_that_is_cancelled_anywhere_swallows_nothing(database: Database) {
    let pool = database.with_writers(1).await;
    let mut probe = Line::create(database.meta.as_ref(), "probe").await;
    probe.append(&pool, "r1").await;
    for polls in 1.. {
        assert!(polls < POLLS_MAX);
        let id = probe.tip.turn.request_id.clone();
        let done = polled(polls, pool.turn_of_request(&probe.key, &id)).await;
        assert_nothing_is_swallowed(&database, &pool, &mut probe, polls).await;
        if let Some(found) = done {
            assert!(found.unwrap().is_some());
            return;
        }
    }
}

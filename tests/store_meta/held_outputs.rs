//! Blobs of tool outputs that are held, and moving them.

use crate::stores::{Database, Line, generation, on_both_databases, tenant};
use bytes::Bytes;
use turnkeep::clock::Micros;
use turnkeep::codec::digest;
use turnkeep::model::{Output, OutputId, TenantId};
use turnkeep::store::meta::{CommitOutcome, HeldOutput, NewOutput, OutputMove, TurnEntries, TurnOutput};
use turnkeep::store::{ErrorKind, MetaStore};

on_both_databases![
    what_is_held_is_charged_to_the_journal_until_it_is_moved,
    a_journal_without_room_holds_nothing,
    a_turn_brings_outputs_that_are_held_and_others,
    an_output_is_moved_once,
    what_was_deleted_is_not_moved,
    what_a_fork_keeps_of_a_deleted_session_is_moved,
    a_fenced_generation_moves_nothing,
    held_outputs_of_all_tenants_are_listed_in_pages,
];

const BODY: usize = 1_000;

fn id(n: u64) -> OutputId {
    OutputId::parse(&format!("{n:032x}")).unwrap()
}

fn body(n: u64) -> Bytes {
    vec![u8::try_from(n).unwrap(); BODY].into()
}

fn output(n: u64, line: &Line) -> Output {
    Output {
        id: id(n),
        branch: line.branch.id.clone(),
        version: line.tip.turn.version,
        tool_call_id: format!("call-{n}"),
        tool_name: "grep".to_owned(),
        content_type: "text/plain".to_owned(),
        bytes: 9_000,
        characters: 9_000,
        lines: 80,
        sha256: digest::sha256(&n.to_be_bytes()),
        key: None,
        stored_bytes: BODY as u64,
        tail_at: 400,
        format: 1,
        created_at: Micros(7),
        entry: None,
    }
}

async fn new(database: &Database, n: u64, line: &Line) -> NewOutput {
    NewOutput {
        key: line.key.clone(),
        output: output(n, line),
        held: Some(body(n)),
        journal_bytes_max: 1 << 30,
        generation: generation(database.meta.as_ref()).await,
    }
}

async fn hold(database: &Database, n: u64, line: &Line) -> Output {
    let new = new(database, n, line).await;
    database.meta.add_output(new).await.unwrap().unwrap()
}

fn held(n: u64, line: &Line) -> HeldOutput {
    HeldOutput { branch: line.branch_key(), output: id(n), stored_bytes: BODY as u64 }
}

async fn moved(database: &Database, n: u64, line: &Line) -> OutputMove {
    let generation = generation(database.meta.as_ref()).await;
    OutputMove { held: held(n, line), blob_key: format!("blob-{n}-{generation}"), generation }
}

async fn charged(database: &Database, line: &Line) -> u64 {
    database.meta.tip(&line.key, None).await.unwrap().unwrap().head.journal_bytes
}

async fn what_is_held_is_charged_to_the_journal_until_it_is_moved(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    line.append(meta.as_ref(), "r1").await;
    let journal = line.journal_bytes();
    for n in [1, 2] {
        hold(&database, n, &line).await;
    }
    assert_eq!(charged(&database, &line).await, journal + 2_000);
    assert_eq!(meta.held_output_bytes(&line.key).await.unwrap(), 2_000);
    assert_eq!(meta.held_output_count().await.unwrap(), 2);
    assert_eq!(meta.blob_bytes(&line.key).await.unwrap(), 0);
    let moved = moved(&database, 1, &line).await;
    assert_eq!(meta.commit_output_move(moved.clone()).await.unwrap(), CommitOutcome::Committed);
    assert_eq!(charged(&database, &line).await, journal + 1_000);
    assert_eq!(meta.held_output_bytes(&line.key).await.unwrap(), 1_000);
    assert_eq!(meta.held_output_count().await.unwrap(), 1);
    assert_eq!(meta.blob_bytes(&line.key).await.unwrap(), 1_000);
    let expected = Output { key: Some(moved.blob_key.clone()), ..output(1, &line) };
    assert_eq!(meta.output(&line.key, &id(1)).await.unwrap(), Some(expected));
    assert_eq!(meta.held_output(&tenant(), &id(1)).await.unwrap(), None);
    assert_eq!(meta.held_output(&tenant(), &id(2)).await.unwrap(), Some(body(2)));
    let keys = [moved.blob_key, "other".to_owned()];
    assert_eq!(meta.referenced(&keys).await.unwrap(), keys[..1]);
    // A turn after it is charged beside it, and a seal takes its part only.
    line.append(meta.as_ref(), "r2").await;
    assert_eq!(charged(&database, &line).await, line.journal_bytes() + 1_000);
    let seal = line.sealed(2, "segment", generation(meta.as_ref()).await);
    assert_eq!(meta.commit_seal(seal).await.unwrap(), CommitOutcome::Committed);
    assert_eq!(charged(&database, &line).await, 1_000);
    assert_eq!(meta.blob_bytes(&line.key).await.unwrap(), 1_100);
}

async fn a_journal_without_room_holds_nothing(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    line.append(meta.as_ref(), "r1").await;
    let journal = line.journal_bytes();
    let before = database.dump().await;
    let mut new = new(&database, 1, &line).await;
    new.journal_bytes_max = journal + 999;
    assert_eq!(meta.add_output(new.clone()).await.unwrap(), None);
    let mut turn = line.turn("r2");
    turn.outputs = vec![TurnOutput {
        output: Output { branch: line.branch.id.clone(), ..output(2, &line) },
        held: Some(body(2)),
        generation: new.generation,
    }];
    let TurnEntries::Journal(row) = &turn.entries else { panic!("{turn:?}") };
    turn.journal_bytes_max = journal + row.body.len() as u64 + 999;
    assert_eq!(meta.commit_turn(turn.clone()).await.unwrap(), CommitOutcome::NotAsExpected);
    let mut after = database.dump().await;
    after.insert("writer_generation", before["writer_generation"].clone());
    assert_eq!(after, before);
    turn.journal_bytes_max += 1;
    assert_eq!(meta.commit_turn(turn).await.unwrap(), CommitOutcome::Committed);
    new.journal_bytes_max = charged(&database, &line).await + 1_000;
    meta.add_output(new).await.unwrap().unwrap();
}

async fn a_turn_brings_outputs_that_are_held_and_others(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    line.append(meta.as_ref(), "r1").await;
    let (live, fenced) = (generation(meta.as_ref()).await, generation(meta.as_ref()).await);
    meta.fence_generation(fenced, Micros(5)).await.unwrap();
    let put = TurnOutput {
        output: Output { key: Some("blob".to_owned()), ..output(1, &line) },
        held: None,
        generation: live,
    };
    // What is held names no blob, so that its generation does not matter.
    let kept = TurnOutput { output: output(2, &line), held: Some(body(2)), generation: fenced };
    let journal = line.journal_bytes();
    for (request, entries) in [("r2", true), ("r3", false)] {
        let mut turn = line.turn(request);
        let bytes = match &turn.entries {
            TurnEntries::Journal(row) => row.body.len() as u64,
            other => panic!("{other:?}"),
        };
        if entries {
            turn.outputs = vec![put.clone(), kept.clone()];
        }
        let before = charged(&database, &line).await;
        assert_eq!(meta.commit_turn(turn.clone()).await.unwrap(), CommitOutcome::Committed);
        line.advance(&turn);
        let more = if entries { bytes + 1_000 } else { bytes };
        assert_eq!(charged(&database, &line).await, before + more);
    }
    assert_eq!(charged(&database, &line).await, line.journal_bytes() + 1_000);
    assert!(line.journal_bytes() > journal);
    assert_eq!(meta.outputs(&line.key, None, 9).await.unwrap(), [kept.output, put.output]);
    assert_eq!(meta.held_output(&tenant(), &id(2)).await.unwrap(), Some(body(2)));
    assert_eq!(meta.held_output(&tenant(), &id(1)).await.unwrap(), None);
}

async fn an_output_is_moved_once(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    hold(&database, 1, &line).await;
    let mut moves = Vec::new();
    for _ in 0..4 {
        let meta = database.another().await;
        let moved = moved(&database, 1, &line).await;
        moves.push(tokio::spawn(async move { meta.commit_output_move(moved).await.unwrap() }));
    }
    let mut outcomes = Vec::new();
    for outcome in moves {
        outcomes.push(outcome.await.unwrap());
    }
    let committed = outcomes.iter().filter(|outcome| **outcome == CommitOutcome::Committed).count();
    assert_eq!(committed, 1, "{outcomes:?}");
    assert_eq!(charged(&database, &line).await, 0);
    // One that nobody holds, or never did.
    let before = database.dump().await;
    for n in [1, 2] {
        let again = moved(&database, n, &line).await;
        assert_eq!(meta.commit_output_move(again).await.unwrap(), CommitOutcome::NotAsExpected);
    }
    let mut after = database.dump().await;
    after.insert("writer_generation", before["writer_generation"].clone());
    assert_eq!(after, before);
}

async fn what_was_deleted_is_not_moved(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    hold(&database, 1, &line).await;
    let moved = moved(&database, 1, &line).await;
    meta.delete_session(&line.key, false, Micros(10), Micros(20)).await.unwrap();
    assert_eq!(meta.held_output_count().await.unwrap(), 0);
    let before = database.dump().await;
    assert_eq!(meta.commit_output_move(moved).await.unwrap(), CommitOutcome::NotAsExpected);
    assert_eq!(database.dump().await, before);
}

async fn what_a_fork_keeps_of_a_deleted_session_is_moved(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    hold(&database, 1, &line).await;
    line.append(meta.as_ref(), "r1").await;
    let fork = line.create_fork(meta.as_ref(), "fork").await;
    meta.delete_session(&line.key, false, Micros(10), Micros(20)).await.unwrap();
    assert_eq!(meta.held_output(&tenant(), &id(1)).await.unwrap(), Some(body(1)));
    let moved = moved(&database, 1, &line).await;
    assert_eq!(meta.commit_output_move(moved.clone()).await.unwrap(), CommitOutcome::Committed);
    let found = meta.output(&fork.key, &id(1)).await.unwrap().unwrap();
    assert_eq!(found.key.as_ref(), Some(&moved.blob_key));
    // Nobody is charged for it.
    assert_eq!(charged(&database, &fork).await, 0);
    assert_eq!(database.rows("SELECT journal_bytes FROM head WHERE deleted = 1").await, [["0"]]);
    meta.delete_session(&fork.key, false, Micros(10), Micros(20)).await.unwrap();
    meta.advance_deletion(&line.key, Micros(10), Micros(20)).await.unwrap();
    let due = meta.due_tombstones(Micros(20), None, 9).await.unwrap();
    assert_eq!(due.into_iter().map(|due| due.key).collect::<Vec<_>>(), [moved.blob_key]);
}

async fn a_fenced_generation_moves_nothing(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    hold(&database, 1, &line).await;
    let moved = moved(&database, 1, &line).await;
    meta.fence_generation(moved.generation, Micros(5)).await.unwrap();
    let before = database.dump().await;
    assert_eq!(meta.commit_output_move(moved).await.unwrap_err().kind, ErrorKind::Fenced);
    assert_eq!(database.dump().await, before);
}

async fn held_outputs_of_all_tenants_are_listed_in_pages(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    let mut foreign = Line::new("t");
    foreign.key.tenant = TenantId::parse("foreign").unwrap();
    meta.create_session(foreign.to_create()).await.unwrap();
    for n in [2, 3] {
        hold(&database, n, &line).await;
    }
    hold(&database, 1, &foreign).await;
    let all = [held(2, &line), held(3, &line), held(1, &foreign)];
    assert_eq!(meta.held_outputs(None, 9).await.unwrap(), all);
    assert_eq!(meta.held_outputs(None, 2).await.unwrap(), all[..2]);
    assert_eq!(meta.held_outputs(Some(&all[0]), 2).await.unwrap(), all[1..]);
    assert_eq!(meta.held_outputs(Some(&all[2]), 2).await.unwrap(), []);
    assert_eq!(meta.held_output_bytes(&line.key).await.unwrap(), 2_000);
    // Nor does one move another's.
    let mut wrong = moved(&database, 1, &foreign).await;
    wrong.held.branch.tenant = tenant();
    assert_eq!(meta.commit_output_move(wrong).await.unwrap(), CommitOutcome::NotAsExpected);
    assert_eq!(meta.held_output_count().await.unwrap(), 3);
}

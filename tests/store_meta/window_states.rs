//! Window states.

use crate::stores::{Database, Line, branch_id, on_both_databases, soon};
use turnkeep::clock::Micros;
use turnkeep::model::{
    BranchId, CacheBreak, Calibration, Cost, Cut, NoteNames, Pin, RecordedState, Seq, StateKind, StateRecord,
    Summary, TenantId, TokenFactor, Tokenizer, Unrelieved, Version, WindowState,
};
use turnkeep::store::MetaStore;
use turnkeep::store::meta::{BranchKey, CommitOutcome, NewTurn, NewWindowState, RebuiltRows, TurnEntries};

on_both_databases![
    a_state_is_read_as_it_was_recorded_at_the_head_s_version,
    a_state_follows_the_one_before_on_the_branch_of_the_head,
    of_states_with_the_same_number_one_is_recorded,
    states_are_listed_the_newest_first_up_to_a_version_and_a_number,
    a_fork_begins_with_the_number_and_room_that_it_is_given,
    a_rewind_goes_on_with_the_session_s_numbers,
    states_go_with_their_branch,
    loaded_states_are_as_those_that_were_recorded,
    of_tenants_none_sees_the_others_states,
];

const NEWEST: Version = Version(i64::MAX as u64);

fn calibration(number: u64) -> Option<Calibration> {
    let permille = TokenFactor::of_report(1_000 + number, 1_000)?;
    Some(Calibration { permille, model: "m".into(), tokenizer: Tokenizer::Cl100k })
}

/// A state with a value of its own in every field.
fn state(number: u64, branch: &BranchId) -> RecordedState {
    let state = WindowState {
        cut: Some(Cut {
            opening: number,
            first_kept: Seq(number + 3),
            system: vec![Seq(1)],
            first_user: Some(Seq(2)),
            last_user: Some(Seq(number + 2)),
            omitted_entries: number,
            omitted_tokens: 10 * number,
        }),
        snipped: vec![Seq(number + 4)],
        partly: [(Seq(number + 4), vec![0, 2])].into(),
        stale: [(Seq(number + 4), Seq(number + 5))].into(),
        summary: Some(Summary {
            covers: Seq(number),
            text: "said \"ü\"\n".into(),
            ledger: "done".into(),
            known: serde_json::Value::Null,
        }),
        pins: vec![Pin { name: "rule".into(), text: format!("no {number}"), seq: Some(Seq(1)) }],
        notes: NoteNames { shown: vec!["port".into()], more: number },
        unrelieved: Some(Unrelieved { in_a_row: 2, tokens: 900, last: 70 }),
        calibration: calibration(number),
        undone: vec![(number, number + 1)],
    };
    let record = StateRecord {
        tokens_before: 100 + number,
        cause: "asked for".into(),
        undone: Some(number),
        cache: CacheBreak { kept_tokens: number, resent_tokens: 7, cost: Some(Cost(number)) },
        ..StateRecord::default()
    };
    let kind = StateKind::ALL[usize::try_from(number).unwrap() % StateKind::ALL.len()];
    let created_at = Micros(i64::try_from(number).unwrap());
    RecordedState { branch: branch.clone(), number, version: Version(0), kind, state, record, created_at }
}

fn new(line: &Line, number: u64) -> NewWindowState {
    let window_offset = -7 * i64::try_from(number).unwrap();
    NewWindowState { key: line.key.clone(), state: state(number, &line.branch.id), window_offset }
}

/// Records a state; gives it as it is read back.
async fn record(meta: &dyn MetaStore, line: &Line, number: u64) -> RecordedState {
    assert_eq!(meta.commit_window_state(new(line, number)).await.unwrap(), CommitOutcome::Committed);
    RecordedState { version: line.tip.turn.version, ..state(number, &line.branch.id) }
}

async fn numbers(meta: &dyn MetaStore, line: &Line, last: Version, before: u64, limit: u32) -> Vec<u64> {
    let found = meta.window_states(&line.branch_key(), last, before, limit).await.unwrap();
    found.into_iter().map(|state| state.number).collect()
}

/// Number, offset and revision of a session's window.
async fn window(meta: &dyn MetaStore, line: &Line) -> (u64, i64, u64) {
    let head = meta.tip(&line.key, None).await.unwrap().unwrap().head;
    if head.window_state > 0 {
        assert_eq!(head.calibration, calibration(head.window_state), "as in its newest state");
    }
    (head.window_state, head.window_offset, head.window_revision)
}

async fn a_state_is_read_as_it_was_recorded_at_the_head_s_version(database: Database) {
    let meta = database.meta.as_ref();
    let mut line = Line::create(meta, "s").await;
    assert_eq!(window(meta, &line).await, (0, 0, 1));
    line.append(meta, "r1").await;
    let recorded = record(meta, &line, 1).await;
    assert_eq!(recorded.version, Version(1), "whatever its writer thought");
    assert_eq!(meta.window_states(&line.branch_key(), NEWEST, u64::MAX, 9).await.unwrap(), [recorded]);
    assert_eq!(window(meta, &line).await, (1, -7, 2));
    // A turn goes on from there.
    line.append(meta, "r2").await;
    assert_eq!(window(meta, &line).await, (1, -7, 2));
}

async fn a_state_follows_the_one_before_on_the_branch_of_the_head(database: Database) {
    let meta = database.meta.as_ref();
    let line = Line::create(meta, "s").await;
    record(meta, &line, 1).await;
    let before = database.dump().await;
    let mut elsewhere = new(&line, 2);
    elsewhere.state.branch = branch_id("elsewhere");
    let mut nobodys = new(&line, 2);
    nobodys.key = Line::new("nobody").key;
    for wrong in [new(&line, 0), new(&line, 1), new(&line, 3), elsewhere, nobodys] {
        let outcome = meta.commit_window_state(wrong.clone()).await.unwrap();
        assert_eq!(outcome, CommitOutcome::NotAsExpected, "{wrong:?}");
    }
    assert_eq!(database.dump().await, before);
    record(meta, &line, 2).await;
    meta.delete_session(&line.key, false, Micros(10), Micros(20)).await.unwrap();
    let outcome = meta.commit_window_state(new(&line, 3)).await.unwrap();
    assert_eq!(outcome, CommitOutcome::NotAsExpected);
}

async fn of_states_with_the_same_number_one_is_recorded(database: Database) {
    let meta = database.meta.clone();
    let other = std::sync::Arc::new(database.another().await);
    let line = Line::create(meta.as_ref(), "s").await;
    for number in 1..=8 {
        let (one, two) = (meta.clone(), other.clone());
        let (first, mut second) = (new(&line, number), new(&line, number));
        second.state.record.cause = "another".into();
        let commits = tokio::join!(
            tokio::spawn(async move { one.commit_window_state(first).await }),
            tokio::spawn(async move { two.commit_window_state(second).await }),
        );
        let outcomes = [commits.0.unwrap().unwrap(), commits.1.unwrap().unwrap()];
        let committed = outcomes.iter().filter(|outcome| **outcome == CommitOutcome::Committed).count();
        assert_eq!(committed, 1, "{outcomes:?}");
    }
    let listed = soon("a list", numbers(meta.as_ref(), &line, NEWEST, u64::MAX, 99)).await;
    assert_eq!(listed, (1..=8).rev().collect::<Vec<_>>());
}

async fn states_are_listed_the_newest_first_up_to_a_version_and_a_number(database: Database) {
    let meta = database.meta.as_ref();
    let mut line = Line::create(meta, "s").await;
    // Two at each of the versions 0 to 2.
    for version in 0..3 {
        if version > 0 {
            line.append(meta, &format!("r{version}")).await;
        }
        for number in [2 * version + 1, 2 * version + 2] {
            record(meta, &line, number).await;
        }
    }
    for (last, before, limit, expected) in [
        (NEWEST, u64::MAX, 99, &[6, 5, 4, 3, 2, 1][..]),
        (Version(2), 7, 99, &[6, 5, 4, 3, 2, 1]),
        (Version(1), u64::MAX, 99, &[4, 3, 2, 1]),
        (Version(0), u64::MAX, 99, &[2, 1]),
        (NEWEST, 5, 2, &[4, 3]),
        (Version(1), 6, 1, &[4]),
        (NEWEST, 1, 99, &[]),
        (NEWEST, u64::MAX, 0, &[]),
    ] {
        assert_eq!(numbers(meta, &line, last, before, limit).await, expected, "{last} {before} {limit}");
    }
}

async fn a_fork_begins_with_the_number_and_room_that_it_is_given(database: Database) {
    let meta = database.meta.as_ref();
    let line = Line::create(meta, "s").await;
    record(meta, &line, 1).await;
    let (fork, mut new) = line.fork("fork");
    new.window_state = (1, -7);
    new.calibration = calibration(1);
    meta.create_session(new).await.unwrap();
    assert_eq!(window(meta, &fork).await, (1, -7, 1));
    // None of them is on its branch yet; its own follow the source's.
    assert_eq!(numbers(meta, &fork, NEWEST, u64::MAX, 9).await, [0; 0]);
    record(meta, &fork, 2).await;
    assert_eq!(numbers(meta, &fork, NEWEST, u64::MAX, 9).await, [2]);
    assert_eq!(numbers(meta, &line, NEWEST, u64::MAX, 9).await, [1]);
    record(meta, &line, 2).await;
}

async fn a_rewind_goes_on_with_the_session_s_numbers(database: Database) {
    let meta = database.meta.as_ref();
    let mut line = Line::create(meta, "s").await;
    let base = line.tip.clone();
    line.append(meta, "r1").await;
    record(meta, &line, 1).await;
    let old = line.clone();
    let mut branch = line.branch.clone();
    branch.id = branch_id("second");
    branch.parent = Some(line.branch.id.clone());
    (branch.base_version, branch.first_version) = (base.turn.version, line.tip.turn.version.next());
    let mut rewind = line.turn("rewind");
    rewind.turn.turn.branch = branch.id.clone();
    (rewind.turn.turn.first_seq, rewind.turn.turn.last_seq) = (Seq(1), Seq(0));
    rewind.entries = TurnEntries::None;
    rewind.branch = Some(branch.clone());
    line.branch = branch;
    // The state of the branch comes with the turn, and neither without the other.
    for number in [1, 3] {
        let outdated = NewTurn { window_state: Some(new(&line, number)), ..rewind.clone() };
        assert_eq!(meta.commit_turn(outdated).await.unwrap(), CommitOutcome::NotAsExpected, "{number}");
        let head = meta.tip(&line.key, None).await.unwrap().unwrap().head;
        assert_eq!((head.version, head.window_state), (old.tip.turn.version, 1));
        assert_eq!(numbers(meta, &line, NEWEST, u64::MAX, 9).await, [0; 0]);
    }
    rewind.window_state = Some(new(&line, 2));
    assert_eq!(meta.commit_turn(rewind.clone()).await.unwrap(), CommitOutcome::Committed);
    line.tip = rewind.turn;
    let head = meta.tip(&line.key, None).await.unwrap().unwrap().head;
    assert_eq!((head.version, head.window_state, head.window_offset), (line.tip.turn.version, 2, -14));
    let recorded = RecordedState { version: line.tip.turn.version, ..state(2, &line.branch.id) };
    assert_eq!(meta.window_states(&line.branch_key(), NEWEST, u64::MAX, 9).await.unwrap(), [recorded]);
    let late = meta.commit_window_state(new(&old, 2)).await.unwrap();
    assert_eq!(late, CommitOutcome::NotAsExpected, "it was made for the branch that was left");
    record(meta, &line, 3).await;
    assert_eq!(numbers(meta, &line, NEWEST, u64::MAX, 9).await, [3, 2]);
    assert_eq!(numbers(meta, &old, NEWEST, u64::MAX, 9).await, [1]);
}

async fn states_go_with_their_branch(database: Database) {
    let meta = database.meta.as_ref();
    let (line, other) = (Line::create(meta, "s").await, Line::create(meta, "other").await);
    for line in [&line, &other] {
        record(meta, line, 1).await;
    }
    let fork = line.create_fork(meta, "fork").await;
    meta.delete_session(&line.key, false, Micros(10), Micros(20)).await.unwrap();
    // The fork shows the windows that its source had before it.
    assert_eq!(numbers(meta, &line, NEWEST, u64::MAX, 9).await, [1]);
    meta.delete_session(&fork.key, false, Micros(10), Micros(20)).await.unwrap();
    meta.deletion_in_ledger(&line.key).await.unwrap();
    meta.advance_deletion(&line.key, Micros(30), Micros(40)).await.unwrap();
    assert_eq!(numbers(meta, &line, NEWEST, u64::MAX, 9).await, [0; 0]);
    assert_eq!(database.rows("SELECT session_id FROM window_state").await, [["other"]]);
}

async fn loaded_states_are_as_those_that_were_recorded(database: Database) {
    let meta = database.meta.as_ref();
    let line = Line::create(meta, "s").await;
    let states: Vec<_> = (1..=3)
        .map(|number| RecordedState { version: Version(9), ..state(number, &line.branch.id) })
        .collect();
    let rows = RebuiltRows {
        tenant: Some(line.key.tenant.clone()),
        window_states: states.iter().map(|state| (line.key.session.clone(), state.clone())).collect(),
        ..RebuiltRows::default()
    };
    meta.load(rows).await.unwrap();
    let mut found = meta.window_states(&line.branch_key(), Version(9), u64::MAX, 9).await.unwrap();
    found.reverse();
    assert_eq!(found, states);
}

async fn of_tenants_none_sees_the_others_states(database: Database) {
    let meta = database.meta.as_ref();
    let line = Line::create(meta, "s").await;
    record(meta, &line, 1).await;
    let tenant = TenantId::parse("foreign").unwrap();
    let foreign = BranchKey { tenant: tenant.clone(), ..line.branch_key() };
    assert_eq!(meta.window_states(&foreign, NEWEST, u64::MAX, 9).await.unwrap(), []);
    let mut stranger = new(&line, 2);
    stranger.key.tenant = tenant;
    assert_eq!(meta.commit_window_state(stranger).await.unwrap(), CommitOutcome::NotAsExpected);
}

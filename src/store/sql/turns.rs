//! Turns and the journal.

use super::connection::{Arg, Database, Lane, Sql, Transaction, args};
use super::{held_outputs, outputs, rows, seals, sessions, window_states};
use crate::model::{Digest, RequestId, Seq, Version};
use crate::store::StoreError;
use crate::store::meta::{
    BranchKey, CommitOutcome, JournalRow, NewTurn, RecordedTurn, SessionKey, TurnEntries, TurnOutput,
};
use std::collections::BTreeSet;

/// Moves a head that is as expected.
macro_rules! move_head {
    () => {
        "UPDATE head SET version = $4, branch_id = $5, window_revision = window_revision + $6, \
         journal_bytes = journal_bytes + $7, updated_at = $8, receipt = $14 \
         WHERE tenant = $1 AND session_id = $2 AND version = $3 AND branch_id = $9 AND config_revision = $10 \
         AND deleted = 0 AND journal_bytes + $7 <= $11 AND fence = $12 AND receipt = $13 "
    };
}

macro_rules! insert_turn {
    () => {
        "INSERT INTO turn (tenant, session_id, branch_id, version, kind, base_version, first_seq, last_seq, \
         request_id, request_digest, entries_digest, receipt, prefix_digest, calls, tokens, log_tokens, \
         payload_bytes, report, created_at, reply) "
    };
}

macro_rules! insert_journal {
    () => {
        "INSERT INTO journal (tenant, branch_id, version, first_seq, last_seq, raw_bytes, body, created_at) "
    };
}

const MOVE_HEAD: Sql = Sql::both(move_head!());

pub(super) const INSERT_TURN: Sql = Sql::both(concat!(
    insert_turn!(),
    "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)",
));

const INSERT_JOURNAL: Sql = Sql::both(concat!(insert_journal!(), "VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"));

/// The values of a turn and of its journal row, among those of [`APPEND`].
macro_rules! append_turn {
    () => {
        "SELECT $1, $2, $5, $4, $15, $16, $17, $18, $19, $20, $21, $14, $22, $23, $24, $25, $26, $27, $8, $28 "
    };
}

macro_rules! append_journal {
    () => {
        "SELECT $1, $5, $4, $17, $18, $29, $30, $8 "
    };
}

/// A turn whose entries, if it has any, go to the journal: a whole transaction in
/// one round trip. Changes nothing if the head is not moved.
const APPEND: Sql = Sql::each(
    concat!(
        "WITH moved AS (",
        move_head!(),
        "RETURNING version), journaled AS (",
        insert_journal!(),
        append_journal!(),
        "FROM moved WHERE $31 = 1) ",
        insert_turn!(),
        append_turn!(),
        "FROM moved",
    ),
    // `changes()` are the rows that the statement before has written.
    concat!(
        "BEGIN IMMEDIATE; ",
        move_head!(),
        "RETURNING version; ",
        insert_turn!(),
        append_turn!(),
        "WHERE changes() = 1; ",
        insert_journal!(),
        append_journal!(),
        "WHERE changes() = 1 AND $31 = 1; COMMIT",
    ),
);

/// Commits a turn.
pub(super) async fn commit(db: &dyn Database, new: NewTurn) -> Result<CommitOutcome, StoreError> {
    let outcome = |moved| if moved { CommitOutcome::Committed } else { CommitOutcome::NotAsExpected };
    let is_one_step = new.branch.is_none() && new.window_state.is_none() && new.outputs.is_empty();
    if is_one_step && !matches!(new.entries, TurnEntries::Segment(_)) {
        return Ok(outcome(db.transact(APPEND, append_args(&new)?).await?));
    }
    let mut tx = db.begin(Lane::Write).await?;
    let moved = commit_stepwise(tx.as_mut(), &new).await?;
    if moved {
        tx.commit().await?;
    } else {
        tx.rollback().await?;
    }
    Ok(outcome(moved))
}

/// Arguments of [`MOVE_HEAD`].
fn head_args(new: &NewTurn) -> Vec<Arg<'_>> {
    let turn = &new.turn.turn;
    let journal_bytes = match &new.entries {
        TurnEntries::None => 0,
        TurnEntries::Journal(row) => i64::try_from(row.body.len()).unwrap_or(i64::MAX),
        TurnEntries::Segment(run) => -i64::try_from(run.journal_bytes).unwrap_or(i64::MAX),
    };
    let held = new.outputs.iter().filter_map(|output| output.held.as_ref());
    let held_bytes = held.map(|body| i64::try_from(body.len()).unwrap_or(i64::MAX)).sum::<i64>();
    args![
        &new.key.tenant,
        &new.key.session,
        new.expected.version,
        turn.version,
        &turn.branch,
        new.revise_window,
        journal_bytes + held_bytes,
        turn.created_at,
        &new.expected.branch,
        new.expected.config_revision,
        new.journal_bytes_max,
        new.expected.fence,
        new.expected.receipt,
        turn.receipt,
    ]
}

fn append_args(new: &NewTurn) -> Result<Vec<Arg<'_>>, StoreError> {
    let mut all = head_args(new);
    // Without tenant, session, branch and version, receipt and time, which the
    // head's arguments have.
    let mut turn = rows::turn_args(&new.key.tenant, &new.key.session, &new.turn)?;
    turn.remove(18);
    turn.remove(11);
    all.extend(turn.drain(4..));
    match &new.entries {
        TurnEntries::Journal(row) => all.extend(args![row.raw_bytes, &row.body, true]),
        TurnEntries::None | TurnEntries::Segment(_) => all.extend(args![0i64, &[] as &[u8], false]),
    }
    Ok(all)
}

async fn commit_stepwise(tx: &mut dyn Transaction, new: &NewTurn) -> Result<bool, StoreError> {
    let put = new.outputs.iter().filter(|output| output.held.is_none());
    let of_run = match &new.entries {
        TurnEntries::Segment(run) => Some(run.generation),
        TurnEntries::None | TurnEntries::Journal(_) => None,
    };
    for generation in put.map(|output| output.generation).chain(of_run).collect::<BTreeSet<_>>() {
        tx.hold_generation(generation).await?;
    }
    if tx.execute(MOVE_HEAD, head_args(new)).await? != 1 {
        return Ok(false);
    }
    if let Some(branch) = &new.branch {
        tx.execute(seals::INSERT_BRANCH, rows::branch_args(&new.key.tenant, branch)).await?;
    }
    tx.execute(INSERT_TURN, rows::turn_args(&new.key.tenant, &new.key.session, &new.turn)?).await?;
    if let Some(state) = &new.window_state
        && !window_states::record(tx, state).await?
    {
        return Ok(false);
    }
    for TurnOutput { output, held, .. } in &new.outputs {
        tx.execute(outputs::INSERT, rows::output_args(&new.key.tenant, output)).await?;
        if let Some(body) = held {
            held_outputs::insert(tx, &new.key.tenant, output, body).await?;
        }
    }
    match &new.entries {
        TurnEntries::None => {}
        TurnEntries::Journal(row) => {
            let JournalRow { version, first_seq, last_seq, raw_bytes, body, created_at } = row;
            let branch = &new.turn.turn.branch;
            let values = args![
                &new.key.tenant,
                branch,
                *version,
                *first_seq,
                *last_seq,
                *raw_bytes,
                body,
                *created_at
            ];
            tx.execute(INSERT_JOURNAL, values).await?;
        }
        TurnEntries::Segment(run) => {
            let branch = BranchKey { tenant: new.key.tenant.clone(), branch: new.turn.turn.branch.clone() };
            if !seals::replace_journal(tx, &branch, run).await? {
                return Ok(false);
            }
            seals::replace_manifest(tx, &new.key.tenant, run).await?;
        }
    }
    Ok(true)
}

/// The turn that a request made.
pub(super) async fn of_request(
    db: &dyn Database,
    key: &SessionKey,
    id: &RequestId,
) -> Result<Option<RecordedTurn>, StoreError> {
    // The head's row lock waits for a commit that is under way.
    let mut tx = db.begin(Lane::Write).await?;
    tx.query(sessions::LOCK_HEAD, args![&key.tenant, &key.session]).await?;
    let found = find_request(tx.as_mut(), key, id).await?;
    tx.rollback().await?;
    Ok(found)
}

/// The turn that a request made; if there is none, a commit of it that is still
/// on its way to the database finds another fence than it expects.
pub(super) async fn settle(
    db: &dyn Database,
    key: &SessionKey,
    id: &RequestId,
) -> Result<Option<RecordedTurn>, StoreError> {
    let raise = Sql::both("UPDATE head SET fence = fence + 1 WHERE tenant = $1 AND session_id = $2");
    let mut tx = db.begin(Lane::Write).await?;
    tx.execute(raise, args![&key.tenant, &key.session]).await?;
    let found = find_request(tx.as_mut(), key, id).await?;
    tx.commit().await?;
    Ok(found)
}

async fn find_request(
    tx: &mut dyn Transaction,
    key: &SessionKey,
    id: &RequestId,
) -> Result<Option<RecordedTurn>, StoreError> {
    let sql = Sql::both(concat!(
        "SELECT ",
        rows::turn_columns!("turn"),
        " FROM turn WHERE tenant = $1 AND session_id = $2 AND request_id = $3"
    ));
    let found = tx.query(sql, args![&key.tenant, &key.session, id]).await?;
    found.into_iter().next().map(|mut row| rows::recorded_turn(&mut row)).transpose()
}

/// Turns of a branch: the newest `limit` of a range, in order.
pub(super) async fn range(
    db: &dyn Database,
    key: &BranchKey,
    first: Version,
    last: Version,
    limit: u32,
) -> Result<Vec<RecordedTurn>, StoreError> {
    let sql = Sql::both(concat!(
        "SELECT ",
        rows::turn_columns!("turn"),
        " FROM turn WHERE tenant = $1 AND branch_id = $2 AND version >= $3 AND version <= $4 \
         ORDER BY version DESC LIMIT $5"
    ));
    let found = db.query(Lane::Read, sql, args![&key.tenant, &key.branch, first, last, limit]).await?;
    found.into_iter().rev().map(|mut row| rows::recorded_turn(&mut row)).collect()
}

/// Last seq and rolling digest of a branch's turns.
pub(super) async fn prefix_digests(
    db: &dyn Database,
    key: &BranchKey,
    first: Version,
    last: Version,
) -> Result<Vec<(Version, Seq, Digest)>, StoreError> {
    let sql = Sql::both(
        "SELECT version, last_seq, prefix_digest FROM turn \
         WHERE tenant = $1 AND branch_id = $2 AND version >= $3 AND version <= $4 ORDER BY version",
    );
    let found = db.query(Lane::Read, sql, args![&key.tenant, &key.branch, first, last]).await?;
    found
        .into_iter()
        .map(|mut row| Ok((Version(row.next()?), Seq(row.next()?), rows::digest(&mut row)?)))
        .collect()
}

/// Journal rows of a branch.
pub(super) async fn journal(
    db: &dyn Database,
    key: &BranchKey,
    first: Version,
    last: Version,
) -> Result<Vec<JournalRow>, StoreError> {
    let sql = Sql::both(concat!(
        "SELECT ",
        rows::journal_columns!("journal"),
        " FROM journal WHERE tenant = $1 AND branch_id = $2 AND version >= $3 AND version <= $4 ORDER BY version"
    ));
    let found = db.query(Lane::Read, sql, args![&key.tenant, &key.branch, first, last]).await?;
    found.into_iter().map(|mut row| rows::journal_row(&mut row)).collect()
}

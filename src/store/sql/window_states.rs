//! Window states.

use super::connection::{Arg, Database, Lane, Row, Sql, args};
use super::rows;
use crate::clock::Micros;
use crate::model::{RecordedState, SessionId, StateKind, TenantId, Version};
use crate::store::meta::{BranchKey, CommitOutcome, NewWindowState};
use crate::store::{ErrorKind, StoreError};

pub(super) const INSERT: Sql = Sql::both(
    "INSERT INTO window_state (tenant, branch_id, number, session_id, version, kind, state, record, created_at) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
);

/// Arguments of [`INSERT`].
pub(super) fn insert_args<'a>(
    tenant: &'a TenantId,
    session: &'a SessionId,
    new: &'a RecordedState,
) -> Result<Vec<Arg<'a>>, StoreError> {
    let RecordedState { branch, number, version, kind, state, record, created_at } = new;
    let json = |error| StoreError::caused(ErrorKind::Internal, "encode a window state", error);
    let (state, record) =
        (serde_json::to_string(state).map_err(json)?, serde_json::to_string(record).map_err(json)?);
    Ok(args![tenant, branch, *number, session, *version, kind.as_str(), state, record, *created_at])
}

/// Window states of a branch, the newest first.
pub(super) async fn list(
    db: &dyn Database,
    key: &BranchKey,
    last: Version,
    before: u64,
    limit: u32,
) -> Result<Vec<RecordedState>, StoreError> {
    let sql = Sql::both(
        "SELECT branch_id, number, version, kind, state, record, created_at FROM window_state \
         WHERE tenant = $1 AND branch_id = $2 AND version <= $3 AND number < $4 ORDER BY number DESC LIMIT $5",
    );
    let before = before.min(i64::MAX as u64);
    let found = db.query(Lane::Read, sql, args![&key.tenant, &key.branch, last, before, limit]).await?;
    found.into_iter().map(|mut row| read(&mut row)).collect()
}

fn read(row: &mut Row) -> Result<RecordedState, StoreError> {
    let branch = rows::branch_id(row)?;
    let (number, version) = (row.next()?, Version(row.next()?));
    let kind: String = row.next()?;
    Ok(RecordedState {
        branch,
        number,
        version,
        kind: StateKind::from_name(&kind).ok_or_else(|| rows::corrupt(kind))?,
        state: serde_json::from_str(&row.next::<String>()?).map_err(rows::corrupt)?,
        record: serde_json::from_str(&row.next::<String>()?).map_err(rows::corrupt)?,
        created_at: Micros(row.next()?),
    })
}

/// Records a window state.
pub(super) async fn commit(db: &dyn Database, new: NewWindowState) -> Result<CommitOutcome, StoreError> {
    let NewWindowState { key, mut state, window_offset } = new;
    let advance = Sql::both(
        "UPDATE head SET window_state = $3, window_offset = $4, window_revision = window_revision + 1 \
         WHERE tenant = $1 AND session_id = $2 AND window_state = $5 AND branch_id = $6 AND deleted = 0 \
         RETURNING version",
    );
    let mut tx = db.begin(Lane::Write).await?;
    let values = args![
        &key.tenant,
        &key.session,
        state.number,
        window_offset,
        state.number.saturating_sub(1),
        &state.branch
    ];
    let Some(mut head) = tx.query(advance, values).await?.pop() else {
        tx.rollback().await?;
        return Ok(CommitOutcome::NotAsExpected);
    };
    state.version = Version(head.next()?);
    tx.execute(INSERT, insert_args(&key.tenant, &key.session, &state)?).await?;
    tx.commit().await?;
    Ok(CommitOutcome::Committed)
}

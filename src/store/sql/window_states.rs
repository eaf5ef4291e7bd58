//! Window states.

use super::connection::{Arg, Database, Lane, Row, Sql, Transaction, args};
use super::rows;
use crate::clock::Micros;
use crate::model::{RecordedState, SessionId, StateKind, TenantId, Version};
use crate::store::meta::{BranchKey, CommitOutcome, NewWindowState, SessionKey};
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
    let mut tx = db.begin(Lane::Write).await?;
    if !record(tx.as_mut(), &new).await? {
        tx.rollback().await?;
        return Ok(CommitOutcome::NotAsExpected);
    }
    tx.commit().await?;
    Ok(CommitOutcome::Committed)
}

/// Records a window state in a transaction; returns whether the head was as it expects.
pub(super) async fn record(tx: &mut dyn Transaction, new: &NewWindowState) -> Result<bool, StoreError> {
    let NewWindowState { key, state, window_offset } = new;
    let advance = Sql::both(
        "UPDATE head SET window_state = $3, window_offset = $4, window_revision = window_revision + 1, calibration = $7 \
         WHERE tenant = $1 AND session_id = $2 AND window_state = $5 AND branch_id = $6 AND deleted = 0 \
         RETURNING version",
    );
    let values = args![
        &key.tenant,
        &key.session,
        state.number,
        *window_offset,
        state.number.saturating_sub(1),
        &state.branch,
        rows::calibration_arg(state.state.calibration.as_ref())?
    ];
    let Some(mut head) = tx.query(advance, values).await?.pop() else { return Ok(false) };
    let state = RecordedState { version: Version(head.next()?), ..state.clone() };
    tx.execute(INSERT, insert_args(&key.tenant, &key.session, &state)?).await?;
    Ok(true)
}

/// Claims the making of a session's summary.
pub(super) async fn claim_summary(
    db: &dyn Database,
    key: &SessionKey,
    token: &str,
    now: Micros,
    until: Micros,
) -> Result<bool, StoreError> {
    // A claim that its holder makes again lasts longer. What waits is not replaced.
    let claim = Sql::both(
        "INSERT INTO pending_summary (tenant, session_id, token, expires_at) \
         SELECT tenant, session_id, $3, $5 FROM head WHERE tenant = $1 AND session_id = $2 AND deleted = 0 \
         ON CONFLICT (tenant, session_id) DO UPDATE SET token = $3, expires_at = $5 \
         WHERE pending_summary.body IS NULL \
         AND (pending_summary.expires_at <= $4 OR pending_summary.token = $3)",
    );
    let mut tx = db.begin(Lane::Write).await?;
    let claimed = tx.execute(claim, args![&key.tenant, &key.session, token, now, until]).await? == 1;
    tx.commit().await?;
    Ok(claimed)
}

/// Keeps a summary that was made under a claim.
pub(super) async fn keep_summary(
    db: &dyn Database,
    key: &SessionKey,
    token: &str,
    body: &str,
) -> Result<bool, StoreError> {
    let keep = Sql::both(
        "UPDATE pending_summary SET body = $4 WHERE tenant = $1 AND session_id = $2 AND token = $3 AND body IS NULL",
    );
    let mut tx = db.begin(Lane::Write).await?;
    let kept = tx.execute(keep, args![&key.tenant, &key.session, token, body]).await? == 1;
    tx.commit().await?;
    Ok(kept)
}

/// The summary that waits.
pub(super) async fn pending_summary(
    db: &dyn Database,
    key: &SessionKey,
) -> Result<Option<(String, Option<String>)>, StoreError> {
    let sql = Sql::both("SELECT token, body FROM pending_summary WHERE tenant = $1 AND session_id = $2");
    let found = db.query(Lane::Read, sql, args![&key.tenant, &key.session]).await?.pop();
    found.map(|mut row| Ok((row.next()?, row.next()?))).transpose()
}

/// Puts a claim in place of another under which nothing was made.
pub(super) async fn rest_summary(
    db: &dyn Database,
    key: &SessionKey,
    token: &str,
    rest: &str,
    until: Micros,
) -> Result<bool, StoreError> {
    let put = Sql::both(
        "UPDATE pending_summary SET token = $4, expires_at = $5 \
         WHERE tenant = $1 AND session_id = $2 AND token = $3 AND body IS NULL",
    );
    let mut tx = db.begin(Lane::Write).await?;
    let rests = tx.execute(put, args![&key.tenant, &key.session, token, rest, until]).await? == 1;
    tx.commit().await?;
    Ok(rests)
}

/// Drops a claim, or the summary that waits.
pub(super) async fn drop_summary(db: &dyn Database, key: &SessionKey, token: &str) -> Result<(), StoreError> {
    let sql = Sql::both("DELETE FROM pending_summary WHERE tenant = $1 AND session_id = $2 AND token = $3");
    let mut tx = db.begin(Lane::Write).await?;
    tx.execute(sql, args![&key.tenant, &key.session, token]).await?;
    tx.commit().await
}

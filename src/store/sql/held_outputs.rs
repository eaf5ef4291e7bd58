//! Blobs of tool outputs that wait for the object store.

use super::connection::{Database, Lane, Sql, Transaction, args};
use super::{rows, seals};
use crate::model::{Output, OutputId, TenantId};
use crate::store::StoreError;
use crate::store::meta::{BranchKey, CommitOutcome, HeldOutput, OutputMove, SessionKey};
use bytes::Bytes;

/// Holds the blob of an output.
pub(super) async fn insert(
    tx: &mut dyn Transaction,
    tenant: &TenantId,
    output: &Output,
    body: &Bytes,
) -> Result<(), StoreError> {
    let sql =
        Sql::both("INSERT INTO output_held (tenant, output_id, branch_id, body) VALUES ($1, $2, $3, $4)");
    tx.execute(sql, args![tenant, &output.id, &output.branch, body]).await?;
    Ok(())
}

/// The blob of an output that is held.
pub(super) async fn body(
    db: &dyn Database,
    tenant: &TenantId,
    id: &OutputId,
) -> Result<Option<Bytes>, StoreError> {
    let sql = Sql::both("SELECT body FROM output_held WHERE tenant = $1 AND output_id = $2");
    let found = db.query(Lane::Read, sql, args![tenant, id]).await?.pop();
    found.map(|mut row| row.next::<Vec<u8>>().map(Bytes::from)).transpose()
}

/// All tenants' held outputs.
pub(super) async fn list(
    db: &dyn Database,
    after: Option<&HeldOutput>,
    limit: u32,
) -> Result<Vec<HeldOutput>, StoreError> {
    let sql = Sql::both(
        "SELECT tenant, branch_id, output_id, CAST(length(body) AS BIGINT) FROM output_held \
         WHERE tenant > $1 OR (tenant = $1 AND output_id > $2) ORDER BY tenant, output_id LIMIT $3",
    );
    let (tenant, id) = after.map_or(("", ""), |held| (held.branch.tenant.as_str(), held.output.as_str()));
    let found = db.query(Lane::Background, sql, args![tenant, id, limit]).await?;
    found
        .into_iter()
        .map(|mut row| {
            let branch = BranchKey { tenant: rows::tenant_id(&mut row)?, branch: rows::branch_id(&mut row)? };
            Ok(HeldOutput { branch, output: rows::output_id(&mut row)?, stored_bytes: row.next()? })
        })
        .collect()
}

/// How many outputs are held.
pub(super) async fn count(db: &dyn Database) -> Result<u64, StoreError> {
    let sql = Sql::both("SELECT count(*) FROM output_held");
    db.query(Lane::Background, sql, vec![]).await?.pop().map_or(Ok(0), |mut row| row.next())
}

/// Bytes that are held of a session's outputs.
pub(super) async fn bytes(db: &dyn Database, key: &SessionKey) -> Result<u64, StoreError> {
    let sql = Sql::both(
        "SELECT CAST(coalesce(sum(length(held.body)), 0) AS BIGINT) FROM output_held held \
         JOIN branch ON branch.tenant = held.tenant AND branch.branch_id = held.branch_id \
         WHERE branch.tenant = $1 AND branch.session_id = $2",
    );
    let row = db.query(Lane::Background, sql, args![&key.tenant, &key.session]).await?.pop();
    row.map_or(Ok(0), |mut row| row.next())
}

/// Replaces a held blob by the key of one that is put.
pub(super) async fn commit_move(db: &dyn Database, moved: OutputMove) -> Result<CommitOutcome, StoreError> {
    let OutputMove { held: HeldOutput { branch: key, output, stored_bytes }, blob_key, generation } = &moved;
    let mut tx = db.begin(Lane::Background).await?;
    tx.hold_generation(*generation).await?;
    // The head first, as in all transactions that lock it. That of a deleted session
    // is not charged any more.
    let uncharge = Sql::both(
        "UPDATE head SET journal_bytes = journal_bytes - $3 WHERE tenant = $1 AND deleted = 0 AND session_id = \
         (SELECT session_id FROM branch WHERE tenant = $1 AND branch_id = $2)",
    );
    tx.execute(uncharge, args![&key.tenant, &key.branch, *stored_bytes]).await?;
    let drop_held = Sql::both("DELETE FROM output_held WHERE tenant = $1 AND output_id = $2");
    let name_blob = Sql::both(
        "UPDATE output SET blob_key = $3 WHERE tenant = $1 AND output_id = $2 AND blob_key IS NULL",
    );
    // A deletion that releases the branch comes before or after, so that the blob is
    // never without a row or tombstone.
    let is_moved = seals::lock_branch(tx.as_mut(), &key.tenant, &key.branch).await?
        && tx.execute(drop_held, args![&key.tenant, output]).await? == 1
        && tx.execute(name_blob, args![&key.tenant, output, blob_key.as_str()]).await? == 1;
    if !is_moved {
        tx.rollback().await?;
        return Ok(CommitOutcome::NotAsExpected);
    }
    tx.commit().await?;
    Ok(CommitOutcome::Committed)
}

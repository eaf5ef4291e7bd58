//! Branches, segments and what replaces the journal.

use super::connection::{Database, Lane, Sql, Transaction, args};
use super::rows;
use crate::clock::Micros;
use crate::limits::{LINEAGE_DEPTH_MAX, ROLL_UP_SEGMENTS_MIN};
use crate::model::{Branch, BranchId, Segment, Seq, SessionId, TenantId};
use crate::store::meta::{
    BranchKey, CommitOutcome, NewRollUp, NewSeal, RollUpPolicy, SealCandidate, SealPolicy, SealedRun,
    SessionKey,
};
use crate::store::{ErrorKind, StoreError};
use std::time::Duration;

pub(super) const INSERT_BRANCH: Sql = Sql::both(
    "INSERT INTO branch (tenant, branch_id, session_id, parent_branch_id, base_version, base_seq, first_version, \
     sealed_seq, sealed_version, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
);

pub(super) const INSERT_SEGMENT: Sql = Sql::both(
    "INSERT INTO segment (tenant, branch_id, first_version, last_version, first_seq, last_seq, blob_key, sha256, \
     stored_bytes, raw_bytes, format, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
);

pub(super) const INSERT_TOMBSTONE: Sql = Sql::both(
    "INSERT INTO tombstone (tenant, blob_key, session_id, not_before) VALUES ($1, $2, $3, $4) \
     ON CONFLICT (tenant, blob_key) DO NOTHING",
);

/// A branch after those that it continues, from the root.
pub(super) async fn lineage(db: &dyn Database, key: &BranchKey) -> Result<Vec<Branch>, StoreError> {
    let sql = Sql::both(concat!(
        "WITH RECURSIVE line AS (\
         SELECT branch.*, 0 AS depth FROM branch WHERE tenant = $1 AND branch_id = $2 \
         UNION ALL \
         SELECT parent.*, line.depth + 1 FROM branch parent \
         JOIN line ON parent.tenant = line.tenant AND parent.branch_id = line.parent_branch_id \
         WHERE line.depth < $3) \
         SELECT ",
        rows::branch_columns!("line"),
        " FROM line ORDER BY line.depth DESC"
    ));
    let depth = i64::try_from(LINEAGE_DEPTH_MAX).unwrap_or(i64::MAX);
    let found = db.query(Lane::Read, sql, args![&key.tenant, &key.branch, depth]).await?;
    let line: Vec<_> = found.into_iter().map(|mut row| rows::branch(&mut row)).collect::<Result<_, _>>()?;
    if line.first().is_some_and(|root| root.parent.is_some()) {
        return Err(StoreError::new(ErrorKind::Corrupt, format!("branch {} has no root", key.branch)));
    }
    Ok(line)
}

/// A live session's own branches.
pub(super) async fn branches_of_session(
    db: &dyn Database,
    key: &SessionKey,
) -> Result<Vec<Branch>, StoreError> {
    let sql = Sql::both(concat!(
        "SELECT ",
        rows::branch_columns!("branch"),
        " FROM branch WHERE tenant = $1 AND session_id = $2 ORDER BY first_version"
    ));
    let found = db.query(Lane::Read, sql, args![&key.tenant, &key.session]).await?;
    found.into_iter().map(|mut row| rows::branch(&mut row)).collect()
}

/// Segments of a branch that hold entries of a range.
pub(super) async fn segments(
    db: &dyn Database,
    key: &BranchKey,
    first: Seq,
    last: Seq,
) -> Result<Vec<Segment>, StoreError> {
    let sql = Sql::both(concat!(
        "SELECT ",
        rows::segment_columns!(),
        " FROM segment WHERE tenant = $1 AND branch_id = $2 AND last_seq >= $3 AND first_seq <= $4 \
         ORDER BY first_version"
    ));
    let found = db.query(Lane::Read, sql, args![&key.tenant, &key.branch, first, last]).await?;
    found.into_iter().map(|mut row| rows::segment(&mut row)).collect()
}

/// Branches whose journals are due.
pub(super) async fn candidates(
    db: &dyn Database,
    policy: SealPolicy,
    now: Micros,
    limit: u32,
) -> Result<Vec<SealCandidate>, StoreError> {
    let sql = Sql::both(
        "SELECT tenant, branch_id, CAST(sum(raw_bytes) AS BIGINT) AS raw FROM journal GROUP BY tenant, branch_id \
         HAVING sum(raw_bytes) >= $1 OR (sum(raw_bytes) >= $2 AND min(created_at) <= $3) OR min(created_at) <= $4 \
         ORDER BY raw DESC LIMIT $5",
    );
    let old = now.minus(Duration::from_secs(policy.old_seconds));
    let oldest = now.minus(Duration::from_secs(policy.max_seconds));
    let values = args![policy.raw_bytes, policy.old_raw_bytes, old, oldest, limit];
    let found = db.query(Lane::Background, sql, values).await?;
    found
        .into_iter()
        .map(|mut row| {
            let key = BranchKey { tenant: rows::tenant_id(&mut row)?, branch: rows::branch_id(&mut row)? };
            Ok(SealCandidate { key, raw_bytes: row.next()? })
        })
        .collect()
}

/// Puts a segment in the place of journal rows; false if the branch is not
/// sealed as far as expected.
pub(super) async fn replace_journal(
    tx: &mut dyn Transaction,
    key: &BranchKey,
    run: &SealedRun,
) -> Result<bool, StoreError> {
    let advance = Sql::both(
        "UPDATE branch SET sealed_seq = $4, sealed_version = $5 \
         WHERE tenant = $1 AND branch_id = $2 AND sealed_version = $3",
    );
    let SealedRun { segment, expected_sealed_version, .. } = run;
    let values =
        args![&key.tenant, &key.branch, *expected_sealed_version, segment.last_seq, segment.last_version];
    if tx.execute(advance, values).await? != 1 {
        return Ok(false);
    }
    tx.execute(INSERT_SEGMENT, rows::segment_args(&key.tenant, segment)).await?;
    let drop_rows = Sql::both("DELETE FROM journal WHERE tenant = $1 AND branch_id = $2 AND version <= $3");
    tx.execute(drop_rows, args![&key.tenant, &key.branch, segment.last_version]).await?;
    Ok(true)
}

/// Replaces journal rows by a segment.
pub(super) async fn commit(db: &dyn Database, seal: NewSeal) -> Result<CommitOutcome, StoreError> {
    let NewSeal { key, session, run } = &seal;
    let mut tx = db.begin(Lane::Background).await?;
    tx.hold_generation(run.generation).await?;
    // The head first, as in all transactions that lock it, so that they cannot
    // wait for each other in a circle. A deleted session has none that counts.
    let uncharge = Sql::both(
        "UPDATE head SET journal_bytes = journal_bytes - $3 WHERE tenant = $1 AND session_id = $2 AND deleted = 0",
    );
    let is_live = tx.execute(uncharge, args![&key.tenant, session, run.journal_bytes]).await? == 1;
    if !replace_journal(tx.as_mut(), key, run).await? {
        tx.rollback().await?;
        return Ok(CommitOutcome::NotAsExpected);
    }
    // A manifest holds what the deletion of its session has erased.
    if is_live {
        replace_manifest(tx.as_mut(), &key.tenant, run).await?;
    }
    tx.commit().await?;
    Ok(CommitOutcome::Committed)
}

/// Makes a run's manifest, if it has one, the newest of its session, unless
/// there is a newer one; the one that is not gets a tombstone. The session must
/// be live.
pub(super) async fn replace_manifest(
    tx: &mut dyn Transaction,
    tenant: &TenantId,
    run: &SealedRun,
) -> Result<(), StoreError> {
    let Some(manifest) = &run.manifest else { return Ok(()) };
    let current = Sql::each(
        "SELECT blob_key, version FROM manifest WHERE tenant = $1 AND session_id = $2 FOR UPDATE",
        "SELECT blob_key, version FROM manifest WHERE tenant = $1 AND session_id = $2",
    );
    let row = tx.query(current, args![tenant, &manifest.session]).await?.pop();
    let mut outdated = None;
    if let Some(mut row) = row {
        let (key, version): (String, u64) = (row.next()?, row.next()?);
        if version > manifest.version.0 {
            outdated = Some(manifest.key.clone());
        } else {
            outdated = Some(key);
        }
    }
    if outdated.as_ref() != Some(&manifest.key) {
        let upsert = Sql::both(
            "INSERT INTO manifest (tenant, session_id, blob_key, version) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (tenant, session_id) DO UPDATE SET blob_key = excluded.blob_key, version = excluded.version",
        );
        tx.execute(upsert, args![tenant, &manifest.session, manifest.key.as_str(), manifest.version]).await?;
    }
    if let Some(key) = outdated {
        tx.execute(INSERT_TOMBSTONE, args![tenant, key, &manifest.session, run.erase_not_before]).await?;
    }
    Ok(())
}

/// Branches with segments that are worth a roll-up.
pub(super) async fn roll_up_candidates(
    db: &dyn Database,
    policy: RollUpPolicy,
    after: Option<&BranchKey>,
    limit: u32,
) -> Result<Vec<BranchKey>, StoreError> {
    // A run holds a segment and those after it that make it enough.
    const _: () = assert!(ROLL_UP_SEGMENTS_MIN == 4);
    let sql = Sql::both(
        "SELECT DISTINCT tenant, branch_id FROM (\
         SELECT tenant, branch_id, raw_bytes, CAST(sum(raw_bytes) OVER run AS BIGINT) AS run_bytes, \
         count(*) OVER run AS run_segments, max(stored_bytes) OVER run AS run_stored, \
         raw_bytes + lead(raw_bytes) OVER branch AS pair_bytes, \
         max(created_at) OVER (PARTITION BY tenant, branch_id) AS newest FROM segment \
         WHERE tenant > $1 OR (tenant = $1 AND branch_id > $2) \
         WINDOW branch AS (PARTITION BY tenant, branch_id ORDER BY first_version), \
         run AS (branch ROWS BETWEEN CURRENT ROW AND 3 FOLLOWING)) runs \
         WHERE (run_segments = 4 AND run_stored < $3 AND run_bytes <= $4 AND raw_bytes * 2 <= run_bytes) \
         OR (newest < $5 AND pair_bytes <= $4) \
         ORDER BY tenant, branch_id LIMIT $6",
    );
    let (tenant, branch) = after.map_or(("", ""), |key| (key.tenant.as_str(), key.branch.as_str()));
    let values = args![tenant, branch, policy.small_bytes, policy.raw_bytes_max, policy.idle_before, limit];
    let found = db.query(Lane::Background, sql, values).await?;
    found
        .into_iter()
        .map(|mut row| {
            Ok(BranchKey { tenant: rows::tenant_id(&mut row)?, branch: rows::branch_id(&mut row)? })
        })
        .collect()
}

/// Replaces segments by one.
pub(super) async fn commit_roll_up(
    db: &dyn Database,
    roll_up: NewRollUp,
) -> Result<CommitOutcome, StoreError> {
    let NewRollUp { key, session, old, new, generation, erase_not_before } = &roll_up;
    let mut tx = db.begin(Lane::Background).await?;
    tx.hold_generation(*generation).await?;
    // A deletion that releases the branch comes before or after, so that no
    // blob of it is without a row or tombstone.
    if !lock_branch(tx.as_mut(), &key.tenant, &key.branch).await? {
        tx.rollback().await?;
        return Ok(CommitOutcome::NotAsExpected);
    }
    for segment in old {
        let drop_row = Sql::both(
            "DELETE FROM segment WHERE tenant = $1 AND branch_id = $2 AND first_version = $3 AND blob_key = $4",
        );
        let values = args![&key.tenant, &key.branch, segment.first_version, segment.key.as_str()];
        if tx.execute(drop_row, values).await? != 1 {
            tx.rollback().await?;
            return Ok(CommitOutcome::NotAsExpected);
        }
        tx.execute(INSERT_TOMBSTONE, args![&key.tenant, segment.key.as_str(), session, *erase_not_before])
            .await?;
    }
    tx.execute(INSERT_SEGMENT, rows::segment_args(&key.tenant, new)).await?;
    tx.commit().await?;
    Ok(CommitOutcome::Committed)
}

/// Locks a branch until the transaction ends; false if there is none. What
/// changes its segments locks it first.
pub(super) async fn lock_branch(
    tx: &mut dyn Transaction,
    tenant: &TenantId,
    branch: &BranchId,
) -> Result<bool, StoreError> {
    let sql = Sql::each(
        "SELECT branch_id FROM branch WHERE tenant = $1 AND branch_id = $2 FOR UPDATE",
        "SELECT branch_id FROM branch WHERE tenant = $1 AND branch_id = $2",
    );
    Ok(!tx.query(sql, args![tenant, branch]).await?.is_empty())
}

/// Moves what a branch stored to tombstones and removes its rows.
pub(super) async fn release_branch(
    tx: &mut dyn Transaction,
    tenant: &TenantId,
    session: &SessionId,
    branch: &BranchId,
    erase_not_before: Micros,
) -> Result<(), StoreError> {
    lock_branch(tx, tenant, branch).await?;
    for bury in [
        Sql::both(
            "INSERT INTO tombstone (tenant, blob_key, session_id, not_before) \
             SELECT tenant, blob_key, $3, $4 FROM segment WHERE tenant = $1 AND branch_id = $2 \
             ON CONFLICT (tenant, blob_key) DO NOTHING",
        ),
        Sql::both(
            "INSERT INTO tombstone (tenant, blob_key, session_id, not_before) \
             SELECT tenant, blob_key, $3, $4 FROM output \
             WHERE tenant = $1 AND branch_id = $2 AND blob_key IS NOT NULL \
             ON CONFLICT (tenant, blob_key) DO NOTHING",
        ),
    ] {
        tx.execute(bury, args![tenant, branch, session, erase_not_before]).await?;
    }
    for sql in [
        Sql::both("DELETE FROM segment WHERE tenant = $1 AND branch_id = $2"),
        Sql::both("DELETE FROM output_held WHERE tenant = $1 AND branch_id = $2"),
        Sql::both("DELETE FROM output WHERE tenant = $1 AND branch_id = $2"),
        Sql::both("DELETE FROM journal WHERE tenant = $1 AND branch_id = $2"),
        Sql::both("DELETE FROM window_state WHERE tenant = $1 AND branch_id = $2"),
        Sql::both("DELETE FROM turn WHERE tenant = $1 AND branch_id = $2"),
        Sql::both("DELETE FROM branch WHERE tenant = $1 AND branch_id = $2"),
    ] {
        tx.execute(sql, args![tenant, branch]).await?;
    }
    Ok(())
}

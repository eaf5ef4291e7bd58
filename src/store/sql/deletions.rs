//! Deletions of sessions.

use super::connection::{Database, Lane, Sql, Transaction, args};
use super::{rows, seals, sessions};
use crate::clock::Micros;
use crate::limits::RECEIPT_FORKS_MAX;
use crate::model::{BranchId, Deletion, DeletionState, SessionId, TenantId};
use crate::store::StoreError;
use crate::store::meta::{OpenDeletion, SessionKey};

/// Live sessions whose branches continue a branch of a session, itself left
/// out: those that still reach its entries.
macro_rules! forks {
    ($start:literal) => {
        concat!(
            "WITH RECURSIVE reach AS (SELECT tenant, branch_id, session_id FROM branch WHERE ",
            $start,
            " UNION SELECT child.tenant, child.branch_id, child.session_id FROM branch child \
             JOIN reach ON child.tenant = reach.tenant AND child.parent_branch_id = reach.branch_id) \
             SELECT DISTINCT reach.session_id FROM reach \
             JOIN head ON head.tenant = reach.tenant AND head.session_id = reach.session_id \
             WHERE head.deleted = 0 ORDER BY reach.session_id LIMIT $3"
        )
    };
}

const FORKS_OF_SESSION: Sql = Sql::both(forks!("tenant = $1 AND session_id = $2"));
pub(super) const FORKS_OF_BRANCH: Sql = Sql::both(forks!("tenant = $1 AND branch_id = $2"));

/// Makes a session, and its forks if so asked, unreadable. Of one that was
/// deleted before, only the forks.
pub(super) async fn delete(
    db: &dyn Database,
    key: &SessionKey,
    include_forks: bool,
    now: Micros,
    erase_not_before: Micros,
) -> Result<Vec<SessionId>, StoreError> {
    let tenant = &key.tenant;
    let mut tx = db.begin(Lane::Write).await?;
    let mut deleted = Vec::new();
    if !tx.query(sessions::LOCK_HEAD, args![tenant, &key.session]).await?.is_empty() {
        deleted.push(key.session.clone());
    }
    if include_forks {
        lock_forks(tx.as_mut(), key, &mut deleted).await?;
    }
    if deleted.is_empty() {
        tx.rollback().await?;
        return Ok(deleted);
    }
    for session in &deleted {
        hide(tx.as_mut(), tenant, session, now, erase_not_before).await?;
    }
    for session in &deleted {
        release(tx.as_mut(), tenant, session, erase_not_before).await?;
    }
    // The forks may have been all that kept it.
    if !deleted.contains(&key.session) {
        release(tx.as_mut(), tenant, &key.session, erase_not_before).await?;
    }
    tx.commit().await?;
    Ok(deleted)
}

/// Locks the forks of a session, and theirs, and appends them to `locked`.
async fn lock_forks(
    tx: &mut dyn Transaction,
    key: &SessionKey,
    locked: &mut Vec<SessionId>,
) -> Result<(), StoreError> {
    // Until one has its lock it may be forked itself; what is locked cannot be.
    loop {
        let before = locked.len();
        let forks = tx.query(FORKS_OF_SESSION, args![&key.tenant, &key.session, i64::MAX]).await?;
        for mut row in forks {
            let fork = rows::session_id(&mut row)?;
            if !locked.contains(&fork)
                && !tx.query(sessions::LOCK_HEAD, args![&key.tenant, &fork]).await?.is_empty()
            {
                locked.push(fork);
            }
        }
        if locked.len() == before {
            return Ok(());
        }
    }
}

/// Makes a session unreadable and writes its deletion.
async fn hide(
    tx: &mut dyn Transaction,
    tenant: &TenantId,
    session: &SessionId,
    now: Micros,
    erase_not_before: Micros,
) -> Result<(), StoreError> {
    // The head stays: it keeps the id taken.
    let mark = Sql::both(
        "UPDATE head SET deleted = 1, journal_bytes = 0, updated_at = $3 WHERE tenant = $1 AND session_id = $2",
    );
    tx.execute(mark, args![tenant, session, now]).await?;
    let receipt =
        Sql::both("INSERT INTO deletion (tenant, session_id, deleted_at, in_ledger) VALUES ($1, $2, $3, 0)");
    tx.execute(receipt, args![tenant, session, now]).await?;
    let bury = Sql::both(
        "INSERT INTO tombstone (tenant, blob_key, session_id, not_before) \
         SELECT tenant, blob_key, session_id, $3 FROM manifest WHERE tenant = $1 AND session_id = $2 \
         ON CONFLICT (tenant, blob_key) DO NOTHING",
    );
    tx.execute(bury, args![tenant, session, erase_not_before]).await?;
    for sql in [
        Sql::both("DELETE FROM manifest WHERE tenant = $1 AND session_id = $2"),
        Sql::both("DELETE FROM pending_summary WHERE tenant = $1 AND session_id = $2"),
        Sql::both("DELETE FROM session_label WHERE tenant = $1 AND session_id = $2"),
        Sql::both("DELETE FROM preamble WHERE tenant = $1 AND session_id = $2"),
        Sql::both("DELETE FROM note WHERE tenant = $1 AND session_id = $2"),
        Sql::both("DELETE FROM session WHERE tenant = $1 AND session_id = $2"),
    ] {
        tx.execute(sql, args![tenant, session]).await?;
    }
    Ok(())
}

/// Releases those branches of a deleted session that no live session reaches;
/// returns whether none is left.
async fn release(
    tx: &mut dyn Transaction,
    tenant: &TenantId,
    session: &SessionId,
    erase_not_before: Micros,
) -> Result<bool, StoreError> {
    let own = Sql::both(
        "SELECT branch_id FROM branch WHERE tenant = $1 AND session_id = $2 ORDER BY first_version DESC",
    );
    let mut none_left = true;
    for mut row in tx.query(own, args![tenant, session]).await? {
        let branch: BranchId = rows::branch_id(&mut row)?;
        if tx.query(FORKS_OF_BRANCH, args![tenant, &branch, 1i64]).await?.is_empty() {
            seals::release_branch(tx, tenant, session, &branch, erase_not_before).await?;
        } else {
            none_left = false;
        }
    }
    Ok(none_left)
}

/// The receipt of a deletion.
pub(super) async fn receipt(db: &dyn Database, key: &SessionKey) -> Result<Option<Deletion>, StoreError> {
    let sql = Sql::both(
        "SELECT deleted_at, erased_at, (SELECT count(*) FROM tombstone t \
         WHERE t.tenant = deletion.tenant AND t.session_id = deletion.session_id), \
         (SELECT count(*) FROM branch b WHERE b.tenant = deletion.tenant AND b.session_id = deletion.session_id) \
         FROM deletion WHERE tenant = $1 AND session_id = $2",
    );
    let found = db.query(Lane::Read, sql, args![&key.tenant, &key.session]).await?.pop();
    let Some(mut row) = found else { return Ok(None) };
    let deleted_at = rows::micros(&mut row)?;
    let erased_at: Option<i64> = row.next()?;
    let objects_pending: u64 = row.next()?;
    let branches: u64 = row.next()?;
    let limit = i64::try_from(RECEIPT_FORKS_MAX).unwrap_or(i64::MAX);
    let retained_by: Vec<_> = if branches == 0 {
        vec![]
    } else {
        let forks = db.query(Lane::Read, FORKS_OF_SESSION, args![&key.tenant, &key.session, limit]).await?;
        forks.into_iter().map(|mut row| rows::session_id(&mut row)).collect::<Result<_, _>>()?
    };
    let state = match erased_at {
        Some(_) => DeletionState::Erased,
        None if retained_by.is_empty() => DeletionState::Pending,
        None => DeletionState::RetainedByForks,
    };
    Ok(Some(Deletion {
        session: key.session.clone(),
        state,
        retained_by,
        objects_pending,
        deleted_at,
        erased_at: erased_at.map(Micros),
    }))
}

/// Deletions that are not finished.
pub(super) async fn open(
    db: &dyn Database,
    after: Micros,
    limit: u32,
) -> Result<Vec<OpenDeletion>, StoreError> {
    let sql = Sql::both(
        "SELECT tenant, session_id, deleted_at, in_ledger FROM deletion \
         WHERE erased_at IS NULL AND deleted_at >= $1 ORDER BY deleted_at LIMIT $2",
    );
    let found = db.query(Lane::Background, sql, args![after, limit]).await?;
    found
        .into_iter()
        .map(|mut row| {
            let key = SessionKey { tenant: rows::tenant_id(&mut row)?, session: rows::session_id(&mut row)? };
            Ok(OpenDeletion { key, deleted_at: rows::micros(&mut row)?, in_ledger: row.next()? })
        })
        .collect()
}

/// Notes that the bucket's ledger has a deletion.
pub(super) async fn in_ledger(db: &dyn Database, key: &SessionKey) -> Result<(), StoreError> {
    let mut tx = db.begin(Lane::Background).await?;
    let sql = Sql::both("UPDATE deletion SET in_ledger = 1 WHERE tenant = $1 AND session_id = $2");
    tx.execute(sql, args![&key.tenant, &key.session]).await?;
    tx.commit().await
}

/// That a deletion is done but for saying so.
macro_rules! is_finished {
    () => {
        "tenant = $1 AND session_id = $2 AND erased_at IS NULL AND in_ledger = 1 AND NOT EXISTS \
         (SELECT 1 FROM tombstone t WHERE t.tenant = deletion.tenant AND t.session_id = deletion.session_id)"
    };
}

/// Releases what no fork reaches any more; finishes the deletion if nothing is
/// left.
pub(super) async fn advance(
    db: &dyn Database,
    key: &SessionKey,
    now: Micros,
    erase_not_before: Micros,
) -> Result<bool, StoreError> {
    let mut tx = db.begin(Lane::Background).await?;
    let is_finished = release(tx.as_mut(), &key.tenant, &key.session, erase_not_before).await? && {
        let finished = Sql::both(concat!("SELECT deleted_at FROM deletion WHERE ", is_finished!()));
        !tx.query(finished, args![&key.tenant, &key.session]).await?.is_empty()
    };
    tx.commit().await?;
    // The receipt says that it is erased only once it is.
    if !is_finished || !db.purge().await? {
        return Ok(false);
    }
    let mut tx = db.begin(Lane::Background).await?;
    let finish = Sql::both(concat!("UPDATE deletion SET erased_at = $3 WHERE ", is_finished!()));
    let finished = tx.execute(finish, args![&key.tenant, &key.session, now]).await? == 1;
    tx.commit().await?;
    Ok(finished)
}

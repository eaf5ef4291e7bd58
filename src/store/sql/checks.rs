//! Walking all rows, and writing rows that a rebuild found.

use super::connection::{Database, Lane, Sql, Transaction, args};
use super::{notes, outputs, rows, seals, sessions, turns, window_states};
use crate::model::{Branch, Digest, Head, Preamble, Session, TenantId};
use crate::store::StoreError;
use crate::store::meta::{BranchKey, RebuiltRows, SessionKey, Tombstone};

/// All tenants' live sessions.
pub(super) async fn all_sessions(
    db: &dyn Database,
    after: Option<&SessionKey>,
    limit: u32,
) -> Result<Vec<SessionKey>, StoreError> {
    let sql = Sql::both(
        "SELECT tenant, session_id FROM head WHERE deleted = 0 AND (tenant > $1 OR (tenant = $1 AND session_id > $2)) \
         ORDER BY tenant, session_id LIMIT $3",
    );
    let (tenant, session) = after.map_or(("", ""), |key| (key.tenant.as_str(), key.session.as_str()));
    let found = db.query(Lane::Background, sql, args![tenant, session, limit]).await?;
    found
        .into_iter()
        .map(|mut row| {
            Ok(SessionKey { tenant: rows::tenant_id(&mut row)?, session: rows::session_id(&mut row)? })
        })
        .collect()
}

/// All tenants' branches.
pub(super) async fn all_branches(
    db: &dyn Database,
    after: Option<&BranchKey>,
    limit: u32,
) -> Result<Vec<(TenantId, Branch)>, StoreError> {
    let sql = Sql::both(concat!(
        "SELECT tenant, ",
        rows::branch_columns!("branch"),
        " FROM branch WHERE tenant > $1 OR (tenant = $1 AND branch_id > $2) ORDER BY tenant, branch_id LIMIT $3"
    ));
    let (tenant, branch) = after.map_or(("", ""), |key| (key.tenant.as_str(), key.branch.as_str()));
    let found = db.query(Lane::Background, sql, args![tenant, branch, limit]).await?;
    found.into_iter().map(|mut row| Ok((rows::tenant_id(&mut row)?, rows::branch(&mut row)?))).collect()
}

/// Writes rows that a rebuild found.
pub(super) async fn load(db: &dyn Database, new: RebuiltRows) -> Result<(), StoreError> {
    let Some(tenant) = &new.tenant else { return Ok(()) };
    let mut tx = db.begin(Lane::Background).await?;
    if let Some((session, head, preambles)) = &new.session {
        load_session(tx.as_mut(), tenant, session, head, preambles).await?;
        for note in &new.notes {
            tx.execute(notes::PUT, notes::put_args!(tenant, &session.id, note)).await?;
        }
    }
    if let Some((session, at)) = &new.deleted {
        let head = Sql::both(
            "INSERT INTO head (tenant, session_id, deleted, version, branch_id, receipt, config_revision, \
             window_revision, preamble_revision, preamble_tokens, journal_bytes, fence, updated_at) \
             VALUES ($1, $2, 1, 0, 'none', $3, 1, 1, 0, 0, 0, 0, $4)",
        );
        tx.execute(head, args![tenant, session, Digest::default(), *at]).await?;
        let deletion = Sql::both(
            "INSERT INTO deletion (tenant, session_id, deleted_at, in_ledger) VALUES ($1, $2, $3, 1)",
        );
        tx.execute(deletion, args![tenant, session, *at]).await?;
    }
    for branch in &new.branches {
        tx.execute(seals::INSERT_BRANCH, rows::branch_args(tenant, branch)).await?;
    }
    for (session, turn) in &new.turns {
        tx.execute(turns::INSERT_TURN, rows::turn_args(tenant, session, turn)?).await?;
    }
    for (session, state) in &new.window_states {
        tx.execute(window_states::INSERT, window_states::insert_args(tenant, session, state)?).await?;
    }
    for segment in &new.segments {
        tx.execute(seals::INSERT_SEGMENT, rows::segment_args(tenant, segment)).await?;
    }
    for output in &new.outputs {
        tx.execute(outputs::INSERT, rows::output_args(tenant, output)).await?;
    }
    if let Some(manifest) = &new.manifest {
        let sql =
            Sql::both("INSERT INTO manifest (tenant, session_id, blob_key, version) VALUES ($1, $2, $3, $4)");
        tx.execute(sql, args![tenant, &manifest.session, manifest.key.as_str(), manifest.version]).await?;
    }
    for Tombstone { tenant, key, session, not_before } in &new.tombstones {
        tx.execute(seals::INSERT_TOMBSTONE, args![tenant, key.as_str(), session, *not_before]).await?;
    }
    tx.commit().await
}

async fn load_session(
    tx: &mut dyn Transaction,
    tenant: &TenantId,
    session: &Session,
    head: &Head,
    preambles: &[Preamble],
) -> Result<(), StoreError> {
    let insert_head = Sql::both(
        "INSERT INTO head (tenant, session_id, deleted, version, branch_id, receipt, config_revision, window_revision, \
         preamble_revision, preamble_tokens, journal_bytes, fence, updated_at, window_state, window_offset, \
         calibration) VALUES ($1, $2, 0, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
    );
    let Head {
        version,
        branch,
        receipt,
        config_revision,
        window_revision,
        preamble_revision,
        preamble_tokens,
        journal_bytes,
        fence,
        updated_at,
        window_state,
        window_offset,
        calibration,
    } = head;
    let values = args![
        tenant,
        &session.id,
        *version,
        branch,
        *receipt,
        *config_revision,
        *window_revision,
        *preamble_revision,
        *preamble_tokens,
        *journal_bytes,
        *fence,
        *updated_at,
        *window_state,
        *window_offset,
        rows::calibration_arg(calibration.as_ref())?
    ];
    tx.execute(insert_head, values).await?;
    tx.execute(sessions::INSERT_SESSION, sessions::session_args(tenant, session)?).await?;
    sessions::insert_labels(tx, tenant, &session.id, &session.labels).await?;
    for preamble in preambles {
        sessions::insert_preamble(tx, tenant, &session.id, preamble).await?;
    }
    Ok(())
}

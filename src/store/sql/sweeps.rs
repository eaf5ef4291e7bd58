//! Writer generations, tombstones and what else the sweep asks.

use super::connection::{Database, Lane, Sql, args};
use super::rows;
use crate::clock::Micros;
use crate::model::GenerationId;
use crate::store::meta::{GenerationRow, Tombstone};
use crate::store::{ErrorKind, StoreError};

/// The secret of that name.
pub(super) async fn service_secret(
    db: &dyn Database,
    name: &str,
    fresh: [u8; 32],
) -> Result<[u8; 32], StoreError> {
    let read = Sql::both("SELECT secret FROM service_secret WHERE name = $1");
    if db.query(Lane::Background, read, args![name]).await?.is_empty() {
        let mut tx = db.begin(Lane::Background).await?;
        let insert = Sql::both(
            "INSERT INTO service_secret (name, secret) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
        );
        tx.execute(insert, args![name, fresh.as_slice()]).await?;
        tx.commit().await?;
    }
    let row = db.query(Lane::Background, read, args![name]).await?.pop();
    let secret: Option<Vec<u8>> = row.map(|mut row| row.next()).transpose()?;
    secret
        .and_then(|secret| secret.try_into().ok())
        .ok_or_else(|| StoreError::new(ErrorKind::Corrupt, format!("secret {name} is not 32 bytes")))
}

/// Registers a writer generation.
pub(super) async fn register_generation(
    db: &dyn Database,
    id: GenerationId,
    lease_until: Micros,
) -> Result<(), StoreError> {
    let mut tx = db.begin(Lane::Background).await?;
    let sql = Sql::both("INSERT INTO writer_generation (generation, fenced, lease_until) VALUES ($1, 0, $2)");
    tx.execute(sql, args![id, lease_until]).await?;
    tx.commit().await
}

/// Fences a generation.
pub(super) async fn fence_generation(
    db: &dyn Database,
    id: GenerationId,
    now: Micros,
) -> Result<(), StoreError> {
    let mut tx = db.begin(Lane::Background).await?;
    tx.await_generation(id).await?;
    let sql = Sql::both(
        "UPDATE writer_generation SET fenced = 1, fenced_at = $2 WHERE generation = $1 AND fenced = 0",
    );
    tx.execute(sql, args![id, now]).await?;
    tx.commit().await
}

/// Generations whose lease has ended and that are not fenced.
pub(super) async fn expired_generations(
    db: &dyn Database,
    now: Micros,
) -> Result<Vec<GenerationId>, StoreError> {
    let sql = Sql::both("SELECT generation FROM writer_generation WHERE fenced = 0 AND lease_until < $1");
    let found = db.query(Lane::Background, sql, args![now]).await?;
    found.into_iter().map(|mut row| row.next().map(GenerationId)).collect()
}

/// All generations.
pub(super) async fn generations(db: &dyn Database) -> Result<Vec<GenerationRow>, StoreError> {
    let sql = Sql::both("SELECT generation, fenced FROM writer_generation ORDER BY generation");
    let found = db.query(Lane::Background, sql, vec![]).await?;
    found
        .into_iter()
        .map(|mut row| Ok(GenerationRow { id: GenerationId(row.next()?), fenced: row.next()? }))
        .collect()
}

/// Those of `keys` that a row names.
pub(super) async fn referenced(db: &dyn Database, keys: &[String]) -> Result<Vec<String>, StoreError> {
    // A key at a time, so that one text serves any number of keys.
    let sql = Sql::both(
        "SELECT blob_key FROM segment WHERE blob_key = $1 UNION SELECT blob_key FROM manifest WHERE blob_key = $1 \
         UNION SELECT blob_key FROM output WHERE blob_key = $1 \
         UNION SELECT blob_key FROM tombstone WHERE blob_key = $1",
    );
    let mut named = vec![];
    for key in keys {
        if !db.query(Lane::Background, sql, args![key.as_str()]).await?.is_empty() {
            named.push(key.clone());
        }
    }
    Ok(named)
}

/// Removes generations that were fenced before a time.
pub(super) async fn forget_generations(db: &dyn Database, fenced_before: Micros) -> Result<u64, StoreError> {
    let mut tx = db.begin(Lane::Background).await?;
    let sql = Sql::both("DELETE FROM writer_generation WHERE fenced = 1 AND fenced_at < $1");
    let forgotten = tx.execute(sql, args![fenced_before]).await?;
    tx.commit().await?;
    Ok(forgotten)
}

/// Tombstones that are due.
pub(super) async fn due_tombstones(
    db: &dyn Database,
    now: Micros,
    after: Option<&Tombstone>,
    limit: u32,
) -> Result<Vec<Tombstone>, StoreError> {
    let sql = Sql::both(
        "SELECT tenant, blob_key, session_id, not_before FROM tombstone WHERE not_before <= $1 \
         AND (not_before > $2 OR (not_before = $2 AND blob_key > $3)) ORDER BY not_before, blob_key LIMIT $4",
    );
    let (time, key) = after.map_or((Micros(i64::MIN), ""), |after| (after.not_before, after.key.as_str()));
    let found = db.query(Lane::Background, sql, args![now, time, key, limit]).await?;
    found
        .into_iter()
        .map(|mut row| {
            Ok(Tombstone {
                tenant: rows::tenant_id(&mut row)?,
                key: row.next()?,
                session: rows::session_id(&mut row)?,
                not_before: rows::micros(&mut row)?,
            })
        })
        .collect()
}

/// Removes a tombstone.
pub(super) async fn remove_tombstone(db: &dyn Database, tombstone: &Tombstone) -> Result<(), StoreError> {
    let mut tx = db.begin(Lane::Background).await?;
    let sql = Sql::both("DELETE FROM tombstone WHERE tenant = $1 AND blob_key = $2");
    tx.execute(sql, args![&tombstone.tenant, tombstone.key.as_str()]).await?;
    tx.commit().await
}

//! Notes.

use super::connection::{Database, Lane, Row, Sql, args};
use super::{rows, sessions};
use crate::limits::{NOTES_BYTES_MAX, NOTES_MAX};
use crate::model::Note;
use crate::store::StoreError;
use crate::store::meta::{NoteOutcome, SessionKey};

/// Keeps a note, in place of another of its name that says something else.
pub(super) const PUT: Sql = Sql::both(
    "INSERT INTO note (tenant, session_id, name, bytes, updated_at, body) VALUES ($1, $2, $3, $4, $5, $6) \
     ON CONFLICT (tenant, session_id, name) DO UPDATE \
     SET bytes = excluded.bytes, updated_at = excluded.updated_at, body = excluded.body \
     WHERE note.body <> excluded.body",
);

/// Copies the notes of one session to another, which has none.
pub(super) const COPY: Sql = Sql::both(
    "INSERT INTO note (tenant, session_id, name, bytes, updated_at, body) \
     SELECT tenant, $3, name, bytes, updated_at, body FROM note WHERE tenant = $1 AND session_id = $2",
);

/// Arguments of [`PUT`] after tenant and session.
macro_rules! put_args {
    ($tenant:expr, $session:expr, $note:expr) => {
        args![
            $tenant,
            $session,
            $note.name.as_str(),
            $note.text.len() as u64,
            $note.updated_at,
            $note.text.as_str()
        ]
    };
}
pub(super) use put_args;

/// Keeps a note.
pub(super) async fn put(db: &dyn Database, key: &SessionKey, note: &Note) -> Result<NoteOutcome, StoreError> {
    let mut tx = db.begin(Lane::Write).await?;
    // Two notes at a time could be one too many.
    if tx.query(sessions::LOCK_HEAD, args![&key.tenant, &key.session]).await?.is_empty() {
        tx.rollback().await?;
        return Ok(NoteOutcome::SessionGone);
    }
    let others = Sql::both(
        "SELECT count(*), CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM note \
         WHERE tenant = $1 AND session_id = $2 AND name <> $3",
    );
    let found = tx.query(others, args![&key.tenant, &key.session, note.name.as_str()]).await?.pop();
    let (others, bytes): (u64, u64) = match found {
        Some(mut row) => (row.next()?, row.next()?),
        None => (0, 0),
    };
    let (notes, bytes) = (others + 1, bytes + note.text.len() as u64);
    if notes > NOTES_MAX as u64 || bytes > NOTES_BYTES_MAX as u64 {
        tx.rollback().await?;
        return Ok(NoteOutcome::Full { notes, bytes });
    }
    tx.execute(PUT, put_args!(&key.tenant, &key.session, note)).await?;
    let kept = tx.query(GET, args![&key.tenant, &key.session, note.name.as_str()]).await?.pop();
    let kept = kept.map(|mut row| read(&mut row)).transpose()?.ok_or_else(|| rows::corrupt("no note"))?;
    tx.commit().await?;
    Ok(NoteOutcome::Put(kept))
}

const GET: Sql =
    Sql::both("SELECT name, updated_at, body FROM note WHERE tenant = $1 AND session_id = $2 AND name = $3");

fn read(row: &mut Row) -> Result<Note, StoreError> {
    Ok(Note { name: row.next()?, updated_at: rows::micros(row)?, text: row.next()? })
}

/// A note of a session.
pub(super) async fn get(db: &dyn Database, key: &SessionKey, name: &str) -> Result<Option<Note>, StoreError> {
    let found = db.query(Lane::Read, GET, args![&key.tenant, &key.session, name]).await?.pop();
    found.map(|mut row| read(&mut row)).transpose()
}

/// All notes of a session.
pub(super) async fn list(db: &dyn Database, key: &SessionKey) -> Result<Vec<Note>, StoreError> {
    let sql = Sql::both("SELECT name, updated_at, body FROM note WHERE tenant = $1 AND session_id = $2");
    let found = db.query(Lane::Read, sql, args![&key.tenant, &key.session]).await?;
    let mut notes: Vec<_> = found.into_iter().map(|mut row| read(&mut row)).collect::<Result<_, _>>()?;
    // Databases have orders of their own.
    notes.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(notes)
}

/// Names of a session's notes.
pub(super) async fn names(db: &dyn Database, key: &SessionKey) -> Result<Vec<String>, StoreError> {
    let sql = Sql::both("SELECT name FROM note WHERE tenant = $1 AND session_id = $2");
    let found = db.query(Lane::Read, sql, args![&key.tenant, &key.session]).await?;
    found.into_iter().map(|mut row| row.next()).collect()
}

/// Deletes a note.
pub(super) async fn delete(db: &dyn Database, key: &SessionKey, name: &str) -> Result<bool, StoreError> {
    let sql = Sql::both("DELETE FROM note WHERE tenant = $1 AND session_id = $2 AND name = $3");
    let mut tx = db.begin(Lane::Write).await?;
    let deleted = tx.execute(sql, args![&key.tenant, &key.session, name]).await? == 1;
    tx.commit().await?;
    Ok(deleted)
}

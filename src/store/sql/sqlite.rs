//! `SQLite`: one writer, several readers, everything synced.

use super::connection::{Arg, Database, Lane, Row, Sql, Transaction, Value};
use super::pool::{Lease, Pool};
use crate::model::GenerationId;
use crate::store::{ErrorKind, StoreError};
use async_trait::async_trait;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteRow, SqliteSynchronous};
use sqlx::{Connection as _, Executor as _, Row as _, SqliteConnection, TypeInfo as _, ValueRef as _};
use std::path::Path;
use std::time::Duration;

/// Readers beside the one writer.
const READERS: u32 = 8;
/// Bytes of a page. A turn adds a little to each of six pages, and a page that
/// changes is written whole, to the WAL and later to the file: with a quarter of
/// the default size a turn writes less than half as much (docs/benchmarks.md).
const PAGE_BYTES: u32 = 1024;
/// Pages of WAL after which it is written to the file: 8 MiB, so that pages which
/// change often are written there seldom.
const CHECKPOINT_PAGES: &str = "8192";
/// Makes the WAL about as large as it is to get: pages that do not fit into the page
/// cache are written to it, and with the transaction they are void. A commit that
/// makes the file longer takes half as long again as one that does not, since the
/// file system then has more to sync than the pages.
const LENGTHEN_WAL: &str =
    "BEGIN IMMEDIATE; CREATE TABLE wal_space AS SELECT zeroblob(8388608) AS body; ROLLBACK";
/// How long a request waits for a connection or for another process's lock.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for the lock, in `SQLite`'s words.
const BUSY_TIMEOUT: &str = "PRAGMA busy_timeout = 10000";
/// How long a checkpoint waits for readers, and everybody else for it.
const PURGE_BUSY_TIMEOUT: &str = "PRAGMA busy_timeout = 1000";

#[derive(Debug)]
pub(super) struct Sqlite {
    /// One connection: `SQLite` has one writer at a time, and waiting in line
    /// here is fair, unlike its busy handler.
    writer: Pool<SqliteConnection>,
    readers: Pool<SqliteConnection>,
}

impl Sqlite {
    pub(super) async fn open(file: &Path) -> Result<Self, StoreError> {
        let connect = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .page_size(PAGE_BYTES)
            .pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
            // What is deleted is overwritten: a deleted session must not stay in
            // pages that nothing uses. Sealed journals are overwritten too, which
            // adds 7 % to what a turn of 1 KiB writes, and 32 % at 16 KiB.
            .pragma("secure_delete", "ON")
            .journal_mode(SqliteJournalMode::Wal)
            // NORMAL can lose acknowledged commits when the power fails.
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(ACQUIRE_TIMEOUT);
        let pool = |connections: u32, connect: SqliteConnectOptions| {
            Pool::new(connections, ACQUIRE_TIMEOUT, move || {
                let connect = connect.clone();
                Box::pin(async move { SqliteConnection::connect_with(&connect).await })
            })
        };
        let (writer, readers) = (pool(1, connect.clone()), pool(READERS, connect.read_only(true)));
        // The writer makes the file and its journal mode.
        let failed = |error| classify(format!("open {}", file.display()), error);
        let mut connection = writer.acquire().await.map_err(failed)?;
        if lengthen_wal(&mut connection).await {
            connection.give_back();
        }
        Ok(Self { writer, readers })
    }
}

#[async_trait]
impl Database for Sqlite {
    async fn query(&self, _lane: Lane, sql: Sql, args: Vec<Arg<'_>>) -> Result<Vec<Row>, StoreError> {
        let mut connection = self.readers.acquire().await.map_err(|error| classify("connect", error))?;
        let result = bind(sql, args).fetch_all(&mut *connection).await;
        if matches!(result, Ok(_) | Err(sqlx::Error::Database(_))) {
            connection.give_back();
        }
        let rows = result.map_err(|error| statement_error(sql, error))?;
        rows.iter().map(read_row).collect()
    }

    async fn begin(&self, _lane: Lane) -> Result<Box<dyn Transaction>, StoreError> {
        let connection = self.writer.acquire().await.map_err(|error| classify("begin", error))?;
        let mut transaction = SqliteTransaction { connection };
        transaction.connection.execute("BEGIN IMMEDIATE").await.map_err(|error| classify("begin", error))?;
        Ok(Box::new(transaction))
    }

    async fn transact(&self, sql: Sql, args: Vec<Arg<'_>>) -> Result<bool, StoreError> {
        let mut connection = self.writer.acquire().await.map_err(|error| classify("connect", error))?;
        match bind(sql, args).fetch_all(&mut *connection).await {
            Ok(rows) => {
                connection.give_back();
                Ok(!rows.is_empty())
            }
            // A transaction that can be rolled back was not committed.
            Err(error) if connection.execute("ROLLBACK").await.is_ok() => {
                connection.give_back();
                Err(statement_error(sql, error))
            }
            Err(error) => Err(commit_error(error)),
        }
    }

    async fn purge(&self) -> Result<bool, StoreError> {
        let mut connection = self.writer.acquire().await.map_err(|error| classify("purge", error))?;
        let failed = |error| classify("purge", error);
        connection.execute(PURGE_BUSY_TIMEOUT).await.map_err(failed)?;
        // The WAL still holds the pages as they were before the deletion.
        let checkpoint = connection.fetch_one("PRAGMA wal_checkpoint(TRUNCATE)").await.map_err(failed)?;
        connection.execute(BUSY_TIMEOUT).await.map_err(failed)?;
        if lengthen_wal(&mut connection).await {
            connection.give_back();
        }
        let is_busy: i64 = checkpoint.try_get_unchecked(0).map_err(failed)?;
        Ok(is_busy == 0)
    }

    fn text(&self, sql: Sql) -> &'static str {
        sql.sqlite
    }

    async fn migrate(&self, migrator: &sqlx::migrate::Migrator, to: Option<i64>) -> Result<(), StoreError> {
        let mut connection = self.writer.acquire().await.map_err(|error| classify("migrate", error))?;
        let migrated = migrator.run_direct(to, &mut *connection, false).await;
        migrated.map_err(|error| StoreError::caused(ErrorKind::Internal, "migrate", error))?;
        connection.give_back();
        Ok(())
    }
}

/// Whether it could be done. All works without it, if more slowly.
async fn lengthen_wal(connection: &mut SqliteConnection) -> bool {
    let done = connection.execute(LENGTHEN_WAL).await;
    if let Err(error) = &done {
        tracing::debug!(%error, "the WAL was not lengthened");
    }
    done.is_ok()
}

/// Dropped at any point but after its end it closes the connection, which ends
/// the transaction.
struct SqliteTransaction {
    connection: Lease<SqliteConnection>,
}

#[async_trait]
impl Transaction for SqliteTransaction {
    async fn query(&mut self, sql: Sql, args: Vec<Arg<'_>>) -> Result<Vec<Row>, StoreError> {
        let rows = bind(sql, args).fetch_all(&mut *self.connection).await;
        let rows = rows.map_err(|error| statement_error(sql, error))?;
        rows.iter().map(read_row).collect()
    }

    async fn execute(&mut self, sql: Sql, args: Vec<Arg<'_>>) -> Result<u64, StoreError> {
        let done = bind(sql, args).execute(&mut *self.connection).await;
        Ok(done.map_err(|error| statement_error(sql, error))?.rows_affected())
    }

    async fn hold_generation(&mut self, id: GenerationId) -> Result<(), StoreError> {
        // The transaction is the only writer, so nothing can fence it now.
        let live = Sql::both("SELECT generation FROM writer_generation WHERE generation = $1 AND fenced = 0");
        if self.query(live, vec![Arg::from(id)]).await?.is_empty() {
            return Err(StoreError::new(ErrorKind::Fenced, format!("generation {id}")));
        }
        Ok(())
    }

    async fn await_generation(&mut self, _id: GenerationId) -> Result<(), StoreError> {
        Ok(())
    }

    async fn commit(mut self: Box<Self>) -> Result<(), StoreError> {
        self.connection.execute("COMMIT").await.map_err(commit_error)?;
        self.connection.give_back();
        Ok(())
    }

    async fn rollback(mut self: Box<Self>) -> Result<(), StoreError> {
        self.connection.execute("ROLLBACK").await.map_err(|error| classify("rollback", error))?;
        self.connection.give_back();
        Ok(())
    }
}

fn bind(sql: Sql, args: Vec<Arg<'_>>) -> sqlx::query::Query<'_, sqlx::Sqlite, sqlx::sqlite::SqliteArguments> {
    args.into_iter().fold(sqlx::query(sql.sqlite), |query, arg| match arg {
        Arg::Int(value) => query.bind(value),
        Arg::OptInt(value) => query.bind(value),
        Arg::Float(value) => query.bind(value),
        Arg::Text(value) => query.bind(value.into_owned()),
        Arg::OptText(value) => query.bind(value.map(std::borrow::Cow::into_owned)),
        Arg::OptBytes(value) => query.bind(value),
        Arg::Bytes(value) => query.bind(value.into_owned()),
    })
}

fn read_row(row: &SqliteRow) -> Result<Row, StoreError> {
    let values = (0..row.columns().len()).map(|i| {
        let raw = row.try_get_raw(i)?;
        if raw.is_null() {
            return Ok(Value::Null);
        }
        let type_info = raw.type_info();
        Ok(match type_info.name() {
            "INTEGER" => Value::Int(row.try_get_unchecked(i)?),
            "REAL" => Value::Float(row.try_get_unchecked(i)?),
            "BLOB" => Value::Bytes(row.try_get_unchecked(i)?),
            _ => Value::Text(row.try_get_unchecked(i)?),
        })
    });
    let values: Result<_, sqlx::Error> = values.collect();
    values.map(Row::new).map_err(|error| StoreError::caused(ErrorKind::Internal, "read a row", error))
}

fn statement_error(sql: Sql, error: sqlx::Error) -> StoreError {
    classify(sql.sqlite.split_whitespace().take(4).collect::<Vec<_>>().join(" "), error)
}

/// The kind of a failure before the commit: nothing was written.
fn classify(context: impl Into<String>, error: sqlx::Error) -> StoreError {
    let kind = match &error {
        sqlx::Error::Database(database) => {
            kind_of_code(database.code().and_then(|code| code.parse().ok()).unwrap_or_default())
        }
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    };
    StoreError::caused(kind, context, error)
}

/// The kind of a failure of `COMMIT` itself.
fn commit_error(error: sqlx::Error) -> StoreError {
    let mut failed = classify("commit", error);
    // A commit that could not be synced may be in the file all the same.
    if !matches!(failed.kind, ErrorKind::Full | ErrorKind::Contention) {
        failed.kind = ErrorKind::Unknown;
    }
    failed
}

/// Source: the result codes of `SQLite`, <https://www.sqlite.org/rescode.html>.
fn kind_of_code(code: i32) -> ErrorKind {
    const BUSY: i32 = 5;
    const LOCKED: i32 = 6;
    const IOERR: i32 = 10;
    const CORRUPT: i32 = 11;
    const FULL: i32 = 13;
    const CANTOPEN: i32 = 14;
    const NOTADB: i32 = 26;
    const CONSTRAINT_PRIMARYKEY: i32 = 1555;
    const CONSTRAINT_UNIQUE: i32 = 2067;
    match code {
        CONSTRAINT_PRIMARYKEY | CONSTRAINT_UNIQUE => return ErrorKind::Duplicate,
        _ => {}
    }
    match code & 0xff {
        BUSY | LOCKED => ErrorKind::Contention,
        IOERR | CANTOPEN => ErrorKind::Unavailable,
        FULL => ErrorKind::Full,
        CORRUPT | NOTADB => ErrorKind::Corrupt,
        _ => ErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_codes_tell_what_a_caller_can_do() {
        let table = [
            (5, ErrorKind::Contention),
            (517, ErrorKind::Contention),
            (6, ErrorKind::Contention),
            (10, ErrorKind::Unavailable),
            (1546, ErrorKind::Unavailable),
            (11, ErrorKind::Corrupt),
            (13, ErrorKind::Full),
            (1555, ErrorKind::Duplicate),
            (2067, ErrorKind::Duplicate),
            (19, ErrorKind::Internal),
            (1, ErrorKind::Internal),
        ];
        for (code, kind) in table {
            assert_eq!(kind_of_code(code), kind, "{code}");
        }
    }
}

//! Postgres: pools, error codes and advisory locks.

use super::connection::{Arg, Database, Lane, PoolSizes, Row, Sql, Transaction, Value};
use super::pool::{Lease, Pool};
use crate::clock;
use crate::model::GenerationId;
use crate::store::{ErrorKind, StoreError};
use async_trait::async_trait;
use secrecy::{ExposeSecret as _, SecretString};
use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgConnectOptions, PgDatabaseError, PgRow, PgSeverity};
use sqlx::{Column as _, Connection as _, Executor as _, PgConnection, Row as _, TypeInfo as _};
use std::str::FromStr as _;
use std::time::Duration;

/// Advisory locks of writer generations have this first number; the second is
/// the generation.
const GENERATION_LOCKS: i32 = 0x7475_726e;
/// Times that a migration waits for locks, 3 seconds each: a minute in all.
const MIGRATE_ATTEMPTS: u32 = 20;

/// How to reach a Postgres database.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// `postgres://user:password@host:port/database?…`
    pub url: SecretString,
    /// Connections of each lane.
    pub pools: PoolSizes,
    /// How long a request waits for a connection.
    pub acquire_timeout: Duration,
}

#[derive(Debug)]
pub(super) struct Postgres {
    connect: PgConnectOptions,
    write: Pool<PgConnection>,
    read: Pool<PgConnection>,
    background: Pool<PgConnection>,
}

impl Postgres {
    pub(super) fn new(options: &PostgresOptions) -> Result<Self, StoreError> {
        let connect = PgConnectOptions::from_str(options.url.expose_secret())
            .map_err(|error| {
                StoreError::caused(ErrorKind::Internal, "the Postgres URL cannot be read", error)
            })?
            .application_name("turnkeep");
        let pool = |connections: u32| {
            let connect = connect.clone();
            Pool::new(connections, options.acquire_timeout, move || {
                let connect = connect.clone();
                Box::pin(async move { PgConnection::connect_with(&connect).await })
            })
        };
        let PoolSizes { write, read, background } = options.pools;
        Ok(Self { write: pool(write), read: pool(read), background: pool(background), connect })
    }

    fn pool(&self, lane: Lane) -> &Pool<PgConnection> {
        match lane {
            Lane::Write => &self.write,
            Lane::Read => &self.read,
            Lane::Background => &self.background,
        }
    }
}

#[async_trait]
impl Database for Postgres {
    async fn query(&self, lane: Lane, sql: Sql, args: Vec<Arg<'_>>) -> Result<Vec<Row>, StoreError> {
        loop {
            let mut connection =
                self.pool(lane).acquire().await.map_err(|error| classify("connect", error))?;
            let result = in_time(lane, bind(sql, args.clone()).fetch_all(&mut *connection)).await;
            match &result {
                Err(error) if connection.was_idle() && is_disconnect(error) => continue,
                Err(error) if !matches!(error, sqlx::Error::Database(_)) || is_disconnect(error) => {}
                // After an answer, were it a refusal, the connection is in order.
                _ => connection.give_back(),
            }
            let rows = result.map_err(|error| statement_error(sql, error))?;
            return rows.iter().map(read_row).collect();
        }
    }

    async fn begin(&self, lane: Lane) -> Result<Box<dyn Transaction>, StoreError> {
        loop {
            let connection = self.pool(lane).acquire().await.map_err(|error| classify("begin", error))?;
            let mut transaction = PostgresTransaction { connection, lane };
            match in_time(lane, transaction.connection.execute("BEGIN")).await {
                Ok(_) => return Ok(Box::new(transaction)),
                // Closed while it lay idle, as by a server that was restarted.
                Err(error) if transaction.connection.was_idle() && is_disconnect(&error) => {}
                Err(error) => return Err(classify("begin", error)),
            }
        }
    }

    async fn transact(&self, sql: Sql, args: Vec<Arg<'_>>) -> Result<bool, StoreError> {
        let mut connection =
            self.pool(Lane::Write).acquire().await.map_err(|error| classify("connect", error))?;
        match in_time(Lane::Write, bind(sql, args).execute(&mut *connection)).await {
            Ok(done) => {
                connection.give_back();
                Ok(done.rows_affected() > 0)
            }
            // Refused: the server has rolled back.
            Err(error @ sqlx::Error::Database(_)) if !is_disconnect(&error) => {
                connection.give_back();
                Err(statement_error(sql, error))
            }
            Err(error) => Err(commit_error(error)),
        }
    }

    async fn purge(&self) -> Result<bool, StoreError> {
        // Its own vacuum does it, and needs no lock that we would have to wait for.
        Ok(true)
    }

    fn text(&self, sql: Sql) -> &'static str {
        sql.postgres
    }

    async fn migrate(&self, migrator: &sqlx::migrate::Migrator, to: Option<i64>) -> Result<(), StoreError> {
        let failed = |error| StoreError::caused(ErrorKind::Internal, "migrate", error);
        let mut attempts = 0;
        loop {
            attempts += 1;
            // A connection of its own: the migrator's session lock must not get
            // into a pool.
            let mut connection =
                PgConnection::connect_with(&self.connect).await.map_err(|e| classify("connect", e))?;
            // Whoever waits for a table's lock keeps all others from the table.
            let set = connection.execute("SET lock_timeout = '3s'").await;
            set.map_err(|e| classify("set lock_timeout", e))?;
            let migrated = migrator.run_direct(to, &mut connection, false).await;
            let closed = connection.close().await;
            match migrated {
                // The migrator's lock is one for the whole database, so that others
                // who migrate may take longer.
                Err(error) if is_lock_timeout(&error) && attempts < MIGRATE_ATTEMPTS => {}
                migrated => {
                    migrated.map_err(failed)?;
                    return closed.map_err(|error| classify("close", error));
                }
            }
        }
    }
}

/// Dropped at any point but after its end it closes the connection, which ends
/// the transaction: a pool must not be given a connection with an open
/// transaction, which would swallow the next writes (sqlx issue 4385).
struct PostgresTransaction {
    connection: Lease<PgConnection>,
    lane: Lane,
}

#[async_trait]
impl Transaction for PostgresTransaction {
    async fn query(&mut self, sql: Sql, args: Vec<Arg<'_>>) -> Result<Vec<Row>, StoreError> {
        let rows = in_time(self.lane, bind(sql, args).fetch_all(&mut *self.connection)).await;
        let rows = rows.map_err(|error| statement_error(sql, error))?;
        rows.iter().map(read_row).collect()
    }

    async fn execute(&mut self, sql: Sql, args: Vec<Arg<'_>>) -> Result<u64, StoreError> {
        let done = in_time(self.lane, bind(sql, args).execute(&mut *self.connection)).await;
        Ok(done.map_err(|error| statement_error(sql, error))?.rows_affected())
    }

    async fn hold_generation(&mut self, id: GenerationId) -> Result<(), StoreError> {
        let lock = Sql::both("SELECT pg_advisory_xact_lock_shared($1, $2)");
        self.lock_generation(lock, id).await?;
        // In a statement after the lock, so that it sees what a fence before
        // the lock has written.
        let live = Sql::both("SELECT generation FROM writer_generation WHERE generation = $1 AND fenced = 0");
        if self.query(live, vec![Arg::from(id)]).await?.is_empty() {
            return Err(StoreError::new(ErrorKind::Fenced, format!("generation {id}")));
        }
        Ok(())
    }

    async fn await_generation(&mut self, id: GenerationId) -> Result<(), StoreError> {
        self.lock_generation(Sql::both("SELECT pg_advisory_xact_lock($1, $2)"), id).await
    }

    async fn commit(mut self: Box<Self>) -> Result<(), StoreError> {
        in_time(self.lane, self.connection.execute("COMMIT")).await.map_err(commit_error)?;
        self.connection.give_back();
        Ok(())
    }

    async fn rollback(mut self: Box<Self>) -> Result<(), StoreError> {
        let rolled_back = in_time(self.lane, self.connection.execute("ROLLBACK")).await;
        rolled_back.map_err(|error| classify("rollback", error))?;
        self.connection.give_back();
        Ok(())
    }
}

impl PostgresTransaction {
    async fn lock_generation(&mut self, lock: Sql, id: GenerationId) -> Result<(), StoreError> {
        // Generations are random, so the low bits tell them apart.
        #[expect(clippy::cast_possible_truncation, reason = "two that share a lock only wait for each other")]
        let id = id.0 as i32;
        let query = sqlx::query(lock.postgres).bind(GENERATION_LOCKS).bind(id);
        let locked = in_time(self.lane, query.execute(&mut *self.connection)).await;
        locked.map_err(|error| statement_error(lock, error))?;
        Ok(())
    }
}

fn bind(sql: Sql, args: Vec<Arg<'_>>) -> sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments> {
    args.into_iter().fold(sqlx::query(sql.postgres), |query, arg| match arg {
        Arg::Int(value) => query.bind(value),
        Arg::OptInt(value) => query.bind(value),
        Arg::Float(value) => query.bind(value),
        Arg::Text(value) => query.bind(value),
        Arg::OptText(value) => query.bind(value),
        Arg::OptBytes(value) => query.bind(value),
        Arg::Bytes(value) => query.bind(value),
    })
}

fn read_row(row: &PgRow) -> Result<Row, StoreError> {
    let values = row.columns().iter().map(|column| {
        let i = column.ordinal();
        Ok(match column.type_info().name() {
            "INT8" => row.try_get::<Option<i64>, _>(i)?.map_or(Value::Null, Value::Int),
            "INT4" => row.try_get::<Option<i32>, _>(i)?.map_or(Value::Null, |int| Value::Int(int.into())),
            "FLOAT8" => row.try_get::<Option<f64>, _>(i)?.map_or(Value::Null, Value::Float),
            "BYTEA" => row.try_get::<Option<Vec<u8>>, _>(i)?.map_or(Value::Null, Value::Bytes),
            _ => row.try_get::<Option<String>, _>(i)?.map_or(Value::Null, Value::Text),
        })
    });
    let values: Result<_, sqlx::Error> = values.collect();
    values.map(Row::new).map_err(|error| StoreError::caused(ErrorKind::Internal, "read a row", error))
}

/// Gives a statement the time that one may take: a network that drops everything
/// tells nobody, and the connections would be waited for until the pools are
/// empty.
async fn in_time<T>(lane: Lane, statement: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    let limit = match lane {
        Lane::Write | Lane::Read => Duration::from_secs(15),
        Lane::Background => Duration::from_mins(1),
    };
    let timed_out = || Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()));
    clock::deadline(limit, statement).await.unwrap_or_else(timed_out)
}

/// Whether the connection was at an end when the statement was sent, or came to
/// it with the answer.
fn is_disconnect(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => error.kind() != std::io::ErrorKind::TimedOut,
        sqlx::Error::Database(error) => error
            .try_downcast_ref::<PgDatabaseError>()
            .is_some_and(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic)),
        _ => false,
    }
}

/// Whether a migration came to nothing because somebody held a lock for too long.
fn is_lock_timeout(error: &MigrateError) -> bool {
    let (MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) = error else {
        return false;
    };
    error.as_database_error().is_some_and(|error| error.code().as_deref() == Some("55P03"))
}

fn statement_error(sql: Sql, error: sqlx::Error) -> StoreError {
    classify(sql.postgres.split_whitespace().take(4).collect::<Vec<_>>().join(" "), error)
}

/// The kind of a failure before the commit: nothing was written.
fn classify(context: impl Into<String>, error: sqlx::Error) -> StoreError {
    let kind = match &error {
        sqlx::Error::Database(database) => kind_of_sqlstate(database.code().as_deref().unwrap_or_default()),
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    };
    StoreError::caused(kind, context, error)
}

/// The kind of a failure of `COMMIT` itself.
fn commit_error(error: sqlx::Error) -> StoreError {
    let is_disconnect = is_disconnect(&error);
    let mut failed = classify("commit", error);
    // A definite refusal by the server is one; anything else, a server that
    // shuts down or goes down included, leaves the outcome open.
    if failed.kind == ErrorKind::Unavailable || is_disconnect {
        failed.kind = ErrorKind::Unknown;
    }
    failed
}

/// Source: PostgreSQL 15 documentation, appendix A.
fn kind_of_sqlstate(code: &str) -> ErrorKind {
    const UNIQUE_VIOLATION: &str = "23505";
    const DISK_FULL: &str = "53100";
    const TRANSACTION_RESOLUTION_UNKNOWN: &str = "08007";
    const STATEMENT_COMPLETION_UNKNOWN: &str = "40003";
    match code {
        UNIQUE_VIOLATION => ErrorKind::Duplicate,
        DISK_FULL => ErrorKind::Full,
        TRANSACTION_RESOLUTION_UNKNOWN | STATEMENT_COMPLETION_UNKNOWN => ErrorKind::Unknown,
        _ => match code.get(..2) {
            // Serialization failures and deadlocks.
            Some("40") => ErrorKind::Contention,
            // Connection exceptions, insufficient resources, lock timeouts,
            // operator intervention, and a server that is read-only.
            Some("08" | "53" | "55" | "57") => ErrorKind::Unavailable,
            _ if code == "25006" => ErrorKind::Unavailable,
            _ => ErrorKind::Internal,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstates_tell_what_a_caller_can_do() {
        let table = [
            ("23505", ErrorKind::Duplicate),
            ("40001", ErrorKind::Contention),
            ("40P01", ErrorKind::Contention),
            ("40003", ErrorKind::Unknown),
            ("08007", ErrorKind::Unknown),
            ("08006", ErrorKind::Unavailable),
            ("57P01", ErrorKind::Unavailable),
            ("57P03", ErrorKind::Unavailable),
            ("53300", ErrorKind::Unavailable),
            ("53100", ErrorKind::Full),
            ("55P03", ErrorKind::Unavailable),
            ("25006", ErrorKind::Unavailable),
            ("42P01", ErrorKind::Internal),
            ("", ErrorKind::Internal),
        ];
        for (code, kind) in table {
            assert_eq!(kind_of_sqlstate(code), kind, "{code}");
        }
    }
}

//! Postgres: pools, error codes and advisory locks.

use super::connection::{Arg, Database, Lane, PoolSizes, Row, Sql, Transaction, Value};
use super::pool::{Lease, Pool};
use crate::model::GenerationId;
use crate::store::{ErrorKind, StoreError};
use async_trait::async_trait;
use secrecy::{ExposeSecret as _, SecretString};
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{Column as _, Connection as _, Executor as _, PgConnection, Row as _, TypeInfo as _};
use std::str::FromStr as _;
use std::time::Duration;

/// Advisory locks of writer generations have this first number; the second is
/// the generation.
const GENERATION_LOCKS: i32 = 0x7475_726e;

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
        let mut connection = self.pool(lane).acquire().await.map_err(|error| classify("connect", error))?;
        let result = bind(sql, args).fetch_all(&mut *connection).await;
        // After an answer, were it a refusal, the connection is in order.
        if matches!(result, Ok(_) | Err(sqlx::Error::Database(_))) {
            connection.give_back();
        }
        let rows = result.map_err(|error| statement_error(sql, error))?;
        rows.iter().map(read_row).collect()
    }

    async fn begin(&self, lane: Lane) -> Result<Box<dyn Transaction>, StoreError> {
        let connection = self.pool(lane).acquire().await.map_err(|error| classify("begin", error))?;
        let mut transaction = PostgresTransaction { connection };
        transaction.connection.execute("BEGIN").await.map_err(|error| classify("begin", error))?;
        Ok(Box::new(transaction))
    }

    fn fuses_writes(&self) -> bool {
        true
    }

    async fn migrate(&self, migrator: &sqlx::migrate::Migrator, to: Option<i64>) -> Result<(), StoreError> {
        // A connection of its own: the migrator's session lock must not get
        // into a pool.
        let failed = |error| StoreError::caused(ErrorKind::Internal, "migrate", error);
        let mut connection =
            PgConnection::connect_with(&self.connect).await.map_err(|e| classify("connect", e))?;
        connection.execute("SET lock_timeout = '3s'").await.map_err(|e| classify("set lock_timeout", e))?;
        migrator.run_direct(to, &mut connection, false).await.map_err(failed)?;
        connection.close().await.map_err(|error| classify("close", error))
    }
}

/// Dropped at any point but after its end it closes the connection, which ends
/// the transaction: a pool must not be given a connection with an open
/// transaction, which would swallow the next writes (sqlx issue 4385).
struct PostgresTransaction {
    connection: Lease<PgConnection>,
}

#[async_trait]
impl Transaction for PostgresTransaction {
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

impl PostgresTransaction {
    async fn lock_generation(&mut self, lock: Sql, id: GenerationId) -> Result<(), StoreError> {
        // Generations count processes, so the low bits tell them apart.
        #[expect(clippy::cast_possible_truncation, reason = "two that share a lock only wait for each other")]
        let id = id.0 as i32;
        sqlx::query(lock.postgres)
            .bind(GENERATION_LOCKS)
            .bind(id)
            .execute(&mut *self.connection)
            .await
            .map_err(|error| statement_error(lock, error))?;
        Ok(())
    }
}

fn bind(sql: Sql, args: Vec<Arg<'_>>) -> sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments> {
    args.into_iter().fold(sqlx::query(sql.postgres), |query, arg| match arg {
        Arg::Int(value) => query.bind(value),
        Arg::OptInt(value) => query.bind(value),
        Arg::Float(value) => query.bind(value),
        Arg::Text(value) => query.bind(value.into_owned()),
        Arg::OptText(value) => query.bind(value.map(std::borrow::Cow::into_owned)),
        Arg::Bytes(value) => query.bind(value.into_owned()),
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
    let mut failed = classify("commit", error);
    // A definite refusal by the server is one; anything else, a server that
    // shuts down included, leaves the outcome open.
    if failed.kind == ErrorKind::Unavailable {
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

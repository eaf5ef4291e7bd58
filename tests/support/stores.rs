//! Real stores for tests, each test with its own: a `SQLite` file or a schema in
//! Postgres, a directory or a prefix in S3.

#![allow(dead_code, unused_imports, unused_macros, reason = "each test file uses a part of it")]

#[path = "stores/gate.rs"]
mod gate;
#[path = "stores/node.rs"]
mod node;
#[path = "stores/proxy.rs"]
mod proxy;
#[path = "stores/rows.rs"]
mod rows;
#[path = "stores/server.rs"]
mod server;

pub(crate) use gate::{Gate, GatedBlobs, GatedMeta};
pub(crate) use node::{Node, Told, blob_keys, config, id_of, payload, read_all, request};
pub(crate) use proxy::{Harm, Proxy, error_response};
pub(crate) use rows::{Line, branch_id, generation, key, leased, tenant, turn_of};
pub(crate) use server::PostgresServer;

use secrecy::SecretString;
use sqlx::{Column as _, Row as _, TypeInfo as _, ValueRef as _};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use turnkeep::clock::{self, Stopwatch};
use turnkeep::entropy::Entropy;
use turnkeep::store::BlobStore;
use turnkeep::store::local::LocalBlobs;
use turnkeep::store::sql::{PoolSizes, PostgresOptions, SqlMetaStore};

/// Longest that anything is waited for.
const PATIENCE: Duration = Duration::from_mins(1);

/// Asks again and again until there is an answer.
pub(crate) async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let waited = Stopwatch::start();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(waited.elapsed() < PATIENCE, "waited in vain for this: {what}");
        clock::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for something that must not take for ever.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    clock::deadline(PATIENCE, future).await.unwrap_or_else(|| panic!("this takes for ever: {what}"))
}

/// Polls a future so many times and then drops it; its output if that was
/// enough.
pub(crate) async fn polled<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = times;
    std::future::poll_fn(|context| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
            std::task::Poll::Pending if left == 0 => std::task::Poll::Ready(None),
            std::task::Poll::Pending => std::task::Poll::Pending,
        }
    })
    .await
}

/// A name that no other test has.
pub(crate) fn unique(what: &str) -> String {
    format!("{what}_{}", Entropy::from_os().hex::<8>())
}

/// Defines each function as a test on both databases; on Postgres it is skipped
/// if there is none.
macro_rules! on_both_databases {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name(crate::stores::Database::sqlite().await).await;
                }
            )*
        }
        mod postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    if let Some(database) = crate::stores::Database::postgres().await {
                        super::$name(database).await;
                    }
                }
            )*
        }
    };
}
pub(crate) use on_both_databases;

/// A metadata store of the test's own, with its schema.
#[derive(Debug)]
pub(crate) struct Database {
    /// The store.
    pub(crate) meta: Arc<SqlMetaStore>,
    /// A way past the store, on connections of its own.
    raw: Raw,
    place: Place,
}

#[derive(Debug)]
enum Raw {
    Sqlite(sqlx::SqlitePool),
    Postgres(sqlx::PgPool),
}

#[derive(Debug)]
enum Place {
    File(PathBuf, Option<TempDir>),
    Url(String),
}

/// All tables of the schema.
pub(crate) const TABLES: [&str; 18] = [
    "branch",
    "deletion",
    "head",
    "journal",
    "manifest",
    "note",
    "output",
    "output_held",
    "pending_summary",
    "preamble",
    "segment",
    "service_secret",
    "session",
    "session_label",
    "tombstone",
    "turn",
    "window_state",
    "writer_generation",
];

impl Database {
    /// A new `SQLite` file.
    pub(crate) async fn sqlite() -> Self {
        use turnkeep::store::MetaStore as _;
        let database = Self::empty_sqlite().await;
        database.meta.migrate().await.unwrap();
        database
    }

    /// A new `SQLite` file without a schema.
    pub(crate) async fn empty_sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("turnkeep.db");
        Self { place: Place::File(file.clone(), Some(directory)), ..Self::file_at(&file).await }
    }

    /// A `SQLite` file at a place, with its schema.
    pub(crate) async fn sqlite_at(file: &Path) -> Self {
        use turnkeep::store::MetaStore as _;
        let database = Self::file_at(file).await;
        database.meta.migrate().await.unwrap();
        database
    }

    async fn file_at(file: &Path) -> Self {
        let meta = Arc::new(SqlMetaStore::sqlite(file).await.unwrap());
        let connect = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
        let raw = Raw::Sqlite(sqlx::SqlitePool::connect_with(connect).await.unwrap());
        Self { meta, raw, place: Place::File(file.to_owned(), None) }
    }

    /// A new schema in Postgres; nothing if there is no Postgres.
    pub(crate) async fn postgres() -> Option<Self> {
        use turnkeep::store::MetaStore as _;
        let database = Self::empty_postgres().await?;
        database.meta.migrate().await.unwrap();
        Some(database)
    }

    /// A new schema in Postgres without tables.
    pub(crate) async fn empty_postgres() -> Option<Self> {
        let Ok(url) = std::env::var("TURNKEEP_TEST_POSTGRES") else {
            println!("skipped: TURNKEEP_TEST_POSTGRES names no Postgres");
            return None;
        };
        Some(Self::new_schema(&url).await)
    }

    /// A new schema on a server.
    pub(crate) async fn new_schema(url: &str) -> Self {
        use sqlx::Connection as _;
        let schema = unique("t");
        let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
        let set = "SELECT set_config('turnkeep.schema', $1, false)";
        sqlx::query(set).bind(&schema).execute(&mut connection).await.unwrap();
        let create =
            "DO $$ BEGIN EXECUTE format('CREATE SCHEMA %I', current_setting('turnkeep.schema')); END $$";
        sqlx::query(create).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        let mark = if url.contains('?') { '&' } else { '?' };
        Self::at_url(&format!("{url}{mark}options[search_path]={schema}")).await
    }

    /// The schema that a URL names.
    async fn at_url(url: &str) -> Self {
        let meta = Arc::new(postgres_at(url, 4));
        let raw = Raw::Postgres(sqlx::PgPool::connect(url).await.unwrap());
        Self { meta, raw, place: Place::Url(url.to_owned()) }
    }

    /// The same store with pools of its own, as another process has it.
    pub(crate) async fn another(&self) -> SqlMetaStore {
        self.with_writers(4).await
    }

    /// The same store with so many connections for each kind of work.
    pub(crate) async fn with_writers(&self, connections: u32) -> SqlMetaStore {
        match &self.place {
            Place::File(file, _) => SqlMetaStore::sqlite(file).await.unwrap(),
            Place::Url(url) => postgres_at(url, connections),
        }
    }

    /// Postgres's URL, with the schema.
    pub(crate) fn url(&self) -> Option<&str> {
        match &self.place {
            Place::File(..) => None,
            Place::Url(url) => Some(url),
        }
    }

    /// Where the `SQLite` file is.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.place {
            Place::File(file, _) => Some(file),
            Place::Url(_) => None,
        }
    }

    /// A transaction of somebody else's that has run statements and is left
    /// open.
    pub(crate) async fn open_transaction(&self, statements: &[&'static str]) -> OpenTransaction {
        let mut open = match &self.raw {
            Raw::Sqlite(pool) => {
                let begin = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
                OpenTransaction::Sqlite(begin)
            }
            Raw::Postgres(pool) => OpenTransaction::Postgres(pool.begin().await.unwrap()),
        };
        for sql in statements.iter().copied() {
            match &mut open {
                OpenTransaction::Sqlite(open) => drop(sqlx::query(sql).execute(&mut **open).await.unwrap()),
                OpenTransaction::Postgres(open) => drop(sqlx::query(sql).execute(&mut **open).await.unwrap()),
            }
        }
        open
    }

    /// Waits until so many connections to this schema wait for a lock that
    /// another one has.
    pub(crate) async fn waiters(&self, count: usize) {
        // Locks on tuples of this schema's tables, which other tests cannot hold,
        // or on the transactions that hold them.
        let waiting = "SELECT DISTINCT waiting.pid FROM pg_locks waiting JOIN pg_locks held ON held.pid = waiting.pid \
            JOIN pg_class ON pg_class.oid = held.relation \
            WHERE NOT waiting.granted AND pg_class.relnamespace = current_schema()::regnamespace";
        eventually("transactions that wait", async || {
            (self.rows(waiting).await.len() >= count).then_some(())
        })
        .await;
    }

    /// Runs a statement past the store; returns how many rows it changed.
    pub(crate) async fn execute(&self, sql: &'static str) -> u64 {
        match &self.raw {
            Raw::Sqlite(pool) => sqlx::query(sql).execute(pool).await.unwrap().rows_affected(),
            Raw::Postgres(pool) => sqlx::query(sql).execute(pool).await.unwrap().rows_affected(),
        }
    }

    /// Reads rows past the store, each value as text.
    pub(crate) async fn rows(&self, sql: &'static str) -> Vec<Vec<String>> {
        match &self.raw {
            Raw::Sqlite(pool) => {
                sqlx::query(sql).fetch_all(pool).await.unwrap().iter().map(sqlite_row).collect()
            }
            Raw::Postgres(pool) => {
                sqlx::query(sql).fetch_all(pool).await.unwrap().iter().map(postgres_row).collect()
            }
        }
    }

    /// Runs a statement that a test put together.
    pub(crate) async fn execute_made(&self, sql: String) {
        let sql = sqlx::AssertSqlSafe(sql);
        match &self.raw {
            Raw::Sqlite(pool) => drop(sqlx::query(sql).execute(pool).await.unwrap()),
            Raw::Postgres(pool) => drop(sqlx::query(sql).execute(pool).await.unwrap()),
        }
    }

    /// All rows of a table, in no order.
    pub(crate) async fn rows_of(&self, table: &str) -> Vec<Vec<String>> {
        let sql = sqlx::AssertSqlSafe(format!("SELECT * FROM {table}"));
        // A statement that was prepared before a migration has the columns of its time.
        match &self.raw {
            Raw::Sqlite(pool) => {
                // A connection learns of a new schema only when it runs a statement, and sqlx
                // would take the columns that it knew before.
                let mut connection = pool.acquire().await.unwrap();
                sqlx::query("SELECT name FROM sqlite_master").fetch_all(&mut *connection).await.unwrap();
                let rows = sqlx::query(sql).persistent(false).fetch_all(&mut *connection).await.unwrap();
                rows.iter().map(sqlite_row).collect()
            }
            Raw::Postgres(pool) => {
                let rows = sqlx::query(sql).persistent(false).fetch_all(pool).await.unwrap();
                rows.iter().map(postgres_row).collect()
            }
        }
    }

    /// All rows of all tables, sorted.
    pub(crate) async fn dump(&self) -> BTreeMap<&'static str, Vec<Vec<String>>> {
        let mut dump = BTreeMap::new();
        for table in TABLES {
            let mut rows = self.rows_of(table).await;
            rows.sort();
            dump.insert(table, rows);
        }
        dump
    }
}

/// A transaction that is neither committed nor rolled back.
#[derive(Debug)]
pub(crate) enum OpenTransaction {
    Sqlite(sqlx::Transaction<'static, sqlx::Sqlite>),
    Postgres(sqlx::Transaction<'static, sqlx::Postgres>),
}

impl OpenTransaction {
    pub(crate) async fn commit(self) {
        match self {
            Self::Sqlite(open) => open.commit().await.unwrap(),
            Self::Postgres(open) => open.commit().await.unwrap(),
        }
    }

    pub(crate) async fn roll_back(self) {
        match self {
            Self::Sqlite(open) => open.rollback().await.unwrap(),
            Self::Postgres(open) => open.rollback().await.unwrap(),
        }
    }
}

pub(crate) fn postgres_at(url: &str, connections: u32) -> SqlMetaStore {
    postgres_in_time(url, connections, Duration::from_secs(20))
}

/// A store in Postgres where nobody waits longer for a connection.
pub(crate) fn postgres_in_time(url: &str, connections: u32, acquire_timeout: Duration) -> SqlMetaStore {
    let options = PostgresOptions {
        url: SecretString::from(url),
        pools: PoolSizes { write: connections, read: connections, background: connections },
        acquire_timeout,
    };
    SqlMetaStore::postgres(&options).unwrap()
}

fn sqlite_row(row: &sqlx::sqlite::SqliteRow) -> Vec<String> {
    let text = |i: usize| {
        let raw = row.try_get_raw(i).unwrap();
        if raw.is_null() {
            return "null".to_owned();
        }
        match raw.type_info().name() {
            "INTEGER" => row.get_unchecked::<i64, _>(i).to_string(),
            "BLOB" => hex(&row.get_unchecked::<Vec<u8>, _>(i)),
            _ => row.get_unchecked::<String, _>(i),
        }
    };
    (0..row.columns().len()).map(text).collect()
}

fn postgres_row(row: &sqlx::postgres::PgRow) -> Vec<String> {
    let text = |column: &sqlx::postgres::PgColumn| {
        let i = column.ordinal();
        let text = match column.type_info().name() {
            "NAME" => row.get_unchecked::<Option<String>, _>(i),
            "INT8" => row.get::<Option<i64>, _>(i).map(|int| int.to_string()),
            "INT4" => row.get::<Option<i32>, _>(i).map(|int| int.to_string()),
            "BOOL" => row.get::<Option<bool>, _>(i).map(|truth| i64::from(truth).to_string()),
            "BYTEA" => row.get::<Option<Vec<u8>>, _>(i).map(|bytes| hex(&bytes)),
            _ => row.get::<Option<String>, _>(i),
        };
        text.unwrap_or_else(|| "null".to_owned())
    };
    row.columns().iter().map(text).collect()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

/// Blobs in a directory of the test's own.
#[derive(Debug)]
pub(crate) struct Directory {
    /// The store.
    pub(crate) blobs: Arc<LocalBlobs>,
    directory: TempDir,
}

impl Directory {
    /// A new directory.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Arc::new(LocalBlobs::open(directory.path(), Arc::new(Entropy::from_os())).unwrap());
        Self { blobs, directory }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// A prefix of the test's own in S3; nothing if there is no S3.
#[cfg(feature = "s3")]
pub(crate) async fn s3() -> Option<Arc<turnkeep::store::s3::S3Blobs>> {
    let (Ok(endpoint), Ok(bucket)) =
        (std::env::var("TURNKEEP_TEST_S3_ENDPOINT"), std::env::var("TURNKEEP_TEST_S3_BUCKET"))
    else {
        println!("skipped: TURNKEEP_TEST_S3_ENDPOINT and TURNKEEP_TEST_S3_BUCKET name no S3");
        return None;
    };
    let options = turnkeep::store::s3::S3Options {
        bucket,
        prefix: format!("{}/", unique("t")),
        endpoint: Some(endpoint),
        region: None,
        path_style: true,
    };
    Some(Arc::new(turnkeep::store::s3::S3Blobs::connect(options).await))
}

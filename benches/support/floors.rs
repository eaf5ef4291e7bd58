//! What the stores themselves take: a commit, a read, an object.

#![allow(dead_code, reason = "each benchmark uses its part of it")]

use super::blobs::CountedBlobs;
use super::service::{Backend, Stores};
use bytes::Bytes;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use std::sync::Arc;
use turnkeep::codec::digest;
use turnkeep::entropy::Entropy;
use turnkeep::store::BlobStore;
use turnkeep::store::local::LocalBlobs;
use turnkeep::store::s3::{S3Blobs, S3Options};

const TABLE_SQLITE: &str = "CREATE TABLE bench_floor (id INTEGER PRIMARY KEY, body TEXT NOT NULL)";
const TABLE_POSTGRES: &str = "CREATE TABLE bench_floor (id BIGINT PRIMARY KEY, body TEXT NOT NULL)";
const INSERT: &str = "INSERT INTO bench_floor (id, body) VALUES ($1, $2)";
const SELECT: &str = "SELECT body FROM bench_floor WHERE id = $1";
/// The same commit for pgbench.
pub(crate) const PGBENCH_SCRIPT: &str = "\\set id random(1000000000, 9000000000000000)\n\
    INSERT INTO bench_floor (id, body) VALUES (:id, repeat('x', 192)) ON CONFLICT DO NOTHING;\n";
/// With its key the row has 200 bytes.
const BODY_BYTES: usize = 192;

#[derive(Debug)]
enum Database {
    /// A file beside the service's, with the same settings: in the same file the
    /// two writers would empty each other's page cache at every step, which in
    /// service nobody does.
    Sqlite { writer: sqlx::SqlitePool, readers: sqlx::SqlitePool },
    /// A table in the service's database.
    Postgres(sqlx::PgPool),
}

/// The stores, without the service.
#[derive(Debug)]
pub(crate) struct Floors {
    database: Database,
    blobs: CountedBlobs,
    entropy: Arc<Entropy>,
    rows: i64,
}

impl Floors {
    pub(crate) async fn open(stores: &Stores) -> anyhow::Result<Self> {
        let entropy = Arc::new(Entropy::from_os());
        let directory = stores.directory.path();
        let database = match stores.backend {
            Backend::Embedded => {
                let connect = SqliteConnectOptions::new()
                    .filename(directory.join("floor.db"))
                    .create_if_missing(true)
                    .page_size(1024)
                    .pragma("wal_autocheckpoint", "8192")
                    .journal_mode(SqliteJournalMode::Wal)
                    .synchronous(SqliteSynchronous::Full);
                let pool = || SqlitePoolOptions::new().max_connections(1).test_before_acquire(false);
                let writer = pool().connect_with(connect.clone()).await?;
                sqlx::query(TABLE_SQLITE).execute(&writer).await?;
                let readers = pool().connect_with(connect.read_only(true)).await?;
                Database::Sqlite { writer, readers }
            }
            Backend::Networked => {
                let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1).test_before_acquire(false);
                let pool = pool.connect(&stores.postgres).await?;
                sqlx::query(TABLE_POSTGRES).execute(&pool).await?;
                Database::Postgres(pool)
            }
        };
        let blobs = CountedBlobs::new(service_blobs(stores, &entropy).await?);
        let mut floors = Self { database, blobs, entropy, rows: 0 };
        floors.commit().await?;
        Ok(floors)
    }

    /// Commits one small row.
    pub(crate) async fn commit(&mut self) -> anyhow::Result<()> {
        self.rows += 1;
        let body = "x".repeat(BODY_BYTES);
        match &self.database {
            Database::Sqlite { writer, .. } => {
                sqlx::query(INSERT).bind(self.rows).bind(body).execute(writer).await?;
            }
            Database::Postgres(pool) => {
                sqlx::query(INSERT).bind(self.rows).bind(body).execute(pool).await?;
            }
        }
        Ok(())
    }

    /// Reads one small row by its key.
    pub(crate) async fn read(&self) -> anyhow::Result<()> {
        let rows = match &self.database {
            Database::Sqlite { readers, .. } => {
                sqlx::query(SELECT).bind(self.rows).fetch_all(readers).await?.len()
            }
            Database::Postgres(pool) => sqlx::query(SELECT).bind(self.rows).fetch_all(pool).await?.len(),
        };
        anyhow::ensure!(rows == 1, "the row is there");
        Ok(())
    }

    /// Bytes that Postgres has written: its WAL, and what its tables and indexes
    /// take.
    pub(crate) async fn postgres_bytes(&self) -> anyhow::Result<Option<u64>> {
        const BYTES: &str = "SELECT (pg_current_wal_insert_lsn() - '0/0')::BIGINT \
             + pg_database_size(current_database())";
        let Database::Postgres(pool) = &self.database else { return Ok(None) };
        let bytes: i64 = sqlx::query_scalar(BYTES).fetch_one(pool).await?;
        Ok(Some(bytes.try_into()?))
    }

    /// Bytes of the service's objects.
    pub(crate) async fn object_bytes(&self) -> anyhow::Result<u64> {
        Ok(self.blobs.bytes().await?.0)
    }

    /// Gets an object.
    pub(crate) async fn get(&self, key: &str) -> anyhow::Result<Bytes> {
        Ok(self.blobs.get(key).await?)
    }

    /// Puts an object and tells its key.
    pub(crate) async fn put(&self, body: &Bytes) -> anyhow::Result<String> {
        let key = format!("floor/{}", self.entropy.hex::<16>());
        self.blobs.put_new(&key, body.clone(), digest::sha256(body)).await?;
        Ok(key)
    }
}

/// The blob store that the service uses.
async fn service_blobs(stores: &Stores, entropy: &Arc<Entropy>) -> anyhow::Result<Arc<dyn BlobStore>> {
    Ok(match stores.backend {
        Backend::Embedded => {
            Arc::new(LocalBlobs::open(&stores.directory.path().join("data/blobs"), entropy.clone())?)
        }
        Backend::Networked => Arc::new(
            S3Blobs::connect(S3Options {
                bucket: std::env::var("TURNKEEP_TEST_S3_BUCKET")?,
                prefix: stores.s3_prefix.clone(),
                endpoint: Some(std::env::var("TURNKEEP_TEST_S3_ENDPOINT")?),
                region: None,
                path_style: true,
            })
            .await,
        ),
    })
}

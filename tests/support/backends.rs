//! The pairs of stores that a test runs on, each its own: a directory, a
//! Postgres schema, an S3 key prefix.
//!
//! Postgres and S3 are found by the variables that
//! `tests/services/with-services.sh` sets; without them a test says that it is
//! skipped.

#![allow(dead_code, unused_macros, reason = "each test file uses its part of it")]

use secrecy::SecretString;
use sqlx::Connection as _;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use turnkeep::clock::SystemClock;
use turnkeep::engine::{Engine, FsckOptions, FsckReport};
use turnkeep::entropy::Entropy;
use turnkeep::server::Stores;
use turnkeep::settings::{Blobs, BlobsKind, Metadata, Settings};
use turnkeep::store::sql::PoolSizes;

/// A pair of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pair {
    SqliteLocal,
    SqliteS3,
    PostgresLocal,
    PostgresS3,
}

/// Makes a test of each function for one pair of stores.
macro_rules! on_backend {
    ($module:ident, $pair:ident, $($test:ident),*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    $crate::backends::run($crate::backends::Pair::$pair, super::$test).await;
                }
            )*
        }
    };
}

/// Makes a test of each function for each pair of stores, such as
/// `sqlite_local::a_session_is_returned_as_it_was_created`. A function takes a
/// [`Backend`].
macro_rules! on_all_backends {
    ($($test:ident),* $(,)?) => {
        $crate::backends::on_backend!(sqlite_local, SqliteLocal, $($test),*);
        $crate::backends::on_backend!(sqlite_s3, SqliteS3, $($test),*);
        $crate::backends::on_backend!(postgres_local, PostgresLocal, $($test),*);
        $crate::backends::on_backend!(postgres_s3, PostgresS3, $($test),*);
    };
}

/// Makes a test of each function for the embedded stores alone: of what no
/// store has a part in.
macro_rules! on_embedded_backend {
    ($($test:ident),* $(,)?) => {
        $crate::backends::on_backend!(embedded, SqliteLocal, $($test),*);
    };
}

/// Makes a test of each function for Postgres and S3 alone: of what takes
/// several replicas.
macro_rules! on_shared_backend {
    ($($test:ident),* $(,)?) => {
        $crate::backends::on_backend!(replicas, PostgresS3, $($test),*);
    };
}

#[allow(unused_imports, reason = "each test file uses its part of it")]
pub(crate) use {on_all_backends, on_backend, on_embedded_backend, on_shared_backend};

/// Runs a test on stores of its own and checks afterwards that what it left in
/// them is sound.
pub(crate) async fn run<F: Future<Output = ()>>(pair: Pair, test: impl FnOnce(Backend) -> F) {
    let Some(backend) = Backend::open(pair).await else { return };
    test(backend.clone()).await;
    assert_eq!(backend.fsck().await.findings, []);
}

/// Stores that belong to one test.
#[derive(Clone, Debug)]
pub(crate) struct Backend {
    pub(crate) pair: Pair,
    directory: Arc<TempDir>,
    postgres: Option<String>,
    s3: Option<Blobs>,
}

impl Backend {
    /// Fresh stores; none, with a word about it, if a service is not there.
    pub(crate) async fn open(pair: Pair) -> Option<Self> {
        let own = format!("t_{}", Entropy::from_os().hex::<8>());
        let postgres = match pair {
            Pair::SqliteLocal | Pair::SqliteS3 => None,
            Pair::PostgresLocal | Pair::PostgresS3 => {
                let url = format!("{}?options[search_path]={own}", service("TURNKEEP_TEST_POSTGRES")?);
                create_schema(&url).await;
                Some(url)
            }
        };
        let s3 = match pair {
            Pair::SqliteLocal | Pair::PostgresLocal => None,
            Pair::SqliteS3 | Pair::PostgresS3 => Some(Blobs {
                kind: BlobsKind::S3,
                endpoint: Some(service("TURNKEEP_TEST_S3_ENDPOINT")?),
                bucket: service("TURNKEEP_TEST_S3_BUCKET")?,
                region: None,
                prefix: format!("{own}/"),
                path_style: true,
            }),
        };
        let directory = Arc::new(tempfile::tempdir().unwrap());
        Some(Self { pair, directory, postgres, s3 })
    }

    /// Directory of the local stores.
    pub(crate) fn data_dir(&self) -> &Path {
        self.directory.path()
    }

    /// Settings for these stores, with free ports and with journals that are
    /// sealed when a test does it and not otherwise.
    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.server.listen.set_port(0);
        settings.server.http_listen.set_port(0);
        settings.store.data_dir = self.data_dir().to_owned();
        settings.store.pools = PoolSizes { write: 4, read: 4, background: 2 };
        // A busy machine is not what these tests are about.
        settings.store.acquire_seconds = 30;
        if let Some(url) = &self.postgres {
            settings.store.metadata = Metadata::Postgres(SecretString::from(url.clone()));
        }
        if let Some(s3) = &self.s3 {
            settings.blobs = s3.clone();
        }
        settings.seal.raw_bytes = 1 << 40;
        settings.seal.old_raw_bytes = 0;
        settings.seal.old_seconds = 0;
        settings.seal.interval_seconds = 3_600;
        settings
    }

    /// The same settings as variables, for the command.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let mut variables =
            vec![("TURNKEEP_STORE_DATA_DIR".to_owned(), self.data_dir().display().to_string())];
        let mut set = |name: &str, value: &str| variables.push((name.to_owned(), value.to_owned()));
        if let Some(url) = &self.postgres {
            set("TURNKEEP_STORE_METADATA", url);
        }
        if let Some(s3) = &self.s3 {
            set("TURNKEEP_BLOBS_KIND", "s3");
            set("TURNKEEP_BLOBS_ENDPOINT", s3.endpoint.as_deref().unwrap_or_default());
            set("TURNKEEP_BLOBS_BUCKET", &s3.bucket);
            set("TURNKEEP_BLOBS_PREFIX", &s3.prefix);
            set("TURNKEEP_BLOBS_PATH_STYLE", "true");
        }
        variables
    }

    /// The stores, opened beside whoever uses them.
    pub(crate) async fn stores(&self) -> Stores {
        Stores::open(&self.settings(), &Arc::new(Entropy::from_os()), false).await.unwrap()
    }

    /// Compares all metadata with all blobs.
    pub(crate) async fn fsck(&self) -> FsckReport {
        let Stores { meta, blobs, .. } = self.stores().await;
        // A test that was skipped has left nothing at all.
        meta.migrate().await.unwrap();
        let entropy = Arc::new(Entropy::from_os());
        let options = self.settings().engine_options();
        let engine =
            Engine::without_upkeep(meta, blobs, Arc::new(SystemClock), entropy, options).await.unwrap();
        let report = engine.fsck(FsckOptions { deep: true }, |_| ()).await.unwrap();
        engine.drain().await;
        report
    }

    /// Keys of the segments and manifests in the object store.
    pub(crate) async fn blob_keys(&self) -> BTreeSet<String> {
        let blobs = self.stores().await.blobs;
        let mut keys: BTreeSet<String> = BTreeSet::new();
        loop {
            let after = keys.last().cloned();
            let listed = blobs.list("", after.as_deref(), 1_000).await.unwrap();
            if listed.is_empty() {
                keys.retain(|key| !key.starts_with("ledger/") && !key.starts_with("probe/"));
                return keys;
            }
            keys.extend(listed.into_iter().map(|blob| blob.key));
        }
    }

    /// Takes the metadata of the only session back to a version, as a database
    /// that was restored from a backup, or a standby that lagged behind.
    pub(crate) async fn take_back(&self, version: i64) {
        for sql in [
            "DELETE FROM journal WHERE version > $1",
            "DELETE FROM turn WHERE version > $1",
            "UPDATE head SET version = $1, window_revision = 1, \
             receipt = (SELECT receipt FROM turn WHERE turn.branch_id = head.branch_id AND turn.version = $1), \
             journal_bytes = (SELECT CAST(COALESCE(SUM(LENGTH(body)), 0) AS BIGINT) FROM journal)",
        ] {
            if let Some(url) = &self.postgres {
                let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
                sqlx::query(sql).bind(version).execute(&mut connection).await.unwrap();
            } else {
                let url = format!("sqlite://{}", self.data_dir().join("turnkeep.db").display());
                let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
                sqlx::query(sql).bind(version).execute(&mut connection).await.unwrap();
            }
        }
    }

    /// Rows of the tables that a fork could copy.
    pub(crate) async fn rows(&self) -> Rows {
        const COUNT: &str = "SELECT (SELECT count(*) FROM turn), (SELECT count(*) FROM journal), \
             (SELECT count(*) FROM segment), (SELECT count(*) FROM branch)";
        let (turns, journal, segments, branches) = if let Some(url) = &self.postgres {
            let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
            sqlx::query_as(COUNT).fetch_one(&mut connection).await.unwrap()
        } else {
            let url = format!("sqlite://{}", self.data_dir().join("turnkeep.db").display());
            let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
            sqlx::query_as(COUNT).fetch_one(&mut connection).await.unwrap()
        };
        Rows { turns, journal, segments, branches }
    }
}

/// Numbers of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) turns: i64,
    pub(crate) journal: i64,
    pub(crate) segments: i64,
    pub(crate) branches: i64,
}

/// What a variable says of a service.
fn service(variable: &str) -> Option<String> {
    let value = std::env::var(variable).ok();
    if value.is_none() {
        println!("skipped: {variable} is not set; tests/services/with-services.sh sets it");
    }
    value
}

async fn create_schema(url: &str) {
    let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
    let create = "DO $$ BEGIN EXECUTE format('CREATE SCHEMA %I', current_setting('search_path')); END $$";
    sqlx::query(create).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

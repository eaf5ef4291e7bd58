//! The service as it is run: a process of its own, over stores of its own.

#![allow(dead_code, reason = "each benchmark uses its part of it")]

use super::process;
use anyhow::Context as _;
use sqlx::Connection as _;
use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use turnkeep::client::Client;

/// Which stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// `SQLite` and a directory.
    Embedded,
    /// Postgres and S3, if there are any.
    Networked,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Embedded => "SQLite + directory",
            Self::Networked => "Postgres + S3",
        })
    }
}

impl Backend {
    /// Those that are there. `tests/services/with-services.sh` provides the
    /// networked one.
    pub(crate) fn available() -> Vec<Self> {
        let networked = ["TURNKEEP_TEST_POSTGRES", "TURNKEEP_TEST_S3_ENDPOINT", "TURNKEEP_TEST_S3_BUCKET"];
        if networked.iter().all(|name| std::env::var_os(name).is_some()) {
            vec![Self::Embedded, Self::Networked]
        } else {
            vec![Self::Embedded]
        }
    }
}

/// Empty stores.
#[derive(Debug)]
pub(crate) struct Stores {
    pub(crate) backend: Backend,
    /// Holds the embedded stores.
    pub(crate) directory: TempDir,
    /// A database of the benchmark's own.
    pub(crate) postgres: String,
    /// Where the benchmark's blobs are in the bucket.
    pub(crate) s3_prefix: String,
}

impl Stores {
    pub(crate) async fn new(backend: Backend) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let name = directory.path().file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let name = format!("bench_{}", name.trim_matches(|c: char| !c.is_ascii_alphanumeric()));
        let mut postgres = String::new();
        if backend == Backend::Networked {
            let server = std::env::var("TURNKEEP_TEST_POSTGRES")?;
            let mut connection = sqlx::PgConnection::connect(&server).await?;
            let create = format!("CREATE DATABASE {name}");
            sqlx::raw_sql(sqlx::AssertSqlSafe(create)).execute(&mut connection).await?;
            let (server, _) = server.rsplit_once('/').context("a Postgres URL ends with a database")?;
            postgres = format!("{server}/{name}");
        }
        Ok(Self { backend, directory, postgres, s3_prefix: format!("{name}/") })
    }

    /// The settings that lead to the stores.
    pub(crate) fn settings(&self) -> anyhow::Result<Vec<String>> {
        let mut settings = vec![format!("store.data_dir={}", self.directory.path().join("data").display())];
        if self.backend == Backend::Networked {
            let variable = std::env::var;
            settings.extend([
                format!("store.metadata={}", self.postgres),
                "blobs.kind=s3".to_owned(),
                format!("blobs.endpoint={}", variable("TURNKEEP_TEST_S3_ENDPOINT")?),
                format!("blobs.bucket={}", variable("TURNKEEP_TEST_S3_BUCKET")?),
                "blobs.path_style=true".to_owned(),
                format!("blobs.prefix={}", self.s3_prefix),
            ]);
        }
        Ok(settings)
    }
}

/// Quiet, but for the line that says where the service listens.
const LOG_LEVEL: &str = "log.level=warn,turnkeep::server=info";

/// A service in a process of its own; it ends with this value.
#[derive(Debug)]
pub(crate) struct Service {
    process: Child,
    pub(crate) address: String,
}

impl Service {
    /// Starts the service over some stores.
    pub(crate) async fn start(stores: &Stores, settings: &[&str]) -> anyhow::Result<Self> {
        if stores.backend == Backend::Networked {
            let migrated = turnkeep().arg("migrate").args(flags(stores)?).output()?;
            anyhow::ensure!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
        }
        let own = ["server.listen=127.0.0.1:0", "server.http_listen=127.0.0.1:0", LOG_LEVEL];
        let own = own.iter().chain(settings).flat_map(|setting| ["--set", setting]);
        let command = &mut turnkeep();
        let mut process =
            command.arg("serve").args(flags(stores)?).args(own).stderr(Stdio::piped()).spawn()?;
        let mut log = BufReader::new(process.stderr.take().context("the log is piped")?);
        let address = address_in(&mut log);
        // The log must not fill its pipe.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::stderr()));
        let service = Self { process, address: address? };
        service.client().await?;
        Ok(service)
    }

    /// A client with a connection of its own.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.address).await?)
    }

    /// Processor time that the service has used.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        process::cpu(self.process.id())
    }

    /// A figure of the service's memory, such as `VmHWM`, in KiB.
    pub(crate) fn memory_kib(&self, name: &str) -> anyhow::Result<u64> {
        process::memory_kib(self.process.id(), name)
    }

    /// Bytes that the service has written to disks.
    pub(crate) fn written_bytes(&self) -> anyhow::Result<u64> {
        process::written_bytes(self.process.id())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The command.
pub(crate) fn turnkeep() -> Command {
    Command::new(env!("CARGO_BIN_EXE_turnkeep"))
}

fn flags(stores: &Stores) -> anyhow::Result<Vec<String>> {
    Ok(stores.settings()?.into_iter().flat_map(|setting| ["--set".to_owned(), setting]).collect())
}

/// Waits for the line in which the service says where it listens.
fn address_in(log: &mut impl std::io::BufRead) -> anyhow::Result<String> {
    for line in log.lines() {
        // Colours, should the log have any, stand around the name.
        let line = line?;
        if let Some((_, rest)) = line.split_once("127.0.0.1:")
            && line.contains("turnkeep listens")
        {
            let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
            return Ok(format!("http://127.0.0.1:{port}"));
        }
        #[expect(clippy::print_stderr, reason = "what keeps the service from starting is of interest")]
        {
            eprintln!("{line}");
        }
    }
    anyhow::bail!("the service ended before it listened")
}

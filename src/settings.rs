//! Settings: defaults, then a TOML file, then the environment, then flags.
//!
//! deploy/turnkeep.toml shows all of them with their defaults.

mod summarizer;
mod variables;

use crate::engine::{CompactionOptions, Options, StripRules, read_prompt};
use crate::limits;
use crate::model::ModelProfile;
use crate::store::meta::SealPolicy;
use crate::store::sql::PoolSizes;
use crate::tokens::catalogue;
use secrecy::SecretString;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
pub use summarizer::Summarizer;
use variables::{Kind, SCALARS, setting_of_variable};

/// Why settings could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// The file is not TOML, or holds a key or value that is not a setting.
    #[error("{origin}: {problem}")]
    Invalid {
        /// File, variable or flag that it comes from.
        origin: String,
        /// What is wrong.
        problem: String,
    },
    /// A variable or flag names no setting.
    #[error("{origin} is not a setting")]
    Unknown {
        /// The variable or flag.
        origin: String,
    },
}

/// All settings of the service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it listens.
    pub server: Server,
    /// Where the metadata is kept.
    pub store: Store,
    /// Where the blobs are kept.
    pub blobs: Blobs,
    /// When journals are sealed.
    pub seal: Seal,
    /// Tool outputs.
    pub outputs: Outputs,
    /// What is kept in memory.
    pub cache: Cache,
    /// What erases blobs.
    pub sweep: Sweep,
    /// Models that summaries are made with.
    pub summarizer: Summarizer,
    /// When windows are compacted.
    pub compaction: CompactionOptions,
    /// Logs.
    pub log: Log,
    /// Rule sets that sessions can name, beside the built-in ones.
    pub strip_rules: StripRules,
    /// Model profiles that sessions can name.
    pub profiles: BTreeMap<String, ModelProfile>,
}

/// Where the service listens.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// Address of the gRPC server.
    pub listen: SocketAddr,
    /// Address of the HTTP server for metrics and probes.
    pub http_listen: SocketAddr,
    /// Whether clients may ask for descriptions of the services.
    pub reflection: bool,
    /// Seconds that calls may take to end after SIGTERM.
    pub drain_grace_seconds: u64,
    /// Bytes of persists that may be in the process at the same time.
    pub persist_bytes_in_flight: u64,
    /// Seconds that a persist waits for its part of them.
    pub persist_wait_seconds: u64,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 50051)),
            http_listen: SocketAddr::from(([127, 0, 0, 1], 9464)),
            reflection: true,
            drain_grace_seconds: 25,
            persist_bytes_in_flight: 256 << 20,
            persist_wait_seconds: 5,
        }
    }
}

/// Where the metadata is kept.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// Directory of the embedded database and of local blobs.
    pub data_dir: PathBuf,
    /// The metadata store.
    pub metadata: Metadata,
    /// Connections to Postgres.
    pub pools: PoolSizes,
    /// Seconds that a request waits for a connection to Postgres.
    pub acquire_seconds: u64,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("data"),
            metadata: Metadata::Sqlite,
            pools: PoolSizes::default(),
            acquire_seconds: 1,
        }
    }
}

/// Which metadata store.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub enum Metadata {
    /// `SQLite` in the data directory.
    Sqlite,
    /// Postgres, by URL; it may hold a password.
    Postgres(SecretString),
}

impl TryFrom<String> for Metadata {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text == "sqlite" {
            Ok(Self::Sqlite)
        } else if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            Ok(Self::Postgres(text.into()))
        } else {
            // The value may be a secret, so it is not shown.
            Err("must be \"sqlite\" or begin with postgres://")
        }
    }
}

/// Where the blobs are kept.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Blobs {
    /// Which blob store.
    pub kind: BlobsKind,
    /// The S3 bucket.
    pub bucket: String,
    /// URL of the S3 server, if it is not AWS.
    pub endpoint: Option<String>,
    /// The S3 region.
    pub region: Option<String>,
    /// What all keys begin with.
    pub prefix: String,
    /// Whether the bucket stands in the URL's path.
    pub path_style: bool,
}

/// Which blob store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BlobsKind {
    /// A directory in the data directory.
    #[default]
    Local,
    /// S3.
    S3,
}

/// When journals are sealed.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Seal {
    /// Before or after a turn is acknowledged.
    pub when: SealWhen,
    /// Raw bytes at which a journal is sealed.
    pub raw_bytes: u64,
    /// Raw bytes at which it is sealed once it is old.
    pub old_raw_bytes: u64,
    /// Age in seconds at which it is old.
    pub old_seconds: u64,
    /// Age in seconds at which it is sealed whatever its size.
    pub oldest_seconds: u64,
    /// Seconds after its last seal at which all small segments of a session are merged.
    pub idle_seconds: u64,
    /// Seconds between two looks for journals that are due by age.
    pub interval_seconds: u64,
}

/// Before or after a turn is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SealWhen {
    /// In the background.
    #[default]
    Background,
    /// Each turn, before it is acknowledged.
    EveryTurn,
}

impl Default for Seal {
    fn default() -> Self {
        Self {
            when: SealWhen::Background,
            raw_bytes: limits::SEAL_RAW_BYTES,
            old_raw_bytes: limits::SEAL_OLD_RAW_BYTES,
            old_seconds: 10 * 60,
            oldest_seconds: 24 * 60 * 60,
            idle_seconds: 60 * 60,
            interval_seconds: 30,
        }
    }
}

/// Tool outputs.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Outputs {
    /// Most bytes of one.
    pub bytes_max: u64,
}

impl Default for Outputs {
    fn default() -> Self {
        Self { bytes_max: limits::OUTPUT_RAW_BYTES_DEFAULT }
    }
}

/// What is kept in memory.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cache {
    /// Bytes of decoded segments.
    pub segment_bytes: u64,
    /// Bytes of assembled windows.
    pub window_bytes: u64,
}

impl Default for Cache {
    fn default() -> Self {
        Self { segment_bytes: 256 << 20, window_bytes: 256 << 20 }
    }
}

/// What erases blobs.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sweep {
    /// Seconds between two sweeps of the whole store.
    pub interval_seconds: u64,
    /// Seconds that a blob which nothing refers to may still be read.
    pub grace_seconds: u64,
    /// Most orphans that one sweep erases.
    pub erase_max: usize,
}

impl Default for Sweep {
    fn default() -> Self {
        Self { interval_seconds: 6 * 60 * 60, grace_seconds: 10 * 60, erase_max: 10_000 }
    }
}

/// Logs.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Their form.
    pub format: LogFormat,
    /// Directives such as `info,turnkeep::engine=debug`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: "info".to_owned() }
    }
}

impl Log {
    /// A word that would be taken for a module's name, and silence all others.
    fn unknown_level(&self) -> Option<&str> {
        const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
        let mut directives = self.level.split(',').map(str::trim);
        directives.find(|directive| {
            !directive.contains(['=', '[', ':']) && !LEVELS.contains(&directive.to_ascii_lowercase().as_str())
        })
    }
}

/// Form of the logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Settings {
    /// Reads the settings: the file, if there is one, then variables, then flags
    /// of the form `section.name=value`.
    pub fn load(
        file: Option<&Path>,
        variables: impl IntoIterator<Item = (String, String)>,
        flags: &[String],
    ) -> Result<Self, SettingsError> {
        let mut table = match file {
            None => toml::Table::new(),
            Some(file) => {
                let text = std::fs::read_to_string(file)
                    .map_err(|source| SettingsError::File { file: file.to_owned(), source })?;
                let origin = file.display().to_string();
                let invalid = |error: toml::de::Error| {
                    let before = error.span().and_then(|span| text.get(..span.start));
                    let line = before.map_or(0, |before| before.matches('\n').count()) + 1;
                    invalid(&format!("{origin}:{line}"), &error)
                };
                // Once for itself, so that its errors name the line.
                toml::from_str::<Self>(&text).map_err(invalid)?;
                toml::from_str(&text).map_err(invalid)?
            }
        };
        for (name, value) in variables {
            if let Some((path, kind)) = setting_of_variable(&name, &value)? {
                set(&mut table, &name, path, kind, &value)?;
                read(&table, &name)?;
            }
        }
        for flag in flags {
            let (path, value) = flag.split_once('=').unwrap_or((flag, ""));
            let origin = format!("--set {path}");
            let known = SCALARS.iter().find(|(known, _)| *known == path);
            let (path, kind) = known.ok_or_else(|| SettingsError::Unknown { origin: origin.clone() })?;
            set(&mut table, &origin, path, *kind, value)?;
            read(&table, &origin)?;
        }
        let settings = read(&table, "settings")?;
        settings.check()?;
        Ok(settings)
    }

    /// Checks what the types do not.
    fn check(&self) -> Result<(), SettingsError> {
        if self.blobs.kind == BlobsKind::S3 && self.blobs.bucket.is_empty() {
            let problem = "is needed when blobs.kind is \"s3\"".to_owned();
            return Err(SettingsError::Invalid { origin: "blobs.bucket".to_owned(), problem });
        }
        let largest = limits::REQUEST_BYTES_MAX as u64;
        if self.server.persist_bytes_in_flight < largest {
            let problem = format!("must be at least {largest}, the largest request");
            return Err(SettingsError::Invalid {
                origin: "server.persist_bytes_in_flight".to_owned(),
                problem,
            });
        }
        if let Some(unknown) = self.log.unknown_level() {
            let problem = format!(
                "{unknown:?} is no level: give error, warn, info, debug or trace, or directives such as \
                 info,turnkeep::engine=debug"
            );
            return Err(SettingsError::Invalid { origin: "log.level".to_owned(), problem });
        }
        self.summarizer.check()?;
        self.compaction.check().map_err(|(name, problem)| SettingsError::Invalid {
            origin: format!("compaction.{name}"),
            problem,
        })?;
        for (name, profile) in &self.profiles {
            if !(1..=limits::TOKENS_MAX).contains(&catalogue::resolve(profile).context_window_tokens) {
                let problem =
                    format!("must be 1 to {}, or the model one of `turnkeep models`", limits::TOKENS_MAX);
                let origin = format!("profiles.{name}.context_window_tokens");
                return Err(SettingsError::Invalid { origin, problem });
            }
            profile.check_limits().map_err(|(field, problem)| SettingsError::Invalid {
                origin: format!("profiles.{name}.{field}"),
                problem,
            })?;
        }
        Ok(())
    }

    /// What the summarizer is told, if not the built-in prompt. Its file is read now.
    pub fn prompt(&self) -> Result<Option<String>, SettingsError> {
        let Some(file) = &self.compaction.prompt_file else { return Ok(self.compaction.prompt.clone()) };
        let invalid =
            |problem: String| SettingsError::Invalid { origin: "compaction.prompt_file".to_owned(), problem };
        let mut bytes = Vec::new();
        // One more than is allowed, however large it is.
        let most = limits::PROMPT_BYTES_MAX as u64 + 1;
        File::open(file)
            .and_then(|opened| opened.take(most).read_to_end(&mut bytes))
            .map_err(|source| invalid(format!("cannot read {}: {source}", file.display())))?;
        let prompt =
            read_prompt(&bytes).map_err(|problem| invalid(format!("{} {problem}", file.display())))?;
        Ok(Some(prompt.to_owned()))
    }

    /// What the engine is told of them, but for what is in files of their own.
    pub fn engine_options(&self) -> Options {
        Options {
            seal: SealPolicy {
                raw_bytes: self.seal.raw_bytes,
                old_raw_bytes: self.seal.old_raw_bytes,
                old_seconds: self.seal.old_seconds,
                max_seconds: self.seal.oldest_seconds,
            },
            seal_every_turn: self.seal.when == SealWhen::EveryTurn,
            roll_up_idle: Duration::from_secs(self.seal.idle_seconds),
            seal_interval: Duration::from_secs(self.seal.interval_seconds.max(1)),
            output_bytes_max: self.outputs.bytes_max.min(limits::OUTPUT_RAW_BYTES_MAX),
            segment_cache_bytes: self.cache.segment_bytes,
            window_cache_bytes: self.cache.window_bytes,
            grace: Duration::from_secs(self.sweep.grace_seconds),
            sweep_interval: Duration::from_secs(self.sweep.interval_seconds.max(1)),
            sweep_erase_max: self.sweep.erase_max,
            strip_rules: StripRules::built_in().with(self.strip_rules.clone()),
            profiles: self.profiles.clone(),
            compaction: self.compaction.clone(),
            source_tokens: self.summarizer.source_tokens,
            patience: self.summarizer.patience(),
            ..Options::default()
        }
    }
}

fn set(
    table: &mut toml::Table,
    origin: &str,
    path: &str,
    kind: Kind,
    value: &str,
) -> Result<(), SettingsError> {
    let wrong = |expected| SettingsError::Invalid {
        origin: origin.to_owned(),
        problem: format!("must be {expected}"),
    };
    let value = match kind {
        Kind::Text => toml::Value::String(value.to_owned()),
        Kind::Integer => toml::Value::Integer(value.parse().map_err(|_| wrong("a whole number"))?),
        Kind::Boolean => toml::Value::Boolean(value.parse().map_err(|_| wrong("true or false"))?),
    };
    let mut table = table;
    let mut names = path.split('.').peekable();
    while let Some(name) = names.next() {
        if names.peek().is_none() {
            table.insert(name.to_owned(), value);
            break;
        }
        let section = table.entry(name).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        table = section.as_table_mut().ok_or_else(|| wrong("in a section"))?;
    }
    Ok(())
}

/// The settings as far as they are given. If they cannot be read, what was set
/// last is why.
fn read(table: &toml::Table, origin: &str) -> Result<Settings, SettingsError> {
    table.clone().try_into().map_err(|error| invalid(origin, &error))
}

fn invalid(origin: &str, error: &toml::de::Error) -> SettingsError {
    // Without the line that toml would show: it may hold a secret.
    SettingsError::Invalid { origin: origin.to_owned(), problem: error.message().to_owned() }
}

#[cfg(test)]
mod tests;

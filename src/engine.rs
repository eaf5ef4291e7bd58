//! Use cases, one a file, over the store traits.

pub mod error;
pub mod strip;

mod cache;
mod calibration;
mod compact;
mod compaction_options;
mod continuation;
mod delete;
mod detached;
mod episodes;
mod fork;
mod fsck;
mod generation;
mod held_outputs;
mod interactive;
mod keys;
mod leaving;
mod log;
mod notes;
mod offload;
mod output_blob;
mod outputs;
mod pattern;
mod persist;
mod pins;
mod read;
mod read_output;
mod rebuild;
mod relief;
mod restore;
mod rewind;
mod roll_up;
mod seal;
mod search;
mod search_output;
mod segments;
mod sessions;
mod snapshot;
mod summaries;
mod summarize_now;
mod sweep;
mod upkeep;
mod window_state;

use crate::clock::{Clock, Micros};
use crate::codec::window_id::WindowIdKey;
use crate::entropy::Entropy;
use crate::limits;
use crate::model::{BranchId, InvalidName, ModelProfile, Seq, SessionId, TenantId, Version};
use crate::provider::Summarizer;
use crate::store::meta::{BranchKey, SealPolicy, SessionKey};
use crate::store::{BlobStore, MetaStore};
use detached::Detached;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use compact::{CompactRequest, CompactionPage, Strategy};
pub use compaction_options::{CompactionOptions, Patience, read_prompt};
pub use episodes::{Episode, EpisodePage};
pub use error::{Error, Reason};
pub use fork::ForkRequest;
pub use fsck::{Finding, FsckOptions, FsckReport};
use interactive::SummarizerHealth;
pub use offload::{Offload, OffloadRequest, Offloaded};
pub use outputs::OutputPage;
pub use pattern::Pattern;
pub use persist::{Compaction, Input, NewEntry, OffloadedResult, PersistReply, PersistRequest, Stripped};
pub use read::{LogRange, ReadHeader};
pub use read_output::{OutputPart, OutputPiece, OutputRange, PageEnd, PageSize, ReadOutput, page_characters};
pub use rebuild::{RebuildReport, rebuild};
pub use relief::Stall;
pub use restore::{Change, FullReason, RestoreRequest, Restored, WindowHeader};
pub use rewind::RewindRequest;
pub use search::{Found, FoundIn, SearchPlace, SearchPosition, SearchTranscript, TranscriptPart};
pub use search_output::{FoundLine, SearchOutput, SearchPart};
pub use sessions::{SessionChange, SessionConfig, SessionPage, SessionView, TurnPage};
pub use strip::StripRules;
pub use summaries::SummaryTask;
pub use sweep::SweepReport;

/// What an operator can set.
#[derive(Clone, Debug)]
pub struct Options {
    /// When journals are sealed.
    pub seal: SealPolicy,
    /// Whether each turn is put into the object store before it is
    /// acknowledged.
    pub seal_every_turn: bool,
    /// Time after its last seal at which all segments of a branch that fit into one are
    /// merged.
    pub roll_up_idle: Duration,
    /// How often journals that are due by age are looked for.
    pub seal_interval: Duration,
    /// Most bytes of a tool output.
    pub output_bytes_max: u64,
    /// Bytes of decoded segments that are kept in memory.
    pub segment_cache_bytes: u64,
    /// Bytes of sessions whose windows are kept assembled in memory.
    pub window_cache_bytes: u64,
    /// Time that a blob may take to be put or got.
    pub blob_timeout: Duration,
    /// How long a blob that nothing refers to any more may still be read.
    pub grace: Duration,
    /// How often deletions and tombstones are looked after.
    pub deletion_interval: Duration,
    /// How often the whole store is swept for orphans.
    pub sweep_interval: Duration,
    /// Most orphans that one sweep erases.
    pub sweep_erase_max: usize,
    /// How long a writer generation is used before the next is taken.
    pub generation_rotation: Duration,
    /// Strip rule sets, by name.
    pub strip_rules: StripRules,
    /// Model profiles that sessions may name.
    pub profiles: BTreeMap<String, ModelProfile>,
    /// When windows are compacted, and what then.
    pub compaction: CompactionOptions,
    /// What summaries are made with, if anything is.
    pub summarizer: Option<Arc<Summarizer>>,
    /// Most tokens of what is to be summarized that a model is given.
    pub source_tokens: u64,
    /// How long it is left alone after failures.
    pub patience: Patience,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seal: SealPolicy {
                raw_bytes: limits::SEAL_RAW_BYTES,
                old_raw_bytes: limits::SEAL_OLD_RAW_BYTES,
                old_seconds: 10 * 60,
                max_seconds: 24 * 60 * 60,
            },
            seal_every_turn: false,
            roll_up_idle: Duration::from_hours(1),
            seal_interval: Duration::from_secs(30),
            output_bytes_max: limits::OUTPUT_RAW_BYTES_DEFAULT,
            segment_cache_bytes: 256 << 20,
            window_cache_bytes: 256 << 20,
            blob_timeout: Duration::from_secs(30),
            grace: Duration::from_mins(10),
            deletion_interval: Duration::from_mins(1),
            sweep_interval: Duration::from_hours(6),
            sweep_erase_max: 10_000,
            generation_rotation: Duration::from_mins(15),
            strip_rules: StripRules::built_in(),
            profiles: BTreeMap::new(),
            compaction: CompactionOptions::default(),
            summarizer: None,
            source_tokens: limits::SUMMARIZER_SOURCE_TOKENS,
            patience: Patience::default(),
        }
    }
}

/// The use cases over one metadata store and one blob store. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    meta: Arc<dyn MetaStore>,
    blobs: Arc<dyn BlobStore>,
    clock: Arc<dyn Clock>,
    entropy: Arc<Entropy>,
    options: Options,
    window_ids: WindowIdKey,
    caches: cache::Caches,
    generation: generation::Writer,
    /// What a client's cancel must not cut: commits and what leads to them.
    tasks: TaskTracker,
    /// Ends the background work.
    stop: CancellationToken,
    summarizer_health: Mutex<SummarizerHealth>,
    /// Branches that are due for a seal.
    due: mpsc::Sender<BranchKey>,
}

/// Branches that may wait for a seal; a scan finds those that do not fit.
const DUE_QUEUE: usize = 1024;

/// Times that a query is asked until a database plans it no more. Postgres plans
/// one anew five times before it keeps a plan:
/// <https://www.postgresql.org/docs/15/sql-prepare.html>.
const PREPARATIONS: usize = 6;

impl Engine {
    /// An engine over stores whose schema is up to date. Registers a writer
    /// generation and starts the background work.
    pub async fn start(
        meta: Arc<dyn MetaStore>,
        blobs: Arc<dyn BlobStore>,
        clock: Arc<dyn Clock>,
        entropy: Arc<Entropy>,
        options: Options,
    ) -> Result<Self, Error> {
        let (engine, due) = Self::assemble(meta, blobs, clock, entropy, options).await?;
        engine.prepare_queries().await?;
        upkeep::start(&engine, due);
        Ok(engine)
    }

    /// Asks what a restore asks, of nothing: a database takes many times as long
    /// for the first queries of a kind as for others, and the first caller need not
    /// wait for that.
    async fn prepare_queries(&self) -> Result<(), Error> {
        let no_name = |error: InvalidName| Error::internal(error.to_string());
        let tenant = TenantId::default_tenant();
        let session = SessionId::parse("none").map_err(no_name)?;
        let branch = BranchId::parse("none").map_err(no_name)?;
        let (key, branch) = (SessionKey { tenant: tenant.clone(), session }, BranchKey { tenant, branch });
        for _ in 0..PREPARATIONS {
            self.inner.meta.tip(&key, Some(Version(0))).await?;
            self.inner.meta.lineage(&branch).await?;
            self.inner.meta.journal(&branch, Version(0), Version(0)).await?;
            self.inner.meta.segments(&branch, Seq(0), Seq(0)).await?;
        }
        Ok(())
    }

    /// An engine without background work: nothing is sealed or swept unless a
    /// caller does it.
    pub async fn without_upkeep(
        meta: Arc<dyn MetaStore>,
        blobs: Arc<dyn BlobStore>,
        clock: Arc<dyn Clock>,
        entropy: Arc<Entropy>,
        options: Options,
    ) -> Result<Self, Error> {
        Self::assemble(meta, blobs, clock, entropy, options).await.map(|(engine, _)| engine)
    }

    async fn assemble(
        meta: Arc<dyn MetaStore>,
        blobs: Arc<dyn BlobStore>,
        clock: Arc<dyn Clock>,
        entropy: Arc<Entropy>,
        options: Options,
    ) -> Result<(Self, mpsc::Receiver<BranchKey>), Error> {
        let secret = meta.service_secret("window-id", entropy.bytes()).await?;
        let generation =
            generation::Writer::register(meta.as_ref(), entropy.clone(), clock.now(), &options).await?;
        let (due, receiver) = mpsc::channel(DUE_QUEUE);
        let inner = Inner {
            caches: cache::Caches::new(&options),
            window_ids: WindowIdKey::new(&secret),
            meta,
            blobs,
            clock,
            entropy,
            options,
            generation,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            summarizer_health: Mutex::default(),
            due,
        };
        Ok((Self { inner: Arc::new(inner) }, receiver))
    }

    /// Whether the stores can be reached.
    pub async fn ready(&self) -> Result<(), Error> {
        if self.inner.tasks.is_closed() {
            return Err(Error::Draining);
        }
        Ok(self.inner.meta.ping().await?)
    }

    /// Stops the background work, waits for commits that are under way, and
    /// releases the writer generation.
    pub async fn drain(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        self.inner.generation.release(self.inner.meta.as_ref(), self.now()).await;
    }

    fn now(&self) -> Micros {
        self.inner.clock.now()
    }

    /// Runs a use case that writes: once begun it goes on to its end, whatever
    /// becomes of the caller.
    async fn detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        Detached::begin(&self.inner.tasks, work)?.await
    }
}

/// Bytes up to which work is done where it stands; more goes to a thread of its
/// own, so that it does not hold up other requests.
const INLINE_BYTES: usize = 64 << 10;

/// Computes something over so many bytes.
async fn compute<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    if bytes <= INLINE_BYTES {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::Internal {
        context: "a computation ended early".to_owned(),
        source: Some(error.into()),
    })
}

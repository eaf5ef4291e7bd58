//! An engine over stores of the test's own, and what a worker sees of it.

use bytes::Bytes;
use futures::TryStreamExt as _;
use std::sync::Arc;
use std::time::Duration;
use turnkeep::clock::{Clock, ManualClock, Micros};
use turnkeep::engine::{
    Engine, Error, FsckOptions, FsckReport, Input, LogRange, NewEntry, Options, PersistReply, PersistRequest,
    RestoreRequest, Restored, SessionConfig,
};
use turnkeep::entropy::Entropy;
use turnkeep::model::{
    CompressionPath, Digest, EntryKind, Labels, ModelProfile, RequestId, Version, WireFormat,
};
use turnkeep::store::meta::{BranchKey, SessionKey};
use turnkeep::store::{BlobStore, MetaStore};

/// An engine without background work, on a clock that the test moves.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(crate) meta: Arc<dyn MetaStore>,
    pub(crate) blobs: Arc<dyn BlobStore>,
    pub(crate) clock: Arc<ManualClock>,
}

/// What a session tells of itself: its version and receipt, and all entries of
/// its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) version: Version,
    pub(crate) receipt: Digest,
    pub(crate) entries: Vec<(u64, Bytes)>,
}

impl Node {
    /// A process over stores, its caches empty.
    pub(crate) async fn start(meta: Arc<dyn MetaStore>, blobs: Arc<dyn BlobStore>) -> Self {
        Self::with(meta, blobs, Options::default()).await
    }

    pub(crate) async fn with(meta: Arc<dyn MetaStore>, blobs: Arc<dyn BlobStore>, options: Options) -> Self {
        let clock = Arc::new(ManualClock::new(Micros(1_700_000_000_000_000)));
        Self::at(meta, blobs, options, clock).await
    }

    pub(crate) async fn at(
        meta: Arc<dyn MetaStore>,
        blobs: Arc<dyn BlobStore>,
        options: Options,
        clock: Arc<ManualClock>,
    ) -> Self {
        let entropy = Arc::new(Entropy::from_os());
        let engine = Engine::without_upkeep(meta.clone(), blobs.clone(), clock.clone(), entropy, options)
            .await
            .unwrap();
        Self { engine, meta, blobs, clock }
    }

    /// Another process over the same stores and clock.
    pub(crate) async fn another(&self) -> Self {
        Self::at(self.meta.clone(), self.blobs.clone(), Options::default(), self.clock.clone()).await
    }

    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }

    pub(crate) async fn create(&self, key: &SessionKey) {
        self.engine.create_session(key.clone(), config()).await.unwrap();
    }

    /// Persists a turn of one entry.
    pub(crate) async fn persist(
        &self,
        key: &SessionKey,
        id: &str,
        entry: Bytes,
    ) -> Result<PersistReply, Error> {
        self.engine.persist(request(key, id, vec![entry])).await
    }

    pub(crate) async fn restore(&self, key: &SessionKey) -> Result<Restored, Error> {
        let restore = RestoreRequest {
            key: key.clone(),
            at_version: None,
            known_window: String::new(),
            reserve_tokens: None,
            fixed_overhead_tokens: 0,
            close_pending: false,
            is_whole: false,
        };
        self.engine.restore(restore).await
    }

    pub(crate) async fn read(&self, key: &SessionKey) -> Result<Told, Error> {
        read_all(&self.engine, key).await
    }

    /// The branch that a session is on.
    pub(crate) async fn branch(&self, key: &SessionKey) -> BranchKey {
        let tip = self.meta.tip(key, None).await.unwrap().unwrap();
        BranchKey { tenant: key.tenant.clone(), branch: tip.head.branch }
    }

    /// Seals a session's journal; returns how many segments were written.
    pub(crate) async fn seal(&self, key: &SessionKey) -> Result<usize, Error> {
        self.engine.seal_branch(&self.branch(key).await).await
    }

    /// Checks the stores with a process of its own, so that no cache helps.
    pub(crate) async fn fsck(&self) -> FsckReport {
        let other = self.another().await;
        let report = other.engine.fsck(FsckOptions { deep: true }, |_| {}).await.unwrap();
        other.engine.drain().await;
        report
    }

    /// Checks the stores and finds nothing.
    pub(crate) async fn assert_healthy(&self) {
        assert_eq!(self.fsck().await.findings, []);
    }

    /// Moves the clock past all graces and leases.
    pub(crate) fn wait_long(&self) {
        self.clock.advance(Duration::from_hours(1));
    }
}

/// All of a session's log.
pub(crate) async fn read_all(engine: &Engine, key: &SessionKey) -> Result<Told, Error> {
    let (header, entries) = engine.read(key.clone(), LogRange::default()).await?;
    let pieces: Vec<_> = entries.try_collect().await?;
    let entries = pieces.into_iter().flatten().map(|entry| (entry.seq.0, entry.payload)).collect();
    Ok(Told { version: header.version, receipt: header.receipt, entries })
}

/// Keys of all blobs of sessions, sorted.
pub(crate) async fn blob_keys(blobs: &dyn BlobStore) -> Vec<String> {
    let mut keys = Vec::new();
    loop {
        let page = blobs.list("", keys.last().map(String::as_str), 1000).await.unwrap();
        if page.is_empty() {
            return keys;
        }
        keys.extend(page.into_iter().map(|blob| blob.key));
    }
}

/// A configuration with something in each part.
pub(crate) fn config() -> SessionConfig {
    SessionConfig {
        format: WireFormat::Opaque,
        path: CompressionPath::Batch,
        profile: ModelProfile { context_window_tokens: 1_000_000, ..ModelProfile::default() },
        labels: Labels::from([("team".to_owned(), "blue".to_owned())]),
        strip_rules: vec![],
        pin_statements: None,
        preamble: Bytes::from_static(b" \"be brief\" "),
    }
}

pub(crate) fn id_of(request: &str) -> RequestId {
    RequestId::parse(request).unwrap()
}

/// An entry of about so many bytes that hardly compress, told from others by
/// its text.
pub(crate) fn payload(text: &str, bytes: usize) -> Bytes {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    const DIGITS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
    let mut seed = DefaultHasher::new();
    text.hash(&mut seed);
    let mut state = seed.finish() | 1;
    let mut payload = format!(r#"{{"text":"{text}","noise":""#).into_bytes();
    let end = payload.len() + bytes;
    payload.reserve(bytes + 16);
    while payload.len() < end {
        // Xorshift: fast without optimisation.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let mut word = state;
        for _ in 0..10 {
            payload.push(DIGITS[(word & 63) as usize]);
            word >>= 6;
        }
    }
    payload.truncate(end);
    payload.extend_from_slice(b"\"}");
    payload.into()
}

/// A request that appends entries.
pub(crate) fn request(key: &SessionKey, id: &str, entries: Vec<Bytes>) -> PersistRequest {
    let entry = |payload| NewEntry { payload, kind: EntryKind::Message, at: None };
    PersistRequest {
        key: key.clone(),
        request_id: id_of(id),
        expected_version: None,
        input: Input::Append(entries.into_iter().map(entry).collect()),
        usage: None,
        score: None,
        step_kind: String::new(),
        create_if_missing: None,
        window_id: String::new(),
        keep_tool_results: false,
    }
}

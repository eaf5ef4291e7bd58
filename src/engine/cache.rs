//! What a process keeps of sessions between requests. Everything here can be
//! made anew from the stores; nothing here is ever the only copy.

use super::Options;
use super::restore::LiveWindow;
use crate::codec::segment::Decoded;
use crate::model::{Lineage, Preamble};
use crate::store::meta::{BranchKey, SessionKey, Tip};
use moka::sync::Cache;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Sessions whose heads, lineages and preambles are kept.
const SESSIONS: u64 = 10_000;

/// The caches of one process.
#[derive(Debug)]
pub(super) struct Caches {
    /// Heads as this process saw them last. A head may be out of date: what is
    /// derived from it is committed only if it still is as it was read.
    pub(super) tips: Cache<SessionKey, Arc<CachedTip>>,
    /// Lineages, which never change.
    pub(super) lineages: Cache<BranchKey, Arc<Lineage>>,
    /// Preambles by revision, which never change.
    pub(super) preambles: Cache<(SessionKey, u64), Arc<Preamble>>,
    /// Decoded segments by the keys of their blobs, which never change.
    pub(super) segments: moka::future::Cache<String, Arc<Decoded>>,
    /// Windows of sessions that this process has restored.
    pub(super) windows: Cache<SessionKey, Arc<LiveWindow>>,
}

/// A head with what this process has put into the journal since it read it.
#[derive(Debug)]
pub(super) struct CachedTip {
    pub(super) tip: Tip,
    /// Raw bytes of journal rows that were written since the branch was sealed,
    /// as far as this process knows.
    pub(super) journal_raw_bytes: AtomicU64,
}

impl CachedTip {
    pub(super) fn new(tip: Tip, journal_raw_bytes: u64) -> Arc<Self> {
        Arc::new(Self { tip, journal_raw_bytes: AtomicU64::new(journal_raw_bytes) })
    }
}

fn weight(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

impl Caches {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            tips: Cache::new(SESSIONS),
            lineages: Cache::new(SESSIONS),
            preambles: Cache::builder()
                .weigher(|_, preamble: &Arc<Preamble>| weight(preamble.payload.len() + 256))
                .max_capacity(options.window_cache_bytes / 8)
                .build(),
            segments: moka::future::Cache::builder()
                .weigher(|_, segment: &Arc<Decoded>| {
                    weight(segment.lines.len() + segment.entries.len() * 128)
                })
                .max_capacity(options.segment_cache_bytes)
                .build(),
            windows: Cache::builder()
                .weigher(|_, window: &Arc<LiveWindow>| weight(window.memory_bytes()))
                .max_capacity(options.window_cache_bytes)
                .build(),
        }
    }

    /// Forgets a session, after it was deleted or rewound.
    pub(super) fn forget(&self, key: &SessionKey) {
        self.tips.invalidate(key);
        self.windows.invalidate(key);
    }
}

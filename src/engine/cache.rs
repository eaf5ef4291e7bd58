//! What a process keeps of sessions between requests. Everything here can be
//! made anew from the stores; nothing here is ever the only copy.

use super::Options;
use super::restore::LiveWindow;
use crate::codec::segment::Decoded;
use crate::model::{Lineage, Preamble};
use crate::store::meta::{BranchKey, SessionKey, Tip};
use bytes::Bytes;
use moka::sync::Cache;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

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
    /// Tokens at which a session's window was last looked at after a turn, to see
    /// whether it can be relieved.
    pub(super) tended: Cache<SessionKey, u64>,
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

    /// What it takes, roughly: a session with many calls that wait for their
    /// results is large.
    fn memory_bytes(&self) -> usize {
        const EACH: usize = 128;
        let Tip { session, turn, journal, .. } = &self.tip;
        let calls = turn.calls.pending.iter().chain(&turn.calls.interrupted);
        let calls: usize = calls.map(|call| call.call_id.len() + call.name.len() + EACH).sum();
        let labels: usize = session.labels.iter().map(|(key, value)| key.len() + value.len() + EACH).sum();
        let journal: usize = journal.iter().map(|row| row.body.len() + EACH).sum();
        16 * EACH + calls + labels + journal
    }
}

/// Sessions of which is known when they were last looked at.
const TENDED_MAX: u64 = 100_000;

fn weight(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

impl Caches {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            tips: Cache::builder()
                .weigher(|_, cached: &Arc<CachedTip>| weight(cached.memory_bytes()))
                .max_capacity(options.window_cache_bytes / 8)
                .build(),
            lineages: Cache::builder()
                .weigher(|_, lineage: &Arc<Lineage>| weight(lineage.spans().len() * 256 + 256))
                .max_capacity(options.window_cache_bytes / 8)
                .build(),
            preambles: Cache::builder()
                .weigher(|_, preamble: &Arc<Preamble>| weight(preamble.payload.len() + 256))
                .max_capacity(options.window_cache_bytes / 8)
                .build(),
            segments: moka::future::Cache::builder()
                .weigher(|_, segment: &Arc<Decoded>| {
                    let lines: usize = segment.lines.iter().map(Bytes::len).sum();
                    weight(lines + segment.entries.len() * 128)
                })
                .max_capacity(options.segment_cache_bytes)
                .build(),
            tended: Cache::builder().max_capacity(TENDED_MAX).build(),
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

#[cfg(test)]
mod tests {
    use super::super::persist::genesis;
    use super::*;
    use crate::clock::Micros;
    use crate::model::{
        Branch, BranchId, CompressionPath, Head, Labels, ModelProfile, Seq, Session, SessionId, TenantId,
        UnansweredCall, Version, WireFormat,
    };

    fn tip(session: &SessionId, calls: usize) -> Tip {
        let (branch, at) = (BranchId::parse("b").unwrap(), Micros(0));
        let mut turn = genesis(session, branch.clone(), at);
        let name = "n".repeat(64);
        let call =
            UnansweredCall { call_id: String::new(), name, kind: String::new(), seq: Seq(1), index: 0 };
        turn.calls.pending = vec![call; calls];
        Tip {
            session: Session {
                id: session.clone(),
                format: WireFormat::OpenaiChat,
                path: CompressionPath::Interactive,
                profile: ModelProfile::default(),
                labels: Labels::new(),
                strip_rules: vec![],
                pin_statements: None,
                forked_from: None,
                continued_from: None,
                has_other_counts: false,
                created_at: at,
            },
            head: Head {
                version: Version(0),
                branch: branch.clone(),
                receipt: turn.receipt,
                config_revision: 1,
                window_revision: 1,
                preamble_revision: 0,
                preamble_tokens: 0,
                journal_bytes: 0,
                fence: 0,
                updated_at: at,
                window_state: 0,
                window_offset: 0,
                calibration: None,
            },
            branch: Branch {
                id: branch,
                session: session.clone(),
                parent: None,
                base_version: Version(0),
                base_seq: Seq(0),
                first_version: Version(0),
                sealed_seq: Seq(0),
                sealed_version: Version(0),
                created_at: at,
            },
            turn,
            journal: vec![],
        }
    }

    #[test]
    fn heads_take_so_many_bytes_and_not_so_many_sessions() {
        const CALLS: usize = 1_000;
        let options = Options { window_cache_bytes: 8 << 20, ..Options::default() };
        let caches = Caches::new(&options);
        let kept = |calls: usize, sessions: usize| {
            caches.tips.invalidate_all();
            for i in 0..sessions {
                let session = SessionId::parse(&format!("s{i}")).unwrap();
                let key = SessionKey { tenant: TenantId::default_tenant(), session: session.clone() };
                caches.tips.insert(key, CachedTip::new(tip(&session, calls), 0));
                caches.tips.run_pending_tasks();
            }
            caches.tips.entry_count()
        };
        assert_eq!(kept(0, 300), 300);
        let kept = kept(CALLS, 300);
        assert!((1..1 << 4).contains(&kept), "{kept} heads of {CALLS} calls");
    }
}

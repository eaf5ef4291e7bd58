//! Comparing a worker's whole list with the log.

use super::persist::{Base, Prepared, Refs, WINDOW_FIELD, unknown_window};
use super::{Engine, Error, compute};
use crate::codec::digest;
use crate::format;
use crate::model::{Branch, BranchId, Digest, EntryKind, Seq, Turn, Version};
use crate::store::meta::{BranchKey, SessionKey, Tip};
use bytes::Bytes;

/// The list and the log part, or one of them ends.
const CONTENTS_DIFFER: &str = "their contents differ";
const LIST_ENDS: &str = "the list ends where the log goes on";

impl Engine {
    /// Where a snapshot continues the log; nothing if it has nothing new.
    pub(super) async fn compare_snapshot(
        &self,
        key: &SessionKey,
        tip: &Tip,
        list: &[Prepared],
        window_id: &str,
        allow_rewind: bool,
    ) -> Result<Option<Base>, Error> {
        if window_id.is_empty() {
            self.compare_with_log(key, tip, list, allow_rewind).await
        } else {
            self.compare_with_window(key, tip, list, window_id).await
        }
    }

    async fn compare_with_log(
        &self,
        key: &SessionKey,
        tip: &Tip,
        list: &[Prepared],
        allow_rewind: bool,
    ) -> Result<Option<Base>, Error> {
        let rolling = Rolling::new(list);
        if rolling.agrees(tip.turn.last_seq, tip.turn.prefix_digest) {
            return Ok(continued(tip, rolling.len_to(tip.turn.last_seq), list));
        }
        let newest = self.newest(key, tip).await?;
        let turns = self.prefix_digests(key, tip).await?;
        // Every log begins with a version of no entries, which agrees.
        let agreeing = turns.partition_point(|(_, seq, digest)| rolling.agrees(*seq, *digest));
        let base = turns.get(agreeing.saturating_sub(1)).copied().unwrap_or_default();
        if !allow_rewind {
            let next_seq = turns.get(agreeing).map_or(tip.turn.last_seq, |(_, seq, _)| *seq);
            let last = next_seq.min(Seq(list.len() as u64));
            let log = self.entries(key, &newest, base.1.next(), last, vec![]).await?;
            let new = list.get(rolling.len_to(base.1)..).unwrap_or_default();
            let log = self.received_contents(key, log.iter().map(|entry| &entry.payload)).await?;
            let same = log.iter().zip(new).take_while(|(content, new)| **content == new.content).count();
            let problem = if same == new.len() { LIST_ENDS } else { CONTENTS_DIFFER };
            return Err(contradiction(list, rolling.len_to(base.1) + same, problem, tip));
        }
        let turn = self.recorded_turn(key, tip, base.0).await?.turn;
        let known = rolling.len_to(turn.last_seq);
        let branch = self.rewound_branch(key, tip, &turn).await?;
        Ok(Some(Base { turn, branch: Some(branch), known }))
    }

    /// Digests of entries as they were received.
    async fn received_contents(
        &self,
        key: &SessionKey,
        payloads: impl Iterator<Item = &Bytes>,
    ) -> Result<Vec<Digest>, Error> {
        let payloads: Vec<Bytes> = payloads.cloned().collect();
        let bytes = payloads.iter().map(Bytes::len).sum();
        let (mut contents, refs) = compute(bytes, move || {
            let mut refs = Refs::default();
            for payload in &payloads {
                refs.add(payload);
            }
            let contents: Vec<_> = payloads.iter().map(|payload| format::canonical_digest(payload)).collect();
            (contents, refs)
        })
        .await?;
        let received = self.received_by_stored(key, &refs).await?;
        for content in &mut contents {
            *content = *received.get(content).unwrap_or(content);
        }
        Ok(contents)
    }

    /// Last seq and rolling digest of all turns of the log.
    async fn prefix_digests(
        &self,
        key: &SessionKey,
        tip: &Tip,
    ) -> Result<Vec<(Version, Seq, Digest)>, Error> {
        let branch = BranchKey { tenant: key.tenant.clone(), branch: tip.head.branch.clone() };
        let mut turns = Vec::new();
        for span in self.lineage(&branch).await?.spans() {
            let branch = BranchKey { tenant: key.tenant.clone(), branch: span.branch.clone() };
            let last = span.last_version.unwrap_or(tip.head.version);
            turns.extend(self.inner.meta.prefix_digests(&branch, span.first_version, last).await?);
        }
        Ok(turns)
    }

    /// A new branch that leaves the log after `turn`.
    pub(super) async fn rewound_branch(
        &self,
        key: &SessionKey,
        tip: &Tip,
        turn: &Turn,
    ) -> Result<Branch, Error> {
        let parent = BranchKey { tenant: key.tenant.clone(), branch: turn.branch.clone() };
        self.lineage_to_extend(&parent).await?;
        let now = self.now();
        let id =
            BranchId::parse(&self.inner.entropy.id(now)).map_err(|_| Error::internal("mint a branch id"))?;
        Ok(Branch {
            id,
            session: key.session.clone(),
            parent: Some(turn.branch.clone()),
            base_version: turn.version,
            base_seq: turn.last_seq,
            first_version: tip.head.version.next(),
            sealed_seq: turn.last_seq,
            sealed_version: tip.head.version,
            created_at: now,
        })
    }

    /// Compares a list that began as a window: first the window's items, then
    /// the entries that were persisted since.
    async fn compare_with_window(
        &self,
        key: &SessionKey,
        tip: &Tip,
        list: &[Prepared],
        window_id: &str,
    ) -> Result<Option<Base>, Error> {
        let window = self.inner.window_ids.decode(&key.tenant, &key.session, window_id);
        let window = window.ok_or_else(unknown_window)?;
        let newest = self.newest(key, tip).await?;
        let holds = newest.lineage.contains(&window.branch, window.served);
        if !holds || !window.is_of_config(&tip.head) {
            return Err(Error::invalid(
                WINDOW_FIELD,
                "is a window that was rewound or revised since; restore again",
            ));
        }
        let served = self.position(key, tip, window.served).await?;
        let items = self.window_items(key, tip, &served, &window).await?.ok_or_else(unknown_window)?;
        let mut contents = self.received_contents(key, items.iter().map(|item| &item.payload)).await?;
        let since =
            self.entries(key, &newest, served.turn.last_seq.next(), tip.turn.last_seq, vec![]).await?;
        let messages = since.iter().filter(|entry| entry.kind == EntryKind::Message);
        contents.extend(self.received_contents(key, messages.map(|entry| &entry.payload)).await?);
        let same = contents.iter().zip(list).take_while(|(content, new)| **content == new.content).count();
        if same < contents.len() {
            let problem = if same == list.len() { LIST_ENDS } else { CONTENTS_DIFFER };
            return Err(contradiction(list, same, problem, tip));
        }
        Ok(continued(tip, same, list))
    }
}

fn continued(tip: &Tip, known: usize, list: &[Prepared]) -> Option<Base> {
    (known < list.len()).then(|| Base { turn: tip.turn.clone(), branch: None, known })
}

fn contradiction(list: &[Prepared], at: usize, problem: &'static str, tip: &Tip) -> Error {
    // The index as the caller sent it, with what was stripped.
    let index = match list.get(at) {
        Some(entry) => entry.index,
        None => list.last().map_or(0, |entry| entry.index + 1),
    };
    Error::SnapshotContradictsLog { index, problem, current: tip.head.version }
}

/// The rolling digests of a list, from none of it to all of it.
struct Rolling(Vec<Digest>);

impl Rolling {
    fn new(list: &[Prepared]) -> Self {
        let mut rolling = Vec::with_capacity(list.len() + 1);
        let mut last = Digest::default();
        rolling.push(last);
        for entry in list {
            last = digest::prefix(last, entry.content);
            rolling.push(last);
        }
        Self(rolling)
    }

    /// Whether the list begins with the log up to `seq`.
    fn agrees(&self, seq: Seq, digest: Digest) -> bool {
        self.0.get(self.len_to(seq)) == Some(&digest)
    }

    /// How many entries of the list the log up to `seq` would be.
    #[expect(clippy::unused_self, reason = "reads better beside the list")]
    fn len_to(&self, seq: Seq) -> usize {
        usize::try_from(seq.0).unwrap_or(usize::MAX)
    }
}

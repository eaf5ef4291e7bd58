//! Persisting a turn: all of its entries or none.

use super::cache::CachedTip;
use super::{Engine, Error, compute};
use crate::clock::Micros;
use crate::codec::window_id::{WindowId, receipt_prefix};
use crate::codec::{digest, frame, line};
use crate::format::{self, CallTracker, Reading};
use crate::limits::{
    APPEND_ATTEMPTS, ENTRY_BYTES_MAX, JOURNAL_SESSION_BYTES_MAX, JOURNAL_TURN_BYTES_MAX,
    OBJECT_FIRST_ATTEMPTS, PENDING_CALLS_BYTES_MAX, PENDING_CALLS_MAX, SNAPSHOT_ENTRIES_MAX,
    TURN_ENTRIES_MAX, TURN_OBJECT_FIRST_BYTES,
};
use crate::model::{
    Branch, BranchId, CallState, Digest, Entry, EntryKind, RequestId, Seq, Session, SessionId, Turn,
    TurnKind, UnansweredCall, Usage, Version, WireFormat,
};
use crate::store::meta::{
    BranchKey, CommitOutcome, Expected, JournalRow, NewTurn, RecordedTurn, SessionKey, Tip, TurnEntries,
};
use crate::store::{ErrorKind, StoreError};
use crate::tokens::TokenCounter;
use crate::window::admit;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An entry to be persisted.
#[derive(Clone, Debug)]
pub struct NewEntry {
    /// The JSON object.
    pub payload: Bytes,
    /// What it is for.
    pub kind: EntryKind,
    /// When it was made, if not now.
    pub at: Option<Micros>,
}

/// What a turn adds.
#[derive(Clone, Debug)]
pub enum Input {
    /// Entries to append.
    Append(Vec<NewEntry>),
    /// The worker's whole list.
    Snapshot {
        /// The list.
        entries: Vec<NewEntry>,
        /// The window that it began as; empty if it is the log itself.
        window_id: String,
        /// Whether the log may be rewound to where it parts from the list.
        allow_rewind: bool,
    },
}

impl Input {
    fn entries(&self) -> &[NewEntry] {
        match self {
            Self::Append(entries) | Self::Snapshot { entries, .. } => entries,
        }
    }

    fn began_as_window(&self) -> bool {
        matches!(self, Self::Snapshot { window_id, .. } if !window_id.is_empty())
    }

    fn payload_bytes(&self) -> usize {
        self.entries().iter().map(|entry| entry.payload.len()).sum()
    }

    fn field(&self) -> &'static str {
        match self {
            Self::Append(_) => "append.entries",
            Self::Snapshot { .. } => "snapshot.entries",
        }
    }
}

/// A turn to be persisted.
#[derive(Clone, Debug)]
pub struct PersistRequest {
    /// The session.
    pub key: SessionKey,
    /// The caller's key.
    pub request_id: RequestId,
    /// The version that the session must have.
    pub expected_version: Option<Version>,
    /// What the turn adds.
    pub input: Input,
    /// What the provider reported.
    pub usage: Option<Usage>,
    /// The worker's score of the step.
    pub score: Option<f64>,
    /// The worker's name for the kind of step.
    pub step_kind: String,
    /// Configuration of the session, should it not exist.
    pub create_if_missing: Option<super::SessionConfig>,
    /// The window that the worker sent to the model; empty if it names none.
    pub window_id: String,
}

/// Entries that were not stored, by what stripped them.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stripped {
    /// Their kind or the name of the rule set.
    pub rule: String,
    /// How many.
    pub count: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
}

/// The answer to a persist, as it is recorded with the turn.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PersistReply {
    /// The version that the turn made or, if nothing was new, the current one.
    pub version: Version,
    /// The receipt.
    pub receipt: Digest,
    /// Seq of the turn's first entry.
    pub first_seq: Seq,
    /// Seq of the newest entry after the turn.
    pub last_seq: Seq,
    /// What was stripped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stripped: Vec<Stripped>,
    /// Tokens of the turn's entries.
    pub turn_tokens: u64,
    /// Tokens of all entries of the log.
    pub log_tokens: u64,
    /// Tokens of log and preamble as a share of what is usable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_fill: Option<f64>,
    /// Whether the window wants compaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction: Option<Compaction>,
    /// The request's window extended by this turn; empty if there is none, or if
    /// a rule stripped a message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub window_id: String,
    /// Version that the log was rewound to first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewound_to: Option<Version>,
}

/// Whether a window wants compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compaction {
    /// No.
    None,
    /// Soon.
    Advised,
    /// It does not fit.
    Required,
}

/// An entry that passed all checks, with what does not depend on its place.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    /// Index in the request.
    pub(super) index: usize,
    pub(super) payload: Bytes,
    kind: EntryKind,
    at: Option<Micros>,
    pub(super) content: Digest,
    tokens: u64,
    /// Its calls and results; none if it is not part of windows.
    reading: Option<Reading<'static>>,
}

/// Where a turn goes: at the end of the log, or after a rewind.
#[derive(Clone, Debug)]
pub(super) struct Base {
    /// The turn that it follows.
    pub(super) turn: Turn,
    /// A new branch, if it is not the one of the turn that it follows.
    pub(super) branch: Option<Branch>,
    /// How many of the prepared entries are part of the log already.
    pub(super) known: usize,
}

impl Engine {
    /// Commits one turn.
    pub async fn persist(&self, request: PersistRequest) -> Result<PersistReply, Error> {
        self.persist_holding(request, ()).await
    }

    /// Commits one turn, and keeps `held` until that is done, whatever becomes of
    /// the caller.
    pub async fn persist_holding(
        &self,
        request: PersistRequest,
        held: impl Send + 'static,
    ) -> Result<PersistReply, Error> {
        let engine = self.clone();
        self.detached(async move {
            let reply = engine.persist_detached(request).await;
            drop(held);
            reply
        })
        .await
    }

    async fn persist_detached(&self, request: PersistRequest) -> Result<PersistReply, Error> {
        let request = Arc::new(request);
        let key = &request.key;
        // First of all, so that a request which is refused creates no session.
        compute(request.input.payload_bytes(), {
            let request = request.clone();
            move || check(&request.input)
        })
        .await??;
        let mut cached = self.cached_tip_or_create(&request).await?;
        let mut prepared = self.prepare(&request, &cached.tip.session).await?;
        let mut config_revision = cached.tip.head.config_revision;
        let request_digest = prepared.request_digest;
        let mut attempts = 0;
        loop {
            if let Some(expected) = request.expected_version
                && expected != cached.tip.head.version
            {
                // Our idea of the head may be out of date.
                cached = self.fresh_tip(key).await?;
                if expected != cached.tip.head.version {
                    return self.replay_or_mismatch(&request, request_digest, expected, &cached.tip).await;
                }
            }
            if config_revision != cached.tip.head.config_revision {
                prepared = self.prepare(&request, &cached.tip.session).await?;
                config_revision = cached.tip.head.config_revision;
            }
            let base = match self.base(&request, &cached.tip, &prepared.entries).await {
                Ok(Some(base)) => base,
                no_base => {
                    // The request may have made a turn when it came first.
                    if let Some(recorded) = self.inner.meta.turn_of_request(key, &request.request_id).await? {
                        return recorded_reply(&recorded, request_digest);
                    }
                    return no_base.map(|_| self.reply_of_nothing_new(&request, &cached.tip, &prepared));
                }
            };
            let attempts_max = match self.attempt(&request, &cached, &base, &prepared).await {
                Ok(Attempt::Committed(reply)) => return Ok(reply),
                // The head is not as it was read: others wrote, or our idea of
                // it was out of date.
                Ok(Attempt::Lost { object_first: false }) => APPEND_ATTEMPTS,
                Ok(Attempt::Lost { object_first: true }) => OBJECT_FIRST_ATTEMPTS,
                Err(AttemptError::RequestIdTaken) => return self.replay(&request, request_digest).await,
                Err(AttemptError::Failed(error)) => return Err(error),
            };
            attempts += 1;
            if attempts >= attempts_max {
                return Err(Error::Contention { session: key.session.clone(), attempts });
            }
            cached = self.fresh_tip(key).await?;
        }
    }

    /// The head as this process saw it last, else from the store; the session
    /// is created if it is missing and the request says so.
    async fn cached_tip_or_create(&self, request: &PersistRequest) -> Result<Arc<CachedTip>, Error> {
        // What comes of comparing a snapshot need not pass a commit, which would
        // show that the head is out of date.
        let may_be_outdated = matches!(request.input, Input::Append(_));
        if let Some(cached) = self.inner.caches.tips.get(&request.key).filter(|_| may_be_outdated) {
            return Ok(cached);
        }
        match (self.fresh_tip(&request.key).await, &request.create_if_missing) {
            (Err(Error::SessionNotFound { .. }), Some(_)) if request.input.began_as_window() => {
                Err(unknown_window())
            }
            (Err(Error::SessionNotFound { .. }), Some(config))
                if request.expected_version.is_none_or(|version| version == Version(0)) =>
            {
                match self.create_session(request.key.clone(), config.clone()).await {
                    // Another call was faster.
                    Err(Error::SessionExists { deleted: false, .. }) | Ok(_) => {}
                    Err(error) => return Err(error.within("create_if_missing")),
                }
                self.fresh_tip(&request.key).await
            }
            (tip, _) => tip,
        }
    }

    pub(super) async fn fresh_tip(&self, key: &SessionKey) -> Result<Arc<CachedTip>, Error> {
        let tip = match self.tip(key, None).await {
            Ok(tip) => tip,
            Err(error) => {
                self.inner.caches.forget(key);
                return Err(error);
            }
        };
        let cached = CachedTip::new(tip, 0);
        self.inner.caches.tips.insert(key.clone(), cached.clone());
        Ok(cached)
    }

    /// Checks and strips the entries, and works out what does not depend on
    /// the head.
    async fn prepare(
        &self,
        request: &Arc<PersistRequest>,
        session: &Session,
    ) -> Result<PreparedRequest, Error> {
        let (request, session, engine) = (request.clone(), session.clone(), self.clone());
        compute(request.input.payload_bytes(), move || prepare(&request, &session, &engine)).await
    }

    /// Where the turn goes; nothing if a snapshot has nothing new.
    async fn base(
        &self,
        request: &PersistRequest,
        tip: &Tip,
        entries: &[Prepared],
    ) -> Result<Option<Base>, Error> {
        match &request.input {
            Input::Append(_) => Ok(Some(Base { turn: tip.turn.clone(), branch: None, known: 0 })),
            Input::Snapshot { window_id, allow_rewind, .. } => {
                self.compare_snapshot(&request.key, tip, entries, window_id, *allow_rewind).await
            }
        }
    }

    /// Tries to commit once.
    async fn attempt(
        &self,
        request: &PersistRequest,
        cached: &CachedTip,
        base: &Base,
        prepared: &PreparedRequest,
    ) -> Result<Attempt, AttemptError> {
        let key = &request.key;
        let draft = self.draft(request, &cached.tip, base, prepared).await?;
        let object_first = self.inner.options.seal_every_turn || draft.body.len() > TURN_OBJECT_FIRST_BYTES;
        let outcome = if object_first {
            self.commit_object_first(key, &cached.tip, &draft).await?
        } else {
            self.commit_journaled(key, &cached.tip, &draft).await?
        };
        if outcome == CommitOutcome::NotAsExpected {
            return Ok(Attempt::Lost { object_first });
        }
        let reply = draft.reply.clone();
        self.committed(key, cached, draft);
        Ok(Attempt::Committed(reply))
    }

    /// Everything of the turn but where its entries are put.
    async fn draft(
        &self,
        request: &PersistRequest,
        tip: &Tip,
        base: &Base,
        prepared: &PreparedRequest,
    ) -> Result<Draft, Error> {
        let new = prepared.entries.get(base.known..).unwrap_or_default();
        let now = self.now();
        let version = tip.head.version.next();
        let mut seq = base.turn.last_seq;
        let mut prefix_digest = base.turn.prefix_digest;
        let mut calls = CallTracker::new(tip.session.format, base.turn.calls.clone());
        let mut late_result = false;
        let mut entries = Vec::with_capacity(new.len());
        for entry in new {
            seq = seq.next();
            prefix_digest = digest::prefix(prefix_digest, entry.content);
            if let Some(reading) = &entry.reading {
                late_result |= calls.push(seq, reading).has_late_result();
            }
            entries.push(Entry {
                seq,
                version,
                at: entry.at.unwrap_or(now),
                kind: entry.kind,
                tokens: entry.tokens,
                payload: entry.payload.clone(),
            });
        }
        check_pending_calls(request.input.field(), calls.state())?;
        let tokens = entries.iter().map(|entry| entry.tokens).sum();
        let mut turn = Turn {
            branch: base.branch.as_ref().map_or(&base.turn.branch, |branch| &branch.id).clone(),
            version,
            kind: if base.branch.is_some() { TurnKind::Rewind } else { TurnKind::Persist },
            base_version: if base.branch.is_some() { base.turn.version } else { Version(0) },
            first_seq: base.turn.last_seq.next(),
            last_seq: seq,
            request_id: request.request_id.clone(),
            request_digest: prepared.request_digest,
            entries_digest: Digest::default(),
            receipt: Digest::default(),
            prefix_digest,
            calls: calls.state().clone(),
            tokens,
            log_tokens: base.turn.log_tokens.saturating_add(tokens),
            payload_bytes: entries.iter().map(|entry| entry.payload.len() as u64).sum(),
            usage: request.usage.clone(),
            score: request.score,
            step_kind: request.step_kind.clone(),
            created_at: now,
        };
        let payload_bytes = usize::try_from(turn.payload_bytes).unwrap_or(usize::MAX);
        let (entries, entries_digest, lines, body) = compute(payload_bytes, move || {
            let mut lines = Vec::with_capacity(payload_bytes + entries.len() * 128);
            for entry in &entries {
                line::write(&mut lines, entry);
            }
            let body =
                if entries.is_empty() { Ok(Bytes::new()) } else { frame::compress_for_journal(&lines) };
            let entries_digest = digest::of_entries(&entries);
            (entries, entries_digest, Bytes::from(lines), body)
        })
        .await?;
        turn.entries_digest = entries_digest;
        turn.receipt = digest::of_turn(base.turn.receipt, &turn);
        let reply = self.reply(request, tip, &turn, prepared, base);
        Ok(Draft {
            base: base.turn.clone(),
            branch: base.branch.clone(),
            turn,
            entries,
            lines,
            body: body?,
            revise_window: late_result,
            reply,
        })
    }

    fn reply(
        &self,
        request: &PersistRequest,
        tip: &Tip,
        turn: &Turn,
        prepared: &PreparedRequest,
        base: &Base,
    ) -> PersistReply {
        let room = tip.session.profile.room(None, 0);
        let filled = turn.log_tokens.saturating_add(tip.head.preamble_tokens);
        #[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
        let window_fill = room.map(|room| filled as f64 / room.usable().max(1) as f64);
        let compaction = room.map(|room| {
            if !room.fits(filled) {
                Compaction::Required
            } else if room.is_compaction_advised(filled) {
                Compaction::Advised
            } else {
                Compaction::None
            }
        });
        PersistReply {
            version: turn.version,
            receipt: turn.receipt,
            first_seq: turn.first_seq,
            last_seq: turn.last_seq,
            stripped: prepared.stripped.clone(),
            turn_tokens: turn.tokens,
            log_tokens: turn.log_tokens,
            window_fill,
            compaction,
            // Which messages went the answer does not say, so that a worker could
            // not extend its window as the id would have it.
            window_id: if prepared.is_message_stripped {
                String::new()
            } else {
                self.extended_window(request, &base.turn, base.branch.is_none(), turn)
            },
            rewound_to: base.branch.as_ref().map(|_| base.turn.version),
        }
    }

    /// The request's window extended by a turn; empty if it is not the newest.
    fn extended_window(
        &self,
        request: &PersistRequest,
        base: &Turn,
        same_branch: bool,
        turn: &Turn,
    ) -> String {
        let SessionKey { tenant, session } = &request.key;
        let window_ids = &self.inner.window_ids;
        let Some(window) = window_ids.decode(tenant, session, &request.window_id) else {
            return String::new();
        };
        let is_newest = same_branch && window.branch == base.branch && window.known == base.version;
        if !is_newest || window.close_pending || window.receipt != receipt_prefix(base.receipt) {
            return String::new();
        }
        let extended = WindowId { known: turn.version, receipt: receipt_prefix(turn.receipt), ..window };
        window_ids.encode(tenant, session, &extended)
    }

    fn reply_of_nothing_new(
        &self,
        request: &PersistRequest,
        tip: &Tip,
        prepared: &PreparedRequest,
    ) -> PersistReply {
        let base = Base { turn: tip.turn.clone(), branch: None, known: 0 };
        let mut reply = self.reply(request, tip, &tip.turn, prepared, &base);
        reply.first_seq = tip.turn.last_seq.next();
        reply.turn_tokens = 0;
        reply
    }

    async fn commit_journaled(
        &self,
        key: &SessionKey,
        tip: &Tip,
        draft: &Draft,
    ) -> Result<CommitOutcome, AttemptError> {
        self.check_journal_room(key, tip, draft).await?;
        let entries = if draft.entries.is_empty() {
            TurnEntries::None
        } else {
            TurnEntries::Journal(JournalRow {
                version: draft.turn.version,
                first_seq: draft.turn.first_seq,
                last_seq: draft.turn.last_seq,
                raw_bytes: draft.lines.len() as u64,
                body: draft.body.clone(),
                created_at: draft.turn.created_at,
            })
        };
        self.commit(draft.to_commit(key, tip, entries)?).await
    }

    /// Puts a segment with the turn and all journaled turns before it into the
    /// object store, and then commits the turn; falls back to the journal if the
    /// object store fails.
    async fn commit_object_first(
        &self,
        key: &SessionKey,
        tip: &Tip,
        draft: &Draft,
    ) -> Result<CommitOutcome, AttemptError> {
        // A retry neither uploads the turn again nor needs the object store.
        self.check_new(key, &draft.turn.request_id).await?;
        let branch = BranchKey { tenant: key.tenant.clone(), branch: draft.turn.branch.clone() };
        for _ in 0..OBJECT_FIRST_ATTEMPTS {
            let turn = RecordedTurn { turn: draft.turn.clone(), reply: draft.reply_json()? };
            let run = match self
                .put_run(key, &branch, draft.branch.as_ref(), Some((turn, draft.lines.clone())))
                .await
            {
                Ok(Some((run, _))) => run,
                Ok(None) => return Ok(CommitOutcome::NotAsExpected),
                Err(error @ Error::Unavailable { .. }) => {
                    if self.inner.options.seal_every_turn || draft.body.len() > JOURNAL_TURN_BYTES_MAX {
                        return Err(error.into());
                    }
                    tracing::warn!(session = %key.session, error = %error, "large turn goes to the journal");
                    return self.commit_journaled(key, tip, draft).await;
                }
                Err(error) => return Err(error.into()),
            };
            let generation = run.generation;
            match self.commit(draft.to_commit(key, tip, TurnEntries::Segment(run))?).await {
                Err(AttemptError::Failed(Error::Internal { source: Some(source), .. }))
                    if is_fenced(source.as_ref()) =>
                {
                    let meta = self.inner.meta.as_ref();
                    self.inner.generation.replace_fenced(meta, generation, self.now()).await?;
                }
                outcome => return outcome,
            }
        }
        Err(Error::Contention { session: key.session.clone(), attempts: OBJECT_FIRST_ATTEMPTS }.into())
    }

    /// Commits and, if the outcome is not known, reads it back.
    async fn commit(&self, new: NewTurn) -> Result<CommitOutcome, AttemptError> {
        let (key, turn) = (new.key.clone(), new.turn.turn.clone());
        let error = match self.inner.meta.commit_turn(new).await {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        match error.kind {
            ErrorKind::Duplicate => Err(AttemptError::RequestIdTaken),
            ErrorKind::Unknown => {
                metrics::counter!("turnkeep_unknown_commits_total").increment(1);
                tracing::warn!(session = %key.session, error = %error, "outcome of a commit is read back");
                match self.inner.meta.settle_turn(&key, &turn.request_id).await {
                    Ok(Some(recorded)) if recorded.turn.receipt == turn.receipt => {
                        Ok(CommitOutcome::Committed)
                    }
                    Ok(Some(_)) => Err(AttemptError::RequestIdTaken),
                    Ok(None) => Ok(CommitOutcome::NotAsExpected),
                    Err(_) => Err(Error::OutcomeUnknown { source: error }.into()),
                }
            }
            ErrorKind::Contention => Ok(CommitOutcome::NotAsExpected),
            _ => Err(Error::from(error).into()),
        }
    }

    /// Fails if the request has made its turn already.
    async fn check_new(&self, key: &SessionKey, request_id: &RequestId) -> Result<(), AttemptError> {
        match self.inner.meta.turn_of_request(key, request_id).await.map_err(Error::from)? {
            Some(_) => Err(AttemptError::RequestIdTaken),
            None => Ok(()),
        }
    }

    async fn check_journal_room(
        &self,
        key: &SessionKey,
        tip: &Tip,
        draft: &Draft,
    ) -> Result<(), AttemptError> {
        let bytes_after = |tip: &Tip| tip.head.journal_bytes.saturating_add(draft.body.len() as u64);
        if bytes_after(tip) <= JOURNAL_SESSION_BYTES_MAX {
            return Ok(());
        }
        // What was sealed since the head was read does not count any more.
        let bytes = bytes_after(&self.fresh_tip(key).await?.tip);
        if bytes <= JOURNAL_SESSION_BYTES_MAX {
            return Ok(());
        }
        self.due_for_seal(BranchKey { tenant: key.tenant.clone(), branch: tip.head.branch.clone() });
        self.check_new(key, &draft.turn.request_id).await?;
        let limit = JOURNAL_SESSION_BYTES_MAX;
        Err(Error::JournalFull { session: key.session.clone(), bytes, limit }.into())
    }

    /// Brings the caches up to a turn that is durable now.
    fn committed(&self, key: &SessionKey, cached: &CachedTip, draft: Draft) {
        metrics::counter!("turnkeep_turns_total").increment(1);
        metrics::counter!("turnkeep_persisted_payload_bytes_total").increment(draft.turn.payload_bytes);
        let mut tip = cached.tip.clone();
        let journaled = draft.body.len() as u64;
        tip.head.version = draft.turn.version;
        tip.head.branch = draft.turn.branch.clone();
        tip.head.receipt = draft.turn.receipt;
        tip.head.window_revision += u64::from(draft.revise_window);
        tip.head.journal_bytes = tip.head.journal_bytes.saturating_add(journaled);
        tip.head.updated_at = draft.turn.created_at;
        if let Some(branch) = draft.branch {
            tip.branch = branch;
        }
        tip.turn = draft.turn;
        let journal_raw = cached.journal_raw_bytes.load(Ordering::Relaxed) + draft.lines.len() as u64;
        let branch = BranchKey { tenant: key.tenant.clone(), branch: tip.head.branch.clone() };
        let is_due = journal_raw >= self.inner.options.seal.raw_bytes;
        let new = CachedTip::new(tip, if is_due { 0 } else { journal_raw });
        if is_due {
            self.due_for_seal(branch);
        }
        self.extend_window(key, &new.tip, &draft.base, draft.entries);
        self.inner.caches.tips.insert(key.clone(), new);
    }

    /// The recorded answer of a request that was made before, if this is the
    /// same.
    async fn replay(&self, request: &PersistRequest, request_digest: Digest) -> Result<PersistReply, Error> {
        let recorded = self.inner.meta.turn_of_request(&request.key, &request.request_id).await?;
        let recorded = recorded.ok_or_else(|| Error::internal("a turn was taken and is not there"))?;
        recorded_reply(&recorded, request_digest)
    }

    async fn replay_or_mismatch(
        &self,
        request: &PersistRequest,
        request_digest: Digest,
        expected: Version,
        tip: &Tip,
    ) -> Result<PersistReply, Error> {
        if let Some(recorded) = self.inner.meta.turn_of_request(&request.key, &request.request_id).await? {
            return recorded_reply(&recorded, request_digest);
        }
        metrics::counter!("turnkeep_version_conflicts_total").increment(1);
        Err(Error::VersionMismatch {
            session: request.key.session.clone(),
            expected,
            current: tip.head.version,
        })
    }
}

/// The field that names the window that a snapshot began as.
pub(super) const WINDOW_FIELD: &str = "snapshot.window_id";

/// A window id that the session did not give, as none did that is yet to be
/// created.
pub(super) fn unknown_window() -> Error {
    Error::invalid(WINDOW_FIELD, "is not a window of this session")
}

/// Checks that a request which finds its id used is the one that used it.
pub(super) fn check_retry(recorded: &RecordedTurn, request_digest: Digest) -> Result<(), Error> {
    if recorded.turn.request_digest != request_digest {
        return Err(Error::RequestIdReused { version: recorded.turn.version });
    }
    metrics::counter!("turnkeep_replayed_requests_total").increment(1);
    Ok(())
}

fn recorded_reply(recorded: &RecordedTurn, request_digest: Digest) -> Result<PersistReply, Error> {
    check_retry(recorded, request_digest)?;
    serde_json::from_str(&recorded.reply)
        .map_err(|error| Error::Internal { context: "recorded reply".to_owned(), source: Some(error.into()) })
}

fn is_fenced(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    error.downcast_ref::<StoreError>().is_some_and(|error| error.kind == ErrorKind::Fenced)
}

enum Attempt {
    Committed(PersistReply),
    /// The head is not as expected.
    Lost {
        object_first: bool,
    },
}

enum AttemptError {
    /// The session has used the request id.
    RequestIdTaken,
    Failed(Error),
}

impl From<Error> for AttemptError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A turn that is ready to be committed.
struct Draft {
    base: Turn,
    branch: Option<Branch>,
    turn: Turn,
    entries: Vec<Entry>,
    lines: Bytes,
    body: Bytes,
    revise_window: bool,
    reply: PersistReply,
}

impl Draft {
    fn reply_json(&self) -> Result<String, Error> {
        serde_json::to_string(&self.reply).map_err(|error| Error::Internal {
            context: "encode a reply".to_owned(),
            source: Some(error.into()),
        })
    }

    fn to_commit(&self, key: &SessionKey, tip: &Tip, entries: TurnEntries) -> Result<NewTurn, Error> {
        Ok(NewTurn {
            key: key.clone(),
            expected: Expected::unchanged(tip),
            turn: RecordedTurn { turn: self.turn.clone(), reply: self.reply_json()? },
            entries,
            branch: self.branch.clone(),
            revise_window: self.revise_window,
            journal_bytes_max: JOURNAL_SESSION_BYTES_MAX,
        })
    }
}

/// A request whose entries passed all checks.
struct PreparedRequest {
    entries: Vec<Prepared>,
    stripped: Vec<Stripped>,
    /// Whether a rule stripped an entry that windows would show.
    is_message_stripped: bool,
    request_digest: Digest,
}

/// Checks what can be checked without the session.
fn check(input: &Input) -> Result<(), Error> {
    let (entries, field) = (input.entries(), input.field());
    let limit = match input {
        Input::Append(_) => TURN_ENTRIES_MAX,
        Input::Snapshot { .. } => SNAPSHOT_ENTRIES_MAX,
    };
    if entries.len() > limit {
        return Err(Error::invalid(
            field,
            format!("has {} entries; at most {limit} are allowed", entries.len()),
        ));
    }
    if input.began_as_window() && matches!(input, Input::Snapshot { allow_rewind: true, .. }) {
        return Err(Error::invalid("snapshot.allow_rewind", "cannot be combined with window_id"));
    }
    entries.iter().enumerate().try_for_each(|(index, entry)| check_payload(entry, field, index))
}

fn prepare(request: &PersistRequest, session: &Session, engine: &Engine) -> PreparedRequest {
    let counter = TokenCounter::new(session.format, session.tokenizer());
    let rules = &engine.inner.options.strip_rules;
    let mut stripped: BTreeMap<&str, Stripped> = BTreeMap::new();
    let mut is_message_stripped = false;
    let mut entries = Vec::with_capacity(request.input.entries().len());
    for (index, entry) in request.input.entries().iter().enumerate() {
        let rule = entry.kind.stripped_as().or_else(|| rules.matching(&session.strip_rules, &entry.payload));
        if let Some(rule) = rule {
            is_message_stripped |= entry.kind == EntryKind::Message;
            let count = stripped.entry(rule).or_insert_with(|| Stripped {
                rule: rule.to_owned(),
                count: 0,
                payload_bytes: 0,
            });
            count.count += 1;
            count.payload_bytes += entry.payload.len() as u64;
            continue;
        }
        let payload = format::to_single_line(entry.payload.clone());
        let reading = (entry.kind == EntryKind::Message).then(|| format::read(session.format, &payload));
        let tokens = reading.as_ref().map_or(0, |reading| counter.count_entry(reading));
        entries.push(Prepared {
            index,
            content: format::canonical_digest(&payload),
            tokens,
            reading: reading.map(|reading| shown_calls(session.format, &payload, reading)),
            payload,
            kind: entry.kind,
            at: entry.at,
        });
    }
    PreparedRequest {
        entries,
        stripped: stripped.into_values().collect(),
        is_message_stripped,
        request_digest: digest_of(request),
    }
}

/// The calls and results of a message as windows show them, which is as they
/// were recorded unless the API would not take that.
fn shown_calls(format: WireFormat, payload: &Bytes, recorded: Reading<'_>) -> Reading<'static> {
    let admitted = admit(format, payload);
    if admitted.mends.is_empty() {
        recorded.into_calls()
    } else {
        format::read(format, &admitted.payload).into_calls()
    }
}

fn check_payload(entry: &NewEntry, field: &str, index: usize) -> Result<(), Error> {
    let problem = if entry.payload.len() > ENTRY_BYTES_MAX {
        format!("has {} bytes; at most {ENTRY_BYTES_MAX} are allowed", entry.payload.len())
    } else {
        match format::check_object(&entry.payload) {
            Ok(()) => return Ok(()),
            Err(error) => error.to_string(),
        }
    };
    Err(Error::invalid(format!("{field}[{index}].payload"), problem))
}

/// Checks that a turn's row can hold the calls that wait for results after it.
fn check_pending_calls(field: &str, calls: &CallState) -> Result<(), Error> {
    let bytes: usize = calls.pending.iter().map(UnansweredCall::text_bytes).sum();
    let count = calls.pending.len();
    if count <= PENDING_CALLS_MAX && bytes <= PENDING_CALLS_BYTES_MAX {
        return Ok(());
    }
    let problem = format!(
        "leaves {count} calls without a result, with {bytes} bytes of ids and names; at most \
         {PENDING_CALLS_MAX} with {PENDING_CALLS_BYTES_MAX} are allowed: send their results with them"
    );
    Err(Error::invalid(field, problem))
}

/// Digest of a request as it was received: what makes a repetition the same.
fn digest_of(request: &PersistRequest) -> Digest {
    let mut hash = Sha256::new_with_prefix(b"turnkeep persist request v1\n");
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    part(&request.expected_version.map_or([0xff; 8], |version| version.0.to_be_bytes()));
    match &request.input {
        Input::Append(_) => part(b"append"),
        Input::Snapshot { window_id, allow_rewind, .. } => {
            part(b"snapshot");
            part(window_id.as_bytes());
            part(&[u8::from(*allow_rewind)]);
        }
    }
    for entry in request.input.entries() {
        part(&entry.kind.number().to_be_bytes());
        part(&entry.at.map_or([0xff; 8], |at| at.0.to_be_bytes()));
        part(&entry.payload);
    }
    let report = (&request.usage, request.score.map(f64::to_bits), &request.step_kind);
    part(serde_json::to_string(&report).unwrap_or_default().as_bytes());
    part(request.window_id.as_bytes());
    Digest(hash.finalize().into())
}

/// The turn before all others of a session: version 0, without entries.
pub(super) fn genesis(session: &SessionId, branch: BranchId, at: Micros) -> Turn {
    #[expect(clippy::expect_used, reason = "the literal is an id")]
    let request_id = RequestId::parse("turnkeep:genesis").expect("is an id");
    let receipt = digest::genesis(session);
    Turn {
        branch,
        version: Version(0),
        kind: TurnKind::Genesis,
        base_version: Version(0),
        first_seq: Seq(1),
        last_seq: Seq(0),
        request_id,
        request_digest: Digest::default(),
        entries_digest: Digest::default(),
        receipt,
        prefix_digest: Digest::default(),
        calls: CallState::default(),
        tokens: 0,
        log_tokens: 0,
        payload_bytes: 0,
        usage: None,
        score: None,
        step_kind: String::new(),
        created_at: at,
    }
}

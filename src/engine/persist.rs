//! Persisting a turn: all of its entries or none.

mod commit;
mod draft;
mod prepared;
mod refs;
mod report;
mod request;
mod results;

use super::cache::CachedTip;
use super::log::Position;
use super::{Engine, Error, compute};
use crate::clock::Micros;
use crate::codec::digest;
use crate::limits::{APPEND_ATTEMPTS, OBJECT_FIRST_ATTEMPTS, TURN_OBJECT_FIRST_BYTES};
use crate::model::{
    Branch, BranchId, CallState, Digest, RequestId, Seq, Session, SessionId, Turn, TurnKind, Version,
};
use crate::store::meta::{BranchKey, CommitOutcome, RecordedTurn, SessionKey, Tip};
use commit::AttemptError;
pub(super) use prepared::Prepared;
use prepared::{PreparedRequest, prepare};
pub(super) use refs::Refs;
use request::check;
pub use request::{Compaction, Input, NewEntry, OffloadedResult, PersistReply, PersistRequest, Stripped};
pub(super) use request::{WINDOW_FIELD, unknown_window};
use std::sync::Arc;

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
            let key = request.key.clone();
            let reply = engine.persist_detached(request).await;
            drop(held);
            if reply.is_ok() {
                engine.open_window(&key).await;
                engine.calibrate_if_low(&key).await;
                engine.truncate_if_over(&key).await;
                engine.tend(&key).await;
            }
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
                        return self.recorded_reply(key, recorded, request_digest).await;
                    }
                    no_base?;
                    return Ok(self.reply_of_nothing_new(&request, &cached.tip, &prepared).await);
                }
            };
            let attempts_max = match self.attempt(&request, &cached, &base, &mut prepared).await {
                Ok(Attempt::Committed(reply)) => return Ok(*reply),
                // The head is not as it was read: others wrote, or our idea of
                // it was out of date.
                Ok(Attempt::Lost { object_first: false }) => APPEND_ATTEMPTS,
                Ok(Attempt::Lost { object_first: true }) => OBJECT_FIRST_ATTEMPTS,
                Err(AttemptError::OutputsOutdated) => {
                    prepared = self.prepare(&request, &cached.tip.session).await?;
                    APPEND_ATTEMPTS
                }
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
        let key = request.key.clone();
        let prepared = compute(request.input.payload_bytes(), move || prepare(&request, &session, &engine));
        let mut prepared = prepared.await?;
        let received = self.received_by_stored(&key, &prepared.refs).await?;
        for entry in &mut prepared.entries {
            entry.content = *received.get(&entry.content).unwrap_or(&entry.content);
        }
        Ok(prepared)
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
        prepared: &mut PreparedRequest,
    ) -> Result<Attempt, AttemptError> {
        let key = &request.key;
        self.offload_results(request, &cached.tip, base, prepared).await?;
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
        let state = draft.window_state.as_ref().map(|new| new.state.state.clone());
        let reply = self.committed(key, cached, draft);
        self.open_branch(key, state.as_ref()).await;
        Ok(Attempt::Committed(Box::new(reply)))
    }

    /// The recorded answer of a request that was made before, if this is the
    /// same.
    async fn replay(&self, request: &PersistRequest, request_digest: Digest) -> Result<PersistReply, Error> {
        let recorded = self.inner.meta.turn_of_request(&request.key, &request.request_id).await?;
        let recorded = recorded.ok_or_else(|| Error::internal("a turn was taken and is not there"))?;
        self.recorded_reply(&request.key, recorded, request_digest).await
    }

    async fn replay_or_mismatch(
        &self,
        request: &PersistRequest,
        request_digest: Digest,
        expected: Version,
        tip: &Tip,
    ) -> Result<PersistReply, Error> {
        if let Some(recorded) = self.inner.meta.turn_of_request(&request.key, &request.request_id).await? {
            return self.recorded_reply(&request.key, recorded, request_digest).await;
        }
        metrics::counter!("turnkeep_version_conflicts_total").increment(1);
        Err(Error::VersionMismatch {
            session: request.key.session.clone(),
            expected,
            current: tip.head.version,
        })
    }

    async fn recorded_reply(
        &self,
        key: &SessionKey,
        recorded: RecordedTurn,
        request_digest: Digest,
    ) -> Result<PersistReply, Error> {
        check_retry(&recorded, request_digest)?;
        let mut reply: PersistReply = serde_json::from_str(&recorded.reply).map_err(|error| {
            Error::Internal { context: "recorded reply".to_owned(), source: Some(error.into()) }
        })?;
        if let Some(first) = reply.offloaded.first() {
            let branch = BranchKey { tenant: key.tenant.clone(), branch: recorded.turn.branch.clone() };
            let (first, last) = (first.seq, recorded.turn.last_seq);
            let at = Position::new(self.lineage(&branch).await?, recorded.turn, None);
            let entries = self.entries(key, &at, first, last, vec![]).await?;
            reply.changed = reply.changed_of(&entries);
        }
        Ok(reply)
    }
}

enum Attempt {
    Committed(Box<PersistReply>),
    /// The head is not as expected.
    Lost {
        object_first: bool,
    },
}

/// Checks that a request which finds its id used is the one that used it.
pub(super) fn check_retry(recorded: &RecordedTurn, request_digest: Digest) -> Result<(), Error> {
    if recorded.turn.request_digest != request_digest {
        return Err(Error::RequestIdReused { version: recorded.turn.version });
    }
    metrics::counter!("turnkeep_replayed_requests_total").increment(1);
    Ok(())
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

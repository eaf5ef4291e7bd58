//! Making a turn durable: in the journal or, if it is large, in a segment.

use super::draft::Draft;
use super::request::PersistReply;
use crate::engine::cache::CachedTip;
use crate::engine::{Engine, Error};
use crate::limits::{JOURNAL_SESSION_BYTES_MAX, JOURNAL_TURN_BYTES_MAX, OBJECT_FIRST_ATTEMPTS};
use crate::model::RequestId;
use crate::store::meta::{
    BranchKey, CommitOutcome, JournalRow, NewTurn, RecordedTurn, SessionKey, Tip, TurnEntries, TurnOutput,
};
use crate::store::{ErrorKind, StoreError};
use std::sync::atomic::Ordering;

pub(super) enum AttemptError {
    /// The session has used the request id.
    RequestIdTaken,
    /// The turn's outputs must be put again: their writer generation was fenced, or
    /// they name no tool and now could.
    OutputsOutdated,
    Failed(Error),
}

impl From<Error> for AttemptError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Engine {
    pub(super) async fn commit_journaled(
        &self,
        key: &SessionKey,
        tip: &Tip,
        draft: &Draft,
    ) -> Result<CommitOutcome, AttemptError> {
        let bytes = draft.body.len() + draft.held_bytes();
        check_held(draft, bytes)?;
        self.check_journal_room(key, tip, draft, bytes as u64).await?;
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
        self.commit(key, draft, draft.to_commit(key, tip, entries)?).await
    }

    /// Puts a segment with the turn and all journaled turns before it into the
    /// object store, and then commits the turn; falls back to the journal if the
    /// object store fails.
    pub(super) async fn commit_object_first(
        &self,
        key: &SessionKey,
        tip: &Tip,
        draft: &Draft,
    ) -> Result<CommitOutcome, AttemptError> {
        check_held(draft, draft.held_bytes())?;
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
                    let bytes = draft.body.len() + draft.held_bytes();
                    if self.inner.options.seal_every_turn || bytes > JOURNAL_TURN_BYTES_MAX {
                        return Err(error.into());
                    }
                    tracing::warn!(session = %key.session, error = %error, "large turn goes to the journal");
                    return self.commit_journaled(key, tip, draft).await;
                }
                Err(error) => return Err(error.into()),
            };
            if draft.held_bytes() > 0 {
                let added = (draft.held_bytes() as u64).saturating_sub(run.journal_bytes);
                self.check_journal_room(key, tip, draft, added).await?;
            }
            let generation = run.generation;
            let new = draft.to_commit(key, tip, TurnEntries::Segment(run))?;
            match self.commit(key, draft, new).await {
                Err(AttemptError::Failed(Error::Internal { source: Some(source), .. }))
                    if is_fenced(source.as_ref()) =>
                {
                    let meta = self.inner.meta.as_ref();
                    self.inner.generation.replace_fenced(meta, generation, self.now()).await?;
                    if draft.outputs.iter().any(|output| output.held.is_none()) {
                        return Err(AttemptError::OutputsOutdated);
                    }
                }
                outcome => return outcome,
            }
        }
        Err(Error::Contention { session: key.session.clone(), attempts: OBJECT_FIRST_ATTEMPTS }.into())
    }

    /// Commits and, if the outcome is not known, reads it back.
    async fn commit(
        &self,
        key: &SessionKey,
        draft: &Draft,
        new: NewTurn,
    ) -> Result<CommitOutcome, AttemptError> {
        let turn = &draft.turn;
        let put = draft.outputs.iter().filter(|output| output.held.is_none());
        let generations: Vec<_> = put.map(|output| output.generation).collect();
        let error = match self.inner.meta.commit_turn(new).await {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        match error.kind {
            ErrorKind::Duplicate => Err(AttemptError::RequestIdTaken),
            ErrorKind::Unknown => {
                metrics::counter!("turnkeep_unknown_commits_total").increment(1);
                tracing::warn!(session = %key.session, error = %error, "outcome of a commit is read back");
                match self.inner.meta.settle_turn(key, &turn.request_id).await {
                    Ok(Some(recorded)) if recorded.turn.receipt == turn.receipt => {
                        Ok(CommitOutcome::Committed)
                    }
                    Ok(Some(_)) => Err(AttemptError::RequestIdTaken),
                    Ok(None) => Ok(CommitOutcome::NotAsExpected),
                    Err(_) => Err(Error::OutcomeUnknown { source: error }.into()),
                }
            }
            ErrorKind::Contention => Ok(CommitOutcome::NotAsExpected),
            ErrorKind::Fenced if !generations.is_empty() => {
                for generation in generations {
                    let meta = self.inner.meta.as_ref();
                    self.inner.generation.replace_fenced(meta, generation, self.now()).await?;
                }
                Err(AttemptError::OutputsOutdated)
            }
            _ => Err(Error::from(error).into()),
        }
    }

    /// Fails if the request has made its turn already.
    pub(super) async fn check_new(
        &self,
        key: &SessionKey,
        request_id: &RequestId,
    ) -> Result<(), AttemptError> {
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
        added: u64,
    ) -> Result<(), AttemptError> {
        let bytes_after = |tip: &Tip| tip.head.journal_bytes.saturating_add(added);
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

    /// Brings the caches up to a turn that is durable now. Gives what its caller is told.
    pub(super) fn committed(&self, key: &SessionKey, cached: &CachedTip, draft: Draft) -> PersistReply {
        metrics::counter!("turnkeep_turns_total").increment(1);
        metrics::counter!("turnkeep_persisted_payload_bytes_total").increment(draft.turn.payload_bytes);
        for TurnOutput { output, .. } in &draft.outputs {
            metrics::counter!("turnkeep_outputs_total").increment(1);
            metrics::counter!("turnkeep_output_raw_bytes_total").increment(output.bytes);
        }
        let next = draft.next_tip(&cached.tip);
        let journal_raw = cached.journal_raw_bytes.load(Ordering::Relaxed) + draft.lines.len() as u64;
        let is_due = journal_raw >= self.inner.options.seal.raw_bytes;
        if is_due {
            let (tenant, branch) = (key.tenant.clone(), next.head.branch.clone());
            self.due_for_seal(BranchKey { tenant, branch });
        }
        let new = CachedTip::new(next, if is_due { 0 } else { journal_raw });
        self.extend_window(key, &new.tip, &draft.base, draft.entries.into_iter().zip(draft.messages));
        self.inner.caches.tips.insert(key.clone(), new);
        draft.reply
    }
}

/// Fails if the outputs of a turn that are to be held are more than one turn may
/// have in the metadata store, of which it has so many bytes there.
fn check_held(draft: &Draft, bytes: usize) -> Result<(), Error> {
    if draft.held_bytes() == 0 || bytes <= JOURNAL_TURN_BYTES_MAX {
        return Ok(());
    }
    let context = format!("put tool outputs, of which {bytes} bytes are too many to be held");
    Err(Error::of_objects(StoreError::new(ErrorKind::Unavailable, context)))
}

fn is_fenced(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    error.downcast_ref::<StoreError>().is_some_and(|error| error.kind == ErrorKind::Fenced)
}

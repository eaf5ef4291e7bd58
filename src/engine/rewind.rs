//! Taking a session back to an earlier version.

use super::persist::check_retry;
use super::{Engine, Error, SessionView};
use crate::codec::digest;
use crate::limits::{APPEND_ATTEMPTS, JOURNAL_SESSION_BYTES_MAX};
use crate::model::{Digest, RequestId, Turn, TurnKind, Version};
use crate::store::meta::{
    BranchKey, CommitOutcome, Expected, NewTurn, RecordedTurn, SealedRun, SessionKey, Tip, TurnEntries,
};
use crate::store::{ErrorKind, StoreError};
use bytes::Bytes;

/// A session to be taken back.
#[derive(Clone, Debug)]
pub struct RewindRequest {
    /// The session.
    pub key: SessionKey,
    /// The version to go back to.
    pub version: Version,
    /// The version that the session must have.
    pub expected_version: Option<Version>,
    /// The caller's key.
    pub request_id: RequestId,
}

impl RewindRequest {
    fn digest(&self) -> Digest {
        let expected = self.expected_version.map(|version| version.0);
        digest::sha256(format!("turnkeep rewind request v1\n{} {expected:?}", self.version).as_bytes())
    }
}

impl Engine {
    /// Takes a session back to an earlier version, as a new turn.
    pub async fn rewind_session(&self, request: RewindRequest) -> Result<SessionView, Error> {
        let engine = self.clone();
        self.detached(async move { engine.rewind_detached(request).await }).await
    }

    async fn rewind_detached(&self, request: RewindRequest) -> Result<SessionView, Error> {
        let key = &request.key;
        for _ in 0..APPEND_ATTEMPTS {
            let tip = self.tip(key, None).await?;
            if let Some(recorded) = self.inner.meta.turn_of_request(key, &request.request_id).await? {
                check_retry(&recorded, request.digest())?;
                return self.get_session(key).await;
            }
            if let Some(expected) = request.expected_version
                && expected != tip.head.version
            {
                let current = tip.head.version;
                return Err(Error::VersionMismatch { session: key.session.clone(), expected, current });
            }
            let base = self.recorded_turn(key, &tip, request.version).await?.turn;
            let mut new = self.rewind_turn(&request, &tip, &base).await?;
            let state = new.window_state.as_ref().map(|new| new.state.state.clone());
            let mut writer = None;
            if self.inner.options.seal_every_turn {
                let Some(run) = self.put_rewind(&new).await? else { continue };
                writer = Some(run.generation);
                new.entries = TurnEntries::Segment(run);
            }
            let outcome = self.inner.meta.commit_turn(new).await;
            self.inner.caches.forget(key);
            match outcome {
                Ok(CommitOutcome::Committed) => {
                    self.open_branch(key, state.as_ref()).await;
                    return self.written_session(key).await;
                }
                // The next round reads what came of it.
                Ok(CommitOutcome::NotAsExpected) => {}
                Err(error) if error.kind == ErrorKind::Duplicate => {}
                Err(source) if source.kind == ErrorKind::Unknown => {
                    match self.inner.meta.turn_of_request(key, &request.request_id).await {
                        Ok(Some(recorded)) => {
                            check_retry(&recorded, request.digest())?;
                            return self.written_session(key).await;
                        }
                        Ok(None) => {}
                        Err(_) => return Err(Error::OutcomeUnknown { source }),
                    }
                }
                Err(StoreError { kind: ErrorKind::Fenced, .. }) if let Some(writer) = writer => {
                    let meta = self.inner.meta.as_ref();
                    self.inner.generation.replace_fenced(meta, writer, self.now()).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Contention { session: key.session.clone(), attempts: APPEND_ATTEMPTS })
    }

    /// Puts a segment with the turn alone into the object store; nothing if the
    /// session is not as the turn expects any more.
    async fn put_rewind(&self, new: &NewTurn) -> Result<Option<SealedRun>, Error> {
        let branch = BranchKey { tenant: new.key.tenant.clone(), branch: new.turn.turn.branch.clone() };
        let turn = Some((new.turn.clone(), Bytes::new()));
        let run = Box::pin(self.put_run(&new.key, &branch, new.branch.as_ref(), turn)).await?;
        Ok(run.map(|(run, _)| run))
    }

    async fn rewind_turn(&self, request: &RewindRequest, tip: &Tip, base: &Turn) -> Result<NewTurn, Error> {
        let key = &request.key;
        let branch = self.rewound_branch(key, tip, base).await?;
        let window_state = self.state_of_branch((key, tip), base, key, &branch).await?;
        let mut turn = Turn {
            branch: branch.id.clone(),
            version: branch.first_version,
            kind: TurnKind::Rewind,
            base_version: base.version,
            first_seq: base.last_seq.next(),
            last_seq: base.last_seq,
            request_id: request.request_id.clone(),
            request_digest: request.digest(),
            entries_digest: digest::of_entries([]),
            receipt: Digest::default(),
            prefix_digest: base.prefix_digest,
            calls: base.calls.clone(),
            tokens: 0,
            log_tokens: base.log_tokens,
            payload_bytes: 0,
            usage: None,
            score: None,
            step_kind: String::new(),
            created_at: branch.created_at,
        };
        turn.receipt = digest::of_turn(base.receipt, &turn);
        Ok(NewTurn {
            key: key.clone(),
            expected: Expected::unchanged(tip),
            turn: RecordedTurn { turn, reply: "{}".to_owned() },
            entries: TurnEntries::None,
            branch: Some(branch),
            window_state,
            revise_window: false,
            journal_bytes_max: JOURNAL_SESSION_BYTES_MAX,
            outputs: vec![],
        })
    }
}

//! Taking a session back to an earlier version.

use super::persist::check_retry;
use super::{Engine, Error, SessionView};
use crate::codec::digest;
use crate::limits::{APPEND_ATTEMPTS, JOURNAL_SESSION_BYTES_MAX};
use crate::model::{Digest, RequestId, Turn, TurnKind, Version};
use crate::store::ErrorKind;
use crate::store::meta::{CommitOutcome, Expected, NewTurn, RecordedTurn, SessionKey, Tip, TurnEntries};

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
            let new = self.rewind_turn(&request, &tip, &base).await?;
            let outcome = self.inner.meta.commit_turn(new).await;
            self.inner.caches.forget(key);
            match outcome {
                Ok(CommitOutcome::Committed) => return self.get_session(key).await,
                Ok(CommitOutcome::NotAsExpected) => {}
                // The next round reads what came of it.
                Err(error) if matches!(error.kind, ErrorKind::Duplicate | ErrorKind::Unknown) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Contention { session: key.session.clone(), attempts: APPEND_ATTEMPTS })
    }

    async fn rewind_turn(&self, request: &RewindRequest, tip: &Tip, base: &Turn) -> Result<NewTurn, Error> {
        let branch = self.rewound_branch(&request.key, tip, base).await?;
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
            key: request.key.clone(),
            expected: Expected::unchanged(tip),
            turn: RecordedTurn { turn, reply: "{}".to_owned() },
            entries: TurnEntries::None,
            branch: Some(branch),
            revise_window: false,
            journal_bytes_max: JOURNAL_SESSION_BYTES_MAX,
        })
    }
}

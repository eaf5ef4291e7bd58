//! Forking a session: a new one whose log begins with another's.

use super::persist::check_retry;
use super::{Engine, Error, SessionView, sessions};
use crate::codec::digest;
use crate::model::{
    Branch, Digest, ForkOrigin, Labels, Preamble, RequestId, Session, SessionId, Turn, TurnKind, Version,
    WindowState,
};
use crate::store::meta::{BranchKey, CreateOutcome, NewSession, RecordedTurn, SessionKey, Tip};

/// A fork to be made.
#[derive(Clone, Debug)]
pub struct ForkRequest {
    /// The source session.
    pub source: SessionKey,
    /// The version of the source; the newest if not given.
    pub version: Option<Version>,
    /// Id of the new session; minted if not given.
    pub session: Option<SessionId>,
    /// Labels of the new session.
    pub labels: Labels,
    /// The caller's key.
    pub request_id: RequestId,
}

impl ForkRequest {
    fn digest(&self) -> Digest {
        let Self { source, version, labels, .. } = self;
        let version = version.map(|version| version.0);
        digest::sha256(
            format!("turnkeep fork request v1\n{} {version:?} {labels:?}", source.session).as_bytes(),
        )
    }

    /// The new session's id: a minted one follows from the request, so that a
    /// repetition finds the session that the first call made.
    fn session(&self) -> Result<SessionId, Error> {
        if let Some(session) = &self.session {
            return Ok(session.clone());
        }
        let of =
            digest::sha256(format!("{}/{}", self.source.session, self.request_id).as_bytes()).to_string();
        let id = of.get(..32).unwrap_or(&of);
        SessionId::parse(&format!("fork-{id}")).map_err(|_| Error::internal("mint a session id"))
    }
}

impl Engine {
    /// Creates a session whose log begins with another's, up to a version.
    pub async fn fork_session(&self, request: ForkRequest) -> Result<SessionView, Error> {
        sessions::check_labels(&request.labels)?;
        let engine = self.clone();
        self.detached(async move { engine.fork_detached(request).await }).await
    }

    async fn fork_detached(&self, request: ForkRequest) -> Result<SessionView, Error> {
        let key = SessionKey { tenant: request.source.tenant.clone(), session: request.session()? };
        let refusal = match self.make_fork(&request, &key).await {
            Ok((CreateOutcome::Created, state)) => {
                self.open_branch(&key, state.as_ref()).await;
                self.seal_fork(&request, &key).await?;
                return self.written_session(&key).await;
            }
            Ok((CreateOutcome::Taken { deleted }, _)) => {
                Error::SessionExists { session: key.session.clone(), deleted }
            }
            // The source may have gone since the first call.
            Ok((CreateOutcome::SourceGone, _)) | Err(Error::SessionNotFound { .. }) => {
                Error::SessionNotFound { session: request.source.session.clone() }
            }
            Err(error) => return Err(error),
        };
        match self.inner.meta.turn_of_request(&key, &request.request_id).await? {
            Some(recorded) if recorded.turn.kind == TurnKind::Fork => {
                check_retry(&recorded, request.digest())?;
                self.seal_fork(&request, &key).await?;
                match self.get_session(&key).await {
                    Err(Error::SessionNotFound { .. }) => Err(refusal),
                    made => made,
                }
            }
            _ => Err(refusal),
        }
    }

    /// Puts the turn of a fork that is made into the object store, if each is to
    /// be there before it is acknowledged. Were it put first, then its blob could
    /// be left behind under the id of another session.
    async fn seal_fork(&self, request: &ForkRequest, key: &SessionKey) -> Result<(), Error> {
        if !self.inner.options.seal_every_turn {
            return Ok(());
        }
        let made = self.inner.meta.turn_of_request(key, &request.request_id).await?;
        let Some(RecordedTurn { turn, .. }) = made else { return Ok(()) };
        let branch = BranchKey { tenant: key.tenant.clone(), branch: turn.branch };
        match Box::pin(self.seal_up_to(&branch, turn.version)).await {
            // The fork is there, which is not what a refusal says; a repetition
            // puts it.
            Err(Error::Unavailable { source: Some(source), .. }) => Err(Error::OutcomeUnknown { source }),
            sealed => sealed,
        }
    }

    /// Creates the session; beside the outcome, the window state that it begins with.
    async fn make_fork(
        &self,
        request: &ForkRequest,
        key: &SessionKey,
    ) -> Result<(CreateOutcome, Option<WindowState>), Error> {
        let tip = self.tip(&request.source, None).await?;
        let base = match request.version {
            None => tip.turn.clone(),
            Some(version) => self.recorded_turn(&request.source, &tip, version).await?.turn,
        };
        let new = self.new_fork(request, key, &tip, &base).await?;
        let state = new.opening.as_ref().map(|opening| opening.state.clone());
        Ok((self.inner.meta.create_session(new).await?, state))
    }

    async fn new_fork(
        &self,
        request: &ForkRequest,
        key: &SessionKey,
        tip: &Tip,
        base: &Turn,
    ) -> Result<NewSession, Error> {
        let parent = BranchKey { tenant: key.tenant.clone(), branch: base.branch.clone() };
        self.lineage_to_extend(&parent).await?;
        let now = self.now();
        let branch = Branch {
            id: self.new_branch_id()?,
            session: key.session.clone(),
            parent: Some(base.branch.clone()),
            base_version: base.version,
            base_seq: base.last_seq,
            first_version: base.version.next(),
            sealed_seq: base.last_seq,
            sealed_version: base.version,
            created_at: now,
        };
        let mut turn = Turn {
            branch: branch.id.clone(),
            version: branch.first_version,
            kind: TurnKind::Fork,
            base_version: base.version,
            first_seq: base.last_seq.next(),
            request_id: request.request_id.clone(),
            request_digest: request.digest(),
            entries_digest: digest::of_entries([]),
            tokens: 0,
            payload_bytes: 0,
            usage: None,
            score: None,
            step_kind: String::new(),
            created_at: now,
            ..base.clone()
        };
        turn.receipt = digest::of_turn(base.receipt, &turn);
        let session = Session {
            id: key.session.clone(),
            labels: request.labels.clone(),
            forked_from: Some(ForkOrigin { session: request.source.session.clone(), version: base.version }),
            continued_from: None,
            created_at: now,
            ..tip.session.clone()
        };
        // The source's preamble of that version is the fork's from its start.
        let preamble = self.inner.meta.preamble(&request.source, base.version).await?;
        let preamble =
            preamble.map(|preamble| Preamble { revision: 1, since_version: Version(0), ..preamble });
        let opening = self.state_of_branch((&request.source, tip), base, key, &branch).await?;
        let window_state = opening.as_ref().map_or((0, 0), |new| (new.state.number, new.window_offset));
        Ok(NewSession {
            tenant: key.tenant.clone(),
            session,
            branch,
            turn: RecordedTurn { turn, reply: "{}".to_owned() },
            preamble,
            source: Some((request.source.session.clone(), base.branch.clone())),
            window_state,
            opening: opening.map(|new| new.state),
            calibration: tip.head.calibration.clone(),
        })
    }
}

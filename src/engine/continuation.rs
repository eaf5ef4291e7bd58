//! Continuing a session: a new one with an empty log, and the pins and notes of another.

use super::leaving::give_way;
use super::pins::over_budget;
use super::sessions::new_preamble;
use super::{Engine, Error, SessionConfig, SessionView};
use crate::model::{
    ForkOrigin, Labels, Pin, Preamble, RecordedState, Seq, Session, StateKind, StateRecord, Version,
    WindowState, WireFormat,
};
use crate::store::meta::{CreateOutcome, NewSession, SessionKey, Tip};
use crate::tokens::TokenCounter;
use crate::window::Assembler;
use std::sync::Arc;

/// The field of a request that names the source.
const FIELD: &str = "continue_from";

impl Engine {
    /// Creates a session with an empty log and the pins and notes of `source`. Without a
    /// configuration it has the source's, but for its labels.
    pub async fn continue_session(
        &self,
        key: SessionKey,
        source: SessionKey,
        config: Option<SessionConfig>,
    ) -> Result<SessionView, Error> {
        let engine = self.clone();
        self.detached(async move { engine.continue_detached(key, source, config).await }).await
    }

    async fn continue_detached(
        &self,
        key: SessionKey,
        source: SessionKey,
        config: Option<SessionConfig>,
    ) -> Result<SessionView, Error> {
        let tip = self.tip(&source, None).await?;
        let (mut session, preamble) = match config {
            Some(config) => self.configured(&key, config).map_err(|error| error.within("session"))?,
            None => self.configured_as(&key, &source, &tip).await?,
        };
        let origin = ForkOrigin { session: source.session.clone(), version: tip.head.version };
        session.continued_from = Some(origin);
        let mut new = self.new_session(&key, session, preamble)?;
        new.source = Some((source.session.clone(), tip.head.branch.clone()));
        if let Some(state) = self.carried(&source, &tip, &new).await? {
            let tokens = i64::try_from(state.record.tokens_after).unwrap_or(i64::MAX);
            new.window_state = (state.number, tokens);
            new.opening = Some(state);
        }
        match self.inner.meta.create_session(new).await? {
            CreateOutcome::Created => self.written_session(&key).await,
            CreateOutcome::Taken { deleted } => Err(Error::SessionExists { session: key.session, deleted }),
            CreateOutcome::SourceGone => Err(Error::SessionNotFound { session: source.session }),
        }
    }

    /// A new session that is configured as another is now, and its preamble.
    async fn configured_as(
        &self,
        key: &SessionKey,
        source: &SessionKey,
        tip: &Tip,
    ) -> Result<(Session, Option<Preamble>), Error> {
        let session = Session {
            id: key.session.clone(),
            labels: Labels::new(),
            forked_from: None,
            has_other_counts: false,
            created_at: self.now(),
            ..tip.session.clone()
        };
        let preamble = match tip.head.preamble_revision {
            0 => None,
            revision => {
                let old = self.preamble(source, revision, tip.head.version).await?;
                // It is counted again: the source may have changed its tokenizer since.
                Some(new_preamble(&session, old.payload.clone(), 1, Version(0))?)
            }
        };
        Ok((session, preamble))
    }

    /// The window state that a session begins with: the pins and the names of the notes
    /// of its source. Nothing if there are none.
    async fn carried(
        &self,
        source: &SessionKey,
        tip: &Tip,
        new: &NewSession,
    ) -> Result<Option<RecordedState>, Error> {
        let at = self.newest(source, tip).await?;
        let state = self.state_at(source, tip, &at).await?.state;
        // What they were found in is not in the new log; that they may give way stays.
        let found = |pin: &Pin| Pin { seq: pin.seq.map(|_| Seq(0)), ..pin.clone() };
        let mut pins: Vec<_> = state.pins.iter().map(found).collect();
        let session = &new.session;
        if session.format == WireFormat::Opaque && !pins.is_empty() {
            let problem = "has pins, which cannot be shown in a session of opaque entries";
            return Err(Error::invalid(FIELD, problem));
        }
        let options = &self.inner.options.compaction;
        let room = options.pins_budget(session.profile.room(None, 0));
        let counter = TokenCounter::new(session.format, session.tokenizer());
        give_way(&mut pins, room, &|text| counter.count_text(text));
        if let Some((tokens, budget)) = over_budget(session, room, &pins) {
            let problem = format!(
                "has pins of {tokens} tokens; at most {budget}, {} % of the usable window, are allowed in \
                 the new session",
                options.pins_percent
            );
            return Err(Error::invalid(FIELD, problem));
        }
        let notes = self.note_names(source).await?;
        if pins.is_empty() && notes.is_empty() {
            return Ok(None);
        }
        let state = WindowState { pins, notes, ..WindowState::default() };
        let assembler = Assembler::with_state(session.format, counter, Arc::new(state.clone()), vec![]);
        let record = StateRecord {
            tokens_after: assembler.window(false).tokens(),
            cause: format!("continues {}", source.session.resource_name()),
            ..StateRecord::default()
        };
        Ok(Some(RecordedState {
            branch: new.branch.id.clone(),
            number: 1,
            version: new.turn.turn.version,
            kind: StateKind::Pins,
            state,
            record,
            created_at: session.created_at,
        }))
    }
}

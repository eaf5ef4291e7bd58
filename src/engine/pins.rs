//! Pins: literals that every window of a session shows.

use super::compact::{Proposal, difference};
use super::leaving::give_way;
use super::log::Position;
use super::notes::check_name;
use super::{Engine, Error};
use crate::limits::{OPENING_ENTRIES_MAX, PIN_BYTES_MAX, PINS_MAX};
use crate::model::{
    Branch, Pin, RecordedState, Seq, Session, StateKind, StateRecord, Turn, WindowState, WireFormat,
};
use crate::store::meta::{BranchKey, NewWindowState, SessionKey, Tip};
use crate::tokens::TokenCounter;
use crate::window::{Assembler, opening};
use std::sync::Arc;

impl Engine {
    /// Pins a text, or another in place of that of the same name.
    pub async fn put_pin(&self, key: &SessionKey, pin: Pin) -> Result<Pin, Error> {
        check(&pin)?;
        // Only what was found by code may give way or go with the entry that said it.
        let pin = Pin { seq: None, ..pin };
        let (engine, key) = (self.clone(), key.clone());
        self.detached(async move {
            engine
                .revise_pins(&key, |pins| {
                    match pins.iter_mut().find(|other| other.name == pin.name) {
                        Some(other) => *other = pin.clone(),
                        None => pins.push(pin.clone()),
                    }
                    Ok(())
                })
                .await?;
            Ok(pin)
        })
        .await
    }

    /// Unpins a text.
    pub async fn delete_pin(&self, key: &SessionKey, name: &str) -> Result<(), Error> {
        let (engine, key, name) = (self.clone(), key.clone(), name.to_owned());
        self.detached(async move {
            engine
                .revise_pins(&key, |pins| {
                    let before = pins.len();
                    pins.retain(|pin| pin.name != name);
                    if pins.len() == before {
                        return Err(Error::invalid("name", "is not the name of a pin of the session"));
                    }
                    Ok(())
                })
                .await
        })
        .await
    }

    /// A session's pins, in the order in which windows show them.
    pub async fn list_pins(&self, key: &SessionKey) -> Result<Vec<Pin>, Error> {
        let tip = self.tip(key, None).await?;
        let at = self.newest(key, &tip).await?;
        Ok(self.state_at(key, &tip, &at).await?.state.pins.clone())
    }

    /// The window state that a branch of `key` begins with, whose log is that of `source` up
    /// to the turn `base`: the state of then, with the pins that `source` has now, but for
    /// those that were found in what the branch does not have, and the names of its notes.
    /// Nothing if there is nothing of it. The log is not read for it.
    pub(super) async fn state_of_branch(
        &self,
        (source, tip): (&SessionKey, &Tip),
        base: &Turn,
        key: &SessionKey,
        branch: &Branch,
    ) -> Result<Option<NewWindowState>, Error> {
        let (number, notes) = (tip.head.window_state, self.note_names(source).await?);
        if number == 0 && notes.is_empty() {
            return Ok(None);
        }
        let mut pins = self.newest_recorded(source, tip).await?.pins.clone();
        pins.retain(|pin| pin.seq.is_none_or(|seq| seq <= base.last_seq));
        let of_base = BranchKey { tenant: source.tenant.clone(), branch: base.branch.clone() };
        let at = Position::new(self.lineage(&of_base).await?, base.clone(), Some(tip));
        let (before, offset) = match self.states_before(source, &at, u64::MAX, 1).await?.pop() {
            None => (WindowState::default(), 0),
            Some(recorded) if recorded.number == number => (recorded.state, tip.head.window_offset),
            Some(recorded) => {
                let log = self.recorded_turn(source, tip, recorded.version).await?.turn.log_tokens;
                (recorded.state, difference(recorded.record.tokens_after, log))
            }
        };
        let state = WindowState { pins, notes, calibration: tip.head.calibration.clone(), ..before.clone() };
        let counter = TokenCounter::new(tip.session.format, tip.session.tokenizer());
        // Pins and notes stand together, whatever else there is.
        let tokens = |state: &WindowState| {
            let state = Arc::new(WindowState { cut: None, ..state.clone() });
            Assembler::with_state(tip.session.format, counter, state, vec![]).window(false).tokens()
        };
        let window_offset = offset.saturating_add(difference(tokens(&state), tokens(&before)));
        let record = StateRecord {
            tokens_before: tip.head.window_tokens(tip.turn.log_tokens),
            tokens_after: base.log_tokens.saturating_add_signed(window_offset),
            ..StateRecord::default()
        };
        let state = RecordedState {
            branch: branch.id.clone(),
            number: number + 1,
            version: branch.first_version,
            kind: StateKind::Rewind,
            state,
            record,
            created_at: branch.created_at,
        };
        Ok(Some(NewWindowState { key: key.clone(), state, window_offset }))
    }

    async fn revise_pins(
        &self,
        key: &SessionKey,
        change: impl Fn(&mut Vec<Pin>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.revise_window(key, |tip, assembled| {
            if tip.session.format == WireFormat::Opaque {
                return Err(Error::invalid("pin", "cannot be shown in a session of opaque entries"));
            }
            let mut state = WindowState::clone(&assembled.state);
            change(&mut state.pins)?;
            if state.pins == assembled.state.pins {
                return Ok(None);
            }
            let budget = self.inner.options.compaction.pins_budget(tip.room());
            let grows = state.pins.len() >= assembled.state.pins.len();
            let mut unpinned = Vec::new();
            if grows {
                let counter = TokenCounter::new(tip.session.format, tip.session.tokenizer());
                unpinned = give_way(&mut state.pins, budget, &|text| counter.count_text(text));
            }
            if let Some((tokens, budget)) = over_budget(&tip.session, budget, &state.pins).filter(|_| grows) {
                let problem = format!("would make pins of {tokens} tokens; at most {budget} are allowed");
                return Err(Error::invalid("pin.text", problem));
            }
            if state.pins.len() > PINS_MAX {
                return Err(Error::invalid("pin", format!("is one more than the {PINS_MAX} allowed")));
            }
            let (kind, cause) = (StateKind::Pins, String::new());
            Ok(Some(Proposal { unpinned, ..Proposal::keeping_all(kind, state, cause) }))
        })
        .await
        .map(drop)
    }

    /// After one of the first turns of a session that had pins or notes before: lets
    /// these come after the system entries with which the log begins. A failure leaves
    /// the window as it is.
    pub(super) async fn open_window(&self, key: &SessionKey) {
        let Some(cached) = self.inner.caches.tips.get(key) else { return };
        if cached.tip.head.window_state > 0 && cached.tip.turn.first_seq <= Seq(OPENING_ENTRIES_MAX) {
            self.open_window_of(key).await;
        }
    }

    /// The same after a rewind or fork, if the window state of that log is of before it had
    /// pins or notes.
    pub(super) async fn open_branch(&self, key: &SessionKey, state: Option<&WindowState>) {
        if state.is_some_and(|state| state.cut.is_none() && state.shows_memory()) {
            self.open_window_of(key).await;
        }
    }

    async fn open_window_of(&self, key: &SessionKey) {
        let opened = self.revise_window(key, |_, assembled| {
            let is_open = assembled.state.cut.is_some() || !assembled.state.shows_memory();
            let cut = opening(&assembled.assembler.window(false)).filter(|_| !is_open);
            Ok(cut.map(|cut| {
                let state = WindowState { cut: Some(cut), ..WindowState::clone(&assembled.state) };
                Proposal::keeping_all(StateKind::Pins, state, String::new())
            }))
        });
        if let Err(error) = opened.await {
            tracing::warn!(session = %key.session, error = %error, "a window was not opened");
        }
    }
}

/// The tokens of a session's pins, and those that they may take, if the former are more.
pub(super) fn over_budget(session: &Session, budget: Option<u64>, pins: &[Pin]) -> Option<(u64, u64)> {
    let counter = TokenCounter::new(session.format, session.tokenizer());
    let tokens: u64 = pins.iter().map(|pin| counter.count_text(&pin.text)).sum();
    let budget = budget?;
    (tokens > budget).then_some((tokens, budget))
}

fn check(pin: &Pin) -> Result<(), Error> {
    check_name("pin.name", &pin.name)?;
    if pin.text.trim().is_empty() || pin.text.len() > PIN_BYTES_MAX {
        let problem =
            format!("has {} bytes; 1 to {PIN_BYTES_MAX} are allowed, not all blank", pin.text.len());
        return Err(Error::invalid("pin.text", problem));
    }
    Ok(())
}

//! Pins: literals that every window of a session shows.

use super::compact::Proposal;
use super::leaving::give_way;
use super::notes::check_name;
use super::{Engine, Error};
use crate::limits::{OPENING_ENTRIES_MAX, PIN_BYTES_MAX, PINS_MAX};
use crate::model::{Pin, RecordedState, Seq, Session, StateKind, Version, WindowState, WireFormat};
use crate::store::meta::{BranchKey, SessionKey, Tip};
use crate::tokens::TokenCounter;
use crate::window::opening;

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

    /// The session's newest state of all, on whatever branch it was recorded.
    async fn newest_of_session(&self, key: &SessionKey, number: u64) -> Result<Option<RecordedState>, Error> {
        let own = self.inner.meta.branches_of_session(key).await?;
        let root =
            own.first().map(|branch| BranchKey { tenant: key.tenant.clone(), branch: branch.id.clone() });
        for branch in own.iter().rev() {
            let branch = BranchKey { tenant: key.tenant.clone(), branch: branch.id.clone() };
            let newest = Version(i64::MAX.unsigned_abs());
            if let Some(found) = self.inner.meta.window_states(&branch, newest, u64::MAX, 1).await?.pop() {
                return Ok(Some(found));
            }
        }
        // A fork that recorded none has its source's.
        let Some(root) = root else { return Ok(None) };
        for span in self.lineage(&root).await?.spans().iter().rev() {
            let branch = BranchKey { tenant: key.tenant.clone(), branch: span.branch.clone() };
            let last = span.last_version.unwrap_or(Version(i64::MAX.unsigned_abs()));
            let before = number.saturating_add(1);
            if let Some(found) = self.inner.meta.window_states(&branch, last, before, 1).await?.pop() {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// After a rewind or fork: records the state that the log has now, with the pins
    /// that `source` has, but for those that were found in what it does not have, and
    /// the names of its notes. A failure leaves the window of that version, with the
    /// pins of its time.
    pub(super) async fn carry_pins(&self, source: &SessionKey, number: u64, key: &SessionKey) {
        let carried = async {
            if number == 0 && self.note_names(key).await?.is_empty() {
                return Ok(None);
            }
            let newest = self.newest_of_session(source, number).await?;
            // The source may be gone, and with it what it pinned since.
            if newest.is_none() && number > 0 {
                return Ok(None);
            }
            let pins = newest.map(|found| found.state.pins).unwrap_or_default();
            self.revise_window(key, |tip, assembled| {
                let mut state = WindowState::clone(&assembled.state);
                state.pins.clone_from(&pins);
                state.pins.retain(|pin| pin.seq.is_none_or(|seq| seq <= tip.turn.last_seq));
                let (kind, cause) = (StateKind::Rewind, String::new());
                Ok(Some(Proposal::keeping_all(kind, state, cause)))
            })
            .await
        };
        if let Err(error) = carried.await {
            tracing::warn!(session = %key.session, error = %error, "pins were not carried over");
        }
    }

    /// As [`Self::carry_pins`], if that was cut off: the branch that the session is on has
    /// no state of its own.
    pub(super) async fn carry_pins_if_cut_off(&self, source: &SessionKey, key: &SessionKey) {
        let missing = async {
            let tip = self.tip(key, None).await?;
            let branch = BranchKey { tenant: key.tenant.clone(), branch: tip.head.branch.clone() };
            let newest = Version(i64::MAX.unsigned_abs());
            let own = self.inner.meta.window_states(&branch, newest, u64::MAX, 1).await?;
            Ok::<_, Error>((own.is_empty() && tip.branch.parent.is_some()).then_some(tip.head.window_state))
        };
        match missing.await {
            Ok(Some(number)) => self.carry_pins(source, number, key).await,
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(session = %key.session, error = %error, "pins were not looked after");
            }
        }
    }

    /// After the first turn that follows a rewind: carries the pins over if that was cut
    /// off.
    pub(super) async fn mend_rewind(&self, key: &SessionKey) {
        let Some(cached) = self.inner.caches.tips.get(key) else { return };
        let Tip { session, head, branch, turn, .. } = &cached.tip;
        let is_first = turn.version == branch.first_version.next() && branch.parent.is_some();
        let is_fork =
            session.forked_from.as_ref().is_some_and(|of| of.version.next() == branch.first_version);
        if is_first && !is_fork && head.window_state > 0 {
            self.carry_pins_if_cut_off(key, key).await;
        }
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
        if cached.tip.head.window_state == 0 || cached.tip.turn.first_seq > Seq(OPENING_ENTRIES_MAX) {
            return;
        }
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

//! The window state that a version of a log has.

use super::compact::Proposal;
use super::log::Position;
use super::{Engine, Error};
use crate::limits::WINDOW_STATES_PAGE;
use crate::model::{RecordedState, StateKind, Version, WindowState};
use crate::store::meta::{BranchKey, SessionKey, Tip};
use crate::window::opening;
use std::sync::Arc;

/// A window state with its number; that of a session without any has 0.
#[derive(Clone, Debug, Default)]
pub(super) struct StateAt {
    pub(super) number: u64,
    pub(super) state: Arc<WindowState>,
}

impl StateAt {
    pub(super) fn new(recorded: RecordedState) -> Self {
        Self { number: recorded.number, state: Arc::new(recorded.state) }
    }
}

impl Engine {
    /// The window state of a version: the newest that was recorded up to it.
    pub(super) async fn state_at(
        &self,
        key: &SessionKey,
        tip: &Tip,
        at: &Position,
    ) -> Result<StateAt, Error> {
        if tip.head.window_state == 0 {
            return Ok(StateAt::default());
        }
        Ok(self.newest_state(key, at, u64::MAX).await?.map(StateAt::new).unwrap_or_default())
    }

    /// The window state of that number, if the log has it.
    pub(super) async fn state_numbered(
        &self,
        key: &SessionKey,
        at: &Position,
        number: u64,
    ) -> Result<Option<RecordedState>, Error> {
        let found = self.newest_state(key, at, number.saturating_add(1)).await?;
        Ok(found.filter(|found| found.number == number))
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
    /// that `source` has, but for those that were found in what it does not have. A
    /// failure leaves the window of that version, with the pins of its time.
    pub(super) async fn carry_pins(&self, source: &SessionKey, number: u64, key: &SessionKey) {
        if number == 0 {
            return;
        }
        let carried = async {
            let pins = self.newest_of_session(source, number).await?.map(|found| found.state.pins);
            let pins = pins.unwrap_or_default();
            self.revise_window(key, |tip, assembled| {
                let mut state = WindowState::clone(&assembled.state);
                state.pins.clone_from(&pins);
                state.pins.retain(|pin| pin.seq.is_none_or(|seq| seq <= tip.turn.last_seq));
                if state.cut.is_none() && !state.pins.is_empty() {
                    state.cut = opening(&assembled.assembler.window(false));
                }
                let (kind, cause) = (StateKind::Rewind, String::new());
                Ok(Some(Proposal::keeping_all(kind, state, cause)))
            })
            .await
        };
        if let Err(error) = carried.await {
            tracing::warn!(session = %key.session, error = %error, "pins were not carried over");
        }
    }

    /// The newest state of a log with a number under `before`.
    async fn newest_state(
        &self,
        key: &SessionKey,
        at: &Position,
        before: u64,
    ) -> Result<Option<RecordedState>, Error> {
        Ok(self.states_before(key, at, before, 1).await?.pop())
    }

    /// States of a log with numbers under `before`, the newest first.
    pub(super) async fn states_before(
        &self,
        key: &SessionKey,
        at: &Position,
        before: u64,
        limit: u32,
    ) -> Result<Vec<RecordedState>, Error> {
        let mut found: Vec<RecordedState> = Vec::new();
        for span in at.lineage.spans().iter().rev() {
            let left =
                limit.min(WINDOW_STATES_PAGE).saturating_sub(u32::try_from(found.len()).unwrap_or(limit));
            if left == 0 {
                break;
            }
            let branch = BranchKey { tenant: key.tenant.clone(), branch: span.branch.clone() };
            let last = span.last_version.unwrap_or(at.turn.version).min(at.turn.version);
            found.extend(self.inner.meta.window_states(&branch, last, before, left).await?);
        }
        Ok(found)
    }
}

//! The window state that a version of a log has.

use super::log::Position;
use super::{Engine, Error};
use crate::limits::WINDOW_STATES_PAGE;
use crate::model::{RecordedState, WindowState};
use crate::store::meta::{BranchKey, SessionKey, Tip};
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

    /// The newest window state of a session.
    pub(super) async fn newest_recorded(
        &self,
        key: &SessionKey,
        tip: &Tip,
    ) -> Result<Arc<WindowState>, Error> {
        let at = self.newest(key, tip).await?;
        Ok(self.state_at(key, tip, &at).await?.state)
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

//! Whether compactions still bring a session's window relief. Where what must stay takes
//! the room, each summary would be followed by the next, and none would help.

use super::compact::Strategy;
use super::restore::Assembled;
use super::{Engine, Error};
use crate::limits::{RELIEF_PERCENT, UNRELIEVED_MAX};
use crate::model::{CompressionPath, Session, StateKind, Unrelieved, WindowState, percent};
use crate::store::meta::{SessionKey, Tip};
use crate::window::{Window, atoms};

/// That a window stays over what asks for compactions, and what takes the room, in
/// counted tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stall {
    /// Summaries and extracts in a row that brought no relief.
    pub compactions: u32,
    /// What window and preamble were to take at most.
    pub limit_tokens: u64,
    /// Tokens of the window that was left,
    pub window_tokens: u64,
    /// of these, those of the newest step,
    pub last_step_tokens: u64,
    /// and, beside it, those of the preamble.
    pub preamble_tokens: u64,
}

impl Engine {
    /// What is known, after a change of a window, of compactions that brought no relief.
    /// `state` has what was known before it.
    pub(super) fn unrelieved(
        &self,
        tip: &Tip,
        (kind, state): (StateKind, &WindowState),
        tokens_before: u64,
        window: &Window<'_>,
    ) -> Option<Unrelieved> {
        let known = state.unrelieved;
        let tokens = window.tokens();
        let limit = self.inner.options.compaction.summary_limit(tip.room()?);
        let is_over = tokens.saturating_add(tip.head.preamble_tokens) > limit;
        match kind {
            StateKind::Summarize | StateKind::Collapse => is_over.then(|| Unrelieved {
                in_a_row: known.map_or(0, |known| known.in_a_row).saturating_add(1),
                tokens,
                last: last_step(window),
            }),
            StateKind::Snip | StateKind::Truncate => known.filter(|_| is_over),
            // As if there had been as many pins as there are now.
            StateKind::Pins => known.map(|known| Unrelieved {
                tokens: known.tokens.saturating_add(tokens).saturating_sub(tokens_before),
                ..known
            }),
            StateKind::Undo | StateKind::Rewind | StateKind::Calibrate => known,
        }
    }

    /// Why no model is asked by itself for a summary of a window that takes so many
    /// tokens: the last ones brought no relief, and nothing has changed since that would
    /// let the next one. Nothing if one may be.
    pub(super) fn stall(
        &self,
        session: &Session,
        preamble_tokens: u64,
        state: &WindowState,
        tokens: u64,
    ) -> Option<Stall> {
        let found = state.unrelieved.filter(|found| found.in_a_row >= UNRELIEVED_MAX)?;
        let room = session.room(state.calibration.as_ref(), None, 0)?;
        let limit_tokens = self.inner.options.compaction.summary_limit(room);
        let would_be_over = found.tokens.saturating_add(preamble_tokens) > limit_tokens;
        // Whatever came since could leave, and the step that was the newest then.
        let before = found.tokens.saturating_sub(found.last);
        let grown = tokens.saturating_sub(before);
        let has_grown = tokens > found.tokens && grown >= percent(room.usable(), RELIEF_PERCENT);
        let is_stalled = session.path == CompressionPath::Interactive && would_be_over && !has_grown;
        is_stalled.then_some(Stall {
            compactions: found.in_a_row,
            limit_tokens,
            window_tokens: found.tokens,
            last_step_tokens: found.last,
            preamble_tokens,
        })
    }

    /// The same of the newest window, assembled.
    pub(super) fn stall_of(&self, tip: &Tip, assembled: &Assembled) -> Option<Stall> {
        let tokens = assembled.assembler.window(false).tokens();
        self.stall(&tip.session, tip.head.preamble_tokens, &assembled.state, tokens)
    }

    /// The same of the window after a turn with which the log has so many tokens. What a
    /// turn is told must not be what makes it fail.
    pub(super) async fn stall_after(&self, key: &SessionKey, tip: &Tip, log_tokens: u64) -> Option<Stall> {
        let tokens = tip.head.window_tokens(log_tokens);
        let limit = self.inner.options.compaction.summary_limit(tip.room()?);
        let is_over = tokens.saturating_add(tip.head.preamble_tokens) > limit;
        if tip.head.window_state == 0 || tip.session.path != CompressionPath::Interactive || !is_over {
            return None;
        }
        let live = self.inner.caches.windows.get(key);
        let known = live.and_then(|live| {
            let assembled = live.lock();
            assembled.is_of(&tip.head).then(|| assembled.state.clone())
        });
        let state = match known {
            Some(state) => state,
            None => match self.newest_recorded(key, tip).await {
                Ok(state) => state,
                Err(error) => {
                    tracing::warn!(session = %key.session, error = %error, "a window state was not read");
                    return None;
                }
            },
        };
        self.stall(&tip.session, tip.head.preamble_tokens, &state, tokens)
    }

    /// After a compaction that was asked for: what keeps the window over what was asked.
    pub async fn shortfall(&self, key: &SessionKey, strategy: &Strategy) -> Result<Option<Stall>, Error> {
        let (tip, _, live) = self.current(key).await?;
        let assembled = live.lock();
        let window = assembled.assembler.window(false);
        let tokens = window.tokens();
        let target = match strategy {
            Strategy::Truncate { target_tokens } => {
                target_tokens.or_else(|| Some(self.inner.options.compaction.floor(tip.room()?)))
            }
            Strategy::LastMessages { .. } | Strategy::Summarize { .. } => None,
        };
        let Some(limit_tokens) = target else { return Ok(self.stall_of(&tip, &assembled)) };
        let preamble_tokens = tip.head.preamble_tokens;
        let is_over = tokens.saturating_add(preamble_tokens) > limit_tokens;
        Ok(is_over.then(|| Stall {
            compactions: assembled.state.unrelieved.map_or(0, |found| found.in_a_row),
            limit_tokens,
            window_tokens: tokens,
            last_step_tokens: last_step(&window),
            preamble_tokens,
        }))
    }
}

fn last_step(window: &Window<'_>) -> u64 {
    atoms(window).last().map_or(0, |atom| atom.tokens)
}

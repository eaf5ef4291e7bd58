//! Calibration: how counted tokens compare with those that providers report. The
//! factor is a part of the window state. It moves when a window is compacted, and at
//! once if tokens turn out to be counted far too low.

use super::compact::Proposal;
use super::{Engine, Error};
use crate::limits::CALIBRATION_TURNS;
use crate::model::{Calibration, StateKind, TokenFactor, Turn, Usage, Version, WindowState};
use crate::store::meta::{BranchKey, SessionKey, Tip};
use crate::tokens::catalogue;

impl Engine {
    /// After a turn: moves the factor if the turn's report says that the window takes
    /// far more than was counted. A failure leaves it to the next report.
    pub(super) async fn calibrate_if_low(&self, key: &SessionKey) {
        let Some(cached) = self.inner.caches.tips.get(key) else { return };
        let is_low = |tip: &Tip| {
            let factor = tip.session.factor(tip.head.calibration.as_ref());
            self.reported(key, tip, &tip.turn).is_some_and(|reported| factor.is_far_below(reported))
        };
        if !is_low(&cached.tip) {
            return;
        }
        let moved = self.revise_window(key, |tip, assembled| {
            let state = WindowState::clone(&assembled.state);
            let cause = "more tokens were reported than counted".to_owned();
            let proposal = Proposal::keeping_all(StateKind::Calibrate, state, cause);
            Ok(is_low(tip).then_some(proposal))
        });
        match moved.await {
            // What follows looks whether the window is too large now.
            Ok(Some(_)) => _ = self.fresh_tip(key).await,
            // Another replica was faster: the head in memory is out of date.
            Ok(None) => self.inner.caches.tips.invalidate(key),
            Err(error) => {
                tracing::warn!(session = %key.session, error = %error, "tokens were not calibrated");
            }
        }
    }

    /// The calibration by the newest report of a session's branch, or the one that it
    /// has if none of late says anything.
    pub(super) async fn newest_calibration(
        &self,
        key: &SessionKey,
        tip: &Tip,
    ) -> Result<Option<Calibration>, Error> {
        let mut factor = self.reported(key, tip, &tip.turn);
        if factor.is_none() {
            let branch = BranchKey { tenant: key.tenant.clone(), branch: tip.head.branch.clone() };
            let last = tip.turn.version;
            let turns = self.inner.meta.turns(&branch, Version(0), last, CALIBRATION_TURNS).await?;
            factor = turns.iter().rev().find_map(|recorded| self.reported(key, tip, &recorded.turn));
        }
        let (session, model) = (&tip.session, tip.session.profile.model.clone());
        let found = factor.map(|permille| Calibration { permille, model, tokenizer: session.tokenizer() });
        Ok(found.or_else(|| tip.head.calibration.clone()))
    }

    /// What the report of a turn says, if it is of the session's model and of a window
    /// that was counted as windows are now.
    fn reported(&self, key: &SessionKey, tip: &Tip, turn: &Turn) -> Option<TokenFactor> {
        let usage = turn.usage.as_ref()?;
        let counted = usage.counted_tokens?;
        let window = self.inner.window_ids.decode(&key.tenant, &key.session, &usage.window_id)?;
        if !window.is_of_config(&tip.head) || is_of_other_model(&tip.session.profile.model, usage) {
            return None;
        }
        let request = [usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens];
        let request = request.into_iter().fold(0, u64::saturating_add);
        TokenFactor::of_report(request.saturating_sub(window.fixed_overhead), counted)
    }
}

/// Whether both models are known, and two.
fn is_of_other_model(model: &str, usage: &Usage) -> bool {
    let (Some(own), Some(other)) = (catalogue::find(model), catalogue::find(&usage.model)) else {
        return false;
    };
    // One may be named with its date.
    !is_dated(&own.id, &other.id) && !is_dated(&other.id, &own.id)
}

/// Whether an id is another with a date, or the newest of that name.
fn is_dated(id: &str, plain: &str) -> bool {
    let Some(rest) = id.strip_prefix(plain) else { return false };
    let is_date = rest.len() > 8 && rest.bytes().all(|byte| byte.is_ascii_digit() || b"-@".contains(&byte));
    rest.is_empty() || is_date || rest == "-latest"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_with_its_date_is_the_same_and_a_smaller_one_is_not() {
        for (id, plain, expected) in [
            ("gpt-4o", "gpt-4o", true),
            ("gpt-4o-2024-08-06", "gpt-4o", true),
            ("claude-sonnet-5-20260101", "claude-sonnet-5", true),
            ("claude-sonnet-5-latest", "claude-sonnet-5", true),
            ("claude-sonnet-5-5", "claude-sonnet-5", false),
            ("gpt-4o", "gpt-4", false),
            ("gpt-4o-mini", "gpt-4o", false),
            ("gpt-4o", "gpt-4o-2024-08-06", false),
        ] {
            assert_eq!(is_dated(id, plain), expected, "{id} {plain}");
        }
    }
}

//! When windows are compacted, and how far.

use crate::limits::{
    LEDGER_PERCENT, LEDGER_PERCENT_MAX, PINS_PERCENT, PINS_PERCENT_MAX, PROMPT_BYTES_MAX, SNIP_CHARACTERS,
    SUMMARIZER_BREAK, SUMMARIZER_COOLDOWN, SUMMARIZER_FAILURES_MAX, SUMMARY_DIVISOR, SUMMARY_WAIT_MAX,
};
use crate::model::{Room, percent};
use std::path::PathBuf;
use std::time::Duration;

/// When windows are compacted, and what then. Shares are in percent, of the usable
/// window if nothing else is said.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompactionOptions {
    /// Over this, old tool results are shown by their ends.
    pub snip_percent: u64,
    /// Only if that makes the window smaller by this.
    pub snip_win_percent: u64,
    /// Only results of more characters than this; [`SNIP_CHARACTERS`] at least.
    pub snip_over_characters: u64,
    /// Tokens of the newest results that are left alone, unless a quarter of the usable
    /// window is less.
    pub snip_kept_tokens: u64,
    /// Over this, a summary is prepared in the background.
    pub prepare_percent: u64,
    /// Over this, a summary that was prepared takes the place of the middle.
    pub summarize_percent: u64,
    /// Over this, a restore waits for a summary; without one an extract takes the
    /// place of all but the newest steps.
    pub collapse_percent: u64,
    /// What a window has at most after a summary or extract took the place of its
    /// middle, unless the newest step alone has more.
    pub target_percent: u64,
    /// The newest steps stay, up to this,
    pub tail_percent: u64,
    /// and at most so many tokens.
    pub tail_tokens: u64,
    /// A summary may take this, but at most an eighth,
    pub slot_percent: u64,
    /// at least so many tokens,
    pub slot_tokens_min: u64,
    /// and at most so many.
    pub slot_tokens_max: u64,
    /// The share of that which the ledger may take beside it.
    pub ledger_percent: u64,
    /// What all pins together may take.
    pub pins_percent: u64,
    /// Seconds that a restore waits for a summary, at most 90.
    pub wait_seconds: u64,
    /// On the paths without summaries: share of the context window over which a window
    /// is truncated.
    pub ceiling_percent: u64,
    /// Share of that ceiling to which it is: deeper than needed, and then not at all for
    /// many turns, so that a prompt cache holds.
    pub floor_percent: u64,
    /// Whether constraints and decisions that leave a window are pinned.
    pub pin_statements: bool,
    /// What the summarizer is told, if not the built-in prompt.
    pub prompt: Option<String>,
    /// A file that holds it. It is read with the settings: here it says nothing.
    pub prompt_file: Option<PathBuf>,
}

impl Default for CompactionOptions {
    fn default() -> Self {
        Self {
            snip_percent: 50,
            snip_win_percent: 10,
            snip_over_characters: SNIP_CHARACTERS,
            snip_kept_tokens: 40_000,
            prepare_percent: 60,
            summarize_percent: 70,
            collapse_percent: 90,
            target_percent: 50,
            tail_percent: 30,
            tail_tokens: 20_000,
            slot_percent: 5,
            slot_tokens_min: 2_000,
            slot_tokens_max: 10_000,
            ledger_percent: LEDGER_PERCENT,
            pins_percent: PINS_PERCENT,
            wait_seconds: 30,
            ceiling_percent: 50,
            floor_percent: 80,
            pin_statements: true,
            prompt: None,
            prompt_file: None,
        }
    }
}

impl CompactionOptions {
    /// What is wrong with them: the option, and the problem.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let shares = [
            ("snip_percent", self.snip_percent),
            ("snip_win_percent", self.snip_win_percent),
            ("prepare_percent", self.prepare_percent),
            ("summarize_percent", self.summarize_percent),
            ("collapse_percent", self.collapse_percent),
            ("target_percent", self.target_percent),
            ("tail_percent", self.tail_percent),
            ("slot_percent", self.slot_percent),
            ("ceiling_percent", self.ceiling_percent),
            ("floor_percent", self.floor_percent),
        ];
        if let Some((name, _)) = shares.iter().find(|(_, share)| *share > 100) {
            return Err((name, "must be 0 to 100".to_owned()));
        }
        let bounded = [
            ("ledger_percent", self.ledger_percent, LEDGER_PERCENT_MAX),
            ("pins_percent", self.pins_percent, PINS_PERCENT_MAX),
        ];
        if let Some((name, _, max)) = bounded.iter().find(|(_, share, max)| share > max) {
            return Err((name, format!("must be 0 to {max}")));
        }
        if self.snip_over_characters < SNIP_CHARACTERS {
            return Err(("snip_over_characters", format!("must be at least {SNIP_CHARACTERS}")));
        }
        // The lightest comes first, and what was done is not due again at once.
        let orders = [
            (("snip_percent", self.snip_percent), ("prepare_percent", self.prepare_percent)),
            (("prepare_percent", self.prepare_percent), ("summarize_percent", self.summarize_percent)),
            (("summarize_percent", self.summarize_percent), ("collapse_percent", self.collapse_percent)),
            (("target_percent", self.target_percent), ("summarize_percent", self.summarize_percent)),
            (("slot_tokens_min", self.slot_tokens_min), ("slot_tokens_max", self.slot_tokens_max)),
        ];
        for ((smaller, least), (name, value)) in orders {
            if value < least {
                return Err((name, format!("must be at least compaction.{smaller}, which is {least}")));
            }
        }
        // Both stay whatever leaves: with no room beside them nothing would bring relief.
        let fixed = self.pins_percent + self.slot_percent.min(100_u64.div_ceil(SUMMARY_DIVISOR));
        if self.target_percent <= fixed {
            let problem =
                format!("must be more than what compaction.pins_percent and slot_percent allow, {fixed}");
            return Err(("target_percent", problem));
        }
        match (&self.prompt, &self.prompt_file) {
            (Some(_), Some(_)) => Err(("prompt_file", "and compaction.prompt are both given".to_owned())),
            (Some(prompt), None) => match read_prompt(prompt.as_bytes()) {
                Ok(_) => Ok(()),
                Err(problem) => Err(("prompt", problem)),
            },
            _ => Ok(()),
        }
    }

    /// How long a restore waits for a summary.
    pub(super) fn wait(&self) -> Duration {
        Duration::from_secs(self.wait_seconds).min(SUMMARY_WAIT_MAX)
    }

    /// Tokens of the newest steps that stay.
    pub(super) fn tail_tokens(&self, room: Room) -> u64 {
        percent(room.usable(), self.tail_percent).min(self.tail_tokens)
    }

    /// Tokens that what stands for the entries that left may take.
    pub(super) fn slot_tokens(&self, room: Option<Room>) -> u64 {
        let Some(usable) = room.map(Room::usable) else { return self.slot_tokens_min };
        let share = percent(usable, self.slot_percent);
        share.max(self.slot_tokens_min).min(self.slot_tokens_max).min(usable / SUMMARY_DIVISOR)
    }

    /// Tokens of that which the ledger may take.
    pub(super) fn ledger_tokens(&self, slot: u64) -> u64 {
        percent(slot, self.ledger_percent)
    }

    /// The tokens that pins may take; nothing if the room is not known.
    pub(super) fn pins_budget(&self, room: Option<Room>) -> Option<u64> {
        room.map(|room| percent(room.usable(), self.pins_percent))
    }

    /// The tokens over which a window with its preamble asks for a summary.
    pub(super) fn summary_limit(&self, room: Room) -> u64 {
        percent(room.usable(), self.prepare_percent.min(self.summarize_percent))
    }

    /// The tokens over which a window with its preamble is truncated.
    pub(super) fn ceiling(&self, room: Room) -> u64 {
        percent(room.context, self.ceiling_percent).min(room.usable())
    }

    /// The tokens to which it is.
    pub(super) fn floor(&self, room: Room) -> u64 {
        percent(self.ceiling(room), self.floor_percent)
    }
}

/// A prompt that an operator gives, or what is wrong with it.
pub fn read_prompt(bytes: &[u8]) -> Result<&str, String> {
    if bytes.len() > PROMPT_BYTES_MAX {
        return Err(format!("has more than the {PROMPT_BYTES_MAX} bytes allowed"));
    }
    let prompt = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())?;
    if prompt.trim().is_empty() { Err("is empty".to_owned()) } else { Ok(prompt) }
}

/// How long a summarizer that failed is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long the session gets no summary.
    pub cooldown: Duration,
    /// Failures in a row after which no session of this process does,
    pub failures: u32,
    /// for so long.
    pub pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { cooldown: SUMMARIZER_COOLDOWN, failures: SUMMARIZER_FAILURES_MAX, pause: SUMMARIZER_BREAK }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_waits_as_long_as_is_set_and_less_than_its_call_may_take() {
        let wait = |wait_seconds| CompactionOptions { wait_seconds, ..CompactionOptions::default() }.wait();
        assert_eq!([wait(0), wait(30), wait(u64::MAX)].map(|wait| wait.as_secs()), [0, 30, 90]);
    }

    #[test]
    fn shares_and_bounds_follow_the_options() {
        let room = |context| Room { context, reserve: context / 4, fixed_overhead: 0 };
        let default = CompactionOptions::default();
        let of = |options: &CompactionOptions, context| {
            let room = room(context);
            [
                options.tail_tokens(room),
                options.slot_tokens(Some(room)),
                options.ceiling(room),
                options.floor(room),
            ]
        };
        assert_eq!(of(&default, 16_000), [3_600, 1_500, 8_000, 6_400]);
        assert_eq!(of(&default, 200_000), [20_000, 7_500, 100_000, 80_000]);
        assert_eq!(of(&default, 1_000_000), [20_000, 10_000, 500_000, 400_000]);
        let other = CompactionOptions {
            tail_percent: 40,
            tail_tokens: 50_000,
            slot_percent: 8,
            slot_tokens_min: 1_000,
            slot_tokens_max: 20_000,
            ceiling_percent: 60,
            floor_percent: 50,
            ..default.clone()
        };
        assert_eq!(of(&other, 16_000), [4_800, 1_000, 9_600, 4_800]);
        assert_eq!(of(&other, 1_000_000), [50_000, 20_000, 600_000, 300_000]);
        assert_eq!([default.slot_tokens(None), other.slot_tokens(None)], [2_000, 1_000]);
        let shared = CompactionOptions { pins_percent: 25, ledger_percent: 50, ..default.clone() };
        let of = |options: &CompactionOptions| {
            (options.pins_budget(Some(room(16_000))), options.ledger_tokens(1_500))
        };
        assert_eq!([of(&default), of(&shared)], [(Some(1_200), 450), (Some(3_000), 750)]);
        assert_eq!(shared.pins_budget(None), None);
    }
}

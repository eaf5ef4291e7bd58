//! How counted tokens compare with those that a provider reports.

use crate::limits::{
    CALIBRATION_ABSURD, CALIBRATION_PERMILLE_MAX, CALIBRATION_PERMILLE_MIN, CALIBRATION_SLACK_PERCENT,
    CALIBRATION_TOKENS_MIN,
};
use crate::model::Tokenizer;

/// What a counted token is to the provider, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct TokenFactor(u64);

impl Default for TokenFactor {
    fn default() -> Self {
        Self(1_000)
    }
}

impl TokenFactor {
    /// What a report says of a call of which so many tokens were counted, within the
    /// bounds of factors. Nothing if too few were counted to say anything, or if the
    /// report cannot be of that call.
    pub fn of_report(reported: u64, counted: u64) -> Option<Self> {
        let is_absurd = reported > counted.saturating_mul(CALIBRATION_ABSURD)
            || reported < counted / CALIBRATION_ABSURD
            || reported == 0;
        if counted < CALIBRATION_TOKENS_MIN || is_absurd {
            return None;
        }
        let permille = u128::from(reported) * 1_000 / u128::from(counted);
        let permille = u64::try_from(permille).unwrap_or(u64::MAX);
        Some(Self(permille.clamp(CALIBRATION_PERMILLE_MIN, CALIBRATION_PERMILLE_MAX)))
    }

    /// Thousandths.
    pub fn permille(self) -> u64 {
        self.0
    }

    /// Whether another is so much more that it cannot wait for a compaction.
    pub fn is_far_below(self, other: Self) -> bool {
        other.0.saturating_mul(100) > self.0.saturating_mul(100 + CALIBRATION_SLACK_PERCENT)
    }

    /// Tokens of the provider for so many counted ones, rounded up.
    pub fn reported(self, counted: u64) -> u64 {
        let tokens = (u128::from(counted) * u128::from(self.0)).div_ceil(1_000);
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }

    /// Counted tokens that are at most so many of the provider's.
    pub fn counted(self, reported: u64) -> u64 {
        let tokens = u128::from(reported) * 1_000 / u128::from(self.0.max(1));
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }
}

/// A factor, and what it is of.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Calibration {
    /// The factor.
    pub permille: TokenFactor,
    /// The model of the session's profile when it was found.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// How tokens were counted then.
    pub tokenizer: Tokenizer,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_report_gives_a_factor_within_bounds_or_none() {
        let factor = |reported, counted| TokenFactor::of_report(reported, counted).map(TokenFactor::permille);
        assert_eq!(factor(1_500, 1_000), Some(1_500));
        assert_eq!(factor(3_000, 1_000), Some(2_000));
        assert_eq!(factor(300, 1_000), Some(700));
        for (reported, counted) in
            [(0, 1_000), (1_000, 0), (999, 999), (8_001, 1_000), (100, 1_000), (1, u64::MAX)]
        {
            assert_eq!(factor(reported, counted), None, "{reported} of {counted}");
        }
        let factor = |permille| TokenFactor(permille);
        assert!(factor(1_000).is_far_below(factor(1_101)));
        assert!(!factor(1_000).is_far_below(factor(1_100)));
        assert!(!factor(2_000).is_far_below(factor(1_000)));
    }

    proptest! {
        #[test]
        fn what_is_counted_within_a_limit_is_within_it_at_the_provider(
            permille in CALIBRATION_PERMILLE_MIN..=CALIBRATION_PERMILLE_MAX,
            limit in 0_u64..4_000_000,
        ) {
            let factor = TokenFactor(permille);
            let counted = factor.counted(limit);
            prop_assert!(factor.reported(counted) <= limit);
            prop_assert!(factor.reported(counted + 1) >= limit);
        }
    }
}

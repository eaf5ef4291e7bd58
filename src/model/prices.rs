//! What calls of a model cost.

use crate::model::Usage;
use std::fmt;
use std::iter::Sum;

/// Dollars (USD) per million tokens, to a millionth of a dollar.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(try_from = "f64", into = "f64")]
pub struct Price(u64);

/// A price that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a price is from 0 to {} dollars per million tokens", Price::MICROS_MAX / 1_000_000)]
pub struct InvalidPrice;

impl Price {
    /// The largest: a dollar a token. Up to it every price is exact as a float.
    pub const MICROS_MAX: u64 = 1_000_000_000_000;

    /// A price in millionths of a dollar per million tokens.
    pub fn from_micros(micros: u64) -> Result<Self, InvalidPrice> {
        if micros <= Self::MICROS_MAX { Ok(Self(micros)) } else { Err(InvalidPrice) }
    }

    /// Millionths of a dollar per million tokens.
    pub fn micros(self) -> u64 {
        self.0
    }

    fn of(self, tokens: u64) -> Cost {
        // A millionth of a dollar per million tokens is a trillionth per token.
        Cost(self.0.saturating_mul(tokens))
    }
}

impl TryFrom<f64> for Price {
    type Error = InvalidPrice;

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "it is whole, and within what a float holds exactly"
    )]
    fn try_from(dollars: f64) -> Result<Self, InvalidPrice> {
        let micros = (dollars * 1e6).round();
        if (0.0..=Self::MICROS_MAX as f64).contains(&micros) {
            Ok(Self(micros as u64))
        } else {
            Err(InvalidPrice)
        }
    }
}

impl From<Price> for f64 {
    #[expect(clippy::cast_precision_loss, reason = "no price is too large for a float")]
    fn from(price: Price) -> Self {
        price.0 as Self / 1e6
    }
}

/// What a model's tokens cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// Of the request, what no cache holds.
    pub input: Price,
    /// Of the answer.
    pub output: Price,
    /// Of the request, what is read from the prompt cache; as `input` if not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<Price>,
    /// Of the request, what is written to the prompt cache; as `input` if not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<Price>,
    /// What they cost with a long request, if that is something else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long: Option<LongPrices>,
}

/// What the tokens of a call with a long request cost, all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongPrices {
    /// Tokens of the request over which it is long.
    pub over_tokens: u64,
    /// As [`Prices::input`].
    pub input: Price,
    /// As [`Prices::output`].
    pub output: Price,
    /// As [`Prices::cache_read`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<Price>,
    /// As [`Prices::cache_write`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<Price>,
}

impl Prices {
    /// What a call costs.
    pub fn cost(&self, usage: &Usage) -> Cost {
        let request = [usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens];
        let request_tokens = request.into_iter().fold(0, u64::saturating_add);
        let (input, output, read, write) = match self.long {
            Some(long) if request_tokens > long.over_tokens => {
                (long.input, long.output, long.cache_read, long.cache_write)
            }
            _ => (self.input, self.output, self.cache_read, self.cache_write),
        };
        [
            input.of(usage.input_tokens),
            output.of(usage.output_tokens),
            read.unwrap_or(input).of(usage.cache_read_tokens),
            write.unwrap_or(input).of(usage.cache_write_tokens),
        ]
        .into_iter()
        .sum()
    }
}

/// An amount in trillionths of a dollar (USD): exact, however many are added, up
/// to 18 million dollars, where it stays.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct Cost(pub u64);

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        Self(costs.map(|cost| cost.0).fold(0, u64::saturating_add))
    }
}

/// Dollars, to the last digit that counts but with cents at least: `$0.0125`.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DOLLAR: u64 = 1_000_000_000_000;
        let fraction = format!("{:012}", self.0 % DOLLAR);
        let digits = fraction.trim_end_matches('0').len().max(2);
        write!(f, "${}.{}", self.0 / DOLLAR, fraction.get(..digits).unwrap_or(&fraction))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(dollars: f64) -> Price {
        Price::try_from(dollars).unwrap()
    }

    fn usage(
        input_tokens: u64,
        output_tokens: u64,
        cache_read_tokens: u64,
        cache_write_tokens: u64,
    ) -> Usage {
        Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, ..Usage::default() }
    }

    #[test]
    fn a_call_costs_what_its_tokens_cost_exactly() {
        let prices = Prices {
            input: price(3.0),
            output: price(15.0),
            cache_read: Some(price(0.3)),
            cache_write: Some(price(3.75)),
            long: None,
        };
        assert_eq!(prices.cost(&usage(1, 1, 1, 1)), Cost(3_000_000 + 15_000_000 + 300_000 + 3_750_000));
        assert_eq!(prices.cost(&usage(1_000_000, 100_000, 0, 0)).to_string(), "$4.50");
        assert_eq!(prices.cost(&usage(0, 0, 1, 0)).to_string(), "$0.0000003");
        assert_eq!(Cost::default().to_string(), "$0.00");
        // What has no price of its own is input.
        let plain = Prices { input: price(2.0), output: price(8.0), ..Prices::default() };
        assert_eq!(plain.cost(&usage(10, 0, 20, 30)), plain.cost(&usage(60, 0, 0, 0)));
        let most = plain.cost(&usage(u64::MAX, u64::MAX, u64::MAX, u64::MAX));
        assert_eq!([most, most].into_iter().sum::<Cost>(), Cost(u64::MAX));
    }

    #[test]
    fn a_request_over_the_tier_costs_more_for_all_its_tokens() {
        let long = LongPrices {
            over_tokens: 200,
            input: price(2.5),
            output: price(15.0),
            cache_read: None,
            cache_write: None,
        };
        let prices =
            Prices { input: price(1.25), output: price(10.0), long: Some(long), ..Prices::default() };
        assert_eq!(prices.cost(&usage(100, 1, 60, 40)), Cost(200 * 1_250_000 + 10_000_000));
        assert_eq!(prices.cost(&usage(100, 1, 60, 41)), Cost(201 * 2_500_000 + 15_000_000));
    }

    #[test]
    fn prices_are_read_and_written_to_a_millionth_of_a_dollar() {
        for (text, micros) in
            [("3", 3_000_000), ("0.3", 300_000), ("0.000001", 1), ("1000000", 1_000_000_000_000)]
        {
            let price: Price = serde_json::from_str(text).unwrap();
            assert_eq!(price.micros(), micros);
            assert_eq!(
                serde_json::from_str::<Price>(&serde_json::to_string(&price).unwrap()).unwrap(),
                price
            );
        }
        for wrong in ["-1", "1000001", "1e300", "null", "\"3\""] {
            assert!(serde_json::from_str::<Price>(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Price::try_from(f64::NAN), Err(InvalidPrice));
        assert_eq!(Price::from_micros(Price::MICROS_MAX + 1), Err(InvalidPrice));
        for micros in (0..1_000_000).step_by(7).chain([Price::MICROS_MAX - 1]) {
            let price = Price::from_micros(micros).unwrap();
            assert_eq!(Price::try_from(f64::from(price)), Ok(price));
        }
    }
}

//! What a text is searched for.

use super::Error;
use crate::limits::{OUTPUT_PATTERN_BYTES_MAX, OUTPUT_PATTERN_COMPILED_BYTES_MAX};
use regex::bytes::{Regex, RegexBuilder};

/// What a text is searched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The text or regular expression.
    pub source: String,
    /// Whether it is a regular expression, and not a text.
    pub is_regex: bool,
    /// Whether upper and lower case are one.
    pub ignore_case: bool,
}

/// What is searched at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Haystack {
    /// A line, without its line break.
    Line,
    /// A text of several lines.
    Text,
}

impl Pattern {
    /// Makes it ready. Errors are about the request's field `field`.
    pub(super) fn compile(&self, field: &str, haystack: Haystack) -> Result<Regex, Error> {
        if self.source.is_empty() || self.source.len() > OUTPUT_PATTERN_BYTES_MAX {
            let problem =
                format!("has {} bytes; must have from 1 to {OUTPUT_PATTERN_BYTES_MAX}", self.source.len());
            return Err(Error::invalid(field, problem));
        }
        let pattern = if self.is_regex { self.source.clone() } else { regex::escape(&self.source) };
        RegexBuilder::new(&pattern)
            .case_insensitive(self.ignore_case)
            .multi_line(haystack == Haystack::Text)
            .crlf(haystack == Haystack::Text)
            .size_limit(OUTPUT_PATTERN_COMPILED_BYTES_MAX)
            .dfa_size_limit(OUTPUT_PATTERN_COMPILED_BYTES_MAX)
            .build()
            .map_err(|error| Error::invalid(field, error.to_string()))
    }
}

//! What must survive word for word: literals, the user's constraints, and
//! decisions.
//!
//! Precision counts for more than recall here: constraints and decisions are
//! pinned, and a pin that is none takes room in every window.

mod scan;
mod sentences;
mod statements;
mod words;

pub use scan::literals_of;
pub use sentences::sentences;
pub use statements::{is_constraint, is_decision};

use super::said::{Said, Speaker};
use crate::limits::{LITERAL_BYTES_MAX, LITERALS_MAX, SENTENCE_BYTES_MAX, STATEMENTS_MAX, TOOL_LITERALS_MAX};
use crate::model::Seq;
use std::collections::HashMap;

/// What a literal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LiteralKind {
    /// A file or folder, with its line where one is given.
    Path,
    /// A URL.
    Url,
    /// Hex digits of a hash, or a UUID.
    Hash,
    /// An id: of an issue, a call, a row.
    Id,
    /// A function, type or other name in code.
    Symbol,
    /// An error's code or name, an HTTP status, an exit code.
    ErrorCode,
    /// A number with its unit.
    Number,
    /// Text between quotes or backticks.
    Quoted,
}

impl LiteralKind {
    /// All kinds, the ones that matter most first.
    pub const ALL: [Self; 8] = [
        Self::Path,
        Self::Url,
        Self::Hash,
        Self::Id,
        Self::Symbol,
        Self::ErrorCode,
        Self::Number,
        Self::Quoted,
    ];

    /// Its name in records and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Url => "url",
            Self::Hash => "hash",
            Self::Id => "id",
            Self::Symbol => "symbol",
            Self::ErrorCode => "error-code",
            Self::Number => "number",
            Self::Quoted => "quoted",
        }
    }
}

/// A literal.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Literal {
    /// What it is.
    pub kind: LiteralKind,
    /// Its text, as it stood.
    pub text: String,
    /// The entry in which it came first.
    pub seq: Seq,
    /// The highest who said it: the user before the model before tools.
    pub by: Speaker,
    /// How often it came.
    pub times: u64,
}

/// A sentence, word for word.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Statement {
    /// Its text, as it stood.
    pub text: String,
    /// The entry in which it came first.
    pub seq: Seq,
    /// Who said it.
    pub by: Speaker,
}

/// What was found in entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Findings {
    /// Literals, in the order in which they came first.
    pub literals: Vec<Literal>,
    /// What the user demands or forbids.
    pub constraints: Vec<Statement>,
    /// Decisions of the user and the model.
    pub decisions: Vec<Statement>,
    /// How many different ones were found beyond the limits: of literals the newest, of
    /// constraints and decisions the oldest.
    pub omitted: u64,
    /// Statements of earlier entries that were pinned, and are not any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unpinned: Vec<Statement>,
}

/// Finds all that in entries, which are in order. Linear in their length.
pub fn find<'a>(entries: impl IntoIterator<Item = &'a Said<'a>>) -> Findings {
    let mut finder = Finder::default();
    for entry in entries {
        finder.take(entry);
    }
    finder.findings
}

#[derive(Default)]
struct Finder {
    findings: Findings,
    places: HashMap<LiteralKind, HashMap<String, usize>>,
}

impl Finder {
    fn take(&mut self, entry: &Said<'_>) {
        for text in &entry.texts {
            self.literals(text, entry.seq, entry.speaker);
            self.statements(text, entry);
        }
        for call in &entry.calls {
            call.texts().iter().for_each(|text| self.arguments(text, entry.seq));
        }
        for outcome in &entry.outcomes {
            self.literals(&outcome.text, entry.seq, Speaker::Tool);
        }
    }

    /// Arguments are code and whole files: what stands in them in quotes, or is
    /// called, is no name that anybody must remember.
    fn arguments(&mut self, text: &str, seq: Seq) {
        literals_of(text, &mut |kind, literal| {
            if is_of_data(kind) {
                self.add(kind, literal, seq, Speaker::Model);
            }
        });
    }

    fn literals(&mut self, text: &str, seq: Seq, by: Speaker) {
        literals_of(text, &mut |kind, literal| {
            if by != Speaker::Tool || is_of_data(kind) {
                self.add(kind, literal, seq, by);
            }
        });
    }

    fn add(&mut self, kind: LiteralKind, text: &str, seq: Seq, by: Speaker) {
        if text.len() > LITERAL_BYTES_MAX {
            return;
        }
        let places = self.places.entry(kind).or_default();
        if let Some(known) = places.get(text).and_then(|place| self.findings.literals.get_mut(*place)) {
            known.times += 1;
            known.by = known.by.max(by);
            return;
        }
        let max = if by == Speaker::Tool { TOOL_LITERALS_MAX } else { LITERALS_MAX };
        if places.len() >= max {
            self.findings.omitted += 1;
            return;
        }
        places.insert(text.to_owned(), self.findings.literals.len());
        self.findings.literals.push(Literal { kind, text: text.to_owned(), seq, by, times: 1 });
    }

    fn statements(&mut self, text: &str, entry: &Said<'_>) {
        let (seq, by) = (entry.seq, entry.speaker);
        if !matches!(by, Speaker::User | Speaker::Model) {
            return;
        }
        for sentence in sentences(text) {
            if sentence.len() > SENTENCE_BYTES_MAX {
                continue;
            }
            let lists = [
                (by == Speaker::User && is_constraint(sentence), &mut self.findings.constraints),
                (is_decision(sentence, by), &mut self.findings.decisions),
            ];
            for (is_one, list) in lists {
                if !is_one || list.iter().any(|known| known.text == sentence) {
                    continue;
                }
                // Pins are of the newest, if there is no room for all.
                if list.len() >= STATEMENTS_MAX {
                    list.remove(0);
                    self.findings.omitted += 1;
                }
                list.push(Statement { text: sentence.to_owned(), seq, by });
            }
        }
    }
}

/// Whether such a literal matters where it stands in the output or input of a
/// tool: code and logs are full of names, numbers and quotes.
fn is_of_data(kind: LiteralKind) -> bool {
    !matches!(kind, LiteralKind::Symbol | LiteralKind::Number | LiteralKind::Quoted)
}

#[cfg(test)]
mod tests;

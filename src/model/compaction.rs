//! What changes a window but not the log: cuts, snips, summaries and pins.

use crate::clock::Micros;
use crate::model::{BranchId, Calibration, Cost, NoteNames, Seq, Version};
use std::collections::BTreeMap;

/// What a window is made with besides the log. It is recorded whenever it changes,
/// so that a window is the same whenever and wherever it is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WindowState {
    /// Where the window begins, if not with the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<Cut>,
    /// Entries of which long tool results are shown by their two ends alone, in
    /// order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snipped: Vec<Seq>,
    /// Of these, those of which only some results are: their places among the results of
    /// the entry, counted from 0, in order.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub partly: BTreeMap<Seq, Vec<u32>>,
    /// Of these, those whose results a later call made stale, each with the entry of
    /// the call: it read the same file again, or changed it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stale: BTreeMap<Seq, Seq>,
    /// What stands for the entries that left, if they were summarized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
    /// Literals that every window shows word for word, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<Pin>,
    /// The notes that there were when it was recorded, by their names. A note that is
    /// put later does not change a window that is sent again and again.
    #[serde(default, skip_serializing_if = "NoteNames::is_empty")]
    pub notes: NoteNames,
    /// How counted tokens compare with those that the provider reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
    /// Numbers of the states that were taken back, as ranges that do not meet, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undone: Vec<(u64, u64)>,
    /// That its last compactions brought no relief. No window shows it: it decides
    /// whether a model is asked for another summary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unrelieved: Option<Unrelieved>,
}

/// That summaries and extracts left a window over the share that asks for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Unrelieved {
    /// How many in a row.
    pub in_a_row: u32,
    /// Tokens of the window after the newest of them, less those of pins that were
    /// deleted since,
    pub tokens: u64,
    /// and those of its newest step.
    pub last: u64,
}

impl WindowState {
    /// Whether the state of that number, which is not after this, was taken back.
    pub fn has_undone(&self, number: u64) -> bool {
        self.undone.iter().any(|(first, last)| (*first..=*last).contains(&number))
    }

    /// Takes back the states from `first` on; `last` is the number of the undo itself, which
    /// comes after all that were taken back before.
    pub fn take_back(&mut self, first: u64, last: u64) {
        let mut first = first;
        while let Some((begin, _)) = self.undone.pop_if(|(_, end)| end.saturating_add(1) >= first) {
            first = first.min(begin);
        }
        self.undone.push((first, last));
    }

    /// Whether windows show a message of pins, summary and names of notes.
    pub fn shows_memory(&self) -> bool {
        self.summary.is_some() || !self.pins.is_empty() || !self.notes.is_empty()
    }
}

/// Where a window begins, and what it shows of the entries before.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Cut {
    /// The first entry of those that are shown as they follow each other.
    pub first_kept: Seq,
    /// System and developer entries before it that stay, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub system: Vec<Seq>,
    /// How many of these the log begins with: they stay for good.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub opening: u64,
    /// The first message of the user, if it lies before: shown shortened if it is
    /// long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_user: Option<Seq>,
    /// The user's last message, if it lies before: it comes after everything that
    /// stands for what left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_user: Option<Seq>,
    /// Messages before it that are not shown.
    pub omitted_entries: u64,
    /// Their tokens.
    pub omitted_tokens: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Cut {
    /// Whether a window shows an entry by its two ends, if it is long: the user's first
    /// message, but for one that is the last as well.
    pub fn shortens(&self, seq: Seq) -> bool {
        self.first_user == Some(seq) && self.last_user != Some(seq)
    }

    /// The entries before the cut that stay, in the order of the log.
    pub fn kept(&self) -> Vec<Seq> {
        let mut kept = self.system.clone();
        kept.extend(self.first_user);
        kept.extend(self.last_user);
        kept.sort_unstable();
        kept.dedup();
        kept
    }

    /// Whether an entry before the cut stays.
    pub fn keeps(&self, seq: Seq) -> bool {
        self.first_user == Some(seq) || self.last_user == Some(seq) || self.system.contains(&seq)
    }
}

/// What stands for entries that left.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Summary {
    /// The newest entry that it tells of.
    pub covers: Seq,
    /// What a model wrote, or what code extracted.
    pub text: String,
    /// What was done, as code read it from the calls that left.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ledger: String,
    /// What code knows of all entries that left, to be continued when more leave.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub known: serde_json::Value,
}

/// A literal that every window shows.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pin {
    /// Its name, by which it is replaced and deleted.
    pub name: String,
    /// The literal.
    pub text: String,
    /// The entry that said it, if it was found in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
}

/// What made a window state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateKind {
    /// A pin was put or deleted, or a session began with those of another.
    Pins,
    /// The oldest steps left.
    Truncate,
    /// Tool results were shortened.
    Snip,
    /// The middle gave way to a summary.
    Summarize,
    /// All but the last steps gave way to a summary or an extract.
    Collapse,
    /// A compaction was undone.
    Undo,
    /// The log was rewound or forked.
    Rewind,
    /// Tokens were calibrated.
    Calibrate,
}

impl StateKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Pins,
        Self::Truncate,
        Self::Snip,
        Self::Summarize,
        Self::Collapse,
        Self::Undo,
        Self::Rewind,
        Self::Calibrate,
    ];

    /// Its name in storage and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pins => "pins",
            Self::Truncate => "truncate",
            Self::Snip => "snip",
            Self::Summarize => "summarize",
            Self::Collapse => "collapse",
            Self::Undo => "undo",
            Self::Rewind => "rewind",
            Self::Calibrate => "calibrate",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Whether it is a compaction: a step that made the window smaller.
    pub fn is_compaction(self) -> bool {
        matches!(self, Self::Truncate | Self::Snip | Self::Summarize | Self::Collapse)
    }
}

/// A window state as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RecordedState {
    /// The branch on which it was recorded.
    pub branch: BranchId,
    /// Counts a session's states from 1.
    pub number: u64,
    /// Version of the session when it was recorded.
    pub version: Version,
    /// What made it.
    pub kind: StateKind,
    /// What windows are made with.
    pub state: WindowState,
    /// What is told of how it was made.
    pub record: StateRecord,
    /// When.
    pub created_at: Micros,
}

/// What is told of how a window state was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StateRecord {
    /// Tokens of the window before.
    pub tokens_before: u64,
    /// Tokens of the window after.
    pub tokens_after: u64,
    /// Who asked for it, or what made it necessary.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// Of an undo: the state that was undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone: Option<u64>,
    /// The model's summary, if one was asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summarizer: Option<SummarizerReport>,
    /// What became of what was said in the entries that left.
    #[serde(default, skip_serializing_if = "AuditReport::is_empty")]
    pub audit: AuditReport,
    /// What it did to the provider's prompt cache.
    #[serde(default, skip_serializing_if = "CacheBreak::is_nothing")]
    pub cache: CacheBreak,
}

/// What a change of a window does to the provider's prompt cache, which holds what a
/// window has in common with the one before, up to the first difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CacheBreak {
    /// Tokens of the window that are as they were, from its beginning on.
    pub kept_tokens: u64,
    /// The others: they have to be sent again.
    pub resent_tokens: u64,
    /// What these cost more than if the cache held them, if prices are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

impl CacheBreak {
    /// Whether nothing is known, as of what was recorded before.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// How a model was asked for a summary.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SummarizerReport {
    /// The model, as it names itself.
    pub model: String,
    /// Tokens that it read.
    pub input_tokens: u64,
    /// Tokens that it wrote.
    pub output_tokens: u64,
    /// What that cost, if its prices are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// Why its answer was not taken; empty if it was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failure: String,
    /// Literals in its summary that the entries never had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsupported: Vec<String>,
}

/// What became of what was said in entries that left.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AuditReport {
    /// By what it is: how many the window still holds, and how many it does not.
    pub tallies: Vec<AuditTally>,
    /// What it does not hold, constraints and decisions first; not all if they are
    /// many.
    pub losses: Vec<AuditLoss>,
}

/// See [`AuditReport`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AuditTally {
    /// What they are.
    pub subject: String,
    /// How many are kept.
    pub kept: u64,
    /// How many are lost.
    pub lost: u64,
}

/// See [`AuditReport`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AuditLoss {
    /// What it is.
    pub subject: String,
    /// Its text.
    pub text: String,
    /// The entry that said it.
    pub seq: Seq,
}

impl AuditReport {
    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.tallies.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_back_is_known_by_ranges_that_do_not_meet() {
        let mut state = WindowState::default();
        let mut take_back = |first, last| {
            state.take_back(first, last);
            state.undone.clone()
        };
        assert_eq!(take_back(3, 5), [(3, 5)]);
        assert_eq!(take_back(6, 7), [(3, 7)], "one that begins behind another is one with it");
        assert_eq!(take_back(9, 12), [(3, 7), (9, 12)]);
        assert_eq!(take_back(4, 13), [(3, 13)], "one that begins within another takes in all after");
        assert_eq!([2, 3, 13, 14].map(|number| state.has_undone(number)), [false, true, true, false]);
    }
}

//! What restoring a window gives.

use crate::engine::Stall;
use crate::model::{
    Cut, Item, ModelProfile, NextStep, Preamble, Repair, TokenFactor, UnansweredCall, Version, WireFormat,
};

/// How to make the window from the one that the worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is the same.
    Unchanged,
    /// Keep so many items and append those that follow.
    Delta {
        /// Items to keep.
        base_items: usize,
    },
    /// All items follow.
    Full(FullReason),
}

/// Why a whole window is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullReason {
    /// The request named no window.
    NotConditional,
    /// The named window is not one of this session's.
    UnknownWindow,
    /// Turns of it were rewound.
    Rewound,
    /// It was revised.
    Revised,
    /// Its parameters were others.
    ParametersChanged,
    /// No item of it stays as it is.
    NothingInCommon,
}

impl FullReason {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::NotConditional => "not_conditional",
            Self::UnknownWindow => "unknown_window",
            Self::Rewound => "rewound",
            Self::Revised => "revised",
            Self::ParametersChanged => "parameters_changed",
            Self::NothingInCommon => "nothing_in_common",
        }
    }
}

/// All of a restore but the items.
#[derive(Clone, Debug)]
pub struct WindowHeader {
    /// The version.
    pub version: Version,
    /// Identifies this very window.
    pub window_id: String,
    /// How the items make the window.
    pub change: Change,
    /// Items of the whole window.
    pub item_count: usize,
    /// Leading items that stay as they are when the session grows.
    pub stable_prefix_items: usize,
    /// Wire format of the items.
    pub format: WireFormat,
    /// The limits that were used.
    pub profile: ModelProfile,
    /// The preamble, unless the worker has it.
    pub preamble: Option<Preamble>,
    /// Tokens of all entries of the log.
    pub tokens_before: u64,
    /// Tokens of the window's items.
    pub tokens_after: u64,
    /// Output tokens to leave room for.
    pub reserve: u64,
    /// Whether all fits; nothing if the context window is not known.
    pub fits: Option<bool>,
    /// What a counted token is to the provider, by its reports.
    pub factor: TokenFactor,
    /// What was changed so that the API accepts the window: the newest
    /// [`crate::limits::REPAIRS_MAX`], with at most [`crate::limits::REPAIR_SEQS_MAX`] entries each.
    pub repairs: Vec<Repair>,
    /// How many there are.
    pub repair_count: usize,
    /// Calls of the last step without a result.
    pub unanswered: Vec<UnansweredCall>,
    /// What the API needs next.
    pub next: NextStep,
    /// Whether tokens were estimated.
    pub tokens_estimated: bool,
    /// Number of the window state; 0 if there is none.
    pub window_state: u64,
    /// What the window leaves out.
    pub cut: Option<Cut>,
    /// Whether steps were left out for this request alone.
    pub is_cut_for_request: bool,
    /// That compactions bring no relief any more.
    pub stall: Option<Stall>,
}

/// A window, or what a worker lacks of it.
#[derive(Clone, Debug)]
pub struct Restored {
    /// All but the items.
    pub header: WindowHeader,
    /// The items that follow.
    pub items: Vec<Item>,
}

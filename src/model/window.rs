//! Windows: what a model is sent.

use crate::model::Seq;
use bytes::Bytes;

/// Where a window item comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Entries of the log, as they are or merged as the API demands.
    Log,
    /// Entries of the log of which long texts are shown by their ends alone.
    Snipped,
    /// What stands for entries that left, and pins.
    Summary,
    /// Pins alone.
    Pin,
    /// Says what was left out.
    Notice,
    /// Made by the service so that the API accepts the window.
    Repair,
}

/// One element of the message list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The JSON object to send.
    pub payload: Bytes,
    /// Where it comes from.
    pub origin: Origin,
    /// The entries that it stands for, in the order of their content.
    pub seqs: Vec<Seq>,
    /// Its tokens.
    pub tokens: u64,
}

/// What the model's API needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NextStep {
    /// Not known: the format has no structure.
    Unknown,
    /// Input of the user.
    UserInput,
    /// Results of the unanswered calls.
    ToolResults,
    /// A call of the model.
    Model,
}

/// A tool call without a result.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct UnansweredCall {
    /// Its id; empty where the format has none.
    #[serde(default, rename = "id", skip_serializing_if = "String::is_empty")]
    pub call_id: String,
    /// The tool's name.
    #[serde(default, rename = "n", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What kind of call it is, where the format has several that pair with
    /// results of their own; else empty.
    #[serde(default, rename = "k", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Entry that holds it.
    #[serde(rename = "s")]
    pub seq: Seq,
    /// How many calls the entry makes before it.
    #[serde(default, rename = "x", skip_serializing_if = "is_zero")]
    pub index: u32,
}

impl UnansweredCall {
    /// Bytes of its id and name, which a client chose.
    pub fn text_bytes(&self) -> usize {
        self.call_id.len() + self.name.len()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes the field by reference")]
fn is_zero(index: &u32) -> bool {
    *index == 0
}

/// What was changed in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RepairKind {
    /// An interrupted call got a result that says so.
    ResultAdded,
    /// A result without a call was left out.
    OrphanResultOmitted,
    /// A second result for the same call was left out.
    DuplicateResultOmitted,
    /// Results were moved to their calls.
    ResultMoved,
    /// Entries were merged into one item.
    Merged,
    /// An empty block was left out.
    EmptyBlockOmitted,
    /// An id that was used before, or that the API does not take, got another.
    IdRenamed,
    /// A second item with the same id was left out.
    DuplicateItemOmitted,
    /// Reasoning that the API does not take was left out, such as that without
    /// the item that it led to.
    ReasoningOmitted,
    /// An opening user message was added.
    OpeningAdded,
    /// An entry or block that the API has no place for was left out.
    EntryOmitted,
    /// A mark of the prompt cache was left out.
    CacheMarkOmitted,
    /// A value that the API does not take was replaced.
    ValueReplaced,
}

/// One repair of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// What was done.
    pub kind: RepairKind,
    /// Entries concerned.
    pub seqs: Vec<Seq>,
    /// Id of the call or item concerned; empty if it has none.
    pub id: String,
    /// What it was about, for people.
    pub detail: String,
}

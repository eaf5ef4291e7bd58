//! What a payload says, in terms that all wire formats share.
//!
//! A reading borrows from the payload and never stands in for it: it serves
//! pairing, counting and previews.

use std::borrow::Cow;

/// Who speaks in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// System or developer text inside the message list.
    System,
    /// The user, with content of their own.
    User,
    /// The model.
    Model,
    /// Nothing but results of calls.
    Results,
    /// None that the format knows.
    Unknown,
}

/// What windows do with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Serving {
    /// They show it.
    Shown,
    /// Reasoning that the API takes only in front of the item that it led to:
    /// they show it together with that.
    WithNext,
    /// They leave it out: the API has no place for its role, or it has no
    /// content that the API takes.
    Omitted,
}

/// How a call is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// Its id; none where the format leaves it out.
    pub id: Option<Cow<'a, str>>,
    /// The tool's name; empty if there is none.
    pub name: Cow<'a, str>,
    /// Which kind of call it is, where a format has several that pair with
    /// results of their own: the `type` of a Responses item. Empty elsewhere.
    pub kind: Cow<'a, str>,
    /// Index of the block or part that holds it; 0 where the entry is the call.
    pub index: usize,
}

/// How a result names its call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallResult<'a> {
    /// The call's id; none where the format leaves it out.
    pub id: Option<Cow<'a, str>>,
    /// The tool's name, where the result gives it; else empty.
    pub name: Cow<'a, str>,
    /// Which kind of result it is: the `type` of a Responses item. Empty
    /// elsewhere.
    pub kind: Cow<'a, str>,
    /// Index of the block or part that holds it; 0 where the entry is the
    /// result.
    pub index: usize,
}

/// A block that calls a tool of the provider, or answers such a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderBlock<'a> {
    /// The call's id.
    pub id: Cow<'a, str>,
    /// Index of the block.
    pub index: usize,
    /// Whether it is the answer.
    pub is_result: bool,
}

/// What kind of media a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MediaKind {
    /// A picture.
    Image,
    /// A document, such as a PDF.
    Document,
    /// Sound or film.
    Recording,
}

/// A part of an entry that counts towards its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Text that the model reads: the raw JSON string token, quotes included.
    Text(&'a [u8]),
    /// JSON that the model reads as JSON, such as a call's arguments or a
    /// function response: the raw token.
    Json(&'a [u8]),
    /// A picture, document or recording.
    Media {
        /// What it is.
        kind: MediaKind,
        /// Its data in base64, if it is inline: the bytes between the quotes,
        /// without a `data:` prefix.
        base64: Option<&'a [u8]>,
    },
    /// A block that the format does not know, or an opaque one: counted by its
    /// bytes.
    Opaque(&'a [u8]),
}

/// What a payload says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading<'a> {
    /// Who speaks.
    pub role: Role,
    /// The calls that it makes, in order.
    pub calls: Vec<Call<'a>>,
    /// The results that it gives, in order.
    pub results: Vec<CallResult<'a>>,
    /// What counts towards its tokens, in order: all that the model is charged
    /// for but the names of `calls` and `results`.
    pub parts: Vec<Part<'a>>,
    /// What windows do with it.
    pub serving: Serving,
    /// Its id, where the API wants the ids of entries to be unique.
    pub item_id: Option<Cow<'a, str>>,
    /// Indices of text blocks that the API refuses because they are blank.
    pub blank_blocks: Vec<usize>,
    /// Whether results hold such blocks.
    pub has_blank_results: bool,
    /// Whether the model reasons in it where reasoning must precede the calls
    /// of a message.
    pub has_reasoning: bool,
    /// Whether it is a message that ends with reasoning, which the API takes
    /// whole only if the model goes on with it.
    pub ends_with_reasoning: bool,
    /// Calls of the provider's own tools, and their results.
    pub provider_blocks: Vec<ProviderBlock<'a>>,
}

impl<'a> Reading<'a> {
    /// A reading with nothing in it.
    pub fn new(role: Role) -> Self {
        Self {
            role,
            calls: Vec::new(),
            results: Vec::new(),
            parts: Vec::new(),
            serving: Serving::Shown,
            item_id: None,
            blank_blocks: Vec::new(),
            has_blank_results: false,
            has_reasoning: false,
            ends_with_reasoning: false,
            provider_blocks: Vec::new(),
        }
    }

    /// All of it but the parts, on its own: what pairing needs.
    #[must_use]
    pub fn into_calls(self) -> Reading<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        let call = |call: Call<'_>| Call {
            id: call.id.map(owned),
            name: owned(call.name),
            kind: owned(call.kind),
            index: call.index,
        };
        let result = |result: CallResult<'_>| CallResult {
            id: result.id.map(owned),
            name: owned(result.name),
            kind: owned(result.kind),
            index: result.index,
        };
        let provider_block = |block: ProviderBlock<'_>| ProviderBlock { id: owned(block.id), ..block };
        Reading {
            role: self.role,
            calls: self.calls.into_iter().map(call).collect(),
            results: self.results.into_iter().map(result).collect(),
            parts: Vec::new(),
            serving: self.serving,
            item_id: self.item_id.map(owned),
            blank_blocks: self.blank_blocks,
            has_blank_results: self.has_blank_results,
            has_reasoning: self.has_reasoning,
            ends_with_reasoning: self.ends_with_reasoning,
            provider_blocks: self.provider_blocks.into_iter().map(provider_block).collect(),
        }
    }

    /// The reading of a message of blocks, with what `own` says of those that
    /// are neither results nor blank.
    #[must_use]
    pub(super) fn of_blocks(mut self, own: OwnBlocks) -> Self {
        match self.results.is_empty() {
            _ if own.count > 0 => {}
            true => self.serving = Serving::Omitted,
            false => self.role = Role::Results,
        }
        if self.role == Role::Model && own.reasoning > 0 {
            self.has_reasoning = true;
            self.ends_with_reasoning = own.ends_with_reasoning && self.calls.is_empty();
            if own.reasoning == own.count {
                self.serving = Serving::WithNext;
            }
        }
        self
    }

    /// The reading of a payload that is not understood.
    pub fn opaque(payload: &'a [u8], serving: Serving) -> Self {
        Self { parts: vec![Part::Opaque(payload)], serving, ..Self::new(Role::Unknown) }
    }
}

/// The blocks of a message that are neither results nor blank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnBlocks {
    count: usize,
    reasoning: usize,
    ends_with_reasoning: bool,
}

impl OwnBlocks {
    /// Takes in the next one.
    pub(super) fn add(&mut self, is_reasoning: bool) {
        self.count += 1;
        self.reasoning += usize::from(is_reasoning);
        self.ends_with_reasoning = is_reasoning;
    }
}

#[cfg(test)]
mod tests;

//! Rounds and what is in them.

use super::edit::Message;
use super::{entries, messages};
use crate::format::json::string_token;
use crate::format::{OPENING, Reading, Role, Rules, read, rules, text_block};
use crate::limits::REPAIR_TEXT_BYTES_MAX;
use crate::model::{Entry, Item, Origin, Repair, RepairKind, Seq, UnansweredCall, WireFormat};
use crate::tokens::TokenCounter;
use bytes::Bytes;

/// Says of a scene that all entries of its round count.
pub(super) const NEWEST: Seq = Seq(u64::MAX);

/// Why reasoning is left out.
pub(super) const REASONING_OMITTED: &str = "the item that it led to does not follow";

/// What rounds are rendered for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Api {
    pub(super) format: WireFormat,
    pub(super) rules: &'static Rules,
    pub(super) counter: TokenCounter,
}

impl Api {
    pub(super) fn new(format: WireFormat, counter: TokenCounter) -> Self {
        Self { format, rules: rules(format), counter }
    }

    /// What a round becomes.
    pub(super) fn render(self, scene: Scene<'_>) -> Rendered {
        match self.rules.blocks {
            _ if scene.slots.is_empty() => self.opening(scene),
            Some(layout) => messages::render(self, layout, scene),
            None => entries::render(self, scene),
        }
    }

    /// What stands for the round before the first step, if nothing else does.
    fn opening(self, scene: Scene<'_>) -> Rendered {
        let mut rendered = Rendered::default();
        if let Some(layout) = self.rules.blocks.filter(|_| self.rules.opens_with_user && !scene.is_last) {
            let block = Bytes::from(text_block(self.format, &string_token(OPENING)));
            let payload = Message::user(layout).with_blocks(&[block]);
            let tokens = self.tokens(&payload);
            let item = Item { payload, origin: Origin::Repair, seqs: Vec::new(), tokens };
            rendered.items.push(RenderedItem { item, entry: None });
            rendered.repair(RepairKind::OpeningAdded, Vec::new(), "", "the log begins with the model");
            rendered.stable = 1;
        }
        rendered
    }

    pub(super) fn tokens(self, payload: &[u8]) -> u64 {
        self.counter.count_entry(&read(self.format, payload))
    }
}

/// A step of the model and what followed it, or what came before the first
/// step.
#[derive(Clone, Debug)]
pub(super) struct Round {
    /// Entry that began it; 0 for the first round.
    pub(super) start: Seq,
    /// Where its slots begin.
    pub(super) first_slot: usize,
    /// Items of the rounds before it.
    pub(super) items_before: usize,
}

/// An entry in its place in a round.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) seq: Seq,
    /// The entry with which it came to be shown: itself, but for reasoning,
    /// which waits for the item that it led to.
    pub(super) since: Seq,
    pub(super) role: Role,
    pub(super) tokens: u64,
    pub(super) payload: Bytes,
    /// Whether the payload is other than the entry's.
    pub(super) is_altered: bool,
    /// Where it comes from.
    pub(super) origin: Origin,
    pub(super) makes_calls: bool,
    pub(super) has_results: bool,
    /// Whether the API takes it whole only if the model goes on.
    pub(super) is_unfinished: bool,
}

impl Slot {
    pub(super) fn new(entry: Entry, reading: &Reading<'_>) -> Self {
        Self {
            seq: entry.seq,
            since: entry.seq,
            role: reading.role,
            tokens: entry.tokens,
            payload: entry.payload,
            is_altered: false,
            origin: Origin::Log,
            makes_calls: !reading.calls.is_empty(),
            has_results: !reading.results.is_empty(),
            is_unfinished: reading.ends_with_reasoning,
        }
    }

    /// Whether it goes on with the conversation without the round's results.
    pub(super) fn is_aside(&self) -> bool {
        matches!(self.role, Role::User | Role::System)
    }

    /// Whether it cannot stand as a message of its own if the model goes on.
    pub(super) fn is_incomplete(&self) -> bool {
        self.makes_calls || self.is_unfinished
    }

    pub(super) fn item(&self) -> Item {
        let seqs = if self.is_of_log() { vec![self.seq] } else { vec![] };
        Item { payload: self.payload.clone(), origin: self.origin, seqs, tokens: self.tokens }
    }

    /// Whether it shows an entry, rather than something made up.
    pub(super) fn is_of_log(&self) -> bool {
        matches!(self.origin, Origin::Log | Origin::Snipped)
    }
}

/// What is known of a round beyond its slots.
#[derive(Clone, Debug, Default)]
pub(super) struct Detail {
    /// Whether its items are other than its slots in their order.
    pub(super) is_rendered: bool,
    /// The calls of its step.
    pub(super) calls: Vec<RoundCall>,
    /// Entries that came later and answer calls of it.
    pub(super) late: Vec<Slot>,
    /// Blocks that are left out: entry and index.
    pub(super) omitted: Vec<(Seq, usize)>,
}

/// A call and its result.
#[derive(Clone, Debug)]
pub(super) struct RoundCall {
    /// The call as it was recorded.
    pub(super) call: UnansweredCall,
    /// Index of its block in the entry.
    pub(super) block: usize,
    /// The id that it gets because its own cannot be used.
    pub(super) new_id: Option<String>,
    pub(super) result: Option<RoundResult>,
}

impl RoundCall {
    /// The call with the id that it has in the window.
    pub(super) fn shown(&self) -> UnansweredCall {
        let call_id = self.new_id.as_ref().unwrap_or(&self.call.call_id).clone();
        UnansweredCall { call_id, ..self.call.clone() }
    }
}

/// Where a call's result is.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundResult {
    pub(super) seq: Seq,
    /// Index of its block in the entry.
    pub(super) block: usize,
    pub(super) is_late: bool,
}

/// A round as far as it is to be shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene<'a> {
    pub(super) slots: &'a [Slot],
    detail: &'a Detail,
    /// Newest entry that counts.
    until: Seq,
    /// Whether nothing comes after it.
    pub(super) is_last: bool,
    /// Whether pending calls get results that say that they were interrupted.
    pub(super) closes_pending: bool,
    /// How many slots come before the first that goes on with the conversation
    /// without the round's results.
    pub(super) step: usize,
}

impl<'a> Scene<'a> {
    /// A round after which the model went on; results after entry `until` do
    /// not count.
    pub(super) fn closed(slots: &'a [Slot], detail: &'a Detail, until: Seq) -> Self {
        let step = slots.iter().position(Slot::is_aside).unwrap_or(slots.len());
        Self { slots, detail, until, is_last: false, closes_pending: false, step }
    }

    /// The newest round of a log that ends with entry `until`.
    pub(super) fn last(slots: &'a [Slot], detail: &'a Detail, until: Seq, closes_pending: bool) -> Self {
        Self { is_last: true, closes_pending, ..Self::closed(slots, detail, until) }
    }

    /// The calls, each with its result.
    pub(super) fn calls(self) -> impl Iterator<Item = (&'a RoundCall, Option<RoundResult>)> {
        let calls = self.detail.calls.iter().filter(move |call| call.call.seq <= self.until);
        calls.map(move |call| (call, call.result.filter(|result| result.seq <= self.until)))
    }

    /// The slot of the entry that holds `result`.
    pub(super) fn slot_of(self, result: RoundResult) -> Option<&'a Slot> {
        let slots = if result.is_late { &self.detail.late } else { self.slots };
        let position = slots.binary_search_by_key(&result.seq, |slot| slot.since).ok()?;
        slots.get(position)
    }

    /// The id that a call gets because its own cannot be used.
    pub(super) fn new_id(self, seq: Seq, block: usize) -> Option<&'a str> {
        let calls = &self.detail.calls;
        let position = calls.binary_search_by_key(&(seq, block), |call| (call.call.seq, call.block)).ok()?;
        calls.get(position)?.new_id.as_deref()
    }

    /// Whether a block is left out.
    pub(super) fn omits(self, seq: Seq, block: usize) -> bool {
        self.detail.omitted.binary_search(&(seq, block)).is_ok()
    }

    /// Whether its calls may still be answered in their place, even if they are
    /// given results that say that they were interrupted.
    pub(super) fn is_provisional(self) -> bool {
        self.is_last && self.step == self.slots.len()
    }

    /// Whether its calls wait for results.
    pub(super) fn is_open(self) -> bool {
        self.is_provisional() && !self.closes_pending
    }
}

/// What a round became.
#[derive(Clone, Debug, Default)]
pub(super) struct Rendered {
    pub(super) items: Vec<RenderedItem>,
    pub(super) repairs: Vec<Repair>,
    /// Leading items that stay as they are when the log grows.
    pub(super) stable: usize,
}

/// An item, and the entry that it is if it is one, byte for byte.
#[derive(Clone, Debug)]
pub(super) struct RenderedItem {
    pub(super) item: Item,
    pub(super) entry: Option<Seq>,
}

impl RenderedItem {
    pub(super) fn of_slot(slot: &Slot) -> Self {
        Self { item: slot.item(), entry: (!slot.is_altered).then_some(slot.seq) }
    }
}

impl Rendered {
    pub(super) fn tokens(&self) -> u64 {
        self.items.iter().fold(0, |sum, rendered| sum.saturating_add(rendered.item.tokens))
    }

    pub(super) fn repair(&mut self, kind: RepairKind, seqs: Vec<Seq>, id: &str, detail: &str) {
        self.repairs.push(repair(kind, seqs, id, detail));
    }

    pub(super) fn result_added(&mut self, call: &UnansweredCall) {
        let detail = format!("call of {:?} was interrupted", call.name);
        self.repair(RepairKind::ResultAdded, vec![call.seq], &call.call_id, &detail);
    }

    pub(super) fn result_moved(&mut self, call: &UnansweredCall, result: RoundResult) {
        let detail = format!("moved to the call of {:?} in entry {}", call.name, call.seq);
        self.repair(RepairKind::ResultMoved, vec![result.seq], &call.call_id, &detail);
    }
}

pub(super) fn repair(kind: RepairKind, seqs: Vec<Seq>, id: &str, detail: &str) -> Repair {
    Repair { kind, seqs, id: beginning(id).to_owned(), detail: beginning(detail).to_owned() }
}

/// As much of a text as a repair tells.
fn beginning(text: &str) -> &str {
    let ends = text.char_indices().map(|(start, char)| start + char.len_utf8());
    let end = ends.take_while(|end| *end <= REPAIR_TEXT_BYTES_MAX).last().unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

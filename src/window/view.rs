//! Windows as they are served.

use super::assembler::Assembler;
use super::round::{NEWEST, REASONING_OMITTED, Rendered, RenderedItem, RoundCall, Scene, Slot, repair};
use crate::format::{Meeting, Role};
use crate::model::{Item, NextStep, Repair, RepairKind, Seq, UnansweredCall, WireFormat};
use bytes::Bytes;

/// A window of the log that an [`Assembler`] took in.
///
/// Making one costs what the newest round costs, not the log.
#[derive(Debug)]
pub struct Window<'a> {
    log: &'a Assembler,
    close_pending: bool,
    /// The tail, if it is not just its slots.
    tail: Option<Rendered>,
}

/// What a list that a worker holds has in common with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonPrefix {
    /// Leading items that are the same.
    pub items: usize,
    /// Whether the list is the window.
    pub is_unchanged: bool,
}

impl<'a> Window<'a> {
    pub(super) fn new(log: &'a Assembler, close_pending: bool) -> Self {
        let mut window = Self { log, close_pending, tail: None };
        if log.tail.is_rendered || window.closes_calls() {
            let tail = window.tail_index();
            window.tail = Some(log.api.render(window.scene(tail, NEWEST, true)));
        }
        window
    }

    /// What it is a window of.
    pub(super) fn log(&self) -> &'a Assembler {
        self.log
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        let tail = self.tail_index();
        self.items_before(tail)
            + self.tail.as_ref().map_or(self.log.slots_of(tail).len(), |tail| tail.items.len())
    }

    /// Whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens of all items.
    pub fn tokens(&self) -> u64 {
        let tail = self.tail.as_ref().map_or(self.log.tail_tokens, Rendered::tokens);
        self.log.settled_tokens.saturating_add(tail)
    }

    /// The items from the `first` on, counted from 0.
    pub fn items_from(&self, first: usize) -> impl Iterator<Item = Item> {
        self.shown_from(first).map(Shown::item)
    }

    /// Number of leading items that stay as they are when the log grows, unless
    /// a late result revises the window.
    pub fn stable_prefix_items(&self) -> usize {
        let tail = self.tail_index();
        let slots = self.log.slots_of(tail);
        let in_tail = match &self.tail {
            Some(rendered) => rendered.stable,
            None => slots.len() - usize::from(slots.last().is_some_and(|last| self.may_grow(last))),
        };
        self.items_before(tail) + in_tail
    }

    /// Whether what follows may be merged into the last slot of a tail that is
    /// just its slots.
    fn may_grow(&self, last: &Slot) -> bool {
        match self.log.api.rules.meeting {
            Meeting::Apart => false,
            Meeting::Merged => true,
            Meeting::MergedIfIncomplete => last.is_incomplete() || !self.log.calls().pending.is_empty(),
        }
    }

    /// What was changed so that the API accepts the window, in the order of the
    /// log: all of it, or what concerns the round of entry `since` and those
    /// after it.
    ///
    /// Costs what it returns.
    pub fn repairs(&self, since: Option<Seq>) -> Vec<Repair> {
        let first = since.map_or(0, |since| self.log.round_at(since));
        let start = self.log.rounds.get(first).map_or(Seq(0), |round| round.start);
        let omitted =
            |slot: &Slot| repair(RepairKind::ReasoningOmitted, vec![slot.seq], "", REASONING_OMITTED);
        let rendered = self.log.rendered.range(first..).map(|(_, (_, rendered))| rendered).chain(&self.tail);
        let of_rounds = rendered.flat_map(|rendered| &rendered.repairs);
        let of_entries =
            self.log.repairs.iter().rev().take_while(|repair| repair.seqs.last() >= Some(&start));
        let mut repairs: Vec<_> = of_rounds.chain(of_entries).cloned().collect();
        repairs.extend(self.log.waiting.iter().map(omitted));
        repairs.sort_by(|a, b| (&a.seqs, a.kind, &a.id).cmp(&(&b.seqs, b.kind, &b.id)));
        repairs
    }

    /// The calls of the last step that wait for results, with the ids that they
    /// have in the window.
    pub fn unanswered(&self) -> Vec<UnansweredCall> {
        if self.close_pending || self.log.calls().pending.is_empty() {
            return Vec::new();
        }
        let calls = self.log.tail.calls.iter();
        calls.filter(|call| call.result.is_none()).map(RoundCall::shown).collect()
    }

    /// What the API needs next.
    pub fn next(&self) -> NextStep {
        let is_paused = self.log.provider_calls.is_paused();
        match self.log.last_speaker {
            _ if self.log.api.format == WireFormat::Opaque => NextStep::Unknown,
            _ if !self.close_pending && !self.log.calls().pending.is_empty() => NextStep::ToolResults,
            Some(Role::Model) if self.closes_calls() || is_paused => NextStep::Model,
            None | Some(Role::Model) => NextStep::UserInput,
            Some(_) => NextStep::Model,
        }
    }

    /// What the window has in common with the list that a worker holds: the
    /// window of the log up to entry `served`, with the same parameters, and
    /// after it the messages up to entry `known` as they were recorded.
    ///
    /// Costs what the round of `served` and all that came after it cost.
    pub fn common_prefix(&self, served: Seq, known: Seq) -> CommonPrefix {
        let last = self.log.round_at(served);
        let first = self.revised_since(served).min().map_or(last, |revised| revised.min(last));
        let mut items = self.items_before(first);
        for round in first..=last {
            if self.rendered(round).is_none() {
                items += slots_until(self.log.slots_of(round), served).len();
                continue;
            }
            let held = self.log.api.render(self.scene(round, served, round == last)).items;
            let shown = held.iter().zip(self.shown_from(items));
            let same = shown.take_while(|(held, now)| held.item.payload == now.payload()).count();
            items += same;
            if same < held.len() {
                return CommonPrefix { items, is_unchanged: false };
            }
        }
        if self.close_pending && self.rendered(last).is_none() && self.is_answered_after(last, served) {
            return CommonPrefix { items, is_unchanged: false };
        }
        let from = self.log.messages.partition_point(|seq| *seq <= served);
        let persisted =
            self.log.messages.get(from..).unwrap_or_default().iter().take_while(|seq| **seq <= known);
        let mut now = self.shown_from(items);
        for seq in persisted {
            if now.next().is_none_or(|shown| shown.entry() != Some(*seq)) {
                return CommonPrefix { items, is_unchanged: false };
            }
            items += 1;
        }
        CommonPrefix { items, is_unchanged: now.next().is_none() }
    }

    /// The oldest entry whose round is other than in the window of the log up to
    /// entry `served`: that one, or the call of a result that came late.
    pub fn changed_since(&self, served: Seq) -> Seq {
        let revised = self.revised_since(served).min().and_then(|round| self.log.rounds.get(round));
        revised.map_or(served, |round| round.start.min(served))
    }

    /// Rounds that results revised which came after entry `served`.
    fn revised_since(&self, served: Seq) -> impl Iterator<Item = usize> {
        let late = self.log.revisions.partition_point(|(seq, _)| *seq <= served);
        self.log.revisions.get(late..).unwrap_or_default().iter().map(|(_, round)| *round)
    }

    /// Whether results came after entry `served` in a round that is just its
    /// slots: calls of it may have been closed when that was the newest entry.
    fn is_answered_after(&self, round: usize, served: Seq) -> bool {
        let slots = self.log.slots_of(round);
        let after = slots.get(slots_until(slots, served).len()..).unwrap_or_default();
        after.iter().any(|slot| slot.has_results)
    }

    /// Whether pending calls are given results.
    fn closes_calls(&self) -> bool {
        self.close_pending && !self.log.calls().pending.is_empty()
    }

    fn tail_index(&self) -> usize {
        self.log.rounds.len() - 1
    }

    fn items_before(&self, round: usize) -> usize {
        self.log.rounds.get(round).map_or(0, |round| round.items_before)
    }

    /// What a round became, if it is not just its slots.
    fn rendered(&self, round: usize) -> Option<&Rendered> {
        if round == self.tail_index() {
            self.tail.as_ref()
        } else {
            self.log.rendered.get(&round).map(|(_, rendered)| rendered)
        }
    }

    /// A round as it is when `until` is the newest entry that counts.
    fn scene(&self, round: usize, until: Seq, is_last: bool) -> Scene<'a> {
        let slots = slots_until(self.log.slots_of(round), until);
        let detail = match self.log.rendered.get(&round) {
            Some((detail, _)) => detail,
            None => &self.log.tail,
        };
        if is_last {
            Scene::last(slots, detail, until, self.close_pending)
        } else {
            Scene::closed(slots, detail, until)
        }
    }

    /// All that the window shows from its `first` item on.
    fn shown_from(&self, first: usize) -> impl Iterator<Item = Shown<'_>> {
        let start = self.log.rounds.partition_point(|round| round.items_before <= first).saturating_sub(1);
        let skipped = first - self.items_before(start);
        (start..self.log.rounds.len()).flat_map(move |round| {
            let (slots, items) = match self.rendered(round) {
                Some(rendered) => (&[][..], rendered.items.as_slice()),
                None => (self.log.slots_of(round), &[][..]),
            };
            let skipped = if round == start { skipped } else { 0 };
            let slots = slots.get(skipped..).unwrap_or_default().iter();
            let items = items.get(skipped..).unwrap_or_default().iter();
            slots.map(Shown::Slot).chain(items.map(Shown::Rendered))
        })
    }
}

fn slots_until(slots: &[Slot], until: Seq) -> &[Slot] {
    slots.get(..slots.partition_point(|slot| slot.since <= until)).unwrap_or_default()
}

/// An item of a window.
#[derive(Clone, Copy, Debug)]
enum Shown<'a> {
    Slot(&'a Slot),
    Rendered(&'a RenderedItem),
}

impl<'a> Shown<'a> {
    fn item(self) -> Item {
        match self {
            Self::Slot(slot) => slot.item(),
            Self::Rendered(rendered) => rendered.item.clone(),
        }
    }

    fn payload(self) -> &'a Bytes {
        match self {
            Self::Slot(slot) => &slot.payload,
            Self::Rendered(rendered) => &rendered.item.payload,
        }
    }

    /// The entry that it is, byte for byte, if it is one.
    fn entry(self) -> Option<Seq> {
        match self {
            Self::Slot(slot) => (!slot.is_altered).then_some(slot.seq),
            Self::Rendered(rendered) => rendered.entry,
        }
    }
}

//! Rendering where messages are made of blocks and all results of a step stand
//! in one message.

use super::edit::{Message, with_value, without_blank_text};
use super::round::{Api, REASONING_OMITTED, Rendered, RenderedItem, RoundCall, RoundResult, Scene, Slot};
use crate::format::json::{Value, string_token};
use crate::format::{Blocks, Meeting, ResultPlace, Role, interrupted_result, is_reasoning, read};
use crate::model::{Item, Origin, RepairKind, Seq};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Renders a round: the messages of the step, the message with its results, and
/// what else the user said.
pub(super) fn render(api: Api, layout: &'static Blocks, scene: Scene<'_>) -> Rendered {
    let mut renderer =
        Renderer { api, layout, scene, parsed: BTreeMap::new(), rendered: Rendered::default() };
    let (step, rest): (Vec<_>, Vec<_>) = scene.slots.iter().partition(|slot| slot.role == Role::Model);
    let results = renderer.results();
    let is_followed = !results.is_empty() || !rest.is_empty();
    renderer.step(&step, is_followed);
    let step_items = renderer.rendered.items.len();
    renderer.rest(&results, &rest);
    let mut rendered = renderer.rendered;
    let items = rendered.items.len();
    rendered.stable = match api.rules.meeting {
        _ if !scene.is_last => items,
        Meeting::Merged => items.saturating_sub(1),
        _ if is_followed && scene.is_provisional() && scene.calls().any(|(_, result)| result.is_none()) => {
            step_items
        }
        _ if is_followed => items,
        _ => items.saturating_sub(usize::from(is_incomplete(&step))),
    };
    rendered
}

/// Whether a message of these entries cannot stand alone if the model goes on:
/// the results of its calls would not come directly after it, or its end is
/// unfinished.
fn is_incomplete(slots: &[&Slot]) -> bool {
    slots.iter().any(|slot| slot.makes_calls) || slots.last().is_some_and(|slot| slot.is_unfinished)
}

struct Renderer<'a> {
    api: Api,
    layout: &'static Blocks,
    scene: Scene<'a>,
    parsed: BTreeMap<Seq, Rc<Parsed>>,
    rendered: Rendered,
}

/// An entry taken apart.
struct Parsed {
    message: Message,
    /// Indices of the blocks that are results.
    results: Vec<usize>,
    /// Indices of the blocks that are blank.
    blank: Vec<usize>,
    /// Calls of the provider's own tools by the index of their block, and their
    /// answers.
    provider: BTreeMap<usize, (String, bool)>,
    /// Whether its role is that of users, and not one for results alone.
    is_users: bool,
}

/// The block of a call's result.
struct ResultBlock<'a> {
    block: Bytes,
    /// Where it was found; none if it was added.
    source: Option<(RoundResult, &'a Slot)>,
    is_changed: bool,
}

/// An entry that a message is made from.
struct Source<'a> {
    slot: &'a Slot,
    parsed: Rc<Parsed>,
    /// The blocks of results that are taken from it, in the order of the
    /// message.
    results: Vec<usize>,
    /// Whether what it says beyond results is in the message.
    is_said: bool,
}

impl Source<'_> {
    /// Whether all of it is in the message.
    fn is_whole(&self) -> bool {
        self.results.len() == self.parsed.results.len() && (self.is_said || self.slot.role == Role::Results)
    }

    /// Whether results stand in it where the API does not take them.
    fn has_misplaced_results(&self, place: ResultPlace) -> bool {
        let are_first = self.parsed.results.iter().copied().eq(0..self.parsed.results.len());
        let are_sorted = place != ResultPlace::NextMessageInCallOrder || self.results.is_sorted();
        !(self.results.is_empty() || are_first && are_sorted)
    }

    /// Whether it can be the message as it was recorded, if nothing else is in
    /// that.
    fn can_stand_alone(&self, place: ResultPlace) -> bool {
        self.is_whole() && self.parsed.blank.is_empty() && !self.has_misplaced_results(place)
    }
}

impl<'a> Renderer<'a> {
    fn parsed(&mut self, slot: &Slot) -> Rc<Parsed> {
        let parse = || {
            let reading = read(self.api.format, &slot.payload);
            let role = Value::of(&slot.payload).member("role");
            Rc::new(Parsed {
                message: Message::parse(self.api.format, self.layout, &slot.payload),
                results: reading.results.iter().map(|result| result.index).collect(),
                blank: reading.blank_blocks,
                provider: reading
                    .provider_blocks
                    .into_iter()
                    .map(|block| (block.index, (block.id.into_owned(), block.is_result)))
                    .collect(),
                is_users: role.is_none_or(|role| role.is_text("user")),
            })
        };
        Rc::clone(self.parsed.entry(slot.seq).or_insert_with(parse))
    }

    /// The results of the round's calls, in call order.
    fn results(&mut self) -> Vec<ResultBlock<'a>> {
        let scene = self.scene;
        scene.calls().filter_map(|(call, result)| self.result(call, result)).collect()
    }

    fn result(&mut self, call: &RoundCall, result: Option<RoundResult>) -> Option<ResultBlock<'a>> {
        let found = result.and_then(|result| Some((result, self.scene.slot_of(result)?)));
        let Some((result, slot)) = found else {
            if self.scene.is_open() {
                return None;
            }
            self.rendered.result_added(&call.call);
            let block = interrupted_result(self.api.format, &call.shown()).into();
            return Some(ResultBlock { block, source: None, is_changed: false });
        };
        if result.is_late {
            self.rendered.result_moved(&call.call, result);
        }
        let recorded = self.parsed(slot).message.blocks.get(result.block)?.clone();
        let mut block = without_blank_text(&recorded, self.layout.result_content);
        if block != recorded {
            let detail = "blank blocks of text in a result";
            self.rendered.repair(RepairKind::EmptyBlockOmitted, vec![result.seq], &call.call.call_id, detail);
        }
        if let Some(id) = &call.new_id {
            block = with_value(&block, self.layout.result_id, &string_token(id));
        }
        let is_changed = block != recorded;
        Some(ResultBlock { block, source: Some((result, slot)), is_changed })
    }

    /// The messages of the step.
    fn step(&mut self, slots: &[&'a Slot], is_followed: bool) {
        let mut group: Vec<&'a Slot> = Vec::new();
        for slot in slots {
            let joins = match self.api.rules.meeting {
                Meeting::Merged => true,
                Meeting::MergedIfIncomplete => is_incomplete(&group),
                Meeting::Apart => false,
            };
            if !joins && !group.is_empty() {
                self.model_message(&group, true);
                group.clear();
            }
            group.push(slot);
        }
        if !group.is_empty() {
            self.model_message(&group, is_followed);
        }
    }

    /// One message of the model, made of entries.
    fn model_message(&mut self, slots: &[&'a Slot], is_followed: bool) {
        let mut blocks = Vec::new();
        let mut head = None;
        let mut is_changed = slots.len() > 1;
        // Calls of the provider's own tools that have no answer yet: where they
        // are in `blocks`.
        let mut open: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for slot in slots {
            let parsed = self.parsed(slot);
            for (index, block) in parsed.message.blocks.iter().enumerate() {
                let is_omitted = self.scene.omits(slot.seq, index);
                if is_omitted || parsed.blank.binary_search(&index).is_ok() {
                    is_changed = true;
                    continue;
                }
                match parsed.provider.get(&index) {
                    Some((id, true)) => _ = open.get_mut(id).and_then(Vec::pop),
                    Some((id, false)) => open.entry(id.clone()).or_default().push(blocks.len()),
                    None => {}
                }
                let new_id = self.scene.new_id(slot.seq, index);
                is_changed |= new_id.is_some();
                let block = match new_id {
                    Some(id) => with_value(block, self.layout.call_id, &string_token(id)),
                    None => block.clone(),
                };
                blocks.push((*slot, block));
            }
            self.blanks_omitted(slot, &parsed);
            head.get_or_insert(parsed);
        }
        let resumed = slots.last().filter(|_| !is_followed).map(|slot| slot.seq);
        let is_whole = !self.drop_unfinished(&mut blocks, open, resumed);
        let blocks: Vec<_> = blocks.into_iter().map(|(_, block)| block).collect();
        let (Some(head), false) = (head, blocks.is_empty()) else { return };
        let item = match slots {
            [slot] if !is_changed && is_whole => RenderedItem::of_slot(slot),
            _ => {
                let payload = head.message.with_blocks(&blocks);
                let tokens =
                    is_whole.then(|| slots.iter().fold(0, |sum, slot| slot.tokens.saturating_add(sum)));
                self.composed(payload, slots, tokens)
            }
        };
        self.rendered.items.push(item);
    }

    /// Leaves out what the API does not take in a message with which the model
    /// did not go on: `open` calls of the provider's own tools, but for those of
    /// the entry that the API is to resume, and reasoning at the end. While the
    /// worker's tools are called, the provider's wait.
    fn drop_unfinished(
        &mut self,
        blocks: &mut Vec<(&Slot, Bytes)>,
        open: BTreeMap<String, Vec<usize>>,
        resumed: Option<Seq>,
    ) -> bool {
        let before = blocks.len();
        let mut dropped = BTreeSet::new();
        for (id, positions) in open {
            for position in positions {
                let drops = |(slot, _): &&(&Slot, Bytes)| !slot.makes_calls && Some(slot.seq) != resumed;
                let Some((slot, _)) = blocks.get(position).filter(drops) else { continue };
                let detail = "call of the provider's own tool without its result";
                self.rendered.repair(RepairKind::EntryOmitted, vec![slot.seq], &id, detail);
                dropped.insert(position);
            }
        }
        let mut positions = 0..;
        blocks.retain(|_| positions.next().is_none_or(|position| !dropped.contains(&position)));
        let is_end = |(slot, block): &mut (&Slot, Bytes)| {
            !slot.makes_calls && is_reasoning(self.api.format, Value::of(block))
        };
        while let Some((slot, _)) = blocks.pop_if(is_end) {
            self.rendered.repair(RepairKind::ReasoningOmitted, vec![slot.seq], "", REASONING_OMITTED);
        }
        blocks.len() < before
    }

    /// What follows the step. Results that came in their place stand in the
    /// first entries, before anything else was said.
    fn rest(&mut self, results: &[ResultBlock<'a>], slots: &[&'a Slot]) {
        let in_place: BTreeSet<_> = results.iter().filter_map(|result| Some(result.source?.0.seq)).collect();
        let with_results = match self.api.rules.meeting {
            Meeting::Merged => slots.len(),
            _ => slots.iter().take_while(|slot| in_place.contains(&slot.seq)).count(),
        };
        let (with_results, apart) = slots.split_at(with_results);
        if !results.is_empty() || !with_results.is_empty() {
            self.user_message(results, with_results);
        }
        for slot in apart {
            self.user_message(&[], std::slice::from_ref(slot));
        }
    }

    /// One message of the user: results, then all else that `slots` say.
    fn user_message(&mut self, results: &[ResultBlock<'a>], slots: &[&'a Slot]) {
        let mut blocks: Vec<_> = results.iter().map(|result| result.block.clone()).collect();
        let sources = self.sources(results, slots);
        let mut said: Vec<_> = sources.iter().filter(|source| source.is_said).collect();
        said.sort_by_key(|source| source.slot.seq);
        for source in &said {
            blocks.extend(source.parsed.own_blocks().cloned());
            self.blanks_omitted(source.slot, &source.parsed);
        }
        for source in &sources {
            if source.has_misplaced_results(self.api.rules.results) {
                let detail = "results before all else, in the order that the API demands";
                self.rendered.repair(RepairKind::ResultMoved, vec![source.slot.seq], "", detail);
            }
        }
        let is_as_recorded = results.iter().all(|result| result.source.is_some() && !result.is_changed);
        let item = match sources.as_slice() {
            [one] if is_as_recorded && one.can_stand_alone(self.api.rules.results) => {
                RenderedItem::of_slot(one.slot)
            }
            _ => {
                let head = said.iter().find(|source| source.parsed.is_users).or(said.first());
                let payload = match head {
                    Some(head) => head.parsed.message.with_blocks(&blocks),
                    None => Message::user(self.layout).with_blocks(&blocks),
                };
                let is_added = results.iter().any(|result| result.source.is_none());
                let is_whole = !is_added && sources.iter().all(Source::is_whole);
                let tokens = sources.iter().fold(0, |sum, source| source.slot.tokens.saturating_add(sum));
                let slots: Vec<_> = sources.iter().map(|source| source.slot).collect();
                self.composed(payload, &slots, is_whole.then_some(tokens))
            }
        };
        self.rendered.items.push(item);
    }

    /// The entries that a message is made from, in the order of its content.
    fn sources(&mut self, results: &[ResultBlock<'a>], slots: &[&'a Slot]) -> Vec<Source<'a>> {
        let mut sources: Vec<Source<'a>> = Vec::new();
        let mut positions = BTreeMap::new();
        let taken = results.iter().filter_map(|result| result.source);
        let taken = taken.map(|(result, slot)| (slot, Some(result.block)));
        for (slot, result) in taken.chain(slots.iter().map(|slot| (*slot, None))) {
            let position = *positions.entry(slot.seq).or_insert(sources.len());
            if position == sources.len() {
                let parsed = self.parsed(slot);
                sources.push(Source { slot, parsed, results: Vec::new(), is_said: false });
            }
            if let Some(source) = sources.get_mut(position) {
                source.results.extend(result);
                source.is_said |= result.is_none();
            }
        }
        sources
    }

    /// An item that is no entry as it was recorded. Its tokens are those of the
    /// entries if they are all in it.
    fn composed(&mut self, payload: Bytes, slots: &[&Slot], tokens: Option<u64>) -> RenderedItem {
        let seqs: Vec<_> = slots.iter().filter(|slot| slot.is_of_log()).map(|slot| slot.seq).collect();
        if seqs.len() > 1 {
            self.rendered.repair(
                RepairKind::Merged,
                seqs.clone(),
                "",
                "one message where the API takes no more",
            );
        }
        let made_up = slots.iter().find(|slot| slot.origin != Origin::Log);
        let origin = match (made_up, slots) {
            (Some(slot), _) => slot.origin,
            (None, []) => Origin::Repair,
            (None, _) => Origin::Log,
        };
        let tokens = tokens.unwrap_or_else(|| self.api.tokens(&payload));
        RenderedItem { item: Item { payload, origin, seqs, tokens }, entry: None }
    }

    /// Reports the blank blocks of `slot`, if there are any.
    fn blanks_omitted(&mut self, slot: &Slot, parsed: &Parsed) {
        if !parsed.blank.is_empty() {
            let detail = format!("{} blank blocks of text", parsed.blank.len());
            self.rendered.repair(RepairKind::EmptyBlockOmitted, vec![slot.seq], "", &detail);
        }
    }
}

impl Parsed {
    /// The blocks that are neither results nor blank.
    fn own_blocks(&self) -> impl Iterator<Item = &Bytes> {
        let blocks = self.message.blocks.iter().enumerate();
        let is_own = |index: &usize| {
            self.results.binary_search(index).is_err() && self.blank.binary_search(index).is_err()
        };
        blocks.filter(move |(index, _)| is_own(index)).map(|(_, block)| block)
    }
}

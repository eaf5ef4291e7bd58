//! Taking in the log.

use super::edit::with_value;
use super::entries;
use super::prepared::{Message, Prepared, preparation};
use super::provider_calls::ProviderCalls;
use super::round::{Api, Detail, NEWEST, Rendered, Round, RoundCall, RoundResult, Scene, Slot, repair};
use super::view::Window;
use crate::format::json::{Value, string_token};
use crate::format::{
    Answer, CallIds, CallTracker, Meeting, Pushed, Reading, ResultPlace, Role, Serving, canonical_digest,
    replacement_id,
};
use crate::model::{CallState, Entry, Origin, Repair, RepairKind, Seq, WindowState, WireFormat};
use crate::tokens::TokenCounter;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Makes windows of a log that it takes in entry by entry.
///
/// A push costs what its entry costs, whatever came before; only a late result
/// may cost as much as the rounds behind its call. The windows are the same
/// however the entries were batched.
#[derive(Clone, Debug)]
pub struct Assembler {
    pub(super) api: Api,
    pub(super) tracker: CallTracker,
    /// What is shown besides the log.
    pub(super) state: Arc<WindowState>,
    /// The messages of the log.
    pub(super) messages: Vec<Seq>,
    /// The entries that are shown in their round, in order.
    pub(super) slots: Vec<Slot>,
    /// Never empty; the last is the *tail*, which may still grow.
    pub(super) rounds: Vec<Round>,
    /// Those rounds before the tail that are not just their slots.
    pub(super) rendered: BTreeMap<usize, (Detail, Rendered)>,
    pub(super) tail: Detail,
    pub(super) tail_tokens: u64,
    /// Tokens of the rounds before the tail.
    pub(super) settled_tokens: u64,
    /// Reasoning that waits for the item that it led to.
    pub(super) waiting: Vec<Slot>,
    /// Whether results came since.
    is_waiting_interrupted: bool,
    /// Late results, each with the round that it changed.
    pub(super) revisions: Vec<(Seq, usize)>,
    /// What was changed for good when an entry came in.
    pub(super) repairs: Vec<Repair>,
    pub(super) provider_calls: ProviderCalls,
    /// Ids, or names where there are none, of all calls.
    called: HashSet<String>,
    /// Ids of all items that must have one of their own.
    items: HashMap<String, Bytes>,
    /// Who spoke last, if it was the user or the model.
    pub(super) last_speaker: Option<Role>,
}

impl Assembler {
    /// An assembler of windows for `format`, with no entry yet. What it makes
    /// itself is counted by `counter`.
    pub fn new(format: WireFormat, counter: TokenCounter) -> Self {
        Self::with_state(format, counter, Arc::default(), vec![])
    }

    /// An assembler of windows with a state. `kept` are the entries before its cut
    /// that stay; the log's entries from the cut on are to be pushed.
    pub fn with_state(
        format: WireFormat,
        counter: TokenCounter,
        state: Arc<WindowState>,
        kept: Vec<Entry>,
    ) -> Self {
        let mut assembler = Self::empty(format, counter, state);
        assembler.begin(kept);
        assembler
    }

    fn empty(format: WireFormat, counter: TokenCounter, state: Arc<WindowState>) -> Self {
        Self {
            state,
            api: Api::new(format, counter),
            tracker: CallTracker::new(format, CallState::default()),
            messages: Vec::new(),
            slots: Vec::new(),
            rounds: vec![Round { start: Seq(0), first_slot: 0, items_before: 0 }],
            rendered: BTreeMap::new(),
            tail: Detail::default(),
            tail_tokens: 0,
            settled_tokens: 0,
            waiting: Vec::new(),
            is_waiting_interrupted: false,
            revisions: Vec::new(),
            repairs: Vec::new(),
            provider_calls: ProviderCalls::default(),
            called: HashSet::new(),
            items: HashMap::new(),
            last_speaker: None,
        }
    }

    /// Takes in the log's next entry. One that is not a message is in no
    /// window.
    pub fn push(&mut self, entry: Entry) {
        let prepare = self.preparation();
        self.push_prepared(prepare(entry));
    }

    /// Prepares entries for this assembler, in any order and on any thread:
    /// most of what a push costs, and nothing of it depends on the log.
    pub fn preparation(&self) -> impl Fn(Entry) -> Prepared + Clone + Send + Sync + 'static {
        preparation(self.api.format, self.api.counter, self.state.clone())
    }

    /// Prepares an entry whose message may have been looked through before.
    pub fn prepared(&self, entry: Entry, message: Option<Message>) -> Prepared {
        Prepared::of(self.api, &self.state, entry, message)
    }

    /// Takes in the log's next entry, which was prepared for this assembler.
    pub fn push_prepared(&mut self, prepared: Prepared) {
        let Prepared { entry, message } = prepared;
        let Some(Message { payload, mends, reading, tokens, origin }) = message else { return };
        if matches!(origin, Origin::Log | Origin::Snipped) {
            self.messages.push(entry.seq);
        }
        for (kind, detail) in &mends {
            self.repair(*kind, entry.seq, "", detail);
        }
        let repetition = self.repetition(&reading, &payload);
        if repetition == Some(Repetition::Omitted) {
            let id = reading.item_id.as_deref().unwrap_or_default();
            return self.repair(
                RepairKind::DuplicateItemOmitted,
                entry.seq,
                id,
                "an item with this id is there already",
            );
        }
        let pushed = self.tracker.push(entry.seq, &reading);
        let mut slot = Slot::new(entry, &reading);
        if !mends.is_empty() {
            slot.tokens = tokens;
            slot.payload = payload;
            slot.is_altered = true;
        }
        slot.is_altered |= origin != Origin::Log;
        slot.origin = origin;
        match reading.serving {
            Serving::Omitted => {
                let why = if self.api.rules.roles.contains(&reading.role) {
                    "has no content"
                } else {
                    "has no place in the list"
                };
                return self.repair(RepairKind::EntryOmitted, slot.seq, "", why);
            }
            Serving::WithNext => return self.wait(slot, &reading),
            Serving::Shown => {}
        }
        let is_shown = reading.role != Role::Results || pushed.answers.iter().any(Option::is_some);
        if is_shown && let Some(id) = reading.item_id.as_deref() {
            match repetition {
                Some(_) => self.rename_item(&mut slot, id),
                None => _ = self.items.insert(id.to_owned(), slot.payload.clone()),
            }
        }
        self.tail.is_rendered |= pushed.interrupts;
        if pushed.begins_step {
            self.close_tail(slot.seq);
        }
        let is_shown_here = self.place_results(&mut slot, &reading, &pushed);
        if reading.role == Role::Results && !is_shown_here {
            return;
        }
        self.settle_waiting(&slot);
        self.place_calls(&mut slot, &reading);
        self.place_provider_calls(&mut slot, &reading);
        self.tail.is_rendered |= !self.is_plain(&slot, &reading, &pushed);
        self.last_speaker = match slot.role {
            Role::Model => Some(Role::Model),
            Role::User | Role::Results => Some(Role::User),
            Role::System | Role::Unknown => self.last_speaker,
        };
        self.place(slot);
    }

    /// The window of the log as far as it was taken in. With `close_pending`
    /// the unanswered calls of the last step get results that say that they
    /// were interrupted.
    pub fn window(&self, close_pending: bool) -> Window<'_> {
        Window::new(self, close_pending)
    }

    /// The calls that wait for results.
    pub fn calls(&self) -> &CallState {
        self.tracker.state()
    }

    fn place(&mut self, slot: Slot) {
        self.tail_tokens = self.tail_tokens.saturating_add(slot.tokens);
        self.slots.push(slot);
    }

    fn repair(&mut self, kind: RepairKind, seq: Seq, id: &str, detail: &str) {
        self.repairs.push(repair(kind, vec![seq], id, detail));
    }
}

/// Rounds.
impl Assembler {
    /// The slots of a round.
    pub(super) fn slots_of(&self, round: usize) -> &[Slot] {
        let first = self.rounds.get(round).map_or(self.slots.len(), |round| round.first_slot);
        let end = self.rounds.get(round + 1).map_or(self.slots.len(), |next| next.first_slot);
        self.slots.get(first..end).unwrap_or_default()
    }

    /// The newest round that began with or before `seq`.
    pub(super) fn round_at(&self, seq: Seq) -> usize {
        self.rounds.partition_point(|round| round.start <= seq).saturating_sub(1)
    }

    /// Ends the tail: the step that `start` begins is the new one.
    fn close_tail(&mut self, start: Seq) {
        let detail = std::mem::take(&mut self.tail);
        let index = self.rounds.len() - 1;
        let slots = self.slots_of(index);
        let lacks_opening = self.api.rules.opens_with_user && slots.is_empty();
        let (items, tokens) = if detail.is_rendered || lacks_opening {
            let rendered = self.api.render(Scene::closed(slots, &detail, NEWEST));
            let size = (rendered.items.len(), rendered.tokens());
            self.rendered.insert(index, (detail, rendered));
            size
        } else {
            (slots.len(), self.tail_tokens)
        };
        self.settled_tokens = self.settled_tokens.saturating_add(tokens);
        self.tail_tokens = 0;
        let items_before = self.rounds.last().map_or(0, |round| round.items_before) + items;
        self.rounds.push(Round { start, first_slot: self.slots.len(), items_before });
    }

    /// Renders a round before the tail again, since a late result came. It has
    /// as many items as before: the result takes the place of the one that was
    /// made up.
    fn revise(&mut self, index: usize) {
        let slots = self.slots_of(index);
        let Some((detail, old)) = self.rendered.get(&index) else { return };
        let new = self.api.render(Scene::closed(slots, detail, NEWEST));
        self.settled_tokens = self.settled_tokens.saturating_sub(old.tokens()).saturating_add(new.tokens());
        debug_assert_eq!(old.items.len(), new.items.len(), "round {index}");
        if let Some((_, rendered)) = self.rendered.get_mut(&index) {
            *rendered = new;
        }
    }
}

/// Calls and results.
impl Assembler {
    /// Takes in the calls of an entry.
    fn place_calls(&mut self, slot: &mut Slot, reading: &Reading<'_>) {
        let pending = &self.tracker.state().pending;
        let calls = pending.get(pending.len() - reading.calls.len()..).unwrap_or_default().to_vec();
        let mut in_step = HashSet::new();
        let mut new_ids = Vec::with_capacity(calls.len());
        for call in &calls {
            let is_first_in_step = in_step.insert(&call.call_id);
            let key = if call.call_id.is_empty() { &call.name } else { &call.call_id };
            let is_new = self.called.insert(key.clone());
            let must_change = match self.api.rules.call_ids {
                CallIds::Free => false,
                call_ids if !call_ids.allow(&call.call_id) => true,
                CallIds::UniqueInStep => !is_first_in_step,
                CallIds::UniqueInList | CallIds::PlainAndUniqueInList => !is_new,
            };
            new_ids.push(must_change.then(|| replacement_id(&call.call_id, call.seq, call.index)));
        }
        if new_ids.iter().any(Option::is_some) {
            self.rename_calls(slot, &mut new_ids);
        }
        for ((call, read), new_id) in calls.into_iter().zip(&reading.calls).zip(new_ids) {
            if let Some(new_id) = &new_id {
                self.repair(RepairKind::IdRenamed, slot.seq, &call.call_id, &format!("now {new_id}"));
            }
            self.called.extend(new_id.clone());
            self.tail.calls.push(RoundCall { call, block: read.index, new_id, result: None });
        }
    }

    /// Gives the calls of an entry other ids; takes those away that have no
    /// place in it.
    fn rename_calls(&mut self, slot: &mut Slot, new_ids: &mut [Option<String>]) {
        if self.api.rules.blocks.is_some() {
            self.tail.is_rendered = true;
        } else {
            slot.payload = entries::with_call_ids(self.api.format, &slot.payload, new_ids);
            slot.is_altered |= new_ids.iter().any(Option::is_some);
        }
    }

    /// Takes in the calls of the provider's own tools.
    fn place_provider_calls(&mut self, slot: &mut Slot, reading: &Reading<'_>) {
        if slot.role != Role::Model {
            return self.provider_calls.interrupt();
        }
        for index in self.provider_calls.push(reading) {
            self.tail.is_rendered = true;
            self.tail.omitted.push((slot.seq, index));
            self.repair(
                RepairKind::EntryOmitted,
                slot.seq,
                "",
                "block of the provider's own tool that has no counterpart",
            );
        }
        slot.is_unfinished |= self.provider_calls.is_paused();
    }

    /// Takes in the results of an entry; returns whether it answers calls of
    /// the tail in their place.
    fn place_results(&mut self, slot: &mut Slot, reading: &Reading<'_>, pushed: &Pushed) -> bool {
        let tail = self.rounds.len() - 1;
        let mut late = BTreeSet::new();
        let mut is_shown_here = false;
        for (result, answer) in reading.results.iter().zip(&pushed.answers) {
            let Some(answer) = answer else {
                self.omit_result(slot.seq, result.id.as_deref().unwrap_or(&result.name));
                continue;
            };
            let round = if answer.is_late { self.round_at(answer.call.seq) } else { tail };
            let detail = if round == tail {
                Some(&mut self.tail)
            } else {
                self.rendered.get_mut(&round).map(|(detail, _)| detail)
            };
            let Some(detail) = detail else { continue };
            let key = (answer.call.seq, answer.call.index);
            let position = detail.calls.binary_search_by_key(&key, |call| (call.call.seq, call.call.index));
            if let Some(call) = position.ok().and_then(|position| detail.calls.get_mut(position)) {
                call.result =
                    Some(RoundResult { seq: slot.seq, block: result.index, is_late: answer.is_late });
                if let (Some(new_id), None) = (&call.new_id, self.api.rules.blocks) {
                    slot.payload = entries::with_result_id(self.api.format, &slot.payload, new_id);
                    slot.is_altered = true;
                }
            }
            if !answer.is_late {
                is_shown_here = true;
            } else if late.insert(round) {
                detail.late.push(slot.clone());
            }
        }
        for round in late {
            self.revisions.push((slot.seq, round));
            if round != tail {
                self.revise(round);
            }
        }
        is_shown_here
    }

    fn omit_result(&mut self, seq: Seq, key: &str) {
        if self.called.contains(key) {
            self.repair(
                RepairKind::DuplicateResultOmitted,
                seq,
                key,
                "no call of this id waits for a result",
            );
        } else {
            self.repair(RepairKind::OrphanResultOmitted, seq, key, "there is no call of this id");
        }
    }

    /// Whether the tail with `slot` at its end is still just its slots in their
    /// order, if it was so without.
    fn is_plain(&self, slot: &Slot, reading: &Reading<'_>, pushed: &Pushed) -> bool {
        let rules = self.api.rules;
        let is_next = |answer: &Option<Answer>| answer.as_ref().is_some_and(|answer| answer.is_first);
        let in_call_order =
            matches!(rules.results, ResultPlace::InCallOrder | ResultPlace::NextMessageInCallOrder);
        if in_call_order && !pushed.answers.iter().all(is_next) {
            return false;
        }
        if rules.blocks.is_none() {
            return true;
        }
        let before = self.slots_of(self.rounds.len() - 1).last();
        let is_model = |slot: &Slot| slot.role == Role::Model;
        let meets_own_kind = before.is_some_and(|before| is_model(before) == is_model(slot));
        let merges = meets_own_kind
            && match rules.meeting {
                Meeting::Merged => true,
                Meeting::MergedIfIncomplete if is_model(slot) => before.is_some_and(Slot::is_incomplete),
                Meeting::MergedIfIncomplete => !reading.results.is_empty(),
                Meeting::Apart => false,
            };
        !merges
            && !slot.is_unfinished
            && reading.blank_blocks.is_empty()
            && !reading.has_blank_results
            && reading.results.iter().map(|result| result.index).eq(0..reading.results.len())
            && pushed.answers.iter().all(|answer| answer.as_ref().is_some_and(|answer| !answer.is_late))
    }
}

/// Items with ids of their own, and reasoning.
impl Assembler {
    /// Whether an item has an id that was there before, and what to do.
    ///
    /// What repeats an item word for word is left out, unless it has a say in
    /// which calls wait, which must not depend on how far back one looks.
    /// Reasoning and references cannot be renamed.
    fn repetition(&self, reading: &Reading<'_>, payload: &[u8]) -> Option<Repetition> {
        let first = self.items.get(reading.item_id.as_deref()?)?;
        let pairs = !reading.calls.is_empty() || !reading.results.is_empty();
        let interrupts = reading.role != Role::Unknown && !self.tracker.state().pending.is_empty();
        let is_same = || canonical_digest(first) == canonical_digest(payload);
        let is_reference =
            || Value::of(payload).member("type").is_some_and(|kind| kind.is_text("item_reference"));
        let is_omitted = reading.serving == Serving::WithNext
            || (!pairs && (is_reference() || (!interrupts && is_same())));
        Some(if is_omitted { Repetition::Omitted } else { Repetition::Renamed })
    }

    fn rename_item(&mut self, slot: &mut Slot, id: &str) {
        let new_id = replacement_id(id, slot.seq, 0);
        slot.payload = with_value(&slot.payload, &["id"], &string_token(&new_id));
        slot.is_altered = true;
        self.repair(RepairKind::IdRenamed, slot.seq, id, &format!("used before; now {new_id}"));
        self.items.insert(new_id, slot.payload.clone());
    }

    /// Reasoning waits for the item that it led to. What was left waiting when
    /// results came led to nothing, if reasoning follows them.
    fn wait(&mut self, slot: Slot, reading: &Reading<'_>) {
        if self.is_waiting_interrupted {
            self.omit_waiting();
        }
        if let Some(id) = reading.item_id.as_deref() {
            self.items.insert(id.to_owned(), slot.payload.clone());
        }
        self.waiting.push(slot);
    }

    /// Shows the waiting reasoning before the item in `next`, or nowhere if it
    /// is not the model that goes on.
    fn settle_waiting(&mut self, next: &Slot) {
        match next.role {
            Role::Model | Role::Unknown => {
                for slot in std::mem::take(&mut self.waiting) {
                    self.place(Slot { since: next.seq, ..slot });
                }
                self.is_waiting_interrupted = false;
            }
            Role::Results if self.api.rules.blocks.is_none() => {
                self.is_waiting_interrupted = !self.waiting.is_empty();
            }
            Role::Results | Role::User | Role::System => self.omit_waiting(),
        }
    }

    fn omit_waiting(&mut self) {
        self.is_waiting_interrupted = false;
        for slot in std::mem::take(&mut self.waiting) {
            let id = Value::of(&slot.payload).member("id").and_then(Value::text).unwrap_or_default();
            self.items.remove(id.as_ref());
            self.repair(RepairKind::ReasoningOmitted, slot.seq, &id, super::round::REASONING_OMITTED);
        }
    }
}

/// What to do with an item whose id was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repetition {
    Omitted,
    Renamed,
}

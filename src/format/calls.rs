//! Which calls wait for a result, and which result answers which call.

use super::reading::{CallResult, Reading, Role, Serving};
use super::{CallIds, Rules, Step, may_be_replacement, openai_responses, replacement_id, rules};
use crate::limits::{INTERRUPTED_CALLS_BYTES_MAX, INTERRUPTED_CALLS_MAX};
use crate::model::{CallState, Seq, UnansweredCall, WireFormat};
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};

/// Follows the calls of a log, entry by entry.
///
/// A *step* is what the model says until somebody else speaks. Its calls are
/// *pending* until their results come. When anything else comes first, a word
/// of the user or the model's next step, they are *interrupted*: a window that
/// is sent to the model then holds a result that says so. A result for an
/// interrupted call is *late*: it takes that one's place, so earlier windows
/// are revised.
///
/// Entries that windows do not show have no say.
#[derive(Clone, Debug)]
pub struct CallTracker {
    rules: &'static Rules,
    state: CallState,
}

/// What an entry did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Whether a step of the model begins with it.
    pub begins_step: bool,
    /// For each of its results the call that it answers; none if no call waits
    /// for it.
    pub answers: Vec<Option<Answer>>,
    /// Whether pending calls were interrupted by it.
    pub interrupts: bool,
}

impl Pushed {
    /// Whether it answers interrupted calls: windows that were served before
    /// are revised then.
    pub fn has_late_result(&self) -> bool {
        self.late_results().next().is_some()
    }

    /// The interrupted calls that it answers.
    pub fn late_results(&self) -> impl Iterator<Item = &UnansweredCall> {
        self.answers.iter().flatten().filter(|answer| answer.is_late).map(|answer| &answer.call)
    }
}

/// A call that got its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The call.
    pub call: UnansweredCall,
    /// Whether the conversation had gone on without it.
    pub is_late: bool,
    /// Whether it was the first of those that waited.
    pub is_first: bool,
}

impl CallTracker {
    /// Follows on from `state`.
    pub fn new(format: WireFormat, state: CallState) -> Self {
        Self { rules: rules(format), state }
    }

    /// The calls that wait now.
    pub fn state(&self) -> &CallState {
        &self.state
    }

    /// Takes the log's next entry, if it is a message; others have no say.
    pub fn push(&mut self, seq: Seq, reading: &Reading<'_>) -> Pushed {
        let mut pushed = Pushed::default();
        match reading.serving {
            Serving::Shown => {}
            Serving::Omitted => return pushed,
            Serving::WithNext => {
                // What it leads to cannot join a message that makes calls.
                self.state.in_model_run &= !self.must_precede_calls();
                return pushed;
            }
        }
        pushed.answers = self.answer(&reading.results);
        match reading.role {
            Role::Model => {
                let is_apart = reading.has_reasoning && self.must_precede_calls();
                pushed.begins_step = !self.state.in_model_run || self.rules.step == Step::Entry || is_apart;
                pushed.interrupts = pushed.begins_step && self.interrupt();
                self.state.in_model_run = true;
                self.state.pending.extend(unanswered(seq, reading));
            }
            // Results of no pending call are shown elsewhere or not at all.
            Role::Results => {
                let is_shown_here = pushed.answers.iter().flatten().any(|answer| !answer.is_late);
                self.state.in_model_run &= !is_shown_here;
            }
            Role::User | Role::System => {
                pushed.interrupts = self.interrupt();
                self.state.in_model_run = false;
            }
            // Nobody knows who speaks.
            Role::Unknown => {}
        }
        pushed
    }

    /// Whether reasoning that comes now comes too late for the step, since it
    /// must precede the calls of a message and there are some.
    fn must_precede_calls(&self) -> bool {
        self.rules.blocks.is_some() && !self.state.pending.is_empty()
    }

    /// The conversation goes on without the pending calls.
    fn interrupt(&mut self) -> bool {
        let interrupts = !self.state.pending.is_empty();
        let interrupted = &mut self.state.interrupted;
        interrupted.append(&mut self.state.pending);
        let mut bytes = 0;
        let are_kept = interrupted.iter().rev().take(INTERRUPTED_CALLS_MAX).take_while(|call| {
            bytes += call.text_bytes();
            bytes <= INTERRUPTED_CALLS_BYTES_MAX
        });
        let kept = are_kept.count();
        interrupted.drain(..interrupted.len() - kept);
        interrupts
    }

    /// Takes the calls that `results` answer from those that wait: from the
    /// pending ones first, in their order, else from the interrupted ones, of
    /// which the nearest is meant.
    fn answer(&mut self, results: &[CallResult<'_>]) -> Vec<Option<Answer>> {
        if results.is_empty() {
            return Vec::new();
        }
        let mut answers = take(self.rules, results.iter(), &mut self.state.pending);
        if !answers.contains(&None) {
            return answers;
        }
        // Within an entry the first call is the first to be answered.
        self.state.interrupted.sort_by_key(|call| (Reverse(call.seq), call.index));
        let rest =
            results.iter().zip(&answers).filter(|(_, answer)| answer.is_none()).map(|(result, _)| result);
        let mut late = take(self.rules, rest, &mut self.state.interrupted).into_iter();
        self.state.interrupted.sort_by_key(|call| (call.seq, call.index));
        for answer in answers.iter_mut().filter(|answer| answer.is_none()) {
            *answer = late.next().flatten().map(|late| Answer { is_late: true, ..late });
        }
        answers
    }
}

fn unanswered(seq: Seq, reading: &Reading<'_>) -> impl Iterator<Item = UnansweredCall> {
    reading.calls.iter().zip(0..).map(move |(call, index)| UnansweredCall {
        call_id: call.id.as_deref().unwrap_or_default().to_owned(),
        name: call.name.as_ref().to_owned(),
        kind: call.kind.as_ref().to_owned(),
        seq,
        index,
    })
}

/// For each of `results` the first call that it answers, which no longer waits
/// then.
fn take<'a>(
    rules: &Rules,
    results: impl Iterator<Item = &'a CallResult<'a>>,
    waiting: &mut Vec<UnansweredCall>,
) -> Vec<Option<Answer>> {
    let calls = std::mem::take(waiting);
    let mut search = Search {
        rules,
        is_taken: vec![false; calls.len()],
        calls: &calls,
        first: 0,
        scans: 0,
        by_key: None,
        by_replacement: None,
    };
    let answers = results.map(|result| search.take(result)).collect();
    let is_taken = search.is_taken;
    *waiting =
        calls.into_iter().zip(is_taken).filter_map(|(call, is_taken)| (!is_taken).then_some(call)).collect();
    answers
}

/// Searches from call to call before a table of them is made.
const SCANS_MAX: usize = 4;

/// Finds the calls that results answer, in time that does not grow with the
/// square of their number.
struct Search<'a> {
    rules: &'a Rules,
    calls: &'a [UnansweredCall],
    is_taken: Vec<bool>,
    /// No call before it waits any more.
    first: usize,
    /// Searches from call to call that were made; a few cost less than a table.
    scans: usize,
    by_key: Option<HashMap<Key<'a>, VecDeque<usize>>>,
    by_replacement: Option<HashMap<String, usize>>,
}

impl<'a> Search<'a> {
    fn take(&mut self, result: &'a CallResult<'a>) -> Option<Answer> {
        self.first += self.is_taken.iter().skip(self.first).take_while(|is_taken| **is_taken).count();
        let keys = result_keys(self.rules, result);
        // Nearly always it is the first that waits.
        let is_answered = |call: &UnansweredCall| {
            suits(self.rules, result, call)
                && keys.first().is_some_and(|key| key.is_some() && call_keys(call).contains(key))
        };
        let position = if self.calls.get(self.first).is_some_and(is_answered) {
            self.first
        } else {
            keys.into_iter()
                .flatten()
                .find_map(|key| self.find(result, key))
                .or_else(|| self.find_replaced(result))?
        };
        *self.is_taken.get_mut(position)? = true;
        let call = self.calls.get(position)?.clone();
        Some(Answer { call, is_late: false, is_first: position == self.first })
    }

    fn find(&mut self, result: &CallResult<'_>, key: Key<'a>) -> Option<usize> {
        if self.scans < SCANS_MAX {
            self.scans += 1;
            let mut waiting = self.calls.iter().zip(&self.is_taken).skip(self.first);
            let is_meant = |call: &UnansweredCall| {
                call_keys(call).contains(&Some(key)) && suits(self.rules, result, call)
            };
            return waiting
                .position(|(call, is_taken)| !is_taken && is_meant(call))
                .map(|offset| self.first + offset);
        }
        let positions = self.by_key.get_or_insert_with(|| positions_by_key(self.calls)).get_mut(&key)?;
        let is_taken = |position: &usize| self.is_taken.get(*position) != Some(&false);
        while positions.front().is_some_and(is_taken) {
            positions.pop_front();
        }
        let matches = |position: &&usize| {
            !is_taken(position)
                && self.calls.get(**position).is_some_and(|call| suits(self.rules, result, call))
        };
        positions.iter().find(matches).copied()
    }

    /// A worker that has the call from a window knows it by the id that it has
    /// there.
    fn find_replaced(&mut self, result: &CallResult<'_>) -> Option<usize> {
        let id = result
            .id
            .as_deref()
            .filter(|id| self.rules.call_ids != CallIds::Free && may_be_replacement(id))?;
        let replacements = self.by_replacement.get_or_insert_with(|| {
            let replacement = |call: &UnansweredCall| replacement_id(&call.call_id, call.seq, call.index);
            self.calls.iter().enumerate().map(|(position, call)| (replacement(call), position)).collect()
        });
        let position = *replacements.get(id)?;
        (self.is_taken.get(position) == Some(&false) && suits(self.rules, result, self.calls.get(position)?))
            .then_some(position)
    }
}

/// What a result can find a call by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key<'a> {
    Id(&'a str),
    Name(&'a str),
    /// Name of a call that has no id.
    NameWithoutId(&'a str),
}

fn call_keys(call: &UnansweredCall) -> [Option<Key<'_>>; 2] {
    let name = Some(call.name.as_str()).filter(|name| !name.is_empty());
    let by_id = match call.call_id.as_str() {
        "" => name.map(Key::NameWithoutId),
        id => Some(Key::Id(id)),
    };
    [by_id, name.map(Key::Name)]
}

fn result_keys<'a>(rules: &Rules, result: &'a CallResult<'_>) -> [Option<Key<'a>>; 2] {
    let name = Some(result.name.as_ref()).filter(|name| !name.is_empty());
    match result.id.as_deref().unwrap_or_default() {
        "" if rules.pairs_by_name => [name.map(Key::Name), None],
        "" => [name.map(Key::NameWithoutId), None],
        id => [Some(Key::Id(id)), name.filter(|_| rules.pairs_by_name).map(Key::NameWithoutId)],
    }
}

fn positions_by_key(calls: &[UnansweredCall]) -> HashMap<Key<'_>, VecDeque<usize>> {
    let mut by_key: HashMap<_, VecDeque<_>> = HashMap::new();
    for (position, call) in calls.iter().enumerate() {
        for key in call_keys(call).into_iter().flatten() {
            by_key.entry(key).or_default().push_back(position);
        }
    }
    by_key
}

/// Whether the API takes a result for a call, whatever their ids.
fn suits(rules: &Rules, result: &CallResult<'_>, call: &UnansweredCall) -> bool {
    (result.kind == call.kind || openai_responses::answers(&result.kind, &call.kind))
        && (!rules.pairs_by_name || result.name == call.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::read;

    /// The ids of pending and interrupted calls after each entry.
    fn follow(format: WireFormat, entries: &[&str]) -> Vec<String> {
        let mut tracker = CallTracker::new(format, CallState::default());
        let mut states = Vec::new();
        for (payload, seq) in entries.iter().zip(1..) {
            let pushed = tracker.push(Seq(seq), &read(format, payload.as_bytes()));
            let name = |call: &UnansweredCall| {
                if call.call_id.is_empty() {
                    format!("{}@{}", call.name, call.index)
                } else {
                    call.call_id.clone()
                }
            };
            let late: Vec<_> = pushed.late_results().map(name).collect();
            let [pending, interrupted] = [&tracker.state.pending, &tracker.state.interrupted]
                .map(|calls| calls.iter().map(name).collect::<Vec<_>>().join(","));
            states.push(format!("{pending}|{interrupted}|{}", late.join(",")));
        }
        states
    }

    fn tool_use(ids: &[&str]) -> String {
        let blocks: Vec<_> = ids
            .iter()
            .map(|id| format!(r#"{{"type":"tool_use","id":"{id}","name":"t","input":{{}}}}"#))
            .collect();
        format!(r#"{{"role":"assistant","content":[{}]}}"#, blocks.join(","))
    }

    fn tool_result(ids: &[&str], text: &str) -> String {
        let blocks =
            ids.iter().map(|id| format!(r#"{{"type":"tool_result","tool_use_id":"{id}","content":"r"}}"#));
        let text = format!(r#"{{"type":"text","text":"{text}"}}"#);
        let blocks: Vec<_> = blocks.chain(std::iter::once(text)).collect();
        format!(r#"{{"role":"user","content":[{}]}}"#, blocks.join(","))
    }

    #[test]
    fn calls_wait_until_their_results_come_or_the_conversation_goes_on() {
        let entries = [
            tool_use(&["a", "b"]),
            tool_use(&["c"]),
            tool_result(&["b"], " "),
            tool_result(&["x"], ""),
            tool_result(&["c"], "go on"),
            tool_result(&["a", "a"], ""),
        ];
        let states = follow(WireFormat::AnthropicMessages, &entries.each_ref().map(String::as_str));
        assert_eq!(states, ["a,b||", "a,b,c||", "a,c||", "a,c||", "|a|", "||a"]);
    }

    #[test]
    fn entries_that_windows_leave_out_interrupt_nothing() {
        let entries = [
            tool_use(&["a"]),
            r#"{"role":"system","content":"x"}"#.into(),
            r#"{"role":"user","content":" "}"#.into(),
        ];
        let states = follow(WireFormat::AnthropicMessages, &entries.each_ref().map(String::as_str));
        assert_eq!(states, ["a||", "a||", "a||"]);
    }

    #[test]
    fn calls_with_long_ids_are_remembered_as_far_as_there_is_room() {
        let [old, long, new] = ["o", &"l".repeat(INTERRUPTED_CALLS_BYTES_MAX - 4), "n"];
        let entries =
            [tool_use(&[old]), tool_result(&[], "x"), tool_use(&[long, new]), tool_result(&[], "x")];
        let states = follow(WireFormat::AnthropicMessages, &entries.each_ref().map(String::as_str));
        // With the names of the tools.
        assert_eq!(states[3], format!("|{long},{new}|"));
        let entries = [
            entries[0].clone(),
            entries[1].clone(),
            tool_use(&[&format!("{long}ll"), new]),
            entries[3].clone(),
        ];
        let states = follow(WireFormat::AnthropicMessages, &entries.each_ref().map(String::as_str));
        assert_eq!(states[3], format!("|{new}|"));
    }

    #[test]
    fn a_reused_id_means_the_nearest_call() {
        let entries = [
            tool_use(&["a"]),
            tool_result(&[], "x"),
            tool_use(&["a"]),
            tool_result(&[], "y"),
            tool_result(&["a"], ""),
        ];
        let format = WireFormat::AnthropicMessages;
        let mut tracker = CallTracker::new(format, CallState::default());
        for (payload, seq) in entries.iter().zip(1..) {
            tracker.push(Seq(seq), &read(format, payload.as_bytes()));
        }
        assert_eq!(tracker.state().interrupted.iter().map(|call| call.seq).collect::<Vec<_>>(), [Seq(1)]);
    }

    #[test]
    fn each_chat_message_is_a_step() {
        let call = |id| {
            format!(r#"{{"role":"assistant","tool_calls":[{{"id":"{id}","function":{{"name":"f"}}}}]}}"#)
        };
        let result = |id| format!(r#"{{"role":"tool","tool_call_id":"{id}","content":""}}"#);
        let entries = [call("a"), call("b"), result("a"), result("b")];
        let states = follow(WireFormat::OpenaiChat, &entries.each_ref().map(String::as_str));
        assert_eq!(states, ["a||", "b|a|", "b||a", "||"]);
    }

    #[test]
    fn deprecated_chat_functions_pair_by_name_and_never_with_tools() {
        let entries = [
            r#"{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}}"#,
            r#"{"role":"tool","name":"f","content":"no"}"#,
            r#"{"role":"function","name":"g","content":"no"}"#,
            r#"{"role":"function","name":"f","content":"yes"}"#,
        ];
        assert_eq!(follow(WireFormat::OpenaiChat, &entries), ["f@0||", "f@0||", "f@0||", "||"]);
    }

    #[test]
    fn gemini_calls_without_ids_pair_by_name_and_position() {
        let entries = [
            r#"{"role":"model","parts":[{"functionCall":{"name":"f"}},{"functionCall":{"name":"g","id":"1"}},{"function_call":{"name":"f"}}]}"#,
            r#"{"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}}]}"#,
            r#"{"role":"function","parts":[{"functionResponse":{"name":"g","response":{}}}]}"#,
            r#"{"parts":[{"function_response":{"name":"f","id":"9","response":{}}}]}"#,
        ];
        assert_eq!(follow(WireFormat::GeminiContents, &entries), ["f@0,1,f@2||", "1,f@2||", "f@2||", "||"]);
    }

    #[test]
    fn responses_items_pair_by_call_id_and_kind() {
        let entries = [
            r#"{"type":"function_call","id":"fc_1","call_id":"a","name":"f","arguments":""}"#,
            r#"{"type":"custom_tool_call","call_id":"b","name":"f","input":""}"#,
            r#"{"type":"tool_search_call","call_id":null}"#,
            r#"{"type":"reasoning","id":"rs_1","summary":[]}"#,
            r#"{"type":"mystery"}"#,
            r#"{"type":"function_call_output","call_id":"b","output":""}"#,
            r#"{"type":"custom_tool_call_output","call_id":"b","output":""}"#,
            r#"{"type":"local_shell_call","call_id":"s","action":{}}"#,
            r#"{"type":"function_call_output","call_id":"s","output":""}"#,
            r#"{"type":"function_call_output","call_id":"a","output":""}"#,
        ];
        let states = follow(WireFormat::OpenaiResponses, &entries);
        assert_eq!(states, ["a||", "a,b||", "a,b||", "a,b||", "a,b||", "a,b||", "a||", "s|a|", "|a|", "||a"]);
    }

    #[test]
    fn only_the_newest_interrupted_calls_are_remembered() {
        let ids: Vec<_> = (0..=INTERRUPTED_CALLS_MAX).map(|i| format!("c{i}")).collect();
        let ids: Vec<_> = ids.iter().map(String::as_str).collect();
        let states = follow(WireFormat::AnthropicMessages, &[&tool_use(&ids), &tool_result(&[], "x")]);
        assert_eq!(states[1], format!("|{}|", ids[1..].join(",")));
    }

    #[test]
    fn many_results_in_any_order_cost_no_square() {
        let ids: Vec<_> = (0..50_000).map(|i| format!("c{i}")).collect();
        let mut ids: Vec<_> = ids.iter().map(String::as_str).collect();
        let calls = tool_use(&ids);
        ids.reverse();
        let states = follow(WireFormat::AnthropicMessages, &[&calls, &tool_result(&ids, "")]);
        assert_eq!(states[1], "||");
    }
}

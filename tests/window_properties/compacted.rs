//! What holds of windows that do not show the whole log.

use super::recorded::each_conversation;
use super::{FORMATS, Served, accepted, any_log, any_orderly_log, payloads, serve};
use crate::histories::{Log, entry, mark};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestCaseError;
use serde_json::{Value, json};
use std::sync::Arc;
use turnkeep::model::{
    Cut, Entry, EntryKind, NoteNames, Origin, Pin, Repair, RepairKind, Seq, Summary, Tokenizer, WindowState,
    WireFormat,
};
use turnkeep::tokens::TokenCounter;
use turnkeep::window::{Assembler, atoms, cut_before, last_messages, opening, truncate};

/// An assembler with a state that took in a log.
pub(super) fn compacted(format: WireFormat, state: &WindowState, log: &[Entry]) -> Assembler {
    let cut = state.cut.clone().unwrap_or_default();
    let kept = cut.kept();
    let kept = log.iter().filter(|entry| kept.contains(&entry.seq)).cloned().collect();
    let counter = TokenCounter::new(format, Tokenizer::Estimate);
    let mut assembler = Assembler::with_state(format, counter, Arc::new(state.clone()), kept);
    for entry in log.iter().filter(|entry| entry.seq >= cut.first_kept) {
        assembler.push(entry.clone());
    }
    assembler
}

/// A step that changes a window.
#[derive(Clone, Debug)]
enum Step {
    Truncate(u64),
    LastMessages(u64),
    Snip(Vec<Index>),
    Summarize(String),
    Pin(String),
    /// The notes that there are now, which the next change of a state names.
    Notes(Vec<String>),
}

fn any_step() -> impl Strategy<Value = Step> {
    let text = "[ -~é\u{4e00}\\n\"]{1,40}";
    prop_oneof![
        4 => (0_u64..400).prop_map(Step::Truncate),
        1 => (0_u64..6).prop_map(Step::LastMessages),
        1 => prop::collection::vec(any::<Index>(), 0..4).prop_map(Step::Snip),
        1 => text.prop_map(Step::Summarize),
        1 => text.prop_map(Step::Pin),
        1 => prop::collection::vec("[^\\p{Cc}/]{1,64}", 0..24).prop_map(Step::Notes),
    ]
}

/// The state after a step on a window of `log`.
fn after(format: WireFormat, state: &WindowState, log: &[Entry], step: &Step) -> WindowState {
    let before = compacted(format, state, log);
    let window = before.window(false);
    let mut state = state.clone();
    let cut = match step {
        Step::Truncate(tokens) => truncate(&window, *tokens),
        Step::LastMessages(messages) => last_messages(&window, *messages),
        Step::Snip(indices) => {
            let seqs = indices.iter().filter(|_| !log.is_empty()).map(|index| index.get(log).seq);
            state.snipped.extend(seqs);
            state.snipped.sort_unstable();
            state.snipped.dedup();
            // Of every other one not all results are.
            let half = state.snipped.iter().filter(|seq| seq.0 % 2 == 0);
            state.partly = half.map(|seq| (*seq, vec![0, 2])).collect();
            None
        }
        Step::Summarize(text) => {
            let cut = truncate(&window, 0);
            if let Some(cut) = &cut {
                let covers = Seq(cut.first_kept.0 - 1);
                state.summary = Some(Summary {
                    covers,
                    text: text.clone(),
                    ledger: "- ran make".to_owned(),
                    known: Value::Null,
                });
            }
            cut
        }
        Step::Pin(text) => {
            state.pins.push(Pin { name: text.clone(), text: text.clone(), seq: None });
            state.cut.is_none().then(|| opening(&window)).flatten()
        }
        Step::Notes(names) => {
            state.notes = NoteNames::of(names.clone());
            state.cut.is_none().then(|| opening(&window)).flatten()
        }
    };
    state.cut = cut.or(state.cut);
    state
}

/// All texts of a JSON value, decoded.
fn texts(value: &Value, found: &mut String) {
    match value {
        Value::String(text) => found.push_str(text),
        Value::Array(values) => values.iter().for_each(|value| texts(value, found)),
        Value::Object(members) => members.values().for_each(|value| texts(value, found)),
        _ => {}
    }
    found.push('\u{0}');
}

fn text_of(served: &Served) -> String {
    let mut found = String::new();
    for payload in payloads(&served.items) {
        texts(&payload, &mut found);
    }
    found
}

/// Every pin is in the window, equal on the decoded text.
pub(super) fn shows_pins(served: &Served, state: &WindowState) -> Result<(), TestCaseError> {
    let text = text_of(served);
    for pin in &state.pins {
        prop_assert!(text.contains(&pin.text), "{:?} in {:#?}", pin, served);
    }
    Ok(())
}

/// The notes that there were are named in the window, and how many more there were.
pub(super) fn names_notes(served: &Served, state: &WindowState) -> Result<(), TestCaseError> {
    let text = text_of(served);
    for name in &state.notes.shown {
        prop_assert!(text.contains(name.as_str()), "{:?} in {:#?}", name, served);
    }
    let more = state.notes.more;
    prop_assert!(more == 0 || text.contains(&format!("{more} more")), "{} more in {:#?}", more, served);
    Ok(())
}

/// What is shown as an entry is that entry byte for byte, in the order of the log.
pub(super) fn entries_are_exact(served: &Served, log: &[Entry]) -> Result<(), TestCaseError> {
    let added = served.repairs.iter().filter(|repair| repair.kind == RepairKind::ResultAdded);
    let added: Vec<_> = added.flat_map(|repair| repair.seqs.clone()).collect();
    for (index, item) in served.items.iter().enumerate() {
        let (Origin::Log, [seq]) = (item.origin, item.seqs.as_slice()) else { continue };
        // What comes after an interrupted call may hold the result that was added.
        let before = index.checked_sub(1).map_or(&[][..], |before| &served.items[before].seqs);
        if before.iter().any(|seq| added.contains(seq)) {
            continue;
        }
        let seq = *seq;
        // What was mended is reported, a renamed call at the call alone.
        let is_mended = |repair: &Repair| repair.seqs.contains(&seq) || repair.kind == RepairKind::IdRenamed;
        if served.repairs.iter().any(is_mended) {
            continue;
        }
        let entry = log.iter().find(|entry| entry.seq == seq).unwrap();
        prop_assert_eq!(&item.payload, &entry.payload);
    }
    Ok(())
}

/// The user's newest message comes after what stands for earlier ones.
fn summary_comes_before_the_last_user_message(served: &Served, cut: &Cut) -> Result<(), TestCaseError> {
    let made_up = |origin| matches!(origin, Origin::Summary | Origin::Pin | Origin::Notice);
    let last_made_up = served.items.iter().rposition(|item| made_up(item.origin));
    if let (Some(seq), Some(at)) = (cut.last_user, last_made_up) {
        let shown = served.items.iter().position(|item| item.seqs.contains(&seq));
        // Where speakers alternate, both may be in one message.
        prop_assert!(shown.is_none_or(|shown| shown >= at || served.items[at].seqs.contains(&seq)));
    }
    Ok(())
}

/// Tokens by which a window may be smaller than is reckoned: of a notice, and of messages
/// that become one.
const RECKONED_TOKENS: u64 = 120;

/// Nothing that may stay leaves: the cut is as shallow as the budget allows.
fn keeps_what_fits(
    format: WireFormat,
    state: &WindowState,
    log: &[Entry],
    max: u64,
) -> Result<(), TestCaseError> {
    let assembler = compacted(format, state, log);
    let (served, left) = (serve(&assembler, false), atoms(&assembler.window(false)));
    prop_assert!(served.tokens <= max || left.len() == 1, "{} of {}: {:#?}", served.tokens, max, served);
    // One atom more would not fit.
    let whole = compacted(format, &WindowState::default(), log);
    let all = atoms(&whole.window(false));
    let shallower = all.len().checked_sub(left.len() + 1).and_then(|index| all.get(index));
    let shallower = shallower.map(|atom| cut_before(&whole.window(false), atom.first));
    let state = WindowState { cut: shallower.flatten(), ..WindowState::default() };
    let more = serve(&compacted(format, &state, log), false).tokens;
    prop_assert!(more + RECKONED_TOKENS > max, "{} of {}: {:#?}", more, max, served);
    Ok(())
}

/// The log with the tokens that its entries have.
fn counted(format: WireFormat, log: &[Entry]) -> Vec<Entry> {
    let counter = TokenCounter::new(format, Tokenizer::Estimate);
    let tokens = |entry: &Entry| match entry.kind {
        EntryKind::Message => counter.count_entry(&turnkeep::format::read(format, &entry.payload)),
        _ => 0,
    };
    log.iter().map(|entry| Entry { tokens: tokens(entry), ..entry.clone() }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_compacted_window_is_accepted_and_shows_its_pins(
        (format, Log(log)) in any_log(true),
        steps in prop::collection::vec((any::<Index>(), any_step()), 1..5),
    ) {
        let mut state = WindowState::default();
        let mut at = 0;
        for (index, step) in &steps {
            at += index.index(log.len() + 1 - at);
            state = after(format, &state, &log[..at], step);
            for length in at..=log.len() {
                for close_pending in [false, true] {
                    let served = serve(&compacted(format, &state, &log[..length]), close_pending);
                    accepted(format, &served)?;
                    if format != WireFormat::Opaque {
                        shows_pins(&served, &state)?;
                        names_notes(&served, &state)?;
                        summary_comes_before_the_last_user_message(&served, &state.cut.clone().unwrap_or_default())?;
                    }
                }
            }
        }
    }

    #[test]
    fn a_compacted_window_only_grows_at_its_end(
        (format, Log(log)) in any_orderly_log(),
        index: Index,
        tokens in 0_u64..400,
    ) {
        let at = index.index(log.len() + 1);
        let state = after(format, &WindowState::default(), &log[..at], &Step::Truncate(tokens));
        let mut before = serve(&compacted(format, &state, &log[..at]), false);
        for length in at..=log.len() {
            let served = serve(&compacted(format, &state, &log[..length]), false);
            prop_assert_eq!(&served.items[..before.stable], &before.items[..before.stable]);
            prop_assert!(served.stable >= before.stable);
            entries_are_exact(&served, &log)?;
            before = served;
        }
    }

    #[test]
    fn a_window_is_truncated_as_far_as_is_asked_or_to_its_last_atom(
        (format, Log(log)) in any_orderly_log(),
        percent in 0_u64..100,
    ) {
        let log = counted(format, &log);
        let whole = serve(&compacted(format, &WindowState::default(), &log), false);
        let tokens = whole.tokens * percent / 100;
        let mut state = WindowState::default();
        let mut goal = tokens;
        for _ in 0..8 {
            state = after(format, &state, &log, &Step::Truncate(goal));
            let served = serve(&compacted(format, &state, &log), false);
            if served.tokens <= tokens {
                break;
            }
            goal = goal.saturating_sub(served.tokens - tokens);
        }
        if state.cut.is_some() {
            keeps_what_fits(format, &state, &log, tokens)?;
        } else {
            prop_assert!(whole.items.len() <= 1 || atoms(&compacted(format, &state, &log).window(false)).len() <= 1);
        }
    }

    #[test]
    fn what_left_is_counted((format, Log(log)) in any_orderly_log(), steps in prop::collection::vec((any::<Index>(), 0_u64..400), 1..4)) {
        let mut state = WindowState::default();
        let mut at = 0;
        for (index, tokens) in steps {
            at += index.index(log.len() + 1 - at);
            state = after(format, &state, &log[..at], &Step::Truncate(tokens));
        }
        let cut = state.cut.clone().unwrap_or_default();
        let left = log.iter().filter(|entry| entry.kind == EntryKind::Message && entry.seq < cut.first_kept);
        let left: Vec<_> = left.filter(|entry| !cut.keeps(entry.seq)).collect();
        prop_assert_eq!(cut.omitted_entries, left.len() as u64, "{:?}", cut);
        prop_assert_eq!(cut.omitted_tokens, left.iter().map(|entry| entry.tokens).sum::<u64>());
        let window = text_of(&serve(&compacted(format, &state, &log), false));
        for entry in &left {
            prop_assert!(!window.contains(&mark(entry.seq)), "{} is shown", entry.seq);
        }
        for seq in cut.kept().iter().filter(|seq| log[usize::try_from(seq.0).unwrap() - 1].tokens < 2_000) {
            let payload = String::from_utf8_lossy(&log[usize::try_from(seq.0).unwrap() - 1].payload);
            prop_assert!(!payload.contains(&mark(*seq)) || window.contains(&mark(*seq)), "{} is missing", seq);
        }
    }
}

#[test]
fn the_atoms_of_a_window_are_all_of_its_log() {
    use proptest::strategy::{Strategy as _, ValueTree as _};
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for format in FORMATS {
        for _ in 0..100 {
            let Log(log) = crate::histories::orderly_log(format).new_tree(&mut runner).unwrap().current();
            let assembler = compacted(format, &WindowState::default(), &log);
            let window = assembler.window(false);
            let atoms = atoms(&window);
            assert_eq!(atoms.iter().map(|atom| atom.entries).sum::<u64>(), window.len() as u64, "{log:?}");
            assert_eq!(atoms.iter().map(|atom| atom.tokens).sum::<u64>(), window.tokens());
        }
    }
}

#[test]
fn a_truncated_window_has_its_parts_in_order() {
    let format = WireFormat::OpenaiChat;
    let payloads = [
        json!({"role": "system", "content": "be brief"}),
        json!({"role": "user", "content": "the task"}),
        json!({"role": "assistant", "content": "", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "sh", "arguments": "{}"}}]}),
        json!({"role": "tool", "tool_call_id": "a", "content": "x".repeat(4_000)}),
        json!({"role": "developer", "content": "mind the budget"}),
        json!({"role": "user", "content": "and now this"}),
        json!({"role": "assistant", "content": "", "tool_calls": [
            {"id": "b", "type": "function", "function": {"name": "sh", "arguments": "{}"}}]}),
        json!({"role": "tool", "tool_call_id": "b", "content": "x".repeat(4_000)}),
        json!({"role": "assistant", "content": "done"}),
    ];
    let counter = TokenCounter::new(format, Tokenizer::O200k);
    let log: Vec<_> = payloads
        .iter()
        .zip(1..)
        .map(|(payload, seq)| {
            let payload = payload.to_string();
            let tokens = counter.count_entry(&turnkeep::format::read(format, payload.as_bytes()));
            Entry { tokens, ..entry(seq, EntryKind::Message, payload) }
        })
        .collect();
    let state = after(format, &WindowState::default(), &log, &Step::Pin("never push to main".to_owned()));
    assert_eq!(
        state.cut,
        Some(Cut { first_kept: Seq(2), system: vec![Seq(1)], opening: 1, ..Cut::default() })
    );
    let state = after(format, &state, &log, &Step::LastMessages(1));
    let expected = Cut {
        first_kept: Seq(9),
        system: vec![Seq(1), Seq(5)],
        opening: 1,
        first_user: Some(Seq(2)),
        last_user: Some(Seq(6)),
        omitted_entries: 4,
        omitted_tokens: [3, 4, 7, 8].iter().map(|seq| log[*seq - 1].tokens).sum(),
    };
    assert_eq!(state.cut.as_ref(), Some(&expected));
    let served = serve(&compacted(format, &state, &log), false);
    let shown: Vec<_> = served.items.iter().map(|item| (item.origin, item.seqs.clone())).collect();
    let of_log = |seq| (Origin::Log, vec![Seq(seq)]);
    let made_up = [(Origin::Pin, vec![]), (Origin::Notice, vec![])];
    let parts =
        [of_log(1), of_log(2), of_log(5), made_up[0].clone(), made_up[1].clone(), of_log(6), of_log(9)];
    assert_eq!(shown, parts);
    // The user spoke again since, so the message that was placed again is not needed.
    let mut log = log;
    log.push(entry(10, EntryKind::Message, json!({"role": "user", "content": "thanks"}).to_string()));
    let state = after(format, &state, &log, &Step::LastMessages(1));
    let cut = state.cut.unwrap();
    assert_eq!((cut.first_kept, cut.last_user, cut.omitted_entries), (Seq(10), None, 6));
}

/// Shares of a recorded conversation's tokens to which it is truncated, in percent.
const SHARES: [u64; 4] = [80, 40, 10, 1];

#[test]
fn recorded_conversations_are_accepted_however_they_are_truncated() {
    let mut windows = 0;
    let found = each_conversation(|format, name, log, is_judged| {
        let whole = serve(&compacted(format, &WindowState::default(), log), false);
        let mut state = WindowState::default();
        for share in SHARES {
            let step = Step::Truncate(whole.tokens * share / 100);
            state = after(format, &state, log, &step);
            state.snipped = log.iter().map(|entry| entry.seq).filter(|seq| seq.0 % 3 == 0).collect();
            let served = serve(&compacted(format, &state, log), false);
            if is_judged {
                accepted(format, &served).unwrap_or_else(|error| panic!("{name} at {share} %: {error}"));
            }
            entries_are_exact(&served, log).unwrap_or_else(|error| panic!("{name} at {share} %: {error}"));
            windows += 1;
        }
    });
    assert_eq!(windows, found * SHARES.len());
}

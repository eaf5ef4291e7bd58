//! What holds of every window, for every wire format, at every cut of any log.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/checker.rs"]
mod checker;
#[path = "window_properties/compacted.rs"]
mod compacted;
#[path = "window_properties/examples.rs"]
mod examples;
#[path = "support/histories.rs"]
mod histories;
#[path = "window_properties/invariants.rs"]
mod invariants;
#[path = "support/messages.rs"]
mod messages;
#[path = "window_properties/recorded.rs"]
mod recorded;
#[path = "support/recorded.rs"]
mod transcripts;

use histories::{Log, entry, mark};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestCaseError;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use turnkeep::format::{self, CallTracker, json};
use turnkeep::model::Tokenizer;
use turnkeep::model::{
    CallState, Entry, EntryKind, Item, NextStep, Origin, Repair, RepairKind, Seq, UnansweredCall, WireFormat,
};
use turnkeep::tokens::TokenCounter;
use turnkeep::window::{Assembler, CommonPrefix, admit};

const FORMATS: [WireFormat; 6] = WireFormat::ALL;

/// A window in full.
#[derive(Clone, Debug, PartialEq)]
struct Served {
    items: Vec<Item>,
    tokens: u64,
    stable: usize,
    repairs: Vec<Repair>,
    unanswered: Vec<UnansweredCall>,
    next: NextStep,
}

fn assembler(format: WireFormat, entries: &[Entry]) -> Assembler {
    let mut assembler = Assembler::new(format, TokenCounter::new(format, Tokenizer::Estimate));
    for entry in entries {
        assembler.push(entry.clone());
    }
    assembler
}

fn serve(assembler: &Assembler, close_pending: bool) -> Served {
    let window = assembler.window(close_pending);
    let items: Vec<_> = window.items_from(0).collect();
    assert_eq!(window.len(), items.len());
    assert_eq!(window.is_empty(), items.is_empty());
    Served {
        tokens: window.tokens(),
        stable: window.stable_prefix_items(),
        repairs: window.repairs(None),
        unanswered: window.unanswered(),
        next: window.next(),
        items,
    }
}

fn assemble(format: WireFormat, entries: &[Entry], close_pending: bool) -> Served {
    serve(&assembler(format, entries), close_pending)
}

/// A log of any format.
fn any_log(known_only: bool) -> impl Strategy<Value = (WireFormat, Log)> {
    prop::sample::select(&FORMATS[..])
        .prop_flat_map(move |format| (Just(format), histories::log(format, known_only)))
}

/// A log of any format in which a few values are not what the API takes.
fn any_marred_log() -> impl Strategy<Value = (WireFormat, Log)> {
    let marred = |format| (Just(format), histories::marred(histories::log(format, true)));
    prop::sample::select(&FORMATS[..]).prop_flat_map(marred)
}

fn any_orderly_log() -> impl Strategy<Value = (WireFormat, Log)> {
    prop::sample::select(&FORMATS[..]).prop_flat_map(|format| (Just(format), histories::orderly_log(format)))
}

/// Where entry `seq` is in a log.
fn index_of(seq: Seq) -> usize {
    usize::try_from(seq.0).unwrap() - 1
}

fn payloads(items: &[Item]) -> Vec<Value> {
    items.iter().map(|item| serde_json::from_slice(&item.payload).expect("an item is JSON")).collect()
}

fn accepted(format: WireFormat, served: &Served) -> Result<(), TestCaseError> {
    let complete = served.next == NextStep::Model;
    let verdict = checker::accepts(format, &payloads(&served.items), complete);
    prop_assert_eq!(&verdict, &Ok(()), "{}: {:#?}", format, served);
    Ok(())
}

/// What the entries that a window is of say is in it, or reported as left out; what the
/// others say is not in it.
fn says_or_reports_all(
    served: &Served,
    log: &[Entry],
    is_of_window: impl Fn(Seq) -> bool,
) -> Result<(), TestCaseError> {
    let window: String =
        served.items.iter().map(|item| String::from_utf8_lossy(&item.payload).into_owned()).collect();
    for (index, entry) in log.iter().enumerate() {
        let mark = mark(entry.seq);
        let told = String::from_utf8_lossy(&entry.payload).matches(&mark).count();
        // The message once more has the mark of the first.
        let repeated = log.get(index + 1).is_some_and(|next| next.payload == entry.payload);
        if entry.kind != EntryKind::Message || told == 0 || repeated {
            continue;
        }
        let told = if is_of_window(entry.seq) { told } else { 0 };
        let said = window.matches(&mark).count();
        let is_of_entry = |repair: &&Repair| repair.seqs.contains(&entry.seq) && is_omission(repair.kind);
        let omitted = served.repairs.iter().filter(is_of_entry).count();
        prop_assert!(said <= told, "{} is there {} times: {:#?}", mark, said, served);
        prop_assert!(said + omitted >= told, "{} is missing: {:#?}", mark, served);
    }
    Ok(())
}

/// The user's next message.
fn user_input(format: WireFormat, seq: u64) -> Entry {
    let payload = match format {
        WireFormat::GeminiContents => r#"{"role":"user","parts":[{"text":"go on"}]}"#,
        WireFormat::BedrockConverse => r#"{"role":"user","content":[{"text":"go on"}]}"#,
        _ => r#"{"role":"user","content":"go on"}"#,
    };
    entry(seq, EntryKind::Message, payload)
}

/// Results of the calls, as a worker makes them from what a window says.
fn tool_results(format: WireFormat, calls: &[UnansweredCall], seq: u64) -> Vec<Entry> {
    let results: Vec<_> = calls.iter().map(|call| format::interrupted_result(format, call)).collect();
    let payloads = match format {
        WireFormat::GeminiContents => vec![format!(r#"{{"role":"user","parts":[{}]}}"#, results.join(","))],
        WireFormat::AnthropicMessages | WireFormat::BedrockConverse => {
            vec![format!(r#"{{"role":"user","content":[{}]}}"#, results.join(","))]
        }
        _ => results,
    };
    payloads.into_iter().zip(seq..).map(|(payload, seq)| entry(seq, EntryKind::Message, payload)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_window_is_accepted_by_its_api((format, Log(log)) in any_log(true)) {
        for cut in 0..=log.len() {
            for close_pending in [false, true] {
                accepted(format, &assemble(format, &log[..cut], close_pending))?;
            }
        }
    }

    #[test]
    fn a_window_of_what_is_malformed_is_accepted_as_well((format, Log(log)) in any_marred_log()) {
        for cut in 0..=log.len() {
            accepted(format, &assemble(format, &log[..cut], cut % 2 == 0))?;
        }
    }

    #[test]
    fn an_entry_is_mended_once_and_copied_only_then((format, Log(log)) in any_marred_log()) {
        for entry in &log {
            let admitted = admit(format, &entry.payload, json::Value::of(&entry.payload));
            let is_same = admitted.payload.as_ptr() == entry.payload.as_ptr();
            prop_assert_eq!(admitted.mends.is_empty(), is_same, "{:?}", admitted);
            let again = admit(format, &admitted.payload, json::Value::of(&admitted.payload));
            prop_assert_eq!((again.payload, again.mends), (admitted.payload, vec![]));
        }
    }

    #[test]
    fn what_next_asks_for_makes_a_window_complete((format, Log(log)) in any_log(true)) {
        for cut in 0..=log.len() {
            let mut log = log[..cut].to_vec();
            let seq = cut as u64 + 1;
            let served = assemble(format, &log, false);
            match served.next {
                NextStep::UserInput => log.push(user_input(format, seq)),
                NextStep::ToolResults => log.extend(tool_results(format, &served.unanswered, seq)),
                NextStep::Model | NextStep::Unknown => continue,
            }
            let served = assemble(format, &log, false);
            prop_assert_eq!(served.next, NextStep::Model, "{:#?}", served);
            prop_assert_eq!(served.items.last().map(|item| item.origin), Some(Origin::Log), "{:#?}", served);
            accepted(format, &served)?;
        }
    }

    #[test]
    fn a_window_is_a_function_of_the_log_however_it_was_taken_in((format, Log(log)) in any_log(false)) {
        let mut growing = assembler(format, &[]);
        for cut in 0..=log.len() {
            if let Some(last) = cut.checked_sub(1) {
                growing.push(log[last].clone());
            }
            for close_pending in [false, true] {
                prop_assert_eq!(serve(&growing, close_pending), assemble(format, &log[..cut], close_pending));
            }
        }
    }

    #[test]
    fn an_orderly_log_is_its_window_byte_for_byte((format, Log(log)) in any_orderly_log()) {
        for cut in 0..=log.len() {
            let served = assemble(format, &log[..cut], false);
            let reasoning = served.repairs.iter().filter(|repair| repair.kind == RepairKind::ReasoningOmitted).count();
            prop_assert!(served.repairs.len() == reasoning && reasoning <= 1, "{:#?}", served.repairs);
            let expected: Vec<_> = log[..cut - reasoning].iter().map(|entry| Item {
                payload: entry.payload.clone(),
                origin: Origin::Log,
                seqs: vec![entry.seq],
                tokens: entry.tokens,
            }).collect();
            for (item, expected) in served.items.iter().zip(&expected) {
                prop_assert_eq!(item.payload.as_ptr(), expected.payload.as_ptr(), "payloads are not copied");
            }
            prop_assert_eq!(served.items, expected);
        }
    }

    #[test]
    fn pending_calls_are_those_that_the_tracker_knows_and_only_late_results_revise((format, Log(log)) in any_log(false)) {
        let mut state = CallState::default();
        let mut growing = assembler(format, &[]);
        let mut before = serve(&growing, false);
        for entry in &log {
            let mut has_late_result = false;
            if entry.kind == EntryKind::Message {
                let mut tracker = CallTracker::new(format, state);
                let reading = format::read(format, &admit(format, &entry.payload, json::Value::of(&entry.payload)).payload).into_calls();
                has_late_result = tracker.push(entry.seq, &reading).has_late_result();
                // It is stored between turns.
                state = serde_json::from_value(serde_json::to_value(tracker.state()).unwrap()).unwrap();
            }
            growing.push(entry.clone());
            let after = serve(&growing, false);
            let own_ids = |calls: &[UnansweredCall]| calls.iter().map(|call| (call.seq, call.index)).collect::<Vec<_>>();
            prop_assert_eq!(own_ids(&after.unanswered), own_ids(&state.pending));
            prop_assert_eq!(after.next == NextStep::ToolResults, !state.pending.is_empty());
            if !has_late_result {
                let stable = before.stable;
                prop_assert_eq!(&after.items[..stable], &before.items[..stable], "stays as it is");
                prop_assert!(after.stable >= stable);
            }
            before = after;
        }
    }

    #[test]
    fn nothing_is_left_out_without_being_reported((format, Log(log)) in any_log(false)) {
        says_or_reports_all(&assemble(format, &log, false), &log, |_| true)?;
    }

    #[test]
    fn what_is_said_stays_in_its_order((format, Log(log)) in any_log(false)) {
        let served = assemble(format, &log, false);
        let window: String = served.items.iter().map(|item| String::from_utf8_lossy(&item.payload).into_owned()).collect();
        let said = window.split(r#"é \"<"#).skip(1);
        let said: Vec<u64> = said.map(|rest| rest.split('>').next().unwrap().parse().unwrap()).collect();
        prop_assert!(said.is_sorted(), "{:?} {:#?}", said, served);
    }

    #[test]
    fn tokens_are_the_sum_of_the_items_and_items_name_their_entries((format, Log(log)) in any_log(false)) {
        for cut in 0..=log.len() {
            let served = assemble(format, &log[..cut], false);
            prop_assert_eq!(served.tokens, served.items.iter().map(|item| item.tokens).sum::<u64>());
            for item in &served.items {
                prop_assert_eq!(item.origin == Origin::Repair, item.seqs.is_empty(), "{:#?}", item);
                prop_assert!(item.seqs.iter().all(|seq| log[index_of(*seq)].kind == EntryKind::Message));
            }
        }
    }

    #[test]
    fn a_worker_is_sent_what_its_list_lacks_and_no_more((format, Log(log)) in any_log(false), close_pending: bool) {
        let now = assembler(format, &log);
        let current = serve(&now, close_pending);
        // Entries that say the same may stand for each other by chance.
        let repeats = log.iter().map(|entry| &entry.payload).collect::<BTreeSet<_>>().len() < log.len();
        for served in 0..=log.len() {
            let held = assemble(format, &log[..served], close_pending);
            for known in served..=log.len() {
                let mut list: Vec<_> = held.items.iter().map(|item| item.payload.clone()).collect();
                let since = log[served..known].iter().filter(|entry| entry.kind == EntryKind::Message);
                list.extend(since.map(|entry| entry.payload.clone()));
                let same = list.iter().zip(&current.items).take_while(|(held, item)| **held == item.payload).count();
                let is_unchanged = same == list.len() && same == current.items.len();
                let found = now.window(close_pending).common_prefix(Seq(served as u64), Seq(known as u64));
                prop_assert!(found.items <= same, "{:?} of {}", found, same);
                prop_assert!(!found.is_unchanged || is_unchanged);
                if !close_pending && !repeats {
                    prop_assert_eq!(found, CommonPrefix { items: same, is_unchanged }, "served {}, known {}", served, known);
                }
                list.truncate(found.items);
                list.extend(now.window(close_pending).items_from(found.items).map(|item| item.payload));
                let whole: Vec<_> = current.items.iter().map(|item| item.payload.clone()).collect();
                prop_assert_eq!(list, whole);
            }
        }
    }

    #[test]
    fn a_worker_that_persists_an_orderly_turn_holds_the_window((format, Log(log)) in any_orderly_log()) {
        let now = assembler(format, &log);
        let is_open = |entries: &[Entry]| entries.last().is_some_and(|last| String::from_utf8_lossy(&last.payload).contains("rs_"));
        let head = Seq(log.len() as u64);
        for served in 0..=log.len() {
            let found = now.window(false).common_prefix(Seq(served as u64), head);
            // Reasoning at the end was not served, so the worker lacks it.
            if !is_open(&log[..served]) {
                prop_assert_eq!(found, CommonPrefix { items: log.len(), is_unchanged: true });
            }
        }
    }
}

#[test]
fn the_generated_logs_bring_about_every_kind_of_repair() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut seen = BTreeMap::new();
    for format in FORMATS {
        let strategy = histories::log(format, true);
        for _ in 0..500 {
            let Log(log) = strategy.new_tree(&mut runner).unwrap().current();
            for repair in assemble(format, &log, false).repairs {
                *seen.entry((repair.kind, format.as_str())).or_insert(0) += 1;
            }
        }
    }
    let kinds: BTreeSet<_> = seen.keys().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds.len(), 13, "{seen:#?}");
}

fn is_omission(kind: RepairKind) -> bool {
    match kind {
        RepairKind::OrphanResultOmitted
        | RepairKind::DuplicateResultOmitted
        | RepairKind::DuplicateItemOmitted
        | RepairKind::ReasoningOmitted
        | RepairKind::EntryOmitted => true,
        RepairKind::ResultAdded
        | RepairKind::ResultMoved
        | RepairKind::Merged
        | RepairKind::EmptyBlockOmitted
        | RepairKind::IdRenamed
        | RepairKind::CacheMarkOmitted
        | RepairKind::ValueReplaced
        | RepairKind::OpeningAdded => false,
    }
}

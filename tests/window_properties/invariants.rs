//! The five invariants of windows: for every wire format, by whatever a window is made
//! smaller, for context windows of every size, at every cut point of a log.

use super::compacted::{compacted, entries_are_exact, names_notes, shows_pins};
use super::recorded::{cuts, each_conversation};
use super::{FORMATS, Served, accepted, is_omission, says_or_reports_all, serve};
use crate::histories::{self, Log, entry, orderly_log};
use crate::messages::{call, model, result, user};
use proptest::strategy::{Strategy, ValueTree as _};
use proptest::test_runner::{TestCaseError, TestRunner};
use serde_json::Value;
use std::collections::BTreeSet;
use turnkeep::format::{CallTracker, Role, Serving, read};
use turnkeep::limits::SNIP_CHARACTERS;
use turnkeep::model::{
    CallState, Entry, EntryKind, ModelProfile, NextStep, NoteNames, Origin, Pin, RepairKind, Room, Seq,
    Summary, Tokenizer, WindowState, WireFormat,
};
use turnkeep::rpc::pb;
use turnkeep::tokens::TokenCounter;
use turnkeep::window::{
    self, Deepening, atoms, last_messages, opening, snippable, snips, tail, with_shortened,
};

const CONTEXTS: [u64; 10] =
    [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 128_000, 200_000, 1_000_000, 2_000_000];

/// Contexts that real texts fill; for larger ones counts stand for them.
const REAL_CONTEXT_MAX: u64 = 4_000;

/// Logs out of order for each format and context.
const DISORDERLY: usize = 2;

/// Those of windows whose results are snipped.
const SNIPPED_CONTEXTS: [u64; 4] = [4_000, 32_000, 200_000, 2_000_000];

/// A way of making a window smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Truncate,
    LastMessages,
    Snip,
    Summarize,
    Collapse,
    /// Nothing but what one request makes necessary.
    ForOneRequest,
}

const WAYS: [Way; 6] =
    [Way::Truncate, Way::LastMessages, Way::Snip, Way::Summarize, Way::Collapse, Way::ForOneRequest];

/// A window after it was made smaller.
struct Case<'a> {
    format: WireFormat,
    log: &'a [Entry],
    state: WindowState,
    room: Room,
    served: Served,
}

// --- The invariants ---

/// 1. Each call has exactly its results and each result its call, adjacent as the API
///    demands; nothing synthetic is at the end.
fn calls_have_their_results(case: &Case<'_>) {
    let mut tracker = CallTracker::new(case.format, CallState::default());
    for (item, seq) in case.served.items.iter().zip(1..) {
        let reading = read(case.format, &item.payload).into_calls();
        let results = reading.results.len();
        let pushed = tracker.push(Seq(seq), &reading);
        let answers: Vec<_> = pushed.answers.iter().flatten().collect();
        assert_eq!(answers.len(), results, "a result without its call");
        assert!(answers.iter().all(|answer| !answer.is_late), "a result apart from its call");
    }
    let state = tracker.state();
    assert_eq!(state.pending.len(), case.served.unanswered.len());
    assert!(state.interrupted.is_empty(), "a call without its result");
    assert_ne!(case.served.items.last().map(|item| item.origin), Some(Origin::Repair));
}

/// 2. Steps are whole, and what is shown of the log is shown byte for byte.
fn steps_are_whole(case: &Case<'_>, steps: &[Vec<Seq>]) -> Result<(), TestCaseError> {
    entries_are_exact(&case.served, case.log)?;
    let shown: BTreeSet<_> = case.served.items.iter().flat_map(|item| item.seqs.clone()).collect();
    let newest = case.log.last().map_or(Seq(0), |entry| entry.seq);
    // Reasoning waits for the item that it leads to; what is out of order is reported.
    let omitted = case.served.repairs.iter().filter(|repair| is_omission(repair.kind));
    let omitted: BTreeSet<_> = omitted.flat_map(|repair| repair.seqs.clone()).collect();
    for step in steps {
        let members: Vec<_> = step.iter().filter(|seq| **seq <= newest && !omitted.contains(seq)).collect();
        let there = members.iter().filter(|seq| shown.contains(**seq)).count();
        assert!(there == 0 || there == members.len(), "{there} of {members:?}");
    }
    Ok(())
}

/// The entries of each step of a log: what the model says, with the results of its calls.
fn steps(format: WireFormat, log: &[Entry]) -> Vec<Vec<Seq>> {
    let mut tracker = CallTracker::new(format, CallState::default());
    let mut steps: Vec<Vec<Seq>> = Vec::new();
    let mut leads: Vec<Seq> = Vec::new();
    for entry in log.iter().filter(|entry| entry.kind == EntryKind::Message) {
        let reading = read(format, &entry.payload).into_calls();
        let pushed = tracker.push(entry.seq, &reading);
        for call in pushed.answers.iter().flatten().map(|answer| answer.call.seq) {
            if let Some(step) = steps.iter_mut().find(|step| step.contains(&call)) {
                step.push(entry.seq);
            }
        }
        // Reasoning goes with the item that it leads to.
        match steps.last_mut() {
            _ if reading.serving == Serving::WithNext => leads.push(entry.seq),
            _ if pushed.begins_step => steps.push(leads.drain(..).chain([entry.seq]).collect()),
            Some(step) if reading.role == Role::Model => step.extend(leads.drain(..).chain([entry.seq])),
            _ => leads.clear(),
        }
    }
    steps
}

/// 3. It begins and ends as its API demands, and its roles meet as that demands.
fn its_api_takes_it(case: &Case<'_>) -> Result<(), TestCaseError> {
    accepted(case.format, &case.served)?;
    let asks_for_results = case.served.next == NextStep::ToolResults;
    assert_eq!(asks_for_results, !case.served.unanswered.is_empty());
    Ok(())
}

/// 4. It fits with the reserve, or nothing more can leave.
fn it_fits_or_nothing_more_can_leave(case: &Case<'_>) -> bool {
    let fits = case.room.fits(case.served.tokens);
    assert_eq!(case.served.tokens, case.served.items.iter().map(|item| item.tokens).sum::<u64>());
    if !fits {
        let assembler = compacted(case.format, &case.state, case.log);
        assert_eq!(atoms(&assembler.window(false)).len(), 1, "{} tokens", case.served.tokens);
    }
    fits
}

/// 5. Every pin is in it, word for word, and the names of notes.
fn every_pin_is_shown(case: &Case<'_>) -> Result<(), TestCaseError> {
    if case.format == WireFormat::Opaque {
        return Ok(());
    }
    names_notes(&case.served, &case.state)?;
    shows_pins(&case.served, &case.state)
}

/// Whatever is not shown left with a cut, or is reported.
fn what_is_not_shown_is_accounted_for(case: &Case<'_>) -> Result<(), TestCaseError> {
    let cut = case.state.cut.clone().unwrap_or_default();
    let is_of_window = |seq: Seq| seq >= cut.first_kept || cut.keeps(seq);
    says_or_reports_all(&case.served, case.log, is_of_window)?;
    let shown = case.served.items.iter().flat_map(|item| item.seqs.iter().copied());
    let told = case.served.repairs.iter().flat_map(|repair| repair.seqs.iter().copied());
    let accounted: BTreeSet<_> = shown.chain(told).collect();
    let messages = case.log.iter().filter(|entry| entry.kind == EntryKind::Message);
    for entry in messages.filter(|entry| is_of_window(entry.seq)) {
        assert!(accounted.contains(&entry.seq), "{} is neither shown nor reported", entry.seq);
    }
    Ok(())
}

/// Holds a window against all of them, if not `is_judged` but for those that its API makes;
/// returns whether it fits.
fn hold(case: &Case<'_>, steps: &[Vec<Seq>], is_judged: bool, told: &str) -> bool {
    let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        if is_judged {
            calls_have_their_results(case);
            its_api_takes_it(case).unwrap();
        }
        steps_are_whole(case, steps).unwrap();
        every_pin_is_shown(case).unwrap();
        what_is_not_shown_is_accounted_for(case).unwrap();
        it_fits_or_nothing_more_can_leave(case)
    }));
    held.unwrap_or_else(|_| {
        panic!("{told}: {:?}\n{:#?}\n{:?}", case.state, case.served, Log(case.log.to_vec()))
    })
}

// --- What they are held against ---

/// Conversations that fill a context window half as much again, and whether they are in
/// order: the others have duplicates, orphans, calls without results, pictures, and blocks
/// with nothing in them.
fn logs(format: WireFormat, context: u64, runner: &mut TestRunner) -> Vec<(Vec<Entry>, bool)> {
    fn one(strategy: &impl Strategy<Value = Log>, runner: &mut TestRunner) -> Vec<Entry> {
        loop {
            let Log(log) = strategy.new_tree(runner).unwrap().current();
            if (4..=14).contains(&log.len()) {
                return log;
            }
        }
    }
    let orderly = one(&orderly_log(format), runner);
    let mut logs = vec![(scaled(format, orderly, context), true)];
    for _ in 0..DISORDERLY {
        let disorderly = one(&histories::log(format, true), runner);
        logs.push((scaled(format, disorderly, context), false));
    }
    if format != WireFormat::Opaque {
        let long = long_results(format, context.min(REAL_CONTEXT_MAX));
        logs.push((if context > REAL_CONTEXT_MAX { scaled(format, long, context) } else { long }, true));
    }
    logs
}

/// The log with so many tokens for what tools and the model say that it fills the window.
fn scaled(format: WireFormat, mut log: Vec<Entry>, context: u64) -> Vec<Entry> {
    let is_large = |entry: &Entry| {
        entry.kind == EntryKind::Message
            && matches!(read(format, &entry.payload).role, Role::Model | Role::Results)
            || !read(format, &entry.payload).results.is_empty()
    };
    let total: u64 = log.iter().filter(|entry| is_large(entry)).map(|entry| entry.tokens).sum();
    let wanted = context * 3 / 2;
    for entry in log.iter_mut().filter(|entry| is_large(entry)) {
        entry.tokens = (entry.tokens * wanted / total.max(1)).max(1);
    }
    log
}

/// Six steps with long results, in two turns, that are three quarters of a window.
fn long_results(format: WireFormat, context: u64) -> Vec<Entry> {
    let wire = pb::WireFormat::try_from(format as i32 + 1).unwrap();
    let counter = TokenCounter::new(format, Tokenizer::Estimate);
    let text = |number: usize| {
        let line = format!("{number}: what a tool says of something that it was asked\n");
        line.repeat(usize::try_from(context / 8 / 14).unwrap().max(1))
    };
    let mut payloads = vec![user(wire, "Count what is there.")];
    for number in 0..6 {
        let id = format!("call_{number}");
        payloads.extend([call(wire, &id, "look"), result(wire, &id, "look", &text(number))]);
        if number == 2 {
            payloads.extend([model(wire, "Half of it."), user(wire, "Go on, and do not skip 13.")]);
        }
    }
    let numbered = payloads.into_iter().zip(1..);
    numbered
        .map(|(payload, seq)| {
            let tokens = counter.count_entry(&read(format, payload.as_bytes()));
            Entry { tokens, ..entry(seq, EntryKind::Message, payload) }
        })
        .collect()
}

fn pins(format: WireFormat, log: &[Entry]) -> WindowState {
    let mut state = WindowState::default();
    if format != WireFormat::Opaque {
        let pin = |text: &str| Pin { name: text.to_owned(), text: text.to_owned(), seq: None };
        state.pins = vec![pin("Never push to \"main\"."), pin("Postgres, because\nof its licence")];
        let names = ["port", "Why \"Postgres\"? \u{4e00}", "tests: how"].map(str::to_owned);
        state.notes = NoteNames { more: 7, ..NoteNames::of(names.to_vec()) };
        state.cut = opening(&compacted(format, &state, log).window(false));
    }
    state
}

/// Cuts until the window has at most so many tokens, as the service does.
fn deepened(format: WireFormat, log: &[Entry], state: &WindowState, tokens_max: u64) -> WindowState {
    let mut state = state.clone();
    let mut deepening = Deepening::to(tokens_max);
    loop {
        let assembler = compacted(format, &state, log);
        let window = assembler.window(false);
        let Some(cut) = deepening.next(&window, window.tokens()) else { return state };
        state.snipped.retain(|seq| *seq >= cut.first_kept);
        state.cut = Some(cut);
    }
}

fn made_smaller(format: WireFormat, log: &[Entry], room: Room, way: Way) -> Case<'_> {
    let mut state = pins(format, log);
    let usable = room.usable();
    {
        let assembler = compacted(format, &state, log);
        let window = assembler.window(false);
        let says = |text: &str, first_kept: Seq| {
            let (text, ledger) = (text.to_owned(), "- looked 7 times".to_owned());
            let covers = Seq(first_kept.0 - 1);
            (format != WireFormat::Opaque).then_some(Summary { covers, text, ledger, known: Value::Null })
        };
        let (cut, text) = match way {
            Way::Truncate if window.tokens() > room.context / 2 => {
                let floor = room.context / 2 * 8 / 10;
                (deepened(format, log, &state, floor).cut, "")
            }
            Way::Truncate | Way::ForOneRequest => (None, ""),
            Way::LastMessages => (last_messages(&window, 5), ""),
            Way::Snip => {
                let found = snippable(&window, SNIP_CHARACTERS, usable / 4);
                state.snipped = snips(&found, |seq| seq.0 % 3 == 0, window.tokens() / 2, 1);
                (None, "")
            }
            Way::Summarize => (tail(&window, usable * 3 / 10), "## Goal\nto count"),
            Way::Collapse => (tail(&window, 0), "Asked: \"Count what is there.\""),
        };
        if let Some(cut) = cut {
            state.summary = says(text, cut.first_kept).filter(|_| !text.is_empty());
            state.cut = Some(cut);
        }
    }
    // A restore cuts what does not fit yet; the results in the last step are shortened.
    state = deepened(format, log, &state, usable);
    let mut served = serve(&compacted(format, &state, log), false);
    if !room.fits(served.tokens) {
        // As many of them as it takes; else all.
        let long = window::long_results(format, log, &state, TokenCounter::new(format, Tokenizer::Estimate));
        let counts: Vec<_> = (0..long.len()).collect();
        let count = counts.partition_point(|count| {
            let state = with_shortened(&state, &long[..*count]);
            !room.fits(serve(&compacted(format, &state, log), false).tokens)
        });
        state = with_shortened(&state, &long[..count]);
        served = serve(&compacted(format, &state, log), false);
    }
    Case { format, log, state, room, served }
}

/// What became of windows.
#[derive(Debug, Default)]
struct Tally {
    fit: usize,
    do_not: usize,
    /// Those that leave something out or shorten it.
    smaller: usize,
    repairs: BTreeSet<RepairKind>,
}

impl Tally {
    fn add(&mut self, case: &Case<'_>, fits: bool) {
        *(if fits { &mut self.fit } else { &mut self.do_not }) += 1;
        let is_smaller = case.state.cut.as_ref().is_some_and(|cut| cut.omitted_entries > 0)
            || case.served.items.iter().any(|item| item.origin == Origin::Snipped);
        self.smaller += usize::from(is_smaller);
        self.repairs.extend(case.served.repairs.iter().map(|repair| repair.kind));
    }
}

/// Holds all windows of a way against the invariants.
fn check_all(way: Way) -> Tally {
    let mut runner = TestRunner::deterministic();
    let mut tally = Tally::default();
    for (format, context) in FORMATS.iter().flat_map(|format| CONTEXTS.map(|context| (*format, context))) {
        let profile = ModelProfile { context_window_tokens: context, ..ModelProfile::default() };
        let reserve = (way == Way::ForOneRequest).then_some(context / 2);
        let room = profile.room(reserve, context / 50).unwrap();
        let has_long_results = |log: &Vec<Entry>| log.iter().any(|entry| entry.payload.len() > 1_500);
        for (log, is_orderly) in logs(format, context, &mut runner) {
            // There is nothing to snip in the others, and to shorten texts takes its time.
            if way == Way::Snip && !(has_long_results(&log) && SNIPPED_CONTEXTS.contains(&context)) {
                continue;
            }
            for at in 1..=log.len() {
                let case = made_smaller(format, &log[..at], room, way);
                let told = format!("{way:?} {format} {context} at {at}");
                let fits = hold(&case, &steps(format, &log[..at]), true, &told);
                tally.add(&case, fits);
                let mut repairs = case.served.repairs.iter();
                let is_closed = repairs.any(|repair| repair.kind == RepairKind::ResultAdded);
                assert!(!(is_orderly && is_closed), "an orderly log has no calls to be closed: {told}");
            }
        }
    }
    tally
}

macro_rules! ways {
    ($($name:ident: $way:ident,)*) => {
        $(
            #[test]
            fn $name() {
                let tally = check_all(Way::$way);
                println!("{tally:?}");
                let Tally { fit, do_not, smaller, repairs } = &tally;
                assert!(*fit > 200 && do_not * 4 < *fit && smaller * 4 > *fit, "{tally:?}");
                if Way::$way != Way::Snip {
                    assert!(DISORDER.iter().all(|kind| repairs.contains(kind)), "{tally:?}");
                    // When all but the newest step left, no interrupted call is there.
                    let is_closed = repairs.contains(&RepairKind::ResultAdded);
                    assert_eq!(is_closed, Way::$way != Way::Collapse, "{tally:?}");
                }
            }
        )*
    };
}

/// Repairs of logs out of order.
const DISORDER: [RepairKind; 4] = [
    RepairKind::OrphanResultOmitted,
    RepairKind::DuplicateResultOmitted,
    RepairKind::ResultMoved,
    RepairKind::EmptyBlockOmitted,
];

ways! {
    truncated_windows_keep_the_invariants: Truncate,
    sliding_windows_keep_the_invariants: LastMessages,
    snipped_windows_keep_the_invariants: Snip,
    summarized_windows_keep_the_invariants: Summarize,
    collapsed_windows_keep_the_invariants: Collapse,
    windows_cut_for_one_request_keep_the_invariants: ForOneRequest,
}

/// Parts into which the cuts of the recorded conversations are divided, so that they are
/// tried at the same time.
const PARTS: usize = 4;

macro_rules! parts {
    ($($name:ident: $part:literal,)*) => {
        $(
            #[test]
            fn $name() {
                hold_in_recordings($part);
            }
        )*
    };
}

parts! {
    recorded_windows_keep_the_invariants_in_the_first_part: 0,
    recorded_windows_keep_the_invariants_in_the_second_part: 1,
    recorded_windows_keep_the_invariants_in_the_third_part: 2,
    recorded_windows_keep_the_invariants_in_the_fourth_part: 3,
}

fn hold_in_recordings(part: usize) {
    let (mut tally, mut number) = (Tally::default(), 0);
    let found = each_conversation(|format, name, log, is_judged| {
        // Each cut, and one way after the other.
        number += 1;
        for (index, at) in cuts(log.len()).enumerate().skip(part).step_by(PARTS) {
            let log = &log[..at];
            if log.is_empty() {
                continue;
            }
            let tokens: u64 = log.iter().map(|entry| entry.tokens).sum();
            let profile = ModelProfile {
                context_window_tokens: (tokens * 2 / 3).max(1_000),
                ..ModelProfile::default()
            };
            let way = WAYS[(number + index) % WAYS.len()];
            let case = made_smaller(format, log, profile.room(None, 0).unwrap(), way);
            let told = format!("{way:?} {name} at {at}");
            let fits = hold(&case, &steps(format, log), is_judged, &told);
            tally.add(&case, fits);
        }
    });
    println!("{tally:?}");
    assert!(found == 0 || tally.fit > 200 && tally.smaller > 200, "{tally:?}");
}

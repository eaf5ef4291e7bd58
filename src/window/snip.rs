//! Snips: which long tool results are shown by their ends.

use super::view::Window;
use crate::format::{Role, result_contents};
use crate::limits::{SNIP_CHARACTERS, SNIPPED_CHARACTERS};
use crate::model::{Entry, EntryKind, Origin, Seq, WindowState, WireFormat};
use crate::preview::long_result_tokens;
use crate::tokens::TokenCounter;
use bytes::Bytes;
use std::cmp::Reverse;

/// An entry whose long tool results may be shown by their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snippable {
    /// The entry.
    pub seq: Seq,
    /// Tokens that this wins, about.
    pub win: u64,
}

/// The messages that a window shows as entries, in order.
pub fn shown_entries(window: &Window<'_>) -> Vec<(Seq, Bytes)> {
    let slots = window.log().slots.iter().filter(|slot| slot.is_of_log());
    slots.map(|slot| (slot.seq, slot.payload.clone())).collect()
}

/// Entries with tool results of more than `characters`, which may be shown by their
/// ends, the oldest first: all but the newest, which have `protected` tokens together,
/// and those that the model has not seen yet. It asked for them, and would ask again.
pub fn snippable(window: &Window<'_>, characters: u64, protected: u64) -> Vec<Snippable> {
    let format = window.log().api.format;
    let (mut newer, mut is_seen, mut found) = (0_u64, false, Vec::new());
    for slot in window.log().slots.iter().rev().filter(|slot| slot.is_of_log()) {
        is_seen |= slot.role == Role::Model;
        if !slot.has_results {
            continue;
        }
        newer = newer.saturating_add(slot.tokens);
        if !is_seen || newer <= protected || slot.origin != Origin::Log {
            continue;
        }
        let bytes = bytes_won(format, &slot.payload, characters);
        let win = share(slot.tokens, bytes, slot.payload.len() as u64);
        // Of many short results nothing is won.
        if win > 0 {
            found.push(Snippable { seq: slot.seq, win });
        }
    }
    found.reverse();
    found
}

/// Bytes by which a payload gets shorter, about, if it is shown by the ends of its long
/// results: what they are is not worked out before they are shown. None if no result has
/// more than so many characters.
fn bytes_won(format: WireFormat, payload: &Bytes, characters: u64) -> u64 {
    // JSON has no fewer bytes than its text has characters.
    if payload.len() as u64 <= characters {
        return 0;
    }
    let (mut bytes, mut longest) = (0_u64, 0);
    for text in result_contents(format, payload).iter().flat_map(|result| &result.texts) {
        let length = text.text().map_or(0, |text| text.chars().count() as u64);
        longest = length.max(longest);
        if length > SNIP_CHARACTERS {
            bytes =
                bytes.saturating_add(share(text.range().len() as u64, length - SNIPPED_CHARACTERS, length));
        }
    }
    if longest > characters { bytes } else { 0 }
}

/// So large a share of a number.
fn share(number: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(number) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Which of those are snipped, in order: first what is stale, then the oldest, until
/// `aim` tokens are won. All of them if that is not enough; nothing if not even
/// `least` tokens can be won.
pub fn snips(found: &[Snippable], is_stale: impl Fn(Seq) -> bool, aim: u64, least: u64) -> Vec<Seq> {
    let (stale, fresh): (Vec<&Snippable>, Vec<_>) = found.iter().partition(|entry| is_stale(entry.seq));
    let mut won = 0_u64;
    let mut seqs = Vec::new();
    for entry in stale.into_iter().chain(fresh) {
        if won >= aim.max(least) {
            break;
        }
        won = won.saturating_add(entry.win);
        seqs.push(entry.seq);
    }
    if won < least {
        return vec![];
    }
    seqs.sort_unstable();
    seqs
}

/// A tool result with texts that may be shown by their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongResult {
    /// Its entry.
    pub seq: Seq,
    /// Its place among the results of that, counted from 0.
    pub place: u32,
    /// Tokens of those texts.
    pub tokens: u64,
}

/// The tool results in entries that a window of `state` shows whole and could show by
/// their ends, those of the most tokens first, and the oldest of as many.
pub fn long_results(
    format: WireFormat,
    entries: &[Entry],
    state: &WindowState,
    counter: TokenCounter,
) -> Vec<LongResult> {
    let mut found = Vec::new();
    // JSON has no fewer bytes than its text has characters.
    let is_long = |entry: &&Entry| entry.payload.len() as u64 > SNIP_CHARACTERS;
    let messages = entries.iter().filter(|entry| entry.kind == EntryKind::Message);
    for entry in messages.filter(is_long).filter(|entry| state.snipped.binary_search(&entry.seq).is_err()) {
        let tokens = long_result_tokens(format, &entry.payload, counter);
        let of_entry = (0..).zip(tokens).filter(|(_, tokens)| *tokens > 0);
        found.extend(of_entry.map(|(place, tokens)| LongResult { seq: entry.seq, place, tokens }));
    }
    found.sort_by_key(|result| (Reverse(result.tokens), result.seq, result.place));
    found
}

/// The state with which those results, which it shows whole, are shown by their ends.
pub fn with_shortened(state: &WindowState, results: &[LongResult]) -> WindowState {
    let mut state = state.clone();
    for LongResult { seq, place, .. } in results {
        state.partly.entry(*seq).or_default().push(*place);
    }
    state.partly.values_mut().for_each(|places| places.sort_unstable());
    state.snipped.extend(state.partly.keys());
    state.snipped.sort_unstable();
    state.snipped.dedup();
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Micros;
    use crate::model::{Tokenizer, Version};
    use proptest::prelude::*;

    fn any_found() -> impl Strategy<Value = Vec<(Snippable, bool)>> {
        prop::collection::vec((1_u64..1_000, any::<bool>()), 0..20).prop_map(|wins| {
            let numbered = wins.into_iter().zip(1..);
            numbered.map(|((win, is_stale), seq)| (Snippable { seq: Seq(seq), win }, is_stale)).collect()
        })
    }

    #[test]
    fn the_longest_results_that_are_shown_whole_come_first_and_the_oldest_of_as_many() {
        let result = |words: usize| {
            let text = "word ".repeat(words);
            format!(r#"{{"type":"tool_result","tool_use_id":"t","content":"{text}"}}"#)
        };
        let entry = |seq, words: &[usize]| {
            let blocks: Vec<_> = words.iter().map(|words| result(*words)).collect();
            let payload = format!(r#"{{"role":"user","content":[{}]}}"#, blocks.join(",")).into();
            let kind = if seq == 9 { EntryKind::Status } else { EntryKind::Message };
            Entry { seq: Seq(seq), version: Version(1), at: Micros(0), kind, tokens: 0, payload }
        };
        let entries =
            [entry(4, &[900]), entry(5, &[400, 1_000, 9, 400]), entry(7, &[1_000]), entry(9, &[900])];
        let snipped = WindowState { snipped: vec![Seq(4)], ..WindowState::default() };
        let counter = TokenCounter::new(WireFormat::AnthropicMessages, Tokenizer::O200k);
        let found = long_results(WireFormat::AnthropicMessages, &entries, &snipped, counter);
        let places: Vec<_> = found.iter().map(|found| (found.seq.0, found.place)).collect();
        assert_eq!(places, [(5, 1), (7, 0), (5, 0), (5, 3)]);
        let state = with_shortened(&snipped, &found[..3]);
        assert_eq!(state.snipped, [4, 5, 7].map(Seq));
        assert_eq!(state.partly, [(Seq(5), vec![0, 1]), (Seq(7), vec![0])].into());
        assert_eq!(with_shortened(&snipped, &[]), snipped);
    }

    proptest! {
        #[test]
        fn stale_results_go_first_then_the_oldest_and_no_more_than_needed(
            found in any_found(), aim in 0_u64..8_000, least in 0_u64..4_000,
        ) {
            let entries: Vec<_> = found.iter().map(|(entry, _)| *entry).collect();
            let is_stale = |seq: Seq| found.iter().any(|(entry, stale)| entry.seq == seq && *stale);
            let chosen = snips(&entries, is_stale, aim, least);
            prop_assert!(chosen.is_sorted());
            let win = |seqs: &[Seq]| entries.iter().filter(|e| seqs.contains(&e.seq)).map(|e| e.win).sum::<u64>();
            let all: Vec<_> = entries.iter().map(|entry| entry.seq).collect();
            if win(&all) < least {
                prop_assert_eq!(chosen, vec![]);
                return Ok(());
            }
            prop_assert!(win(&chosen) >= aim.max(least) || chosen == all);
            // In the order of their turn, what is chosen are the first.
            let mut order = all;
            order.sort_by_key(|seq| (!is_stale(*seq), *seq));
            let (first, rest) = order.split_at(chosen.len());
            prop_assert!(first.iter().all(|seq| chosen.contains(seq)) && !rest.iter().any(|seq| chosen.contains(seq)));
            // Without the last of them it would not be enough.
            if let Some((_, but_last)) = first.split_last() {
                prop_assert!(win(but_last) < aim.max(least));
            }
        }
    }
}

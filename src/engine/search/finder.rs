//! Finding a pattern in entries, and what is told of it.

use super::{Found, FoundIn, SearchPlace};
use crate::engine::search_output::FoundLine;
use crate::format::{self, Role, Text, TextKind};
use crate::limits::{OUTPUT_LINE_OVERLAP_BYTES, OUTPUT_LINE_SEARCHED_BYTES, SEARCH_MATCH_SHOWN_CHARACTERS};
use crate::model::{CallState, Entry, EntryKind, Output, OutputName, Seq, WireFormat};
use crate::preview::{Escaped, Measure as _, fitting_prefix};
use regex::bytes::Regex;
use std::collections::HashMap;
use std::ops::Range;

/// Looks for a pattern, keeps what it found, and knows when that is enough.
#[derive(Debug)]
pub(super) struct Finder {
    pub(super) regex: Regex,
    pub(super) format: WireFormat,
    pub(super) roles: Vec<Role>,
    pub(super) tool_names: Vec<String>,
    /// Characters before and after a match that are shown too.
    pub(super) context: usize,
    pub(super) include_meta: bool,
    pub(super) oldest_first: bool,
    /// Matches that may still be found.
    pub(super) left: u32,
    /// Characters that may still be shown.
    pub(super) room: u64,
    pub(super) has_found: bool,
    /// Where to begin: in an entry, in which of its texts, at which byte of that.
    pub(super) from: Option<(Seq, u32, u64)>,
    pub(super) found: Vec<Found>,
    /// Where to go on, once it has ended early.
    pub(super) next: Option<SearchPlace>,
}

/// How a search of entries ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Searched {
    /// With the entries, or as [`Finder::next`] says.
    Done,
    /// At a result whose call is not among the entries: it goes on once it knows
    /// the calls before them.
    NeedsCalls,
}

impl Finder {
    pub(super) fn wants_role(&self, role: Role) -> bool {
        self.roles.is_empty() || self.roles.contains(&role)
    }

    pub(super) fn wants_tool(&self, name: &str) -> bool {
        self.tool_names.is_empty() || self.tool_names.iter().any(|wanted| wanted == name)
    }

    /// Searches those of `entries` that are `due`. `before` are the calls without a
    /// result before all of them, if they are known.
    pub(super) fn search(
        &mut self,
        entries: &[Entry],
        due: Range<usize>,
        before: Option<&CallState>,
    ) -> Searched {
        let mut names = Names { format: self.format, entries, before, calls: None };
        let mut due = entries.get(due).unwrap_or_default().iter();
        while self.next.is_none()
            && let Some(entry) = if self.oldest_first { due.next() } else { due.next_back() }
        {
            let from = match self.from {
                Some((seq, text, byte)) if seq == entry.seq => (text, byte),
                Some((seq, ..)) if (entry.seq < seq) == self.oldest_first => continue,
                _ => (0, 0),
            };
            self.from = None;
            if self.search_entry(entry, from, &mut names) == Searched::NeedsCalls {
                return Searched::NeedsCalls;
            }
        }
        Searched::Done
    }

    fn search_entry(&mut self, entry: &Entry, from: (u32, u64), names: &mut Names<'_>) -> Searched {
        let texts = match entry.kind {
            EntryKind::Message => format::texts(self.format, &entry.payload),
            _ if self.include_meta => format::texts(WireFormat::Opaque, &entry.payload),
            _ => return Searched::Done,
        };
        for (i, mut text) in (0..).zip(texts).skip_while(|(i, _)| *i < from.0) {
            let start = if i == from.0 { usize::try_from(from.1).unwrap_or(usize::MAX) } else { 0 };
            let is_wanted = self.wants_role(text.role)
                && (self.tool_names.is_empty() || text.kind != TextKind::Said)
                && find(&self.regex, text.content.as_bytes(), start).is_some();
            if !is_wanted {
                continue;
            }
            if text.kind == TextKind::Result && text.tool_name.is_empty() && !text.call_id.is_empty() {
                let Some(name) = names.of(entry.seq, &text.call_id) else {
                    self.from = Some((entry.seq, i, start as u64));
                    return Searched::NeedsCalls;
                };
                text.tool_name = name.into();
            }
            if !self.wants_tool(&text.tool_name) {
                continue;
            }
            if let Some(byte) = self.search_text(entry, &text, start) {
                self.next = Some(SearchPlace::Entry { seq: entry.seq, text: i, byte: byte as u64 });
                return Searched::Done;
            }
        }
        Searched::Done
    }

    /// Finds the pattern in a text; the byte to go on with, if that is enough.
    fn search_text(&mut self, entry: &Entry, text: &Text<'_>, start: usize) -> Option<usize> {
        let bytes = text.content.as_bytes();
        let mut at = start;
        while let Some(found) = find(&self.regex, bytes, at) {
            let place = FoundIn::Entry(entry.seq, text.kind);
            let told = Found {
                version: entry.version,
                role: text.role,
                tool_name: text.tool_name.as_ref().to_owned(),
                call_id: text.call_id.as_ref().to_owned(),
                ..self.told(place, bytes, &found)
            };
            at = (usize::try_from(told.excerpt_at).unwrap_or(usize::MAX)).saturating_add(told.excerpt.len());
            // At least one character, so that it comes to an end.
            at = at.max(found.end).max(after(bytes, found.start, 1));
            if !self.push(told, bytes, &found) {
                return Some(found.start);
            }
            if self.left == 0 {
                return Some(at);
            }
        }
        None
    }

    /// Tells of lines of a tool output.
    pub(super) fn take_lines(&mut self, output: &Output, name: &OutputName, lines: &[FoundLine]) {
        for line in lines.iter().filter(|line| line.is_match) {
            // What is shown of a very long line may cut the match.
            let found = find(&self.regex, &line.text, 0).unwrap_or(0..0);
            let told = self.told(FoundIn::Output(name.clone(), line.line), &line.text, &found);
            let told = Found {
                version: output.version,
                role: Role::Results,
                tool_name: output.tool_name.clone(),
                call_id: output.tool_call_id.clone(),
                text_bytes: output.bytes,
                ..told
            };
            let is_pushed = self.push(told, &line.text, &found);
            if let Some(pushed) = self.found.last_mut().filter(|_| is_pushed) {
                pushed.excerpt_at += line.byte;
                pushed.bytes.start += line.byte;
                pushed.bytes.end += line.byte;
            }
            if !is_pushed || self.left == 0 {
                let line = line.line + u64::from(is_pushed);
                self.next = Some(SearchPlace::Output { output: output.id.clone(), line });
                return;
            }
        }
    }

    /// What is told of a match, but for whose text it is.
    fn told(&self, place: FoundIn, text: &[u8], found: &Range<usize>) -> Found {
        let start = before(text, found.start, self.context);
        let shown = after(text, found.start, SEARCH_MATCH_SHOWN_CHARACTERS);
        let end = if shown < found.end { shown } else { after(text, found.end, self.context) };
        Found {
            place,
            version: crate::model::Version(0),
            role: Role::Unknown,
            tool_name: String::new(),
            call_id: String::new(),
            excerpt: String::from_utf8_lossy(text.get(start..end).unwrap_or_default()).into_owned(),
            excerpt_at: start as u64,
            bytes: found.start as u64..found.end as u64,
            text_bytes: text.len() as u64,
        }
    }

    /// Keeps a match if there is room for it. The first is kept in any case, as far
    /// as it fits.
    fn push(&mut self, mut told: Found, text: &[u8], found: &Range<usize>) -> bool {
        /// Numbers and words beside the texts of a match.
        const ENVELOPE: u64 = 120;
        let reference = match &told.place {
            FoundIn::Entry(..) => 0,
            FoundIn::Output(name, _) => Escaped.length(&name.storage_ref()),
        };
        let around = ENVELOPE + Escaped.length(&told.tool_name) + Escaped.length(&told.call_id) + reference;
        let mut cost = around + Escaped.length(&told.excerpt);
        if cost > self.room && self.has_found {
            return false;
        }
        if cost > self.room {
            let rest = text.get(found.start..after(text, found.start, SEARCH_MATCH_SHOWN_CHARACTERS));
            let rest = rest.unwrap_or_default();
            let fitting = fitting_prefix(rest, self.room.saturating_sub(around));
            told.excerpt = String::from_utf8_lossy(rest.get(..fitting).unwrap_or_default()).into_owned();
            told.excerpt_at = found.start as u64;
            cost = self.room;
        }
        self.room -= cost;
        self.left -= 1;
        self.has_found = true;
        self.found.push(told);
        true
    }
}

/// The first match that begins at byte `at` or later. A long text is searched in
/// pieces: a match that begins near the end of one is looked for again in the next.
fn find(regex: &Regex, text: &[u8], mut at: usize) -> Option<Range<usize>> {
    // At the end there is nothing but of an empty text.
    if at > 0 && at >= text.len() {
        return None;
    }
    loop {
        let end = at.saturating_add(OUTPUT_LINE_SEARCHED_BYTES).min(text.len());
        let end = before(text, end, 0);
        let is_last = end == text.len();
        let found = regex.find_at(text.get(..end)?, at);
        match found {
            Some(found) if is_last || found.start() + OUTPUT_LINE_OVERLAP_BYTES <= end => {
                return Some(found.range());
            }
            None if is_last => return None,
            Some(found) => at = found.start(),
            None => at = end.saturating_sub(OUTPUT_LINE_OVERLAP_BYTES),
        }
    }
}

fn is_inside(text: &[u8], at: usize) -> bool {
    text.get(at).is_some_and(|byte| byte & 0xc0 == 0x80)
}

/// The place so many characters before another.
fn before(text: &[u8], mut at: usize, characters: usize) -> usize {
    for left in (0..=characters).rev() {
        while at > 0 && is_inside(text, at) {
            at -= 1;
        }
        if left == 0 || at == 0 {
            break;
        }
        at -= 1;
    }
    at
}

/// The place so many characters behind another.
fn after(text: &[u8], mut at: usize, characters: usize) -> usize {
    for left in (0..=characters).rev() {
        while is_inside(text, at) {
            at += 1;
        }
        if left == 0 || at >= text.len() {
            break;
        }
        at += 1;
    }
    at
}

/// Names of the tools that calls are of.
struct Names<'a> {
    format: WireFormat,
    entries: &'a [Entry],
    before: Option<&'a CallState>,
    /// The calls of the entries by their ids, in order.
    calls: Option<HashMap<String, Vec<(Seq, String)>>>,
}

impl Names<'_> {
    /// The tool of the call that a result in the entry `seq` names; empty if there
    /// is none. Nothing if it is not among the entries, and what was before is not
    /// known.
    fn of(&mut self, seq: Seq, call_id: &str) -> Option<String> {
        let calls = self.calls.get_or_insert_with(|| calls(self.format, self.entries));
        let here = calls.get(call_id).and_then(|calls| calls.iter().rev().find(|(at, _)| *at < seq));
        if let Some((_, name)) = here {
            return Some(name.clone());
        }
        let CallState { pending, interrupted, .. } = self.before?;
        let call = pending.iter().chain(interrupted).find(|call| call.call_id == call_id);
        Some(call.map(|call| call.name.clone()).unwrap_or_default())
    }
}

fn calls(format: WireFormat, entries: &[Entry]) -> HashMap<String, Vec<(Seq, String)>> {
    let mut calls: HashMap<String, Vec<(Seq, String)>> = HashMap::new();
    for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Message) {
        for call in format::read(format, &entry.payload).calls {
            let Some(id) = call.id else { continue };
            calls.entry(id.into_owned()).or_default().push((entry.seq, call.name.into_owned()));
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_counted_and_not_cut() {
        let text = "aé中😀z".as_bytes();
        let starts = [0, 1, 3, 6, 10, 11];
        for (i, at) in starts.into_iter().enumerate() {
            for (j, other) in starts.into_iter().enumerate() {
                match j.checked_sub(i) {
                    Some(characters) => assert_eq!(after(text, at, characters), other),
                    None => assert_eq!(before(text, at, i - j), other),
                }
            }
            assert_eq!((before(text, at, 9), after(text, at, 9)), (0, 11));
        }
        assert_eq!((before(text, 8, 0), after(text, 8, 0)), (6, 10));
    }

    #[test]
    fn a_match_is_found_wherever_the_pieces_of_a_text_end() {
        const WORD: &str = "the needle is here";
        let regex = Regex::new("needle is").unwrap();
        let greedy = Regex::new("e+ is").unwrap();
        for place in [
            0,
            OUTPUT_LINE_SEARCHED_BYTES - OUTPUT_LINE_OVERLAP_BYTES,
            OUTPUT_LINE_SEARCHED_BYTES - 12,
            OUTPUT_LINE_SEARCHED_BYTES,
            3 * OUTPUT_LINE_SEARCHED_BYTES - 5,
        ] {
            let text = [&"é".repeat(place / 2), WORD, &"ü".repeat(OUTPUT_LINE_SEARCHED_BYTES)].concat();
            let at = place / 2 * 2 + 4;
            assert_eq!(find(&regex, text.as_bytes(), 0), Some(at..at + 9), "{place}");
            assert_eq!(find(&greedy, text.as_bytes(), 0), Some(at + 5..at + 9), "{place}");
            assert_eq!(find(&regex, text.as_bytes(), at + 1), None, "{place}");
        }
        let empty = Regex::new("^$").unwrap();
        assert_eq!(find(&empty, b"", 0), Some(0..0));
        assert_eq!(find(&empty, b"x", 7), None);
    }
}

//! Searching tool outputs.

use super::output_blob::OutputBlob;
use super::pattern::{Haystack, Pattern};
use super::read_output::{Bounds, OutputRange, Reader};
use super::{Engine, Error, compute};
use crate::limits::{
    OUTPUT_CONTEXT_LINES_MAX, OUTPUT_LINE_OVERLAP_BYTES, OUTPUT_LINE_SEARCHED_BYTES, OUTPUT_LINE_SHOWN_BYTES,
    OUTPUT_MATCHES_MAX,
};
use crate::model::{Output, OutputName, TenantId};
use crate::preview::{Escaped, Measure as _, fitting_prefix};
use crate::store::meta::SessionKey;
use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use regex::bytes::Regex;
use std::collections::VecDeque;

/// A search of an output.
#[derive(Clone, Debug)]
pub struct SearchOutput {
    /// The caller.
    pub tenant: TenantId,
    /// The output.
    pub name: OutputName,
    /// What for.
    pub pattern: Pattern,
    /// Lines before and after each match that are shown too.
    pub context_lines: u32,
    /// Most matching lines.
    pub matches_max: u32,
    /// The line to begin with, counted from 1.
    pub first_line: u64,
    /// Whether all is returned and not what fits a tool result.
    pub is_unlimited: bool,
}

/// A line that a search found, or one beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLine {
    /// Its number, counted from 1.
    pub line: u64,
    /// Where `text` begins in the output, counted from 0.
    pub byte: u64,
    /// The line without its line break, or of a long one the part with the match.
    pub text: Bytes,
    /// Whether it matches.
    pub is_match: bool,
    /// Whether `text` is a part of the line.
    pub is_cut: bool,
}

/// A part of the answer to a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SearchPart {
    /// The next lines.
    Lines(Vec<FoundLine>),
    /// The last part: with which line to go on, if the search ended before the
    /// output.
    End(Option<u64>),
}

impl Engine {
    /// Searches an output, line by line: what is known of it, and then what was
    /// found.
    pub async fn search_output(
        &self,
        request: SearchOutput,
    ) -> Result<(Output, impl Stream<Item = Result<SearchPart, Error>> + Send + use<>), Error> {
        let SearchOutput { tenant, name, pattern, context_lines, matches_max, first_line, is_unlimited } =
            request;
        if context_lines > OUTPUT_CONTEXT_LINES_MAX {
            let problem = format!("is {context_lines}; at most {OUTPUT_CONTEXT_LINES_MAX} are allowed");
            return Err(Error::invalid("search.context_lines", problem));
        }
        if !(1..=OUTPUT_MATCHES_MAX).contains(&matches_max) {
            let problem = format!("is {matches_max}; must be from 1 to {OUTPUT_MATCHES_MAX}");
            return Err(Error::invalid("search.matches_max", problem));
        }
        let regex = pattern.compile("search.pattern", Haystack::Line)?;
        let blob = self.open_output(&tenant, &name).await?;
        let room = if is_unlimited {
            u64::MAX
        } else {
            self.page_characters(&SessionKey { tenant, session: name.session.clone() }).await?
        };
        let first_line = first_line.max(1);
        let search = LineSearch::new(regex, context_lines, matches_max, room, first_line);
        lines_of(blob, search)
    }

    /// The lines of an output in which `regex` is found, from `first_line` on.
    pub(super) async fn matching_lines(
        &self,
        tenant: &TenantId,
        name: &OutputName,
        regex: Regex,
        matches_max: u32,
        first_line: u64,
    ) -> Result<impl Stream<Item = Result<SearchPart, Error>> + Send + use<>, Error> {
        let blob = self.open_output(tenant, name).await?;
        let search = LineSearch::new(regex, 0, matches_max, u64::MAX, first_line.max(1));
        lines_of(blob, search).map(|(_, parts)| parts)
    }
}

/// What a search of an output finds, from the line on that it is at.
fn lines_of(
    blob: OutputBlob,
    search: LineSearch,
) -> Result<(Output, impl Stream<Item = Result<SearchPart, Error>> + Send + use<>), Error> {
    let output = blob.output.clone();
    let start = i64::try_from(search.line).unwrap_or(i64::MAX);
    let bounds = Bounds::of(OutputRange::Lines { start, count: None }, &output)?;
    let frames = bounds.frames(&blob.index);
    let reader = Reader { frames: blob.frames(frames), bounds };
    let lines = output.lines;
    let parts = stream::try_unfold(Some((reader, search)), move |state| async move {
        match state {
            Some((reader, search)) => parts_of(reader, search, lines).await.map(Some),
            None => Ok(None),
        }
    });
    Ok((output, parts.map_ok(|parts| stream::iter(parts).map(Ok)).try_flatten()))
}

/// The next parts of an answer, and what the others are made of.
async fn parts_of(
    mut reader: Reader,
    mut search: LineSearch,
    lines: u64,
) -> Result<(Vec<SearchPart>, Option<(Reader, LineSearch)>), Error> {
    loop {
        let piece = reader.next().await?;
        let is_last = piece.is_none();
        let searched = compute(usize::MAX, move || {
            match piece {
                Some(piece) => search.push(piece.byte, &piece.bytes),
                None => search.finish(),
            }
            search
        });
        search = searched.await?;
        let found = std::mem::take(&mut search.found);
        let mut parts: Vec<_> = (!found.is_empty()).then_some(SearchPart::Lines(found)).into_iter().collect();
        if is_last || search.next_line.is_some() {
            parts.push(SearchPart::End(search.next_line.filter(|next| *next <= lines)));
            return Ok((parts, None));
        }
        if !parts.is_empty() {
            return Ok((parts, Some((reader, search))));
        }
    }
}

/// Characters that a line is shown with, beside its text.
const LINE_ENVELOPE: u64 = 24;

/// Searches an output that comes in parts.
#[derive(Debug)]
struct LineSearch {
    regex: Regex,
    context_lines: usize,
    matches_left: u32,
    /// Characters that may still be shown.
    room: u64,
    /// The number of the line that comes.
    line: u64,
    /// What is known of that line and not searched yet, and where it begins.
    pending: Vec<u8>,
    pending_at: u64,
    /// What is to be shown of a line that is too long to be searched at once.
    long: Option<FoundLine>,
    /// The newest lines that are not shown.
    before: VecDeque<FoundLine>,
    /// Lines that are to be shown after the last match.
    after_left: usize,
    found: Vec<FoundLine>,
    has_found: bool,
    /// Where to go on, once it has ended early.
    next_line: Option<u64>,
}

impl LineSearch {
    fn new(regex: Regex, context_lines: u32, matches_max: u32, room: u64, line: u64) -> Self {
        Self {
            regex,
            context_lines: usize::try_from(context_lines).unwrap_or(usize::MAX),
            matches_left: matches_max,
            room,
            line,
            pending: Vec::new(),
            pending_at: 0,
            long: None,
            before: VecDeque::new(),
            after_left: 0,
            found: Vec::new(),
            has_found: false,
            next_line: None,
        }
    }

    /// Takes in the next bytes, which begin at `byte`.
    fn push(&mut self, byte: u64, bytes: &[u8]) {
        let (mut at, mut rest) = (byte, bytes);
        while self.next_line.is_none()
            && let Some((line, others)) =
                memchr::memchr(b'\n', rest).and_then(|end| Some((rest.get(..end)?, rest.get(end + 1..)?)))
        {
            if self.pending.is_empty() {
                self.end_line(at, line);
            } else {
                self.pending.extend_from_slice(line);
                let pending = std::mem::take(&mut self.pending);
                self.end_line(self.pending_at, &pending);
            }
            at += line.len() as u64 + 1;
            rest = others;
        }
        if self.pending.is_empty() {
            self.pending_at = at;
        }
        self.pending.extend_from_slice(rest);
        if self.pending.len() >= OUTPUT_LINE_SEARCHED_BYTES {
            self.search_pending();
        }
    }

    /// The output has ended.
    fn finish(&mut self) {
        if self.next_line.is_none() && (!self.pending.is_empty() || self.long.is_some()) {
            let pending = std::mem::take(&mut self.pending);
            self.end_line(self.pending_at, &pending);
        }
    }

    /// Searches what is known of a long line and keeps its end.
    fn search_pending(&mut self) {
        let shown = self.shown(self.pending_at, &self.pending, true);
        if self.long.as_ref().is_none_or(|known| shown.is_match && !known.is_match) {
            self.long = Some(shown);
        }
        let searched = self.pending.len().saturating_sub(OUTPUT_LINE_OVERLAP_BYTES);
        self.pending.drain(..searched);
        self.pending_at += searched as u64;
    }

    /// A line has ended, with `text`, which begins at `byte`.
    fn end_line(&mut self, byte: u64, text: &[u8]) {
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let long = self.long.take();
        let shown = match long {
            Some(known) if known.is_match => known,
            Some(known) => {
                let rest = self.shown(byte, text, true);
                if rest.is_match { rest } else { known }
            }
            None => self.shown(byte, text, false),
        };
        self.take_line(shown);
        self.line += 1;
        let is_enough = self.matches_left == 0 && self.after_left == 0;
        if is_enough && self.next_line.is_none() {
            self.next_line = Some(self.line);
        }
    }

    /// What is shown of a line, or of a part of one, that is searched now.
    fn shown(&self, byte: u64, text: &[u8], is_part: bool) -> FoundLine {
        /// Share of what is shown that lies before the match.
        const BEFORE: usize = OUTPUT_LINE_SHOWN_BYTES / 4;
        let is_inside = |at: usize| text.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
        let found = self.regex.find(text);
        let start = match &found {
            Some(found) if text.len() > OUTPUT_LINE_SHOWN_BYTES => {
                let start = found.start().saturating_sub(BEFORE);
                (start..start + 4).find(|at| !is_inside(*at)).unwrap_or(start)
            }
            _ => 0,
        };
        let rest = text.get(start..).unwrap_or_default();
        let end = OUTPUT_LINE_SHOWN_BYTES.min(rest.len());
        let end = (end.saturating_sub(3)..=end).rev().find(|at| !is_inside(start + at)).unwrap_or(end);
        FoundLine {
            line: self.line,
            byte: byte + start as u64,
            text: Bytes::copy_from_slice(rest.get(..end).unwrap_or_default()),
            is_match: found.is_some(),
            is_cut: is_part || end < text.len(),
        }
    }

    /// Shows a line or keeps it for a match that may follow.
    fn take_line(&mut self, mut line: FoundLine) {
        if !line.is_match {
            if self.after_left > 0 {
                self.after_left -= 1;
                self.show(line);
            } else if self.context_lines > 0 {
                if self.before.len() == self.context_lines {
                    self.before.pop_front();
                }
                self.before.push_back(line);
            }
            return;
        }
        if self.matches_left == 0 {
            self.next_line = Some(line.line);
            return;
        }
        let before = std::mem::take(&mut self.before);
        let all: u64 = before.iter().chain([&line]).map(cost).sum();
        if all > self.room && self.has_found {
            self.next_line = Some(line.line);
            return;
        }
        self.matches_left -= 1;
        self.after_left = self.context_lines;
        if all <= self.room {
            for line in before {
                self.show(line);
            }
        } else if cost(&line) > self.room {
            // The first is shown in any case, as far as it fits.
            let fitting = fitting_prefix(&line.text, self.room.saturating_sub(LINE_ENVELOPE));
            line.text.truncate(fitting);
            line.is_cut = true;
        }
        self.has_found = true;
        self.show(line);
    }

    fn show(&mut self, line: FoundLine) {
        let cost = cost(&line);
        if cost > self.room {
            self.next_line = Some(line.line);
            return;
        }
        self.room -= cost;
        self.found.push(line);
    }
}

/// Characters that a line takes in a tool result.
fn cost(line: &FoundLine) -> u64 {
    LINE_ENVELOPE + Escaped.length(&String::from_utf8_lossy(&line.text))
}

//! Searching a transcript: the whole log, and the tool outputs beside it.

mod finder;

use super::log::Position;
use super::pattern::{Haystack, Pattern};
use super::read::{LogRange, ReadHeader, Reader};
use super::search_output::SearchPart;
use super::{Engine, Error, compute};
use crate::format::{Role, TextKind};
use crate::limits::{
    OUTPUT_LABEL_BYTES_MAX, SEARCH_CONTEXT_CHARACTERS_MAX, SEARCH_MATCHES_MAX, SEARCH_TOOL_NAMES_MAX,
};
use crate::model::{CallState, Entry, Output, OutputId, OutputName, Seq, Version};
use crate::store::meta::{BranchKey, SessionKey};
use finder::{Finder, Searched};
use futures::stream::{self, BoxStream, Stream, StreamExt as _, TryStreamExt as _};
use std::collections::VecDeque;
use std::ops::Range;

/// Pieces of the log that are fetched at the same time: no more are fetched in
/// vain when the search ends.
const AHEAD: usize = 2;

/// Outputs that are listed at once.
const OUTPUTS_PAGE: u32 = 100;

/// A search of a transcript.
#[derive(Clone, Debug)]
pub struct SearchTranscript {
    /// The session.
    pub key: SessionKey,
    /// What for.
    pub pattern: Pattern,
    /// Only what these said; anybody if empty.
    pub roles: Vec<Role>,
    /// Only calls of these tools with their results; anything if empty.
    pub tool_names: Vec<String>,
    /// Which entries.
    pub range: LogRange,
    /// Only what this turn and later ones added.
    pub first_version: Version,
    /// Whether it begins with the first entry and not with the newest.
    pub oldest_first: bool,
    /// Whether tool outputs are searched too.
    pub include_outputs: bool,
    /// Whether entries that are no messages are searched too.
    pub include_meta: bool,
    /// Characters before and after a match that are shown too.
    pub context_characters: u32,
    /// Most matches.
    pub matches_max: u32,
    /// Whether all is returned and not what fits a tool result.
    pub is_unlimited: bool,
    /// Where an earlier search ended.
    pub from: Option<SearchPosition>,
}

/// Where to go on with a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchPosition {
    /// The version that is searched.
    pub version: Version,
    /// The place in it.
    pub place: SearchPlace,
}

/// A place in what is searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SearchPlace {
    /// In the log.
    Entry {
        /// The entry.
        seq: Seq,
        /// Which of its texts.
        text: u32,
        /// A byte of the text.
        byte: u64,
    },
    /// In a tool output.
    Output {
        /// The output.
        output: OutputId,
        /// A line, counted from 1.
        line: u64,
    },
}

/// Something that a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it was found in.
    pub place: FoundIn,
    /// The turn that appended the entry, or the newest when the output was kept.
    pub version: Version,
    /// Whose text it is.
    pub role: Role,
    /// Name of the tool; empty if it is not known.
    pub tool_name: String,
    /// Id of the call; empty if there is none.
    pub call_id: String,
    /// The match with what is around it.
    pub excerpt: String,
    /// Where the excerpt begins, in bytes of the text.
    pub excerpt_at: u64,
    /// Where the match lies, in bytes of the text.
    pub bytes: Range<u64>,
    /// How many bytes the text has.
    pub text_bytes: u64,
}

/// What something was found in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundIn {
    /// An entry of the log.
    Entry(Seq, TextKind),
    /// A line of a tool output, counted from 1.
    Output(OutputName, u64),
}

/// A part of the answer to a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TranscriptPart {
    /// The next matches.
    Found(Vec<Found>),
    /// The last part: where to go on, if the search ended early.
    End(Option<SearchPosition>),
}

impl Engine {
    /// Searches a transcript: what is known of its log, and then what is found.
    pub async fn search_transcript(
        &self,
        request: SearchTranscript,
    ) -> Result<(ReadHeader, impl Stream<Item = Result<TranscriptPart, Error>> + Send + use<>), Error> {
        check(&request)?;
        let regex = request.pattern.compile("pattern", Haystack::Text)?;
        let key = request.key;
        let tip = self.tip(&key, None).await?;
        let pinned = request.from.as_ref().map(|from| from.version);
        let version = pinned.or(request.range.at_version).unwrap_or(tip.head.version);
        let at = self.position(&key, &tip, version).await?;
        let header = ReadHeader::new(&tip, &at);
        let room = if request.is_unlimited { u64::MAX } else { self.page_characters(&key).await? };
        let mut finder = Finder {
            regex,
            format: tip.session.format,
            roles: request.roles,
            tool_names: request.tool_names,
            context: usize::try_from(request.context_characters).unwrap_or(usize::MAX),
            include_meta: request.include_meta,
            oldest_first: request.oldest_first,
            left: request.matches_max,
            room,
            has_found: false,
            from: None,
            found: Vec::new(),
            next: None,
        };
        let mut outputs = Outputs {
            is_newest: version == tip.head.version,
            first_version: request.first_version,
            from: None,
            before: None,
            listed: VecDeque::new(),
            is_all: !request.include_outputs || !finder.wants_role(Role::Results),
            lines: None,
        };
        let mut first = request.range.first.unwrap_or_default().max(Seq(1));
        let mut last = request.range.last.unwrap_or(Seq(u64::MAX)).min(at.turn.last_seq);
        if request.first_version > Version(1) {
            first = first.max(self.first_seq_of(&key, &at, request.first_version).await?);
        }
        match request.from.map(|from| from.place) {
            None => {}
            Some(SearchPlace::Entry { seq, text, byte }) => {
                let end = if request.oldest_first { &mut first } else { &mut last };
                *end = if request.oldest_first { seq.max(*end) } else { seq.min(*end) };
                finder.from = Some((seq, text, byte));
            }
            Some(SearchPlace::Output { output, line }) => {
                last = Seq(0);
                outputs.from = Some((output, line));
            }
        }
        let mut pieces =
            if first <= last { self.pieces(&key, &at, first, last, None).await? } else { vec![] };
        if !request.oldest_first {
            pieces.reverse();
        }
        let reader = Reader { engine: self.clone(), key: key.clone(), at: at.clone(), last };
        let pieces =
            stream::iter(pieces).map(move |piece| reader.clone().load(piece)).buffered(AHEAD).boxed();
        let source = Source { engine: self.clone(), key, at, first, last, pieces, outputs };
        let parts = stream::try_unfold(Some((source, finder)), |state| async move {
            match state {
                Some((source, finder)) => parts_of(source, finder).await.map(Some),
                None => Ok(None),
            }
        });
        Ok((header, parts.map_ok(|parts| stream::iter(parts).map(Ok)).try_flatten()))
    }

    /// The first entry that a turn of a log, or a later one, added.
    async fn first_seq_of(&self, key: &SessionKey, at: &Position, version: Version) -> Result<Seq, Error> {
        let span =
            at.lineage.spans().iter().find(|span| span.last_version.is_none_or(|last| version <= last));
        let Some(span) = span.filter(|_| version <= at.turn.version) else {
            return Ok(at.turn.last_seq.next());
        };
        if version <= span.first_version {
            return Ok(span.first_seq);
        }
        let branch = BranchKey { tenant: key.tenant.clone(), branch: span.branch.clone() };
        let recorded = self.inner.meta.turn(&branch, version).await?;
        let missing = || Error::internal(format!("turn {version} of branch {} is not there", span.branch));
        Ok(recorded.ok_or_else(missing)?.turn.first_seq)
    }
}

fn check(request: &SearchTranscript) -> Result<(), Error> {
    if request.context_characters > SEARCH_CONTEXT_CHARACTERS_MAX {
        let asked = request.context_characters;
        let problem = format!("is {asked}; at most {SEARCH_CONTEXT_CHARACTERS_MAX} are allowed");
        return Err(Error::invalid("context_characters", problem));
    }
    if !(1..=SEARCH_MATCHES_MAX).contains(&request.matches_max) {
        let problem = format!("is {}; must be from 1 to {SEARCH_MATCHES_MAX}", request.matches_max);
        return Err(Error::invalid("matches_max", problem));
    }
    if request.tool_names.len() > SEARCH_TOOL_NAMES_MAX {
        let problem =
            format!("are {}; at most {SEARCH_TOOL_NAMES_MAX} are allowed", request.tool_names.len());
        return Err(Error::invalid("tool_names", problem));
    }
    let lengths = request.tool_names.iter().map(String::len);
    if let Some((i, bytes)) = lengths.enumerate().find(|(_, len)| !(1..=OUTPUT_LABEL_BYTES_MAX).contains(len))
    {
        let problem = format!("has {bytes} bytes; must have from 1 to {OUTPUT_LABEL_BYTES_MAX}");
        return Err(Error::invalid(format!("tool_names[{i}]"), problem));
    }
    let LogRange { first, last, at_version } = request.range;
    if request.include_outputs && (first.is_some() || last.is_some()) {
        let problem =
            "cannot be combined with first_seq or last_seq: an output has no place among the entries";
        return Err(Error::invalid("include_tool_outputs", problem));
    }
    match (&request.from, at_version) {
        (Some(from), Some(at_version)) if from.version != at_version => {
            Err(Error::invalid("page_token", "is of a search of another version"))
        }
        (Some(SearchPosition { place: SearchPlace::Output { .. }, .. }), _) if !request.include_outputs => {
            Err(Error::invalid("page_token", "is of a search of tool outputs too"))
        }
        _ => Ok(()),
    }
}

/// The next parts of an answer, and what the others are made of.
async fn parts_of(
    mut source: Source,
    mut finder: Finder,
) -> Result<(Vec<TranscriptPart>, Option<(Source, Finder)>), Error> {
    loop {
        let is_last;
        (finder, is_last) = source.search_next(finder).await?;
        let found = std::mem::take(&mut finder.found);
        let mut parts: Vec<_> =
            (!found.is_empty()).then_some(TranscriptPart::Found(found)).into_iter().collect();
        if is_last || finder.next.is_some() {
            let version = source.at.turn.version;
            parts.push(TranscriptPart::End(finder.next.map(|place| SearchPosition { version, place })));
            return Ok((parts, None));
        }
        if !parts.is_empty() {
            return Ok((parts, Some((source, finder))));
        }
    }
}

/// What is searched.
struct Source {
    engine: Engine,
    key: SessionKey,
    at: Position,
    /// The entries that are still to be searched.
    first: Seq,
    last: Seq,
    /// What holds them, in the order of the search.
    pieces: BoxStream<'static, Result<Vec<Entry>, Error>>,
    outputs: Outputs,
}

/// The tool outputs that are still to be searched.
struct Outputs {
    is_newest: bool,
    first_version: Version,
    /// The output and line to begin with.
    from: Option<(OutputId, u64)>,
    /// The last one that was listed.
    before: Option<OutputId>,
    listed: VecDeque<Output>,
    /// Whether there are no more than are listed.
    is_all: bool,
    /// The one that is searched.
    lines: Option<(Output, BoxStream<'static, Result<SearchPart, Error>>)>,
}

impl Source {
    /// Searches what comes next; tells whether that was the last of it.
    async fn search_next(&mut self, mut finder: Finder) -> Result<(Finder, bool), Error> {
        if let Some(entries) = self.pieces.next().await {
            return Ok((self.search_entries(entries?, finder).await?, false));
        }
        if self.outputs.lines.is_none() {
            let Some((output, line)) = self.next_output(&finder).await? else { return Ok((finder, true)) };
            let name = self.name(&output);
            let (engine, tenant) = (&self.engine, &self.key.tenant);
            let lines = engine.matching_lines(tenant, &name, finder.regex.clone(), finder.left, line).await?;
            self.outputs.lines = Some((output, lines.boxed()));
        }
        if let Some((output, lines)) = &mut self.outputs.lines {
            let part = lines.next().await.transpose()?;
            if let Some(SearchPart::Lines(lines)) = part {
                let name = OutputName { session: self.key.session.clone(), output: output.id.clone() };
                finder.take_lines(output, &name, &lines);
            } else {
                self.outputs.lines = None;
            }
        }
        Ok((finder, false))
    }

    fn name(&self, output: &Output) -> OutputName {
        OutputName { session: self.key.session.clone(), output: output.id.clone() }
    }

    /// Searches the entries of a piece that are due.
    async fn search_entries(&mut self, mut entries: Vec<Entry>, mut finder: Finder) -> Result<Finder, Error> {
        let due = self.due(&entries, finder.oldest_first)?;
        let Some(first) = entries.first().map(|entry| entry.version) else { return Ok(finder) };
        let bytes = entries.iter().map(|entry| entry.payload.len()).sum();
        let mut before = None;
        loop {
            let due = due.clone();
            let searching = move || {
                let searched = finder.search(&entries, due, before.as_ref());
                (finder, entries, searched)
            };
            let searched;
            (finder, entries, searched) = compute(bytes, searching).await?;
            match searched {
                Searched::Done => return Ok(finder),
                Searched::NeedsCalls => before = Some(self.calls_before(first).await?),
            }
        }
    }

    /// Which entries of a piece are due, each once; they count as searched then.
    fn due(&mut self, entries: &[Entry], oldest_first: bool) -> Result<Range<usize>, Error> {
        let begin = entries.partition_point(|entry| entry.seq < self.first);
        let end = entries.partition_point(|entry| entry.seq <= self.last);
        let due = entries.get(begin..end).unwrap_or_default();
        let (Some(first), Some(last)) = (due.first(), due.last()) else { return Ok(begin..begin) };
        let (first, last) = (first.seq, last.seq);
        let missing = if oldest_first { self.first..first } else { last.next()..self.last.next() };
        if !missing.is_empty() {
            return Err(Error::DataLoss {
                session: self.key.session.clone(),
                first: missing.start,
                last: Seq(missing.end.0 - 1),
                problem: "no row or blob holds them".to_owned(),
            });
        }
        if oldest_first {
            self.first = last.next();
        } else {
            self.last = Seq(first.0.saturating_sub(1));
        }
        Ok(begin..end)
    }

    /// The calls without a result before a turn.
    async fn calls_before(&mut self, version: Version) -> Result<CallState, Error> {
        let before = Version(version.0.saturating_sub(1));
        let Some(span) = self.at.lineage.span_of_version(before) else { return Ok(CallState::default()) };
        let branch = BranchKey { tenant: self.key.tenant.clone(), branch: span.branch.clone() };
        let recorded = self.engine.inner.meta.turn(&branch, before).await?;
        Ok(recorded.map(|recorded| recorded.turn.calls).unwrap_or_default())
    }

    /// The next output to search, and the line to begin with.
    async fn next_output(&mut self, finder: &Finder) -> Result<Option<(Output, u64)>, Error> {
        let meta = &self.engine.inner.meta;
        if let Some((id, line)) = self.outputs.from.take() {
            let output = meta.output(&self.key, &id).await?;
            self.outputs.before = Some(id);
            if let Some(output) =
                output.filter(|output| self.has(output) && finder.wants_tool(&output.tool_name))
            {
                return Ok(Some((output, line)));
            }
        }
        loop {
            while let Some(output) = self.outputs.listed.pop_front() {
                if self.has(&output) && finder.wants_tool(&output.tool_name) {
                    return Ok(Some((output, 1)));
                }
            }
            if self.outputs.is_all {
                return Ok(None);
            }
            let page = meta.outputs(&self.key, self.outputs.before.as_ref(), OUTPUTS_PAGE).await?;
            self.outputs.is_all = page.len() < OUTPUTS_PAGE as usize;
            self.outputs.before = page.last().map(|output| output.id.clone());
            self.outputs.listed = page.into();
        }
    }

    /// Whether an output belongs to the log that is searched. The turn with its
    /// preview comes after the one that was the newest when it was kept.
    fn has(&self, output: &Output) -> bool {
        let Outputs { is_newest, first_version, .. } = self.outputs;
        let shown = output.version.next();
        let is_on_line = self.at.lineage.spans().iter().any(|span| {
            span.branch == output.branch && span.last_version.is_none_or(|last| output.version < last)
        });
        is_on_line && shown >= first_version && (is_newest || shown <= self.at.turn.version)
    }
}

//! Plain JSON: lists of messages, requests, responses, and documents around
//! them, of no client in particular.
//!
//! A document's other fields are kept as a record before its messages. A list
//! that no API takes is opened only where it is the file's one conversation;
//! else each value of the file is an opaque entry.

mod document;

use super::file::{File, Piece};
use super::json::{Object, elements};
use super::turns::{ItemSteps, Step, Turns};
use super::verbatim::{Record, records};
use super::{Findings, ImportedEntry, Source, Thread, id_hint, time, wire};
use crate::limits::PREAMBLE_BYTES_MAX;
use crate::model::{EntryKind, Usage, WireFormat};
use bytes::Bytes;
use std::borrow::Cow;
use std::collections::HashSet;

/// One conversation in plain JSON.
#[derive(Debug)]
struct Conversation<'a> {
    format: WireFormat,
    id: Option<Cow<'a, str>>,
    preamble: Option<Bytes>,
    drafts: Vec<Draft<'a>>,
    /// Usage of the last step.
    usage: Option<Usage>,
}

/// An entry while the file is read: some of the file, or put together from it.
#[derive(Debug)]
struct Draft<'a> {
    /// Where it is in the file.
    place: &'a str,
    composed: Option<Bytes>,
    kind: DraftKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DraftKind {
    Message,
    Record,
    /// Left out: a later value takes its place.
    Superseded,
}

impl<'a> Draft<'a> {
    fn message(place: &'a str) -> Self {
        Self { place, composed: None, kind: DraftKind::Message }
    }

    fn composed(place: &'a str, payload: Bytes) -> Self {
        Self { composed: Some(payload), ..Self::message(place) }
    }

    fn record(place: &'a str, payload: Bytes) -> Self {
        Self { kind: DraftKind::Record, ..Self::composed(place, payload) }
    }
}

/// What plain JSON is.
pub(super) fn detect(pieces: &[Piece<'_>]) -> Source {
    let format = conversations(&values(pieces), None).first().map(|conversation| conversation.format);
    Source::of_format(format.unwrap_or(WireFormat::Opaque))
}

/// The threads of plain JSON; none if it is not what the caller says.
pub(super) fn threads(
    file: &File<'_>,
    pieces: &[Piece<'_>],
    source: Option<Source>,
    findings: &mut Findings,
) -> Option<(Source, Vec<Thread>)> {
    let forced = source.and_then(Source::format);
    let conversations = conversations(&values(pieces), forced);
    let format = conversations.first()?.format;
    if forced.is_some_and(|forced| forced != format) {
        return None;
    }
    if let Some(forced) = forced {
        for conversation in &conversations {
            warn_of_another_format(file, conversation, forced, findings);
        }
    }
    let mut threads = Vec::with_capacity(conversations.len());
    for (index, conversation) in conversations.into_iter().enumerate() {
        let torn = if index == 0 { pieces } else { &[] };
        threads.push(thread(file, conversation, torn, findings));
    }
    Some((Source::of_format(format), threads))
}

/// Tells the caller if messages are in the form of another API than it says.
fn warn_of_another_format(
    file: &File<'_>,
    conversation: &Conversation<'_>,
    forced: WireFormat,
    findings: &mut Findings,
) {
    let messages = conversation.drafts.iter().filter(|draft| draft.kind == DraftKind::Message);
    let messages: Vec<_> = messages.map(|draft| draft.place).collect();
    let found = wire::format(&messages, Some(forced)).filter(|found| {
        // Text alone is taken by both.
        *found != forced && forced != WireFormat::Opaque
    });
    if let (Some(found), Some(first)) = (found, messages.first()) {
        let found = Source::of_format(found);
        findings.warn(file.line_of(first.as_bytes()), &format!("looks like --source {found}"));
    }
}

/// The thread of a file that is no JSON: its lines, in turns that end at blank
/// ones.
pub(super) fn text(file: &File<'_>) -> Thread {
    let mut turns = Turns::new();
    let mut step = Step::Message;
    for (line, (_, bytes)) in (1..).zip(file.lines()) {
        for payload in records(Record::Text, line, 0, bytes) {
            turns.push(step, ImportedEntry { payload, kind: EntryKind::Message, at: None, line });
            step = Step::Within;
        }
        if bytes.trim_ascii().is_empty() {
            step = Step::Message;
        }
    }
    Thread { id_hint: None, parent: None, format: WireFormat::Opaque, preamble: None, turns: turns.finish() }
}

fn values<'a>(pieces: &[Piece<'a>]) -> Vec<&'a str> {
    let value = |piece: &Piece<'a>| match piece {
        Piece::Value(raw) => Some(*raw),
        Piece::Torn(_) => None,
    };
    pieces.iter().filter_map(value).collect()
}

/// The conversations in `values`: one if they are its messages, one or more for
/// each if they are documents. None only if the caller says what they are not.
fn conversations<'a>(values: &[&'a str], forced: Option<WireFormat>) -> Vec<Conversation<'a>> {
    let listed = match forced {
        Some(format) => wire::may_be(values, format).then_some(format),
        None => wire::format(values, None),
    };
    if let Some(format) = listed {
        return vec![list(values, format)];
    }
    let documents: Option<Vec<_>> =
        values.iter().map(|value| document::conversations(value, forced, values.len() == 1)).collect();
    match documents.map(|documents| documents.into_iter().flatten().collect::<Vec<_>>()) {
        Some(conversations) if !conversations.is_empty() => conversations,
        _ if forced.is_some() => Vec::new(),
        _ => vec![list(values, WireFormat::Opaque)],
    }
}

fn list<'a>(values: &[&'a str], format: WireFormat) -> Conversation<'a> {
    let mut drafts: Vec<_> = values.iter().map(|value| draft(value, format)).collect();
    if format == WireFormat::Opaque {
        read_gemini_cli(&mut drafts);
    }
    Conversation { format, id: None, preamble: None, drafts, usage: None }
}

/// A message as an entry.
fn draft(raw: &str, format: WireFormat) -> Draft<'_> {
    let Some(message) = Object::parse(raw) else {
        // An entry is an object.
        return Draft::composed(raw, super::json::compose(&[("value", raw)]));
    };
    let is_tool = format == WireFormat::OpenaiChat && message.text("role").as_deref() == Some("tool");
    if is_tool
        && message.value("tool_call_id").is_none()
        && let Some(id) = wire::tool_call_id(&message)
    {
        let content = message.get("content").unwrap_or("\"\"");
        let fields = [("role", "\"tool\""), ("tool_call_id", id), ("content", content)];
        return Draft::composed(raw, super::json::compose(&fields));
    }
    Draft::message(raw)
}

/// Gemini CLI's own JSON Lines begin with a header, patch it with `$set` lines,
/// and write a message again, with the same id, when it has grown.
fn read_gemini_cli(drafts: &mut [Draft<'_>]) {
    let is_header = |line: &Object<'_>| {
        line.get("projectHash").is_some() && line.get("sessionId").is_some() && line.get("type").is_none()
    };
    let first = drafts.first().and_then(|draft| Object::parse(draft.place));
    if !first.is_some_and(|line| is_header(&line)) {
        return;
    }
    // From the end: the form of a message that is met first is the last one.
    let mut seen: HashSet<Cow<'_, str>> = HashSet::new();
    for draft in drafts.iter_mut().rev() {
        let Some(line) = Object::parse(draft.place) else {
            continue;
        };
        if is_header(&line) || line.get("$set").is_some() {
            draft.kind = DraftKind::Record;
        } else if line.text("id").is_some_and(|id| !seen.insert(id)) {
            draft.kind = DraftKind::Superseded;
        }
    }
}

/// The thread of a conversation. What is no JSON in `pieces` is kept as records.
fn thread(
    file: &File<'_>,
    conversation: Conversation<'_>,
    pieces: &[Piece<'_>],
    findings: &mut Findings,
) -> Thread {
    let Conversation { format, id, mut preamble, drafts, usage } = conversation;
    let messages = drafts.iter().filter(|draft| draft.kind == DraftKind::Message);
    let mut steps = ItemSteps::new(messages.filter_map(|draft| Object::parse(draft.place)));
    let mut turns = Turns::new();
    if let Some(large) = preamble.take_if(|preamble| preamble.len() > PREAMBLE_BYTES_MAX) {
        findings.warn(1, "too large for a preamble: kept as a record");
        turns.push_records(1, vec![large]);
    }
    let mut torn = pieces.iter().filter(|piece| matches!(piece, Piece::Torn(_))).peekable();
    let mut keep_torn = |before: Option<u64>, turns: &mut Turns| {
        let is_due = |piece: &&Piece<'_>| before.is_none_or(|line| file.line_of_piece(piece) < line);
        while let Some(piece) = torn.next_if(is_due) {
            let line = file.line_of_piece(piece);
            findings.warn(line, "no JSON: kept as a record");
            turns.push_records(line, records(Record::Unread, line, 0, piece.bytes()));
        }
    };
    let mut superseded = 0;
    for draft in drafts {
        let line = file.line_of(draft.place.as_bytes());
        keep_torn(Some(line), &mut turns);
        let message = Object::parse(draft.place);
        let at = message.as_ref().and_then(time);
        let payload = draft.composed.unwrap_or_else(|| file.slice(draft.place));
        let entry = ImportedEntry { payload, kind: EntryKind::Message, at, line };
        match draft.kind {
            DraftKind::Message => {
                let step = message.map_or(Step::Message, |message| step(format, &message, &mut steps));
                turns.push(step, entry);
            }
            DraftKind::Record => turns.push_meta(entry),
            DraftKind::Superseded => superseded += 1,
        }
    }
    keep_torn(None, &mut turns);
    (0..superseded).for_each(|_| findings.strip("earlier form of a message"));
    if let Some(usage) = usage {
        turns.set_usage(usage);
    }
    Thread { id_hint: id.and_then(|id| id_hint(&id)), parent: None, format, preamble, turns: turns.finish() }
}

/// What a message is to the turn that is open.
fn step<'a>(format: WireFormat, message: &Object<'a>, items: &mut ItemSteps<'a>) -> Step {
    let role = message.text("role");
    let holds = |list: &str, is: &dyn Fn(&Object<'_>) -> bool| {
        let blocks = message.elements(list).unwrap_or_default();
        blocks.iter().any(|block| Object::parse(block).is_some_and(|block| is(&block)))
    };
    match (format, role.as_deref()) {
        (WireFormat::OpenaiResponses, _) => items.step(message),
        (WireFormat::Opaque, _) | (_, Some("assistant" | "model")) => Step::Message,
        (WireFormat::OpenaiChat, Some("tool" | "function")) => Step::Within,
        (WireFormat::AnthropicMessages, _)
            if holds("content", &|block| block.text("type").as_deref() == Some("tool_result")) =>
        {
            Step::Within
        }
        (WireFormat::BedrockConverse, _) if holds("content", &|block| block.get("toolResult").is_some()) => {
            Step::Within
        }
        (WireFormat::GeminiContents, _)
            if holds("parts", &|part| {
                part.get("functionResponse").or(part.get("function_response")).is_some()
            }) =>
        {
            Step::Within
        }
        _ => Step::Input,
    }
}

//! Importing foreign transcripts: a file's bytes become sessions with entries.
//!
//! No I/O and no guessing: what is kept is kept byte for byte, what is not
//! known is kept as it is, and what is left out is counted.
//!
//! How a file is told, if the caller does not say what it is; the first row
//! that fits decides:
//!
//! | the file | source | entries |
//! |---|---|---|
//! | a JSON value that the file ends within | refused | |
//! | most of it is no JSON (VCR cassettes, server-sent events …) | `text` | a line each |
//! | lines with `type` and `payload`, such as `response_item` | `codex` | the items |
//! | lines with `type` `user` or `assistant` and `message`, or `uuid` and `sessionId`; a document with such `loglines` | `claude-code` | messages, grouped |
//! | a list of contents with `parts` | `gemini` | the contents |
//! | a list of items with types such as `function_call` | `openai-responses` | the items |
//! | a list of messages whose blocks have no `type` | `bedrock` | the messages |
//! | a list of messages with blocks such as `tool_use`, or with text blocks only | `anthropic` | the messages |
//! | a list of messages with `tool_calls`, role `system` or `tool`, or with strings only | `openai-chat` | the messages |
//! | any other JSON | `json` | a value each |
//!
//! A list of messages is an array, JSON Lines, or the field `messages`,
//! `contents`, `history`, `traj`, `events`, `ticks`, `input` or `output` of a
//! document; documents may be requests, responses, or both, and a file may hold
//! many. Text alone leaves open whose API it is for: then the answer, the system
//! text and the tools beside it decide. A list that is not in the form of an
//! API, such as a client's own log, is not bent into one: its elements are
//! opaque entries.
//!
//! A file that holds several conversations, or sub-agents' threads beside the
//! main one, gives several threads.

mod claude_code;
mod codex;
mod detect;
mod file;
mod json;
mod plain;
mod turns;
pub(crate) mod verbatim;
mod wire;

use crate::clock::Micros;
use crate::limits::ID_CHARS_MAX;
use crate::model::{EntryKind, Seq, SessionId, Usage, WireFormat};
use bytes::Bytes;
use detect::Shape;
use file::File;
use json::Object;
use std::collections::BTreeMap;

/// What wrote a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Claude Code: a session's JSON Lines, or the web's `loglines`.
    ClaudeCode,
    /// Codex: a rollout's JSON Lines.
    Codex,
    /// Messages of OpenAI Chat Completions.
    OpenaiChat,
    /// Items of OpenAI Responses.
    OpenaiResponses,
    /// Messages of Anthropic Messages.
    Anthropic,
    /// Gemini contents.
    Gemini,
    /// Messages of Amazon Bedrock Converse.
    Bedrock,
    /// JSON of no known structure.
    Json,
    /// Anything else.
    Text,
}

impl Source {
    /// All sources.
    pub const ALL: [Self; 9] = [
        Self::ClaudeCode,
        Self::Codex,
        Self::OpenaiChat,
        Self::OpenaiResponses,
        Self::Anthropic,
        Self::Gemini,
        Self::Bedrock,
        Self::Json,
        Self::Text,
    ];

    /// Its name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::OpenaiChat => "openai-chat",
            Self::OpenaiResponses => "openai-responses",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::Bedrock => "bedrock",
            Self::Json => "json",
            Self::Text => "text",
        }
    }

    /// The source of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.as_str() == name)
    }

    /// The format of its entries, where it is plain JSON.
    fn format(self) -> Option<WireFormat> {
        match self {
            Self::ClaudeCode | Self::Codex | Self::Text => None,
            Self::OpenaiChat => Some(WireFormat::OpenaiChat),
            Self::OpenaiResponses => Some(WireFormat::OpenaiResponses),
            Self::Anthropic => Some(WireFormat::AnthropicMessages),
            Self::Gemini => Some(WireFormat::GeminiContents),
            Self::Bedrock => Some(WireFormat::BedrockConverse),
            Self::Json => Some(WireFormat::Opaque),
        }
    }

    fn of_format(format: WireFormat) -> Self {
        match format {
            WireFormat::OpenaiChat => Self::OpenaiChat,
            WireFormat::OpenaiResponses => Self::OpenaiResponses,
            WireFormat::AnthropicMessages => Self::Anthropic,
            WireFormat::GeminiContents => Self::Gemini,
            WireFormat::BedrockConverse => Self::Bedrock,
            WireFormat::Opaque => Self::Json,
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How to import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether to keep the file's bytes too, as records of the first thread,
    /// for [`crate::export::verbatim`].
    pub verbatim: bool,
}

/// Why a file cannot be imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The caller named a source, and the file holds nothing of it.
    #[error("the file holds nothing in the form of {0}")]
    NotOfSource(Source),
    /// The file ends within the JSON value that it is.
    #[error(
        "the file is cut off: it ends at line {line}, column {column}, within the JSON value that begins at \
         line {begins}; --source text takes its lines as they are"
    )]
    CutOff {
        /// The line in which the value begins, from 1.
        begins: u64,
        /// The line in which the file ends, from 1.
        line: u64,
        /// The column in which the file ends, from 1.
        column: u64,
    },
}

/// What a file holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Import {
    /// What wrote it.
    pub source: Source,
    /// Its conversations: at least one, the main one first.
    pub threads: Vec<Thread>,
    /// What was left out, by type, with how often.
    pub stripped: BTreeMap<String, u64>,
    /// What a person should know.
    pub warnings: Vec<Warning>,
}

/// One conversation: a session to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Thread {
    /// What the file calls it, as far as an id can say it. Not unique: the same
    /// conversation may be in several files.
    pub id_hint: Option<SessionId>,
    /// The thread that spawned it.
    pub parent: Option<Parent>,
    /// Whose API the messages are written for.
    pub format: WireFormat,
    /// System text and tools, put together from the file's raw values.
    pub preamble: Option<Bytes>,
    /// Its turns, in order. Each fits a request: its payloads are under
    /// [`crate::limits::ENTRY_BYTES_MAX`] together and its entries
    /// [`crate::limits::TURN_ENTRIES_MAX`] at most.
    pub turns: Vec<ImportedTurn>,
}

/// Where a thread comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The thread.
    pub thread: ParentThread,
    /// Id of the call that spawned it, if it could be found.
    pub call_id: Option<String>,
    /// Seq of the entry that holds the call, in a session that is made from
    /// nothing but the parent's turns.
    pub seq: Option<Seq>,
}

/// A thread that spawned another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParentThread {
    /// Index of a thread of the same file.
    Here(usize),
    /// What another file calls it: the `id_hint` that its import gives.
    Elsewhere(SessionId),
}

/// One turn: the user's input, or a step of the model with the results of its
/// calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportedTurn {
    /// Its entries, in order.
    pub entries: Vec<ImportedEntry>,
    /// What the provider reported for the step.
    pub usage: Option<Usage>,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedEntry {
    /// A JSON object: bytes of the file, or put together from such.
    pub payload: Bytes,
    /// What it is for: a message, or a record that windows leave out.
    pub kind: EntryKind,
    /// When it was made.
    pub at: Option<Micros>,
    /// The line of the file in which it begins, from 1.
    pub line: u64,
}

/// Something that a person should know about an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The line of the file that it is about, from 1; the first one of several.
    pub line: u64,
    /// What it is.
    pub message: String,
    /// How often it was met.
    pub times: u64,
}

/// Tells what wrote a file. It is what [`import`] goes by when it is not told.
pub fn detect(bytes: &Bytes) -> Source {
    match detect::shape(File::new(bytes).pieces()) {
        Shape::ClaudeCode(_) => Source::ClaudeCode,
        Shape::Codex(_) => Source::Codex,
        Shape::Values(pieces) => plain::detect(&pieces),
        Shape::Text => Source::Text,
    }
}

/// Reads a file.
///
/// # Errors
/// If `source` is given and the file holds nothing of it, or if the file is a JSON
/// value that is cut off; without `source`, every other file is something. A torn
/// line of JSON Lines is no reason: it is kept as a record.
pub fn import(bytes: &Bytes, source: Option<Source>, options: Options) -> Result<Import, ImportError> {
    let file = File::new(bytes);
    let pieces = file.pieces();
    let is_document = pieces.len() == 1;
    let cut_off = || {
        let file::CutOff { begins, line, column } = file.cut_off()?;
        Some(ImportError::CutOff { begins, line, column })
    };
    let not_of = |source| cut_off().unwrap_or(ImportError::NotOfSource(source));
    let mut findings = Findings::default();
    let shape = match source {
        None => detect::shape(pieces),
        Some(source) => detect::shape_as(pieces, source).ok_or_else(|| not_of(source))?,
    };
    if source.is_none() && matches!(shape, Shape::Text) {
        cut_off().map_or(Ok(()), Err)?;
    }
    let (found, mut threads) = match shape {
        Shape::ClaudeCode(pieces) => {
            (Source::ClaudeCode, claude_code::threads(&file, &pieces, &mut findings))
        }
        Shape::Codex(pieces) => (Source::Codex, vec![codex::thread(&file, &pieces, &mut findings)]),
        Shape::Values(pieces) => {
            let threads = plain::threads(&file, &pieces, source, &mut findings);
            threads.ok_or_else(|| not_of(source.unwrap_or(Source::Json)))?
        }
        Shape::Text => (Source::Text, vec![plain::text(&file)]),
    };
    if options.verbatim
        && let Some(main) = threads.first_mut()
    {
        let as_document = is_document && found != Source::Text;
        main.turns = verbatim::add(std::mem::take(&mut main.turns), &file, as_document);
    }
    findings.warn_of_oversized(&threads);
    Ok(Import { source: found, threads, stripped: findings.stripped, warnings: findings.warnings })
}

/// What is to be said about an import.
#[derive(Debug, Default)]
struct Findings {
    stripped: BTreeMap<String, u64>,
    warnings: Vec<Warning>,
}

impl Findings {
    fn strip(&mut self, what: &str) {
        let what = excerpt(what);
        match self.stripped.get_mut(what) {
            Some(times) => *times += 1,
            None => drop(self.stripped.insert(what.to_owned(), 1)),
        }
    }

    /// The same warning is given once.
    fn warn(&mut self, line: u64, message: &str) {
        let message = excerpt(message);
        let full = self.warnings.len() >= WARNINGS_MAX;
        match self.warnings.iter_mut().find(|warning| warning.message == message) {
            Some(warning) => warning.times += 1,
            None if full && message != NOT_LISTED => self.warn(line, NOT_LISTED),
            None => self.warnings.push(Warning { line, message: message.to_owned(), times: 1 }),
        }
    }

    fn warn_of_oversized(&mut self, threads: &[Thread]) {
        let turns = threads.iter().flat_map(|thread| &thread.turns);
        for entry in turns.flat_map(|turn| &turn.entries) {
            if verbatim::is_oversized(&entry.payload) {
                self.warn(entry.line, "too large for an entry: kept as records in pieces");
            }
        }
    }
}

/// The beginning of a text that may come from the file.
fn excerpt(text: &str) -> &str {
    text.char_indices().nth(EXCERPT_CHARS).map_or(text, |(end, _)| text.get(..end).unwrap_or(text))
}

/// Longest name of a type that is reported.
const EXCERPT_CHARS: usize = 200;

/// Most different warnings: a file of nothing but unknown types must not make
/// the import slow.
const WARNINGS_MAX: usize = 100;
const NOT_LISTED: &str = "more that is not listed";

/// The id that is nearest to a file's own.
fn id_hint(id: &str) -> Option<SessionId> {
    let id: String = id.chars().take(ID_CHARS_MAX).map(allowed).collect();
    SessionId::parse(&id).ok()
}

fn allowed(c: char) -> char {
    if c.is_ascii_alphanumeric() || "._:-".contains(c) { c } else { '-' }
}

/// The time in an object's `timestamp`, if it is one of RFC 3339.
fn time(object: &Object<'_>) -> Option<Micros> {
    let timestamp: jiff::Timestamp = object.text("timestamp")?.parse().ok()?;
    Some(Micros(timestamp.as_microsecond()))
}

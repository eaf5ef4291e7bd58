//! The tools with which a model gets at what its messages leave out: their
//! definitions, and the answers to calls of them.

mod memory;

use super::{Client, ClientError};
use crate::model::WireFormat;
use crate::rpc::pb;
use pb::read_tool_output_request::{ByteRange, LineRange, Part, Search};
use pb::read_tool_output_response::{End, Part as Read};
use pb::search_transcript_response::Part as Found;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tonic::Code;

const READ: &str = "read_tool_output";
const SEARCH: &str = "search_transcript";
const ENTRIES: &str = "read_transcript";
const GET_NOTE: &str = "get_note";
const PUT_NOTE: &str = "put_note";

/// A tool: name, description and parameters, of which the first ones are required.
struct Tool {
    name: &'static str,
    description: &'static str,
    required: usize,
    parameters: &'static [(&'static str, Kind, &'static str)],
}

/// What a parameter is.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Integer,
    Flag,
    Texts,
    Roles,
}

const TOOLS: [Tool; 5] = [
    Tool {
        name: READ,
        description: "Reads a part of a tool output that was too long to be shown whole. Its preview \
            names the ref. Give at most one of: a range of lines, a range of bytes, or a pattern to search \
            for. Without any of them it reads from the beginning. A long part comes in pages: the answer \
            says where to go on.",
        required: 1,
        parameters: &[
            ("ref", Kind::Text, "The ref in the preview, such as turnkeep://sessions/.../outputs/..."),
            (
                "first_line",
                Kind::Integer,
                "First line to read, counted from 1; from the end if negative: -1 is the last",
            ),
            ("line_count", Kind::Integer, "How many lines to read from first_line on"),
            ("first_byte", Kind::Integer, "First byte to read, counted from 0; from the end if negative"),
            ("byte_count", Kind::Integer, "How many bytes to read from first_byte on"),
            ("pattern", Kind::Text, "Text to search for, line by line; from first_line on, if that is given"),
            ("is_regex", Kind::Flag, REGEX),
            ("ignore_case", Kind::Flag, "Whether upper and lower case are one in a search"),
            (
                "context_lines",
                Kind::Integer,
                "Lines to show before and after each line that a search finds, at most 100",
            ),
        ],
    },
    Tool {
        name: SEARCH,
        description: "Searches all of this conversation, from its first message on, for a text or a regular \
            expression: what was said, tool calls with their arguments, and results, also those that you no \
            longer see. Use it to look up what you knew earlier: a path, an error, a decision, a command. \
            The newest matches come first, each with its entry's number (seq) and the text around it. If \
            there may be more, the answer gives a page_token to go on with.",
        required: 1,
        parameters: &[
            ("pattern", Kind::Text, "Text to search for"),
            ("is_regex", Kind::Flag, REGEX),
            ("ignore_case", Kind::Flag, "Whether upper and lower case are one"),
            ("roles", Kind::Roles, "Only what these said; anybody if not given"),
            ("tool_names", Kind::Texts, "Only calls of these tools and their results"),
            ("first_seq", Kind::Integer, "First entry to search; entries are counted from 1"),
            ("last_seq", Kind::Integer, "Last entry to search"),
            ("oldest_first", Kind::Flag, "Whether to begin with the first entry and not with the newest"),
            (
                "include_tool_outputs",
                Kind::Flag,
                "Whether to search also the tool outputs of which you see only previews; not with first_seq \
                 or last_seq. Such a match comes with the ref and line for read_tool_output",
            ),
            (
                "context_characters",
                Kind::Integer,
                "Characters to show before and after each match: 100 if not given, at most 1000",
            ),
            ("matches_max", Kind::Integer, "Most matches to show: 50 if not given, at most 1000"),
            ("page_token", Kind::Text, "Where to go on: from the answer before, with all else as it was"),
        ],
    },
    Tool {
        name: ENTRIES,
        description: "Reads entries of this conversation as they were, also those that you no longer see: \
            what was said, tool calls with their arguments, and results. The numbers of entries (seq) are \
            those that search_transcript tells. A long part comes in pages: the answer says where to go on.",
        required: 1,
        parameters: &[
            ("first_seq", Kind::Integer, "First entry to read; entries are counted from 1"),
            ("last_seq", Kind::Integer, "Last entry to read; the newest if not given"),
            ("first_character", Kind::Integer, GO_ON),
        ],
    },
    Tool {
        name: GET_NOTE,
        description: "Reads a note that was kept with put_note, in this conversation or in one before it. \
            Without a name it lists the names of all notes. What is long comes in pages: the answer says \
            where to go on.",
        required: 0,
        parameters: &[("name", Kind::Text, "Name of the note"), ("first_character", Kind::Integer, GO_ON)],
    },
    Tool {
        name: PUT_NOTE,
        description: "Keeps a note that outlives this conversation's window: what you will need later and \
            cannot look up elsewhere, such as findings, decisions with their reasons, or the state of long \
            work. It replaces the note of the same name. You will be shown the names of notes, and get_note \
            reads them.",
        required: 2,
        parameters: &[
            ("name", Kind::Text, "Its name: a few words, at most 64 characters, without slashes"),
            ("text", Kind::Text, "The whole text of the note, at most 64 KiB"),
        ],
    },
];

/// Most characters that are told of what is wrong with arguments.
const ERROR_CHARS: usize = 500;

const GO_ON: &str = "Where to go on within a long text, counted from 0: from the answer before";

const REGEX: &str = "Whether pattern is a regular expression, without look-around and backreferences";

/// The definitions, as the `tools` of a request to the API of `format`.
pub fn tools(format: WireFormat) -> Value {
    let tools = TOOLS.iter();
    match format {
        WireFormat::AnthropicMessages => tools
            .map(|tool| {
                let schema = schema(tool, str::to_owned);
                json!({"name": tool.name, "description": tool.description, "input_schema": schema})
            })
            .collect(),
        // Its schemas are those of OpenAPI, with the names of its own types.
        WireFormat::GeminiContents => {
            let declarations: Value = tools
                .map(|tool| {
                    let schema = schema(tool, str::to_uppercase);
                    json!({"name": tool.name, "description": tool.description, "parameters": schema})
                })
                .collect();
            json!([{"functionDeclarations": declarations}])
        }
        WireFormat::BedrockConverse => tools
            .map(|tool| {
                let schema = json!({"json": schema(tool, str::to_owned)});
                json!({"toolSpec": {"name": tool.name, "description": tool.description, "inputSchema": schema}})
            })
            .collect(),
        // A strict schema would have no optional parameters, and is the default.
        WireFormat::OpenaiResponses => tools
            .map(|tool| {
                json!({"type": "function", "name": tool.name, "description": tool.description,
                    "parameters": schema(tool, str::to_owned), "strict": false})
            })
            .collect(),
        WireFormat::OpenaiChat | WireFormat::Opaque => tools
            .map(|tool| {
                json!({"type": "function", "function": {"name": tool.name,
                    "description": tool.description, "parameters": schema(tool, str::to_owned)}})
            })
            .collect(),
    }
}

fn schema(tool: &Tool, type_name: fn(&str) -> String) -> Value {
    let property = |(name, kind, meaning): &(&str, Kind, &str)| {
        let list = |items: Value| json!({"type": type_name("array"), "items": items});
        let mut property = match kind {
            Kind::Text => json!({"type": type_name("string")}),
            Kind::Integer => json!({"type": type_name("integer")}),
            Kind::Flag => json!({"type": type_name("boolean")}),
            Kind::Texts => list(json!({"type": type_name("string")})),
            Kind::Roles => {
                let roles = [pb::Role::System, pb::Role::User, pb::Role::Model, pb::Role::Tool];
                list(json!({"type": type_name("string"), "enum": roles.map(|role| role.as_str_name())}))
            }
        };
        if let Some(members) = property.as_object_mut() {
            members.insert("description".to_owned(), (*meaning).into());
        }
        ((*name).to_owned(), property)
    };
    let properties: Map<_, _> = tool.parameters.iter().map(property).collect();
    let required: Vec<_> = tool.parameters.iter().take(tool.required).map(|(name, ..)| *name).collect();
    json!({"type": type_name("object"), "properties": properties, "required": required})
}

/// Arguments of `read_tool_output`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadArguments {
    r#ref: String,
    first_line: Option<i64>,
    line_count: Option<u64>,
    first_byte: Option<i64>,
    byte_count: Option<u64>,
    pattern: Option<String>,
    is_regex: Option<bool>,
    ignore_case: Option<bool>,
    context_lines: Option<u32>,
}

impl ReadArguments {
    fn request(self) -> pb::ReadToolOutputRequest {
        let Self { first_line, line_count, first_byte, byte_count, .. } = self;
        let part = match self.pattern {
            Some(pattern) => Part::Search(Search {
                pattern,
                is_regex: self.is_regex.unwrap_or_default(),
                ignore_case: self.ignore_case.unwrap_or_default(),
                context_lines: self.context_lines.unwrap_or_default(),
                matches_max: 0,
                first_line: first_line.and_then(|line| line.try_into().ok()).unwrap_or_default(),
            }),
            None if first_byte.is_some() || byte_count.is_some() => {
                Part::Bytes(ByteRange { start: first_byte.unwrap_or(0), count: byte_count })
            }
            None => Part::Lines(LineRange { start: first_line.unwrap_or(1), count: line_count }),
        };
        pb::ReadToolOutputRequest { name: self.r#ref, part: Some(part), page_bytes: None, unlimited: false }
    }
}

/// Arguments of `search_transcript`: fields of the request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchArguments {
    pattern: String,
    is_regex: Option<bool>,
    ignore_case: Option<bool>,
    roles: Option<Vec<String>>,
    tool_names: Option<Vec<String>>,
    first_seq: Option<u64>,
    last_seq: Option<u64>,
    oldest_first: Option<bool>,
    include_tool_outputs: Option<bool>,
    context_characters: Option<u32>,
    matches_max: Option<u32>,
    page_token: Option<String>,
}

impl SearchArguments {
    fn request(self, session: &str) -> pb::SearchTranscriptRequest {
        // One that is not known is refused as unspecified.
        let role = |name: String| pb::Role::from_str_name(&name).unwrap_or_default().into();
        pb::SearchTranscriptRequest {
            session: session.to_owned(),
            pattern: self.pattern,
            is_regex: self.is_regex.unwrap_or_default(),
            ignore_case: self.ignore_case.unwrap_or_default(),
            roles: self.roles.unwrap_or_default().into_iter().map(role).collect(),
            tool_names: self.tool_names.unwrap_or_default(),
            first_seq: self.first_seq,
            last_seq: self.last_seq,
            oldest_first: self.oldest_first.unwrap_or_default(),
            include_tool_outputs: self.include_tool_outputs.unwrap_or_default(),
            context_characters: self.context_characters,
            matches_max: self.matches_max.unwrap_or_default(),
            page_token: self.page_token.unwrap_or_default(),
            ..Default::default()
        }
    }
}

/// A call with its arguments.
enum Call {
    ReadOutput(ReadArguments),
    Search(SearchArguments),
    ReadEntries(memory::EntriesArguments),
    GetNote(memory::GetNoteArguments),
    PutNote(memory::PutNoteArguments),
}

impl Call {
    /// A call of one of the tools; nothing if it is of another.
    fn parse(tool: &str, arguments: &str) -> Option<serde_json::Result<Self>> {
        use serde_json::from_str;
        Some(match tool {
            READ => from_str(arguments).map(Self::ReadOutput),
            SEARCH => from_str(arguments).map(Self::Search),
            ENTRIES => from_str(arguments).map(Self::ReadEntries),
            GET_NOTE => from_str(arguments).map(Self::GetNote),
            PUT_NOTE => from_str(arguments).map(Self::PutNote),
            _ => return None,
        })
    }
}

impl Client {
    /// Answers a call of one of the [`tools`] that a model made, with its arguments as
    /// JSON: the text of the tool result. `session` is the resource name of its
    /// session. What the model did wrong is told in the text too. Nothing if the call
    /// is of another tool.
    pub async fn answer(
        &mut self,
        session: &str,
        tool: &str,
        arguments: &str,
    ) -> Result<Option<String>, ClientError> {
        let call = match Call::parse(tool, arguments) {
            Some(Ok(call)) => call,
            // It may repeat what the model gave.
            Some(Err(error)) => {
                return Ok(Some(format!("error: {error}").chars().take(ERROR_CHARS).collect()));
            }
            None => return Ok(None),
        };
        let answer = match call {
            Call::ReadOutput(arguments) => self.read_output(arguments.request()).await,
            Call::Search(arguments) => self.search(arguments.request(session)).await,
            Call::ReadEntries(arguments) => self.read_entries(session, arguments).await,
            Call::GetNote(arguments) => self.get_note(session, arguments).await,
            Call::PutNote(arguments) => self.put_note(session, arguments).await,
        };
        match answer {
            Ok(text) => Ok(Some(text)),
            Err(status) if matches!(status.code(), Code::InvalidArgument | Code::NotFound) => {
                Ok(Some(format!("error: {}", status.message())))
            }
            Err(status) => Err(status.into()),
        }
    }

    async fn read_output(&mut self, request: pb::ReadToolOutputRequest) -> Result<String, tonic::Status> {
        let mut parts = self.outputs.read_tool_output(request).await?.into_inner();
        let mut bytes = Vec::new();
        while let Some(message) = parts.message().await? {
            match message.part {
                Some(Read::Content(content)) => bytes.extend_from_slice(&content.data),
                Some(Read::Lines(lines)) => {
                    for line in lines.lines {
                        let mark = if line.is_match { ":" } else { "-" };
                        let cut = if line.is_cut { " …\n" } else { "\n" };
                        bytes.extend_from_slice(format!("{}{mark}", line.line).as_bytes());
                        bytes.extend_from_slice(&line.text);
                        bytes.extend_from_slice(cut.as_bytes());
                    }
                }
                Some(Read::End(End { is_complete: false, next_byte, next_line })) => {
                    let within_line = next_byte.filter(|_| !bytes.ends_with(b"\n"));
                    let place = match (within_line, next_line) {
                        (Some(byte), _) => format!("first_byte {byte}"),
                        (None, line) => format!("first_line {}", line.unwrap_or_default()),
                    };
                    bytes.extend_from_slice(format!("\n[go on with {place}]").as_bytes());
                }
                Some(Read::Output(_) | Read::End(_)) | None => {}
            }
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(if text.is_empty() { "[nothing]".to_owned() } else { text })
    }

    async fn search(&mut self, request: pb::SearchTranscriptRequest) -> Result<String, tonic::Status> {
        let mut parts = self.transcripts.search_transcript(request).await?.into_inner();
        let (mut found, mut end) = (Vec::new(), String::new());
        while let Some(message) = parts.message().await? {
            match message.part {
                Some(Found::Matches(matches)) => found.extend(matches.matches.iter().map(told)),
                Some(Found::End(last)) => end = last.next_page_token,
                Some(Found::Header(_)) | None => {}
            }
        }
        if found.is_empty() {
            found.push("[no match]".to_owned());
        }
        if !end.is_empty() {
            found.push(format!("[go on with page_token {end}]"));
        }
        Ok(found.join("\n"))
    }
}

/// A match, for a model.
fn told(found: &pb::TranscriptMatch) -> String {
    let lower =
        |name: &str, prefix: &str| name.trim_start_matches(prefix).to_ascii_lowercase().replace('_', " ");
    let place = match found.place() {
        pb::MatchPlace::ToolOutput => format!("ref {} line {}", found.r#ref, found.line),
        place => {
            let role = lower(found.role().as_str_name(), "ROLE_");
            let place = lower(place.as_str_name(), "MATCH_PLACE_");
            format!("seq {} version {} {role} {place}", found.seq, found.version)
        }
    };
    let named = |name: &str, value: &str| match value {
        "" => String::new(),
        value => format!(", {name} {value}"),
    };
    let (tool, call) = (named("tool", &found.tool_name), named("call", &found.tool_call_id));
    format!("[{place}{tool}{call}]\n{}", found.excerpt)
}

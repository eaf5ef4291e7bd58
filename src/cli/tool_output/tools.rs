//! `turnkeep output tools`: the definition of the tool that reads outputs.

use crate::cli::output::print_json;
use crate::model::WireFormat;
use clap::Args;
use serde_json::{Map, Value, json};

/// Print the tool with which a model reads outputs, as the `tools` of a request
///
/// The worker answers its calls with the method `ReadToolOutput`.
#[derive(Debug, Args)]
pub(in crate::cli) struct Tools {
    /// API that the request is for: openai-chat, openai-responses, anthropic-messages,
    /// gemini-contents or bedrock-converse
    #[arg(long, value_name = "FORMAT", value_parser = parse_format)]
    format: WireFormat,
}

impl Tools {
    pub(super) fn run(self) -> anyhow::Result<()> {
        print_json(&tools(self.format))
    }
}

fn parse_format(name: &str) -> Result<WireFormat, String> {
    let formats = || WireFormat::ALL.into_iter().filter(|format| *format != WireFormat::Opaque);
    formats().find(|format| format.as_str() == name).ok_or_else(|| {
        format!("must be one of {}", formats().map(WireFormat::as_str).collect::<Vec<_>>().join(", "))
    })
}

const NAME: &str = "read_tool_output";

const DESCRIPTION: &str = "Reads a part of a tool output that was too long to be shown whole. Its preview \
    names the ref. Give at most one of: a range of lines, a range of bytes, or a pattern to search for. \
    Without any of them it reads from the beginning. A long part comes in pages: the answer says where to go on.";

/// The parameters: name, type and meaning. The first is required.
const PARAMETERS: [(&str, &str, &str); 9] = [
    ("ref", "string", "The ref in the preview, such as turnkeep://sessions/.../outputs/..."),
    ("first_line", "integer", "First line to read, counted from 1; from the end if negative: -1 is the last"),
    ("line_count", "integer", "How many lines to read from first_line on"),
    ("first_byte", "integer", "First byte to read, counted from 0; from the end if negative"),
    ("byte_count", "integer", "How many bytes to read from first_byte on"),
    ("pattern", "string", "Text to search for, line by line"),
    (
        "is_regex",
        "boolean",
        "Whether pattern is a regular expression, without look-around and backreferences",
    ),
    ("ignore_case", "boolean", "Whether upper and lower case are one in a search"),
    ("context_lines", "integer", "Lines to show before and after each line that a search finds, at most 100"),
];

/// The value of a request's `tools`.
fn tools(format: WireFormat) -> Value {
    match format {
        WireFormat::AnthropicMessages => {
            json!([{"name": NAME, "description": DESCRIPTION, "input_schema": schema(str::to_owned)}])
        }
        // Its schemas are those of OpenAPI, with the names of its own types.
        WireFormat::GeminiContents => json!([{"functionDeclarations": [
            {"name": NAME, "description": DESCRIPTION, "parameters": schema(str::to_uppercase)}]}]),
        WireFormat::BedrockConverse => json!([{"toolSpec":
            {"name": NAME, "description": DESCRIPTION, "inputSchema": {"json": schema(str::to_owned)}}}]),
        // A strict schema would have no optional parameters, and is the default.
        WireFormat::OpenaiResponses => json!([{"type": "function", "name": NAME, "description": DESCRIPTION,
            "parameters": schema(str::to_owned), "strict": false}]),
        WireFormat::OpenaiChat | WireFormat::Opaque => json!([{"type": "function", "function":
            {"name": NAME, "description": DESCRIPTION, "parameters": schema(str::to_owned)}}]),
    }
}

fn schema(type_name: fn(&str) -> String) -> Value {
    let property = |(name, kind, meaning): (&str, &str, &str)| {
        (name.to_owned(), json!({"type": type_name(kind), "description": meaning}))
    };
    let properties: Map<_, _> = PARAMETERS.into_iter().map(property).collect();
    json!({"type": type_name("object"), "properties": properties, "required": [PARAMETERS[0].0]})
}

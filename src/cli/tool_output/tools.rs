//! `turnkeep output tools`: the definitions of the tools that a worker answers with
//! this service.

use crate::cli::output::print_json;
use crate::client::tools;
use crate::model::WireFormat;
use clap::Args;

/// Print the tools with which a model reads tool outputs, reads and searches its
/// transcript, and reads and keeps notes, as the `tools` of a request
///
/// The worker answers their calls with the methods `ReadToolOutput`, `ReadTranscript`,
/// `SearchTranscript`, `GetNote`, `ListNotes` and `PutNote`.
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

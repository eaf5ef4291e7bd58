//! `turnkeep transcript search`.

use super::Range;
use crate::cli::output::{harmless, name, print, print_json, say};
use crate::cli::{Remote, resource_name};
use crate::client::Client;
use crate::limits::SEARCH_MATCHES_MAX;
use crate::rpc::pb;
use clap::Args;
use pb::search_transcript_response::{End, Part};

#[derive(Debug, Args)]
pub(in crate::cli) struct Search {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// A text
    pattern: String,
    /// The pattern is a regular expression
    #[arg(long, short = 'E')]
    regex: bool,
    /// Upper and lower case are one
    #[arg(long, short)]
    ignore_case: bool,
    /// Only what these said: system, user, model, tool or other; may be repeated
    #[arg(long, value_parser = parse_role)]
    role: Vec<pb::Role>,
    /// Only calls of this tool and their results; may be repeated
    #[arg(long, value_name = "NAME")]
    tool: Vec<String>,
    /// Search the tool outputs too
    #[arg(long, conflicts_with_all = ["first", "last"])]
    outputs: bool,
    #[command(flatten)]
    range: Range,
    /// Begin with the first entry and not with the newest
    #[arg(long)]
    oldest_first: bool,
    /// Characters to show before and after each match
    #[arg(long, short = 'C', value_name = "CHARACTERS", default_value_t = 100)]
    context: u32,
    /// At most so many matches; all if 0
    #[arg(long, default_value_t = 50)]
    limit: u32,
}

fn parse_role(name: &str) -> Result<pb::Role, String> {
    let full = format!("ROLE_{}", name.to_ascii_uppercase());
    pb::Role::from_str_name(&full)
        .filter(|role| *role != pb::Role::Unspecified)
        .ok_or_else(|| "must be system, user, model, tool or other".to_owned())
}

impl Search {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let mut left = if self.limit == 0 { u32::MAX } else { self.limit };
        let mut page_token = String::new();
        while left > 0 {
            let request = self.request(left.min(SEARCH_MATCHES_MAX), page_token);
            page_token = search(&mut client, request, |found| {
                left = left.saturating_sub(1);
                if self.remote.json { print_json(&json(&found)) } else { print(&line(&found)) }
            })
            .await?;
            if page_token.is_empty() {
                return Ok(());
            }
        }
        say("there may be more: --limit 0 gives all");
        Ok(())
    }

    fn request(&self, matches_max: u32, page_token: String) -> pb::SearchTranscriptRequest {
        pb::SearchTranscriptRequest {
            session: resource_name(&self.session),
            pattern: self.pattern.clone(),
            is_regex: self.regex,
            ignore_case: self.ignore_case,
            roles: self.role.iter().map(|role| i32::from(*role)).collect(),
            tool_names: self.tool.clone(),
            first_seq: self.range.first,
            last_seq: self.range.last,
            at_version: self.range.at,
            first_version: 0,
            oldest_first: self.oldest_first,
            include_tool_outputs: self.outputs,
            include_meta: false,
            context_characters: Some(self.context),
            matches_max,
            unlimited: true,
            page_token,
        }
    }
}

/// Makes a search and hands on each match; returns the token of the next page.
async fn search(
    client: &mut Client,
    request: pb::SearchTranscriptRequest,
    mut each: impl FnMut(pb::TranscriptMatch) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let mut parts = client.transcripts.search_transcript(request).await?.into_inner();
    let mut next = String::new();
    while let Some(message) = parts.message().await? {
        match message.part {
            Some(Part::Matches(matches)) => matches.matches.into_iter().try_for_each(&mut each)?,
            Some(Part::End(End { next_page_token })) => next = next_page_token,
            Some(Part::Header(_)) | None => {}
        }
    }
    Ok(next)
}

fn line(found: &pb::TranscriptMatch) -> String {
    let place = match found.place() {
        pb::MatchPlace::ToolOutput => format!("{}:{}", found.r#ref, found.line),
        place => format!(
            "{} v{} {} {}",
            found.seq,
            found.version,
            name(found.role().as_str_name(), "ROLE_"),
            name(place.as_str_name(), "MATCH_PLACE_"),
        ),
    };
    let tool = if found.tool_name.is_empty() { String::new() } else { format!(" {}", found.tool_name) };
    let end = found.excerpt_first_byte + found.excerpt.len() as u64;
    let [before, after] =
        [found.excerpt_first_byte > 0, end < found.text_bytes].map(|is_cut| if is_cut { "…" } else { "" });
    harmless(&format!("{place}{tool}: {before}{}{after}", found.excerpt))
}

fn json(found: &pb::TranscriptMatch) -> serde_json::Value {
    serde_json::json!({
        "seq": found.seq,
        "version": found.version,
        "role": name(found.role().as_str_name(), "ROLE_"),
        "place": name(found.place().as_str_name(), "MATCH_PLACE_"),
        "tool_name": found.tool_name,
        "tool_call_id": found.tool_call_id,
        "ref": found.r#ref,
        "line": found.line,
        "excerpt": found.excerpt,
        "excerpt_first_byte": found.excerpt_first_byte,
        "first_byte": found.first_byte,
        "bytes": found.bytes,
        "text_bytes": found.text_bytes,
    })
}

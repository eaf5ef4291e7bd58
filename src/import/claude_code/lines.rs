//! What a line of Claude Code is, by its type.

use crate::import::json::{Object, elements};
use crate::model::Usage;

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A message, or some blocks of one.
    Message,
    /// A message of a sub-agent, inside the line.
    Agent,
    /// Kept, but no message.
    Record,
    /// A record that the client writes again and again: kept when its value, in
    /// this field, is another than before.
    Latest(&'static str),
    /// Left out and counted.
    Strip,
    /// Kept as a record, with a warning.
    Unknown,
}

/// The verdict on a line, and the name of its type.
pub(super) fn verdict(line: &Object<'_>) -> (String, Verdict) {
    let kind = line.text("type").unwrap_or_default();
    let inner = match &*kind {
        "progress" => line.object("data").and_then(|data| data.text("type")),
        "attachment" => line.object("attachment").and_then(|attachment| attachment.text("type")),
        "system" => line.text("subtype"),
        _ => None,
    };
    let inner = inner.unwrap_or_default();
    let verdict = match &*kind {
        "assistant" if is_made_by_client(line) => Verdict::Record,
        "user" | "assistant" => Verdict::Message,
        "summary" | "pr-link" => Verdict::Record,
        "ai-title" => Verdict::Latest("aiTitle"),
        "custom-title" => Verdict::Latest("customTitle"),
        "agent-name" => Verdict::Latest("agentName"),
        "last-prompt" => Verdict::Latest("lastPrompt"),
        "mode" => Verdict::Latest("mode"),
        "permission-mode" => Verdict::Latest("permissionMode"),
        "atis-latch" => Verdict::Latest("atis"),
        "progress" if inner == "agent_progress" => Verdict::Agent,
        "progress"
        | "bridge-session"
        | "file-history-snapshot"
        | "file-history-delta"
        | "queue-operation" => Verdict::Strip,
        "system" => of_system(&inner),
        "attachment" => of_attachment(&inner),
        _ => Verdict::Unknown,
    };
    let name = if inner.is_empty() { kind.into_owned() } else { format!("{kind}/{inner}") };
    (name, verdict)
}

/// Whether an assistant line is no output of the model: an error that the
/// client reports, or an answer that broke off.
fn is_made_by_client(line: &Object<'_>) -> bool {
    line.is_true("isApiErrorMessage")
        || line.is_true("isAbortedMidStream")
        || line.object("message").and_then(|message| message.text("model")).as_deref() == Some("<synthetic>")
}

fn of_system(subtype: &str) -> Verdict {
    match subtype {
        "stop_hook_summary" | "away_summary" | "informational" | "local_command" | "bridge_status" => {
            Verdict::Strip
        }
        "turn_duration" | "api_error" | "compact_boundary" | "microcompact_boundary" => Verdict::Record,
        _ => Verdict::Unknown,
    }
}

fn of_attachment(kind: &str) -> Verdict {
    match kind {
        "hook_success"
        | "hook_cancelled"
        | "hook_non_blocking_error"
        | "hook_system_message"
        | "async_hook_response"
        | "command_permissions" => Verdict::Strip,
        "file"
        | "directory"
        | "already_read_file"
        | "compact_file_reference"
        | "opened_file_in_ide"
        | "selected_lines_in_ide"
        | "edited_text_file"
        | "diagnostics"
        | "queued_command"
        | "hook_additional_context"
        | "mcp_instructions_delta"
        | "skill_listing"
        | "invoked_skills"
        | "agent_listing_delta"
        | "deferred_tools_delta"
        | "plan_mode"
        | "plan_mode_exit"
        | "goal_status"
        | "date_change"
        | "auto_mode"
        | "ultra_effort_enter"
        | "ultra_effort_exit"
        | "task_reminder"
        | "total_tokens_reminder"
        | "read_truncation_notice" => Verdict::Record,
        _ => Verdict::Unknown,
    }
}

/// The raw message of a line and its raw content, which is a string or an array
/// of blocks; none if it has none.
pub(super) fn message_and_content<'a>(line: &Object<'a>) -> Option<(&'a str, &'a str)> {
    let message = line.get("message")?;
    let content = Object::parse(message)?.get("content")?;
    let is_content =
        content.starts_with('"') || elements(content)?.iter().all(|block| Object::parse(block).is_some());
    is_content.then_some((message, content))
}

/// What the provider reported for a message.
pub(super) fn usage(message: &Object<'_>) -> Option<Usage> {
    let usage = message.object("usage")?;
    Some(Usage {
        model: message.text("model").unwrap_or_default().into_owned(),
        input_tokens: usage.number("input_tokens"),
        output_tokens: usage.number("output_tokens"),
        cache_read_tokens: usage.number("cache_read_input_tokens"),
        cache_write_tokens: usage.number("cache_creation_input_tokens"),
        ..Usage::default()
    })
}

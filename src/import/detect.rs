//! Telling what a file is.

use super::Source;
use super::file::Piece;
use super::json::{Object, elements};
use super::wire;
use crate::model::WireFormat;

/// What a file is made of.
#[derive(Debug)]
pub(super) enum Shape<'a> {
    /// Lines of a Claude Code session.
    ClaudeCode(Vec<Piece<'a>>),
    /// Lines of a Codex rollout.
    Codex(Vec<Piece<'a>>),
    /// Values; the elements if the file is one array.
    Values(Vec<Piece<'a>>),
    /// No JSON.
    Text,
}

/// Values that are looked at: clients write what they are early.
const HEAD_VALUES: usize = 500;

/// What a file is.
pub(super) fn shape(pieces: Vec<Piece<'_>>) -> Shape<'_> {
    if !is_json(&pieces) {
        return Shape::Text;
    }
    let lines = lines(pieces);
    let head = &lines[..lines.len().min(HEAD_VALUES)];
    let claude_code = marks(head, is_claude_code);
    let codex = marks(head, is_codex);
    if claude_code * 4 >= head.len() && claude_code > codex {
        Shape::ClaudeCode(lines)
    } else if codex * 4 >= head.len() && codex > 0 || is_codex_without_envelopes(head) {
        Shape::Codex(lines)
    } else {
        Shape::Values(lines)
    }
}

/// What a file is for the caller who says so; none if it holds nothing like it.
pub(super) fn shape_as(pieces: Vec<Piece<'_>>, source: Source) -> Option<Shape<'_>> {
    if source == Source::Text {
        return Some(Shape::Text);
    }
    let lines = lines(pieces);
    let has = |is: fn(&Object<'_>) -> bool| marks(&lines, is) > 0;
    match source {
        Source::ClaudeCode => has(is_claude_code).then_some(Shape::ClaudeCode(lines)),
        Source::Codex => (has(is_codex) || is_codex_without_envelopes(&lines)).then_some(Shape::Codex(lines)),
        _ => has(|_| true).then_some(Shape::Values(lines)),
    }
}

/// Whether at least half of what a file holds is JSON objects or arrays. Single
/// lines of any text may be JSON.
fn is_json(pieces: &[Piece<'_>]) -> bool {
    let is_container = |piece: &&Piece<'_>| matches!(piece, Piece::Value(raw) if raw.starts_with(['{', '[']));
    let containers = pieces.iter().filter(is_container).count();
    containers > 0 && containers * 2 >= pieces.len()
}

/// What stands for lines: the elements of a file that is one array, the
/// `loglines` of Claude Code on the web, else the values themselves.
fn lines(pieces: Vec<Piece<'_>>) -> Vec<Piece<'_>> {
    let [Piece::Value(raw)] = pieces.as_slice() else {
        return pieces;
    };
    let opened = elements(raw).or_else(|| {
        let loglines = Object::parse(raw)?.elements("loglines")?;
        loglines
            .iter()
            .filter_map(|line| Object::parse(line))
            .any(|line| is_claude_code(&line))
            .then_some(loglines)
    });
    opened.map_or(pieces, |elements| elements.into_iter().map(Piece::Value).collect())
}

fn marks(pieces: &[Piece<'_>], is: impl Fn(&Object<'_>) -> bool) -> usize {
    objects(pieces).filter(is).count()
}

fn objects<'a>(pieces: &[Piece<'a>]) -> impl Iterator<Item = Object<'a>> {
    pieces.iter().filter_map(|piece| match piece {
        Piece::Value(raw) => Object::parse(raw),
        Piece::Torn(_) => None,
    })
}

/// Whether an object is a line of Claude Code: a message in an envelope, a line
/// of the tree of a session, or one of the types that no other client writes.
fn is_claude_code(line: &Object<'_>) -> bool {
    let Some(kind) = line.text("type") else {
        return false;
    };
    let has = |key| line.get(key).is_some();
    match &*kind {
        "user" | "assistant" if has("message") => true,
        "summary" => has("leafUuid"),
        "file-history-snapshot"
        | "file-history-delta"
        | "queue-operation"
        | "last-prompt"
        | "permission-mode"
        | "ai-title"
        | "custom-title"
        | "agent-name"
        | "pr-link"
        | "bridge-session"
        | "atis-latch"
        | "worktree-state" => true,
        _ => has("uuid") && has("sessionId"),
    }
}

/// Whether an object is a line of a Codex rollout.
fn is_codex(line: &Object<'_>) -> bool {
    line.object("payload").is_some()
        && line.text("type").is_some_and(|kind| {
            matches!(
                &*kind,
                "session_meta" | "turn_context" | "response_item" | "event_msg" | "compacted" | "world_state"
            )
        })
}

/// Whether lines are a rollout of the first versions of Codex: a header, then
/// bare items.
fn is_codex_without_envelopes(pieces: &[Piece<'_>]) -> bool {
    let [Piece::Value(header), items @ ..] = pieces else {
        return false;
    };
    let is_header = |line: Object<'_>| {
        line.get("type").is_none() && line.text("id").is_some() && line.text("timestamp").is_some()
    };
    let items: Vec<_> = items
        .iter()
        .filter_map(|piece| match piece {
            Piece::Value(raw) => Some(*raw),
            Piece::Torn(_) => None,
        })
        .filter(|raw| Object::parse(raw).is_some_and(|line| line.get("record_type").is_none()))
        .collect();
    Object::parse(header).is_some_and(is_header)
        && wire::format(&items, None) == Some(WireFormat::OpenaiResponses)
}

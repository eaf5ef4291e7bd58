//! Markdown of transcripts and of what is remembered beside them, for people and models
//! to read.

mod memory;

pub use memory::{Episode, Memory};

use crate::format::{MediaKind, Role, Shown, Text, TextKind, read, shown};
use crate::model::WireFormat;
use std::collections::HashMap;

/// Writes a transcript entry by entry.
#[derive(Clone, Debug)]
pub struct Transcript {
    format: WireFormat,
    /// Names of the tools that were called, by the ids of the calls.
    tools: HashMap<String, String>,
}

impl Transcript {
    /// Of entries of that format.
    pub fn new(format: WireFormat) -> Self {
        Self { format, tools: HashMap::new() }
    }

    /// The section of an entry: who speaks, texts as they are, calls and results in
    /// fences. It ends with a line break.
    pub fn entry(&mut self, seq: u64, payload: &[u8]) -> String {
        let speaker = match read(self.format, payload).role {
            Role::System => "system",
            Role::User => "user",
            Role::Model => "model",
            Role::Results => "results",
            Role::Unknown => "entry",
        };
        let mut paragraphs = vec![format!("## {seq} · {speaker}")];
        // The call or result that was told last.
        let mut open: Option<(TextKind, String)> = None;
        for shown in shown(self.format, payload) {
            match shown {
                Shown::Text(text) if text.kind == TextKind::Said => {
                    paragraphs.push(embedded(&text.content, 2));
                    open = None;
                }
                Shown::Text(text) => {
                    let kind =
                        if text.kind == TextKind::CallName { TextKind::CallArguments } else { text.kind };
                    let id = text.call_id.clone().into_owned();
                    let is_next = open.as_ref().is_some_and(|open| *open == (kind, id.clone()));
                    if !is_next || text.kind == TextKind::CallName {
                        paragraphs.push(self.title(&text));
                    }
                    if text.kind != TextKind::CallName {
                        paragraphs.push(fenced(&text.content));
                    }
                    open = Some((kind, id));
                }
                Shown::Reasoning(text) => {
                    paragraphs.push(quoted("Thinking", &text.content));
                    open = None;
                }
                Shown::Media(kind) => paragraphs.push(
                    match kind {
                        MediaKind::Image => "*[picture]*",
                        MediaKind::Document => "*[document]*",
                        MediaKind::Recording => "*[recording]*",
                    }
                    .to_owned(),
                ),
            }
        }
        paragraphs.retain(|paragraph| !paragraph.is_empty());
        paragraphs.join("\n\n") + "\n"
    }

    /// The line before a call or result.
    fn title(&mut self, text: &Text<'_>) -> String {
        let what = if text.kind == TextKind::Result { "Result" } else { "Call" };
        let known = self.tools.get(text.call_id.as_ref());
        let name = match (text.tool_name.as_ref(), known) {
            ("", Some(known)) => known.clone(),
            (name, _) => name.to_owned(),
        };
        if text.kind != TextKind::Result && !text.call_id.is_empty() && !name.is_empty() {
            self.tools.insert(text.call_id.clone().into_owned(), name.clone());
        }
        let mut line = format!("**{what}**");
        if !name.is_empty() {
            line.extend([" ", &code(&name)]);
        }
        if !text.call_id.is_empty() {
            line.extend([" ", &code(&text.call_id)]);
        }
        line
    }
}

/// A text in a code block, whose fence is longer than any row of backticks in it.
pub fn fenced(text: &str) -> String {
    let fence = "`".repeat((longest_row(text) + 1).max(3));
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{fence}\n{text}{end}{fence}")
}

/// A name within a line, so that none of its characters is taken for Markdown.
fn literal(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if matches!(c, '\\' | '`' | '*' | '<' | '>' | '[' | ']' | '&' | '#') {
            text.push('\\');
        }
        text.push(if c.is_control() { ' ' } else { c });
    }
    text
}

/// A word as code within a line.
pub fn code(word: &str) -> String {
    let word: String = word.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mark = "`".repeat(longest_row(&word) + 1);
    let pad = if word.starts_with('`') || word.ends_with('`') { " " } else { "" };
    format!("{mark}{pad}{word}{pad}{mark}")
}

/// The longest row of backticks.
fn longest_row(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

/// A text in a block quote.
fn quoted(title: &str, text: &str) -> String {
    let text = embedded(text, 2);
    let lines = text.lines().map(|line| if line.is_empty() { ">".to_owned() } else { format!("> {line}") });
    std::iter::once(format!("> *{title}:*\n>")).chain(lines).collect::<Vec<_>>().join("\n")
}

/// A text that may be Markdown, to stand in a section: its headings are lowered by so
/// many levels. One that could reach beyond its section stands in a code block.
fn embedded(text: &str, levels: usize) -> String {
    if reaches_out(text) {
        return fenced(text.trim_end());
    }
    let mut lines = Vec::new();
    let mut open: Option<&str> = None;
    for line in text.trim_end().lines() {
        let fence = fence_of(line);
        match (open, fence) {
            (None, Some((fence, _))) => open = Some(fence),
            (Some(opened), Some((fence, ""))) if fence.starts_with(opened) => open = None,
            _ => {}
        }
        let title = line.trim_start_matches('#');
        let marks = line.len() - title.len();
        let is_heading = (1..=6).contains(&marks) && title.starts_with([' ', '\t']);
        if open.is_none() && fence.is_none() && is_heading {
            lines.push(format!("{}{title}", "#".repeat((marks + levels).min(6))));
        } else {
            lines.push(line.to_owned());
        }
    }
    lines.join("\n")
}

/// Whether Markdown may have an effect on what comes after it, or be a heading that is
/// not lowered: HTML, code blocks that are indented or left open, headings that are
/// indented or underlined.
fn reaches_out(text: &str) -> bool {
    let mut open: Option<&str> = None;
    let mut is_after_text = false;
    for line in text.trim_end().lines() {
        match (open, fence_of(line)) {
            (None, Some((fence, _))) if line.starts_with(' ') || fence.is_empty() => return true,
            (None, Some((fence, _))) => open = Some(fence),
            (Some(opened), Some((fence, ""))) if fence.starts_with(opened) => open = None,
            (Some(_), _) => {}
            (None, None) => {
                let rest = line.trim_start();
                // In a list a block may be indented by any width.
                let begins_block =
                    rest.starts_with('<') || rest.starts_with("```") || rest.starts_with("~~~");
                let is_heading =
                    rest.starts_with('#') && line != rest || line.trim_end_matches('#').is_empty();
                let underlines = !rest.is_empty()
                    && ['=', '-'].iter().any(|mark| rest.trim_end().chars().all(|c| c == *mark));
                if begins_block || is_heading && !line.is_empty() || underlines && is_after_text {
                    return true;
                }
            }
        }
        is_after_text = !line.trim().is_empty();
    }
    open.is_some()
}

/// The fence with which a line begins, and what follows it.
fn fence_of(line: &str) -> Option<(&str, &str)> {
    let rest = line.trim_start_matches(' ');
    let mark = rest.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let after = rest.trim_start_matches(mark);
    let fence = rest.strip_suffix(after)?;
    let is_fence = line.len() - rest.len() < 4 && fence.len() >= 3 && !(mark == '`' && after.contains('`'));
    is_fence.then_some((fence, after.trim()))
}

#[cfg(test)]
mod tests;

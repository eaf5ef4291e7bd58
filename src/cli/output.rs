//! What is printed, and how far long work is.

use super::Remote;
use crate::rpc::pb;
use indicatif::{ProgressBar, ProgressStyle};
use prost_types::Timestamp;
use std::io::{IsTerminal as _, StdoutLock, Write};

/// Prints a line to standard output.
pub(super) fn print(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{line}")?)
}

/// Text for a terminal, of which a caller has made what it wanted: control
/// characters are shown as escapes, so that they do nothing.
pub(super) fn harmless(text: &str) -> String {
    let show = |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(show).collect()
}

/// Prints a value as a line of JSON.
pub(super) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&serde_json::to_string(value)?)
}

/// Prints a text as it is, or, on a terminal, so that it does nothing to it.
pub(super) fn print_text(text: &str) -> anyhow::Result<()> {
    let mut shown = Shown::to_stdout();
    shown.write(text.as_bytes())?;
    if !text.ends_with('\n') {
        shown.write(b"\n")?;
    }
    shown.finish()
}

/// Where text is printed that a caller has made: as it is, or, on a terminal, so that it
/// does nothing to it.
pub(super) struct Shown<W> {
    out: W,
    /// The line that is not at its end, if it is for a terminal.
    line: Option<Vec<u8>>,
}

impl Shown<StdoutLock<'static>> {
    /// To standard output.
    pub(super) fn to_stdout() -> Self {
        let out = std::io::stdout().lock();
        let line = out.is_terminal().then(Vec::new);
        Self { out, line }
    }
}

impl<W: Write> Shown<W> {
    /// Prints a part of the text.
    pub(super) fn write(&mut self, mut part: &[u8]) -> anyhow::Result<()> {
        let Some(line) = &mut self.line else { return Ok(self.out.write_all(part)?) };
        // A character may lie on the seam of two parts.
        while let Some(end) = memchr::memchr(b'\n', part) {
            let (rest, after) = part.split_at(end);
            line.extend_from_slice(rest);
            writeln!(self.out, "{}", harmless_line(line))?;
            line.clear();
            part = after.get(1..).unwrap_or_default();
        }
        line.extend_from_slice(part);
        Ok(())
    }

    /// Prints what is left.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        if let Some(line) = self.line.filter(|line| !line.is_empty()) {
            write!(self.out, "{}", harmless_line(&line))?;
        }
        Ok(self.out.flush()?)
    }
}

/// The same of a line with tabs, which may stay.
fn harmless_line(line: &[u8]) -> String {
    String::from_utf8_lossy(line).split('\t').map(harmless).collect::<Vec<_>>().join("\t")
}

/// Tells a person something, in a line.
#[expect(clippy::print_stderr, reason = "standard error is for people")]
pub(super) fn say(line: &str) {
    eprintln!("{}", harmless(line));
}

/// Shows how far long work is, on a terminal only.
pub(super) fn progress(total: Option<u64>, unit: &'static str) -> ProgressBar {
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let template = if total.is_some() {
        "{bar:30} {pos}/{len} {msg} {elapsed}"
    } else {
        "{spinner} {pos} {msg} {elapsed}"
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(unit);
    bar
}

/// A time as RFC 3339; empty if there is none.
pub(super) fn time(at: Option<&Timestamp>) -> String {
    at.and_then(|at| jiff::Timestamp::new(at.seconds, at.nanos).ok())
        .map(|at| at.to_string())
        .unwrap_or_default()
}

/// Bytes for people.
pub(super) fn bytes(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

/// A table with right-aligned columns but the first.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<_>> = rows.iter().map(|row| row.iter().map(|cell| harmless(cell)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns)
        .map(|i| rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, width))| {
            if i == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A list as it is printed: JSON, an element a line, as it comes, or a table at the end.
pub(super) struct Listing {
    is_json: bool,
    rows: Vec<Vec<String>>,
}

impl Listing {
    /// A list with those columns.
    pub(super) fn new(remote: &Remote, columns: &[&str]) -> Self {
        let head = columns.iter().map(|column| (*column).to_owned()).collect();
        Self { is_json: remote.json, rows: vec![head] }
    }

    /// Adds an element.
    pub(super) fn add<T>(
        &mut self,
        element: &T,
        json: impl FnOnce(&T) -> serde_json::Value,
        row: impl FnOnce(&T) -> Vec<String>,
    ) -> anyhow::Result<()> {
        if self.is_json {
            return print_json(&json(element));
        }
        self.rows.push(row(element));
        Ok(())
    }

    /// Prints the table; of nothing there is none.
    pub(super) fn end(self) -> anyhow::Result<()> {
        if self.is_json || self.rows.len() == 1 { Ok(()) } else { print(&table(&self.rows)) }
    }
}

/// Reads a list page by page, from a token on: at most so many elements, all if 0. Gives
/// the token of the page after; empty if there is none.
pub(super) async fn paged<T>(
    limit: usize,
    page_max: usize,
    mut page_token: String,
    mut page: impl AsyncFnMut(i32, String) -> Result<(Vec<T>, String), tonic::Status>,
    mut each: impl FnMut(T) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let mut left = if limit == 0 { usize::MAX } else { limit };
    loop {
        let size = i32::try_from(left.min(page_max)).unwrap_or(i32::MAX);
        let (elements, next) = page(size, page_token).await?;
        left -= elements.len().min(left);
        elements.into_iter().try_for_each(&mut each)?;
        page_token = next;
        if left == 0 || page_token.is_empty() {
            return Ok(page_token);
        }
    }
}

/// A name of a generated enum without its prefix: `WIRE_FORMAT_OPENAI_CHAT` as
/// `openai-chat`.
pub(super) fn name(full: &str, prefix: &str) -> String {
    full.trim_start_matches(prefix).to_ascii_lowercase().replace('_', "-")
}

/// Hex digits of bytes.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A session as JSON.
pub(super) fn session_json(session: &pb::Session) -> serde_json::Value {
    let limits = session.applied_limits.unwrap_or_default();
    serde_json::json!({
        "name": session.name,
        "format": name(session.format().as_str_name(), "WIRE_FORMAT_"),
        "path": name(session.path().as_str_name(), "COMPRESSION_PATH_"),
        "model": session.profile.as_ref().map(|profile| &profile.model),
        "context_window_tokens": session.profile.as_ref().map(|profile| profile.context_window_tokens),
        "max_output_tokens": session.profile.as_ref().map(|profile| profile.max_output_tokens),
        "tool_result_limit": limits.tool_result_limit.map(|limit| {
            serde_json::json!({
                "length": limit.length,
                "reserve": limit.reserve,
                "unit": name(limit.unit().as_str_name(), "LENGTH_UNIT_"),
                "preview_length": limit.preview_length,
                "head_percent": limit.head_percent,
            })
        }),
        "media_limits": limits.media_limits.map(|limits| {
            serde_json::json!({
                "image_bytes": limits.image_bytes,
                "image_pixels": limits.image_pixels,
                "document_bytes": limits.document_bytes,
                "images": limits.images,
                "documents": limits.documents,
            })
        }),
        "tokenizer": session.profile.as_ref().map(|profile| name(profile.tokenizer().as_str_name(), "TOKENIZER_")),
        "labels": session.labels,
        "strip_rules": session.strip_rules,
        "pin_statements": session.pin_statements,
        "etag": session.etag,
        "version": session.version,
        "head_seq": session.head_seq,
        "window_revision": session.window_revision,
        "log_tokens": session.log_tokens,
        "stored_bytes": session.stored_bytes,
        "preamble_tokens": session.preamble.as_ref().map(|preamble| preamble.tokens),
        "create_time": time(session.create_time.as_ref()),
        "update_time": time(session.update_time.as_ref()),
        "forked_from": session.forked_from.as_ref().map(|origin| {
            serde_json::json!({"session": origin.session, "version": origin.version})
        }),
        "continued_from": session.continued_from.as_ref().map(|origin| {
            serde_json::json!({"session": origin.session, "version": origin.version})
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_nothing_to_a_terminal() {
        let text = "a\u{1b}]0;title\u{7}b\u{9b}2J\r\n\u{7f}é";
        assert_eq!(harmless(text), "a\\u{1b}]0;title\\u{7}b\\u{9b}2J\\r\\n\\u{7f}é");
    }

    #[test]
    fn a_terminal_is_shown_text_in_parts_that_do_nothing_to_it() {
        let shown = |line: Option<Vec<u8>>| {
            let mut out = Vec::new();
            let mut shown = Shown { out: &mut out, line };
            for part in ["a\t\u{1b}[2J\n\n".as_bytes(), b"\xe2\x82", b"\xac\r\nend\xff"] {
                shown.write(part).unwrap();
            }
            shown.finish().unwrap();
            out
        };
        assert_eq!(String::from_utf8_lossy(&shown(Some(vec![]))), "a\t\\u{1b}[2J\n\n€\\r\nend\u{fffd}");
        assert_eq!(shown(None), b"a\t\x1b[2J\n\n\xe2\x82\xac\r\nend\xff");
    }

    #[test]
    fn tables_align_and_names_lose_their_prefix() {
        let rows = [vec!["file".to_owned(), "turns".to_owned()], vec!["a".to_owned(), "1000".to_owned()]];
        assert_eq!(table(&rows), "file  turns\na      1000");
        assert_eq!(name("WIRE_FORMAT_OPENAI_CHAT", "WIRE_FORMAT_"), "openai-chat");
        assert_eq!(hex(&[0, 0xab]), "00ab");
        assert_eq!(time(Some(&Timestamp { seconds: 0, nanos: 500_000_000 })), "1970-01-01T00:00:00.5Z");
    }
}

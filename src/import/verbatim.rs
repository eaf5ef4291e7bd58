//! A file's bytes as records of the log.
//!
//! A record is `{"turnkeep_verbatim":{"line":3,"offset":120,"text":"…"}}`: some
//! bytes of the file, its line ends included, where they begin and in which
//! line. Bytes that are no UTF-8 stand in `"base64"` instead of `"text"`. The
//! records in the order of the log, one after the other, are the file.

use super::ImportedTurn;
use super::file::File;
use super::json::{Object, quoted};
use super::turns::Turns;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use std::ops::Range;

/// Why bytes are kept as a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// They are the file's.
    Verbatim,
    /// They are no JSON, or none that the source knows.
    Unread,
    /// They are a payload that is too large for an entry.
    Oversized,
    /// They are an entry: a line of text.
    Text,
}

/// The key of the records that are the file's bytes.
pub(crate) const VERBATIM_KEY: &str = "turnkeep_verbatim";

/// Most bytes of the file in one record. Escapes make six of one, so that such
/// a record is well under the limit of an entry.
const RECORD_BYTES_MAX: usize = 4 * 1024 * 1024;
const _: () = assert!(RECORD_BYTES_MAX * 6 + 1024 < crate::limits::ENTRY_BYTES_MAX);

/// Bytes of whole lines that make one record of a document, whose lines mean
/// nothing.
const DOCUMENT_RECORD_BYTES: usize = 256 * 1024;

/// The records of `bytes`, which begin at `offset` in line `line`. There is at
/// least one.
pub(super) fn records(of: Record, line: u64, offset: usize, bytes: &[u8]) -> Vec<Bytes> {
    let mut records = Vec::new();
    let (mut rest, mut offset) = (bytes, offset);
    loop {
        let (chunk, after) = split_at_char(rest, RECORD_BYTES_MAX);
        records.push(record(of, line, offset, chunk));
        offset += chunk.len();
        rest = after;
        if rest.is_empty() {
            return records;
        }
    }
}

/// The turns of a file's main thread together with the file's bytes: each line
/// in the turn that it is about.
pub(super) fn add(turns: Vec<ImportedTurn>, file: &File<'_>, as_document: bool) -> Vec<ImportedTurn> {
    let parts: Vec<_> = if as_document { document_parts(file) } else { line_parts(file) };
    let mut parts = parts.into_iter().peekable();
    let mut all = Turns::new();
    let mut turns = turns.into_iter().peekable();
    while let Some(turn) = turns.next() {
        all.push_turn(turn);
        let until = turns.peek().and_then(|next| next.entries.first()).map(|entry| entry.line);
        while let Some((line, offset, part)) =
            parts.next_if(|(line, ..)| until.is_none_or(|until| *line < until))
        {
            all.push_records(line, records(Record::Verbatim, line, offset, part));
        }
    }
    for (line, offset, part) in parts {
        all.push_records(line, records(Record::Verbatim, line, offset, part));
    }
    all.finish()
}

/// Line, offset and bytes of some of a file.
type Part<'a> = (u64, usize, &'a [u8]);

/// The lines. An empty file has one.
fn line_parts<'a>(file: &File<'a>) -> Vec<Part<'a>> {
    let parts: Vec<_> =
        (1..).zip(file.lines()).map(|(line, (offset, bytes))| (line, offset, bytes)).collect();
    if parts.is_empty() { vec![(1, 0, &[])] } else { parts }
}

/// Many lines in one.
fn document_parts<'a>(file: &File<'a>) -> Vec<Part<'a>> {
    let mut parts: Vec<(u64, Range<usize>)> = Vec::new();
    for (line, offset, bytes) in line_parts(file) {
        let end = offset + bytes.len();
        match parts.last_mut() {
            Some((_, part)) if end - part.start <= DOCUMENT_RECORD_BYTES => part.end = end,
            _ => parts.push((line, offset..end)),
        }
    }
    parts.into_iter().map(|(line, part)| (line, part.start, file.part(part))).collect()
}

/// Whether a payload is a record of one that is too large for an entry.
pub(super) fn is_oversized(payload: &[u8]) -> bool {
    payload.starts_with(b"{\"turnkeep_oversized\":")
}

/// Where a verbatim record's bytes begin in the file, and the bytes; none if it
/// is none.
pub(crate) fn bytes_of_record(payload: &[u8]) -> Option<(u64, Vec<u8>)> {
    let object = Object::parse(std::str::from_utf8(payload).ok()?)?.object(VERBATIM_KEY)?;
    let offset = object.get("offset")?.parse().ok()?;
    let bytes = match object.text("base64") {
        Some(base64) => STANDARD.decode(base64.as_bytes()).ok()?,
        None => object.text("text")?.into_owned().into_bytes(),
    };
    Some((offset, bytes))
}

fn record(of: Record, line: u64, offset: usize, bytes: &[u8]) -> Bytes {
    let value = match std::str::from_utf8(bytes) {
        Ok(text) => format!("\"text\":{}", quoted(text)),
        Err(_) => format!("\"base64\":\"{}\"", STANDARD.encode(bytes)),
    };
    Bytes::from(match of {
        Record::Verbatim => {
            format!("{{\"{VERBATIM_KEY}\":{{\"line\":{line},\"offset\":{offset},{value}}}}}")
        }
        Record::Unread => format!("{{\"turnkeep_unread\":{{\"line\":{line},{value}}}}}"),
        Record::Oversized => {
            format!("{{\"turnkeep_oversized\":{{\"line\":{line},\"offset\":{offset},{value}}}}}")
        }
        Record::Text => format!("{{{value}}}"),
    })
}

/// Splits at most `at` bytes off, not within a character if there is one.
fn split_at_char(bytes: &[u8], at: usize) -> (&[u8], &[u8]) {
    let is_boundary = |at: &usize| bytes.get(*at).is_none_or(|byte| byte & 0xc0 != 0x80);
    let at = (at.saturating_sub(3)..=at).rev().find(is_boundary).unwrap_or(at);
    bytes.split_at_checked(at).unwrap_or((bytes, &[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_holds_the_bytes_as_text_or_base64() {
        assert_eq!(records(Record::Verbatim, 3, 120, "a\"\u{0}é\r\n".as_bytes()), [Bytes::from_static(
            b"{\"turnkeep_verbatim\":{\"line\":3,\"offset\":120,\"text\":\"a\\\"\\u0000\xc3\xa9\\r\\n\"}}"
        )]);
        assert_eq!(
            records(Record::Verbatim, 1, 0, b"\xff\n"),
            [Bytes::from_static(b"{\"turnkeep_verbatim\":{\"line\":1,\"offset\":0,\"base64\":\"/wo=\"}}")]
        );
        assert_eq!(records(Record::Text, 1, 0, b"x\n"), [Bytes::from_static(b"{\"text\":\"x\\n\"}")]);
    }

    #[test]
    fn a_split_never_cuts_a_character() {
        for at in 1..12 {
            let (head, tail) = split_at_char("añ€𝄞z".as_bytes(), at.max(4));
            assert!(std::str::from_utf8(head).is_ok() && std::str::from_utf8(tail).is_ok());
            assert!(head.len() <= at.max(4) && !head.is_empty());
        }
        assert_eq!(split_at_char(&[0x80; 9], 5), (&[0x80; 5][..], &[0x80; 4][..]));
    }
}

//! A file as lines and as the JSON values in them.

use bytes::Bytes;
use serde_json::value::RawValue;
use std::ops::Range;

/// A file's bytes and where its lines begin.
#[derive(Debug)]
pub(super) struct File<'a> {
    bytes: &'a Bytes,
    line_starts: Vec<usize>,
}

/// Where a value is cut off; all from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CutOff {
    /// The line in which it begins.
    pub(super) begins: u64,
    /// The line in which the file ends.
    pub(super) line: u64,
    /// The column in which the file ends.
    pub(super) column: u64,
}

/// A JSON value of a file, or a line, or the rest of one, that is no JSON.
#[derive(Clone, Copy, Debug)]
pub(super) enum Piece<'a> {
    /// The raw value.
    Value(&'a str),
    /// Bytes without the line's end.
    Torn(&'a [u8]),
}

impl<'a> Piece<'a> {
    /// Its bytes.
    pub(super) fn bytes(&self) -> &'a [u8] {
        match self {
            Self::Value(raw) => raw.as_bytes(),
            Self::Torn(bytes) => bytes,
        }
    }
}

impl<'a> File<'a> {
    pub(super) fn new(bytes: &'a Bytes) -> Self {
        let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
        let line_starts = std::iter::once(0).chain(ends).filter(|start| *start < bytes.len()).collect();
        Self { bytes, line_starts }
    }

    /// The lines, each with its end, with their offsets.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &'a [u8])> {
        let ends = self.line_starts.iter().skip(1).copied().chain([self.bytes.len()]);
        self.line_starts.iter().copied().zip(ends).map(|(start, end)| (start, self.part(start..end)))
    }

    /// Some of the bytes; none where there are none.
    pub(super) fn part(&self, range: Range<usize>) -> &'a [u8] {
        let bytes: &'a [u8] = self.bytes;
        bytes.get(range).unwrap_or_default()
    }

    /// The line, from 1, in which a slice of the file begins.
    pub(super) fn line_of(&self, part: &[u8]) -> u64 {
        let offset = self.offset_of(part).unwrap_or(0);
        self.line_starts.partition_point(|start| *start <= offset) as u64
    }

    /// A slice of the file as a payload, without a copy.
    pub(super) fn slice(&self, part: &str) -> Bytes {
        match self.offset_of(part.as_bytes()) {
            Some(offset) => self.bytes.slice(offset..offset + part.len()),
            None => Bytes::copy_from_slice(part.as_bytes()),
        }
    }

    fn offset_of(&self, part: &[u8]) -> Option<usize> {
        let offset = part.as_ptr().addr().checked_sub(self.bytes.as_ptr().addr())?;
        (offset.checked_add(part.len())? <= self.bytes.len()).then_some(offset)
    }

    /// The values of the file, and what is none, in order: the values of the
    /// file as a whole if it is nothing but JSON values; else line by line, so
    /// that a torn line costs no other.
    pub(super) fn pieces(&self) -> Vec<Piece<'a>> {
        let bytes: &'a [u8] = self.bytes;
        let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
        if let Some(values) = std::str::from_utf8(bytes).ok().and_then(values) {
            return values.into_iter().map(Piece::Value).collect();
        }
        let mut pieces = Vec::new();
        for line in bytes.split(|byte| *byte == b'\n') {
            pieces_of_line(line, &mut pieces);
        }
        pieces
    }

    /// The place in which a JSON object or array begins that the file ends within;
    /// none if the file, as far as it goes, is something else.
    pub(super) fn cut_off(&self) -> Option<CutOff> {
        let bytes: &'a [u8] = self.bytes;
        let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            // The cut went through a character.
            Err(error) if error.error_len().is_none() => {
                std::str::from_utf8(bytes.get(..error.valid_up_to())?).ok()?
            }
            Err(_) => return None,
        };
        let mut stream = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
        loop {
            let rest = text.get(stream.byte_offset()..)?.trim_start();
            match stream.next()? {
                Ok(_) => {}
                Err(error) if error.is_eof() && rest.starts_with(['{', '[']) => {
                    let begins = self.line_of(rest.as_bytes());
                    return Some(CutOff { begins, line: error.line() as u64, column: error.column() as u64 });
                }
                Err(_) => return None,
            }
        }
    }

    /// The line in which a piece begins.
    pub(super) fn line_of_piece(&self, piece: &Piece<'_>) -> u64 {
        self.line_of(piece.bytes())
    }
}

const BOM: &[u8] = b"\xef\xbb\xbf";

/// The values of a text that is nothing but JSON values.
fn values(text: &str) -> Option<Vec<&str>> {
    serde_json::Deserializer::from_str(text)
        .into_iter::<&RawValue>()
        .map(|value| value.ok().map(RawValue::get))
        .collect()
}

/// Adds the values of a line, of which there may be several, and the rest after
/// them that is none.
fn pieces_of_line<'a>(line: &'a [u8], pieces: &mut Vec<Piece<'a>>) {
    if line.trim_ascii().is_empty() {
        return;
    }
    let Ok(text) = std::str::from_utf8(line) else {
        pieces.push(Piece::Torn(line));
        return;
    };
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    let mut end = 0;
    while let Some(Ok(value)) = stream.next() {
        pieces.push(Piece::Value(value.get()));
        end = stream.byte_offset();
    }
    let rest = text.get(end..).unwrap_or_default();
    if !rest.trim().is_empty() {
        pieces.push(Piece::Torn(rest.strip_suffix('\r').unwrap_or(rest).as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(bytes: &[u8]) -> Vec<(u64, Result<String, Vec<u8>>)> {
        let bytes = Bytes::copy_from_slice(bytes);
        let file = File::new(&bytes);
        let show = |piece: &Piece<'_>| match piece {
            Piece::Value(raw) => Ok((*raw).to_owned()),
            Piece::Torn(bytes) => Err(bytes.to_vec()),
        };
        file.pieces().iter().map(|piece| (file.line_of_piece(piece), show(piece))).collect()
    }

    fn value(line: u64, raw: &str) -> (u64, Result<String, Vec<u8>>) {
        (line, Ok(raw.to_owned()))
    }

    #[test]
    fn values_are_found_with_their_lines() {
        assert_eq!(pieces(b""), []);
        assert_eq!(pieces(b"\xef\xbb\xbf{\"a\":1}\r\n\r\n{}"), [value(1, "{\"a\":1}"), value(3, "{}")]);
        assert_eq!(
            pieces(b"{\"a\":1}{\"b\":2}\n 3"),
            [value(1, "{\"a\":1}"), value(1, "{\"b\":2}"), value(2, "3")]
        );
        assert_eq!(pieces(b"{\n\"a\":\n1}\n[\n]"), [value(1, "{\n\"a\":\n1}"), value(4, "[\n]")]);
    }

    #[test]
    fn a_torn_line_costs_no_other() {
        assert_eq!(
            pieces(b"{\"a\":\n{}{\"b\":\r\n\xff\n{\"c\":3}\n"),
            [
                (1, Err(b"{\"a\":".to_vec())),
                value(2, "{}"),
                (2, Err(b"{\"b\":".to_vec())),
                (3, Err(b"\xff".to_vec())),
                value(4, "{\"c\":3}"),
            ]
        );
    }

    #[test]
    fn a_value_that_the_file_ends_within_is_told_with_its_place() {
        let cut_off = |bytes: &[u8]| {
            let bytes = Bytes::copy_from_slice(bytes);
            File::new(&bytes).cut_off().map(|CutOff { begins, line, column }| (begins, line, column))
        };
        assert_eq!(cut_off(b"{\"messages\":[{},"), Some((1, 1, 16)));
        assert_eq!(cut_off(b"\xef\xbb\xbf{}\n\n [1,\n{\"a\": \"b"), Some((3, 4, 8)));
        assert_eq!(cut_off("{\"a\":\"é".as_bytes().split_last().unwrap().1), Some((1, 1, 6)));
        for whole in
            [&b""[..], b"{}", b"{}\n[]\n", b"\"abc", b"[section]", b"{% if %}", b"{} tail {", b"\xff{"]
        {
            assert_eq!(cut_off(whole), None, "{whole:?}");
        }
    }

    #[test]
    fn lines_together_are_the_file() {
        for bytes in [&b""[..], b"\n", b"a\n\nb", b"a\r\nb\n"] {
            let bytes = Bytes::copy_from_slice(bytes);
            let lines: Vec<_> = File::new(&bytes).lines().collect();
            assert_eq!(lines.iter().map(|(_, line)| *line).collect::<Vec<_>>().concat(), bytes);
            assert_eq!(lines.len(), bytes.split_inclusive(|byte| *byte == b'\n').count());
        }
    }
}

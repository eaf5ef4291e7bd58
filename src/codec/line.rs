//! Entries as JSON Lines, in the journal and in segments.
//!
//! `{"seq":1,"at":1700000000000000,"kind":"message","turn":1,"tokens":12,"payload":{…}}`
//!
//! The payload stands last and verbatim, so a line is read without parsing it.

use crate::clock::Micros;
use crate::codec::CodecError;
use crate::model::{Entry, EntryKind, Seq, Version};
use bytes::Bytes;
use std::io::Write as _;

/// Appends an entry's line to `out`. The payload must hold no line break.
pub fn write(out: &mut Vec<u8>, entry: &Entry) {
    debug_assert!(!entry.payload.contains(&b'\n'), "payloads are single lines");
    let Entry { seq, version, at, kind, tokens, payload } = entry;
    // Writing to a vector cannot fail.
    let _ = write!(out, r#"{{"seq":{seq},"at":{},"kind":"#, at.0);
    let _ = match kind {
        EntryKind::Message => out.write_all(br#""message""#),
        EntryKind::Meta => out.write_all(br#""meta""#),
        other => write!(out, "{}", other.number()),
    };
    let _ = write!(out, r#","turn":{version},"tokens":{tokens},"payload":"#);
    out.extend_from_slice(payload);
    out.extend_from_slice(b"}\n");
}

/// Reads all lines of `text`. The payloads share its memory.
pub fn read_all(text: &Bytes) -> Result<Vec<Entry>, CodecError> {
    let mut entries = Vec::new();
    let mut start = 0;
    for end in memchr::memchr_iter(b'\n', text) {
        entries.push(read(text, start, end)?);
        start = end + 1;
    }
    if start != text.len() {
        return Err(CodecError::damaged("the last line is cut short"));
    }
    Ok(entries)
}

fn read(text: &Bytes, start: usize, end: usize) -> Result<Entry, CodecError> {
    let line = &text[start..end];
    let mut fields = Fields { rest: line };
    let parsed = (|| {
        fields.literal(br#"{"seq":"#)?;
        let seq = Seq(fields.number()?);
        fields.literal(br#","at":"#)?;
        let at = Micros(fields.signed()?);
        fields.literal(br#","kind":"#)?;
        let kind = fields.kind()?;
        fields.literal(br#","turn":"#)?;
        let version = Version(fields.number()?);
        fields.literal(br#","tokens":"#)?;
        let tokens = fields.number()?;
        fields.literal(br#","payload":"#)?;
        let payload = fields.rest.strip_suffix(b"}")?;
        // JSON may have blanks around it.
        let object = payload.trim_ascii();
        (object.starts_with(b"{") && object.ends_with(b"}")).then_some(())?;
        let payload_end = end - 1;
        let payload = text.slice(payload_end - payload.len()..payload_end);
        Some(Entry { seq, version, at, kind, tokens, payload })
    })();
    parsed.ok_or_else(|| {
        CodecError::damaged(format_args!("line of {} bytes at byte {start} is not an entry", line.len()))
    })
}

struct Fields<'a> {
    rest: &'a [u8],
}

impl Fields<'_> {
    fn literal(&mut self, literal: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(literal)?;
        Some(())
    }

    fn number(&mut self) -> Option<u64> {
        let len = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.rest.split_at(len);
        self.rest = rest;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    fn signed(&mut self) -> Option<i64> {
        let negative = self.literal(b"-").is_some();
        let magnitude = self.number()?;
        if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
    }

    fn kind(&mut self) -> Option<EntryKind> {
        if self.literal(br#""message""#).is_some() {
            return Some(EntryKind::Message);
        }
        if self.literal(br#""meta""#).is_some() {
            return Some(EntryKind::Meta);
        }
        self.signed().and_then(|number| i32::try_from(number).ok()).map(EntryKind::from_number)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn entries() -> impl Strategy<Value = Vec<Entry>> {
        let payload = prop_oneof![
            Just(r"{}".to_owned()),
            Just("  {\t} ".to_owned()),
            r#"\{"role":"[a-z}\\{]{0,20}"\}"#,
            Just(r#"{"a":"\ud800","a":1e400,"b":12345678901234567890123,"c":"\u0000}\n"}"#.to_owned()),
        ];
        let kind = prop_oneof![Just(1), Just(2), 6..100, -5..0].prop_map(EntryKind::from_number);
        let entry = (any::<u64>(), any::<u64>(), any::<i64>(), kind, any::<u64>(), payload).prop_map(
            |(seq, version, at, kind, tokens, payload)| Entry {
                seq: Seq(seq),
                version: Version(version),
                at: Micros(at),
                kind,
                tokens,
                payload: payload.into(),
            },
        );
        prop::collection::vec(entry, 0..20)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(entries in entries()) {
            let mut text = Vec::new();
            for entry in &entries {
                write(&mut text, entry);
            }
            prop_assert_eq!(read_all(&text.into()).unwrap(), entries);
        }

        #[test]
        fn cut_and_altered_lines_are_errors_or_other_entries_but_never_panics(
            entries in entries(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let mut text = Vec::new();
            for entry in &entries {
                write(&mut text, entry);
            }
            if !text.is_empty() {
                let at = at.index(text.len());
                let cut = Bytes::copy_from_slice(&text[..at]);
                prop_assert!(at == 0 || text[at - 1] == b'\n' || read_all(&cut).is_err());
                text[at] = byte;
                let _ = read_all(&text.into());
            }
        }
    }

    #[test]
    fn a_line_is_json_that_others_can_read() {
        let entry = Entry {
            seq: Seq(7),
            version: Version(3),
            at: Micros(-1),
            kind: EntryKind::Message,
            tokens: 2,
            payload: Bytes::from_static(br#"{"role": "user"}"#),
        };
        let mut text = Vec::new();
        write(&mut text, &entry);
        let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"seq": 7, "at": -1, "kind": "message", "turn": 3, "tokens": 2, "payload": {"role": "user"}})
        );
    }
}

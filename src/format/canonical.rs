//! Digests of what payloads say, whatever their spelling.

use super::json::end_of_value;
use crate::model::Digest;
use sha2::{Digest as _, Sha256};

/// Largest encoding of an object that stands in its parent's as it is; a larger
/// one is replaced by its digest. So no byte is moved again and again when the
/// members of nested objects are put in order.
const INLINE_BYTES_MAX: usize = 256;

/// End of a string: no byte of UTF-8, nor of the encoding of lone surrogates.
const END: u8 = 0xff;

/// Digest of a payload's content: equal for payloads that differ only in
/// whitespace, in the order of object keys and in how string characters are
/// written. Numbers are compared by their text. Members with one name stay in
/// their order. The payload must be JSON.
pub fn canonical_digest(payload: &[u8]) -> Digest {
    let mut encoder = Encoder { out: Vec::with_capacity(payload.len()), ..Encoder::default() };
    let mut at = 0;
    while let Some(&byte) = payload.get(at) {
        at = match byte {
            b'"' => encoder.string(payload, at),
            b'{' | b'[' => encoder.open(byte, at),
            b'}' | b']' => encoder.close(byte, at),
            b',' | b':' => {
                encoder.expects_key = byte == b',' && encoder.is_in_object();
                at + 1
            }
            b' ' | b'\t' | b'\r' | b'\n' => at + 1,
            _ => encoder.scalar(payload, at),
        };
    }
    Digest(Sha256::digest(&encoder.out).into())
}

/// Writes the canonical encoding: a tag before each value, no separators,
/// object members sorted by key.
#[derive(Default)]
struct Encoder {
    out: Vec<u8>,
    /// The objects and arrays around the current position.
    open: Vec<Container>,
    /// The members so far of all objects around the current position.
    members: Vec<Member>,
    expects_key: bool,
    scratch: Vec<u8>,
}

struct Container {
    is_object: bool,
    /// Where its encoding begins in `out`.
    start: usize,
    /// Where its members begin in `members`.
    first_member: usize,
}

/// A member's encoding in `out`: key from `start` to `value`, value to `end`.
#[derive(Clone, Copy)]
struct Member {
    start: usize,
    value: usize,
    end: usize,
}

impl Encoder {
    fn is_in_object(&self) -> bool {
        self.open.last().is_some_and(|container| container.is_object)
    }

    fn open(&mut self, byte: u8, at: usize) -> usize {
        let is_object = byte == b'{';
        self.open.push(Container { is_object, start: self.out.len(), first_member: self.members.len() });
        self.out.push(byte);
        self.expects_key = is_object;
        at + 1
    }

    fn close(&mut self, byte: u8, at: usize) -> usize {
        match self.open.pop() {
            Some(object) if object.is_object => self.close_object(&object),
            _ => self.out.push(byte),
        }
        self.expects_key = false;
        at + 1
    }

    fn close_object(&mut self, object: &Container) {
        let members = self.members.get_mut(object.first_member..).unwrap_or_default();
        let mut end = self.out.len();
        for member in members.iter_mut().rev() {
            member.end = end;
            end = member.start;
        }
        let out = &self.out;
        let part = |from: usize, to: usize| out.get(from..to).unwrap_or_default();
        let is_sorted = members.is_sorted_by_key(|member| part(member.start, member.value));
        if !is_sorted {
            members.sort_by_key(|member| part(member.start, member.value));
        }
        let parts = members.iter().map(|member| part(member.start, member.end));
        if out.len() - object.start > INLINE_BYTES_MAX {
            let mut hasher = Sha256::new();
            parts.for_each(|part| hasher.update(part));
            self.out.truncate(object.start);
            self.out.push(b'#');
            self.out.extend_from_slice(&hasher.finalize());
        } else {
            if !is_sorted {
                self.scratch.clear();
                parts.for_each(|part| self.scratch.extend_from_slice(part));
                self.out.truncate(object.start + 1);
                self.out.extend_from_slice(&self.scratch);
            }
            self.out.push(b'}');
        }
        self.members.truncate(object.first_member);
    }

    fn string(&mut self, payload: &[u8], at: usize) -> usize {
        let start = self.out.len();
        self.out.push(b'"');
        let mut rest = payload.get(at + 1..).unwrap_or_default();
        while let Some(found) = memchr::memchr2(b'"', b'\\', rest) {
            self.out.extend_from_slice(rest.get(..found).unwrap_or_default());
            rest = rest.get(found..).unwrap_or_default();
            if rest.first() == Some(&b'"') {
                break;
            }
            let length = decode_escape(rest, &mut self.out);
            rest = rest.get(length..).unwrap_or_default();
        }
        self.out.push(END);
        if self.expects_key {
            self.members.push(Member { start, value: self.out.len(), end: 0 });
        }
        // Past the quote.
        (payload.len() - rest.len() + 1).min(payload.len())
    }

    fn scalar(&mut self, payload: &[u8], at: usize) -> usize {
        // Anything at all is taken, so that the scan moves on.
        let end = end_of_value(payload, at).max(at + 1);
        self.out.extend_from_slice(payload.get(at..end).unwrap_or_default());
        self.out.push(END);
        end
    }
}

/// Appends the text of the escape at the start of `escape`; returns how many bytes it
/// takes. Lone surrogates are encoded as UTF-8 would encode them if it could (WTF-8).
fn decode_escape(escape: &[u8], out: &mut Vec<u8>) -> usize {
    out.push(match escape.get(1) {
        Some(b'u') => return decode_unicode_escape(escape, out),
        Some(b'b') => 8,
        Some(b'f') => 12,
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        Some(&literal) => literal,
        None => b'\\',
    });
    2
}

/// Decodes the `\uXXXX` at the start of `escape`, or two of them if they are a
/// surrogate pair; returns how many bytes they take.
fn decode_unicode_escape(escape: &[u8], out: &mut Vec<u8>) -> usize {
    let unit = unicode_escape(escape).unwrap_or(0xfffd);
    let pair = escape
        .get(6..)
        .and_then(unicode_escape)
        .filter(|low| (0xd800..0xdc00).contains(&unit) && (0xdc00..0xe000).contains(low));
    if let Some(low) = pair {
        let char = char::from_u32(0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00));
        out.extend_from_slice(char.unwrap_or_default().encode_utf8(&mut [0; 4]).as_bytes());
        return 12;
    }
    match char::from_u32(unit) {
        Some(char) => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        None => out.extend([0xe0 | unit >> 12, 0x80 | unit >> 6 & 0x3f, 0x80 | unit & 0x3f].map(low_byte)),
    }
    6
}

fn low_byte(value: u32) -> u8 {
    value.to_le_bytes()[0]
}

fn unicode_escape(escape: &[u8]) -> Option<u32> {
    let digits = escape.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::check_object;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    fn digest(payload: &str) -> Digest {
        assert_eq!(check_object(payload.as_bytes()), Ok(()), "{payload}");
        canonical_digest(payload.as_bytes())
    }

    #[test]
    fn spelling_does_not_count() {
        let long = "x".repeat(INLINE_BYTES_MAX);
        let same = [
            [r#"{"a":1,"b":[true,null]}"#, "{ \"b\" :\t[ true , null ] ,\r\n\"a\": 1 }"],
            [r#"{"é":"/\u0008\u000c\n\r\t\"\\"}"#, r#"{"\u00E9":"\/\b\f\u000a\u000D\u0009\u0022\u005c"}"#],
            [r#"{"a":"😀"}"#, r#"{"a":"\ud83d\uDE00"}"#],
            [r#"{"a":"\ud800\udc00\udc00"}"#, "{\"a\":\"\u{10000}\\udc00\"}"],
            [&format!(r#"{{"a":{{"x":"{long}","y":0}}}}"#), &format!(r#"{{"a":{{"y":0,"x":"{long}"}}}}"#)],
            [r#"{"b":1,"a":2,"a":3}"#, r#"{"a":2,"b":1,"a":3}"#],
        ];
        for [one, other] in same {
            assert_eq!(digest(one), digest(other), "{one} {other}");
        }
    }

    #[test]
    fn all_else_counts() {
        let long = "x".repeat(INLINE_BYTES_MAX);
        let different = [
            "{}",
            r#"{"a":1}"#,
            r#"{"a":1.0}"#,
            r#"{"a":1e0}"#,
            r#"{"a":"1"}"#,
            r#"{"a":[1]}"#,
            r#"{"a":[]}"#,
            r#"{"a":{}}"#,
            r#"{"a":[{}]}"#,
            r#"{"a":[[],[]]}"#,
            r#"{"a":[[[]]]}"#,
            r#"{"a":[1,2]}"#,
            r#"{"a":[2,1]}"#,
            r#"{"a":[12]}"#,
            r#"{"a":["1","2"]}"#,
            r#"{"a":["1,2"]}"#,
            r#"{"a":true}"#,
            r#"{"a":null}"#,
            r#"{"a":""}"#,
            r#"{"a":"\ud800"}"#,
            r#"{"a":"\udbff"}"#,
            r#"{"a":"\udc00"}"#,
            r#"{"a":"\ufffd"}"#,
            r#"{"a":"\ud800\ud800\udc00"}"#,
            r#"{"a":"\ud800\udc00"}"#,
            r#"{"a":"\udc00\ud800"}"#,
            r#"{"a":"\\ud800"}"#,
            r#"{"a":"\u0000"}"#,
            r#"{"a":1,"a":2}"#,
            r#"{"a":2,"a":1}"#,
            r#"{"b":1}"#,
            r#"{"a":{"b":1}}"#,
            r#"{"a":{},"b":1}"#,
            &format!(r#"{{"a":{{"b":"{long}"}}}}"#),
            &format!(r#"{{"a":{{"b":"{long}y"}}}}"#),
            &format!(r#"{{"a":{{}},"b":"{long}"}}"#),
        ];
        let digests: BTreeSet<_> = different.iter().map(|payload| digest(payload)).collect();
        assert_eq!(digests.len(), different.len());
    }

    #[test]
    fn deep_nesting_costs_neither_stack_nor_a_square() {
        let nested =
            |open: &str, close: &str| [open.repeat(300_000), "1".into(), close.repeat(300_000)].concat();
        let sorted = digest(&nested(r#"{"a":0,"b":"#, "}"));
        assert_eq!(digest(&nested(r#"{ "b":"#, r#","a":0}"#)), sorted);
        assert_ne!(digest(&nested(r#"{"a":"#, "}")), sorted);
        digest(&format!(r#"{{"a":{}}}"#, nested("[", "]")));
    }

    #[test]
    fn the_digest_of_a_payload_never_changes() {
        // Snapshots are compared with digests that were stored long ago.
        let payload = r#"{"role":"user","content":[{"type":"text","text":"caf\u00e9"},{"n":1.50,"x":null}]}"#;
        let expected = "654a0625b3834a2557930ca6a00ef61d800ed5226daab6e98bc8249b154f466b";
        assert_eq!(digest(payload).to_string(), expected);
    }

    /// A JSON value as it is built and as it is written: with what is chosen
    /// anew for each writing in `choices`.
    fn write(value: &serde_json::Value, choices: &mut impl Iterator<Item = u8>, out: &mut String) {
        let mut choose = |of: u8| choices.next().unwrap_or(0) % of;
        let space = [" ", "", "\n", "\t "][usize::from(choose(4))];
        out.push_str(space);
        match value {
            serde_json::Value::String(text) => write_string(text, choices, out),
            serde_json::Value::Array(elements) => {
                out.push('[');
                for (i, element) in elements.iter().enumerate() {
                    out.push_str(if i > 0 { "," } else { "" });
                    write(element, choices, out);
                }
                out.push(']');
            }
            serde_json::Value::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                let shift = usize::from(choose(7)) % members.len().max(1);
                members.rotate_left(shift);
                if choose(2) == 1 {
                    members.reverse();
                }
                out.push('{');
                for (i, (key, value)) in members.into_iter().enumerate() {
                    out.push_str(if i > 0 { "," } else { "" });
                    write_string(key, choices, out);
                    out.push_str(": ");
                    write(value, choices, out);
                }
                out.push('}');
            }
            scalar => out.push_str(&scalar.to_string()),
        }
        out.push_str(space);
    }

    fn write_string(text: &str, choices: &mut impl Iterator<Item = u8>, out: &mut String) {
        out.push('"');
        for char in text.chars() {
            if choices.next().is_some_and(|choice| choice % 2 == 1) {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04X}").unwrap();
                }
            } else {
                let escaped = serde_json::Value::from(char.to_string()).to_string();
                out.push_str(&escaped[1..escaped.len() - 1]);
            }
        }
        out.push('"');
    }

    fn object() -> impl Strategy<Value = serde_json::Value> {
        let scalar = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(serde_json::Value::from),
            (0..3_i64).prop_map(serde_json::Value::from),
            "[a\"\\\\/\n\u{0}é😀]{0,4}".prop_map(serde_json::Value::from),
            "x{0,300}".prop_map(serde_json::Value::from),
        ];
        let value = scalar.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(serde_json::Value::from),
                prop::collection::btree_map("[ab\"é]{0,2}", inner, 0..5)
                    .prop_map(|members| members.into_iter().collect::<serde_json::Value>()),
            ]
        });
        prop::collection::btree_map("[ab\"é]{0,2}", value, 0..5)
            .prop_map(|members| members.into_iter().collect::<serde_json::Value>())
    }

    proptest! {
        #[test]
        fn payloads_have_one_digest_if_and_only_if_they_say_the_same(
            one in object(),
            other in object(),
            spelling in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let written = |value, spelling: &[u8]| {
                let mut out = String::new();
                write(value, &mut spelling.iter().copied(), &mut out);
                digest(&out)
            };
            prop_assert_eq!(written(&one, &spelling), written(&one, &[]));
            prop_assert_eq!(written(&one, &spelling) == written(&other, &[]), one == other);
        }

        #[test]
        fn any_bytes_have_a_digest(payload: Vec<u8>, json in r#"[\[\]{}",:\\u0-9a-f ]{0,40}"#) {
            canonical_digest(&payload);
            canonical_digest(json.as_bytes());
        }
    }
}

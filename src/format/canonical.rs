//! Digests of what payloads say, whatever their spelling.

use super::json::{end_of_string, end_of_value};
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
        let end = end_of_string(payload, at);
        let start = self.out.len();
        self.out.push(b'"');
        decode(payload.get(at + 1..end - 1).unwrap_or_default(), &mut self.out);
        self.out.push(END);
        if self.expects_key {
            self.members.push(Member { start, value: self.out.len(), end: 0 });
        }
        end
    }

    fn scalar(&mut self, payload: &[u8], at: usize) -> usize {
        // Anything at all is taken, so that the scan moves on.
        let end = end_of_value(payload, at).max(at + 1);
        self.out.extend_from_slice(payload.get(at..end).unwrap_or_default());
        self.out.push(END);
        end
    }
}

/// Appends the text of a string's content to `out`. Lone surrogates are encoded
/// as UTF-8 would encode them if it could (WTF-8).
fn decode(mut content: &[u8], out: &mut Vec<u8>) {
    while let Some(backslash) = memchr::memchr(b'\\', content) {
        let (plain, escape) = content.split_at(backslash);
        out.extend_from_slice(plain);
        let length = match escape.get(1) {
            Some(b'u') => decode_unicode_escape(escape, out),
            other => {
                out.push(match other {
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
        };
        content = escape.get(length..).unwrap_or_default();
    }
    out.extend_from_slice(content);
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

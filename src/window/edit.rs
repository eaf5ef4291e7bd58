//! Changes to payloads that touch one value and leave every other byte as it
//! is.

use crate::format::json::Value;
use crate::format::{Blocks, text_block};
use crate::model::WireFormat;
use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// A message taken apart: its blocks, and what stands around them.
#[derive(Clone, Debug)]
pub(super) struct Message {
    head: Bytes,
    pub(super) blocks: Vec<Bytes>,
    tail: Bytes,
}

impl Message {
    /// Takes `payload` apart. Content that is a string becomes a block of text.
    pub(super) fn parse(format: WireFormat, layout: &Blocks, payload: &Bytes) -> Self {
        let Some(content) = Value::of(payload).member(layout.member) else {
            return Self::user(layout);
        };
        let around = content.range();
        let blocks = if content.is_string() {
            let token = String::from_utf8_lossy(content.bytes());
            vec![Bytes::from(text_block(format, &token))]
        } else {
            content.elements().map(|block| payload.slice(block.range())).collect()
        };
        let head = joined(&[payload.get(..around.start).unwrap_or_default(), b"["]);
        let tail = joined(&[b"]", payload.get(around.end..).unwrap_or_default()]);
        Self { head, blocks, tail }
    }

    /// A user message without blocks.
    pub(super) fn user(layout: &Blocks) -> Self {
        let (head, tail) = layout.user_message;
        Self {
            head: Bytes::from_static(head.as_bytes()),
            blocks: Vec::new(),
            tail: Bytes::from_static(tail.as_bytes()),
        }
    }

    /// The message with other blocks.
    pub(super) fn with_blocks(&self, blocks: &[Bytes]) -> Bytes {
        let length = blocks.iter().map(|block| block.len() + 1).sum::<usize>();
        let mut payload = BytesMut::with_capacity(self.head.len() + length + self.tail.len());
        payload.extend_from_slice(&self.head);
        for (index, block) in blocks.iter().enumerate() {
            if index > 0 {
                payload.extend_from_slice(b",");
            }
            payload.extend_from_slice(block);
        }
        payload.extend_from_slice(&self.tail);
        payload.freeze()
    }
}

/// `payload` with `token` for the value that lies at `path`; unchanged if there
/// is none.
pub(super) fn with_value(payload: &Bytes, path: &[&str], token: &str) -> Bytes {
    let found = path.iter().try_fold(Value::of(payload), |value, name| value.member(name));
    found.map_or_else(|| payload.clone(), |found| replaced(payload, found.range(), token.as_bytes()))
}

/// `payload` with other tokens for the values in those places, which lie one
/// after the other.
pub(super) fn with_values(payload: &Bytes, tokens: &[(Range<usize>, String)]) -> Bytes {
    let mut changed = BytesMut::with_capacity(payload.len());
    let mut end = 0;
    for (place, token) in tokens {
        changed.extend_from_slice(payload.get(end..place.start).unwrap_or_default());
        changed.extend_from_slice(token.as_bytes());
        end = place.end;
    }
    changed.extend_from_slice(payload.get(end..).unwrap_or_default());
    changed.freeze()
}

/// `block` without the blank blocks of text in the list at `path`.
pub(super) fn without_blank_text(block: &Bytes, path: &[&str]) -> Bytes {
    let list = path.iter().try_fold(Value::of(block), |value, name| value.member(name));
    let is_blank = |element: &Value<'_>| element.member("text").is_some_and(Value::is_blank);
    let Some(list) = list.filter(|list| list.elements().any(|element| is_blank(&element))) else {
        return block.clone();
    };
    let kept: Vec<_> = list.elements().filter(|element| !is_blank(element)).map(Value::bytes).collect();
    replaced(block, list.range(), &[b"[", kept.join(&b","[..]).as_slice(), b"]"].concat())
}

fn replaced(payload: &Bytes, range: Range<usize>, by: &[u8]) -> Bytes {
    let [before, after] =
        [payload.get(..range.start), payload.get(range.end..)].map(Option::unwrap_or_default);
    joined(&[before, by, after])
}

fn joined(parts: &[&[u8]]) -> Bytes {
    Bytes::from(parts.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::rules;

    #[test]
    fn a_value_is_replaced_and_every_other_byte_stays() {
        let payload = Bytes::from_static(br#"{ "a":{"id" : "x", "id":"y"} ,"id":"z"}"#);
        assert_eq!(with_value(&payload, &["a", "id"], "\"n\""), r#"{ "a":{"id" : "x", "id":"n"} ,"id":"z"}"#);
        assert_eq!(with_value(&payload, &["a", "b"], "1"), payload);
    }

    #[test]
    fn a_message_is_put_together_around_its_blocks() {
        let format = WireFormat::AnthropicMessages;
        let layout = rules(format).blocks.unwrap();
        let payload =
            Bytes::from_static(br#"{"x":1.0, "content": [ {"type":"a"} , {"b":[ ]}], "role":"user" }"#);
        let message = Message::parse(format, layout, &payload);
        let blocks = &message.blocks;
        assert_eq!(blocks, &[r#"{"type":"a"}"#, r#"{"b":[ ]}"#]);
        assert_eq!(message.with_blocks(&blocks[1..]), r#"{"x":1.0, "content": [{"b":[ ]}], "role":"user" }"#);

        let payload = Bytes::from_static(br#"{"role":"user","content":"a\u00e9"}"#);
        let message = Message::parse(format, layout, &payload);
        assert_eq!(
            message.with_blocks(&message.blocks),
            r#"{"role":"user","content":[{"type":"text","text":"a\u00e9"}]}"#
        );
        assert_eq!(Message::user(layout).with_blocks(&[]), r#"{"role":"user","content":[]}"#);
    }
}

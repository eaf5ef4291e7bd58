//! The texts of a payload, as one looks for them: decoded, each with its place.

use super::json::{Value, end_of_string};
use super::reading::{Part, Reading, Role};
use super::{check_value, read_value, rules};
use crate::model::WireFormat;
use memchr::memchr;
use std::borrow::Cow;
use std::ops::Range;

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TextKind {
    /// Something that was said.
    Said,
    /// The name of the tool in a call.
    CallName,
    /// The arguments of a call.
    CallArguments,
    /// The result of a call.
    Result,
}

/// A text of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text<'a> {
    /// What it is.
    pub kind: TextKind,
    /// Whose it is: a result is [`Role::Results`] in any message.
    pub role: Role,
    /// Name of the tool, where the payload gives it; else empty.
    pub tool_name: Cow<'a, str>,
    /// Id of the call; empty if there is none.
    pub call_id: Cow<'a, str>,
    /// What it says. Of JSON it is the JSON, with the strings in it decoded.
    pub content: Cow<'a, str>,
}

/// The texts of a payload, in reading order. Media and what only the provider can
/// read are left out.
pub fn texts(format: WireFormat, payload: &[u8]) -> Vec<Text<'_>> {
    let value = Value::of(payload);
    let placed = placed_texts(format, value, &read_value(format, value));
    placed.into_iter().map(|(_, text)| text).collect()
}

/// The texts of a payload, in reading order, each with where it stands.
pub(super) fn placed_texts<'a>(
    format: WireFormat,
    value: Value<'a>,
    reading: &Reading<'a>,
) -> Vec<(usize, Text<'a>)> {
    let payload = value.source();
    let owners = owners(format, value, reading);
    let mut texts: Vec<(usize, Text<'_>)> = owners
        .iter()
        .filter(|owner| owner.kind == TextKind::CallArguments && !owner.tool_name.is_empty())
        .map(|owner| {
            let content = owner.tool_name.clone();
            (owner.place.start, Text { kind: TextKind::CallName, ..owner.text(reading.role, content) })
        })
        .collect();
    for part in &reading.parts {
        let (Part::Text(token) | Part::Json(token) | Part::Opaque(token)) = part else { continue };
        // The parts are slices of the payload.
        let at = token.as_ptr().addr().saturating_sub(payload.as_ptr().addr());
        let owner = owners.get(owners.partition_point(|owner| owner.place.end <= at));
        let owner = owner.filter(|owner| owner.place.contains(&at));
        let is_argument = owner.is_some_and(|owner| owner.kind == TextKind::CallArguments);
        let Some(content) = decoded(*part, is_argument) else { continue };
        let text = match owner {
            Some(owner) => owner.text(reading.role, content),
            None => said(reading.role, content),
        };
        texts.push((at, text));
    }
    texts.sort_by_key(|(at, _)| *at);
    texts
}

fn said(role: Role, content: Cow<'_, str>) -> Text<'_> {
    let (tool_name, call_id) = (Cow::Borrowed(""), Cow::Borrowed(""));
    Text { kind: TextKind::Said, role, tool_name, call_id, content }
}

/// A call or result, and where it lies in the payload.
struct Owner<'a> {
    place: Range<usize>,
    kind: TextKind,
    tool_name: Cow<'a, str>,
    call_id: Cow<'a, str>,
}

impl<'a> Owner<'a> {
    fn text(&self, role: Role, content: Cow<'a, str>) -> Text<'a> {
        let role = if self.kind == TextKind::Result { Role::Results } else { role };
        Text {
            kind: self.kind,
            role,
            tool_name: self.tool_name.clone(),
            call_id: self.call_id.clone(),
            content,
        }
    }
}

/// The calls and results of a payload, in the order of their places.
fn owners<'a>(format: WireFormat, payload: Value<'a>, reading: &Reading<'a>) -> Vec<Owner<'a>> {
    let blocks = rules(format).blocks;
    let lists = match blocks {
        Some(blocks) => [payload.member(blocks.member), None],
        None if format == WireFormat::OpenaiChat => payload.get(["tool_calls", "function_call"]),
        None => [None, None],
    };
    let [list, single] = lists;
    let elements =
        list.into_iter().flat_map(Value::elements).chain(single.filter(|single| !single.is_null()));
    let places: Vec<_> = elements.map(Value::range).collect();
    let place = |index: usize| places.get(index).cloned().unwrap_or_else(|| payload.range());
    let calls = reading.calls.iter().map(|call| Owner {
        place: place(call.index),
        kind: TextKind::CallArguments,
        tool_name: call.name.clone(),
        call_id: call.id.clone().unwrap_or_default(),
    });
    let results = reading.results.iter().map(|result| Owner {
        place: if blocks.is_some() { place(result.index) } else { payload.range() },
        kind: TextKind::Result,
        tool_name: result.name.clone(),
        call_id: result.id.clone().unwrap_or_default(),
    });
    let mut owners: Vec<_> = calls.chain(results).collect();
    owners.sort_by_key(|owner| owner.place.start);
    owners
}

/// What a part says; nothing if it says nothing to a reader.
fn decoded(part: Part<'_>, is_argument: bool) -> Option<Cow<'_, str>> {
    match part {
        Part::Text(token) => {
            let text = Value::of(token).text()?;
            // OpenAI's arguments are a string that holds JSON.
            let is_json = is_argument && text.starts_with(['{', '[']) && check_value(text.as_bytes()).is_ok();
            Some(match text {
                Cow::Borrowed(text) if is_json => with_strings_decoded(text.as_bytes()),
                Cow::Owned(text) if is_json => Cow::Owned(with_strings_decoded(text.as_bytes()).into_owned()),
                text => text,
            })
        }
        Part::Json(token) => Some(with_strings_decoded(token)),
        // A string is a signature, or encrypted.
        Part::Opaque(token) => {
            let value = Value::of(token);
            (value.is_object() || value.is_array()).then(|| with_strings_decoded(token))
        }
        Part::Media { .. } => None,
    }
}

/// JSON with the characters of its strings in place of their escapes.
fn with_strings_decoded(json: &[u8]) -> Cow<'_, str> {
    if memchr(b'\\', json).is_none() {
        return String::from_utf8_lossy(json);
    }
    let mut text = String::with_capacity(json.len());
    let mut rest = json;
    while let Some((before, from)) = memchr(b'"', rest).and_then(|quote| rest.split_at_checked(quote)) {
        let (token, after) = from.split_at_checked(end_of_string(from, 0)).unwrap_or((from, b""));
        text.push_str(&String::from_utf8_lossy(before));
        let value = Value::of(token);
        let decoded = value.text().unwrap_or_default();
        if decoded.as_bytes() == token {
            // It stands for no text.
            text.push_str(&decoded);
        } else {
            text.push('"');
            text.push_str(&decoded);
            text.push('"');
        }
        rest = after;
    }
    text.push_str(&String::from_utf8_lossy(rest));
    Cow::Owned(text)
}

#[cfg(test)]
mod tests;

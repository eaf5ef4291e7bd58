//! Generates logs of conversations in every wire format: orderly ones, and such
//! as crashes, clients and people leave behind.

#[path = "histories/writer.rs"]
mod writer;

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};
use turnkeep::clock::Micros;
use turnkeep::model::{Entry, EntryKind, Seq, Version, WireFormat};
use writer::Writer;

/// What happens in a conversation.
#[derive(Clone, Debug)]
enum Event {
    /// The user says something.
    User(Text),
    /// The user shows a picture.
    Picture,
    /// The model speaks, perhaps calls tools.
    Model(Answer),
    /// Results come in one message, where the format has such, each of a call
    /// so far back, with a word of the user.
    Results(Vec<usize>, Text),
    /// A result for a call that nobody made.
    Orphan,
    /// A system message.
    System,
    /// A client's own record.
    Meta,
    /// Something that is not known: a role, a block, an item.
    Unknown(Unknown),
    /// The last message once more.
    Again,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Text {
    None,
    Some,
    Empty,
    Blank,
}

#[derive(Clone, Copy, Debug)]
enum Unknown {
    Role,
    Block,
}

#[derive(Clone, Debug)]
struct Answer {
    reasons: bool,
    text: Text,
    calls: Vec<Call>,
    /// The provider's own tool is used: without a result, or with.
    searches: Option<bool>,
    ends_with_reasoning: bool,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    /// Reuses an id.
    reuses: bool,
    /// An id or kind that is out of the ordinary.
    is_odd: bool,
    tool: u8,
}

/// The entries of a log. It prints as one payload a line.
#[derive(Clone)]
pub(crate) struct Log(pub(crate) Vec<Entry>);

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|entry| {
            write!(f, "\n{:3} {:?} {}", entry.seq, entry.kind, String::from_utf8_lossy(&entry.payload))
        })
    }
}

/// A log of `format`. With `known_only` it has no block or item that the API
/// does not know; roles it may have.
pub(crate) fn log(format: WireFormat, known_only: bool) -> impl Strategy<Value = Log> {
    let unknown = if known_only {
        Just(Unknown::Role).boxed()
    } else {
        prop_oneof![Just(Unknown::Role), Just(Unknown::Block)].boxed()
    };
    let event = prop_oneof![
        4 => text().prop_map(Event::User),
        1 => Just(Event::Picture),
        8 => answer().prop_map(Event::Model),
        9 => (prop::collection::vec(far_back(), 1..4), prop_oneof![4 => Just(Text::None), 1 => text()])
            .prop_map(|(calls, text)| Event::Results(calls, text)),
        1 => Just(Event::Orphan),
        1 => Just(Event::System),
        1 => Just(Event::Meta),
        1 => unknown.prop_map(Event::Unknown),
        1 => Just(Event::Again),
    ];
    (prop::collection::vec(event, 0..24), any::<[bool; 3]>()).prop_map(move |(events, options)| {
        let mut writer = Writer::new(format, options);
        writer.is_disorderly = true;
        for event in &events {
            writer.write(event);
        }
        Log(writer.entries)
    })
}

/// A log with a few of its values replaced by such as no API takes there, or
/// taken away.
pub(crate) fn marred(log: impl Strategy<Value = Log>) -> impl Strategy<Value = Log> {
    let harm = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), harm());
    (log, prop::collection::vec(harm, 1..6)).prop_map(move |(Log(mut entries), harms)| {
        for (at, place, harm) in harms {
            if entries.is_empty() {
                break;
            }
            let entry = at.get_mut(&mut entries);
            let mut message: Value = serde_json::from_slice(&entry.payload).unwrap();
            mar(&mut message, place, harm.as_ref());
            entry.payload = message.to_string().into();
        }
        Log(entries)
    })
}

/// A value to be put somewhere; none for taking away what is there.
fn harm() -> impl Strategy<Value = Option<Value>> {
    let values = [
        json!(null),
        json!(1.5),
        json!(true),
        json!(""),
        json!(" "),
        json!("a.b/c"),
        json!("x".repeat(45)),
        json!("x".repeat(130)),
        json!([]),
        json!({}),
        json!([1]),
        json!({"type": "text"}),
        json!({"a": 1}),
    ];
    prop_oneof![1 => Just(None), 4 => prop::sample::select(values.to_vec()).prop_map(Some)]
}

/// Does harm to one of the values in a message, but to those that say what a
/// thing is if it would become something that is not known.
fn mar(message: &mut Value, place: prop::sample::Index, harm: Option<&Value>) {
    let mut pointers = Vec::new();
    collect_pointers(message, "", &mut pointers);
    if pointers.is_empty() {
        return;
    }
    let pointer = place.get(&pointers);
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let is_word = harm.and_then(Value::as_str).is_some_and(|word| !word.is_empty());
    let is_thing = harm.and_then(Value::as_object).is_some_and(|thing| !thing.is_empty());
    let is_typed = |value: &Value| !value["type"].is_null();
    let is_untyped_block = key.parse::<usize>().is_ok() && !message.pointer(pointer).is_some_and(is_typed);
    if (matches!(key, "type" | "role") && is_word) || (is_untyped_block && is_thing) {
        return;
    }
    let text = message.to_string();
    // Nobody knows how long a call of the provider's may wait for the worker's,
    // and nobody can sign a call for the model.
    let is_deferred = text.contains("server_tool_use") && text.contains("\"tool_use");
    if is_deferred || text.contains("thoughtSignature") {
        return;
    }
    let parent = if parent.is_empty() { Some(message) } else { message.pointer_mut(parent) };
    match (parent, harm) {
        (Some(Value::Object(members)), None) => _ = members.remove(key),
        (Some(Value::Array(elements)), None) => _ = elements.remove(key.parse().unwrap()),
        (Some(parent), Some(harm)) => match parent {
            Value::Object(members) => _ = members.insert(key.to_owned(), harm.clone()),
            Value::Array(elements) => elements[key.parse::<usize>().unwrap()] = harm.clone(),
            _ => {}
        },
        _ => {}
    }
}

fn collect_pointers(value: &Value, at: &str, pointers: &mut Vec<String>) {
    if !at.is_empty() {
        pointers.push(at.to_owned());
    }
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(key, value)| collect_pointers(value, &format!("{at}/{key}"), pointers));
        }
        Value::Array(elements) => {
            let elements = elements.iter().enumerate();
            elements.for_each(|(index, value)| collect_pointers(value, &format!("{at}/{index}"), pointers));
        }
        _ => {}
    }
}

/// A log in which nothing is out of order: any cut of it is a window as it is,
/// but that calls may wait.
pub(crate) fn orderly_log(format: WireFormat) -> impl Strategy<Value = Log> {
    let step = (any::<bool>(), prop::collection::vec(0..3_u8, 0..4), any::<bool>());
    let turn = prop::collection::vec(step, 1..4);
    (prop::collection::vec(turn, 0..6), any::<[bool; 3]>()).prop_map(move |(turns, options)| {
        let mut writer = Writer::new(format, options);
        for steps in turns {
            writer.write(&Event::User(Text::Some));
            let last = steps.len() - 1;
            for (i, (reasons, tools, has_text)) in steps.into_iter().enumerate() {
                let tools = tools.into_iter().chain([0]).filter(|_| i < last);
                let calls: Vec<_> = tools.map(|tool| Call { reuses: false, is_odd: false, tool }).collect();
                let text = if has_text || calls.is_empty() { Text::Some } else { Text::None };
                let results = (0..calls.len()).rev().collect();
                let makes_calls = !calls.is_empty();
                writer.write(&Event::Model(Answer {
                    reasons,
                    text,
                    calls,
                    searches: None,
                    ends_with_reasoning: false,
                }));
                if makes_calls {
                    writer.write(&Event::Results(results, Text::None));
                }
            }
        }
        Log(writer.entries)
    })
}

fn text() -> impl Strategy<Value = Text> {
    prop_oneof![8 => Just(Text::Some), 1 => Just(Text::Empty), 1 => Just(Text::Blank), 1 => Just(Text::None)]
}

/// How many calls a result looks back: mostly few.
fn far_back() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 0..3_usize, 1 => 0..12_usize]
}

fn answer() -> impl Strategy<Value = Answer> {
    let call = (prop::bool::weighted(0.1), prop::bool::weighted(0.1), 0..3_u8)
        .prop_map(|(reuses, is_odd, tool)| Call { reuses, is_odd, tool });
    let searches = prop_oneof![8 => Just(None), 1 => Just(Some(false)), 1 => Just(Some(true))];
    (any::<bool>(), text(), prop::collection::vec(call, 0..4), searches, prop::bool::weighted(0.1)).prop_map(
        |(reasons, text, calls, searches, ends_with_reasoning)| Answer {
            reasons,
            text,
            calls,
            searches,
            ends_with_reasoning,
        },
    )
}

/// Entry of a log.
pub(crate) fn entry(seq: u64, kind: EntryKind, payload: impl Into<Bytes>) -> Entry {
    let payload = payload.into();
    let tokens = if kind == EntryKind::Message { payload.len() as u64 } else { 0 };
    Entry { seq: Seq(seq), version: Version(1), at: Micros(0), kind, tokens, payload }
}

/// The mark in all that entry `seq` says itself.
pub(crate) fn mark(seq: Seq) -> String {
    format!("<{seq}>")
}

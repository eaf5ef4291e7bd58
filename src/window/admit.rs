//! Entries as their API takes them.
//!
//! What an API refuses of an entry whatever stands around it is mended here,
//! before calls are paired and rounds are made: a value of the wrong type, a
//! name with characters that are not allowed, a block in the mouth of the wrong
//! speaker, reasoning that nobody signed. What is not known here, such as a new
//! kind of block, stays as it is: the API judges it. An entry with nothing wrong
//! is not copied.

mod anthropic;
mod bedrock;
mod gemini;
mod object;
mod openai_chat;
mod openai_responses;

use crate::format::json::{Value, string_token};
use crate::model::{RepairKind, WireFormat};
use bytes::Bytes;
use object::Object;

/// An entry as its API takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The payload; the entry's own if nothing is wrong with it.
    pub payload: Bytes,
    /// What was mended: what was done, and what it was about.
    pub mends: Vec<(RepairKind, &'static str)>,
}

/// The entry `payload`, which says `value`, as the API of `format` takes it.
pub fn admit(format: WireFormat, payload: &Bytes, value: Value<'_>) -> Admitted {
    let mut mends = Mends::default();
    let mut entry = Object::of(value);
    match format {
        WireFormat::OpenaiChat => openai_chat::admit(&mut entry, &mut mends),
        WireFormat::OpenaiResponses => openai_responses::admit(&mut entry, &mut mends),
        WireFormat::AnthropicMessages => anthropic::admit(&mut entry, &mut mends),
        WireFormat::GeminiContents => gemini::admit(&mut entry, &mut mends),
        WireFormat::BedrockConverse => bedrock::admit(&mut entry, &mut mends),
        WireFormat::Opaque => {}
    }
    let changed = entry.into_changed().map(Bytes::from);
    Admitted { payload: changed.unwrap_or_else(|| payload.clone()), mends: mends.0 }
}

/// What was mended of one entry.
#[derive(Debug, Default)]
struct Mends(Vec<(RepairKind, &'static str)>);

impl Mends {
    fn add(&mut self, kind: RepairKind, detail: &'static str) {
        if !self.0.contains(&(kind, detail)) {
            self.0.push((kind, detail));
        }
    }

    fn replaced(&mut self, detail: &'static str) {
        self.add(RepairKind::ValueReplaced, detail);
    }

    /// Leaves out a block, which is what returning `false` does.
    fn omitted(&mut self, detail: &'static str) -> bool {
        self.add(RepairKind::EntryOmitted, detail);
        false
    }

    fn reasoning_omitted(&mut self, detail: &'static str) -> bool {
        self.add(RepairKind::ReasoningOmitted, detail);
        false
    }
}

const NO_OBJECT: &str = "a block that is no object or has no type";
const WRONG_SPEAKER: &str = "a block that the API does not take in a message of this role";
const NO_TEXT: &str = "a block of text whose text is no string";
const NAME: &str = "the name of a tool";
const ARGUMENTS: &str = "the arguments of a call";
const ID: &str = "an id that is no string";
const RESULT: &str = "the content of a result";
const CONTENT: &str = "content that is neither a string nor a list";

/// Longest name of a tool that all APIs take, in characters.
const NAME_CHARS_MAX: usize = 64;

/// Gives the member `name` of a call, the name of its tool, the characters that
/// are allowed. Equal names stay equal.
fn admit_name(call: &mut Object<'_>, chars_max: usize, mends: &mut Mends) {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == '-';
    let name = call.text("name").unwrap_or_default();
    if !name.is_empty() && name.len() <= chars_max && name.chars().all(is_plain) {
        return;
    }
    let plain: String =
        name.chars().take(chars_max).map(|char| if is_plain(char) { char } else { '_' }).collect();
    let plain = if plain.is_empty() { "unnamed" } else { plain.as_str() };
    call.set("name", string_token(plain).as_bytes());
    mends.replaced(NAME);
}

/// Makes the member `name` a string: JSON of another type becomes its text, and
/// what is not there `otherwise`.
fn admit_string(
    object: &mut Object<'_>,
    name: &str,
    otherwise: &str,
    detail: &'static str,
    mends: &mut Mends,
) {
    let token = match object.get(name) {
        Some(value) if value.is_string() => return,
        Some(value) if !value.is_null() => string_token(&String::from_utf8_lossy(value.bytes())),
        _ => string_token(otherwise),
    };
    object.set(name, token.as_bytes());
    mends.replaced(detail);
}

/// Makes the member `name` an object: an empty one if it is none.
fn admit_object(object: &mut Object<'_>, name: &str, detail: &'static str, mends: &mut Mends) {
    if !object.get(name).is_some_and(Value::is_object) {
        object.set(name, b"{}");
        mends.replaced(detail);
    }
}

/// Makes the id of a call a string: an empty one, which pairing replaces, if it
/// is none.
fn admit_id(object: &mut Object<'_>, name: &str, mends: &mut Mends) {
    if !object.is_string(name) {
        object.set(name, b"\"\"");
        mends.replaced(ID);
    }
}

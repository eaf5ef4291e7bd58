//! The contents of tool results: where they lie in a payload, and what stands in
//! their place if they are too large.

use super::json::Value;
use crate::model::WireFormat;
use std::borrow::Cow;
use std::ops::Range;

/// The content of a tool result.
#[derive(Clone, Debug)]
pub struct ResultContent<'a> {
    /// Id of the call; empty if there is none.
    pub call_id: Cow<'a, str>,
    /// Name of the tool, where the result gives it; else empty.
    pub tool_name: Cow<'a, str>,
    /// All of it.
    pub whole: Value<'a>,
    /// The texts in it: JSON strings, each of which may become another.
    pub texts: Vec<Value<'a>>,
    /// Pictures and documents in it or beside it.
    pub media: Vec<Value<'a>>,
    /// Where the message with this result alone lies in the payload, piece by piece:
    /// other blocks are left out.
    pub message: Vec<Range<usize>>,
    /// What stands before and after a JSON string that takes the place of all but
    /// the media, and what ends the list of both.
    around: (&'static str, String, &'static str),
}

impl ResultContent<'_> {
    /// A content with one text, which is a JSON string, and the media of this.
    pub fn with_text(&self, token: &str) -> String {
        let after = self.after(|media| media.bytes().to_vec());
        [self.around.0, token, &String::from_utf8_lossy(&after)].concat()
    }

    /// What stands in that content before and after the string, without the data of
    /// media.
    pub fn around_text(&self) -> [Vec<u8>; 2] {
        let without_data = |media: Value<'_>| {
            let (bytes, from, data) = (media.bytes(), media.range().start, data_of(media));
            let before = bytes.get(..data.start.saturating_sub(from)).unwrap_or_default();
            [before, bytes.get(data.end.saturating_sub(from)..).unwrap_or_default()].concat()
        };
        [self.around.0.into(), self.after(without_data)]
    }

    fn after(&self, json: impl Fn(Value<'_>) -> Vec<u8>) -> Vec<u8> {
        let whole = self.whole.range();
        let mut after = self.around.1.clone().into_bytes();
        for media in self.media.iter().filter(|media| whole.contains(&media.range().start)) {
            after.push(b',');
            after.extend(json(*media));
        }
        after.extend_from_slice(self.around.2.as_bytes());
        after
    }

    /// Where the data of the media lie in the payload, or what names them.
    pub fn media_data(&self) -> impl Iterator<Item = Range<usize>> {
        self.media.iter().map(|media| data_of(*media))
    }
}

/// The longest string in media, as deep as any format has it.
fn data_of(media: Value<'_>) -> Range<usize> {
    const LEVELS: usize = 3;
    let mut longest = media.range().start..media.range().start;
    let mut values = vec![media];
    for _ in 0..=LEVELS {
        for string in values.iter().filter(|value| value.is_string()) {
            let range = string.range();
            if range.len() > longest.len() + 2 {
                longest = range.start + 1..range.end - 1;
            }
        }
        values = values.iter().flat_map(|value| value.members()).map(|(_, value)| value).collect();
    }
    longest
}

/// The contents of the results in a payload, in order. Those that the API takes
/// only in a form of their own, such as screenshots, are left out.
pub fn result_contents(format: WireFormat, payload: &[u8]) -> Vec<ResultContent<'_>> {
    let message = Value::of(payload);
    match format {
        WireFormat::OpenaiChat => alone(message, chat),
        WireFormat::OpenaiResponses => alone(message, responses),
        WireFormat::AnthropicMessages => in_blocks(message, "content", &["user"], anthropic_block),
        WireFormat::BedrockConverse => in_blocks(message, "content", &["user"], bedrock_block),
        // A content without a role is the user's.
        WireFormat::GeminiContents => in_blocks(message, "parts", &["user", "function", ""], gemini_part),
        WireFormat::Opaque => vec![],
    }
}

/// `payload` with other values in those places, which are in order. Every other
/// byte is as it was.
pub fn with_values(payload: &[u8], values: &[(Range<usize>, String)]) -> Vec<u8> {
    let more: usize = values.iter().map(|(_, value)| value.len()).sum();
    let mut changed = Vec::with_capacity(payload.len().min(more.saturating_mul(2)));
    let mut from = 0;
    for (place, value) in values {
        changed.extend_from_slice(payload.get(from..place.start).unwrap_or_default());
        changed.extend_from_slice(value.as_bytes());
        from = place.end;
    }
    changed.extend_from_slice(payload.get(from..).unwrap_or_default());
    changed
}

fn alone<'a>(message: Value<'a>, read: fn(Value<'a>) -> Option<ResultContent<'a>>) -> Vec<ResultContent<'a>> {
    let read = read(message).map(|found| ResultContent { message: vec![message.range()], ..found });
    read.into_iter().collect()
}

fn in_blocks<'a>(
    message: Value<'a>,
    member: &str,
    roles: &[&str],
    read: fn(Value<'a>) -> Option<ResultContent<'a>>,
) -> Vec<ResultContent<'a>> {
    let [role, blocks] = message.get(["role", member]);
    let Some(blocks) = blocks.filter(|_| roles.contains(&text(role).as_ref())) else { return vec![] };
    let (all, list) = (message.range(), blocks.range());
    let alone = |block: Value<'_>| {
        vec![all.start..list.start + 1, block.range(), list.end.saturating_sub(1)..all.end]
    };
    let read = |block| Some(ResultContent { message: alone(block), ..read(block)? });
    blocks.elements().filter_map(read).collect()
}

fn text(value: Option<Value<'_>>) -> Cow<'_, str> {
    value.and_then(Value::text).unwrap_or_default()
}

/// What an element of a content is.
enum Element<'a> {
    Texts(Vec<Value<'a>>),
    Media,
    Other,
}

/// A content that is a string or a list. `block` is what stands before the text of
/// a list's element, `read` says what an element is.
fn content<'a>(
    [call_id, tool_name]: [Option<Value<'a>>; 2],
    whole: Value<'a>,
    block: (&'static str, &str),
    read: fn(Value<'a>) -> Element<'a>,
) -> ResultContent<'a> {
    let (mut texts, mut media) = (Vec::new(), Vec::new());
    for element in whole.elements() {
        match read(element) {
            Element::Texts(found) => texts.extend(found),
            Element::Media => media.push(element),
            Element::Other => {}
        }
    }
    let around = if whole.is_array() { (block.0, block.1.to_owned(), "]") } else { ("", String::new(), "") };
    if whole.is_string() {
        texts.push(whole);
    }
    ResultContent {
        call_id: text(call_id),
        tool_name: text(tool_name),
        whole,
        texts,
        media,
        message: vec![],
        around,
    }
}

fn chat(message: Value<'_>) -> Option<ResultContent<'_>> {
    let [role, id, name, found] = message.get(["role", "tool_call_id", "name", "content"]);
    let role = text(role);
    let found = found.filter(|found| role == "tool" || role == "function" && found.is_string())?;
    Some(content([id, name], found, (r#"[{"type":"text","text":"#, "}"), openai_part))
}

fn openai_part(part: Value<'_>) -> Element<'_> {
    let [kind, found] = part.get(["type", "text"]);
    match text(kind).as_ref() {
        "text" | "input_text" | "output_text" => texts(found),
        "image_url" | "input_image" | "input_audio" | "file" | "input_file" => Element::Media,
        _ => Element::Other,
    }
}

fn texts(found: Option<Value<'_>>) -> Element<'_> {
    Element::Texts(found.into_iter().filter(|found| found.is_string()).collect())
}

fn responses(item: Value<'_>) -> Option<ResultContent<'_>> {
    let [kind, call_id, id, output] = item.get(["type", "call_id", "id", "output"]);
    let (kind, output) = (text(kind), output?);
    let names = [call_id.or(id), None];
    match kind.as_ref() {
        "function_call_output" | "custom_tool_call_output" => {
            Some(content(names, output, (r#"[{"type":"input_text","text":"#, "}"), openai_part))
        }
        "local_shell_call_output" | "apply_patch_call_output" if output.is_string() => {
            Some(content(names, output, ("", ""), openai_part))
        }
        "shell_call_output" if output.is_array() => {
            let last = output.elements().filter_map(|command| command.member("outcome")).last();
            let outcome = last.map_or_else(
                || r#"{"type":"exit","exit_code":0}"#.into(),
                |outcome| String::from_utf8_lossy(outcome.bytes()),
            );
            let after = format!(r#","stderr":"","outcome":{outcome}}}"#);
            Some(content(names, output, (r#"[{"stdout":"#, &after), |command| {
                let streams = command.get(["stdout", "stderr"]).into_iter().flatten();
                Element::Texts(streams.filter(|stream| stream.is_string()).collect())
            }))
        }
        _ => None,
    }
}

fn anthropic_block(block: Value<'_>) -> Option<ResultContent<'_>> {
    let [kind, id, found] = block.get(["type", "tool_use_id", "content"]);
    let found = found.filter(|_| text(kind) == "tool_result")?;
    Some(content([id, None], found, (r#"[{"type":"text","text":"#, "}"), |block| {
        let [kind, found, source] = block.get(["type", "text", "source"]);
        let source = text(source.and_then(|source| source.member("type")));
        match text(kind).as_ref() {
            "text" => texts(found),
            "image" => Element::Media,
            "document" if source != "text" && source != "content" => Element::Media,
            _ => Element::Other,
        }
    }))
}

fn bedrock_block(block: Value<'_>) -> Option<ResultContent<'_>> {
    let [id, found] = block.member("toolResult")?.get(["toolUseId", "content"]);
    let found = found.filter(|found| found.is_array())?;
    Some(content([id, None], found, (r#"[{"text":"#, "}"), |block| {
        let [found, json, image, video, document] = block.get(["text", "json", "image", "video", "document"]);
        let source = document.and_then(|document| document.member("source"));
        let has_text = source.is_some_and(|source| source.get(["text", "content"]) != [None, None]);
        if found.is_some() {
            texts(found)
        } else if let Some(json) = json {
            Element::Texts(strings_of(json))
        } else if image.or(video).is_some() || document.is_some() && !has_text {
            Element::Media
        } else {
            Element::Other
        }
    }))
}

fn gemini_part(part: Value<'_>) -> Option<ResultContent<'_>> {
    let [camel, snake] = part.get(["functionResponse", "function_response"]);
    let [id, name, response, parts] = camel.or(snake)?.get(["id", "name", "response", "parts"]);
    let whole = response?;
    // The API takes an object alone, as which windows show what is none.
    let texts = if whole.is_string() { vec![whole] } else { strings_of(whole) };
    Some(ResultContent {
        call_id: text(id),
        tool_name: text(name),
        whole,
        texts,
        media: parts.into_iter().flat_map(Value::elements).collect(),
        message: vec![],
        around: (r#"{"output":"#, "}".to_owned(), ""),
    })
}

/// The members of an object that are strings.
fn strings_of(object: Value<'_>) -> Vec<Value<'_>> {
    object.members().map(|(_, value)| value).filter(|value| value.is_string()).collect()
}

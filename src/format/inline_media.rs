//! Pictures and documents whose data stand in a payload: where they lie, and what
//! may stand in their place.

use super::json::Value;
use super::reading::MediaKind;
use super::text_block;
use crate::model::WireFormat;
use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use std::borrow::Cow;
use std::ops::Range;

/// Takes Base64 with and without padding. Bits that would be lost are no Base64.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A picture or document in a message of the user's or in a tool result.
#[derive(Clone, Debug)]
pub struct InlineMedia<'a> {
    /// Id of the call in whose result it is; empty if there is none.
    pub call_id: Cow<'a, str>,
    /// Name of the tool, where the result gives it; else empty.
    pub tool_name: Cow<'a, str>,
    /// What it is: an image or a document.
    pub kind: MediaKind,
    /// Its media type, as far as the block tells.
    pub media_type: Cow<'a, str>,
    /// The block or part that holds it, and nothing else.
    block: Value<'a>,
    data: Data<'a>,
    place: Place<'a>,
}

/// What is between the quotes of a JSON string, or behind the head of a data URL.
#[derive(Clone, Copy, Debug)]
struct Data<'a> {
    json: &'a [u8],
    /// Where it begins in the payload.
    start: usize,
    /// Whether it says that it is Base64.
    is_base64: bool,
}

/// What a block's place takes.
#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    /// Blocks of text.
    Texts(WireFormat),
    /// The parts of a Gemini function response, which are inline data alone: with the
    /// name by which the response refers to this one, and whether names have capitals.
    InlineData { display_name: Option<Value<'a>>, is_camel: bool },
}

impl<'a> InlineMedia<'a> {
    /// Where the block lies in the payload.
    pub fn range(&self) -> Range<usize> {
        self.block.range()
    }

    /// The data as they stand in the JSON string: Base64, unless they are none.
    pub fn base64(&self) -> &'a [u8] {
        self.data.json
    }

    /// Bytes of it, as far as the number of characters tells.
    pub fn bytes(&self) -> u64 {
        let is_counted = |byte: &&u8| !byte.is_ascii_whitespace() && **byte != b'=';
        let characters = self.data.text().iter().filter(is_counted).count() as u64;
        if self.data.is_base64 { characters.saturating_mul(3) / 4 } else { characters }
    }

    /// It, or the text of the data if that is no Base64.
    pub fn content(&self) -> Vec<u8> {
        let text = self.data.text();
        let decoded = if self.data.is_base64 { decode(&text) } else { None };
        decoded.unwrap_or_else(|| text.into_owned())
    }

    /// The block as it stands, but for the data.
    pub fn without_data(&self) -> String {
        let (block, from) = (self.block.bytes(), self.block.range().start);
        let start = self.data.start.saturating_sub(from);
        let before = block.get(..start).unwrap_or_default();
        let after = block.get(start + self.data.json.len()..).unwrap_or_default();
        String::from_utf8_lossy(&[before, after].concat()).into_owned()
    }

    /// The block that says `text` in its place.
    pub fn with_text(&self, text: &str) -> String {
        match self.place {
            Place::Texts(format) => text_block(format, &serde_json::Value::from(text).to_string()),
            Place::InlineData { display_name, is_camel } => {
                let [data, media_type, name] = if is_camel {
                    ["inlineData", "mimeType", "displayName"]
                } else {
                    ["inline_data", "mime_type", "display_name"]
                };
                let name = display_name.map_or_else(String::new, |value| {
                    format!(r#","{name}":{}"#, String::from_utf8_lossy(value.bytes()))
                });
                let text = BASE64.encode(text);
                format!(r#"{{"{data}":{{"{media_type}":"text/plain","data":"{text}"{name}}}}}"#)
            }
        }
    }
}

impl<'a> Data<'a> {
    /// All of a string.
    fn of(string: Value<'a>) -> Option<Self> {
        Some(Self { json: string.string_content()?, start: string.range().start + 1, is_base64: true })
    }

    /// Those of a data URL, with its media type.
    fn of_url(url: Value<'a>) -> Option<(Self, Cow<'a, str>)> {
        const MARK: &str = ";base64";
        let whole = Self::of(url)?;
        let comma = memchr::memchr(b',', whole.json)?;
        let (head, rest) = (whole.json.get(..comma)?, whole.json.get(comma + 1..)?);
        let head = unescaped(head);
        let head = std::str::from_utf8(&head).ok()?;
        let head = head.get(..5).filter(|scheme| scheme.eq_ignore_ascii_case("data:")).and(head.get(5..))?;
        let at = head.len().checked_sub(MARK.len()).filter(|at| head.is_char_boundary(*at));
        let base64 = at.map(|at| head.split_at(at)).filter(|(_, mark)| mark.eq_ignore_ascii_case(MARK));
        let media_type = base64.map_or(head, |(media_type, _)| media_type);
        let data = Self { json: rest, start: whole.start + comma + 1, is_base64: base64.is_some() };
        Some((data, Cow::Owned(media_type.to_owned())))
    }

    fn text(self) -> Cow<'a, [u8]> {
        unescaped(self.json)
    }
}

/// What JSON has between quotes, as text; as it is if it stands for none.
fn unescaped(json: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'\\', json).is_none() {
        return Cow::Borrowed(json);
    }
    let token = [b"\"", json, b"\""].concat();
    serde_json::from_slice::<String>(&token).map_or(Cow::Borrowed(json), |text| Cow::Owned(text.into_bytes()))
}

/// Base64 in either alphabet, with whitespace anywhere.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let is_plain = |byte: &u8| !byte.is_ascii_whitespace() && !matches!(byte, b'-' | b'_');
    if text.iter().all(is_plain) {
        return BASE64.decode(text).ok();
    }
    let standard = text.iter().filter(|byte| !byte.is_ascii_whitespace()).map(|byte| match byte {
        b'-' => b'+',
        b'_' => b'/',
        other => *other,
    });
    BASE64.decode(standard.collect::<Vec<_>>()).ok()
}

/// The pictures and documents in the messages of the user and the tool results in a
/// payload, in order. Those elsewhere (at a URL, or under the id of a file), signed
/// ones, and those that the API takes only in a form of their own, such as screenshots,
/// are left out.
pub fn inline_media(format: WireFormat, payload: &[u8]) -> Vec<InlineMedia<'_>> {
    let message = Value::of(payload);
    let mut found = Found { format, owner: [None; 2], media: vec![] };
    match format {
        WireFormat::OpenaiChat => found.chat(message),
        WireFormat::OpenaiResponses => found.responses(message),
        WireFormat::AnthropicMessages => found.of_user(message, "content", Found::anthropic),
        WireFormat::BedrockConverse => found.of_user(message, "content", Found::bedrock),
        WireFormat::GeminiContents => found.of_user(message, "parts", Found::gemini),
        WireFormat::Opaque => {}
    }
    found.media
}

/// What was found so far.
struct Found<'a> {
    format: WireFormat,
    /// Id and tool of the call whose result is looked through.
    owner: [Option<Value<'a>>; 2],
    media: Vec<InlineMedia<'a>>,
}

fn text(value: Option<Value<'_>>) -> Cow<'_, str> {
    value.and_then(Value::text).unwrap_or_default()
}

impl<'a> Found<'a> {
    fn push(&mut self, kind: MediaKind, media_type: Cow<'a, str>, block: Value<'a>, data: Data<'a>) {
        let [call_id, tool_name] = self.owner.map(text);
        let place = Place::Texts(self.format);
        self.media.push(InlineMedia { call_id, tool_name, kind, media_type, block, data, place });
    }

    fn of_user(&mut self, message: Value<'a>, member: &str, look: fn(&mut Self, Value<'a>)) {
        let [role, blocks] = message.get(["role", member]);
        let is_user = match text(role).as_ref() {
            "user" => true,
            // Contents without a role are the user's.
            "" | "function" => self.format == WireFormat::GeminiContents,
            _ => false,
        };
        blocks.filter(|_| is_user).into_iter().flat_map(Value::elements).for_each(|block| look(self, block));
    }

    fn chat(&mut self, message: Value<'a>) {
        let [role, id, name, content] = message.get(["role", "tool_call_id", "name", "content"]);
        match text(role).as_ref() {
            "tool" | "function" => self.owner = [id, name],
            "user" => {}
            _ => return,
        }
        self.openai_parts(content);
    }

    fn responses(&mut self, item: Value<'a>) {
        let [kind, role, call_id, content, output] =
            item.get(["type", "role", "call_id", "content", "output"]);
        match text(kind).as_ref() {
            "" | "message" if text(role) == "user" => self.openai_parts(content),
            "function_call_output" | "custom_tool_call_output" => {
                self.owner = [call_id, None];
                self.openai_parts(output);
            }
            _ => {}
        }
    }

    fn openai_parts(&mut self, content: Option<Value<'a>>) {
        let Some(content) = content else { return };
        let single = content.is_object().then_some(content);
        for part in content.elements().chain(single) {
            let [kind, image, file, file_data] = part.get(["type", "image_url", "file", "file_data"]);
            match text(kind).as_ref() {
                "image_url" | "input_image" => {
                    let url = image.filter(|image| image.is_object()).and_then(|image| image.member("url"));
                    if let Some((data, media_type)) = url.or(image).and_then(Data::of_url) {
                        self.push(MediaKind::Image, media_type, part, data);
                    }
                }
                "file" | "input_file" => {
                    let Some(file_data) = file.and_then(|file| file.member("file_data")).or(file_data) else {
                        continue;
                    };
                    let plain = || Some((Data::of(file_data)?, Cow::Borrowed("")));
                    if let Some((data, media_type)) = Data::of_url(file_data).or_else(plain) {
                        self.push(MediaKind::Document, media_type, part, data);
                    }
                }
                _ => {}
            }
        }
    }

    fn anthropic(&mut self, block: Value<'a>) {
        let [kind, id, content] = block.get(["type", "tool_use_id", "content"]);
        if text(kind) != "tool_result" {
            return self.anthropic_media(block);
        }
        self.owner = [id, None];
        for block in content.into_iter().flat_map(Value::elements) {
            self.anthropic_media(block);
        }
        self.owner = [None; 2];
    }

    fn anthropic_media(&mut self, block: Value<'a>) {
        let [kind, source] = block.get(["type", "source"]);
        let kind = match text(kind).as_ref() {
            "image" => MediaKind::Image,
            "document" => MediaKind::Document,
            _ => return,
        };
        let Some(source) = source else { return };
        self.anthropic_source(kind, block, source);
        // A document may be a list of texts and pictures.
        let [form, content] = source.get(["type", "content"]);
        if kind == MediaKind::Document && text(form) == "content" {
            for block in content.into_iter().flat_map(Value::elements) {
                let [kind, source] = block.get(["type", "source"]);
                if let Some(source) = source.filter(|_| text(kind) == "image") {
                    self.anthropic_source(MediaKind::Image, block, source);
                }
            }
        }
    }

    fn anthropic_source(&mut self, kind: MediaKind, block: Value<'a>, source: Value<'a>) {
        let [form, media_type, data] = source.get(["type", "media_type", "data"]);
        if let Some(data) = data.filter(|_| text(form) == "base64").and_then(Data::of) {
            self.push(kind, text(media_type), block, data);
        }
    }

    fn bedrock(&mut self, block: Value<'a>) {
        let Some(result) = block.member("toolResult") else { return self.bedrock_media(block) };
        let [id, content] = result.get(["toolUseId", "content"]);
        self.owner = [id, None];
        for block in content.into_iter().flat_map(Value::elements) {
            self.bedrock_media(block);
        }
        self.owner = [None; 2];
    }

    fn bedrock_media(&mut self, block: Value<'a>) {
        let [image, document] = block.get(["image", "document"]);
        let Some(media) = image.or(document) else { return };
        let [format, source] = media.get(["format", "source"]);
        let data = source.and_then(|source| source.member("bytes")).and_then(Data::of);
        let Some(data) = data else { return };
        let format = text(format);
        if image.is_some() {
            self.push(MediaKind::Image, Cow::Owned(format!("image/{format}")), block, data);
        } else {
            self.push(MediaKind::Document, Cow::Borrowed(media_type_of(&format)), block, data);
        }
    }

    fn gemini(&mut self, part: Value<'a>) {
        let [camel, snake, signed, signed_snake] =
            part.get(["functionResponse", "function_response", "thoughtSignature", "thought_signature"]);
        if signed.or(signed_snake).is_some() {
            return;
        }
        let Some(result) = camel.or(snake) else { return self.gemini_data(part, false) };
        let [id, name, parts] = result.get(["id", "name", "parts"]);
        self.owner = [id, name];
        for part in parts.into_iter().flat_map(Value::elements) {
            self.gemini_data(part, true);
        }
        self.owner = [None; 2];
    }

    fn gemini_data(&mut self, part: Value<'a>, is_in_result: bool) {
        let [camel, snake] = part.get(["inlineData", "inline_data"]);
        let Some(inline) = camel.or(snake) else { return };
        let [media_type, media_type_snake, data, name, name_snake] =
            inline.get(["mimeType", "mime_type", "data", "displayName", "display_name"]);
        let Some(data) = data.and_then(Data::of) else { return };
        let media_type = text(media_type.or(media_type_snake));
        let kind = match media_type.split('/').next() {
            Some("image") => MediaKind::Image,
            Some("audio" | "video") => return,
            _ => MediaKind::Document,
        };
        self.push(kind, media_type, part, data);
        if let Some(last) = self.media.last_mut().filter(|_| is_in_result) {
            let display_name = name.or(name_snake);
            last.place = Place::InlineData { display_name, is_camel: camel.is_some() };
        }
    }
}

/// The media type of a document, by the name that Bedrock has for it.
fn media_type_of(format: &str) -> &'static str {
    match format {
        "pdf" => "application/pdf",
        "csv" => "text/csv",
        "html" => "text/html",
        "txt" => "text/plain",
        "md" => "text/markdown",
        "doc" => "application/msword",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xls" => "application/vnd.ms-excel",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        _ => "application/octet-stream",
    }
}

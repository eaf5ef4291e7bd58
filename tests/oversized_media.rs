//! Of a message with pictures and documents that are too large, their blocks change and
//! no other byte.
#![cfg(test)]
#![cfg(feature = "server")]

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE};
use proptest::prelude::*;
use serde_json::{Value, json};
use turnkeep::format::{self, with_values};
use turnkeep::model::{MediaLimits, ModelProfile, WireFormat};
use turnkeep::preview::oversized_media;
use turnkeep::tokens::provider_limits::media_limits;

const FORMATS: [WireFormat; 5] = [
    WireFormat::OpenaiChat,
    WireFormat::OpenaiResponses,
    WireFormat::AnthropicMessages,
    WireFormat::GeminiContents,
    WireFormat::BedrockConverse,
];

const REFERENCE: &str = "turnkeep://sessions/s/outputs/0123456789abcdef0123456789abcdef";

const LIMITS: MediaLimits = MediaLimits {
    image_bytes: 4_096,
    image_pixels: 200,
    document_bytes: 5_000,
    images: None,
    documents: None,
};

fn limits_of(format: WireFormat) -> MediaLimits {
    media_limits(&ModelProfile::default(), format)
}

/// A block of a message.
#[derive(Clone, Debug)]
enum Block {
    Text,
    /// A picture that lies elsewhere.
    Elsewhere,
    Image {
        bytes: Vec<u8>,
        encoding: Encoding,
    },
    Document {
        bytes: Vec<u8>,
        encoding: Encoding,
    },
}

#[derive(Clone, Copy, Debug)]
enum Encoding {
    Standard,
    NoPadding,
    Lines,
    UrlSafe,
    Broken,
}

impl Encoding {
    fn of(self, bytes: &[u8]) -> String {
        match self {
            Self::Standard => STANDARD.encode(bytes),
            Self::NoPadding => STANDARD_NO_PAD.encode(bytes),
            Self::UrlSafe => URL_SAFE.encode(bytes),
            Self::Lines => {
                let text = STANDARD.encode(bytes);
                let lines: Vec<_> =
                    text.as_bytes().chunks(76).map(|line| std::str::from_utf8(line).unwrap()).collect();
                lines.join("\r\n")
            }
            Self::Broken => format!("{}é~", STANDARD.encode(bytes)),
        }
    }
}

fn png(width: u32, height: u32, length: usize) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    bytes.extend([width.to_be_bytes(), height.to_be_bytes()].concat());
    bytes.extend((bytes.len()..length.max(bytes.len() + 9)).map(|i| u8::try_from(i * 7 % 251).unwrap()));
    bytes
}

impl Block {
    /// Whether it exceeds a limit, and what is to be kept of it.
    fn oversized(&self) -> Option<Vec<u8>> {
        let (bytes, encoding, limit, pixels) = match self {
            Self::Text | Self::Elsewhere => return None,
            Self::Image { bytes, encoding } => (bytes, encoding, LIMITS.image_bytes, [16, 20]),
            Self::Document { bytes, encoding } => (bytes, encoding, LIMITS.document_bytes, [0, 0]),
        };
        let edge = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let is_wide =
            pixels != [0, 0] && pixels.map(edge).iter().any(|edge| u64::from(*edge) > LIMITS.image_pixels);
        if matches!(encoding, Encoding::Broken) {
            let text = encoding.of(bytes);
            let counted = text.bytes().filter(|byte| *byte != b'=').count() as u64;
            return (is_wide || counted * 3 / 4 > limit).then(|| text.into_bytes());
        }
        (is_wide || bytes.len() as u64 > limit).then(|| bytes.clone())
    }

    fn json(&self, format: WireFormat) -> Value {
        let data = match self {
            Self::Image { bytes, encoding } | Self::Document { bytes, encoding } => encoding.of(bytes),
            Self::Text | Self::Elsewhere => String::new(),
        };
        let url = format!("https://example.org/{}", "long/".repeat(3_000));
        match (format, self) {
            (WireFormat::OpenaiChat, Self::Text) => json!({"type": "text", "text": data + &url}),
            (WireFormat::OpenaiResponses, Self::Text) => json!({"type": "input_text", "text": url}),
            (WireFormat::AnthropicMessages, Self::Text) => json!({"type": "text", "text": url}),
            (_, Self::Text) => json!({"text": url}),
            (WireFormat::OpenaiChat, Self::Elsewhere) => {
                json!({"type": "image_url", "image_url": {"url": url}})
            }
            (WireFormat::OpenaiChat, Self::Image { .. }) => json!({"type": "image_url",
                "image_url": {"url": format!("data:image/png;base64,{data}"), "detail": "high"}}),
            (WireFormat::OpenaiChat, Self::Document { .. }) => json!({"type": "file",
                "file": {"filename": "a.pdf", "file_data": format!("data:application/pdf;base64,{data}")}}),
            (WireFormat::OpenaiResponses, Self::Elsewhere) => json!({"type": "input_file", "file_id": url}),
            (WireFormat::OpenaiResponses, Self::Image { .. }) => {
                json!({"type": "input_image", "image_url": format!("data:image/png;base64,{data}")})
            }
            (WireFormat::OpenaiResponses, Self::Document { .. }) => {
                json!({"type": "input_file", "filename": "a.pdf", "file_data": format!("data:application/pdf;base64,{data}")})
            }
            (WireFormat::AnthropicMessages, Self::Elsewhere) => {
                json!({"type": "image", "source": {"type": "url", "url": url}})
            }
            (WireFormat::AnthropicMessages, Self::Image { .. }) => json!({"type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": data}}),
            (WireFormat::AnthropicMessages, Self::Document { .. }) => {
                json!({"type": "document", "title": "a",
                "source": {"type": "base64", "media_type": "application/pdf", "data": data}})
            }
            (WireFormat::GeminiContents, Self::Elsewhere) => json!({"fileData": {"fileUri": url}}),
            (WireFormat::GeminiContents, Self::Image { .. }) => {
                json!({"inlineData": {"mimeType": "image/png", "data": data}})
            }
            (WireFormat::GeminiContents, Self::Document { .. }) => {
                json!({"inline_data": {"mime_type": "application/pdf", "data": data, "display_name": "a"}})
            }
            (_, Self::Elsewhere) => {
                json!({"image": {"format": "png", "source": {"s3Location": {"uri": url}}}})
            }
            (_, Self::Image { .. }) => json!({"image": {"format": "png", "source": {"bytes": data}}}),
            (_, Self::Document { .. }) => {
                json!({"document": {"format": "pdf", "name": "a", "source": {"bytes": data}}})
            }
        }
    }

    fn media_type(&self) -> &'static str {
        if matches!(self, Self::Image { .. }) { "image/png" } else { "application/pdf" }
    }
}

/// A message of the user's, or one with a result, with these blocks.
fn message(format: WireFormat, blocks: &Value, is_result: bool) -> Value {
    match (format, is_result) {
        (WireFormat::OpenaiChat, true) => {
            json!({"role": "tool", "tool_call_id": "call_1", "content": blocks})
        }
        (WireFormat::OpenaiResponses, true) => {
            json!({"type": "function_call_output", "call_id": "call_1", "output": blocks})
        }
        (WireFormat::AnthropicMessages, true) => json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "call_1", "content": blocks}, {"type": "text", "text": "so?"}]}),
        (WireFormat::GeminiContents, true) => json!({"role": "user", "parts": [{"functionResponse": {
            "id": "call_1", "name": "grep", "response": {"output": {"$ref": "a"}}, "parts": blocks}}]}),
        (WireFormat::BedrockConverse, true) => json!({"role": "user", "content": [
            {"toolResult": {"toolUseId": "call_1", "content": blocks}}]}),
        (WireFormat::GeminiContents, false) => json!({"role": "user", "parts": blocks}),
        _ => json!({"role": "user", "content": blocks}),
    }
}

/// The text that stands for media in a block.
fn note(block: &Value) -> String {
    let inline = block.get("inlineData").or(block.get("inline_data"));
    let Some(inline) = inline else { return block["text"].as_str().unwrap().to_owned() };
    assert_eq!(inline.get("mimeType").or(inline.get("mime_type")).unwrap(), "text/plain");
    String::from_utf8(STANDARD.decode(inline["data"].as_str().unwrap()).unwrap()).unwrap()
}

fn blocks() -> impl Strategy<Value = Vec<Block>> {
    let encoding = prop_oneof![
        4 => Just(Encoding::Standard),
        1 => Just(Encoding::NoPadding),
        1 => Just(Encoding::Lines),
        1 => Just(Encoding::UrlSafe),
        1 => Just(Encoding::Broken),
    ];
    let edge = prop_oneof![1_u32..=199, Just(200), Just(201), 202_u32..9_000];
    let image_length =
        prop_oneof![0_usize..5_000, Just(4_096), Just(4_097), Just(4_095), 4_098_usize..20_000];
    let length = prop_oneof![0_usize..6_000, Just(5_000), Just(5_001), Just(4_999), 5_002_usize..20_000];
    let document = proptest::collection::vec(any::<u8>(), 1..40).prop_flat_map(move |seed| {
        length.clone().prop_map(move |length| seed.iter().copied().cycle().take(length).collect())
    });
    let block = prop_oneof![
        1 => Just(Block::Text),
        1 => Just(Block::Elsewhere),
        4 => (edge.clone(), prop_oneof![3 => Just(7_u32), 1 => edge], image_length, encoding.clone())
            .prop_map(|(width, height, length, encoding)| Block::Image { bytes: png(width, height, length), encoding }),
        3 => (document, encoding).prop_map(|(bytes, encoding)| Block::Document { bytes, encoding }),
    ];
    proptest::collection::vec(block, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_over_a_limit_gives_way_to_a_text_and_no_other_byte_changes(
        blocks in blocks(),
        format in proptest::sample::select(&FORMATS[..]),
        is_result in any::<bool>(),
        is_pretty in any::<bool>(),
        are_slashes_escaped in any::<bool>(),
    ) {
        let list: Value = blocks.iter().map(|block| block.json(format)).collect();
        let original = message(format, &list, is_result);
        let mut payload =
            if is_pretty { format!("{original:#}").replace('\n', " ") } else { original.to_string() };
        if are_slashes_escaped {
            payload = payload.replace('/', "\\/");
        }
        let payload = payload.as_bytes();
        let found = oversized_media(format, payload, LIMITS);
        let expected: Vec<_> = blocks.iter().filter_map(|block| Some((block, block.oversized()?))).collect();
        prop_assert_eq!(found.len(), expected.len());
        let mut values = Vec::new();
        for (media, (block, content)) in found.iter().zip(&expected) {
            prop_assert!(media.content() == *content);
            prop_assert_eq!(media.content_type(), block.media_type());
            prop_assert_eq!(media.call_id(), if is_result { "call_1" } else { "" });
            values.push((media.place(), media.replaced(REFERENCE)));
        }
        let changed = with_values(payload, &values);
        // Before, between and after them each byte is as it was.
        let (mut at, mut from) = (0, 0);
        for (place, value) in &values {
            let kept = place.start - from;
            prop_assert_eq!(&changed[at..at + kept], &payload[from..place.start]);
            prop_assert_eq!(&changed[at + kept..at + kept + value.len()], value.as_bytes());
            at += kept + value.len();
            from = place.end;
        }
        prop_assert_eq!(&changed[at..], &payload[from..]);
        // Exactly those blocks are texts now.
        let texts = blocks.iter().map(|block| match block.oversized() {
            None => Ok(block.json(format)),
            Some(_) => Err(block),
        });
        let parsed: Value = serde_json::from_slice(&changed).unwrap();
        let lists = [
            "/content", "/output", "/parts", "/content/0/content", "/content/0/toolResult/content",
            "/parts/0/functionResponse/parts",
        ];
        let now = lists.iter().rev().find_map(|list| parsed.pointer(list).filter(|list| list.is_array())).unwrap();
        prop_assert_eq!(now.as_array().unwrap().len(), blocks.len());
        for (now, before) in now.as_array().unwrap().iter().zip(texts) {
            match before {
                Ok(same) => prop_assert_eq!(now, &same),
                Err(block) => {
                    let note = note(now);
                    prop_assert!(note.starts_with(&format!("[... {REFERENCE} is the ")), "{note}");
                    prop_assert!(note.contains(block.media_type()) && note.len() < 800, "{note}");
                }
            }
        }
        prop_assert!(oversized_media(format, &changed, LIMITS).is_empty());
        let (before, after) = (format::read(format, payload), format::read(format, &changed));
        prop_assert_eq!((before.role, before.results), (after.role, after.results));
    }
}

#[test]
fn a_text_says_what_was_there_and_why_it_is_not_shown() {
    let format = WireFormat::AnthropicMessages;
    let source =
        json!({"type": "base64", "media_type": "image/png", "data": STANDARD.encode(png(9_000, 10, 40))});
    let image = json!({"type": "image", "source": source, "cache_control": {"type": "ephemeral"}});
    let payload = json!({"role": "user", "content": [image]}).to_string();
    let found = oversized_media(format, payload.as_bytes(), limits_of(format));
    let [media] = &found[..] else { panic!("{found:?}") };
    let block: Value = serde_json::from_str(&media.replaced(REFERENCE)).unwrap();
    let note = format!(
        "[... {REFERENCE} is the picture that stood here (image/png, 40 bytes, 9000 x 10 pixels). It is not \
         shown because the model's API refuses a picture of more than 8000 pixels along an edge. To read it, \
         call read_tool_output with this ref; `turnkeep output download` saves it as a file. Its block, without \
         the data: {{\"cache_control\":{{\"type\":\"ephemeral\"}},\"source\":{{\"data\":\"\",\"media_type\":\
         \"image/png\",\"type\":\"base64\"}},\"type\":\"image\"}} ...]"
    );
    assert_eq!(block, json!({"type": "text", "text": note}));
}

#[test]
fn the_limits_of_each_api_are_the_defaults_and_what_is_at_them_stays() {
    for (format, image, document) in [
        (WireFormat::AnthropicMessages, 3_932_160_usize, 24_000_000_usize),
        (WireFormat::BedrockConverse, 3_750_000, 4_500_000),
        (WireFormat::GeminiContents, 15_000_000, 15_000_000),
    ] {
        assert_eq!(
            [limits_of(format).image_bytes, limits_of(format).document_bytes],
            [image as u64, document as u64]
        );
        for more in [0, 1] {
            let image = Block::Image { bytes: png(8_000, 8_000, image + more), encoding: Encoding::Standard };
            let document = Block::Document { bytes: vec![7; document + more], encoding: Encoding::Standard };
            for block in [image, document] {
                let payload = message(format, &json!([block.json(format)]), false).to_string();
                let found = oversized_media(format, payload.as_bytes(), limits_of(format));
                assert_eq!(found.len(), more, "{format:?} {}", block.media_type());
            }
        }
    }
    // The longest Base64 that Anthropic takes.
    assert_eq!(STANDARD.encode(vec![0; 3_932_160]).len(), 5_242_880);
}

#[test]
fn what_a_model_does_not_take_gives_way_whatever_its_size() {
    for format in FORMATS {
        let blocks = [
            Block::Image { bytes: png(3, 5, 40), encoding: Encoding::Standard },
            Block::Document { bytes: vec![7; 3], encoding: Encoding::Standard },
        ];
        for (block, what) in blocks.iter().zip(["picture", "document"]) {
            let payload = message(format, &json!([block.json(format)]), false).to_string();
            let limits =
                |is_taken| MediaLimits { images: is_taken, documents: is_taken, ..limits_of(format) };
            let found = |limits| oversized_media(format, payload.as_bytes(), limits);
            assert!(found(limits(None)).is_empty() && found(limits(Some(true))).is_empty(), "{format:?}");
            let refused = found(limits(Some(false)));
            let [media] = &refused[..] else { panic!("{format:?} {what}: {refused:?}") };
            let text = media.replaced(REFERENCE);
            let reason = format!("It is not shown because the model takes no {what}s. To read it");
            assert!(text.contains(&reason), "{format:?}: {text}");
        }
    }
}

#[test]
fn what_the_model_made_what_is_signed_and_what_has_a_form_of_its_own_stays() {
    let data = STANDARD.encode(png(9_000, 9_000, 9_000));
    let image =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
    let url = format!("data:image/png;base64,{data}");
    let table = [
        (WireFormat::AnthropicMessages, json!({"role": "assistant", "content": [image]})),
        (
            WireFormat::AnthropicMessages,
            json!({"role": "user", "content": [{"type": "redacted_thinking", "data": data},
            {"type": "image", "source": {"type": "file", "file_id": data}}]}),
        ),
        (
            WireFormat::GeminiContents,
            json!({"role": "user", "parts": [
            {"inlineData": {"mimeType": "image/png", "data": data}, "thoughtSignature": "x"},
            {"inlineData": {"mimeType": "audio/mp3", "data": data}}]}),
        ),
        (
            WireFormat::GeminiContents,
            json!({"role": "model", "parts": [{"inlineData": {"mimeType": "image/png", "data": data}}]}),
        ),
        (
            WireFormat::OpenaiResponses,
            json!({"type": "computer_call_output", "call_id": "c",
            "output": {"type": "computer_screenshot", "image_url": url}}),
        ),
        (WireFormat::OpenaiResponses, json!({"type": "reasoning", "encrypted_content": data, "summary": []})),
        (WireFormat::OpenaiResponses, json!({"type": "image_generation_call", "id": "i", "result": data})),
        (
            WireFormat::BedrockConverse,
            json!({"role": "user", "content": [{"video": {"source": {"bytes": data}}}]}),
        ),
        (WireFormat::Opaque, json!({"role": "user", "content": [image]})),
    ];
    for (format, message) in table {
        let payload = message.to_string();
        assert!(oversized_media(format, payload.as_bytes(), LIMITS).is_empty(), "{format:?} {payload}");
    }
    // A document that is a list may hold pictures.
    let nested = json!({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}, image]}});
    let payload = json!({"role": "user", "content": [nested]}).to_string();
    let found = oversized_media(WireFormat::AnthropicMessages, payload.as_bytes(), LIMITS);
    let [media] = &found[..] else { panic!("{found:?}") };
    assert_eq!(payload[media.place()], image.to_string());
}

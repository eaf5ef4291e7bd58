//! Tokens of pictures, documents and recordings.

use crate::format::reading::MediaKind;
use crate::model::WireFormat;
use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Size in pixels that a picture is taken to have if it cannot be read, as with
/// a picture that is referred to by a URL: a full-HD screenshot.
const UNKNOWN_SIZE: Size = Size { width: 1920, height: 1080 };

/// Base64 characters of a picture that are decoded for its size. PNG, GIF and
/// WebP have it in the first 40 bytes, JPEG behind its metadata, which may hold
/// a preview and a colour profile.
const HEADER_CHARACTERS: [usize; 2] = [4 * 1024, 256 * 1024];

/// Tokens of one page of a document; Anthropic states 1,500 to 3,000 a page.
const PAGE_TOKENS: u64 = 3_000;
/// Bytes of a document per token: a page of text in a PDF has some 50 KB, with
/// its fonts.
const DOCUMENT_BYTES_PER_TOKEN: u64 = 16;
/// Most tokens of a document: 100 pages, the most that Anthropic takes in one
/// request with a context of 200,000.
const DOCUMENT_TOKENS_MAX: u64 = 100 * PAGE_TOKENS;

/// Bytes of a recording per token. Gemini counts 32 tokens for a second of
/// sound, which compressed has at least 3,200 bytes, and 300 for a second of
/// film, which has ten times as many.
const RECORDING_BYTES_PER_TOKEN: u64 = 100;
/// Tokens of a recording whose bytes are elsewhere: five minutes of sound.
const UNKNOWN_RECORDING_TOKENS: u64 = 5 * 60 * 32;

/// Takes what encoders write: with or without padding, and with stray bits in
/// the last character, which a cut leaves.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Width and height in pixels, neither of them 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    width: u64,
    height: u64,
}

/// Tokens of a picture, document or recording, as the provider counts it.
pub(super) fn tokens(format: WireFormat, kind: MediaKind, base64: Option<&[u8]>) -> u64 {
    let bytes = base64.map(|base64| base64.len() as u64 / 4 * 3);
    match (kind, bytes) {
        (MediaKind::Image, _) => image_tokens(format, base64.and_then(size).unwrap_or(UNKNOWN_SIZE)),
        (MediaKind::Document, None) => PAGE_TOKENS,
        (MediaKind::Document, Some(bytes)) => {
            (bytes / DOCUMENT_BYTES_PER_TOKEN).clamp(PAGE_TOKENS, DOCUMENT_TOKENS_MAX)
        }
        (MediaKind::Recording, None) => UNKNOWN_RECORDING_TOKENS,
        (MediaKind::Recording, Some(bytes)) => bytes.div_ceil(RECORDING_BYTES_PER_TOKEN),
    }
}

fn image_tokens(format: WireFormat, size: Size) -> u64 {
    match format {
        WireFormat::OpenaiChat | WireFormat::OpenaiResponses => openai(size),
        WireFormat::GeminiContents => gemini(size),
        WireFormat::AnthropicMessages | WireFormat::BedrockConverse | WireFormat::Opaque => anthropic(size),
    }
}

/// A token for 750 pixels, after the picture was made to fit the largest size
/// that the model sees: 2576 pixels and 4784 tokens from Claude Opus 4.7 on
/// (1568 and some 1600 before, so that an older model's large pictures are
/// overcounted). Source: Anthropic's page on vision.
fn anthropic(size: Size) -> u64 {
    let size = size.with_long_edge_at_most(2576);
    (size.width * size.height).div_ceil(750).min(4784)
}

/// 85 tokens and 170 for each tile of 512 pixels, after the picture was made to
/// fit a square of 2048 and its short edge made at most 768: what the detail
/// level `high` costs with GPT-4o, 4.1 and 5. Source: OpenAI's page on images.
fn openai(size: Size) -> u64 {
    let size = size.with_long_edge_at_most(2048).with_short_edge_at_most(768);
    85 + 170 * size.tiles(512)
}

/// 258 tokens for each tile of 768 pixels up to 3072 by 3072 (Gemini 2), and
/// not less than the 1120 that a picture of any size costs by default with
/// Gemini 3 (recorded: 1088). Source: Google's pages on tokens and on media
/// resolution.
fn gemini(size: Size) -> u64 {
    (258 * size.with_long_edge_at_most(3072).tiles(768)).max(1120)
}

impl Size {
    fn with_long_edge_at_most(self, edge: u64) -> Self {
        self.scaled(edge, self.width.max(self.height))
    }

    fn with_short_edge_at_most(self, edge: u64) -> Self {
        self.scaled(edge, self.width.min(self.height))
    }

    /// Scaled down by `to / from`; never up.
    fn scaled(self, to: u64, from: u64) -> Self {
        if from <= to {
            return self;
        }
        let scale = |edge: u64| (edge.saturating_mul(to) / from).max(1);
        Self { width: scale(self.width), height: scale(self.height) }
    }

    fn tiles(self, edge: u64) -> u64 {
        self.width.div_ceil(edge) * self.height.div_ceil(edge)
    }
}

/// Width and height in pixels of an inline picture, if its header tells.
pub(super) fn image_size(base64: &[u8]) -> Option<[u64; 2]> {
    size(base64).map(|size| [size.width, size.height])
}

/// The size of an inline picture, from its header.
fn size(base64: &[u8]) -> Option<Size> {
    HEADER_CHARACTERS.into_iter().find_map(|characters| {
        let size = imagesize::blob_size(&decoded_start(base64, characters)).ok()?;
        let (width, height) = (size.width as u64, size.height as u64);
        (0 < width && 0 < height).then_some(Size { width, height })
    })
}

/// Up to so many characters of base64, decoded. Line breaks, plain or as JSON
/// escapes, and the URL-safe alphabet are allowed for.
fn decoded_start(base64: &[u8], characters: usize) -> Vec<u8> {
    let mut standard = Vec::with_capacity(characters.min(base64.len()));
    let mut rest = base64.iter().take(characters);
    while let Some(&character) = rest.next() {
        match character {
            b'-' => standard.push(b'+'),
            b'_' => standard.push(b'/'),
            b'\\' => standard.extend(rest.next().filter(|&&escaped| escaped == b'/')),
            b'+' | b'/' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => standard.push(character),
            _ => {}
        }
    }
    standard.truncate(standard.len() / 4 * 4);
    BASE64.decode(standard).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAB4AAAAQ4CAYAAADo08FDAAAA";

    fn base64(bytes: &[u8]) -> Vec<u8> {
        base64::engine::general_purpose::STANDARD.encode(bytes).into_bytes()
    }

    fn jpeg(metadata_bytes: u16, width: u16, height: u16) -> Vec<u8> {
        let mut bytes = vec![0xFF, 0xD8, 0xFF, 0xE1];
        bytes.extend((metadata_bytes + 2).to_be_bytes());
        bytes.extend(std::iter::repeat_n(0, metadata_bytes.into()));
        bytes.extend([0xFF, 0xC0, 0, 17, 8]);
        bytes.extend(height.to_be_bytes());
        bytes.extend(width.to_be_bytes());
        bytes.extend([0; 12]);
        bytes
    }

    #[test]
    fn sizes_are_read_from_the_header_of_each_picture_format() {
        let gif = base64(b"GIF89a\x40\x01\xF0\x00\x00\x00\x00\x00");
        let webp = base64(b"RIFF\0\0\0\0WEBPVP8X\x0A\0\0\0\0\0\0\0\x3F\x01\x00\xEF\x00\x00");
        for (data, expected) in [
            (PNG.as_bytes().to_vec(), Some((1920, 1080))),
            (PNG.replace("AAAB", "AA\nAB").into_bytes(), Some((1920, 1080))),
            (PNG.replace("AAAB", "AA\\r\\nAB").into_bytes(), Some((1920, 1080))),
            (gif, Some((320, 240))),
            (webp, Some((320, 240))),
            (base64(&jpeg(100, 640, 480)), Some((640, 480))),
            (base64(&jpeg(60_000, 640, 480)), Some((640, 480))),
            (base64(&jpeg(100, 0, 480)), None),
            (b"AAAA".to_vec(), None),
            (Vec::new(), None),
        ] {
            let expected = expected.map(|(width, height)| Size { width, height });
            assert_eq!(size(&data), expected, "{}", String::from_utf8_lossy(&data[..data.len().min(40)]));
        }
    }

    #[test]
    fn pictures_cost_what_the_providers_pages_say() {
        for (width, height, expected) in [
            (1092, 1092, [1590, 765, 1120]),
            (1024, 1024, [1399, 765, 1120]),
            (2048, 4096, [4424, 1105, 2064]),
            (1920, 1080, [2765, 1105, 1548]),
            (200, 200, [54, 255, 1120]),
            (8000, 8000, [4784, 765, 4128]),
            (1, 1, [1, 255, 1120]),
        ] {
            let size = Size { width, height };
            assert_eq!([anthropic(size), openai(size), gemini(size)], expected, "{width} x {height}");
        }
    }

    #[test]
    fn documents_and_recordings_are_counted_by_their_bytes() {
        let data = vec![b'A'; 4_000_000];
        let tokens = |kind, base64| tokens(WireFormat::AnthropicMessages, kind, base64);
        assert_eq!(tokens(MediaKind::Document, None), 3_000);
        assert_eq!(tokens(MediaKind::Document, Some(&data[..4_000])), 3_000);
        assert_eq!(tokens(MediaKind::Document, Some(&data)), 187_500);
        assert_eq!(tokens(MediaKind::Recording, None), 9_600);
        assert_eq!(tokens(MediaKind::Recording, Some(&data)), 30_000);
    }

    proptest! {
        #[test]
        fn any_size_has_a_bounded_number_of_tokens(width in 1..=u32::MAX, height in 1..=u32::MAX) {
            let (width, height) = (width.into(), height.into());
            let size = Size { width, height };
            prop_assert!((1..=4784).contains(&anthropic(size)));
            prop_assert!((255..=1445).contains(&openai(size)));
            prop_assert!((1120..=4128).contains(&gemini(size)));
        }
    }
}

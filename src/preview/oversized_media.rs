//! Pictures and documents in a message that the API would refuse for their size or the
//! model for what they are, and what stands in their place.

use crate::format::{InlineMedia, MediaKind, inline_media};
use crate::model::{MediaLimits, WireFormat};
use crate::tokens::image_size;
use std::ops::Range;

/// Bytes of a payload that can hold no picture of which a number of pixels could be
/// known: less than its structure and a header have.
const PAYLOAD_BYTES_MIN: u64 = 64;

/// A picture or document that is too large, or of a kind that is not taken.
#[derive(Debug)]
pub struct OversizedMedia<'a> {
    media: InlineMedia<'a>,
    bytes: u64,
    /// Width and height in pixels.
    size: Option<[u64; 2]>,
    /// What it exceeds.
    limit: Limit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Bytes(u64),
    Pixels(u64),
    /// None of its kind is taken.
    Kind,
}

/// Whether a payload is so short that nothing in it exceeds a limit. Where the API takes
/// any number of pixels, that is one which is shorter than the limits; elsewhere a few
/// bytes may be a picture that is too large.
pub fn no_media_can_be_oversized(payload: &[u8], limits: MediaLimits) -> bool {
    let MediaLimits { image_bytes, image_pixels, document_bytes, images, documents } = limits;
    let least = match (images, documents) {
        (Some(false), _) | (_, Some(false)) => 0,
        _ if image_pixels == u64::MAX => image_bytes.min(document_bytes),
        _ => PAYLOAD_BYTES_MIN,
    };
    payload.len() as u64 <= least
}

/// The pictures and documents in `payload` that exceed a limit, in order. A kind of which
/// it is not said whether it is taken is. What is not surely short is looked through: the
/// blocks of messages of the user, and of pictures the header.
pub fn oversized_media(format: WireFormat, payload: &[u8], limits: MediaLimits) -> Vec<OversizedMedia<'_>> {
    if no_media_can_be_oversized(payload, limits) {
        return vec![];
    }
    inline_media(format, payload).into_iter().filter_map(|media| oversized(media, limits)).collect()
}

fn oversized(media: InlineMedia<'_>, limits: MediaLimits) -> Option<OversizedMedia<'_>> {
    let is_image = media.kind == MediaKind::Image;
    let (bytes_max, is_taken) = if is_image {
        (limits.image_bytes, limits.images)
    } else {
        (limits.document_bytes, limits.documents)
    };
    let is_refused = is_taken == Some(false);
    let may_be_long = media.base64().len() as u64 > bytes_max;
    let is_measured = is_image && (is_refused || may_be_long || limits.image_pixels < u64::MAX);
    let size = if is_measured { image_size(media.base64()) } else { None };
    let bytes = if may_be_long { media.bytes() } else { 0 };
    let limit = if is_refused {
        Limit::Kind
    } else if bytes > bytes_max {
        Limit::Bytes(bytes_max)
    } else if size.is_some_and(|size| size.into_iter().any(|edge| edge > limits.image_pixels)) {
        Limit::Pixels(limits.image_pixels)
    } else {
        return None;
    };
    Some(OversizedMedia { bytes: media.bytes(), media, size, limit })
}

impl OversizedMedia<'_> {
    /// Id of the call in whose result it is; empty if there is none.
    pub fn call_id(&self) -> &str {
        &self.media.call_id
    }

    /// Name of the tool, where the result gives it; else empty.
    pub fn tool_name(&self) -> &str {
        &self.media.tool_name
    }

    /// Its media type.
    pub fn content_type(&self) -> &str {
        if self.media.media_type.is_empty() { "application/octet-stream" } else { &self.media.media_type }
    }

    /// Where its block lies in the payload.
    pub fn place(&self) -> Range<usize> {
        self.media.range()
    }

    /// What is to be kept: the file or, if its data are no Base64, their text.
    pub fn content(&self) -> Vec<u8> {
        self.media.content()
    }

    /// The block that stands in its place: a text that says what was there, and all
    /// that the block said of it.
    pub fn replaced(&self, reference: &str) -> String {
        let what = if self.media.kind == MediaKind::Image { "picture" } else { "document" };
        let size = self.size.map(|[width, height]| format!(", {width} x {height} pixels"));
        let reason = match self.limit {
            Limit::Bytes(max) => format!("model's API refuses a {what} of more than {max} bytes"),
            Limit::Pixels(max) => {
                format!("model's API refuses a {what} of more than {max} pixels along an edge")
            }
            Limit::Kind => format!("model takes no {what}s"),
        };
        let text = format!(
            "[... {reference} is the {what} that stood here ({}, {} bytes{}). It is not shown because the \
             {reason}. To read it, call read_tool_output with this \
             ref; `turnkeep output download` saves it as a file. Its block, without the data: {} ...]",
            self.content_type(),
            self.bytes,
            size.unwrap_or_default(),
            self.media.without_data(),
        );
        self.media.with_text(&text)
    }
}

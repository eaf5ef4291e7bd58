//! Collects the parts of a payload.

use super::json::Value;
use super::reading::{MediaKind, Part};

/// The parts of a payload, as they are found.
#[derive(Debug, Default)]
pub(super) struct Parts<'a>(pub(super) Vec<Part<'a>>);

impl<'a> Parts<'a> {
    /// Text, if `value` is a string; JSON, if it is anything else but `null`.
    pub(super) fn text(&mut self, value: Option<Value<'a>>) {
        match value {
            Some(text) if text.is_string() => self.0.push(Part::Text(text.bytes())),
            other => self.json(other),
        }
    }

    /// JSON, unless `value` is `null`.
    pub(super) fn json(&mut self, value: Option<Value<'a>>) {
        self.0.extend(value.filter(|value| !value.is_null()).map(|value| Part::Json(value.bytes())));
    }

    /// Bytes that only the provider reads.
    pub(super) fn opaque(&mut self, value: Option<Value<'a>>) {
        self.0.extend(value.filter(|value| !value.is_null()).map(|value| Part::Opaque(value.bytes())));
    }

    /// Media with base64 `data`, or that lie elsewhere.
    pub(super) fn media(&mut self, kind: MediaKind, data: Option<Value<'a>>) {
        self.0.push(Part::Media { kind, base64: data.and_then(Value::string_content) });
    }

    /// Media at a URL, which may hold the data itself.
    pub(super) fn media_url(&mut self, kind: MediaKind, url: Option<Value<'a>>) {
        self.0.push(Part::Media { kind, base64: url.and_then(data_of_url) });
    }

    /// What `collect` finds in `block`; if it finds nothing, the block itself,
    /// so that no block goes uncounted.
    pub(super) fn block(&mut self, block: Value<'a>, collect: impl FnOnce(&mut Self)) {
        let before = self.0.len();
        collect(self);
        if self.0.len() == before {
            self.0.push(Part::Opaque(block.bytes()));
        }
    }

    /// All of `payload`, if nothing was found in it.
    pub(super) fn whole_if_empty(&mut self, payload: &'a [u8]) {
        if self.0.is_empty() {
            self.0.push(Part::Opaque(payload));
        }
    }
}

/// The base64 data in a `data:` URL.
fn data_of_url(url: Value<'_>) -> Option<&[u8]> {
    const MARK: &[u8] = b";base64,";
    let content = url.string_content()?.strip_prefix(b"data:")?;
    // The media type before the mark is short.
    let at = content.windows(MARK.len()).take(256).position(|window| window == MARK)?;
    content.get(at + MARK.len()..)
}

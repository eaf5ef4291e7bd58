//! Content of messages and outputs, as both OpenAI formats write it.

use super::json::Value;
use super::parts::Parts;
use super::reading::MediaKind;

/// Collects the parts of `content`: a string, a list of content parts, or one.
pub(super) fn collect<'a>(parts: &mut Parts<'a>, content: Option<Value<'a>>) {
    match content {
        Some(list) if list.is_array() => list.elements().for_each(|part| collect_part(parts, part)),
        Some(part) if part.is_object() => collect_part(parts, part),
        other => parts.text(other),
    }
}

fn collect_part<'a>(parts: &mut Parts<'a>, part: Value<'a>) {
    let [kind, text, refusal, image, audio, file, file_data, data, encrypted] = part.get([
        "type",
        "text",
        "refusal",
        "image_url",
        "input_audio",
        "file",
        "file_data",
        "data",
        "encrypted_content",
    ]);
    let kind = kind.and_then(Value::text).unwrap_or_default();
    parts.block(part, |parts| match kind.as_ref() {
        "text" | "input_text" | "output_text" | "summary_text" | "reasoning_text" => parts.text(text),
        "refusal" => parts.text(refusal),
        "encrypted_content" => parts.opaque(encrypted),
        "image_url" | "input_image" | "computer_screenshot" => {
            let url = image.filter(|image| image.is_object()).and_then(|image| image.member("url")).or(image);
            parts.media_url(MediaKind::Image, url);
        }
        "input_audio" => {
            parts.media(MediaKind::Recording, audio.and_then(|audio| audio.member("data")).or(data));
        }
        "file" | "input_file" => {
            let data = file.and_then(|file| file.member("file_data")).or(file_data);
            parts.media_url(MediaKind::Document, data);
        }
        _ => {}
    });
}

//! What providers' APIs take of pictures and documents.
//!
//! The figures are in `provider_limits.json`, each with the words of the provider's
//! documentation that it was taken from, and with that page's address. Where they say MB
//! it is taken for a million bytes, unless the API's errors say otherwise. Limits of a
//! request as a whole, such as on the number of pictures or pages, are not among these.

use super::catalogue;
use crate::model::{MediaLimits, ModelProfile, WireFormat};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// A limit. Where it is from stands beside it in the table, for people.
#[derive(Debug, Deserialize)]
struct Figure {
    value: u64,
}

/// The limits of a provider; what it does not document has none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Provider {
    image_bytes: Option<Figure>,
    image_pixels: Option<Figure>,
    document_bytes: Option<Figure>,
}

static PROVIDERS: LazyLock<BTreeMap<String, Provider>> = LazyLock::new(|| {
    #[expect(clippy::expect_used, reason = "it is part of the binary, and a test reads it")]
    serde_json::from_str(include_str!("provider_limits.json")).expect("provider_limits.json is a table")
});

/// The provider whose API a format is.
fn of_format(format: WireFormat) -> Option<&'static str> {
    match format {
        WireFormat::AnthropicMessages => Some("anthropic"),
        WireFormat::BedrockConverse => Some("bedrock"),
        WireFormat::GeminiContents => Some("google"),
        WireFormat::OpenaiChat | WireFormat::OpenaiResponses => Some("openai"),
        WireFormat::Opaque => None,
    }
}

/// What is taken of pictures and documents in a session of `format` with this profile:
/// what the profile says; else what is known of its model; else the least of what is
/// documented of the format's API and of the model's provider, whose both a request has
/// to pass. Sizes without a limit are `u64::MAX`; whether any are taken is unset if it is
/// not known.
pub fn media_limits(profile: &ModelProfile, format: WireFormat) -> MediaLimits {
    let own = profile.media_limits.unwrap_or_default();
    let facts = catalogue::find(&profile.model);
    let ids = [of_format(format), facts.map(|facts| facts.provider.as_str())];
    let passed = || ids.into_iter().flatten().filter_map(|id| PROVIDERS.get(id));
    let or_least = |own: u64, of: fn(&Provider) -> &Option<Figure>| match own {
        0 => passed().filter_map(|provider| of(provider).as_ref()).map(|figure| figure.value).min(),
        own => Some(own),
    };
    MediaLimits {
        image_bytes: or_least(own.image_bytes, |limits| &limits.image_bytes).unwrap_or(u64::MAX),
        image_pixels: or_least(own.image_pixels, |limits| &limits.image_pixels).unwrap_or(u64::MAX),
        document_bytes: or_least(own.document_bytes, |limits| &limits.document_bytes).unwrap_or(u64::MAX),
        images: own.images.or_else(|| facts?.images),
        documents: own.documents.or_else(|| facts?.documents),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MEDIA_LIMIT_BYTES_MIN;

    fn limits(model: &str, format: WireFormat) -> MediaLimits {
        media_limits(&ModelProfile { model: model.to_owned(), ..ModelProfile::default() }, format)
    }

    fn sizes(model: &str, format: WireFormat) -> [u64; 3] {
        let MediaLimits { image_bytes, image_pixels, document_bytes, .. } = limits(model, format);
        [image_bytes, image_pixels, document_bytes]
    }

    #[test]
    fn every_figure_says_where_it_is_from() {
        let table: BTreeMap<String, BTreeMap<String, serde_json::Value>> =
            serde_json::from_str(include_str!("provider_limits.json")).unwrap();
        assert_eq!(table.len(), PROVIDERS.len());
        for (id, figures) in &table {
            assert!(catalogue::models().any(|facts| facts.provider == *id), "{id} sells no model");
            for (name, figure) in figures {
                assert!(figure["source"].as_str().unwrap().starts_with("https://"), "{id}: {figure}");
                let says = figure["says"].as_str().unwrap();
                assert!(says.bytes().any(|byte| byte.is_ascii_digit()), "{id}: {figure}");
                let is_bytes = name.ends_with("_bytes");
                assert!(
                    !is_bytes || figure["value"].as_u64().unwrap() >= MEDIA_LIMIT_BYTES_MIN,
                    "{id}: {figure}"
                );
            }
        }
    }

    #[test]
    fn limits_are_those_of_the_formats_api_and_of_the_models_provider() {
        let anthropic = [3_932_160, 8_000, 24_000_000];
        let table = [
            ("", WireFormat::AnthropicMessages, anthropic),
            ("", WireFormat::BedrockConverse, [3_750_000, 8_000, 4_500_000]),
            ("", WireFormat::GeminiContents, [15_000_000, u64::MAX, 15_000_000]),
            ("", WireFormat::OpenaiChat, [20_000_000, u64::MAX, 50_000_000]),
            ("", WireFormat::OpenaiResponses, [20_000_000, u64::MAX, 50_000_000]),
            ("", WireFormat::Opaque, [u64::MAX; 3]),
            ("unheard-of", WireFormat::AnthropicMessages, anthropic),
            ("claude-opus-4-5", WireFormat::OpenaiChat, anthropic),
            ("claude-opus-4-5", WireFormat::BedrockConverse, [3_750_000, 8_000, 4_500_000]),
            ("groq/qwen/qwen3.8-27b", WireFormat::OpenaiChat, [3_000_000, u64::MAX, 50_000_000]),
        ];
        for (model, format, expected) in table {
            assert_eq!(sizes(model, format), expected, "{model} {format:?}");
        }
    }

    #[test]
    fn a_profile_says_more_than_the_model_and_the_model_more_than_nothing() {
        let chat = WireFormat::OpenaiChat;
        let taken = |model| [limits(model, chat).images, limits(model, chat).documents];
        assert_eq!(taken("o3-mini")[0], Some(false), "it reads texts alone");
        assert_eq!(taken("gpt-5"), [Some(true); 2]);
        assert_eq!(taken("unheard-of"), [None; 2]);
        let own = MediaLimits { image_bytes: 9_000, images: Some(true), ..MediaLimits::default() };
        let profile =
            ModelProfile { model: "o3-mini".to_owned(), media_limits: Some(own), ..ModelProfile::default() };
        let expected = MediaLimits { image_bytes: 9_000, images: Some(true), ..limits("o3-mini", chat) };
        assert_eq!(media_limits(&profile, chat), expected);
    }
}

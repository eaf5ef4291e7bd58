//! What providers' APIs take of pictures and documents, and how long a tool result their
//! models are to be given.
//!
//! The figures are in `provider_limits.json`, each with the words of the provider's
//! documentation that it was taken from, and with that page's address. Where they say MB
//! it is taken for a million bytes, unless the API's errors say otherwise. Limits of a
//! request as a whole, such as on the number of pictures or pages, are not among these.
//!
//! No API has a limit on tool results that is smaller than a window. What a vendor's own
//! agent gives the vendor's models at most is taken for theirs.

use super::catalogue;
use crate::model::{LengthUnit, MediaLimits, ModelProfile, ToolResultLimit, WireFormat};
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
    tool_result: Option<Length>,
}

/// How long a tool result may be.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Length {
    value: u64,
    unit: LengthUnit,
}

/// Vendors of models that others host, by what the names of these have in them.
const FAMILIES: [(&str, &str); 4] =
    [("claude", "anthropic"), ("gemini", "google"), ("gpt-", "openai"), ("qwen", "alibaba")];

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

/// How long a tool result may be in a session with this profile: what the profile says;
/// else what the vendor of its model has its own agent give it at most, all of which may
/// be used; else the default.
pub fn tool_result_limit(profile: &ModelProfile) -> ToolResultLimit {
    profile.tool_result_limit.or_else(|| of_vendor(&profile.model)).unwrap_or_default()
}

fn of_vendor(model: &str) -> Option<ToolResultLimit> {
    let facts = catalogue::find(model)?;
    let id = facts.id.to_ascii_lowercase();
    let of_family = || FAMILIES.iter().find(|(family, _)| id.contains(family)).map(|(_, vendor)| *vendor);
    let of = |vendor: &str| PROVIDERS.get(vendor)?.tool_result;
    let Length { value, unit } = of(&facts.provider).or_else(|| of(of_family()?))?;
    Some(ToolResultLimit { length: value, reserve: Some(0), unit, ..ToolResultLimit::default() })
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
    fn tool_results_are_as_long_as_the_vendors_own_agent_has_them() {
        let limit = |model: &str| {
            let model = model.to_owned();
            let limit = tool_result_limit(&ModelProfile { model, ..ModelProfile::default() });
            (limit.length_max(), limit.unit)
        };
        for (model, expected) in [
            ("claude-opus-4-5", (50_000, LengthUnit::Characters)),
            ("us.anthropic.claude-opus-4-5-20251101-v1:0", (50_000, LengthUnit::Characters)),
            ("openrouter/anthropic/claude-opus-4.5", (50_000, LengthUnit::Characters)),
            ("gpt-5", (40_000, LengthUnit::Bytes)),
            ("o3-mini", (40_000, LengthUnit::Bytes)),
            ("groq/openai/gpt-oss-120b", (40_000, LengthUnit::Bytes)),
            ("gemini-2.5-pro", (40_000, LengthUnit::Characters)),
            ("groq/qwen/qwen3.8-27b", (25_000, LengthUnit::Characters)),
            ("deepseek-chat", (80_000, LengthUnit::Characters)),
            ("unheard-of", (80_000, LengthUnit::Characters)),
            ("", (80_000, LengthUnit::Characters)),
        ] {
            assert_eq!(limit(model), expected, "{model}");
        }
        let own = ToolResultLimit { length: 7_000, ..ToolResultLimit::default() };
        let profile = ModelProfile {
            model: "gpt-5".to_owned(),
            tool_result_limit: Some(own),
            ..ModelProfile::default()
        };
        assert_eq!(tool_result_limit(&profile), own);
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

//! What is known of models: limits, tokenizers and prices. What their providers' APIs
//! take of pictures and documents is in `provider_limits`.
//!
//! The facts are in models.json, which `.ci/model-catalogue.py` writes. They are
//! the vendors' as somebody else has collected them: what a profile says itself
//! always wins.

use crate::model::{ModelProfile, Prices, Tokenizer};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

/// What is known of a model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFacts {
    /// Its id: the name that its provider's API takes, behind the host's where
    /// several may have it.
    #[serde(skip_deserializing)]
    pub id: String,
    /// Who sells it: its vendor, or the host of an open model.
    pub provider: String,
    /// Tokens that a request may have. They are the context window, input and
    /// output together, unless `split`.
    pub window: u64,
    /// Its largest output in tokens, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<u64>,
    /// Whether the output does not count against `window`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub split: bool,
    /// How its tokens are counted.
    pub tokenizer: Tokenizer,
    /// Whether it takes pictures, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<bool>,
    /// Whether it takes documents, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<bool>,
    /// What it costs, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<Prices>,
    /// The day on which its provider turns it off, `YYYY-MM-DD`, if one is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retires: Option<String>,
}

/// Where the facts are from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Package that collected them.
    pub package: String,
    /// Its version.
    pub version: String,
    /// Its licence.
    pub licence: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalogue {
    source: Source,
    models: BTreeMap<String, ModelFacts>,
    /// Models of hosts by the ids that the hosts' own APIs take; nothing where
    /// several hosts have the same.
    #[serde(skip)]
    hosted: HashMap<String, Option<String>>,
}

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    #[expect(clippy::expect_used, reason = "it is part of the binary, and a test reads it")]
    let mut catalogue: Catalogue =
        serde_json::from_str(include_str!("models.json")).expect("models.json is a catalogue");
    for (id, facts) in &mut catalogue.models {
        facts.id.clone_from(id);
        if let Some((_, own)) = id.split_once('/') {
            let entry = catalogue.hosted.entry(own.to_owned());
            entry.and_modify(|known| *known = None).or_insert_with(|| Some(id.clone()));
        }
    }
    catalogue
});

/// What stands before a model's id where one API speaks for several providers, as
/// `OpenRouter`, litellm and Gemini's own have it.
const PREFIXES: [&str; 19] = [
    "openrouter/",
    "litellm_proxy/",
    "models/",
    "anthropic/",
    "azure/",
    "bedrock/",
    "converse/",
    "dashscope/",
    "deepseek/",
    "gemini/",
    "google/",
    "mistral/",
    "mistralai/",
    "openai/",
    "qwen/",
    "vertex_ai/",
    "vertex_ai_beta/",
    "x-ai/",
    "xai/",
];

/// Bedrock's regions of inference, before the vendor in an id.
const REGIONS: [&str; 8] = ["apac.", "au.", "ca.", "eu.", "global.", "jp.", "us.", "us-gov."];

/// Where the facts are from.
pub fn source() -> &'static Source {
    &CATALOGUE.source
}

/// All models, by their ids.
pub fn models() -> impl Iterator<Item = &'static ModelFacts> {
    CATALOGUE.models.values()
}

/// What is known of a model. Its name is tried as it stands, and then, one after
/// the other,
///
/// - as the id that a single one of the hosts has it under;
/// - without what routers put before it: `openrouter/`, `anthropic/`, `models/`,
///   an ARN up to its last `/`;
/// - without Bedrock's region: `us.`;
///
/// each time also with `-` for the `@` of Vertex and for the points of
/// `claude-opus-4.5`, without the organization behind a fine-tuned model's base,
/// and without `-latest` or a date, `-20251101` or `-2025-11-01`, at its end.
pub fn find(model: &str) -> Option<&'static ModelFacts> {
    let hosted = || CATALOGUE.hosted.get(model)?.as_deref().and_then(|id| CATALOGUE.models.get(id));
    let mut name = model;
    loop {
        let found = spelled(name);
        if found.is_some() {
            return found;
        }
        if let (true, Some(found)) = (name == model, hosted()) {
            return Some(found);
        }
        name = without_prefix(name)?;
    }
}

fn without_prefix(name: &str) -> Option<&str> {
    if name.starts_with("arn:") {
        return name.rsplit_once('/').map(|(_, rest)| rest);
    }
    PREFIXES.iter().chain(&REGIONS).find_map(|prefix| name.strip_prefix(prefix))
}

fn spelled(name: &str) -> Option<&'static ModelFacts> {
    let models = &CATALOGUE.models;
    if let Some(found) = models.get(name) {
        return Some(found);
    }
    let mut name = name.replace('@', "-");
    if name.starts_with("claude") {
        name = name.replace('.', "-");
    }
    let base = match name.strip_prefix("ft:") {
        Some(tuned) => name.get(.."ft:".len() + tuned.find(':').unwrap_or(tuned.len())).unwrap_or(&name),
        None => &name,
    };
    let undated = || base.strip_suffix("-latest").or_else(|| without_date(base));
    models.get(base).or_else(|| models.get(undated()?))
}

/// A name without `-YYYYMMDD` or `-YYYY-MM-DD` at its end.
fn without_date(name: &str) -> Option<&str> {
    ["-dddddddd", "-dddd-dd-dd"].into_iter().find_map(|form| {
        let (rest, end) = name.split_at_checked(name.len().checked_sub(form.len())?)?;
        let matches =
            |(byte, form): (u8, u8)| if form == b'd' { byte.is_ascii_digit() } else { byte == form };
        end.bytes().zip(form.bytes()).all(matches).then_some(rest)
    })
}

/// A profile with what it does not say itself taken from the catalogue: context
/// window, largest output and tokenizer. It has no window if the model is not
/// known and the profile names none.
///
/// The window of a model with a limit of its own on the input is that limit: so
/// much fits whatever the output.
#[must_use]
pub fn resolve(profile: &ModelProfile) -> ModelProfile {
    let mut resolved = profile.clone();
    if let Some(facts) = find(&profile.model) {
        if resolved.context_window_tokens == 0 {
            resolved.context_window_tokens = facts.window;
        }
        if resolved.max_output_tokens == 0 {
            resolved.max_output_tokens = facts.output.unwrap_or(0);
        }
        resolved.tokenizer = resolved.tokenizer.or(Some(facts.tokenizer));
    }
    resolved
}

/// What calls of a model cost: what the profile says, if the model is its own or
/// not named, else what the catalogue says.
pub fn prices(profile: &ModelProfile, model: &str) -> Option<Prices> {
    let is_own = model.is_empty() || model == profile.model;
    let model = if model.is_empty() { &profile.model } else { model };
    profile.prices.as_deref().copied().filter(|_| is_own).or_else(|| find(model)?.prices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{MODEL_NAME_BYTES_MAX, TOKENS_MAX};
    use crate::model::Price;

    #[test]
    fn every_line_of_the_catalogue_is_read_and_within_limits() {
        let lines = include_str!("models.json").lines().count();
        assert_eq!(models().count() + 3, lines);
        assert!(models().count() > 500);
        for facts in models() {
            let id = &facts.id;
            assert!(id.len() <= MODEL_NAME_BYTES_MAX, "{id}");
            assert!((1_000..TOKENS_MAX).contains(&facts.window), "{id}: {facts:?}");
            assert!(facts.output.is_none_or(|output| (1..TOKENS_MAX).contains(&output)), "{id}: {facts:?}");
            assert!(facts.retires.as_deref().is_none_or(|day| without_date(&format!("-{day}")) == Some("")));
            assert!(find(id) == Some(facts), "{id}");
        }
        assert_eq!((source().package.as_str(), source().licence.as_str()), ("litellm", "MIT"));
        for (id, tokenizer) in [
            ("gpt-4o", Tokenizer::O200k),
            ("gpt-4.1-mini", Tokenizer::O200k),
            ("gpt-5.5", Tokenizer::O200k),
            ("o3", Tokenizer::O200k),
            ("gpt-4-turbo", Tokenizer::Cl100k),
            ("gpt-3.5-turbo", Tokenizer::Cl100k),
            ("claude-opus-4-5", Tokenizer::Estimate),
            ("gemini-2.5-pro", Tokenizer::Estimate),
            ("deepseek-chat", Tokenizer::Estimate),
        ] {
            assert_eq!(find(id).unwrap().tokenizer, tokenizer, "{id}");
        }
    }

    #[test]
    fn a_model_is_found_by_the_names_that_routers_and_clouds_give_it() {
        let table = [
            ("anthropic/claude-opus-4-5", "claude-opus-4-5"),
            ("openrouter/anthropic/claude-opus-4.5", "claude-opus-4-5"),
            ("claude-opus-4-5@20251101", "claude-opus-4-5-20251101"),
            ("vertex_ai/claude-opus-4-5@20991231", "claude-opus-4-5"),
            ("claude-opus-4-5-latest", "claude-opus-4-5"),
            ("openai/gpt-4o", "gpt-4o"),
            ("gpt-4o-2099-01-31", "gpt-4o"),
            ("ft:gpt-4o-2024-08-06:acme::x", "ft:gpt-4o-2024-08-06"),
            ("models/gemini-2.5-pro", "gemini-2.5-pro"),
            ("gemini/gemini-2.5-pro", "gemini-2.5-pro"),
            ("deepseek/deepseek-chat", "deepseek-chat"),
            ("ca.anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic.claude-sonnet-4-5-20250929-v1:0"),
            ("bedrock/converse/us.anthropic.claude-opus-4-8", "us.anthropic.claude-opus-4-8"),
            (
                "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-opus-4-8",
                "us.anthropic.claude-opus-4-8",
            ),
            ("qwen/qwen3.8-27b", "groq/qwen/qwen3.8-27b"),
        ];
        for (name, id) in table {
            assert_eq!(find(name).map(|facts| facts.id.as_str()), Some(id), "{name}");
        }
        for unknown in
            ["", "gpt", "claude", "anthropic/", "-20251101", "é", "us.", "arn:", "ft:", "openai/gpt-oss-120b"]
        {
            assert_eq!(find(unknown), None, "{unknown}: no such model, or several hosts have it");
        }
    }

    #[test]
    fn a_profile_takes_from_the_catalogue_only_what_it_does_not_say() {
        let named = |model: &str| ModelProfile { model: model.to_owned(), ..ModelProfile::default() };
        let expected = ModelProfile {
            context_window_tokens: 200_000,
            max_output_tokens: 64_000,
            tokenizer: Some(Tokenizer::Estimate),
            ..named("claude-opus-4-5")
        };
        assert_eq!(resolve(&named("claude-opus-4-5")), expected);
        let own = ModelProfile {
            context_window_tokens: 9,
            max_output_tokens: 8,
            tokenizer: Some(Tokenizer::Cl100k),
            ..named("claude-opus-4-5")
        };
        assert_eq!(resolve(&own), own);
        assert_eq!(resolve(&named("unheard-of")), named("unheard-of"));
        let split = find("gpt-5").unwrap();
        assert_eq!((split.window, split.split), (272_000, true), "its input is limited beside its output");
    }

    #[test]
    fn prices_are_the_profile_s_for_its_own_model_and_the_catalogue_s_for_others() {
        let one = Price::try_from(1.0).unwrap();
        let own = Prices { input: one, output: one, ..Prices::default() };
        let mut profile = ModelProfile { model: "gpt-4o".to_owned(), ..ModelProfile::default() };
        let known = |model: &str| find(model).unwrap().prices;
        assert_eq!(prices(&profile, ""), known("gpt-4o"));
        profile.prices = Some(Box::new(own));
        assert_eq!([prices(&profile, ""), prices(&profile, "gpt-4o")], [Some(own); 2]);
        assert_eq!(prices(&profile, "claude-opus-4-5"), known("claude-opus-4-5"));
        assert_eq!(prices(&profile, "unheard-of"), None);
    }
}

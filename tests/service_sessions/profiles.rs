//! Profiles of models, and the limits that they give a session.

use super::*;
use turnkeep::model::{MediaLimits, ModelProfile, ToolResultLimit};

on_embedded_backend!(
    a_session_shows_the_limits_that_apply_in_it,
    a_profile_is_taken_from_the_settings_by_its_name,
    a_known_model_s_limits_need_not_be_given,
);

async fn a_session_shows_the_limits_that_apply_in_it(backend: Backend) {
    let service = Service::start(&backend).await;
    let given = |model: &str, limit, media| {
        let profile = pb::ModelProfile {
            model: model.to_owned(),
            context_window_tokens: 9_000,
            tool_result_limit: limit,
            media_limits: media,
            ..Default::default()
        };
        pb::Session { profile: Some(profile), ..of_format(OpenaiChat) }
    };
    let results = |length, reserve, head_percent| pb::ToolResultLimit {
        length,
        reserve: Some(reserve),
        unit: pb::LengthUnit::Characters.into(),
        preview_length: None,
        head_percent: Some(head_percent),
    };
    let media = |image_bytes, image_pixels, document_bytes, images| pb::MediaLimits {
        image_bytes,
        image_pixels,
        document_bytes,
        images,
        documents: None,
    };
    let limit = pb::ToolResultLimit { length: 5_000, head_percent: Some(70), ..Default::default() };
    let own = pb::MediaLimits { image_pixels: 700, images: Some(true), ..Default::default() };
    let cases = [
        ("unheard-of", None, None, results(100_000, 20_000, 50), media(20_000_000, 0, 50_000_000, None)),
        (
            "o3-mini",
            None,
            None,
            pb::ToolResultLimit { unit: pb::LengthUnit::Bytes.into(), ..results(40_000, 0, 50) },
            media(20_000_000, 0, 50_000_000, Some(false)),
        ),
        (
            "o3-mini",
            Some(limit),
            Some(own),
            results(5_000, 1_000, 70),
            media(20_000_000, 700, 50_000_000, Some(true)),
        ),
    ];
    for (i, (model, limit, own, tool_result_limit, media_limits)) in cases.into_iter().enumerate() {
        let session = service.create(&format!("s{i}"), given(model, limit, own)).await;
        let expected = pb::AppliedLimits {
            tool_result_limit: Some(tool_result_limit),
            media_limits: Some(media_limits),
            // A result's message has an envelope, and a text may get one of its worker's.
            page_characters: session.applied_limits.unwrap().page_characters,
        };
        let length_max = tool_result_limit.length - tool_result_limit.reserve();
        assert!((length_max / 2..length_max).contains(&expected.page_characters), "{expected:?}");
        assert_eq!(session.applied_limits, Some(expected), "{model}");
        assert_eq!(session.profile.unwrap().media_limits, own, "what is not said is not made to be");
    }
}

async fn a_profile_is_taken_from_the_settings_by_its_name(backend: Backend) {
    let service = Service::start_with(&backend, |settings| {
        let profile = ModelProfile {
            model: "example-1".to_owned(),
            context_window_tokens: 1_000,
            max_output_tokens: 100,
            tokenizer: None,
            tool_result_limit: Some(ToolResultLimit { length: 5_000, ..ToolResultLimit::default() }),
            prices: None,
            media_limits: Some(MediaLimits { image_bytes: 9_000, ..MediaLimits::default() }),
        };
        settings.profiles.insert("small".to_owned(), profile);
    })
    .await;
    let named = |model: &str| pb::Session {
        profile: Some(pb::ModelProfile { model: model.to_owned(), ..Default::default() }),
        ..of_format(OpenaiChat)
    };
    let expected = pb::ModelProfile {
        model: "example-1".to_owned(),
        context_window_tokens: 1_000,
        max_output_tokens: 100,
        tokenizer: 0,
        tool_result_limit: Some(pb::ToolResultLimit {
            length: 5_000,
            reserve: None,
            unit: pb::LengthUnit::Characters.into(),
            ..Default::default()
        }),
        prices: None,
        media_limits: Some(pb::MediaLimits { image_bytes: 9_000, ..Default::default() }),
    };
    assert_eq!(service.create("s", named("small")).await.profile, Some(expected.clone()));
    assert_eq!(service.window(SESSION).await.header.profile, Some(expected.clone()));
    // A session may have a limit of its own beside the name.
    let limit = pb::ToolResultLimit {
        length: 900,
        reserve: Some(0),
        unit: pb::LengthUnit::Tokens.into(),
        preview_length: Some(500),
        head_percent: Some(70),
    };
    let mut limited = named("small");
    limited.profile.as_mut().unwrap().tool_result_limit = Some(limit);
    let created = service.create("limited", limited).await;
    let limited = pb::ModelProfile { tool_result_limit: Some(limit), ..expected.clone() };
    assert_eq!(created.profile, Some(limited));
    let limits = pb::MediaLimits { image_bytes: 4_096, image_pixels: 1, ..Default::default() };
    let mut limited = named("small");
    limited.profile.as_mut().unwrap().media_limits = Some(limits);
    let created = service.create("limited-media", limited).await;
    assert_eq!(created.profile, Some(pb::ModelProfile { media_limits: Some(limits), ..expected }));
    for (image_bytes, document_bytes, field) in [(4_095, 0, "image_bytes"), (0, 1, "document_bytes")] {
        let mut wrong = named("small");
        wrong.profile.as_mut().unwrap().media_limits =
            Some(pb::MediaLimits { image_bytes, document_bytes, ..Default::default() });
        let refusal = service.try_create("t", wrong).await.unwrap_err();
        assert_eq!(refusal.metadata("field"), format!("session.profile.media_limits.{field}"));
    }
    let limit = |length| pb::ToolResultLimit { length, ..Default::default() };
    for (limit, field) in [
        (limit(500_001), "length"),
        (pb::ToolResultLimit { reserve: Some(100), ..limit(100) }, "reserve"),
        (pb::ToolResultLimit { unit: 9, ..limit(100) }, "unit"),
        (pb::ToolResultLimit { preview_length: Some(499), ..limit(0) }, "preview_length"),
        (pb::ToolResultLimit { head_percent: Some(101), ..limit(0) }, "head_percent"),
        (pb::ToolResultLimit { head_percent: Some(300), ..limit(0) }, "head_percent"),
    ] {
        let mut wrong = named("small");
        wrong.profile.as_mut().unwrap().tool_result_limit = Some(limit);
        let refusal = service.try_create("t", wrong).await.unwrap_err();
        assert_eq!(refusal.metadata("field"), format!("session.profile.tool_result_limit.{field}"));
    }
    let refusal = service.try_create("t", named("large")).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::InvalidArgument, "INVALID_FIELD"));
    assert_eq!(refusal.metadata("field"), "session.profile.model");
    let own = pb::ModelProfile { model: "small".to_owned(), max_output_tokens: 7, ..Default::default() };
    let session = pb::Session { profile: Some(own.clone()), ..of_format(OpenaiChat) };
    assert_eq!(service.create("u", session).await.profile, Some(own), "a name with more is a model's");
}

async fn a_known_model_s_limits_need_not_be_given(backend: Backend) {
    let service = Service::start_with(&backend, |settings| {
        let profile = ModelProfile { model: "openai/gpt-4o".to_owned(), ..ModelProfile::default() };
        settings.profiles.insert("default".to_owned(), profile);
    })
    .await;
    let of = |profile| pb::Session { profile: Some(profile), ..of_format(AnthropicMessages) };
    let named = |model: &str| pb::ModelProfile { model: model.to_owned(), ..Default::default() };
    let known = |model: &str, context_window_tokens, max_output_tokens, tokenizer: pb::Tokenizer| {
        let tokenizer = tokenizer.into();
        pb::ModelProfile { context_window_tokens, max_output_tokens, tokenizer, ..named(model) }
    };
    let opus = known("claude-opus-4-5", 200_000, 64_000, pb::Tokenizer::Estimate);
    assert_eq!(service.create("s", of(named("claude-opus-4-5"))).await.profile, Some(opus.clone()));
    let header = service.window(SESSION).await.header;
    assert_eq!((header.profile, header.fits), (Some(opus.clone()), Some(true)));
    let gpt = known("openai/gpt-4o", 128_000, 16_384, pb::Tokenizer::O200k);
    assert_eq!(service.create("t", of(named("default"))).await.profile, Some(gpt));

    // What is given wins, and what costs is not seen in a window.
    let prices = pb::Prices {
        input: 1,
        output: 2,
        cache_read: Some(0),
        cache_write: None,
        long: Some(pb::LongPrices { over_tokens: 9, input: 3, output: 4, ..Default::default() }),
    };
    let own =
        pb::ModelProfile { context_window_tokens: 9_000, prices: Some(prices), ..named("claude-opus-4-5") };
    let expected = pb::ModelProfile { context_window_tokens: 9_000, prices: Some(prices), ..opus.clone() };
    assert_eq!(service.create("u", of(own)).await.profile, Some(expected));
    let before = service.get(SESSION).await;
    let priced = pb::Session {
        profile: Some(pb::ModelProfile { prices: Some(prices), ..opus.clone() }),
        ..before.clone()
    };
    let after = service.update(priced, &["profile"]).await.unwrap();
    assert_eq!(after.profile, Some(pb::ModelProfile { prices: Some(prices), ..opus }));
    assert_eq!(after.window_revision, before.window_revision);

    // Of an unknown model nothing is.
    let unknown = pb::ModelProfile { max_output_tokens: 7, ..named("unheard-of") };
    let created = service.create("v", of(unknown.clone())).await;
    assert_eq!(created.profile, Some(unknown));
    assert_eq!(service.window(&created.name).await.header.fits, None);
    let dear = pb::Prices { output: 1_000_000_000_001, ..prices };
    let refusal =
        service.try_create("w", of(pb::ModelProfile { prices: Some(dear), ..named("m") })).await.unwrap_err();
    assert_eq!(refusal.metadata("field"), "session.profile.prices.output");
}

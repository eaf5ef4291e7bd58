//! Model profiles, as they come and go over the wire.

use crate::engine::{Error, page_characters};
use crate::model::{
    LengthUnit, LongPrices, MediaLimits, ModelProfile, Price, Prices, Session, Tokenizer, ToolResultLimit,
};
use crate::rpc::pb;
use crate::tokens::provider_limits;

pub(super) fn model_profile(profile: pb::ModelProfile) -> Result<ModelProfile, Error> {
    let tokenizer = match pb::Tokenizer::try_from(profile.tokenizer) {
        Ok(pb::Tokenizer::Unspecified) => None,
        Ok(pb::Tokenizer::O200k) => Some(Tokenizer::O200k),
        Ok(pb::Tokenizer::Cl100k) => Some(Tokenizer::Cl100k),
        Ok(pb::Tokenizer::Estimate) => Some(Tokenizer::Estimate),
        Err(_) => {
            let problem = format!("is {}, which is not a known tokenizer", profile.tokenizer);
            return Err(Error::invalid("profile.tokenizer", problem));
        }
    };
    Ok(ModelProfile {
        model: profile.model,
        context_window_tokens: profile.context_window_tokens,
        max_output_tokens: profile.max_output_tokens,
        tokenizer,
        tool_result_limit: profile.tool_result_limit.map(tool_result_limit).transpose()?,
        prices: profile.prices.map(prices).transpose()?.map(Box::new),
        media_limits: profile.media_limits.map(|limits| MediaLimits {
            image_bytes: limits.image_bytes,
            image_pixels: limits.image_pixels,
            document_bytes: limits.document_bytes,
            images: limits.images,
            documents: limits.documents,
        }),
    })
}

fn tool_result_limit(limit: pb::ToolResultLimit) -> Result<ToolResultLimit, Error> {
    let unit = match pb::LengthUnit::try_from(limit.unit) {
        Ok(pb::LengthUnit::Unspecified | pb::LengthUnit::Characters) => LengthUnit::Characters,
        Ok(pb::LengthUnit::Bytes) => LengthUnit::Bytes,
        Ok(pb::LengthUnit::Tokens) => LengthUnit::Tokens,
        Err(_) => {
            let problem = format!("is {}, which is not a known unit", limit.unit);
            return Err(Error::invalid("profile.tool_result_limit.unit", problem));
        }
    };
    let length = if limit.length == 0 { ToolResultLimit::default().length } else { limit.length };
    Ok(ToolResultLimit {
        length,
        reserve: limit.reserve,
        unit,
        preview_length: limit.preview_length,
        head_percent: limit.head_percent.map(|percent| u8::try_from(percent).unwrap_or(u8::MAX)),
    })
}

fn prices(prices: pb::Prices) -> Result<Prices, Error> {
    let price = |field: &str, micros: u64| {
        Price::from_micros(micros)
            .map_err(|problem| Error::invalid(format!("profile.prices.{field}"), problem.to_string()))
    };
    let pb::Prices { input, output, cache_read, cache_write, long } = prices;
    let long_prices = |long: pb::LongPrices| -> Result<LongPrices, Error> {
        Ok(LongPrices {
            over_tokens: long.over_tokens,
            input: price("long.input", long.input)?,
            output: price("long.output", long.output)?,
            cache_read: long.cache_read.map(|micros| price("long.cache_read", micros)).transpose()?,
            cache_write: long.cache_write.map(|micros| price("long.cache_write", micros)).transpose()?,
        })
    };
    Ok(Prices {
        input: price("input", input)?,
        output: price("output", output)?,
        cache_read: cache_read.map(|micros| price("cache_read", micros)).transpose()?,
        cache_write: cache_write.map(|micros| price("cache_write", micros)).transpose()?,
        long: long.map(long_prices).transpose()?,
    })
}

pub(super) fn profile_to(profile: ModelProfile) -> pb::ModelProfile {
    let tokenizer = match profile.tokenizer {
        None => pb::Tokenizer::Unspecified,
        Some(Tokenizer::O200k) => pb::Tokenizer::O200k,
        Some(Tokenizer::Cl100k) => pb::Tokenizer::Cl100k,
        Some(Tokenizer::Estimate) => pb::Tokenizer::Estimate,
    };
    pb::ModelProfile {
        model: profile.model,
        context_window_tokens: profile.context_window_tokens,
        max_output_tokens: profile.max_output_tokens,
        tokenizer: tokenizer.into(),
        tool_result_limit: profile.tool_result_limit.map(tool_result_limit_to),
        media_limits: profile.media_limits.map(media_limits_to),
        prices: profile.prices.as_deref().map(prices_to),
    }
}

/// The limits that apply in a session.
pub(super) fn applied_limits(session: &Session) -> pb::AppliedLimits {
    let limit = provider_limits::tool_result_limit(&session.profile);
    let limit = ToolResultLimit {
        reserve: Some(limit.length - limit.length_max()),
        head_percent: Some(limit.head_percent()),
        ..limit
    };
    let media = provider_limits::media_limits(&session.profile, session.format);
    let or_none = |limit: u64| if limit == u64::MAX { 0 } else { limit };
    let media = MediaLimits {
        image_bytes: or_none(media.image_bytes),
        image_pixels: or_none(media.image_pixels),
        document_bytes: or_none(media.document_bytes),
        ..media
    };
    pb::AppliedLimits {
        tool_result_limit: Some(tool_result_limit_to(limit)),
        media_limits: Some(media_limits_to(media)),
        page_characters: page_characters(session.format, &limit),
    }
}

fn tool_result_limit_to(limit: ToolResultLimit) -> pb::ToolResultLimit {
    let unit = match limit.unit {
        LengthUnit::Characters => pb::LengthUnit::Characters,
        LengthUnit::Bytes => pb::LengthUnit::Bytes,
        LengthUnit::Tokens => pb::LengthUnit::Tokens,
    };
    pb::ToolResultLimit {
        length: limit.length,
        reserve: limit.reserve,
        unit: unit.into(),
        preview_length: limit.preview_length,
        head_percent: limit.head_percent.map(u32::from),
    }
}

fn media_limits_to(limits: MediaLimits) -> pb::MediaLimits {
    let MediaLimits { image_bytes, image_pixels, document_bytes, images, documents } = limits;
    pb::MediaLimits { image_bytes, image_pixels, document_bytes, images, documents }
}

fn prices_to(prices: &Prices) -> pb::Prices {
    let Prices { input, output, cache_read, cache_write, long } = *prices;
    pb::Prices {
        input: input.micros(),
        output: output.micros(),
        cache_read: cache_read.map(Price::micros),
        cache_write: cache_write.map(Price::micros),
        long: long.map(|long| pb::LongPrices {
            over_tokens: long.over_tokens,
            input: long.input.micros(),
            output: long.output.micros(),
            cache_read: long.cache_read.map(Price::micros),
            cache_write: long.cache_write.map(Price::micros),
        }),
    }
}

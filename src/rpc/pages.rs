//! Pages of lists and their tokens.

use crate::clock::Micros;
use crate::engine::{Error, SearchPlace, SearchPosition};
use crate::limits::{PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX};
use crate::model::{OutputId, Seq, SessionId, Version};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The size of a page: what was asked for, up to the most that there is.
pub(super) fn page_size(asked: i32) -> Result<u32, Error> {
    match u32::try_from(asked) {
        Err(_) => Err(Error::invalid("page_size", format!("is {asked}; must not be negative"))),
        Ok(0) => Ok(PAGE_SIZE_DEFAULT),
        Ok(size) => Ok(size.min(PAGE_SIZE_MAX)),
    }
}

/// Where a page of sessions ends: the last one on it.
pub(super) fn session_token(created_at: Micros, session: &SessionId) -> String {
    URL_SAFE_NO_PAD.encode(format!("{}/{session}", created_at.0))
}

/// Reads a token of [`session_token`].
pub(super) fn read_session_token(token: &str) -> Result<Option<(Micros, SessionId)>, Error> {
    if token.is_empty() {
        return Ok(None);
    }
    let parsed = decode(token).and_then(|text| {
        let (at, session) = text.split_once('/')?;
        Some((Micros(at.parse().ok()?), SessionId::parse(session).ok()?))
    });
    parsed.map(Some).ok_or_else(wrong_token)
}

/// Where a page of turns ends: the last one on it.
pub(super) fn turn_token(version: Version) -> String {
    URL_SAFE_NO_PAD.encode(version.to_string())
}

/// Reads a token of [`turn_token`].
pub(super) fn read_turn_token(token: &str) -> Result<Option<Version>, Error> {
    if token.is_empty() {
        return Ok(None);
    }
    decode(token)
        .and_then(|text| text.parse().ok())
        .map(|version| Some(Version(version)))
        .ok_or_else(wrong_token)
}

/// Where a page of compactions ends: the last one on it.
pub(super) fn compaction_token(number: u64) -> String {
    URL_SAFE_NO_PAD.encode(number.to_string())
}

/// Reads a token of [`compaction_token`].
pub(super) fn read_compaction_token(token: &str) -> Result<Option<u64>, Error> {
    if token.is_empty() {
        return Ok(None);
    }
    decode(token).and_then(|text| text.parse().ok()).map(Some).ok_or_else(wrong_token)
}

/// Where a page of outputs ends: the last one on it.
pub(super) fn output_token(output: &OutputId) -> String {
    URL_SAFE_NO_PAD.encode(output.as_str())
}

/// Reads a token of [`output_token`].
pub(super) fn read_output_token(token: &str) -> Result<Option<OutputId>, Error> {
    if token.is_empty() {
        return Ok(None);
    }
    decode(token).and_then(|text| OutputId::parse(&text).ok()).map(Some).ok_or_else(wrong_token)
}

/// Where a search of a transcript ended.
pub(super) fn search_token(position: &SearchPosition) -> String {
    let version = position.version;
    URL_SAFE_NO_PAD.encode(match &position.place {
        SearchPlace::Entry { seq, text, byte } => format!("{version}/{seq}/{text}/{byte}"),
        SearchPlace::Output { output, line } => format!("{version}/{output}/{line}"),
    })
}

/// Reads a token of [`search_token`].
pub(super) fn read_search_token(token: &str) -> Result<Option<SearchPosition>, Error> {
    if token.is_empty() {
        return Ok(None);
    }
    let parsed = decode(token).and_then(|text| {
        let parts: Vec<_> = text.split('/').collect();
        let (version, place) = match *parts.as_slice() {
            [version, seq, text, byte] => {
                let (seq, text, byte) = (Seq(seq.parse().ok()?), text.parse().ok()?, byte.parse().ok()?);
                (version, SearchPlace::Entry { seq, text, byte })
            }
            [version, output, line] => {
                let (output, line) = (OutputId::parse(output).ok()?, line.parse().ok()?);
                (version, SearchPlace::Output { output, line })
            }
            _ => return None,
        };
        Some(SearchPosition { version: Version(version.parse().ok()?), place })
    });
    parsed.map(Some).ok_or_else(|| Error::invalid("page_token", "is not one that a search has given"))
}

fn decode(token: &str) -> Option<String> {
    String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()
}

fn wrong_token() -> Error {
    Error::invalid("page_token", "is not one that this list has given")
}

//! Searches of transcripts between the wire and the engine.

use super::{convert, pages, pb};
use crate::engine::{
    Error, Found, FoundIn, LogRange, Pattern, SearchPosition, SearchTranscript, TranscriptPart,
};
use crate::format::{Role, TextKind};
use crate::limits::{SEARCH_CONTEXT_CHARACTERS_DEFAULT, SEARCH_MATCHES_DEFAULT};
use crate::model::{Seq, TenantId, Version};
use pb::search_transcript_response::{End, Matches, Part};

pub(super) fn request(
    tenant: &TenantId,
    request: pb::SearchTranscriptRequest,
) -> Result<SearchTranscript, Error> {
    let roles = request.roles.iter().enumerate().map(|(i, role)| match pb::Role::try_from(*role) {
        Ok(pb::Role::System) => Ok(Role::System),
        Ok(pb::Role::User) => Ok(Role::User),
        Ok(pb::Role::Model) => Ok(Role::Model),
        Ok(pb::Role::Tool) => Ok(Role::Results),
        Ok(pb::Role::Other) => Ok(Role::Unknown),
        Ok(pb::Role::Unspecified) | Err(_) => {
            Err(Error::invalid(format!("roles[{i}]"), format!("is {role}, which is not a known role")))
        }
    });
    let matches_max = if request.matches_max == 0 { SEARCH_MATCHES_DEFAULT } else { request.matches_max };
    Ok(SearchTranscript {
        key: convert::session_key(tenant, "session", &request.session)?,
        roles: roles.collect::<Result<_, _>>()?,
        pattern: Pattern {
            source: request.pattern,
            is_regex: request.is_regex,
            ignore_case: request.ignore_case,
        },
        tool_names: request.tool_names,
        range: LogRange {
            first: request.first_seq.map(Seq),
            last: request.last_seq.map(Seq),
            at_version: request.at_version.map(Version),
        },
        first_version: Version(request.first_version),
        oldest_first: request.oldest_first,
        include_outputs: request.include_tool_outputs,
        include_meta: request.include_meta,
        context_characters: request.context_characters.unwrap_or(SEARCH_CONTEXT_CHARACTERS_DEFAULT),
        matches_max,
        is_unlimited: request.unlimited,
        from: pages::read_search_token(&request.page_token)?,
    })
}

/// What a part of an answer is on the wire: matches, or the end.
pub(super) enum Told {
    Matches(Vec<pb::TranscriptMatch>),
    End(Part),
}

pub(super) fn told(part: TranscriptPart) -> Told {
    match part {
        TranscriptPart::Found(found) => Told::Matches(found.into_iter().map(found_to).collect()),
        TranscriptPart::End(next) => Told::End(end(next.as_ref())),
    }
}

fn end(next: Option<&SearchPosition>) -> Part {
    Part::End(End { next_page_token: next.map(pages::search_token).unwrap_or_default() })
}

pub(super) fn matches(matches: Vec<pb::TranscriptMatch>) -> Part {
    Part::Matches(Matches { matches })
}

fn found_to(found: Found) -> pb::TranscriptMatch {
    let (seq, place, reference, line) = match found.place {
        FoundIn::Entry(seq, kind) => {
            let place = match kind {
                TextKind::Said => pb::MatchPlace::Text,
                TextKind::CallName => pb::MatchPlace::CallName,
                TextKind::CallArguments => pb::MatchPlace::CallArguments,
                TextKind::Result => pb::MatchPlace::Result,
            };
            (seq.0, place, String::new(), 0)
        }
        FoundIn::Output(name, line) => (0, pb::MatchPlace::ToolOutput, name.storage_ref(), line),
    };
    let role = match found.role {
        Role::System => pb::Role::System,
        Role::User => pb::Role::User,
        Role::Model => pb::Role::Model,
        Role::Results => pb::Role::Tool,
        Role::Unknown => pb::Role::Other,
    };
    pb::TranscriptMatch {
        seq,
        version: found.version.0,
        role: role.into(),
        place: place.into(),
        tool_name: found.tool_name,
        tool_call_id: found.call_id,
        r#ref: reference,
        line,
        excerpt: found.excerpt,
        excerpt_first_byte: found.excerpt_at,
        first_byte: found.bytes.start,
        bytes: found.bytes.end.saturating_sub(found.bytes.start),
        text_bytes: found.text_bytes,
    }
}

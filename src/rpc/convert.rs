//! Values between the wire and the engine.

mod profile;

use super::pb;
use crate::clock::Micros;
use crate::engine::{
    Change, Error, FullReason, NewEntry, PersistReply, ReadHeader, SessionChange, SessionConfig, SessionView,
    Stall, WindowHeader,
};
use crate::limits::{MODEL_NAME_BYTES_MAX, OFFLOADED_RESULTS_BYTES_MAX, TOKENS_MAX, WINDOW_ID_BYTES_MAX};
use crate::model::{
    CompressionPath, Deletion, DeletionState, Entry, EntryKind, ForkOrigin, Item, NextStep, Origin,
    OutputName, Preamble, Repair, RepairKind, RequestId, SessionId, TenantId, Turn, TurnKind, UnansweredCall,
    Usage, WireFormat,
};
use crate::store::meta::SessionKey;
use bytes::Bytes;
use profile::{applied_limits, model_profile, profile_to};
use prost::Message as _;
use prost_types::Timestamp;

// --- From the wire -----------------------------------------------------------

/// Characters of a request's text that an error repeats: errors travel in
/// headers, which have little room.
const EXCERPT_CHARS: usize = 64;

pub(super) fn session_key(tenant: &TenantId, field: &str, name: &str) -> Result<SessionKey, Error> {
    let session =
        SessionId::from_resource_name(name).map_err(|problem| Error::invalid(field, problem.to_string()))?;
    Ok(SessionKey { tenant: tenant.clone(), session })
}

pub(super) fn session_id(field: &str, id: &str) -> Result<SessionId, Error> {
    SessionId::parse(id).map_err(|problem| Error::invalid(field, problem.to_string()))
}

pub(super) fn request_id(id: &str) -> Result<RequestId, Error> {
    RequestId::parse(id).map_err(|problem| Error::invalid("request_id", problem.to_string()))
}

/// A time, to the microsecond.
pub(super) fn time(field: &str, time: Option<Timestamp>) -> Result<Option<Micros>, Error> {
    // The range of google.protobuf.Timestamp: years 1 to 9999.
    const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;
    const NANOS: std::ops::Range<i32> = 0..1_000_000_000;
    match time {
        None => Ok(None),
        Some(Timestamp { seconds, nanos }) if SECONDS.contains(&seconds) && NANOS.contains(&nanos) => {
            Ok(Some(Micros(seconds * 1_000_000 + i64::from(nanos) / 1000)))
        }
        Some(_) => Err(Error::invalid(field, "is not within the years 1 to 9999")),
    }
}

pub(super) fn new_entries(field: &str, entries: Vec<pb::NewEntry>) -> Result<Vec<NewEntry>, Error> {
    let convert = |(i, entry): (usize, pb::NewEntry)| {
        let at = time(&format!("{field}[{i}].time"), entry.time)?;
        Ok(NewEntry { payload: entry.payload, kind: EntryKind::from_number(entry.kind), at })
    };
    entries.into_iter().enumerate().map(convert).collect()
}

pub(super) fn usage(usage: pb::Usage) -> Result<Usage, Error> {
    let pb::Usage {
        model,
        input_tokens,
        output_tokens,
        cache_read_tokens,
        cache_write_tokens,
        window_id,
        ..
    } = usage;
    if model.len() > MODEL_NAME_BYTES_MAX {
        let problem = format!("has {} bytes; at most {MODEL_NAME_BYTES_MAX} are allowed", model.len());
        return Err(Error::invalid("usage.model", problem));
    }
    if window_id.len() > WINDOW_ID_BYTES_MAX {
        let problem = format!("has {} bytes; at most {WINDOW_ID_BYTES_MAX} are allowed", window_id.len());
        return Err(Error::invalid("usage.window_id", problem));
    }
    for (field, tokens) in [
        ("usage.input_tokens", input_tokens),
        ("usage.output_tokens", output_tokens),
        ("usage.cache_read_tokens", cache_read_tokens),
        ("usage.cache_write_tokens", cache_write_tokens),
    ] {
        if tokens > TOKENS_MAX {
            return Err(Error::invalid(field, format!("is {tokens}; at most {TOKENS_MAX} are allowed")));
        }
    }
    Ok(Usage {
        model,
        input_tokens,
        output_tokens,
        cache_read_tokens,
        cache_write_tokens,
        window_id,
        counted_tokens: None,
    })
}

/// Configuration of a new session. Fields in errors are those of the session.
pub(super) fn session_config(session: pb::Session) -> Result<SessionConfig, Error> {
    let format = wire_format(session.format())
        .ok_or_else(|| Error::invalid("format", "is required and must be a known format"))?;
    Ok(SessionConfig {
        format,
        path: optional_path("path", session.path)?.unwrap_or_default(),
        profile: model_profile(session.profile.unwrap_or_default())?,
        labels: session.labels.into_iter().collect(),
        strip_rules: session.strip_rules,
        pin_statements: session.pin_statements,
        preamble: session.preamble.unwrap_or_default().payload,
    })
}

/// A change of the fields that a mask names.
pub(super) fn session_change(session: &pb::Session, mask: &[String]) -> Result<SessionChange, Error> {
    if mask.is_empty() {
        return Err(Error::invalid("update_mask", "names no field"));
    }
    let mut change = SessionChange {
        etag: (!session.etag.is_empty()).then(|| session.etag.clone()),
        ..SessionChange::default()
    };
    for path in mask {
        match path.as_str() {
            "path" => change.path = Some(optional_path("session.path", session.path)?.unwrap_or_default()),
            "profile" => {
                let profile = model_profile(session.profile.clone().unwrap_or_default());
                change.profile = Some(profile.map_err(|error| error.within("session"))?);
            }
            "labels" => change.labels = Some(session.labels.clone().into_iter().collect()),
            "strip_rules" => change.strip_rules = Some(session.strip_rules.clone()),
            "pin_statements" => change.pin_statements = Some(session.pin_statements),
            "preamble" => {
                let payload = session.preamble.clone().unwrap_or_default().payload;
                if payload.is_empty() {
                    return Err(Error::invalid("session.preamble.payload", "is required"));
                }
                change.preamble = Some(payload);
            }
            other => {
                let other: String = other.chars().take(EXCERPT_CHARS).collect();
                let problem = format!("names {other:?}, which is not a field that can be changed");
                return Err(Error::invalid("update_mask", problem));
            }
        }
    }
    Ok(change)
}

pub(super) fn wire_format(format: pb::WireFormat) -> Option<WireFormat> {
    match format {
        pb::WireFormat::Unspecified => None,
        pb::WireFormat::OpenaiChat => Some(WireFormat::OpenaiChat),
        pb::WireFormat::OpenaiResponses => Some(WireFormat::OpenaiResponses),
        pb::WireFormat::AnthropicMessages => Some(WireFormat::AnthropicMessages),
        pb::WireFormat::GeminiContents => Some(WireFormat::GeminiContents),
        pb::WireFormat::BedrockConverse => Some(WireFormat::BedrockConverse),
        pb::WireFormat::Opaque => Some(WireFormat::Opaque),
    }
}

pub(super) fn optional_path(field: &str, path: i32) -> Result<Option<CompressionPath>, Error> {
    match pb::CompressionPath::try_from(path) {
        Ok(pb::CompressionPath::Unspecified) => Ok(None),
        Ok(pb::CompressionPath::Interactive) => Ok(Some(CompressionPath::Interactive)),
        Ok(pb::CompressionPath::Batch) => Ok(Some(CompressionPath::Batch)),
        Ok(pb::CompressionPath::Automated) => Ok(Some(CompressionPath::Automated)),
        Err(_) => Err(Error::invalid(field, format!("is {path}, which is not a known path"))),
    }
}

// --- To the wire -------------------------------------------------------------

pub(super) fn timestamp(at: Micros) -> Timestamp {
    let nanos = i32::try_from(at.0.rem_euclid(1_000_000) * 1000).unwrap_or(0);
    Timestamp { seconds: at.0.div_euclid(1_000_000), nanos }
}

fn wire_format_to(format: WireFormat) -> pb::WireFormat {
    match format {
        WireFormat::OpenaiChat => pb::WireFormat::OpenaiChat,
        WireFormat::OpenaiResponses => pb::WireFormat::OpenaiResponses,
        WireFormat::AnthropicMessages => pb::WireFormat::AnthropicMessages,
        WireFormat::GeminiContents => pb::WireFormat::GeminiContents,
        WireFormat::BedrockConverse => pb::WireFormat::BedrockConverse,
        WireFormat::Opaque => pb::WireFormat::Opaque,
    }
}

fn preamble_to(preamble: Preamble) -> pb::Preamble {
    pb::Preamble { payload: preamble.payload, revision: preamble.revision, tokens: preamble.tokens }
}

pub(super) fn session(view: SessionView) -> pb::Session {
    let etag = view.etag();
    let SessionView { session, head, head_seq, log_tokens, preamble, stored_bytes } = view;
    let path = match session.path {
        CompressionPath::Interactive => pb::CompressionPath::Interactive,
        CompressionPath::Batch => pb::CompressionPath::Batch,
        CompressionPath::Automated => pb::CompressionPath::Automated,
    };
    let applied_limits = Some(applied_limits(&session));
    pb::Session {
        name: session.id.resource_name(),
        format: wire_format_to(session.format).into(),
        path: path.into(),
        profile: Some(profile_to(session.profile)),
        labels: session.labels.into_iter().collect(),
        strip_rules: session.strip_rules,
        preamble: preamble.map(preamble_to),
        etag,
        version: head.version.0,
        head_seq: head_seq.0,
        window_revision: head.window_revision,
        log_tokens,
        create_time: Some(timestamp(session.created_at)),
        update_time: Some(timestamp(head.updated_at)),
        forked_from: session.forked_from.as_ref().map(origin),
        stored_bytes,
        continued_from: session.continued_from.as_ref().map(origin),
        applied_limits,
        pin_statements: session.pin_statements,
    }
}

fn origin(origin: &ForkOrigin) -> pb::ForkOrigin {
    pb::ForkOrigin { session: origin.session.resource_name(), version: origin.version.0 }
}

pub(super) fn turn(turn: Turn) -> pb::Turn {
    let kind = match turn.kind {
        TurnKind::Genesis => pb::TurnKind::Unspecified,
        TurnKind::Persist => pb::TurnKind::Persist,
        TurnKind::Rewind => pb::TurnKind::Rewind,
        TurnKind::Fork => pb::TurnKind::Fork,
    };
    pb::Turn {
        version: turn.version.0,
        kind: kind.into(),
        first_seq: turn.first_seq.0,
        last_seq: turn.last_seq.0,
        request_id: turn.request_id.to_string(),
        receipt: Bytes::copy_from_slice(&turn.receipt.0),
        tokens: turn.tokens,
        payload_bytes: turn.payload_bytes,
        create_time: Some(timestamp(turn.created_at)),
        usage: turn.usage.map(usage_to),
        score: turn.score,
        step_kind: turn.step_kind,
        base_version: turn.base_version.0,
    }
}

fn usage_to(usage: Usage) -> pb::Usage {
    let counted_tokens = usage.counted_tokens;
    let Usage {
        model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, window_id, ..
    } = usage;
    pb::Usage {
        model,
        input_tokens,
        output_tokens,
        cache_read_tokens,
        cache_write_tokens,
        window_id,
        counted_tokens,
    }
}

pub(super) fn deletion(deletion: &Deletion) -> pb::DeletionReceipt {
    let state = match deletion.state {
        DeletionState::Pending => pb::DeletionState::Pending,
        DeletionState::Erased => pb::DeletionState::Erased,
        DeletionState::RetainedByForks => pb::DeletionState::RetainedByForks,
    };
    pb::DeletionReceipt {
        session: deletion.session.resource_name(),
        state: state.into(),
        retained_by: deletion.retained_by.iter().map(SessionId::resource_name).collect(),
        objects_pending: deletion.objects_pending,
        delete_time: Some(timestamp(deletion.deleted_at)),
        erase_time: deletion.erased_at.map(timestamp),
    }
}

pub(super) fn entry(entry: &Entry) -> pb::Entry {
    pb::Entry {
        seq: entry.seq.0,
        version: entry.version.0,
        time: Some(timestamp(entry.at)),
        kind: entry.kind.number(),
        tokens: entry.tokens,
        payload: entry.payload.clone(),
    }
}

pub(super) fn persist_reply(session: &SessionId, reply: PersistReply) -> pb::PersistTranscriptResponse {
    use crate::engine::Compaction;
    let compaction = match reply.compaction {
        None => pb::CompactionAdvice::Unspecified,
        Some(Compaction::None) => pb::CompactionAdvice::None,
        Some(Compaction::Advised) => pb::CompactionAdvice::Advised,
        Some(Compaction::Required) => pb::CompactionAdvice::Required,
    };
    let stripped = reply.stripped.into_iter().map(|stripped| pb::StrippedEntries {
        rule: stripped.rule,
        count: stripped.count,
        payload_bytes: stripped.payload_bytes,
    });
    let mut bytes = 0;
    let offloaded = reply
        .offloaded
        .into_iter()
        .map(|offloaded| pb::OffloadedToolResult {
            seq: offloaded.seq.0,
            r#ref: OutputName { session: session.clone(), output: offloaded.output }.storage_ref(),
            tool_call_id: offloaded.tool_call_id,
            bytes: offloaded.bytes,
        })
        .take_while(|offloaded| {
            // With its tag and length.
            bytes += offloaded.encoded_len() + 4;
            bytes <= OFFLOADED_RESULTS_BYTES_MAX
        });
    pb::PersistTranscriptResponse {
        version: reply.version.0,
        receipt: Bytes::copy_from_slice(&reply.receipt.0),
        first_seq: reply.first_seq.0,
        last_seq: reply.last_seq.0,
        stripped: stripped.collect(),
        changed_entries: reply.changed.iter().map(entry).collect(),
        turn_tokens: reply.turn_tokens,
        log_tokens: reply.log_tokens,
        window_fill: reply.window_fill,
        compaction: compaction.into(),
        window_id: reply.window_id,
        rewound_to_version: reply.rewound_to.map(|version| version.0),
        offloaded_results: offloaded.collect(),
        stall: reply.stall.map(stall),
    }
}

pub(super) fn read_header(header: &ReadHeader) -> pb::ReadHeader {
    pb::ReadHeader {
        version: header.version.0,
        format: wire_format_to(header.format).into(),
        head_seq: header.head_seq.0,
        receipt: Bytes::copy_from_slice(&header.receipt.0),
        version_time: Some(timestamp(header.at)),
    }
}

pub(super) fn item(item: &Item) -> pb::WindowItem {
    let origin = match item.origin {
        Origin::Log => pb::ItemOrigin::Log,
        Origin::Snipped => pb::ItemOrigin::Snipped,
        Origin::Summary => pb::ItemOrigin::Summary,
        Origin::Pin => pb::ItemOrigin::Pin,
        Origin::Notice => pb::ItemOrigin::Notice,
        Origin::Repair => pb::ItemOrigin::Repair,
    };
    pb::WindowItem {
        payload: item.payload.clone(),
        origin: origin.into(),
        seqs: item.seqs.iter().map(|seq| seq.0).collect(),
        tokens: item.tokens,
    }
}

pub(super) fn window_header(header: WindowHeader) -> pb::WindowHeader {
    use pb::window_change::{Change as Wire, Delta, Full, Unchanged};
    let change = match header.change {
        Change::Unchanged => Wire::Unchanged(Unchanged {}),
        Change::Delta { base_items } => Wire::Delta(Delta { base_items: base_items as u64 }),
        Change::Full(reason) => Wire::Full(Full { reason: full_reason(reason).into() }),
    };
    let next = match header.next {
        NextStep::Unknown => pb::NextStep::Unspecified,
        NextStep::UserInput => pb::NextStep::UserInput,
        NextStep::ToolResults => pb::NextStep::ToolResults,
        NextStep::Model => pb::NextStep::Model,
    };
    pb::WindowHeader {
        version: header.version.0,
        window_id: header.window_id,
        change: Some(pb::WindowChange { change: Some(change) }),
        item_count: header.item_count as u64,
        stable_prefix_items: header.stable_prefix_items as u64,
        format: wire_format_to(header.format).into(),
        profile: Some(profile_to(header.profile)),
        preamble: header.preamble.map(preamble_to),
        tokens_before: header.tokens_before,
        tokens_after: header.tokens_after,
        reserve_tokens: header.reserve,
        fits: header.fits,
        token_factor_permille: header.factor.permille(),
        repair_count: header.repair_count as u64,
        repairs: header.repairs.into_iter().map(repair).collect(),
        unanswered_calls: header.unanswered.into_iter().map(unanswered_call).collect(),
        next: next.into(),
        tokens_estimated: header.tokens_estimated,
        cut: header.cut.map(|cut| pb::WindowCut {
            compaction: header.window_state,
            first_kept_seq: cut.first_kept.0,
            omitted_entries: cut.omitted_entries,
            omitted_tokens: cut.omitted_tokens,
            for_this_request: header.is_cut_for_request,
        }),
        stall: header.stall.map(stall),
    }
}

/// A stall on the wire.
pub(super) fn stall(stall: Stall) -> pb::CompactionStall {
    let Stall { compactions, limit_tokens, window_tokens, last_step_tokens, preamble_tokens } = stall;
    pb::CompactionStall { compactions, limit_tokens, window_tokens, last_step_tokens, preamble_tokens }
}

fn full_reason(reason: FullReason) -> pb::FullReason {
    match reason {
        FullReason::NotConditional => pb::FullReason::NotConditional,
        FullReason::UnknownWindow => pb::FullReason::UnknownWindow,
        FullReason::Rewound => pb::FullReason::Rewound,
        FullReason::Revised => pb::FullReason::Revised,
        FullReason::ParametersChanged => pb::FullReason::ParametersChanged,
        FullReason::NothingInCommon => pb::FullReason::NothingInCommon,
    }
}

fn repair(repair: Repair) -> pb::Repair {
    let kind = match repair.kind {
        RepairKind::ResultAdded => pb::RepairKind::ResultAdded,
        RepairKind::OrphanResultOmitted => pb::RepairKind::OrphanResultOmitted,
        RepairKind::DuplicateResultOmitted => pb::RepairKind::DuplicateResultOmitted,
        RepairKind::ResultMoved => pb::RepairKind::ResultMoved,
        RepairKind::Merged => pb::RepairKind::Merged,
        RepairKind::EmptyBlockOmitted => pb::RepairKind::EmptyBlockOmitted,
        RepairKind::IdRenamed => pb::RepairKind::IdRenamed,
        RepairKind::DuplicateItemOmitted => pb::RepairKind::DuplicateItemOmitted,
        RepairKind::ReasoningOmitted => pb::RepairKind::ReasoningOmitted,
        RepairKind::OpeningAdded => pb::RepairKind::OpeningAdded,
        RepairKind::EntryOmitted => pb::RepairKind::EntryOmitted,
        RepairKind::CacheMarkOmitted => pb::RepairKind::CacheMarkOmitted,
        RepairKind::ValueReplaced => pb::RepairKind::ValueReplaced,
    };
    pb::Repair {
        kind: kind.into(),
        seqs: repair.seqs.iter().map(|seq| seq.0).collect(),
        id: repair.id,
        detail: repair.detail,
    }
}

fn unanswered_call(call: UnansweredCall) -> pb::UnansweredCall {
    pb::UnansweredCall { call_id: call.call_id, name: call.name, seq: call.seq.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::OffloadedResult;
    use crate::model::{Digest, OutputId, Seq, Version};

    #[test]
    fn an_answer_about_many_outputs_fits_a_message() {
        let offloaded = |i: u64| OffloadedResult {
            seq: Seq(i),
            output: OutputId::parse(&format!("{i:032}")).unwrap(),
            tool_call_id: "c".repeat(256),
            bytes: i,
        };
        let reply = |outputs: u64| PersistReply {
            version: Version(1),
            receipt: Digest::default(),
            first_seq: Seq(1),
            last_seq: Seq(outputs),
            stripped: vec![],
            turn_tokens: 0,
            log_tokens: 0,
            window_fill: None,
            compaction: None,
            stall: None,
            window_id: String::new(),
            rewound_to: None,
            offloaded: (1..=outputs).map(offloaded).collect(),
            changed: vec![],
        };
        let session = SessionId::parse(&"s".repeat(128)).unwrap();
        let few = persist_reply(&session, reply(2_000));
        assert_eq!(few.offloaded_results.len(), 2_000);
        let many = persist_reply(&session, reply(50_000));
        assert!(many.offloaded_results.starts_with(&few.offloaded_results));
        let bytes = many.encoded_len();
        let most = OFFLOADED_RESULTS_BYTES_MAX + 256;
        assert!((most - (8 << 10)..=most).contains(&bytes), "{bytes}");
    }
}

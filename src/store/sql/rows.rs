//! Columns of the tables and the values that they are read as.

use super::connection::{Arg, Row, args};
use crate::clock::Micros;
use crate::codec::manifest::Config;
use crate::model::{
    Branch, BranchId, Calibration, ChangedEntry, Digest, Head, Output, OutputId, Preamble, RequestId,
    Segment, Seq, Session, SessionId, TenantId, Turn, TurnKind, Usage, Version,
};
use crate::store::meta::{JournalRow, RecordedTurn};
use crate::store::{ErrorKind, StoreError};

/// Columns of `branch`, in the order in which [`branch`] reads them.
macro_rules! branch_columns {
    ($table:literal) => {
        concat!(
            $table,
            ".branch_id, ",
            $table,
            ".session_id, ",
            $table,
            ".parent_branch_id, ",
            $table,
            ".base_version, ",
            $table,
            ".base_seq, ",
            $table,
            ".first_version, ",
            $table,
            ".sealed_seq, ",
            $table,
            ".sealed_version, ",
            $table,
            ".created_at"
        )
    };
}

/// Columns of `turn`, in the order in which [`recorded_turn`] reads them.
macro_rules! turn_columns {
    ($table:literal) => {
        concat!(
            $table,
            ".branch_id, ",
            $table,
            ".version, ",
            $table,
            ".kind, ",
            $table,
            ".base_version, ",
            $table,
            ".first_seq, ",
            $table,
            ".last_seq, ",
            $table,
            ".request_id, ",
            $table,
            ".request_digest, ",
            $table,
            ".entries_digest, ",
            $table,
            ".receipt, ",
            $table,
            ".prefix_digest, ",
            $table,
            ".calls, ",
            $table,
            ".tokens, ",
            $table,
            ".log_tokens, ",
            $table,
            ".payload_bytes, ",
            $table,
            ".report, ",
            $table,
            ".created_at, ",
            $table,
            ".reply"
        )
    };
}

/// Columns of `journal`, in the order in which [`journal_row`] reads them.
macro_rules! journal_columns {
    ($table:literal) => {
        concat!(
            $table,
            ".version, ",
            $table,
            ".first_seq, ",
            $table,
            ".last_seq, ",
            $table,
            ".raw_bytes, ",
            $table,
            ".body, ",
            $table,
            ".created_at"
        )
    };
}

/// Columns of `segment`, in the order in which [`segment`] reads them.
macro_rules! segment_columns {
    () => {
        "branch_id, first_version, last_version, first_seq, last_seq, blob_key, sha256, stored_bytes, raw_bytes, \
         format, created_at"
    };
}

pub(super) use {branch_columns, journal_columns, segment_columns, turn_columns};

pub(super) fn corrupt(what: impl std::fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format!("unexpected value in a row: {what}"))
}

pub(super) fn tenant_id(row: &mut Row) -> Result<TenantId, StoreError> {
    TenantId::parse(&row.next::<String>()?).map_err(corrupt)
}

pub(super) fn session_id(row: &mut Row) -> Result<SessionId, StoreError> {
    SessionId::parse(&row.next::<String>()?).map_err(corrupt)
}

pub(super) fn branch_id(row: &mut Row) -> Result<BranchId, StoreError> {
    BranchId::parse(&row.next::<String>()?).map_err(corrupt)
}

pub(super) fn output_id(row: &mut Row) -> Result<OutputId, StoreError> {
    OutputId::parse(&row.next::<String>()?).map_err(corrupt)
}

pub(super) fn micros(row: &mut Row) -> Result<Micros, StoreError> {
    row.next().map(Micros)
}

pub(super) fn digest(row: &mut Row) -> Result<Digest, StoreError> {
    to_digest(&row.next::<Vec<u8>>()?)
}

fn to_digest(bytes: &[u8]) -> Result<Digest, StoreError> {
    Digest::from_slice(bytes).ok_or_else(|| corrupt("a digest of other than 32 bytes"))
}

/// Reads `session_id, config, created_at`.
pub(super) fn session(row: &mut Row) -> Result<Session, StoreError> {
    let id = session_id(row)?;
    let config: Config = serde_json::from_str(&row.next::<String>()?).map_err(corrupt)?;
    Ok(config.into_session(id, micros(row)?))
}

/// Columns of `head`, in the order in which [`head`] reads them.
macro_rules! head_columns {
    () => {
        "head.version, head.branch_id, head.receipt, head.config_revision, head.window_revision, head.preamble_revision, \
         head.preamble_tokens, head.journal_bytes, head.fence, head.updated_at, head.window_state, \
         head.window_offset, head.calibration"
    };
}
pub(super) use head_columns;

pub(super) fn head(row: &mut Row) -> Result<Head, StoreError> {
    Ok(Head {
        version: Version(row.next()?),
        branch: branch_id(row)?,
        receipt: digest(row)?,
        config_revision: row.next()?,
        window_revision: row.next()?,
        preamble_revision: row.next()?,
        preamble_tokens: row.next()?,
        journal_bytes: row.next()?,
        fence: row.next()?,
        updated_at: micros(row)?,
        window_state: row.next()?,
        window_offset: row.next()?,
        calibration: calibration(row.next()?)?,
    })
}

fn calibration(json: Option<String>) -> Result<Option<Calibration>, StoreError> {
    json.map(|json| serde_json::from_str(&json)).transpose().map_err(corrupt)
}

/// A calibration as a value.
pub(super) fn calibration_arg(calibration: Option<&Calibration>) -> Result<Option<String>, StoreError> {
    let json = |error| StoreError::caused(ErrorKind::Internal, "encode a calibration", error);
    calibration.map(serde_json::to_string).transpose().map_err(json)
}

pub(super) fn branch(row: &mut Row) -> Result<Branch, StoreError> {
    Ok(Branch {
        id: branch_id(row)?,
        session: session_id(row)?,
        parent: row.next::<Option<String>>()?.map(|id| BranchId::parse(&id)).transpose().map_err(corrupt)?,
        base_version: Version(row.next()?),
        base_seq: Seq(row.next()?),
        first_version: Version(row.next()?),
        sealed_seq: Seq(row.next()?),
        sealed_version: Version(row.next()?),
        created_at: micros(row)?,
    })
}

/// Arguments for `tenant` and the columns of [`branch_columns`].
pub(super) fn branch_args<'a>(tenant: &'a TenantId, branch: &'a Branch) -> Vec<Arg<'a>> {
    args![
        tenant,
        &branch.id,
        &branch.session,
        branch.parent.as_ref().map(BranchId::as_str),
        branch.base_version,
        branch.base_seq,
        branch.first_version,
        branch.sealed_seq,
        branch.sealed_version,
        branch.created_at,
    ]
}

/// What a worker reports of a turn, as JSON in one column.
#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Report {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    step_kind: String,
}

pub(super) fn recorded_turn(row: &mut Row) -> Result<RecordedTurn, StoreError> {
    let branch = branch_id(row)?;
    let version = Version(row.next()?);
    let kind: String = row.next()?;
    let kind = TurnKind::from_name(&kind).ok_or_else(|| corrupt(kind))?;
    let base_version = Version(row.next()?);
    let first_seq = Seq(row.next()?);
    let last_seq = Seq(row.next()?);
    let request_id = RequestId::parse(&row.next::<String>()?).map_err(corrupt)?;
    let request_digest = digest(row)?;
    let entries_digest = digest(row)?;
    let receipt = digest(row)?;
    let prefix_digest = digest(row)?;
    let calls = serde_json::from_str(&row.next::<String>()?).map_err(corrupt)?;
    let tokens = row.next()?;
    let log_tokens = row.next()?;
    let payload_bytes = row.next()?;
    let report =
        row.next::<Option<String>>()?.map(|json| serde_json::from_str(&json)).transpose().map_err(corrupt)?;
    let Report { usage, score, step_kind } = report.unwrap_or_default();
    let created_at = micros(row)?;
    let turn = Turn {
        branch,
        version,
        kind,
        base_version,
        first_seq,
        last_seq,
        request_id,
        request_digest,
        entries_digest,
        receipt,
        prefix_digest,
        calls,
        tokens,
        log_tokens,
        payload_bytes,
        usage,
        score,
        step_kind,
        created_at,
    };
    Ok(RecordedTurn { turn, reply: row.next()? })
}

/// Arguments for `tenant, session_id` and the columns of [`turn_columns`].
pub(super) fn turn_args<'a>(
    tenant: &'a TenantId,
    session: &'a SessionId,
    recorded: &'a RecordedTurn,
) -> Result<Vec<Arg<'a>>, StoreError> {
    let RecordedTurn { turn, reply } = recorded;
    let json = |error| StoreError::caused(ErrorKind::Internal, "encode a turn", error);
    let report = if turn.usage.is_none() && turn.score.is_none() && turn.step_kind.is_empty() {
        None
    } else {
        let report =
            Report { usage: turn.usage.clone(), score: turn.score, step_kind: turn.step_kind.clone() };
        Some(serde_json::to_string(&report).map_err(json)?)
    };
    Ok(args![
        tenant,
        session,
        &turn.branch,
        turn.version,
        turn.kind.as_str(),
        turn.base_version,
        turn.first_seq,
        turn.last_seq,
        &turn.request_id,
        turn.request_digest,
        turn.entries_digest,
        turn.receipt,
        turn.prefix_digest,
        serde_json::to_string(&turn.calls).map_err(json)?,
        turn.tokens,
        turn.log_tokens,
        turn.payload_bytes,
        report,
        turn.created_at,
        reply.as_str(),
    ])
}

pub(super) fn journal_row(row: &mut Row) -> Result<JournalRow, StoreError> {
    let version = Version(row.next()?);
    journal_row_after(version, row)
}

/// Reads the rest of a journal row, after its version.
pub(super) fn journal_row_after(version: Version, row: &mut Row) -> Result<JournalRow, StoreError> {
    Ok(JournalRow {
        version,
        first_seq: Seq(row.next()?),
        last_seq: Seq(row.next()?),
        raw_bytes: row.next()?,
        body: row.next::<Vec<u8>>()?.into(),
        created_at: micros(row)?,
    })
}

pub(super) fn segment(row: &mut Row) -> Result<Segment, StoreError> {
    Ok(Segment {
        branch: branch_id(row)?,
        first_version: Version(row.next()?),
        last_version: Version(row.next()?),
        first_seq: Seq(row.next()?),
        last_seq: Seq(row.next()?),
        key: row.next()?,
        sha256: digest(row)?,
        stored_bytes: row.next()?,
        raw_bytes: row.next()?,
        format: u32::try_from(row.next::<u64>()?).map_err(corrupt)?,
        created_at: micros(row)?,
    })
}

/// Arguments for `tenant` and the columns of [`segment_columns`].
pub(super) fn segment_args<'a>(tenant: &'a TenantId, segment: &'a Segment) -> Vec<Arg<'a>> {
    args![
        tenant,
        &segment.branch,
        segment.first_version,
        segment.last_version,
        segment.first_seq,
        segment.last_seq,
        segment.key.as_str(),
        segment.sha256,
        segment.stored_bytes,
        segment.raw_bytes,
        segment.format,
        segment.created_at,
    ]
}

/// Columns of `output`, in the order in which [`output`] reads them.
macro_rules! output_columns {
    () => {
        "output.output_id, output.branch_id, output.version, output.tool_call_id, output.tool_name, \
         output.content_type, output.bytes, output.characters, output.lines, output.sha256, output.blob_key, \
         output.stored_bytes, output.tail_at, output.format, output.created_at, output.stored_entry_digest, \
         output.received_entry_digest"
    };
}
pub(super) use output_columns;

pub(super) fn output(row: &mut Row) -> Result<Output, StoreError> {
    Ok(Output {
        id: output_id(row)?,
        branch: branch_id(row)?,
        version: Version(row.next()?),
        tool_call_id: row.next()?,
        tool_name: row.next()?,
        content_type: row.next()?,
        bytes: row.next()?,
        characters: row.next()?,
        lines: row.next()?,
        sha256: digest(row)?,
        key: row.next()?,
        stored_bytes: row.next()?,
        tail_at: row.next()?,
        format: u32::try_from(row.next::<u64>()?).map_err(corrupt)?,
        created_at: micros(row)?,
        entry: match (row.next::<Option<Vec<u8>>>()?, row.next::<Option<Vec<u8>>>()?) {
            (Some(stored), Some(received)) => {
                Some(ChangedEntry { stored: to_digest(&stored)?, received: to_digest(&received)? })
            }
            _ => None,
        },
    })
}

/// Arguments for `tenant` and the columns of [`output_columns`].
pub(super) fn output_args<'a>(tenant: &'a TenantId, output: &'a Output) -> Vec<Arg<'a>> {
    args![
        tenant,
        &output.id,
        &output.branch,
        output.version,
        output.tool_call_id.as_str(),
        output.tool_name.as_str(),
        output.content_type.as_str(),
        output.bytes,
        output.characters,
        output.lines,
        output.sha256,
        output.key.as_deref(),
        output.stored_bytes,
        output.tail_at,
        output.format,
        output.created_at,
        output.entry.map(|entry| entry.stored),
        output.entry.map(|entry| entry.received),
    ]
}

pub(super) fn preamble(row: &mut Row) -> Result<Preamble, StoreError> {
    Ok(Preamble {
        revision: row.next()?,
        since_version: Version(row.next()?),
        tokens: row.next()?,
        payload: row.next::<Vec<u8>>()?.into(),
    })
}

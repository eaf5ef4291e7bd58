//! Compactions on the wire.

use super::transcript_service::Transcripts;
use super::{convert, pages, pb};
use crate::engine::{CompactRequest, Error, Strategy};
use crate::limits::{COMPACT_RESERVE, SUMMARY_INSTRUCTIONS_BYTES_MAX, TOKENS_MAX};
use crate::model::{AuditLoss, AuditTally, Pin, RecordedState, Seq, SessionId, StateKind, TenantId, Version};
use crate::store::meta::SessionKey;
use std::time::Duration;

impl Transcripts {
    pub(super) async fn compact(
        &self,
        request: pb::CompactTranscriptRequest,
        allowed: Duration,
    ) -> Result<pb::CompactTranscriptResponse, Error> {
        let key = convert::session_key(&self.tenant, "session", &request.session)?;
        let strategy = pb::CompactionStrategy::try_from(request.strategy);
        if strategy != Ok(pb::CompactionStrategy::Summarize) && !request.instructions.is_empty() {
            return Err(Error::invalid("instructions", "are for SUMMARIZE: no other strategy asks a model"));
        }
        let strategy = match strategy {
            Ok(pb::CompactionStrategy::Unspecified | pb::CompactionStrategy::Truncate) => {
                if request.target_tokens.is_some_and(|tokens| tokens == 0 || tokens > TOKENS_MAX) {
                    let problem = format!("must be 1 to {TOKENS_MAX}");
                    return Err(Error::invalid("target_tokens", problem));
                }
                Strategy::Truncate { target_tokens: request.target_tokens }
            }
            Ok(pb::CompactionStrategy::LastMessages) if request.messages == 0 => {
                return Err(Error::invalid("messages", "must be at least 1"));
            }
            Ok(pb::CompactionStrategy::LastMessages) => Strategy::LastMessages { messages: request.messages },
            Ok(pb::CompactionStrategy::Summarize) => {
                if request.target_tokens.is_some() {
                    let problem = "is not for SUMMARIZE: the settings say what stays";
                    return Err(Error::invalid("target_tokens", problem));
                }
                if request.messages > 0 {
                    return Err(Error::invalid("messages", "is for LAST_MESSAGES"));
                }
                check_instructions(&request.instructions)?;
                // The extract that may have to take the place needs a little of the time.
                let wait = allowed.saturating_sub((allowed / 4).min(COMPACT_RESERVE));
                Strategy::Summarize { instructions: request.instructions, wait }
            }
            Err(_) => {
                let problem = format!("is {}, which is not a known strategy", request.strategy);
                return Err(Error::invalid("strategy", problem));
            }
        };
        let expected_version = request.expected_version.map(Version);
        let compact = CompactRequest { key: key.clone(), strategy: strategy.clone(), expected_version };
        let compacted = self.engine.compact(compact).await?;
        let compaction = compacted.map(|state| compaction(&key.session, state));
        let stall = self.engine.shortfall(&key, &strategy).await?.map(convert::stall);
        Ok(pb::CompactTranscriptResponse { compaction, stall })
    }

    pub(super) async fn plan_compaction(
        &self,
        request: pb::PlanCompactionRequest,
    ) -> Result<pb::PlanCompactionResponse, Error> {
        let key = convert::session_key(&self.tenant, "session", &request.session)?;
        check_instructions(&request.instructions)?;
        let source_max = (request.source_tokens_max > 0).then_some(request.source_tokens_max);
        let task = self.engine.plan_compaction(&key, &request.instructions, source_max).await?;
        let plan = task.map(|task| pb::CompactionPlan {
            version: task.version.0,
            base_seq: task.base.0,
            first_kept_seq: task.first_kept.0,
            system: task.request.system,
            source: task.request.user,
            max_output_tokens: task.request.max_output_tokens,
            summary_tokens_max: task.tokens_max,
        });
        Ok(pb::PlanCompactionResponse { plan })
    }

    pub(super) async fn commit_compaction(
        &self,
        request: pb::CommitCompactionRequest,
    ) -> Result<pb::Compaction, Error> {
        let key = convert::session_key(&self.tenant, "session", &request.session)?;
        let plan = request.plan.ok_or_else(|| Error::invalid("plan", "must be set"))?;
        let places = (Version(plan.version), Seq(plan.base_seq), Seq(plan.first_kept_seq));
        let usage = convert::usage(request.usage.unwrap_or_default())?;
        let committed = self.engine.commit_compaction(&key, places, request.summary, usage).await?;
        Ok(compaction(&key.session, committed))
    }

    pub(super) async fn list_compactions(
        &self,
        request: pb::ListCompactionsRequest,
    ) -> Result<pb::ListCompactionsResponse, Error> {
        let key = convert::session_key(&self.tenant, "parent", &request.parent)?;
        let before = pages::read_compaction_token(&request.page_token)?;
        let limit = pages::page_size(request.page_size)?;
        let page = self.engine.list_compactions(&key, before, limit).await?;
        Ok(pb::ListCompactionsResponse {
            compactions: page.compactions.into_iter().map(|state| compaction(&key.session, state)).collect(),
            next_page_token: page.next.map(pages::compaction_token).unwrap_or_default(),
        })
    }

    pub(super) async fn get_compaction(
        &self,
        request: pb::GetCompactionRequest,
    ) -> Result<pb::Compaction, Error> {
        let (key, number) = compaction_key(&self.tenant, &request.name)?;
        Ok(compaction(&key.session, self.engine.get_compaction(&key, number).await?))
    }

    pub(super) async fn undo_compaction(
        &self,
        request: pb::UndoCompactionRequest,
    ) -> Result<pb::Compaction, Error> {
        let (key, number) = compaction_key(&self.tenant, &request.name)?;
        Ok(compaction(&key.session, self.engine.undo_compaction(&key, number).await?))
    }
}

fn check_instructions(text: &str) -> Result<(), Error> {
    if text.len() > SUMMARY_INSTRUCTIONS_BYTES_MAX {
        let problem = format!("must have at most {SUMMARY_INSTRUCTIONS_BYTES_MAX} bytes");
        return Err(Error::invalid("instructions", problem));
    }
    Ok(())
}

/// The session and the number in `sessions/{session}/compactions/{number}`.
fn compaction_key(tenant: &TenantId, name: &str) -> Result<(SessionKey, u64), Error> {
    let wrong = || Error::invalid("name", "must have the form `sessions/{session}/compactions/{number}`");
    let (session, number) = name.split_once("/compactions/").ok_or_else(wrong)?;
    let number = number.parse().map_err(|_| wrong())?;
    Ok((convert::session_key(tenant, "name", session)?, number))
}

fn compaction(session: &SessionId, recorded: RecordedState) -> pb::Compaction {
    let RecordedState { branch: _, number, version, kind, state, record, created_at } = recorded;
    let factor = state.calibration.as_ref().map(|calibration| calibration.permille).unwrap_or_default();
    let name = |number| format!("{}/compactions/{number}", session.resource_name());
    let kind = match kind {
        StateKind::Pins | StateKind::Rewind | StateKind::Calibrate => pb::CompactionKind::Unspecified,
        StateKind::Truncate => pb::CompactionKind::Truncate,
        StateKind::Snip => pb::CompactionKind::Snip,
        StateKind::Summarize => pb::CompactionKind::Summarize,
        StateKind::Collapse => pb::CompactionKind::Collapse,
        StateKind::Undo => pb::CompactionKind::Undo,
    };
    let cut = state.cut.unwrap_or_default();
    let summary = state.summary.unwrap_or_default();
    pb::Compaction {
        name: name(number),
        kind: kind.into(),
        version: version.0,
        create_time: Some(convert::timestamp(created_at)),
        cause: record.cause,
        tokens_before: record.tokens_before,
        tokens_after: record.tokens_after,
        first_kept_seq: cut.first_kept.0,
        kept_seqs: cut.kept().iter().map(|seq| seq.0).collect(),
        omitted_entries: cut.omitted_entries,
        omitted_tokens: cut.omitted_tokens,
        snipped_seqs: state.snipped.iter().map(|seq| seq.0).collect(),
        stale_seqs: state.stale.keys().map(|seq| seq.0).collect(),
        summary: summary.text,
        ledger: summary.ledger,
        pins: state.pins.into_iter().map(pin).collect(),
        undone: record.undone.map(name).unwrap_or_default(),
        summarizer: record.summarizer.map(|call| pb::SummarizerCall {
            model: call.model,
            input_tokens: call.input_tokens,
            output_tokens: call.output_tokens,
            cost_picodollars: call.cost.map(|cost| cost.0),
            failure: call.failure,
            unsupported: call.unsupported,
        }),
        audit: record.audit.tallies.into_iter().map(tally).collect(),
        losses: record.audit.losses.into_iter().map(loss).collect(),
        cache: (!record.cache.is_nothing()).then(|| pb::CacheBreak {
            kept_tokens: record.cache.kept_tokens,
            resent_tokens: record.cache.resent_tokens,
            cost_picodollars: record.cache.cost.map(|cost| cost.0),
        }),
        token_factor_permille: factor.permille(),
        without_relief: match kind {
            pb::CompactionKind::Summarize | pb::CompactionKind::Collapse => {
                state.unrelieved.map_or(0, |found| found.in_a_row)
            }
            _ => 0,
        },
    }
}

fn tally(tally: AuditTally) -> pb::AuditTally {
    pb::AuditTally { subject: tally.subject, kept: tally.kept, lost: tally.lost }
}

fn loss(loss: AuditLoss) -> pb::AuditLoss {
    pb::AuditLoss { subject: loss.subject, text: loss.text, seq: loss.seq.0 }
}

/// A pin on the wire.
pub(super) fn pin(pin: Pin) -> pb::Pin {
    pb::Pin { name: pin.name, text: pin.text, seq: pin.seq.map_or(0, |seq| seq.0) }
}

/// A pin from the wire.
pub(super) fn read_pin(pin: pb::Pin) -> Pin {
    Pin { name: pin.name, text: pin.text, seq: (pin.seq > 0).then_some(Seq(pin.seq)) }
}

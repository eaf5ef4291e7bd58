//! What is kept of entries that leave a window: pins, the ledger, what was said.

use super::compaction_options::CompactionOptions;
use super::log::Position;
use super::{Engine, Error, compute};
use crate::codec::digest;
use crate::limits::{AUDIT_LOSSES_MAX, FIRST_MESSAGE_TOKENS, LEDGER_PERCENT, PINS_MAX};
use crate::model::{
    AuditLoss, AuditReport, AuditTally, Cut, Entry, EntryKind, Pin, Seq, Session, Summary, WindowState,
    WireFormat, percent,
};
use crate::store::meta::SessionKey;
use crate::summary::audit::{Subject, audit};
use crate::summary::extract::Extract;
use crate::summary::ledger::Ledger;
use crate::summary::literals::{self, Findings, Statement};
use crate::summary::{Said, Speaker};
use crate::tokens::TokenCounter;

/// What code knows of the entries that left, from one compaction to the next.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
struct Known {
    #[serde(default)]
    ledger: Ledger,
    #[serde(default)]
    extract: Extract,
    /// The last text that a model wrote: the extract is of what left after it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    written: String,
}

/// What stands in a window for what left, apart from pins.
#[derive(Clone, Debug)]
pub(super) enum Text {
    /// What stood there before.
    AsBefore,
    /// What a model wrote of the entries up to that one.
    Summary { text: String, covers: Seq },
    /// What code extracts.
    Extract,
}

/// A window state after entries left, and what was found in these.
pub(super) struct Left {
    pub(super) state: WindowState,
    pub(super) findings: Findings,
}

impl Engine {
    /// The entries that a window shows before a cut and not, or not whole, after it.
    pub(super) async fn leaving_entries(
        &self,
        key: &SessionKey,
        at: &Position,
        before: &Cut,
        after: &Cut,
    ) -> Result<Vec<Entry>, Error> {
        let is_shortened = |seq: Seq| after.shortens(seq) && !before.shortens(seq);
        let leaves = |seq: Seq| seq < after.first_kept && (!after.keeps(seq) || is_shortened(seq));
        let gone: Vec<Seq> = before.kept().into_iter().filter(|seq| leaves(*seq)).collect();
        let mut entries = self.kept_entries(key, at, &gone).await?;
        let first = before.first_kept.max(Seq(1));
        if first < after.first_kept {
            let last = Seq(after.first_kept.0 - 1);
            let body = self.entries(key, at, first, last, vec![]).await?;
            entries.extend(body.into_iter().filter(|entry| leaves(entry.seq)));
        }
        entries.retain(|entry| {
            let is_whole = is_shortened(entry.seq) && entry.tokens <= FIRST_MESSAGE_TOKENS;
            entry.kind == EntryKind::Message && !is_whole
        });
        Ok(entries)
    }

    /// The state with a cut, after the entries that it leaves out were looked through:
    /// their constraints and decisions are pinned, their calls are in the ledger.
    pub(super) async fn leave(
        &self,
        session: &Session,
        before: &WindowState,
        cut: Cut,
        entries: Vec<Entry>,
        text: Text,
    ) -> Result<Left, Error> {
        let bytes = entries.iter().map(|entry| entry.payload.len()).sum();
        let (session, before) = (session.clone(), before.clone());
        let options = self.inner.options.compaction.clone();
        compute(bytes, move || left(&session, &before, cut, &entries, text, &options)).await
    }
}

fn left(
    session: &Session,
    before: &WindowState,
    cut: Cut,
    entries: &[Entry],
    text: Text,
    options: &CompactionOptions,
) -> Left {
    let mut state = before.clone();
    state.snipped.retain(|seq| *seq >= cut.first_kept);
    state.partly.retain(|seq, _| *seq >= cut.first_kept);
    state.stale.retain(|seq, _| *seq >= cut.first_kept);
    let last = Seq(cut.first_kept.0.saturating_sub(1));
    state.cut = Some(cut);
    if session.format == WireFormat::Opaque {
        return Left { state, findings: Findings::default() };
    }
    let said: Vec<_> =
        entries.iter().map(|entry| Said::of(session.format, entry.seq, &entry.payload)).collect();
    let counter = TokenCounter::new(session.format, session.tokenizer());
    let measure = |text: &str| counter.count_text(text);
    let room = session.room(before.calibration.as_ref(), None, 0);
    let slot = options.slot_tokens(room);
    let old = before.summary.clone().unwrap_or_default();
    let mut known: Known = serde_json::from_value(old.known).unwrap_or_default();
    known.ledger.absorb(&said);
    if let Text::Summary { text, covers } = &text {
        known.written.clone_from(text);
        known.extract = Extract::default();
        known.extract.absorb(said.iter().filter(|said| said.seq > *covers));
    } else {
        known.extract.absorb(&said);
    }
    let mut findings = literals::find(&said);
    if session.pin_statements.unwrap_or(options.pin_statements) {
        let found = findings.constraints.iter().chain(&findings.decisions);
        let gone = pin(&mut state.pins, found, options.pins_budget(room), &measure);
        // Those that were found just now are among the findings.
        findings.unpinned = gone.into_iter().filter(|pin| before.pins.contains(pin)).map(lost).collect();
    }
    let ledger_max = options.ledger_tokens(slot);
    let (text, covers) = match text {
        Text::AsBefore if old.text.is_empty() => (old.text, last),
        Text::AsBefore => (old.text, old.covers),
        Text::Summary { text, covers } => (text, covers.min(last)),
        // What a model wrote of what left before is worth more than what code finds.
        Text::Extract => {
            let room = slot.saturating_sub(ledger_max).saturating_sub(measure(&known.written));
            let extract = known.extract.render(room, &measure);
            let texts = [known.written.as_str(), extract.as_str()];
            (texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n"), last)
        }
    };
    let ledger = known.ledger.render(ledger_max, &measure);
    state.summary = (!text.is_empty() || !ledger.is_empty()).then(|| Summary {
        covers,
        text,
        ledger,
        known: serde_json::to_value(&known).unwrap_or_default(),
    });
    Left { state, findings }
}

/// A summary in about so many tokens, or what of it is short enough; nothing if nothing is.
/// What was done gives way first, then what code found, and last what a model wrote.
pub(super) fn briefer(session: &Session, summary: &Summary, tokens_max: u64) -> Option<Summary> {
    let known: Known = serde_json::from_value(summary.known.clone()).unwrap_or_default();
    let counter = TokenCounter::new(session.format, session.tokenizer());
    let measure = |text: &str| counter.count_text(text);
    let mut texts: Vec<String> = Vec::new();
    let mut room = tokens_max;
    for text in [&summary.text, &known.written] {
        let tokens = measure(text);
        if texts.is_empty() && !text.is_empty() && tokens <= room {
            texts.push(text.clone());
            room -= tokens;
        }
    }
    let is_text_too_long = !summary.text.is_empty() && texts.first() != Some(&summary.text);
    if is_text_too_long {
        let extract = known.extract.render(percent(room, 100 - LEDGER_PERCENT), &measure);
        room = room.saturating_sub(measure(&extract));
        texts.extend(Some(extract).filter(|extract| !extract.is_empty()));
    }
    let text = texts.join("\n\n");
    let ledger = known.ledger.render(room.min(measure(&summary.ledger)), &measure);
    (!text.is_empty() || !ledger.is_empty()).then(|| Summary { text, ledger, ..summary.clone() })
}

/// Pins statements that are not pinned yet; of one that was found and is said again, the
/// pin is as new as that. Of those that were found by code, the oldest go if all together
/// take more than there is room for; gives those.
fn pin<'s>(
    pins: &mut Vec<Pin>,
    found: impl Iterator<Item = &'s Statement>,
    budget: Option<u64>,
    measure: &dyn Fn(&str) -> u64,
) -> Vec<Pin> {
    for statement in found {
        if let Some(known) = pins.iter().position(|pin| pin.text.contains(&statement.text)) {
            let is_said_again = |pin: &Pin| pin.seq.is_some_and(|seq| seq < statement.seq);
            if pins.get(known).is_some_and(is_said_again) {
                pins.get_mut(known..).unwrap_or_default().rotate_left(1);
            }
            continue;
        }
        let hash = digest::sha256(statement.text.as_bytes()).to_string();
        let name = format!("found-{}-{}", statement.seq, hash.get(..8).unwrap_or_default());
        pins.push(Pin { name, text: statement.text.clone(), seq: Some(statement.seq) });
    }
    give_way(pins, budget, measure)
}

/// Takes out pins that were found by code, the oldest first, until all together take no
/// more than there is room for; gives those.
pub(super) fn give_way(pins: &mut Vec<Pin>, budget: Option<u64>, measure: &dyn Fn(&str) -> u64) -> Vec<Pin> {
    let tokens: Vec<_> = pins.iter().map(|pin| measure(&pin.text)).collect();
    let (mut left, mut taken) = (pins.len(), tokens.iter().fold(0, |sum: u64, one| sum.saturating_add(*one)));
    let mut gone = Vec::new();
    for (pin, tokens) in std::mem::take(pins).into_iter().zip(tokens) {
        let is_too_much = left > PINS_MAX || budget.is_some_and(|budget| taken > budget);
        if is_too_much && pin.seq.is_some() {
            (left, taken) = (left - 1, taken.saturating_sub(tokens));
            gone.push(pin);
        } else {
            pins.push(pin);
        }
    }
    gone
}

/// What is lost with a pin that was found by code.
pub(super) fn lost(pin: Pin) -> Statement {
    Statement { text: pin.text, seq: pin.seq.unwrap_or_default(), by: Speaker::User }
}

/// What became of what was found, in a window of those payloads.
pub(super) fn audit_report<'p>(
    format: WireFormat,
    findings: &Findings,
    window: impl Iterator<Item = &'p [u8]>,
) -> AuditReport {
    let said: Vec<_> = window.map(|payload| Said::of(format, Seq(0), payload)).collect();
    let texts: Vec<_> = said.iter().flat_map(Said::all_texts).collect();
    let audit = audit(findings, texts.iter().map(AsRef::as_ref));
    let name = |subject: Subject| subject.as_str().to_owned();
    let tallies = audit.tallies.iter().map(|(subject, tally)| AuditTally {
        subject: name(*subject),
        kept: tally.kept,
        lost: tally.lost,
    });
    let losses = audit.losses.iter().take(AUDIT_LOSSES_MAX);
    AuditReport {
        tallies: tallies.collect(),
        losses: losses
            .map(|loss| AuditLoss { subject: name(loss.subject), text: loss.text.clone(), seq: loss.seq })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::STATEMENTS_MAX;
    use std::cell::Cell;

    fn said(seq: u64, text: &str) -> Statement {
        Statement { text: text.to_owned(), seq: Seq(seq), by: Speaker::User }
    }

    fn texts(pins: &[Pin]) -> Vec<&str> {
        pins.iter().map(|pin| pin.text.as_str()).collect()
    }

    #[test]
    fn each_pin_is_counted_once_however_many_give_way() {
        let found: Vec<_> =
            (0..2 * STATEMENTS_MAX as u64).map(|seq| said(seq, &format!("never touch {seq}."))).collect();
        let counted = Cell::new(0);
        let measure = |_: &str| {
            counted.set(counted.get() + 1);
            1
        };
        let mut pins = vec![Pin { name: "own".to_owned(), text: "be kind".to_owned(), seq: None }];
        let gone = pin(&mut pins, found.iter(), Some(4), &measure);
        let last: Vec<_> = found.iter().rev().take(3).rev().map(|found| found.text.as_str()).collect();
        assert_eq!(texts(&pins), [&["be kind"][..], &last].concat());
        assert_eq!((gone.len(), counted.get()), (found.len() - 3, found.len() + 1));
        assert!(gone.is_sorted_by_key(|pin| pin.seq));
    }

    #[test]
    fn what_is_said_again_does_not_give_way_to_what_was_said_before() {
        let mut pins = Vec::new();
        let all = |found: &[Statement], pins: &mut Vec<Pin>| {
            let gone = pin(pins, found.iter(), Some(2), &|_| 1);
            texts(&gone).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(all(&[said(1, "never a"), said(2, "never b"), said(2, "never b")], &mut pins).is_empty());
        assert_eq!(texts(&pins), ["never a", "never b"]);
        assert_eq!(all(&[said(5, "never a"), said(6, "never c")], &mut pins), ["never b"]);
        assert_eq!(texts(&pins), ["never a", "never c"]);
        assert_eq!(pins[0].seq, Some(Seq(1)), "a rewind to before it was said again keeps it");
    }
}

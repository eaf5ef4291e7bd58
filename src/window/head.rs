//! What stands before the entries of a window: the entries before the cut that
//! stay, pins, names of notes and summary in one message, and the notice of what was left out.

use super::assembler::Assembler;
use super::prepared::Prepared;
use crate::clock::Micros;
use crate::format::json::string_token;
use crate::format::user_message;
use crate::markdown::code;
use crate::model::{Cut, Entry, EntryKind, NoteNames, Origin, Seq, Version, WindowState};
use bytes::Bytes;

/// Stands before what stands for earlier parts: a model is not to take it for a request.
const HANDOFF: &str = include_str!("handoff.md");

/// Stands after it, and nowhere in it: what came before is not to seem to end early.
const HANDOFF_END: &str = "[End of what stands for the earlier part of this conversation.]";

/// Stands in it where something says that.
const HANDOFF_END_INSIDE: &str = "[End of what stands for an earlier part, as quoted.]";

/// The place of pins and summary in the order of entries: before all of them.
const SLOT: Seq = Seq(0);

impl Assembler {
    /// Takes in what comes before the log's entries: system entries, the user's
    /// first message, pins and summary, the notice, the user's last message.
    pub(super) fn begin(&mut self, kept: Vec<Entry>) {
        let state = self.state.clone();
        let cut = state.cut.clone().unwrap_or_default();
        let (last, before): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|entry| cut.last_user == Some(entry.seq));
        for entry in before {
            self.push(entry);
        }
        if let Some((text, origin)) = slot_text(&state) {
            self.push_made_up(SLOT, &text, origin);
        }
        if let Some(text) = notice(&cut) {
            self.push_made_up(newest_omitted(&cut), &text, Origin::Notice);
        }
        for entry in last {
            self.push(entry);
        }
        // All of it is there from the first entry on.
        let since = Seq(cut.first_kept.0.saturating_sub(1));
        for slot in &mut self.slots {
            slot.since = since;
        }
    }

    fn push_made_up(&mut self, seq: Seq, text: &str, origin: Origin) {
        let last_speaker = self.last_speaker;
        let Some(payload) = user_message(self.api.format, &string_token(text)) else { return };
        let payload = Bytes::from(payload);
        let tokens = self.api.tokens(&payload);
        let (version, at, kind) = (Version(0), Micros(0), EntryKind::Message);
        let entry = Entry { seq, version, at, kind, tokens, payload };
        let prepared = Prepared::made_up(self.api, entry, origin);
        self.push_prepared(prepared);
        // Nobody said it.
        self.last_speaker = last_speaker;
    }
}

/// Pins, names of notes, and summary; nothing if there are none.
fn slot_text(state: &WindowState) -> Option<(String, Origin)> {
    if !state.shows_memory() {
        return None;
    }
    let mut text = HANDOFF.trim().to_owned();
    if !state.pins.is_empty() {
        text.push_str("\n\nPinned, word for word:");
        for pin in &state.pins {
            text.push_str("\n- ");
            text.push_str(&pin.text);
        }
    }
    if let Some(line) = notes_line(&state.notes) {
        text.extend(["\n\n", &line]);
    }
    let mut origin = Origin::Pin;
    if let Some(summary) = &state.summary {
        origin = Origin::Summary;
        for (title, part) in [("Summary", &summary.text), ("Done so far, as recorded", &summary.ledger)] {
            if !part.is_empty() {
                text.extend(["\n\n", title, ":\n", part]);
            }
        }
    }
    let mut text = text.replace(HANDOFF_END, HANDOFF_END_INSIDE);
    text.push_str("\n\n");
    text.push_str(HANDOFF_END);
    Some((text, origin))
}

/// Names the notes, in one line; nothing if there are none.
fn notes_line(notes: &NoteNames) -> Option<String> {
    if notes.is_empty() {
        return None;
    }
    let mut names: Vec<_> = notes.shown.iter().map(|name| code(name)).collect();
    if notes.more > 0 {
        names.push(format!("and {} more", notes.more));
    }
    Some(format!("Notes that were kept, which get_note reads: {}", names.join(", ")))
}

/// Says what is left out; nothing if it is nothing.
fn notice(cut: &Cut) -> Option<String> {
    let Cut { first_kept, omitted_entries, omitted_tokens, .. } = cut;
    (*omitted_entries > 0).then(|| {
        format!(
            "[{omitted_entries} earlier messages of this conversation, {omitted_tokens} tokens, are not shown; \
             what follows begins with entry {first_kept} of its log. All of them are kept: search_transcript \
             finds what they say.]"
        )
    })
}

/// The newest entry before the cut that does not stay.
fn newest_omitted(cut: &Cut) -> Seq {
    let kept = cut.kept();
    let mut seq = cut.first_kept.0.saturating_sub(1);
    while seq > 0 && kept.binary_search(&Seq(seq)).is_ok() {
        seq -= 1;
    }
    Seq(seq)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_of_a_note_can_be_told_from_what_is_around_it() {
        let notes = NoteNames { shown: ["a`, `b", "port"].map(str::to_owned).to_vec(), more: 3 };
        let line = "Notes that were kept, which get_note reads: ``a`, `b``, `port`, and 3 more";
        assert_eq!(notes_line(&notes).as_deref(), Some(line));
        assert_eq!(notes_line(&NoteNames::default()), None);
    }
}

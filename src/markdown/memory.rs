//! What is remembered of a session, in one document.

use super::embedded;
use crate::rpc::pb;
use prost_types::Timestamp;

/// What is remembered of a session: its first request, pins, notes, what was done, and
/// the episodes, the newest first. What there is none of is left out.
pub fn memory(
    session: &str,
    goal: &str,
    pins: &[pb::Pin],
    notes: &[pb::Note],
    ledger: &str,
    episodes: &[pb::Episode],
) -> String {
    let mut parts = vec![format!("# Memory of {session}")];
    if !goal.is_empty() {
        parts.push("## First request".to_owned());
        parts.push(embedded(goal, 2));
    }
    if !pins.is_empty() {
        parts.push("## Pins".to_owned());
        // The lines of a text stay in their item.
        let item = |pin: &pb::Pin| format!("- **{}**: {}", pin.name, embedded(&pin.text, 6).replace('\n', "\n  "));
        parts.push(pins.iter().map(item).collect::<Vec<_>>().join("\n"));
    }
    if !notes.is_empty() {
        parts.push("## Notes".to_owned());
    }
    for note in notes {
        parts.push(format!("### {}", note.name));
        parts.push(embedded(&note.text, 3));
    }
    if !ledger.is_empty() {
        parts.push("## Done so far".to_owned());
        parts.push(embedded(ledger, 2));
    }
    if !episodes.is_empty() {
        parts.push("## Episodes".to_owned());
    }
    for episode in episodes {
        let number = episode.name.rsplit('/').next().unwrap_or_default();
        let (first, last) = (episode.first_seq, episode.last_seq);
        let by = if episode.model.is_empty() { "extracted" } else { &episode.model };
        let at = time(episode.create_time.as_ref());
        parts.push(format!("### Episode {number} · entries {first} to {last} · {at} · {by}"));
        parts.push(embedded(&episode.text, 3));
    }
    parts.join("\n\n") + "\n"
}

fn time(at: Option<&Timestamp>) -> String {
    let at = at.and_then(|at| jiff::Timestamp::new(at.seconds, 0).ok());
    at.map(|at| at.to_string()).unwrap_or_default()
}

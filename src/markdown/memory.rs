//! What is remembered of a session, in one document.

use super::{embedded, literal};

/// What is remembered of a session.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Its resource name.
    pub session: String,
    /// What the user asked first.
    pub goal: String,
    /// Names and texts of its pins.
    pub pins: Vec<(String, String)>,
    /// Names and texts of its notes.
    pub notes: Vec<(String, String)>,
    /// What was done, as it was read from the calls.
    pub ledger: String,
    /// Its episodes, the newest first.
    pub episodes: Vec<Episode>,
}

/// A summary of what left a session's windows.
#[derive(Clone, Debug, Default)]
pub struct Episode {
    /// Number of its compaction.
    pub number: String,
    /// First and last of the entries that left with it.
    pub entries: (u64, u64),
    /// When that was.
    pub time: String,
    /// The model that wrote the text; empty if code extracted it.
    pub model: String,
    /// The text.
    pub text: String,
}

impl Memory {
    /// The document. What there is none of is left out.
    pub fn render(&self) -> String {
        let mut parts = vec![format!("# Memory of {}", self.session)];
        let mut section = |title: &str, content: Vec<String>| {
            if !content.is_empty() {
                parts.push(format!("## {title}"));
                parts.extend(content);
            }
        };
        let text = |text: &str| if text.is_empty() { vec![] } else { vec![embedded(text, 2)] };
        section("First request", text(&self.goal));
        // The lines of a text stay in their item.
        let item = |(name, text): &(String, String)| {
            let text = embedded(text, 6);
            let is_line = !text.starts_with(['`', '~', '#', '>', '-', '*']);
            let break_before = if is_line { " " } else { "\n\n  " };
            format!("- **{}**:{break_before}{}", literal(name), text.replace('\n', "\n  "))
        };
        let pins: Vec<_> = self.pins.iter().map(item).collect();
        section("Pins", if pins.is_empty() { pins } else { vec![pins.join("\n")] });
        let note = |(name, text): &(String, String)| [format!("### {}", literal(name)), embedded(text, 3)];
        section("Notes", self.notes.iter().flat_map(note).collect());
        section("Done so far", text(&self.ledger));
        section("Episodes", self.episodes.iter().flat_map(Episode::render).collect());
        parts.join("\n\n") + "\n"
    }
}

impl Episode {
    fn render(&self) -> [String; 2] {
        let Self { number, entries: (first, last), time, model, text } = self;
        let by = if model.is_empty() { "extracted".to_owned() } else { literal(model) };
        let title = format!("### Episode {number} · entries {first} to {last} · {time} · {by}");
        [title, embedded(text, 3)]
    }
}

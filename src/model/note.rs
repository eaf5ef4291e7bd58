//! Notes: texts that are kept beside the log.

use crate::clock::Micros;
use crate::limits::NOTE_NAMES_BYTES_MAX;

/// A text that is kept beside a session's log, and read when it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Note {
    /// Its name, by which it is read, replaced and deleted.
    pub name: String,
    /// The text.
    pub text: String,
    /// When the text was put.
    pub updated_at: Micros,
}

/// The names of a session's notes, as far as windows show them.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NoteNames {
    /// The names, in order.
    pub shown: Vec<String>,
    /// How many more notes there are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl NoteNames {
    /// Of the notes of those names: as many as have room in a line.
    pub fn of(mut names: Vec<String>) -> Self {
        names.sort_unstable();
        let mut bytes = 0;
        let fitting = names.iter().take_while(|name| {
            bytes += name.len();
            bytes <= NOTE_NAMES_BYTES_MAX
        });
        let shown = fitting.count();
        let more = (names.len() - shown) as u64;
        names.truncate(shown);
        Self { shown: names, more }
    }

    /// Whether there is no note.
    pub fn is_empty(&self) -> bool {
        self.shown.is_empty() && self.more == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_in_order_as_far_as_there_is_room() {
        let names = |shown: &[&str], more| NoteNames {
            shown: shown.iter().map(|name| (*name).to_owned()).collect(),
            more,
        };
        assert_eq!(NoteNames::of(vec![]), names(&[], 0));
        assert!(NoteNames::of(vec![]).is_empty());
        assert_eq!(NoteNames::of(vec!["b".to_owned(), "a".to_owned()]), names(&["a", "b"], 0));
        let long = "m".repeat(NOTE_NAMES_BYTES_MAX - 1);
        let many = vec!["z".to_owned(), long.clone(), "y".to_owned(), "a".to_owned()];
        assert_eq!(NoteNames::of(many), names(&["a", &long], 2));
    }
}

//! Checking notes.

use super::FsckReport;
use crate::engine::notes::check_name;
use crate::engine::{Engine, Error};
use crate::limits::{NOTE_BYTES_MAX, NOTES_BYTES_MAX, NOTES_MAX};
use crate::model::Note;
use crate::model::invariants::Violation;
use crate::store::ErrorKind;
use crate::store::meta::SessionKey;

impl Engine {
    /// Checks that the notes of a session can be read and are such as may be put.
    pub(super) async fn check_notes(
        &self,
        key: &SessionKey,
        report: &mut FsckReport,
    ) -> Result<Option<Violation>, Error> {
        let notes = match self.inner.meta.notes(key).await {
            Ok(notes) => notes,
            Err(error) if error.kind == ErrorKind::Corrupt => return Ok(Some(format!("its notes: {error}"))),
            Err(error) => return Err(error.into()),
        };
        report.notes += notes.len() as u64;
        Ok(problem(&notes))
    }
}

fn problem(notes: &[Note]) -> Option<Violation> {
    let is_sound = |note: &&Note| {
        check_name("name", &note.name).is_ok() && (1..=NOTE_BYTES_MAX).contains(&note.text.len())
    };
    if let Some(note) = notes.iter().find(|note| !is_sound(note)) {
        return Some(format!("its note {:?} is none that may be put", note.name));
    }
    let bytes: usize = notes.iter().map(|note| note.text.len()).sum();
    (notes.len() > NOTES_MAX || bytes > NOTES_BYTES_MAX).then(|| {
        format!("it has {} notes of {bytes} bytes, more than {NOTES_MAX} of {NOTES_BYTES_MAX}", notes.len())
    })
}

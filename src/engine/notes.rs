//! Notes: texts that are kept beside the log of a session, and read when asked for.

use super::{Engine, Error};
use crate::limits::{NAME_CHARS_MAX, NOTE_BYTES_MAX, NOTES_BYTES_MAX, NOTES_MAX};
use crate::model::{Note, NoteNames};
use crate::store::meta::{NoteOutcome, SessionKey};

impl Engine {
    /// Keeps a note, or another text in place of that of the same name. Windows stay as
    /// they are until something else changes them.
    pub async fn put_note(&self, key: &SessionKey, name: &str, text: &str) -> Result<Note, Error> {
        check_name("note.name", name)?;
        let bytes = text.len();
        if text.trim().is_empty() || bytes > NOTE_BYTES_MAX {
            let problem = format!("has {bytes} bytes; 1 to {NOTE_BYTES_MAX} are allowed, not all blank");
            return Err(Error::invalid("note.text", problem));
        }
        if text.contains('\0') {
            return Err(Error::invalid("note.text", "holds a NUL character"));
        }
        let note = Note { name: name.to_owned(), text: text.to_owned(), updated_at: self.now() };
        let (engine, key) = (self.clone(), key.clone());
        self.detached(async move {
            match engine.inner.meta.put_note(&key, &note).await? {
                NoteOutcome::Put(note) => Ok(note),
                NoteOutcome::SessionGone => Err(Error::SessionNotFound { session: key.session }),
                NoteOutcome::Full { notes, .. } if notes > NOTES_MAX as u64 => {
                    Err(Error::invalid("note", format!("is one more than the {NOTES_MAX} allowed")))
                }
                NoteOutcome::Full { bytes, .. } => {
                    let problem =
                        format!("would make notes of {bytes} bytes; at most {NOTES_BYTES_MAX} are allowed");
                    Err(Error::invalid("note.text", problem))
                }
            }
        })
        .await
    }

    /// A note of a session.
    pub async fn get_note(&self, key: &SessionKey, name: &str) -> Result<Note, Error> {
        check_name("note", name)?;
        match self.inner.meta.note(key, name).await? {
            Some(note) => Ok(note),
            None => Err(self.no_note(key).await),
        }
    }

    /// A session's notes, by their names.
    pub async fn list_notes(&self, key: &SessionKey) -> Result<Vec<Note>, Error> {
        let notes = self.inner.meta.notes(key).await?;
        if notes.is_empty() {
            self.tip(key, None).await?;
        }
        Ok(notes)
    }

    /// Deletes a note.
    pub async fn delete_note(&self, key: &SessionKey, name: &str) -> Result<(), Error> {
        check_name("note", name)?;
        let (engine, key, name) = (self.clone(), key.clone(), name.to_owned());
        self.detached(async move {
            if engine.inner.meta.delete_note(&key, &name).await? {
                return Ok(());
            }
            Err(engine.no_note(&key).await)
        })
        .await
    }

    /// Why a note is not there: the session may not be either.
    async fn no_note(&self, key: &SessionKey) -> Error {
        match self.tip(key, None).await {
            Ok(_) => Error::NoteNotFound { session: key.session.clone() },
            Err(error) => error,
        }
    }

    /// The notes of a session as windows name them.
    pub(super) async fn note_names(&self, key: &SessionKey) -> Result<NoteNames, Error> {
        Ok(NoteNames::of(self.inner.meta.note_names(key).await?))
    }
}

/// Checks the name of a pin or note.
pub(super) fn check_name(field: &str, name: &str) -> Result<(), Error> {
    let chars = name.chars().count();
    if chars == 0 || chars > NAME_CHARS_MAX || name.chars().any(|c| c.is_control() || c == '/') {
        let problem =
            format!("must have 1 to {NAME_CHARS_MAX} characters, no slash and no control characters");
        return Err(Error::invalid(field, problem));
    }
    Ok(())
}

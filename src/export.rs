//! Exporting sessions: the payloads as JSON, or the file that was imported.

use crate::import::verbatim::{VERBATIM_KEY, bytes_of_record};

/// How payloads are laid out in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One payload a line.
    JsonLines,
    /// One array.
    JsonArray,
}

/// Why a session cannot be exported as the file that was imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// It holds no records of a file.
    #[error("the session was not imported with its file's bytes")]
    NotVerbatim,
    /// Records are missing, doubled or out of order.
    #[error(
        "a record says that it begins at byte {found} of the file, but the ones before it end at {expected}"
    )]
    Incomplete {
        /// Where the record should begin.
        expected: u64,
        /// Where it says that it begins.
        found: u64,
    },
    /// A record is not as the import made it.
    #[error("the record after byte {after} of the file is damaged")]
    Damaged {
        /// Bytes before the record.
        after: u64,
    },
}

/// The file that a session was imported from, byte for byte.
///
/// `payloads` are those of the session's records (kind `META`), or of all its
/// entries, in the order of the log; what is no record of a file is passed over.
pub fn verbatim<'a>(payloads: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<u8>, ExportError> {
    let mut file = Vec::new();
    let mut records = 0_u64;
    let prefix = format!("{{\"{VERBATIM_KEY}\":");
    for payload in payloads.into_iter().filter(|payload| payload.starts_with(prefix.as_bytes())) {
        let expected = file.len() as u64;
        let (offset, bytes) = bytes_of_record(payload).ok_or(ExportError::Damaged { after: expected })?;
        if offset != expected {
            return Err(ExportError::Incomplete { expected, found: offset });
        }
        file.extend_from_slice(&bytes);
        records += 1;
    }
    if records == 0 { Err(ExportError::NotVerbatim) } else { Ok(file) }
}

/// The payloads of a session as they are. Importing the file gives the same
/// payloads.
pub fn plain<'a>(payloads: impl IntoIterator<Item = &'a [u8]>, layout: Layout) -> Vec<u8> {
    let (open, between, close): (&[u8], &[u8], &[u8]) = match layout {
        Layout::JsonLines => (b"", b"\n", b"\n"),
        Layout::JsonArray => (b"[\n", b",\n", b"\n]\n"),
    };
    let mut payloads = payloads.into_iter();
    let Some(first) = payloads.next() else {
        return if layout == Layout::JsonArray { b"[]\n".to_vec() } else { Vec::new() };
    };
    let mut file = [open, first].concat();
    for payload in payloads {
        file.extend_from_slice(between);
        file.extend_from_slice(payload);
    }
    file.extend_from_slice(close);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &[u8] = br#"{"turnkeep_verbatim":{"line":1,"offset":0,"text":"a\n"}}"#;
    const SECOND: &[u8] = br#"{"turnkeep_verbatim":{"line":2,"offset":2,"base64":"/w=="}}"#;
    const MESSAGE: &[u8] = br#"{"role":"user","content":"hi"}"#;

    #[test]
    fn records_are_the_file_and_other_entries_are_passed_over() {
        assert_eq!(verbatim([FIRST, MESSAGE, SECOND]), Ok(b"a\n\xff".to_vec()));
    }

    #[test]
    fn a_file_that_is_not_whole_is_not_exported() {
        assert_eq!(verbatim([MESSAGE]), Err(ExportError::NotVerbatim));
        assert_eq!(verbatim([SECOND]), Err(ExportError::Incomplete { expected: 0, found: 2 }));
        assert_eq!(verbatim([FIRST, FIRST]), Err(ExportError::Incomplete { expected: 2, found: 0 }));
        let damaged = br#"{"turnkeep_verbatim":{"line":2,"offset":2}}"#;
        assert_eq!(verbatim([FIRST, damaged]), Err(ExportError::Damaged { after: 2 }));
    }

    #[test]
    fn payloads_are_laid_out_as_they_are() {
        assert_eq!(plain([FIRST, MESSAGE], Layout::JsonLines), [FIRST, b"\n", MESSAGE, b"\n"].concat());
        assert_eq!(
            plain([FIRST, MESSAGE], Layout::JsonArray),
            [b"[\n", FIRST, b",\n", MESSAGE, b"\n]\n"].concat()
        );
        assert_eq!(plain([], Layout::JsonLines), b"");
        assert_eq!(plain([], Layout::JsonArray), b"[]\n");
    }
}

//! The digests that chain a session's turns: receipts.
//!
//! docs/receipts.md gives the same formulas for clients.

use crate::model::{Digest, Entry, EntryKind, Seq, SessionId, Turn, TurnKind};
use sha2::{Digest as _, Sha256};

/// Digest before the first turn of a session.
pub fn genesis(session: &SessionId) -> Digest {
    let mut hash = Sha256::new_with_prefix(b"turnkeep session v1\n");
    hash.update(session.as_str());
    Digest(hash.finalize().into())
}

/// SHA-256 of bytes.
pub fn sha256(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

/// Digest of a turn's entries: for each its seq, kind and its payload's SHA-256.
pub fn of_entries<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Digest {
    of_hashed(entries.into_iter().map(|entry| (entry.seq, entry.kind, sha256(&entry.payload))))
}

/// The same of entries whose payloads are hashed already.
pub fn of_hashed(entries: impl IntoIterator<Item = (Seq, EntryKind, Digest)>) -> Digest {
    let mut hash = Sha256::new_with_prefix(b"turnkeep entries v1\n");
    for (seq, kind, payload) in entries {
        hash.update(seq.0.to_be_bytes());
        hash.update(kind.number().to_be_bytes());
        hash.update(payload.0);
    }
    Digest(hash.finalize().into())
}

/// The receipt of `turn`, which follows a turn with the receipt `previous`; for
/// a rewind or fork that is the turn of the base version.
pub fn of_turn(previous: Digest, turn: &Turn) -> Digest {
    if turn.kind == TurnKind::Genesis {
        return previous;
    }
    let mut hash = Sha256::new_with_prefix(b"turnkeep turn v1\n");
    hash.update(previous.0);
    hash.update(turn.version.0.to_be_bytes());
    hash.update([match turn.kind {
        TurnKind::Genesis => 0,
        TurnKind::Persist => 1,
        TurnKind::Rewind => 2,
        TurnKind::Fork => 3,
    }]);
    hash.update(turn.base_version.0.to_be_bytes());
    hash.update(turn.last_seq.0.to_be_bytes());
    hash.update((turn.request_id.as_str().len() as u64).to_be_bytes());
    hash.update(turn.request_id.as_str());
    hash.update(turn.entries_digest.0);
    Digest(hash.finalize().into())
}

/// The rolling digest of contents after one more entry, of which `content` is
/// the canonical digest as it was received.
pub fn prefix(previous: Digest, content: Digest) -> Digest {
    let mut hash = Sha256::new();
    hash.update(previous.0);
    hash.update(content.0);
    Digest(hash.finalize().into())
}

//! Named predicates of the rules that storage must keep. The engine keeps
//! them and `turnkeep fsck` checks them on what is stored, as each test of the
//! service does at its end.
//!
//! Each returns what is wrong, in words; nothing if the rule holds.

use crate::model::{Branch, Segment, Seq, Turn};

/// What is wrong with what is stored.
pub type Violation = String;

/// Versions and seqs of a branch's turns follow each other without gaps, from
/// the branch's first version and base seq on. A gap would be a lost turn.
pub fn turns_follow_each_other(branch: &Branch, turns: &[Turn]) -> Result<(), Violation> {
    let (mut version, mut seq) = (branch.first_version, branch.base_seq);
    for turn in turns {
        if turn.version != version {
            return Err(format!("turn {} stands where {version} should", turn.version));
        }
        if turn.first_seq != seq.next() || turn.last_seq < seq {
            return Err(format!(
                "turn {} has entries {} to {} after entry {seq}",
                turn.version, turn.first_seq, turn.last_seq
            ));
        }
        version = version.next();
        seq = turn.last_seq;
    }
    Ok(())
}

/// A branch's segments cover its entries up to `sealed_seq` exactly once, and
/// its turns up to `sealed_version`. Two segments for one entry would be two
/// truths, a gap a lost entry.
pub fn segments_cover_the_sealed_log_once(branch: &Branch, segments: &[Segment]) -> Result<(), Violation> {
    let mut seq = branch.base_seq;
    let mut version = None;
    for segment in segments {
        if segment.first_seq != seq.next() {
            return Err(format!(
                "segment {} begins with entry {}, after entry {seq}",
                segment.key, segment.first_seq
            ));
        }
        if let Some(last) = version
            && segment.first_version.0 != last + 1
        {
            return Err(format!(
                "segment {} begins with turn {}, after {last}",
                segment.key, segment.first_version
            ));
        }
        seq = segment.last_seq;
        version = Some(segment.last_version.0);
    }
    if seq != branch.sealed_seq {
        return Err(format!("segments reach entry {seq}, but the branch is sealed to {}", branch.sealed_seq));
    }
    match version {
        Some(last) if last != branch.sealed_version.0 => {
            Err(format!("segments reach turn {last}, but the branch is sealed to {}", branch.sealed_version))
        }
        _ => Ok(()),
    }
}

/// Each turn after `sealed_version` that has entries is in the journal, and
/// nothing else is. `journal` are the seq ranges of the rows, in order.
pub fn journal_holds_the_unsealed_turns(
    branch: &Branch,
    turns: &[Turn],
    journal: &[(Seq, Seq)],
) -> Result<(), Violation> {
    let unsealed =
        turns.iter().filter(|turn| turn.version > branch.sealed_version && turn.first_seq <= turn.last_seq);
    let unsealed: Vec<_> = unsealed.map(|turn| (turn.first_seq, turn.last_seq)).collect();
    if unsealed == journal {
        Ok(())
    } else {
        Err(format!("the journal has entries {journal:?} where the unsealed turns have {unsealed:?}"))
    }
}

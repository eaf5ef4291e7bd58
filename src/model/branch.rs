//! Branches: the log's lines.

use crate::clock::Micros;
use crate::model::{BranchId, Seq, SessionId, Version};

/// A line of the log. What lies on it is immutable and only grows at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Its id.
    pub id: BranchId,
    /// The session that made it.
    pub session: SessionId,
    /// The branch that it continues.
    pub parent: Option<BranchId>,
    /// Newest version of the parent that belongs to it; 0 without a parent.
    pub base_version: Version,
    /// Newest seq of the parent that belongs to it; 0 without a parent.
    pub base_seq: Seq,
    /// Version of its own first turn.
    pub first_version: Version,
    /// Newest seq that lies in segments; at least `base_seq`.
    pub sealed_seq: Seq,
    /// Newest version whose entries all lie in segments.
    pub sealed_version: Version,
    /// When it was made.
    pub created_at: Micros,
}

/// The part of a lineage that lies on one branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The branch.
    pub branch: BranchId,
    /// The session that made it.
    pub session: SessionId,
    /// Version of the branch's first turn.
    pub first_version: Version,
    /// Newest version that counts; none if the branch is the tip.
    pub last_version: Option<Version>,
    /// Seq of the first entry on the branch.
    pub first_seq: Seq,
    /// Newest seq that counts; none if the branch is the tip.
    pub last_seq: Option<Seq>,
}

/// The branches that together make a log, from the root to the tip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    spans: Vec<Span>,
}

impl Lineage {
    /// The lineage of the last of `branches`, which come from the root to the
    /// tip, each the parent of the next.
    pub fn from_root(branches: &[Branch]) -> Self {
        let spans = branches
            .iter()
            .enumerate()
            .map(|(i, branch)| {
                let child = branches.get(i + 1);
                Span {
                    branch: branch.id.clone(),
                    session: branch.session.clone(),
                    first_version: branch.first_version,
                    last_version: child.map(|c| c.base_version),
                    first_seq: branch.base_seq.next(),
                    last_seq: child.map(|c| c.base_seq),
                }
            })
            .collect();
        Self { spans }
    }

    /// The spans, from the root to the tip.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The span that holds a version, if the lineage has it.
    pub fn span_of_version(&self, version: Version) -> Option<&Span> {
        self.spans
            .iter()
            .rev()
            .find(|span| span.first_version <= version)
            .filter(|span| span.last_version.is_none_or(|last| version <= last))
    }

    /// Whether a version on a branch belongs to this lineage, so that its log
    /// is a prefix of this one.
    pub fn contains(&self, branch: &BranchId, version: Version) -> bool {
        self.spans.iter().any(|span| {
            span.branch == *branch
                && span.first_version <= version
                && span.last_version.is_none_or(|last| version <= last)
        })
    }
}

//! What a use case can fail with: what its caller can act on.

use crate::codec::CodecError;
use crate::model::{Digest, OutputName, Seq, SessionId, Version};
use crate::store::{ErrorKind, StoreError};
use std::time::Duration;

/// A stable name for a failure, on the wire and in docs/errors.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A field of the request is wrong; the message names it and the limit.
    InvalidField,
    /// The session does not exist or was deleted.
    SessionNotFound,
    /// The session id is taken.
    SessionExists,
    /// There is no tool output of that name.
    OutputNotFound,
    /// The tool output is larger than any may be.
    OutputTooLarge,
    /// The session has no such version.
    VersionNotFound,
    /// The session has another version than the request expects.
    VersionMismatch,
    /// The session's configuration has another revision than the request
    /// expects.
    EtagMismatch,
    /// The request id was used for another request.
    RequestIdReused,
    /// The snapshot and the log contradict each other.
    SnapshotContradictsLog,
    /// Others write to the session at the same time, again and again.
    Contention,
    /// The session has as many unsealed bytes as it may.
    JournalFull,
    /// No window of the session fits its model.
    WindowCannotFit,
    /// How many tokens the session's model takes is not known.
    ContextWindowUnknown,
    /// The session has no such compaction.
    CompactionNotFound,
    /// The session has no such note.
    NoteNotFound,
    /// The line of forks and rewinds is as long as it may be.
    LineageTooDeep,
    /// The metadata store cannot be reached.
    MetadataUnavailable,
    /// The object store cannot be reached.
    ObjectsUnavailable,
    /// The disk is full.
    StorageFull,
    /// Whether the request took effect is not known.
    OutcomeUnknown,
    /// Stored bytes are missing or damaged.
    DataLoss,
    /// A newer version of the service wrote what is needed.
    NewerFormat,
    /// The service holds as many bytes of requests as it may.
    Overloaded,
    /// The service is shutting down.
    Draining,
    /// The call took longer than any may.
    DeadlineExceeded,
    /// A defect of the service.
    Internal,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 27] = [
        Self::InvalidField,
        Self::SessionNotFound,
        Self::SessionExists,
        Self::OutputNotFound,
        Self::OutputTooLarge,
        Self::VersionNotFound,
        Self::VersionMismatch,
        Self::EtagMismatch,
        Self::RequestIdReused,
        Self::SnapshotContradictsLog,
        Self::Contention,
        Self::JournalFull,
        Self::WindowCannotFit,
        Self::ContextWindowUnknown,
        Self::CompactionNotFound,
        Self::NoteNotFound,
        Self::LineageTooDeep,
        Self::MetadataUnavailable,
        Self::ObjectsUnavailable,
        Self::StorageFull,
        Self::OutcomeUnknown,
        Self::DataLoss,
        Self::NewerFormat,
        Self::Overloaded,
        Self::Draining,
        Self::DeadlineExceeded,
        Self::Internal,
    ];

    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidField => "INVALID_FIELD",
            Self::SessionNotFound => "SESSION_NOT_FOUND",
            Self::SessionExists => "SESSION_EXISTS",
            Self::OutputNotFound => "OUTPUT_NOT_FOUND",
            Self::OutputTooLarge => "OUTPUT_TOO_LARGE",
            Self::VersionNotFound => "VERSION_NOT_FOUND",
            Self::VersionMismatch => "VERSION_MISMATCH",
            Self::EtagMismatch => "ETAG_MISMATCH",
            Self::RequestIdReused => "REQUEST_ID_REUSED",
            Self::SnapshotContradictsLog => "SNAPSHOT_CONTRADICTS_LOG",
            Self::Contention => "CONTENTION",
            Self::JournalFull => "JOURNAL_FULL",
            Self::WindowCannotFit => "WINDOW_CANNOT_FIT",
            Self::ContextWindowUnknown => "CONTEXT_WINDOW_UNKNOWN",
            Self::CompactionNotFound => "COMPACTION_NOT_FOUND",
            Self::NoteNotFound => "NOTE_NOT_FOUND",
            Self::LineageTooDeep => "LINEAGE_TOO_DEEP",
            Self::MetadataUnavailable => "METADATA_UNAVAILABLE",
            Self::ObjectsUnavailable => "OBJECTS_UNAVAILABLE",
            Self::StorageFull => "STORAGE_FULL",
            Self::OutcomeUnknown => "OUTCOME_UNKNOWN",
            Self::DataLoss => "DATA_LOSS",
            Self::NewerFormat => "NEWER_FORMAT",
            Self::Overloaded => "OVERLOADED",
            Self::Draining => "DRAINING",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::Internal => "INTERNAL",
        }
    }
}

/// A failure of a use case.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field of the request is wrong.
    #[error("{field}: {problem}")]
    InvalidField {
        /// Path of the field as on the wire, such as `append.entries[3].payload`.
        field: String,
        /// What is wrong, with the limit.
        problem: String,
    },
    /// The session does not exist.
    #[error("session {session} not found")]
    SessionNotFound {
        /// The session.
        session: SessionId,
    },
    /// The session id is taken.
    #[error("session id {session} is taken{}", if *.deleted { " by a deleted session" } else { "" })]
    SessionExists {
        /// The session.
        session: SessionId,
        /// By one that was deleted.
        deleted: bool,
    },
    /// There is no tool output of that name, or it is not the caller's.
    #[error("{} not found", name.resource_name())]
    OutputNotFound {
        /// The name.
        name: OutputName,
    },
    /// The tool output is larger than any may be; nothing was stored.
    #[error("the tool output has more than {limit} bytes, the most that one may have")]
    OutputTooLarge {
        /// The limit.
        limit: u64,
    },
    /// The session has no such version.
    #[error("session {session} has no version {version}; its newest is {current}")]
    VersionNotFound {
        /// The session.
        session: SessionId,
        /// The version asked for.
        version: Version,
        /// The newest version.
        current: Version,
    },
    /// The session has another version than expected.
    #[error("session {session} has version {current}, not {expected}")]
    VersionMismatch {
        /// The session.
        session: SessionId,
        /// The version expected.
        expected: Version,
        /// The newest version.
        current: Version,
    },
    /// The configuration has another revision than expected.
    #[error("session {session} has etag {current:?}, not {expected:?}")]
    EtagMismatch {
        /// The session.
        session: SessionId,
        /// The etag expected.
        expected: String,
        /// The current one.
        current: String,
    },
    /// The request id was used for another request.
    #[error("request id was used for another request, which made version {version}")]
    RequestIdReused {
        /// The version that the other request made.
        version: Version,
    },
    /// The snapshot and the log contradict each other.
    #[error("the snapshot and the log part at entry {index}: {problem}")]
    SnapshotContradictsLog {
        /// Index of the first entry of the snapshot that differs.
        index: usize,
        /// How it differs.
        problem: &'static str,
        /// The newest version.
        current: Version,
    },
    /// Others write at the same time, again and again.
    #[error("other writers changed session {session} {attempts} times while this request was under way")]
    Contention {
        /// The session.
        session: SessionId,
        /// How often it was tried.
        attempts: usize,
    },
    /// The session has as many unsealed bytes as it may.
    #[error(
        "session {session} has {bytes} bytes in the journal, of at most {limit}; they wait for the object store"
    )]
    JournalFull {
        /// The session.
        session: SessionId,
        /// What it would have.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// No window of the session fits its model, whatever is left out.
    #[error(
        "no window of session {session} fits: {rest} tokens are left for messages, of {context} less reserve, \
         overhead and preamble; {head} are taken by what must stay and {last} by the last step"
    )]
    WindowCannotFit {
        /// The session.
        session: SessionId,
        /// Tokens of the context window.
        context: u64,
        /// Tokens of it that messages may take.
        rest: u64,
        /// Tokens of system entries, pins, summary and the user's messages that
        /// must stay.
        head: u64,
        /// Tokens of the newest step.
        last: u64,
    },
    /// How many tokens the session's model takes is not known.
    #[error(
        "the context window of session {session} is not known: give its profile context_window_tokens, or a \
         model that the service knows"
    )]
    ContextWindowUnknown {
        /// The session.
        session: SessionId,
    },
    /// The session has no such compaction.
    #[error("session {session} has no compaction {number}")]
    CompactionNotFound {
        /// The session.
        session: SessionId,
        /// Its number.
        number: u64,
    },
    /// The session has no such note.
    #[error("session {session} has no note of that name")]
    NoteNotFound {
        /// The session.
        session: SessionId,
    },
    /// The line of forks and rewinds is as long as it may be.
    #[error("the session lies at the end of {limit} forks and rewinds, the most that there may be")]
    LineageTooDeep {
        /// The limit.
        limit: usize,
    },
    /// A store cannot be reached; nothing was written.
    #[error("{what} is not available")]
    Unavailable {
        /// Which one.
        what: Dependency,
        /// What happened.
        source: Option<StoreError>,
    },
    /// The disk is full.
    #[error("the storage is full")]
    StorageFull {
        /// What happened.
        source: StoreError,
    },
    /// Whether the request took effect is not known.
    #[error("whether the request took effect is not known")]
    OutcomeUnknown {
        /// What happened.
        source: StoreError,
    },
    /// Stored bytes are missing or damaged.
    #[error("entries {first} to {last} of session {session} cannot be read: {problem}")]
    DataLoss {
        /// The session.
        session: SessionId,
        /// First entry concerned.
        first: Seq,
        /// Last entry concerned.
        last: Seq,
        /// What is wrong with them.
        problem: String,
    },
    /// The blob of a tool output is missing or damaged.
    #[error("{} cannot be read: {problem}", name.resource_name())]
    OutputLost {
        /// The output.
        name: OutputName,
        /// What is wrong with it.
        problem: String,
    },
    /// A newer version of the service wrote what is needed.
    #[error("written by a newer version of the service: {problem}")]
    NewerFormat {
        /// What was found.
        problem: String,
    },
    /// The service holds as many bytes of requests as it may; nothing was
    /// written.
    #[error("the service holds {limit} bytes of requests, the most that it may")]
    Overloaded {
        /// The limit.
        limit: u64,
    },
    /// The service is shutting down.
    #[error("the service is shutting down")]
    Draining,
    /// The call took longer than any may.
    #[error("the call took too long; a persist may take effect all the same")]
    DeadlineExceeded,
    /// A defect.
    #[error("internal error: {context}")]
    Internal {
        /// What was being done.
        context: String,
        /// What happened.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

/// What the service depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependency {
    /// The metadata store.
    Metadata,
    /// The object store.
    Objects,
}

impl std::fmt::Display for Dependency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Metadata => "the metadata store",
            Self::Objects => "the object store",
        })
    }
}

impl Error {
    /// A wrong field.
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::InvalidField { field: field.into(), problem: problem.into() }
    }

    /// The error of a message that stands in the field `parent` of a request.
    #[must_use]
    pub fn within(self, parent: &str) -> Self {
        match self {
            Self::InvalidField { field, problem } => {
                Self::InvalidField { field: format!("{parent}.{field}"), problem }
            }
            other => other,
        }
    }

    /// A defect.
    pub fn internal(context: impl Into<String>) -> Self {
        Self::Internal { context: context.into(), source: None }
    }

    /// A failure of the object store.
    pub fn of_objects(source: StoreError) -> Self {
        match source.kind {
            ErrorKind::Full => Self::StorageFull { source },
            ErrorKind::Unavailable | ErrorKind::Contention | ErrorKind::Unknown => {
                Self::Unavailable { what: Dependency::Objects, source: Some(source) }
            }
            _ => Self::Internal { context: "object store".to_owned(), source: Some(source.into()) },
        }
    }

    /// The failure of a read that comes after a write: that nothing was written
    /// is not true of it.
    #[must_use]
    pub fn after_write(self) -> Self {
        match self {
            Self::Unavailable { what: Dependency::Metadata, source: Some(source) } => {
                Self::OutcomeUnknown { source }
            }
            other => other,
        }
    }

    /// Its stable name.
    pub fn reason(&self) -> Reason {
        match self {
            Self::InvalidField { .. } => Reason::InvalidField,
            Self::SessionNotFound { .. } => Reason::SessionNotFound,
            Self::SessionExists { .. } => Reason::SessionExists,
            Self::OutputNotFound { .. } => Reason::OutputNotFound,
            Self::OutputTooLarge { .. } => Reason::OutputTooLarge,
            Self::VersionNotFound { .. } => Reason::VersionNotFound,
            Self::VersionMismatch { .. } => Reason::VersionMismatch,
            Self::EtagMismatch { .. } => Reason::EtagMismatch,
            Self::RequestIdReused { .. } => Reason::RequestIdReused,
            Self::SnapshotContradictsLog { .. } => Reason::SnapshotContradictsLog,
            Self::Contention { .. } => Reason::Contention,
            Self::JournalFull { .. } => Reason::JournalFull,
            Self::WindowCannotFit { .. } => Reason::WindowCannotFit,
            Self::ContextWindowUnknown { .. } => Reason::ContextWindowUnknown,
            Self::CompactionNotFound { .. } => Reason::CompactionNotFound,
            Self::NoteNotFound { .. } => Reason::NoteNotFound,
            Self::LineageTooDeep { .. } => Reason::LineageTooDeep,
            Self::Unavailable { what: Dependency::Metadata, .. } => Reason::MetadataUnavailable,
            Self::Unavailable { what: Dependency::Objects, .. } => Reason::ObjectsUnavailable,
            Self::StorageFull { .. } => Reason::StorageFull,
            Self::OutcomeUnknown { .. } => Reason::OutcomeUnknown,
            Self::DataLoss { .. } | Self::OutputLost { .. } => Reason::DataLoss,
            Self::NewerFormat { .. } => Reason::NewerFormat,
            Self::Overloaded { .. } => Reason::Overloaded,
            Self::Draining => Reason::Draining,
            Self::DeadlineExceeded => Reason::DeadlineExceeded,
            Self::Internal { .. } => Reason::Internal,
        }
    }

    /// After what time the same request is worth another try; none if it will
    /// fail again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Contention { .. } => Some(Duration::from_millis(50)),
            Self::OutcomeUnknown { .. } => Some(Duration::from_millis(200)),
            Self::Unavailable { .. } | Self::Overloaded { .. } | Self::Draining | Self::DeadlineExceeded => {
                Some(Duration::from_secs(1))
            }
            Self::JournalFull { .. } => Some(Duration::from_secs(5)),
            _ => None,
        }
    }
}

/// Failures of the metadata store; those of the object store go through
/// [`Error::of_objects`].
impl From<StoreError> for Error {
    fn from(source: StoreError) -> Self {
        match source.kind {
            ErrorKind::Unavailable | ErrorKind::Contention => {
                Self::Unavailable { what: Dependency::Metadata, source: Some(source) }
            }
            ErrorKind::Unknown => Self::OutcomeUnknown { source },
            ErrorKind::Full => Self::StorageFull { source },
            _ => Self::Internal { context: "metadata store".to_owned(), source: Some(source.into()) },
        }
    }
}

impl From<CodecError> for Error {
    fn from(error: CodecError) -> Self {
        match error {
            CodecError::NewerFormat { .. } => Self::NewerFormat { problem: error.to_string() },
            _ => Self::Internal { context: "codec".to_owned(), source: Some(error.into()) },
        }
    }
}

/// How a digest that is not as recorded is told.
pub(crate) fn digest_mismatch(what: &str, expected: Digest, found: Digest) -> String {
    format!("{what} has digest {found}, not {expected}")
}

//! What the service is about: sessions, branches, turns, entries, segments and
//! windows, as plain data with their rules. No I/O, no encoding.

pub mod branch;
pub mod calibration;
pub mod compaction;
pub mod deletion;
pub mod digest;
pub mod entry;
pub mod invariants;
pub mod name;
pub mod note;
pub mod output;
pub mod prices;
pub mod profile;
pub mod segment;
pub mod session;
pub mod turn;
pub mod window;

pub use branch::{Branch, Lineage, Span};
pub use calibration::{Calibration, TokenFactor};
pub use compaction::{
    AuditLoss, AuditReport, AuditTally, CacheBreak, Cut, Pin, RecordedState, StateKind, StateRecord,
    SummarizerReport, Summary, Unrelieved, WindowState,
};
pub use deletion::{Deletion, DeletionState};
pub use digest::Digest;
pub use entry::{Entry, EntryKind, Seq, Version, WireFormat};
pub use name::{BranchId, GenerationId, InvalidName, OutputId, RequestId, SessionId, TenantId};
pub use note::{Note, NoteNames};
pub use output::{ChangedEntry, Output, OutputName};
pub use prices::{Cost, InvalidPrice, LongPrices, Price, Prices};
pub use profile::{LengthUnit, MediaLimits, ModelProfile, Room, Tokenizer, ToolResultLimit, percent};
pub use segment::Segment;
pub use session::{CompressionPath, ForkOrigin, Head, Labels, Preamble, Session};
pub use turn::{CallState, Turn, TurnKind, Usage};
pub use window::{Item, NextStep, Origin, Repair, RepairKind, UnansweredCall};

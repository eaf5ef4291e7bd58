//! The metadata store: rows about sessions, and the journal of the newest
//! turns.

mod output;
mod segment;
mod session;
mod turn;

use crate::clock::Micros;
use crate::model::{
    Branch, BranchId, Deletion, Digest, GenerationId, Head, Note, Output, OutputId, Preamble, RecordedState,
    RequestId, Room, Segment, Seq, Session, SessionId, TenantId, Turn, Version,
};
use crate::store::StoreError;
use async_trait::async_trait;
use bytes::Bytes;
pub use output::{HeldOutput, NewOutput, OutputMove, TurnOutput};
pub use segment::{
    GenerationRow, NewRollUp, NewSeal, RebuiltRows, RollUpPolicy, SealCandidate, SealPolicy, SealedRun,
    Tombstone,
};
pub use session::{
    CreateOutcome, ManifestRow, NewSession, NoteOutcome, OpenDeletion, SessionQuery, SessionUpdate,
};
pub use turn::{CommitOutcome, Expected, JournalRow, NewTurn, NewWindowState, RecordedTurn, TurnEntries};

/// A session of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionKey {
    /// Its owner.
    pub tenant: TenantId,
    /// Its id.
    pub session: SessionId,
}

/// A branch of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BranchKey {
    /// Its owner.
    pub tenant: TenantId,
    /// Its id.
    pub branch: BranchId,
}

/// A session as it stands: configuration, head, newest turn and, if asked for,
/// the newest journal rows. All read in one statement, so they belong together.
#[derive(Clone, Debug)]
pub struct Tip {
    /// Configuration.
    pub session: Session,
    /// Head.
    pub head: Head,
    /// The branch that it is on.
    pub branch: Branch,
    /// The turn of the head's version.
    pub turn: Turn,
    /// Journal rows of the branch that were asked for, in order.
    pub journal: Vec<JournalRow>,
}

impl Tip {
    /// How the context window is divided without a request's own wishes, in tokens as
    /// they are counted; nothing if it is not known.
    pub fn room(&self) -> Option<Room> {
        self.session.room(self.head.calibration.as_ref(), None, 0)
    }
}

/// Keeps the metadata.
///
/// Every write is one explicit transaction. After an error of kind `Unknown` it
/// may have taken effect; after any other nothing was written. Every statement
/// is scoped to the tenant of its key.
#[async_trait]
pub trait MetaStore: std::fmt::Debug + Send + Sync + 'static {
    /// Whether the store can be reached and has the schema of this version.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Brings the schema up to date; returns the numbers of the migrations that
    /// were applied.
    async fn migrate(&self) -> Result<Vec<i64>, StoreError>;

    /// The secret of that name; `fresh` becomes it if there is none yet.
    async fn service_secret(&self, name: &str, fresh: [u8; 32]) -> Result<[u8; 32], StoreError>;

    // --- Sessions ---

    /// Creates a session. Repeating the call tells that the id is taken.
    async fn create_session(&self, new: NewSession) -> Result<CreateOutcome, StoreError>;

    /// A live session as it stands, with the journal rows of its branch that
    /// are newer than `journal_after`; none of them if that is not given.
    async fn tip(&self, key: &SessionKey, journal_after: Option<Version>) -> Result<Option<Tip>, StoreError>;

    /// Lists live sessions, the newest first, without their preambles. The tips
    /// carry no journal rows.
    async fn list_sessions(&self, tenant: &TenantId, query: &SessionQuery) -> Result<Vec<Tip>, StoreError>;

    /// Changes a session's configuration if its revision is as expected.
    async fn update_session(&self, update: SessionUpdate) -> Result<CommitOutcome, StoreError>;

    /// The preamble that was current at a version.
    async fn preamble(&self, key: &SessionKey, at: Version) -> Result<Option<Preamble>, StoreError>;

    /// All preambles of a session, the oldest first.
    async fn preambles(&self, key: &SessionKey) -> Result<Vec<Preamble>, StoreError>;

    /// Bytes that the segments and tool outputs of a session's own branches take in
    /// the blob store.
    async fn blob_bytes(&self, key: &SessionKey) -> Result<u64, StoreError>;

    // --- Turns ---

    /// Commits a turn if the head is as expected. A request id that the session
    /// has used fails with `Duplicate`.
    async fn commit_turn(&self, new: NewTurn) -> Result<CommitOutcome, StoreError>;

    /// The turn that a request made. Waits for a transaction that may be making
    /// it.
    async fn turn_of_request(
        &self,
        key: &SessionKey,
        id: &RequestId,
    ) -> Result<Option<RecordedTurn>, StoreError>;

    /// The same, for a turn whose commit had an unknown outcome: if it is not
    /// there, it will not come later.
    async fn settle_turn(&self, key: &SessionKey, id: &RequestId)
    -> Result<Option<RecordedTurn>, StoreError>;

    /// A turn of a branch.
    async fn turn(&self, key: &BranchKey, version: Version) -> Result<Option<RecordedTurn>, StoreError>;

    /// Turns of a branch from `first` to `last`, at most `limit`: the newest
    /// ones, in order.
    async fn turns(
        &self,
        key: &BranchKey,
        first: Version,
        last: Version,
        limit: u32,
    ) -> Result<Vec<RecordedTurn>, StoreError>;

    /// Last seq and rolling digest of contents of a branch's turns from `first`
    /// to `last`, in order: what a snapshot is compared with.
    async fn prefix_digests(
        &self,
        key: &BranchKey,
        first: Version,
        last: Version,
    ) -> Result<Vec<(Version, Seq, Digest)>, StoreError>;

    // --- The log ---

    /// A branch after those that it continues, from the root; empty if it is
    /// not there.
    async fn lineage(&self, key: &BranchKey) -> Result<Vec<Branch>, StoreError>;

    /// A live session's own branches, the oldest first.
    async fn branches_of_session(&self, key: &SessionKey) -> Result<Vec<Branch>, StoreError>;

    /// Journal rows of a branch with versions from `first` to `last`, in order.
    async fn journal(
        &self,
        key: &BranchKey,
        first: Version,
        last: Version,
    ) -> Result<Vec<JournalRow>, StoreError>;

    /// Segments of a branch that hold entries from `first` to `last`, in order.
    async fn segments(&self, key: &BranchKey, first: Seq, last: Seq) -> Result<Vec<Segment>, StoreError>;

    // --- Window states ---

    /// Window states of a branch that were recorded up to version `last` and have
    /// numbers under `before`, the newest first.
    async fn window_states(
        &self,
        key: &BranchKey,
        last: Version,
        before: u64,
        limit: u32,
    ) -> Result<Vec<RecordedState>, StoreError>;

    /// Records a window state as the session's newest, if it is on that branch and
    /// its newest has the number before. The version is that of its head.
    async fn commit_window_state(&self, new: NewWindowState) -> Result<CommitOutcome, StoreError>;

    /// Claims the making of a session's summary, if no claim lives and none is there
    /// that was not taken. Returns whether it is claimed; it is until `until`.
    async fn claim_summary(
        &self,
        key: &SessionKey,
        token: &str,
        now: Micros,
        until: Micros,
    ) -> Result<bool, StoreError>;

    /// Keeps a summary that was made under a claim, if that still stands.
    async fn keep_summary(&self, key: &SessionKey, token: &str, body: &str) -> Result<bool, StoreError>;

    /// The claim that stands, by its token, and the summary once it is made, as JSON.
    async fn pending_summary(&self, key: &SessionKey)
    -> Result<Option<(String, Option<String>)>, StoreError>;

    /// Puts a claim of that name in place of the one that has a token, if that still stands
    /// and nothing was made under it: `rest` holds it until `until`. Returns whether it
    /// does. Nobody gets a claim in between.
    async fn rest_summary(
        &self,
        key: &SessionKey,
        token: &str,
        rest: &str,
        until: Micros,
    ) -> Result<bool, StoreError>;

    /// Drops the claim that has a token, or the summary that was made under it. One that
    /// came after it stays.
    async fn drop_summary(&self, key: &SessionKey, token: &str) -> Result<(), StoreError>;

    // --- Notes ---

    /// Keeps a note of a live session in place of that of the same name, if all
    /// together stay within [`crate::limits::NOTES_MAX`] and
    /// [`crate::limits::NOTES_BYTES_MAX`].
    async fn put_note(&self, key: &SessionKey, note: &Note) -> Result<NoteOutcome, StoreError>;

    /// A note of a session.
    async fn note(&self, key: &SessionKey, name: &str) -> Result<Option<Note>, StoreError>;

    /// All notes of a session, by their names.
    async fn notes(&self, key: &SessionKey) -> Result<Vec<Note>, StoreError>;

    /// Names of a session's notes, in no order.
    async fn note_names(&self, key: &SessionKey) -> Result<Vec<String>, StoreError>;

    /// Deletes a note. Returns whether it was there.
    async fn delete_note(&self, key: &SessionKey, name: &str) -> Result<bool, StoreError>;

    // --- Sealing ---

    /// Branches whose journals are due, those with the most bytes first.
    async fn seal_candidates(
        &self,
        policy: SealPolicy,
        now: Micros,
        limit: u32,
    ) -> Result<Vec<SealCandidate>, StoreError>;

    /// Replaces journal rows by a segment if the branch is sealed as far as
    /// expected. The manifest of a session that was deleted meanwhile is left
    /// out.
    async fn commit_seal(&self, seal: NewSeal) -> Result<CommitOutcome, StoreError>;

    /// All tenants' branches with segments that are worth a roll-up, those after
    /// `after`, in the order of their keys.
    async fn roll_up_candidates(
        &self,
        policy: RollUpPolicy,
        after: Option<&BranchKey>,
        limit: u32,
    ) -> Result<Vec<BranchKey>, StoreError>;

    /// Replaces segments by one that covers the same entries, if they are as
    /// they were, and writes tombstones for the old blobs.
    async fn commit_roll_up(&self, roll_up: NewRollUp) -> Result<CommitOutcome, StoreError>;

    // --- Tool outputs ---

    /// Keeps an output and returns it with its branch and version; nothing if the
    /// session is not live or its journal has no room for what is to be held. An id
    /// that is taken fails with `Duplicate`.
    async fn add_output(&self, new: NewOutput) -> Result<Option<Output>, StoreError>;

    /// An output of a session: on one of its branches, or one that they continue,
    /// from before they began. A deleted one has those that forks still reach.
    async fn output(&self, key: &SessionKey, id: &OutputId) -> Result<Option<Output>, StoreError>;

    /// The outputs of a session, the newest first; of them those before `before`.
    async fn outputs(
        &self,
        key: &SessionKey,
        before: Option<&OutputId>,
        limit: u32,
    ) -> Result<Vec<Output>, StoreError>;

    /// The blob of an output that the metadata store holds.
    async fn held_output(&self, tenant: &TenantId, id: &OutputId) -> Result<Option<Bytes>, StoreError>;

    /// All tenants' outputs that are held, those after `after`, in the order of
    /// tenants and ids.
    async fn held_outputs(
        &self,
        after: Option<&HeldOutput>,
        limit: u32,
    ) -> Result<Vec<HeldOutput>, StoreError>;

    /// How many outputs of all tenants are held.
    async fn held_output_count(&self) -> Result<u64, StoreError>;

    /// Bytes that are held of outputs of a session's own branches.
    async fn held_output_bytes(&self, key: &SessionKey) -> Result<u64, StoreError>;

    /// Lets an output name its blob, and no longer holds it.
    async fn commit_output_move(&self, moved: OutputMove) -> Result<CommitOutcome, StoreError>;

    /// The tool outputs of a branch after `after`, in the order of their ids.
    async fn outputs_of_branch(
        &self,
        key: &BranchKey,
        after: Option<&OutputId>,
        limit: u32,
    ) -> Result<Vec<Output>, StoreError>;

    // --- Deleting ---

    /// Makes a session, and its forks if so asked, unreadable and writes their
    /// deletions and tombstones. Returns the sessions that were deleted by this
    /// call: of one that is not live only its forks, if any.
    async fn delete_session(
        &self,
        key: &SessionKey,
        include_forks: bool,
        now: Micros,
        erase_not_before: Micros,
    ) -> Result<Vec<SessionId>, StoreError>;

    /// The receipt of a deletion.
    async fn deletion(&self, key: &SessionKey) -> Result<Option<Deletion>, StoreError>;

    /// Deletions that are not finished, the oldest first, from `after` on.
    async fn open_deletions(&self, after: Micros, limit: u32) -> Result<Vec<OpenDeletion>, StoreError>;

    /// Notes that the bucket's ledger has a deletion.
    async fn deletion_in_ledger(&self, key: &SessionKey) -> Result<(), StoreError>;

    /// Releases what no fork reaches any more of a deleted session, and marks
    /// the deletion as finished if nothing is left. Returns whether it is.
    async fn advance_deletion(
        &self,
        key: &SessionKey,
        now: Micros,
        erase_not_before: Micros,
    ) -> Result<bool, StoreError>;

    // --- Sweeping ---

    /// Registers a writer generation that nobody had before.
    async fn register_generation(&self, id: GenerationId, lease_until: Micros) -> Result<(), StoreError>;

    /// Fences a generation: waits for the transactions that name its blobs and
    /// lets no further one commit.
    async fn fence_generation(&self, id: GenerationId, now: Micros) -> Result<(), StoreError>;

    /// Generations whose lease ended before `now` and that are not fenced.
    async fn expired_generations(&self, now: Micros) -> Result<Vec<GenerationId>, StoreError>;

    /// All generations that are known.
    async fn generations(&self) -> Result<Vec<GenerationRow>, StoreError>;

    /// Those of `keys` that a row names, tombstones included.
    async fn referenced(&self, keys: &[String]) -> Result<Vec<String>, StoreError>;

    /// Removes generations that were fenced before a time; they stay fenced.
    /// Returns how many.
    async fn forget_generations(&self, fenced_before: Micros) -> Result<u64, StoreError>;

    /// Tombstones that are due, those after `after`, in the order of their times
    /// and keys.
    async fn due_tombstones(
        &self,
        now: Micros,
        after: Option<&Tombstone>,
        limit: u32,
    ) -> Result<Vec<Tombstone>, StoreError>;

    /// Removes a tombstone whose blob is erased.
    async fn remove_tombstone(&self, tombstone: &Tombstone) -> Result<(), StoreError>;

    // --- Checking ---

    /// All tenants' live sessions after `after`, in the order of their keys.
    async fn all_sessions(
        &self,
        after: Option<&SessionKey>,
        limit: u32,
    ) -> Result<Vec<SessionKey>, StoreError>;

    /// All tenants' branches after `after`, in the order of their keys.
    async fn all_branches(
        &self,
        after: Option<&BranchKey>,
        limit: u32,
    ) -> Result<Vec<(TenantId, Branch)>, StoreError>;

    /// Writes rows that a rebuild found, into a store that has none of them.
    async fn load(&self, rows: RebuiltRows) -> Result<(), StoreError>;
}

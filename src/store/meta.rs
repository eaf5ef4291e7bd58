//! The metadata store: rows about sessions, and the journal of the newest
//! turns.

use crate::clock::Micros;
use crate::model::{
    Branch, BranchId, Calibration, CompressionPath, Deletion, Digest, GenerationId, Head, Labels, Note,
    Output, OutputId, Preamble, RecordedState, RequestId, Room, Segment, Seq, Session, SessionId, TenantId,
    Turn, Version,
};
use crate::store::StoreError;
use async_trait::async_trait;
use bytes::Bytes;

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

/// A turn's entries in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalRow {
    /// The turn.
    pub version: Version,
    /// Seq of its first entry.
    pub first_seq: Seq,
    /// Seq of the newest entry after it.
    pub last_seq: Seq,
    /// Bytes that the body decodes to.
    pub raw_bytes: u64,
    /// The encoded entries.
    pub body: Bytes,
    /// When it was committed.
    pub created_at: Micros,
}

/// A turn with its recorded reply.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedTurn {
    /// The turn.
    pub turn: Turn,
    /// The reply, as JSON.
    pub reply: String,
}

/// A session to be created, with its first rows.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// Its owner.
    pub tenant: TenantId,
    /// Its configuration.
    pub session: Session,
    /// Its branch.
    pub branch: Branch,
    /// Its first turn: the genesis, or the fork.
    pub turn: RecordedTurn,
    /// Its preamble.
    pub preamble: Option<Preamble>,
    /// Of a fork, or of a session that continues another: the source session, which
    /// must be live and whose notes are copied, and the branch on which the fork
    /// begins, or that the source is on, which must still be there.
    pub source: Option<(SessionId, BranchId)>,
    /// Of a fork: number of the source's window state, and its window's tokens less
    /// those of its log; else those of `opening`, or 0.
    pub window_state: (u64, i64),
    /// The window state that it begins with, if it has one of its own.
    pub opening: Option<RecordedState>,
    /// Of a fork: the source's calibration.
    pub calibration: Option<Calibration>,
}

/// What became of a creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    /// The session exists now.
    Created,
    /// The id is taken; nothing was written.
    Taken {
        /// By a session that was deleted.
        deleted: bool,
    },
    /// The source is not there; nothing was written.
    SourceGone,
}

/// What must hold of a session's head for a write to take place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its version.
    pub version: Version,
    /// Its branch.
    pub branch: BranchId,
    /// Revision of its configuration.
    pub config_revision: u64,
    /// Its fence.
    pub fence: u64,
    /// Receipt of its newest turn: a version may be another turn after the
    /// metadata were taken back.
    pub receipt: Digest,
}

impl Expected {
    /// That the head is as it was read.
    pub fn unchanged(tip: &Tip) -> Self {
        let Head { version, branch, receipt, config_revision, fence, .. } = tip.head.clone();
        Self { version, branch, config_revision, fence, receipt }
    }
}

/// Where the entries of a new turn are put.
#[derive(Clone, Debug)]
pub enum TurnEntries {
    /// Nowhere: it has none.
    None,
    /// Into the journal.
    Journal(JournalRow),
    /// Into a segment that is in the blob store already, together with the
    /// journal rows before it, which go.
    Segment(SealedRun),
}

/// A segment that takes the place of journal rows.
#[derive(Clone, Debug)]
pub struct SealedRun {
    /// The segment, whose blob is durable.
    pub segment: Segment,
    /// The branch's sealed version before.
    pub expected_sealed_version: Version,
    /// Encoded bytes of the journal rows that go.
    pub journal_bytes: u64,
    /// The manifest, whose blob is durable, if one was written.
    pub manifest: Option<ManifestRow>,
    /// When the manifest that it replaces may be erased.
    pub erase_not_before: Micros,
    /// The writer generation that wrote the blobs.
    pub generation: GenerationId,
}

/// The newest manifest of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestRow {
    /// The session.
    pub session: SessionId,
    /// Its key in the blob store.
    pub key: String,
    /// The session's version that it tells of.
    pub version: Version,
}

/// A turn to be committed.
#[derive(Clone, Debug)]
pub struct NewTurn {
    /// The session.
    pub key: SessionKey,
    /// What must hold of its head.
    pub expected: Expected,
    /// The turn.
    pub turn: RecordedTurn,
    /// Its entries.
    pub entries: TurnEntries,
    /// A branch to be made for it, if it is a rewind.
    pub branch: Option<Branch>,
    /// Whether the window gets a new revision.
    pub revise_window: bool,
    /// Most encoded bytes that the session may have in the journal after it.
    pub journal_bytes_max: u64,
    /// Tool outputs of which previews stand in its entries.
    pub outputs: Vec<TurnOutput>,
}

/// A tool output that a turn brings.
#[derive(Clone, Debug)]
pub struct TurnOutput {
    /// The output, on the branch of the turn.
    pub output: Output,
    /// The bytes of its blob, if it names none. One that it names is durable.
    pub held: Option<Bytes>,
    /// The writer generation that wrote the blob.
    pub generation: GenerationId,
}

/// What became of a write that expects a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// It is durable.
    Committed,
    /// The head is not as expected, or there is none, or the journal is full;
    /// nothing was written.
    NotAsExpected,
}

/// A change of configuration.
#[derive(Clone, Debug)]
pub struct SessionUpdate {
    /// The session.
    pub key: SessionKey,
    /// Its configuration revision before.
    pub expected_revision: u64,
    /// Its whole configuration after.
    pub session: Session,
    /// A new preamble, if it changes.
    pub preamble: Option<Preamble>,
    /// Whether the window gets a new revision.
    pub revise_window: bool,
    /// When.
    pub at: Micros,
}

/// Which sessions to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionQuery {
    /// Labels that they must have; at most [`crate::limits::FILTER_LABELS_MAX`].
    pub labels: Labels,
    /// Their path.
    pub path: Option<CompressionPath>,
    /// Created at this time or later.
    pub created_min: Option<Micros>,
    /// Created before this time.
    pub created_max: Option<Micros>,
    /// Last changed at this time or later.
    pub updated_min: Option<Micros>,
    /// Only those that come after this one, in the order of the list.
    pub after: Option<(Micros, SessionId)>,
    /// How many.
    pub limit: u32,
}

/// A window state to be recorded.
#[derive(Clone, Debug)]
pub struct NewWindowState {
    /// The session.
    pub key: SessionKey,
    /// The state, whose version is found when it is written.
    pub state: RecordedState,
    /// Tokens of the window less those of the log.
    pub window_offset: i64,
}

/// What became of a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoteOutcome {
    /// It is kept. Its time is that of the text, which may have been there before.
    Put(Note),
    /// The session is not live; nothing was written.
    SessionGone,
    /// The session would have so many notes, of so many bytes, which is too much;
    /// nothing was written.
    Full {
        /// How many.
        notes: u64,
        /// Their bytes.
        bytes: u64,
    },
}

/// A branch whose journal is to be sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealCandidate {
    /// The branch.
    pub key: BranchKey,
    /// Raw bytes in its journal.
    pub raw_bytes: u64,
}

/// When a journal is due to be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealPolicy {
    /// At so many raw bytes.
    pub raw_bytes: u64,
    /// At so many raw bytes once the oldest turn is `old_seconds` old.
    pub old_raw_bytes: u64,
    /// See `old_raw_bytes`.
    pub old_seconds: u64,
    /// At any size once the oldest turn is so old.
    pub max_seconds: u64,
}

/// A journal to be sealed: rows that go and the segment in their place.
#[derive(Clone, Debug)]
pub struct NewSeal {
    /// The branch.
    pub key: BranchKey,
    /// The session that is charged for the journal.
    pub session: SessionId,
    /// The segment and what it replaces.
    pub run: SealedRun,
}

/// Segments to be merged into one.
#[derive(Clone, Debug)]
pub struct NewRollUp {
    /// The branch.
    pub key: BranchKey,
    /// The session whose deletion covers the old blobs.
    pub session: SessionId,
    /// The segments that go.
    pub old: Vec<Segment>,
    /// The segment in their place, whose blob is durable.
    pub new: Segment,
    /// The writer generation that wrote it.
    pub generation: GenerationId,
    /// When the old blobs may be erased.
    pub erase_not_before: Micros,
}

/// Which adjacent segments are worth a roll-up: as many as
/// [`crate::limits::ROLL_UP_SEGMENTS_MIN`] that are all small and together within
/// the size of one, and of which the first is no larger than the others together.
/// So each byte is written again a few times only, however long the branch gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RollUpPolicy {
    /// Stored bytes under which a segment is small.
    pub small_bytes: u64,
    /// Most raw bytes of the segment in their place.
    pub raw_bytes_max: u64,
}

/// A tool output to be kept.
#[derive(Clone, Debug)]
pub struct NewOutput {
    /// The session.
    pub key: SessionKey,
    /// The output, whose branch and version are found when it is written.
    pub output: Output,
    /// The bytes of its blob, if it names none. The session is charged for them as
    /// for its journal.
    pub held: Option<Bytes>,
    /// Most encoded bytes that the session may have in the journal after that.
    pub journal_bytes_max: u64,
    /// The writer generation that wrote the blob.
    pub generation: GenerationId,
}

/// A tool output whose blob the metadata store holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOutput {
    /// Its branch.
    pub branch: BranchKey,
    /// Its id.
    pub output: OutputId,
    /// Bytes of the blob.
    pub stored_bytes: u64,
}

/// A held output whose blob is durable in the blob store.
#[derive(Clone, Debug)]
pub struct OutputMove {
    /// The output.
    pub held: HeldOutput,
    /// Key of the blob.
    pub blob_key: String,
    /// The writer generation that wrote it.
    pub generation: GenerationId,
}

/// A blob to be erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// Its owner.
    pub tenant: TenantId,
    /// Its key.
    pub key: String,
    /// The session that it belonged to.
    pub session: SessionId,
    /// When it may be erased.
    pub not_before: Micros,
}

/// A deletion that is not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenDeletion {
    /// The session.
    pub key: SessionKey,
    /// When it was asked for.
    pub deleted_at: Micros,
    /// Whether the bucket's ledger has it.
    pub in_ledger: bool,
}

/// A writer generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationRow {
    /// Its number.
    pub id: GenerationId,
    /// Whether it may no longer name blobs.
    pub fenced: bool,
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

    /// Drops a claim, or the summary that waits.
    async fn drop_summary(&self, key: &SessionKey) -> Result<(), StoreError>;

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

/// Rows of one session or branch that were made anew from blobs.
#[derive(Clone, Debug, Default)]
pub struct RebuiltRows {
    /// Their owner.
    pub tenant: Option<TenantId>,
    /// A session with its head and preambles.
    pub session: Option<(Session, Head, Vec<Preamble>)>,
    /// A session that was deleted.
    pub deleted: Option<(SessionId, Micros)>,
    /// Branches.
    pub branches: Vec<Branch>,
    /// Turns, each with the session that made it.
    pub turns: Vec<(SessionId, RecordedTurn)>,
    /// Window states, each with the session that made it.
    pub window_states: Vec<(SessionId, RecordedState)>,
    /// Notes of the session.
    pub notes: Vec<Note>,
    /// Segments.
    pub segments: Vec<Segment>,
    /// Tool outputs.
    pub outputs: Vec<Output>,
    /// The manifest.
    pub manifest: Option<ManifestRow>,
    /// Blobs that may be erased.
    pub tombstones: Vec<Tombstone>,
}

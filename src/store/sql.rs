//! The metadata store over SQL: one text of each statement for Postgres and
//! `SQLite`.
//!
//! The two dialects share `$1` placeholders, `ON CONFLICT`, `RETURNING`, common
//! table expressions, BIGINT microseconds and TEXT ids. What differs is in
//! `connection::Database` and in the few statements that are spelled twice.

mod checks;
mod connection;
mod deletions;
mod held_outputs;
mod migrations;
mod notes;
mod outputs;
mod pool;
mod postgres;
mod rows;
mod seals;
mod sessions;
mod sqlite;
mod sweeps;
mod turns;
mod window_states;

use crate::clock::Micros;
use crate::model::{
    Branch, Deletion, Digest, GenerationId, Note, Output, OutputId, Preamble, RecordedState, RequestId,
    Segment, Seq, SessionId, TenantId, Version,
};
use crate::store::meta::{
    BranchKey, CommitOutcome, CreateOutcome, GenerationRow, HeldOutput, JournalRow, MetaStore, NewOutput,
    NewRollUp, NewSeal, NewSession, NewTurn, NewWindowState, NoteOutcome, OpenDeletion, OutputMove,
    RebuiltRows, RecordedTurn, RollUpPolicy, SealCandidate, SealPolicy, SessionKey, SessionQuery,
    SessionUpdate, Tip, Tombstone,
};
use crate::store::{ErrorKind, StoreError};
use async_trait::async_trait;
use bytes::Bytes;
use connection::{Database, Lane, Sql, args};
use std::sync::Arc;

pub use connection::PoolSizes;
pub use migrations::MIGRATIONS;
pub use postgres::PostgresOptions;

/// The metadata store over Postgres or `SQLite`.
#[derive(Debug, Clone)]
pub struct SqlMetaStore {
    db: Arc<dyn Database>,
}

impl SqlMetaStore {
    /// A store in a `SQLite` file, which is made if it is not there.
    pub async fn sqlite(file: &std::path::Path) -> Result<Self, StoreError> {
        Ok(Self { db: Arc::new(sqlite::Sqlite::open(file).await?) })
    }

    /// A store in a Postgres database. Connections are made when needed.
    pub fn postgres(options: &PostgresOptions) -> Result<Self, StoreError> {
        Ok(Self { db: Arc::new(postgres::Postgres::new(options)?) })
    }

    /// Applies the migrations up to a number, as an older version of the
    /// service would have, for tests of upgrades.
    pub async fn migrate_to(&self, number: i64) -> Result<Vec<i64>, StoreError> {
        migrations::migrate(self.db.as_ref(), Some(number)).await
    }
}

#[async_trait]
impl MetaStore for SqlMetaStore {
    async fn ping(&self) -> Result<(), StoreError> {
        let newest = Sql::both("SELECT version FROM _sqlx_migrations WHERE version = $1");
        let rows = self.db.query(Lane::Read, newest, args![migrations::newest()]).await;
        match rows {
            Ok(rows) if rows.len() == 1 => Ok(()),
            Ok(_) => Err(StoreError::new(
                ErrorKind::Internal,
                "the schema is older than this version: run the migrations",
            )),
            Err(error) if error.kind == ErrorKind::Internal => Err(StoreError::caused(
                ErrorKind::Internal,
                "the schema cannot be read: run the migrations, and let this user read it",
                error,
            )),
            Err(error) => Err(error),
        }
    }

    async fn migrate(&self) -> Result<Vec<i64>, StoreError> {
        migrations::migrate(self.db.as_ref(), None).await
    }

    async fn service_secret(&self, name: &str, fresh: [u8; 32]) -> Result<[u8; 32], StoreError> {
        sweeps::service_secret(self.db.as_ref(), name, fresh).await
    }

    async fn create_session(&self, new: NewSession) -> Result<CreateOutcome, StoreError> {
        sessions::create(self.db.as_ref(), new).await
    }

    async fn tip(&self, key: &SessionKey, journal_after: Option<Version>) -> Result<Option<Tip>, StoreError> {
        sessions::tip(self.db.as_ref(), key, journal_after).await
    }

    async fn list_sessions(&self, tenant: &TenantId, query: &SessionQuery) -> Result<Vec<Tip>, StoreError> {
        sessions::list(self.db.as_ref(), tenant, query).await
    }

    async fn update_session(&self, update: SessionUpdate) -> Result<CommitOutcome, StoreError> {
        sessions::update(self.db.as_ref(), update).await
    }

    async fn preamble(&self, key: &SessionKey, at: Version) -> Result<Option<Preamble>, StoreError> {
        sessions::preamble(self.db.as_ref(), key, at).await
    }

    async fn preambles(&self, key: &SessionKey) -> Result<Vec<Preamble>, StoreError> {
        sessions::preambles(self.db.as_ref(), key).await
    }

    async fn window_states(
        &self,
        key: &BranchKey,
        last: Version,
        before: u64,
        limit: u32,
    ) -> Result<Vec<RecordedState>, StoreError> {
        window_states::list(self.db.as_ref(), key, last, before, limit).await
    }

    async fn commit_window_state(&self, new: NewWindowState) -> Result<CommitOutcome, StoreError> {
        window_states::commit(self.db.as_ref(), new).await
    }

    async fn claim_summary(
        &self,
        key: &SessionKey,
        token: &str,
        now: Micros,
        until: Micros,
    ) -> Result<bool, StoreError> {
        window_states::claim_summary(self.db.as_ref(), key, token, now, until).await
    }

    async fn keep_summary(&self, key: &SessionKey, token: &str, body: &str) -> Result<bool, StoreError> {
        window_states::keep_summary(self.db.as_ref(), key, token, body).await
    }

    async fn pending_summary(
        &self,
        key: &SessionKey,
    ) -> Result<Option<(String, Option<String>)>, StoreError> {
        window_states::pending_summary(self.db.as_ref(), key).await
    }

    async fn rest_summary(
        &self,
        key: &SessionKey,
        token: &str,
        rest: &str,
        until: Micros,
    ) -> Result<bool, StoreError> {
        window_states::rest_summary(self.db.as_ref(), key, token, rest, until).await
    }

    async fn drop_summary(&self, key: &SessionKey, token: &str) -> Result<(), StoreError> {
        window_states::drop_summary(self.db.as_ref(), key, token).await
    }

    async fn put_note(&self, key: &SessionKey, note: &Note) -> Result<NoteOutcome, StoreError> {
        notes::put(self.db.as_ref(), key, note).await
    }

    async fn note(&self, key: &SessionKey, name: &str) -> Result<Option<Note>, StoreError> {
        notes::get(self.db.as_ref(), key, name).await
    }

    async fn notes(&self, key: &SessionKey) -> Result<Vec<Note>, StoreError> {
        notes::list(self.db.as_ref(), key).await
    }

    async fn note_names(&self, key: &SessionKey) -> Result<Vec<String>, StoreError> {
        notes::names(self.db.as_ref(), key).await
    }

    async fn delete_note(&self, key: &SessionKey, name: &str) -> Result<bool, StoreError> {
        notes::delete(self.db.as_ref(), key, name).await
    }

    async fn blob_bytes(&self, key: &SessionKey) -> Result<u64, StoreError> {
        sessions::blob_bytes(self.db.as_ref(), key).await
    }

    async fn commit_turn(&self, new: NewTurn) -> Result<CommitOutcome, StoreError> {
        turns::commit(self.db.as_ref(), new).await
    }

    async fn turn_of_request(
        &self,
        key: &SessionKey,
        id: &RequestId,
    ) -> Result<Option<RecordedTurn>, StoreError> {
        turns::of_request(self.db.as_ref(), key, id).await
    }

    async fn settle_turn(
        &self,
        key: &SessionKey,
        id: &RequestId,
    ) -> Result<Option<RecordedTurn>, StoreError> {
        turns::settle(self.db.as_ref(), key, id).await
    }

    async fn turn(&self, key: &BranchKey, version: Version) -> Result<Option<RecordedTurn>, StoreError> {
        Ok(turns::range(self.db.as_ref(), key, version, version, 1).await?.pop())
    }

    async fn turns(
        &self,
        key: &BranchKey,
        first: Version,
        last: Version,
        limit: u32,
    ) -> Result<Vec<RecordedTurn>, StoreError> {
        turns::range(self.db.as_ref(), key, first, last, limit).await
    }

    async fn prefix_digests(
        &self,
        key: &BranchKey,
        first: Version,
        last: Version,
    ) -> Result<Vec<(Version, Seq, Digest)>, StoreError> {
        turns::prefix_digests(self.db.as_ref(), key, first, last).await
    }

    async fn lineage(&self, key: &BranchKey) -> Result<Vec<Branch>, StoreError> {
        seals::lineage(self.db.as_ref(), key).await
    }

    async fn branches_of_session(&self, key: &SessionKey) -> Result<Vec<Branch>, StoreError> {
        seals::branches_of_session(self.db.as_ref(), key).await
    }

    async fn journal(
        &self,
        key: &BranchKey,
        first: Version,
        last: Version,
    ) -> Result<Vec<JournalRow>, StoreError> {
        turns::journal(self.db.as_ref(), key, first, last).await
    }

    async fn segments(&self, key: &BranchKey, first: Seq, last: Seq) -> Result<Vec<Segment>, StoreError> {
        seals::segments(self.db.as_ref(), key, first, last).await
    }

    async fn seal_candidates(
        &self,
        policy: SealPolicy,
        now: Micros,
        limit: u32,
    ) -> Result<Vec<SealCandidate>, StoreError> {
        seals::candidates(self.db.as_ref(), policy, now, limit).await
    }

    async fn commit_seal(&self, seal: NewSeal) -> Result<CommitOutcome, StoreError> {
        seals::commit(self.db.as_ref(), seal).await
    }

    async fn roll_up_candidates(
        &self,
        policy: RollUpPolicy,
        after: Option<&BranchKey>,
        limit: u32,
    ) -> Result<Vec<BranchKey>, StoreError> {
        seals::roll_up_candidates(self.db.as_ref(), policy, after, limit).await
    }

    async fn commit_roll_up(&self, roll_up: NewRollUp) -> Result<CommitOutcome, StoreError> {
        seals::commit_roll_up(self.db.as_ref(), roll_up).await
    }

    async fn add_output(&self, new: NewOutput) -> Result<Option<Output>, StoreError> {
        outputs::add(self.db.as_ref(), new).await
    }

    async fn output(&self, key: &SessionKey, id: &OutputId) -> Result<Option<Output>, StoreError> {
        outputs::get(self.db.as_ref(), key, id).await
    }

    async fn outputs(
        &self,
        key: &SessionKey,
        before: Option<&OutputId>,
        limit: u32,
    ) -> Result<Vec<Output>, StoreError> {
        outputs::list(self.db.as_ref(), key, before, limit).await
    }

    async fn held_output(&self, tenant: &TenantId, id: &OutputId) -> Result<Option<Bytes>, StoreError> {
        held_outputs::body(self.db.as_ref(), tenant, id).await
    }

    async fn held_outputs(
        &self,
        after: Option<&HeldOutput>,
        limit: u32,
    ) -> Result<Vec<HeldOutput>, StoreError> {
        held_outputs::list(self.db.as_ref(), after, limit).await
    }

    async fn held_output_count(&self) -> Result<u64, StoreError> {
        held_outputs::count(self.db.as_ref()).await
    }

    async fn held_output_bytes(&self, key: &SessionKey) -> Result<u64, StoreError> {
        held_outputs::bytes(self.db.as_ref(), key).await
    }

    async fn commit_output_move(&self, moved: OutputMove) -> Result<CommitOutcome, StoreError> {
        held_outputs::commit_move(self.db.as_ref(), moved).await
    }

    async fn outputs_of_branch(
        &self,
        key: &BranchKey,
        after: Option<&OutputId>,
        limit: u32,
    ) -> Result<Vec<Output>, StoreError> {
        outputs::of_branch(self.db.as_ref(), key, after, limit).await
    }

    async fn delete_session(
        &self,
        key: &SessionKey,
        include_forks: bool,
        now: Micros,
        erase_not_before: Micros,
    ) -> Result<Vec<SessionId>, StoreError> {
        deletions::delete(self.db.as_ref(), key, include_forks, now, erase_not_before).await
    }

    async fn deletion(&self, key: &SessionKey) -> Result<Option<Deletion>, StoreError> {
        deletions::receipt(self.db.as_ref(), key).await
    }

    async fn open_deletions(&self, after: Micros, limit: u32) -> Result<Vec<OpenDeletion>, StoreError> {
        deletions::open(self.db.as_ref(), after, limit).await
    }

    async fn deletion_in_ledger(&self, key: &SessionKey) -> Result<(), StoreError> {
        deletions::in_ledger(self.db.as_ref(), key).await
    }

    async fn advance_deletion(
        &self,
        key: &SessionKey,
        now: Micros,
        erase_not_before: Micros,
    ) -> Result<bool, StoreError> {
        deletions::advance(self.db.as_ref(), key, now, erase_not_before).await
    }

    async fn register_generation(&self, id: GenerationId, lease_until: Micros) -> Result<(), StoreError> {
        sweeps::register_generation(self.db.as_ref(), id, lease_until).await
    }

    async fn fence_generation(&self, id: GenerationId, now: Micros) -> Result<(), StoreError> {
        sweeps::fence_generation(self.db.as_ref(), id, now).await
    }

    async fn expired_generations(&self, now: Micros) -> Result<Vec<GenerationId>, StoreError> {
        sweeps::expired_generations(self.db.as_ref(), now).await
    }

    async fn generations(&self) -> Result<Vec<GenerationRow>, StoreError> {
        sweeps::generations(self.db.as_ref()).await
    }

    async fn referenced(&self, keys: &[String]) -> Result<Vec<String>, StoreError> {
        sweeps::referenced(self.db.as_ref(), keys).await
    }

    async fn forget_generations(&self, fenced_before: Micros) -> Result<u64, StoreError> {
        sweeps::forget_generations(self.db.as_ref(), fenced_before).await
    }

    async fn due_tombstones(
        &self,
        now: Micros,
        after: Option<&Tombstone>,
        limit: u32,
    ) -> Result<Vec<Tombstone>, StoreError> {
        sweeps::due_tombstones(self.db.as_ref(), now, after, limit).await
    }

    async fn remove_tombstone(&self, tombstone: &Tombstone) -> Result<(), StoreError> {
        sweeps::remove_tombstone(self.db.as_ref(), tombstone).await
    }

    async fn all_sessions(
        &self,
        after: Option<&SessionKey>,
        limit: u32,
    ) -> Result<Vec<SessionKey>, StoreError> {
        checks::all_sessions(self.db.as_ref(), after, limit).await
    }

    async fn all_branches(
        &self,
        after: Option<&BranchKey>,
        limit: u32,
    ) -> Result<Vec<(TenantId, Branch)>, StoreError> {
        checks::all_branches(self.db.as_ref(), after, limit).await
    }

    async fn load(&self, rows: RebuiltRows) -> Result<(), StoreError> {
        checks::load(self.db.as_ref(), rows).await
    }
}

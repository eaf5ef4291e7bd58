//! Stores that stop at a chosen call: as a process that is killed there has it,
//! or one that stalls.

use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, oneshot};
use turnkeep::clock::Micros;
use turnkeep::model::{
    Branch, Deletion, Digest, GenerationId, Note, Output, OutputId, Preamble, RecordedState, RequestId,
    Segment, Seq, SessionId, TenantId, Version,
};
use turnkeep::store::blob::{BlobInfo, BlobUpload};
use turnkeep::store::meta::{
    BranchKey, CommitOutcome, CreateOutcome, GenerationRow, HeldOutput, JournalRow, NewOutput, NewRollUp,
    NewSeal, NewSession, NewTurn, NewWindowState, NoteOutcome, OpenDeletion, OutputMove, RebuiltRows,
    RecordedTurn, RollUpPolicy, SealCandidate, SealPolicy, SessionKey, SessionQuery, SessionUpdate, Tip,
    Tombstone,
};
use turnkeep::store::{BlobStore, ErrorKind, MetaStore, StoreError};

/// What the calls of several stores go through. Each call makes two steps: one
/// before it takes effect and one after.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    crashed: Notify,
}

#[derive(Debug, Default)]
struct State {
    steps: u64,
    crash_at: Option<u64>,
    has_crashed: bool,
    holds: Vec<(&'static str, oneshot::Sender<()>, oneshot::Receiver<()>)>,
    failures: Vec<(&'static str, ErrorKind)>,
}

/// A call that is kept from beginning.
#[derive(Debug)]
pub(crate) struct Held {
    reached: oneshot::Receiver<()>,
    go_on: oneshot::Sender<()>,
}

impl Held {
    /// Waits until somebody makes the call.
    pub(crate) async fn reached(&mut self) {
        super::soon("a call that is to be held", &mut self.reached).await.unwrap();
    }

    /// Lets the call go on.
    pub(crate) fn release(self) {
        self.go_on.send(()).unwrap();
    }
}

impl Gate {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Steps that were made.
    pub(crate) fn steps(&self) -> u64 {
        self.state.lock().unwrap().steps
    }

    /// From now on the step of that number, counted from here, and all after it
    /// never end.
    pub(crate) fn crash_at(&self, step: u64) {
        let mut state = self.state.lock().unwrap();
        state.crash_at = Some(state.steps + step);
    }

    /// Waits for the crash.
    pub(crate) async fn crashed(&self) {
        loop {
            let crashed = self.crashed.notified();
            if self.state.lock().unwrap().has_crashed {
                return;
            }
            crashed.await;
        }
    }

    /// Keeps the next call of a method from beginning.
    pub(crate) fn hold(&self, method: &'static str) -> Held {
        let (reached, was_reached) = oneshot::channel();
        let (go_on, may_go_on) = oneshot::channel();
        self.state.lock().unwrap().holds.push((method, reached, may_go_on));
        Held { reached: was_reached, go_on }
    }

    /// Makes the next call of a method fail. One whose outcome is `Unknown` takes
    /// effect, any other does not.
    pub(crate) fn fail(&self, method: &'static str, kind: ErrorKind) {
        self.state.lock().unwrap().failures.push((method, kind));
    }

    /// Whether all calls that were to fail have failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().unwrap().failures.is_empty()
    }

    async fn step(&self) {
        let is_dead = {
            let mut state = self.state.lock().unwrap();
            state.steps += 1;
            state.has_crashed |= state.crash_at == Some(state.steps);
            state.has_crashed
        };
        if is_dead {
            self.crashed.notify_waiters();
            std::future::pending::<()>().await;
        }
    }

    async fn call<T>(
        &self,
        method: &'static str,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let held = {
            let mut state = self.state.lock().unwrap();
            let found = state.holds.iter().position(|(held, ..)| *held == method);
            found.map(|i| state.holds.remove(i))
        };
        if let Some((_, reached, may_go_on)) = held {
            reached.send(()).unwrap();
            may_go_on.await.unwrap();
        }
        let failure = {
            let mut state = self.state.lock().unwrap();
            let found = state.failures.iter().position(|(failing, _)| *failing == method);
            found.map(|i| StoreError::new(state.failures.remove(i).1, "injected failure"))
        };
        self.step().await;
        match failure {
            Some(failure) if failure.kind != ErrorKind::Unknown => return Err(failure),
            _ => {}
        }
        let output = call.await;
        self.step().await;
        match failure {
            Some(failure) => output.and(Err(failure)),
            None => output,
        }
    }
}

/// Blobs behind a gate.
#[derive(Debug)]
pub(crate) struct GatedBlobs {
    pub(crate) inner: Arc<dyn BlobStore>,
    pub(crate) gate: Arc<Gate>,
}

#[async_trait]
impl BlobStore for GatedBlobs {
    async fn put_new(&self, key: &str, body: Bytes, sha256: Digest) -> Result<(), StoreError> {
        self.gate.call("put_new", self.inner.put_new(key, body, sha256)).await
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn BlobUpload>, StoreError> {
        let inner = self.gate.call("begin", self.inner.begin(key)).await?;
        Ok(Box::new(GatedUpload { inner, gate: self.gate.clone() }))
    }

    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.gate.call("get", self.inner.get(key)).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.gate.call("get_range", self.inner.get_range(key, range)).await
    }

    async fn size(&self, key: &str) -> Result<Option<u64>, StoreError> {
        self.gate.call("size", self.inner.size(key)).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.gate.call("delete", self.inner.delete(key)).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobInfo>, StoreError> {
        self.gate.call("list", self.inner.list(prefix, after, limit)).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.gate.call("probe", self.inner.probe()).await
    }
}

#[derive(Debug)]
struct GatedUpload {
    inner: Box<dyn BlobUpload>,
    gate: Arc<Gate>,
}

#[async_trait]
impl BlobUpload for GatedUpload {
    async fn write(&mut self, part: Bytes) -> Result<(), StoreError> {
        self.gate.call("write", self.inner.write(part)).await
    }

    async fn finish(self: Box<Self>, sha256: Digest) -> Result<(), StoreError> {
        self.gate.call("finish", self.inner.finish(sha256)).await
    }
}

/// Metadata behind a gate.
#[derive(Debug)]
pub(crate) struct GatedMeta {
    pub(crate) inner: Arc<dyn MetaStore>,
    pub(crate) gate: Arc<Gate>,
}

macro_rules! gated {
    ($($method:ident($($arg:ident: $type:ty),*) -> $output:ty;)*) => {
        #[async_trait]
        impl MetaStore for GatedMeta {
            $(
                async fn $method(&self, $($arg: $type),*) -> Result<$output, StoreError> {
                    self.gate.call(stringify!($method), self.inner.$method($($arg),*)).await
                }
            )*
        }
    };
}

gated! {
    ping() -> ();
    migrate() -> Vec<i64>;
    service_secret(name: &str, fresh: [u8; 32]) -> [u8; 32];
    create_session(new: NewSession) -> CreateOutcome;
    tip(key: &SessionKey, journal_after: Option<Version>) -> Option<Tip>;
    list_sessions(tenant: &TenantId, query: &SessionQuery) -> Vec<Tip>;
    update_session(update: SessionUpdate) -> CommitOutcome;
    preamble(key: &SessionKey, at: Version) -> Option<Preamble>;
    preambles(key: &SessionKey) -> Vec<Preamble>;
    blob_bytes(key: &SessionKey) -> u64;
    commit_turn(new: NewTurn) -> CommitOutcome;
    turn_of_request(key: &SessionKey, id: &RequestId) -> Option<RecordedTurn>;
    settle_turn(key: &SessionKey, id: &RequestId) -> Option<RecordedTurn>;
    turn(key: &BranchKey, version: Version) -> Option<RecordedTurn>;
    turns(key: &BranchKey, first: Version, last: Version, limit: u32) -> Vec<RecordedTurn>;
    prefix_digests(key: &BranchKey, first: Version, last: Version) -> Vec<(Version, Seq, Digest)>;
    lineage(key: &BranchKey) -> Vec<Branch>;
    branches_of_session(key: &SessionKey) -> Vec<Branch>;
    journal(key: &BranchKey, first: Version, last: Version) -> Vec<JournalRow>;
    segments(key: &BranchKey, first: Seq, last: Seq) -> Vec<Segment>;
    window_states(key: &BranchKey, last: Version, before: u64, limit: u32) -> Vec<RecordedState>;
    commit_window_state(new: NewWindowState) -> CommitOutcome;
    claim_summary(key: &SessionKey, token: &str, now: Micros, until: Micros) -> bool;
    keep_summary(key: &SessionKey, token: &str, body: &str) -> bool;
    pending_summary(key: &SessionKey) -> Option<(String, Option<String>)>;
    rest_summary(key: &SessionKey, token: &str, rest: &str, until: Micros) -> bool;
    drop_summary(key: &SessionKey, token: &str) -> ();
    put_note(key: &SessionKey, note: &Note) -> NoteOutcome;
    note(key: &SessionKey, name: &str) -> Option<Note>;
    notes(key: &SessionKey) -> Vec<Note>;
    note_names(key: &SessionKey) -> Vec<String>;
    delete_note(key: &SessionKey, name: &str) -> bool;
    seal_candidates(policy: SealPolicy, now: Micros, limit: u32) -> Vec<SealCandidate>;
    commit_seal(seal: NewSeal) -> CommitOutcome;
    roll_up_candidates(policy: RollUpPolicy, after: Option<&BranchKey>, limit: u32) -> Vec<BranchKey>;
    commit_roll_up(roll_up: NewRollUp) -> CommitOutcome;
    add_output(new: NewOutput) -> Option<Output>;
    output(key: &SessionKey, id: &OutputId) -> Option<Output>;
    outputs(key: &SessionKey, before: Option<&OutputId>, limit: u32) -> Vec<Output>;
    held_output(tenant: &TenantId, id: &OutputId) -> Option<Bytes>;
    held_outputs(after: Option<&HeldOutput>, limit: u32) -> Vec<HeldOutput>;
    held_output_count() -> u64;
    held_output_bytes(key: &SessionKey) -> u64;
    commit_output_move(moved: OutputMove) -> CommitOutcome;
    outputs_of_branch(key: &BranchKey, after: Option<&OutputId>, limit: u32) -> Vec<Output>;
    delete_session(key: &SessionKey, include_forks: bool, now: Micros, erase_not_before: Micros) -> Vec<SessionId>;
    deletion(key: &SessionKey) -> Option<Deletion>;
    open_deletions(after: Micros, limit: u32) -> Vec<OpenDeletion>;
    deletion_in_ledger(key: &SessionKey) -> ();
    advance_deletion(key: &SessionKey, now: Micros, erase_not_before: Micros) -> bool;
    register_generation(id: GenerationId, lease_until: Micros) -> ();
    fence_generation(id: GenerationId, now: Micros) -> ();
    expired_generations(now: Micros) -> Vec<GenerationId>;
    generations() -> Vec<GenerationRow>;
    referenced(keys: &[String]) -> Vec<String>;
    forget_generations(fenced_before: Micros) -> u64;
    due_tombstones(now: Micros, after: Option<&Tombstone>, limit: u32) -> Vec<Tombstone>;
    remove_tombstone(tombstone: &Tombstone) -> ();
    all_sessions(after: Option<&SessionKey>, limit: u32) -> Vec<SessionKey>;
    all_branches(after: Option<&BranchKey>, limit: u32) -> Vec<(TenantId, Branch)>;
    load(rows: RebuiltRows) -> ();
}

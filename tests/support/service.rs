//! A service that runs in the test's process, and calls of it.

#![allow(dead_code, reason = "each test file uses its part of it")]

use crate::backends::Backend;
use pb::persist_transcript_request::{Append, Input, Snapshot};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_types::{ErrorInfo, StatusExt as _};
use turnkeep::client::Client;
use turnkeep::clock::{self, Stopwatch};
use turnkeep::engine::Engine;
use turnkeep::entropy::Entropy;
use turnkeep::rpc::{ERROR_DOMAIN, pb};
use turnkeep::server::{self, Running, Stores};
use turnkeep::settings::Settings;
use turnkeep::store::faulty::FaultyBlobs;

/// The session that most tests are about.
pub(crate) const SESSION: &str = "sessions/s";

/// A service over the stores of a [`Backend`].
pub(crate) struct Service {
    pub(crate) settings: Settings,
    pub(crate) client: Client,
    running: Running,
    /// What stands before the object store, if the test asked for it.
    faulty: Option<Arc<FaultyBlobs>>,
}

impl Service {
    /// Starts a service.
    pub(crate) async fn start(backend: &Backend) -> Self {
        Self::start_with(backend, |_| ()).await
    }

    /// Starts a service with other settings.
    pub(crate) async fn start_with(backend: &Backend, adjust: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = backend.settings();
        adjust(&mut settings);
        Self::run(settings, None).await
    }

    /// Starts a service whose object store can be made to fail.
    pub(crate) async fn start_faulty(
        backend: &Backend,
        adjust: impl FnOnce(&mut Settings),
    ) -> (Self, Arc<FaultyBlobs>) {
        let mut settings = backend.settings();
        adjust(&mut settings);
        let faulty = Arc::new(FaultyBlobs::new(backend.stores().await.blobs));
        (Self::run(settings, Some(faulty.clone())).await, faulty)
    }

    async fn run(settings: Settings, faulty: Option<Arc<FaultyBlobs>>) -> Self {
        let entropy = Arc::new(Entropy::from_os());
        let mut stores = Stores::open(&settings, &entropy, true).await.unwrap();
        if let Some(faulty) = &faulty {
            stores.blobs = faulty.clone();
        }
        stores.meta.migrate().await.unwrap();
        let running = server::start_over(stores, &settings, entropy, None).await.unwrap();
        let client = Client::connect(&url(running.grpc)).await.unwrap();
        Self { settings, client, running, faulty }
    }

    /// Stops the service and starts another on the same stores: nothing is in
    /// memory then.
    pub(crate) async fn restart(self) -> Self {
        let Self { settings, client, running, faulty } = self;
        drop(client);
        running.stop().await;
        Self::run(settings, faulty).await
    }

    /// Stops the service.
    pub(crate) async fn stop(self) {
        drop(self.client);
        self.running.stop().await;
    }

    pub(crate) fn grpc_url(&self) -> String {
        url(self.running.grpc)
    }

    /// A connection of its own.
    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::from_shared(self.grpc_url()).unwrap().connect().await.unwrap()
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.running.http
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.running.engine()
    }

    /// Seals all journals; returns how many segments were written.
    pub(crate) async fn seal(&self) -> usize {
        let mut segments = 0;
        loop {
            match self.engine().seal_due().await.unwrap() {
                0 => return segments,
                more => segments += more,
            }
        }
    }

    // --- Sessions ---

    pub(crate) async fn create(&self, id: &str, session: pb::Session) -> pb::Session {
        self.try_create(id, session).await.unwrap()
    }

    pub(crate) async fn try_create(&self, id: &str, session: pb::Session) -> Result<pb::Session, Refusal> {
        let request = pb::CreateSessionRequest {
            session_id: id.to_owned(),
            session: Some(session),
            ..Default::default()
        };
        answer(self.client.sessions.clone().create_session(request).await)
    }

    pub(crate) async fn get(&self, name: &str) -> pb::Session {
        self.try_get(name).await.unwrap()
    }

    pub(crate) async fn try_get(&self, name: &str) -> Result<pb::Session, Refusal> {
        let request = pb::GetSessionRequest { name: name.to_owned() };
        answer(self.client.sessions.clone().get_session(request).await)
    }

    pub(crate) async fn list(
        &self,
        request: pb::ListSessionsRequest,
    ) -> Result<pb::ListSessionsResponse, Refusal> {
        answer(self.client.sessions.clone().list_sessions(request).await)
    }

    /// Changes the fields of a session that `mask` names.
    pub(crate) async fn update(&self, session: pb::Session, mask: &[&str]) -> Result<pb::Session, Refusal> {
        let paths = mask.iter().map(|path| (*path).to_owned()).collect();
        let request = pb::UpdateSessionRequest {
            session: Some(session),
            update_mask: Some(prost_types::FieldMask { paths }),
        };
        answer(self.client.sessions.clone().update_session(request).await)
    }

    pub(crate) async fn delete(
        &self,
        name: &str,
        include_forks: bool,
    ) -> Result<pb::DeletionReceipt, Refusal> {
        let request = pb::DeleteSessionRequest { name: name.to_owned(), include_forks };
        answer(self.client.sessions.clone().delete_session(request).await)
    }

    pub(crate) async fn receipt(&self, name: &str) -> Result<pb::DeletionReceipt, Refusal> {
        let request = pb::GetDeletionReceiptRequest { name: name.to_owned() };
        answer(self.client.sessions.clone().get_deletion_receipt(request).await)
    }

    pub(crate) async fn fork(&self, request: pb::ForkSessionRequest) -> Result<pb::Session, Refusal> {
        answer(self.client.sessions.clone().fork_session(request).await)
    }

    pub(crate) async fn rewind(&self, request: pb::RewindSessionRequest) -> Result<pb::Session, Refusal> {
        answer(self.client.sessions.clone().rewind_session(request).await)
    }

    /// Takes a session back to a version.
    pub(crate) async fn rewind_to(&self, name: &str, version: u64) -> pb::Session {
        let request = pb::RewindSessionRequest {
            name: name.to_owned(),
            version,
            expected_version: None,
            request_id: fresh_id(),
        };
        self.rewind(request).await.unwrap()
    }

    pub(crate) async fn turns_page(
        &self,
        request: pb::ListTurnsRequest,
    ) -> Result<pb::ListTurnsResponse, Refusal> {
        answer(self.client.sessions.clone().list_turns(request).await)
    }

    /// All turns of a session, the newest first.
    pub(crate) async fn turns(&self, name: &str) -> Vec<pb::Turn> {
        let request = pb::ListTurnsRequest { name: name.to_owned(), page_size: 1_000, ..Default::default() };
        let page = self.turns_page(request).await.unwrap();
        assert_eq!(page.next_page_token, "", "more turns than a test should make");
        page.turns
    }

    // --- Transcripts ---

    pub(crate) async fn persist(
        &self,
        request: pb::PersistTranscriptRequest,
    ) -> Result<pb::PersistTranscriptResponse, Refusal> {
        answer(self.client.transcripts.clone().persist_transcript(request).await)
    }

    /// Appends messages as one turn.
    pub(crate) async fn append<P: AsRef<[u8]>>(
        &self,
        name: &str,
        payloads: &[P],
    ) -> pb::PersistTranscriptResponse {
        self.persist(append(name, &fresh_id(), payloads)).await.unwrap()
    }

    pub(crate) async fn try_restore(
        &self,
        request: pb::RestoreTranscriptRequest,
    ) -> Result<Restored, Refusal> {
        use pb::restore_transcript_response::Part;
        let mut parts = self.client.transcripts.clone().restore_transcript(request).await?.into_inner();
        let first = parts.message().await?.and_then(|message| message.part);
        let Some(Part::Header(header)) = first else { panic!("a restore begins with {first:?}") };
        let mut items = Vec::new();
        while let Some(message) = parts.message().await? {
            match message.part {
                Some(Part::Items(more)) => items.extend(more.items),
                other => panic!("within a restore comes {other:?}"),
            }
        }
        Ok(Restored { header, items })
    }

    pub(crate) async fn restore(&self, request: pb::RestoreTranscriptRequest) -> Restored {
        self.try_restore(request).await.unwrap()
    }

    /// The whole window of the newest version.
    pub(crate) async fn window(&self, name: &str) -> Restored {
        self.restore(pb::RestoreTranscriptRequest { session: name.to_owned(), ..Default::default() }).await
    }

    /// The whole window of a version.
    pub(crate) async fn window_at(&self, name: &str, version: u64) -> Restored {
        self.restore(pb::RestoreTranscriptRequest {
            session: name.to_owned(),
            at_version: Some(version),
            ..Default::default()
        })
        .await
    }

    /// What a worker lacks that holds a window.
    pub(crate) async fn restore_from(&self, name: &str, known_window: &str) -> Restored {
        self.restore(pb::RestoreTranscriptRequest {
            session: name.to_owned(),
            known_window: known_window.to_owned(),
            ..Default::default()
        })
        .await
    }

    pub(crate) async fn try_read(&self, request: pb::ReadTranscriptRequest) -> Result<Log, Refusal> {
        use pb::read_transcript_response::Part;
        let mut parts = self.client.transcripts.clone().read_transcript(request).await?.into_inner();
        let first = parts.message().await?.and_then(|message| message.part);
        let Some(Part::Header(header)) = first else { panic!("a read begins with {first:?}") };
        let mut entries = Vec::new();
        while let Some(message) = parts.message().await? {
            match message.part {
                Some(Part::Entries(more)) => entries.extend(more.entries),
                other => panic!("within a read comes {other:?}"),
            }
        }
        Ok(Log { header, entries })
    }

    /// The log of the newest version.
    pub(crate) async fn read(&self, name: &str) -> Log {
        let request = pb::ReadTranscriptRequest { session: name.to_owned(), ..Default::default() };
        self.try_read(request).await.unwrap()
    }

    /// The log of a version.
    pub(crate) async fn read_at(&self, name: &str, version: u64) -> Log {
        let request = pb::ReadTranscriptRequest {
            session: name.to_owned(),
            at_version: Some(version),
            ..Default::default()
        };
        self.try_read(request).await.unwrap()
    }
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// A restore that came whole.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Restored {
    pub(crate) header: pb::WindowHeader,
    pub(crate) items: Vec<pb::WindowItem>,
}

impl Restored {
    pub(crate) fn payloads(&self) -> Vec<String> {
        self.items.iter().map(|item| text(&item.payload)).collect()
    }

    pub(crate) fn change(&self) -> pb::window_change::Change {
        self.header.change.unwrap().change.unwrap()
    }

    /// Why all items were sent; none if they were not.
    pub(crate) fn full_reason(&self) -> Option<pb::FullReason> {
        match self.change() {
            pb::window_change::Change::Full(full) => Some(full.reason()),
            _ => None,
        }
    }

    /// The window that a worker has after it applied this to the items that it
    /// held.
    pub(crate) fn applied_to(&self, held: &[pb::WindowItem]) -> Vec<pb::WindowItem> {
        use pb::window_change::Change;
        let keep = match self.change() {
            Change::Unchanged(_) => held.len(),
            Change::Delta(delta) => usize::try_from(delta.base_items).unwrap(),
            Change::Full(_) => 0,
        };
        let window = [&held[..keep], &self.items].concat();
        assert_eq!(window.len() as u64, self.header.item_count);
        window
    }
}

/// A log that was read whole.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Log {
    pub(crate) header: pb::ReadHeader,
    pub(crate) entries: Vec<pb::Entry>,
}

impl Log {
    pub(crate) fn payloads(&self) -> Vec<String> {
        self.entries.iter().map(|entry| text(&entry.payload)).collect()
    }

    pub(crate) fn seqs(&self) -> Vec<u64> {
        self.entries.iter().map(|entry| entry.seq).collect()
    }
}

pub(crate) fn text(payload: &[u8]) -> String {
    String::from_utf8(payload.to_vec()).unwrap()
}

/// A failure as a client sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) message: String,
    /// Of `google.rpc.ErrorInfo`; empty if there is none.
    pub(crate) reason: String,
    pub(crate) metadata: BTreeMap<String, String>,
    /// Fields of `google.rpc.BadRequest` with what is wrong with them.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) retry_after: Option<Duration>,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info().cloned().unwrap_or_else(|| ErrorInfo::new("", ERROR_DOMAIN, []));
        assert_eq!(info.domain, ERROR_DOMAIN);
        let violations = details.bad_request().map(|bad| bad.field_violations.clone()).unwrap_or_default();
        Self {
            code: status.code(),
            message: status.message().to_owned(),
            reason: info.reason,
            metadata: info.metadata.into_iter().collect(),
            fields: violations.into_iter().map(|field| (field.field, field.description)).collect(),
            retry_after: details.retry_info().and_then(|info| info.retry_delay),
        }
    }
}

impl Refusal {
    /// Code and reason.
    pub(crate) fn kind(&self) -> (Code, &str) {
        (self.code, &self.reason)
    }

    pub(crate) fn metadata(&self, name: &str) -> &str {
        self.metadata.get(name).map_or("", String::as_str)
    }
}

pub(crate) fn answer<T>(result: Result<tonic::Response<T>, Status>) -> Result<T, Refusal> {
    Ok(result?.into_inner())
}

// --- Requests ---

/// A request id that no other call has.
pub(crate) fn fresh_id() -> String {
    Entropy::from_os().hex::<16>()
}

/// A session of a format and nothing else.
pub(crate) fn of_format(format: pb::WireFormat) -> pb::Session {
    pb::Session { format: format.into(), ..Default::default() }
}

pub(crate) fn message(payload: impl AsRef<[u8]>) -> pb::NewEntry {
    entry(pb::EntryKind::Message, payload)
}

pub(crate) fn entry(kind: pb::EntryKind, payload: impl AsRef<[u8]>) -> pb::NewEntry {
    pb::NewEntry { payload: payload.as_ref().to_vec().into(), kind: kind.into(), time: None }
}

/// A turn that appends messages.
pub(crate) fn append<P: AsRef<[u8]>>(
    session: &str,
    request_id: &str,
    payloads: &[P],
) -> pb::PersistTranscriptRequest {
    append_entries(session, request_id, payloads.iter().map(message).collect())
}

/// A turn that appends entries.
pub(crate) fn append_entries(
    session: &str,
    request_id: &str,
    entries: Vec<pb::NewEntry>,
) -> pb::PersistTranscriptRequest {
    pb::PersistTranscriptRequest {
        session: session.to_owned(),
        request_id: request_id.to_owned(),
        input: Some(Input::Append(Append { entries })),
        ..Default::default()
    }
}

/// A turn by a worker's whole list.
pub(crate) fn snapshot<P: AsRef<[u8]>>(session: &str, payloads: &[P]) -> pb::PersistTranscriptRequest {
    let entries = payloads.iter().map(message).collect();
    pb::PersistTranscriptRequest {
        session: session.to_owned(),
        request_id: fresh_id(),
        input: Some(Input::Snapshot(Snapshot { entries, ..Default::default() })),
        ..Default::default()
    }
}

/// Waits until a condition holds.
pub(crate) async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    const PAUSE: Duration = Duration::from_millis(10);
    const BOUND: Duration = Duration::from_mins(1);
    let waiting = Stopwatch::start();
    while !condition().await {
        assert!(waiting.elapsed() < BOUND, "never came true: {what}");
        clock::sleep(PAUSE).await;
    }
}

/// Polls a future so many times and then drops it; what it gave if that was
/// enough.
pub(crate) async fn polled<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut left = times;
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Pending if left == 0 => Poll::Ready(None),
            polled => polled.map(Some),
        }
    })
    .await
}

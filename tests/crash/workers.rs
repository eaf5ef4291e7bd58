//! Workers that write through a service which ends under them, and remember what
//! it told them.

use crate::Dice;
use crate::checker;
use crate::messages::{call, result, user};
use crate::stores::{eventually, payload};
use bytes::Bytes;
use futures::future::BoxFuture;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::Code;
use turnkeep::client::Client;
use turnkeep::clock;
use turnkeep::model::WireFormat;
use turnkeep::rpc::pb;
use turnkeep::rpc::pb::WireFormat::OpenaiChat;

/// A call that is under way.
type Call<T> = BoxFuture<'static, Result<T, tonic::Status>>;

/// Writers of each session: one, one, one, two and two.
const SESSIONS: [&str; 7] = ["own-1", "own-2", COMPACTED, "shared-1", "shared-1", "shared-2", "shared-2"];

/// The session whose window is truncated every few turns.
const COMPACTED: &str = "compacted";

/// A turn that was acknowledged.
#[derive(Clone, Debug)]
struct Turn {
    version: u64,
    receipt: Bytes,
    first_seq: u64,
    payloads: Vec<Bytes>,
}

/// What the workers were told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// By session and request.
    turns: BTreeMap<(String, String), Turn>,
    deleted: BTreeSet<String>,
    /// By fork: the source's version.
    forks: BTreeMap<String, (String, u64)>,
    /// Requests that failed at least once.
    pub(crate) interrupted: u64,
}

/// Where the service is, and whether to stop.
#[derive(Clone, Debug)]
struct Orders {
    address: watch::Receiver<String>,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
}

/// Workers that run.
#[derive(Debug)]
pub(crate) struct Workers {
    address: watch::Sender<String>,
    orders: Orders,
    tasks: Vec<JoinHandle<Told>>,
}

impl Workers {
    pub(crate) fn start(address: String, dice: &mut Dice) -> Self {
        let (address, receiver) = watch::channel(address);
        let orders = Orders { address: receiver, stop: Arc::default(), done: Arc::default() };
        let mut tasks = Vec::new();
        for (i, session) in SESSIONS.into_iter().enumerate() {
            let worker = Worker::new(orders.clone(), dice.fork(i as u64 + 1), format!("w{i}"));
            tasks.push(tokio::spawn(worker.write(session)));
        }
        let chores = Worker::new(orders.clone(), dice.fork(99), "chores".to_owned());
        tasks.push(tokio::spawn(chores.fork_and_delete()));
        Self { address, orders, tasks }
    }

    /// Waits until so much more was acknowledged.
    pub(crate) async fn wait_for(&self, more: u64) {
        let target = self.orders.done.load(Ordering::SeqCst) + more;
        eventually("workers that get on", async || {
            assert!(!self.tasks.iter().any(JoinHandle::is_finished), "a worker has failed");
            (self.orders.done.load(Ordering::SeqCst) >= target).then_some(())
        })
        .await;
    }

    /// Tells them where the service is now.
    pub(crate) fn moved_to(&self, address: String) {
        self.address.send_replace(address);
    }

    /// Lets each of them finish what it began.
    pub(crate) async fn stop(self) -> Told {
        self.orders.stop.store(true, Ordering::SeqCst);
        let mut all = Told::default();
        for task in self.tasks {
            let told = crate::stores::soon("the end of a worker", task).await.unwrap();
            all.turns.extend(told.turns);
            all.deleted.extend(told.deleted);
            all.forks.extend(told.forks);
            all.interrupted += told.interrupted;
        }
        all
    }
}

/// One worker.
struct Worker {
    orders: Orders,
    client: Option<Client>,
    dice: Dice,
    name: String,
    told: Told,
}

impl Worker {
    fn new(orders: Orders, dice: Dice, name: String) -> Self {
        Self { orders, client: None, dice, name, told: Told::default() }
    }

    fn goes_on(&self) -> bool {
        !self.orders.stop.load(Ordering::SeqCst)
    }

    /// Makes a call until it is answered; each failure must be one that says that
    /// another try is worth it.
    async fn insist<T>(&mut self, call: impl Fn(Client) -> Call<T>) -> T {
        let mut was_interrupted = false;
        loop {
            let client = if let Some(client) = self.client.clone() {
                Ok(client)
            } else {
                let address = self.orders.address.borrow_and_update().clone();
                Client::connect(&address).await
            };
            if let Ok(client) = client {
                self.client = Some(client.clone());
                match call(client).await {
                    Ok(answer) => {
                        self.told.interrupted += u64::from(was_interrupted);
                        self.orders.done.fetch_add(1, Ordering::SeqCst);
                        return answer;
                    }
                    Err(status) => {
                        // The transport says `Unknown` when a connection breaks.
                        let may_pass = matches!(
                            status.code(),
                            Code::Unavailable
                                | Code::Unknown
                                | Code::Aborted
                                | Code::Cancelled
                                | Code::Internal
                        ) && (status.code() != Code::Internal
                            || status.message().contains("h2"));
                        assert!(may_pass, "{status:?}");
                        was_interrupted |= status.code() != Code::Aborted;
                        self.client = None;
                    }
                }
            }
            // Until the service is back.
            clock::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn persist(&mut self, request: pb::PersistTranscriptRequest) -> pb::PersistTranscriptResponse {
        let call =
            |mut client: Client, request| async move { client.transcripts.persist_transcript(request).await };
        self.insist(|client| Box::pin(call(client, request.clone()))).await.into_inner()
    }

    /// A step of an agent; the first follows the user's message.
    fn step(&mut self, i: u32, id: &str) -> Vec<Bytes> {
        let text = payload(id, usize::try_from(300 + self.dice.below(1_000)).unwrap());
        let text = String::from_utf8(text.to_vec()).unwrap();
        let first = (i == 0).then(|| user(OpenaiChat, "Count. You must not skip 13."));
        let step = [call(OpenaiChat, id, "shell"), result(OpenaiChat, id, "shell", &text)];
        first.into_iter().chain(step).map(Bytes::from).collect()
    }

    /// Entries of which nothing is known.
    fn opaque(&mut self, id: &str) -> Vec<Bytes> {
        (0..=self.dice.below(3))
            .map(|part| {
                // Now and then one that goes to the object store first.
                let bytes = if self.dice.below(40) == 0 { 1_500_000 } else { 50 + self.dice.below(1_500) };
                payload(&format!("{id}-{part}"), usize::try_from(bytes).unwrap())
            })
            .collect()
    }

    /// Persists turn after turn.
    async fn write(mut self, session: &'static str) -> Told {
        for i in 0.. {
            if !self.goes_on() {
                break;
            }
            let id = format!("{}-{i}", self.name);
            let payloads = if session == COMPACTED { self.step(i, &id) } else { self.opaque(&id) };
            let request = persist_request(session, &id, &payloads);
            let answer = self.persist(request).await;
            let turn = Turn {
                version: answer.version,
                receipt: answer.receipt,
                first_seq: answer.first_seq,
                payloads,
            };
            assert_eq!(answer.last_seq - answer.first_seq + 1, turn.payloads.len() as u64);
            self.told.turns.insert((session.to_owned(), id), turn);
        }
        self.told
    }

    /// Makes sessions, forks them and deletes them.
    async fn fork_and_delete(mut self) -> Told {
        for i in 0.. {
            if !self.goes_on() {
                break;
            }
            let doomed = format!("doomed-{i}");
            let entries = [payload(&doomed, 2_000)];
            for id in ["r1", "r2"] {
                let request = persist_request(&doomed, id, &entries);
                self.persist(request).await;
            }
            if self.dice.below(3) == 0 {
                let fork = format!("fork-{i}");
                let request = pb::ForkSessionRequest {
                    name: format!("sessions/{doomed}"),
                    version: Some(1),
                    session_id: fork.clone(),
                    request_id: "fork".to_owned(),
                    ..pb::ForkSessionRequest::default()
                };
                let call =
                    |mut client: Client, request| async move { client.sessions.fork_session(request).await };
                self.insist(|client| Box::pin(call(client, request.clone()))).await;
                self.told.forks.insert(fork, (doomed.clone(), 1));
            }
            let request = pb::DeleteSessionRequest {
                name: format!("sessions/{doomed}"),
                ..pb::DeleteSessionRequest::default()
            };
            let call =
                |mut client: Client, request| async move { client.sessions.delete_session(request).await };
            self.insist(|client| Box::pin(call(client, request.clone()))).await;
            self.told.deleted.insert(doomed);
        }
        self.told
    }
}

fn persist_request(session: &str, id: &str, payloads: &[Bytes]) -> pb::PersistTranscriptRequest {
    use pb::persist_transcript_request::{Append, Input};
    let entry = |payload: &Bytes| pb::NewEntry { payload: payload.clone(), ..pb::NewEntry::default() };
    pb::PersistTranscriptRequest {
        session: format!("sessions/{session}"),
        request_id: id.to_owned(),
        input: Some(Input::Append(Append { entries: payloads.iter().map(entry).collect() })),
        create_if_missing: Some(if session == COMPACTED {
            let profile = pb::ModelProfile { context_window_tokens: 4_000, ..pb::ModelProfile::default() };
            let path = pb::CompressionPath::Batch.into();
            pb::Session { format: OpenaiChat.into(), path, profile: Some(profile), ..pb::Session::default() }
        } else {
            pb::Session { format: pb::WireFormat::Opaque.into(), ..pb::Session::default() }
        }),
        ..pb::PersistTranscriptRequest::default()
    }
}

impl Told {
    /// That a service has everything that it told, and nothing else.
    pub(crate) async fn verify(&self, address: &str) {
        let mut client = Client::connect(address).await.unwrap();
        let sessions: BTreeSet<_> = SESSIONS.into_iter().collect();
        for session in sessions {
            let own = self.turns.iter().filter(|((other, _), _)| other == session);
            let turns: BTreeMap<_, _> =
                own.map(|((_, id), turn)| (turn.version, (id.clone(), turn.clone()))).collect();
            // Each request made one turn, and the versions have no gap.
            assert!(turns.keys().copied().eq(1..=turns.len() as u64), "{session}: {:?}", turns.keys());
            assert_eq!(list_turns(&mut client, session).await, chain(session, &turns), "{session}");
            let expected: BTreeMap<_, _> = turns
                .values()
                .flat_map(|(_, turn)| (turn.first_seq..).zip(turn.payloads.iter().cloned()))
                .collect();
            let found = read(&mut client, session).await;
            assert!(expected.keys().copied().eq(1..=expected.len() as u64), "{session}");
            assert!(found.into_iter().eq(expected), "the log of {session} is what was acknowledged");
        }
        let compactions = check_window(address).await;
        assert!(compactions > 3, "{compactions} compactions");
        for session in &self.deleted {
            let request = pb::ReadTranscriptRequest {
                session: format!("sessions/{session}"),
                ..pb::ReadTranscriptRequest::default()
            };
            let refused = client.transcripts.read_transcript(request).await.unwrap_err();
            assert_eq!(refused.code(), Code::NotFound, "{session}");
        }
        for (fork, (source, _)) in &self.forks {
            assert_eq!(read(&mut client, fork).await, [(1, payload(source, 2_000))], "{fork}");
        }
        assert!(self.turns.len() > 50 && !self.deleted.is_empty(), "{} turns", self.turns.len());
    }
}

/// Request and receipt of each turn, as a client computes them: each from the
/// one before and from what the turn holds.
fn chain(session: &str, turns: &BTreeMap<u64, (String, Turn)>) -> Vec<(String, Bytes)> {
    let mut receipt = Sha256::new_with_prefix("turnkeep session v1\n").chain_update(session).finalize();
    let mut chained = Vec::new();
    for (version, (id, turn)) in turns {
        let mut entries = Sha256::new_with_prefix("turnkeep entries v1\n");
        for (seq, payload) in (turn.first_seq..).zip(&turn.payloads) {
            entries.update(seq.to_be_bytes());
            entries.update(1_i32.to_be_bytes());
            entries.update(Sha256::digest(payload));
        }
        let last_seq = turn.first_seq + turn.payloads.len() as u64 - 1;
        receipt = Sha256::new_with_prefix("turnkeep turn v1\n")
            .chain_update(receipt)
            .chain_update(version.to_be_bytes())
            .chain_update([1])
            .chain_update(0_u64.to_be_bytes())
            .chain_update(last_seq.to_be_bytes())
            .chain_update((id.len() as u64).to_be_bytes())
            .chain_update(id)
            .chain_update(entries.finalize())
            .finalize();
        assert_eq!(turn.receipt, receipt.as_slice(), "{session}, turn {version}");
        chained.push((id.clone(), turn.receipt.clone()));
    }
    chained
}

/// That the window which is truncated fits, and shows all of the log from where the
/// newest compaction says that it begins; returns how many compactions there are.
pub(crate) async fn check_window(address: &str) -> usize {
    use pb::restore_transcript_response::Part;
    let transcripts = &mut Client::connect(address).await.unwrap().transcripts;
    let session = format!("sessions/{COMPACTED}");
    let restore = pb::RestoreTranscriptRequest { session: session.clone(), ..Default::default() };
    let mut parts = match transcripts.restore_transcript(restore).await {
        Ok(parts) => parts.into_inner(),
        // A kill may come before its first turn.
        Err(status) if status.code() == Code::NotFound => return 0,
        Err(status) => panic!("{status:?}"),
    };
    let (mut header, mut items) = (None, Vec::new());
    while let Some(message) = parts.message().await.unwrap() {
        match message.part.unwrap() {
            Part::Header(first) => header = Some(first),
            Part::Items(more) => items.extend(more.items),
        }
    }
    assert_eq!(header.unwrap().fits, Some(true));
    let values: Vec<_> = items.iter().map(|item| serde_json::from_slice(&item.payload).unwrap()).collect();
    assert_eq!(checker::accepts(WireFormat::OpenaiChat, &values, true), Ok(()), "{values:#?}");
    let list = pb::ListCompactionsRequest { parent: session, ..Default::default() };
    let compactions = transcripts.list_compactions(list).await.unwrap().into_inner().compactions;
    assert!(compactions.iter().all(|one| one.kind() == pb::CompactionKind::Truncate), "{compactions:?}");
    let newest = compactions.first().cloned().unwrap_or_default();
    let log = read(&mut Client::connect(address).await.unwrap(), COMPACTED).await;
    let is_shown = |seq: u64| seq >= newest.first_kept_seq || newest.kept_seqs.contains(&seq);
    let expected: BTreeMap<_, _> = log.into_iter().filter(|(seq, _)| is_shown(*seq)).collect();
    let shown = items.into_iter().filter(|item| item.origin() == pb::ItemOrigin::Log);
    let shown: Vec<_> = shown.map(|item| (item.seqs[0], item.payload)).collect();
    assert_eq!(shown.len(), expected.len(), "{newest:?}");
    assert_eq!(shown.into_iter().collect::<BTreeMap<_, _>>(), expected, "{newest:?}");
    compactions.len()
}

async fn list_turns(client: &mut Client, session: &str) -> Vec<(String, Bytes)> {
    let mut turns = Vec::new();
    let mut page_token = String::new();
    loop {
        let request =
            pb::ListTurnsRequest { name: format!("sessions/{session}"), page_size: 1000, page_token };
        let page = client.sessions.list_turns(request).await.unwrap().into_inner();
        turns.extend(page.turns.into_iter().map(|turn| (turn.request_id, turn.receipt)));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            turns.reverse();
            return turns;
        }
    }
}

async fn read(client: &mut Client, session: &str) -> Vec<(u64, Bytes)> {
    use pb::read_transcript_response::Part;
    let request = pb::ReadTranscriptRequest {
        session: format!("sessions/{session}"),
        ..pb::ReadTranscriptRequest::default()
    };
    let mut parts = client.transcripts.read_transcript(request).await.unwrap().into_inner();
    let mut entries = Vec::new();
    while let Some(message) = parts.message().await.unwrap() {
        if let Some(Part::Entries(piece)) = message.part {
            entries.extend(piece.entries.into_iter().map(|entry| (entry.seq, entry.payload)));
        }
    }
    entries
}

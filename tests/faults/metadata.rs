//! Metadata stores whose connections break: above all at a commit, when nobody
//! knows what became of it.

use crate::stores::{
    Database, Directory, Gate, GatedMeta, Harm, Node, PostgresServer, Proxy, config, error_response, id_of,
    key, on_both_databases, payload, postgres_at, postgres_in_time, request, soon,
};
use futures::future::{BoxFuture, join_all};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use turnkeep::clock;
use turnkeep::engine::{Engine, Error, ForkRequest, PersistReply, Reason, RewindRequest, SessionChange};
use turnkeep::model::{CompressionPath, Labels, Seq, SessionId, Version};
use turnkeep::store::meta::SessionKey;
use turnkeep::store::{ErrorKind, MetaStore};

on_both_databases![what_the_tip_tells_is_not_asked_for_again];

/// An engine that reaches Postgres through a proxy, and a session.
pub(crate) struct Proxied {
    pub(crate) node: Node,
    pub(crate) proxy: Proxy,
    database: Database,
    pub(crate) key: SessionKey,
    _directory: Directory,
}

impl Proxied {
    pub(crate) async fn new() -> Option<Self> {
        let database = Database::postgres().await?;
        let proxy = Proxy::before(database.url().unwrap()).await;
        let meta = Arc::new(postgres_at(&proxy.url(database.url().unwrap()), 4));
        let directory = Directory::new();
        let node = Node::start(meta, directory.blobs.clone()).await;
        let key = key("s");
        node.create(&key).await;
        node.persist(&key, "first", payload("first", 100)).await.unwrap();
        Some(Self { node, proxy, database, key, _directory: directory })
    }

    /// Another process, which reaches Postgres directly.
    pub(crate) async fn another(&self) -> Node {
        let meta = Arc::new(self.database.another().await);
        Node::start(meta, self.node.blobs.clone()).await
    }
}

/// Small enough for the journal, and too large for it.
const SIZES: [usize; 2] = [100, 2 << 20];

/// Persists turns of which each meets with harm at its commit: each is
/// acknowledged, and there once.
async fn assert_persists(site: &Proxied, harm: impl Fn() -> Harm) {
    let mut expected = vec![(1, payload("first", 100))];
    for bytes in SIZES {
        for round in 0..3 {
            let id = format!("r{bytes}-{round}");
            site.proxy.arm(harm());
            let reply =
                soon("a persist", site.node.persist(&site.key, &id, payload(&id, bytes))).await.unwrap();
            assert!(site.proxy.is_spent());
            expected.push((expected.len() as u64 + 1, payload(&id, bytes)));
            let told = site.another().await.read(&site.key).await.unwrap();
            assert!(told.entries == expected, "after {id}");
            assert_eq!((told.version, told.receipt), (reply.version, reply.receipt));
            // A repetition gets the same answer, from whatever process.
            let again = site.another().await.persist(&site.key, &id, payload(&id, bytes)).await.unwrap();
            assert_eq!(again, reply);
        }
    }
    site.node.assert_healthy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_is_acknowledged() {
    let Some(site) = Proxied::new().await else { return };
    assert_persists(&site, || Harm::SwallowAnswer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_is_lost_is_made_again() {
    let Some(site) = Proxied::new().await else { return };
    assert_persists(&site, || Harm::Swallow).await;
}

/// A server that panics may have written the commit before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_at_which_the_server_goes_down_is_read_back() {
    let Some(site) = Proxied::new().await else { return };
    for (severity, sqlstate) in
        [("PANIC", "53100"), ("FATAL", "57P01"), ("PANIC", "58030"), ("FATAL", "XX000")]
    {
        let id = sqlstate.to_owned();
        site.proxy.arm(Harm::Answer(error_response(severity, sqlstate)));
        let reply = site.node.persist(&site.key, &id, payload(&id, 100)).await.unwrap();
        let tip = site.another().await.meta.tip(&site.key, None).await.unwrap().unwrap();
        assert_eq!((tip.turn.version, tip.turn.receipt), (reply.version, reply.receipt));
    }
    site.node.assert_healthy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_is_refused_never_shows() {
    let Some(site) = Proxied::new().await else { return };
    site.proxy.arm(Harm::Refuse(error_response("ERROR", "53100")));
    let refused = site.node.persist(&site.key, "full", payload("full", 100)).await.unwrap_err();
    assert_eq!(refused.reason(), Reason::StorageFull);
    let other = site.another().await;
    let found = other.meta.turn_of_request(&site.key, &id_of("full")).await.unwrap();
    assert_eq!(found, None);
    // One that could not be serialized is tried again.
    site.proxy.arm(Harm::Refuse(error_response("ERROR", "40001")));
    let reply = site.node.persist(&site.key, "again", payload("again", 100)).await.unwrap();
    assert_eq!(reply.version, Version(2));
    assert_eq!(other.read(&site.key).await.unwrap().entries.len(), 2);
}

/// The client's end of the connection is gone, and the server's transaction
/// still commits: nobody may conclude meanwhile that it will not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_arrives_late_is_waited_for() {
    let Some(site) = Proxied::new().await else { return };
    let (tell, answered, persisting) = persist_late(&site, "late", SIZES[1]);
    // The reader waits for the transaction that is still open.
    site.database.waiters(1).await;
    tell.send(()).unwrap();
    answered.await.unwrap();
    let reply = soon("a persist", persisting).await.unwrap().unwrap();
    assert_has(&site, "late", &reply).await;
}

/// The same for a turn that is one statement, which may not have begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_arrives_late_finds_the_turn_made_anew() {
    let Some(site) = Proxied::new().await else { return };
    let (tell, answered, persisting) = persist_late(&site, "late", SIZES[0]);
    let reply = soon("a persist", persisting).await.unwrap().unwrap();
    tell.send(()).unwrap();
    answered.await.unwrap();
    assert_has(&site, "late", &reply).await;
}

type Persisting = tokio::task::JoinHandle<Result<PersistReply, Error>>;

/// Persists a turn whose commit reaches the server when that is told.
fn persist_late(
    site: &Proxied,
    id: &str,
    bytes: usize,
) -> (oneshot::Sender<()>, oneshot::Receiver<()>, Persisting) {
    let ((tell, told), (done, answered)) = (oneshot::channel(), oneshot::channel());
    site.proxy.arm(Harm::Delay(told, done));
    let (node, key, id) = (site.node.clone(), site.key.clone(), id.to_owned());
    let persisting = tokio::spawn(async move { node.persist(&key, &id, payload(&id, bytes)).await });
    (tell, answered, persisting)
}

/// The session has a first turn and this one.
async fn assert_has(site: &Proxied, id: &str, reply: &PersistReply) {
    assert!(site.proxy.is_spent());
    let tip = site.another().await.meta.tip(&site.key, None).await.unwrap().unwrap();
    assert_eq!((tip.turn.version, tip.turn.receipt), (reply.version, reply.receipt));
    assert_eq!(tip.turn.request_id, id_of(id));
    assert_eq!(site.another().await.read(&site.key).await.unwrap().entries.len(), 2);
    site.node.assert_healthy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rewinds_deletions_and_seals_whose_commit_is_in_doubt_are_done_once() {
    let Some(site) = Proxied::new().await else { return };
    for (i, harm) in [|| Harm::SwallowAnswer, || Harm::Swallow].into_iter().enumerate() {
        let engine = &site.node.engine;
        site.proxy.arm(harm());
        let rewind = RewindRequest {
            key: site.key.clone(),
            version: Version(1),
            expected_version: None,
            request_id: id_of(&format!("back-{i}")),
        };
        let view = engine.rewind_session(rewind).await.unwrap();
        assert_eq!((view.head.version, view.head_seq), (Version(2 + i as u64 * 2), Seq(1)));
        let id = format!("r{i}");
        site.node.persist(&site.key, &id, payload(&id, 100)).await.unwrap();
        site.proxy.arm(harm());
        let _ = site.node.seal(&site.key).await;
        site.node.seal(&site.key).await.unwrap();
        let told = site.another().await.read(&site.key).await.unwrap();
        assert_eq!(told.entries, [(1, payload("first", 100)), (2, payload(&id, 100))]);
        let doomed = key(&format!("doomed-{i}"));
        site.node.create(&doomed).await;
        site.proxy.arm(harm());
        let unknown = engine.delete_session(doomed.clone(), false).await.unwrap_err();
        assert_eq!(unknown.reason(), Reason::OutcomeUnknown);
        engine.delete_session(doomed.clone(), false).await.unwrap();
        assert_eq!(site.node.read(&doomed).await.unwrap_err().reason(), Reason::SessionNotFound);
    }
    site.node.assert_healthy().await;
}

/// What fails after a commit must not be told as if nothing had been written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_and_cannot_be_read_back_is_in_doubt_and_done_once() {
    const DOWN: ErrorKind = ErrorKind::Unavailable;
    const LOST: ErrorKind = ErrorKind::Unknown;
    type Failures = &'static [(&'static str, ErrorKind)];
    type Call = fn(Engine, SessionKey) -> BoxFuture<'static, Result<Version, Error>>;
    let rewind: Call = |engine, key| {
        let (expected_version, request_id) = (Some(Version(2)), id_of("back"));
        let rewind = RewindRequest { key, version: Version(1), expected_version, request_id };
        Box::pin(async move { Ok(engine.rewind_session(rewind).await?.head.version) })
    };
    let create: Call = |engine, key| {
        let key = SessionKey { session: SessionId::parse("new").unwrap(), ..key };
        Box::pin(async move { Ok(engine.create_session(key, config()).await?.head.version) })
    };
    let update: Call = |engine, key| {
        let change = SessionChange { path: Some(CompressionPath::Batch), ..SessionChange::default() };
        Box::pin(async move { Ok(engine.update_session(key, change).await?.head.version) })
    };
    let fork: Call = |engine, source| {
        let (labels, request_id) = (Labels::new(), id_of("fork"));
        let fork = ForkRequest { source, version: Some(Version(1)), session: None, labels, request_id };
        Box::pin(async move { Ok(engine.fork_session(fork).await?.head.version) })
    };
    let table: [(&str, Call, Failures, Result<Version, Reason>); 6] = [
        ("commit_turn", rewind, &[("tip", DOWN)], Ok(Version(3))),
        ("commit_turn", rewind, &[("commit_turn", LOST), ("turn_of_request", DOWN)], Ok(Version(3))),
        ("commit_turn", rewind, &[("commit_turn", LOST), ("tip", DOWN)], Ok(Version(3))),
        ("create_session", create, &[("tip", DOWN)], Err(Reason::SessionExists)),
        ("update_session", update, &[("tip", DOWN)], Ok(Version(2))),
        ("create_session", fork, &[("tip", DOWN)], Ok(Version(2))),
    ];
    for (i, (write, call, failures, repeated)) in table.into_iter().enumerate() {
        let (database, directory, gate) = (Database::sqlite().await, Directory::new(), Gate::new());
        let meta = Arc::new(GatedMeta { inner: database.meta.clone(), gate: gate.clone() });
        let node = Node::start(meta, directory.blobs.clone()).await;
        let key = key("s");
        node.create(&key).await;
        for id in ["r1", "r2"] {
            node.persist(&key, id, payload(id, 100)).await.unwrap();
        }
        let mut held = gate.hold(write);
        let first = tokio::spawn(call(node.engine.clone(), key.clone()));
        held.reached().await;
        for (method, kind) in failures {
            gate.fail(method, *kind);
        }
        held.release();
        let error = soon("a call that fails", first).await.unwrap().unwrap_err();
        assert_eq!((error.reason(), gate.has_failed()), (Reason::OutcomeUnknown, true), "{i}: {error:?}");
        let again = call(node.engine.clone(), key).await.map_err(|error| error.reason());
        assert_eq!(again, repeated, "{i}");
        node.assert_healthy().await;
    }
}

/// A network that drops everything tells nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_fall_silent_are_given_up_and_replaced() {
    let Some(site) = Proxied::new().await else { return };
    let other = key("other");
    site.node.create(&other).await;
    site.proxy.silence();
    // All connections are used up, and more.
    let calls = (0..6).map(|i| {
        let id = format!("silent-{i}");
        let (node, key) = (site.node.clone(), other.clone());
        async move { (node.persist(&key, &id, payload(&id, 100)).await, id) }
    });
    let outcomes = soon("persists over silent connections", join_all(calls)).await;
    let mut acknowledged = Vec::new();
    for (outcome, id) in outcomes {
        match outcome {
            Ok(_) => acknowledged.push(id),
            Err(error) => assert!(error.retry_after().is_some(), "{error:?}"),
        }
    }
    // Whoever comes after is served.
    let id = "after";
    site.node.persist(&other, id, payload(id, 100)).await.unwrap();
    acknowledged.push(id.to_owned());
    let told = site.another().await.read(&other).await.unwrap();
    for id in acknowledged {
        assert_eq!(told.entries.iter().filter(|(_, entry)| *entry == payload(&id, 100)).count(), 1, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_is_used_up_refuses_in_time_and_serves_again() {
    let Some(database) = Database::postgres().await else { return };
    let url = database.url().unwrap();
    let meta = Arc::new(postgres_in_time(url, 2, Duration::from_millis(200)));
    let directory = Directory::new();
    let node = Node::start(meta, directory.blobs.clone()).await;
    for session in ["held", "other"] {
        node.create(&key(session)).await;
    }
    // Two persists wait for a lock, with a connection each.
    let hurdle =
        database.open_transaction(&["UPDATE head SET updated_at = 1 WHERE session_id = 'held'"]).await;
    let waiting: Vec<_> = ["r1", "r2"]
        .map(|id| {
            let node = node.clone();
            tokio::spawn(async move { node.persist(&key("held"), id, payload(id, 100)).await })
        })
        .into();
    database.waiters(2).await;
    let refused = node.persist(&key("other"), "r1", payload("r1", 100)).await;
    super::assert_retryable(refused, Reason::MetadataUnavailable);
    // Restores have connections of their own.
    assert_eq!(node.read(&key("other")).await.unwrap().entries, []);
    hurdle.roll_back().await;
    for persist in waiting {
        soon("a persist", persist).await.unwrap().unwrap();
    }
    node.persist(&key("other"), "r1", payload("r1", 100)).await.unwrap();
    assert_eq!(node.read(&key("held")).await.unwrap().entries.len(), 2);
    assert_eq!(node.read(&key("other")).await.unwrap().entries.len(), 1);
}

/// All connections of the pools are dead then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_notices_that_the_server_was_restarted_before() {
    let Some(mut server) = PostgresServer::start().await else { return };
    let database = Database::new_schema(&server.url()).await;
    database.meta.migrate().await.unwrap();
    let directory = Directory::new();
    let node = Node::start(Arc::new(database.another().await), directory.blobs.clone()).await;
    let key = key("s");
    node.create(&key).await;
    for round in 0..2 {
        let calls = (0..4).map(|i| {
            let id = format!("r{round}-{i}");
            let (node, key) = (node.clone(), key.clone());
            tokio::spawn(async move {
                node.persist(&key, &id, payload(&id, 100)).await.unwrap();
                node.read(&key).await.unwrap();
                node.seal(&key).await.unwrap();
            })
        });
        for call in join_all(calls).await {
            call.unwrap();
        }
        server.crash_and_restart().await;
    }
    assert_eq!(node.read(&key).await.unwrap().entries.len(), 8);
    drop(database);
}

/// What writers to one session know.
#[derive(Debug, Default)]
struct Ledger {
    /// By request: the answer's version and first seq.
    acknowledged: BTreeMap<String, (u64, u64)>,
    retries: u64,
}

/// Writes turns, repeating what fails; gives up every third request that was
/// refused for certain.
async fn write(engine: Engine, key: SessionKey, writer: usize, turns: usize, done: Arc<AtomicU64>) -> Ledger {
    let mut ledger = Ledger::default();
    for i in 0..turns {
        let id = format!("w{writer}-{i}");
        let mut in_doubt = false;
        loop {
            match engine.persist(request(&key, &id, vec![payload(&id, 200)])).await {
                Ok(reply) => {
                    ledger.acknowledged.insert(id, (reply.version.0, reply.first_seq.0));
                    done.fetch_add(1, Ordering::SeqCst);
                    break;
                }
                Err(error) => {
                    assert!(error.retry_after().is_some(), "{error:?}");
                    in_doubt |= error.reason() == Reason::OutcomeUnknown;
                    ledger.retries += 1;
                    if !in_doubt && ledger.retries.is_multiple_of(3) {
                        done.fetch_add(1, Ordering::SeqCst);
                        break;
                    }
                }
            }
            // As long as a server that restarts refuses connections.
            clock::sleep(Duration::from_millis(5)).await;
        }
    }
    ledger
}

/// Writers to their own sessions and to a shared one, while something is done to
/// the database again and again.
async fn ordeal(url: &str, turns: usize, mut disturb: impl AsyncFnMut()) {
    const WRITERS: usize = 4;
    let database = Database::new_schema(url).await;
    database.meta.migrate().await.unwrap();
    let directory = Directory::new();
    let node = Node::start(database.meta.clone(), directory.blobs.clone()).await;
    let keys: Vec<_> = (0..WRITERS).map(|i| key(if i < 2 { "shared" } else { ["a", "b"][i - 2] })).collect();
    for key in &keys[1..] {
        node.create(key).await;
    }
    let done = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (0..WRITERS)
        .map(|i| tokio::spawn(write(node.engine.clone(), keys[i].clone(), i, turns, done.clone())))
        .collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let sealing = tokio::spawn({
        let (node, keys, is_over) = (node.clone(), keys.clone(), is_over.clone());
        async move {
            while !is_over.load(Ordering::SeqCst) {
                for key in &keys[1..] {
                    if let Ok(Some(tip)) = node.meta.tip(key, None).await {
                        let tenant = key.tenant.clone();
                        let branch = turnkeep::store::meta::BranchKey { tenant, branch: tip.head.branch };
                        let _ = node.engine.seal_branch(&branch).await;
                    }
                }
                clock::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    let mut seen = 0;
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        let now = done.load(Ordering::SeqCst);
        if now >= seen + 4 {
            seen = now;
            disturb().await;
        }
        clock::sleep(Duration::from_millis(2)).await;
    }
    let ledgers: Vec<_> = join_all(writers).await.into_iter().map(Result::unwrap).collect();
    is_over.store(true, Ordering::SeqCst);
    sealing.await.unwrap();
    let retries: u64 = ledgers.iter().map(|ledger| ledger.retries).sum();
    assert!(retries > 0, "nothing was disturbed");
    let later = Node::start(Arc::new(database.another().await), directory.blobs.clone()).await;
    for key in &keys[1..] {
        let told = crate::stores::eventually("a connection", async || later.read(key).await.ok()).await;
        let mut expected = BTreeMap::new();
        for (ledger, _) in ledgers.iter().zip(&keys).filter(|(_, own)| *own == key) {
            for (id, (version, seq)) in &ledger.acknowledged {
                assert_eq!(expected.insert(*seq, payload(id, 200)), None, "{id} at version {version}");
            }
        }
        // Every turn that was acknowledged, where it was said to be; none that
        // was refused; and none twice.
        assert_eq!(told.entries, expected.into_iter().collect::<Vec<_>>());
    }
    later.assert_healthy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_killed_at_random_lose_and_double_nothing() {
    use sqlx::Connection as _;
    let Some(server) = PostgresServer::start().await else { return };
    let mut killer = sqlx::PgConnection::connect(&server.url()).await.unwrap();
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE application_name = 'turnkeep' AND random() < 0.5";
    ordeal(&server.url(), 60, async || {
        sqlx::query(kill).execute(&mut killer).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashes_and_comes_back_loses_and_doubles_nothing() {
    let Some(mut server) = PostgresServer::start().await else { return };
    let (url, mut calls) = (server.url(), 0);
    ordeal(&url, 60, async || {
        calls += 1;
        if calls % 12 == 1 {
            server.crash_and_restart().await;
        }
    })
    .await;
}

async fn what_the_tip_tells_is_not_asked_for_again(database: Database) {
    let (directory, key) = (Directory::new(), key("s"));
    let writer = Node::start(database.meta.clone(), directory.blobs.clone()).await;
    writer.create(&key).await;
    writer.persist(&key, "r1", payload("r1", 300)).await.unwrap();
    assert_eq!(writer.seal(&key).await.unwrap(), 1);
    let gate = Gate::new();
    let meta = Arc::new(GatedMeta { inner: database.meta.clone(), gate: gate.clone() });
    let node = Node::start(meta, directory.blobs.clone()).await;
    // That the branch has no parent, and that no entry is in the journal.
    for method in ["lineage", "journal"] {
        gate.fail(method, ErrorKind::Unavailable);
    }
    let restored = node.restore(&key).await.unwrap();
    assert_eq!(restored.items.len(), 1);
    assert!(!gate.has_failed());
}

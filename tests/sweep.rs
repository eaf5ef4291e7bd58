//! The sweep erases what nothing can name any more, and nothing else.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/stores.rs"]
mod stores;

use bytes::Bytes;
use futures::StreamExt as _;
use std::sync::Arc;
use std::time::Duration;
use stores::{
    Database, Directory, Gate, GatedBlobs, GatedMeta, Node, blob_keys, key, on_both_databases, payload,
    read_all, request, soon,
};
use turnkeep::clock::SystemClock;
use turnkeep::codec::digest;
use turnkeep::engine::{Engine, LogRange, Options, SweepReport};
use turnkeep::entropy::Entropy;
use turnkeep::model::{DeletionState, Seq, Version};
use turnkeep::store::BlobStore;
use turnkeep::store::meta::SessionKey;

on_both_databases![
    an_orphan_of_a_live_writer_stays_and_one_of_a_fenced_writer_goes,
    a_seal_that_stalled_while_its_writer_was_swept_starts_again,
    a_large_turn_that_stalled_while_its_writer_was_swept_gets_a_fresh_blob,
    a_roll_up_that_stalled_while_its_writer_was_swept_changes_nothing,
    a_blob_that_arrives_after_the_sweep_goes_with_the_next,
    blobs_of_unknown_writers_are_left,
    a_sweep_erases_as_many_as_it_may,
    writers_that_left_nothing_are_forgotten_after_a_week,
    a_blob_that_cannot_be_erased_keeps_no_other_from_it,
    old_segments_wait_for_their_grace,
    a_reader_that_holds_an_old_row_reads_on_through_a_roll_up,
    a_reader_whose_blob_was_erased_finds_the_one_in_its_place,
    a_deleted_session_leaves_no_blob,
    a_deletion_that_is_made_again_after_the_metadata_was_taken_back_ends,
];

/// A process whose calls of both stores can be held up.
struct Stalling {
    node: Node,
    gate: Arc<Gate>,
}

struct Site {
    database: Database,
    directory: Directory,
    node: Node,
}

impl Site {
    async fn new(database: Database) -> Self {
        let directory = Directory::new();
        let node = Node::start(database.meta.clone(), directory.blobs.clone()).await;
        Self { database, directory, node }
    }

    async fn another(&self) -> Node {
        self.with(Options::default()).await
    }

    async fn with(&self, options: Options) -> Node {
        let meta = Arc::new(self.database.another().await);
        Node::at(meta, self.directory.blobs.clone(), options, self.node.clock.clone()).await
    }

    async fn stalling(&self) -> Stalling {
        let gate = Gate::new();
        let meta = Arc::new(GatedMeta { inner: self.database.meta.clone(), gate: gate.clone() });
        let blobs = Arc::new(GatedBlobs { inner: self.directory.blobs.clone(), gate: gate.clone() });
        let node = Node::at(meta, blobs, Options::default(), self.node.clock.clone()).await;
        Stalling { node, gate }
    }

    async fn keys(&self) -> Vec<String> {
        blob_keys(self.directory.blobs.as_ref()).await
    }

    /// A session with so many segments of one turn.
    async fn sealed_session(&self, session: &str, turns: usize) -> SessionKey {
        let key = key(session);
        self.node.create(&key).await;
        for i in 1..=turns {
            self.node.persist(&key, &format!("r{i}"), payload(&format!("r{i}"), 300)).await.unwrap();
            assert_eq!(self.node.seal(&key).await.unwrap(), 1);
        }
        key
    }

    /// All is as it was persisted, and every blob that is named is there.
    async fn assert_log(&self, key: &SessionKey, ids: &[&str], bytes: usize) {
        let expected: Vec<_> = (1..).zip(ids.iter().map(|id| payload(id, bytes))).collect();
        let told = self.another().await.read(key).await.unwrap();
        assert!(told.entries == expected, "the log of {key:?}");
        self.node.assert_healthy().await;
    }
}

async fn an_orphan_of_a_live_writer_stays_and_one_of_a_fenced_writer_goes(database: Database) {
    let site = Site::new(database).await;
    let key = site.sealed_session("s", 2).await;
    let named = site.keys().await;
    // Put, and never committed.
    let Stalling { node, gate } = site.stalling().await;
    node.persist(&key, "r3", payload("r3", 300)).await.unwrap();
    let mut commit = gate.hold("commit_seal");
    let sealing = tokio::spawn({
        let (node, key) = (node.clone(), key.clone());
        async move { node.seal(&key).await }
    });
    commit.reached().await;
    sealing.abort();
    let orphans: Vec<_> = site.keys().await.into_iter().filter(|key| !named.contains(key)).collect();
    assert_eq!(orphans.len(), 2, "a segment and a manifest: {orphans:?}");
    let sweeper = site.another().await;
    for _ in 0..2 {
        let report = sweeper.engine.sweep().await.unwrap();
        let expected = SweepReport { blobs_seen: site.keys().await.len(), ..SweepReport::default() };
        assert_eq!(report, expected);
    }
    // Time alone is no reason, while its writer renews what it has.
    let seen = site.keys().await.len();
    node.engine.drain().await;
    let report = sweeper.engine.sweep().await.unwrap();
    assert_eq!(report, SweepReport { blobs_seen: seen, orphans_erased: 2, ..SweepReport::default() });
    assert_eq!(site.keys().await, named);
    site.assert_log(&key, &["r1", "r2", "r3"], 300).await;
}

/// Everything of a writer whose lease has ended is swept, by another process.
async fn sweep_after_its_lease(site: &Site) -> SweepReport {
    site.node.clock.advance(Duration::from_hours(1));
    let sweeper = site.another().await;
    let report = sweeper.engine.sweep().await.unwrap();
    assert!(report.generations_fenced > 0, "{report:?}");
    report
}

async fn a_seal_that_stalled_while_its_writer_was_swept_starts_again(database: Database) {
    let site = Site::new(database).await;
    let key = site.sealed_session("s", 1).await;
    let Stalling { node, gate } = site.stalling().await;
    node.persist(&key, "r2", payload("r2", 300)).await.unwrap();
    let mut commit = gate.hold("commit_seal");
    let sealing = tokio::spawn({
        let (node, key) = (node.clone(), key.clone());
        async move { node.seal(&key).await }
    });
    commit.reached().await;
    assert_eq!(sweep_after_its_lease(&site).await.orphans_erased, 2);
    let left = site.keys().await;
    commit.release();
    assert_eq!(soon("the seal", sealing).await.unwrap().unwrap(), 0);
    assert_eq!(site.keys().await, left);
    site.assert_log(&key, &["r1", "r2"], 300).await;
    // The next one has a generation of its own.
    assert_eq!(node.seal(&key).await.unwrap(), 1);
    assert_eq!(site.database.rows("SELECT version FROM journal").await, [[""; 1]; 0]);
    site.assert_log(&key, &["r1", "r2"], 300).await;
}

async fn a_large_turn_that_stalled_while_its_writer_was_swept_gets_a_fresh_blob(database: Database) {
    const LARGE: usize = 2 << 20;
    let site = Site::new(database).await;
    let key = key("s");
    site.node.create(&key).await;
    let Stalling { node, gate } = site.stalling().await;
    let mut commit = gate.hold("commit_turn");
    let persisting = tokio::spawn({
        let (node, key) = (node.clone(), key.clone());
        async move { node.persist(&key, "r1", payload("r1", LARGE)).await }
    });
    commit.reached().await;
    let first = site.keys().await;
    assert_eq!(sweep_after_its_lease(&site).await.orphans_erased, 2);
    commit.release();
    let reply = soon("the persist", persisting).await.unwrap().unwrap();
    assert_eq!(reply.version, Version(1));
    let second = site.keys().await;
    assert!(second.len() == 2 && !second.iter().any(|key| first.contains(key)), "{first:?} {second:?}");
    site.assert_log(&key, &["r1"], LARGE).await;
    assert_eq!(node.persist(&key, "r2", payload("r2", LARGE)).await.unwrap().version, Version(2));
    site.assert_log(&key, &["r1", "r2"], LARGE).await;
}

async fn a_roll_up_that_stalled_while_its_writer_was_swept_changes_nothing(database: Database) {
    let site = Site::new(database).await;
    let key = site.sealed_session("s", 4).await;
    let branch = site.node.branch(&key).await;
    let Stalling { node, gate } = site.stalling().await;
    let mut commit = gate.hold("commit_roll_up");
    let rolling = tokio::spawn({
        let (node, branch) = (node.clone(), branch.clone());
        async move { node.engine.roll_up_branch(&branch).await }
    });
    commit.reached().await;
    assert_eq!(sweep_after_its_lease(&site).await.orphans_erased, 1);
    let before = site.database.rows("SELECT blob_key FROM segment ORDER BY first_seq").await;
    commit.release();
    assert!(!soon("the roll-up", rolling).await.unwrap().unwrap());
    assert_eq!(site.database.rows("SELECT blob_key FROM segment ORDER BY first_seq").await, before);
    site.assert_log(&key, &["r1", "r2", "r3", "r4"], 300).await;
    assert!(node.engine.roll_up_branch(&branch).await.unwrap());
    assert_eq!(site.database.rows("SELECT blob_key FROM segment").await.len(), 1);
    site.assert_log(&key, &["r1", "r2", "r3", "r4"], 300).await;
}

async fn a_blob_that_arrives_after_the_sweep_goes_with_the_next(database: Database) {
    let site = Site::new(database).await;
    let key = site.sealed_session("s", 1).await;
    let named = site.keys().await;
    let Stalling { node, gate } = site.stalling().await;
    node.persist(&key, "r2", payload("r2", 300)).await.unwrap();
    let mut put = gate.hold("put_new");
    let sealing = tokio::spawn({
        let (node, key) = (node.clone(), key.clone());
        async move { node.seal(&key).await }
    });
    put.reached().await;
    assert_eq!(sweep_after_its_lease(&site).await.orphans_erased, 0);
    put.release();
    assert_eq!(soon("the seal", sealing).await.unwrap().unwrap(), 0);
    assert_eq!(site.keys().await.len(), named.len() + 2);
    assert_eq!(site.another().await.engine.sweep().await.unwrap().orphans_erased, 2);
    assert_eq!(site.keys().await, named);
    site.assert_log(&key, &["r1", "r2"], 300).await;
}

async fn put(blobs: &dyn BlobStore, key: &str) {
    let body = Bytes::copy_from_slice(key.as_bytes());
    let sha256 = digest::sha256(&body);
    blobs.put_new(key, body, sha256).await.unwrap();
}

async fn blobs_of_unknown_writers_are_left(database: Database) {
    let site = Site::new(database).await;
    let key = site.sealed_session("s", 1).await;
    // Of a generation that nobody registered, and of nobody's.
    let strange =
        ["aa/0011/b1/s-000000000001-g999999-ff.zst", "ledger/ff00", "notes/readme.txt", "probe/create-only"];
    for key in strange {
        put(site.directory.blobs.as_ref(), key).await;
    }
    let before = site.keys().await;
    let report = sweep_after_its_lease(&site).await;
    assert_eq!((report.orphans_erased, report.blobs_of_unknown_generations), (0, 1));
    assert_eq!(site.keys().await, before);
    site.assert_log(&key, &["r1"], 300).await;
}

async fn a_sweep_erases_as_many_as_it_may(database: Database) {
    let site = Site::new(database).await;
    let key = site.sealed_session("s", 1).await;
    let named = site.keys().await;
    let gone = stores::generation(site.node.meta.as_ref()).await;
    for i in 0..5 {
        put(site.directory.blobs.as_ref(), &format!("a{i}/0011/b1/s-00000000000{i}-g{gone}-ff.zst")).await;
    }
    site.node.meta.fence_generation(gone, site.node.now()).await.unwrap();
    let sweeper = site.with(Options { sweep_erase_max: 2, ..Options::default() }).await;
    for (erased, left) in [(2, 3), (2, 1), (1, 0), (0, 0)] {
        let report = sweeper.engine.sweep().await.unwrap();
        assert_eq!((report.orphans_erased, report.orphans_left), (erased, left));
    }
    assert_eq!(site.keys().await, named);
    site.assert_log(&key, &["r1"], 300).await;
}

async fn writers_that_left_nothing_are_forgotten_after_a_week(database: Database) {
    let site = Site::new(database).await;
    let key = site.sealed_session("s", 1).await;
    let gone = site.another().await;
    gone.persist(&key, "r2", payload("r2", 300)).await.unwrap();
    assert_eq!(gone.seal(&key).await.unwrap(), 1);
    gone.engine.drain().await;
    let generations = async || site.node.meta.generations().await.unwrap().len();
    assert_eq!(generations().await, 2);
    let stray = stores::generation(site.node.meta.as_ref()).await;
    site.node.meta.fence_generation(stray, site.node.now()).await.unwrap();
    let orphan = format!("aa/0011/b1/s-000000000001-g{stray}-ff.zst");
    put(site.directory.blobs.as_ref(), &orphan).await;
    site.node.engine.sweep().await.unwrap();
    assert_eq!(generations().await, 3, "a blob of theirs may still arrive");
    put(site.directory.blobs.as_ref(), &orphan).await;
    site.node.clock.advance(Duration::from_hours(8 * 24));
    // As long as something of them is left they are known.
    let timid = site.with(Options { sweep_erase_max: 0, ..Options::default() }).await;
    assert_eq!(timid.engine.sweep().await.unwrap().orphans_left, 1);
    assert_eq!(generations().await, 4);
    assert_eq!(timid.engine.sweep().await.unwrap().orphans_left, 1);
    let report = site.another().await.engine.sweep().await.unwrap();
    assert_eq!(report.orphans_erased, 1);
    // Of this process, whose lease has ended and which was fenced just now, of the
    // timid one and of the sweeper.
    assert_eq!(generations().await, 3);
    site.assert_log(&key, &["r1", "r2"], 300).await;
}

async fn a_blob_that_cannot_be_erased_keeps_no_other_from_it(database: Database) {
    let site = Site::new(database).await;
    let key = site.sealed_session("s", 3).await;
    site.node.engine.delete_session(key.clone(), false).await.unwrap();
    site.node.wait_long();
    let before = site.keys().await;
    // Something else lies in its place.
    let stuck = before.iter().find(|key| key.contains("/s-000000000001-")).unwrap();
    let path = site.directory.path().join(stuck);
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir_all(path.join("inside")).unwrap();
    site.node.engine.bury().await.unwrap_err();
    let receipt = site.node.engine.deletion(&key).await.unwrap();
    assert_eq!((receipt.state, receipt.objects_pending), (DeletionState::Pending, 1));
    std::fs::remove_dir_all(&path).unwrap();
    for _ in 0..2 {
        site.node.engine.bury().await.unwrap();
    }
    assert_eq!(site.node.engine.deletion(&key).await.unwrap().state, DeletionState::Erased);
}

async fn old_segments_wait_for_their_grace(database: Database) {
    let site = Site::new(database).await;
    let key = site.sealed_session("s", 4).await;
    let grace = Options::default().grace;
    // The manifests that were replaced while the session was sealed.
    site.node.clock.advance(grace);
    site.node.engine.bury().await.unwrap();
    let before = site.keys().await;
    assert_eq!(before.len(), 5);
    assert_eq!(site.node.engine.roll_up_due().await.unwrap(), 1);
    site.node.clock.advance(grace.checked_sub(Duration::from_micros(1)).unwrap());
    assert_eq!(site.node.engine.bury().await.unwrap(), 0);
    // Nor does a sweep take them, were their writer gone.
    sweep_after_its_lease(&site).await;
    assert_eq!(site.keys().await.len(), 6);
    assert_eq!(site.node.engine.bury().await.unwrap(), 4);
    let after = site.keys().await;
    assert_eq!(after.len(), 2, "a segment and a manifest: {after:?}");
    site.assert_log(&key, &["r1", "r2", "r3", "r4"], 300).await;
}

/// Entries of a session, by a reader that is held up before it gets its first
/// blob, while something is done.
async fn read_while(site: &Site, key: &SessionKey, restores: bool, meanwhile: impl AsyncFn()) -> Vec<Bytes> {
    let Stalling { node, gate } = site.stalling().await;
    let mut get = gate.hold("get");
    let reading = tokio::spawn({
        let (node, key) = (node.clone(), key.clone());
        async move {
            if restores {
                let restored = node.restore(&key).await.unwrap();
                return restored.items.into_iter().map(|item| item.payload).collect();
            }
            let (_, pieces) = node.engine.read(key, LogRange::default()).await.unwrap();
            let pieces: Vec<_> = pieces.collect().await;
            pieces.into_iter().flat_map(|piece| piece.unwrap()).map(|entry| entry.payload).collect::<Vec<_>>()
        }
    });
    get.reached().await;
    meanwhile().await;
    get.release();
    soon("the reader", reading).await.unwrap()
}

async fn a_reader_that_holds_an_old_row_reads_on_through_a_roll_up(database: Database) {
    let site = Site::new(database).await;
    for (session, restores) in [("s1", true), ("s2", false)] {
        let key = site.sealed_session(session, 4).await;
        let entries = read_while(&site, &key, restores, async || {
            assert_eq!(site.node.engine.roll_up_due().await.unwrap(), 1);
            assert_eq!(site.node.engine.bury().await.unwrap(), 0);
        })
        .await;
        assert_eq!(entries, ["r1", "r2", "r3", "r4"].map(|id| payload(id, 300)));
    }
}

async fn a_reader_whose_blob_was_erased_finds_the_one_in_its_place(database: Database) {
    let site = Site::new(database).await;
    for (session, restores) in [("s1", true), ("s2", false)] {
        let key = site.sealed_session(session, 4).await;
        let entries = read_while(&site, &key, restores, async || {
            assert_eq!(site.node.engine.roll_up_due().await.unwrap(), 1);
            site.node.wait_long();
            assert!(site.node.engine.bury().await.unwrap() >= 4);
        })
        .await;
        assert_eq!(entries, ["r1", "r2", "r3", "r4"].map(|id| payload(id, 300)));
    }
}

async fn a_deleted_session_leaves_no_blob(database: Database) {
    let site = Site::new(database).await;
    let kept = site.sealed_session("kept", 2).await;
    let doomed = site.sealed_session("doomed", 5).await;
    site.node.engine.roll_up_due().await.unwrap();
    site.node.persist(&doomed, "tail", payload("tail", 300)).await.unwrap();
    let receipt = site.node.engine.delete_session(doomed.clone(), false).await.unwrap();
    assert_eq!(receipt.state, DeletionState::Pending);
    assert_eq!(site.node.engine.bury().await.unwrap(), 0);
    site.node.wait_long();
    for _ in 0..2 {
        site.node.engine.bury().await.unwrap();
    }
    let receipt = site.node.engine.deletion(&doomed).await.unwrap();
    assert_eq!((receipt.state, receipt.objects_pending), (DeletionState::Erased, 0));
    let left = site.keys().await;
    let branch = site.node.branch(&kept).await.branch.to_string();
    assert!(left.iter().all(|key| key.contains(&branch) || key.starts_with("ledger/")), "{left:?}");
    assert_eq!(left.iter().filter(|key| key.starts_with("ledger/")).count(), 1);
    site.assert_log(&kept, &["r1", "r2"], 300).await;
}

async fn a_deletion_that_is_made_again_after_the_metadata_was_taken_back_ends(database: Database) {
    let site = Site::new(database).await;
    let (doomed, other) = (site.sealed_session("doomed", 1).await, site.sealed_session("other", 1).await);
    // The ledger of the bucket has it, as of another time.
    let entry = br#"{"turnkeep":"deletion","tenant":"default","session":"doomed","deleted_at":1}"#;
    let name = digest::sha256(b"default/doomed").to_string();
    let body = Bytes::from_static(entry);
    site.directory
        .blobs
        .put_new(&format!("ledger/{name}"), body.clone(), digest::sha256(&body))
        .await
        .unwrap();
    for key in [&doomed, &other] {
        site.node.engine.delete_session(key.clone(), false).await.unwrap();
    }
    site.node.wait_long();
    for _ in 0..2 {
        site.node.engine.bury().await.unwrap();
    }
    for key in [&doomed, &other] {
        assert_eq!(site.node.engine.deletion(key).await.unwrap().state, DeletionState::Erased, "{key:?}");
    }
    assert!(site.keys().await.iter().all(|key| key.starts_with("ledger/")));
}

/// The bucket is then ahead of the metadata: what the lost rows named is the only
/// copy of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_that_was_taken_back_in_time_costs_no_blob_that_came_later() {
    let site = Site::new(Database::sqlite().await).await;
    let key = site.sealed_session("s", 1).await;
    site.node.engine.drain().await;
    let backup = Database::empty_sqlite().await;
    let file = backup.file().unwrap().with_file_name("backup.db");
    site.database.execute_made(format!("VACUUM INTO '{}'", file.display())).await;
    // Another process goes on until the metadata is lost.
    let later = site.another().await;
    for id in ["r2", "r3"] {
        later.persist(&key, id, payload(id, 300)).await.unwrap();
        assert_eq!(later.seal(&key).await.unwrap(), 1);
    }
    later.engine.drain().await;
    let all = site.keys().await;
    // From here on it is the backup.
    let meta = Arc::new(turnkeep::store::sql::SqlMetaStore::sqlite(&file).await.unwrap());
    let blobs = site.directory.blobs.clone();
    for id in ["x2", "x3"] {
        let node = Node::at(meta.clone(), blobs.clone(), Options::default(), site.node.clock.clone()).await;
        node.persist(&key, id, payload(id, 300)).await.unwrap();
        node.engine.drain().await;
    }
    site.node.wait_long();
    let node = Node::at(meta.clone(), blobs, Options::default(), site.node.clock.clone()).await;
    let report = node.engine.sweep().await.unwrap();
    assert_eq!(report.orphans_erased, 0, "{report:?}");
    assert!(report.blobs_of_unknown_generations >= 2, "{report:?}");
    assert_eq!(site.keys().await, all);
    assert_eq!(node.read(&key).await.unwrap().entries.len(), 3);
}

/// Two services that seal, roll up, rotate and sweep all the time, and fence each
/// other while they write.
async fn nothing_that_is_named_is_ever_erased(database: Database) {
    const TURNS: usize = 25;
    let directory = Directory::new();
    let options = || Options {
        seal_every_turn: true,
        seal_interval: Duration::from_millis(40),
        grace: Duration::from_millis(200),
        deletion_interval: Duration::from_millis(30),
        sweep_interval: Duration::from_millis(30),
        generation_rotation: Duration::from_millis(80),
        ..Options::default()
    };
    let mut engines = Vec::new();
    for _ in 0..2 {
        let (meta, blobs) = (Arc::new(database.another().await), directory.blobs.clone());
        let entropy = Arc::new(Entropy::from_os());
        engines.push(Engine::start(meta, blobs, Arc::new(SystemClock), entropy, options()).await.unwrap());
    }
    let writers: Vec<_> = (0..4)
        .map(|i| {
            let (engine, key) = (engines[i % 2].clone(), key(&format!("s{i}")));
            tokio::spawn(async move {
                engine.create_session(key.clone(), stores::config()).await.unwrap();
                let mut ids = Vec::new();
                while ids.len() < TURNS {
                    let id = format!("r{}", ids.len());
                    match engine.persist(request(&key, &id, vec![payload(&id, 200)])).await {
                        Ok(_) => ids.push(id),
                        // Fenced again and again.
                        Err(error) => assert!(error.retry_after().is_some(), "{error:?}"),
                    }
                }
                (key, ids)
            })
        })
        .collect();
    let mut logs = Vec::new();
    for writer in writers {
        logs.push(soon("a writer", writer).await.unwrap());
    }
    let node = Node::start(database.meta.clone(), directory.blobs.clone()).await;
    for (key, ids) in &logs {
        let expected: Vec<_> = (1..).zip(ids.iter().map(|id| payload(id, 200))).collect();
        for engine in &engines {
            assert!(read_all(engine, key).await.unwrap().entries == expected);
        }
        assert!(node.read(key).await.unwrap().entries == expected);
        let branch = node.branch(key).await;
        assert!(!node.meta.segments(&branch, Seq(0), Seq(u64::MAX)).await.unwrap().is_empty());
    }
    for engine in &engines {
        soon("the end of the process", engine.drain()).await;
    }
    node.assert_healthy().await;
}

mod heavy {
    use crate::stores::on_both_databases;

    async fn two_services_that_fence_and_sweep_each_other_erase_nothing_that_is_named(
        database: crate::stores::Database,
    ) {
        super::nothing_that_is_named_is_ever_erased(database).await;
    }

    on_both_databases![two_services_that_fence_and_sweep_each_other_erase_nothing_that_is_named];
}

//! `fsck`: it finds what is wrong and nothing else, and it makes the metadata
//! anew from the blobs.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/stores.rs"]
mod stores;

#[path = "fsck/command.rs"]
mod command;
#[path = "fsck/contradictions.rs"]
mod contradictions;
#[path = "fsck/planted.rs"]
mod planted;
#[path = "fsck/rebuild.rs"]
mod rebuild;
#[path = "fsck/rebuild_outputs.rs"]
mod rebuild_outputs;
#[path = "fsck/rebuild_windows.rs"]
mod rebuild_windows;

use bytes::Bytes;
use stores::{Database, Directory, Node, id_of, key, on_both_databases, payload, request};
use turnkeep::engine::{ForkRequest, FsckOptions, FsckReport, RewindRequest, SessionChange};
use turnkeep::model::{Labels, Usage, Version};
use turnkeep::store::meta::SessionKey;

on_both_databases![
    a_healthy_store_has_no_findings_and_is_counted,
    a_store_that_is_written_meanwhile_has_no_findings,
    what_is_in_memory_hides_no_damage,
];

/// A store with something of everything.
struct Site {
    node: Node,
    database: Database,
    directory: Directory,
}

impl Site {
    async fn empty(database: Database) -> Self {
        let directory = Directory::new();
        let node = Node::start(database.meta.clone(), directory.blobs.clone()).await;
        Self { node, database, directory }
    }

    /// Sessions with segments, rolled up and not, forks, rewinds, large turns,
    /// preambles, turns without entries and a journal.
    async fn new(database: Database) -> Self {
        let site = Self::empty(database).await;
        let main = site.session("main", 6).await;
        site.node.engine.roll_up_due().await.unwrap();
        let change = SessionChange {
            preamble: Some(Bytes::from_static(b"{\"other\": \"preamble\"}")),
            labels: Some(Labels::from([("team".to_owned(), "red".to_owned())])),
            ..SessionChange::default()
        };
        site.node.engine.update_session(main.clone(), change).await.unwrap();
        let mut empty = request(&main, "usage", vec![]);
        empty.usage = Some(Usage { model: "m".into(), input_tokens: 3, ..Usage::default() });
        empty.score = Some(0.1 + 0.2);
        site.node.engine.persist(empty).await.unwrap();
        site.turn(&main, "large", 2 << 20).await;
        let fork = site.fork(&main, Some(3), "fork").await;
        site.turn(&fork, "f1", 300).await;
        site.node.seal(&fork).await.unwrap();
        site.rewind(&main, 4).await;
        site.turn(&main, "after", 300).await;
        site.node.seal(&main).await.unwrap();
        site.turn(&main, "tail", 300).await;
        let doomed = site.session("doomed", 2).await;
        site.fork(&doomed, None, "survivor").await;
        site.node.engine.delete_session(doomed, false).await.unwrap();
        site.node.wait_long();
        for _ in 0..2 {
            site.node.engine.bury().await.unwrap();
        }
        site
    }

    /// A session with so many segments of a turn each.
    async fn session(&self, session: &str, turns: usize) -> SessionKey {
        let key = key(session);
        self.node.create(&key).await;
        for i in 1..=turns {
            self.turn(&key, &format!("r{i}"), 300).await;
            assert_eq!(self.node.seal(&key).await.unwrap(), 1);
        }
        key
    }

    async fn turn(&self, key: &SessionKey, id: &str, bytes: usize) {
        self.node.persist(key, id, payload(id, bytes)).await.unwrap();
    }

    async fn fork(&self, source: &SessionKey, version: Option<u64>, session: &str) -> SessionKey {
        let fork = key(session);
        let request = ForkRequest {
            source: source.clone(),
            version: version.map(Version),
            session: Some(fork.session.clone()),
            labels: Labels::from([("of".to_owned(), source.session.to_string())]),
            request_id: id_of(session),
        };
        self.node.engine.fork_session(request).await.unwrap();
        fork
    }

    async fn rewind(&self, key: &SessionKey, version: u64) {
        let request = RewindRequest {
            key: key.clone(),
            version: Version(version),
            expected_version: None,
            request_id: id_of(&format!("back-to-{version}")),
        };
        self.node.engine.rewind_session(request).await.unwrap();
    }

    async fn check(&self, deep: bool) -> FsckReport {
        let node = self.node.another().await;
        let report = node.engine.fsck(FsckOptions { deep }, |_| {}).await.unwrap();
        node.engine.drain().await;
        report
    }
}

async fn a_healthy_store_has_no_findings_and_is_counted(database: Database) {
    let site = Site::new(database).await;
    let expected = FsckReport {
        outputs: 0,
        // The large turn takes `main` over half of its context window, but its last step
        // alone is over the floor, and all of it is usable.
        window_states: 0,
        notes: 0,
        sessions: 3,
        // Two of `main`, of each fork, and of the deleted session.
        branches: 5,
        // 0 to 8 of main, rewind and two more; fork and one more; 0 to 2 of the
        // deleted one; fork.
        turns: 9 + 3 + 2 + 3 + 1,
        segments: 6,
        entries: 0,
        orphans: 0,
        findings: vec![],
    };
    assert_eq!(site.check(false).await, expected);
    let entries = 7 + 2 + 1 + 2;
    assert_eq!(site.check(true).await, FsckReport { entries, ..expected });
    let mut told = 0;
    site.node.engine.fsck(FsckOptions::default(), |branches| told = branches).await.unwrap();
    assert_eq!(told, 5);
}

async fn a_store_that_is_written_meanwhile_has_no_findings(database: Database) {
    let site = Site::new(database).await;
    let writers: Vec<_> = (0..3)
        .map(|i| {
            let node = site.node.clone();
            tokio::spawn(async move {
                let key = key(&format!("busy{i}"));
                node.create(&key).await;
                for turn in 0..30 {
                    let id = format!("r{turn}");
                    node.persist(&key, &id, payload(&id, 100)).await.unwrap();
                    if turn % 3 == 0 {
                        node.seal(&key).await.unwrap();
                    }
                    if turn % 10 == 9 {
                        node.engine.roll_up_due().await.unwrap();
                        let gone = crate::key(&format!("gone{i}-{turn}"));
                        node.create(&gone).await;
                        node.engine.delete_session(gone, false).await.unwrap();
                    }
                }
            })
        })
        .collect();
    let checker = site.node.another().await;
    loop {
        let is_last = writers.iter().all(tokio::task::JoinHandle::is_finished);
        for deep in [false, true] {
            let report = checker.engine.fsck(FsckOptions { deep }, |_| {}).await.unwrap();
            assert_eq!(report.findings, []);
        }
        if is_last {
            break;
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
}

async fn what_is_in_memory_hides_no_damage(database: Database) {
    let site = Site::empty(database).await;
    let key = site.session("s", 1).await;
    site.node.restore(&key).await.unwrap();
    let check = async || site.node.engine.fsck(FsckOptions { deep: true }, |_| {}).await.unwrap().findings;
    assert_eq!(check().await, []);
    let blobs = site.directory.path().to_owned();
    let segment = site.database.rows("SELECT blob_key FROM segment").await.remove(0).remove(0);
    let mut bytes = std::fs::read(blobs.join(&segment)).unwrap();
    bytes[20] ^= 1;
    std::fs::write(blobs.join(&segment), bytes).unwrap();
    assert_eq!(check().await.len(), 1);
}

/// A store with a Postgres and an S3 below.
#[cfg(feature = "s3")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blobs_in_s3_are_checked_as_well() {
    let (Some(database), Some(blobs)) = (Database::postgres().await, stores::s3().await) else { return };
    let node = Node::start(database.meta.clone(), blobs.clone()).await;
    let key = key("s");
    node.create(&key).await;
    for i in 0..5 {
        let id = format!("r{i}");
        node.persist(&key, &id, payload(&id, 300)).await.unwrap();
        node.seal(&key).await.unwrap();
    }
    node.engine.roll_up_due().await.unwrap();
    // Of more than a part, and with a tail that is read in two steps.
    let content: Bytes = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>().into();
    let output = rebuild_outputs::offload(&node, &key, content.clone()).await;
    node.assert_healthy().await;
    let told = node.read(&key).await.unwrap();
    let target = Database::postgres().await.unwrap();
    let report = turnkeep::engine::rebuild(blobs.as_ref(), target.meta.as_ref(), |_| {}).await.unwrap();
    assert_eq!((report.sessions, report.outputs, report.findings), (1, 1, vec![]));
    let rebuilt = Node::start(target.meta.clone(), blobs.clone()).await;
    assert!(rebuild_outputs::whole(&rebuilt, &output).await == content);
    assert_eq!(rebuilt.read(&key).await.unwrap(), told);
    rebuilt.assert_healthy().await;
    let segment = database.rows("SELECT blob_key FROM segment").await.remove(0).remove(0);
    turnkeep::store::BlobStore::delete(blobs.as_ref(), &segment).await.unwrap();
    assert_eq!(node.fsck().await.findings.len(), 1);
}

//! A process that ends between any two calls of its stores: repeating what was
//! under way leads to where it would have led without the crash.

use crate::stores::{
    Database, Directory, Gate, GatedBlobs, GatedMeta, Node, Told, blob_keys, config, id_of, key,
    on_both_databases, payload, request, soon,
};
use std::sync::Arc;
use turnkeep::engine::{Error, ForkRequest, Input, NewEntry, Options, PersistRequest, Reason, RewindRequest};
use turnkeep::model::{DeletionState, EntryKind, Labels, Version};
use turnkeep::store::meta::SessionKey;

on_both_databases![
    a_persist_that_creates_its_session,
    a_large_persist_with_a_journal_before_it,
    a_large_list_that_rewinds,
    a_seal,
    a_roll_up,
    a_fork,
    a_rewind,
    a_deletion_until_it_has_ended,
    a_sweep,
];

/// What is left in the end: each session, or why it cannot be read.
type End = Vec<Result<Told, Reason>>;

struct Site {
    node: Node,
    database: Database,
    directory: Directory,
    main: SessionKey,
    other: SessionKey,
}

impl Site {
    /// A session of five segments and a journal.
    async fn new(like: &Database) -> Self {
        let database = match like.url() {
            None => Database::sqlite().await,
            Some(_) => Database::postgres().await.unwrap(),
        };
        let directory = Directory::new();
        let node = Node::start(database.meta.clone(), directory.blobs.clone()).await;
        let (main, other) = (key("main"), key("other"));
        node.create(&main).await;
        for i in 1..=4 {
            node.persist(&main, &format!("r{i}"), payload(&format!("r{i}"), 200)).await.unwrap();
            node.seal(&main).await.unwrap();
        }
        node.persist(&main, "tail", payload("tail", 200)).await.unwrap();
        Self { node, database, directory, main, other }
    }

    /// Another process over the same stores, through a gate.
    async fn gated(&self) -> (Node, Arc<Gate>) {
        let gate = Gate::new();
        let meta = Arc::new(GatedMeta { inner: self.database.meta.clone(), gate: gate.clone() });
        let blobs = Arc::new(GatedBlobs { inner: self.directory.blobs.clone(), gate: gate.clone() });
        (Node::at(meta, blobs, Options::default(), self.node.clock.clone()).await, gate)
    }

    /// What there is once all has settled, and that nothing else is left.
    async fn end(&self) -> End {
        let node = self.node.another().await;
        for _ in 0..3 {
            node.wait_long();
            node.engine.bury().await.unwrap();
            node.engine.sweep().await.unwrap();
        }
        let report = node.fsck().await;
        assert_eq!((report.findings, report.orphans), (vec![], 0));
        let mut end = Vec::new();
        for key in [&self.main, &self.other] {
            end.push(node.read(key).await.map_err(|error| error.reason()));
        }
        end
    }
}

/// Does something with a crash at each of its steps, repeats it, and compares.
async fn crash_everywhere(database: &Database, act: impl AsyncFn(&Site, &Node) -> Result<(), Error>) {
    let site = Site::new(database).await;
    let (node, gate) = site.gated().await;
    let before = gate.steps();
    act(&site, &node).await.unwrap();
    let steps = gate.steps() - before;
    let expected = site.end().await;
    // The stores behave as the gate does, so that some steps will do on Postgres.
    let stride = if database.url().is_some() { 3 } else { 1 };
    assert!(steps >= 6, "{steps} steps");
    for step in (1..=steps).step_by(stride) {
        let site = Site::new(database).await;
        let (node, gate) = site.gated().await;
        gate.crash_at(step);
        tokio::select! {
            result = act(&site, &node) => panic!("no crash at step {step} of {steps}: {result:?}"),
            () = soon("a crash", gate.crashed()) => {}
        }
        let next = site.node.another().await;
        let repeated = act(&site, &next).await;
        assert!(repeated.is_ok(), "after a crash at step {step} of {steps}: {repeated:?}");
        assert_eq!(site.end().await, expected, "after a crash at step {step} of {steps}");
    }
}

async fn a_persist_that_creates_its_session(database: Database) {
    crash_everywhere(&database, async |site, node| {
        let request = PersistRequest {
            create_if_missing: Some(config()),
            ..request(&site.other, "first", vec![payload("first", 100), payload("second", 100)])
        };
        node.engine.persist(request).await.map(drop)
    })
    .await;
}

async fn a_large_persist_with_a_journal_before_it(database: Database) {
    crash_everywhere(&database, async |site, node| {
        node.persist(&site.main, "large", payload("large", 1_500_000)).await.map(drop)
    })
    .await;
}

async fn a_large_list_that_rewinds(database: Database) {
    crash_everywhere(&database, async |site, node| {
        let entries = [("r1", 200), ("large", 1_500_000)].map(|(text, bytes)| NewEntry {
            payload: payload(text, bytes),
            kind: EntryKind::Message,
            at: None,
        });
        let input = Input::Snapshot { entries: entries.into(), window_id: String::new(), allow_rewind: true };
        node.engine.persist(PersistRequest { input, ..request(&site.main, "list", vec![]) }).await.map(drop)
    })
    .await;
}

async fn a_seal(database: Database) {
    crash_everywhere(&database, async |site, node| node.seal(&site.main).await.map(drop)).await;
}

async fn a_roll_up(database: Database) {
    crash_everywhere(&database, async |_, node| node.engine.roll_up_due().await.map(drop)).await;
}

async fn a_fork(database: Database) {
    crash_everywhere(&database, async |site, node| {
        let request = ForkRequest {
            source: site.main.clone(),
            version: Some(Version(3)),
            session: Some(site.other.session.clone()),
            labels: Labels::new(),
            request_id: id_of("fork"),
        };
        node.engine.fork_session(request).await.map(drop)
    })
    .await;
}

async fn a_rewind(database: Database) {
    crash_everywhere(&database, async |site, node| {
        let request = RewindRequest {
            key: site.main.clone(),
            version: Version(2),
            expected_version: None,
            request_id: id_of("rewind"),
        };
        node.engine.rewind_session(request).await.map(drop)
    })
    .await;
}

async fn a_deletion_until_it_has_ended(database: Database) {
    crash_everywhere(&database, async |site, node| {
        node.engine.delete_session(site.main.clone(), false).await?;
        for _ in 0..2 {
            node.wait_long();
            node.engine.bury().await?;
        }
        assert_eq!(node.engine.deletion(&site.main).await?.state, DeletionState::Erased);
        let left = blob_keys(site.directory.blobs.as_ref()).await;
        assert!(left.iter().all(|key| key.starts_with("ledger/")), "{left:?}");
        Ok(())
    })
    .await;
}

async fn a_sweep(database: Database) {
    crash_everywhere(&database, async |site, node| {
        // Orphans of a process that is gone.
        let (other, gate) = site.gated().await;
        let mut commit = gate.hold("commit_seal");
        let sealing = tokio::spawn({
            let (other, key) = (other.clone(), site.main.clone());
            async move { other.seal(&key).await }
        });
        if site.database.rows("SELECT version FROM journal").await.is_empty() {
            sealing.abort();
        } else {
            commit.reached().await;
            sealing.abort();
        }
        node.wait_long();
        node.engine.sweep().await.map(drop)
    })
    .await;
}

//! A process that ends amid a compaction: the window is the one before it or the one
//! after it, and the log is whole.

use crate::messages::{call, result, user};
use crate::stores::{
    Database, Directory, Gate, GatedBlobs, GatedMeta, Node, Told, config, key, on_both_databases, request,
    soon,
};
use bytes::Bytes;
use std::sync::Arc;
use turnkeep::engine::{CompactRequest, Error, Options, SessionConfig, Strategy};
use turnkeep::model::{ModelProfile, WireFormat};
use turnkeep::rpc::pb::WireFormat::OpenaiChat;
use turnkeep::store::meta::SessionKey;

on_both_databases![a_compaction_that_was_asked_for, a_turn_that_takes_the_window_over_its_ceiling];

const CONTEXT: u64 = 4_000;
/// Half of it.
const CEILING: u64 = 2_000;

/// A session's window nearly at its ceiling.
struct Site {
    node: Node,
    database: Database,
    directory: Directory,
    key: SessionKey,
}

/// What there is of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    window: Vec<Bytes>,
    told: Told,
    compactions: usize,
}

fn steps(numbers: std::ops::Range<usize>) -> Vec<Bytes> {
    let step = |number| {
        let (id, text) = (format!("call_{number}"), format!("{number}: {}", "lorem ipsum dolor ".repeat(20)));
        [call(OpenaiChat, &id, "shell"), result(OpenaiChat, &id, "shell", &text)].map(Bytes::from)
    };
    numbers.flat_map(step).collect()
}

impl Site {
    async fn new(like: &Database) -> Self {
        let database = match like.url() {
            None => Database::sqlite().await,
            Some(_) => Database::postgres().await.unwrap(),
        };
        let directory = Directory::new();
        let node = Node::start(database.meta.clone(), directory.blobs.clone()).await;
        let key = key("s");
        let profile = ModelProfile { context_window_tokens: CONTEXT, ..ModelProfile::default() };
        let config = SessionConfig { format: WireFormat::OpenaiChat, profile, ..config() };
        node.engine.create_session(key.clone(), config).await.unwrap();
        let first = user(OpenaiChat, "Count. You must not skip 13.");
        node.persist(&key, "first", first.into()).await.unwrap();
        node.engine.persist(request(&key, "sealed", steps(0..10))).await.unwrap();
        node.seal(&key).await.unwrap();
        node.engine.persist(request(&key, "tail", steps(10..20))).await.unwrap();
        Self { node, database, directory, key }
    }

    async fn gated(&self) -> (Node, Arc<Gate>) {
        let gate = Gate::new();
        let meta = Arc::new(GatedMeta { inner: self.database.meta.clone(), gate: gate.clone() });
        let blobs = Arc::new(GatedBlobs { inner: self.directory.blobs.clone(), gate: gate.clone() });
        (Node::at(meta, blobs, Options::default(), self.node.clock.clone()).await, gate)
    }

    /// What another process finds, which must fit and be sound.
    async fn see(&self) -> Seen {
        let node = self.node.another().await;
        let restored = node.restore(&self.key).await.unwrap();
        assert_eq!(restored.header.fits, Some(true));
        let told = node.read(&self.key).await.unwrap();
        let compactions = node.engine.list_compactions(&self.key, None, 99).await.unwrap().compactions.len();
        node.assert_healthy().await;
        let window = restored.items.into_iter().map(|item| item.payload).collect();
        Seen { window, told, compactions }
    }
}

/// Does something with a crash at each of its steps and looks what is left: one of
/// what may be. Then repeats it.
async fn crash_everywhere(
    database: &Database,
    may_be: &[Seen],
    act: impl AsyncFn(&Site, &Node) -> Result<(), Error>,
) {
    let site = Site::new(database).await;
    let (node, gate) = site.gated().await;
    let before = gate.steps();
    act(&site, &node).await.unwrap();
    let steps = gate.steps() - before;
    let (first, last) = (&may_be[0], &may_be[may_be.len() - 1]);
    assert_eq!(&site.see().await, last);
    let stride = if database.url().is_some() { 3 } else { 1 };
    let mut seen = vec![0_usize; may_be.len()];
    // The first, and the last, after which all is done.
    for step in (1..=steps).filter(|step| *step == 1 || (steps - step).is_multiple_of(stride)) {
        let site = Site::new(database).await;
        let (node, gate) = site.gated().await;
        gate.crash_at(step);
        tokio::select! {
            result = act(&site, &node) => panic!("no crash at step {step} of {steps}: {result:?}"),
            () = soon("a crash", gate.crashed()) => {}
        }
        let left = site.see().await;
        let found = may_be.iter().position(|one| *one == left);
        let found = found.unwrap_or_else(|| panic!("after a crash at step {step} of {steps}: {left:#?}"));
        seen[found] += 1;
        let next = site.node.another().await;
        let repeated = act(&site, &next).await;
        assert!(repeated.is_ok(), "after a crash at step {step} of {steps}: {repeated:?}");
        assert_eq!(&site.see().await, last, "after a crash at step {step} of {steps}");
    }
    assert!(first != last && seen[0] > 0 && seen[may_be.len() - 1] > 0, "{seen:?} of {steps} steps");
}

async fn a_compaction_that_was_asked_for(database: Database) {
    let act = async |site: &Site, node: &Node| {
        let strategy = Strategy::Truncate { target_tokens: Some(CEILING / 2) };
        let request = CompactRequest { key: site.key.clone(), strategy, expected_version: None };
        node.engine.compact(request).await.map(drop)
    };
    let site = Site::new(&database).await;
    let before = site.see().await;
    act(&site, &site.node).await.unwrap();
    let after = site.see().await;
    assert_eq!((before.compactions, after.compactions), (0, 1));
    assert!(before.told == after.told && after.window.len() < before.window.len());
    crash_everywhere(&database, &[before, after], act).await;
}

async fn a_turn_that_takes_the_window_over_its_ceiling(database: Database) {
    let act = async |site: &Site, node: &Node| {
        node.engine.persist(request(&site.key, "over", steps(20..24))).await.map(drop)
    };
    let site = Site::new(&database).await;
    let before = site.see().await;
    act(&site, &site.node).await.unwrap();
    let after = site.see().await;
    assert_eq!((before.compactions, after.compactions), (0, 1));
    assert!(after.told.entries.starts_with(&before.told.entries));
    // The turn stands, and its window is truncated by whoever comes next.
    let window = [before.window.clone(), steps(20..24)].concat();
    let between = Seen { window, told: after.told.clone(), compactions: 0 };
    crash_everywhere(&database, &[before, between, after], act).await;
}

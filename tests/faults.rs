//! Stores that fail: what was acknowledged stays, what was refused never shows,
//! and failures say what they are.
#![cfg(test)]
#![cfg(feature = "server")]
#![allow(clippy::large_futures, reason = "the calls of a test need not be small")]

#[path = "support/stores.rs"]
mod stores;

#[path = "faults/damage.rs"]
mod damage;
#[path = "faults/every_turn.rs"]
mod every_turn;
#[path = "faults/held_outputs.rs"]
mod held_outputs;
#[path = "faults/large_turns.rs"]
mod large_turns;
#[path = "faults/many_turns.rs"]
mod many_turns;
#[path = "faults/metadata.rs"]
mod metadata;
#[path = "faults/objects.rs"]
mod objects;
#[path = "faults/outputs.rs"]
mod outputs;
#[path = "faults/turn_outputs.rs"]
mod turn_outputs;
#[path = "faults/windows.rs"]
mod windows;

use std::sync::Arc;
use std::time::Duration;
use stores::{Database, Directory, Node, payload, request};
use turnkeep::engine::{Error, Options, PersistReply, Reason};
use turnkeep::store::faulty::FaultyBlobs;
use turnkeep::store::meta::SessionKey;

/// An engine whose object store fails on demand.
struct Site {
    node: Node,
    faults: Arc<FaultyBlobs>,
    database: Database,
    directory: Directory,
}

/// How long a blob may take: no longer than a test wants to wait.
const BLOB_TIMEOUT: Duration = Duration::from_millis(300);

impl Site {
    async fn new(database: Database) -> Self {
        Self::with(database, Options { blob_timeout: BLOB_TIMEOUT, ..Options::default() }).await
    }

    async fn with(database: Database, options: Options) -> Self {
        let directory = Directory::new();
        let faults = Arc::new(FaultyBlobs::new(directory.blobs.clone()));
        let node = Node::with(database.meta.clone(), faults.clone(), options).await;
        Self { node, faults, database, directory }
    }

    /// Another process over the same stores, its caches empty.
    async fn another(&self) -> Node {
        let options = Options { blob_timeout: BLOB_TIMEOUT, ..Options::default() };
        let meta = Arc::new(self.database.another().await);
        Node::at(meta, self.faults.clone(), options, self.node.clock.clone()).await
    }

    /// A session with so many turns of one entry, each sealed for itself.
    async fn sealed_session(&self, session: &str, turns: usize) -> SessionKey {
        let key = stores::key(session);
        self.node.create(&key).await;
        for i in 1..=turns {
            self.persist(&key, &format!("sealed-{i}"), 1_000).await.unwrap();
            assert_eq!(self.node.seal(&key).await.unwrap(), 1);
        }
        key
    }

    async fn persist(&self, key: &SessionKey, id: &str, bytes: usize) -> Result<PersistReply, Error> {
        self.node.engine.persist(request(key, id, vec![payload(id, bytes)])).await
    }
}

/// A failure that says what is the matter and that another try may succeed.
#[track_caller]
fn assert_retryable<T: std::fmt::Debug>(outcome: Result<T, Error>, reason: Reason) {
    let error = outcome.unwrap_err();
    assert_eq!(error.reason(), reason, "{error:?}");
    assert!(error.retry_after().is_some(), "{error:?}");
}

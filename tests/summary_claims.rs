//! Claims on summaries and rests after failures, on a clock that the test moves.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/llm.rs"]
mod llm;
#[path = "support/messages.rs"]
mod messages;
#[path = "support/stores.rs"]
mod stores;

use bytes::Bytes;
use llm::{Llm, Step, openai_answer, with_model};
use messages::{call, result, user};
use std::sync::Arc;
use std::time::Duration;
use stores::{Database, Directory, Gate, GatedMeta, Node, config, eventually, key, request, soon};
use turnkeep::clock::Stopwatch;
use turnkeep::engine::{Options, SessionConfig};
use turnkeep::limits::{SUMMARIZER_BREAK, SUMMARIZER_CLAIM, SUMMARIZER_COOLDOWN, SUMMARIZER_FAILURES_MAX};
use turnkeep::model::{CompressionPath, ModelProfile, StateKind, WireFormat};
use turnkeep::rpc::pb::WireFormat::OpenaiChat;
use turnkeep::settings::Settings;
use turnkeep::store::meta::SessionKey;
use turnkeep::store::{ErrorKind, MetaStore};

const CONTEXT: u64 = 4_000;
/// Less the default reserve, a quarter.
const USABLE: u64 = 3_000;
/// Steps after which a window of its kind is nearly full.
const STEPS: usize = 30;
/// Longer than a restore takes that waits for nobody, and less than one that does.
const SOON: Duration = Duration::from_secs(15);

/// Stores, and a process over them that has no summarizer.
struct Site {
    database: Database,
    directory: Directory,
    plain: Node,
}

impl Site {
    async fn new() -> Self {
        let (database, directory) = (Database::sqlite().await, Directory::new());
        let plain = Node::start(database.meta.clone(), directory.blobs.clone()).await;
        Self { database, directory, plain }
    }

    /// A process that has its summaries made by a model.
    async fn replica(&self, llm: &Llm) -> Node {
        self.replica_through(self.database.meta.clone(), llm).await
    }

    /// The same, through a gate.
    async fn gated(&self, llm: &Llm) -> (Node, Arc<Gate>) {
        let gate = Gate::new();
        let meta = Arc::new(GatedMeta { inner: self.database.meta.clone(), gate: gate.clone() });
        (self.replica_through(meta, llm).await, gate)
    }

    async fn replica_through(&self, meta: Arc<dyn MetaStore>, llm: &Llm) -> Node {
        let mut settings = Settings::default();
        with_model(&llm.url, "m")(&mut settings);
        self.replica_of(meta, &settings).await
    }

    async fn replica_of(&self, meta: Arc<dyn MetaStore>, settings: &Settings) -> Node {
        let summarizer = settings.summarizer.open().unwrap().map(Arc::new);
        let options = Options { summarizer, ..settings.engine_options() };
        Node::at(meta, self.directory.blobs.clone(), options, self.plain.clock.clone()).await
    }

    /// A session whose window is nearly full, and that nobody has looked at.
    async fn full(&self, session: &str) -> SessionKey {
        let key = key(session);
        let profile = ModelProfile { context_window_tokens: CONTEXT, ..ModelProfile::default() };
        let config = SessionConfig {
            format: WireFormat::OpenaiChat,
            path: CompressionPath::Interactive,
            profile,
            ..config()
        };
        self.plain.engine.create_session(key.clone(), config).await.unwrap();
        self.fill(&self.plain, &key, 0).await;
        key
    }

    /// Persists steps until the window is nearly full again.
    async fn fill(&self, node: &Node, key: &SessionKey, round: usize) {
        let mut entries = vec![Bytes::from(user(OpenaiChat, &format!("count, round {round}")))];
        entries.extend(steps(round, STEPS));
        node.engine.persist(request(key, &format!("fill-{round}"), entries)).await.unwrap();
        let filled = self.filled(key).await;
        assert!(filled > USABLE * 9 / 10, "{filled} tokens");
    }

    /// Tokens of a session's window.
    async fn filled(&self, key: &SessionKey) -> u64 {
        let tip = self.database.meta.tip(key, None).await.unwrap().unwrap();
        tip.head.window_tokens(tip.turn.log_tokens) + tip.head.preamble_tokens
    }

    async fn pending(&self, key: &SessionKey) -> Option<(String, Option<String>)> {
        self.database.meta.pending_summary(key).await.unwrap()
    }

    /// Kinds of a session's compactions, the newest first.
    async fn kinds(&self, key: &SessionKey) -> Vec<StateKind> {
        let node = self.plain.another().await;
        let listed = node.engine.list_compactions(key, None, 99).await.unwrap();
        listed.compactions.into_iter().map(|state| state.kind).collect()
    }
}

fn steps(round: usize, count: usize) -> Vec<Bytes> {
    let step = |number: usize| {
        let id = format!("call_{round}_{number}");
        let text = format!("{number}: {}", "lorem ipsum dolor ".repeat(20));
        [call(OpenaiChat, &id, "shell").into(), result(OpenaiChat, &id, "shell", &text).into()]
    };
    (0..count).flat_map(step).collect()
}

/// The window as text; it must come at once.
async fn at_once(node: &Node, key: &SessionKey) -> String {
    let waited = Stopwatch::start();
    let shown = shown(node, key).await;
    assert!(waited.elapsed() < SOON, "{:?}", waited.elapsed());
    shown
}

async fn shown(node: &Node, key: &SessionKey) -> String {
    let restored = node.restore(key).await.unwrap();
    restored.items.iter().map(|item| String::from_utf8_lossy(&item.payload).into_owned()).collect()
}

fn good() -> Step {
    Step::ok(&openai_answer("## Goal\ncount on", "stop"))
}

/// One that takes a second or two.
fn slow() -> Step {
    Step::Drip(openai_answer("## Goal\ncount on", "stop").to_string(), Duration::from_millis(4))
}

/// One that is not asked for again.
fn bad() -> Step {
    Step::ok(&openai_answer("", "stop"))
}

/// A provider that takes nobody's key: more than a session's own matter.
fn closed() -> Step {
    Step::status(401, &serde_json::json!({"error": {"type": "authentication_error", "message": "no"}}))
}

async fn asked(llm: &Llm, times: usize) {
    eventually("a request", async || (llm.received().len() >= times).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_summary_whose_claim_was_lost_is_put_in_place_by_who_waits_for_it() {
    let site = Site::new().await;
    let llm = Llm::start([slow()]).await;
    let (node, key) = (site.replica(&llm).await, site.full("s").await);
    let restoring = tokio::spawn({
        let (node, key) = (node.clone(), key.clone());
        async move { shown(&node, &key).await }
    });
    asked(&llm, 1).await;
    // As by another replica once the time is over.
    site.plain.clock.advance(SUMMARIZER_CLAIM);
    let now = site.plain.now();
    assert!(
        site.database.meta.claim_summary(&key, "another", now, now.plus(SUMMARIZER_CLAIM)).await.unwrap()
    );
    let shown = soon("a restore", restoring).await.unwrap();
    assert!(shown.contains("count on"), "{shown}");
    assert_eq!(site.kinds(&key).await, [StateKind::Summarize]);
    assert_eq!(site.pending(&key).await, Some(("another".to_owned(), None)), "that claim stands");
    assert_eq!(llm.received().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_adopts_a_summary_leaves_the_claim_that_came_after_it() {
    let site = Site::new().await;
    let llm = Llm::start([good()]).await;
    let ((node, gate), key) = (site.gated(&llm).await, site.full("s").await);
    let mut held = gate.hold("drop_summary");
    let restoring = tokio::spawn({
        let (node, key) = (node.clone(), key.clone());
        async move { shown(&node, &key).await }
    });
    soon("an adoption", held.reached()).await;
    // Another took it meanwhile and makes the next.
    let (token, body) = site.pending(&key).await.unwrap();
    assert!(body.is_some());
    let meta = &site.database.meta;
    meta.drop_summary(&key, &token).await.unwrap();
    let now = site.plain.now();
    assert!(meta.claim_summary(&key, "next", now, now.plus(SUMMARIZER_CLAIM)).await.unwrap());
    held.release();
    assert!(soon("a restore", restoring).await.unwrap().contains("count on"));
    assert_eq!(site.pending(&key).await, Some(("next".to_owned(), None)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_claims_after_another_brought_relief_asks_nobody_and_extracts_nothing() {
    let site = Site::new().await;
    // Long enough to be summarized again, with a few steps.
    let long = format!("## Goal\ncount on{}", " and on".repeat(150));
    let llm = Llm::start([Step::ok(&openai_answer(&long, "stop"))]).await;
    let ((node, gate), key) = (site.gated(&llm).await, site.full("s").await);
    let mut held = gate.hold("claim_summary");
    let restoring = tokio::spawn({
        let (node, key) = (node.clone(), key.clone());
        async move { shown(&node, &key).await }
    });
    held.reached().await;
    let other = site.replica(&llm).await;
    assert!(at_once(&other, &key).await.contains("count on"));
    other.engine.persist(request(&key, "more", steps(1, 4))).await.unwrap();
    let filled = site.filled(&key).await;
    assert!((USABLE / 2..USABLE * 6 / 10).contains(&filled), "{filled} tokens");
    held.release();
    assert!(soon("a restore", restoring).await.unwrap().contains("count on"));
    assert_eq!((site.kinds(&key).await, llm.received().len()), (vec![StateKind::Summarize], 1));
    assert_eq!(site.pending(&key).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failure_no_other_gets_a_claim_before_the_session_rests() {
    let site = Site::new().await;
    let llm = Llm::start([bad(), good()]).await;
    let ((node, gate), key) = (site.gated(&llm).await, site.full("s").await);
    let mut held = gate.hold("rest_summary");
    let restoring = tokio::spawn({
        let (node, key) = (node.clone(), key.clone());
        async move { shown(&node, &key).await }
    });
    soon("a failure", held.reached()).await;
    let (token, body) = site.pending(&key).await.expect("the claim stands until then");
    assert_eq!(body, None);
    let now = site.plain.now();
    let meta = &site.database.meta;
    assert!(!meta.claim_summary(&key, "another", now, now.plus(SUMMARIZER_CLAIM)).await.unwrap());
    held.release();
    soon("a restore", restoring).await.unwrap();
    let (rests, body) = site.pending(&key).await.unwrap();
    assert!(rests != token && body.is_none(), "{rests}");
    assert!(!meta.claim_summary(&key, "another", now, now.plus(SUMMARIZER_CLAIM)).await.unwrap());
    assert_eq!((site.kinds(&key).await, llm.received().len()), (vec![StateKind::Collapse], 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_under_which_nothing_could_be_made_does_not_stay() {
    let site = Site::new().await;
    let llm = Llm::start([good()]).await;
    let ((node, gate), key) = (site.gated(&llm).await, site.full("s").await);
    let mut held = gate.hold("claim_summary");
    let restoring = tokio::spawn({
        let (node, key) = (node.clone(), key.clone());
        async move { node.restore(&key).await }
    });
    held.reached().await;
    gate.fail("tip", ErrorKind::Unavailable);
    held.release();
    let failed = soon("a restore", restoring).await.unwrap();
    assert!(failed.is_err() && gate.has_failed(), "{failed:?}");
    assert_eq!((site.pending(&key).await, llm.received().len()), (None, 0));
    assert!(at_once(&node, &key).await.contains("count on"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_summary_is_made_to_its_end_when_who_waited_for_it_is_gone() {
    let site = Site::new().await;
    let llm = Llm::start([slow()]).await;
    let (node, key) = (site.replica(&llm).await, site.full("s").await);
    let restoring = tokio::spawn({
        let (node, key) = (node.clone(), key.clone());
        async move { node.restore(&key).await }
    });
    asked(&llm, 1).await;
    restoring.abort();
    assert!(restoring.await.unwrap_err().is_cancelled());
    assert!(at_once(&site.replica(&llm).await, &key).await.contains("count on"));
    assert_eq!((site.pending(&key).await, llm.received().len()), (None, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_summary_whose_commit_has_no_answer_is_in_place_once_or_adopted_by_the_next() {
    for kind in [ErrorKind::Unknown, ErrorKind::Unavailable] {
        let site = Site::new().await;
        let llm = Llm::start([good()]).await;
        let ((node, gate), key) = (site.gated(&llm).await, site.full("s").await);
        gate.fail("commit_window_state", kind);
        let failed = node.restore(&key).await;
        assert!(failed.is_err() && gate.has_failed(), "{kind:?}: {failed:?}");
        let other = site.replica(&llm).await;
        for node in [&node, &other] {
            assert!(at_once(node, &key).await.contains("count on"), "{kind:?}");
        }
        assert_eq!((site.kinds(&key).await, llm.received().len()), (vec![StateKind::Summarize], 1));
        // What waited and was of a window that is no more is not put in place again.
        site.fill(&site.plain, &key, 1).await;
        llm.script([Step::ok(&openai_answer("## Goal\nthe next", "stop"))]);
        assert!(at_once(&other, &key).await.contains("the next"), "{kind:?}");
        assert_eq!((site.kinds(&key).await, llm.received().len()), (vec![StateKind::Summarize; 2], 2));
        assert_eq!(site.pending(&key).await, None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_summary_that_was_undone_is_not_taken_again_if_its_adoption_was_cut_off() {
    let site = Site::new().await;
    let llm = Llm::start([good(), Step::ok(&openai_answer("## Goal\nthe next", "stop"))]).await;
    let ((node, gate), key) = (site.gated(&llm).await, site.full("s").await);
    // The summary is in place, and waits all the same.
    gate.fail("drop_summary", ErrorKind::Unavailable);
    let failed = node.restore(&key).await;
    assert!(failed.is_err() && gate.has_failed(), "{failed:?}");
    let listed = node.engine.list_compactions(&key, None, 99).await.unwrap().compactions;
    assert!(listed.len() == 1 && site.pending(&key).await.is_some_and(|(_, body)| body.is_some()));
    node.engine.undo_compaction(&key, listed[0].number).await.unwrap();
    let shown = at_once(&site.replica(&llm).await, &key).await;
    assert!(shown.contains("the next"), "{shown}");
    assert_eq!(llm.received().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failure_a_session_rests_and_its_restores_wait_for_nobody() {
    let site = Site::new().await;
    let llm = Llm::start([bad()]).await;
    let (node, other) = (site.replica(&llm).await, site.replica(&llm).await);
    let key = site.full("s").await;
    at_once(&node, &key).await;
    assert_eq!((site.kinds(&key).await, llm.received().len()), (vec![StateKind::Collapse], 1));
    // Turns go on, at every replica.
    for (round, node) in [&node, &other, &node].into_iter().enumerate() {
        site.plain.clock.advance(SUMMARIZER_COOLDOWN / 4);
        site.fill(node, &key, round + 1).await;
        at_once(node, &key).await;
        assert_eq!(site.kinds(&key).await.len(), round + 2);
    }
    assert_eq!((site.kinds(&key).await, llm.received().len()), (vec![StateKind::Collapse; 4], 1));
    // Another session's summaries are not held up.
    let second = site.full("other").await;
    at_once(&node, &second).await;
    assert_eq!(llm.received().len(), 2);
    site.plain.clock.advance(SUMMARIZER_COOLDOWN / 4);
    llm.script([good()]);
    site.fill(&site.plain, &key, 9).await;
    assert!(at_once(&node, &key).await.contains("count on"));
    assert_eq!((site.kinds(&key).await[0], llm.received().len()), (StateKind::Summarize, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_failures_in_a_row_a_replica_asks_nobody_for_a_while() {
    let site = Site::new().await;
    let llm = Llm::start([closed()]).await;
    let (node, other) = (site.replica(&llm).await, site.replica(&llm).await);
    let mut sessions = 0;
    let mut restore = async |node: &Node| {
        sessions += 1;
        let key = site.full(&format!("s{sessions}")).await;
        at_once(node, &key).await;
        (site.kinds(&key).await, llm.received().len())
    };
    let max = SUMMARIZER_FAILURES_MAX as usize;
    let collapsed = vec![StateKind::Collapse];
    for failures in 1..max {
        assert_eq!(restore(&node).await, (collapsed.clone(), failures));
    }
    // A success between them, and they are counted anew.
    llm.script([good()]);
    assert_eq!(restore(&node).await, (vec![StateKind::Summarize], max));
    llm.script([closed()]);
    for failures in 1..=max {
        assert_eq!(restore(&node).await, (collapsed.clone(), max + failures));
    }
    assert_eq!(restore(&node).await, (collapsed.clone(), 2 * max), "nobody is asked");
    site.plain.clock.advance(SUMMARIZER_BREAK * 3 / 4);
    assert_eq!(restore(&node).await, (collapsed.clone(), 2 * max));
    assert_eq!(restore(&other).await, (collapsed.clone(), 2 * max + 1), "another replica knows nothing");
    // One that fails again closes it again.
    site.plain.clock.advance(SUMMARIZER_BREAK / 4);
    assert_eq!(restore(&node).await, (collapsed.clone(), 2 * max + 2));
    assert_eq!(restore(&node).await, (collapsed.clone(), 2 * max + 2));
    site.plain.clock.advance(SUMMARIZER_BREAK);
    llm.script([good()]);
    for more in 3..=4 {
        assert_eq!(restore(&node).await, (vec![StateKind::Summarize], 2 * max + more));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rests_after_failures_are_as_long_as_the_operator_sets() {
    let site = Site::new().await;
    let llm = Llm::start([closed()]).await;
    let mut settings = Settings::default();
    with_model(&llm.url, "m")(&mut settings);
    settings.summarizer.cooldown_seconds = 40;
    settings.summarizer.breaker_failures = 2;
    settings.summarizer.breaker_seconds = 10;
    let node = site.replica_of(site.database.meta.clone(), &settings).await;
    let key = site.full("s").await;
    at_once(&node, &key).await;
    for (round, (seconds, asked)) in [(39, 1), (2, 2)].into_iter().enumerate() {
        site.plain.clock.advance(Duration::from_secs(seconds));
        site.fill(&site.plain, &key, round + 1).await;
        at_once(&node, &key).await;
        assert_eq!(llm.received().len(), asked, "after {seconds} s more");
    }
    // Those were two in a row.
    for (name, seconds, asked) in [("a", 0, 2), ("b", 9, 2), ("c", 2, 3)] {
        site.plain.clock.advance(Duration::from_secs(seconds));
        at_once(&node, &site.full(name).await).await;
        assert_eq!(llm.received().len(), asked, "after {seconds} s more");
    }
}

//! Compactions whose commit fails, or whose answer is lost: the window is the one
//! before or the one after. And what it takes of the store that none can be made.

use super::metadata::Proxied;
use crate::stores::{
    Database, Directory, Gate, GatedMeta, Harm, Node, config, id_of, key, on_both_databases, payload, request,
};
use bytes::Bytes;
use std::sync::Arc;
use turnkeep::engine::{CompactRequest, ForkRequest, Reason, RewindRequest, SessionConfig, Strategy};
use turnkeep::model::{
    CompressionPath, Labels, ModelProfile, Pin, RecordedState, SessionId, StateKind, Version, WireFormat,
};
use turnkeep::store::ErrorKind;
use turnkeep::store::meta::SessionKey;

on_both_databases![
    a_compaction_whose_outcome_is_unknown_is_there_and_is_not_made_twice,
    a_compaction_that_fails_leaves_the_window_as_it_was,
    a_turn_stands_whatever_becomes_of_the_truncation_after_it,
    turns_after_which_nothing_can_leave_take_no_more_of_the_store_than_others,
    a_snip_that_fails_is_made_after_the_next_turn,
    a_rewind_and_a_fork_have_their_pins_with_the_turn_that_makes_them,
    an_undo_that_a_rewind_overtakes_shows_nothing_that_is_gone,
];

const CONTEXT: u64 = 4_000;

/// Keeps so many messages.
fn keeping(key: &SessionKey, messages: u64) -> CompactRequest {
    let strategy = Strategy::LastMessages { messages };
    CompactRequest { key: key.clone(), strategy, expected_version: None }
}

async fn window(node: &Node, key: &SessionKey) -> Vec<Bytes> {
    let restored = node.restore(key).await.unwrap();
    assert_eq!(restored.header.fits, Some(true));
    restored.items.into_iter().map(|item| item.payload).collect()
}

async fn compactions(node: &Node, key: &SessionKey) -> Vec<RecordedState> {
    node.engine.list_compactions(key, None, 99).await.unwrap().compactions
}

fn entry(number: usize) -> Bytes {
    payload(&format!("e{number}"), 300)
}

/// A session of four entries, and a process whose metadata goes through a gate.
async fn gated(database: &Database, directory: &Directory) -> (Node, Arc<Gate>, SessionKey) {
    let gate = Gate::new();
    let meta = Arc::new(GatedMeta { inner: database.meta.clone(), gate: gate.clone() });
    let node = Node::start(meta, directory.blobs.clone()).await;
    let key = key("s");
    let profile = ModelProfile { context_window_tokens: CONTEXT, ..ModelProfile::default() };
    node.engine.create_session(key.clone(), SessionConfig { profile, ..config() }).await.unwrap();
    for number in 0..4 {
        node.persist(&key, &format!("r{number}"), entry(number)).await.unwrap();
    }
    (node, gate, key)
}

async fn turns_after_which_nothing_can_leave_take_no_more_of_the_store_than_others(database: Database) {
    let directory = Directory::new();
    let gate = Gate::new();
    let meta = Arc::new(GatedMeta { inner: database.meta.clone(), gate: gate.clone() });
    let node = Node::start(meta, directory.blobs.clone()).await;
    let said = |role: &str, tokens: usize| {
        Bytes::from(format!("{{\"role\": \"{role}\", \"content\": \"{}\"}}", "harbour ".repeat(tokens)))
    };
    // The ceiling is 2,000 tokens and the floor 1,600: nothing of these can leave before
    // the window is full.
    for (name, message) in [("short", 10), ("long", 1_900), ("one", 2_500)] {
        let key = key(name);
        let profile = ModelProfile { context_window_tokens: CONTEXT, ..ModelProfile::default() };
        let format = WireFormat::OpenaiChat;
        node.engine.create_session(key.clone(), SessionConfig { profile, format, ..config() }).await.unwrap();
        node.persist(&key, "first", said("user", message)).await.unwrap();
        let mut steps = Vec::new();
        for number in 0..6 {
            // The only step in one of them: it goes on.
            let (role, tokens) = if name == "one" { ("tool", 1) } else { ("assistant", 60) };
            let before = gate.steps();
            node.persist(&key, &format!("r{number}"), said(role, tokens)).await.unwrap();
            steps.push(gate.steps() - before);
        }
        assert_eq!(compactions(&node, &key).await, []);
        // The first over the ceiling finds no window in memory.
        let commit_alone = 2;
        assert_eq!(steps[2..], [commit_alone; 4], "{name}: {steps:?}");
        // Another process changes the window: this one sees that its head is old.
        let other = node.another().await;
        let pin = Pin { name: "rule".to_owned(), text: "be brief".to_owned(), seq: None };
        other.engine.put_pin(&key, pin).await.unwrap();
        node.persist(&key, "last", said("assistant", 1)).await.unwrap();
        assert!(window(&node, &key).await.iter().any(|item| item.windows(8).any(|part| part == b"be brief")));
    }
}

async fn a_snip_that_fails_is_made_after_the_next_turn(database: Database) {
    let directory = Directory::new();
    let gate = Gate::new();
    let meta = Arc::new(GatedMeta { inner: database.meta.clone(), gate: gate.clone() });
    let node = Node::start(meta, directory.blobs.clone()).await;
    let key = key("s");
    let profile = ModelProfile { context_window_tokens: 2 * CONTEXT, ..ModelProfile::default() };
    let (format, path) = (WireFormat::OpenaiChat, CompressionPath::Interactive);
    node.engine
        .create_session(key.clone(), SessionConfig { profile, format, path, ..config() })
        .await
        .unwrap();
    let mut said = vec![Bytes::from_static(b"{\"role\": \"user\", \"content\": \"read\"}")];
    for number in 0..8 {
        said.push(
            format!(
                "{{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{{\"id\": \"c{number}\", \
                 \"type\": \"function\", \"function\": {{\"name\": \"look\", \"arguments\": \"{{}}\"}}}}]}}"
            )
            .into(),
        );
        let text = "harbour ".repeat(450);
        said.push(
            format!("{{\"role\": \"tool\", \"tool_call_id\": \"c{number}\", \"content\": \"{text}\"}}")
                .into(),
        );
    }
    gate.fail("commit_window_state", ErrorKind::Unavailable);
    node.engine.persist(request(&key, "first", said)).await.unwrap();
    assert!(gate.has_failed());
    assert_eq!(compactions(&node, &key).await, []);
    node.persist(&key, "next", Bytes::from_static(b"{\"role\": \"user\", \"content\": \"on\"}"))
        .await
        .unwrap();
    let kinds: Vec<_> = compactions(&node, &key).await.into_iter().map(|made| made.kind).collect();
    assert_eq!(kinds, [StateKind::Snip]);
}

async fn a_rewind_and_a_fork_have_their_pins_with_the_turn_that_makes_them(database: Database) {
    let directory = Directory::new();
    let gate = Gate::new();
    let meta = Arc::new(GatedMeta { inner: database.meta.clone(), gate: gate.clone() });
    let node = Node::start(meta, directory.blobs.clone()).await;
    let said = || Bytes::from_static(b"{\"role\": \"user\", \"content\": \"on\"}");
    let pin = |name: &str| Pin { name: name.to_owned(), text: format!("be {name}"), seq: None };
    for outcome in [None, Some(ErrorKind::Unknown)] {
        let key = key(&format!("{outcome:?}").to_lowercase().replace(['(', ')'], "-"));
        let of_chat = SessionConfig { format: WireFormat::OpenaiChat, ..config() };
        node.engine.create_session(key.clone(), of_chat).await.unwrap();
        node.persist(&key, "r1", said()).await.unwrap();
        node.persist(&key, "r2", said()).await.unwrap();
        node.engine.put_pin(&key, pin("brief")).await.unwrap();
        // Another pin is put while the turn is on its way: the head is not as it was.
        let other = Node::start(database.meta.clone(), directory.blobs.clone()).await;
        let mut held = gate.hold("commit_turn");
        let rewind = RewindRequest {
            key: key.clone(),
            version: Version(1),
            expected_version: Some(Version(2)),
            request_id: id_of("back"),
        };
        let rewound = tokio::spawn({
            let (engine, rewind) = (node.engine.clone(), rewind.clone());
            async move { engine.rewind_session(rewind).await }
        });
        held.reached().await;
        other.engine.put_pin(&key, pin("kind")).await.unwrap();
        // From here on no window state is recorded by itself.
        gate.fail("commit_window_state", ErrorKind::Unavailable);
        if let Some(outcome) = outcome {
            gate.fail("commit_turn", outcome);
        }
        held.release();
        rewound.await.unwrap().unwrap();
        // Whoever comes next finds them, without another turn or try.
        let fresh = Node::start(database.meta.clone(), directory.blobs.clone()).await;
        assert_has_pins(&fresh, &key, &["be brief", "be kind"]).await;
        fresh.engine.put_pin(&key, pin("exact")).await.unwrap();
        assert_has_pins(&fresh, &key, &["be brief", "be kind", "be exact"]).await;
        node.engine.rewind_session(rewind).await.unwrap();
        let fork = SessionId::parse(&format!("fork-{}", key.session)).unwrap();
        let request = ForkRequest {
            source: key.clone(),
            version: Some(Version(1)),
            session: Some(fork.clone()),
            labels: Labels::new(),
            request_id: id_of("fork"),
        };
        if let Some(outcome) = outcome {
            gate.fail("create_session", outcome);
            node.engine.fork_session(request.clone()).await.unwrap_err();
        }
        node.engine.fork_session(request).await.unwrap();
        let fork = SessionKey { session: fork, ..key.clone() };
        assert_has_pins(&fresh, &fork, &["be brief", "be kind", "be exact"]).await;
        assert!(!gate.has_failed(), "no window state was recorded apart from its turn");
        node.engine.put_pin(&key, pin("slow")).await.unwrap_err();
        assert!(gate.has_failed());
    }
}

/// The pins of a session, in its window and in its list.
async fn assert_has_pins(node: &Node, key: &SessionKey, expected: &[&str]) {
    let pins = node.engine.list_pins(key).await.unwrap();
    let texts: Vec<_> = pins.iter().map(|pin| pin.text.as_str()).collect();
    assert_eq!(texts, expected);
    let shown = window(node, key).await;
    let shown = String::from_utf8(shown.concat()).unwrap();
    assert!(expected.iter().all(|text| shown.contains(text)), "{shown}");
    // What is known of it without making it.
    let tip = node.meta.tip(key, None).await.unwrap().unwrap();
    let tokens = node.restore(key).await.unwrap().header.tokens_after;
    assert_eq!(tip.head.window_tokens(tip.turn.log_tokens), tokens);
}

async fn an_undo_that_a_rewind_overtakes_shows_nothing_that_is_gone(database: Database) {
    let directory = Directory::new();
    let (node, gate, key) = gated(&database, &directory).await;
    node.engine.compact(keeping(&key, 2)).await.unwrap().unwrap();
    for number in 4..8 {
        node.persist(&key, &format!("r{number}"), entry(number)).await.unwrap();
    }
    let last = node.engine.compact(keeping(&key, 2)).await.unwrap().unwrap().number;
    let other = Node::start(database.meta.clone(), directory.blobs.clone()).await;
    let whole = other.read(&key).await.unwrap().entries;
    let mut held = gate.hold("pending_summary");
    let undone = tokio::spawn({
        let (engine, key) = (node.engine.clone(), key.clone());
        async move { engine.undo_compaction(&key, last).await }
    });
    held.reached().await;
    let request_id = id_of("back");
    let rewind = RewindRequest { key: key.clone(), version: Version(1), expected_version: None, request_id };
    other.engine.rewind_session(rewind).await.unwrap();
    held.release();
    assert_eq!(undone.await.unwrap().unwrap_err().reason(), Reason::CompactionNotFound);
    for node in [&node, &other] {
        assert_eq!(window(node, &key).await, [whole[0].1.clone()]);
        assert_eq!(compactions(node, &key).await, []);
    }
    node.assert_healthy().await;
}

async fn a_compaction_whose_outcome_is_unknown_is_there_and_is_not_made_twice(database: Database) {
    let directory = Directory::new();
    let (node, gate, key) = gated(&database, &directory).await;
    let before = window(&node, &key).await;
    assert_eq!(before.len(), 4);
    gate.fail("commit_window_state", ErrorKind::Unknown);
    let error = node.engine.compact(keeping(&key, 2)).await.unwrap_err();
    assert_eq!((error.reason(), gate.has_failed()), (Reason::OutcomeUnknown, true));
    assert!(error.retry_after().is_some(), "{error:?}");
    // What it had in memory is gone: it tells what others do.
    for node in [&node, &node.another().await] {
        assert_eq!(window(node, &key).await[..], before[2..]);
        assert_eq!(compactions(node, &key).await.len(), 1);
    }
    assert_eq!(node.engine.compact(keeping(&key, 2)).await.unwrap(), None);
    assert_eq!(node.read(&key).await.unwrap().entries.len(), 4);
    node.persist(&key, "next", entry(9)).await.unwrap();
    assert_eq!(window(&node, &key).await, [&before[2..], &[entry(9)]].concat());
    node.assert_healthy().await;
}

async fn a_compaction_that_fails_leaves_the_window_as_it_was(database: Database) {
    let directory = Directory::new();
    let (node, gate, key) = gated(&database, &directory).await;
    let before = window(&node, &key).await;
    gate.fail("commit_window_state", ErrorKind::Unavailable);
    let failed = node.engine.compact(keeping(&key, 2)).await;
    super::assert_retryable(failed, Reason::MetadataUnavailable);
    for node in [&node, &node.another().await] {
        assert_eq!(window(node, &key).await, before);
        assert_eq!(compactions(node, &key).await, []);
    }
    let made = node.engine.compact(keeping(&key, 2)).await.unwrap().unwrap();
    assert_eq!(made.number, 1);
    assert_eq!(window(&node, &key).await[..], before[2..]);
    node.assert_healthy().await;
}

async fn a_turn_stands_whatever_becomes_of_the_truncation_after_it(database: Database) {
    for kind in [ErrorKind::Unknown, ErrorKind::Unavailable] {
        let directory = Directory::new();
        let database = match database.url() {
            None => Database::sqlite().await,
            Some(_) => Database::postgres().await.unwrap(),
        };
        let (node, gate, key) = gated(&database, &directory).await;
        gate.fail("commit_window_state", kind);
        let mut number = 4;
        while !gate.has_failed() {
            node.persist(&key, &format!("r{number}"), entry(number)).await.unwrap();
            number += 1;
            assert!(number < 99, "nothing was truncated");
        }
        let (entries, truncated) = (node.read(&key).await.unwrap().entries, kind == ErrorKind::Unknown);
        let shown = window(&node, &key).await;
        assert_eq!((entries.len(), shown.len() < entries.len()), (number, truncated), "{kind:?}");
        assert_eq!(window(&node.another().await, &key).await, shown);
        assert_eq!(compactions(&node, &key).await.len(), usize::from(truncated));
        // The next turn mends it, and numbers have no gap.
        for _ in 0..20 {
            let last = vec![entry(number), entry(number + 1)];
            node.engine.persist(request(&key, &format!("r{number}"), last)).await.unwrap();
            number += 2;
            let tokens = node.restore(&key).await.unwrap().header.tokens_after;
            assert!(tokens <= CONTEXT / 2, "{tokens} tokens");
        }
        let made = compactions(&node, &key).await;
        assert!(made.len() > 1, "{kind:?}");
        let numbers: Vec<_> = made.iter().rev().map(|state| state.number).collect();
        assert_eq!(numbers, (1..=made.len() as u64).collect::<Vec<_>>());
        assert_eq!(node.read(&key).await.unwrap().entries.len(), number);
        node.assert_healthy().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_whose_answer_is_lost_was_made_or_not() {
    let Some(site) = Proxied::new().await else { return };
    for number in 0..4 {
        site.node.persist(&site.key, &format!("r{number}"), entry(number)).await.unwrap();
    }
    let before = window(&site.node, &site.key).await;
    assert_eq!(before.len(), 5);
    // It never reached the server.
    site.proxy.arm(Harm::Swallow);
    let lost = site.node.engine.compact(keeping(&site.key, 4)).await.unwrap_err();
    assert_eq!((lost.reason(), site.proxy.is_spent()), (Reason::OutcomeUnknown, true));
    for node in [&site.node, &site.another().await] {
        assert_eq!(window(node, &site.key).await, before);
    }
    // It did, and nobody was told.
    site.proxy.arm(Harm::SwallowAnswer);
    let lost = site.node.engine.compact(keeping(&site.key, 3)).await.unwrap_err();
    assert_eq!((lost.reason(), site.proxy.is_spent()), (Reason::OutcomeUnknown, true));
    for node in [&site.node, &site.another().await] {
        assert_eq!(window(node, &site.key).await[..], before[2..]);
        assert_eq!(compactions(node, &site.key).await.len(), 1);
    }
    assert_eq!(site.node.engine.compact(keeping(&site.key, 3)).await.unwrap(), None);
    site.node.assert_healthy().await;
}

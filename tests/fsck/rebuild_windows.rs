//! Pins and cuts come back with a rebuild, as far as they were sealed.

use super::Site;
use super::rebuild::{rebuild_of, seal_all, segments_of};
use crate::stores::{Database, key, on_both_databases, request};
use bytes::Bytes;
use serde_json::json;
use turnkeep::engine::{CompactRequest, PersistRequest, SessionConfig, Strategy};
use turnkeep::model::{ModelProfile, Pin, RecordedState, Seq, StateKind, Usage, Version, WireFormat};
use turnkeep::store::BlobStore as _;
use turnkeep::store::meta::{BranchKey, CommitOutcome, NewWindowState, SessionKey};

on_both_databases![
    pins_and_cuts_come_back_and_windows_go_on,
    what_was_pinned_after_the_last_seal_is_lost,
    a_state_comes_back_without_what_refers_to_lost_entries,
    a_state_of_a_branch_that_is_lost_is_told,
    a_manifest_has_the_states_of_the_newest_branches,
    notes_and_a_continued_session_come_back,
];

/// A session of a conversation with a context window of 4,000 tokens.
pub(super) async fn session(site: &Site, name: &str, steps: u64) -> SessionKey {
    let key = key(name);
    let config = SessionConfig {
        format: WireFormat::OpenaiChat,
        profile: ModelProfile { context_window_tokens: 4_000, ..ModelProfile::default() },
        ..crate::stores::config()
    };
    site.node.engine.create_session(key.clone(), config).await.unwrap();
    say(site, &key, "system", "system", "be brief").await;
    say(site, &key, "question", "user", "count to a hundred").await;
    work(site, &key, 0..steps).await;
    key
}

async fn say(site: &Site, key: &SessionKey, id: &str, role: &str, text: &str) {
    let payload = Bytes::from(json!({"role": role, "content": text}).to_string());
    site.node.persist(key, id, payload).await.unwrap();
}

/// Turns of a call and its result.
async fn work(site: &Site, key: &SessionKey, steps: std::ops::Range<u64>) {
    for number in steps {
        let id = format!("call_{number}");
        let call = json!({"id": id, "type": "function", "function": {"name": "shell", "arguments": "{}"}});
        let text = format!("{number}: {}", "lorem ipsum dolor ".repeat(20));
        let entries = [
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": id, "content": text}),
        ];
        let entries = entries.map(|payload| Bytes::from(payload.to_string()));
        site.node.engine.persist(request(key, &format!("work-{number}"), entries.to_vec())).await.unwrap();
    }
}

/// A turn for which the provider reports half as many tokens again as were counted.
async fn report_half_as_much_again(site: &Site, key: &SessionKey) {
    let window = site.node.restore(key).await.unwrap().header;
    let input_tokens = window.tokens_after * 3 / 2;
    let usage = Usage { input_tokens, window_id: window.window_id, ..Usage::default() };
    let answer = json!({"role": "assistant", "content": "on"}).to_string();
    let report = PersistRequest { usage: Some(usage), ..request(key, "report", vec![answer.into()]) };
    site.node.engine.persist(report).await.unwrap();
}

pub(super) async fn pin(site: &Site, key: &SessionKey, name: &str) {
    let pin = Pin { name: name.to_owned(), text: format!("never forget {name}"), seq: None };
    site.node.engine.put_pin(key, pin).await.unwrap();
}

/// Records another pin as code records one that it finds in entry `seq`.
async fn found_pin(site: &Site, key: &SessionKey, name: &str, seq: u64) {
    let branch = site.node.branch(key).await;
    let newest = site.node.meta.window_states(&branch, Version(i64::MAX as u64), u64::MAX, 1).await.unwrap();
    let mut state = newest.into_iter().next().unwrap();
    let text = format!("never forget {name}");
    state.state.pins.push(Pin { name: name.to_owned(), text, seq: Some(Seq(seq)) });
    state.number += 1;
    let new = NewWindowState { key: key.clone(), state, window_offset: 0 };
    assert_eq!(site.node.meta.commit_window_state(new).await.unwrap(), CommitOutcome::Committed);
}

async fn keep_last(site: &Site, key: &SessionKey, messages: u64) -> RecordedState {
    let strategy = Strategy::LastMessages { messages };
    let request = CompactRequest { key: key.clone(), strategy, expected_version: None };
    site.node.engine.compact(request).await.unwrap().unwrap()
}

/// Names of the pins of a session.
async fn pins(site: &Site, key: &SessionKey) -> Vec<String> {
    site.node.engine.list_pins(key).await.unwrap().into_iter().map(|pin| pin.name).collect()
}

/// A site over what a rebuild made.
async fn rebuilt_site(site: Site) -> (Site, turnkeep::engine::RebuildReport) {
    let rebuilt = rebuild_of(&site).await;
    (Site { node: rebuilt.node, database: rebuilt.database, directory: site.directory }, rebuilt.report)
}

async fn pins_and_cuts_come_back_and_windows_go_on(database: Database) {
    let site = Site::empty(database).await;
    // Each persist over half of the window cuts it; pins are put between.
    let main = session(&site, "main", 20).await;
    pin(&site, &main, "a").await;
    pin(&site, &main, "b").await;
    work(&site, &main, 20..30).await;
    let fork = site.fork(&main, Some(25), "fork").await;
    work(&site, &fork, 100..103).await;
    site.rewind(&main, 28).await;
    report_half_as_much_again(&site, &main).await;
    work(&site, &main, 30..34).await;
    let asked = session(&site, "asked", 6).await;
    let cut = keep_last(&site, &asked, 3).await;
    work(&site, &asked, 6..7).await;
    // One whose windows are its log.
    let plain = session(&site, "plain", 3).await;
    seal_all(&site).await;
    let sessions = [&main, &fork, &asked, &plain];
    let mut before = Vec::new();
    for key in sessions {
        let head = site.node.meta.tip(key, None).await.unwrap().unwrap().head;
        before.push((site.node.restore(key).await.unwrap(), pins(&site, key).await, head));
    }
    assert_eq!(before[0].1, ["a", "b"]);
    assert!(before[0].0.header.cut.as_ref().unwrap().omitted_entries > 0);
    let newest = "SELECT branch_id, number, session_id, version, kind, state, record, created_at FROM window_state \
                  WHERE number = (SELECT max(number) FROM window_state other \
                  WHERE other.tenant = window_state.tenant AND other.branch_id = window_state.branch_id) ORDER BY 1";
    let states = site.database.rows(newest).await;
    assert_eq!(states.len(), 4, "two branches of main, the fork's, and one that was asked for");

    let (site, report) = rebuilt_site(site).await;
    assert_eq!((report.findings, report.window_states), (vec![], 4));
    assert_eq!(site.database.rows(newest).await, states);
    assert_eq!(
        site.database.rows("SELECT number FROM window_state").await.len(),
        4,
        "the newest of each branch"
    );
    for (key, (window, pinned, head)) in sessions.into_iter().zip(before) {
        let again = site.node.restore(key).await.unwrap();
        assert_eq!(again.items, window.items, "{}", key.session);
        assert_eq!(
            (again.header.cut, again.header.tokens_after),
            (window.header.cut, window.header.tokens_after)
        );
        assert_eq!(pins(&site, key).await, pinned);
        let now = site.node.meta.tip(key, None).await.unwrap().unwrap().head;
        assert_eq!((now.window_state, now.window_offset), (head.window_state, head.window_offset));
        assert_eq!(now.calibration, head.calibration);
        assert_eq!(now.calibration.is_some(), *key == main, "{}", key.session);
    }
    site.node.assert_healthy().await;
    assert_eq!(site.check(false).await.window_states, 4);
    // All goes on: cuts, pins, and what can be taken back.
    work(&site, &main, 200..220).await;
    pin(&site, &main, "c").await;
    assert_eq!(pins(&site, &main).await, ["a", "b", "c"]);
    let undone = site.node.engine.undo_compaction(&asked, cut.number).await.unwrap();
    assert_eq!((undone.kind, undone.number), (StateKind::Undo, cut.number + 1));
    assert_eq!(site.node.restore(&asked).await.unwrap().header.cut, None);
    site.rewind(&fork, 26).await;
    assert_eq!(pins(&site, &fork).await, ["a", "b"]);
    site.node.assert_healthy().await;
}

async fn what_was_pinned_after_the_last_seal_is_lost(database: Database) {
    let site = Site::empty(database).await;
    let key = session(&site, "s", 2).await;
    pin(&site, &key, "a").await;
    site.node.seal(&key).await.unwrap();
    pin(&site, &key, "b").await;
    assert_eq!(site.node.seal(&key).await.unwrap(), 0, "there is no turn to be sealed");
    let (lost, report) = rebuilt_site(site).await;
    assert_eq!((report.findings, pins(&lost, &key).await), (vec![], vec!["a".to_owned()]));
    assert!(report.not_in_blobs.contains("pins"));
    // A turn brings it there, also one without entries.
    pin(&lost, &key, "b").await;
    lost.node.engine.persist(request(&key, "empty", vec![])).await.unwrap();
    assert_eq!(lost.node.seal(&key).await.unwrap(), 1);
    let (kept, _) = rebuilt_site(lost).await;
    assert_eq!(pins(&kept, &key).await, ["a", "b"]);
}

async fn a_state_comes_back_without_what_refers_to_lost_entries(database: Database) {
    let site = Site::empty(database).await;
    let mut sessions = Vec::new();
    for (name, messages) in [("cut", 100), ("lost-cut", 2)] {
        let key = session(&site, name, 6).await;
        site.node.seal(&key).await.unwrap();
        pin(&site, &key, "early").await;
        work(&site, &key, 6..7).await;
        found_pin(&site, &key, "late", 16).await;
        if name == "lost-cut" {
            keep_last(&site, &key, messages).await;
        }
        site.node.engine.persist(request(&key, "empty", vec![])).await.unwrap();
        site.node.seal(&key).await.unwrap();
        let newest = segments_of(&site, &key).await.into_values().next_back().unwrap();
        site.directory.blobs.delete(&newest).await.unwrap();
        sessions.push(key);
    }
    let (site, report) = rebuilt_site(site).await;
    let problems: Vec<_> = report.findings.iter().map(|f| (f.place.as_str(), f.problem.as_str())).collect();
    let without = "without what refers to later entries";
    let told = |number| {
        format!("its window state {number} was recorded at version 9 and comes back at 8, {without}")
    };
    for (name, number) in [("cut", 2), ("lost-cut", 3)] {
        let place = format!("default/sessions/{name}");
        assert!(problems.contains(&(place.as_str(), told(number).as_str())), "{problems:?}");
        assert!(
            problems.contains(&(place.as_str(), "was at version 10 and comes back at 8")),
            "{problems:?}"
        );
    }
    assert_eq!(problems.len(), 4, "{problems:?}");
    site.node.assert_healthy().await;
    for key in &sessions {
        assert_eq!(pins(&site, key).await, ["early"], "{}", key.session);
        let window = site.node.restore(key).await.unwrap();
        let shown: Vec<_> = window.items.iter().flat_map(|item| &item.seqs).map(|seq| seq.0).collect();
        assert_eq!(shown.len(), 14, "all of the log: {shown:?}");
        work(&site, key, 300..320).await;
        assert!(site.node.restore(key).await.unwrap().header.fits.unwrap());
    }
    site.node.assert_healthy().await;
}

async fn a_state_of_a_branch_that_is_lost_is_told(database: Database) {
    let site = Site::empty(database).await;
    let key = session(&site, "s", 2).await;
    pin(&site, &key, "a").await;
    let first = site.node.branch(&key).await;
    site.rewind(&key, 3).await;
    let second = site.node.branch(&key).await.branch;
    // The manifest of this seal knows the branch that is not sealed.
    site.node.engine.seal_branch(&first).await.unwrap();
    let (site, report) = rebuilt_site(site).await;
    // The pin of now, and its place behind the system entry.
    let lost = format!("its window state 3 is lost with branch {second}");
    assert!(report.findings.iter().any(|finding| finding.problem == lost), "{:?}", report.findings);
    assert_eq!(pins(&site, &key).await, ["a"]);
    // Numbers go on behind all that there ever were.
    pin(&site, &key, "b").await;
    assert_eq!(site.node.meta.tip(&key, None).await.unwrap().unwrap().head.window_state, 4);
    site.node.assert_healthy().await;
}

async fn a_manifest_has_the_states_of_the_newest_branches(database: Database) {
    let site = Site::empty(database).await;
    let key = session(&site, "s", 1).await;
    pin(&site, &key, "a").await;
    for version in 4..24 {
        let back = turnkeep::engine::RewindRequest {
            key: key.clone(),
            version: Version(2),
            expected_version: None,
            request_id: crate::stores::id_of(&format!("back-{version}")),
        };
        site.node.engine.rewind_session(back).await.unwrap();
    }
    say(&site, &key, "last", "user", "and again").await;
    seal_all(&site).await;
    let (site, report) = rebuilt_site(site).await;
    assert_eq!((report.findings, report.branches, report.window_states), (vec![], 21, 16));
    assert_eq!(pins(&site, &key).await, ["a"]);
    let branch = site.node.branch(&key).await;
    let newest: BranchKey = branch;
    let states = site.node.meta.window_states(&newest, Version(i64::MAX as u64), u64::MAX, 9).await.unwrap();
    assert_eq!(states.len(), 1);
    site.node.assert_healthy().await;
}

async fn notes_and_a_continued_session_come_back(database: Database) {
    let site = Site::empty(database).await;
    let source = session(&site, "s", 1).await;
    pin(&site, &source, "a").await;
    let engine = &site.node.engine;
    engine.put_note(&source, "port", "5433").await.unwrap();
    engine.put_note(&source, "why", "licence \"ü\"").await.unwrap();
    let next = key("next");
    engine.continue_session(next.clone(), source.clone(), None).await.unwrap();
    assert_eq!(site.check(true).await.findings, [], "a state before the first entry");
    engine.persist(request(&next, "first", vec![])).await.unwrap();
    engine.put_note(&next, "more", "x").await.unwrap();
    seal_all(&site).await;
    engine.put_note(&source, "late", "after the last seal").await.unwrap();
    let before = site.node.restore(&next).await.unwrap();
    let notes = engine.list_notes(&next).await.unwrap();
    assert_eq!(site.check(false).await.notes, 6);

    let (site, report) = rebuilt_site(site).await;
    assert_eq!((report.findings, report.notes), (vec![], 5));
    assert!(report.not_in_blobs.contains("notes"));
    let engine = &site.node.engine;
    assert_eq!(engine.list_notes(&next).await.unwrap(), notes);
    let names: Vec<_> = engine.list_notes(&source).await.unwrap().into_iter().map(|note| note.name).collect();
    assert_eq!(names, ["port", "why"]);
    assert_eq!(site.node.restore(&next).await.unwrap().items, before.items);
    let origin = engine.get_session(&next).await.unwrap().session.continued_from.unwrap();
    assert_eq!(origin.session, source.session);
    assert_eq!(site.check(true).await.findings, []);
}

//! Tool outputs are made anew from their blobs alone, with all that hangs on them.

use super::Site;
use super::rebuild::{Rebuilt, rebuild_of, seal_all};
use crate::stores::{
    Database, Node, blob_keys, config, id_of, key, on_both_databases, payload, request, tenant,
};
use bytes::Bytes;
use futures::TryStreamExt as _;
use std::sync::Arc;
use turnkeep::codec::digest;
use turnkeep::engine::{
    Input, NewEntry, OffloadRequest, Offloaded, Options, OutputPart, OutputRange, PageSize, PersistReply,
    PersistRequest, ReadOutput, SessionConfig,
};
use turnkeep::model::{EntryKind, Output, OutputName, Version, WireFormat};
use turnkeep::store::BlobStore as _;
use turnkeep::store::faulty::{Fault, FaultyBlobs};
use turnkeep::store::meta::SessionKey;

on_both_databases![
    outputs_come_back_as_they_were,
    a_list_in_the_changed_form_is_the_same_list_afterwards,
    outputs_go_with_their_session_afterwards,
    an_output_that_was_held_is_told_to_be_lost,
    an_output_whose_turn_is_lost_can_be_read_all_the_same,
    an_output_of_a_branch_that_is_lost_is_its_sessions,
    blobs_that_are_damaged_or_contradict_each_other_are_told,
];

fn text(mark: &str) -> Bytes {
    format!("\"line\" of {mark}: é\n").repeat(20_000).into()
}

fn result(mark: &str) -> Bytes {
    let text = serde_json::Value::from(String::from_utf8(text(mark).to_vec()).unwrap());
    format!(r#"{{"role":"tool","tool_call_id":"call_1","content":{text}}}"#).into()
}

async fn create(site: &Site, session: &str) -> SessionKey {
    let key = key(session);
    let config = SessionConfig { format: WireFormat::OpenaiChat, ..config() };
    site.node.engine.create_session(key.clone(), config).await.unwrap();
    key
}

async fn persist(node: &Node, key: &SessionKey, id: &str, entries: Vec<Bytes>) -> PersistReply {
    node.engine.persist(request(key, id, entries)).await.unwrap()
}

pub(super) async fn offload(node: &Node, key: &SessionKey, content: Bytes) -> OutputName {
    let start = OffloadRequest {
        key: key.clone(),
        tool_call_id: "call \"1\"\\".to_owned(),
        tool_name: "ä".repeat(128),
        content_type: "text/plain".to_owned(),
        preview_length_max: None,
        head_percent: None,
    };
    let mut offload = node.engine.begin_offload(start).await.unwrap();
    offload.write(content.clone()).await.unwrap();
    match offload.commit(content.len() as u64, digest::sha256(&content)).await.unwrap() {
        Offloaded::Stored { name, .. } => name,
        inline @ Offloaded::Inline { .. } => panic!("{inline:?}"),
    }
}

pub(super) async fn whole(node: &Node, name: &OutputName) -> Vec<u8> {
    let read = ReadOutput {
        tenant: tenant(),
        name: name.clone(),
        range: OutputRange::Bytes { start: 0, count: None },
        page: PageSize::Unlimited,
    };
    let (_, parts) = node.engine.read_output(read).await.unwrap();
    let parts: Vec<OutputPart> = parts.try_collect().await.unwrap();
    let bytes = parts.into_iter().map(|part| match part {
        OutputPart::Piece(piece) => piece.bytes,
        OutputPart::End(_) => Bytes::new(),
    });
    bytes.collect::<Vec<_>>().concat()
}

async fn listed(node: &Node, session: &str) -> Vec<Output> {
    node.engine.list_outputs(&key(session), None, 100).await.unwrap().outputs
}

/// A list of all of a session's entries as they are stored.
async fn snapshot(node: &Node, key: &SessionKey, id: &str, more: Option<Bytes>) -> PersistRequest {
    let entries = node.read(key).await.unwrap().entries.into_iter().map(|(_, payload)| payload).chain(more);
    let entry = |payload| NewEntry { payload, kind: EntryKind::Message, at: None };
    let entries = entries.map(entry).collect();
    let input = Input::Snapshot { entries, window_id: String::new(), allow_rewind: false };
    PersistRequest { input, ..request(key, id, vec![]) }
}

fn findings(rebuilt: &Rebuilt) -> Vec<(String, String)> {
    let findings = rebuilt.report.findings.iter();
    findings.map(|finding| (finding.place.clone(), finding.problem.clone())).collect()
}

/// A session with outputs of turns and others, from before and after a rewind; a
/// fork with one of its own; and a fork of a session that is deleted.
async fn site(database: Database) -> Site {
    let site = Site::empty(database).await;
    let main = create(&site, "main").await;
    persist(&site.node, &main, "r1", vec![payload("r1", 100), result("a")]).await;
    offload(&site.node, &main, text("b")).await;
    persist(&site.node, &main, "r2", vec![result("c"), result("d")]).await;
    offload(&site.node, &main, text("e")).await;
    let fork = site.fork(&main, Some(2), "fork").await;
    persist(&site.node, &fork, "f1", vec![result("f")]).await;
    site.rewind(&main, 1).await;
    offload(&site.node, &main, vec![0xff; 3_000_000].into()).await;
    persist(&site.node, &main, "r3", vec![result("h")]).await;
    let doomed = create(&site, "doomed").await;
    persist(&site.node, &doomed, "r1", vec![result("i")]).await;
    let survivor = site.fork(&doomed, None, "survivor").await;
    persist(&site.node, &survivor, "s1", vec![payload("s1", 100)]).await;
    let gone = create(&site, "gone").await;
    persist(&site.node, &gone, "r1", vec![result("j")]).await;
    seal_all(&site).await;
    for key in [doomed, gone] {
        site.node.engine.delete_session(key, false).await.unwrap();
    }
    site
}

async fn outputs_come_back_as_they_were(database: Database) {
    let site = site(database).await;
    let rebuilt = rebuild_of(&site).await;
    assert_eq!(findings(&rebuilt), []);
    // Those of the rewind and the fork among them, not that of the session that is gone.
    assert_eq!(rebuilt.report.outputs, 9);
    assert_eq!(rebuilt.database.dump().await["output"], site.database.dump().await["output"]);
    for (session, outputs) in [("main", 7), ("fork", 5), ("survivor", 1)] {
        let expected = listed(&site.node, session).await;
        assert_eq!(listed(&rebuilt.node, session).await, expected, "{session}");
        assert_eq!(expected.len(), outputs, "{session}");
        for output in expected {
            let name = OutputName { session: key(session).session, output: output.id };
            let content = whole(&rebuilt.node, &name).await;
            assert_eq!(digest::sha256(&content), output.sha256);
        }
    }
    rebuilt.node.assert_healthy().await;
    assert_eq!(rebuilt.node.fsck().await.outputs, 9);
}

async fn a_list_in_the_changed_form_is_the_same_list_afterwards(database: Database) {
    let site = site(database).await;
    let rebuilt = rebuild_of(&site).await;
    let node = &rebuilt.node;
    for session in ["main", "fork", "survivor"] {
        let key = key(session);
        let version = node.read(&key).await.unwrap().version;
        let list = snapshot(node, &key, "list", None).await;
        assert_eq!(node.engine.persist(list).await.unwrap().version, version, "{session}");
        let longer = snapshot(node, &key, "longer", Some(payload("more", 100))).await;
        let reply = node.engine.persist(longer).await.unwrap();
        assert_eq!((reply.version, reply.rewound_to), (version.next(), None), "{session}");
    }
    // A request of before gets the answer of before, and a new fork the outputs.
    let again = persist(node, &key("survivor"), "s1", vec![payload("s1", 100)]).await;
    assert_eq!(again.version, Version(3));
    let fork = turnkeep::engine::ForkRequest {
        source: key("main"),
        version: None,
        session: Some(key("new").session),
        labels: turnkeep::model::Labels::new(),
        request_id: id_of("new"),
    };
    node.engine.fork_session(fork).await.unwrap();
    // `a` of before the rewind, and what came after it; not what was rewound.
    assert_eq!(listed(node, "new").await.len(), 3);
    node.assert_healthy().await;
}

async fn outputs_go_with_their_session_afterwards(database: Database) {
    let site = site(database).await;
    let rebuilt = rebuild_of(&site).await;
    let node = &rebuilt.node;
    let outputs = async || {
        let keys = blob_keys(site.directory.blobs.as_ref()).await;
        keys.into_iter().filter(|key| key.contains("/o-")).count()
    };
    let bury = async || {
        for _ in 0..3 {
            node.wait_long();
            node.engine.bury().await.unwrap();
            node.engine.sweep().await.unwrap();
        }
    };
    assert_eq!(outputs().await, 10);
    bury().await;
    assert_eq!(outputs().await, 9, "that of the session that was deleted before");
    assert_eq!(listed(node, "survivor").await.len(), 1);
    for (session, left) in [("fork", 8), ("survivor", 7), ("main", 0)] {
        node.engine.delete_session(key(session), false).await.unwrap();
        bury().await;
        assert_eq!(outputs().await, left, "{session}");
    }
}

async fn an_output_that_was_held_is_told_to_be_lost(database: Database) {
    let mut site = Site::empty(database).await;
    let key = create(&site, "s").await;
    let faults = Arc::new(FaultyBlobs::new(site.directory.blobs.clone()));
    let plain = site.node.clone();
    site.node = Node::at(plain.meta.clone(), faults.clone(), Options::default(), plain.clock.clone()).await;
    faults.set(Fault::Down);
    persist(&site.node, &key, "r1", vec![result("moved")]).await;
    faults.set(Fault::None);
    assert_eq!(site.node.engine.move_held_outputs().await.unwrap(), 1);
    faults.set(Fault::Down);
    let held = persist(&site.node, &key, "r2", vec![result("held")]).await;
    faults.set(Fault::None);
    seal_all(&site).await;
    let rebuilt = rebuild_of(&site).await;
    let branch = site.node.branch(&key).await.branch;
    let problem = format!("tool output {} of turn 2 is not there", held.offloaded[0].output);
    assert_eq!(findings(&rebuilt), [(format!("default/{branch}"), problem)]);
    let [output] = &listed(&rebuilt.node, "s").await[..] else { panic!("not one output") };
    let name = OutputName { session: key.session.clone(), output: output.id.clone() };
    assert!(whole(&rebuilt.node, &name).await == text("moved"));
    assert!(listed(&site.node, "s").await.contains(output));
    assert_eq!(rebuilt.node.read(&key).await.unwrap(), plain.read(&key).await.unwrap());
    rebuilt.node.assert_healthy().await;
}

/// The worker, which has the list with the preview, brings the entry back.
async fn an_output_whose_turn_is_lost_can_be_read_all_the_same(database: Database) {
    let site = Site::empty(database).await;
    let key = create(&site, "s").await;
    persist(&site.node, &key, "r1", vec![payload("r1", 100)]).await;
    seal_all(&site).await;
    persist(&site.node, &key, "r2", vec![payload("r2", 100)]).await;
    let lost = persist(&site.node, &key, "r3", vec![result("a")]).await;
    let list = snapshot(&site.node, &key, "list", None).await;
    let rebuilt = rebuild_of(&site).await;
    assert_eq!(findings(&rebuilt), []);
    let node = &rebuilt.node;
    let [output] = &listed(node, "s").await[..] else { panic!("not one output") };
    assert_eq!((&output.id, output.version), (&lost.offloaded[0].output, Version(1)));
    let reply = node.engine.persist(list).await.unwrap();
    assert_eq!((reply.version, reply.offloaded), (Version(2), vec![]));
    let fork = Site { node: node.clone(), database: rebuilt.database, directory: site.directory };
    let fork = fork.fork(&key, None, "fork").await;
    let name = OutputName { session: fork.session, output: output.id.clone() };
    assert!(whole(node, &name).await == text("a"));
    node.assert_healthy().await;
}

async fn an_output_of_a_branch_that_is_lost_is_its_sessions(database: Database) {
    let site = Site::empty(database).await;
    let key = create(&site, "s").await;
    persist(&site.node, &key, "r1", vec![payload("r1", 100)]).await;
    seal_all(&site).await;
    site.rewind(&key, 0).await;
    let lost = site.node.branch(&key).await.branch;
    let name = offload(&site.node, &key, text("a")).await;
    let output = site.node.engine.get_output(&tenant(), &name).await.unwrap();
    // And one of which nothing else is known.
    let unsealed = create(&site, "unsealed").await;
    let of_unsealed = offload(&site.node, &unsealed, text("b")).await;
    let of_unsealed = site.node.engine.get_output(&tenant(), &of_unsealed).await.unwrap();
    let rebuilt = rebuild_of(&site).await;
    let mut expected = [
        (
            output.key.clone().unwrap(),
            format!("its branch {lost} is not there; it is on the session's newest"),
        ),
        (of_unsealed.key.unwrap(), "a tool output whose session could not be made anew".to_owned()),
        ("default/sessions/unsealed".to_owned(), "nothing of it could be made anew".to_owned()),
    ];
    expected.sort();
    let mut found = findings(&rebuilt);
    found.sort();
    assert_eq!(found, expected);
    assert!(whole(&rebuilt.node, &name).await == text("a"));
    assert_eq!(listed(&rebuilt.node, "s").await.len(), 1);
    rebuilt.node.assert_healthy().await;
}

async fn blobs_that_are_damaged_or_contradict_each_other_are_told(database: Database) {
    let site = Site::empty(database).await;
    let key = create(&site, "s").await;
    persist(&site.node, &key, "r1", vec![payload("r1", 100)]).await;
    let mut outputs = Vec::new();
    for mark in ["sound", "doubled", "contested", "cut", "flipped", "empty"] {
        let name = offload(&site.node, &key, text(mark)).await;
        outputs.push(site.node.engine.get_output(&tenant(), &name).await.unwrap());
    }
    seal_all(&site).await;
    let blobs = site.directory.blobs.clone();
    let keys: Vec<_> = outputs.iter().map(|output| output.key.clone().unwrap()).collect();
    let put = async |key: &str, body: Bytes| {
        let sha256 = digest::sha256(&body);
        blobs.put_new(key, body, sha256).await.unwrap();
    };
    // The same blob under a later key, and one of another content with the same id.
    let later = |i: usize| {
        let (_, rest) = keys[i].split_once('/').unwrap();
        format!("zz/{rest}")
    };
    put(&later(1), blobs.get(&keys[1]).await.unwrap()).await;
    let other = blobs.get(&keys[0]).await.unwrap();
    let renamed = rename(&other, outputs[0].id.as_str(), outputs[2].id.as_str(), outputs[0].tail_at);
    put(&later(2), renamed).await;
    for (i, damage) in [(3, Damage::Cut), (4, Damage::Flip), (5, Damage::Empty)] {
        let path = site.directory.path().join(&keys[i]);
        let mut bytes = std::fs::read(&path).unwrap();
        let end = bytes.len();
        match damage {
            Damage::Cut => bytes.truncate(end - 1),
            Damage::Flip => bytes[end - 100] ^= 1,
            Damage::Empty => bytes.clear(),
        }
        std::fs::write(&path, bytes).unwrap();
    }
    let rebuilt = rebuild_of(&site).await;
    let found = findings(&rebuilt);
    let of = |key: &str| match &found.iter().filter(|(place, _)| place == key).collect::<Vec<_>>()[..] {
        [(_, problem)] => problem.clone(),
        others => panic!("of {key}: {others:?}"),
    };
    let same = format!("has the same tool output as blob {}, which is used", keys[1]);
    assert_eq!(of(&later(1)), same);
    let contested = format!("contradicts blob {} on what tool output {} is", keys[2], outputs[2].id);
    assert!(of(&later(2)).starts_with(&contested), "{found:?}");
    for key in &keys[3..] {
        assert!(!of(key).is_empty());
    }
    assert_eq!(found.len(), 5, "{found:?}");
    let kept = listed(&rebuilt.node, "s").await;
    assert!(kept.len() == 2 && outputs[..2].iter().all(|output| kept.contains(output)), "{kept:?}");
}

enum Damage {
    Cut,
    Flip,
    Empty,
}

/// A blob that says that it is another output: its tail begins as `of`'s does.
fn rename(blob: &[u8], from: &str, to: &str, tail_at: u64) -> Bytes {
    use sha2::Digest as _;
    let tail_at = usize::try_from(tail_at).unwrap();
    let text = memchr::memmem::find(&blob[tail_at..], from.as_bytes()).unwrap() + tail_at;
    let mut blob = blob.to_vec();
    blob[text..text + to.len()].copy_from_slice(to.as_bytes());
    // The digest stands before the seek table, over all else of the tail.
    let table = memchr::memmem::rfind(&blob, &0x184D_2A5E_u32.to_le_bytes()).unwrap();
    let tail = [&blob[tail_at..table - 32], &blob[table..]].concat();
    let sha256 = sha2::Sha256::digest(&tail);
    blob[table - 32..table].copy_from_slice(&sha256);
    blob.into()
}

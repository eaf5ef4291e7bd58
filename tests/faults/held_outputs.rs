//! Tool outputs while the object store is down: held with the turn, read like any
//! other, and moved when it is back.

use super::outputs::{blobs, content, offload, whole};
use super::turn_outputs::{assert_sound, create, gated, outputs, result};
use super::{BLOB_TIMEOUT, Site, assert_retryable};
use crate::stores::{
    Database, Gate, GatedBlobs, GatedMeta, Node, key, on_both_databases, payload, request, soon, tenant,
};
use bytes::Bytes;
use std::sync::Arc;
use turnkeep::engine::{
    ForkRequest, FsckOptions, Options, Pattern, PersistReply, Reason, RewindRequest, SearchOutput, SearchPart,
};
use turnkeep::limits::{JOURNAL_SESSION_BYTES_MAX, JOURNAL_TURN_BYTES_MAX};
use turnkeep::model::{DeletionState, Labels, OutputName, Version};
use turnkeep::store::faulty::Fault;
use turnkeep::store::meta::SessionKey;
use turnkeep::store::{BlobStore, ErrorKind};

on_both_databases![
    what_a_turn_holds_is_read_by_its_ref_before_and_after_it_is_moved,
    what_an_offload_holds_is_read_before_and_after_it_is_moved,
    a_crash_anywhere_in_a_move_leaves_the_output_held_or_moved,
    movers_that_race_move_each_output_once,
    a_move_of_unknown_outcome_is_found_out,
    a_mover_whose_generation_is_fenced_moves_nothing,
    a_session_is_deleted_while_its_outputs_are_held,
    a_session_that_is_deleted_during_a_move_leaves_nothing,
    a_fork_keeps_held_outputs_of_a_deleted_session,
    a_session_holds_no_more_than_its_journal_may_have,
    nothing_is_held_if_every_turn_is_to_be_in_the_object_store,
    a_turn_that_moves_to_another_branch_takes_its_outputs_along,
];

fn text(mark: &str) -> Bytes {
    format!("line of {mark}\n").repeat(20_000).into()
}

/// The names of a turn's outputs.
fn names(key: &SessionKey, reply: &PersistReply) -> Vec<OutputName> {
    let name = |output| OutputName { session: key.session.clone(), output };
    reply.offloaded.iter().map(|offloaded| name(offloaded.output.clone())).collect()
}

async fn held(site: &Site) -> u64 {
    site.node.meta.held_output_count().await.unwrap()
}

async fn charged(site: &Site, key: &SessionKey) -> u64 {
    site.node.meta.tip(key, None).await.unwrap().unwrap().head.journal_bytes
}

/// A session with a turn that holds one output.
async fn holding(site: &Site, session: &str) -> (SessionKey, OutputName) {
    let key = key(session);
    create(&site.node, &key).await;
    site.faults.set(Fault::Down);
    let reply = site.node.engine.persist(request(&key, "r1", vec![result("a")])).await.unwrap();
    site.faults.set(Fault::None);
    let name = names(&key, &reply).remove(0);
    (key, name)
}

async fn what_a_turn_holds_is_read_by_its_ref_before_and_after_it_is_moved(database: Database) {
    let site = Site::new(database).await;
    let key = key("s");
    create(&site.node, &key).await;
    let up = site.node.engine.persist(request(&key, "up", vec![result("a")])).await.unwrap();
    site.faults.set(Fault::Down);
    let again = || request(&key, "down", vec![result("a"), payload("other", 100), result("b")]);
    let puts = site.faults.puts();
    let down = site.node.engine.persist(again()).await.unwrap();
    assert_eq!(site.faults.puts(), puts + 1, "whoever has found it down does not ask again");
    // Entry and answer are as they would be, but for the ref.
    let entry = |reply: &PersistReply, i: usize| {
        let preview = String::from_utf8(reply.changed[i].payload.to_vec()).unwrap();
        assert!(preview.contains(&names(&key, reply)[i].storage_ref()), "{preview}");
        preview.replace(reply.offloaded[i].output.as_str(), "ID")
    };
    assert_eq!(entry(&down, 0), entry(&up, 0));
    assert_eq!(down.offloaded[0].bytes, up.offloaded[0].bytes);
    let mut seen = Vec::new();
    for is_moved in [false, true] {
        if is_moved {
            assert_retryable(site.node.engine.move_held_outputs().await, Reason::ObjectsUnavailable);
            assert_eq!((held(&site).await, blobs(&site).await.len()), (2, 1));
            site.faults.set(Fault::None);
            assert_eq!(site.node.engine.move_held_outputs().await.unwrap(), 2);
            assert_eq!((held(&site).await, blobs(&site).await.len()), (0, 3));
            assert_eq!(site.node.engine.move_held_outputs().await.unwrap(), 0);
        }
        for node in [&site.node, &site.another().await] {
            assert_eq!(node.engine.persist(again()).await.unwrap(), down);
            for (name, mark) in names(&key, &down).iter().zip(["a", "b"]) {
                assert!(whole(node, name).await.unwrap() == text(mark));
            }
            assert_eq!(outputs(node, &key).await, 3);
        }
        let session = site.node.engine.get_session(&key).await.unwrap();
        seen.push((session.stored_bytes, search(&site.node, &names(&key, &down)[1], "of b").await));
        if is_moved {
            assert_sound(&site.node, 3).await;
        }
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0].1, 3);
}

/// How many of the first three matches there are.
async fn search(node: &Node, name: &OutputName, pattern: &str) -> usize {
    use futures::TryStreamExt as _;
    let pattern = Pattern { source: pattern.to_owned(), is_regex: false, ignore_case: false };
    let search = SearchOutput {
        tenant: tenant(),
        name: name.clone(),
        pattern,
        context_lines: 0,
        matches_max: 3,
        first_line: 1,
        is_unlimited: false,
    };
    let (_, parts) = node.engine.search_output(search).await.unwrap();
    let parts: Vec<_> = parts.try_collect().await.unwrap();
    parts.iter().map(|part| if let SearchPart::Lines(lines) = part { lines.len() } else { 0 }).sum()
}

async fn what_an_offload_holds_is_read_before_and_after_it_is_moved(database: Database) {
    const PARTS: usize = 3;
    let site = Site::new(database).await;
    let key = key("s");
    site.node.create(&key).await;
    let content = content(PARTS);
    let mut all = Vec::new();
    for fault in [Fault::Down, Fault::ReadOnly, Fault::LostAnswers] {
        for at in 0..=PARTS {
            let faults = site.faults.clone();
            let offloaded = offload(&site.node, &key, &content, |i| {
                if i == at {
                    faults.set(fault);
                }
            });
            let (output, name) = offloaded.await.unwrap();
            assert_eq!(output.key, None, "{fault:?} at {at}");
            assert!(whole(&site.node, &name).await.is_ok_and(|read| read == content), "{fault:?} at {at}");
            site.faults.set(Fault::None);
            all.push(name);
        }
    }
    let count = 3 * (PARTS as u64 + 1);
    assert_eq!(held(&site).await, count);
    assert_sound(&site.node, count).await;
    assert_eq!(site.node.engine.move_held_outputs().await.unwrap() as u64, count);
    assert_eq!((held(&site).await, charged(&site, &key).await), (0, 0));
    for name in &all {
        assert!(whole(&site.node, name).await.unwrap() == content);
    }
    assert_sound(&site.node, count).await;
}

async fn behind_a_gate(site: &Site) -> (Node, Arc<Gate>) {
    let gate = Gate::new();
    let meta = Arc::new(GatedMeta { inner: site.database.meta.clone(), gate: gate.clone() });
    let blobs = Arc::new(GatedBlobs { inner: site.directory.blobs.clone(), gate: gate.clone() });
    (Node::at(meta, blobs, Options::default(), site.node.clock.clone()).await, gate)
}

async fn a_crash_anywhere_in_a_move_leaves_the_output_held_or_moved(database: Database) {
    let site = Site::new(database).await;
    let (_, name) = holding(&site, "first").await;
    let (node, gate) = behind_a_gate(&site).await;
    let before = gate.steps();
    assert_eq!(node.engine.move_held_outputs().await.unwrap(), 1);
    let steps = gate.steps() - before;
    assert!(steps >= 10, "{steps} steps");
    assert!(whole(&site.node, &name).await.unwrap() == text("a"));
    for step in 1..=steps {
        let (_, name) = holding(&site, &format!("s{step}")).await;
        let (node, gate) = behind_a_gate(&site).await;
        gate.crash_at(step);
        tokio::select! {
            moved = node.engine.move_held_outputs() => panic!("no crash at step {step}: {moved:?}"),
            () = soon("a crash", gate.crashed()) => {}
        }
        let next = site.another().await;
        assert!(whole(&next, &name).await.unwrap() == text("a"), "after a crash at step {step}");
        next.engine.move_held_outputs().await.unwrap();
        assert_eq!(held(&site).await, 0, "after a crash at step {step}");
        assert!(whole(&next, &name).await.unwrap() == text("a"), "after a crash at step {step}");
    }
    // What a crash has left goes with its generation, and nothing else does.
    site.node.wait_long();
    let swept = site.another().await.engine.sweep().await.unwrap();
    assert!(swept.orphans_erased >= 2, "{swept:?}");
    assert_sound(&site.node, steps + 1).await;
    assert_eq!(blobs(&site).await.len() as u64, steps + 1);
}

async fn movers_that_race_move_each_output_once(database: Database) {
    let site = Site::new(database).await;
    let mut all = Vec::new();
    for i in 0..4 {
        all.push(holding(&site, &format!("s{i}")).await);
    }
    let mut movers = Vec::new();
    for _ in 0..4 {
        let node = site.another().await;
        movers.push(tokio::spawn(async move { node.engine.move_held_outputs().await.unwrap() }));
    }
    let mut moved = 0;
    for mover in movers {
        moved += mover.await.unwrap();
    }
    assert_eq!((moved, held(&site).await), (4, 0));
    for (key, name) in &all {
        assert!(whole(&site.node, name).await.unwrap() == text("a"));
        site.node.seal(key).await.unwrap();
        assert_eq!(charged(&site, key).await, 0);
    }
    assert_sound(&site.node, 4).await;
}

async fn a_move_of_unknown_outcome_is_found_out(database: Database) {
    let site = Site::new(database).await;
    let (_, name) = holding(&site, "s").await;
    let (gate, node) = gated(&site).await;
    gate.fail("commit_output_move", ErrorKind::Unknown);
    assert_retryable(node.engine.move_held_outputs().await, Reason::OutcomeUnknown);
    assert!(gate.has_failed());
    assert_eq!(node.engine.move_held_outputs().await.unwrap(), 0);
    assert_eq!((held(&site).await, blobs(&site).await.len()), (0, 1));
    assert!(whole(&node, &name).await.unwrap() == text("a"));
    assert_sound(&node, 1).await;
}

async fn a_mover_whose_generation_is_fenced_moves_nothing(database: Database) {
    let site = Site::new(database).await;
    let (_, name) = holding(&site, "s").await;
    let (gate, node) = gated(&site).await;
    let mut stalled = gate.hold("commit_output_move");
    let mover = tokio::spawn({
        let engine = node.engine.clone();
        async move { engine.move_held_outputs().await }
    });
    stalled.reached().await;
    node.wait_long();
    let swept = site.another().await.engine.sweep().await.unwrap();
    assert_eq!(swept.orphans_erased, 1, "{swept:?}");
    stalled.release();
    assert_eq!(mover.await.unwrap().unwrap(), 0);
    assert_eq!(held(&site).await, 1);
    // The next try has a generation that lives.
    assert_eq!(node.engine.move_held_outputs().await.unwrap(), 1);
    assert!(whole(&node, &name).await.unwrap() == text("a"));
    assert_sound(&node, 1).await;
}

async fn a_session_is_deleted_while_its_outputs_are_held(database: Database) {
    let site = Site::new(database).await;
    let (key, name) = holding(&site, "s").await;
    site.faults.set(Fault::Down);
    site.node.engine.delete_session(key.clone(), false).await.unwrap();
    assert_eq!(whole(&site.node, &name).await.unwrap_err().reason(), Reason::OutputNotFound);
    assert_eq!(site.database.rows("SELECT output_id FROM output_held").await, [[""; 1]; 0]);
    site.faults.set(Fault::None);
    assert_eq!(site.node.engine.move_held_outputs().await.unwrap(), 0);
    for _ in 0..2 {
        site.node.wait_long();
        site.node.engine.bury().await.unwrap();
    }
    assert_eq!(site.node.engine.deletion(&key).await.unwrap().state, DeletionState::Erased);
    assert_eq!(blobs(&site).await, [""; 0]);
}

async fn a_session_that_is_deleted_during_a_move_leaves_nothing(database: Database) {
    let site = Site::new(database).await;
    let (key, name) = holding(&site, "s").await;
    let (gate, node) = gated(&site).await;
    let mut stalled = gate.hold("commit_output_move");
    let mover = tokio::spawn({
        let engine = node.engine.clone();
        async move { engine.move_held_outputs().await }
    });
    stalled.reached().await;
    site.node.engine.delete_session(key.clone(), false).await.unwrap();
    stalled.release();
    assert_eq!(mover.await.unwrap().unwrap(), 0);
    assert_eq!(whole(&site.node, &name).await.unwrap_err().reason(), Reason::OutputNotFound);
    site.node.wait_long();
    site.node.engine.bury().await.unwrap();
    assert_eq!(site.another().await.engine.sweep().await.unwrap().orphans_erased, 1);
    assert_eq!(blobs(&site).await, [""; 0]);
}

async fn a_fork_keeps_held_outputs_of_a_deleted_session(database: Database) {
    let site = Site::new(database).await;
    let (source, name) = holding(&site, "s").await;
    let fork = key("fork");
    let request = ForkRequest {
        source: source.clone(),
        version: None,
        session: Some(fork.session.clone()),
        labels: Labels::new(),
        request_id: crate::stores::id_of("fork"),
    };
    site.node.engine.fork_session(request).await.unwrap();
    site.node.engine.delete_session(source, false).await.unwrap();
    let of_fork = OutputName { session: fork.session.clone(), output: name.output.clone() };
    for moved in [1, 0] {
        for name in [&name, &of_fork] {
            assert!(whole(&site.node, name).await.unwrap() == text("a"));
        }
        assert_sound(&site.node, 1).await;
        assert_eq!(site.node.engine.move_held_outputs().await.unwrap(), moved);
    }
    site.node.engine.delete_session(fork, false).await.unwrap();
    for _ in 0..2 {
        site.node.wait_long();
        site.node.engine.bury().await.unwrap();
    }
    assert_eq!(blobs(&site).await, [""; 0]);
}

async fn a_session_holds_no_more_than_its_journal_may_have(database: Database) {
    // As if there were so much of it.
    const FILL: &str = "UPDATE head SET journal_bytes = journal_bytes + 66200000 WHERE session_id = 's'";
    const EMPTY: &str = "UPDATE head SET journal_bytes = journal_bytes - 66200000 WHERE session_id = 's'";
    let site = Site::new(database).await;
    let key = key("s");
    create(&site.node, &key).await;
    site.faults.set(Fault::Down);
    let content = content(2);
    let large = |mark: &str| {
        let text = payload(mark, 1 << 20);
        Bytes::from(format!(
            r#"{{"role":"tool","tool_call_id":"call_1","content":{}}}"#,
            serde_json::Value::from(String::from_utf8_lossy(&text))
        ))
    };
    // More than a turn may hold.
    let many: Vec<_> = (0..12).map(|i| large(&format!("many {i}"))).collect();
    let before = site.database.dump().await;
    assert_retryable(
        site.node.engine.persist(request(&key, "many", many.clone())).await,
        Reason::ObjectsUnavailable,
    );
    assert!(site.database.dump().await == before);
    let some = site.node.engine.persist(request(&key, "some", many[..8].to_vec())).await.unwrap();
    let charge = charged(&site, &key).await;
    assert!((4 << 20..=JOURNAL_TURN_BYTES_MAX as u64).contains(&charge), "{charge}");
    // More than the session may.
    site.database.execute(FILL).await;
    let node = site.another().await;
    let before = site.database.dump().await;
    let full = |outcome| assert_retryable(outcome, Reason::JournalFull);
    full(node.engine.persist(request(&key, "full", vec![large("full"), large("fuller")])).await.map(drop));
    full(offload(&node, &key, &content, |_| ()).await.map(drop));
    assert!(site.database.dump().await == before);
    assert!(66_200_000 + charge + (1 << 20) > JOURNAL_SESSION_BYTES_MAX);
    // What was acknowledged is not refused now.
    assert_eq!(node.engine.persist(request(&key, "some", many[..8].to_vec())).await.unwrap(), some);
    site.faults.set(Fault::None);
    site.database.execute(EMPTY).await;
    assert_eq!(site.node.engine.move_held_outputs().await.unwrap(), 8);
    site.node.engine.persist(request(&key, "many", many)).await.unwrap();
    assert_sound(&site.node, 20).await;
}

async fn nothing_is_held_if_every_turn_is_to_be_in_the_object_store(database: Database) {
    let options = Options { seal_every_turn: true, blob_timeout: BLOB_TIMEOUT, ..Options::default() };
    let site = Site::with(database, options).await;
    let key = key("s");
    create(&site.node, &key).await;
    let content = content(1);
    for fault in [Fault::Down, Fault::LostAnswers] {
        site.faults.set(fault);
        let refused = site.node.engine.persist(request(&key, "r1", vec![result("a")])).await;
        assert_retryable(refused, Reason::ObjectsUnavailable);
        assert_retryable(offload(&site.node, &key, &content, |_| ()).await, Reason::ObjectsUnavailable);
    }
    site.faults.set(Fault::None);
    assert_eq!((held(&site).await, outputs(&site.node, &key).await), (0, 0));
    site.node.engine.persist(request(&key, "r1", vec![result("a")])).await.unwrap();
    offload(&site.node, &key, &content, |_| ()).await.unwrap();
    assert_sound(&site.node, 2).await;
}

/// The head may have gone to another branch between two attempts.
async fn a_turn_that_moves_to_another_branch_takes_its_outputs_along(database: Database) {
    let site = Site::new(database).await;
    for fault in [Fault::None, Fault::Down] {
        let (gate, node) = gated(&site).await;
        let key = key(&format!("s{}", usize::from(fault == Fault::Down)));
        create(&node, &key).await;
        for i in 1..=3 {
            node.persist(&key, &format!("r{i}"), payload("x", 100)).await.unwrap();
        }
        site.faults.set(fault);
        let mut stalled = gate.hold("commit_turn");
        let (engine, of_turn) = (node.engine.clone(), key.clone());
        let persist =
            tokio::spawn(async move { engine.persist(request(&of_turn, "r4", vec![result("a")])).await });
        stalled.reached().await;
        let rewind = RewindRequest {
            key: key.clone(),
            version: Version(1),
            expected_version: None,
            request_id: crate::stores::id_of("rewind"),
        };
        site.another().await.engine.rewind_session(rewind).await.unwrap();
        stalled.release();
        let reply = persist.await.unwrap().unwrap();
        site.faults.set(Fault::None);
        assert_eq!(reply.version, Version(5));
        let fork = ForkRequest {
            source: key.clone(),
            version: None,
            session: None,
            labels: Labels::new(),
            request_id: crate::stores::id_of("fork"),
        };
        let fork = node.engine.fork_session(fork).await.unwrap().session.id;
        let name = OutputName { session: fork, output: reply.offloaded[0].output.clone() };
        assert!(whole(&node, &name).await.unwrap() == text("a"), "{fault:?}");
        let branch = node.branch(&key).await;
        assert_eq!(node.meta.outputs_of_branch(&branch, None, 9).await.unwrap().len(), 1);
        let _ = node.engine.fsck(FsckOptions::default(), |_| ()).await.unwrap();
    }
    assert_eq!(site.directory.blobs.list("", None, 9).await.unwrap().len(), 1);
}

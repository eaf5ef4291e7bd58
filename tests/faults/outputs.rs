//! Tool outputs over stores that fail: what is acknowledged is whole, what is not
//! is never seen.

use super::{BLOB_TIMEOUT, Site, assert_retryable};
use crate::stores::{
    Database, Gate, GatedMeta, Node, blob_keys, key, on_both_databases, polled, soon, tenant,
};
use bytes::Bytes;
use futures::TryStreamExt as _;
use std::sync::Arc;
use turnkeep::codec::digest;
use turnkeep::engine::{
    Error, FsckOptions, OffloadRequest, Offloaded, Options, OutputPart, OutputRange, PageSize, ReadOutput,
    Reason,
};
use turnkeep::limits::JOURNAL_TURN_BYTES_MAX;
use turnkeep::model::{Output, OutputName};
use turnkeep::store::ErrorKind;
use turnkeep::store::faulty::Fault;
use turnkeep::store::meta::SessionKey;

on_both_databases![
    a_store_that_fails_at_any_part_leaves_nothing_and_the_next_try_succeeds,
    a_store_that_hangs_holds_no_offload_up_for_long,
    an_offload_that_is_dropped_at_any_point_leaves_nothing_or_the_whole,
    a_commit_whose_outcome_is_unknown_is_found_out,
    an_output_that_takes_longer_than_a_rotation_is_kept,
    an_output_that_takes_longer_than_two_rotations_is_refused,
    what_is_missing_or_damaged_is_said_and_never_served,
    a_session_is_deleted_with_its_outputs,
    an_upload_that_no_row_names_is_swept,
];

pub(super) const PART: usize = 700_000;

/// Bytes that compress badly, so that many parts are written.
pub(super) fn content(parts: usize) -> Bytes {
    let mut state = 88_172_645_463_325_252_u64;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if state.is_multiple_of(97) { b'\n' } else { state.to_be_bytes()[3] }
    };
    (0..parts * PART).map(|_| noise()).collect::<Vec<_>>().into()
}

pub(super) fn start(key: &SessionKey) -> OffloadRequest {
    OffloadRequest {
        key: key.clone(),
        tool_call_id: "call_1".to_owned(),
        tool_name: "grep".to_owned(),
        content_type: "text/plain".to_owned(),
        preview_length_max: None,
        head_percent: None,
    }
}

/// Offloads a content; `before` is called before each part and before the commit.
pub(super) async fn offload(
    node: &Node,
    key: &SessionKey,
    content: &Bytes,
    mut before: impl FnMut(usize),
) -> Result<(Output, OutputName), Error> {
    let mut offload = node.engine.begin_offload(start(key)).await?;
    let parts = content.len() / PART;
    for i in 0..parts {
        before(i);
        offload.write(content.slice(i * PART..(i + 1) * PART)).await?;
    }
    before(parts);
    match offload.commit(content.len() as u64, digest::sha256(content)).await? {
        Offloaded::Stored { output, name, .. } => Ok((*output, name)),
        inline @ Offloaded::Inline { .. } => panic!("{inline:?}"),
    }
}

pub(super) async fn whole(node: &Node, name: &OutputName) -> Result<Bytes, Error> {
    let read = ReadOutput {
        tenant: tenant(),
        name: name.clone(),
        range: OutputRange::Bytes { start: 0, count: None },
        page: PageSize::Unlimited,
    };
    let (_, parts) = node.engine.read_output(read).await?;
    let parts: Vec<OutputPart> = parts.try_collect().await?;
    let (last, pieces) = parts.split_last().unwrap();
    assert_eq!(*last, OutputPart::End(None));
    let pieces = pieces.iter().map(|part| match part {
        OutputPart::Piece(piece) => &piece.bytes[..],
        OutputPart::End(_) => panic!("{part:?}"),
    });
    Ok(pieces.collect::<Vec<_>>().concat().into())
}

pub(super) async fn ids(node: &Node, key: &SessionKey) -> Vec<String> {
    let page = node.engine.list_outputs(key, None, 100).await.unwrap();
    page.outputs.into_iter().map(|output| output.id.to_string()).collect()
}

/// Keys of outputs in the object store.
pub(super) async fn blobs(site: &Site) -> Vec<String> {
    let keys = blob_keys(site.directory.blobs.as_ref()).await;
    keys.into_iter().filter(|key| key.contains("/o-")).collect()
}

/// Of an output that is too large to be held.
async fn a_store_that_fails_at_any_part_leaves_nothing_and_the_next_try_succeeds(database: Database) {
    const PARTS: usize = 13;
    const _: () =
        assert!(PARTS * PART > JOURNAL_TURN_BYTES_MAX && (PARTS - 2) * PART < JOURNAL_TURN_BYTES_MAX);
    let site = Site::new(database).await;
    let key = key("s");
    site.node.create(&key).await;
    let content = content(PARTS);
    for fault in [Fault::Down, Fault::ReadOnly] {
        for at in [0, 5, PARTS - 1, PARTS] {
            let faults = site.faults.clone();
            let failed = offload(&site.node, &key, &content, |i| {
                if i == at {
                    faults.set(fault);
                }
            });
            assert_retryable(failed.await, Reason::ObjectsUnavailable);
            site.faults.set(Fault::None);
            assert_eq!(ids(&site.node, &key).await, [""; 0], "{fault:?} at {at}");
            assert_eq!(blobs(&site).await, [""; 0], "{fault:?} at {at}");
        }
    }
    let (output, name) = offload(&site.node, &key, &content, |_| ()).await.unwrap();
    assert_eq!(ids(&site.node, &key).await, [output.id.to_string()]);
    assert!(whole(&site.another().await, &name).await.unwrap() == content);
    site.node.assert_healthy().await;
}

async fn a_store_that_hangs_holds_no_offload_up_for_long(database: Database) {
    let site = Site::new(database).await;
    let key = key("s");
    site.node.create(&key).await;
    let content = content(2);
    for at in 0..=2 {
        let faults = site.faults.clone();
        let hung = offload(&site.node, &key, &content, |i| {
            if i == at {
                faults.set(Fault::Hang);
            }
        });
        let (output, _) = soon("an offload that hangs", hung).await.unwrap();
        site.faults.set(Fault::None);
        assert_eq!(output.key, None, "at {at}");
    }
    // And so does a read.
    let (_, name) = offload(&site.node, &key, &content, |_| ()).await.unwrap();
    site.faults.set(Fault::Hang);
    assert_retryable(soon("a read that hangs", whole(&site.node, &name)).await, Reason::ObjectsUnavailable);
    site.faults.set(Fault::Slow(BLOB_TIMEOUT / 10));
    assert!(whole(&site.node, &name).await.unwrap() == content);
}

async fn an_offload_that_is_dropped_at_any_point_leaves_nothing_or_the_whole(database: Database) {
    let site = Site::new(database).await;
    let key = key("s");
    site.node.create(&key).await;
    let content = content(3);
    let mut times = 0;
    while polled(times, offload(&site.node, &key, &content, |_| ())).await.is_none() {
        times += 1;
    }
    assert!(times > 3, "{times}");
    // Each that is listed is whole, once the commits have ended.
    site.node.engine.drain().await;
    let another = site.another().await;
    for output in another.engine.list_outputs(&key, None, 1_000).await.unwrap().outputs {
        let name = OutputName { session: key.session.clone(), output: output.id };
        assert!(whole(&another, &name).await.unwrap() == content);
    }
    another.assert_healthy().await;
}

async fn a_commit_whose_outcome_is_unknown_is_found_out(database: Database) {
    let site = Site::new(database).await;
    let gate = Gate::new();
    let meta = Arc::new(GatedMeta { inner: site.database.meta.clone(), gate: gate.clone() });
    let node = Node::at(meta, site.faults.clone(), Options::default(), site.node.clock.clone()).await;
    let key = key("s");
    node.create(&key).await;
    let content = content(1);
    gate.fail("add_output", ErrorKind::Unknown);
    let (output, name) = offload(&node, &key, &content, |_| ()).await.unwrap();
    assert!(gate.has_failed());
    assert_eq!(ids(&node, &key).await, [output.id.to_string()]);
    assert!(whole(&node, &name).await.unwrap() == content);
    // A refusal is one.
    gate.fail("add_output", ErrorKind::Unavailable);
    let refused = offload(&node, &key, &content, |_| ()).await;
    assert_retryable(refused, Reason::MetadataUnavailable);
    assert_eq!(ids(&node, &key).await, [output.id.to_string()]);
    // A lost answer of the object store is a failure: what it kept nobody names.
    site.faults.set(Fault::LostAnswers);
    let (held, name) = offload(&node, &key, &content, |_| ()).await.unwrap();
    site.faults.set(Fault::None);
    assert_eq!(held.key, None);
    assert!(whole(&node, &name).await.unwrap() == content);
    assert_eq!(node.fsck().await.orphans, 2);
}

async fn an_output_that_takes_longer_than_a_rotation_is_kept(database: Database) {
    let site = Site::new(database).await;
    let key = key("s");
    site.node.create(&key).await;
    let content = content(2);
    let mut under_way = site.node.engine.begin_offload(start(&key)).await.unwrap();
    under_way.write(content.clone()).await.unwrap();
    site.node.engine.rotate_generation().await.unwrap();
    let other = site.another().await;
    // A sweep beside it, whose clock is past no lease, fences nobody.
    assert_eq!(other.engine.sweep().await.unwrap().generations_fenced, 0);
    let committed = under_way.commit(content.len() as u64, digest::sha256(&content)).await;
    let Offloaded::Stored { output, .. } = committed.unwrap() else { panic!("inline") };
    assert_eq!(blobs(&site).await, [output.key.unwrap()]);
}

async fn an_output_that_takes_longer_than_two_rotations_is_refused(database: Database) {
    let site = Site::new(database).await;
    let key = key("s");
    site.node.create(&key).await;
    let (content, other) = (content(2), site.another().await);
    let mut stalled = site.node.engine.begin_offload(start(&key)).await.unwrap();
    stalled.write(content.clone()).await.unwrap();
    for _ in 0..2 {
        site.node.engine.rotate_generation().await.unwrap();
    }
    let refused = stalled.commit(content.len() as u64, digest::sha256(&content)).await;
    assert_retryable(refused, Reason::DeadlineExceeded);
    assert_eq!(ids(&site.node, &key).await, [""; 0]);
    // What it put is an orphan that may go at once, and nobody names it later.
    assert_eq!(blobs(&site).await.len(), 1);
    let swept = other.engine.sweep().await.unwrap();
    assert_eq!((swept.generations_fenced, swept.orphans_erased), (0, 1));
    // One that a sweep fenced fares no better.
    let mut slow = site.node.engine.begin_offload(start(&key)).await.unwrap();
    slow.write(content.clone()).await.unwrap();
    site.node.wait_long();
    assert!(other.engine.sweep().await.unwrap().generations_fenced >= 1);
    let refused = slow.commit(content.len() as u64, digest::sha256(&content)).await;
    assert_retryable(refused, Reason::DeadlineExceeded);
    assert_eq!(ids(&site.node, &key).await, [""; 0]);
    // The next has a new one.
    offload(&site.node, &key, &content, |_| ()).await.unwrap();
}

async fn what_is_missing_or_damaged_is_said_and_never_served(database: Database) {
    let site = Site::new(database).await;
    let key = key("s");
    site.node.create(&key).await;
    let content = content(2);
    let (output, name) = offload(&site.node, &key, &content, |_| ()).await.unwrap();
    for fault in [Fault::FlippedBit, Fault::CutShort] {
        site.faults.set(fault);
        let error = whole(&site.node, &name).await.unwrap_err();
        assert_eq!(error.reason(), Reason::DataLoss, "{fault:?}: {error:?}");
    }
    site.faults.set(Fault::None);
    let blob = output.key.unwrap();
    let path = site.directory.path().join(&blob);
    let sound = std::fs::read(&path).unwrap();
    let check = async |deep| site.node.engine.fsck(FsckOptions { deep }, |_| ()).await.unwrap();
    assert_eq!((check(false).await.outputs, check(true).await.findings), (1, vec![]));
    for at in [0, sound.len() / 3, sound.len() / 2, sound.len() - 1] {
        let mut damaged = sound.clone();
        damaged[at] ^= 4;
        std::fs::write(&path, damaged).unwrap();
        assert_eq!(check(false).await.findings, []);
        let findings = check(true).await.findings;
        assert_eq!(findings.len(), 1, "byte {at}: {findings:?}");
        assert!(findings[0].problem.contains(&name.resource_name()), "{findings:?}");
    }
    std::fs::write(&path, &sound[..sound.len() - 1]).unwrap();
    assert!(check(false).await.findings[0].problem.contains("bytes, not"));
    std::fs::remove_file(&path).unwrap();
    assert!(check(false).await.findings[0].problem.contains("missing"));
    assert_eq!(check(true).await.findings.len(), 1);
    let error = whole(&site.node, &name).await.unwrap_err();
    assert_eq!(error.reason(), Reason::DataLoss, "{error:?}");
}

async fn a_session_is_deleted_with_its_outputs(database: Database) {
    let site = Site::new(database).await;
    let key = key("s");
    site.node.create(&key).await;
    let content = content(1);
    let (_, name) = offload(&site.node, &key, &content, |_| ()).await.unwrap();
    // One that is under way is not kept any more, whether it is put by now or not.
    let mut late = site.node.engine.begin_offload(start(&key)).await.unwrap();
    late.write(content.clone()).await.unwrap();
    let (gate, node) = super::turn_outputs::gated(&site).await;
    let mut put = gate.hold("add_output");
    let (of_put, content_of_put) = (key.clone(), content.clone());
    let putting = tokio::spawn(async move { offload(&node, &of_put, &content_of_put, |_| ()).await });
    put.reached().await;
    let receipt = site.node.engine.delete_session(key.clone(), false).await.unwrap();
    assert_eq!(receipt.objects_pending, 1);
    put.release();
    assert_eq!(putting.await.unwrap().unwrap_err().reason(), Reason::SessionNotFound);
    let error = late.commit(content.len() as u64, digest::sha256(&content)).await.unwrap_err();
    assert_eq!(error.reason(), Reason::SessionNotFound);
    assert_eq!(whole(&site.node, &name).await.unwrap_err().reason(), Reason::OutputNotFound);
    let error = site.node.engine.list_outputs(&key, None, 9).await.unwrap_err();
    assert_eq!(error.reason(), Reason::SessionNotFound);
    site.node.wait_long();
    site.node.engine.bury().await.unwrap();
    // What was put too late waits for its generation.
    assert_eq!(blobs(&site).await.len(), 1);
    let other = site.another().await;
    assert_eq!(other.engine.sweep().await.unwrap().orphans_erased, 1);
    assert_eq!(blobs(&site).await, [""; 0]);
    assert_eq!(site.node.engine.deletion(&key).await.unwrap().objects_pending, 0);
}

async fn an_upload_that_no_row_names_is_swept(database: Database) {
    let site = Site::new(database).await;
    let gate = Gate::new();
    let meta = Arc::new(GatedMeta { inner: site.database.meta.clone(), gate: gate.clone() });
    let node = Node::at(meta, site.faults.clone(), Options::default(), site.node.clock.clone()).await;
    let key = key("s");
    node.create(&key).await;
    let content = content(1);
    let (output, name) = offload(&node, &key, &content, |_| ()).await.unwrap();
    gate.fail("add_output", ErrorKind::Unavailable);
    offload(&node, &key, &content, |_| ()).await.unwrap_err();
    assert_eq!(blobs(&site).await.len(), 2);
    assert_eq!(site.node.fsck().await.orphans, 1);
    let other = site.another().await;
    assert_eq!(other.engine.sweep().await.unwrap().orphans_erased, 0, "its writer lives");
    site.node.wait_long();
    assert_eq!(other.engine.sweep().await.unwrap().orphans_erased, 1);
    assert_eq!(blobs(&site).await, [output.key.unwrap()]);
    assert!(whole(&other, &name).await.unwrap() == content);
}

//! The contract of `BlobStore`, on a local directory and on S3.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/stores.rs"]
mod stores;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::join_all;
use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use stores::{Directory, blob_keys};
use turnkeep::clock::{Clock as _, SystemClock};
use turnkeep::codec::digest;
use turnkeep::entropy::Entropy;
use turnkeep::store::blob::{BlobInfo, BlobUpload, verifies_checksums};
use turnkeep::store::faulty::{Fault, FaultyBlobs};
use turnkeep::store::local::LocalBlobs;
use turnkeep::store::{BlobStore, ErrorKind, StoreError};

/// Defines each function as a test on both stores; on S3 it is skipped if there
/// is none.
macro_rules! on_both_stores {
    ($($name:ident),* $(,)?) => {
        mod local {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let directory = crate::stores::Directory::new();
                    super::$name(directory.blobs.clone()).await;
                }
            )*
        }
        #[cfg(feature = "s3")]
        mod s3 {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    if let Some(blobs) = crate::stores::s3().await {
                        super::$name(blobs).await;
                    }
                }
            )*
        }
    };
}

on_both_stores![
    what_is_put_is_got_byte_for_byte,
    what_was_never_put_is_not_found,
    the_same_bytes_may_be_put_again_and_others_may_not,
    of_racing_writers_one_wins,
    racing_writers_of_the_same_bytes_all_succeed,
    a_blob_is_seen_whole_or_not_at_all,
    a_range_of_a_blob_is_got_exactly,
    what_is_written_in_parts_is_got_byte_for_byte,
    an_upload_is_seen_once_it_is_finished_and_never_if_it_is_dropped,
    an_upload_does_not_overwrite,
    a_deleted_blob_is_gone_and_may_be_deleted_again,
    blobs_are_listed_in_the_order_of_their_keys_by_prefix_and_in_pages,
    more_blobs_than_a_page_holds_are_all_listed,
    a_listing_tells_sizes_and_times,
    a_store_that_keeps_its_promises_passes_the_probe_again_and_again,
];

async fn put(blobs: &dyn BlobStore, key: &str, body: impl Into<Bytes>) -> Result<(), StoreError> {
    let body = body.into();
    let sha256 = digest::sha256(&body);
    blobs.put_new(key, body, sha256).await
}

async fn what_is_put_is_got_byte_for_byte(blobs: Arc<dyn BlobStore>) {
    let every_byte: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    for (key, body) in [("e1/empty", vec![]), ("00/one.zst", vec![0]), ("a_b-c/d/large", every_byte)] {
        put(blobs.as_ref(), key, body.clone()).await.unwrap();
        assert_eq!(blobs.get(key).await.unwrap(), body, "{key}");
        assert_eq!(blobs.size(key).await.unwrap(), Some(body.len() as u64), "{key}");
    }
}

async fn what_was_never_put_is_not_found(blobs: Arc<dyn BlobStore>) {
    put(blobs.as_ref(), "a/b", "x").await.unwrap();
    for key in ["a/c", "b", "b/c/d"] {
        let error = blobs.get(key).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound, "{key}");
        assert_eq!(blobs.size(key).await.unwrap(), None, "{key}");
    }
    assert_eq!(blobs.list("b/", None, 9).await.unwrap(), []);
}

async fn the_same_bytes_may_be_put_again_and_others_may_not(blobs: Arc<dyn BlobStore>) {
    for _ in 0..2 {
        put(blobs.as_ref(), "a/k", "first").await.unwrap();
        for other in ["other", "", "first, and more"] {
            let error = put(blobs.as_ref(), "a/k", other).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::KeyTaken);
            assert!(!error.is_retryable());
        }
        assert_eq!(blobs.get("a/k").await.unwrap(), "first");
    }
    assert_eq!(blob_keys(blobs.as_ref()).await, ["a/k"]);
}

async fn of_racing_writers_one_wins(blobs: Arc<dyn BlobStore>) {
    for round in 0..4 {
        let key = format!("r{round}/k");
        let bodies: Vec<_> = (0..8u8).map(|i| vec![i; 10_000]).collect();
        let writers = bodies.iter().map(|body| {
            let (blobs, key, body) = (blobs.clone(), key.clone(), body.clone());
            tokio::spawn(async move { put(blobs.as_ref(), &key, body).await })
        });
        let outcomes: Vec<_> = join_all(writers).await.into_iter().map(Result::unwrap).collect();
        let winners: Vec<_> = (0..8).filter(|i| outcomes[*i].is_ok()).collect();
        assert_eq!(winners.len(), 1, "{outcomes:?}");
        for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            assert_eq!(error.kind, ErrorKind::KeyTaken, "{error:?}");
        }
        assert_eq!(blobs.get(&key).await.unwrap(), bodies[winners[0]]);
    }
}

async fn racing_writers_of_the_same_bytes_all_succeed(blobs: Arc<dyn BlobStore>) {
    let writers = (0..8).map(|_| put(blobs.as_ref(), "a/k", "same"));
    for outcome in join_all(writers).await {
        outcome.unwrap();
    }
    assert_eq!(blobs.get("a/k").await.unwrap(), "same");
}

async fn a_blob_is_seen_whole_or_not_at_all(blobs: Arc<dyn BlobStore>) {
    let body = Bytes::from(vec![7; 8 << 20]);
    let writing = tokio::spawn({
        let (blobs, body) = (blobs.clone(), body.clone());
        async move { put(blobs.as_ref(), "a/large", body).await.unwrap() }
    });
    let mut was_seen = false;
    while !was_seen {
        match blobs.get("a/large").await {
            Ok(found) => {
                assert!(found == body, "{} of {} bytes", found.len(), body.len());
                assert_eq!(blobs.size("a/large").await.unwrap(), Some(body.len() as u64));
                was_seen = true;
            }
            Err(error) => assert_eq!(error.kind, ErrorKind::NotFound, "{error:?}"),
        }
    }
    writing.await.unwrap();
}

async fn a_range_of_a_blob_is_got_exactly(blobs: Arc<dyn BlobStore>) {
    let body: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let size = body.len() as u64;
    put(blobs.as_ref(), "a/k", body.clone()).await.unwrap();
    for range in [0..1, 0..size, size - 1..size, 255..513] {
        let got = blobs.get_range("a/k", range.clone()).await.unwrap();
        let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        assert_eq!(got, body[range.clone()], "{range:?}");
    }
    for range in [0..size + 1, size - 1..size + 1, size..size + 1, size + 5..size + 9] {
        let error = blobs.get_range("a/k", range.clone()).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt, "{range:?}");
    }
    assert_eq!(blobs.get_range("a/none", 0..1).await.unwrap_err().kind, ErrorKind::NotFound);
    #[expect(clippy::reversed_empty_ranges, reason = "what a caller must not ask for")]
    for range in [0..0, size..size, 2..1] {
        assert_eq!(blobs.get_range("a/k", range).await.unwrap_err().kind, ErrorKind::Internal);
    }
}

/// Bytes that do not repeat in step with parts.
fn noise(size: usize) -> Bytes {
    (0..size).map(|i| (i * 31 + i / 251).to_le_bytes()[0]).collect::<Vec<_>>().into()
}

/// Begins a blob and writes it in parts of so many bytes.
async fn begin(blobs: &dyn BlobStore, key: &str, body: &Bytes, part: usize) -> Box<dyn BlobUpload> {
    let mut upload = blobs.begin(key).await.unwrap();
    let mut rest = body.clone();
    while !rest.is_empty() {
        let next = rest.split_to(part.min(rest.len()));
        upload.write(next).await.unwrap();
    }
    upload
}

async fn what_is_written_in_parts_is_got_byte_for_byte(blobs: Arc<dyn BlobStore>) {
    const MIB: usize = 1 << 20;
    let table = [
        (0, 1),
        (1, 1),
        (5 * MIB - 1, 300_000),
        (5 * MIB, MIB),
        (5 * MIB + 1, 5 * MIB + 1),
        (12 * MIB + 7, 700_001),
        (16 * MIB, 16 * MIB),
    ];
    for (i, (size, part)) in table.into_iter().enumerate() {
        let (key, body) = (format!("u{i}/k"), noise(size));
        let upload = begin(blobs.as_ref(), &key, &body, part).await;
        upload.finish(digest::sha256(&body)).await.unwrap();
        assert!(blobs.get(&key).await.unwrap() == body, "{size} bytes in parts of {part}");
        assert_eq!(blobs.size(&key).await.unwrap(), Some(size as u64));
    }
}

async fn an_upload_is_seen_once_it_is_finished_and_never_if_it_is_dropped(blobs: Arc<dyn BlobStore>) {
    for size in [10, 11 << 20] {
        let body = noise(size);
        let upload = begin(blobs.as_ref(), "a/k", &body, 1 << 20).await;
        let dropped = begin(blobs.as_ref(), "a/l", &body, 1 << 20).await;
        for key in ["a/k", "a/l"] {
            assert_eq!(blobs.size(key).await.unwrap(), None);
        }
        assert_eq!(blob_keys(blobs.as_ref()).await, [""; 0]);
        drop(dropped);
        upload.finish(digest::sha256(&body)).await.unwrap();
        assert_eq!(blob_keys(blobs.as_ref()).await, ["a/k"]);
        blobs.delete("a/k").await.unwrap();
    }
}

async fn an_upload_does_not_overwrite(blobs: Arc<dyn BlobStore>) {
    for size in [10, 11 << 20] {
        let (body, key) = (noise(size), format!("a/{size}"));
        let first = begin(blobs.as_ref(), &key, &body, 1 << 20).await;
        let same = begin(blobs.as_ref(), &key, &body, 3 << 20).await;
        let other_body = Bytes::from(vec![7; size]);
        let other = begin(blobs.as_ref(), &key, &other_body, 1 << 20).await;
        first.finish(digest::sha256(&body)).await.unwrap();
        same.finish(digest::sha256(&body)).await.unwrap();
        let error = other.finish(digest::sha256(&other_body)).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::KeyTaken);
        assert!(blobs.get(&key).await.unwrap() == body);
    }
}

async fn a_deleted_blob_is_gone_and_may_be_deleted_again(blobs: Arc<dyn BlobStore>) {
    put(blobs.as_ref(), "a/k", "x").await.unwrap();
    put(blobs.as_ref(), "a/l", "y").await.unwrap();
    for _ in 0..2 {
        blobs.delete("a/k").await.unwrap();
        assert_eq!(blobs.get("a/k").await.unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(blob_keys(blobs.as_ref()).await, ["a/l"]);
    }
    blobs.delete("never/there").await.unwrap();
    assert_eq!(blobs.get("a/l").await.unwrap(), "y");
}

/// Keys in their order, as the service makes them: directories have names of
/// letters and digits. `SeaweedFS` would sort `a-b/x` after `a/x`, as AWS does
/// not.
const KEYS: [&str; 12] = [
    "0a/5b8d/b1/m-000000000003-g1-ab.zst",
    "0a/5b8d/b1/s-000000000001-g1-ab.zst",
    "0a/5b8d/b1/s-000000000001-g12-cd.zst",
    "0a/5b8d/b1/s-000000000002-g1-ab.zst",
    "0a/5b8d/b10/s-1",
    "0a/5b8d/b2/s-1",
    "0a/5b8e/b1/s-1",
    "a/x",
    "a0/x",
    "a_b/x",
    "ledger/00ff",
    "probe/create-only",
];

async fn blobs_are_listed_in_the_order_of_their_keys_by_prefix_and_in_pages(blobs: Arc<dyn BlobStore>) {
    assert!(KEYS.is_sorted());
    for key in KEYS.iter().rev() {
        put(blobs.as_ref(), key, *key).await.unwrap();
    }
    let keys = async |prefix: &str, after: Option<&str>, limit| {
        let page = blobs.list(prefix, after, limit).await.unwrap();
        page.into_iter().map(|blob| blob.key).collect::<Vec<_>>()
    };
    assert_eq!(keys("", None, 99).await, KEYS);
    for limit in [1, 3, 13] {
        let mut listed: Vec<String> = Vec::new();
        loop {
            let page = keys("", listed.last().map(String::as_str), limit).await;
            if page.is_empty() {
                break;
            }
            assert!(page.len() <= limit);
            listed.extend(page);
        }
        assert_eq!(listed, KEYS, "in pages of {limit}");
    }
    // After keys that are not there any more.
    let gone = ["00/x", "0a/5b8d/b1/s-000000000001-g1-aa.zst", "0a/5b8d/b10/t", "a/w", "a0/y", "zz/x"];
    for after in gone.into_iter().chain(KEYS) {
        let expected: Vec<_> = KEYS.into_iter().filter(|key| *key > after).collect();
        assert_eq!(keys("", Some(after), 99).await, expected, "after {after}");
    }
    for prefix in ["0a", "0a/5b8d/b1", "0a/5b8d/b1/", "0a/5b8d/b1/s-", "a", "a/", "ledger/", "nothing"] {
        let expected: Vec<_> = KEYS.into_iter().filter(|key| key.starts_with(prefix)).collect();
        assert_eq!(keys(prefix, None, 99).await, expected, "with {prefix}");
        if let Some((first, rest)) = expected.split_first() {
            assert_eq!(keys(prefix, Some(first), 99).await, rest, "with {prefix}, after {first}");
        }
    }
}

async fn more_blobs_than_a_page_holds_are_all_listed(blobs: Arc<dyn BlobStore>) {
    let keys: Vec<_> = (0..1_050).map(|i| format!("{:02x}/{i:05}", i % 16)).collect();
    let puts = keys.iter().map(|key| put(blobs.as_ref(), key, key.clone()));
    let mut puts = futures::stream::iter(puts).buffer_unordered(16);
    while let Some(done) = puts.next().await {
        done.unwrap();
    }
    let mut expected = keys.clone();
    expected.sort();
    let first = blobs.list("", None, 2_000).await.unwrap();
    assert!(first.iter().map(|blob| &blob.key).eq(&expected[..first.len()]));
    assert_eq!(blob_keys(blobs.as_ref()).await, expected);
}

async fn a_listing_tells_sizes_and_times(blobs: Arc<dyn BlobStore>) {
    let before = SystemClock.now().minus(Duration::from_mins(1));
    put(blobs.as_ref(), "a/k", "12345").await.unwrap();
    let after = SystemClock.now().plus(Duration::from_mins(1));
    let [BlobInfo { key, bytes, written_at }] = blobs.list("", None, 9).await.unwrap().try_into().unwrap();
    assert_eq!((key.as_str(), bytes), ("a/k", 5));
    assert!(before <= written_at && written_at <= after, "{written_at:?}");
}

async fn a_store_that_keeps_its_promises_passes_the_probe_again_and_again(blobs: Arc<dyn BlobStore>) {
    for outcome in join_all((0..4).map(|_| blobs.probe())).await {
        outcome.unwrap();
    }
    blobs.probe().await.unwrap();
}

#[tokio::test]
async fn a_directory_refuses_keys_that_lead_out_of_it_or_hide() {
    let directory = Directory::new();
    let files = || -> BTreeSet<_> {
        let outside = directory.path().parent().unwrap().join("outside");
        assert!(!outside.try_exists().unwrap());
        fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().file_name()).collect()
    };
    let before = files();
    for key in [
        "",
        "/",
        "/etc/x",
        "../outside",
        "a/../../outside",
        "a//b",
        "a/",
        "A",
        "a b",
        "é",
        ".tmp/x",
        "a/.b",
        "a\\b",
    ] {
        let error = put(directory.blobs.as_ref(), key, "x").await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal, "{key:?}");
        assert_eq!(directory.blobs.get(key).await.unwrap_err().kind, ErrorKind::Internal, "{key:?}");
        assert_eq!(directory.blobs.begin(key).await.unwrap_err().kind, ErrorKind::Internal, "{key:?}");
        let range = directory.blobs.get_range(key, 0..1).await;
        assert_eq!(range.unwrap_err().kind, ErrorKind::Internal, "{key:?}");
        assert_eq!(directory.blobs.size(key).await.unwrap_err().kind, ErrorKind::Internal, "{key:?}");
        assert_eq!(directory.blobs.delete(key).await.unwrap_err().kind, ErrorKind::Internal, "{key:?}");
    }
    assert_eq!(files(), before);
}

#[tokio::test]
async fn what_a_crash_left_half_written_is_never_listed_and_goes_at_the_next_start() {
    let directory = Directory::new();
    put(directory.blobs.as_ref(), "a/k", "x").await.unwrap();
    let leftovers = directory.path().join(".tmp");
    fs::write(leftovers.join("0123"), "half").unwrap();
    assert_eq!(blob_keys(directory.blobs.as_ref()).await, ["a/k"]);
    let again = LocalBlobs::open(directory.path(), Arc::new(Entropy::from_os())).unwrap();
    again.remove_leftovers().unwrap();
    assert_eq!(fs::read_dir(&leftovers).unwrap().count(), 0);
    assert_eq!(again.get("a/k").await.unwrap(), "x");
    // Nor do writes leave anything there, whether they win or lose.
    put(&again, "a/l", "y").await.unwrap();
    put(&again, "a/l", "z").await.unwrap_err();
    let body = Bytes::from_static(b"parts");
    begin(&again, "a/m", &body, 2).await.finish(digest::sha256(&body)).await.unwrap();
    begin(&again, "a/l", &body, 2).await.finish(digest::sha256(&body)).await.unwrap_err();
    drop(begin(&again, "a/n", &body, 2).await);
    assert_eq!(fs::read_dir(&leftovers).unwrap().count(), 0);
}

/// A checker beside a service opens the same directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opening_a_directory_disturbs_no_writer_that_is_under_way() {
    let directory = Directory::new();
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let blobs = directory.blobs.clone();
            tokio::spawn(async move {
                for i in 0..50 {
                    put(blobs.as_ref(), &format!("w{writer}/{i}"), vec![0; 10_000]).await?;
                }
                Ok::<_, StoreError>(())
            })
        })
        .collect();
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        LocalBlobs::open(directory.path(), Arc::new(Entropy::from_os())).unwrap();
        tokio::task::yield_now().await;
    }
    for writer in writers {
        writer.await.unwrap().unwrap();
    }
    assert_eq!(blob_keys(directory.blobs.as_ref()).await.len(), 200);
}

#[cfg(feature = "s3")]
#[tokio::test]
async fn bytes_that_do_not_have_their_digest_are_not_stored_by_s3() {
    let Some(blobs) = stores::s3().await else { return };
    let error = blobs.put_new("a/k", Bytes::from_static(b"x"), digest::sha256(b"y")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal, "{error:?}");
    assert_eq!(blobs.size("a/k").await.unwrap(), None);
    for _ in 0..2 {
        assert!(verifies_checksums(blobs.as_ref()).await.unwrap());
    }
}

/// A directory takes any digest, as S3 servers do that ignore it.
#[tokio::test]
async fn a_store_that_ignores_digests_is_found_out_at_every_start() {
    let directory = Directory::new();
    for _ in 0..2 {
        assert!(!verifies_checksums(directory.blobs.as_ref()).await.unwrap());
    }
    let down = FaultyBlobs::new(directory.blobs.clone());
    down.set(Fault::Down);
    let error = verifies_checksums(&down).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "an outage says nothing of it");
}

#[cfg(feature = "s3")]
#[tokio::test]
async fn an_s3_that_cannot_be_reached_or_used_is_unavailable() {
    use turnkeep::store::s3::{S3Blobs, S3Options};
    let Some(_) = stores::s3().await else { return };
    let options = |endpoint: String, bucket: &str| S3Options {
        bucket: bucket.to_owned(),
        prefix: String::new(),
        endpoint: Some(endpoint),
        region: None,
        path_style: true,
    };
    // A port that was free a moment ago.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let down = S3Blobs::connect(options(format!("http://{closed}"), "b")).await;
    assert_unavailable(&down).await;
    let endpoint = std::env::var("TURNKEEP_TEST_S3_ENDPOINT").unwrap();
    let nowhere = S3Blobs::connect(options(endpoint, "there-is-no-such-bucket")).await;
    // Not a put: some servers make the bucket then.
    let (got, size, deleted, listed) =
        (nowhere.get("a/k"), nowhere.size("a/k"), nowhere.delete("a/k"), nowhere.list("", None, 9));
    let (got, size, deleted, listed) = futures::join!(got, size, deleted, listed);
    for error in [got.unwrap_err(), size.unwrap_err(), deleted.unwrap_err(), listed.unwrap_err()] {
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error:?}");
    }
}

/// Every call says that the store cannot be reached, and none that a blob is
/// not there or is gone.
async fn assert_unavailable(blobs: &dyn BlobStore) {
    let upload = async |size| {
        let body = noise(size);
        let mut upload = blobs.begin("a/u").await?;
        upload.write(body.clone()).await?;
        upload.finish(digest::sha256(&body)).await
    };
    let (small, large, put, got, range, size, deleted, listed, probed) = futures::join!(
        upload(10),
        upload(11 << 20),
        put(blobs, "a/k", "x"),
        blobs.get("a/k"),
        blobs.get_range("a/k", 0..1),
        blobs.size("a/k"),
        blobs.delete("a/k"),
        blobs.list("", None, 9),
        blobs.probe(),
    );
    for error in [
        small.unwrap_err(),
        large.unwrap_err(),
        put.unwrap_err(),
        got.unwrap_err(),
        range.unwrap_err(),
        size.unwrap_err(),
        deleted.unwrap_err(),
        listed.unwrap_err(),
        probed.unwrap_err(),
    ] {
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error:?}");
    }
}

/// A disk that is not mounted leaves no directory, or an empty one.
#[tokio::test]
async fn a_directory_that_is_away_is_unavailable_until_it_is_back() {
    let directory = Directory::new();
    let blobs = directory.blobs.as_ref();
    put(blobs, "a/k", "x").await.unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let away = elsewhere.path().join("away");
    fs::rename(directory.path(), &away).unwrap();
    assert_unavailable(blobs).await;
    fs::create_dir(directory.path()).unwrap();
    assert_unavailable(blobs).await;
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    fs::remove_dir(directory.path()).unwrap();
    fs::rename(&away, directory.path()).unwrap();
    assert_eq!(blobs.get("a/k").await.unwrap(), "x");
    put(blobs, "a/l", "y").await.unwrap();
}

//! `turnkeep fsck`.

use crate::stores::{Node, key, payload};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use turnkeep::entropy::Entropy;
use turnkeep::store::MetaStore;
use turnkeep::store::local::LocalBlobs;
use turnkeep::store::sql::SqlMetaStore;

fn turnkeep(data: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnkeep"));
    command.args(args).arg("--set").arg(format!("store.data_dir={}", data.display())).current_dir(data);
    command.output().unwrap()
}

/// A data directory with a session of two segments and a journal.
async fn data() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let meta = Arc::new(SqlMetaStore::sqlite(&directory.path().join("turnkeep.db")).await.unwrap());
    meta.migrate().await.unwrap();
    let blobs =
        Arc::new(LocalBlobs::open(&directory.path().join("blobs"), Arc::new(Entropy::from_os())).unwrap());
    let node = Node::start(meta, blobs).await;
    node.create(&key("s")).await;
    for id in ["r1", "r2"] {
        node.persist(&key("s"), id, payload(id, 300)).await.unwrap();
        node.seal(&key("s")).await.unwrap();
    }
    node.persist(&key("s"), "tail", payload("tail", 300)).await.unwrap();
    node.engine.drain().await;
    directory
}

/// What is said when the store is rebuilt into a directory `other`.
fn rebuild_hint(data: &Path) -> String {
    let rebuilt = turnkeep(data, &["fsck", "--rebuild", "--target", "other"]);
    assert_eq!(rebuilt.status.code(), Some(0), "{rebuilt:?}");
    String::from_utf8(rebuilt.stderr).unwrap()
}

fn names(directory: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = fs::read_dir(directory).unwrap().map(|file| file.unwrap().file_name()).collect();
    names.sort();
    names
}

#[test]
fn the_command_makes_no_store_where_there_is_none() {
    let empty = tempfile::tempdir().unwrap();
    for args in [&["fsck"][..], &["fsck", "--deep"], &["fsck", "--rebuild", "--target", "new"], &["migrate"]]
    {
        let ran = turnkeep(&empty.path().join("."), args);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{args:?}: {said}");
        assert!(
            said.contains("turnkeep: there is no ") && said.contains("store.data_dir"),
            "{args:?}: {said}"
        );
        assert_eq!(names(empty.path()), [""; 0], "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_makes_nothing_beside_its_target() {
    let data = data().await;
    for file in ["turnkeep.db", "turnkeep.db-shm", "turnkeep.db-wal"] {
        // The last two are there only if the database was not closed in order.
        let _ = fs::remove_file(data.path().join(file));
    }
    assert_eq!(turnkeep(data.path(), &["fsck"]).status.code(), Some(1));
    rebuild_hint(data.path());
    assert_eq!(names(data.path()), ["blobs", "other"]);
}

fn segment(data: &Path) -> std::path::PathBuf {
    fn walk(directory: &Path, found: &mut Vec<std::path::PathBuf>) {
        for file in fs::read_dir(directory).unwrap() {
            let path = file.unwrap().path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let mut found = Vec::new();
    walk(&data.join("blobs"), &mut found);
    found.into_iter().find(|path| path.file_name().unwrap().to_string_lossy().starts_with("s-")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_tells_by_its_exit_code_whether_anything_is_wrong() {
    let data = data().await;
    let sound = turnkeep(data.path(), &["fsck", "--deep", "--json"]);
    assert_eq!(sound.status.code(), Some(0), "{sound:?}");
    let report: serde_json::Value = serde_json::from_slice(&sound.stdout).unwrap();
    assert_eq!((&report["turns"], &report["findings"]), (&4.into(), &serde_json::json!([])));
    let path = segment(data.path());
    let mut bytes = fs::read(&path).unwrap();
    bytes[30] ^= 1;
    fs::write(&path, bytes).unwrap();
    // Without reading the blobs it does not show.
    assert_eq!(turnkeep(data.path(), &["fsck"]).status.code(), Some(0));
    let found = turnkeep(data.path(), &["fsck", "--deep"]);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    let text = String::from_utf8(found.stdout).unwrap();
    assert!(text.contains("digest"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_rebuilds_into_an_empty_directory_alone() {
    let data = data().await;
    let target = data.path().join("rebuilt");
    let target_text = target.to_str().unwrap().to_owned();
    let rebuilt = turnkeep(data.path(), &["fsck", "--rebuild", "--target", &target_text, "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&rebuilt.stdout).unwrap();
    assert_eq!((&report["sessions"], &report["turns"]), (&1.into(), &3.into()), "{rebuilt:?}");
    let again = turnkeep(data.path(), &["fsck", "--rebuild", "--target", &target_text]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    // The candidate is checked against the same blobs, as it was told.
    let told = rebuild_hint(data.path());
    let checked = turnkeep(data.path(), &["fsck", "--deep", "--target", &target_text]);
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    assert_eq!(String::from_utf8_lossy(&checked.stderr), "sound\n");
    assert!(told.contains("`turnkeep fsck --deep --target other`"), "{told}");
    assert_eq!(turnkeep(data.path(), &["fsck", "--deep", "--target", "other"]).status.code(), Some(0));
    let candidate = SqlMetaStore::sqlite(&target.join("turnkeep.db")).await.unwrap();
    let blobs = LocalBlobs::open(&data.path().join("blobs"), Arc::new(Entropy::from_os())).unwrap();
    let node = Node::start(Arc::new(candidate), Arc::new(blobs)).await;
    assert_eq!(node.read(&key("s")).await.unwrap().entries.len(), 2);
    node.assert_healthy().await;
}

/// What is being written has a name of its own until it is whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_takes_nothing_from_a_service_that_is_writing() {
    let data = data().await;
    let half = data.path().join("blobs/.tmp/0123");
    fs::write(&half, "half").unwrap();
    assert_eq!(turnkeep(data.path(), &["fsck", "--deep"]).status.code(), Some(0));
    assert!(half.try_exists().unwrap());
}

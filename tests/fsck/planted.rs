//! Every corruption that is planted is found, where it is.

use super::Site;
use super::rebuild_outputs::offload;
use super::rebuild_windows;
use crate::stores::{Database, Node, on_both_databases};
use std::fs;
use std::path::PathBuf;
use turnkeep::engine::{Finding, Options};
use turnkeep::store::BlobStore;
use turnkeep::store::faulty::{Fault, FaultyBlobs};

on_both_databases![
    damage_to_a_blob_is_found,
    a_blob_that_is_missing_or_has_another_size_is_found_without_reading_any,
    an_altered_row_is_found_whatever_column_it_is,
    a_missing_or_doubled_row_is_found,
    a_damaged_journal_is_found,
    an_output_that_is_not_as_its_blob_says_is_found,
    a_blob_that_nobody_names_is_counted,
    a_window_state_that_cannot_be_is_found,
    a_note_that_cannot_be_is_found,
];

/// A session of three segments and two turns in the journal.
async fn site(database: &Database) -> Site {
    let database = match database.url() {
        None => Database::sqlite().await,
        Some(_) => Database::postgres().await.unwrap(),
    };
    let site = Site::empty(database).await;
    let key = site.session("s", 3).await;
    site.turn(&key, "j1", 300).await;
    site.turn(&key, "j2", 300).await;
    assert_eq!(site.check(true).await.findings, []);
    site
}

async fn second_segment(site: &Site) -> PathBuf {
    let rows = site.database.rows("SELECT blob_key FROM segment ORDER BY first_seq").await;
    site.directory.path().join(&rows[1][0])
}

/// All findings are about the branch or session, and there is one at least.
#[track_caller]
fn assert_found(findings: &[Finding], what: &str) {
    assert!(!findings.is_empty(), "not found: {what}");
    assert!(findings.iter().all(|finding| finding.place.starts_with("default/")), "{what}: {findings:?}");
}

async fn damage_to_a_blob_is_found(database: Database) {
    let site = site(&database).await;
    let path = second_segment(&site).await;
    let other =
        site.database.rows("SELECT blob_key FROM segment ORDER BY first_seq").await.remove(2).remove(0);
    let sound = fs::read(&path).unwrap();
    let other = fs::read(site.directory.path().join(other)).unwrap();
    // Each eighth byte, and each bit of it in turn.
    for i in (0..sound.len()).step_by(8) {
        let mut damaged = sound.clone();
        damaged[i] ^= 1 << (i / 8 % 8);
        fs::write(&path, damaged).unwrap();
        let findings = site.check(true).await.findings;
        assert_found(&findings, &format!("a flipped bit in byte {i}"));
        assert_eq!(findings.len(), 1, "{findings:?}");
    }
    for (what, bytes) in [("another segment", other), ("nothing", vec![])] {
        fs::write(&path, bytes).unwrap();
        assert_found(&site.check(true).await.findings, what);
    }
    fs::write(&path, sound).unwrap();
    assert_eq!(site.check(true).await.findings, []);
}

async fn a_blob_that_is_missing_or_has_another_size_is_found_without_reading_any(database: Database) {
    let site = site(&database).await;
    let path = second_segment(&site).await;
    let sound = fs::read(&path).unwrap();
    for (what, bytes) in [("cut", &sound[..sound.len() - 1]), ("longer", &[&sound[..], b"x"].concat())] {
        fs::write(&path, bytes).unwrap();
        assert_found(&site.check(false).await.findings, what);
    }
    fs::remove_file(&path).unwrap();
    let [finding] = site.check(false).await.findings.try_into().unwrap();
    assert!(finding.problem.contains("is missing"), "{finding:?}");
    fs::write(&path, sound).unwrap();
    assert_eq!(site.check(false).await.findings, []);
}

async fn an_altered_row_is_found_whatever_column_it_is(database: Database) {
    // Of turn 2, which is sealed, and of turn 4, which is in the journal: the
    // blob has a second copy of what no digest covers.
    const SEALED: &[&str] = &[
        "UPDATE turn SET kind = 'rewind' WHERE version = 2",
        "UPDATE turn SET base_version = 1 WHERE version = 2",
        "UPDATE turn SET first_seq = 1 WHERE version = 2",
        "UPDATE turn SET last_seq = 3 WHERE version = 2",
        "UPDATE turn SET request_id = 'other' WHERE version = 2",
        "UPDATE turn SET request_digest = receipt WHERE version = 2",
        "UPDATE turn SET entries_digest = receipt WHERE version = 2",
        "UPDATE turn SET receipt = entries_digest WHERE version = 2",
        "UPDATE turn SET prefix_digest = receipt WHERE version = 2",
        "UPDATE turn SET calls = '{\"m\":true}' WHERE version = 2",
        "UPDATE turn SET tokens = tokens + 1 WHERE version = 2",
        "UPDATE turn SET log_tokens = log_tokens + 1 WHERE version = 2",
        "UPDATE turn SET payload_bytes = payload_bytes + 1 WHERE version = 2",
        "UPDATE turn SET report = '{\"score\":0.5}' WHERE version = 2",
        "UPDATE turn SET reply = '{}' WHERE version = 2",
        "UPDATE turn SET created_at = created_at + 1 WHERE version = 2",
        "UPDATE turn SET version = 9 WHERE version = 2",
        "UPDATE turn SET kind = 'strange' WHERE version = 2",
        "UPDATE turn SET calls = 'no JSON' WHERE version = 2",
    ];
    const JOURNALED: &[&str] = &[
        "UPDATE turn SET kind = 'rewind' WHERE version = 4",
        "UPDATE turn SET base_version = 1 WHERE version = 4",
        "UPDATE turn SET first_seq = 3 WHERE version = 4",
        "UPDATE turn SET last_seq = 5 WHERE version = 4",
        "UPDATE turn SET request_id = 'other' WHERE version = 4",
        "UPDATE turn SET entries_digest = receipt WHERE version = 4",
        "UPDATE turn SET receipt = entries_digest WHERE version = 4",
        "UPDATE turn SET tokens = tokens + 1 WHERE version = 4",
        "UPDATE turn SET log_tokens = log_tokens + 1 WHERE version = 4",
        "UPDATE turn SET payload_bytes = payload_bytes + 1 WHERE version = 4",
    ];
    const OTHERS: &[&str] = &[
        "UPDATE journal SET first_seq = 9 WHERE version = 4",
        "UPDATE journal SET last_seq = 5 WHERE version = 4",
        "UPDATE journal SET raw_bytes = 1 WHERE version = 4",
        "UPDATE journal SET version = 9 WHERE version = 4",
        "UPDATE segment SET first_seq = 1 WHERE first_seq = 2",
        "UPDATE segment SET last_seq = 3 WHERE first_seq = 2",
        "UPDATE segment SET first_version = 9 WHERE first_seq = 2",
        "UPDATE segment SET last_version = 3 WHERE first_seq = 2",
        "UPDATE segment SET blob_key = 'aa/x' WHERE first_seq = 2",
        "UPDATE segment SET sha256 = (SELECT receipt FROM turn LIMIT 1) WHERE first_seq = 2",
        "UPDATE segment SET stored_bytes = stored_bytes + 1 WHERE first_seq = 2",
        "UPDATE segment SET raw_bytes = raw_bytes - 1 WHERE first_seq = 2",
        "UPDATE segment SET raw_bytes = raw_bytes + 1 WHERE first_seq = 2",
        "UPDATE segment SET format = 7 WHERE first_seq = 2",
        "UPDATE branch SET sealed_seq = 2",
        "UPDATE branch SET sealed_version = 2",
        "UPDATE branch SET base_seq = 1",
        "UPDATE branch SET first_version = 1",
        "UPDATE branch SET session_id = 'other'",
        "UPDATE head SET version = 9",
        "UPDATE head SET branch_id = 'other'",
        "UPDATE head SET receipt = (SELECT receipt FROM turn WHERE version = 1)",
        "UPDATE head SET journal_bytes = journal_bytes + 1",
    ];
    for sql in [SEALED, JOURNALED, OTHERS].concat() {
        let site = site(&database).await;
        assert_eq!(site.database.execute(sql).await, 1, "{sql}");
        assert_found(&site.check(true).await.findings, sql);
    }
}

async fn a_missing_or_doubled_row_is_found(database: Database) {
    for sql in [
        "DELETE FROM turn WHERE version = 2",
        "DELETE FROM turn WHERE version = 5",
        "DELETE FROM turn WHERE version = 0",
        "DELETE FROM journal WHERE version = 4",
        "DELETE FROM journal WHERE version = 5",
        "DELETE FROM segment WHERE first_seq = 2",
        "DELETE FROM segment WHERE first_seq = 3",
        "DELETE FROM branch",
        "DELETE FROM session",
        "INSERT INTO journal SELECT tenant, branch_id, 2, 2, 2, raw_bytes, created_at, body FROM journal \
         WHERE version = 4",
        "INSERT INTO segment SELECT tenant, branch_id, 9, 9, 2, 2, 'x', sha256, stored_bytes, raw_bytes, format, \
         created_at FROM segment WHERE first_seq = 2",
    ] {
        let site = site(&database).await;
        assert_eq!(site.database.execute(sql).await, 1, "{sql}");
        assert_found(&site.check(false).await.findings, sql);
    }
    // A branch that others continue.
    let site = site(&database).await;
    let fork = site.fork(&crate::stores::key("s"), Some(2), "fork").await;
    site.turn(&fork, "f1", 100).await;
    site.database.execute("DELETE FROM branch WHERE session_id = 's'").await;
    assert_found(&site.check(true).await.findings, "a branch whose parent is missing");
}

async fn a_damaged_journal_is_found(database: Database) {
    for sql in [
        "UPDATE journal SET body = (SELECT receipt FROM turn WHERE version = 1) WHERE version = 4",
        // A row with the body of another.
        "UPDATE journal SET body = (SELECT j.body FROM journal j WHERE j.version = 5) WHERE version = 4",
    ] {
        let site = site(&database).await;
        assert_eq!(site.database.execute(sql).await, 1, "{sql}");
        assert_found(&site.check(true).await.findings, sql);
    }
}

async fn an_output_that_is_not_as_its_blob_says_is_found(database: Database) {
    let site = site(&database).await;
    let key = crate::stores::key("s");
    let content: bytes::Bytes = "a line\n".repeat(20_000).into();
    let name = offload(&site.node, &key, content.clone()).await;
    // Another, which is held as one is while the object store is down.
    let faults = std::sync::Arc::new(FaultyBlobs::new(site.directory.blobs.clone()));
    let down = Node::with(site.node.meta.clone(), faults.clone(), Options::default()).await;
    faults.set(Fault::Down);
    offload(&down, &key, content).await;
    let sound = site.check(true).await;
    assert_eq!((sound.outputs, sound.findings), (2, vec![]));
    for (sql, undo) in [
        (
            "tool_call_id = tool_call_id || 'x'",
            "tool_call_id = substr(tool_call_id, 1, length(tool_call_id) - 1)",
        ),
        ("bytes = bytes + 1", "bytes = bytes - 1"),
        ("characters = characters + 1", "characters = characters - 1"),
        ("lines = lines + 1", "lines = lines - 1"),
        ("stored_bytes = stored_bytes + 1", "stored_bytes = stored_bytes - 1"),
        ("tail_at = tail_at + 1", "tail_at = tail_at - 1"),
        ("format = 7", "format = 1"),
        ("created_at = created_at + 1", "created_at = created_at - 1"),
        ("stored_entry_digest = sha256, received_entry_digest = sha256", "stored_entry_digest = NULL"),
    ] {
        site.database.execute_made(format!("UPDATE output SET {sql}")).await;
        let findings = site.check(true).await.findings;
        assert_found(&findings, sql);
        assert_eq!(findings.len(), 2, "{sql}: {findings:?}");
        site.database.execute_made(format!("UPDATE output SET {undo}")).await;
        assert_eq!(site.check(true).await.findings, [], "{undo}");
    }
    // What is held and not there, and blobs without a row or under another name.
    site.database.execute("DELETE FROM output_held").await;
    for deep in [false, true] {
        let findings = site.check(deep).await.findings;
        assert_found(&findings, "nothing is held");
        assert_eq!(findings.len(), 2, "the output and the charge: {findings:?}");
    }
    site.database.execute("DELETE FROM output WHERE blob_key IS NULL").await;
    site.database.execute("UPDATE output SET blob_key = 'x'").await;
    let found = site.check(false).await;
    assert_eq!(found.orphans, sound.orphans + 1);
    let resource = name.resource_name();
    assert!(found.findings.iter().any(|finding| finding.problem.contains(&resource)), "{found:?}");
    site.database.execute("DELETE FROM output").await;
    assert_eq!(site.check(true).await.orphans, sound.orphans + 1);
}

async fn a_window_state_that_cannot_be_is_found(database: Database) {
    let site = Site::empty(database).await;
    let key = rebuild_windows::session(&site, "s", 4).await;
    rebuild_windows::pin(&site, &key, "a").await;
    let sound = site.check(false).await;
    assert_eq!((sound.window_states, sound.findings), (1, vec![]));
    let states = [
        "{",
        r#"{"cut":{"first_kept":99,"omitted_entries":1,"omitted_tokens":1}}"#,
        r#"{"cut":{"first_kept":0,"omitted_entries":0,"omitted_tokens":0}}"#,
        r#"{"cut":{"first_kept":3,"system":[3],"omitted_entries":0,"omitted_tokens":0}}"#,
        r#"{"cut":{"first_kept":3,"first_user":0,"omitted_entries":0,"omitted_tokens":0}}"#,
        r#"{"snipped":[4,99]}"#,
        r#"{"snipped":[4],"partly":{"3":[0]}}"#,
        r#"{"summary":{"covers":99,"text":"x"}}"#,
    ];
    let states = states.map(|state| format!("state = '{state}'"));
    let others = ["record = 'x'", "kind = 'other'", "version = 99"].map(str::to_owned);
    let row = site.database.rows("SELECT state, record, kind, version FROM window_state").await.remove(0);
    for change in states.into_iter().chain(others) {
        site.database.execute_made(format!("UPDATE window_state SET {change}")).await;
        for deep in [false, true] {
            let findings = site.check(deep).await.findings;
            assert_found(&findings, &change);
            assert_eq!(findings.len(), 1, "{change}: {findings:?}");
            assert!(findings[0].problem.contains("window state"), "{findings:?}");
        }
        let [state, record, kind, version] = [0, 1, 2, 3].map(|at: usize| row[at].clone());
        let undo = format!("state = '{state}', record = '{record}', kind = '{kind}', version = {version}");
        site.database.execute_made(format!("UPDATE window_state SET {undo}")).await;
        assert_eq!(site.check(true).await.findings, []);
    }
    // An end that is there, and all that lies before it.
    let fits = r#"{"cut":{"first_kept":10,"system":[1],"first_user":2,"last_user":9,"omitted_entries":6,"omitted_tokens":9},"snipped":[10]}"#;
    site.database.execute_made(format!("UPDATE window_state SET state = '{fits}'")).await;
    assert_eq!(site.check(true).await.findings, []);
}

async fn a_note_that_cannot_be_is_found(database: Database) {
    let site = Site::empty(database).await;
    let key = rebuild_windows::session(&site, "s", 1).await;
    site.node.engine.put_note(&key, "port", "5433").await.unwrap();
    let sound = site.check(false).await;
    assert_eq!((sound.notes, sound.findings), (1, vec![]));
    for (change, undo) in [("name = 'a/b'", "name = 'port'"), ("body = ''", "body = '5433'")] {
        site.database.execute_made(format!("UPDATE note SET {change}")).await;
        let findings = site.check(false).await.findings;
        assert_eq!(findings.len(), 1, "{change}: {findings:?}");
        assert!(findings[0].problem.contains("note"), "{findings:?}");
        site.database.execute_made(format!("UPDATE note SET {undo}")).await;
        assert_eq!(site.check(false).await.findings, [], "{undo}");
    }
}

async fn a_blob_that_nobody_names_is_counted(database: Database) {
    let site = site(&database).await;
    let before = site.check(false).await;
    let body = bytes::Bytes::from_static(b"x");
    for key in
        ["aa/00/b/s-000000000001-g7-ff.zst", "bb/00/b/m-000000000001-g7-ff.zst", "ledger/ff", "probe/x"]
    {
        let sha256 = turnkeep::codec::digest::sha256(&body);
        site.directory.blobs.put_new(key, body.clone(), sha256).await.unwrap();
    }
    let after = site.check(false).await;
    assert_eq!((after.orphans, after.findings), (before.orphans + 2, vec![]));
}

//! Walking all rows, and loading rows that a rebuild made.

use crate::stores::{Database, Line, key, on_both_databases};
use turnkeep::clock::Micros;
use turnkeep::model::{TenantId, Version};
use turnkeep::store::meta::{BranchKey, ManifestRow, RebuiltRows, SessionKey};
use turnkeep::store::{ErrorKind, MetaStore};

on_both_databases![
    all_sessions_and_branches_are_walked_in_pages,
    loaded_rows_are_as_those_that_were_written,
    a_load_that_fails_leaves_nothing,
    a_loaded_deletion_keeps_its_id_taken,
];

async fn all_sessions_and_branches_are_walked_in_pages(database: Database) {
    let meta = &database.meta;
    let (mut sessions, mut branches) = (vec![], vec![]);
    for tenant in ["T1", "a", "b-2"] {
        for session in ["x", "Y", "y", "deleted"] {
            let mut line = Line::new(session);
            line.key.tenant = TenantId::parse(tenant).unwrap();
            meta.create_session(line.to_create()).await.unwrap();
            if session == "deleted" {
                meta.delete_session(&line.key, false, Micros(1), Micros(2)).await.unwrap();
            } else {
                sessions.push((tenant.to_owned(), session.to_owned()));
                branches.push((tenant.to_owned(), line.branch.id.to_string()));
            }
        }
    }
    sessions.sort();
    branches.sort();
    let (mut walked, mut after): (Vec<_>, Option<SessionKey>) = (vec![], None);
    loop {
        let page = meta.all_sessions(after.as_ref(), 2).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.clone());
        walked.extend(page.iter().map(|key| (key.tenant.to_string(), key.session.to_string())));
    }
    assert_eq!(walked, sessions);
    let (mut walked, mut after): (Vec<(String, String)>, Option<BranchKey>) = (vec![], None);
    loop {
        let page = meta.all_branches(after.as_ref(), 2).await.unwrap();
        let Some((tenant, branch)) = page.last() else { break };
        after = Some(BranchKey { tenant: tenant.clone(), branch: branch.id.clone() });
        walked.extend(page.iter().map(|(tenant, branch)| (tenant.to_string(), branch.id.to_string())));
    }
    assert_eq!(walked, branches);
}

/// A session of one segment, as rows to be loaded.
async fn rows(other: &Database) -> (Line, RebuiltRows) {
    let meta = other.meta.as_ref();
    let mut line = Line::create(meta, "s").await;
    line.append(meta, "r1").await;
    let mut seal = line.sealed(1, "blob", crate::stores::generation(meta).await);
    let manifest = ManifestRow { session: line.key.session.clone(), key: "m".into(), version: Version(1) };
    seal.run.manifest = Some(manifest.clone());
    let segment = seal.run.segment.clone();
    meta.commit_seal(seal).await.unwrap();
    let tip = meta.tip(&line.key, None).await.unwrap().unwrap();
    let turns = meta.turns(&line.branch_key(), Version(0), Version(9), 9).await.unwrap();
    let rows = RebuiltRows {
        tenant: Some(line.key.tenant.clone()),
        session: Some((tip.session, tip.head, line.preamble.clone().into_iter().collect())),
        branches: vec![tip.branch],
        turns: turns.into_iter().map(|turn| (line.key.session.clone(), turn)).collect(),
        segments: vec![segment],
        manifest: Some(manifest),
        ..RebuiltRows::default()
    };
    (line, rows)
}

async fn another(database: &Database) -> Database {
    match database.url() {
        None => Database::sqlite().await,
        Some(_) => Database::postgres().await.unwrap(),
    }
}

async fn loaded_rows_are_as_those_that_were_written(database: Database) {
    let original = another(&database).await;
    let (mut line, rows) = rows(&original).await;
    database.meta.load(RebuiltRows::default()).await.unwrap();
    database.meta.load(rows).await.unwrap();
    let mut expected = original.dump().await;
    expected.insert("writer_generation", vec![]);
    assert_eq!(database.dump().await, expected);
    line.append(database.meta.as_ref(), "r2").await;
}

async fn a_load_that_fails_leaves_nothing(database: Database) {
    let (_, mut rows) = rows(&another(&database).await).await;
    let before = database.dump().await;
    rows.segments.push(rows.segments[0].clone());
    assert_eq!(database.meta.load(rows).await.unwrap_err().kind, ErrorKind::Duplicate);
    assert_eq!(database.dump().await, before);
}

async fn a_loaded_deletion_keeps_its_id_taken(database: Database) {
    let meta = &database.meta;
    let line = Line::new("gone");
    let rows = RebuiltRows {
        tenant: Some(line.key.tenant.clone()),
        deleted: Some((line.key.session.clone(), Micros(7))),
        ..RebuiltRows::default()
    };
    meta.load(rows).await.unwrap();
    let outcome = meta.create_session(line.to_create()).await.unwrap();
    assert_eq!(outcome, turnkeep::store::meta::CreateOutcome::Taken { deleted: true });
    let receipt = meta.deletion(&line.key).await.unwrap().unwrap();
    assert_eq!((receipt.deleted_at, receipt.erased_at), (Micros(7), None));
    assert!(meta.advance_deletion(&line.key, Micros(9), Micros(9)).await.unwrap());
    assert!(meta.tip(&key("gone"), None).await.unwrap().is_none());
}

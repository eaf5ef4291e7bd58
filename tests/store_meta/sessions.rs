//! Sessions, their configuration, labels and preambles.

use crate::stores::{Database, Line, branch_id, key, on_both_databases, tenant};
use bytes::Bytes;
use futures::future::join_all;
use turnkeep::clock::Micros;
use turnkeep::model::{CompressionPath, Head, Labels, Preamble, Session, SessionId, TenantId, Version};
use turnkeep::store::meta::{CommitOutcome, CreateOutcome, SessionQuery, SessionUpdate, Tip};
use turnkeep::store::{ErrorKind, MetaStore};

on_both_databases![
    a_created_session_is_read_back_as_it_was_given,
    what_was_never_created_is_nothing,
    creating_twice_tells_that_the_id_is_taken_and_writes_nothing,
    the_id_of_a_deleted_session_stays_taken,
    of_racing_creations_one_creates,
    tenants_see_nothing_of_each_other,
    a_fork_needs_a_live_source_and_its_branch,
    an_update_changes_all_of_the_configuration_at_once,
    an_update_of_another_revision_changes_nothing,
    of_racing_updates_one_wins,
    an_update_may_set_a_preamble_and_keeps_the_older_ones,
    sessions_are_listed_the_newest_first_in_pages,
    sessions_are_listed_by_label_path_and_time,
    the_first_secret_stays,
    a_store_without_a_schema_does_not_answer_a_ping,
];

/// The tip that a line should have.
fn expected_tip(line: &Line) -> Tip {
    Tip {
        session: line.session.clone(),
        head: Head {
            version: line.tip.turn.version,
            branch: line.branch.id.clone(),
            receipt: line.tip.turn.receipt,
            config_revision: line.config_revision,
            window_revision: 1,
            preamble_revision: u64::from(line.preamble.is_some()),
            preamble_tokens: line.preamble.as_ref().map_or(0, |preamble| preamble.tokens),
            journal_bytes: line.journal_bytes(),
            fence: 0,
            updated_at: line.tip.turn.created_at,
            window_state: 0,
            window_offset: 0,
            calibration: None,
        },
        branch: line.branch.clone(),
        turn: line.tip.turn.clone(),
        journal: vec![],
    }
}

fn assert_tip(found: Option<Tip>, expected: &Tip) {
    // A tip has no `PartialEq`, since the engine never compares two.
    assert_eq!(format!("{:?}", found.unwrap()), format!("{expected:?}"));
}

async fn a_created_session_is_read_back_as_it_was_given(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    assert_tip(meta.tip(&line.key, None).await.unwrap(), &expected_tip(&line));
    assert_tip(meta.tip(&line.key, Some(Version(0))).await.unwrap(), &expected_tip(&line));
    assert_eq!(meta.preamble(&line.key, Version(0)).await.unwrap(), line.preamble);
    assert_eq!(meta.preambles(&line.key).await.unwrap(), [line.preamble.clone().unwrap()]);
    assert_eq!(meta.blob_bytes(&line.key).await.unwrap(), 0);
    assert_eq!(meta.branches_of_session(&line.key).await.unwrap(), std::slice::from_ref(&line.branch));
    assert_eq!(meta.lineage(&line.branch_key()).await.unwrap(), std::slice::from_ref(&line.branch));
    assert_eq!(meta.turn(&line.branch_key(), Version(0)).await.unwrap(), Some(line.tip.clone()));
    let mut plain = Line::new("plain");
    (plain.preamble, plain.session.labels) = (None, Labels::new());
    assert_eq!(meta.create_session(plain.to_create()).await.unwrap(), CreateOutcome::Created);
    assert_tip(meta.tip(&plain.key, None).await.unwrap(), &expected_tip(&plain));
    assert_eq!(meta.preamble(&plain.key, Version(0)).await.unwrap(), None);
}

async fn what_was_never_created_is_nothing(database: Database) {
    let meta = &database.meta;
    Line::create(meta.as_ref(), "other").await;
    let line = Line::new("s");
    assert!(meta.tip(&line.key, Some(Version(0))).await.unwrap().is_none());
    assert_eq!(meta.preamble(&line.key, Version(0)).await.unwrap(), None);
    assert_eq!(meta.preambles(&line.key).await.unwrap(), []);
    assert_eq!(meta.blob_bytes(&line.key).await.unwrap(), 0);
    assert_eq!(meta.branches_of_session(&line.key).await.unwrap(), []);
    assert_eq!(meta.lineage(&line.branch_key()).await.unwrap(), []);
    assert_eq!(meta.turn(&line.branch_key(), Version(0)).await.unwrap(), None);
}

async fn creating_twice_tells_that_the_id_is_taken_and_writes_nothing(database: Database) {
    let line = Line::create(database.meta.as_ref(), "s").await;
    let before = database.dump().await;
    let mut again = line.to_create();
    again.branch.id = branch_id("another");
    again.turn.turn.branch = branch_id("another");
    for new in [line.to_create(), again] {
        let outcome = database.meta.create_session(new).await.unwrap();
        assert_eq!(outcome, CreateOutcome::Taken { deleted: false });
    }
    assert_eq!(database.dump().await, before);
}

async fn the_id_of_a_deleted_session_stays_taken(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    meta.delete_session(&line.key, false, Micros(1), Micros(2)).await.unwrap();
    let before = database.dump().await;
    let outcome = meta.create_session(line.to_create()).await.unwrap();
    assert_eq!(outcome, CreateOutcome::Taken { deleted: true });
    assert_eq!(database.dump().await, before);
}

async fn of_racing_creations_one_creates(database: Database) {
    let other = database.another().await;
    let lines: Vec<_> = (0..8)
        .map(|i| {
            let mut line = Line::new("s");
            line.branch.id = branch_id(&format!("b{i}"));
            line.tip.turn.branch = line.branch.id.clone();
            line
        })
        .collect();
    let races = lines.iter().zip(0..).map(|(line, i): (_, usize)| {
        let meta = if i.is_multiple_of(2) { database.meta.as_ref() } else { &other };
        meta.create_session(line.to_create())
    });
    let outcomes: Vec<_> = join_all(races).await.into_iter().map(Result::unwrap).collect();
    let winners: Vec<_> = (0..8).filter(|i| outcomes[*i] == CreateOutcome::Created).collect();
    assert_eq!(winners.len(), 1, "{outcomes:?}");
    let taken = outcomes.iter().filter(|outcome| **outcome == CreateOutcome::Taken { deleted: false });
    assert_eq!(taken.count(), 7, "{outcomes:?}");
    let winner = &lines[winners[0]];
    assert_tip(database.meta.tip(&winner.key, None).await.unwrap(), &expected_tip(winner));
    assert_eq!(database.rows("SELECT branch_id FROM branch").await, [[winner.branch.id.to_string()]]);
}

async fn tenants_see_nothing_of_each_other(database: Database) {
    let meta = &database.meta;
    let mut ours = Line::create(meta.as_ref(), "s").await;
    let mut theirs = Line::new("s");
    theirs.key.tenant = TenantId::parse("other").unwrap();
    assert!(meta.tip(&theirs.key, None).await.unwrap().is_none());
    assert_eq!(meta.create_session(theirs.to_create()).await.unwrap(), CreateOutcome::Created);
    ours.append(meta.as_ref(), "r1").await;
    // The same session, branch and request id, and yet nothing in common.
    theirs.append(meta.as_ref(), "r1").await;
    theirs.append(meta.as_ref(), "r2").await;
    for line in [&ours, &theirs] {
        let mut expected = expected_tip(line);
        expected.journal.clone_from(&line.journal);
        assert_tip(meta.tip(&line.key, Some(Version(0))).await.unwrap(), &expected);
        let query = SessionQuery { limit: 10, ..SessionQuery::default() };
        assert_eq!(meta.list_sessions(&line.key.tenant, &query).await.unwrap().len(), 1);
    }
    meta.delete_session(&theirs.key, true, Micros(1), Micros(2)).await.unwrap();
    assert_tip(meta.tip(&ours.key, None).await.unwrap(), &expected_tip(&ours));
    assert_eq!(meta.deletion(&ours.key).await.unwrap(), None);
}

async fn a_fork_needs_a_live_source_and_its_branch(database: Database) {
    let meta = &database.meta;
    let mut source = Line::create(meta.as_ref(), "source").await;
    source.append(meta.as_ref(), "r1").await;
    let fork = source.create_fork(meta.as_ref(), "fork").await;
    assert_eq!(meta.lineage(&fork.branch_key()).await.unwrap(), [source.branch.clone(), fork.branch.clone()]);
    let before = database.dump().await;
    let (_, mut of_nobody) = source.fork("x");
    of_nobody.source = Some((SessionId::parse("nobody").unwrap(), source.branch.id.clone()));
    let (_, mut of_nothing) = source.fork("x");
    of_nothing.source = Some((source.key.session.clone(), branch_id("nothing")));
    for new in [of_nobody, of_nothing] {
        assert_eq!(meta.create_session(new).await.unwrap(), CreateOutcome::SourceGone);
    }
    assert_eq!(database.dump().await, before);
    meta.delete_session(&source.key, false, Micros(1), Micros(2)).await.unwrap();
    assert_eq!(meta.create_session(source.fork("x").1).await.unwrap(), CreateOutcome::SourceGone);
    // The fork lives on, and can be forked itself.
    let second = fork.create_fork(meta.as_ref(), "second").await;
    assert_eq!(
        meta.lineage(&second.branch_key()).await.unwrap(),
        [source.branch, fork.branch, second.branch]
    );
}

fn update(line: &Line, label: &str) -> SessionUpdate {
    let session = Session {
        path: CompressionPath::Automated,
        labels: Labels::from([("new".to_owned(), label.to_owned())]),
        strip_rules: vec![],
        pin_statements: None,
        ..line.session.clone()
    };
    SessionUpdate {
        key: line.key.clone(),
        expected_revision: line.config_revision,
        session,
        preamble: None,
        revise_window: true,
        at: Micros(77),
    }
}

async fn an_update_changes_all_of_the_configuration_at_once(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    let change = update(&line, "x");
    assert_eq!(meta.update_session(change.clone()).await.unwrap(), CommitOutcome::Committed);
    let mut expected = expected_tip(&line);
    expected.session = change.session;
    (expected.head.config_revision, expected.head.window_revision) = (2, 2);
    expected.head.updated_at = Micros(77);
    assert_tip(meta.tip(&line.key, None).await.unwrap(), &expected);
    let labels = database.rows("SELECT label_key, label_value FROM session_label").await;
    assert_eq!(labels, [["new", "x"]]);
    let mut quiet = update(&line, "y");
    (quiet.expected_revision, quiet.revise_window) = (2, false);
    meta.update_session(quiet).await.unwrap();
    let head = meta.tip(&line.key, None).await.unwrap().unwrap().head;
    assert_eq!((head.config_revision, head.window_revision), (3, 2));
}

async fn an_update_of_another_revision_changes_nothing(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    let before = database.dump().await;
    let mut late = update(&line, "x");
    late.expected_revision = 2;
    assert_eq!(meta.update_session(late).await.unwrap(), CommitOutcome::NotAsExpected);
    assert_eq!(
        meta.update_session(update(&Line::new("nobody"), "x")).await.unwrap(),
        CommitOutcome::NotAsExpected
    );
    assert_eq!(database.dump().await, before);
    meta.delete_session(&line.key, false, Micros(1), Micros(2)).await.unwrap();
    let before = database.dump().await;
    assert_eq!(meta.update_session(update(&line, "x")).await.unwrap(), CommitOutcome::NotAsExpected);
    assert_eq!(database.dump().await, before);
}

async fn of_racing_updates_one_wins(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    let labels: Vec<_> = (0..8).map(|i| format!("l{i}")).collect();
    let races = labels.iter().map(|label| meta.update_session(update(&line, label)));
    let outcomes: Vec<_> = join_all(races).await.into_iter().map(Result::unwrap).collect();
    let winners: Vec<_> = (0..8).filter(|i| outcomes[*i] == CommitOutcome::Committed).collect();
    assert_eq!(winners.len(), 1, "{outcomes:?}");
    let tip = meta.tip(&line.key, None).await.unwrap().unwrap();
    assert_eq!(tip.session, update(&line, &labels[winners[0]]).session);
    assert_eq!(tip.head.config_revision, 2);
}

async fn an_update_may_set_a_preamble_and_keeps_the_older_ones(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    for request in ["r1", "r2", "r3"] {
        line.append(meta.as_ref(), request).await;
    }
    let second = Preamble {
        revision: 2,
        payload: Bytes::from_static(b"{\"a\":\xc3\xa9}"),
        tokens: 9,
        since_version: Version(3),
    };
    let change = SessionUpdate { preamble: Some(second.clone()), ..update(&line, "x") };
    meta.update_session(change).await.unwrap();
    let first = line.preamble.clone().unwrap();
    assert_eq!(meta.preamble(&line.key, Version(2)).await.unwrap(), Some(first.clone()));
    assert_eq!(meta.preamble(&line.key, Version(3)).await.unwrap(), Some(second.clone()));
    assert_eq!(meta.preambles(&line.key).await.unwrap(), [first, second]);
    let head = meta.tip(&line.key, None).await.unwrap().unwrap().head;
    assert_eq!((head.preamble_revision, head.preamble_tokens), (2, 9));
}

async fn ids(database: &Database, query: SessionQuery) -> Vec<String> {
    let tips = database.meta.list_sessions(&tenant(), &query).await.unwrap();
    assert!(tips.iter().all(|tip| tip.journal.is_empty()));
    tips.iter().map(|tip| tip.session.id.to_string()).collect()
}

async fn sessions_are_listed_the_newest_first_in_pages(database: Database) {
    let meta = &database.meta;
    // Two of each instant, so that the id decides.
    for i in 0..8 {
        let mut line = Line::new(&format!("s{i}"));
        line.session.created_at = Micros(100 + i / 2);
        meta.create_session(line.to_create()).await.unwrap();
    }
    meta.delete_session(&key("s4"), false, Micros(1), Micros(2)).await.unwrap();
    let mut listed = Vec::new();
    let mut after = None;
    loop {
        let query = SessionQuery { after: after.clone(), limit: 3, ..SessionQuery::default() };
        let page = meta.list_sessions(&tenant(), &query).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some((last.session.created_at, last.session.id.clone()));
        listed.extend(page.iter().map(|tip| tip.session.id.to_string()));
    }
    assert_eq!(listed, ["s7", "s6", "s5", "s3", "s2", "s1", "s0"]);
}

async fn sessions_are_listed_by_label_path_and_time(database: Database) {
    let meta = &database.meta;
    for (i, path) in
        [CompressionPath::Batch, CompressionPath::Interactive].into_iter().cycle().take(4).enumerate()
    {
        let mut line = Line::new(&format!("s{i}"));
        line.session.path = path;
        line.session.created_at = Micros(100 + i64::try_from(i).unwrap());
        let parity = if i < 2 { "low" } else { "high" };
        line.session.labels.insert("half".to_owned(), parity.to_owned());
        meta.create_session(line.to_create()).await.unwrap();
    }
    let all = SessionQuery { limit: 10, ..SessionQuery::default() };
    let labels = |pairs: &[(&str, &str)]| {
        let labels = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        SessionQuery { labels, ..all.clone() }
    };
    assert_eq!(ids(&database, labels(&[("half", "low")])).await, ["s1", "s0"]);
    assert_eq!(ids(&database, labels(&[("half", "low"), ("env", "s0"), ("team", "blue")])).await, ["s0"]);
    assert_eq!(ids(&database, labels(&[("half", "low"), ("env", "s3")])).await, [""; 0]);
    // A key of one label with the value of another.
    assert_eq!(ids(&database, labels(&[("half", "blue")])).await, [""; 0]);
    let path = SessionQuery { path: Some(CompressionPath::Interactive), ..all.clone() };
    assert_eq!(ids(&database, path).await, ["s3", "s1"]);
    let created =
        SessionQuery { created_min: Some(Micros(101)), created_max: Some(Micros(103)), ..all.clone() };
    assert_eq!(ids(&database, created).await, ["s2", "s1"]);
    let mut changed = Line::new("s1");
    changed.session.created_at = Micros(101);
    let change = SessionUpdate { at: Micros(5_000), ..update(&changed, "x") };
    meta.update_session(change).await.unwrap();
    let updated = SessionQuery { updated_min: Some(Micros(5_000)), ..all };
    assert_eq!(ids(&database, updated).await, ["s1"]);
}

async fn the_first_secret_stays(database: Database) {
    let other = database.another().await;
    let races = (0..8u8).map(|i| {
        let meta = if i.is_multiple_of(2) { database.meta.as_ref() } else { &other };
        meta.service_secret("window-id", [i; 32])
    });
    let secrets: Vec<_> = join_all(races).await.into_iter().map(Result::unwrap).collect();
    assert!(secrets.iter().all(|secret| *secret == secrets[0]), "{secrets:?}");
    assert_eq!(other.service_secret("window-id", [99; 32]).await.unwrap(), secrets[0]);
    assert_eq!(other.service_secret("another", [99; 32]).await.unwrap(), [99; 32]);
}

async fn a_store_without_a_schema_does_not_answer_a_ping(database: Database) {
    database.meta.ping().await.unwrap();
    let empty = match database.url() {
        None => Database::empty_sqlite().await,
        Some(_) => Database::empty_postgres().await.unwrap(),
    };
    assert_eq!(empty.meta.ping().await.unwrap_err().kind, ErrorKind::Internal);
    assert!(!empty.meta.migrate().await.unwrap().is_empty());
    empty.meta.ping().await.unwrap();
    assert_eq!(empty.meta.migrate().await.unwrap(), [0; 0]);
}

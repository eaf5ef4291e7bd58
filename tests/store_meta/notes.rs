//! Notes.

use crate::stores::{Database, Line, on_both_databases, soon};
use turnkeep::clock::Micros;
use turnkeep::limits::{NOTE_BYTES_MAX, NOTES_BYTES_MAX, NOTES_MAX};
use turnkeep::model::{
    BranchId, Note, RecordedState, StateKind, StateRecord, TenantId, Version, WindowState,
};
use turnkeep::store::MetaStore;
use turnkeep::store::meta::{CreateOutcome, NewSession, NoteOutcome, RebuiltRows, SessionKey};

on_both_databases![
    a_note_is_read_as_it_was_put_and_replaced_by_its_name,
    the_same_text_again_changes_nothing,
    a_session_has_no_more_notes_and_bytes_than_it_may,
    two_notes_at_a_time_are_not_one_too_many,
    a_session_from_another_begins_with_copies_of_its_notes,
    a_session_begins_with_the_state_that_it_is_given,
    notes_go_with_their_session,
    loaded_notes_are_as_those_that_were_put,
    of_tenants_none_sees_the_others_notes,
];

fn note(name: &str, text: &str, at: i64) -> Note {
    Note { name: name.to_owned(), text: text.to_owned(), updated_at: Micros(at) }
}

async fn put(meta: &dyn MetaStore, key: &SessionKey, note: &Note) {
    assert_eq!(meta.put_note(key, note).await.unwrap(), NoteOutcome::Put(note.clone()));
}

async fn names(meta: &dyn MetaStore, key: &SessionKey) -> Vec<String> {
    let mut names = meta.note_names(key).await.unwrap();
    names.sort_unstable();
    let notes = meta.notes(key).await.unwrap();
    assert_eq!(notes.into_iter().map(|note| note.name).collect::<Vec<_>>(), names);
    names
}

async fn a_note_is_read_as_it_was_put_and_replaced_by_its_name(database: Database) {
    let meta = database.meta.as_ref();
    let line = Line::create(meta, "s").await;
    let other = Line::create(meta, "t").await;
    assert_eq!(meta.notes(&line.key).await.unwrap(), []);
    let (zeta, alpha) = (note("Zeta", "line\n\"ü\" \u{1}'", 1), note("alpha ä", " 5433 ", 2));
    put(meta, &line.key, &zeta).await;
    put(meta, &line.key, &alpha).await;
    assert_eq!(meta.notes(&line.key).await.unwrap(), [zeta.clone(), alpha.clone()]);
    assert_eq!(meta.note(&line.key, "alpha ä").await.unwrap(), Some(alpha.clone()));
    let newer = note("Zeta", "other", 3);
    put(meta, &line.key, &newer).await;
    assert_eq!(meta.notes(&line.key).await.unwrap(), [newer, alpha.clone()]);
    assert_eq!(meta.note(&line.key, "zeta").await.unwrap(), None, "names are as they are spelled");
    assert_eq!(meta.note(&other.key, "Zeta").await.unwrap(), None);
    // The head is as it was: a note is no turn and changes no window.
    let head = meta.tip(&line.key, None).await.unwrap().unwrap().head;
    assert_eq!((head.version, head.window_revision, head.config_revision), (Version(0), 1, 1));
    assert!(meta.delete_note(&line.key, "Zeta").await.unwrap());
    assert!(!meta.delete_note(&line.key, "Zeta").await.unwrap());
    assert_eq!(meta.notes(&line.key).await.unwrap(), [alpha]);
}

async fn the_same_text_again_changes_nothing(database: Database) {
    let meta = database.meta.as_ref();
    let line = Line::create(meta, "s").await;
    let first = note("port", "5433", 1);
    put(meta, &line.key, &first).await;
    let again = meta.put_note(&line.key, &note("port", "5433", 2)).await.unwrap();
    assert_eq!(again, NoteOutcome::Put(first.clone()));
    assert_eq!(meta.notes(&line.key).await.unwrap(), [first]);
}

async fn a_session_has_no_more_notes_and_bytes_than_it_may(database: Database) {
    let meta = database.meta.as_ref();
    let (many, large) = (Line::create(meta, "many").await, Line::create(meta, "large").await);
    for number in 0..NOTES_MAX {
        put(meta, &many.key, &note(&format!("{number:03}"), "x", 1)).await;
    }
    let full = meta.put_note(&many.key, &note("one more", "x", 1)).await.unwrap();
    assert_eq!(full, NoteOutcome::Full { notes: NOTES_MAX as u64 + 1, bytes: NOTES_MAX as u64 + 1 });
    put(meta, &many.key, &note("000", "another", 2)).await;
    assert_eq!(names(meta, &many.key).await.len(), NOTES_MAX);
    let text = "ü".repeat(NOTE_BYTES_MAX / 2);
    let fitting = NOTES_BYTES_MAX / NOTE_BYTES_MAX;
    for number in 0..fitting {
        put(meta, &large.key, &note(&number.to_string(), &text, 1)).await;
    }
    let full = meta.put_note(&large.key, &note("a", "x", 1)).await.unwrap();
    assert_eq!(full, NoteOutcome::Full { notes: fitting as u64 + 1, bytes: NOTES_BYTES_MAX as u64 + 1 });
    put(meta, &large.key, &note("0", "less", 2)).await;
    put(meta, &large.key, &note("a", "x", 2)).await;
}

async fn two_notes_at_a_time_are_not_one_too_many(database: Database) {
    let meta = database.meta.as_ref();
    let line = Line::create(meta, "s").await;
    for number in 1..NOTES_MAX {
        put(meta, &line.key, &note(&format!("{number:03}"), "x", 1)).await;
    }
    let (a, b) = (note("a", "x", 1), note("b", "x", 1));
    let both = async { tokio::join!(meta.put_note(&line.key, &a), meta.put_note(&line.key, &b)) };
    let (a, b) = soon("two notes", both).await;
    let outcomes = [a.unwrap(), b.unwrap()];
    let kept = outcomes.iter().filter(|outcome| matches!(outcome, NoteOutcome::Put(_))).count();
    assert_eq!(kept, 1, "{outcomes:?}");
    assert_eq!(names(meta, &line.key).await.len(), NOTES_MAX);
}

async fn a_session_from_another_begins_with_copies_of_its_notes(database: Database) {
    let meta = database.meta.as_ref();
    let mut line = Line::create(meta, "s").await;
    line.append(meta, "r1").await;
    let (port, rule) = (note("port", "5433", 1), note("rule", "none", 2));
    put(meta, &line.key, &port).await;
    put(meta, &line.key, &rule).await;
    let fork = line.create_fork(meta, "fork").await;
    assert_eq!(meta.notes(&fork.key).await.unwrap(), [port.clone(), rule.clone()]);
    let fresh = Line::new("fresh");
    let source = Some((line.key.session.clone(), line.branch.id.clone()));
    let new = NewSession { source: source.clone(), ..fresh.to_create() };
    assert_eq!(meta.create_session(new).await.unwrap(), CreateOutcome::Created);
    assert_eq!(meta.notes(&fresh.key).await.unwrap(), [port.clone(), rule.clone()]);
    // They are its own from then on.
    put(meta, &fork.key, &note("port", "1", 3)).await;
    meta.delete_note(&fresh.key, "rule").await.unwrap();
    assert_eq!(meta.notes(&line.key).await.unwrap(), [port.clone(), rule]);
    assert_eq!(meta.notes(&fresh.key).await.unwrap(), [port]);
    // A session that is not made gets none, and loses none.
    let taken = NewSession { source, ..fresh.to_create() };
    assert_eq!(meta.create_session(taken).await.unwrap(), CreateOutcome::Taken { deleted: false });
    assert_eq!(names(meta, &fresh.key).await, ["port"]);
}

async fn a_session_begins_with_the_state_that_it_is_given(database: Database) {
    let meta = database.meta.as_ref();
    let line = Line::new("s");
    let state = RecordedState {
        branch: line.branch.id.clone(),
        number: 1,
        version: Version(0),
        kind: StateKind::Pins,
        state: WindowState::default(),
        record: StateRecord { tokens_after: 7, ..StateRecord::default() },
        created_at: Micros(5),
    };
    let new = NewSession { window_state: (1, 7), opening: Some(state.clone()), ..line.to_create() };
    assert_eq!(meta.create_session(new).await.unwrap(), CreateOutcome::Created);
    let found = meta.window_states(&line.branch_key(), Version(0), u64::MAX, 9).await.unwrap();
    assert_eq!(found, [state]);
    let head = meta.tip(&line.key, None).await.unwrap().unwrap().head;
    assert_eq!((head.window_state, head.window_offset), (1, 7));
}

async fn notes_go_with_their_session(database: Database) {
    let meta = database.meta.as_ref();
    let mut line = Line::create(meta, "s").await;
    line.append(meta, "r1").await;
    put(meta, &line.key, &note("port", "5433", 1)).await;
    let fork = line.create_fork(meta, "fork").await;
    meta.delete_session(&line.key, false, Micros(9), Micros(9)).await.unwrap();
    assert_eq!((names(meta, &line.key).await, meta.note(&line.key, "port").await.unwrap()), (vec![], None));
    assert_eq!(names(meta, &fork.key).await, ["port"], "a fork's are its own");
    let late = meta.put_note(&line.key, &note("late", "x", 9)).await.unwrap();
    assert_eq!(late, NoteOutcome::SessionGone);
    meta.delete_session(&fork.key, true, Micros(9), Micros(9)).await.unwrap();
    assert_eq!(database.rows("SELECT name FROM note").await, [[""; 1]; 0]);
}

async fn loaded_notes_are_as_those_that_were_put(database: Database) {
    let meta = database.meta.as_ref();
    let line = Line::create(meta, "s").await;
    let notes = vec![note("a", "x ü", 1), note("b", "y", 2)];
    for note in &notes {
        put(meta, &line.key, note).await;
    }
    let head = meta.tip(&line.key, None).await.unwrap().unwrap().head;
    let other = Line::new("other");
    let loaded = RebuiltRows {
        tenant: Some(line.key.tenant.clone()),
        session: Some((other.session, head, vec![])),
        notes: notes.clone(),
        ..RebuiltRows::default()
    };
    meta.load(loaded).await.unwrap();
    assert_eq!(meta.notes(&other.key).await.unwrap(), notes);
    let rows =
        database.rows("SELECT count(*), count(DISTINCT session_id) FROM note GROUP BY name, bytes").await;
    assert_eq!(rows, [["2", "2"], ["2", "2"]]);
}

async fn of_tenants_none_sees_the_others_notes(database: Database) {
    let meta = database.meta.as_ref();
    let line = Line::create(meta, "s").await;
    put(meta, &line.key, &note("port", "5433", 1)).await;
    let foreign = SessionKey { tenant: TenantId::parse("other").unwrap(), ..line.key.clone() };
    assert_eq!(names(meta, &foreign).await, [] as [&str; 0]);
    assert_eq!(meta.note(&foreign, "port").await.unwrap(), None);
    assert!(!meta.delete_note(&foreign, "port").await.unwrap());
    assert_eq!(meta.put_note(&foreign, &note("port", "1", 2)).await.unwrap(), NoteOutcome::SessionGone);
    let fork = NewSession {
        tenant: foreign.tenant.clone(),
        source: Some((line.key.session.clone(), BranchId::parse("s-main").unwrap())),
        ..Line::new("t").to_create()
    };
    assert_eq!(meta.create_session(fork).await.unwrap(), CreateOutcome::SourceGone);
    assert_eq!(names(meta, &line.key).await, ["port"]);
}

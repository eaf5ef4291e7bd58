//! Tool outputs.

use crate::stores::{Database, Line, generation, on_both_databases, polled, soon, tenant};
use bytes::Bytes;
use turnkeep::clock::Micros;
use turnkeep::codec::digest;
use turnkeep::model::{ChangedEntry, DeletionState, Output, OutputId, Seq, Version};
use turnkeep::store::meta::{BranchKey, NewOutput, NewTurn, TurnEntries};
use turnkeep::store::{ErrorKind, MetaStore};

on_both_databases![
    an_output_is_read_as_it_was_added,
    an_output_that_is_held_has_its_bytes_and_no_key,
    an_output_is_added_once_and_to_live_sessions_only,
    outputs_are_listed_the_newest_first_in_pages,
    a_fork_has_the_outputs_of_before_it_began,
    a_rewound_output_stays_with_its_session,
    outputs_go_with_their_branch,
    an_output_of_a_fenced_generation_is_not_added,
    a_turn_does_not_wait_for_an_output,
    of_tenants_none_sees_the_others_outputs,
];

fn id(n: u64) -> OutputId {
    OutputId::parse(&format!("{n:032x}")).unwrap()
}

/// An output with a value of its own in every field, as it is read back.
fn output(n: u64, line: &Line) -> Output {
    Output {
        id: id(n),
        branch: line.branch.id.clone(),
        version: line.tip.turn.version,
        tool_call_id: format!("call-{n}"),
        tool_name: "grep".to_owned(),
        content_type: "text/plain; charset=utf-8".to_owned(),
        bytes: 1_000 + n,
        characters: 900 + n,
        lines: 80 + n,
        sha256: digest::sha256(&n.to_be_bytes()),
        key: Some(format!("blob-{n}")),
        stored_bytes: 500 + n,
        tail_at: 400 + n,
        format: 1,
        created_at: Micros(7),
        entry: (n % 2 == 1).then(|| ChangedEntry {
            stored: digest::sha256(format!("stored {n}").as_bytes()),
            received: digest::sha256(format!("received {n}").as_bytes()),
        }),
    }
}

async fn new(database: &Database, n: u64, line: &Line) -> NewOutput {
    NewOutput {
        key: line.key.clone(),
        output: output(n, line),
        held: None,
        journal_bytes_max: 1 << 30,
        generation: generation(database.meta.as_ref()).await,
    }
}

async fn add(database: &Database, n: u64, line: &Line) -> Output {
    let new = new(database, n, line).await;
    database.meta.add_output(new).await.unwrap().unwrap()
}

async fn an_output_is_read_as_it_was_added(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    line.append(meta.as_ref(), "r1").await;
    let elsewhere = Line::create(meta.as_ref(), "elsewhere").await;
    // Branch and version are what the session has when it is written.
    let mut new = new(&database, 1, &line).await;
    (new.output.branch, new.output.version) = (elsewhere.branch.id.clone(), Version(77));
    let added = meta.add_output(new).await.unwrap().unwrap();
    assert_eq!(added, output(1, &line));
    assert_eq!(meta.output(&line.key, &id(1)).await.unwrap(), Some(added.clone()));
    assert_eq!(meta.outputs_of_branch(&line.branch_key(), None, 9).await.unwrap(), [added]);
    assert_eq!(meta.held_output(&tenant(), &id(1)).await.unwrap(), None);
    // Neither absent nor another session's.
    assert_eq!(meta.output(&line.key, &id(2)).await.unwrap(), None);
    assert_eq!(meta.output(&elsewhere.key, &id(1)).await.unwrap(), None);
    assert_eq!(meta.outputs(&elsewhere.key, None, 9).await.unwrap(), []);
    assert_eq!(meta.outputs_of_branch(&elsewhere.branch_key(), None, 9).await.unwrap(), []);
}

async fn an_output_that_is_held_has_its_bytes_and_no_key(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    let body: Bytes = (0..=255).cycle().take(100_000).collect::<Vec<u8>>().into();
    for n in [1, 2] {
        let mut new = new(&database, n, &line).await;
        new.output.key = None;
        new.held = Some(body.clone());
        let added = meta.add_output(new).await.unwrap().unwrap();
        assert_eq!(added, Output { key: None, ..output(n, &line) });
        assert_eq!(meta.output(&line.key, &id(n)).await.unwrap(), Some(added));
        assert_eq!(meta.held_output(&tenant(), &id(n)).await.unwrap(), Some(body.clone()));
    }
    meta.delete_session(&line.key, false, Micros(10), Micros(20)).await.unwrap();
    assert_eq!(meta.held_output(&tenant(), &id(1)).await.unwrap(), None);
    assert_eq!(database.rows("SELECT output_id FROM output_held").await, [[""; 1]; 0]);
    assert_eq!(meta.due_tombstones(Micros(20), None, 9).await.unwrap(), []);
}

async fn an_output_is_added_once_and_to_live_sessions_only(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    let new = new(&database, 1, &line).await;
    meta.add_output(new.clone()).await.unwrap().unwrap();
    let before = database.dump().await;
    assert_eq!(meta.add_output(new.clone()).await.unwrap_err().kind, ErrorKind::Duplicate);
    let mut nobodys = new.clone();
    nobodys.key = Line::new("nobody").key;
    nobodys.output.id = id(2);
    assert_eq!(meta.add_output(nobodys).await.unwrap(), None);
    assert_eq!(database.dump().await, before);
    meta.delete_session(&line.key, false, Micros(10), Micros(20)).await.unwrap();
    assert_eq!(meta.add_output(new).await.unwrap(), None);
}

async fn outputs_are_listed_the_newest_first_in_pages(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    for n in [3, 0xff, 1, 0xa0, 2] {
        add(&database, n, &line).await;
    }
    let ids = async |before: Option<u64>, limit| {
        let before = before.map(id);
        let page = meta.outputs(&line.key, before.as_ref(), limit).await.unwrap();
        page.into_iter().map(|output| output.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(None, 9).await, [0xff, 0xa0, 3, 2, 1].map(id));
    assert_eq!(ids(None, 2).await, [0xff, 0xa0].map(id));
    assert_eq!(ids(Some(0xa0), 2).await, [3, 2].map(id));
    assert_eq!(ids(Some(1), 2).await, []);
    let page = meta.outputs_of_branch(&line.branch_key(), Some(&id(2)), 2).await.unwrap();
    assert_eq!(page, [output(3, &line), output(0xa0, &line)]);
}

async fn a_fork_has_the_outputs_of_before_it_began(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    let before = add(&database, 1, &line).await;
    line.append(meta.as_ref(), "r1").await;
    // Its preview can only be in a turn that the fork does not have.
    add(&database, 2, &line).await;
    let mut fork = line.create_fork(meta.as_ref(), "fork").await;
    let own = add(&database, 3, &fork).await;
    assert_eq!(own.branch, fork.branch.id);
    fork.append(meta.as_ref(), "r1").await;
    let second = fork.create_fork(meta.as_ref(), "second").await;
    let ids = async |line: &Line| {
        let outputs = meta.outputs(&line.key, None, 9).await.unwrap();
        for output in &outputs {
            assert_eq!(meta.output(&line.key, &output.id).await.unwrap().as_ref(), Some(output));
        }
        outputs.into_iter().map(|output| output.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(&line).await, [2, 1].map(id));
    assert_eq!(ids(&fork).await, [3, 1].map(id));
    assert_eq!(ids(&second).await, [3, 1].map(id));
    assert_eq!(meta.output(&fork.key, &id(2)).await.unwrap(), None);
    assert_eq!(meta.output(&line.key, &id(3)).await.unwrap(), None);
    // What a fork reaches stays, by either name.
    meta.delete_session(&line.key, false, Micros(10), Micros(20)).await.unwrap();
    assert_eq!(ids(&fork).await, [3, 1].map(id));
    assert_eq!(meta.output(&line.key, &id(1)).await.unwrap(), Some(before));
    meta.deletion_in_ledger(&line.key).await.unwrap();
    meta.advance_deletion(&line.key, Micros(30), Micros(40)).await.unwrap();
    let receipt = meta.deletion(&line.key).await.unwrap().unwrap();
    assert_eq!(receipt.state, DeletionState::RetainedByForks);
    // The last that reaches it takes it along.
    for fork in [&fork, &second] {
        meta.delete_session(&fork.key, false, Micros(50), Micros(60)).await.unwrap();
    }
    assert_eq!(meta.output(&line.key, &id(1)).await.unwrap(), None, "at once");
    for line in [&line, &fork] {
        meta.advance_deletion(&line.key, Micros(50), Micros(60)).await.unwrap();
    }
    assert_eq!(meta.output(&line.key, &id(1)).await.unwrap(), None);
    let mut keys: Vec<_> =
        meta.due_tombstones(Micros(60), None, 9).await.unwrap().into_iter().map(|due| due.key).collect();
    keys.sort();
    assert_eq!(keys, ["blob-1", "blob-2", "blob-3"]);
}

async fn a_rewound_output_stays_with_its_session(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    let base = line.tip.clone();
    line.append(meta.as_ref(), "r1").await;
    let rewound = add(&database, 1, &line).await;
    let mut branch = line.branch.clone();
    branch.id = crate::stores::branch_id("second");
    branch.parent = Some(line.branch.id.clone());
    (branch.base_version, branch.first_version) = (base.turn.version, line.tip.turn.version.next());
    let mut new = line.turn("rewind");
    new.turn.turn.branch = branch.id.clone();
    (new.turn.turn.first_seq, new.turn.turn.last_seq) = (Seq(1), Seq(0));
    new.entries = TurnEntries::None;
    new.branch = Some(branch.clone());
    meta.commit_turn(NewTurn { ..new.clone() }).await.unwrap();
    assert_eq!(meta.output(&line.key, &id(1)).await.unwrap(), Some(rewound));
    let (old, new) = (id(1), add(&database, 2, &line).await);
    assert_eq!(new.branch, branch.id);
    let listed = meta.outputs(&line.key, None, 9).await.unwrap();
    assert_eq!(listed.into_iter().map(|output| output.id).collect::<Vec<_>>(), [new.id, old]);
}

async fn outputs_go_with_their_branch(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    let other = Line::create(meta.as_ref(), "other").await;
    add(&database, 1, &line).await;
    let kept = add(&database, 2, &other).await;
    let keys = ["blob-1", "blob-2", "blob-3"].map(str::to_owned);
    assert_eq!(meta.referenced(&keys).await.unwrap(), keys[..2]);
    meta.delete_session(&line.key, false, Micros(10), Micros(20)).await.unwrap();
    assert_eq!(meta.output(&line.key, &id(1)).await.unwrap(), None);
    assert_eq!(meta.outputs(&line.key, None, 9).await.unwrap(), []);
    let due = meta.due_tombstones(Micros(20), None, 9).await.unwrap();
    let due: Vec<_> = due.iter().map(|due| (due.key.as_str(), due.session.clone(), due.not_before)).collect();
    assert_eq!(due, [("blob-1", line.key.session.clone(), Micros(20))]);
    assert_eq!(meta.referenced(&keys).await.unwrap(), keys[..2]);
    assert_eq!(meta.output(&other.key, &id(2)).await.unwrap(), Some(kept));
}

async fn an_output_of_a_fenced_generation_is_not_added(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    let new = new(&database, 1, &line).await;
    meta.fence_generation(new.generation, Micros(5)).await.unwrap();
    let before = database.dump().await;
    assert_eq!(meta.add_output(new).await.unwrap_err().kind, ErrorKind::Fenced);
    assert_eq!(database.dump().await, before);
}

/// A client that goes away in the middle of it leaves no lock either.
async fn a_turn_does_not_wait_for_an_output(database: Database) {
    let meta = &database.meta;
    let mut line = Line::create(meta.as_ref(), "s").await;
    for n in 0..20 {
        let new = new(&database, n, &line).await;
        polled(usize::try_from(n).unwrap(), meta.add_output(new)).await;
    }
    soon("a turn", line.append(meta.as_ref(), "r1")).await;
    let last = new(&database, 99, &line).await;
    soon("an output", meta.add_output(last)).await.unwrap().unwrap();
}

async fn of_tenants_none_sees_the_others_outputs(database: Database) {
    let meta = &database.meta;
    let line = Line::create(meta.as_ref(), "s").await;
    add(&database, 1, &line).await;
    let mut foreign = line.key.clone();
    foreign.tenant = turnkeep::model::TenantId::parse("foreign").unwrap();
    assert_eq!(meta.output(&foreign, &id(1)).await.unwrap(), None);
    assert_eq!(meta.outputs(&foreign, None, 9).await.unwrap(), []);
    assert_eq!(meta.held_output(&foreign.tenant, &id(1)).await.unwrap(), None);
    let branch = BranchKey { tenant: foreign.tenant.clone(), branch: line.branch.id.clone() };
    assert_eq!(meta.outputs_of_branch(&branch, None, 9).await.unwrap(), []);
}

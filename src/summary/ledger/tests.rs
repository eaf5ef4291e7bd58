use super::*;
use crate::model::WireFormat;
use proptest::prelude::*;
use serde_json::json;

/// A call and its result as two entries of the Anthropic format.
fn step(id: &str, tool: &str, input: &serde_json::Value, result: &str, is_error: bool) -> [String; 2] {
    [
        json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": tool, "input": input}]}),
        json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": id, "content": result, "is_error": is_error}
        ]}),
    ]
    .map(|entry| entry.to_string())
}

fn said(payloads: &[String]) -> Vec<Said<'_>> {
    let numbered = payloads.iter().zip(1..);
    numbered
        .map(|(payload, seq)| Said::of(WireFormat::AnthropicMessages, Seq(seq), payload.as_bytes()))
        .collect()
}

fn ledger(payloads: &[String]) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.absorb(&said(payloads));
    ledger
}

fn words(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

fn states(ledger: &Ledger) -> Vec<(&str, FileState)> {
    ledger.files().map(|file| (file.path.as_str(), file.state.clone())).collect()
}

/// Tool, arguments, and what becomes of files.
type Case<'c> = (&'c str, serde_json::Value, &'c [(&'c str, FileState)]);

#[test]
#[rustfmt::skip]
fn the_tools_of_each_agent_are_known() {
    use FileState::{Deleted, Edited, MovedTo, Read, Written};
    let moved = |to: &str| MovedTo(to.to_owned());
    let cases: &[Case<'_>] = &[
        ("Read", json!({"file_path": "/a.rs", "limit": 3}), &[("/a.rs", Read)]),
        ("Write", json!({"file_path": "/a.rs", "content": "x"}), &[("/a.rs", Written)]),
        ("Edit", json!({"file_path": "/a.rs", "old_string": "x", "new_string": "y"}), &[("/a.rs", Edited)]),
        ("MultiEdit", json!({"file_path": "/a.rs", "edits": []}), &[("/a.rs", Edited)]),
        ("NotebookEdit", json!({"notebook_path": "/a.ipynb", "new_source": "x"}), &[("/a.ipynb", Edited)]),
        ("Glob", json!({"pattern": "*.rs", "path": "/src"}), &[]),
        ("Grep", json!({"pattern": "x", "path": "/src/a.rs"}), &[]),
        ("LS", json!({"path": "/src"}), &[]),
        ("TodoWrite", json!({"todos": []}), &[]),
        ("Bash", json!({"command": "rm /a.rs"}), &[("/a.rs", Deleted)]),
        ("exec_command", json!({"cmd": "cat a.rs", "workdir": "/w"}), &[("/w/a.rs", Read)]),
        ("shell", json!({"command": ["bash", "-lc", "echo x > a"], "workdir": "/w"}), &[("/w/a", Written)]),
        ("apply_patch", json!({"input": "*** Begin Patch\n*** Add File: a\n*** End Patch"}), &[("a", Written)]),
        ("str_replace_editor", json!({"command": "view", "path": "/a"}), &[("/a", Read)]),
        ("str_replace_based_edit_tool", json!({"command": "create", "path": "/a", "file_text": ""}), &[("/a", Written)]),
        ("str_replace_editor", json!({"command": "str_replace", "path": "/a", "old_str": "x"}), &[("/a", Edited)]),
        ("run_shell_command", json!({"command": "touch a"}), &[("a", Written)]),
        ("write_file", json!({"file_path": "a", "content": ""}), &[("a", Written)]),
        ("replace", json!({"file_path": "a", "old_string": "", "new_string": ""}), &[("a", Edited)]),
        ("read_many_files", json!({"paths": ["a", "b"]}), &[("b", Read), ("a", Read)]),
        ("write_to_file", json!({"path": "a", "content": ""}), &[("a", Written)]),
        ("delete_file", json!({"target_file": "a"}), &[("a", Deleted)]),
        ("move_file", json!({"source": "a", "destination": "b"}), &[("b", Written), ("a", moved("b"))]),
        ("mcp__fs__edit_file", json!({"path": "a", "edits": []}), &[("a", Edited)]),
        ("create_directory", json!({"path": "a"}), &[]),
        ("frobnicate", json!({"filename": "a"}), &[("a", Read)]),
        ("frobnicate", json!({"filename": "a", "content": "x"}), &[("a", Edited)]),
        ("frobnicate", json!({"x": 1}), &[]),
    ];
    for (tool, input, expected) in cases {
        let ledger = ledger(&step("i", tool, input, "fine", false));
        assert_eq!(states(&ledger), *expected, "{tool} {input}");
    }
}

#[test]
fn a_script_that_calls_tools_tells_what_they_do() {
    let script = r#"const p = "*** Begin Patch\n*** Update File: /w/a.rs\n@@\n-x\n+\"y\"\n*** End Patch";
await tools.apply_patch(p);
const r = await tools.exec_command({cmd:"cat 'b.rs'","workdir":"/w"}); text(r.output)"#;
    let call =
        json!({"type": "custom_tool_call", "call_id": "c", "name": "exec", "input": script}).to_string();
    let output =
        json!({"type": "custom_tool_call_output", "call_id": "c", "output": "Script completed\nOutput:\n"});
    let output = output.to_string();
    let mut ledger = Ledger::default();
    for (payload, seq) in [(&call, 1), (&output, 2)] {
        ledger.absorb([&Said::of(WireFormat::OpenaiResponses, Seq(seq), payload.as_bytes())]);
    }
    assert_eq!(states(&ledger), [("/w/b.rs", FileState::Read), ("/w/a.rs", FileState::Edited)]);
}

#[test]
fn the_last_state_of_a_file_stands_and_a_failure_changes_nothing() {
    let write = json!({"file_path": "/a", "content": "x"});
    let read = json!({"file_path": "/a"});
    let payloads = [
        step("1", "Write", &write, "ok", false),
        step("2", "Read", &read, "x", false),
        step(
            "3",
            "Edit",
            &json!({"file_path": "/b", "old_string": "x"}),
            "<tool_use_error>no</tool_use_error>",
            true,
        ),
        step("4", "Bash", &json!({"command": "rm /c && cargo test"}), "Exit code 101\nboom", true),
        step("5", "Bash", &json!({"command": "rm /d"}), "Exit code 1\nno such file", true),
    ]
    .concat();
    let record = |path: &str, state, seq, is_unsure| FileRecord {
        path: path.to_owned(),
        state,
        seq: Seq(seq),
        is_unsure,
    };
    assert_eq!(
        ledger(&payloads).files().cloned().collect::<Vec<_>>(),
        [record("/c", FileState::Deleted, 7, true), record("/a", FileState::Written, 1, false)]
    );
}

#[test]
fn of_parallel_calls_the_last_one_made_stands_whichever_is_answered_last() {
    let [write, written] = step("1", "Write", &json!({"file_path": "/a", "content": "x"}), "ok", false);
    let [remove, removed] = step("2", "Bash", &json!({"command": "rm /a"}), "", false);
    for results in [[&written, &removed], [&removed, &written]] {
        let payloads = [&write, &remove, results[0], results[1]].map(String::clone);
        assert_eq!(states(&ledger(&payloads)), [("/a", FileState::Deleted)]);
    }
}

#[test]
fn commands_keep_their_last_outcome_and_running_ones_get_theirs_later() {
    let run = json!({"cmd": "cargo test"});
    let failed = "Process exited with code 101\nOutput:\ntest result: FAILED. 3 passed; 2 failed; 0 ignored";
    let running = "Process running with session ID 7\nOutput:\n";
    let done = "Process exited with code 0\nOutput:\ntest result: ok. 5 passed; 0 failed; 0 ignored";
    let payloads = [
        step("1", "exec_command", &run, failed, false),
        step("2", "exec_command", &json!({"cmd": "ls"}), "x", false),
        step("3", "exec_command", &run, running, false),
        step("4", "write_stdin", &json!({"session_id": 7, "chars": ""}), done, false),
    ]
    .concat();
    let tests = TestCounts { passed: 5, failed: 0, are_packages: false };
    assert_eq!(
        ledger(&payloads).commands().cloned().collect::<Vec<_>>(),
        [CommandRecord {
            command: "cargo test".to_owned(),
            seq: Seq(5),
            ending: Ending::Exited,
            tests: Some(tests),
            times: 2
        }]
    );
}

#[test]
fn a_name_that_a_running_command_makes_is_told_when_it_ends() {
    let running = "Process running with session ID 7\nOutput:\n";
    let done = "Process exited with code 0\nOutput:\n[main 8b4d61d] x\n 1 file changed";
    let payloads = [
        step("1", "exec_command", &json!({"cmd": "git commit -m x"}), running, false),
        step("2", "write_stdin", &json!({"session_id": 7, "chars": ""}), done, false),
    ]
    .concat();
    let minted = Minted { what: "commit".to_owned(), name: "8b4d61d".to_owned(), seq: Seq(1) };
    assert_eq!(ledger(&payloads).minted().collect::<Vec<_>>(), [&minted]);
}

#[test]
fn new_names_and_calls_without_a_result_are_told() {
    let commit = json!({"command": "git checkout -b feat/x && git commit -m 'x'"});
    let mut payloads = [
        step("1", "Bash", &commit, "Switched\n[feat/x 8b4d61d] x\n 1 file changed", false),
        step(
            "2",
            "Bash",
            &json!({"command": "gh pr create --fill"}),
            "https://github.com/a/b/pull/31\n",
            false,
        ),
        step(
            "3",
            "mcp__linear__create_issue",
            &json!({"title": "x"}),
            r#"{"id":"u","identifier":"ENT-9"}"#,
            false,
        ),
    ]
    .concat();
    payloads.push(step("4", "Write", &json!({"file_path": "/a", "content": ""}), "", false)[0].clone());
    let ledger = ledger(&payloads);
    let minted: Vec<_> = ledger.minted().map(|minted| (minted.what.as_str(), minted.name.as_str())).collect();
    assert_eq!(
        minted,
        [
            ("create_issue", "ENT-9"),
            ("pull request", "https://github.com/a/b/pull/31"),
            ("commit", "8b4d61d"),
            ("branch", "feat/x"),
        ]
    );
    assert_eq!(ledger.unanswered().collect::<Vec<_>>(), [("Write", Seq(7))]);
    let text = ledger.render(1_000, &words);
    assert_eq!(
        text,
        "Made:\n- create_issue: ENT-9 [5]\n- pull request: https://github.com/a/b/pull/31 [3]\n- commit: 8b4d61d [1]\n\
         - branch: feat/x [1]\nCommands run, newest first:\n- gh pr create --fill: ok [3]\n- git checkout -b feat/x && \
         git commit -m 'x': ok [1]\nCalls without a result:\n- Write [7]\n"
    );
}

fn any_step() -> impl Strategy<Value = Vec<String>> {
    let path = "[ab]/[a-e]\\.rs";
    let input = prop_oneof![
        path.prop_map(|path| ("Read", json!({"file_path": path}))),
        path.prop_map(|path| ("Write", json!({"file_path": path, "content": ""}))),
        path.prop_map(|path| ("Edit", json!({"file_path": path, "old_string": ""}))),
        (path, path).prop_map(|(from, to)| ("Bash", json!({"command": format!("mv {from} {to} && make")}))),
        "\\PC{0,40}|[a-z >|&;'\"$()\n#<-]{0,60}".prop_map(|line| ("Bash", json!({"command": line}))),
        "\\PC{0,20}".prop_map(|text| ("mcp__x__create_thing", json!({"title": text}))),
    ];
    let result = prop_oneof![
        Just("ok".to_owned()),
        Just("Exit code 1\nboom".to_owned()),
        Just("[main 8b4d61d] x".to_owned()),
        "\\PC{0,60}",
    ];
    (input, result, any::<bool>(), "[a-d]", 0_u8..8).prop_map(
        |((tool, input), result, is_error, id, parts)| {
            let [call, result] = step(&id, tool, &input, &result, is_error);
            match parts {
                0 => vec![call],
                1 => vec![result],
                _ => vec![call, result],
            }
        },
    )
}

proptest! {
    #[test]
    fn it_does_not_matter_where_entries_are_divided_or_kept_between(
        steps in prop::collection::vec(any_step(), 0..30), cuts in prop::collection::vec(1_usize..7, 0..30),
    ) {
        let payloads = steps.concat();
        let entries = said(&payloads);
        let mut whole = Ledger::default();
        whole.absorb(&entries);
        let mut pieces = Ledger::default();
        let mut rest = entries.as_slice();
        for cut in cuts.into_iter().chain([usize::MAX]) {
            let (piece, after) = rest.split_at(cut.min(rest.len()));
            pieces.absorb(piece);
            let stored = serde_json::to_string(&pieces).unwrap();
            pieces = serde_json::from_str(&stored).unwrap();
            rest = after;
        }
        prop_assert_eq!(&pieces, &whole);
        prop_assert_eq!(pieces.render(500, &words), whole.render(500, &words));
    }

    #[test]
    fn a_rendering_keeps_to_its_budget(steps in prop::collection::vec(any_step(), 0..30), budget in 0_u64..200) {
        prop_assert!(words(&ledger(&steps.concat()).render(budget, &words)) <= budget);
    }

    #[test]
    fn any_arguments_have_an_effect_or_none(tool in "\\PC{0,12}|Bash|exec|apply_patch", arguments in "\\PC{0,80}|\\{\"(cmd|command|path|input)\":\"?[^\"]{0,40}\"?\\}") {
        let _ = effects(&tool, &arguments);
    }
}

#[test]
fn a_ledger_is_bounded_and_forgets_what_was_only_read_first() {
    let mut ledger = Ledger::default();
    ledger.touch("/kept".to_owned(), FileState::Written, Seq(1), false);
    for i in 0..2 * LEDGER_FILES_MAX as u64 {
        ledger.touch(format!("/{i}"), FileState::Read, Seq(i + 2), false);
        ledger.ran(&format!("make {i}"), Seq(i + 2), Ending::Done, None);
        ledger.mint("commit".to_owned(), format!("{i:040x}"), Seq(i + 2));
        let call = Invocation { id: "c".into(), name: "Bash".into(), arguments: "{}".into() };
        ledger.call(&call, Seq(i + 2));
    }
    assert_eq!(ledger.unanswered().map(|(_, seq)| seq.0).next(), Some(1_001 - LEDGER_PENDING_MAX as u64 + 1));
    assert_eq!(
        (ledger.files.len(), ledger.commands.len(), ledger.minted.len()),
        (LEDGER_FILES_MAX, LEDGER_COMMANDS_MAX, LEDGER_MINTED_MAX)
    );
    assert_eq!(ledger.forgotten, [501, 900, 800]);
    assert!(ledger.files().any(|file| file.path == "/kept"));
}

//! What is printed where, and how far.

use crate::backends::{Backend, on_embedded_backend};
use crate::serve;
use serde_json::{Value, json};
use std::fs;
use std::process::Stdio;

on_embedded_backend!(
    what_a_file_says_does_nothing_to_a_terminal,
    as_many_turns_are_shown_as_are_asked_for,
    a_reader_that_has_read_enough_is_no_failure,
);

async fn what_a_file_says_does_nothing_to_a_terminal(backend: Backend) {
    let served = serve(&backend).await;
    let file = backend.data_dir().join("evil.jsonl");
    let message = json!({"type": "user", "uuid": "u1", "message": {"role": "user", "content": "hi"}});
    let unknown = json!({"type": "\u{1b}]0;title\u{7}", "uuid": "u2"});
    fs::write(&file, format!("{message}\n{unknown}\n")).unwrap();
    let file = file.to_str().unwrap();
    let ran = served.run(&["transcript", "import", file, "--source", "claude-code", "--session", "s"]);
    assert!(ran.status.success() && ran.stderr.contains("\\u{1b}]0;title\\u{7}"), "{:?}", ran.stderr);
    assert!(!ran.stderr.contains('\u{1b}'), "{:?}", ran.stderr);
    served.stop();
}

async fn as_many_turns_are_shown_as_are_asked_for(backend: Backend) {
    let served = serve(&backend).await;
    let roles = ["user", "assistant"].into_iter().cycle();
    let messages =
        roles.zip(0..1_002).map(|(role, number)| json!({"role": role, "content": number.to_string()}));
    let file = backend.data_dir().join("long.json");
    fs::write(&file, messages.collect::<Value>().to_string()).unwrap();
    let file = file.to_str().unwrap();
    served.run(&["transcript", "import", file, "--source", "openai-chat", "--session", "s"]).output();
    for (asked, shown) in [("0", 0), ("1", 1), ("1001", 1_001), ("65535", 1_002)] {
        let [session] =
            served.run(&["session", "show", "s", "--json", "--turns", asked]).json().try_into().unwrap();
        let turns = session["turns"].as_array().unwrap();
        let versions: Vec<_> = turns.iter().map(|turn| turn["version"].as_u64().unwrap()).collect();
        assert_eq!(versions, (1..=1_002).rev().take(shown).collect::<Vec<_>>(), "{asked}");
    }
    served.stop();
}

async fn a_reader_that_has_read_enough_is_no_failure(backend: Backend) {
    let served = serve(&backend).await;
    served.run(&["transcript", "import", crate::CONVERSATION, "--session", "s"]).output();
    for args in [&["transcript", "show", "s"][..], &["session", "list"], &["transcript", "export", "s"]] {
        let mut command = served.command(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(ended.status.success() && !said.contains("pipe"), "{args:?}: {said}");
    }
    let failure = served.run(&["transcript", "show", "none"]).failure();
    assert!(failure.contains("SESSION_NOT_FOUND"), "{failure}");
    served.stop();
}

//! The command line against a running service.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/command.rs"]
mod command;
#[path = "cli/growth.rs"]
mod growth;
#[path = "support/llm.rs"]
mod llm;
#[path = "cli/memory.rs"]
mod memory;
#[path = "cli/models.rs"]
mod models;
#[path = "cli/operate.rs"]
mod operate;
#[path = "cli/outputs.rs"]
mod outputs;
#[path = "support/recorded.rs"]
mod recorded;
#[path = "cli/terminal.rs"]
mod terminal;
#[path = "cli/windows.rs"]
mod windows;

use backends::{Backend, Pair, on_backend, on_embedded_backend};
use command::{Lines, Served};
use serde_json::{Value, json};
use std::fs;
use std::process::Stdio;

on_backend!(
    sqlite_local,
    SqliteLocal,
    sessions_are_listed_shown_forked_rewound_and_deleted,
    transcripts_are_imported_and_exported,
    a_replay_finds_no_difference,
    a_replay_goes_on_where_no_window_fits
);
on_backend!(
    postgres_s3,
    PostgresS3,
    sessions_are_listed_shown_forked_rewound_and_deleted,
    transcripts_are_imported_and_exported,
    a_replay_finds_no_difference,
    a_replay_goes_on_where_no_window_fits
);
on_embedded_backend!(
    a_transcript_is_shown_as_log_and_as_window,
    a_session_is_followed_as_it_grows,
    a_session_s_configuration_is_changed,
    a_file_that_is_cut_off_takes_no_session_s_id,
    what_a_replay_was_served_is_written,
    what_the_service_refuses_is_told_with_its_reason,
    tables_are_for_people,
);

const CONVERSATION: &str = "tests/data/readme/flaky-test.json";
const CLAUDE_CODE: &str = "tests/data/import/claude-code/grouping.jsonl";

/// The part of a value that members of `like` name.
fn part(value: &Value, like: &Value) -> Value {
    let names = like.as_object().unwrap().keys();
    names.map(|name| (name.clone(), value[name].clone())).collect::<serde_json::Map<_, _>>().into()
}

fn assert_has(value: &Value, like: &Value) {
    assert_eq!(part(value, like), *like);
}

/// Makes the schema, unless the service does.
fn migrate(backend: &Backend) {
    if matches!(backend.pair, Pair::PostgresLocal | Pair::PostgresS3) {
        command::run(&["migrate"], &backend.variables()).output();
    }
}

/// Starts a service for a backend.
async fn serve(backend: &Backend) -> Served {
    migrate(backend);
    let variables = backend.variables();
    Served::start(&variables, &["sweep.grace_seconds=0"]).await
}

async fn sessions_are_listed_shown_forked_rewound_and_deleted(backend: Backend) {
    let served = serve(&backend).await;
    assert_eq!(served.run(&["session", "list", "--json"]).json(), [Value::Null; 0]);
    let [imported] = served
        .run(&["transcript", "import", CONVERSATION, "--session", "flaky", "--json"])
        .json()
        .try_into()
        .unwrap();
    assert_eq!(
        imported,
        json!({
            "session": "sessions/flaky", "format": "anthropic-messages", "turns": 5, "entries": 7,
            "done": "new", "turns_added": 5,
        })
    );
    served.run(&["transcript", "import", CLAUDE_CODE, "--session", "other"]).output();

    let listed = served.run(&["session", "list", "--json"]).json();
    let names: Vec<_> = listed.iter().map(|session| session["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["sessions/other", "sessions/flaky"]);
    let flaky = json!({
        "name": "sessions/flaky", "format": "anthropic-messages", "path": "interactive", "version": 5, "head_seq": 7,
        "labels": {"import.source": "anthropic"}, "forked_from": null,
    });
    assert_has(&listed[1], &flaky);
    let [first] = served.run(&["session", "list", "--json", "--limit", "1"]).json().try_into().unwrap();
    assert_has(&first, &json!({"name": "sessions/other"}));
    let by_label = ["session", "list", "--json", "--label", "import.source=anthropic"];
    assert_eq!(served.run(&by_label).json(), [listed[1].clone()]);

    for name in ["flaky", "sessions/flaky"] {
        let [shown] =
            served.run(&["session", "show", name, "--json", "--turns", "2"]).json().try_into().unwrap();
        assert_has(&shown, &flaky);
        assert!(shown["preamble_tokens"].as_u64().unwrap() > 0);
        let [newest, before] = shown["turns"].as_array().unwrap().clone().try_into().unwrap();
        assert_has(&newest, &json!({"version": 5, "kind": "persist", "first_seq": 7, "last_seq": 7}));
        assert_has(&before, &json!({"version": 4, "kind": "persist", "first_seq": 6, "last_seq": 6}));
    }

    let fork =
        ["session", "fork", "flaky", "--version", "2", "--id", "again", "--label", "why=test", "--json"];
    let [forked] = served.run(&fork).json().try_into().unwrap();
    let again = json!({
        "name": "sessions/again", "version": 3, "head_seq": 4, "labels": {"why": "test"},
        "forked_from": {"session": "sessions/flaky", "version": 2},
    });
    assert_has(&forked, &again);
    let rewind = ["session", "rewind", "flaky", "--version", "3", "--expected-version", "5", "--json"];
    let [rewound] = served.run(&rewind).json().try_into().unwrap();
    assert_has(&rewound, &json!({"name": "sessions/flaky", "version": 6, "head_seq": 5}));
    let failure = served.run(&rewind).failure();
    assert!(failure.contains("VERSION_MISMATCH: session flaky has version 6, not 5"), "{failure}");

    let [deleted] = served.run(&["session", "delete", "flaky", "--json"]).json().try_into().unwrap();
    let retained =
        json!({"session": "sessions/flaky", "state": "retained-by-forks", "retained_by": ["sessions/again"]});
    assert_has(&deleted, &retained);
    let [deleted] =
        served.run(&["session", "delete", "again", "--include-forks", "--json"]).json().try_into().unwrap();
    assert_has(&deleted, &json!({"session": "sessions/again", "state": "pending", "retained_by": []}));
    let failure = served.run(&["session", "show", "again"]).failure();
    assert!(failure.contains("SESSION_NOT_FOUND: session again not found"), "{failure}");
    assert_eq!(served.run(&["session", "list", "--json"]).json().len(), 1);
    served.stop();
}

async fn transcripts_are_imported_and_exported(backend: Backend) {
    let served = serve(&backend).await;
    let imports = ["transcript", "import", CONVERSATION, CLAUDE_CODE, "--verbatim", "--json"];
    let imported = served.run(&imports).json();
    let names: Vec<_> =
        imported.iter().map(|session| session["session"].as_str().unwrap().to_owned()).collect();
    let versions = || served.run(&["session", "list", "--json"]).json();
    let before = versions();
    assert_eq!(before.len(), imported.len());
    for (again, mut first) in served.run(&imports).json().into_iter().zip(imported) {
        (first["done"], first["turns_added"]) = (json!("unchanged"), json!(0));
        assert_eq!(again, first);
    }
    assert_eq!(versions(), before, "and nothing has changed");

    for (name, file) in [(&names[0], CONVERSATION), (&names[1], CLAUDE_CODE)] {
        let exported = served.run(&["transcript", "export", name, "--verbatim"]);
        assert!(exported.stderr.contains("receipt"), "{}", exported.stderr);
        assert_eq!(exported.output().as_bytes(), fs::read(file).unwrap());
    }
    let messages: Value = serde_json::from_slice(&fs::read(CONVERSATION).unwrap()).unwrap();
    let messages = messages["messages"].as_array().unwrap();
    assert_eq!(served.run(&["transcript", "export", &names[0]]).json(), *messages);
    let output = backend.data_dir().join("messages.json");
    let array = ["transcript", "export", &names[0], "--array", "--output", output.to_str().unwrap()];
    assert_eq!(served.run(&array).output(), "");
    assert_eq!(serde_json::from_slice::<Vec<Value>>(&fs::read(&output).unwrap()).unwrap(), *messages);
    let range = ["transcript", "export", &names[0], "--at", "2", "--first", "3"];
    assert_eq!(served.run(&range).json().len(), 2);
    let failure = served.run(&["transcript", "import", "tests/data/none.json"]).failure();
    assert!(failure.contains("cannot read tests/data/none.json"), "{failure}");

    // A file that has grown continues its session.
    let grown = backend.data_dir().join("grown.jsonl");
    let lines: Vec<_> = (0..6)
        .map(|i| {
            let role = if i % 2 == 0 { "user" } else { "assistant" };
            json!({"role": role, "content": format!("message {i}")}).to_string() + "\n"
        })
        .collect();
    for (count, done) in [(2, "new"), (4, "continued"), (6, "continued")] {
        fs::write(&grown, lines[..count].concat()).unwrap();
        let import = ["transcript", "import", grown.to_str().unwrap(), "--source", "openai-chat", "--json"];
        let [told] = served.run(&import).json().try_into().unwrap();
        assert_has(&told, &json!({"turns": count, "done": done, "turns_added": 2}));
        assert_eq!(served.run(&["transcript", "export", "grown"]).output(), lines[..count].concat());
    }
    let before = served.run(&["session", "show", "grown", "--json"]).output();
    let import = ["transcript", "import", grown.to_str().unwrap(), "--source", "openai-chat"];
    fs::write(&grown, lines[..2].concat()).unwrap();
    served.run(&import).output();
    fs::write(&grown, &lines[1]).unwrap();
    let failure = served.run(&import).failure();
    assert!(failure.contains("sessions/grown goes on otherwise than the file"), "{failure}");
    assert_eq!(served.run(&["session", "show", "grown", "--json"]).output(), before);
    served.stop();
}

async fn a_session_s_configuration_is_changed(backend: Backend) {
    let served = serve(&backend).await;
    let import =
        ["transcript", "import", CONVERSATION, "--session", "sessions/flaky", "--context-window", "1000"];
    served.run(&import).output();
    let window = || served.run(&["transcript", "show", "flaky", "--window"]).stderr;
    assert!(window().contains("fits: yes"), "{}", window());
    assert!(window().contains("preamble: "), "{}", window());
    let update = |args: &[&str]| {
        let [told] = served
            .run(&[&["session", "update", "flaky", "--json"], args].concat())
            .json()
            .try_into()
            .unwrap();
        told
    };
    let told =
        update(&["--context-window", "200", "--max-output", "20", "--tokenizer", "o200k", "--model", "m"]);
    let profile =
        json!({"model": "m", "context_window_tokens": 200, "max_output_tokens": 20, "tokenizer": "o200k"});
    assert_has(&told, &profile);
    assert!(window().contains("WINDOW_CANNOT_FIT"), "{}", window());
    assert_has(&update(&["--max-output", "30"]), &json!({"model": "m", "max_output_tokens": 30}));
    // The limits of another model are its own, if it is known.
    let known = json!({"model": "gpt-4o", "context_window_tokens": 128_000, "max_output_tokens": 16_384});
    assert_has(&update(&["--model", "gpt-4o"]), &known);
    assert_has(&update(&["--model", "m", "--context-window", "200"]), &json!({"context_window_tokens": 200}));
    let limits = |image_pixels: u64, document_bytes: u64, images: Option<bool>| {
        json!({"image_bytes": 9000, "image_pixels": image_pixels, "document_bytes": document_bytes,
            "images": images, "documents": null})
    };
    assert_has(
        &update(&["--image-bytes", "9000"]),
        &json!({"model": "m", "media_limits": limits(8_000, 24_000_000, None)}),
    );
    let changed = update(&["--image-pixels", "700", "--document-bytes", "8000", "--images", "false"]);
    let limits = limits(700, 8_000, Some(false));
    assert_has(&changed, &json!({"max_output_tokens": 16_384, "media_limits": limits}));
    assert_has(&update(&["--pin-statements", "false"]), &json!({"pin_statements": false}));
    assert_has(&update(&["--pin-statements", "default"]), &json!({"pin_statements": null}));
    let told = update(&["--label", "a=1", "--label", "b=2", "--path", "batch"]);
    let labels = json!({"import.source": "anthropic", "a": "1", "b": "2"});
    assert_has(&told, &json!({"path": "batch", "labels": labels, "context_window_tokens": 200}));
    let told = update(&["--remove-label", "a", "--remove-label", "import.source", "--label", "b=3"]);
    assert_has(&told, &json!({"labels": {"b": "3"}}));
    let failure = served.run(&["session", "update", "flaky"]).failure();
    assert!(failure.contains("nothing to change"), "{failure}");
    let failure = served.run(&["session", "update", "flaky", "--profile", "none"]).failure();
    assert!(failure.contains("profile.model: is not a profile"), "{failure}");
    served.stop();
}

async fn a_file_that_is_cut_off_takes_no_session_s_id(backend: Backend) {
    let served = serve(&backend).await;
    let file = backend.data_dir().join("cut.json");
    fs::write(&file, r#"{"messages":[{"role":"user","content":"hi"},"#).unwrap();
    let failure = served.run(&["transcript", "import", file.to_str().unwrap()]).failure();
    let said =
        "the file is cut off: it ends at line 1, column 44, within the JSON value that begins at line 1";
    assert!(failure.contains(said), "{failure}");
    assert_eq!(served.run(&["session", "list", "--json"]).json().len(), 0);
    served.run(&["transcript", "import", file.to_str().unwrap(), "--source", "text"]).output();
    served.stop();
}

async fn a_replay_finds_no_difference(backend: Backend) {
    let served = serve(&backend).await;
    for verbatim in [false, true] {
        let mut args =
            vec!["replay", "--json", CONVERSATION, CLAUDE_CODE, "tests/data/import/codex/rollout.jsonl"];
        args.extend(verbatim.then_some("--verbatim"));
        let measured = served.run(&args).json();
        assert_eq!(measured.len(), 3);
        for file in measured {
            assert_eq!(file["differences"], json!([]));
            assert!(file["turns"].as_u64().unwrap() > 0 && file["bytes_stored"].as_u64().unwrap() > 0);
            assert!(file["persist_p99_ms"].as_f64().unwrap() >= file["persist_p50_ms"].as_f64().unwrap());
        }
        assert_eq!(served.run(&["session", "list", "--json"]).json().len(), 0, "nothing is kept");
    }
    served.run(&["replay", "--keep", CONVERSATION]).output();
    assert_eq!(served.run(&["session", "list", "--json"]).json().len(), 1);
    served.stop();
}

async fn a_replay_goes_on_where_no_window_fits(backend: Backend) {
    let served = serve(&backend).await;
    let step = |number: usize| {
        let id = format!("call_{number}");
        let call = json!({"id": id, "type": "function", "function": {"name": "shell", "arguments": "{}"}});
        let text = format!("{number}: {}", "lorem ipsum dolor ".repeat(100));
        [
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": id, "content": text}),
        ]
    };
    let mut messages = vec![json!({"role": "user", "content": "count"})];
    messages.extend((0..2).flat_map(step));
    // More than a window has room for, as long as it is the newest that the user said.
    messages.push(json!({"role": "user", "content": "all of this ".repeat(5_000)}));
    messages.extend((2..4).flat_map(step));
    messages.push(json!({"role": "user", "content": "and back"}));
    messages.extend((4..30).flat_map(step));
    let file = backend.data_dir().join("long.json");
    fs::write(&file, Value::from(messages).to_string()).unwrap();
    let windows = backend.data_dir().join("windows.jsonl");
    for (path, kind) in [("batch", "truncate"), ("interactive", "collapse")] {
        let [file, windows] = [&file, &windows].map(|file| file.to_str().unwrap());
        let args = ["replay", file, "--context-window", "8000", "--path", path, "--windows", windows];
        let [measured] = served.run(&[&args[..], &["--json", "--keep"]].concat()).json().try_into().unwrap();
        assert_has(&measured, &json!({"threads": 1, "turns": 33, "refused": 3, "differences": []}));
        let [session] = served.run(&["session", "list", "--json"]).json().try_into().unwrap();
        assert_has(&session, &json!({"path": path, "version": 33, "context_window_tokens": 8_000}));
        let name = session["name"].as_str().unwrap();
        let made = served.run(&["compactions", "list", name, "--json"]).json();
        assert!(made.iter().any(|compaction| compaction["kind"] == kind), "{path}: {made:?}");
        served.run(&["session", "delete", name]).output();
        let lines = fs::read_to_string(windows).unwrap();
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(
            lines.iter().map(|line| line["version"].clone()).collect::<Vec<_>>(),
            (1..=33).collect::<Vec<u64>>()
        );
        let (refused, fitting): (Vec<_>, Vec<_>) =
            lines.iter().partition(|line| line.get("refused").is_some());
        assert_eq!((refused.len(), fitting.iter().filter(|line| line["fits"] == true).count()), (3, 30));
        assert!(refused[0]["refused"].as_str().unwrap().starts_with("WINDOW_CANNOT_FIT: "), "{refused:?}");
        assert!(fitting[29]["cut"]["omitted_entries"].as_u64().unwrap() > 0, "{:?}", fitting[29]);

        let table = served.run(&args).output();
        let rows: Vec<Vec<_>> = table
            .lines()
            .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
            .collect();
        let refused = rows[0].iter().position(|name| *name == "refused").unwrap();
        assert_eq!((rows.len(), rows[1][refused]), (2, "3"), "{table}");
    }
    // Whatever else is refused ends it.
    let failure = served.run(&["replay", CONVERSATION, "--context-window", &u64::MAX.to_string()]).failure();
    assert!(failure.contains("INVALID_FIELD: "), "{failure}");
    served.stop();
}

async fn what_a_replay_was_served_is_written(backend: Backend) {
    let served = serve(&backend).await;
    let written = backend.data_dir().join("windows.jsonl");
    let replay = ["replay", CONVERSATION, "--keep", "--windows", written.to_str().unwrap()];
    // What was there is written over.
    fs::write(&written, "x\n".repeat(10_000)).unwrap();
    served.run(&replay).output();
    let lines = fs::read_to_string(&written).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 5);
    let [session] = served.run(&["session", "list", "--json"]).json().try_into().unwrap();
    let name = session["name"].as_str().unwrap();
    for (version, line) in (1_u64..).zip(&lines) {
        let at = version.to_string();
        let [window] = served.run(&["window", name, "--at", &at, "--json"]).json().try_into().unwrap();
        let head = json!({"file": CONVERSATION, "thread": 0, "version": version, "format": "anthropic-messages",
            "fits": null, "cut": null, "repairs": [], "next": window["next"]});
        assert_has(line, &head);
        let items = |of: &Value| -> Vec<Value> {
            let items = of["items"].as_array().unwrap().iter();
            items.map(|item| part(item, &json!({"origin": 0, "seqs": 0, "payload": 0}))).collect()
        };
        assert_eq!(items(line), items(&window));
        let tokens = window["items"].as_array().unwrap().iter().map(|item| item["tokens"].as_u64().unwrap());
        assert_eq!(line["tokens"], tokens.sum::<u64>());
    }
    assert_eq!(lines[4]["next"], "tool-results");

    // What is repaired is told.
    let result = json!({"role": "tool", "tool_call_id": "call_1", "content": "found"});
    let orphan =
        json!([{"role": "user", "content": "look"}, result, {"role": "assistant", "content": "done"}]);
    let file = backend.data_dir().join("orphan.json");
    fs::write(&file, orphan.to_string()).unwrap();
    served.run(&[&["replay", file.to_str().unwrap()], &replay[2..]].concat()).output();
    let lines = fs::read_to_string(&written).unwrap();
    let repairs = lines.lines().flat_map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["repairs"].as_array().unwrap().clone()
    });
    let like = json!({"seqs": [2], "id": "call_1"});
    assert!(repairs.into_iter().any(|repair| part(&repair, &like) == like), "{lines}");

    let failure = served.run(&["replay", CONVERSATION, "--windows", "/nowhere/windows.jsonl"]).failure();
    assert!(failure.contains("cannot write /nowhere/windows.jsonl"), "{failure}");
    served.stop();
}

async fn a_transcript_is_shown_as_log_and_as_window(backend: Backend) {
    let served = serve(&backend).await;
    served.run(&["transcript", "import", CONVERSATION, "--session", "flaky"]).output();
    let log = served.run(&["transcript", "show", "flaky", "--json", "--first", "3", "--last", "4"]).json();
    assert_eq!(log.len(), 2);
    assert_has(&log[0], &json!({"seq": 3, "version": 2, "kind": "message"}));
    assert_eq!(log[0]["payload"]["content"][1]["name"], "read_file");
    let short = served.run(&["transcript", "show", "flaky", "--width", "20"]).output();
    assert_eq!(short.lines().count(), 7);
    assert!(short.lines().nth(1).unwrap().ends_with(r#"{"role": "user", "co…"#), "{short}");

    let window = served.run(&["transcript", "show", "flaky", "--window", "--json"]);
    assert!(window.stderr.contains("unanswered: shell toolu_03 in entry 7"), "{}", window.stderr);
    assert!(window.stderr.contains("next: tool-results"), "{}", window.stderr);
    assert_eq!(window.json().len(), 6);
    let early = served.run(&["transcript", "show", "flaky", "--window", "--at", "1"]);
    assert!(early.stderr.contains("version 1, 1 items"), "{}", early.stderr);
    served.stop();
}

async fn a_session_is_followed_as_it_grows(backend: Backend) {
    let served = serve(&backend).await;
    served.run(&["transcript", "import", CONVERSATION, "--session", "flaky"]).output();
    let mut tail = served.command(&["transcript", "tail", "flaky", "-n", "2", "--json"]);
    let mut tail = tail.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (lines, said) = (Lines::of(tail.stdout.take().unwrap()), Lines::of(tail.stderr.take().unwrap()));
    let seqs = |lines: &[String]| -> Vec<u64> {
        lines
            .iter()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap())
            .collect()
    };
    lines.wait("the newest two", |lines| (seqs(lines) == [6, 7]).then_some(())).await;
    served.run(&["session", "rewind", "flaky", "--version", "3"]).output();
    said.wait("the rewind", |lines| lines.iter().any(|line| line == "rewound to entry 5").then_some(()))
        .await;
    served.run(&["session", "rewind", "flaky", "--version", "5"]).output();
    lines.wait("what came back", |lines| (seqs(lines) == [6, 7, 6, 7]).then_some(())).await;
    tail.kill().unwrap();
    tail.wait().unwrap();
    let ended = served.run(&["transcript", "tail", "flaky", "-n", "3", "--json", "--idle-seconds", "1"]);
    assert_eq!(ended.json().len(), 3);
    served.stop();
}

async fn what_the_service_refuses_is_told_with_its_reason(backend: Backend) {
    let served = serve(&backend).await;
    for (args, said) in [
        (&["session", "show", "none"][..], "SESSION_NOT_FOUND: session none not found"),
        (&["session", "show", "a/b"], "INVALID_FIELD: name: holds '/'"),
        (&["session", "fork", "none"], "SESSION_NOT_FOUND"),
        (&["session", "delete", "none"], "SESSION_NOT_FOUND"),
        (&["session", "list", "--page-token", "x"], "INVALID_FIELD: page_token"),
        (&["transcript", "show", "none"], "SESSION_NOT_FOUND"),
        (&["transcript", "show", "none", "--window"], "SESSION_NOT_FOUND"),
        (&["transcript", "export", "none"], "SESSION_NOT_FOUND"),
        (&["transcript", "tail", "none"], "SESSION_NOT_FOUND"),
    ] {
        let failure = served.run(args).failure();
        assert!(failure.starts_with("turnkeep: ") && failure.contains(said), "{args:?}: {failure}");
    }
    served.run(&["transcript", "import", CONVERSATION, "--session", "flaky"]).output();
    let failure = served.run(&["transcript", "export", "flaky", "--verbatim"]).failure();
    assert!(failure.contains("the session was not imported with its file's bytes"), "{failure}");
    let address = served.address.clone();
    served.stop();
    let failure = command::run(&["session", "list", "--address", &address], &[]).failure();
    assert!(failure.contains(&format!("cannot connect to {address}")), "{failure}");
}

async fn tables_are_for_people(backend: Backend) {
    let served = serve(&backend).await;
    served.run(&["transcript", "import", CONVERSATION, "--session", "flaky"]).output();
    let list = served.run(&["session", "list"]).output();
    let [header, row] = list
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    assert_eq!(header, ["session", "format", "version", "entries", "tokens", "changed"]);
    assert_eq!(row[..4], ["flaky", "anthropic-messages", "5", "7"]);
    let show = served.run(&["session", "show", "flaky", "--turns", "1"]).output();
    for line in ["name                   sessions/flaky", "version                5"] {
        assert!(show.lines().any(|shown| shown == line), "{show}");
    }
    let fork = served.run(&["session", "fork", "flaky", "--id", "f"]).output();
    assert_eq!(fork, "sessions/f version 6 entries 7\n");
    let delete = served.run(&["session", "delete", "flaky"]).output();
    assert_eq!(delete, "sessions/flaky retained-by-forks, 0 objects to erase\nretained by sessions/f\n");
    let replay = served.run(&["replay", CONVERSATION]).output();
    assert!(replay.lines().next().unwrap().starts_with("file"), "{replay}");
    served.stop();
}

//! What a model would be sent, and what is left out of it, on the command line.

use crate::backends::{Backend, on_backend, on_embedded_backend};
use crate::command::Served;
use crate::llm::{Llm, Step, openai_answer};
use crate::{assert_has, serve};
use serde_json::{Value, json};
use std::fs;

on_backend!(
    sqlite_local,
    SqliteLocal,
    windows_are_compacted_shown_and_undone,
    pins_are_put_listed_and_deleted
);
on_backend!(postgres_s3, PostgresS3, windows_are_compacted_shown_and_undone, pins_are_put_listed_and_deleted);
on_embedded_backend!(
    a_window_is_shown_as_lines_and_a_bar,
    a_window_without_a_context_window_is_shown_by_itself,
    what_cannot_be_compacted_is_told_with_its_reason,
    what_a_compaction_lost_is_told,
    a_summary_is_asked_for_with_instructions,
);

/// A session `s` of a system message, two questions, and steps after each.
fn import(backend: &Backend, served: &Served, more: &[&str]) {
    let step = |number: usize| {
        let id = format!("call_{number}");
        let call = json!({"id": id, "type": "function", "function": {"name": "shell", "arguments": "{}"}});
        let text = format!("{number}: {}", "lorem ipsum dolor ".repeat(20));
        [
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": id, "content": text}),
        ]
    };
    let mut messages = vec![
        json!({"role": "system", "content": "be brief"}),
        json!({"role": "user", "content": "count to\na hundred"}),
    ];
    messages.extend((0..6).flat_map(step));
    messages.push(json!({"role": "assistant", "content": "done"}));
    messages.push(json!({"role": "user", "content": "and back"}));
    messages.extend((6..20).flat_map(step));
    let file = backend.data_dir().join("long.json");
    fs::write(&file, Value::from(messages).to_string()).unwrap();
    let import =
        ["transcript", "import", file.to_str().unwrap(), "--source", "openai-chat", "--session", "s"];
    served.run(&[&import, more].concat()).output();
}

fn one(mut values: Vec<Value>) -> Value {
    assert_eq!(values.len(), 1, "{values:?}");
    values.remove(0)
}

fn window(served: &Served, more: &[&str]) -> Value {
    one(served.run(&[&["window", "s", "--json"], more].concat()).json())
}

/// Of each item what it is for and its entries.
fn items(window: &Value) -> Vec<(String, Value)> {
    let items = window["items"].as_array().unwrap();
    items.iter().map(|item| (item["use"].as_str().unwrap().to_owned(), item["seqs"].clone())).collect()
}

async fn windows_are_compacted_shown_and_undone(backend: Backend) {
    let served = serve(&backend).await;
    import(&backend, &served, &["--context-window", "8000", "--max-output", "1000"]);
    let whole = window(&served, &[]);
    assert_eq!(whole["items"].as_array().unwrap().len(), 44);
    assert_eq!(
        items(&whole)[..3].iter().map(|(by, _)| by).collect::<Vec<_>>(),
        ["system", "first user message", "steps"]
    );
    assert_eq!(items(&whole)[15], ("last user message".to_owned(), json!([16])));
    let room = whole["room"].as_object().unwrap();
    assert_eq!(room.values().map(|tokens| tokens.as_u64().unwrap()).sum::<u64>(), 8_000);
    assert_has(&whole["room"], &json!({"reserve": 1_000, "notice": 0, "pins and summary": 0, "preamble": 0}));
    assert_has(&whole, &json!({"cut": null, "fits": true, "next": "model", "format": "openai-chat"}));

    // First some leave, then all but the last two.
    let first = one(served.run(&["compact", "s", "--to", "1500", "--json"]).json());
    assert_has(
        &first,
        &json!({"name": "sessions/s/compactions/1", "kind": "truncate", "pins": [], "undone": ""}),
    );
    assert!(first["tokens_after"].as_u64().unwrap() <= 1_500, "{first}");
    let told = served.run(&["compact", "s", "--last", "2"]).output();
    let second = one(served.run(&["compactions", "show", "s", "2", "--json"]).json());
    assert_has(&second, &json!({"first_kept_seq": 43, "kept_seqs": [1, 2, 16], "omitted_entries": 39}));
    assert_eq!(second["tokens_before"], first["tokens_after"]);
    let line =
        "sessions/s/compactions/2 truncate {} to {} tokens, 39 messages left out, shown from entry 43\n";
    let line = line.replacen("{}", &second["tokens_before"].to_string(), 1);
    assert_eq!(told, line.replacen("{}", &second["tokens_after"].to_string(), 1));
    let again = served.run(&["compact", "s", "--to", "1500"]);
    assert!(again.stderr.contains("nothing had to be left out"), "{}", again.stderr);
    assert_eq!(again.output(), "");
    let cut = window(&served, &[]);
    let expected = [
        ("system", json!([1])),
        ("first user message", json!([2])),
        ("notice", json!([])),
        ("last user message", json!([16])),
        ("steps", json!([43])),
        ("steps", json!([44])),
    ];
    assert_eq!(items(&cut), expected.map(|(by, seqs)| (by.to_owned(), seqs)));
    assert_has(&cut["cut"], &json!({"compaction": 2, "first_kept_seq": 43, "for_this_request": false}));
    let mut summed = 0;
    for item in cut["items"].as_array().unwrap() {
        summed += item["tokens"].as_u64().unwrap();
    }
    assert_eq!(json!(summed), second["tokens_after"]);

    // Pages and tables.
    let listed = served.run(&["compactions", "list", "s", "--json"]).json();
    assert_eq!(listed, [second.clone(), first.clone()]);
    let page = served.run(&["compactions", "list", "s", "--json", "--limit", "1"]);
    let token = page.stderr.trim().strip_prefix("there may be more: --page-token ").unwrap().to_owned();
    assert_eq!(page.json(), std::slice::from_ref(&second));
    let rest = served.run(&["compactions", "list", "s", "--json", "--page-token", &token]);
    assert_eq!(rest.stderr, "");
    assert_eq!(rest.json(), [first]);
    let table = served.run(&["compactions", "list", "s"]).output();
    let rows: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..3], ["number", "kind", "version"]);
    assert_eq!((&rows[1][..2], &rows[2][..2]), (&["2", "truncate"][..], &["1", "truncate"][..]));
    let shown = served.run(&["compactions", "show", "s", "2"]).output();
    let cache = format!(
        "cache            {} tokens stay, {} to be sent again, unknown cost",
        second["cache"]["kept_tokens"], second["cache"]["resent_tokens"]
    );
    for line in ["kind             truncate", "kept_seqs        [1,2,16]", "summary", &cache] {
        assert!(shown.lines().any(|shown| shown == line), "{shown}");
    }

    // Both are taken back.
    let undone = served.run(&["compactions", "undo", "s", "1"]).output();
    assert!(undone.starts_with("sessions/s/compactions/3 undo "), "{undone}");
    let back = window(&served, &[]);
    assert_eq!((&back["items"], &back["cut"]), (&whole["items"], &Value::Null));
    served.stop();
}

async fn pins_are_put_listed_and_deleted(backend: Backend) {
    let served = serve(&backend).await;
    import(&backend, &served, &["--context-window", "8000"]);
    let list = || served.run(&["pin", "list", "s", "--json"]).json();
    assert_eq!(list(), [Value::Null; 0]);
    let rule = "never touch\nmigrations/";
    let put = served.run(&["pin", "put", "s", "rule", rule]).output();
    assert_eq!(put, "rule  never touch\\nmigrations/\n");
    let put = one(served.run(&["pin", "put", "s", "language", "German", "--json"]).json());
    assert_eq!(put, json!({"name": "language", "text": "German", "seq": 0}));
    assert_eq!(list(), [json!({"name": "rule", "text": rule, "seq": 0}), put]);
    let told = served.run(&["pin", "list", "s"]).output();
    assert_eq!(told, "rule      never touch\\nmigrations/\nlanguage  German\n");
    let shown = window(&served, &[]);
    assert_eq!(items(&shown)[1], ("pins and summary".to_owned(), json!([])));
    assert!(
        shown["items"][1]["payload"]["content"].as_str().unwrap().contains(rule),
        "{}",
        shown["items"][1]
    );
    assert!(shown["room"]["pins and summary"].as_u64().unwrap() > 0);
    // Pins are none of the compactions.
    assert_eq!(served.run(&["compactions", "list", "s", "--json"]).json(), [Value::Null; 0]);
    served.run(&["pin", "delete", "s", "rule"]).output();
    assert_eq!(list().len(), 1);
    let failure = served.run(&["pin", "delete", "s", "rule"]).failure();
    assert!(failure.contains("INVALID_FIELD: name"), "{failure}");
    served.stop();
}

async fn a_window_is_shown_as_lines_and_a_bar(backend: Backend) {
    let served = serve(&backend).await;
    import(&backend, &served, &["--context-window", "8000", "--max-output", "1000"]);
    served.run(&["pin", "put", "s", "rule", "be kind"]).output();
    served.run(&["compact", "s", "--last", "2"]).output();
    let ran = served.run(&["window", "s"]);
    assert!(ran.stderr.contains("shown from entry 43: 39 messages of "), "{}", ran.stderr);
    assert!(ran.stderr.contains(", fits: yes, next: model"), "{}", ran.stderr);
    let shown = ran.output();
    let lines: Vec<_> = shown.lines().collect();
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{shown}");
    let begins = [
        ("log", "1", "system: be brief"),
        ("log", "2", "user: count to a hundred"),
        ("pin", "-", "user: [What follows stands for the earlier"),
        ("notice", "-", "user: [39 earlier messages of this conversation, "),
        ("log", "16", "user: and back"),
        ("log", "43", "model: shell {}"),
        ("log", "44", "result: 19: lorem ipsum"),
    ];
    for (line, (origin, seqs, text)) in lines.iter().zip(begins) {
        let words: Vec<_> = line.split_whitespace().take(2).collect();
        assert_eq!(words, [origin, seqs], "{line}");
        assert!(line.contains(&format!("  {text}")), "{line}");
    }
    // A line between, then the bar: each part in its order and none left out.
    let bar = lines[begins.len() + 1];
    assert_eq!((lines[begins.len()], bar.chars().count()), ("", 80));
    let mut parts: Vec<_> = bar.trim_matches(['[', ']']).chars().collect();
    let free = parts.iter().filter(|part| **part == '.').count();
    parts.dedup();
    assert_eq!(parts.iter().collect::<String>(), "S+N1L=.#");
    assert!(free > 39, "{bar}");
    let legend = &lines[begins.len() + 2..];
    assert_eq!(legend.len(), parts.len() + 1, "{shown}");
    for (row, part) in legend.iter().zip(&parts) {
        assert!(row.starts_with(&format!("{part} ")), "{shown}");
    }
    assert!(legend.last().unwrap().contains("8000  100.0 %"), "{shown}");
    let reserve = legend[legend.len() - 2];
    assert_eq!(reserve.split_whitespace().collect::<Vec<_>>(), ["#", "reserve", "1000", "12.5", "%"]);

    // More room for the answer leaves less for the window, this time alone.
    let tight = served.run(&["window", "s", "--reserve", "7999"]).failure();
    assert!(tight.contains("WINDOW_CANNOT_FIT"), "{tight}");
    let whole = window(&served, &["--reserve", "7999", "--whole"]);
    assert_has(&whole, &json!({"cut": null, "fits": false}));
    assert_has(&whole["room"], &json!({"free": 0, "reserve": 7_999}));
    let early = window(&served, &["--at", "2"]);
    assert_has(&early, &json!({"version": 2, "cut": null}));
    served.run(&["compactions", "undo", "s", "2"]).output();
    let tight = window(&served, &["--reserve", "7000"]);
    assert_has(&tight["room"], &json!({"reserve": 7_000}));
    assert_has(&tight["cut"], &json!({"for_this_request": true}));
    served.stop();
}

async fn a_window_without_a_context_window_is_shown_by_itself(backend: Backend) {
    let served = serve(&backend).await;
    served.run(&["transcript", "import", "tests/data/readme/flaky-test.json", "--session", "s"]).output();
    let ran = served.run(&["window", "s"]);
    assert!(ran.stderr.contains("fits: unknown (no context window"), "{}", ran.stderr);
    let shown = ran.output();
    let bar = shown.lines().find(|line| line.starts_with('[')).unwrap();
    let mut parts: Vec<_> = bar.trim_matches(['[', ']']).chars().collect();
    parts.dedup();
    assert_eq!((bar.len(), parts.iter().collect::<String>().as_str()), (80, "P1L="), "{shown}");
    served.stop();
}

async fn what_cannot_be_compacted_is_told_with_its_reason(backend: Backend) {
    let served = serve(&backend).await;
    for (args, said) in [
        (&["window", "none"][..], "SESSION_NOT_FOUND"),
        (&["compact", "none"], "SESSION_NOT_FOUND"),
        (&["compactions", "list", "none"], "SESSION_NOT_FOUND"),
        (&["pin", "list", "none"], "SESSION_NOT_FOUND"),
    ] {
        let failure = served.run(args).failure();
        assert!(failure.contains(said), "{args:?}: {failure}");
    }
    import(&backend, &served, &[]);
    for (args, said) in [
        (&["compact", "s"][..], "CONTEXT_WINDOW_UNKNOWN"),
        (&["compact", "s", "--to", "0"], "INVALID_FIELD: target_tokens"),
        (&["compact", "s", "--last", "0"], "INVALID_FIELD: messages"),
        (&["compact", "s", "--last", "1", "--expected-version", "1"], "VERSION_MISMATCH"),
        (&["compact", "s", "--summarize"], "CONTEXT_WINDOW_UNKNOWN"),
        (&["compact", "s", "--summarize", "--expected-version", "1"], "VERSION_MISMATCH"),
        (
            &["compact", "s", "--summarize", "--instructions", &"x".repeat(9_000)],
            "INVALID_FIELD: instructions",
        ),
        (&["compactions", "show", "s", "7"], "COMPACTION_NOT_FOUND"),
        (&["compactions", "undo", "s", "7"], "COMPACTION_NOT_FOUND"),
        (&["compactions", "list", "s", "--page-token", "x"], "INVALID_FIELD: page_token"),
        (&["pin", "put", "s", "a/b", "x"], "INVALID_FIELD: pin.name"),
    ] {
        let failure = served.run(args).failure();
        assert!(failure.contains(said), "{args:?}: {failure}");
    }
    served.stop();
}

async fn a_summary_is_asked_for_with_instructions(backend: Backend) {
    let llm = Llm::start([Step::ok(&openai_answer("## Goal\ncount in twos", "stop"))]).await;
    let endpoint = format!("summarizer.endpoint={}", llm.url);
    let flags = ["summarizer.api=openai", &endpoint, "summarizer.model=m"];
    let served = Served::start(&backend.variables(), &flags).await;
    import(&backend, &served, &["--context-window", "100000", "--max-output", "1000"]);
    let told = served.run(&["compact", "s", "--summarize", "--instructions", "Mind the odd ones."]).output();
    assert!(told.starts_with("sessions/s/compactions/1 summarize "), "{told}");
    let shown = one(served.run(&["compactions", "show", "s", "1", "--json"]).json());
    assert_has(&shown, &json!({"kind": "summarize", "cause": "summarized: asked for"}));
    let requests = llm.received();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].body["messages"][0]["content"].to_string().contains("Mind the odd ones."));
    for (args, said) in [
        (&["compact", "s", "--summarize", "--last", "1"][..], "cannot be used with"),
        (&["compact", "s", "--summarize", "--to", "1"], "cannot be used with"),
        (&["compact", "s", "--instructions", "x"], "--summarize"),
    ] {
        let ran = served.run(args);
        assert_eq!(ran.status.code(), Some(2), "{args:?}");
        assert!(ran.stderr.contains(said), "{args:?}: {}", ran.stderr);
    }
    served.run(&["session", "update", "s", "--path", "batch"]).output();
    let failure = served.run(&["compact", "s", "--summarize"]).failure();
    assert!(failure.contains("INVALID_FIELD: strategy"), "{failure}");
    served.stop();
}

/// A session of which a model's summary leaves out a rule and a path, and claims another.
async fn what_a_compaction_lost_is_told(backend: Backend) {
    let summary = "## Goal\ncount, with src/never/was.rs";
    let llm = Llm::start([Step::ok(&openai_answer(summary, "stop"))]).await;
    let endpoint = format!("summarizer.endpoint={}", llm.url);
    let flags = ["summarizer.api=openai", &endpoint, "summarizer.model=m", "compaction.pin_statements=false"];
    let served = Served::start(&backend.variables(), &flags).await;
    let text = |text: &str| json!({"role": "user", "content": text});
    let mut messages = vec![text("count"), json!({"role": "assistant", "content": "1"})];
    messages.push(text("Never touch the migrations folder. Look into src/lost/place.rs for it."));
    for number in 0..50 {
        let words = format!("{number}: {}", "lorem ipsum dolor ".repeat(20));
        messages.push(json!({"role": "assistant", "content": words}));
        messages.push(text("go on"));
    }
    let file = backend.data_dir().join("long.json");
    fs::write(&file, Value::from(messages).to_string()).unwrap();
    let file = file.to_str().unwrap();
    let import = ["transcript", "import", file, "--source", "openai-chat", "--session", "s"];
    served.run(&[&import[..], &["--context-window", "5000", "--max-output", "1000"]].concat()).output();
    let cut = &window(&served, &[])["cut"];
    assert_eq!(cut["compaction"], 1, "{cut}");
    served.run(&["compact", "s", "--last", "2"]).output();

    let rule = "constraint of entry 3: Never touch the migrations folder.";
    let shown = served.run(&["compactions", "show", "s", "1"]).output();
    for line in [
        "kind             summarize",
        "summarizer       served-1, 100 tokens read, 20 written, unknown cost",
        &format!("losses           {rule}"),
        "without_relief   0",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} is not in\n{shown}");
    }
    assert!(shown.contains("constraint: 0 kept, 1 lost"), "{shown}");

    let audited = served.run(&["audit", "s", "--json"]).json();
    let [first, second, sums] = &audited[..] else { panic!("{audited:?}") };
    let by = json!({
        "model": "served-1", "input_tokens": 100, "output_tokens": 20, "cost": null, "failure": "",
        "unsupported": ["src/never/was.rs"],
    });
    assert_has(
        first,
        &json!({"compaction": "sessions/s/compactions/1", "kind": "summarize", "summarizer": by}),
    );
    assert_eq!(first["stated"]["constraint"], json!({"before": 1, "kept": 0, "lost": 1}));
    assert_eq!(first["stated"]["path"], json!({"before": 1, "kept": 0, "lost": 1}));
    let losses = [
        json!({"subject": "constraint", "text": "Never touch the migrations folder.", "seq": 3}),
        json!({"subject": "path", "text": "src/lost/place.rs", "seq": 3}),
    ];
    assert_eq!((&first["losses"], &first["losses_not_shown"]), (&json!(losses), &json!(0)));
    assert_has(second, &json!({"kind": "truncate", "summarizer": null, "losses": []}));
    let resent = |of: &Value| of["cache"]["resent_tokens"].as_u64().unwrap();
    let kept = |of: &Value| of["cache"]["kept_tokens"].as_u64().unwrap();
    for of in [first, second] {
        assert_eq!(json!(resent(of) + kept(of)), of["tokens_after"], "{of}");
        assert_eq!(of["cache"]["cost"], Value::Null, "of no model that is known");
    }
    let freed = |of: &Value| of["tokens_before"].as_u64().unwrap() - of["tokens_after"].as_u64().unwrap();
    assert_has(
        sums,
        &json!({
            "compactions": 2, "freed_tokens": freed(first) + freed(second), "stated": first["stated"],
            "unsupported": 1, "summaries": 1, "failures": 0, "input_tokens": 100, "output_tokens": 20,
            "cost": "$0.00", "unpriced": 1,
            "resent_tokens": resent(first) + resent(second), "cache_cost": "$0.00", "cache_unpriced": 2,
        }),
    );
    // Literals up to a limit; a constraint is always told.
    let told = served.run(&["audit", "s", "--literals", "0"]).output();
    let lines = [
        "compaction 1, summarize, at version ",
        "  summary: served-1, 100 tokens read, 20 written, unknown cost",
        "  claimed and never said: src/never/was.rs",
        &format!("  lost: {rule}"),
        "  lost: 1 more",
        "  prompt cache: ",
        "together: 2 compactions",
    ];
    for line in lines {
        assert!(told.lines().any(|told| told.starts_with(line)), "{line} is not in\n{told}");
    }
    assert!(!told.contains("place.rs"), "{told}");

    let metrics = super::operate::http_get(&served.http, "/metrics");
    for line in [
        "turnkeep_audit_losses_total{subject=\"constraint\"} 1",
        "turnkeep_audit_losses_total{subject=\"path\"} 1",
        "turnkeep_audit_losses_total{subject=\"decision\"} 0",
        "turnkeep_audit_losses_total{subject=\"pin\"} 0",
        "turnkeep_window_states_total{kind=\"calibrate\"} 0",
        "turnkeep_summaries_total{outcome=\"ok\"} 1",
    ] {
        assert!(metrics.lines().any(|shown| shown == line), "{line} is not in\n{metrics}");
    }
    served.stop();
}

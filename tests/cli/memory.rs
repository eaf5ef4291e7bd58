//! What is remembered of sessions, on the command line.

use crate::backends::{Backend, on_backend};
use crate::{assert_has, serve};
use serde_json::{Value, json};
use std::fs;

on_backend!(
    sqlite_local,
    SqliteLocal,
    notes_are_put_read_listed_and_deleted,
    what_is_remembered_is_exported_and_continued,
    a_transcript_is_exported_as_markdown
);
on_backend!(postgres_s3, PostgresS3, notes_are_put_read_listed_and_deleted);

async fn notes_are_put_read_listed_and_deleted(backend: Backend) {
    let served = serve(&backend).await;
    served.run(&["transcript", "import", crate::CONVERSATION, "--session", "s"]).output();
    assert_eq!(served.run(&["note", "list", "s"]).output(), "");
    served.run(&["note", "put", "s", "port", "5433"]).output();
    let [why] =
        served.run(&["note", "put", "s", "Why?", "licence\n- ü\n", "--json"]).json().try_into().unwrap();
    assert_has(&why, &json!({"name": "Why?", "text": "licence\n- ü\n"}));
    assert_eq!(served.run(&["note", "get", "s", "Why?"]).output(), "licence\n- ü\n");
    assert_eq!(served.run(&["note", "get", "s", "port"]).output(), "5433\n");
    let listed = served.run(&["note", "list", "s", "--json"]).json();
    assert_eq!(listed.iter().map(|note| note["name"].clone()).collect::<Vec<_>>(), ["Why?", "port"]);
    let table = served.run(&["note", "list", "s"]).output();
    assert!(table.starts_with("note  bytes ") && table.contains("\nport      4 "), "{table}");
    served.run(&["note", "delete", "s", "port"]).output();
    let refused = served.run(&["note", "get", "s", "port"]).failure();
    assert!(refused.contains("NOTE_NOT_FOUND: session s has no note of that name"), "{refused}");
    served.stop();
}

async fn what_is_remembered_is_exported_and_continued(backend: Backend) {
    let served = serve(&backend).await;
    let mut messages = vec![json!({"role": "user", "content": "count to\n# a hundred"})];
    for number in 0..40 {
        messages.push(json!({"role": "assistant", "content": format!("{number} {}", "lorem ".repeat(60))}));
        messages.push(json!({"role": "user", "content": "go on"}));
    }
    let file = backend.data_dir().join("long.json");
    fs::write(&file, Value::from(messages).to_string()).unwrap();
    let path = file.to_str().unwrap();
    let import = ["transcript", "import", path, "--source", "openai-chat", "--session", "s"];
    served.run(&[&import[..], &["--context-window", "4000"]].concat()).output();
    served.run(&["pin", "put", "s", "rule", "never touch\nmigrations/"]).output();
    served.run(&["note", "put", "s", "port", "5433"]).output();
    // Without a summarizer an extract takes the place of what leaves.
    served.run(&["transcript", "show", "s", "--window"]).output();
    let [episode] = served.run(&["episode", "list", "s", "--json"]).json().try_into().unwrap();
    assert_has(&episode, &json!({"first_seq": 1, "model": ""}));
    let number = episode["name"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let text = episode["text"].as_str().unwrap();
    assert_eq!(served.run(&["episode", "show", "s", &number]).output().trim_end(), text.trim_end());
    let table = served.run(&["episode", "list", "s"]).output();
    assert!(table.contains("extracted: "), "{table}");
    let refused = served.run(&["episode", "show", "s", "99"]).failure();
    assert!(refused.contains("COMPACTION_NOT_FOUND"), "{refused}");

    let told = served.run(&["memory", "export", "s"]).output();
    let head = "# Memory of sessions/s\n\n## First request\n\ncount to\n### a hundred\n\n## Pins\n\n\
        - **rule**: never touch\n  migrations/\n\n## Notes\n\n### port\n\n5433\n\n";
    assert!(told.starts_with(head), "{told}");
    let last = &episode["last_seq"];
    assert!(
        told.contains(&format!("\n## Episodes\n\n### Episode {number} · entries 1 to {last} · ")),
        "{told}"
    );
    let written = backend.data_dir().join("memory.md");
    served.run(&["memory", "export", "s", "--output", written.to_str().unwrap()]).output();
    assert_eq!(fs::read_to_string(written).unwrap(), told);

    let next =
        ["session", "continue", "s", "next", "--label", "why=test", "--context-window", "9000", "--json"];
    let [made] = served.run(&next).json().try_into().unwrap();
    let [source] = served.run(&["session", "show", "s", "--json", "--turns", "0"]).json().try_into().unwrap();
    let expected = json!({
        "name": "sessions/next", "version": 0, "head_seq": 0, "labels": {"why": "test"}, "format": "openai-chat",
        "context_window_tokens": 9_000, "forked_from": null,
        "continued_from": {"session": "sessions/s", "version": source["version"]},
    });
    assert_has(&made, &expected);
    assert_eq!(served.run(&["note", "get", "next", "port"]).output(), "5433\n");
    assert!(served.run(&["pin", "list", "next"]).output().contains("never touch"));
    let [minted] = served.run(&["session", "continue", "s", "--json"]).json().try_into().unwrap();
    assert_has(&minted, &json!({"labels": {}, "context_window_tokens": 4_000}));
    let empty = served.run(&["memory", "export", minted["name"].as_str().unwrap()]).output();
    assert!(!empty.contains("## First request") && !empty.contains("## Episodes"), "{empty}");
    served.stop();
}

async fn a_transcript_is_exported_as_markdown(backend: Backend) {
    let served = serve(&backend).await;
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "look"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "tool_use", "id": "c1", "name": "shell", "input": {"cmd": "cat a"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "```\n````"}]},
    ]);
    let file = backend.data_dir().join("short.json");
    fs::write(&file, messages.to_string()).unwrap();
    served
        .run(&["transcript", "import", file.to_str().unwrap(), "--source", "anthropic", "--session", "s"])
        .output();
    let told = served.run(&["transcript", "export", "s", "--markdown"]).output();
    let (title, rest) = told.split_once("\n\n").unwrap();
    assert!(title.starts_with("# sessions/s, version "), "{title}");
    assert_eq!(
        rest,
        "## 1 · user\n\nlook\n\n*[picture]*\n\n## 2 · model\n\n> *Thinking:*\n>\n> hm\n\n\
         **Call** `shell` `c1`\n\n```\n{\"cmd\":\"cat a\"}\n```\n\n\
         ## 3 · results\n\n**Result** `shell` `c1`\n\n`````\n```\n````\n`````\n"
    );
    served.stop();
}

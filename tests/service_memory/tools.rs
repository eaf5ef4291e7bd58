//! What a model is answered that reads entries, and reads and keeps notes.

use super::{CONTEXT, SESSION, Service, notes, session};
use crate::backends::Backend;
use crate::messages::{call, model, result, user};
use serde_json::{Value, json};
use turnkeep::client::tools;
use turnkeep::model::WireFormat;
use turnkeep::rpc::pb::WireFormat::OpenaiChat;

/// Name and required parameters of each tool.
fn required(format: WireFormat) -> Vec<(String, Vec<String>)> {
    let tools = tools(format);
    let list = match format {
        WireFormat::GeminiContents => tools[0]["functionDeclarations"].clone(),
        _ => tools,
    };
    let of_tool = |tool: &Value| {
        let tool = tool.get("function").or(tool.get("toolSpec")).unwrap_or(tool);
        let schema = ["parameters", "input_schema", "inputSchema"].map(|name| tool.get(name));
        let schema = schema.into_iter().flatten().next().unwrap();
        let schema = schema.get("json").unwrap_or(schema);
        let names = schema["required"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|name| name.as_str().unwrap().to_owned()).collect();
        assert!(names.iter().all(|name| schema["properties"].get(name).is_some()));
        (tool["name"].as_str().unwrap().to_owned(), names)
    };
    list.as_array().unwrap().iter().map(of_tool).collect()
}

pub(super) async fn a_model_reads_entries_and_keeps_notes(backend: Backend) {
    for format in WireFormat::ALL {
        let expected: [(&str, &[&str]); 5] = [
            ("read_tool_output", &["ref"]),
            ("search_transcript", &["pattern"]),
            ("read_transcript", &["first_seq"]),
            ("get_note", &[]),
            ("put_note", &["name", "text"]),
        ];
        let expected = expected.map(|(name, required)| {
            (name.to_owned(), required.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
        });
        assert_eq!(required(format), expected);
    }
    let service = Service::start(&backend).await;
    service.create("s", session(OpenaiChat, CONTEXT)).await;
    let long = "é".repeat(30_000);
    let said = [
        user(OpenaiChat, "look"),
        call(OpenaiChat, "c1", "ls"),
        result(OpenaiChat, "c1", "ls", "a\n```\nb"),
        model(OpenaiChat, &long),
        model(OpenaiChat, "done"),
    ];
    service.append(SESSION, &said).await;
    let mut client = service.client.clone();
    let mut answer = async |tool: &str, arguments: Value| {
        client.answer(SESSION, tool, &arguments.to_string()).await.unwrap().unwrap()
    };
    assert_eq!(answer("get_note", json!({})).await, "[no notes]");
    assert_eq!(answer("put_note", json!({"name": "port", "text": "5433"})).await, "[kept]");
    assert_eq!(answer("put_note", json!({"name": "Why?", "text": "licence\nü"})).await, "[kept]");
    assert_eq!(answer("get_note", json!({})).await, "Why? (10 bytes)\nport (4 bytes)");
    assert_eq!(answer("get_note", json!({"name": "Why?"})).await, "licence\nü");
    assert_eq!(notes(&service, SESSION).await.len(), 2);

    let read = "read_transcript";
    let first = answer(read, json!({"first_seq": 1, "last_seq": 3})).await;
    let expected = "## 1 · user\n\nlook\n\n## 2 · model\n\n**Call** `ls` `c1`\n\n```\n{}\n```\n\n\
        ## 3 · results\n\n**Result** `c1`\n\n````\na\n```\nb\n````\n";
    assert_eq!(first, expected);
    // What does not fit comes in pages, and together they are all of it.
    let all = answer(read, json!({"first_seq": 1})).await;
    assert_eq!(all, format!("{expected}\n[go on with first_seq 4]"));
    let page = answer(read, json!({"first_seq": 4})).await;
    let (part, end) = page.split_once("\n[go on with first_seq 4 and first_character ").unwrap();
    let end: u64 = end.trim_end_matches(']').parse().unwrap();
    let rest = answer(read, json!({"first_seq": 4, "first_character": end})).await;
    assert_eq!([part, &rest].concat(), format!("## 4 · model\n\n{long}\n\n## 5 · model\n\ndone\n"));
    for (tool, arguments, problem) in [
        (read, json!({}), "error: missing field `first_seq`"),
        (read, json!({"first_seq": 99}), "[nothing: the newest entry is 5]"),
        (read, json!({"first_seq": 1, "at": 2}), "error: unknown field `at`"),
        ("get_note", json!({"name": "other"}), "error: session s has no note of that name"),
        ("put_note", json!({"name": "a/b", "text": "x"}), "error: note.name: must have 1 to 64 characters"),
        ("put_note", json!({"name": "a"}), "error: missing field `text`"),
    ] {
        let told = answer(tool, arguments).await;
        assert!(told.starts_with(problem), "{told}");
    }
}

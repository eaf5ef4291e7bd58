//! What a model is answered that reads entries, and reads and keeps notes.

use super::{CONTEXT, SESSION, Service, notes, of_format, put, session};
use crate::backends::Backend;
use crate::messages::{call, model, result, user};
use serde_json::{Value, json};
use turnkeep::client::tools;
use turnkeep::markdown::Transcript;
use turnkeep::model::WireFormat;
use turnkeep::rpc::pb;
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
    let long = "e".repeat(30_000);
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

/// Reads all that a tool answers, page by page: each text, and the part of it that is
/// no advice where to go on.
async fn pages(service: &Service, name: &str, tool: &str, mut next: Value) -> Vec<[String; 2]> {
    let mut client = service.client.clone();
    let mut pages: Vec<[String; 2]> = Vec::new();
    loop {
        let told = client.answer(name, tool, &next.to_string()).await.unwrap().unwrap();
        let Some((part, place)) = told.rsplit_once("\n[go on with ") else {
            pages.push([told.clone(), told]);
            return pages;
        };
        pages.push([told.clone(), part.to_owned()]);
        assert!(!part.is_empty() && pages.len() < 1_000, "{tool} does not get on: {place}");
        next.as_object_mut().unwrap().remove("first_character");
        for part in place.trim_end_matches(']').split(" and ") {
            let (name, number) = part.split_once(' ').unwrap();
            next[name] = number.parse::<u64>().unwrap().into();
        }
    }
}

/// Whatever the limit and however its texts are escaped, an answer is persisted as it is.
pub(super) async fn what_a_model_reads_fits_a_tool_result(backend: Backend) {
    let service = Service::start(&backend).await;
    for length in [1, 700, 3_000, 100_000] {
        let limit = pb::ToolResultLimit { length, ..Default::default() };
        let profile = pb::ModelProfile { tool_result_limit: Some(limit), ..Default::default() };
        let id = format!("s{length}");
        let name =
            service.create(&id, pb::Session { profile: Some(profile), ..of_format(OpenaiChat) }).await.name;
        let emoji = usize::try_from(length / 4).unwrap() + 500;
        let texts = ["a".repeat(900), "é\"\n<😀".repeat(300), "😀".repeat(emoji)];
        let said: Vec<_> = texts.iter().map(|text| model(OpenaiChat, text)).collect();
        service.append(&name, &said).await;
        let note = texts[1].clone();
        put(&service, &name, "long", &note).await.unwrap();
        let mut listed = vec![format!("long ({} bytes)", note.len())];
        for number in 100..130 {
            let other = format!("{number} {}", "ü".repeat(60));
            put(&service, &name, &other, "x").await.unwrap();
            listed.insert(number - 100, format!("{other} (1 bytes)"));
        }
        let log = service.read(&name).await.entries;
        let entries =
            log.iter().map(|entry| Transcript::new(WireFormat::OpenaiChat).entry(entry.seq, &entry.payload));
        for (tool, arguments, expected) in [
            ("read_transcript", json!({"first_seq": 1, "last_seq": 3}), entries.collect::<Vec<_>>().concat()),
            ("get_note", json!({"name": "long"}), note),
            ("get_note", json!({}), listed.join("\n")),
        ] {
            let pages = pages(&service, &name, tool, arguments).await;
            // Between entries there is a line break, but where a page ends.
            let all: String = pages.iter().map(|[_, part]| part.replace("\n\n## ", "\n## ")).collect();
            assert_eq!(all, expected.replace("\n\n## ", "\n## "), "{tool} {length}");
            if length < 700 {
                // A page says something, whatever the limit.
                continue;
            }
            assert!(pages.len() > 1 || length > 3_000, "{tool} {length}");
            for [told, _] in pages {
                let result = result(OpenaiChat, "c1", tool, &told);
                let answer = service.append(&name, &[call(OpenaiChat, "c1", tool), result]).await;
                assert_eq!(answer.offloaded_results, [], "{tool} {length}: {told}");
            }
        }
    }
}

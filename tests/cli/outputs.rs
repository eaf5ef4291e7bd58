//! `turnkeep output` against a running service.

use crate::backends::{Backend, on_all_backends, on_embedded_backend};
use crate::{command, serve};
use futures::stream;
use pb::offload_tool_output_request::{Commit, Frame, Start};
use pb::offload_tool_output_response::Outcome;
use serde_json::{Value, json};
use std::fs;
use turnkeep::client::Client;
use turnkeep::codec::digest;
use turnkeep::rpc::pb;

on_all_backends!(outputs_are_listed_shown_searched_and_downloaded);
on_embedded_backend!(an_import_and_a_replay_keep_long_results_whole);

async fn outputs_are_listed_shown_searched_and_downloaded(backend: Backend) {
    let served = serve(&backend).await;
    let mut client = Client::connect(&served.address).await.unwrap();
    let session = pb::Session { format: pb::WireFormat::OpenaiChat.into(), ..pb::Session::default() };
    let create = pb::CreateSessionRequest { session_id: "s".to_owned(), session: Some(session) };
    client.sessions.create_session(create).await.unwrap();
    let line = |i| format!("{i}: {}\u{1b}[0m\n", if i % 5_000 == 0 { "FAILED" } else { "ok" });
    let content = (1..=20_000).map(line).collect::<String>();
    let frames = [
        Frame::Start(Start {
            session: "sessions/s".to_owned(),
            tool_name: "test".to_owned(),
            ..Default::default()
        }),
        Frame::Data(content.clone().into()),
        Frame::Commit(Commit {
            bytes: content.len() as u64,
            sha256: digest::sha256(content.as_bytes()).0.to_vec().into(),
        }),
    ];
    let frames = frames.map(|frame| pb::OffloadToolOutputRequest { frame: Some(frame) });
    let answer = client.outputs.offload_tool_output(stream::iter(frames)).await.unwrap().into_inner();
    let Some(Outcome::Stored(stored)) = answer.outcome else { panic!("{answer:?}") };
    let output = stored.output.unwrap();

    let [listed] = served.run(&["output", "list", "s", "--json"]).json().try_into().unwrap();
    assert_eq!(listed["ref"], json!(output.r#ref));
    assert_eq!((&listed["lines"], &listed["tool_name"]), (&json!(20_000), &json!("test")));
    let table = served.run(&["output", "list", "sessions/s"]).output();
    assert!(table.lines().nth(1).unwrap().starts_with(&output.name), "{table}");

    let shown = served.run(&["output", "show", &output.r#ref, "--lines", "5000:5200"]).stdout;
    assert_eq!(String::from_utf8(shown).unwrap(), (5_000..=5_200).map(line).collect::<String>());
    let shown = served.run(&["output", "show", &output.name, "--lines", "-2:"]).stdout;
    assert_eq!(String::from_utf8(shown).unwrap(), line(19_999) + &line(20_000));
    assert_eq!(served.run(&["output", "show", &output.name]).stdout, content.as_bytes());

    // What a tool gave out does nothing to a terminal.
    let found = served.run(&["output", "grep", &output.r#ref, "fail(ed)?", "-i", "-C", "1", "-m", "1"]);
    let expected = "4999-4999: ok\\u{1b}[0m\n5000:5000: FAILED\\u{1b}[0m\n5001-5001: ok\\u{1b}[0m\n";
    assert!(found.stderr.contains("there may be more"), "{}", found.stderr);
    assert_eq!(found.output(), expected);
    let found = served.run(&["output", "grep", "-F", &output.r#ref, "FAILED\u{1b}[", "--json"]).json();
    let lines: Vec<&Value> = found.iter().map(|line| &line["line"]).collect();
    assert_eq!(lines, [5_000, 10_000, 15_000, 20_000]);

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("output.txt");
    let path = file.display().to_string();
    served.run(&["output", "download", &output.r#ref, &path]).output();
    assert_eq!(fs::read(&file).unwrap(), content.as_bytes());
    let again = served.run(&["output", "download", &output.r#ref, &path]).failure();
    assert!(again.contains("exists"), "{again}");
    let absent = served.run(&["output", "show", "sessions/s/outputs/0"]).failure();
    assert!(absent.contains("OUTPUT_NOT_FOUND"), "{absent}");
    served.stop();
}

#[test]
fn the_tool_that_reads_outputs_is_defined_for_each_api() {
    let tools = |format: &str| {
        let printed = command::run(&["output", "tools", "--format", format], &[]).output();
        let value: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(value.as_array().map(Vec::len), Some(1));
        value
    };
    let cases = [
        ("openai-chat", "/0/function", "/parameters", "object", "integer"),
        ("openai-responses", "/0", "/parameters", "object", "integer"),
        ("anthropic-messages", "/0", "/input_schema", "object", "integer"),
        ("gemini-contents", "/0/functionDeclarations/0", "/parameters", "OBJECT", "INTEGER"),
        ("bedrock-converse", "/0/toolSpec", "/inputSchema/json", "object", "integer"),
    ];
    for (format, place, schema, object, integer) in cases {
        let tools = tools(format);
        let tool = tools.pointer(place).unwrap();
        assert_eq!(tool["name"], "read_tool_output");
        let schema = tool.pointer(schema).unwrap();
        assert_eq!((&schema["type"], &schema["required"]), (&json!(object), &json!(["ref"])));
        assert_eq!(schema["properties"]["first_line"]["type"], integer);
        assert_eq!(schema["properties"].as_object().unwrap().len(), 9);
    }
    assert_eq!(tools("openai-chat")[0]["type"], "function");
    assert_eq!(tools("openai-responses")[0]["strict"], false);
    let refused = command::run(&["output", "tools", "--format", "opaque"], &[]);
    assert!(refused.stderr.contains("must be one of openai-chat"), "{refused:?}");
}

async fn an_import_and_a_replay_keep_long_results_whole(backend: Backend) {
    let served = serve(&backend).await;
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "grep", "arguments": "{}"}});
    let messages = json!([
        {"role": "user", "content": "find it"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "a line of \"output\"\n".repeat(20_000)},
    ]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("long.json");
    fs::write(&file, messages.to_string()).unwrap();
    let path = file.display().to_string();
    served.run(&["transcript", "import", &path, "--session", "long"]).output();
    let exported = served.run(&["transcript", "export", "long", "--array"]).stdout;
    assert_eq!(serde_json::from_slice::<Value>(&exported).unwrap(), messages);
    assert_eq!(served.run(&["output", "list", "long", "--json"]).json(), [Value::Null; 0]);
    served.run(&["replay", &path]).output();
    served.stop();
}

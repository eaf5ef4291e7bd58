//! `turnkeep output` against a running service.

use crate::backends::{Backend, on_all_backends, on_embedded_backend};
use crate::{command, serve};
use futures::stream;
use pb::offload_tool_output_request::{Commit, Frame, Start};
use pb::offload_tool_output_response::Outcome;
use prost::Message as _;
use prost_types::FileDescriptorSet;
use serde_json::{Value, json};
use std::fs;
use turnkeep::client::Client;
use turnkeep::codec::digest;
use turnkeep::rpc::pb;

on_all_backends!(outputs_are_listed_shown_searched_and_downloaded);
on_embedded_backend!(
    an_import_and_a_replay_keep_long_results_whole,
    a_model_s_calls_are_answered,
    a_transcript_is_searched
);

async fn outputs_are_listed_shown_searched_and_downloaded(backend: Backend) {
    let served = serve(&backend).await;
    let mut client = Client::connect(&served.address).await.unwrap();
    let session = pb::Session { format: pb::WireFormat::OpenaiChat.into(), ..pb::Session::default() };
    let create =
        pb::CreateSessionRequest { session_id: "s".to_owned(), session: Some(session), ..Default::default() };
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

    let found = served.run(&["output", "show", &output.r#ref, "--grep", "^(5|10)000: FAILED"]).output();
    assert_eq!(found, "5000:5000: FAILED\\u{1b}[0m\n10000:10000: FAILED\\u{1b}[0m\n");

    let directory = tempfile::tempdir().unwrap();
    let some = directory.path().join("some.txt");
    let path = some.display().to_string();
    served.run(&["output", "download", &output.r#ref, &path, "--lines", "7:8"]).output();
    assert_eq!(fs::read_to_string(&some).unwrap(), line(7) + &line(8));
    let file = directory.path().join("output.txt");
    let path = file.display().to_string();
    served.run(&["output", "download", &output.r#ref, &path]).output();
    assert_eq!(fs::read(&file).unwrap(), content.as_bytes());
    let again = served.run(&["output", "download", &output.r#ref, &path]).failure();
    assert!(again.contains("exists"), "{again}");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "nothing else is left");
    let absent = served.run(&["output", "show", "sessions/s/outputs/0"]).failure();
    assert!(absent.contains("OUTPUT_NOT_FOUND"), "{absent}");
    served.stop();
}

#[test]
fn the_tools_for_models_are_defined_for_each_api() {
    let tools = |format: &str| -> Value {
        let printed = command::run(&["output", "tools", "--format", format], &[]).output();
        serde_json::from_str(&printed).unwrap()
    };
    let cases = [
        ("openai-chat", ["/0/function", "/1/function"], "/parameters", false),
        ("openai-responses", ["/0", "/1"], "/parameters", false),
        ("anthropic-messages", ["/0", "/1"], "/input_schema", false),
        ("gemini-contents", ["/0/functionDeclarations/0", "/0/functionDeclarations/1"], "/parameters", true),
        ("bedrock-converse", ["/0/toolSpec", "/1/toolSpec"], "/inputSchema/json", false),
    ];
    for (format, places, schema, is_upper) in cases {
        let tools = tools(format);
        let name = |name: &str| json!(if is_upper { name.to_uppercase() } else { name.to_owned() });
        let [read, search] = places.map(|place| tools.pointer(place).unwrap());
        assert_eq!(
            (&read["name"], &search["name"]),
            (&json!("read_tool_output"), &json!("search_transcript"))
        );
        let [read, search] = [read, search].map(|tool| tool.pointer(schema).unwrap());
        assert_eq!((&read["type"], &read["required"]), (&name("object"), &json!(["ref"])));
        assert_eq!(read["properties"]["first_line"]["type"], name("integer"));
        assert_eq!(read["properties"].as_object().unwrap().len(), 9);
        assert_eq!(search["required"], json!(["pattern"]));
        assert_eq!(search["properties"]["roles"]["type"], name("array"));
        let roles = ["ROLE_SYSTEM", "ROLE_USER", "ROLE_MODEL", "ROLE_TOOL"];
        assert_eq!(search["properties"]["roles"]["items"], json!({"type": name("string"), "enum": roles}));
        // They are fields of the request.
        let request = fields("SearchTranscriptRequest");
        for parameter in search["properties"].as_object().unwrap().keys() {
            assert!(request.contains(parameter), "{parameter}");
        }
    }
    assert_eq!(tools("openai-chat")[1]["type"], "function");
    assert_eq!(tools("openai-responses")[1]["strict"], false);
    let refused = command::run(&["output", "tools", "--format", "opaque"], &[]);
    assert!(refused.stderr.contains("must be one of openai-chat"), "{refused:?}");
}

/// Names of a message's fields.
fn fields(message: &str) -> Vec<String> {
    let files = FileDescriptorSet::decode(pb::DESCRIPTORS).unwrap().file;
    let messages = files.into_iter().flat_map(|file| file.message_type);
    let message = messages.into_iter().find(|known| known.name() == message).unwrap();
    message.field.iter().map(|field| field.name().to_owned()).collect()
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

async fn a_model_s_calls_are_answered(backend: Backend) {
    let served = serve(&backend).await;
    let mut client = Client::connect(&served.address).await.unwrap();
    let session = pb::Session { format: pb::WireFormat::OpenaiChat.into(), ..pb::Session::default() };
    let create =
        pb::CreateSessionRequest { session_id: "s".to_owned(), session: Some(session), ..Default::default() };
    client.sessions.create_session(create).await.unwrap();
    let start = || Start {
        session: "sessions/s".to_owned(),
        tool_call_id: "c1".to_owned(),
        tool_name: "make".to_owned(),
        ..Default::default()
    };
    assert_eq!(client.tool_result(start(), "short").await.unwrap(), "short");
    assert_eq!(client.tool_result(start(), "").await.unwrap(), "");
    let line = |i| format!("{i}: line\n");
    let content: String = (1..=300_000).map(line).collect();
    let preview = client.tool_result(start(), content).await.unwrap();
    let place = preview.find("turnkeep://").unwrap();
    let reference: String =
        preview[place..].chars().take_while(|c| !c.is_whitespace() && *c != ']').collect();
    let call = json!({"id": "c1", "type": "function", "function": {"name": "make", "arguments": "{}"}});
    let payloads = [
        json!({"role": "assistant", "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "c1", "content": preview}),
    ];
    let entries =
        payloads.map(|payload| pb::NewEntry { payload: payload.to_string().into(), ..Default::default() });
    let append = pb::persist_transcript_request::Append { entries: entries.into() };
    let turn = pb::PersistTranscriptRequest {
        session: "sessions/s".to_owned(),
        request_id: "r".to_owned(),
        input: Some(pb::persist_transcript_request::Input::Append(append)),
        ..Default::default()
    };
    client.transcripts.persist_transcript(turn).await.unwrap();

    let mut answer = async |tool: &str, arguments: Value| {
        client.answer("sessions/s", tool, &arguments.to_string()).await.unwrap()
    };
    let read = "read_tool_output";
    let lines = json!({"ref": reference, "first_line": 5_000, "line_count": 2, "first_byte": null});
    assert_eq!(answer(read, lines).await.unwrap(), "5000: line\n5001: line\n");
    let bytes = json!({"ref": reference, "byte_count": 8});
    assert_eq!(answer(read, bytes).await.unwrap(), "1: line\n");
    let from_the_beginning = answer(read, json!({"ref": reference})).await.unwrap();
    assert!(from_the_beginning.starts_with("1: line\n2: line\n"), "{from_the_beginning:.40}");
    let (_, next) = from_the_beginning.rsplit_once("\n[go on with first_line ").unwrap();
    let next: u64 = next.trim_end_matches(']').parse().unwrap();
    assert!(from_the_beginning.contains(&format!("\n{}: line\n\n[go on", next - 1)));
    let rest = answer(read, json!({"ref": reference, "first_line": next, "line_count": 1})).await.unwrap();
    assert_eq!(rest, format!("{next}: line\n"));
    let grep = json!({"ref": reference, "pattern": "^1500:", "is_regex": true, "context_lines": 1});
    assert_eq!(answer(read, grep).await.unwrap(), "1499-1499: line\n1500:1500: line\n1501-1501: line\n");
    let part = answer(read, json!({"ref": reference, "first_byte": 3})).await.unwrap();
    let (part, next) = part.rsplit_once("\n[go on with first_byte ").unwrap();
    assert_eq!(next.trim_end_matches(']').parse::<usize>().unwrap(), 3 + part.len());
    let absent = answer(read, json!({"ref": reference, "pattern": "x"})).await.unwrap();
    assert_eq!(absent, "[nothing]");

    let search = "search_transcript";
    let found = answer(search, json!({"pattern": "make"})).await.unwrap();
    assert_eq!(found, "[seq 1 version 1 model call name, tool make, call c1]\nmake");
    let outputs = json!({"pattern": "150000:", "include_tool_outputs": true, "roles": ["ROLE_TOOL"]});
    let found = answer(search, outputs).await.unwrap();
    assert_eq!(found, format!("[ref {reference} line 150000, tool make, call c1]\n150000: line"));
    let found = answer(search, json!({"pattern": "line", "matches_max": 1})).await.unwrap();
    let (first, token) = found.rsplit_once("\n[go on with page_token ").unwrap();
    assert!(first.starts_with("[seq 2 version 1 tool result, tool make, call c1]\n1: line"), "{first}");
    let next = json!({"pattern": "line", "matches_max": 1, "page_token": token.trim_end_matches(']')});
    assert_ne!(answer(search, next).await.unwrap(), found);
    assert_eq!(answer(search, json!({"pattern": "nowhere"})).await.unwrap(), "[no match]");

    // What the model does wrong it is told.
    for (tool, arguments, problem) in [
        (read, json!({}), "error: missing field `ref`"),
        (read, json!({"ref": "x"}), "error: name: must have the form"),
        (read, json!({"ref": "sessions/s/outputs/0"}), "error: sessions/s/outputs/0 not found"),
        (search, json!({"pattern": "("  , "is_regex": true}), "error: pattern: regex parse error"),
        (
            search,
            json!({"pattern": "x", "roles": ["user"]}),
            "error: roles[0]: is 0, which is not a known role",
        ),
        (search, json!({"query": "x"}), "error: unknown field `query`"),
    ] {
        let told = answer(tool, arguments).await.unwrap();
        assert!(told.starts_with(problem), "{told}");
    }
    assert_eq!(answer("grep", json!({})).await, None);
    served.stop();
}

async fn a_transcript_is_searched(backend: Backend) {
    let served = serve(&backend).await;
    served.run(&["transcript", "import", "tests/data/readme/flaky-test.json", "--session", "flaky"]).output();
    let all = served.run(&["transcript", "search", "flaky", "test", "-i", "--limit", "0", "--json"]).json();
    assert!(all.len() > 2, "{all:?}");
    assert!(all.is_sorted_by_key(|found| std::cmp::Reverse(found["seq"].as_u64())), "{all:?}");
    let some = served.run(&["transcript", "search", "flaky", "test", "-i", "--limit", "2", "--json"]);
    assert!(some.stderr.contains("there may be more"), "{}", some.stderr);
    assert_eq!(some.json(), all[..2]);
    let args = ["transcript", "search", "flaky", "t[e]st", "--regex", "-i", "--oldest-first", "-C", "0"];
    let found = served.run(&args).output();
    let first = found.lines().next().unwrap();
    assert!(first == "2 v1 user text: test…", "{first}");
    let of_user = ["transcript", "search", "flaky", "test", "-i", "--role", "user", "--last", "2", "--json"];
    let found = served.run(&of_user).json();
    assert!(
        !found.is_empty() && found.iter().all(|found| found["role"] == "user" && found["seq"] == 2),
        "{found:?}"
    );
    let of_tool = ["transcript", "search", "flaky", "", "--regex", "--tool", "shell", "--json"];
    let refused = served.run(&of_tool).failure();
    assert!(refused.contains("INVALID_FIELD: pattern: has 0 bytes"), "{refused}");
    let of_tool = ["transcript", "search", "flaky", ".", "--regex", "--tool", "shell", "--outputs", "--json"];
    let found = served.run(&of_tool).json();
    assert!(!found.is_empty() && found.iter().all(|found| found["tool_name"] == "shell"), "{found:?}");
    served.stop();
}

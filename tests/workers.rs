//! The worker of docs/workers.md.
#![cfg(test)]
#![cfg(feature = "server")]

use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorSet};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};
use turnkeep::rpc::pb;
use turnkeep::server;
use turnkeep::settings::Settings;

const PAGE: &str = include_str!("../docs/workers.md");

/// The page's only block of a language.
fn block(language: &str) -> String {
    let mut lines = PAGE.lines().skip_while(|line| line.strip_prefix("```") != Some(language)).skip(1);
    lines.by_ref().take_while(|line| *line != "```").flat_map(|line| [line, "\n"]).collect()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Fields of all messages, by the part of their name behind the package; and all
/// values of enums.
fn known() -> (BTreeMap<String, BTreeSet<String>>, BTreeSet<String>) {
    fn add(prefix: &str, message: &DescriptorProto, fields: &mut BTreeMap<String, BTreeSet<String>>) {
        let name = format!("{prefix}{}", message.name());
        message.nested_type.iter().for_each(|nested| add(&format!("{name}."), nested, fields));
        let own = message.field.iter().map(|field| field.name().to_owned()).collect();
        fields.insert(name, own);
    }
    let (mut fields, mut values) = (BTreeMap::new(), BTreeSet::new());
    for file in FileDescriptorSet::decode(pb::DESCRIPTORS).unwrap().file {
        file.message_type.iter().for_each(|message| add("", message, &mut fields));
        let of_enums = file.enum_type.iter().flat_map(|kind| &kind.value);
        values.extend(of_enums.map(|value| value.name().to_owned()));
    }
    (fields, values)
}

/// What is between the parenthesis that a text begins with and its partner, but
/// for what stands in parentheses itself.
fn arguments(text: &str) -> String {
    let (mut depth, mut arguments) = (0, String::new());
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return arguments,
            ')' => depth -= 1,
            _ if depth == 1 => arguments.push(c),
            _ => {}
        }
    }
    panic!("{text} is not closed");
}

#[test]
fn the_worker_in_python_names_what_the_proto_has() {
    let (fields, values) = known();
    let worker = block("python");
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut messages = 0;
    for (at, marker) in worker.match_indices("_pb2.") {
        let rest = &worker[at + marker.len()..];
        let end = rest.find(|c| !is_word(c) && c != '.').unwrap();
        let (name, rest) = rest.split_at(end);
        if values.contains(name) {
            continue;
        }
        let fields = fields.get(name).unwrap_or_else(|| panic!("the proto has no {name}"));
        messages += 1;
        let lines = arguments(rest);
        let lines = lines.lines().filter(|line| !line.trim_start().starts_with('#'));
        for argument in lines.flat_map(|line| line.split(',')) {
            let Some((field, _)) = argument.split_once('=') else { continue };
            assert!(fields.contains(field.trim()), "{name} has no field {field}");
        }
    }
    assert_eq!(messages, 13);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_worker_in_python_runs_as_it_stands() {
    let has_grpc = Command::new("python3").args(["-c", "import grpc, grpc_tools"]).output();
    if !has_grpc.is_ok_and(|output| output.status.success()) {
        println!("skipped: python3 has no grpcio and grpcio-tools");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let stubs = directory.path().join("stubs");
    let shell = block("sh");
    let (_, generate) = shell.trim_end().split_once('\n').unwrap();
    let generate = generate.replace("stubs", stubs.to_str().unwrap());
    said(
        &Command::new("sh")
            .args(["-euc", &generate])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap(),
    );

    let flags = [
        format!("store.data_dir={}", directory.path().join("data").display()),
        "server.listen=127.0.0.1:0".to_owned(),
        "server.http_listen=127.0.0.1:0".to_owned(),
    ];
    let running = server::start(&Settings::load(None, [], &flags).unwrap(), None).await.unwrap();
    let address = format!("http://{}", running.grpc);
    let run = async || {
        let (stubs, address, worker) = (stubs.clone(), address.clone(), block("python"));
        tokio::task::spawn_blocking(move || work(&worker, &stubs, &address)).await.unwrap()
    };
    let [hi, one] = [
        r#"{"role": "user", "content": "hi"}"#,
        r#"{"role": "assistant", "content": "an answer to 1 messages"}"#,
    ];
    assert_eq!(run().await, [hi, one]);
    // Another worker begins with the window of the first.
    let three = r#"{"role": "assistant", "content": "an answer to 3 messages"}"#;
    assert_eq!(run().await, [hi, one, hi, three]);
    let tools = [&block("python"), TOOLS].concat();
    let answers = tokio::task::spawn_blocking(move || work(&tools, &stubs, &address)).await.unwrap();
    assert_eq!(answers[answers.len() - 1], "all answers are right");
    running.stop().await;
}

/// What a model may call for, behind the worker.
const TOOLS: &str = r#"
import re
from turnkeep.v1 import tool_output_service_pb2_grpc

channel = grpc.insecure_channel(os.environ["TURNKEEP_ADDRESS"].removeprefix("http://"))
outputs = tool_output_service_pb2_grpc.ToolOutputServiceStub(channel)
transcripts = transcript_service_pb2_grpc.TranscriptServiceStub(channel)
assert tool_result(outputs, "c1", "make", b"short \xff") == "short \ufffd"
content = b"".join(b"%d: line\n" % line for line in range(1, 300001))
preview = tool_result(outputs, "c1", "make", content)
assert preview.startswith("1: line\n2: line\n") and len(preview) < 80000
ref = re.search(r"turnkeep://[\w:./-]*\w", preview).group()


def read(**arguments):
    return read_tool_output(outputs, {"ref": ref, **arguments})


assert read(first_line=5000, line_count=2) == "5000: line\n5001: line\n"
assert read(first_line=-1) == "300000: line\n"
assert read(first_byte=3, byte_count=4) == "line"
assert read(pattern="^7.7:", is_regex=True, context_lines=0).splitlines()[1] == "717:717: line"
assert read(pattern="nowhere") == "[nothing]"
begun, next_line = re.fullmatch(r"(?s)(.*)\n\[go on with first_line (\d+)\]", read()).groups()
assert begun == "".join(f"{line}: line\n" for line in range(1, int(next_line)))
found = search_transcript(transcripts, {"pattern": "answer to 3", "roles": ["ROLE_MODEL"]})
assert re.fullmatch(r"(\[seq \d+ \]\nan answer to 3 messages\n?)+", found), found
outputs_too = {"pattern": "299999:", "include_tool_outputs": True}
assert search_transcript(transcripts, outputs_too) == f"[ref {ref} line 299999 make]\n299999: line"
assert "go on with page_token" in search_transcript(transcripts, {"pattern": "a", "matches_max": 1})
print("all answers are right")
"#;

fn work(worker: &str, stubs: &Path, address: &str) -> Vec<String> {
    let own = std::env::var("PYTHONPATH").unwrap_or_default();
    let mut command = Command::new("python3");
    command.args(["-c", worker]).env("PYTHONPATH", format!("{}:{own}", stubs.display()));
    said(&command.env("TURNKEEP_ADDRESS", address).output().unwrap()).lines().map(str::to_owned).collect()
}

//! What the README says is run.
#![cfg(test)]
#![cfg(feature = "server")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use turnkeep::server::{self, Running};
use turnkeep::settings::Settings;

const README: &str = include_str!("../README.md");
const THIS_FILE: &str = include_str!("readme.rs");

/// The code blocks of a language, in order, each with the heading above it.
fn blocks(language: &str) -> Vec<(String, String)> {
    let (mut found, mut heading) = (Vec::new(), String::new());
    let mut lines = README.lines();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("## ") {
            title.clone_into(&mut heading);
        } else if line.strip_prefix("```") == Some(language) {
            let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            found.push((heading.clone(), block.join("\n")));
        }
    }
    found
}

async fn start(data_dir: &Path, more: &[String]) -> Running {
    let mut flags = vec![
        format!("store.data_dir={}", data_dir.display()),
        "server.listen=127.0.0.1:0".to_owned(),
        "server.http_listen=127.0.0.1:0".to_owned(),
        "sweep.grace_seconds=0".to_owned(),
    ];
    flags.extend_from_slice(more);
    server::start(&Settings::load(None, [], &flags).unwrap(), None).await.unwrap()
}

/// Runs a block of shell as a newcomer would, from the root of the repository.
fn sh(block: &str, variables: &BTreeMap<&str, String>) -> String {
    let output = Command::new("sh")
        .args(["-euc", block])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .envs(variables)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{block}\n{}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout) + &text(&output.stderr)
}

/// A path on which the binary and `buf` are found.
fn path() -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_turnkeep")).parent().unwrap().display().to_string();
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/tool.sh");
    let buf = Command::new(tool).arg("buf").output().unwrap();
    assert!(buf.status.success(), "{}", String::from_utf8_lossy(&buf.stderr));
    let buf = String::from_utf8(buf.stdout).unwrap();
    format!("{binary}:{}:{}", buf.trim(), std::env::var("PATH").unwrap())
}

#[test]
fn the_two_commands_are_there() {
    let (heading, block) = blocks("sh").swap_remove(0);
    assert_eq!(heading, "Start");
    let commands: Vec<_> = block.lines().map(|line| line.split('#').next().unwrap().trim()).collect();
    assert_eq!(commands, ["make run", "make test"]);
    let make = |target: &str| {
        let output =
            Command::new("make").args(["-n", target]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert!(make("run").contains("cargo run -- serve"));
    assert!(make("test").contains("with-services.sh"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shell_blocks_run_as_they_stand() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(directory.path(), &[]).await;
    // Deletions are erased when the upkeep comes by, which takes a minute.
    let engine = running.engine().clone();
    let erasing = tokio::spawn(async move {
        loop {
            engine.bury().await.unwrap();
            turnkeep::clock::sleep(std::time::Duration::from_millis(100)).await;
        }
    });
    let address = format!("http://{}", running.grpc);
    worker::calls_a_tool(&address).await;
    let variables = BTreeMap::from([("TURNKEEP_ADDRESS", address), ("PATH", path())]);
    let expected = [
        ("1. Call it from a worker", r#""version": "1""#),
        ("2. Bring in a transcript that you have", "flaky"),
        ("3. See what a model would be sent", "unanswered: shell toolu_03"),
        ("4. Go back", "erased"),
        ("5. Keep long tool results out of the window", "5007:error[E0308]: mismatched types"),
    ];
    let blocks = blocks("sh");
    tokio::task::spawn_blocking(move || {
        for (heading, words) in expected {
            let block = blocks.iter().find(|(above, _)| above == heading).map(|(_, block)| block).unwrap();
            let said = sh(block, &variables);
            assert!(said.contains(words), "{heading}: {said}");
        }
    })
    .await
    .unwrap();
    erasing.abort();
    running.stop().await;
}

/// The variables of section 6, with the test's services in their places.
#[tokio::test(flavor = "multi_thread")]
async fn it_runs_on_postgres_and_s3_by_the_variables_that_it_names() {
    let service = |name: &str| std::env::var(name).ok();
    let (Some(postgres), Some(endpoint), Some(bucket)) = (
        service("TURNKEEP_TEST_POSTGRES"),
        service("TURNKEEP_TEST_S3_ENDPOINT"),
        service("TURNKEEP_TEST_S3_BUCKET"),
    ) else {
        println!("skipped: no Postgres and S3 (`make test` brings them)");
        return;
    };
    let (_, block) = blocks("sh").into_iter().find(|(heading, _)| heading == "6. Run it for real").unwrap();
    let schema = format!("readme_{}", std::process::id());
    sh(&format!("psql -q {postgres} -c 'CREATE SCHEMA {schema}'"), &BTreeMap::new());
    let url = format!("{postgres}?options=-c%20search_path%3D{schema}");
    let block = block
        .replace("postgres://user:password@host/database", &url)
        .replace("BUCKET=transcripts", &format!("BUCKET={bucket}"))
        .replace(
            "turnkeep serve",
            "turnkeep serve --set server.listen=127.0.0.1:0 --set server.http_listen=127.0.0.1:0 >log 2>&1 & serving=$!\n\
             until grep -q 'turnkeep listens' log; do kill -0 $serving; done\n\
             kill $serving; wait $serving; cat log",
        );
    let directory = tempfile::tempdir().unwrap();
    let variables = BTreeMap::from([
        ("PATH", path()),
        ("TURNKEEP_BLOBS_ENDPOINT", endpoint),
        ("TURNKEEP_BLOBS_PATH_STYLE", "true".to_owned()),
        ("TURNKEEP_BLOBS_PREFIX", format!("{schema}/")),
    ]);
    let block = format!("cd {}\n{block}", directory.path().display());
    let said = tokio::task::spawn_blocking(move || sh(&block, &variables)).await.unwrap();
    assert!(said.contains("applied migrations [1, 2, 3, 4]"), "{said}");
    assert!(said.contains("turnkeep has stopped"), "{said}");
}

mod worker {
    // The README's example, word for word, from here …
    use turnkeep::client::{Client, Window};
    use turnkeep::rpc::pb;
    use turnkeep::rpc::pb::persist_transcript_request::{Append, Input};

    async fn work(address: &str) -> Result<(), Box<dyn std::error::Error>> {
        let mut client = Client::connect(address).await?; // http://127.0.0.1:50051
        let session = pb::Session { format: pb::WireFormat::OpenaiChat.into(), ..Default::default() };
        let create = pb::CreateSessionRequest {
            session_id: "demo".into(),
            session: Some(session),
            ..Default::default()
        };
        client.sessions.create_session(create).await?;
        let mut window = Window::default();
        while there_is_work() {
            step(&mut client, &mut window).await?;
        }
        Ok(())
    }

    async fn step(client: &mut Client, window: &mut Window) -> Result<(), Box<dyn std::error::Error>> {
        // What to send to the model: only what the window lacks is transferred.
        let request = pb::RestoreTranscriptRequest { session: "sessions/demo".into(), ..Default::default() };
        let header = client.restore(window, request).await?;
        let messages = window.items.iter().map(|item| item.payload.clone()).collect::<Vec<_>>();

        // What came of it: one turn, all or nothing.
        let answer = call_your_model(&messages);
        let entries = vec![pb::NewEntry { payload: answer.into(), ..Default::default() }];
        let turn = pb::PersistTranscriptRequest {
            session: "sessions/demo".into(),
            // Random: a retry of this request repeats it, and no other worker has it.
            request_id: new_id(),
            expected_version: Some(header.version),
            window_id: window.id.clone(),
            input: Some(Input::Append(Append { entries: entries.clone() })),
            ..Default::default()
        };
        let committed = client.transcripts.persist_transcript(turn).await?.into_inner();
        window.extend(&entries, &committed);
        Ok(())
    }
    // … to here.

    mod tools {
        use super::run_your_tool;
        use serde_json::json;

        // And the second one.
        use turnkeep::client::{Client, ClientError};
        use turnkeep::rpc::pb::offload_tool_output_request::Start;

        /// Does what the model called for; gives the message to persist, as `step` does.
        async fn tool_message(
            client: &mut Client,
            call_id: &str,
            tool: &str,
            arguments: &str,
        ) -> Result<String, ClientError> {
            // The tools of `turnkeep output tools --format openai-chat`, which the model was offered.
            let content = if let Some(answer) = client.answer("sessions/demo", tool, arguments).await? {
                answer
            } else {
                let start = Start {
                    session: "sessions/demo".into(),
                    tool_call_id: call_id.into(),
                    tool_name: tool.into(),
                    ..Default::default()
                };
                // What your tool gives out, or a preview of it with a ref if it is too long.
                client.tool_result(start, run_your_tool(tool, arguments)).await?
            };
            Ok(json!({"role": "tool", "tool_call_id": call_id, "content": content}).to_string())
        }
        // To here.

        /// The content of the message.
        pub(super) async fn content(client: &mut Client, tool: &str, arguments: &str) -> String {
            let message = tool_message(client, "call_1", tool, arguments).await.unwrap();
            let message: serde_json::Value = serde_json::from_str(&message).unwrap();
            message["content"].as_str().unwrap().to_owned()
        }
    }

    /// A build with an error in the middle of its log.
    fn run_your_tool(_tool: &str, _arguments: &str) -> String {
        let line = |i| match i {
            5_007 => "error[E0308]: mismatched types\n".to_owned(),
            i => format!("warning: unused variable `value_{i}`\n"),
        };
        (1..=10_000).map(line).collect()
    }

    /// Does the work of the second example in the session of the first.
    pub(super) async fn calls_a_tool(address: &str) {
        let mut client = Client::connect(address).await.unwrap();
        let session = pb::Session { format: pb::WireFormat::OpenaiChat.into(), ..Default::default() };
        let create = pb::CreateSessionRequest {
            session_id: "demo".into(),
            session: Some(session),
            ..Default::default()
        };
        client.sessions.create_session(create).await.unwrap();
        let preview = tools::content(&mut client, "build", "{}").await;
        assert!(preview.len() < 80_000 && !preview.contains("E0308"), "{preview}");
        let place = preview.find("turnkeep://sessions/demo/outputs/").unwrap();
        let reference: String = preview[place..].chars().take_while(|c| !c.is_whitespace()).collect();
        let reference = reference.trim_end_matches([']', '.', ',']);
        let arguments = serde_json::json!({"ref": reference, "pattern": "E0308"}).to_string();
        let found = tools::content(&mut client, "read_tool_output", &arguments).await;
        assert_eq!(found, "5007:error[E0308]: mismatched types\n");
    }

    fn call_your_model(messages: &[bytes::Bytes]) -> Vec<u8> {
        format!(r#"{{"role":"assistant","content":"answer to {} messages"}}"#, messages.len()).into_bytes()
    }

    fn new_id() -> String {
        turnkeep::entropy::Entropy::from_os().hex::<16>()
    }

    /// Three times.
    fn there_is_work() -> bool {
        static LEFT: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(3);
        let less = |left: u8| left.checked_sub(1);
        let (before, after) = (std::sync::atomic::Ordering::SeqCst, std::sync::atomic::Ordering::SeqCst);
        LEFT.fetch_update(before, after, less).is_ok()
    }

    /// What stands here between two lines.
    fn here(first: &str, end: &str, indent: &str) -> String {
        let start = super::THIS_FILE.find(&format!("{indent}{first}")).unwrap();
        let end = super::THIS_FILE.find(&format!("{indent}{end}")).unwrap();
        let lines = super::THIS_FILE[start..end].lines();
        let lines: Vec<_> = lines.map(|line| line.strip_prefix(indent).unwrap_or(line)).collect();
        lines.join("\n").trim_end().to_owned()
    }

    #[test]
    fn the_examples_are_the_ones_that_are_run() {
        let blocks: Vec<_> = super::blocks("rust").into_iter().map(|(_, block)| block).collect();
        let first = here("use turnkeep::client::{Client, Window};", "// … to here.", "    ");
        let second = here("use turnkeep::client::{Client, ClientError};", "// To here.", "        ");
        assert_eq!(blocks, [first, second]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_worker_that_does_as_the_example_keeps_its_window() {
        let directory = tempfile::tempdir().unwrap();
        let running = super::start(directory.path(), &[]).await;
        let address = format!("http://{}", running.grpc);
        work(&address).await.unwrap();
        let mut client = Client::connect(&address).await.unwrap();
        let mut window = Window::default();
        let restore = pb::RestoreTranscriptRequest { session: "sessions/demo".into(), ..Default::default() };
        client.restore(&mut window, restore).await.unwrap();
        let answers: Vec<_> = window.items.iter().map(|item| item.payload.clone()).collect();
        let expected =
            (0..3).map(|n| format!(r#"{{"role":"assistant","content":"answer to {n} messages"}}"#));
        assert_eq!(answers, expected.collect::<Vec<_>>());
        running.stop().await;
    }
}

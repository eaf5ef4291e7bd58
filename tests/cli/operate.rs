//! What operators run: serve, migrate, fsck, and the settings.

use crate::backends::{Backend, on_backend};
use crate::command::{self, Served};
use crate::{CLAUDE_CODE, CONVERSATION, migrate, serve};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

on_backend!(
    sqlite_local,
    SqliteLocal,
    a_store_is_rebuilt_and_served_from,
    signals_end_a_service_in_order,
    the_metrics_are_those_that_are_documented
);
on_backend!(sqlite_s3, SqliteS3, a_store_is_rebuilt_and_served_from);
on_backend!(
    postgres_s3,
    PostgresS3,
    a_store_is_rebuilt_and_served_from,
    a_schema_is_made_before_it_is_served,
    signals_end_a_service_in_order,
    fsck_checks_beside_a_service
);
on_backend!(
    embedded,
    SqliteLocal,
    a_second_service_on_a_data_directory_is_refused,
    fsck_checks_beside_a_service,
    fsck_finds_what_is_missing_and_deep_what_is_altered
);

fn with(variables: &[(String, String)], name: &str, value: &str) -> Vec<(String, String)> {
    let mut variables = variables.to_vec();
    variables.retain(|(other, _)| other != name);
    variables.push((name.to_owned(), value.to_owned()));
    variables
}

async fn a_schema_is_made_before_it_is_served(backend: Backend) {
    let variables = backend.variables();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--set", "server.http_listen=127.0.0.1:0"];
    let failure = command::run(&serve, &variables).failure();
    assert!(failure.contains("run the migrations"), "{failure}");
    let migrated = command::run(&["migrate"], &variables);
    assert!(migrated.stderr.starts_with("applied migrations [1"), "{}", migrated.stderr);
    let migrated = command::run(&["migrate"], &variables);
    assert_eq!((migrated.status.code(), &migrated.stderr[..]), (Some(0), "the schema is up to date\n"));
    Served::start(&variables, &[]).await.stop();
}

/// Everything that the command tells of a session, but what a rebuild cannot
/// know.
fn told(served: &Served, name: &str) -> Value {
    let [mut session] =
        served.run(&["session", "show", name, "--turns", "1000", "--json"]).json().try_into().unwrap();
    for unknown in ["etag", "update_time", "window_revision", "stored_bytes"] {
        session.as_object_mut().unwrap().remove(unknown);
    }
    let log = served.run(&["transcript", "show", name, "--json"]).json();
    let window = served.run(&["transcript", "show", name, "--window", "--json"]).json();
    json!({"session": session, "log": log, "window": window})
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, name) = (entry.as_ref().unwrap().path(), entry.unwrap().file_name());
        if from.is_dir() {
            copy_directory(&from, &to.join(name));
        } else {
            fs::copy(&from, to.join(name)).unwrap();
        }
    }
}

async fn a_store_is_rebuilt_and_served_from(backend: Backend) {
    let variables = backend.variables();
    migrate(&backend);
    let served = Served::start(&variables, &["seal.when=every_turn"]).await;
    served.run(&["transcript", "import", CONVERSATION, "--session", "flaky"]).output();
    served.run(&["transcript", "import", CLAUDE_CODE, "--session", "gone", "--verbatim"]).output();
    served.run(&["session", "fork", "flaky", "--version", "3", "--id", "fork"]).output();
    served.run(&["transcript", "import", CONVERSATION, "--session", "rewound"]).output();
    served.run(&["session", "rewind", "rewound", "--version", "2"]).output();
    let more = backend.data_dir().join("more.json");
    let messages = r#"[{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_03","content":"20 passed"}]}]"#;
    fs::write(&more, messages).unwrap();
    served
        .run(&["transcript", "import", more.to_str().unwrap(), "--source", "anthropic", "--session", "small"])
        .output();
    served.run(&["session", "delete", "gone"]).output();
    let names = ["flaky", "fork", "rewound", "small"];
    let before = names.map(|name| told(&served, name));
    served.stop();
    let sound = command::run(&["fsck", "--deep", "--json"], &variables).json();
    assert_eq!((&sound[0]["sessions"], &sound[0]["findings"]), (&json!(4), &json!([])));

    let target = tempfile::tempdir().unwrap();
    let target = target.path().join("new");
    let rebuild = ["fsck", "--rebuild", "--target", target.to_str().unwrap(), "--json"];
    let rebuilt = command::run(&rebuild, &variables);
    let report: Value = serde_json::from_slice(&rebuilt.stdout).unwrap();
    // Of the session that was deleted some blob is still there, and no more.
    let counts = ["deleted", "sessions", "findings"].map(|count| &report[count]);
    assert_eq!(counts, [&json!(1), &json!(4), &json!([])], "{report}");
    let left_out = report["not_in_blobs"].as_str().unwrap();
    assert!(left_out.contains("changes of configuration"), "{report}");
    assert!(rebuilt.stderr.contains(left_out), "{}", rebuilt.stderr);
    let failure = command::run(&rebuild, &variables);
    assert_eq!(failure.status.code(), Some(1));
    assert!(failure.stderr.contains("is not empty"), "{}", failure.stderr);

    let check = ["fsck", "--deep", "--target", target.to_str().unwrap(), "--json"];
    let sound = command::run(&check, &variables).json();
    assert_eq!((&sound[0]["sessions"], &sound[0]["findings"]), (&json!(4), &json!([])));

    let blobs = backend.data_dir().join("blobs");
    if blobs.is_dir() {
        copy_directory(&blobs, &target.join("blobs"));
    }
    let mut candidate = with(&variables, "TURNKEEP_STORE_DATA_DIR", target.to_str().unwrap());
    candidate.retain(|(name, _)| name != "TURNKEEP_STORE_METADATA");
    let served = Served::start(&candidate, &[]).await;
    assert_eq!(names.map(|name| told(&served, name)), before);
    let failure = served.run(&["session", "show", "gone"]).failure();
    assert!(failure.contains("SESSION_NOT_FOUND"), "{failure}");
    let failure = served.run(&["transcript", "import", CLAUDE_CODE, "--session", "gone"]).failure();
    assert!(failure.contains("SESSION_EXISTS"), "the id stays taken: {failure}");
    let fork =
        served.run(&["session", "fork", "flaky", "--version", "5", "--id", "goes-on", "--json"]).json();
    assert_eq!(fork[0]["version"], 6, "and it goes on from there");
    served.stop();
    let sound = command::run(&["fsck", "--deep", "--json"], &candidate).json();
    assert_eq!(sound[0]["findings"], json!([]));
}

async fn signals_end_a_service_in_order(backend: Backend) {
    for signal in ["TERM", "INT"] {
        let served = serve(&backend).await;
        served.run(&["transcript", "import", CONVERSATION, "--session", signal]).output();
        let address = served.address.clone();
        let (status, log) = served.end(signal);
        assert_eq!(status.code(), Some(0), "{log:#?}");
        let has = |message: &str| log.iter().any(|line| line.contains(message));
        assert!(has("turnkeep drains") && has("turnkeep has stopped"), "{log:#?}");
        command::run(&["session", "list", "--address", &address], &[]).failure();
    }
    let served = serve(&backend).await;
    assert_eq!(served.run(&["session", "list", "--json"]).json().len(), 2, "nothing is lost");
    served.stop();
}

async fn a_second_service_on_a_data_directory_is_refused(backend: Backend) {
    let served = serve(&backend).await;
    let second = ["serve", "--listen", "127.0.0.1:0", "--set", "server.http_listen=127.0.0.1:0"];
    let failure = command::run(&second, &backend.variables()).failure();
    let expected = format!("another process uses {}", backend.data_dir().display());
    assert!(failure.contains(&expected), "{failure}");
    served.run(&["transcript", "import", CONVERSATION]).output();
    // One that was killed leaves no lock behind.
    let (status, _) = served.end("KILL");
    assert!(!status.success());
    let served = serve(&backend).await;
    assert_eq!(served.run(&["session", "list", "--json"]).json().len(), 1);
    served.stop();
}

async fn fsck_checks_beside_a_service(backend: Backend) {
    let served = serve(&backend).await;
    served.run(&["transcript", "import", CONVERSATION, "--session", "flaky"]).output();
    served.run(&["session", "rewind", "flaky", "--version", "2"]).output();
    for (deep, entries) in [(false, 0), (true, 7)] {
        let mut args = vec!["fsck", "--json"];
        args.extend(deep.then_some("--deep"));
        let [report] = command::run(&args, &backend.variables()).json().try_into().unwrap();
        let counts = ["sessions", "branches", "turns", "segments", "entries", "orphans", "findings"];
        assert_eq!(
            counts.map(|count| report[count].clone()),
            [json!(1), json!(2), json!(7), json!(0), json!(entries), json!(0), json!([])]
        );
    }
    served.run(&["transcript", "show", "flaky"]).output();
    served.stop();
}

async fn fsck_finds_what_is_missing_and_deep_what_is_altered(backend: Backend) {
    let variables = backend.variables();
    let served = Served::start(&variables, &["seal.when=every_turn"]).await;
    served.run(&["transcript", "import", CONVERSATION]).output();
    served.stop();
    let keys = backend.blob_keys().await;
    let segment = keys.iter().find(|key| key.contains("/s-")).unwrap();
    let path = backend.data_dir().join("blobs").join(segment);
    let sound = fs::read(&path).unwrap();
    let mut altered = sound.clone();
    altered[sound.len() / 2] ^= 1;

    fs::write(&path, &altered).unwrap();
    command::run(&["fsck"], &variables).output();
    let found = command::run(&["fsck", "--deep"], &variables);
    assert_eq!(found.status.code(), Some(1));
    assert!(String::from_utf8(found.stdout).unwrap().contains(segment), "{}", found.stderr);
    assert!(found.stderr.contains("1 finding"), "{}", found.stderr);

    fs::remove_file(&path).unwrap();
    for args in [&["fsck", "--json"][..], &["fsck", "--deep", "--json"]] {
        let found = command::run(args, &variables);
        assert_eq!(found.status.code(), Some(1));
        let report: Value = serde_json::from_slice(&found.stdout).unwrap();
        let problem = report["findings"][0]["problem"].as_str().unwrap();
        assert_eq!(problem, format!("blob {segment} is missing"));
    }
    fs::write(&path, &sound).unwrap();
    command::run(&["fsck", "--deep"], &variables).output();
}

/// The body of an answer over HTTP.
pub(crate) fn http_get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: turnkeep\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    body.to_owned()
}

async fn the_metrics_are_those_that_are_documented(backend: Backend) {
    const PAGE: &str = include_str!("../../docs/operations.md");
    let served = Served::start(&backend.variables(), &["seal.when=every_turn"]).await;
    let metrics = http_get(&served.http, "/metrics");
    for line in [
        concat!("turnkeep_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        "turnkeep_damaged_blobs_total 0",
        "turnkeep_unknown_commits_total 0",
        "turnkeep_upkeep_failures_total{work=\"sweep\"} 0",
        "turnkeep_restores_total{change=\"rewound\"} 0",
    ] {
        assert!(metrics.lines().any(|shown| shown == line), "{line} is not there at the start: {metrics}");
    }
    served.run(&["replay", CONVERSATION, CLAUDE_CODE]).output();
    served.run(&["session", "show", "none"]).failure();
    let metrics = http_get(&served.http, "/metrics");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names_in = |text: &'static str| {
        text.split(|c| !is_name(c)).filter(|name| name.starts_with("turnkeep_")).collect::<BTreeSet<_>>()
    };
    let documented = names_in(PAGE);
    let lines = metrics.lines().filter(|line| !line.starts_with('#'));
    let names: BTreeSet<_> =
        lines.filter_map(|line| line.split(|c| !is_name(c)).next()).filter(|name| !name.is_empty()).collect();
    let base = |name: &str| {
        let parts = ["_bucket", "_sum", "_count"];
        parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name).to_owned()
    };
    for name in &names {
        assert!(documented.contains(&base(name)[..]), "docs/operations.md lacks {name}");
        assert!(metrics.contains(&format!("# HELP {} ", base(name))), "{name} has no help");
    }
    let labels = ["turnkeep_restores_total", "turnkeep_window_cache_total"]
        .map(|name| metrics.lines().filter(|line| line.starts_with(name)).count());
    assert_eq!(labels, [8, 3], "the labels at the start are those of events");
    let expected = [
        "turnkeep_requests_total{method=\"PersistTranscript\",code=\"Ok\"}",
        "turnkeep_requests_total{method=\"GetSession\",code=\"NotFound\"} 1",
        "turnkeep_request_seconds_bucket{method=\"RestoreTranscript\",le=\"0.5\"}",
        "turnkeep_turns_total ",
        "turnkeep_persisted_payload_bytes_total ",
        "turnkeep_restores_total{change=\"unchanged\"}",
        "turnkeep_restores_total{change=\"not_conditional\"}",
        "turnkeep_restored_payload_bytes_total ",
        "turnkeep_window_cache_total{outcome=\"",
        "turnkeep_blob_requests_total{operation=\"put\",outcome=\"ok\"}",
        "turnkeep_blob_bytes_total{operation=\"put\"}",
        "turnkeep_blob_request_seconds_bucket{operation=\"put\",le=\"",
    ];
    for line in expected {
        assert!(metrics.lines().any(|shown| shown.starts_with(line)), "{line} is not in\n{metrics}");
    }
    served.stop();
}

#[test]
fn a_wrong_setting_is_told_by_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = |text: &str| {
        let path = directory.path().join("turnkeep.toml");
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let variable = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    let cases = [
        (vec!["--set", "server.lissen=x"], vec![], "--set server.lissen is not a setting"),
        (vec!["--set", "server.listen=x"], vec![], "--set server.listen: invalid socket address"),
        (
            vec!["--set", "server.drain_grace_seconds=soon"],
            vec![],
            "server.drain_grace_seconds: must be a whole number",
        ),
        (vec!["--set", "server.reflection=perhaps"], vec![], "server.reflection: must be true or false"),
        (vec!["--set", "blobs.kind=s3"], vec![], "blobs.bucket: is needed when blobs.kind is \"s3\""),
        (vec!["--set", "blobs.kind=tape"], vec![], "--set blobs.kind: unknown variant `tape`"),
        (vec![], variable("TURNKEEP_SEAL_WHEN", "never"), "TURNKEEP_SEAL_WHEN: unknown variant `never`"),
        (vec![], variable("TURNKEEP_SERVER_LISSEN", "x"), "TURNKEEP_SERVER_LISSEN is not a setting"),
        (vec![], variable("TURNKEEP_SEAL_RAW_BYTES", "x"), "TURNKEEP_SEAL_RAW_BYTES"),
        (vec!["--config", "/none/turnkeep.toml"], vec![], "cannot read /none/turnkeep.toml"),
    ];
    for (mut args, variables, said) in cases {
        args.insert(0, "serve");
        let failure = command::run(&args, &variables).failure();
        assert!(
            failure.starts_with("turnkeep: ") && failure.contains(said),
            "{args:?} {variables:?}: {failure}"
        );
    }
    for (text, said) in [
        ("[server]\nlissen = 1", "lissen"),
        ("[server]\nlisten = 1", "turnkeep.toml:2: invalid type: integer `1`"),
        ("[sweeep]", "sweeep"),
        ("[profiles.a]\nmodel = \"m\"", "profiles.a.context_window_tokens"),
        ("not toml", "turnkeep.toml"),
    ] {
        let file = file(text);
        let failure = command::run(&["serve", "--config", &file], &[]).failure();
        assert!(failure.contains(said), "{text}: {failure}");
    }
}

#[tokio::test]
async fn secrets_are_never_printed() {
    let directory = tempfile::tempdir().unwrap();
    let set = |metadata: &str| {
        let data = directory.path().join("data").display().to_string();
        [
            ("TURNKEEP_STORE_DATA_DIR", data.as_str()),
            ("TURNKEEP_STORE_METADATA", metadata),
            ("TURNKEEP_STORE_ACQUIRE_SECONDS", "1"),
            ("TURNKEEP_LOG_LEVEL", "trace"),
            ("TURNKEEP_BLOBS_KIND", "s3"),
            ("TURNKEEP_BLOBS_BUCKET", "b"),
            ("TURNKEEP_BLOBS_ENDPOINT", "http://127.0.0.1:1"),
            ("TURNKEEP_BLOBS_PATH_STYLE", "true"),
            ("AWS_ACCESS_KEY_ID", "someone"),
            ("AWS_SECRET_ACCESS_KEY", "hunter3"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_MAX_ATTEMPTS", "1"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
            ("RUST_BACKTRACE", "1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    let free_ports = ["--set", "server.listen=127.0.0.1:0", "--set", "server.http_listen=127.0.0.1:0"];
    for metadata in [
        "postgres://someone:hunter2@127.0.0.1:1/db",
        "postgres://someone:hunter2@127.0.0.1:port/db",
        "postgres://someone:hunter2@[::1/db",
        "mysql://someone:hunter2@127.0.0.1/db",
        "hunter2",
        "sqlite",
    ] {
        for args in [&["serve"][..], &["migrate"], &["fsck"]] {
            let mut args = args.to_vec();
            if metadata == "sqlite" && args == ["serve"] {
                // It starts, though the object store is not there.
                let (_, log) = Served::start(&set(metadata), &[]).await.end("TERM");
                let log = log.concat();
                assert!(log.contains("cannot be used yet") && !log.contains("hunter"), "{log}");
                continue;
            }
            args.extend(free_ports);
            let ran = command::run(&args, &set(metadata));
            if metadata != "sqlite" || args[0] != "migrate" {
                assert_eq!(ran.status.code(), Some(1), "{args:?} {metadata}: {}", ran.stderr);
            }
            let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &ran.stderr;
            assert!(!said.contains("hunter"), "{args:?} {metadata}: {said}");
        }
    }
    let flag = command::run(&["serve", "--set", "store.metadata=mysql://someone:hunter2@localhost/db"], &[]);
    assert!(!flag.failure().contains("hunter2"));
}
